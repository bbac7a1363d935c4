//! The valid vocabulary of a topology: what the rest of dwell may rely on once the files were read.
//!
//! Nothing here can be wrong any more: names are within RabbitMQ's limits, every tier fits its bridge's broker
//! limit, every name is declared once. Only `validate` makes these values.

use std::collections::BTreeMap;

use crate::duration::Millis;

/// All bridges of all files, in the order of their names.
#[derive(Clone, Debug, PartialEq)]
pub struct Topology {
    /// Never empty: an empty topology is a problem of its own.
    pub bridges: Vec<Bridge>,
}

/// One entry of a topology file: delay exchange → wait → work exchange and its work queues.
#[derive(Clone, Debug, PartialEq)]
pub struct Bridge {
    /// `[A-Za-z0-9._-]`, 1 to 100 bytes: it becomes part of queue names (255 bytes at most in AMQP 0-9-1) and of a
    /// Redis hash tag.
    pub name: String,
    /// The delay exchange where publishers publish; `<bridge>.delay` unless the file says otherwise.
    pub exchange: String,
    /// Where every message of the bridge comes out.
    pub work_exchange: WorkExchange,
    /// Delays with a TTL buffer queue of their own: ascending, without repeats, each above zero and at most
    /// `broker_limit`.
    pub tiers: Vec<Millis>,
    /// What a message without a delay header waits; `None`: it is due at once.
    pub default_delay: Option<Millis>,
    /// False sends exact tiers through the daemon too.
    pub native: bool,
    /// True keeps all messages of the bridge in the store, where they can be cancelled.
    pub cancellable: bool,
    /// Where a delay above the broker limit waits.
    pub long: Long,
    /// The longest delay that may wait in the broker; `None`: the setting `delay.broker_limit`.
    pub broker_limit: Option<Millis>,
    /// The longest delay at all; `None`: the setting `delay.max_delay`.
    pub max_delay: Option<Millis>,
    /// The type of the bridge's buffer queues.
    pub queue_type: QueueType,
    /// Work queues, in file order.
    pub queues: Vec<WorkQueue>,
}

/// The exchange where due messages come out.
#[derive(Clone, Debug, PartialEq)]
pub struct WorkExchange {
    /// `<bridge>` unless the file says otherwise.
    pub name: String,
    /// Topic unless the file says otherwise.
    pub kind: ExchangeKind,
    /// False: another team declares it.
    pub declare: bool,
    /// What it cannot route goes on to an alternate exchange: always so where dwell declares it; else by its owner's
    /// argument or a policy, as far as the management API has shown it.
    pub catches: bool,
}

/// RabbitMQ's four built-in exchange types.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExchangeKind {
    /// Compares routing keys with patterns of words.
    Topic,
    /// Compares whole routing keys.
    Direct,
    /// Compares nothing: every queue gets every message.
    Fanout,
    /// Compares headers.
    Headers,
}

/// The type of a buffer queue. Work queues and dwell's own queues are always quorum.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum QueueType {
    /// Replicated; dead-letters at least once.
    #[default]
    Quorum,
    /// For single-node users: faster to declare, dead-letters at most once (a crash can lose what expires in that moment).
    Classic,
}

/// Where a delay above the broker limit waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Long {
    /// In Redis.
    #[default]
    Store,
    /// Round after round in the ladder.
    Relay,
    /// Nowhere: it goes to the rejected queue, `delay-too-large`.
    Reject,
}

/// A queue that consumers read.
#[derive(Clone, Debug, PartialEq)]
pub struct WorkQueue {
    /// 1 to 250 bytes of UTF-8 (`<queue>.dead` must fit 255), not beginning with `amq.`.
    pub name: String,
    /// Bindings to the work exchange, in file order.
    pub bindings: Vec<Binding>,
    /// The delays after the 1st, 2nd, … failure; `None`: the first failure is the last.
    pub retry: Option<RetrySchedule>,
    /// False: another team declares it; dwell binds it only.
    pub declare: bool,
    /// Further queue arguments, as the file gives them. They never name an argument that dwell's promises rest on,
    /// except `x-dead-letter-exchange`, which sends failures elsewhere than to dwell, by the user's choice.
    pub arguments: BTreeMap<String, Argument>,
}

/// One binding of a work queue to the work exchange.
#[derive(Clone, Debug, PartialEq)]
pub struct Binding {
    /// Empty for a headers or fanout exchange.
    pub routing_key: String,
    /// Only a headers exchange reads these.
    pub arguments: BTreeMap<String, Argument>,
}

/// A queue or binding argument: the types that TOML can say.
#[derive(Clone, Debug, PartialEq)]
pub enum Argument {
    /// `true` or `false`.
    Bool(bool),
    /// A whole number.
    Int(i64),
    /// A text.
    Text(String),
}

/// The delays after the 1st, 2nd, … failure of a work queue's message.
#[derive(Clone, Debug, PartialEq)]
pub enum RetrySchedule {
    /// As listed; after the last one the message is buried.
    List(Vec<Millis>),
    /// `first`, then times `factor` each, at most `max`, `attempts` times; each spread by ± `jitter` (0 to 1).
    Exponential {
        /// The delay after the first failure.
        first: Millis,
        /// Each delay is the one before times this: finite, at least 1.
        factor: f64,
        /// No delay is longer; at least `first`.
        max: Millis,
        /// How many delays there are; at least 1.
        attempts: u32,
        /// The share of a delay by which it is spread: 0 to 1.
        jitter: f64,
    },
}

// === impl Bridge ===

impl Bridge {
    /// Whether this bridge's tiers wait in buffer queues of the broker.
    ///
    /// Not where every message must be cancellable, not where the file says `native = false`, and not where the work
    /// exchange is somebody else's and has no alternate exchange: an unroutable message would be held in the buffer
    /// queue for ever, and with it everything behind.
    #[must_use]
    pub fn uses_tiers(&self) -> bool {
        self.native && !self.cancellable && self.work_exchange.catches
    }

    /// The tier in which the broker alone delays what has no delay header.
    #[must_use]
    pub fn native_default(&self) -> Option<Millis> {
        self.default_delay.filter(|ttl| self.uses_tiers() && self.tiers.contains(ttl))
    }
}

// === impl ExchangeKind ===

impl ExchangeKind {
    /// RabbitMQ's own word.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            ExchangeKind::Topic => "topic",
            ExchangeKind::Direct => "direct",
            ExchangeKind::Fanout => "fanout",
            ExchangeKind::Headers => "headers",
        }
    }
}
