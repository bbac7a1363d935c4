//! Where a message goes: one pure function, and the table of section "Where a message goes" in the README.

use crate::declare::Buffers;
use crate::delay::Delay;
use crate::duration::Millis;
use crate::names;
use crate::reason::Reason;
use crate::topology::{Bridge, Long};

/// What `decide` needs to know of a bridge, with the settings' limits filled in.
#[derive(Clone, Debug, PartialEq)]
pub struct Rules {
    /// For a message without a delay header; `None`: it is due now.
    pub default_delay: Option<Millis>,
    /// The longest delay that may wait in the broker.
    pub broker_limit: Millis,
    /// The longest delay at all.
    pub max_delay: Millis,
    /// The tiers whose buffer queues may be used, each with its queue; empty where everything waits in the store.
    pub tiers: Vec<(Millis, String)>,
    /// Everything waits where it can be cancelled.
    pub cancellable: bool,
    /// What happens above the broker limit.
    pub long: Long,
    /// Whether there is a store.
    pub has_store: bool,
    /// Whether this broker makes plain messages late that wait in one quorum TTL queue with a priority above 4
    /// (RabbitMQ 4.0 to 4.2; assumed where the version is not known).
    pub priority_is_late: bool,
}

/// What a message asks for, as far as the decision goes.
#[derive(Clone, Debug, PartialEq)]
pub struct Wish {
    /// From its headers; `None`: it has no delay header.
    pub delay: Option<Delay>,
    /// The publisher's key.
    pub key: Option<String>,
    /// It carries an `expiration`, which would end its wait in a buffer queue early.
    pub expiration: bool,
    /// Its priority, 0 where it has none.
    pub priority: u8,
}

/// Where a message goes.
#[derive(Clone, Debug, PartialEq)]
pub enum Placement {
    /// The work exchange, at once.
    Now,
    /// A tier's buffer queue.
    Tier {
        /// How long it waits there.
        ttl: Millis,
        /// The queue.
        queue: String,
    },
    /// The store.
    Store {
        /// How long it waits, counted from the `now` of the decision.
        wait: Millis,
        /// The publisher's key.
        key: Option<String>,
    },
    /// The rejected queue.
    Rejected {
        /// Why.
        reason: Reason,
        /// The value or limit in question, for the log.
        detail: String,
    },
}

/// Priorities up to this one share RabbitMQ's normal lane in a quorum queue.
const NORMAL_PRIORITY: u8 = 4;

// === impl Rules ===

impl Rules {
    /// A bridge's rules.
    #[must_use]
    pub fn of(bridge: &Bridge, limits: &crate::config::Delay, has_store: bool, priority_is_late: bool) -> Rules {
        let tiers = if bridge.uses_tiers() {
            bridge.tiers.iter().map(|&ttl| (ttl, names::buffer(&bridge.name, ttl))).collect()
        } else {
            Vec::new()
        };
        Rules {
            default_delay: bridge.default_delay,
            broker_limit: bridge.broker_limit.unwrap_or(limits.broker_limit),
            max_delay: bridge.max_delay.unwrap_or(limits.max_delay),
            tiers,
            cancellable: bridge.cancellable,
            long: bridge.long,
            has_store,
            priority_is_late,
        }
    }

    /// From now on these members of the tiers' families are placed in.
    pub fn use_buffers(&mut self, bridge: &str, buffers: &Buffers) {
        for (ttl, queue) in &mut self.tiers {
            if let Some(member) = buffers.get(&(bridge.to_owned(), *ttl)) {
                queue.clone_from(member);
            }
        }
    }
}

/// Decides. `now_ms` is the wall clock in epoch milliseconds, and only an absolute wish is compared with it.
///
/// The order of the rows matters: what is due never waits for a store, and a delay above a limit is refused whatever
/// else the message carries.
#[must_use]
pub fn decide(rules: &Rules, wish: &Wish, now_ms: u64) -> Placement {
    let wait = match wish.delay {
        None => rules.default_delay.unwrap_or(Millis::ZERO),
        Some(Delay::After(ms)) => ms,
        Some(Delay::Negative) => Millis::ZERO,
        Some(Delay::At(at)) => Millis(at.saturating_sub(now_ms)),
    };
    let long = wait > rules.broker_limit;
    if wait > rules.max_delay {
        return rejected(Reason::DelayTooLarge, format!("{wait} is above max_delay = {}", rules.max_delay));
    }
    if wait == Millis::ZERO {
        return Placement::Now;
    }
    if long && rules.long == Long::Reject {
        return rejected(
            Reason::DelayTooLarge,
            format!("{wait} is above broker_limit = {} and long = \"reject\"", rules.broker_limit),
        );
    }
    if rules.cancellable || wish.key.is_some() || long || wish.expiration {
        return store(rules, wish, wait);
    }
    if rules.priority_is_late && wish.priority > NORMAL_PRIORITY && rules.has_store {
        return store(rules, wish, wait);
    }
    if let Some((ttl, queue)) = rules.tiers.iter().find(|(ttl, _)| *ttl == wait) {
        return Placement::Tier { ttl: *ttl, queue: queue.clone() };
    }
    // The row "anything else": the store, until there is a ladder.
    store(rules, wish, wait)
}

fn store(rules: &Rules, wish: &Wish, wait: Millis) -> Placement {
    if rules.has_store {
        Placement::Store { wait, key: wish.key.clone() }
    } else {
        rejected(Reason::StoreNeeded, format!("a delay of {wait} needs the store, and no [redis] is configured"))
    }
}

fn rejected(reason: Reason, detail: String) -> Placement {
    Placement::Rejected { reason, detail }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const NOW: u64 = 1_764_547_200_000;

    fn rules() -> Rules {
        Rules {
            default_delay: None,
            broker_limit: Millis::days(2),
            max_delay: Millis::days(365),
            tiers: vec![(Millis::seconds(10), "b.wait.10s".into()), (Millis::seconds(60), "b.wait.1m".into())],
            cancellable: false,
            long: Long::Store,
            has_store: true,
            priority_is_late: false,
        }
    }

    fn after(ms: u64) -> Wish {
        Wish { delay: Some(Delay::After(Millis(ms))), key: None, expiration: false, priority: 0 }
    }

    fn stored(ms: u64) -> Placement {
        Placement::Store { wait: Millis(ms), key: None }
    }

    fn reason(p: &Placement) -> Option<Reason> {
        match p {
            Placement::Rejected { reason, .. } => Some(*reason),
            _ => None,
        }
    }

    #[test]
    fn every_row_of_the_table_is_taken_in_its_order() {
        let tier = Placement::Tier { ttl: Millis::seconds(10), queue: "b.wait.10s".into() };
        let year = 365 * 86_400_000;
        let keyed = Wish { key: Some("k".into()), ..after(10_000) };
        for (what, wish, expected) in [
            ("zero", after(0), Placement::Now),
            ("negative", Wish { delay: Some(Delay::Negative), ..after(0) }, Placement::Now),
            ("no header", Wish { delay: None, ..after(0) }, Placement::Now),
            ("past", Wish { delay: Some(Delay::At(NOW - 1)), ..after(0) }, Placement::Now),
            ("this instant", Wish { delay: Some(Delay::At(NOW)), ..after(0) }, Placement::Now),
            ("due with a key", Wish { key: Some("k".into()), ..after(0) }, Placement::Now),
            ("exactly a tier", after(10_000), tier.clone()),
            ("an instant a tier away", Wish { delay: Some(Delay::At(NOW + 10_000)), ..after(0) }, tier),
            ("off tier", after(10_001), stored(10_001)),
            ("key", keyed, Placement::Store { wait: Millis(10_000), key: Some("k".into()) }),
            ("expiration", Wish { expiration: true, ..after(10_000) }, stored(10_000)),
            ("long", after(172_800_001), stored(172_800_001)),
            ("2^31", after(2_147_483_648), stored(2_147_483_648)),
            ("2^32", after(4_294_967_296), stored(4_294_967_296)),
            ("a year", after(year), stored(year)),
        ] {
            assert_eq!(decide(&rules(), &wish, NOW), expected, "{what}");
        }
    }

    #[test]
    fn b20_above_the_maximum_is_refused_loudly() {
        let over = decide(&rules(), &after(366 * 86_400_000), NOW);
        assert_eq!(reason(&over), Some(Reason::DelayTooLarge));
        assert_eq!(reason(&decide(&rules(), &after(u64::MAX), NOW)), Some(Reason::DelayTooLarge));
        let far = Wish { delay: Some(Delay::At(u64::MAX)), ..after(0) };
        assert_eq!(reason(&decide(&rules(), &far, NOW)), Some(Reason::DelayTooLarge));
    }

    #[test]
    fn b08_a_default_delay_holds_only_where_no_header_is() {
        let rules = Rules { default_delay: Some(Millis(5000)), ..rules() };
        assert_eq!(decide(&rules, &Wish { delay: None, ..after(0) }, NOW), stored(5000));
        assert_eq!(decide(&rules, &after(0), NOW), Placement::Now);
    }

    #[test]
    fn a_cancellable_bridge_keeps_all_but_the_due_in_the_store() {
        let rules = Rules { cancellable: true, ..rules() };
        assert_eq!(decide(&rules, &after(10_000), NOW), stored(10_000));
        assert_eq!(decide(&rules, &after(0), NOW), Placement::Now);
    }

    #[test]
    fn long_delays_are_refused_where_the_bridge_says_so() {
        let rules = Rules { long: Long::Reject, ..rules() };
        assert_eq!(reason(&decide(&rules, &after(172_800_001), NOW)), Some(Reason::DelayTooLarge));
        assert_eq!(decide(&rules, &after(172_800_000), NOW), stored(172_800_000));
    }

    #[test]
    fn without_a_store_tiers_still_work_and_the_rest_says_so() {
        let rules = Rules { has_store: false, priority_is_late: true, ..rules() };
        assert!(matches!(decide(&rules, &after(10_000), NOW), Placement::Tier { .. }));
        let high = Wish { priority: 9, ..after(10_000) };
        assert!(matches!(decide(&rules, &high, NOW), Placement::Tier { .. }), "late is better than rejected");
        assert_eq!(reason(&decide(&rules, &after(10_001), NOW)), Some(Reason::StoreNeeded));
    }

    #[test]
    fn a_high_priority_waits_in_the_store_where_the_broker_would_make_others_late() {
        let rules = Rules { priority_is_late: true, ..rules() };
        assert_eq!(decide(&rules, &Wish { priority: 5, ..after(10_000) }, NOW), stored(10_000));
        assert!(matches!(decide(&rules, &Wish { priority: 4, ..after(10_000) }, NOW), Placement::Tier { .. }));
    }

    proptest! {
        #[test]
        fn no_wish_is_ever_made_early(ms in 1..=u64::MAX, key in proptest::option::of("[a-z]{1,5}"), expiration: bool,
            priority: u8, has_store: bool, cancellable: bool) {
            let rules = Rules { cancellable, has_store, ..rules() };
            let wish = Wish { key, expiration, priority, ..after(ms) };
            match decide(&rules, &wish, NOW) {
                Placement::Now => prop_assert!(false, "{ms} ms came out as due now"),
                Placement::Tier { ttl, .. } => prop_assert_eq!(ttl, Millis(ms)),
                Placement::Store { wait, .. } => prop_assert_eq!(wait, Millis(ms)),
                Placement::Rejected { .. } => {}
            }
        }

        #[test]
        fn an_instant_waits_exactly_until_it(at in NOW + 1..NOW + 365 * 86_400_000) {
            let wish = Wish { delay: Some(Delay::At(at)), ..after(0) };
            match decide(&rules(), &wish, NOW) {
                Placement::Tier { ttl: wait, .. } | Placement::Store { wait, .. } => prop_assert_eq!(NOW + wait.0, at),
                other => prop_assert!(false, "{other:?}"),
            }
        }
    }
}
