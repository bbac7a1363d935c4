//! Writes that must be as durable as the settings ask before anybody acts on them.
//!
//! `WAITAOF` and `WAIT` hold up the connection they come by, and cover what that connection has written. So one task
//! owns a connection for such writes and commits in groups: whatever all bridges have asked for while one group waited
//! goes out as the next, followed by one wait. With `appendfsync everysec` a group may wait for a second. Each bridge has
//! a part in every group, so that none waits behind another's flood.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use redis::{Cmd, RedisResult, Value};
use tokio::sync::{mpsc, oneshot};

use super::connection::{Live, Slot, millis};
use super::error::{Before, Error, Kind};
use super::health::Guarantee;
use super::keys::Keys;
use super::reply;
use crate::config::Durability;

/// Where writes are handed in.
pub(super) struct Durable {
    /// Until the first write there is no task, so that a store can be opened outside a runtime.
    seat: OnceLock<mpsc::UnboundedSender<Job>>,
    slot: Arc<Slot>,
    keys: Keys,
    durability: Durability,
    trouble: Trouble,
}

/// The last group with parks was not durable, and since when that is so.
type Trouble = Arc<Mutex<Option<(Instant, Error)>>>;

/// What one caller wants written.
pub(super) struct Job {
    pub(super) verb: &'static str,
    /// The bridge, where the write is a park: it is entered in the set of bridges first.
    pub(super) parks: Option<String>,
    pub(super) commands: Vec<Cmd>,
    /// Of all commands together, roughly.
    pub(super) bytes: usize,
    /// Only by the connection of this number: the commands count on what it has written.
    pub(super) connection: Option<u64>,
    reply: Option<oneshot::Sender<Vec<Result<Value, Error>>>>,
}

/// A group takes no bridge's second job once it has so many bytes or commands.
const GROUP_BYTES: usize = 4 << 20;
const GROUP_COMMANDS: usize = 1_000;

/// A park that was not durable says for so long that the next one would not be either: it is tried again within this.
const TROUBLE_LASTS: Duration = Duration::from_secs(15);

/// How long the disk or the replicas may take at least, whatever the timeout of a command: everysec needs one second,
/// and two when the disk is slow.
const PATIENCE: Duration = Duration::from_secs(3);

// === impl Job ===

impl Job {
    pub(super) fn new(verb: &'static str, parks: Option<&str>, commands: Vec<Cmd>, bytes: usize) -> Job {
        Job { verb, parks: parks.map(ToOwned::to_owned), commands, bytes, connection: None, reply: None }
    }

    fn fail(self, error: &Error) {
        let answers = self.commands.iter().map(|_| Err(error.clone().of(self.verb, None))).collect();
        self.answer(answers);
    }

    /// A caller that no longer listens has been dropped; what it asked for was done all the same.
    fn answer(self, answers: Vec<Result<Value, Error>>) {
        if let Some(reply) = self.reply {
            let _ = reply.send(answers);
        }
    }
}

// === impl Durable ===

impl Durable {
    pub(super) fn new(slot: Slot, keys: Keys, durability: Durability) -> Durable {
        Durable { seat: OnceLock::new(), slot: Arc::new(slot), keys, durability, trouble: Trouble::default() }
    }

    /// The number of the connection that writes, made if there is none.
    pub(super) async fn connection(&self) -> Result<u64, Error> {
        self.slot.live("write").await.map(|live| live.number)
    }

    /// Why parks are not durable at present, although they are written.
    pub(super) fn trouble(&self) -> Option<Error> {
        let trouble = self.trouble.lock().ok()?;
        trouble.as_ref().filter(|(at, _)| at.elapsed() < TROUBLE_LASTS).map(|(_, error)| error.clone())
    }

    /// One outcome for each command. A park is `Ok` only when it is durable as asked; another verb also when that
    /// could not be learned, because its effect is visible already.
    pub(super) async fn write(&self, mut job: Job) -> Vec<Result<Value, Error>> {
        let seat = self.seat.get_or_init(|| {
            // Unbounded, but no larger than what callers hold anyway: each waits for its answer.
            let (seat, jobs) = mpsc::unbounded_channel();
            let group = Committer {
                slot: Arc::clone(&self.slot),
                keys: self.keys.clone(),
                durability: self.durability,
                trouble: Arc::clone(&self.trouble),
            };
            tokio::spawn(group.run(jobs));
            seat
        });
        let (verb, count) = (job.verb, job.commands.len());
        let (reply, answers) = oneshot::channel();
        job.reply = Some(reply);
        // The task ends with its runtime only.
        let gone = || Error::new(verb, None, Kind::Unreachable("the program is ending".into()));
        if seat.send(job).is_err() {
            return (0..count).map(|_| Err(gone())).collect();
        }
        answers.await.unwrap_or_else(|_| (0..count).map(|_| Err(gone())).collect())
    }
}

/// The task.
struct Committer {
    slot: Arc<Slot>,
    keys: Keys,
    durability: Durability,
    trouble: Trouble,
}

/// Bridges whose entry in the set of bridges is durable, as far as this connection knows: after a failover it may be
/// gone.
#[derive(Default)]
struct Announced {
    connection: u64,
    bridges: HashSet<String>,
}

impl Committer {
    async fn run(self, mut jobs: mpsc::UnboundedReceiver<Job>) {
        let mut announced = Announced::default();
        let mut waiting = Vec::new();
        loop {
            if waiting.is_empty() {
                let Some(job) = jobs.recv().await else { return };
                waiting.push(job);
            }
            while let Ok(job) = jobs.try_recv() {
                waiting.push(job);
            }
            let group = next_group(&mut waiting);
            let bytes = group.iter().map(|job| job.bytes).sum();
            if let Some((group, error)) = self.commit(group, bytes, Before::Nothing, &mut announced).await {
                // The connection broke, perhaps long ago. A park may be made again, by its id; a cancel that may have
                // run would hear that there is no such message.
                let (again, over): (Vec<Job>, Vec<Job>) =
                    group.into_iter().partition(|job| job.parks.is_some() && job.connection.is_none());
                fail(over, &error);
                if let Some((group, error)) = self.commit(again, bytes, Before::Perhaps, &mut announced).await {
                    fail(group, &error);
                }
            }
        }
    }

    /// Gives the jobs back, unanswered, when the connection broke. `before`: whether they were sent before.
    async fn commit(
        &self,
        group: Vec<Job>,
        bytes: usize,
        before: Before,
        announced: &mut Announced,
    ) -> Option<(Vec<Job>, Error)> {
        if group.is_empty() {
            return None;
        }
        let live = match self.slot.live("write").await {
            Ok(live) => live,
            Err(error) => {
                fail(group, &error.leaving(before));
                return None;
            }
        };
        let (group, stale): (Vec<Job>, Vec<Job>) =
            group.into_iter().partition(|job| job.connection.is_none_or(|number| number == live.number));
        fail(stale, &Error::new("write", None, Kind::Unreachable("the connection was replaced".into())));
        if group.is_empty() {
            return None;
        }
        if announced.connection != live.number {
            *announced = Announced { connection: live.number, bridges: HashSet::new() };
        }
        let newcomers: HashSet<String> = group
            .iter()
            .filter_map(|job| job.parks.as_ref())
            .filter(|name| !announced.bridges.contains(*name))
            .cloned()
            .collect();

        // The set comes first: a bridge in it without records costs a look, a record without its bridge is never
        // released.
        let mut announcing = Vec::new();
        for bridge in &newcomers {
            let mut add = redis::cmd("SADD");
            add.arg(self.keys.bridges()).arg(bridge);
            announcing.push(add);
        }
        let commands: Vec<&Cmd> = announcing.iter().chain(group.iter().flat_map(|job| &job.commands)).collect();
        let patience = self.slot.deadline(0).max(PATIENCE);
        let tail = self.tail(&live, patience);
        let waits = u32::try_from(tail.len()).unwrap_or(u32::MAX);
        let deadline = self.slot.deadline(bytes) + patience * waits;
        let (mut answers, tail) = match self.slot.run(&live, &commands, &tail, deadline).await {
            Ok(answers) => answers,
            Err(error) => {
                let error = error.leaving(Before::Perhaps);
                if matches!(error.kind(), Kind::Unreachable(_)) {
                    return Some((group, error));
                }
                fail(group, &error);
                return None;
            }
        };

        let mut durable = self.is_durable(&live, &tail);
        let entered: Vec<RedisResult<Value>> = answers.drain(..newcomers.len()).collect();
        if let Some(error) = entered.iter().find_map(|answer| answer.as_ref().err()) {
            // The records may lie in a bridge that nobody looks at: not acknowledged, so the next park tries again.
            durable = durable.and(Err(Error::sort("SADD", Some(&self.keys.bridges()), error)));
        }
        if group.iter().any(|job| job.parks.is_some())
            && let Ok(mut trouble) = self.trouble.lock()
        {
            *trouble = durable.clone().err().map(|error| (Instant::now(), error));
        }
        if durable.is_ok() {
            announced.bridges.extend(newcomers);
        } else if let Err(error) = &durable {
            tracing::debug!(error = %error, "Redis has not made a write durable.");
        }
        let mut answers = answers.into_iter();
        for job in group {
            let outcomes = answers.by_ref().take(job.commands.len()).map(|answer| match (answer, &durable) {
                (Err(error), _) => Err(Error::sort(job.verb, None, &error).leaving(before)),
                (Ok(value), Err(error)) if job.parks.is_some() && has_written(&value) => {
                    Err(error.clone().leaving(Before::Written(live.number)))
                }
                (Ok(value), _) => Ok(value),
            });
            let outcomes = outcomes.collect();
            job.answer(outcomes);
        }
        None
    }

    /// The waits after a group.
    fn tail(&self, live: &Live, patience: Duration) -> Vec<Cmd> {
        let mut tail = Vec::new();
        if live.facts.guarantee == Guarantee::Waited {
            let mut wait = redis::cmd("WAITAOF");
            wait.arg(1).arg(0).arg(millis(patience).0);
            tail.push(wait);
        }
        if let Durability::Replicas(replicas) = self.durability {
            let mut wait = redis::cmd("WAIT");
            wait.arg(replicas).arg(millis(patience).0);
            tail.push(wait);
        }
        tail
    }

    /// A wait that ran out of time answers all the same, with a smaller number.
    fn is_durable(&self, live: &Live, tail: &[RedisResult<Value>]) -> Result<(), Error> {
        let mut tail = tail.iter();
        let lacking = |verb, what: String| Err(Error::new(verb, None, Kind::NotDurable(what)));
        if live.facts.guarantee == Guarantee::Waited {
            let answer = tail.next().ok_or_else(|| Error::answer("WAITAOF", None))?;
            let answer = answer.clone().map_err(|error| Error::sort("WAITAOF", None, &error))?;
            let counts = reply::array(answer).ok_or_else(|| Error::answer("WAITAOF", None))?;
            if counts.first().and_then(reply::integer) != Some(1) {
                return lacking("WAITAOF", "the disk has not confirmed it in time".into());
            }
        }
        if let Durability::Replicas(replicas) = self.durability {
            let answer = tail.next().ok_or_else(|| Error::answer("WAIT", None))?;
            let answer = answer.clone().map_err(|error| Error::sort("WAIT", None, &error))?;
            let reached = reply::integer(&answer).ok_or_else(|| Error::answer("WAIT", None))?;
            if reached < u64::from(replicas) {
                return lacking("WAIT", format!("{reached} of {replicas} replicas have confirmed it in time"));
            }
        }
        Ok(())
    }
}

// === helpers ===

fn fail(jobs: Vec<Job>, error: &Error) {
    for job in jobs {
        job.fail(error);
    }
}

/// Is this the answer to a park that has written, or found what was written before?
fn has_written(answer: &Value) -> bool {
    let status = match answer {
        Value::Array(parts) => parts.first(),
        _ => None,
    };
    !matches!(status, Some(Value::BulkString(status)) if status == b"changed" || status == b"gone")
}

/// Takes the first job of each bridge, then further ones in order while there is room. What belongs to no bridge is
/// small and is always taken. Jobs of one bridge stay in the order they were handed in.
///
/// A job above the bytes of a group goes alone, in its turn: it may take longer than its deadline, time after time, and
/// must not take others with it. Its bridge then waits behind all others.
fn next_group(waiting: &mut Vec<Job>) -> Vec<Job> {
    if waiting.first().is_some_and(|job| job.bytes > GROUP_BYTES) {
        let alone = waiting.remove(0);
        waiting.sort_by_key(|job| job.parks == alone.parks);
        return vec![alone];
    }
    let mut served = HashSet::new();
    let first: Vec<bool> = waiting
        .iter()
        .map(|job| {
            let first = job.parks.as_ref().is_none_or(|name| served.insert(name.clone()));
            first && job.bytes <= GROUP_BYTES
        })
        .collect();
    let taken = || waiting.iter().zip(&first).filter(|(_, first)| **first).map(|(job, _)| job);
    let mut bytes: usize = taken().map(|job| job.bytes).sum();
    let mut count: usize = taken().map(|job| job.commands.len()).sum();
    let mut passed_over = HashSet::new();
    let mut group = Vec::new();
    let mut later = Vec::new();
    for (job, first) in waiting.drain(..).zip(first) {
        let in_turn = job.parks.as_ref().is_none_or(|name| !passed_over.contains(name));
        if first || (in_turn && bytes + job.bytes <= GROUP_BYTES && count + job.commands.len() <= GROUP_COMMANDS) {
            if !first {
                bytes += job.bytes;
                count += job.commands.len();
            }
            group.push(job);
        } else {
            passed_over.extend(job.parks.clone());
            later.push(job);
        }
    }
    *waiting = later;
    group
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(bridge: &str, bytes: usize) -> Job {
        Job::new("park", Some(bridge), vec![redis::cmd("PING")], bytes)
    }

    fn sizes(group: &[Job]) -> Vec<(&str, usize)> {
        group.iter().map(|job| (job.parks.as_deref().unwrap_or("-"), job.bytes)).collect()
    }

    #[test]
    fn a_flood_of_one_bridge_leaves_room_for_the_others() {
        let mut waiting: Vec<Job> = (0..100).map(|_| job("flood", GROUP_BYTES)).collect();
        waiting.push(job("other", 10));
        waiting.push(Job::new("cancel", None, vec![redis::cmd("PING")], 0));
        let group = next_group(&mut waiting);
        assert_eq!(sizes(&group), [("flood", GROUP_BYTES), ("other", 10), ("-", 0)]);
        assert_eq!(waiting.len(), 99);
        assert_eq!(next_group(&mut waiting).len(), 1);
    }

    #[test]
    fn a_job_above_the_bytes_of_a_group_goes_alone_and_in_its_turn() {
        let large = GROUP_BYTES + 1;
        let mut waiting = vec![job("a", 1), job("flood", large), job("flood", large), job("flood", 2), job("b", 3)];
        assert_eq!(sizes(&next_group(&mut waiting)), [("a", 1), ("b", 3)]);
        waiting.push(job("a", 4));
        assert_eq!(sizes(&next_group(&mut waiting)), [("flood", large)]);
        // The others come first now, and nothing of the flood overtakes its own.
        assert_eq!(sizes(&next_group(&mut waiting)), [("a", 4)]);
        assert_eq!(sizes(&next_group(&mut waiting)), [("flood", large)]);
        assert_eq!(sizes(&next_group(&mut waiting)), [("flood", 2)]);
        assert!(waiting.is_empty());
    }

    #[test]
    fn a_group_takes_what_fits_and_keeps_the_order_of_each_bridge() {
        let half = GROUP_BYTES / 2;
        let mut waiting = vec![job("a", 1), job("a", GROUP_BYTES), job("a", 2), job("b", half), job("b", 3)];
        let group = next_group(&mut waiting);
        // The third of a must not overtake its second.
        assert_eq!(sizes(&group), [("a", 1), ("b", half), ("b", 3)]);
        assert_eq!(sizes(&waiting), [("a", GROUP_BYTES), ("a", 2)]);
    }
}
