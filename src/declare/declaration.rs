//! The broker objects of a topology, as plain records that can be compared.

use std::collections::BTreeMap;

use crate::duration::Millis;
use crate::names::{self, header};

/// Arguments of an object, by name.
pub type Arguments = BTreeMap<String, Argument>;

/// A value in an argument table.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Argument {
    /// A boolean.
    Bool(bool),
    /// Always sent as a 64-bit integer; RabbitMQ compares integers by value.
    Int(i64),
    /// A string.
    Text(String),
    /// Void: in a headers binding it matches the presence of a header, whatever its value.
    Present,
    /// A value of a kind that dwell never declares, as the management API shows it.
    Other(String),
}

/// A durable exchange.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exchange {
    /// Its name.
    pub name: String,
    /// RabbitMQ's type name.
    pub kind: String,
    /// Clients may not publish to it; only alternate and dead-letter routing does.
    pub internal: bool,
    /// `alternate-exchange` and the like.
    pub arguments: Arguments,
}

/// A durable queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Queue {
    /// Its name.
    pub name: String,
    /// All of its arguments, the type among them: the default type of a vhost must not decide (it may change).
    pub arguments: Arguments,
}

/// What a binding leads to.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Target {
    /// A queue.
    Queue(String),
    /// Another exchange.
    Exchange(String),
}

/// A binding.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Binding {
    /// The exchange it leads from.
    pub source: String,
    /// Where it leads.
    pub target: Target,
    /// Empty where the exchange does not look at it.
    pub routing_key: String,
    /// The match of a headers exchange.
    pub arguments: Arguments,
}

/// One object, in the order in which it must come to exist.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Object {
    /// See [`Exchange`].
    Exchange(Exchange),
    /// See [`Queue`].
    Queue(Queue),
    /// See [`Binding`].
    Binding(Binding),
    /// A binding of dwell's own that must not be there: with it a message would go two ways at once, or past the
    /// daemon although the file says otherwise. An earlier version of the files may have made it.
    Unbound(Binding),
}

/// Everything that a topology needs, in an order in which no message can fall through: what catches comes before
/// what leads to it, and the gates, where publishers enter, come last.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Declarations {
    /// The objects, in order.
    pub objects: Vec<Object>,
    /// The tiers' buffer queues and what leads there. They come after the gates: what finds no way into them yet goes by
    /// the intake.
    pub tiers: Vec<TierWay>,
    /// Each bridge's way for messages without a delay header.
    pub defaults: Vec<DefaultWay>,
}

/// A tier's buffer queue, and what leads there.
///
/// A queue's arguments cannot be changed. Where the buffer queue must be another one (another type, another work
/// exchange), a successor takes its place (`….2`), and the old one drains. A message would be doubled by two of them, so
/// bindings must lead to one of the family at most.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TierWay {
    /// The bridge.
    pub bridge: String,
    /// How long a message waits there.
    pub ttl: Millis,
    /// The buffer queue, by the family's first name.
    pub queue: Queue,
    /// False: the bridge does not use its tiers, so nothing may lead there from the publishers.
    pub used: bool,
    /// The headers exchange that knows the tiers, `<bridge>.tiers`.
    pub tiers: String,
    /// The headers exchange by which the daemon places, `dwell.place`.
    pub place: String,
}

/// The argument of a draining queue's marker: since when nothing leads to it, in epoch milliseconds. The marker is a binding
/// from an exchange that nobody publishes to, so it never matches; it is durable, replicated, and goes with the queue.
pub const SINCE: &str = "dwell-draining-since";

/// A tier's family has so many members at most; more would mean that somebody creates them by mistake.
const GENERATIONS: u32 = 9;

/// Where a bridge's messages without a delay header go inside the broker: to one buffer queue, or to the intake.
///
/// The exchange is a fanout, so it must lead to one queue at most: with two, one message would become two. AMQP cannot
/// list bindings, so what earlier files have bound there is remembered in the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DefaultWay {
    /// The bridge.
    pub bridge: String,
    /// The fanout, `<bridge>.default`; its alternate exchange leads to the intake.
    pub exchange: String,
    /// The tier of `default_delay`; `None`: the intake decides.
    pub ttl: Option<Millis>,
}

// === impl TierWay ===

impl TierWay {
    /// The names of all that can be of the family, the first one first.
    pub fn members(&self) -> impl Iterator<Item = String> {
        (1..=GENERATIONS).map(|generation| names::successor(&self.queue.name, generation))
    }

    /// All bindings that lead to that member, but for the default's.
    pub fn bindings(&self, member: &str) -> impl Iterator<Item = Binding> {
        self.natively(member).into_iter().chain([self.placed(member)])
    }

    /// The bindings by which publishers reach that member: all integer types match one integer binding; a string needs its
    /// own.
    fn natively(&self, member: &str) -> [Binding; 2] {
        [Argument::Int(self.ttl.to_i64()), Argument::Text(self.ttl.0.to_string())]
            .map(|value| Binding::on_header(&self.tiers, member, header::DELAY, value))
    }

    /// The binding by which the daemon reaches that member.
    fn placed(&self, member: &str) -> Binding {
        Binding::on_header(&self.place, member, header::TIER, Argument::Text(member.to_owned()))
    }
}

// === impl DefaultWay ===

impl DefaultWay {
    /// The binding that leads to that queue.
    #[must_use]
    pub fn to(&self, queue: &str) -> Binding {
        Binding {
            source: self.exchange.clone(),
            target: Target::Queue(queue.to_owned()),
            routing_key: String::new(),
            arguments: Arguments::new(),
        }
    }
}

// === impl Binding ===

impl Binding {
    /// A match on one header; plain `all` would skip names that begin with `x-` and then match everything.
    fn on_header(source: &str, queue: &str, name: &str, value: Argument) -> Binding {
        Binding {
            source: source.to_owned(),
            target: Target::Queue(queue.to_owned()),
            routing_key: String::new(),
            arguments: Arguments::from([
                ("x-match".into(), Argument::Text("all-with-x".into())),
                (name.to_owned(), value),
            ]),
        }
    }
}

// === impl Argument ===

impl std::fmt::Display for Argument {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Argument::Bool(b) => write!(f, "{b}"),
            Argument::Int(n) => write!(f, "{n}"),
            Argument::Text(s) => write!(f, "'{s}'"),
            Argument::Present => f.write_str("void"),
            Argument::Other(json) => f.write_str(json),
        }
    }
}

// === impl Declarations ===

impl Declarations {
    /// How many exchanges, queues and bindings.
    #[must_use]
    pub fn counts(&self) -> (usize, usize, usize) {
        let tiers = self.tiers.iter().filter(|tier| tier.used).count();
        let defaults = self.defaults.iter().filter(|way| way.ttl.is_some()).count();
        self.objects.iter().fold((0, tiers, 3 * tiers + defaults), |(x, q, b), o| match o {
            Object::Exchange(_) => (x + 1, q, b),
            Object::Queue(_) => (x, q + 1, b),
            Object::Binding(_) => (x, q, b + 1),
            Object::Unbound(_) => (x, q, b),
        })
    }
}

// === impl Object ===

impl std::fmt::Display for Object {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Object::Exchange(x) => write!(f, "exchange '{}'", x.name),
            Object::Queue(q) => write!(f, "queue '{}'", q.name),
            Object::Binding(b) | Object::Unbound(b) => {
                let (kind, to) = match &b.target {
                    Target::Queue(q) => ("queue", q),
                    Target::Exchange(x) => ("exchange", x),
                };
                write!(f, "binding of {kind} '{to}' to exchange '{}'", b.source)
            }
        }
    }
}
