//! Topology files as written: every value with its place, nothing judged but its type.
//!
//! A value of the wrong type is reported while parsing and then absent here; `validate` must not take absence of an
//! optional key for a sign that the file does not mention it, but nothing it reports may depend on that.

use std::collections::BTreeMap;

use super::model::Argument;
use crate::problem::Place;

/// A value and where it is written.
#[derive(Clone, Debug)]
pub(super) struct At<T> {
    pub value: T,
    pub place: Place,
}

/// `[bridge.<name>]`.
#[derive(Clone, Debug)]
pub(super) struct Bridge {
    /// Its place is the name in the header.
    pub name: At<String>,
    pub exchange: Option<At<String>>,
    pub work_exchange: Option<WorkExchange>,
    pub tiers: Vec<At<String>>,
    pub default_delay: Option<At<String>>,
    pub native: Option<At<bool>>,
    pub cancellable: Option<At<bool>>,
    pub long: Option<At<String>>,
    pub broker_limit: Option<At<String>>,
    pub max_delay: Option<At<String>>,
    pub queue_type: Option<At<String>>,
    pub queues: Vec<Queue>,
}

/// `work_exchange = { … }`, or its name alone.
#[derive(Clone, Debug)]
pub(super) struct WorkExchange {
    pub name: Option<At<String>>,
    pub kind: Option<At<String>>,
    pub declare: Option<At<bool>>,
}

/// `[[bridge.<name>.queue]]`.
#[derive(Clone, Debug)]
pub(super) struct Queue {
    pub name: At<String>,
    /// `None`: the file has no `bind`.
    pub bind: Option<At<Vec<Bind>>>,
    /// True: something in `bind` was refused while parsing, so that too few bindings prove nothing.
    pub bind_refused: bool,
    pub retry: Option<At<Retry>>,
    pub declare: Option<At<bool>>,
    pub arguments: BTreeMap<String, ArgumentAt>,
}

/// One argument: the place of its name, and its value.
#[derive(Clone, Debug)]
pub(super) struct ArgumentAt {
    pub key: Place,
    pub value: At<Argument>,
}

/// One entry of `bind`.
#[derive(Clone, Debug)]
pub(super) enum Bind {
    /// `"order.*.close"`
    Key(At<String>),
    /// `{ x-match = "all", type = "invoice" }`
    Headers(At<BTreeMap<String, ArgumentAt>>),
}

/// `retry = …`
#[derive(Clone, Debug)]
pub(super) enum Retry {
    List(Vec<At<String>>),
    Exponential(Box<Exponential>),
}

/// `retry = { first = "1s", factor = 2, … }`
#[derive(Clone, Debug)]
pub(super) struct Exponential {
    pub first: Option<At<String>>,
    pub factor: Option<At<f64>>,
    pub max: Option<At<String>>,
    pub attempts: Option<At<i64>>,
    pub jitter: Option<At<f64>>,
}
