//! What is logged, where, and how often.
//!
//! Lines go to standard error. lapin is kept quiet: its WARN for a returned message prints the whole payload and all
//! headers, and its TRACE prints frames. Payloads belong to dwell's users and not into logs. Its ERROR lines tell again
//! what dwell says in its own words, and some come at every graceful close.

use std::collections::HashMap;
use std::hash::Hash;
use std::io::{self, IsTerminal};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use tracing::level_filters::LevelFilter;
use tracing::{Level, Metadata};
use tracing_subscriber::filter::{FilterExt, filter_fn};
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer, Registry};

use crate::config::{Log, LogFormat};

/// Why logging could not begin.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// `log.level` is neither a level nor a filter.
    #[error("log.level {level:?} is no level and no filter: {why}")]
    Filter {
        /// As the setting gives it.
        level: String,
        /// The parser's words.
        why: String,
    },
    /// Something else in the process logs already.
    #[error("logging was begun twice")]
    Twice,
}

/// Lets a line about something through once a minute (or another window) for each key, and counts what it held back.
/// Time is passed in.
#[derive(Debug)]
pub struct Throttle<K> {
    window: Duration,
    /// One entry for each key ever seen: keys must be bounded, like (bridge, reason).
    seen: Mutex<HashMap<K, Seen>>,
}

#[derive(Clone, Copy, Debug)]
struct Seen {
    last: Instant,
    suppressed: u64,
}

/// Begins logging, once in the life of the process.
pub fn init(log: &Log) -> Result<(), Error> {
    Registry::default().with(layer(log, io::stderr, io::stderr().is_terminal())?).try_init().map_err(|_| Error::Twice)
}

fn layer<W>(log: &Log, writer: W, color: bool) -> Result<Box<dyn Layer<Registry> + Send + Sync>, Error>
where
    W: for<'w> MakeWriter<'w> + Send + Sync + 'static,
{
    let trace_of_lapin = asks_for_lapin(&log.level);
    let quiet_lapin =
        filter_fn(move |metadata| may_pass(metadata, trace_of_lapin)).with_max_level_hint(LevelFilter::TRACE);
    let filter = filter(&log.level)?.and(quiet_lapin);
    Ok(match log.format {
        LogFormat::Text => {
            tracing_subscriber::fmt::layer().with_writer(writer).with_ansi(color).with_filter(filter).boxed()
        }
        LogFormat::Json => {
            tracing_subscriber::fmt::layer().json().flatten_event(true).with_writer(writer).with_filter(filter).boxed()
        }
    })
}

fn filter(level: &str) -> Result<EnvFilter, Error> {
    EnvFilter::builder().parse(level).map_err(|error| Error::Filter { level: level.to_owned(), why: error.to_string() })
}

/// Whether the filter names lapin and asks for its trace: only then is anything of it shown.
fn asks_for_lapin(level: &str) -> bool {
    level.split(',').filter_map(|directive| directive.trim().split_once('=')).any(|(target, level)| {
        is_lapin(target.split(['[', '{']).next().unwrap_or_default())
            && matches!(level.trim().to_ascii_lowercase().as_str(), "trace" | "5")
    })
}

/// The rule for lapin that no setting lifts: its WARN lines, which print payloads, never pass; the rest only with its
/// trace asked for.
fn may_pass(metadata: &Metadata<'_>, trace_of_lapin: bool) -> bool {
    if !is_lapin(metadata.target()) {
        return true;
    }
    trace_of_lapin && *metadata.level() != Level::WARN
}

fn is_lapin(target: &str) -> bool {
    target == "lapin" || target.starts_with("lapin::")
}

// === impl Throttle ===

impl<K: Eq + Hash> Throttle<K> {
    /// One line for each key in a window.
    #[must_use]
    pub fn new(window: Duration) -> Throttle<K> {
        Throttle { window, seen: Mutex::default() }
    }

    /// One line for each key in a minute: the rate that the promise "nothing silent" names.
    #[must_use]
    pub fn once_a_minute() -> Throttle<K> {
        Throttle::new(Duration::from_secs(60))
    }

    /// Asks to log something now. `Some(n)`: log it, and say that `n` like it were held back since the last one.
    /// `None`: hold it back.
    pub fn admit(&self, key: K, now: Instant) -> Option<u64> {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(entry) = seen.get_mut(&key) else {
            seen.insert(key, Seen { last: now, suppressed: 0 });
            return Some(0);
        };
        if now.saturating_duration_since(entry.last) < self.window {
            entry.suppressed += 1;
            return None;
        }
        let suppressed = entry.suppressed;
        *entry = Seen { last: now, suppressed: 0 };
        Some(suppressed)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use tracing::subscriber::with_default;

    /// Collects what would be written.
    #[derive(Clone, Default)]
    struct Page(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Page {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().expect("no test panics while writing").write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// What is logged at a level by one line of every level of lapin and of dwell.
    fn logged(level: &str, format: LogFormat) -> String {
        let page = Page::default();
        let writer = page.clone();
        let log = Log { level: level.to_owned(), format };
        let layer = layer(&log, move || writer.clone(), false).expect("a good filter");
        with_default(Registry::default().with(layer), || {
            tracing::error!(target: "lapin::channel", "lapin-error");
            tracing::warn!(target: "lapin::returned_messages", message = "lapin-warn payload");
            tracing::info!(target: "lapin", "lapin-info");
            tracing::trace!(target: "lapin::io_loop", "lapin-trace");
            tracing::warn!(target: "dwell::intake", bridge = "orders", "dwell-warn");
            tracing::debug!(target: "dwell::intake", "dwell-debug");
        });
        let bytes = page.0.lock().expect("no test panics while writing").clone();
        String::from_utf8(bytes).expect("text")
    }

    /// Which of the lines of [`logged`] came.
    fn which(level: &str) -> Vec<&'static str> {
        let text = logged(level, LogFormat::Text);
        ["lapin-error", "lapin-warn", "lapin-info", "lapin-trace", "dwell-warn", "dwell-debug"]
            .into_iter()
            .filter(|word| text.contains(word))
            .collect()
    }

    #[test]
    fn lapin_is_not_heard_unless_its_trace_is_asked_for() {
        assert_eq!(which("info"), ["dwell-warn"]);
        assert_eq!(which("trace"), ["dwell-warn", "dwell-debug"]);
        assert_eq!(which("info,lapin=debug"), ["dwell-warn"]);
    }

    #[test]
    fn lapins_trace_can_be_asked_for_but_never_its_warnings() {
        assert_eq!(which("warn,lapin=trace"), ["lapin-error", "lapin-info", "lapin-trace", "dwell-warn"]);
        assert_eq!(which("dwell=warn,lapin::io_loop=trace"), ["lapin-trace", "dwell-warn"]);
        assert!(which("lapin=warn").is_empty());
    }

    #[test]
    fn other_names_that_begin_like_lapin_are_not_lapin() {
        assert!(!is_lapin("lapinette"));
        assert!(!asks_for_lapin("lapinette=trace"));
        assert!(asks_for_lapin("lapin[span]=trace"));
        assert!(asks_for_lapin("info,lapin=5"));
    }

    #[test]
    fn json_lines_are_json_with_the_fields_at_the_top() {
        let text = logged("dwell=warn", LogFormat::Json);
        let line: serde_json::Value = serde_json::from_str(text.trim()).expect("one line of JSON");
        assert_eq!((&line["level"], &line["bridge"]), (&"WARN".into(), &"orders".into()));
        assert_eq!(line["message"], "dwell-warn");
    }

    #[test]
    fn a_filter_that_is_none_is_refused() {
        assert!(filter("info,dwell::pump=debug").is_ok());
        let error = filter("dwell=loud").expect_err("no level");
        assert!(error.to_string().starts_with("log.level \"dwell=loud\" is no level and no filter"), "{error}");
    }

    #[test]
    fn a_line_comes_once_in_a_window_for_each_key_and_tells_what_was_held_back() {
        let throttle = Throttle::once_a_minute();
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        assert_eq!(throttle.admit(("orders", "invalid-delay"), at(0)), Some(0));
        assert_eq!(throttle.admit(("orders", "invalid-delay"), at(1)), None);
        assert_eq!(throttle.admit(("orders", "invalid-delay"), at(59)), None);
        // Another reason and another bridge are lines of their own.
        assert_eq!(throttle.admit(("orders", "both-headers"), at(2)), Some(0));
        assert_eq!(throttle.admit(("mail", "invalid-delay"), at(2)), Some(0));
        assert_eq!(throttle.admit(("orders", "invalid-delay"), at(60)), Some(2));
        assert_eq!(throttle.admit(("orders", "invalid-delay"), at(61)), None);
        assert_eq!(throttle.admit(("orders", "invalid-delay"), at(500)), Some(1));
        assert_eq!(throttle.admit(("orders", "both-headers"), at(62)), Some(0));
    }

    #[test]
    fn time_that_seems_to_go_back_holds_the_line_back() {
        let throttle = Throttle::once_a_minute();
        let start = Instant::now();
        assert_eq!(throttle.admit("key", start + Duration::from_secs(10)), Some(0));
        assert_eq!(throttle.admit("key", start), None);
    }
}
