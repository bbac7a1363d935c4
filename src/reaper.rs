//! Claims past their lease become due again: how a dead daemon's messages are found. One loop a bridge and shard.

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::crash;
use crate::metrics::BridgeMetrics;
use crate::store::{self, Store};

/// What one bridge's reaper works with.
#[derive(Debug)]
pub struct Reaper {
    /// The bridge.
    pub bridge: Arc<str>,
    /// The part of its records that this loop serves.
    pub shard: u16,
    /// Where the records are.
    pub store: Store,
    /// Counts.
    pub metrics: BridgeMetrics,
}

/// How often it looks. A lease is many times longer, so this adds little to how late a dead daemon's messages are.
const EVERY: Duration = Duration::from_secs(1);

/// Claims in one pass: a pass must not block Redis for longer than a millisecond or two.
const BATCH: u16 = 256;

// === impl Reaper ===

impl Reaper {
    /// Runs until `stop`.
    pub async fn run(self, stop: CancellationToken) {
        loop {
            // An error is the pump's to report; here it only means looking again later.
            let full = matches!(self.run_once().await, Ok(n) if n == usize::from(BATCH));
            let pause = if full { Duration::ZERO } else { EVERY };
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(pause) => {}
            }
        }
    }

    /// One pass; how many messages it made due again. Any daemon may do it, and each lapsed claim is found by one.
    ///
    /// # Errors
    /// The store does not answer.
    pub async fn run_once(&self) -> Result<usize, store::Error> {
        let reaped = self.store.reap(&self.bridge, self.shard, BATCH).await?;
        if reaped > 0 {
            self.metrics.claims_lapsed(reaped as u64);
            tracing::warn!(bridge = %self.bridge, messages = reaped,
                "claims had lapsed (a daemon died, or was stopped for longer than its lease); their messages are due \
                 again and marked dwell-redelivered");
            crash::point("reaper.reaped");
        }
        Ok(reaped)
    }
}
