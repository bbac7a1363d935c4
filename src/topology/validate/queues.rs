//! Work queues: bindings that their exchange can use, arguments that break no promise, schedules that end.

use std::collections::BTreeMap;

use super::delays::no_effect;
use super::names::LONGEST_NAME;
use super::{BROKER_CEILING, Check, value_or};
use crate::duration::Millis;
use crate::names;
use crate::problem::{Code, Place, Problem, any_error, near, one_of, show};
use crate::topology::model::{Argument, Binding, Bridge, ExchangeKind, RetrySchedule, WorkQueue};
use crate::topology::pattern;
use crate::topology::raw::{self, ArgumentAt, At, Bind, Retry};

/// What a schedule is where the file says only `first`.
const DEFAULT_FACTOR: f64 = 2.0;
const DEFAULT_MAX: Millis = Millis(3_600_000);
const DEFAULT_ATTEMPTS: u32 = 8;
const DEFAULT_JITTER: f64 = 0.1;

const X_MATCH: &[&str] = &["all", "any", "all-with-x", "any-with-x"];

/// What a queue argument must be, or why it is refused.
enum Rule {
    /// A number of milliseconds that RabbitMQ takes.
    Ttl,
    /// A whole number of at least that.
    AtLeast(i64),
    Boolean,
    Text,
    /// A limit that can fill the queue.
    Limit,
    /// `reject-publish` only.
    Overflow,
    Refused {
        why: &'static str,
        help: &'static str,
    },
}

const CLASSIC_ONLY: Rule = Rule::Refused {
    why: "RabbitMQ knows it for classic queues only, and work queues are quorum queues",
    help: "take it out",
};

/// Every argument of RabbitMQ that dwell knows.
const RULES: &[(&str, Rule)] = &[
    ("x-message-ttl", Rule::Ttl),
    ("x-dead-letter-exchange", Rule::Text),
    ("x-dead-letter-routing-key", Rule::Text),
    ("x-single-active-consumer", Rule::Boolean),
    ("x-max-length", Rule::Limit),
    ("x-max-length-bytes", Rule::Limit),
    ("x-overflow", Rule::Overflow),
    ("x-quorum-initial-group-size", Rule::AtLeast(1)),
    ("x-quorum-target-group-size", Rule::AtLeast(1)),
    ("x-queue-leader-locator", Rule::Text),
    ("x-consumer-timeout", Rule::AtLeast(1)),
    (
        "x-queue-type",
        Rule::Refused {
            why: "work queues are quorum queues from their first declaration, because the type cannot be changed later and retry needs it",
            help: "take it out; for a queue of another type write `declare = false` and declare it yourself",
        },
    ),
    (
        "x-delivery-limit",
        Rule::Refused {
            why: "dwell sets it to 20, so that RabbitMQ 3.10 and 4.x count alike",
            help: "take it out; how often a message is tried is `retry`",
        },
    ),
    (
        "x-dead-letter-strategy",
        Rule::Refused {
            why: "dwell sets it to `at-least-once`: with the other one a failed message can be lost on its way",
            help: "take it out",
        },
    ),
    (
        "x-expires",
        Rule::Refused {
            why: "RabbitMQ deletes such a queue together with the messages in it, without a word",
            help: "take it out; delete the queue by hand once it is no longer needed",
        },
    ),
    ("x-max-priority", CLASSIC_ONLY),
    ("x-queue-mode", CLASSIC_ONLY),
    ("x-queue-version", CLASSIC_ONLY),
    ("x-queue-master-locator", CLASSIC_ONLY),
    (
        "x-max-age",
        Rule::Refused {
            why: "RabbitMQ knows it for streams only, and work queues are quorum queues",
            help: "take it out",
        },
    ),
];

impl Check<'_> {
    /// `bridge` is complete but for its queues.
    pub(super) fn queue(&mut self, raw: &raw::Queue, bridge: &Bridge) -> WorkQueue {
        let declare = value_or(raw.declare.as_ref(), true);
        self.queue_name(&raw.name, declare);
        let bindings = self.bindings(raw, bridge);
        let arguments = self.arguments(raw, bridge);
        let before = self.problems.len();
        let retry = self.retry(raw, bridge);
        self.retry_is_reached(raw, bridge, declare);
        if let (Some(at), true) = (&raw.retry, retry.is_some() && !any_error(&self.problems[before..])) {
            self.not_yet(at.place.clone(), &bridge.name);
        }
        if let (false, Some((_, first))) = (declare, raw.arguments.first_key_value()) {
            self.problems.push(
                no_effect(first.key.clone(), "the queue's arguments have no effect", "never declared by dwell")
                    .also(declare_place(raw), "another team declares this queue")
                    .help("take out `arguments`; whoever declares the queue sets them"),
            );
        }
        WorkQueue { name: raw.name.value.clone(), bindings, retry, declare, arguments }
    }

    // --- bindings ---

    fn bindings(&mut self, raw: &raw::Queue, bridge: &Bridge) -> Vec<Binding> {
        let kind = bridge.work_exchange.kind;
        let written = raw.bind.as_ref().map_or(&[][..], |at| &at.value[..]);
        if kind == ExchangeKind::Fanout {
            if let Some(first) = written.first() {
                self.problems.push(
                    no_effect(bind_place(first), "the routing keys have no effect", "never read")
                        .why("a fanout exchange gives every message to every queue")
                        .help("take out `bind`, or make the work exchange `type = \"topic\"`"),
                );
            }
            return vec![Binding { routing_key: String::new(), arguments: BTreeMap::new() }];
        }
        if written.is_empty() && !raw.bind_refused {
            let example = if kind == ExchangeKind::Headers {
                "[{ x-match = \"all\", type = \"invoice\" }]"
            } else {
                "[\"order.*.close\"]"
            };
            let place = raw.bind.as_ref().map_or(&raw.name.place, |at| &at.place);
            self.problems.push(
                Problem::warning(
                    Code::NoBinding,
                    place.clone(),
                    format!("no message reaches queue {}", show(&raw.name.value)),
                )
                .label("bound to nothing")
                .why(format!(
                    "the work exchange {} is a {} exchange and gives a queue only what it is bound for",
                    show(&bridge.work_exchange.name),
                    kind.as_str()
                ))
                .help(format!("write `bind = {example}`")),
            );
        }
        let mut seen: Vec<(Binding, Place)> = Vec::new();
        for bind in written {
            let binding = match bind {
                Bind::Key(key) if kind == ExchangeKind::Headers => {
                    self.error(
                        Code::BadBinding,
                        &key.place,
                        format!("a headers exchange cannot be bound by the routing key {}", show(&key.value)),
                        "never read",
                        "a headers exchange compares headers, and ignores routing keys",
                        "write the headers: `bind = [{ x-match = \"all\", type = \"invoice\" }]`",
                    );
                    continue;
                }
                Bind::Key(key) => {
                    self.routing_key(key, kind);
                    Binding { routing_key: key.value.clone(), arguments: BTreeMap::new() }
                }
                Bind::Headers(headers) if kind != ExchangeKind::Headers => {
                    self.error(
                        Code::BadBinding,
                        &headers.place,
                        format!("a {} exchange cannot be bound by headers", kind.as_str()),
                        "never read",
                        "only a headers exchange compares headers",
                        "write routing keys: `bind = [\"order.*.close\"]`, or make the work exchange `type = \"headers\"`",
                    );
                    continue;
                }
                Bind::Headers(headers) => {
                    if !self.headers(headers) {
                        continue;
                    }
                    let arguments =
                        headers.value.iter().map(|(name, at)| (name.clone(), at.value.value.clone())).collect();
                    Binding { routing_key: String::new(), arguments }
                }
            };
            match seen.iter().find(|(known, _)| *known == binding) {
                Some((_, first)) => self.problems.push(
                    Problem::error(Code::DeclaredTwice, bind_place(bind), "the same binding is listed twice")
                        .label("again here")
                        .also(first.clone(), "first here")
                        .help("take one of them out"),
                ),
                None => seen.push((binding, bind_place(bind))),
            }
        }
        seen.into_iter().map(|(binding, _)| binding).collect()
    }

    fn routing_key(&mut self, key: &At<String>, kind: ExchangeKind) {
        if key.value.len() > LONGEST_NAME {
            self.error(
                Code::BadBinding,
                &key.place,
                format!("the routing key has {} bytes", key.value.len()),
                "too long",
                "AMQP routing keys have at most 255 bytes",
                "shorten it; in a topic exchange `#` stands for any number of words",
            );
            return;
        }
        let what = format!("{} matches only itself", show(&key.value));
        if kind == ExchangeKind::Direct && key.value.contains(['*', '#']) {
            self.problems.push(
                Problem::warning(Code::OddPattern, key.place.clone(), what)
                    .label("no pattern here")
                    .why("a direct exchange compares whole routing keys; `*` and `#` mean nothing to it")
                    .help("make the work exchange `type = \"topic\"`, or write the whole key"),
            );
        } else if kind == ExchangeKind::Topic && pattern::has_odd_wildcard(&key.value) {
            self.problems.push(
                Problem::warning(Code::OddPattern, key.place.clone(), what)
                    .label("a wildcard beside letters")
                    .why("in a topic exchange `*` and `#` stand for whole words between dots")
                    .help("put dots around it: `order.*`, not `order*`"),
            );
        }
    }

    /// False: reported as unusable.
    fn headers(&mut self, headers: &At<BTreeMap<String, ArgumentAt>>) -> bool {
        let mut with_x = false;
        if let Some(at) = headers.value.get("x-match") {
            let word = match &at.value.value {
                Argument::Text(word) => word.as_str(),
                _ => "",
            };
            with_x = word.ends_with("-with-x");
            if !X_MATCH.contains(&word) {
                let problem =
                    Problem::error(Code::BadBinding, at.value.place.clone(), format!("{} is no x-match", show(word)));
                self.problems.push(match near(word, X_MATCH.iter().copied()) {
                    Some(meant) => {
                        problem.label(format!("did you mean `{meant}`?")).help(format!("write `x-match = \"{meant}\"`"))
                    }
                    None => problem.label("unknown").help(format!("write {}", one_of(X_MATCH))),
                });
                return false;
            }
        }
        if !headers.value.keys().any(|name| name != "x-match") {
            self.error(
                Code::BadBinding,
                &headers.place,
                "the binding names no header",
                "empty",
                "RabbitMQ gives every message, or none, to such a binding",
                "write the headers to compare: `{ x-match = \"all\", type = \"invoice\" }`",
            );
            return false;
        }
        let ignored = headers.value.iter().find(|(name, _)| name.starts_with("x-") && *name != "x-match");
        if let (false, Some((name, at))) = (with_x, ignored) {
            self.error(
                Code::BadBinding,
                &at.key,
                format!("header {} is never compared", show(name)),
                "begins with `x-`",
                "with `x-match` `all` or `any` RabbitMQ ignores headers that begin with `x-`",
                "write `x-match = \"all-with-x\"` or `x-match = \"any-with-x\"`",
            );
            return false;
        }
        true
    }

    // --- arguments ---

    fn arguments(&mut self, raw: &raw::Queue, bridge: &Bridge) -> BTreeMap<String, Argument> {
        for (name, at) in &raw.arguments {
            match RULES.iter().find(|(known, _)| known == name) {
                Some((_, rule)) => self.argument(name, at, rule, bridge),
                None => {
                    // RabbitMQ ignores what it does not know, so a typo would silently change nothing.
                    if let Some(meant) = near(name, RULES.iter().map(|(known, _)| *known)) {
                        self.problems.push(
                            Problem::error(
                                Code::UnknownKey,
                                at.key.clone(),
                                format!("{} is no queue argument of RabbitMQ", show(name)),
                            )
                            .label(format!("did you mean `{meant}`?"))
                            .why("RabbitMQ ignores arguments that it does not know")
                            .help(format!("write `{meant}`")),
                        );
                    }
                }
            }
        }
        raw.arguments.iter().map(|(name, at)| (name.clone(), at.value.value.clone())).collect()
    }

    fn argument(&mut self, name: &str, at: &ArgumentAt, rule: &Rule, bridge: &Bridge) {
        let value = &at.value.value;
        let wrong = |wanted: &str, help: &str| {
            Problem::error(Code::WrongType, at.value.place.clone(), format!("{} takes {wanted}", show(name)))
                .label(type_name(value))
                .help(help)
        };
        let problem = match (rule, value) {
            (Rule::Refused { why, help }, _) => Some(refused(name, at).why(*why).help(*help)),
            (Rule::Ttl, Argument::Int(ms)) => (*ms < 0 || ms.unsigned_abs() > BROKER_CEILING.0).then(|| {
                Problem::error(Code::BadValue, at.value.place.clone(), format!("a TTL cannot be {ms} ms"))
                    .label("out of range")
                    .why("RabbitMQ refuses it (406)")
                    .help("write milliseconds from 0 to 315360000000")
            }),
            (Rule::Ttl, Argument::Text(text)) => {
                let ms = text.parse::<Millis>().map_or(60_000, |millis| millis.0);
                Some(
                    wrong("milliseconds, as an integer", &format!("write `{name} = {ms}`"))
                        .why("RabbitMQ refuses a text there (406)"),
                )
            }
            (Rule::Ttl, Argument::Bool(_)) => {
                Some(wrong("milliseconds, as an integer", "write `x-message-ttl = 60000`"))
            }
            (Rule::AtLeast(least), Argument::Int(number)) => (number < least).then(|| {
                Problem::error(Code::BadValue, at.value.place.clone(), format!("{} cannot be {number}", show(name)))
                    .label("out of range")
                    .help(format!("write at least {least}"))
            }),
            (Rule::Boolean, Argument::Bool(_)) | (Rule::Text, Argument::Text(_)) => None,
            (Rule::Boolean, _) => Some(wrong("a boolean", "write `true` or `false`, without quotes")),
            (Rule::Text, _) => Some(wrong("a text", "write it in double quotes")),
            (Rule::Limit, Argument::Int(number)) => (*number < 0).then(|| {
                Problem::error(Code::BadValue, at.value.place.clone(), format!("{} cannot be {number}", show(name)))
                    .label("out of range")
                    .help("write a whole number that is not negative")
            }),
            (Rule::AtLeast(_) | Rule::Limit, _) => Some(wrong("an integer", "write a whole number, without quotes")),
            (Rule::Overflow, Argument::Text(word)) if word == "reject-publish" => None,
            (Rule::Overflow, _) => Some(
                refused(name, at)
                    .why(
                        "`drop-head` throws away the oldest messages, and anything but `reject-publish` silently turns \
                         at-least-once dead-lettering off",
                    )
                    .help("take it out: dwell sets `reject-publish`"),
            ),
        };
        let broken = problem.is_some();
        self.problems.extend(problem);
        // Also on another team's work exchange, which may get an alternate exchange at any time.
        let native = bridge.native && !bridge.cancellable && !bridge.tiers.is_empty();
        if matches!(rule, Rule::Limit) && !broken && native {
            self.problems.push(
                refused(name, at)
                    .why(
                        "a full work queue refuses messages (`reject-publish`), and the bridge's tiers then hold everything \
                         back, also for its other queues",
                    )
                    .help("take it out, or write `native = false` in the bridge: then the daemon stands between"),
            );
        }
    }

    // --- retry ---

    fn retry(&mut self, raw: &raw::Queue, bridge: &Bridge) -> Option<RetrySchedule> {
        let at = raw.retry.as_ref()?;
        let longest = bridge.max_delay.unwrap_or(self.limits.max_delay);
        match &at.value {
            Retry::List(delays) => self.retry_list(delays, &at.place, longest),
            Retry::Exponential(written) => self.retry_exponential(written, longest),
        }
    }

    fn not_yet(&mut self, place: Place, bridge: &str) {
        let resting = names::failed(bridge);
        self.problems.push(
            Problem::warning(Code::NotYet, place, "this release does not carry out retry schedules yet")
                .label("not yet")
                .why(format!("until then the first failure of a message is its last, and it rests in {}", show(&resting)))
                .help("nothing to do: the queue is declared with all that retry will need, and a later release follows the schedule"),
        );
    }

    fn retry_list(&mut self, delays: &[At<String>], place: &Place, longest: Millis) -> Option<RetrySchedule> {
        if delays.is_empty() {
            self.error(
                Code::BadRetry,
                place,
                "the retry schedule is empty",
                "no delay",
                "an empty schedule and no schedule would mean the same",
                "list the delays, or take out `retry`: then the first failure is the last",
            );
            return None;
        }
        let mut list = Vec::new();
        for at in delays {
            if let Some(delay) = self.millis(Some(at)) {
                self.retry_fits(at, delay, longest);
                list.push(delay);
            }
        }
        Some(RetrySchedule::List(list))
    }

    fn retry_exponential(&mut self, written: &raw::Exponential, longest: Millis) -> Option<RetrySchedule> {
        let first = self.millis(written.first.as_ref());
        let max = match &written.max {
            Some(at) => self.millis(Some(at)),
            // A long first delay without `max` means: always that long.
            None => Some(DEFAULT_MAX.max(first.unwrap_or_default())),
        };
        if let (Some(at), Some(first)) = (&written.first, first) {
            self.retry_fits(at, first, longest);
        }
        if let (Some(at), Some(max)) = (&written.max, max) {
            self.retry_fits(at, max, longest);
            if let (Some(first_at), Some(first)) = (&written.first, first)
                && max < first
            {
                self.problems.push(
                    Problem::error(
                        Code::BadRetry,
                        at.place.clone(),
                        format!("max {} is shorter than first {}", show(&at.value), show(&first_at.value)),
                    )
                    .label("shorter than the first delay")
                    .also(first_at.place.clone(), "first is set here")
                    .help("write a longer max or a shorter first"),
                );
            }
        }
        let factor = value_or(written.factor.as_ref(), DEFAULT_FACTOR);
        if let Some(at) = written.factor.as_ref().filter(|at| !(at.value.is_finite() && at.value >= 1.0)) {
            self.error(
                Code::BadRetry,
                &at.place,
                format!("factor {} is below 1 or no number", at.value),
                "out of range",
                "delays that shrink hammer what has just failed",
                "write 1 (always the same delay) or more",
            );
        }
        let jitter = value_or(written.jitter.as_ref(), DEFAULT_JITTER);
        if let Some(at) = written.jitter.as_ref().filter(|at| !(0.0..=1.0).contains(&at.value)) {
            self.error(
                Code::BadRetry,
                &at.place,
                format!("jitter {} is not between 0 and 1", at.value),
                "out of range",
                "jitter is the share of a delay by which it is spread: at 0.1, 10 s become 9 to 11 s",
                "write a number from 0 to 1",
            );
        }
        let attempts = value_or(written.attempts.as_ref(), i64::from(DEFAULT_ATTEMPTS));
        let counted = u32::try_from(attempts).ok().filter(|n| *n >= 1);
        if let (None, Some(at)) = (counted, &written.attempts) {
            self.error(
                Code::BadRetry,
                &at.place,
                format!("attempts cannot be {attempts}"),
                "out of range",
                "it counts how often a failed message is tried again",
                "write 1 or more, or take out `retry`: then the first failure is the last",
            );
        }
        Some(RetrySchedule::Exponential { first: first?, factor, max: max?, attempts: counted?, jitter })
    }

    fn retry_fits(&mut self, at: &At<String>, delay: Millis, longest: Millis) {
        if delay > longest {
            self.error(
                Code::BadRetry,
                &at.place,
                format!("retry delay {} is above max_delay {longest}", show(&at.value)),
                "too long",
                "a delay above max_delay is rejected",
                "write a shorter delay, or raise `max_delay`",
            );
        }
    }

    /// A schedule is of use only where failures come to dwell.
    fn retry_is_reached(&mut self, raw: &raw::Queue, bridge: &Bridge, declare: bool) {
        let Some(retry) = &raw.retry else { return };
        let failed = format!("{}.failed", bridge.name);
        let elsewhere = raw
            .arguments
            .get("x-dead-letter-exchange")
            .filter(|at| !matches!(&at.value.value, Argument::Text(name) if *name == failed));
        if let (true, Some(at)) = (declare, elsewhere) {
            self.problems.push(
                Problem::error(
                    Code::RetryUnreachable,
                    retry.place.clone(),
                    format!("the failures of queue {} never come to dwell", show(&raw.name.value)),
                )
                .label("never followed")
                .also(at.value.place.clone(), "failures go there")
                .why(format!("dwell sees failures that RabbitMQ sends to {}", show(&failed)))
                .help("take out `retry` or `x-dead-letter-exchange`"),
            );
        }
        if !declare {
            self.problems.push(
                Problem::warning(
                    Code::RetryUnreachable,
                    retry.place.clone(),
                    format!("whether queue {} is retried depends on who declares it", show(&raw.name.value)),
                )
                .label("perhaps never followed")
                .also(declare_place(raw), "another team declares this queue")
                .why(format!("dwell sees only failures that RabbitMQ sends to {}", show(&failed)))
                .help(format!(
                    "ask the other team for the argument or policy `dead-letter-exchange` = {}",
                    show(&failed)
                )),
            );
        }
    }
}

fn refused(name: &str, at: &ArgumentAt) -> Problem {
    Problem::error(Code::ArgumentRefused, at.key.clone(), format!("argument {} is refused", show(name)))
        .label("not here")
}

fn bind_place(bind: &Bind) -> Place {
    match bind {
        Bind::Key(at) => at.place.clone(),
        Bind::Headers(at) => at.place.clone(),
    }
}

fn declare_place(raw: &raw::Queue) -> Place {
    raw.declare.as_ref().map_or_else(|| raw.name.place.clone(), |at| at.place.clone())
}

fn type_name(argument: &Argument) -> &'static str {
    match argument {
        Argument::Bool(_) => "a boolean",
        Argument::Int(_) => "an integer",
        Argument::Text(_) => "a text",
    }
}
