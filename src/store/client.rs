//! The store as the rest of dwell sees it.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::mem;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use futures_util::future::join_all;
use redis::{Cmd, Pipeline, Value};

use super::claim::{Claim, Claimed, Lease, Outcome, Undecodable};
use super::connection::Slot;
use super::durable::{Durable, Job};
use super::error::{Before, Error, Kind};
use super::health::Health;
use super::id::Id;
use super::keys::Keys;
use super::record::{Meta, Record};
use super::reply;
use super::script::Verb;
use crate::config;
use crate::duration::Millis;

/// A handle to the store; cheap to clone. Each call reconnects where it must and fails fast while Redis is away, so a
/// daemon may start, and go on, without it.
#[derive(Clone)]
pub struct Store(Arc<Inner>);

struct Inner {
    keys: Keys,
    /// Everything small and quick.
    talk: Slot,
    /// Payloads: a large body must not make another bridge's claim wait behind it.
    fetch: Slot,
    /// Park, cancel, reschedule.
    durable: Durable,
}

/// A message to park.
#[derive(Clone, Debug)]
pub struct Park {
    /// Parking twice by one id is parking once. Fresh for each delivery, never derived from content: two messages that
    /// say the same are two.
    pub id: Id,
    /// What remains to be waited. Redis' clock makes a due time of it, so two clocks never make a message early.
    pub wait: Millis,
    /// `record.meta.key` is the key under which it replaces and is found.
    pub record: Record,
    /// What the error of its last park has said; [`Before::Nothing`] for the first one.
    pub before: Before,
}

/// What became of a parked message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parked {
    /// By Redis' clock, in epoch milliseconds.
    pub due_ms: u64,
    /// The pending message of the same key that it has replaced.
    pub replaced: Option<Id>,
    /// It was there before, or it was written before and is out already; nothing was changed.
    pub already: bool,
}

/// Which message is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target<'a> {
    /// The one with this `dwell-id`.
    Id(Id),
    /// The latest one with this `x-delay-key`.
    Key(&'a str),
}

/// The answer to a cancel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cancelled {
    /// It was never claimed, and never will be.
    Cancelled(Id),
    /// It is or was claimed, so it may be out.
    PerhapsReleased {
        /// Which.
        id: Id,
        /// It was pending again, and is gone now; otherwise nothing was changed.
        removed: bool,
    },
    /// No such message: released, cancelled, replaced, or never here.
    Unknown,
}

/// The answer to a reschedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rescheduled {
    /// It has a new due time.
    Moved {
        /// Which.
        id: Id,
        /// By Redis' clock, in epoch milliseconds.
        due_ms: u64,
    },
    /// It is or was claimed, so it may be out; nothing was changed.
    PerhapsReleased(Id),
    /// No such message.
    Unknown,
}

/// How much lies in one bridge.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Depth {
    /// Waiting, due or not.
    pub pending: u64,
    /// Claimed and not settled.
    pub claimed: u64,
    /// Pending and due.
    pub overdue: u64,
    /// Until the earliest pending one is due; zero: it is.
    pub next_due_in: Option<Millis>,
}

/// So many ids at most in one script: 1,000 take Redis about 4 ms, and nobody else is served meanwhile.
const BATCH: usize = 1_000;

/// The beginning of each record that is fetched without knowing its length; nearly all are shorter.
const HEAD: usize = 32 << 10;

/// So many beginnings in one reply: 4 MiB at most.
const HEADS: usize = 128;

/// A claim that has fetched so many bytes gives the rest back, whole messages at a time. One message is always fetched,
/// so a claim takes this and one message of memory at most.
const CLAIM_BYTES: usize = 32 << 20;

/// The meta of a record lies in its first bytes; names are 255 bytes at most, a key may be longer.
const META: usize = 4 << 10;

/// The longest wait, about 31,000 years: with it a due time has 16 digits and is exact as a score (2^53).
const LONGEST_WAIT: Millis = Millis(1_000_000_000_000_000);

/// A park of many messages goes in pieces of this size at most; one larger message is a piece.
const JOB_BYTES: usize = 4 << 20;

/// How often a park by key looks again at what the key names before it gives up.
const LOOKS: usize = 8;

// === impl Store ===

impl Store {
    /// A store by these settings. No I/O: whether the server is there and fit turns out at the first call, or by
    /// [`Store::check`]. Fails where the address makes no sense.
    pub fn open(settings: &config::Redis) -> Result<Store, Error> {
        let keys = Keys::new(&settings.key_prefix, settings.shards);
        let slot = |name| Slot::new(settings, keys.clone(), name);
        let durable = Durable::new(slot("durable")?, keys.clone(), settings.durability);
        Ok(Store(Arc::new(Inner { talk: slot("talk")?, fetch: slot("fetch")?, durable, keys })))
    }

    /// Into how many shards each bridge is divided: numbers 0 up to that.
    #[must_use]
    pub fn shards(&self) -> u16 {
        self.0.keys.shards()
    }

    /// Is the server there, master, durable as asked, without an evicting policy, and of the same shard count? Asked
    /// anew each time, also on each new connection. Fails as any call does, and where it is out of memory: what waits is
    /// still released then, but nothing can be parked. The same where replicas are missing, and for a while after a park
    /// that was not durable.
    pub async fn check(&self) -> Result<Health, Error> {
        let live = self.0.talk.live("check").await?;
        let facts = self.0.talk.examine(&live).await.map_err(|error| error.of("check", None))?;
        if facts.full {
            return Err(Error::new("check", None, Kind::Full));
        }
        if let Some(what) = facts.lacking {
            return Err(Error::new("check", None, Kind::NotReady(what)));
        }
        if let Some(error) = self.0.durable.trouble() {
            return Err(error.of("check", None));
        }
        let skew_ms = self.skew().await?;
        Ok(Health { server: facts.server, guarantee: facts.guarantee, skew_ms, policy: facts.policy })
    }

    /// Stores messages until they are due. One outcome for each, in order: `Ok` only once it is durable as the settings
    /// ask; only then may the broker be told. After a retryable error the same items may be parked again, with what
    /// [`Error::before`] has said: a record that was released meanwhile must not become a second one, or where nobody
    /// can know that, the second one must be marked as redelivered.
    ///
    /// A message with a key replaces the pending one of that key, unless that one was ever claimed: then both stand.
    /// A crash before costs nothing; a crash after leaves the messages in the broker too, which a redelivery shows.
    pub async fn park(&self, bridge: &str, items: &[Park]) -> Vec<Result<Parked, Error>> {
        let mut outcomes: Vec<Option<Result<Parked, Error>>> = items.iter().map(|_| None).collect();
        for (index, item) in items.iter().enumerate() {
            if item.wait > LONGEST_WAIT {
                outcomes[index] = Some(Err(Error::new("park", None, Kind::TooLong(item.wait))));
            }
        }
        let mut connection = None;
        if items.iter().any(|item| matches!(item.before, Before::Written(_))) {
            match self.0.durable.connection().await {
                Ok(number) => connection = Some(number),
                Err(error) => return items.iter().map(|_| Err(error.clone().of("park", None))).collect(),
            }
        }
        let mut named = match self.named(bridge, items).await {
            Ok(named) => named,
            Err(error) => return items.iter().map(|_| Err(error.clone())).collect(),
        };
        for _ in 0..LOOKS {
            let open: Vec<usize> = (0..items.len()).filter(|index| outcomes[*index].is_none()).collect();
            if open.is_empty() {
                break;
            }
            for (index, outcome) in open.iter().zip(self.park_once(bridge, items, &open, &named, connection).await) {
                outcomes[*index] = match outcome {
                    Ok(Attempt::Done(parked)) => Some(Ok(parked)),
                    Ok(Attempt::Changed(now)) => {
                        if let Some(key) = &items[*index].record.meta.key {
                            named.insert(key, now);
                        }
                        None
                    }
                    Err(error) => Some(Err(error)),
                };
            }
        }
        let contended = || Err(Error::new("park", None, Kind::Contended));
        outcomes.into_iter().map(|outcome| outcome.unwrap_or_else(contended)).collect()
    }

    /// Takes what is due in one shard, at most `max` messages (1 to 1000) and about 32 MiB, for `lease` long. See
    /// the module `claim` for what may be done with it. Nothing due is an empty claim.
    ///
    /// A crash, or an error, after the server took them: the leases lapse.
    pub async fn claim(&self, bridge: &str, shard: u16, max: u16, lease: Millis) -> Result<Claim, Error> {
        let keys = self.0.keys.shard(bridge, shard);
        let (due, max) = (keys.due(), usize::from(max).clamp(1, BATCH));
        // Before the call: our count of the lease may only be shorter than Redis'.
        let lease = Lease::new(bridge, shard, lease, Instant::now());
        let mut call = Verb::Claim.call(&[due.clone(), keys.lease(), keys.lapsed()]);
        call.arg(lease.token()).arg(lease.length().0).arg(max);
        // Made again when the connection broke: if the first one ran, its messages are late by the lease, not lost.
        let answer = self.0.talk.one("claim", &due, call).await?;
        let taken = Taken::read(answer).ok_or_else(|| Error::answer("claim", Some(&due)))?;
        for (id, due_ms, _) in &taken.items {
            lease.add(*id, *due_ms);
        }
        let mut claim = Claim { lease, items: Vec::new(), next_due_in: taken.next_due_in, lost: 0 };
        match self.fetch(&mut claim, &taken.items).await {
            Ok(()) => Ok(claim),
            Err(error) => {
                // Nothing was begun. If this fails too, they lapse.
                let _ = self.release(&claim.lease, &claim.lease.ids()).await;
                Err(error)
            }
        }
    }

    /// Ends messages whose publish was confirmed. What is not held any more is left alone, and named: it was published,
    /// and will be again. Ids that are not of this lease, or were settled before, are passed over.
    pub async fn settle(&self, lease: &Lease, ids: &[Id]) -> Result<Outcome, Error> {
        let keys = self.0.keys.shard(&lease.bridge, lease.shard);
        let mut outcome = Outcome::default();
        // One script for all of a claim: 1,000 payloads are freed in the background (UNLINK).
        for ids in ids.chunks(BATCH) {
            let members: Vec<_> = ids.iter().filter_map(|id| lease.member(*id).map(|found| (*id, found))).collect();
            let mut names = vec![keys.lease(), keys.lapsed(), keys.keys()];
            names.extend(members.iter().map(|(id, _)| keys.payload(*id)));
            let mut call = Verb::Settle.call(&names);
            for (_, (member, key)) in &members {
                call.arg(member).arg(marked(key.as_deref()));
            }
            let ids = members.into_iter().map(|(id, _)| id).collect();
            self.account(lease, Verb::Settle, &keys.lease(), call, ids, &mut outcome).await?;
        }
        Ok(outcome)
    }

    /// Lets all that the lease still holds last its length anew. What is not held any more is named once; its publish
    /// must not begin.
    pub async fn renew(&self, lease: &Lease) -> Result<Outcome, Error> {
        let keys = self.0.keys.shard(&lease.bridge, lease.shard);
        let began = Instant::now();
        let mut outcome = Outcome::default();
        for ids in lease.ids().chunks(BATCH) {
            let mut call = Verb::Renew.call(&[keys.lease()]);
            call.arg(lease.length().0);
            let held = add_members(&mut call, lease, ids);
            self.account(lease, Verb::Renew, &keys.lease(), call, held, &mut outcome).await?;
        }
        lease.restart(began);
        Ok(outcome)
    }

    /// Gives back messages whose publish was not begun: they are pending again as they were, unmarked.
    pub async fn release(&self, lease: &Lease, ids: &[Id]) -> Result<Outcome, Error> {
        let keys = self.0.keys.shard(&lease.bridge, lease.shard);
        let mut outcome = Outcome::default();
        for ids in ids.chunks(BATCH) {
            let mut call = Verb::Release.call(&[keys.due(), keys.lease()]);
            let held = add_members(&mut call, lease, ids);
            self.account(lease, Verb::Release, &keys.lease(), call, held, &mut outcome).await?;
        }
        Ok(outcome)
    }

    /// Makes messages pending again whose lease has lapsed, at most `max` (1 to 1000) in one shard. Any daemon may, at
    /// any time. Returns how many.
    pub async fn reap(&self, bridge: &str, shard: u16, max: u16) -> Result<usize, Error> {
        let keys = self.0.keys.shard(bridge, shard);
        let lease = keys.lease();
        let mut call = Verb::Reap.call(&[keys.due(), lease.clone(), keys.lapsed()]);
        call.arg(usize::from(max).clamp(1, BATCH));
        let answer = self.0.talk.one("reap", &lease, call).await?;
        let reaped = reply::integer(&answer).and_then(|reaped| usize::try_from(reaped).ok());
        reaped.ok_or_else(|| Error::answer("reap", Some(&lease)))
    }

    /// Ends a pending message without publishing it. After an error it may have been cancelled all the same, and a
    /// second call then says [`Cancelled::Unknown`].
    pub async fn cancel(&self, bridge: &str, target: Target<'_>) -> Result<Cancelled, Error> {
        let mut missed = None;
        while let Some(Found { id, shard, key }) = self.find(bridge, target).await? {
            let keys = self.0.keys.shard(bridge, shard);
            let due = keys.due();
            let mut call = Verb::Cancel.call(&[due.clone(), keys.lapsed(), keys.keys(), keys.payload(id)]);
            call.arg(id.as_bytes()).arg(marked(key.as_deref()));
            let answer = self.write_one(Verb::Cancel, &due, call).await?;
            match reply::text(answer).as_deref() {
                Some("cancelled") => return Ok(Cancelled::Cancelled(id)),
                Some("lapsed") => return Ok(Cancelled::PerhapsReleased { id, removed: true }),
                Some("claimed") => return Ok(Cancelled::PerhapsReleased { id, removed: false }),
                // A key may name another message by now; look again until it names the same one twice.
                Some("unknown") if matches!(target, Target::Key(_)) && missed != Some(id) => missed = Some(id),
                Some("unknown") => break,
                _ => return Err(Error::answer("cancel", Some(&due))),
            }
        }
        Ok(Cancelled::Unknown)
    }

    /// Gives a pending message another due time, `wait` from now.
    pub async fn reschedule(&self, bridge: &str, target: Target<'_>, wait: Millis) -> Result<Rescheduled, Error> {
        if wait > LONGEST_WAIT {
            return Err(Error::new("reschedule", None, Kind::TooLong(wait)));
        }
        let mut missed = None;
        while let Some(Found { id, shard, .. }) = self.find(bridge, target).await? {
            let keys = self.0.keys.shard(bridge, shard);
            let due = keys.due();
            let mut call = Verb::Reschedule.call(&[due.clone(), keys.lapsed(), keys.payload(id)]);
            call.arg(id.as_bytes()).arg(wait.0);
            let answer = self.write_one(Verb::Reschedule, &due, call).await?;
            let unexpected = || Error::answer("reschedule", Some(&due));
            let mut parts = reply::array(answer).ok_or_else(unexpected)?.into_iter();
            match parts.next().and_then(reply::text).as_deref() {
                Some("moved") => {
                    let due_ms = parts.next().as_ref().and_then(reply::integer).ok_or_else(unexpected)?;
                    return Ok(Rescheduled::Moved { id, due_ms });
                }
                Some("claimed") => return Ok(Rescheduled::PerhapsReleased(id)),
                Some("unknown") if matches!(target, Target::Key(_)) && missed != Some(id) => missed = Some(id),
                Some("unknown") => break,
                _ => return Err(unexpected()),
            }
        }
        Ok(Rescheduled::Unknown)
    }

    /// How much lies in a bridge, over all shards.
    pub async fn depth(&self, bridge: &str) -> Result<Depth, Error> {
        let shards: Vec<_> = (0..self.shards()).map(|shard| self.0.keys.shard(bridge, shard)).collect();
        let mut pipe = redis::pipe();
        pipe.cmd("TIME");
        for keys in &shards {
            pipe.cmd("ZCARD").arg(keys.due());
            pipe.cmd("ZCARD").arg(keys.lease());
            pipe.cmd("ZRANGE").arg(keys.due()).arg(0).arg(0).arg("WITHSCORES");
        }
        let mut answers = self.read("depth", &pipe).await?.into_iter();
        let unexpected = || Error::answer("depth", None);
        let now = answers.next().and_then(time_micros).ok_or_else(unexpected)? / 1_000;
        let mut depth = Depth::default();
        let mut counts = redis::pipe();
        for keys in &shards {
            let mut count = || answers.next().as_ref().and_then(reply::integer).ok_or_else(unexpected);
            depth.pending += count()?;
            depth.claimed += count()?;
            let first = answers.next().and_then(reply::array).ok_or_else(unexpected)?;
            if let Some(due) = first.get(1).and_then(reply::integer) {
                let left = Millis(due.saturating_sub(now));
                depth.next_due_in = Some(depth.next_due_in.map_or(left, |least| least.min(left)));
                if left == Millis::ZERO {
                    counts.cmd("ZCOUNT").arg(keys.due()).arg("-inf").arg(now);
                }
            }
        }
        for answer in self.read("depth", &counts).await? {
            depth.overdue += reply::integer(&answer).ok_or_else(unexpected)?;
        }
        Ok(depth)
    }

    /// All bridges that have records, pending or claimed, in the order of their names: also those that have left the
    /// files.
    pub async fn bridges_with_records(&self) -> Result<Vec<String>, Error> {
        let key = self.0.keys.bridges();
        let mut members = redis::cmd("SMEMBERS");
        members.arg(&key);
        let answer = self.0.talk.one("bridges", &key, members).await?;
        let names = reply::array(answer).ok_or_else(|| Error::answer("bridges", Some(&key)))?;
        let mut names: Vec<String> = names.into_iter().filter_map(reply::text).collect();
        names.sort_unstable();
        let mut pipe = redis::pipe();
        for name in &names {
            for shard in 0..self.shards() {
                let keys = self.0.keys.shard(name, shard);
                pipe.cmd("ZCARD").arg(keys.due());
                pipe.cmd("ZCARD").arg(keys.lease());
            }
        }
        let counts = self.read("bridges", &pipe).await?;
        let counts = counts.chunks(2 * usize::from(self.shards()));
        let full =
            names.into_iter().zip(counts).filter(|(_, counts)| counts.iter().any(|count| *count != Value::Int(0)));
        Ok(full.map(|(name, _)| name).collect())
    }

    /// Notes that a buffer queue may be bound to a bridge's default exchange from now on, as durably as a park, and
    /// returns all that may be, this one among them, in the order of their names. AMQP cannot list bindings, and two of
    /// them make two messages of one: whoever binds one first unbinds the others.
    ///
    /// To be called before the queue is bound. After an error it may have been noted all the same, which costs an
    /// unbinding of what is not bound.
    pub async fn remember_default(&self, bridge: &str, queue: Option<&str>) -> Result<Vec<String>, Error> {
        let key = self.0.keys.defaults(bridge);
        let noted = self.defaults(&key).await?;
        // As nearly always: no wait for the disk.
        let Some(queue) = queue.filter(|queue| !noted.iter().any(|name| name == queue)) else { return Ok(noted) };
        let mut add = redis::cmd("SADD");
        add.arg(&key).arg(queue);
        let answers = self.0.durable.write(Job::new("defaults", None, vec![add], 0)).await;
        for answer in answers {
            answer.map_err(|error| error.of("defaults", Some(&key)))?;
        }
        self.defaults(&key).await
    }

    /// Takes back [`Store::remember_default`] for queues that are unbound. Another daemon, of other files, may be about
    /// to bind one that it remembered before: what may still be bound stays noted.
    pub async fn forget_defaults(&self, bridge: &str, queues: &[String]) -> Result<(), Error> {
        if queues.is_empty() {
            return Ok(());
        }
        let key = self.0.keys.defaults(bridge);
        let mut remove = redis::cmd("SREM");
        remove.arg(&key).arg(queues);
        self.0.talk.one("defaults", &key, remove).await.map(|_| ())
    }

    async fn defaults(&self, key: &str) -> Result<Vec<String>, Error> {
        let mut members = redis::cmd("SMEMBERS");
        members.arg(key);
        let answer = self.0.talk.one("defaults", key, members).await?;
        let names = reply::array(answer).ok_or_else(|| Error::answer("defaults", Some(key)))?;
        let mut names: Vec<String> = names.into_iter().filter_map(reply::text).collect();
        names.sort_unstable();
        Ok(names)
    }
}

/// Never shows the address.
impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Store").field("keys", &self.0.keys).finish_non_exhaustive()
    }
}

// === the steps of park ===

/// What one look at the server made of a park.
enum Attempt {
    Done(Parked),
    /// The key names another message than we thought: this one.
    Changed(Option<Id>),
}

impl Store {
    /// What the keys of these items name now.
    async fn named<'a>(&self, bridge: &str, items: &'a [Park]) -> Result<HashMap<&'a str, Option<Id>>, Error> {
        let keys: HashSet<&str> = items.iter().filter_map(|item| item.record.meta.key.as_deref()).collect();
        if keys.is_empty() {
            return Ok(HashMap::new());
        }
        let keys: Vec<&str> = keys.into_iter().collect();
        let mut pipe = redis::pipe();
        for key in &keys {
            let shard = self.0.keys.shard_of_key(key);
            pipe.cmd("HGET").arg(self.0.keys.shard(bridge, shard).keys()).arg(key);
        }
        let answers = self.read("park", &pipe).await?;
        let named = keys.into_iter().zip(&answers).map(|(key, answer)| Some((key, reply::perhaps_id(answer).ok()?)));
        named.collect::<Option<_>>().ok_or_else(|| Error::answer("park", None))
    }

    /// Parks the items at `open`, each once. `connection`: the one that writes now.
    async fn park_once(
        &self,
        bridge: &str,
        items: &[Park],
        open: &[usize],
        named: &HashMap<&str, Option<Id>>,
        connection: Option<u64>,
    ) -> Vec<Result<Attempt, Error>> {
        // What each key will name once the items before it are parked: they run in this order.
        let mut named = named.clone();
        let mut dues = Vec::with_capacity(open.len());
        let mut jobs = Vec::new();
        let mut job = Job::new("park", Some(bridge), Vec::new(), 0);
        for index in open {
            let Park { id, wait, record, before } = &items[*index];
            // The server that has written it is the one that is asked, so it knows whether it is out.
            let written = match before {
                Before::Written(number) => connection.filter(|now| now == number),
                Before::Nothing | Before::Perhaps => None,
            };
            let key = record.meta.key.as_deref();
            let keys = self.0.keys.shard(bridge, self.0.keys.shard_of(*id, key));
            let old = key.and_then(|key| named.insert(key, Some(*id)).flatten());
            let mut touched = vec![keys.due(), keys.keys(), keys.lapsed(), keys.payload(*id)];
            touched.extend(old.map(|old| keys.payload(old)));
            let record = if *before == Before::Nothing || written.is_some() || record.meta.redelivered {
                record.encode()
            } else {
                // What was written before may be out, and its entry lost: this one may be a copy.
                let meta = Meta { redelivered: true, ..record.meta.clone() };
                Record { meta, properties: record.properties.clone(), body: record.body.clone() }.encode()
            };
            let full = job.bytes + record.len() > JOB_BYTES || job.commands.len() >= BATCH;
            if !job.commands.is_empty() && (full || job.connection != written) {
                jobs.push(mem::replace(&mut job, Job::new("park", Some(bridge), Vec::new(), 0)));
            }
            job.connection = written;
            job.bytes += record.len();
            let mut call = Verb::Park.call(&touched);
            call.arg(id.as_bytes()).arg(wait.0).arg(&record[..]);
            call.arg(if written.is_some() { "written" } else { "" });
            if let Some(key) = key {
                call.arg(key).arg(old.map_or(Vec::new(), |old| old.as_bytes().to_vec()));
            }
            dues.push(keys.due());
            job.commands.push(call);
        }
        jobs.push(job);
        // Handed in together and taken in order, so that what does not fit one group waits for the disk once more and
        // not once a job.
        let answers = join_all(jobs.into_iter().map(|job| self.0.durable.write(job))).await;
        let answers = answers.into_iter().flatten();
        let outcomes = answers.zip(dues).map(|(answer, due)| {
            let answer = answer.map_err(|error| error.of("park", Some(&due)))?;
            read_parked(answer).ok_or_else(|| Error::answer("park", Some(&due)))
        });
        outcomes.collect()
    }
}

fn read_parked(answer: Value) -> Option<Attempt> {
    let mut parts = reply::array(answer)?.into_iter();
    let status = parts.next().and_then(reply::text)?;
    let due_ms = reply::perhaps_ms(&parts.next()?).ok()?;
    let other = reply::perhaps_id(&parts.next()?).ok()?;
    match status.as_str() {
        "parked" => Some(Attempt::Done(Parked { due_ms: due_ms?, replaced: other, already: false })),
        "already" | "gone" => Some(Attempt::Done(Parked { due_ms: due_ms?, replaced: None, already: true })),
        "changed" => Some(Attempt::Changed(other)),
        _ => None,
    }
}

// === the steps of claim ===

/// What the claim script took.
struct Taken {
    /// Id, due in ms, lapses.
    items: Vec<(Id, u64, u32)>,
    next_due_in: Option<Millis>,
}

impl Taken {
    fn read(answer: Value) -> Option<Taken> {
        let parts = reply::array(answer)?;
        let [now, next, rest @ ..] = parts.as_slice() else { return None };
        let (now, next) = (reply::integer(now)?, reply::perhaps_ms(next).ok()?);
        let items = rest.chunks(3).map(|item| match item {
            [id, due, lapses] => {
                Some((reply::id(id)?, reply::integer(due)?, u32::try_from(reply::integer(lapses)?).ok()?))
            }
            _ => None,
        });
        let items = items.collect::<Option<_>>()?;
        Some(Taken { items, next_due_in: next.map(|next| Millis(next.saturating_sub(now))) })
    }
}

impl Store {
    /// Fetches the payloads of what was claimed, in order, as far as the bytes go; gives the rest back.
    async fn fetch(&self, claim: &mut Claim, taken: &[(Id, u64, u32)]) -> Result<(), Error> {
        let mut bytes = 0;
        let mut rest = taken;
        while !rest.is_empty() && bytes < CLAIM_BYTES {
            let (now, later) = rest.split_at(rest.len().min(HEADS));
            rest = later;
            let mut lost = Vec::new();
            for ((id, due_ms, lapses), head) in now.iter().zip(self.heads(&claim.lease, now).await?) {
                if bytes >= CLAIM_BYTES {
                    rest = &taken[claim.items.len() + claim.lost + lost.len()..];
                    break;
                }
                let payload = if head.len() < HEAD {
                    head
                } else {
                    self.payload(claim.lease.bridge(), claim.lease.shard(), *id).await?
                };
                // A record has one byte at least, so this payload is not there.
                if payload.is_empty() {
                    lost.push(*id);
                    continue;
                }
                bytes += payload.len();
                let record = Record::decode(payload.clone()).map_err(|error| Undecodable { error, bytes: payload });
                let key = record.as_ref().ok().and_then(|record| record.meta.key.as_deref());
                claim.lease.set_key(*id, key);
                claim.items.push(Claimed { id: *id, due_ms: *due_ms, lapses: *lapses, record });
            }
            if !lost.is_empty() {
                tracing::error!(
                    bridge = %claim.lease.bridge,
                    ids = ?lost,
                    "Messages fell due whose payload is gone from Redis: somebody has deleted their keys. They are lost."
                );
                claim.lost += lost.len();
                // They must not come back for ever.
                self.settle(&claim.lease, &lost).await?;
            }
        }
        if !rest.is_empty() {
            let ids: Vec<Id> = rest.iter().map(|(id, _, _)| *id).collect();
            self.release(&claim.lease, &ids).await?;
            claim.next_due_in = Some(Millis::ZERO);
        }
        Ok(())
    }

    /// The first bytes of each payload; empty where there is none.
    async fn heads(&self, lease: &Lease, items: &[(Id, u64, u32)]) -> Result<Vec<Bytes>, Error> {
        let keys = self.0.keys.shard(&lease.bridge, lease.shard);
        let mut pipe = redis::pipe();
        for (id, _, _) in items {
            pipe.cmd("GETRANGE").arg(keys.payload(*id)).arg(0).arg(HEAD - 1);
        }
        let answers = self.0.fetch.all("fetch", None, &pipe, HEAD * items.len()).await?;
        let heads = answers.into_iter().zip(items).map(|(answer, (id, _, _))| {
            let key = keys.payload(*id);
            let head = answer.map_err(|error| Error::sort("fetch", Some(&key), &error))?;
            reply::bytes(head).map(Bytes::from).ok_or_else(|| Error::answer("fetch", Some(&key)))
        });
        heads.collect()
    }

    /// One payload, however long; empty if it is gone.
    async fn payload(&self, bridge: &str, shard: u16, id: Id) -> Result<Bytes, Error> {
        let key = self.0.keys.shard(bridge, shard).payload(id);
        let mut length = redis::cmd("STRLEN");
        length.arg(&key);
        let length = self.0.fetch.one("fetch", &key, length).await?;
        let length = reply::integer(&length).ok_or_else(|| Error::answer("fetch", Some(&key)))?;
        let mut pipe = redis::pipe();
        pipe.cmd("GET").arg(&key);
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        let answers = self.0.fetch.all("fetch", Some(&key), &pipe, length).await?;
        let answer = answers.into_iter().next().ok_or_else(|| Error::answer("fetch", Some(&key)))?;
        match answer.map_err(|error| Error::sort("fetch", Some(&key), &error))? {
            Value::Nil => Ok(Bytes::new()),
            other => reply::bytes(other).map(Bytes::from).ok_or_else(|| Error::answer("fetch", Some(&key))),
        }
    }
}

// === the rest ===

/// Where a message is.
struct Found {
    id: Id,
    shard: u16,
    key: Option<String>,
}

impl Store {
    async fn find(&self, bridge: &str, target: Target<'_>) -> Result<Option<Found>, Error> {
        match target {
            Target::Key(key) => {
                let shard = self.0.keys.shard_of_key(key);
                let name = self.0.keys.shard(bridge, shard).keys();
                let mut get = redis::cmd("HGET");
                get.arg(&name).arg(key);
                let answer = self.0.talk.one("find", &name, get).await?;
                let id = reply::perhaps_id(&answer).map_err(|_| Error::answer("find", Some(&name)))?;
                Ok(id.map(|id| Found { id, shard, key: Some(key.to_owned()) }))
            }
            Target::Id(id) => self.find_by_id(bridge, id).await,
        }
    }

    /// A message with a key lives where its key says, which its id does not tell: all shards are asked at once.
    async fn find_by_id(&self, bridge: &str, id: Id) -> Result<Option<Found>, Error> {
        let mut pipe = redis::pipe();
        for shard in 0..self.shards() {
            pipe.cmd("GETRANGE").arg(self.0.keys.shard(bridge, shard).payload(id)).arg(0).arg(META - 1);
        }
        for (shard, answer) in (0..self.shards()).zip(self.read("find", &pipe).await?) {
            let beginning = reply::bytes(answer).ok_or_else(|| Error::answer("find", None))?;
            if beginning.is_empty() {
                continue;
            }
            let key = if let Ok(meta) = Meta::decode(beginning.into()) {
                meta.key
            } else {
                // Longer than usual, or no record: then its key cannot be known, and its index entry stays until the
                // key is used again.
                Record::decode(self.payload(bridge, shard, id).await?).ok().and_then(|record| record.meta.key)
            };
            return Ok(Some(Found { id, shard, key }));
        }
        Ok(None)
    }

    /// One write by a person: as durable as a park.
    async fn write_one(&self, verb: Verb, key: &str, call: Cmd) -> Result<Value, Error> {
        let answers = self.0.durable.write(Job::new(verb.name(), None, vec![call], 0)).await;
        let answer = answers.into_iter().next().ok_or_else(|| Error::answer(verb.name(), Some(key)))?;
        answer.map_err(|error| error.of(verb.name(), Some(key)))
    }

    /// Reads in one round trip; the first error is the error of all.
    async fn read(&self, verb: &'static str, pipe: &Pipeline) -> Result<Vec<Value>, Error> {
        if pipe.is_empty() {
            return Ok(Vec::new());
        }
        let answers = self.0.talk.all(verb, None, pipe, 0).await?;
        answers.into_iter().map(|answer| answer.map_err(|error| Error::sort(verb, None, &error))).collect()
    }

    /// Calls a script that answers a number for each of `ids`, and books it: 0 is not held.
    async fn account(
        &self,
        lease: &Lease,
        verb: Verb,
        key: &str,
        call: Cmd,
        ids: Vec<Id>,
        outcome: &mut Outcome,
    ) -> Result<(), Error> {
        if ids.is_empty() {
            return Ok(());
        }
        let answer = self.0.talk.one(verb.name(), key, call).await?;
        let answers = reply::array(answer).filter(|answers| answers.len() == ids.len());
        let answers = answers.ok_or_else(|| Error::answer(verb.name(), Some(key)))?;
        let (not_held, done): (Vec<_>, Vec<_>) =
            ids.into_iter().zip(answers).partition(|(_, answer)| *answer == Value::Int(0));
        let [not_held, done] = [not_held, done].map(|side| side.into_iter().map(|(id, _)| id).collect::<Vec<Id>>());
        outcome.done += done.len();
        lease.forget(&not_held);
        if verb != Verb::Renew {
            lease.forget(&done);
        }
        outcome.not_held.extend(not_held);
        Ok(())
    }

    /// Redis' clock minus ours in ms, by the quickest of three round trips.
    async fn skew(&self) -> Result<i64, Error> {
        let mut best: Option<(Duration, i64)> = None;
        for _ in 0..3 {
            let before = SystemTime::now();
            let begun = Instant::now();
            let answer = self.0.talk.one("TIME", "", redis::cmd("TIME")).await?;
            let round = begun.elapsed();
            let theirs = time_micros(answer).ok_or_else(|| Error::answer("TIME", None))?;
            let ours = (before + round / 2).duration_since(UNIX_EPOCH).unwrap_or_default().as_micros();
            let skew = i128::from(theirs) - i128::try_from(ours).unwrap_or(i128::MAX);
            let skew_ms = i64::try_from(skew / 1_000).unwrap_or(i64::MAX);
            if best.is_none_or(|(quickest, _)| round < quickest) {
                best = Some((round, skew_ms));
            }
        }
        Ok(best.map_or(0, |(_, skew_ms)| skew_ms))
    }
}

/// Adds the members of those ids that the lease holds, and says which they are.
fn add_members(call: &mut Cmd, lease: &Lease, ids: &[Id]) -> Vec<Id> {
    let mut held = Vec::with_capacity(ids.len());
    for id in ids {
        if let Some((member, _)) = lease.member(*id) {
            call.arg(member);
            held.push(*id);
        }
    }
    held
}

/// A key as scripts take it where there may be none: an empty key is a key.
fn marked(key: Option<&str>) -> String {
    key.map_or_else(String::new, |key| format!("k{key}"))
}

/// The answer to `TIME`, in µs.
fn time_micros(answer: Value) -> Option<u64> {
    let parts = reply::array(answer)?;
    let [seconds, micros] = parts.as_slice() else { return None };
    Some(reply::integer(seconds)? * 1_000_000 + reply::integer(micros)?)
}
