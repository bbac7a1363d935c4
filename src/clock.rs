//! Time as an argument: one trait for the two clocks that dwell reads, so that no test waits and none hopes.
//!
//! The wall clock says when a message is due (it must agree with publishers and with Redis, and may be stepped by an
//! administrator). The monotonic clock drives timers and leases (it never goes back). Mixing them up is how delays
//! end early after a clock step (case B114).

use std::fmt;
use std::sync::Mutex;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::duration::Millis;

/// The two clocks.
pub trait Clock: fmt::Debug + Send + Sync + 'static {
    /// Wall time: milliseconds since 1970-01-01T00:00:00Z, rounded down. Negative before that.
    fn unix_millis(&self) -> i64;

    /// Time that never goes back, for timers, leases and throttles.
    fn monotonic(&self) -> Instant;
}

/// The operating system's clocks.
#[derive(Clone, Copy, Debug, Default)]
pub struct Real;

/// Clocks that stand still until a test moves them. Share one with `Arc`.
#[derive(Debug)]
pub struct Manual {
    state: Mutex<ManualState>,
    /// Where the monotonic clock began; `Instant` cannot be made of nothing.
    origin: Instant,
}

#[derive(Debug)]
struct ManualState {
    unix_millis: i64,
    since_origin: Duration,
}

// === impl Real ===

impl Clock for Real {
    fn unix_millis(&self) -> i64 {
        let now = SystemTime::now();
        match now.duration_since(UNIX_EPOCH) {
            Ok(since) => i64::try_from(since.as_millis()).unwrap_or(i64::MAX),
            // Rounded down here too: 0.3 ms before 1970 is -1.
            Err(before) => -i64::try_from(before.duration().as_nanos().div_ceil(1_000_000)).unwrap_or(i64::MAX),
        }
    }

    fn monotonic(&self) -> Instant {
        Instant::now()
    }
}

// === impl Manual ===

impl Manual {
    /// A clock that shows that many milliseconds since 1970.
    #[must_use]
    pub fn at(unix_millis: i64) -> Manual {
        Manual { state: Mutex::new(ManualState { unix_millis, since_origin: Duration::ZERO }), origin: Instant::now() }
    }

    /// Lets time pass on both clocks.
    pub fn advance(&self, by: Millis) {
        let mut state = self.lock();
        state.unix_millis = state.unix_millis.saturating_add_unsigned(by.0);
        state.since_origin += by.to_std();
    }

    /// Steps the wall clock alone, as an administrator or NTP does; negative steps go back.
    pub fn step_wall(&self, by_millis: i64) {
        let mut state = self.lock();
        state.unix_millis = state.unix_millis.saturating_add(by_millis);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, ManualState> {
        self.state.lock().expect("no code panics while it holds this lock")
    }
}

impl Clock for Manual {
    fn unix_millis(&self) -> i64 {
        self.lock().unix_millis
    }

    fn monotonic(&self) -> Instant {
        self.origin + self.lock().since_origin
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_manual_clock_moves_only_when_told() {
        let clock = Manual::at(1_000);
        let start = clock.monotonic();
        assert_eq!((clock.unix_millis(), clock.monotonic()), (1_000, start));
        clock.advance(Millis(250));
        assert_eq!((clock.unix_millis(), clock.monotonic() - start), (1_250, Duration::from_millis(250)));
    }

    #[test]
    fn a_step_of_the_wall_clock_leaves_timers_alone() {
        let clock = Manual::at(3_600_000);
        let start = clock.monotonic();
        clock.step_wall(-3_600_000);
        assert_eq!((clock.unix_millis(), clock.monotonic()), (0, start));
    }

    #[test]
    fn the_real_clock_is_past_2025() {
        assert!(Real.unix_millis() > 1_735_689_600_000);
    }
}
