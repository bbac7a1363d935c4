//! What the broker has, as far as it can be known, in the same records as what it should have.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::declaration::{Argument, Arguments, Binding, Exchange, Queue, Target};
use crate::management::{BindingInfo, ExchangeInfo, PolicyInfo, QueueInfo};

/// The broker's objects, and what the store knows besides.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Observed {
    /// By name.
    pub exchanges: BTreeMap<String, Seen<Exchange>>,
    /// By name.
    pub queues: BTreeMap<String, Seen<Queue>>,
    /// How many messages a queue holds, dead letters under way among them; only where the management API says so.
    pub depths: BTreeMap<String, u64>,
    /// `None`: bindings cannot be listed (no management API).
    pub bindings: Option<BTreeSet<Binding>>,
    /// Exchanges with an alternate exchange, by argument or policy: what they cannot route is not lost.
    pub caught: BTreeSet<String>,
    /// Queues that a policy gives a dead-letter exchange.
    pub dead_lettered: BTreeSet<String>,
    /// The policies of the vhost; what they do is in `caught` and `dead_lettered`, which may follow seconds later.
    pub policies: Vec<PolicyInfo>,
    /// True: an object that is not listed does not exist. False: it was not looked for.
    pub complete: bool,
    /// How many records wait in the store, by bridge; empty where there is no store or it does not answer.
    pub records: BTreeMap<String, u64>,
}

/// What is known of one object.
#[derive(Clone, Debug, PartialEq)]
pub enum Seen<T> {
    /// All of it.
    Whole(T),
    /// It exists; its arguments cannot be read without the management API.
    Exists,
    /// It does not exist.
    Missing,
    /// The broker will not say (403 on a passive declare): it may exist or not.
    Unknown,
}

/// One argument in which two objects differ.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// The argument, or `durable`, `auto_delete`, `exclusive`, `type`, `internal`.
    pub name: String,
    /// What the topology says.
    pub wanted: String,
    /// What exists.
    pub present: String,
}

/// Arguments that change what an object does with messages. One of these that dwell does not ask for is a difference as
/// well; any other (a leader locator, a description) is its owner's business.
const TELLING: [&str; 16] = [
    "alternate-exchange",
    "auto_delete",
    "durable",
    "exclusive",
    "x-dead-letter-exchange",
    "x-dead-letter-routing-key",
    "x-dead-letter-strategy",
    "x-delivery-limit",
    "x-expires",
    "x-max-length",
    "x-max-length-bytes",
    "x-message-ttl",
    "x-overflow",
    "x-queue-mode",
    "x-queue-type",
    "x-single-active-consumer",
];

// === impl Seen ===

impl<T> Seen<T> {
    /// From the answer to a passive declare.
    #[must_use]
    pub fn passively(exists: Option<bool>) -> Seen<T> {
        match exists {
            Some(true) => Seen::Exists,
            Some(false) => Seen::Missing,
            None => Seen::Unknown,
        }
    }
}

// === impl Observed ===

impl Observed {
    /// From the lists of the management API.
    #[must_use]
    pub fn listed(
        exchanges: Vec<ExchangeInfo>,
        queues: Vec<QueueInfo>,
        bindings: Vec<BindingInfo>,
        policies: Vec<PolicyInfo>,
    ) -> Observed {
        let mut observed = Observed { complete: true, ..Observed::default() };
        let catching: BTreeSet<&str> = policies
            .iter()
            .filter(|policy| policy.definition.contains_key("alternate-exchange"))
            .map(|policy| policy.name.as_str())
            .collect();
        for info in exchanges {
            let mut arguments = arguments_of(info.arguments);
            note_flag(&mut arguments, "durable", info.durable, true);
            note_flag(&mut arguments, "auto_delete", info.auto_delete, false);
            if arguments.contains_key("alternate-exchange")
                || info.policy.as_deref().is_some_and(|policy| catching.contains(policy))
            {
                observed.caught.insert(info.name.clone());
            }
            let exchange = Exchange { name: info.name.clone(), kind: info.kind, internal: info.internal, arguments };
            observed.exchanges.insert(info.name, Seen::Whole(exchange));
        }
        for info in queues {
            let mut arguments = arguments_of(info.arguments);
            note_flag(&mut arguments, "durable", info.durable, true);
            note_flag(&mut arguments, "auto_delete", info.auto_delete, false);
            note_flag(&mut arguments, "exclusive", info.exclusive, false);
            // A queue declared without a type has the vhost's default one.
            arguments.entry("x-queue-type".into()).or_insert_with(|| Argument::Text(info.kind.unwrap_or_default()));
            if info.effective_policy_definition.get("dead-letter-exchange").is_some() {
                observed.dead_lettered.insert(info.name.clone());
            }
            if let Some(messages) = info.messages {
                observed.depths.insert(info.name.clone(), messages + info.messages_dlx.unwrap_or(0));
            }
            observed.queues.insert(info.name.clone(), Seen::Whole(Queue { name: info.name, arguments }));
        }
        let bindings = bindings.into_iter().map(|info| Binding {
            source: info.source,
            target: match info.destination_type.as_str() {
                "exchange" => Target::Exchange(info.destination),
                _ => Target::Queue(info.destination),
            },
            routing_key: info.routing_key,
            arguments: arguments_of(info.arguments),
        });
        observed.bindings = Some(bindings.collect());
        observed.policies = policies;
        observed
    }

    /// What is known of an exchange.
    #[must_use]
    pub fn exchange(&self, name: &str) -> Seen<Exchange> {
        self.exchanges.get(name).cloned().unwrap_or_else(|| self.unlisted())
    }

    /// What is known of a queue.
    #[must_use]
    pub fn queue(&self, name: &str) -> Seen<Queue> {
        self.queues.get(name).cloned().unwrap_or_else(|| self.unlisted())
    }

    fn unlisted<T>(&self) -> Seen<T> {
        if self.complete { Seen::Missing } else { Seen::Unknown }
    }

    /// Whether a binding is there; `None`: nobody can say.
    #[must_use]
    pub fn has(&self, binding: &Binding) -> Option<bool> {
        self.bindings.as_ref().map(|bindings| bindings.contains(binding))
    }

    /// The bindings that lead from an exchange; none where bindings cannot be listed.
    pub fn bindings_from(&self, source: &str) -> impl Iterator<Item = &Binding> {
        self.bindings.iter().flatten().filter(move |binding| binding.source == source)
    }

    /// The bindings that lead to a queue, but for the default exchange's.
    pub fn bindings_to(&self, queue: &str) -> impl Iterator<Item = &Binding> {
        self.bindings.iter().flatten().filter(move |binding| {
            matches!(&binding.target, Target::Queue(name) if name == queue) && !binding.source.is_empty()
        })
    }
}

/// In what two objects differ that matters.
#[must_use]
pub fn differences(wanted: &Arguments, present: &Arguments) -> Vec<Difference> {
    let names: BTreeSet<&str> = wanted
        .keys()
        .map(String::as_str)
        .chain(present.keys().map(String::as_str).filter(|name| TELLING.contains(name)))
        .collect();
    names
        .into_iter()
        .filter(|name| wanted.get(*name) != present.get(*name))
        .map(|name| {
            let show = |arguments: &Arguments| match (arguments.get(name), name) {
                (Some(value), _) => value.to_string(),
                (None, "durable") => "true".to_owned(),
                (None, "auto_delete" | "exclusive") => "false".to_owned(),
                (None, _) => "none".to_owned(),
            };
            Difference { name: name.to_owned(), wanted: show(wanted), present: show(present) }
        })
        .collect()
}

// === helpers ===

/// Only the unusual value is noted, so that it shows as a difference.
fn note_flag(arguments: &mut Arguments, name: &str, value: bool, usual: bool) {
    if value != usual {
        arguments.insert(name.to_owned(), Argument::Bool(value));
    }
}

fn arguments_of(json: serde_json::Map<String, Value>) -> Arguments {
    json.into_iter().map(|(name, value)| (name, argument_of(value))).collect()
}

/// RabbitMQ shows a void value as the word `undefined` (an Erlang atom; measured on 3.10.8 and 4.3.6).
fn argument_of(value: Value) -> Argument {
    match value {
        Value::Bool(b) => Argument::Bool(b),
        Value::Null => Argument::Present,
        Value::String(text) if text == "undefined" => Argument::Present,
        Value::String(text) => Argument::Text(text),
        other => other.as_i64().map_or_else(|| Argument::Other(other.to_string()), Argument::Int),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(json: Value) -> Arguments {
        match json {
            Value::Object(map) => arguments_of(map),
            _ => Arguments::new(),
        }
    }

    #[test]
    fn what_matters_differs_and_what_is_the_owners_business_does_not() {
        let wanted = table(serde_json::json!({ "x-queue-type": "quorum", "x-message-ttl": 1000 }));
        for (present, differing) in [
            (serde_json::json!({ "x-queue-type": "quorum", "x-message-ttl": 1000 }), vec![]),
            (
                serde_json::json!({ "x-queue-type": "quorum", "x-message-ttl": 1000, "x-queue-leader-locator": "balanced" }),
                vec![],
            ),
            (
                serde_json::json!({ "x-queue-type": "classic", "x-message-ttl": 1000 }),
                vec![("x-queue-type", "'quorum'", "'classic'")],
            ),
            (
                serde_json::json!({ "x-queue-type": "quorum", "x-expires": 5, "durable": false }),
                vec![("durable", "true", "false"), ("x-expires", "none", "5"), ("x-message-ttl", "1000", "none")],
            ),
        ] {
            let found = differences(&wanted, &table(present));
            let found: Vec<(&str, &str, &str)> =
                found.iter().map(|d| (d.name.as_str(), d.wanted.as_str(), d.present.as_str())).collect();
            assert_eq!(found, differing);
        }
    }

    #[test]
    fn arguments_of_the_api_become_arguments_of_declarations() {
        let arguments = table(serde_json::json!({
            "x-delay": "undefined", "x-match": "any-with-x", "n": 5, "yes": true, "half": 0.5, "list": [1]
        }));
        assert_eq!(
            arguments,
            Arguments::from([
                ("x-delay".into(), Argument::Present),
                ("x-match".into(), Argument::Text("any-with-x".into())),
                ("n".into(), Argument::Int(5)),
                ("yes".into(), Argument::Bool(true)),
                ("half".into(), Argument::Other("0.5".into())),
                ("list".into(), Argument::Other("[1]".into())),
            ])
        );
    }
}
