//! Delays: tiers, limits and defaults that fit each other and RabbitMQ.

use std::collections::BTreeMap;

use super::{BROKER_CEILING, Check};
use crate::duration::Millis;
use crate::problem::{Code, Place, Problem, show};
use crate::topology::raw::{self, At};

/// A hundred years: beyond it a delay is a slip of the pen, and arithmetic with instants stays far from its edges.
const LONGEST_DELAY: Millis = Millis::days(36_500);

/// The delays of one bridge, judged.
pub(super) struct Delays {
    pub tiers: Vec<Millis>,
    pub default_delay: Option<Millis>,
    pub broker_limit: Option<Millis>,
    pub max_delay: Option<Millis>,
}

impl Check<'_> {
    pub(super) fn delays(&mut self, raw: &raw::Bridge) -> Delays {
        let broker_limit = self.millis(raw.broker_limit.as_ref());
        let max_delay = self.millis(raw.max_delay.as_ref());
        let default_delay = self.millis(raw.default_delay.as_ref());
        let longest = max_delay.unwrap_or(self.limits.max_delay);

        if let (Some(at), Some(max)) = (&raw.max_delay, max_delay)
            && (max == Millis::ZERO || max > LONGEST_DELAY)
        {
            self.error(
                Code::LimitConflict,
                &at.place,
                format!("max_delay cannot be {}", show(&at.value)),
                "out of range",
                "at zero no message could be delayed; beyond a hundred years it is a slip of the pen",
                "write a duration between `\"1ms\"` and `\"36500d\"`",
            );
        }
        if let (Some(at), Some(limit)) = (&raw.broker_limit, broker_limit) {
            self.broker_limit(at, limit, longest, raw.max_delay.as_ref());
        }
        if let (Some(at), Some(default)) = (&raw.default_delay, default_delay)
            && default > longest
        {
            let problem = Problem::error(
                Code::LimitConflict,
                at.place.clone(),
                format!("default_delay {} is above max_delay {longest}", show(&at.value)),
            )
            .label("too long")
            .why("every message without a delay header would be rejected")
            .help("write a shorter default_delay or a longer max_delay");
            self.problems.push(beside(problem, raw.max_delay.as_ref(), "max_delay"));
        }
        let tiers = self.tiers(raw, broker_limit, longest);
        self.without_effect(raw);
        Delays { tiers, default_delay, broker_limit, max_delay }
    }

    fn broker_limit(&mut self, at: &At<String>, limit: Millis, longest: Millis, max_at: Option<&At<String>>) {
        if limit == Millis::ZERO {
            self.error(
                Code::LimitConflict,
                &at.place,
                "broker_limit is zero",
                "nothing could wait in the broker",
                "",
                "to keep all messages of the bridge in the store write `cancellable = true`",
            );
        } else if limit > BROKER_CEILING {
            self.error(
                Code::LimitConflict,
                &at.place,
                format!("broker_limit {} is above RabbitMQ's own limit", show(&at.value)),
                "too long",
                "RabbitMQ refuses a TTL above 315360000000 ms, ten years (406)",
                "write at most `\"3650d\"`; longer delays wait in the store",
            );
        } else if limit > longest {
            let problem = Problem::error(
                Code::LimitConflict,
                at.place.clone(),
                format!("broker_limit {} is above max_delay {longest}", show(&at.value)),
            )
            .label("longer than any delay")
            .why("a delay above max_delay is rejected, so the two contradict each other")
            .help("write a shorter broker_limit or a longer max_delay");
            self.problems.push(beside(problem, max_at, "max_delay"));
        }
    }

    fn tiers(&mut self, raw: &raw::Bridge, broker_limit: Option<Millis>, longest: Millis) -> Vec<Millis> {
        let limit = broker_limit.unwrap_or(self.limits.broker_limit);
        let mut seen: BTreeMap<Millis, &At<String>> = BTreeMap::new();
        for at in &raw.tiers {
            let Some(tier) = self.millis(Some(at)) else { continue };
            if tier == Millis::ZERO {
                self.error(
                    Code::TierZero,
                    &at.place,
                    format!("tier {} is no delay", show(&at.value)),
                    "zero",
                    "a message that is due at once needs no buffer queue; `x-delay: 0` is delivered at once without one",
                    "take it out",
                );
                continue;
            }
            if let Some(first) = seen.get(&tier) {
                let same = if first.value == at.value {
                    String::new()
                } else {
                    format!(" ({} and {} are equal)", show(&first.value), show(&at.value))
                };
                self.problems.push(
                    Problem::error(Code::TierTwice, at.place.clone(), format!("tier {tier} is listed twice{same}"))
                        .label("again here")
                        .also(first.place.clone(), "first here")
                        .help("take one of them out"),
                );
                continue;
            }
            seen.insert(tier, at);
            self.tier_fits(at, tier, limit, longest, raw);
        }
        seen.into_keys().collect()
    }

    fn tier_fits(&mut self, at: &At<String>, tier: Millis, limit: Millis, longest: Millis, raw: &raw::Bridge) {
        let shown = show(&at.value);
        if tier > BROKER_CEILING {
            self.error(
                Code::TierTooLong,
                &at.place,
                format!("tier {shown} is longer than RabbitMQ can hold"),
                "above 315360000000 ms",
                "RabbitMQ refuses a TTL above 315360000000 ms, ten years (406)",
                "take it out: longer delays wait in the store, and need no tier",
            );
        } else if tier > limit {
            let problem = Problem::error(
                Code::TierTooLong,
                at.place.clone(),
                format!("tier {shown} is longer than the broker limit, {limit}"),
            )
            .label("too long for the broker")
            .why("delays above the broker limit wait in the store, so no message would ever use this buffer queue")
            .help(match raw.broker_limit {
                Some(_) => "take it out, or raise `broker_limit` of this bridge",
                None => "take it out (the store holds such delays), or raise `broker_limit` here or in the settings (`delay.broker_limit`)",
            });
            self.problems.push(beside(problem, raw.broker_limit.as_ref(), "broker_limit"));
        } else if tier > longest {
            let problem = Problem::error(
                Code::TierTooLong,
                at.place.clone(),
                format!("tier {shown} is longer than max_delay, {longest}"),
            )
            .label("longer than any delay")
            .help("take it out, or raise `max_delay`");
            self.problems.push(beside(problem, raw.max_delay.as_ref(), "max_delay"));
        }
    }

    /// Things that a bridge without buffer queues has no use for.
    fn without_effect(&mut self, raw: &raw::Bridge) {
        let Some(place) = raw.tiers.first().map(|at| at.place.clone()) else { return };
        if let Some(cancellable) = raw.cancellable.as_ref().filter(|at| at.value) {
            self.problems.push(
                no_effect(place, "the tiers have no effect", "no buffer queue is made")
                    .also(cancellable.place.clone(), "all messages of the bridge wait in the store")
                    .help("take out `tiers`, or `cancellable = true`"),
            );
        }
    }
}

/// A warning that something changes nothing.
pub(super) fn no_effect(place: Place, what: &str, label: &str) -> Problem {
    Problem::warning(Code::NoEffect, place, what).label(label)
}

/// Shows the other limit, if this file sets it.
fn beside(problem: Problem, at: Option<&At<String>>, key: &str) -> Problem {
    match at {
        Some(at) => problem.also(at.place.clone(), format!("{key} is set here")),
        None => problem,
    }
}
