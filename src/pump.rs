//! Sleep until the earliest message is due → claim → publish → hear the confirms → settle; one loop a bridge and
//! shard.
//!
//! What a crash costs, line by line, stands at [`crate::store::Claim`]: at most a second copy with the same
//! `dwell-id`, never a message.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::backoff::Backoff;
use crate::broker::publisher::passes_with_time;
use crate::broker::{Link, Outcome, Outgoing, Publisher, State, wire};
use crate::clock::Clock;
use crate::crash;
use crate::duration::Millis;
use crate::message::Message;
use crate::metrics::{BridgeMetrics, Path};
use crate::names;
use crate::reason::Reason;
use crate::rested::Rested;
use crate::store::{self, Claimed, Id, Store};

/// What one bridge's pump works with.
#[derive(Debug)]
pub struct Pump {
    /// The bridge, which may have left the topology: what waits is released all the same.
    pub bridge: Arc<str>,
    /// The part of its records that this loop serves.
    pub shard: u16,
    /// Where the records are.
    pub store: Store,
    /// The publishing connection's state: nothing is claimed while it takes nothing.
    pub link: Link,
    /// This loop's publishing channel.
    pub publisher: Publisher,
    /// Begins the vhost-wide names.
    pub prefix: String,
    /// The user that the broker knows us by.
    pub user: String,
    /// Messages in one claim at most.
    pub batch: u16,
    /// How long a claim lasts unless it is renewed.
    pub lease: Millis,
    /// Counts.
    pub metrics: BridgeMetrics,
    /// Says once a minute what was put to rest.
    pub rested: Rested,
    /// Changes when something was parked that may be due before all else.
    pub wake: watch::Receiver<()>,
    /// The wall clock, for lateness.
    pub clock: Arc<dyn Clock>,
    /// Redis' clock minus ours, in milliseconds.
    pub skew_ms: Arc<AtomicI64>,
}

/// What one pass has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Messages claimed.
    pub claimed: usize,
    /// Out of the work exchange, and settled.
    pub released: usize,
    /// In the unrouted or the rejected queue, and settled.
    pub rested: usize,
    /// Given back unpublished.
    pub given_back: usize,
    /// Left to their lease: nobody knows whether they came out, or a queue refused them. They are tried again when it
    /// has lapsed.
    pub left: usize,
    /// Until the next message is due; `None`: none waits.
    pub next_due_in: Option<Millis>,
}

/// A claimed message, made ready to be published.
struct Ready {
    id: Id,
    due_ms: u64,
    out: Outgoing,
    reason: Option<Reason>,
}

/// The longest sleep: messages of another daemon that has died, or parked by one, are found within it.
const LONGEST_NAP: Duration = Duration::from_secs(1);

/// How long a pass waits where the broker takes nothing.
const BROKER_NAP: Duration = Duration::from_millis(200);

/// First and longest pause after the store has failed.
const PAUSES: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));

// === impl Pump ===

impl Pump {
    /// Runs until `stop`; a pass that has begun is ended first.
    pub async fn run(mut self, stop: CancellationToken) {
        let mut backoff = Backoff::new(PAUSES.0, PAUSES.1);
        let mut failing = false;
        loop {
            let nap = match self.run_once().await {
                Ok(counts) => {
                    if std::mem::take(&mut failing) {
                        tracing::info!(bridge = %self.bridge, "the store answers again");
                    }
                    backoff.reset();
                    nap_after(&counts)
                }
                Err(error) => {
                    if !std::mem::replace(&mut failing, true) {
                        tracing::warn!(bridge = %self.bridge, error = %error,
                            "the store does not answer; what is due waits in it");
                    }
                    backoff.next_wait()
                }
            };
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                // Nobody can wake it any more: then it only sleeps.
                Ok(()) = self.wake.changed() => {}
                () = tokio::time::sleep(nap) => {}
            }
        }
    }

    /// One pass: claims what is due, a batch at most, and sees it out.
    ///
    /// # Errors
    /// The store did not answer the claim. What it may have claimed all the same lapses.
    pub async fn run_once(&mut self) -> Result<Counts, store::Error> {
        if *self.link.state().borrow() != State::Up {
            // A claim now would only be given back: a blocked or lost broker takes nothing.
            return Ok(Counts { next_due_in: Some(Millis(200)), ..Counts::default() });
        }
        let claim = self.store.claim(&self.bridge, self.shard, self.batch, self.lease).await?;
        let mut counts = Counts { claimed: claim.items.len(), next_due_in: claim.next_due_in, ..Counts::default() };
        let now = self.store_now();
        self.metrics.polled(now, next_due(&claim, now));
        if claim.items.is_empty() {
            return Ok(counts);
        }
        self.metrics.claimed(claim.items.len() as u64);
        crash::point("pump.claimed");
        let lease = claim.lease;
        let (newer, items): (Vec<Claimed>, Vec<Claimed>) = claim.items.into_iter().partition(is_newer);
        if !newer.is_empty() {
            // Written by a newer dwell, which runs beside this one or did: it can read them, and takes them when the
            // lease has lapsed.
            self.rested.note_trouble("records of a newer format version wait for a daemon that reads them");
            counts.left += newer.len();
        }
        let ready: Vec<Ready> = items.into_iter().map(|item| self.make_ready(item)).collect();

        let outcomes = self.publish(&ready, &lease).await;
        crash::point("pump.published");
        let mut done = Vec::with_capacity(ready.len());
        let mut not_begun = Vec::new();
        let mut resting = Vec::new();
        for (item, outcome) in ready.into_iter().zip(outcomes) {
            self.metrics.published((&outcome).into());
            match &outcome {
                Outcome::Confirmed => {
                    counts.released += usize::from(item.reason.is_none());
                    counts.rested += usize::from(item.reason.is_some());
                    self.count(&item);
                    done.push(item.id);
                }
                Outcome::NotBegun { .. } => not_begun.push(item.id),
                Outcome::Returned { .. } if item.reason.is_none() => resting.push(rest(item, Reason::Unroutable)),
                // The broker would refuse it for ever, and close the channel over it each time.
                Outcome::Refused { code, .. } if item.reason.is_none() && !passes_with_time(*code) => {
                    resting.push(rest(item, Reason::BadEnvelope));
                }
                Outcome::Returned { .. } | Outcome::Nacked | Outcome::Refused { .. } | Outcome::Unknown { .. } => {
                    // Left to its lease: the next attempt is a lease away, which is the pause between attempts, and
                    // a cancel meanwhile rightly answers "perhaps released".
                    self.rested.note_trouble(&format!("{outcome:?}"));
                    counts.left += 1;
                }
            }
        }
        self.put_to_rest(resting, &lease, &mut done, &mut counts).await;
        counts.given_back = not_begun.len();
        if !not_begun.is_empty() {
            self.metrics.claim_given_back(not_begun.len() as u64);
            // Where this fails, the lease lapses.
            if let Err(error) = self.store.release(&lease, &not_begun).await {
                tracing::debug!(bridge = %self.bridge, error = %error, "could not give messages back");
            }
            counts.next_due_in = Some(Millis(200));
        }
        if !done.is_empty() {
            self.settle(&lease, &done).await;
            crash::point("pump.settled");
        }
        Ok(counts)
    }

    /// Settles, and tries again while the lease lasts: an answer that was lost would make copies of everything.
    async fn settle(&self, lease: &store::Lease, done: &[Id]) {
        let mut backoff = Backoff::new(PAUSES.0, PAUSES.1);
        loop {
            match self.store.settle(lease, done).await {
                Ok(outcome) => {
                    self.metrics.claim_settled(outcome.done as u64);
                    if !outcome.not_held.is_empty() {
                        tracing::warn!(bridge = %self.bridge, messages = outcome.not_held.len(),
                            "a claim lapsed before it was settled; these messages come out twice");
                    }
                    return;
                }
                Err(error) if error.is_retryable() && !lease.remaining().is_zero() => {
                    tracing::debug!(bridge = %self.bridge, error = %error, "settling again");
                    tokio::time::sleep(backoff.next_wait()).await;
                }
                Err(error) => {
                    tracing::error!(bridge = %self.bridge, error = %error, messages = done.len(),
                        "could not settle what was released; these messages come out twice");
                    return;
                }
            }
        }
    }

    /// Publishes, and renews the claim while the confirms are awaited.
    async fn publish(&mut self, ready: &[Ready], lease: &store::Lease) -> Vec<Outcome> {
        let batch: Vec<Outgoing> = ready.iter().map(|r| r.out.clone()).collect();
        self.metrics.publish_begun(batch.len() as u64);
        // A publish not begun before half the lease is given back. Fetching the records has taken some of it already.
        let begin_by = Instant::now() + lease.remaining().saturating_sub(lease.length().to_std() / 2);
        let (store, bridge) = (&self.store, &self.bridge);
        let renewing = async {
            loop {
                tokio::time::sleep(lease.length().to_std() / 3).await;
                if let Err(error) = store.renew(lease).await {
                    tracing::debug!(bridge = %bridge, error = %error, "could not renew a claim");
                }
            }
        };
        // Side by side: a Redis that is slow to renew must not keep confirms from being heard.
        tokio::select! {
            outcomes = self.publisher.publish(&batch, begin_by) => outcomes,
            () = renewing => Vec::new(),
        }
    }

    /// What no queue wanted rests in the unrouted queue, what the broker refuses in the rejected queue; each with its
    /// reason.
    async fn put_to_rest(&mut self, items: Vec<Ready>, lease: &store::Lease, done: &mut Vec<Id>, counts: &mut Counts) {
        if items.is_empty() {
            return;
        }
        let (unrouted, rejected) = (names::unrouted(&self.bridge), names::rejected(&self.prefix));
        let resting: Vec<Ready> = items
            .into_iter()
            .map(|mut item| {
                let reason = item.reason.unwrap_or(Reason::BadEnvelope);
                self.rested.note(reason, &format!("key '{}'", item.out.message.routing_key));
                item.out.message.put_to_rest(reason, &self.bridge);
                let exchange = if reason == Reason::Unroutable { &unrouted } else { &rejected };
                item.out.exchange = wire::short(exchange).unwrap_or_default();
                item
            })
            .collect();
        let outcomes = self.publish(&resting, lease).await;
        for (item, outcome) in resting.into_iter().zip(outcomes) {
            self.metrics.published((&outcome).into());
            if outcome == Outcome::Confirmed {
                counts.rested += 1;
                self.count(&item);
                done.push(item.id);
            } else {
                counts.left += 1;
            }
        }
    }

    fn make_ready(&self, item: Claimed) -> Ready {
        let Claimed { id, due_ms, lapses, record } = item;
        let decoded = match record {
            Ok(record) => match wire::decode_properties(&record.properties) {
                Ok(properties) => Ok((record.meta, properties, record.body)),
                // The whole record: a person may mend what a program cannot read.
                Err(e) => Err((e.to_string(), record.encode())),
            },
            Err(bad) => Err((bad.to_string(), bad.bytes)),
        };
        match decoded {
            Ok((meta, properties, body)) => {
                let routing_key = wire::short(&meta.routing_key).unwrap_or_default();
                let mut message = Message { routing_key, properties, body };
                message.adopt(id, &self.user);
                if lapses > 0 || meta.redelivered {
                    message.mark_redelivered();
                }
                let exchange = wire::short(&meta.exchange).unwrap_or_default();
                Ready { id, due_ms, out: Outgoing { exchange, message }, reason: None }
            }
            Err((why, bytes)) => {
                // Damaged: a person must see it. Nothing is dropped.
                self.rested.note(Reason::BadEnvelope, &why);
                let mut message = Message {
                    routing_key: wire::ShortString::default(),
                    properties: wire::Properties::default(),
                    body: bytes,
                };
                message.adopt(id, &self.user);
                message.put_to_rest(Reason::BadEnvelope, &self.bridge);
                let exchange = wire::short(&names::rejected(&self.prefix)).unwrap_or_default();
                Ready { id, due_ms, out: Outgoing { exchange, message }, reason: Some(Reason::BadEnvelope) }
            }
        }
    }

    fn count(&self, item: &Ready) {
        match item.reason {
            None => {
                let late = u64::try_from(self.store_now()).unwrap_or(0).saturating_sub(item.due_ms);
                self.metrics.released(Path::Store, Millis(late));
            }
            Some(Reason::Unroutable) => self.metrics.unroutable(),
            Some(reason) => self.metrics.rejected(reason.as_str()),
        }
    }

    /// Redis' clock, as far as we know it.
    fn store_now(&self) -> i64 {
        self.clock.unix_millis() + self.skew_ms.load(Ordering::Relaxed)
    }
}

fn next_due(claim: &store::Claim, now: i64) -> Option<i64> {
    let claimed = claim.items.first().and_then(|item| i64::try_from(item.due_ms).ok());
    claimed.or_else(|| claim.next_due_in.map(|wait| now.saturating_add_unsigned(wait.0)))
}

fn rest(mut item: Ready, reason: Reason) -> Ready {
    item.reason = Some(reason);
    item
}

fn is_newer(item: &Claimed) -> bool {
    matches!(&item.record, Err(bad) if bad.error.is_newer())
}

fn nap_after(counts: &Counts) -> Duration {
    if counts.given_back > 0 {
        return BROKER_NAP;
    }
    counts.next_due_in.map_or(LONGEST_NAP, Millis::to_std).min(LONGEST_NAP)
}
