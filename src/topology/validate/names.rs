//! Names: what RabbitMQ takes, and what leaves room for the names that dwell derives.

use super::Check;
use crate::problem::{Code, Problem, show};
use crate::topology::model::ExchangeKind;
use crate::topology::raw::At;

/// AMQP 0-9-1 says a name in one length byte.
pub(super) const LONGEST_NAME: usize = 255;
/// `<bridge>.wait.<ttl>.<version>` must fit [`LONGEST_NAME`]; the rest is left to readers' eyes.
const LONGEST_BRIDGE: usize = 100;
/// `<queue>.dead` must fit.
const LONGEST_QUEUE: usize = LONGEST_NAME - ".dead".len();

/// Exchanges that every vhost has, and their types.
const PREDECLARED: &[(&str, ExchangeKind)] = &[
    ("amq.topic", ExchangeKind::Topic),
    ("amq.direct", ExchangeKind::Direct),
    ("amq.fanout", ExchangeKind::Fanout),
    ("amq.headers", ExchangeKind::Headers),
    ("amq.match", ExchangeKind::Headers),
];

impl Check<'_> {
    pub(super) fn bridge_name(&mut self, at: &At<String>) {
        let name = &at.value;
        let odd = name.chars().find(|c| !c.is_ascii_alphanumeric() && !matches!(c, '.' | '_' | '-'));
        let why = "the name becomes part of exchange and queue names, of Redis keys and of metric labels";
        if name.is_empty() {
            self.error(
                Code::BadName,
                &at.place,
                "the bridge has an empty name",
                "empty",
                why,
                "write `[bridge.orders]`",
            );
        } else if let Some(odd) = odd {
            let what = format!("bridge name {} has the character {}", show(name), show(&odd.to_string()));
            self.error(
                Code::BadName,
                &at.place,
                what,
                "not allowed here",
                why,
                "use letters, digits, `.`, `_` and `-`",
            );
        } else if name.len() > LONGEST_BRIDGE {
            let what = format!("bridge name {} has {} bytes", show(name), name.len());
            self.error(Code::BadName, &at.place, what, "too long", why, &format!("use at most {LONGEST_BRIDGE} bytes"));
        }
        self.reserved(at, "bridge");
        if *name == self.limits.prefix {
            let prefix = self.limits.prefix.clone();
            self.error(
                Code::NameCollision,
                &at.place,
                format!("bridge {} would share its names with the daemon", show(name)),
                "the vhost-wide prefix",
                &format!("`{prefix}.out` and `{prefix}.unrouted` belong to the whole vhost (setting `amqp.prefix`)"),
                "name the bridge otherwise",
            );
        }
    }

    /// A name of an exchange or queue that dwell declares.
    pub(super) fn own_exchange_name(&mut self, at: &At<String>, what: &str) {
        self.amqp_name(at, what, LONGEST_NAME);
        self.reserved(at, what);
    }

    pub(super) fn queue_name(&mut self, at: &At<String>, declare: bool) {
        self.amqp_name(at, "the queue", LONGEST_QUEUE);
        if declare {
            self.reserved(at, "queue");
        } else {
            self.of_the_vhost(at, "queue");
        }
    }

    pub(super) fn work_exchange_name(&mut self, at: &At<String>, declare: bool) {
        if !declare && at.value.starts_with("amq.") {
            // Only these exist under the reserved prefix.
            if !PREDECLARED.iter().any(|(name, _)| *name == at.value) {
                let names: Vec<&str> = PREDECLARED.iter().map(|(name, _)| *name).collect();
                self.error(
                    Code::BadName,
                    &at.place,
                    format!("there is no exchange {}", show(&at.value)),
                    "unknown",
                    "names that begin with `amq.` are RabbitMQ's own",
                    &format!("use {}, or an exchange of another name", crate::problem::one_of(&names)),
                );
            }
            return;
        }
        self.amqp_name(at, "the work exchange", LONGEST_NAME);
        if declare {
            self.reserved(at, "work exchange");
        } else {
            self.of_the_vhost(at, "work exchange");
        }
    }

    fn amqp_name(&mut self, at: &At<String>, what: &str, longest: usize) {
        let name = &at.value;
        if name.is_empty() {
            self.error(
                Code::BadName,
                &at.place,
                format!("{what} has an empty name"),
                "empty",
                "RabbitMQ invents a name for a queue without one, and keeps the nameless exchange for itself",
                "give it a name",
            );
        } else if name.len() > longest {
            self.error(
                Code::BadName,
                &at.place,
                format!("the name of {what} has {} bytes", name.len()),
                "too long",
                "AMQP names have at most 255 bytes, and a queue's name must leave room for `.dead`",
                &format!("use at most {longest} bytes"),
            );
        } else if name.chars().any(char::is_control) || name.trim() != name {
            self.error(
                Code::BadName,
                &at.place,
                format!("the name of {what}, {}, has a control character or a space at an end", show(name)),
                "invisible characters",
                "RabbitMQ drops line ends from names without a word, and nobody sees a space at the end",
                "take them out",
            );
        }
    }

    /// Names that dwell must not declare: RabbitMQ's and its own vhost-wide ones.
    fn reserved(&mut self, at: &At<String>, what: &str) {
        if at.value.starts_with("amq.") {
            self.error(
                Code::BadName,
                &at.place,
                format!("{} begins with `amq.`", show(&at.value)),
                "reserved",
                "RabbitMQ keeps that prefix for itself and refuses the declaration (403)",
                &format!("name the {} otherwise", what.trim_start_matches("the ")),
            );
        }
        self.of_the_vhost(at, what);
    }

    fn of_the_vhost(&mut self, at: &At<String>, what: &str) {
        let prefix = &self.limits.prefix;
        if at.value.strip_prefix(prefix.as_str()).is_some_and(|rest| rest.starts_with('.')) {
            let problem = Problem::error(
                Code::NameCollision,
                at.place.clone(),
                format!("{} begins with `{prefix}.`", show(&at.value)),
            )
            .label("the vhost-wide prefix")
            .why(format!("dwell's own queues and exchanges (`{prefix}.release`, `{prefix}.rejected`, …) begin so"))
            .help(format!(
                "name the {} otherwise, or change the setting `amqp.prefix`",
                what.trim_start_matches("the ")
            ));
            self.problems.push(problem);
        }
    }
}

/// The type of an exchange that every vhost has.
pub(super) fn predeclared_kind(name: &str) -> Option<ExchangeKind> {
    PREDECLARED.iter().find(|(known, _)| *known == name).map(|(_, kind)| *kind)
}
