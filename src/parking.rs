//! From the intake into the store: records in batches, acknowledged to the broker only when the store has them as
//! durably as was asked for.
//!
//! Its own loop beside the intake, so that a Redis that is slow or gone holds up nothing that the broker can place.
//! What cannot be parked stays here, unacknowledged; the broker's prefetch bounds how much that can be.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
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
use crate::duration::Millis;
use crate::intake::remaining;
use crate::metrics::{BridgeMetrics, Path, Settled};
use crate::store::{Before, Id, Meta, Park, Record, Store};

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
    queue: mpsc::UnboundedSender<Held>,
    shared: Arc<Shared>,
}

/// One message in hand.
#[derive(Debug)]
struct Held {
    since: Instant,
    due: Instant,
    receipt: Receipt,
    park: Park,
}

/// What both ends look at.
#[derive(Debug, Default)]
struct Shared {
    held: AtomicUsize,
    oldest: Mutex<Option<Instant>>,
    /// Passes that have begun.
    begun: AtomicU64,
    /// The last pass that ended with something left behind; 0: the last one left nothing.
    failed: AtomicU64,
    /// The loop has ended.
    over: AtomicBool,
    /// After every pass.
    passed: Notify,
    /// Somebody waits for the next pass: no pause before it.
    hurry: Notify,
}

/// The loop that parks.
#[derive(Debug)]
pub struct Parker {
    bridge: Arc<str>,
    store: Store,
    queue: mpsc::UnboundedReceiver<Held>,
    backlog: VecDeque<Held>,
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

/// And bytes: a pass holds them once more, encoded. One message is always taken.
const BATCH_BYTES: usize = 32 << 20;

/// How often it is looked whether what is in hand can still be acknowledged, while nothing else happens: sessions of the
/// intake are at least 100 ms apart, and a new one must not be judged by the messages of the last one.
const LOOK: Duration = Duration::from_millis(50);

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
        let ToPark { id, meta, properties, body, due, receipt } = item;
        let record = Record { meta, properties, body };
        // The wait is what is left when it is parked.
        let park = Park { id, wait: Millis::ZERO, record, before: Before::Nothing };
        self.shared.held.fetch_add(1, Ordering::SeqCst);
        if self.queue.send(Held { since: Instant::now(), due, receipt, park }).is_err() {
            self.shared.held.fetch_sub(1, Ordering::SeqCst);
        }
    }

    /// Since when the oldest message waits to be parked, of those that can still be acknowledged.
    #[must_use]
    pub fn oldest(&self) -> Option<Instant> {
        self.shared.oldest.lock().ok().and_then(|oldest| *oldest)
    }

    /// Waits until everything handed over is parked and acknowledged, or a pass from now on shows that the store takes
    /// nothing, or the deadline. A pass that is under way may park what the last one could not.
    pub async fn drained(&self, deadline: Duration) {
        let shared = &self.shared;
        let begun = shared.begun.load(Ordering::SeqCst);
        shared.hurry.notify_one();
        let done = async {
            loop {
                let passed = shared.passed.notified();
                if shared.held.load(Ordering::SeqCst) == 0
                    || shared.failed.load(Ordering::SeqCst) > begun
                    || shared.over.load(Ordering::SeqCst)
                {
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
                self.pause(backoff.next_wait(), &stop).await;
                if stop.is_cancelled() {
                    return;
                }
            }
        }
    }

    /// Waits, and meanwhile lets go of what cannot be acknowledged any more.
    async fn pause(&mut self, wait: Duration, stop: &CancellationToken) {
        let shared = self.shared.clone();
        let end = Instant::now() + wait;
        while !self.backlog.is_empty() {
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                () = shared.hurry.notified() => return,
                () = tokio::time::sleep_until(end) => return,
                () = tokio::time::sleep(LOOK) => self.let_go_of_dead(),
            }
        }
    }

    /// One pass over the oldest of what is in hand.
    ///
    /// A crash before the store answers costs nothing: the broker delivers again. A crash between the store's answer
    /// and the acknowledgement makes a second record under another id: both come out, the second one marked
    /// `dwell-redelivered`.
    pub async fn run_once(&mut self) -> Counts {
        let pass = self.shared.begun.fetch_add(1, Ordering::SeqCst) + 1;
        self.let_go_of_dead();
        let (mut batch, mut parks) = self.next_batch();
        let answers = {
            let parking = self.store.park(&self.bridge, &parks);
            let mut parking = std::pin::pin!(parking);
            loop {
                tokio::select! {
                    biased;
                    answers = &mut parking => break answers,
                    () = tokio::time::sleep(LOOK) => {
                        let held = batch.iter().map(|(since, _, receipt)| (*since, receipt));
                        note_oldest(&self.shared, held.chain(self.backlog.iter().map(|held| (held.since, &held.receipt))));
                    }
                }
            }
        };
        crash::point("parking.parked");
        let mut receipts = Vec::new();
        let mut failed = VecDeque::new();
        let mut trouble = None;
        for (((since, due, receipt), mut park), answer) in batch.drain(..).zip(parks.drain(..)).zip(answers) {
            match answer {
                Ok(parked) => {
                    if parked.replaced.is_some() {
                        self.metrics.replaced();
                    }
                    self.metrics.placed(Path::Store);
                    receipts.push(receipt);
                }
                Err(error) => {
                    if error.before() != Before::Nothing {
                        park.before = error.before();
                    }
                    trouble.get_or_insert(error);
                    failed.push_back(Held { since, due, receipt, park });
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
        failed.append(&mut self.backlog);
        self.backlog = failed;
        self.note_oldest();
        self.let_go(counts.parked);
        self.shared.failed.store(if counts.failed > 0 { pass } else { 0 }, Ordering::SeqCst);
        self.shared.passed.notify_waiters();
        counts
    }

    /// The oldest of the backlog, with what is left of their waits: the wait is handed over, not the instant, and the
    /// store's own clock turns it into one.
    fn next_batch(&mut self) -> (Vec<(Instant, Instant, Receipt)>, Vec<Park>) {
        let now = Instant::now();
        let mut bytes = 0;
        let mut taken = Vec::new();
        let mut parks = Vec::new();
        while parks.len() < BATCH
            && let Some(next) = self.backlog.front()
            && (parks.is_empty() || bytes + size(&next.park) <= BATCH_BYTES)
            && let Some(Held { since, due, receipt, mut park }) = self.backlog.pop_front()
        {
            bytes += size(&park);
            park.wait = remaining(due, now);
            taken.push((since, due, receipt));
            parks.push(park);
        }
        (taken, parks)
    }

    /// What was delivered on a channel that is gone comes again: parking this copy would only make two of it.
    fn let_go_of_dead(&mut self) {
        let before = self.backlog.len();
        self.backlog.retain(|held| held.receipt.is_alive());
        self.note_oldest();
        let gone = before - self.backlog.len();
        if gone > 0 {
            self.metrics.settled(Settled::Lost, gone as u64);
            self.let_go(gone);
            self.shared.passed.notify_waiters();
        }
    }

    fn let_go(&self, messages: usize) {
        self.shared.held.fetch_sub(messages, Ordering::SeqCst);
    }

    fn note_oldest(&self) {
        note_oldest(&self.shared, self.backlog.iter().map(|held| (held.since, &held.receipt)));
    }
}

/// Whatever ends the loop: nobody must wait for its next pass.
impl Drop for Parker {
    fn drop(&mut self) {
        self.shared.over.store(true, Ordering::SeqCst);
        self.shared.passed.notify_waiters();
    }
}

// === helpers ===

/// Notes the first one, oldest first, that can still be acknowledged.
fn note_oldest<'a>(shared: &Shared, mut held: impl Iterator<Item = (Instant, &'a Receipt)>) {
    if let Ok(mut oldest) = shared.oldest.lock() {
        *oldest = held.find(|(_, receipt)| receipt.is_alive()).map(|(since, _)| since);
    }
}

/// Roughly, encoded.
fn size(park: &Park) -> usize {
    park.record.properties.len() + park.record.body.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An intake's end without a loop: one message is held, and the first pass has left it behind.
    fn failing() -> (Parking, mpsc::UnboundedReceiver<Held>) {
        let (queue, rx) = mpsc::unbounded_channel();
        let shared = Arc::new(Shared::default());
        shared.held.store(1, Ordering::SeqCst);
        shared.begun.store(1, Ordering::SeqCst);
        shared.failed.store(1, Ordering::SeqCst);
        (Parking { queue, shared }, rx)
    }

    fn ends(parking: &Parking, pass: u64, failed: bool) {
        parking.shared.failed.store(if failed { pass } else { 0 }, Ordering::SeqCst);
        parking.shared.passed.notify_waiters();
    }

    async fn settles() {
        for _ in 0..10 {
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test]
    async fn only_a_pass_that_begins_after_the_call_says_that_the_store_takes_nothing() {
        let (parking, _rx) = failing();
        // The second pass is under way.
        parking.shared.begun.store(2, Ordering::SeqCst);
        let waiting = parking.clone();
        let drained = tokio::spawn(async move { waiting.drained(Duration::from_secs(60)).await });
        settles().await;
        assert!(!drained.is_finished(), "it took the first pass for an answer");
        ends(&parking, 2, true);
        settles().await;
        assert!(!drained.is_finished(), "it took the pass under way for an answer");
        ends(&parking, 3, true);
        drained.await.expect("it returns");
    }

    #[tokio::test]
    async fn nobody_waits_for_a_loop_that_has_ended_or_for_nothing() {
        let (parking, _rx) = failing();
        parking.shared.over.store(true, Ordering::SeqCst);
        parking.drained(Duration::from_secs(60)).await;
        let (parking, _rx) = failing();
        parking.shared.held.store(0, Ordering::SeqCst);
        parking.drained(Duration::from_secs(60)).await;
    }
}
