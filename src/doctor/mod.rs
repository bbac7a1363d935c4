//! What the live system has that breaks a promise, or will: for `dwell doctor`, and before `run` begins.
//!
//! Facts are gathered first ([`gather()`]), then judged ([`examine`], pure). A doctor changes nothing.

mod gather;
mod judge;

use std::fmt::Write as _;

use serde_json::{Value, json};

use crate::declare::Declarations;
use crate::declare::plan::Plan;
use crate::management::{Overview, PermissionInfo, QueueInfo};
use crate::store;
use crate::topology::Topology;

pub use gather::{Error, gather};
pub use judge::{examine, shortened};

/// One thing that was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// A stable word, such as `queue-limit`.
    pub code: &'static str,
    /// Whether it breaks a promise; the rest is worth knowing.
    pub breaks: bool,
    /// What is wrong, with the object and the value, in one sentence without a full stop.
    pub what: String,
    /// What comes of it.
    pub why: String,
    /// What to do.
    pub help: String,
}

/// All that is looked at.
#[derive(Debug)]
pub struct Facts {
    /// The files.
    pub topology: Topology,
    /// What they need.
    pub wanted: Declarations,
    /// Begins the vhost-wide names.
    pub prefix: String,
    /// Whether the daemon declares, and so needs the right to configure.
    pub declares: bool,
    /// What differs.
    pub plan: Plan,
    /// Why the management API was of no use, where one is configured.
    pub trouble: Option<String>,
    /// The vhost's queues; `None`: nobody could list them.
    pub queues: Option<Vec<QueueInfo>>,
    /// The broker's version and clock.
    pub overview: Option<Overview>,
    /// How many nodes the broker has; `None`: it would not say.
    pub nodes: Option<usize>,
    /// What our user may do; `None`: the management API's user may not ask that.
    pub permissions: Option<PermissionInfo>,
    /// The user that RabbitMQ knows us by.
    pub user: String,
    /// The broker's clock minus ours, in milliseconds, to a second; `None`: not known.
    pub broker_skew_ms: Option<i64>,
    /// Redis; `None`: no `[redis]` section.
    pub store: Option<Result<store::Health, store::Error>>,
}

/// All findings for people: what breaks a promise first.
#[must_use]
pub fn render(findings: &[Finding]) -> String {
    let mut out = String::new();
    for finding in findings {
        let kind = if finding.breaks { "error" } else { "note" };
        let _ = writeln!(out, "{kind}[{}]: {}", finding.code, finding.what);
        let _ = writeln!(out, "  = why: {}\n  = help: {}\n", finding.why, finding.help);
    }
    let broken = findings.iter().filter(|finding| finding.breaks).count();
    let verdict = match (broken, findings.len() - broken) {
        (0, 0) => "All well.".to_owned(),
        (0, notes) => format!("Nothing breaks a promise; {notes} worth knowing."),
        (broken, notes) => format!("{broken} would break a promise; {notes} worth knowing."),
    };
    out + &verdict
}

/// The same for programs.
#[must_use]
pub fn to_json(findings: &[Finding]) -> Value {
    let list: Vec<Value> = findings
        .iter()
        .map(|f| json!({ "code": f.code, "breaks": f.breaks, "what": f.what, "why": f.why, "help": f.help }))
        .collect();
    json!({ "well": !findings.iter().any(|f| f.breaks), "findings": list })
}
