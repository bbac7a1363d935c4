//! Every name that dwell gives to an object of the broker or to a header, built in one place.
//!
//! Names are part of the contract with users: dashboards, policies and permissions match on them. Header names do
//! not follow the prefix setting, because consumers read them.

use crate::duration::Millis;

/// Headers that publishers set, and headers that dwell sets.
pub mod header {
    /// How long to wait: milliseconds as an integer, a float or digits, or a duration (`1h30m`).
    pub const DELAY: &str = "x-delay";
    /// When to deliver: AMQP timestamp, epoch milliseconds, or RFC 3339.
    pub const DELIVER_AT: &str = "x-deliver-at";
    /// The publisher's own name for a message, for replacing and cancelling.
    pub const DELAY_KEY: &str = "x-delay-key";
    /// The message's own retry schedule.
    pub const DELAY_RETRY: &str = "x-delay-retry";

    /// Identity of a delivery that the daemon took in; stable from then on.
    pub const ID: &str = "dwell-id";
    /// The bridge that a message put to rest belongs to.
    pub const BRIDGE: &str = "dwell-bridge";
    /// The work queue that a retry returns to.
    pub const QUEUE: &str = "dwell-queue";
    /// The buffer queue that the daemon placed a message in.
    pub const TIER: &str = "dwell-tier";
    /// When the message is due, in epoch milliseconds.
    pub const DUE: &str = "dwell-due";
    /// Present and true where an earlier copy of the message may have been delivered.
    pub const REDELIVERED: &str = "dwell-redelivered";
    /// The `expiration` of a message that was put to rest.
    pub const EXPIRATION: &str = "dwell-expiration";
    /// How often the message has failed.
    pub const ATTEMPT: &str = "dwell-attempt";
    /// Why a message rests where it rests.
    pub const REASON: &str = "dwell-reason";
    /// The `user_id` of the publisher, where the daemon may not restore it.
    pub const USER_ID: &str = "dwell-user-id";
    /// When the message failed first, in epoch milliseconds.
    pub const FIRST_FAILED_AT: &str = "dwell-first-failed-at";
    /// When the message failed last, in epoch milliseconds.
    pub const LAST_FAILED_AT: &str = "dwell-last-failed-at";
    /// The prefix of all headers that are dwell's own.
    pub const PREFIX: &str = "dwell-";

    /// The broker's history of deaths.
    pub const DEATH: &str = "x-death";
    /// The queue of the first death; on 4.x the only one of the broker's death headers that a headers exchange sees.
    pub const FIRST_DEATH_QUEUE: &str = "x-first-death-queue";

    /// What makes the gate send a message to the intake although its delay may be exactly a tier.
    ///
    /// Without it a key would be unseen, a stale or forged `dwell-*` header would pass, and a message with the death
    /// history of an earlier pass would be dropped without a word by RabbitMQ 3.x (case B69).
    pub const GATED: [&str; 10] =
        [DELAY_KEY, DELIVER_AT, DELAY_RETRY, DEATH, FIRST_DEATH_QUEUE, ID, ATTEMPT, QUEUE, BRIDGE, TIER];

    /// Whether a header is the broker's or dwell's own bookkeeping of an earlier pass, which the daemon strips from
    /// what comes in by a delay exchange: on RabbitMQ 3.x a message with old deaths is dropped at its next one.
    #[must_use]
    pub fn is_stripped(name: &str) -> bool {
        name == DEATH
            || name == "x-delivery-count"
            || name == "x-acquired-count"
            || name.starts_with("x-first-death-")
            || name.starts_with("x-last-death-")
            || name.starts_with(PREFIX)
    }
}

/// The gate of a bridge is its delay exchange, which users may name themselves; this is the default.
#[must_use]
pub fn gate(bridge: &str) -> String {
    format!("{bridge}.delay")
}

/// The headers exchange that knows the tiers.
#[must_use]
pub fn tiers(bridge: &str) -> String {
    format!("{bridge}.tiers")
}

/// Behind [`tiers`]: what has an `x-delay` goes to the intake, the rest to [`default_wait`].
#[must_use]
pub fn rest(bridge: &str) -> String {
    format!("{bridge}.rest")
}

/// Behind [`rest`]: leads to the buffer queue of `default_delay`, or to the intake.
#[must_use]
pub fn default_wait(bridge: &str) -> String {
    format!("{bridge}.default")
}

/// Exchange and queue of what the broker cannot place by itself.
#[must_use]
pub fn intake(bridge: &str) -> String {
    format!("{bridge}.intake")
}

/// Exchange and queue of what died in the intake queue: its `expiration` passed, or it was delivered too often.
#[must_use]
pub fn intake_late(bridge: &str) -> String {
    format!("{bridge}.intake.late")
}

/// The buffer queue of a tier.
#[must_use]
pub fn buffer(bridge: &str, ttl: Millis) -> String {
    format!("{bridge}.wait.{ttl}")
}

/// A queue's arguments cannot be changed: where a buffer queue must be another one, a successor takes its place.
/// Generation 1 is the buffer queue itself, generation 2 is `….2`.
#[must_use]
pub fn successor(buffer: &str, generation: u32) -> String {
    if generation <= 1 { buffer.to_owned() } else { format!("{buffer}.{generation}") }
}

/// Which tier's buffer queue, of which bridge, that is, whatever its generation; `None`: it is none.
#[must_use]
pub fn tier_of_buffer(bridge: &str, queue: &str) -> Option<Millis> {
    let rest = queue.strip_prefix(bridge)?.strip_prefix(".wait.")?;
    let (tier, generation) = rest.split_once('.').unwrap_or((rest, "1"));
    let ttl = tier.parse::<Millis>().ok()?;
    let generation = generation.parse::<u32>().ok()?;
    // Only what dwell would write itself: `60s` or `.02` is somebody else's.
    (successor(&buffer(bridge, ttl), generation) == queue).then_some(ttl)
}

/// Exchange and queue of due messages that no work queue wanted.
#[must_use]
pub fn unrouted(bridge: &str) -> String {
    format!("{bridge}.unrouted")
}

/// Exchange and queue of a bridge's failures.
#[must_use]
pub fn failed(bridge: &str) -> String {
    format!("{bridge}.failed")
}

/// Where a work queue's message rests once its retries are used up.
#[must_use]
pub fn dead(queue: &str) -> String {
    format!("{queue}.dead")
}

/// Exchange and queue of messages whose delay cannot be understood.
#[must_use]
pub fn rejected(prefix: &str) -> String {
    format!("{prefix}.rejected")
}

/// The headers exchange by which the daemon reaches a tier's buffer queue.
#[must_use]
pub fn place(prefix: &str) -> String {
    format!("{prefix}.place")
}

/// The exchange that remembers since when a queue has been draining, by a binding that never matches: nobody publishes
/// to it.
#[must_use]
pub fn draining(prefix: &str) -> String {
    format!("{prefix}.draining")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffer_queues_are_told_by_their_names_whatever_their_generation() {
        let minute = Millis(60_000);
        for (queue, ttl) in [
            ("orders.wait.1m", Some(minute)),
            ("orders.wait.1m.2", Some(minute)),
            ("orders.wait.1m.11", Some(minute)),
            ("orders.wait.60s", None),
            ("orders.wait.1m.1", None),
            ("orders.wait.1m.02", None),
            ("orders.wait.1m.intake", None),
            ("orders.wait.wait.1m", None),
            ("orders.wait.", None),
            ("orders.close", None),
            ("other.wait.1m", None),
        ] {
            assert_eq!(tier_of_buffer("orders", queue), ttl, "{queue}");
        }
        assert_eq!(successor("orders.wait.1m", 1), "orders.wait.1m");
        assert_eq!(successor("orders.wait.1m", 3), "orders.wait.1m.3");
    }

    #[test]
    fn bookkeeping_of_an_earlier_pass_is_stripped_and_nothing_else() {
        for name in [
            "x-death",
            "x-first-death-queue",
            "x-first-death-reason",
            "x-last-death-exchange",
            "x-delivery-count",
            "x-acquired-count",
            "dwell-id",
            "dwell-anything",
        ] {
            assert!(header::is_stripped(name), "{name}");
        }
        for name in ["x-delay", "x-deliver-at", "x-delay-key", "traceparent", "CC", "x-death-star", "dwelling"] {
            assert!(!header::is_stripped(name), "{name}");
        }
    }
}
