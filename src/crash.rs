//! Crash points: places between two effects where a test may make the process die, to check the sentence that says
//! what a crash there costs.
//!
//! `DWELL_CRASH_AT=pump.published` aborts at that point the first time it is reached, `…:5` the fifth time. Only
//! builds with debug assertions look at it; elsewhere the calls are empty.

/// Every crash point, in the order of the flow. A test kills the process at each.
pub const POINTS: [&str; 9] = [
    "intake.taken",
    "intake.published",
    "intake.acked",
    "parking.parked",
    "parking.acked",
    "pump.claimed",
    "pump.published",
    "pump.settled",
    "reaper.reaped",
];

/// Dies here if that was asked for.
///
/// # Panics
/// Where `DWELL_CRASH_AT` names no crash point: a test that waits for one would never see it.
#[cfg(debug_assertions)]
pub fn point(name: &str) {
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicU64, Ordering};

    static ASKED: OnceLock<Option<(String, u64)>> = OnceLock::new();
    static SEEN: AtomicU64 = AtomicU64::new(0);
    debug_assert!(POINTS.contains(&name), "{name} is not in the list of crash points");
    let asked = ASKED.get_or_init(|| {
        let asked = std::env::var("DWELL_CRASH_AT").ok()?;
        let point = asked.split(':').next().unwrap_or_default();
        assert!(POINTS.contains(&point), "DWELL_CRASH_AT names no crash point: {point}");
        Some(match asked.split_once(':') {
            Some((point, nth)) => (point.to_owned(), nth.parse().unwrap_or(1)),
            None => (asked, 1),
        })
    });
    if let Some((point, nth)) = asked
        && point == name
        && SEEN.fetch_add(1, Ordering::SeqCst) + 1 == *nth
    {
        // As a kill -9 would: no destructor runs, no buffer is flushed.
        std::process::abort();
    }
}

/// Dies here if that was asked for (never, without debug assertions).
#[cfg(not(debug_assertions))]
pub fn point(_name: &str) {}
