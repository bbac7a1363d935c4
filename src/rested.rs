//! Nothing silent, and nothing deafening: what was put to rest is logged once a minute for each bridge and reason.

use std::sync::Arc;
use std::time::Instant;

use crate::log::Throttle;
use crate::reason::Reason;

/// Says what a bridge puts to rest; clones share the count.
#[derive(Clone, Debug)]
pub struct Rested {
    bridge: Arc<str>,
    throttle: Arc<Throttle<&'static str>>,
}

// === impl Rested ===

impl Rested {
    /// For that bridge.
    #[must_use]
    pub fn new(bridge: Arc<str>) -> Rested {
        Rested { bridge, throttle: Arc::new(Throttle::once_a_minute()) }
    }

    /// A message was put to rest.
    pub fn note(&self, reason: Reason, detail: &str) {
        if let Some(quiet) = self.throttle.admit(reason.as_str(), Instant::now()) {
            tracing::warn!(bridge = %self.bridge, reason = %reason, detail = %detail, more_since_last = quiet,
                "a message was put to rest");
        }
    }

    /// Part of the topology cannot be asserted.
    pub fn note_refusal(&self, refused: &str) {
        if let Some(quiet) = self.throttle.admit("refusal", Instant::now()) {
            tracing::error!(bridge = %self.bridge, refused = %refused, more_since_last = quiet,
                "part of the topology cannot be asserted; what is there is used");
        }
    }

    /// A message could not be placed and will be tried again.
    pub fn note_trouble(&self, detail: &str) {
        if let Some(quiet) = self.throttle.admit("trouble", Instant::now()) {
            tracing::warn!(bridge = %self.bridge, detail = %detail, more_since_last = quiet,
                "a message could not be placed; it stays where it is and is tried again");
        }
    }
}
