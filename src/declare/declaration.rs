//! The broker objects of a topology, as plain records that can be compared.

use std::collections::BTreeMap;

/// Arguments of an object, by name.
pub type Arguments = BTreeMap<String, Argument>;

/// A value in an argument table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Argument {
    /// A boolean.
    Bool(bool),
    /// Always sent as a 64-bit integer; RabbitMQ compares integers by value.
    Int(i64),
    /// A string.
    Text(String),
    /// Void: in a headers binding it matches the presence of a header, whatever its value.
    Present,
}

/// A durable exchange.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exchange {
    /// Its name.
    pub name: String,
    /// RabbitMQ's type name.
    pub kind: &'static str,
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
#[derive(Clone, Debug, PartialEq, Eq)]
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
    /// Each bridge's way for messages without a delay header.
    pub defaults: Vec<DefaultWay>,
}

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
    /// The buffer queue of `default_delay`; `None`: the intake decides.
    pub queue: Option<String>,
    /// The other tiers' buffer queues in the files: they must not be bound.
    pub others: Vec<String>,
}

// === impl Declarations ===

impl Declarations {
    /// How many exchanges, queues and bindings.
    #[must_use]
    pub fn counts(&self) -> (usize, usize, usize) {
        self.objects.iter().fold((0, 0, 0), |(x, q, b), o| match o {
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
