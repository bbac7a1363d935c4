//! How long to wait before the next attempt: exponential, with jitter, without end.
//!
//! The only module that names the `backoff` crate. The crate is unmaintained (RUSTSEC-2025-0012) and was chosen
//! nevertheless; kept here, it can be replaced without touching a caller.

use std::time::Duration;

use backoff::ExponentialBackoff;
use backoff::backoff::Backoff as _;

/// A growing wait between attempts.
#[derive(Debug)]
pub struct Backoff {
    inner: ExponentialBackoff,
    max: Duration,
}

/// Below this a wait is a hot loop.
const SHORTEST: Duration = Duration::from_millis(1);

/// Each wait is drawn from half to one and a half times its nominal length, so that daemons which lost the same server
/// at the same moment do not come back at the same moment.
const JITTER: f64 = 0.5;

// === impl Backoff ===

impl Backoff {
    /// Waits of `first`, twice that, and so on, up to `max`; each with jitter, and never above `max` for all that.
    ///
    /// Every pair is valid: `first` counts as 1 ms at least, `max` as `first` at least.
    #[must_use]
    pub fn new(first: Duration, max: Duration) -> Backoff {
        let first = first.max(SHORTEST);
        let max = max.max(first);
        let inner = ExponentialBackoff {
            current_interval: first,
            initial_interval: first,
            randomization_factor: JITTER,
            multiplier: 2.0,
            max_interval: max,
            // The crate gives up after 15 minutes unless told not to; a daemon never does.
            max_elapsed_time: None,
            ..ExponentialBackoff::default()
        };
        Backoff { inner, max }
    }

    /// How long to wait before the next attempt: from 1 ms to `max`.
    pub fn next_wait(&mut self) -> Duration {
        self.inner.next_backoff().unwrap_or(self.max).clamp(SHORTEST, self.max)
    }

    /// After a success: the next wait is the first one again.
    pub fn reset(&mut self) {
        self.inner.reset();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn waits_grow_to_the_maximum_and_stay_there() {
        let max = Duration::from_secs(5);
        let mut backoff = Backoff::new(Duration::from_millis(100), max);
        let waits: Vec<Duration> = (0..100).map(|_| backoff.next_wait()).collect();
        assert!(waits[0] <= Duration::from_millis(150), "{:?}", waits[0]);
        assert!(waits[10..].iter().all(|wait| *wait >= max / 2 && *wait <= max), "{waits:?}");
    }

    #[test]
    fn a_reset_begins_anew() {
        let mut backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(60));
        for _ in 0..20 {
            backoff.next_wait();
        }
        backoff.reset();
        assert!(backoff.next_wait() <= Duration::from_millis(150));
    }

    #[test]
    fn two_waits_of_the_same_step_differ() {
        let first = || Backoff::new(Duration::from_secs(1), Duration::from_secs(60)).next_wait();
        let one = first();
        assert!((0..20).any(|_| first() != one), "no jitter");
    }

    proptest! {
        #[test]
        fn no_wait_is_zero_or_above_the_maximum(first_ms in 0u64..100_000, max_ms in 0u64..100_000, steps in 1usize..50) {
            let mut backoff = Backoff::new(Duration::from_millis(first_ms), Duration::from_millis(max_ms));
            let max = Duration::from_millis(max_ms.max(first_ms).max(1));
            for _ in 0..steps {
                let wait = backoff.next_wait();
                prop_assert!(wait >= SHORTEST && wait <= max, "{wait:?}");
            }
        }
    }
}
