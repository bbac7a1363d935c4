//! Raw → model: one file per rule family, all problems collected.
//!
//! Where a value is wrong the check reports it and goes on with a stand-in, so that what does not depend on the value
//! is still looked at. The stand-ins never leave the room: a topology with an error is dropped.

mod collisions;
mod delays;
mod loops;
mod names;
mod queues;

use super::load::Limits;
use super::model::{Bridge, ExchangeKind, Long, QueueType, Topology, WorkExchange};
use super::raw::{self, At};
use crate::duration::Millis;
use crate::problem::{Code, Place, Problem, bad_duration, near, one_of, show};

/// RabbitMQ refuses a longer TTL (406, `value_too_large`; case B12): ten years.
pub(super) const BROKER_CEILING: Millis = Millis::days(3650);

/// All bridges of all files, judged together.
pub(super) fn validate(raw: &[raw::Bridge], limits: &Limits, problems: &mut Vec<Problem>) -> Topology {
    let mut check = Check { limits, problems };
    let mut bridges: Vec<Bridge> = raw.iter().map(|bridge| check.bridge(bridge)).collect();
    check.collisions(raw, &bridges);
    check.loops(raw, &bridges);
    bridges.sort_by(|a, b| a.name.cmp(&b.name));
    Topology { bridges }
}

/// One run of all checks.
struct Check<'a> {
    limits: &'a Limits,
    problems: &'a mut Vec<Problem>,
}

impl Check<'_> {
    fn bridge(&mut self, raw: &raw::Bridge) -> Bridge {
        let name = raw.name.value.clone();
        self.bridge_name(&raw.name);
        if let Some(exchange) = &raw.exchange {
            self.own_exchange_name(exchange, "the delay exchange");
        }
        let work_exchange = self.work_exchange(raw);
        let delays = self.delays(raw);
        let queue_type = self.word(
            raw.queue_type.as_ref(),
            "queue_type",
            &[("quorum", QueueType::Quorum), ("classic", QueueType::Classic)],
        );
        let long = self.long(raw);
        let mut bridge = Bridge {
            exchange: raw.exchange.as_ref().map_or_else(|| format!("{name}.delay"), |at| at.value.clone()),
            name,
            work_exchange,
            tiers: delays.tiers,
            default_delay: delays.default_delay,
            native: value_or(raw.native.as_ref(), true),
            cancellable: value_or(raw.cancellable.as_ref(), false),
            long: long.unwrap_or_default(),
            broker_limit: delays.broker_limit,
            max_delay: delays.max_delay,
            queue_type: queue_type.unwrap_or_default(),
            queues: Vec::new(),
        };
        bridge.queues = raw.queues.iter().map(|queue| self.queue(queue, &bridge)).collect();
        bridge
    }

    fn work_exchange(&mut self, raw: &raw::Bridge) -> WorkExchange {
        let written = raw.work_exchange.as_ref();
        let declare = value_or(written.and_then(|exchange| exchange.declare.as_ref()), true);
        let name = written.and_then(|exchange| exchange.name.as_ref());
        if let Some(name) = name {
            self.work_exchange_name(name, declare);
        }
        let kind = self.exchange_kind(written.and_then(|exchange| exchange.kind.as_ref()));
        if let (false, Some(at)) = (declare, written.and_then(|exchange| exchange.declare.as_ref())) {
            self.problems.push(
                Problem::warning(
                    Code::ForeignExchange,
                    at.place.clone(),
                    format!(
                        "bridge {} uses its tiers only once this exchange has an alternate exchange",
                        show(&raw.name.value)
                    ),
                )
                .label("dwell does not declare this exchange")
                .why(
                    "without one a single message that no queue wants would hold up a tier for good; until the management API \
                     shows one, all delays of the bridge wait in the store",
                )
                .help("`dwell plan` prints the policy that gives it one, `dwell apply --policies` sets it"),
            );
        }
        let name = name.map_or_else(|| raw.name.value.clone(), |at| at.value.clone());
        WorkExchange { name, kind: kind.unwrap_or(ExchangeKind::Topic), declare, catches: declare }
    }

    fn exchange_kind(&mut self, at: Option<&At<String>>) -> Option<ExchangeKind> {
        if let Some(at) = at.filter(|at| at.value == "x-delayed-message") {
            // Case B55: the plugin's type, and its argument for the type behind it.
            self.problems.push(
                Problem::error(
                    Code::BadValue,
                    at.place.clone(),
                    "`x-delayed-message` is the delayed-message plugin's exchange type, not dwell's",
                )
                .label("needs the plugin")
                .why("dwell delays in tiers and in the store, before a plain work exchange")
                .help("write what the plugin's `x-delayed-type` said, for example `type = \"topic\"`, and list delays in `tiers`"),
            );
            return None;
        }
        self.word(
            at,
            "type",
            &[
                ("topic", ExchangeKind::Topic),
                ("direct", ExchangeKind::Direct),
                ("fanout", ExchangeKind::Fanout),
                ("headers", ExchangeKind::Headers),
            ],
        )
    }

    fn long(&mut self, raw: &raw::Bridge) -> Option<Long> {
        let long = self.word(
            raw.long.as_ref(),
            "long",
            &[("store", Long::Store), ("relay", Long::Relay), ("reject", Long::Reject)],
        );
        if let (Some(Long::Relay), Some(at)) = (long, &raw.long) {
            self.problems.push(
                Problem::error(Code::NotYet, at.place.clone(), "this release cannot relay long delays yet")
                    .label("not yet")
                    .why("a long delay that waits elsewhere than its file says would be worse than a refusal")
                    .help("write `long = \"store\"` (the default) with a `[redis]` section in the settings, or `long = \"reject\"`"),
            );
        }
        long
    }

    /// One of a few words; `None` if absent or (reported) none of them.
    fn word<T: Copy>(&mut self, at: Option<&At<String>>, key: &str, words: &[(&str, T)]) -> Option<T> {
        let at = at?;
        if let Some((_, value)) = words.iter().find(|(word, _)| *word == at.value) {
            return Some(*value);
        }
        let names: Vec<&str> = words.iter().map(|(word, _)| *word).collect();
        let problem = Problem::error(Code::BadValue, at.place.clone(), format!("{} is no `{key}`", show(&at.value)));
        self.problems.push(match near(&at.value, names.iter().copied()) {
            Some(meant) => {
                problem.label(format!("did you mean `{meant}`?")).help(format!("write `{key} = \"{meant}\"`"))
            }
            None => problem.label("unknown").help(format!("write {}", one_of(&names))),
        });
        None
    }

    /// A duration; `None` if absent or (reported) none.
    fn millis(&mut self, at: Option<&At<String>>) -> Option<Millis> {
        let at = at?;
        match at.value.parse() {
            Ok(millis) => Some(millis),
            Err(error) => {
                self.problems.push(bad_duration(at.place.clone(), &at.value, error));
                None
            }
        }
    }

    fn error(&mut self, code: Code, place: &Place, what: impl Into<String>, label: &str, why: &str, help: &str) {
        self.problems.push(Problem::error(code, place.clone(), what).label(label).why(why).help(help));
    }
}

fn value_or<T: Clone>(at: Option<&At<T>>, default: T) -> T {
    at.map_or(default, |at| at.value.clone())
}
