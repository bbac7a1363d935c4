//! Consume → decide → place → acknowledge: the only way into the daemon, one loop a bridge.
//!
//! Acknowledged last, at every line: a delivery is answered only when its message is confirmed by the broker or parked
//! in the store. A crash anywhere before that costs nothing but work: the broker delivers the message again, marked
//! redelivered. A crash between placing and acknowledging makes a second copy, which is marked `dwell-redelivered`.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::admin::{Health, Part, Reason as NotReady};
use crate::backoff::Backoff;
use crate::broker::consumer::{ack_all, reject};
use crate::broker::publisher::passes_with_time;
use crate::broker::{self, Connection, Consumer, Delivery, Link, Outcome, Outgoing, Publisher, Receipt, wire};
use crate::clock::Clock;
use crate::crash;
use crate::decide::{Placement, Rules, Wish, decide};
use crate::declare::{self, declaration::Declarations};
use crate::delay::{self, Delay, Malformed};
use crate::duration::Millis;
use crate::message::Message;
use crate::metrics::{BridgeMetrics, Path, Settled};
use crate::names;
use crate::parking::{Parking, ToPark};
use crate::reason::Reason;
use crate::rested::Rested;
use crate::store::{Id, Meta, Store};

/// What one bridge's intake works with.
#[derive(Debug)]
pub struct Intake {
    /// The bridge's name.
    pub bridge: Arc<str>,
    /// Where messages go.
    pub rules: Rules,
    /// Where due messages come out.
    pub work_exchange: String,
    /// Begins the vhost-wide names.
    pub prefix: String,
    /// The bridge's part of the topology, asserted before every session; `None`: this daemon declares nothing.
    pub declarations: Option<Declarations>,
    /// The connection that consumes; another one publishes, because a blocked connection freezes acks too.
    pub link: Link,
    /// The bridge's publishing channel.
    pub publisher: Publisher,
    /// The way into the store; `None` without one.
    pub parking: Option<Parking>,
    /// The store itself, which remembers what was bound; `None` without one.
    pub store: Option<Store>,
    /// Unacknowledged messages at most.
    pub prefetch: u16,
    /// How long one publish may take to be handed over.
    pub publish_timeout: Duration,
    /// Counts.
    pub metrics: BridgeMetrics,
    /// Says once a minute what was put to rest.
    pub rested: Rested,
    /// The wall clock, for absolute wishes.
    pub clock: Arc<dyn Clock>,
    /// Told whether this intake consumes.
    pub health: Health,
}

/// How many messages of one pass went where.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Deliveries looked at.
    pub taken: usize,
    /// Confirmed by the broker and acknowledged: due now, in a tier, or at rest.
    pub placed: usize,
    /// On their way into the store; acknowledged there.
    pub parking: usize,
    /// Not placed; they are tried again.
    pub deferred: usize,
}

/// A message between its delivery and its acknowledgement.
#[derive(Debug)]
struct Taken {
    id: Id,
    message: Message,
    receipt: Receipt,
    wish: Result<Wish, Malformed>,
    /// When it is due by the monotonic clock; `None`: no such moment (malformed).
    due: Option<Instant>,
    since: Instant,
    since_ms: u64,
    redelivered: bool,
    attempts: u32,
    /// An object that it needs was not there: the topology is asserted again before it is tried again.
    missed: bool,
    /// A resting place that overrides the decision, after the broker refused the message.
    fate: Option<Reason>,
}

/// What is to be done with a taken message now.
#[allow(clippy::large_enum_variant)] // Lives for a moment on the stack; a box would cost each message an allocation.
enum Step {
    Publish {
        out: Outgoing,
        path: Path,
        reason: Option<Reason>,
    },
    Park {
        wait_until: Instant,
        key: Option<String>,
    },
    /// The broker's own dead-letter exchange must take it: dwell cannot publish it.
    Reject,
}

/// The two consumers of a session and what waits to be tried again.
struct Session {
    intake: Consumer,
    late: Consumer,
    deferred: VecDeque<(Instant, Taken)>,
    /// When the topology was asserted last.
    asserted: Instant,
    /// Which of the two consumers is looked at first: the other one than last time.
    late_first: bool,
    frame_max: u32,
    user: String,
}

/// How a session ended.
#[derive(Debug)]
enum Ended {
    /// The daemon stops.
    Stopped,
    /// One message at a time was enough; the next session takes many again.
    FullMeasure,
    /// Something was held for as long as the broker allows.
    HeldTooLong,
    /// A consumer or the connection was lost.
    Broken(broker::Error),
}

/// After something that the client cannot parse, one message at a time: every message that is in hand when the
/// connection dies gains a delivery count (on RabbitMQ before 4.3), and would be given up with the culprit.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Caution {
    None,
    Since { passed: usize, at: Instant },
}

/// Messages looked at in one pass. Each pass hears its confirms as one batch; at this size a pass takes some
/// milliseconds and its throughput is that of the broker.
const CHUNK: usize = 256;

/// First and longest pause before a message is tried again.
const RETRY: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(30));

/// First and longest pause between sessions.
const SESSION_PAUSES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(10));

/// A delivery is never held unanswered longer than this: RabbitMQ ends a consumer that holds one for 30 minutes. All are
/// then given back and taken again, which counts as a delivery on RabbitMQ before 4.3, so it should be rare.
const HELD_AT_MOST: Duration = Duration::from_secs(20 * 60);

/// Caution ends after so long without another message that cannot be parsed.
const CAUTION: Duration = Duration::from_secs(60);

/// How long cancelling or closing the consumers may take.
const CLOSE: Duration = Duration::from_secs(2);

/// The topology is asserted again for a missing object at most so often.
const ASSERT_AGAIN: Duration = Duration::from_secs(1);

/// How often the age of what is held is looked at where nothing else happens.
const AGE_CHECK: Duration = Duration::from_secs(30);

/// How long stopping may wait for what is in hand, besides the deadline of the whole stop.
const LAST_PASS: Duration = Duration::from_secs(20);

// === impl Intake ===

impl Intake {
    /// Runs sessions, one after the other, until `stop`.
    pub async fn run(mut self, stop: CancellationToken) {
        let mut backoff = Backoff::new(SESSION_PAUSES.0, SESSION_PAUSES.1);
        let mut caution = Caution::None;
        while !stop.is_cancelled() {
            let connection = tokio::select! {
                () = stop.cancelled() => return,
                connection = self.link.connection() => connection,
            };
            let began = Instant::now();
            match self.session(connection.clone(), &mut caution, &stop).await {
                Ended::Stopped => return,
                Ended::FullMeasure => {
                    tracing::info!(bridge = %self.bridge, "taking many messages at a time again");
                    continue;
                }
                Ended::HeldTooLong => {
                    tracing::warn!(bridge = %self.bridge, held_ms = HELD_AT_MOST.as_millis(),
                        "messages could not be placed for so long; they are given back to the intake queue and taken again");
                }
                Ended::Broken(error) => {
                    if matches!(error, broker::Error::Unparsable { .. }) || connection.died_unparsable().await {
                        if caution == Caution::None {
                            tracing::error!(bridge = %self.bridge, error = %error,
                                "taking one message at a time until the broker gives that one up");
                        }
                        // The link pauses before it connects again; a pause here would only add to it.
                        caution = Caution::Since { passed: 0, at: Instant::now() };
                        continue;
                    }
                    // Full measure again, and with it the topology is asserted: the queue itself may be gone, and caution
                    // alone would look for it for ever.
                    caution = Caution::None;
                    tracing::warn!(bridge = %self.bridge, error = %error, "the intake was interrupted; beginning again");
                }
            }
            if began.elapsed() > SESSION_PAUSES.1 {
                backoff.reset();
            }
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(backoff.next_wait()) => {}
            }
        }
    }

    /// One session: from asserting the topology to the loss of a consumer, or to the stop.
    async fn session(&mut self, connection: Arc<Connection>, caution: &mut Caution, stop: &CancellationToken) -> Ended {
        let mut session = match self.open(&connection, *caution).await {
            Ok(session) => session,
            Err(error) => return Ended::Broken(error),
        };
        let part = Part::Intake(self.bridge.to_string());
        self.health.set(part.clone(), None);
        let ended = match self.passes(&mut session, &connection, caution, stop).await {
            Ok(ended) => ended,
            Err(error) => Ended::Broken(error),
        };
        self.health.set(part, Some(NotReady::BrokerUnreachable));
        if !matches!(ended, Ended::Broken(_)) {
            let cancels = async { tokio::join!(session.intake.cancel(), session.late.cancel()) };
            let _ = tokio::time::timeout(CLOSE, cancels).await;
            if let Some(parking) = &self.parking {
                parking.drained(LAST_PASS).await;
            }
            // Else what was acknowledged in the last moments comes again.
            let flushes = async { tokio::join!(session.intake.flush(), session.late.flush()) };
            let _ = tokio::time::timeout(CLOSE, flushes).await;
        }
        // Closing gives back what is deferred or was never looked at (that was not counted as taken in yet).
        self.metrics.settled(Settled::Requeued, session.deferred.len() as u64);
        let closes = async { tokio::join!(session.intake.close(), session.late.close()) };
        let _ = tokio::time::timeout(CLOSE, closes).await;
        ended
    }

    async fn open(&mut self, connection: &Arc<Connection>, caution: Caution) -> Result<Session, broker::Error> {
        // What cannot be parsed kills the connection a hundred times, not the topology: it was asserted a moment ago.
        if caution == Caution::None {
            self.assert_topology(connection).await?;
        }
        let prefetch = if caution == Caution::None { self.prefetch } else { 1 };
        Ok(Session {
            intake: Consumer::open(connection.clone(), &names::intake(&self.bridge), prefetch).await?,
            late: Consumer::open(connection.clone(), &names::intake_late(&self.bridge), prefetch).await?,
            deferred: VecDeque::new(),
            asserted: Instant::now(),
            late_first: false,
            frame_max: connection.frame_max(),
            user: connection.user().to_owned(),
        })
    }

    async fn passes(
        &mut self,
        session: &mut Session,
        connection: &Arc<Connection>,
        caution: &mut Caution,
        stop: &CancellationToken,
    ) -> Result<Ended, broker::Error> {
        loop {
            // Only the wait is given up when the stop comes; a batch in hand is seen to its place.
            let mut batch = tokio::select! {
                biased;
                () = stop.cancelled() => return Ok(Ended::Stopped),
                batch = self.next_batch(session) => batch?,
                // Also where nothing comes any more, because all of the prefetch is held.
                () = tokio::time::sleep(AGE_CHECK) => Vec::new(),
            };
            let mut missed = false;
            for taken in &mut batch {
                missed |= std::mem::take(&mut taken.missed);
            }
            if missed && session.asserted.elapsed() > ASSERT_AGAIN {
                // Not right after the miss but now: what came back meanwhile (an exchange without its bindings) must be
                // whole before the message meets it.
                self.assert_topology(connection).await?;
                session.asserted = Instant::now();
            }
            let counts = self.run_once(batch, session).await;
            if let Caution::Since { passed, at } = caution {
                *passed += counts.placed + counts.parking;
                // What was in hand when it happened was at most a prefetch; once that many have passed, it has too.
                if *passed >= usize::from(self.prefetch) || at.elapsed() > CAUTION {
                    *caution = Caution::None;
                    return Ok(Ended::FullMeasure);
                }
            }
            if self.held_too_long(session) {
                return Ok(Ended::HeldTooLong);
            }
        }
    }

    /// Waits for deliveries or for something deferred. Dropping it while it waits loses nothing.
    async fn next_batch(&self, session: &mut Session) -> Result<Vec<Taken>, broker::Error> {
        let ready = session.deferred.front().map(|(at, _)| *at);
        tokio::select! {
            biased;
            () = sleep_until(ready) => {
                let now = Instant::now();
                let due = session.deferred.iter().take(CHUNK).take_while(|(at, _)| *at <= now).count();
                Ok(session.deferred.drain(..due).map(|(_, taken)| taken).collect())
            }
            (chunk, late) = either(&mut session.intake, &mut session.late, session.late_first) => {
                session.late_first = !late;
                let died_in = late.then(|| names::intake(&self.bridge));
                Ok(self.take(chunk?, died_in.as_deref(), &session.user))
            }
        }
    }

    /// One pass: sees a batch of messages to their places and acknowledges those that arrived there.
    async fn run_once(&mut self, batch: Vec<Taken>, session: &mut Session) -> Counts {
        if batch.is_empty() {
            return Counts::default();
        }
        crash::point("intake.taken");
        self.place(batch, session).await
    }

    fn take(&self, chunk: Vec<Delivery>, died_in: Option<&str>, user: &str) -> Vec<Taken> {
        chunk.into_iter().map(|delivery| self.take_one(delivery, died_in, user)).collect()
    }

    /// Reads what a message asks for, and makes it ours: stripped of an earlier pass, with an identity.
    fn take_one(&self, delivery: Delivery, died_in: Option<&str>, user: &str) -> Taken {
        let Delivery { mut message, redelivered, receipt } = delivery;
        self.metrics.taken_in(redelivered);
        // The wall clock first: what passes between the two makes an absolute wish late, never early.
        let now_ms = u64::try_from(self.clock.unix_millis()).unwrap_or(0);
        let since = Instant::now();
        if let Some(queue) = died_in {
            message.restore_expiration(queue);
        }
        let wish = wish_of(&message);
        let due = match &wish {
            Ok(wish) => {
                if wish.delay == Some(Delay::Negative) || matches!(wish.delay, Some(Delay::At(at)) if at < now_ms) {
                    self.metrics.clamped();
                }
                let wait = match wish.delay {
                    Some(Delay::After(ms)) => ms,
                    Some(Delay::At(at)) => Millis(at.saturating_sub(now_ms)),
                    Some(Delay::Negative) => Millis::ZERO,
                    None => self.rules.default_delay.unwrap_or(Millis::ZERO),
                };
                since.checked_add(wait.to_std())
            }
            Err(_) => None,
        };
        let id = Id::fresh();
        message.strip();
        message.adopt(id, user);
        if redelivered {
            message.mark_redelivered();
        }
        Taken {
            id,
            message,
            receipt,
            wish,
            due,
            since,
            since_ms: now_ms,
            redelivered,
            attempts: 0,
            missed: false,
            fate: None,
        }
    }

    /// The next thing to do with a message, by the decision table; after a first attempt with what is left of its wait.
    fn step(&self, taken: &Taken, frame_max: u32) -> Step {
        if let Some(reason) = taken.fate {
            return if reason == Reason::Unroutable {
                self.rest(taken, reason, &names::unrouted(&self.bridge))
            } else {
                self.rest(taken, reason, &names::rejected(&self.prefix))
            };
        }
        if !taken.message.fits_frame(frame_max) {
            return Step::Reject;
        }
        let wish = match &taken.wish {
            Ok(wish) => wish,
            Err(malformed) => {
                self.rested.note(malformed.reason, &malformed.detail);
                return self.rest(taken, malformed.reason, &names::rejected(&self.prefix));
            }
        };
        // Without a store there is no other place for a tier's message than its tier, a little late.
        let placement = if taken.attempts == 0 || !self.rules.has_store {
            decide(&self.rules, wish, taken.since_ms)
        } else {
            let left = taken.due.map_or(Millis::ZERO, |due| remaining(due, Instant::now()));
            decide(&self.rules, &Wish { delay: Some(Delay::After(left)), ..wish.clone() }, taken.since_ms)
        };
        match placement {
            Placement::Now => Step::Publish {
                out: outgoing(&self.work_exchange, taken.message.clone()),
                path: Path::Now,
                reason: None,
            },
            Placement::Tier { queue, .. } => {
                let mut message = taken.message.clone();
                message.address_tier(&queue);
                Step::Publish { out: outgoing(&names::place(&self.prefix), message), path: Path::Tier, reason: None }
            }
            // By the moment it is due, not by the wait: on a later attempt the wait counts from another moment.
            Placement::Store { wait, key } => {
                Step::Park { wait_until: taken.due.unwrap_or(taken.since + wait.to_std()), key }
            }
            Placement::Rejected { reason, detail } => {
                self.rested.note(reason, &detail);
                self.rest(taken, reason, &names::rejected(&self.prefix))
            }
        }
    }

    fn rest(&self, taken: &Taken, reason: Reason, exchange: &str) -> Step {
        let mut message = taken.message.clone();
        message.put_to_rest(reason, &self.bridge);
        Step::Publish { out: outgoing(exchange, message), path: Path::Rejected, reason: Some(reason) }
    }

    /// Sees a batch to its place. What the store is to hold goes to the parking loop, which acknowledges it; the rest
    /// is published here as one batch, so that a slow Redis never holds up what the broker can place.
    async fn place(&mut self, batch: Vec<Taken>, session: &mut Session) -> Counts {
        // What was delivered on a channel that is gone comes again: placing this copy would only make two of it.
        let all = batch.len();
        let batch: Vec<Taken> = batch.into_iter().filter(|taken| taken.receipt.is_alive()).collect();
        self.metrics.settled(Settled::Lost, (all - batch.len()) as u64);
        let mut counts = Counts { taken: batch.len(), ..Counts::default() };
        let mut publishing = Vec::new();
        let mut outgoing = Vec::new();
        for taken in batch {
            match self.step(&taken, session.frame_max) {
                Step::Publish { out, path, reason } => {
                    outgoing.push(out);
                    publishing.push((taken, path, reason));
                }
                Step::Park { wait_until, key } => {
                    counts.parking += 1;
                    self.park(taken, wait_until, key);
                }
                Step::Reject => {
                    self.rested.note(Reason::TooBig, "headers and properties do not fit one frame with dwell's own");
                    counts.placed += usize::from(self.reject(taken.receipt).await);
                }
            }
        }
        self.metrics.publish_begun(outgoing.len() as u64);
        let outcomes = self.publisher.publish(&outgoing, Instant::now() + self.publish_timeout).await;
        crash::point("intake.published");
        let mut done = Vec::new();
        for ((taken, path, reason), outcome) in publishing.into_iter().zip(outcomes) {
            self.metrics.published((&outcome).into());
            match outcome {
                Outcome::Confirmed => {
                    self.count_placed(&taken, path, reason);
                    done.push(taken.receipt);
                }
                other => {
                    counts.deferred += 1;
                    self.after_failure(taken, path, reason, other, session).await;
                }
            }
        }
        let sent = done.len();
        let acked = ack_all(done).await;
        self.metrics.settled(Settled::Acked, acked as u64);
        self.metrics.settled(Settled::Lost, (sent - acked) as u64);
        if acked > 0 {
            crash::point("intake.acked");
        }
        counts.placed += acked;
        counts
    }

    fn park(&self, taken: Taken, wait_until: Instant, key: Option<String>) {
        let Some(parking) = &self.parking else { return };
        let meta = Meta {
            bridge: self.bridge.to_string(),
            exchange: self.work_exchange.clone(),
            routing_key: taken.message.routing_key.to_string(),
            key,
            attempt: 0,
            redelivered: taken.redelivered,
            taken_in_ms: taken.since_ms,
            asked_due_ms: taken.since_ms.saturating_add(remaining(wait_until, taken.since).0),
        };
        parking.hand_over(ToPark {
            id: taken.id,
            meta,
            properties: wire::encode_properties(&taken.message.properties).into(),
            body: taken.message.body,
            due: wait_until,
            receipt: taken.receipt,
        });
    }

    /// Leaves a delivery to the intake's own dead-letter exchange; whether the broker heard it.
    async fn reject(&self, receipt: Receipt) -> bool {
        let heard = reject(receipt).await;
        self.metrics.settled(if heard { Settled::Acked } else { Settled::Lost }, 1);
        heard
    }

    fn count_placed(&self, taken: &Taken, path: Path, reason: Option<Reason>) {
        match reason {
            Some(Reason::Unroutable) => self.metrics.unroutable(),
            Some(reason) => self.metrics.rejected(reason.as_str()),
            None => {
                self.metrics.placed(path);
                if path == Path::Now {
                    let late = taken.due.map_or(Millis::ZERO, |due| remaining(Instant::now(), due));
                    self.metrics.released(Path::Now, late);
                }
            }
        }
    }

    /// A publish that was not confirmed: what to try next, and when. The message stays unacknowledged meanwhile.
    async fn after_failure(
        &self,
        mut taken: Taken,
        path: Path,
        reason: Option<Reason>,
        outcome: Outcome,
        session: &mut Session,
    ) {
        let mut pause = true;
        match &outcome {
            Outcome::Confirmed => return,
            // Somebody else's work exchange without an alternate exchange behind it.
            Outcome::Returned { .. } if path == Path::Now => {
                self.rested.note(Reason::Unroutable, &format!("key '{}'", taken.message.routing_key));
                taken.fate = Some(Reason::Unroutable);
                pause = false;
            }
            // A buffer queue or a resting queue is gone.
            Outcome::Returned { .. } => taken.missed = true,
            Outcome::Refused { code, .. } if passes_with_time(*code) => taken.missed = true,
            Outcome::Refused { code, text } => {
                self.rested.note(Reason::BadEnvelope, &format!("the broker refuses it: {code} {text}"));
                if reason.is_some() {
                    // Not even the rejected queue can be reached with it; the intake's own dead-letter exchange can.
                    self.reject(taken.receipt).await;
                    return;
                }
                taken.fate = Some(Reason::BadEnvelope);
                pause = false;
            }
            Outcome::Unknown { .. } => taken.message.mark_redelivered(),
            Outcome::Nacked | Outcome::NotBegun { .. } => {}
        }
        taken.attempts = taken.attempts.saturating_add(1);
        let at = Instant::now() + if pause { retry_pause(taken.attempts) } else { Duration::ZERO };
        if pause {
            self.rested.note_trouble(&format!("{outcome:?}"));
        }
        let position = session.deferred.partition_point(|(other, _)| *other <= at);
        session.deferred.insert(position, (at, taken));
    }

    async fn assert_topology(&mut self, connection: &Arc<Connection>) -> Result<(), broker::Error> {
        let Some(declarations) = &self.declarations else { return Ok(()) };
        match declare::apply(connection.clone(), declarations, self.store.as_ref()).await {
            Ok(buffers) => {
                // A successor may have taken a buffer queue's place.
                self.rules.use_buffers(&self.bridge, &buffers);
                Ok(())
            }
            Err(declare::Error::Stopped { source, .. }) => Err(source),
            // Somebody changed or forbade an object while we ran: consuming what is there is better than nothing.
            Err(refused) => {
                self.rested.note_refusal(&refused.to_string());
                Ok(())
            }
        }
    }

    fn held_too_long(&self, session: &Session) -> bool {
        let deferred = session.deferred.iter().map(|(_, taken)| taken.since).min();
        let parking = self.parking.as_ref().and_then(Parking::oldest);
        deferred.into_iter().chain(parking).min().is_some_and(|oldest| oldest.elapsed() > HELD_AT_MOST)
    }
}

/// The next chunk of either queue, and whether it is from the second one. Under load both always have something: taking
/// turns, neither starves.
async fn either(
    intake: &mut Consumer,
    late: &mut Consumer,
    late_first: bool,
) -> (Result<Vec<Delivery>, broker::Error>, bool) {
    if late_first {
        tokio::select! {
            biased;
            chunk = late.next_chunk(CHUNK) => (chunk, true),
            chunk = intake.next_chunk(CHUNK) => (chunk, false),
        }
    } else {
        tokio::select! {
            biased;
            chunk = intake.next_chunk(CHUNK) => (chunk, false),
            chunk = late.next_chunk(CHUNK) => (chunk, true),
        }
    }
}

fn wish_of(message: &Message) -> Result<Wish, Malformed> {
    let delay = delay::asked(message.properties.headers().as_ref())?;
    let key = message.key().map_err(|_| Malformed {
        reason: Reason::BadEnvelope,
        detail: format!("{} is no text or integer of 1 to 255 bytes", names::header::DELAY_KEY),
    })?;
    Ok(Wish {
        delay,
        key,
        expiration: message.properties.expiration().is_some(),
        priority: message.properties.priority().unwrap_or(0),
    })
}

fn outgoing(exchange: &str, message: Message) -> Outgoing {
    // Names are validated to 255 bytes when the topology is read; an empty one would be RabbitMQ's default exchange,
    // where a mandatory publish with a foreign key is returned, not lost.
    Outgoing { exchange: wire::short(exchange).unwrap_or_default(), message }
}

/// From `from` to `to`, rounded up to whole milliseconds: what is left of a wait must not be cut short.
pub(crate) fn remaining(to: Instant, from: Instant) -> Millis {
    let left = to.saturating_duration_since(from);
    Millis(u64::try_from(left.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX))
}

/// Doubles from the first pause to the longest; for any number of attempts.
fn retry_pause(attempts: u32) -> Duration {
    RETRY.0.saturating_mul(2_u32.saturating_pow(attempts.saturating_sub(1))).min(RETRY.1)
}

async fn sleep_until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}
