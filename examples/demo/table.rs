//! What came, held against what was sent; pure.
//!
//! A row knows what was sent only to find its arrivals and to say what was due. Everything that is claimed about the
//! way and the time is read from what the consumer received.

use std::fmt::Write;
use std::time::Duration;

/// A message as it was published. Times count from the beginning of the demo.
#[derive(Clone, Debug)]
pub struct Sent {
    /// Such as "an off-tier delay".
    pub name: &'static str,
    /// The header, as a person would write it.
    pub header: String,
    /// Just before it was published.
    pub at: Duration,
    /// When it should come out; `None`: never, it is to be rejected.
    pub due: Option<Duration>,
    /// What should bring it.
    pub by: By,
}

/// Who is to bring a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    /// RabbitMQ alone: the daemon never sees it.
    Broker,
    /// The daemon.
    Dwell,
    /// Nobody: it is to rest in the rejected queue for this reason.
    Rejected(&'static str),
}

/// A message as the consumer received it.
#[derive(Clone, Debug)]
pub struct Came {
    /// Which one it is: its place in the list of what was sent.
    pub number: usize,
    /// Since the beginning of the demo.
    pub at: Duration,
    /// What its headers tell.
    pub way: Way,
    /// Routing key, body and properties are what was sent.
    pub unchanged: bool,
}

/// The way of a message, by the traces that it carries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Way {
    /// No header of dwell's; `x-death` names the queue that it waited in.
    Broker(String),
    /// `dwell-tier`: the daemon put it into a buffer queue.
    Tier(String),
    /// `dwell-id` says when the daemon took it in: that long ago.
    Dwell(Duration),
    /// It rests in the rejected queue, with this `dwell-reason`.
    Rejected(String),
    /// No trace at all.
    Straight,
}

/// What is wrong with a message.
#[derive(Clone, Debug, PartialEq)]
pub enum Fault {
    /// It has not come.
    Missing,
    /// It came so many times.
    Copies(usize),
    /// It came before it was due, by so many milliseconds.
    Early(f64),
    /// It came by somebody else.
    OtherWay,
    /// It is not what was sent.
    Changed,
}

/// Early is a whole millisecond or more: a quorum queue's clock counts in milliseconds, and its rounding shows.
const EARLY_MS: f64 = -1.0;

/// Below this the daemon has passed it on at once.
const AT_ONCE: Duration = Duration::from_millis(200);

/// Everything that is wrong, message by message.
#[must_use]
pub fn faults(sent: &[Sent], came: &[Came]) -> Vec<(usize, Fault)> {
    let mut faults = Vec::new();
    for (number, message) in sent.iter().enumerate() {
        let arrivals: Vec<&Came> = came.iter().filter(|c| c.number == number).collect();
        match arrivals.len() {
            0 => faults.push((number, Fault::Missing)),
            1 => {}
            copies => faults.push((number, Fault::Copies(copies))),
        }
        for arrival in arrivals {
            if let Some(late) = message.due.map(|due| late_ms(due, arrival.at)).filter(|late| *late <= EARLY_MS) {
                faults.push((number, Fault::Early(-late)));
            }
            if !message.by.is(&arrival.way) {
                faults.push((number, Fault::OtherWay));
            }
            if !arrival.unchanged {
                faults.push((number, Fault::Changed));
            }
        }
    }
    faults
}

/// The table: one line a message, one more for each copy.
#[must_use]
pub fn render(sent: &[Sent], came: &[Came]) -> String {
    let mut out = line("sent", "header", "came by", ["due after", "came after", "late"]);
    let _ = writeln!(out, "{}", "-".repeat(out.trim_end().chars().count()));
    for (number, message) in sent.iter().enumerate() {
        let due = message.due.map_or("never".to_owned(), |due| seconds(due.saturating_sub(message.at)));
        let mut arrivals = came.iter().filter(|c| c.number == number).peekable();
        if arrivals.peek().is_none() {
            out += &line(message.name, &message.header, "MISSING", [&due, "", ""]);
        }
        for arrival in arrivals {
            let after = seconds(arrival.at.saturating_sub(message.at));
            let late = message.due.map_or(String::new(), |due| format!("{:.1} ms", late_ms(due, arrival.at)));
            out += &line(message.name, &message.header, &arrival.way.to_string(), [&due, &after, &late]);
        }
    }
    out
}

/// The last words: that all is well, or each fault by name.
#[must_use]
pub fn verdict(sent: &[Sent], faults: &[(usize, Fault)]) -> String {
    if faults.is_empty() {
        return format!("All {} came, each once, none early, unchanged; the bad one with its reason.\n", sent.len());
    }
    let mut out = String::new();
    for (number, fault) in faults {
        let message = &sent[*number];
        let _ = writeln!(out, "FAULT: {} ({}) {}", message.name, message.header, fault.words(message.by));
    }
    out
}

// === impl By, Way, Fault ===

impl By {
    fn is(self, way: &Way) -> bool {
        match self {
            By::Broker => matches!(way, Way::Broker(_)),
            By::Dwell => matches!(way, Way::Dwell(_) | Way::Tier(_)),
            By::Rejected(reason) => matches!(way, Way::Rejected(found) if found == reason),
        }
    }
}

impl std::fmt::Display for Way {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Way::Broker(queue) => write!(f, "RabbitMQ alone ({queue})"),
            Way::Tier(queue) => write!(f, "dwell, then {queue}"),
            Way::Dwell(held) if *held < AT_ONCE => f.write_str("dwell, at once"),
            Way::Dwell(held) => write!(f, "dwell, held {:.1} s in Redis", held.as_secs_f64()),
            Way::Rejected(reason) => write!(f, "dwell.rejected: {reason}"),
            Way::Straight => f.write_str("no trace of a wait"),
        }
    }
}

impl Fault {
    fn words(&self, by: By) -> String {
        match self {
            Fault::Missing => "is missing".to_owned(),
            Fault::Copies(copies) => format!("came {copies} times"),
            Fault::Early(ms) => format!("came {ms:.1} ms early"),
            Fault::OtherWay => match by {
                By::Broker => "should have come by RabbitMQ alone".to_owned(),
                By::Dwell => "should have come by dwell".to_owned(),
                By::Rejected(reason) => format!("should rest in dwell.rejected, {reason}"),
            },
            Fault::Changed => "is not what was sent".to_owned(),
        }
    }
}

// === Helpers ===

fn line(sent: &str, header: &str, way: &str, [due, came, late]: [&str; 3]) -> String {
    let line = format!("{sent:<25} {header:<29} {way:<33} {due:>9} {came:>10} {late:>9}");
    line.trim_end().to_owned() + "\n"
}

/// How late, in milliseconds; negative where it was early.
pub fn late_ms(due: Duration, came: Duration) -> f64 {
    (came.as_secs_f64() - due.as_secs_f64()) * 1e3
}

/// `1.002 s`
pub fn seconds(time: Duration) -> String {
    format!("{:.3} s", time.as_secs_f64())
}
