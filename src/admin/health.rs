//! Whether dwell can do its work right now, and if not, why.
//!
//! Every part that can be in the way keeps its own entry in one shared registry; readiness is a pure function of all
//! entries. A part that says nothing is well, so what must happen before the first message (declaring the topology)
//! is entered as missing from the start.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use serde::Serialize;
use tokio::sync::watch;

/// Who may be in the way. Each part overwrites only its own entry.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Part {
    /// The process as a whole: only it says [`Reason::Stopping`].
    Process,
    /// The objects in the broker.
    Topology,
    /// One connection to the broker, by the name that its metrics carry.
    Connection(String),
    /// One bridge's intake: not consuming.
    Intake(String),
    /// Redis.
    Store,
    /// This machine's clock beside Redis'.
    Clock,
}

/// Why dwell is not ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reason {
    /// No connection to the broker.
    BrokerUnreachable,
    /// The broker takes no publishes (memory or disk alarm). Lives all the same, so `/healthz` stays 200 (case B123).
    BrokerBlocked,
    /// No connection to Redis, or it answers no commands.
    StoreUnreachable,
    /// More than 100 ms between this machine and Redis.
    ClockSkew,
    /// The exchanges and queues are not all there yet.
    TopologyNotDeclared,
    /// A signal came; what is in hand is finished, nothing new is taken.
    Stopping,
}

/// What all parts said last; a part that is well has no entry.
pub type State = BTreeMap<Part, Reason>;

/// What `/readyz` answers. Serialises as its JSON form.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Readiness {
    /// True without reasons only.
    pub ready: bool,
    /// In a stable order: by reason, then by part.
    pub reasons: Vec<Complaint>,
}

/// One reason and the parts that gave it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Complaint {
    /// [`Reason::as_str`].
    pub reason: &'static str,
    /// The parts' names, never empty.
    pub parts: Vec<String>,
}

/// The shared registry; clones are handles to the same one.
#[derive(Clone, Debug)]
pub struct Health {
    state: Arc<watch::Sender<State>>,
}

/// Sums up what the parts said.
#[must_use]
pub fn readiness(state: &State) -> Readiness {
    let mut by_reason: BTreeMap<Reason, Vec<String>> = BTreeMap::new();
    for (part, reason) in state {
        by_reason.entry(*reason).or_default().push(part.to_string());
    }
    let reasons: Vec<Complaint> =
        by_reason.into_iter().map(|(reason, parts)| Complaint { reason: reason.as_str(), parts }).collect();
    Readiness { ready: reasons.is_empty(), reasons }
}

// === impl Health ===

impl Health {
    /// A registry in which the topology is not declared yet and every other part is well until it says otherwise.
    #[must_use]
    pub fn starting() -> Health {
        let state = State::from([(Part::Topology, Reason::TopologyNotDeclared)]);
        Health { state: Arc::new(watch::Sender::new(state)) }
    }

    /// Says why a part is in the way, or with `None` that it is well. Overwrites what the same part said before.
    pub fn set(&self, part: Part, reason: Option<Reason>) {
        self.state.send_if_modified(|state| match reason {
            Some(reason) => state.insert(part, reason) != Some(reason),
            None => state.remove(&part).is_some(),
        });
    }

    /// The answer of this moment.
    #[must_use]
    pub fn readiness(&self) -> Readiness {
        readiness(&self.state.borrow())
    }

    /// Every change of the state, to wait for one without polling.
    #[must_use]
    pub fn subscribe(&self) -> watch::Receiver<State> {
        self.state.subscribe()
    }
}

// === impl Reason ===

impl Reason {
    /// The stable word that scripts may look for.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Reason::BrokerUnreachable => "broker-unreachable",
            Reason::BrokerBlocked => "broker-blocked",
            Reason::StoreUnreachable => "store-unreachable",
            Reason::ClockSkew => "clock-skew",
            Reason::TopologyNotDeclared => "topology-not-declared",
            Reason::Stopping => "stopping",
        }
    }
}

// === impl Part ===

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Part::Process => f.write_str("process"),
            Part::Topology => f.write_str("topology"),
            Part::Connection(name) => write!(f, "connection {name}"),
            Part::Intake(bridge) => write!(f, "intake {bridge}"),
            Part::Store => f.write_str("store"),
            Part::Clock => f.write_str("clock"),
        }
    }
}

// === impl Readiness ===

/// `ready`, or `not ready` and one line for each reason: `broker-blocked: connection orders.publish`.
impl fmt::Display for Readiness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.ready {
            return writeln!(f, "ready");
        }
        writeln!(f, "not ready")?;
        for complaint in &self.reasons {
            writeln!(f, "{}: {}", complaint.reason, complaint.parts.join(", "))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn connection(name: &str) -> Part {
        Part::Connection(name.to_owned())
    }

    #[test]
    fn nothing_is_ready_before_the_topology_is_declared() {
        let health = Health::starting();
        assert_eq!(health.readiness().to_string(), "not ready\ntopology-not-declared: topology\n");
        health.set(Part::Topology, None);
        assert_eq!(health.readiness(), Readiness { ready: true, reasons: vec![] });
        assert_eq!(health.readiness().to_string(), "ready\n");
    }

    #[test]
    fn one_part_that_recovers_leaves_the_others_complaint_alone() {
        let health = Health::starting();
        health.set(Part::Topology, None);
        health.set(connection("orders.publish"), Some(Reason::BrokerBlocked));
        health.set(connection("mail.publish"), Some(Reason::BrokerBlocked));
        health.set(Part::Store, Some(Reason::StoreUnreachable));
        assert_eq!(
            health.readiness().to_string(),
            "not ready\nbroker-blocked: connection mail.publish, connection orders.publish\nstore-unreachable: store\n"
        );
        health.set(connection("mail.publish"), None);
        assert_eq!(
            health.readiness().to_string(),
            "not ready\nbroker-blocked: connection orders.publish\nstore-unreachable: store\n"
        );
    }

    #[test]
    fn a_part_has_one_reason_at_a_time() {
        let state = State::from([(connection("a"), Reason::BrokerBlocked)]);
        let health = Health { state: Arc::new(watch::Sender::new(state)) };
        health.set(connection("a"), Some(Reason::BrokerUnreachable));
        assert_eq!(
            readiness(&health.subscribe().borrow()).reasons,
            vec![Complaint { reason: "broker-unreachable", parts: vec!["connection a".to_owned()] }]
        );
    }

    #[test]
    fn saying_the_same_again_wakes_nobody() {
        let health = Health::starting();
        let mut watcher = health.subscribe();
        watcher.mark_unchanged();
        health.set(Part::Topology, Some(Reason::TopologyNotDeclared));
        health.set(Part::Store, None);
        assert!(!watcher.has_changed().expect("the registry lives"));
        health.set(Part::Process, Some(Reason::Stopping));
        assert!(watcher.has_changed().expect("the registry lives"));
    }

    #[test]
    fn the_json_form_has_the_same_words() {
        let json = serde_json::to_value(readiness(&State::from([
            (Part::Process, Reason::Stopping),
            (Part::Clock, Reason::ClockSkew),
        ])))
        .expect("plain data");
        assert_eq!(
            json,
            serde_json::json!({ "ready": false, "reasons": [
                { "reason": "clock-skew", "parts": ["clock"] },
                { "reason": "stopping", "parts": ["process"] },
            ] })
        );
    }
}
