//! From the intake into the store: records in batches, acknowledged to the broker only when the store has them as
//! durably as was asked for.
//!
//! Its own loop beside the intake, so that a Redis that is slow or gone holds up nothing that the broker can place.
//! What cannot be parked stays here, unacknowledged; the broker's prefetch bounds how much that can be.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::{Notify, mpsc, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::backoff::Backoff;
use crate::broker::Receipt;
use crate::broker::consumer::ack_all;
use crate::crash;
use crate::intake::remaining;
use crate::metrics::{BridgeMetrics, Path, Settled};
use crate::store::{Id, Meta, Park, Record, Store};

/// A message on its way into the store.
#[derive(Debug)]
pub struct ToPark {
    /// Its identity; parking it twice is parking it once.
    pub id: Id,
    /// What is stored beside properties and body.
    pub meta: Meta,
    /// In AMQP's own encoding.
    pub properties: Bytes,
    /// Never looked into.
    pub body: Bytes,
    /// When it is due, by this process' monotonic clock.
    pub due: Instant,
    /// By which its delivery is acknowledged.
    pub receipt: Receipt,
}

/// The intake's end: hands messages over, and asks how it goes.
#[derive(Clone, Debug)]
pub struct Parking {
    queue: mpsc::UnboundedSender<(Instant, ToPark)>,
    shared: Arc<Shared>,
}

/// What both ends look at.
#[derive(Debug, Default)]
struct Shared {
    held: AtomicUsize,
    oldest: Mutex<Option<Instant>>,
    /// The last pass left something behind.
    failing: AtomicBool,
    /// After every pass.
    passed: Notify,
}

/// The loop that parks.
#[derive(Debug)]
pub struct Parker {
    bridge: Arc<str>,
    store: Store,
    queue: mpsc::UnboundedReceiver<(Instant, ToPark)>,
    backlog: VecDeque<(Instant, ToPark)>,
    shared: Arc<Shared>,
    metrics: BridgeMetrics,
    /// Wakes the bridge's pumps: something was parked that may be due before all else.
    wake: watch::Sender<()>,
}

/// What one pass has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// In the store, durably.
    pub parked: usize,
    /// Still here.
    pub failed: usize,
}

/// Messages in one pass: all that a usual prefetch lets through, because one pass costs one flush of Redis' disk, and
/// with `appendfsync everysec` that flush comes once a second.
const BATCH: usize = 4096;

/// First and longest pause after the store did not take a batch.
const PAUSES: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(2));

/// Makes the two ends.
#[must_use]
pub fn new(bridge: Arc<str>, store: Store, metrics: BridgeMetrics, wake: watch::Sender<()>) -> (Parking, Parker) {
    let (tx, rx) = mpsc::unbounded_channel();
    let shared = Arc::new(Shared::default());
    let parker = Parker { bridge, store, queue: rx, backlog: VecDeque::new(), shared: shared.clone(), metrics, wake };
    (Parking { queue: tx, shared }, parker)
}

// === impl Parking ===

impl Parking {
    /// Hands a message over. If the loop has ended, the message is dropped unacknowledged: the broker has it still.
    pub fn hand_over(&self, item: ToPark) {
        self.shared.held.fetch_add(1, Ordering::SeqCst);
        if self.queue.send((Instant::now(), item)).is_err() {
            self.shared.held.fetch_sub(1, Ordering::SeqCst);
        }
    }

    /// Since when the oldest message waits to be parked.
    #[must_use]
    pub fn oldest(&self) -> Option<Instant> {
        self.shared.oldest.lock().ok().and_then(|oldest| *oldest)
    }

    /// Waits until everything handed over is parked and acknowledged, or the store takes nothing, or the deadline.
    pub async fn drained(&self, deadline: Duration) {
        let done = async {
            loop {
                let passed = self.shared.passed.notified();
                if self.shared.held.load(Ordering::SeqCst) == 0 || self.shared.failing.load(Ordering::SeqCst) {
                    return;
                }
                passed.await;
            }
        };
        let _ = tokio::time::timeout(deadline, done).await;
    }
}

// === impl Parker ===

impl Parker {
    /// Runs until `stop`, and then until nothing is left in hand; what the store does not take then is let go
    /// unacknowledged, and the broker delivers it again.
    pub async fn run(mut self, stop: CancellationToken) {
        let mut backoff = Backoff::new(PAUSES.0, PAUSES.1);
        loop {
            if self.backlog.is_empty() {
                tokio::select! {
                    biased;
                    first = self.queue.recv() => match first {
                        Some(item) => self.backlog.push_back(item),
                        None => return,
                    },
                    () = stop.cancelled() => return,
                }
            }
            while self.backlog.len() < BATCH {
                let Ok(item) = self.queue.try_recv() else { break };
                self.backlog.push_back(item);
            }
            let counts = self.run_once().await;
            if counts.failed == 0 {
                backoff.reset();
            } else {
                tokio::select! {
                    () = stop.cancelled() => return,
                    () = tokio::time::sleep(backoff.next_wait()) => {}
                }
            }
        }
    }

    /// One pass over the oldest of what is in hand.
    ///
    /// A crash before the store answers costs nothing: the broker delivers again. A crash between the store's answer
    /// and the acknowledgement makes a second record under another id: both come out, the second one marked
    /// `dwell-redelivered`.
    pub async fn run_once(&mut self) -> Counts {
        // What was delivered on a channel that is gone comes again: parking this copy would only make two of it.
        let before = self.backlog.len();
        self.backlog.retain(|(_, item)| item.receipt.is_alive());
        let gone = before - self.backlog.len();
        self.metrics.settled(Settled::Lost, gone as u64);
        self.let_go(gone);
        let batch: Vec<(Instant, ToPark)> = self.backlog.drain(..self.backlog.len().min(BATCH)).collect();
        self.note_oldest(batch.first().map(|(at, _)| *at));
        let now = Instant::now();
        // The wait is handed over, not the instant: the store's own clock turns it into one.
        let parks: Vec<Park> = batch
            .iter()
            .map(|(_, item)| Park {
                id: item.id,
                wait: remaining(item.due, now),
                record: Record {
                    meta: item.meta.clone(),
                    properties: item.properties.clone(),
                    body: item.body.clone(),
                },
            })
            .collect();
        let answers = self.store.park(&self.bridge, &parks).await;
        crash::point("parking.parked");
        let mut receipts = Vec::new();
        let mut failed = VecDeque::new();
        let mut trouble = None;
        for ((since, item), answer) in batch.into_iter().zip(answers) {
            match answer {
                Ok(parked) => {
                    if parked.replaced.is_some() {
                        self.metrics.replaced();
                    }
                    self.metrics.placed(Path::Store);
                    receipts.push(item.receipt);
                }
                Err(e) => {
                    trouble.get_or_insert(e);
                    failed.push_back((since, item));
                }
            }
        }
        let counts = Counts { parked: receipts.len(), failed: failed.len() };
        if let Some(error) = trouble {
            self.metrics.park_failed(counts.failed as u64);
            tracing::debug!(bridge = %self.bridge, error = %error, waiting = counts.failed,
                "the store did not take these; they stay unacknowledged and are tried again");
        }
        if counts.parked > 0 {
            self.metrics.parked(counts.parked as u64);
            self.wake.send_replace(());
        }
        let sent = receipts.len();
        let acked = ack_all(receipts).await;
        if acked > 0 {
            crash::point("parking.acked");
        }
        self.metrics.settled(Settled::Acked, acked as u64);
        self.metrics.settled(Settled::Lost, (sent - acked) as u64);
        while let Some(item) = failed.pop_back() {
            self.backlog.push_front(item);
        }
        self.note_oldest(self.backlog.front().map(|(at, _)| *at));
        self.let_go(counts.parked);
        self.shared.failing.store(counts.failed > 0, Ordering::SeqCst);
        self.shared.passed.notify_waiters();
        counts
    }

    fn let_go(&self, messages: usize) {
        self.shared.held.fetch_sub(messages, Ordering::SeqCst);
    }

    fn note_oldest(&self, at: Option<Instant>) {
        if let Ok(mut oldest) = self.shared.oldest.lock() {
            *oldest = at;
        }
    }
}
