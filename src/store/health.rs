//! What a server must be to hold messages, and what it is.

use std::collections::HashMap;

use redis::Value;

use super::error::{Error, Kind};
use super::keys::Keys;
use super::reply;
use crate::config::Durability;

/// What a check found; all of it fit for use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Health {
    /// Such as `redis 7.0.15` or `valkey 8.1.1`.
    pub server: String,
    /// What an acknowledged park survives.
    pub guarantee: Guarantee,
    /// Redis' clock minus ours, in ms, half the round trip taken off. Above 100 either way the daemon is not ready.
    pub skew_ms: i64,
    /// `maxmemory-policy`; never one that evicts our keys.
    pub policy: String,
}

/// What an acknowledged park survives. Replicas come on top where the settings ask for them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Guarantee {
    /// A crash of the server: `WAITAOF` says when the disk has it (7.2 and later).
    Waited,
    /// A crash of the server: `appendfsync always` writes before it answers.
    Always,
    /// A crash of the process; a crash of the machine may cost about the last second (`appendfsync everysec`, or one
    /// that we may not read, before 7.2).
    Everysec,
    /// Nothing: `durability = "memory"` was written out.
    Memory,
}

/// What was found when a connection was made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Facts {
    pub(super) server: String,
    pub(super) guarantee: Guarantee,
    pub(super) policy: String,
    /// At `maxmemory` or above: it refuses parks and nothing else, so only [`check`](super::Store::check) minds.
    pub(super) full: bool,
    /// Fewer replicas are connected than the settings ask for: which. Only the check minds this too.
    pub(super) lacking: Option<String>,
}

/// Commands whose answers [`judge`] reads, in this order. They write nothing.
pub(super) fn questions(keys: &Keys) -> redis::Pipeline {
    let mut pipe = redis::pipe();
    pipe.cmd("INFO").arg("server");
    pipe.cmd("INFO").arg("replication");
    pipe.cmd("INFO").arg("persistence");
    pipe.cmd("INFO").arg("memory");
    // Often forbidden on managed servers; what it says is then taken as everysec.
    pipe.cmd("CONFIG").arg("GET").arg("appendfsync");
    pipe.cmd("HMGET").arg(keys.meta()).arg("layout").arg("shards");
    pipe
}

/// The layout of keys that this dwell reads and writes.
pub(super) const LAYOUT: u64 = 1;

/// Is this server fit? Also says whether the prefix is used for the first time, and must be marked as ours.
pub(super) fn judge(
    answers: Vec<redis::RedisResult<Value>>,
    durability: Durability,
    keys: &Keys,
) -> Result<(Facts, bool), Error> {
    let mut answers = answers.into_iter();
    let mut info = HashMap::new();
    for _ in 0..4 {
        let answer = answers.next().ok_or_else(|| Error::answer("INFO", None))?;
        let answer = answer.map_err(|error| Error::sort("INFO", None, &error))?;
        info.extend(fields(&info_text(answer).ok_or_else(|| Error::answer("INFO", None))?));
    }
    let appendfsync = answers.next().and_then(Result::ok).and_then(config_value);
    let facts = fitness(&info, appendfsync.as_deref(), durability)?;

    let key = keys.meta();
    let answer = answers.next().ok_or_else(|| Error::answer("HMGET", Some(&key)))?;
    let answer = answer.map_err(|error| Error::sort("HMGET", Some(&key), &error))?;
    let values = reply::array(answer).ok_or_else(|| Error::answer("HMGET", Some(&key)))?;
    let [layout, shards] = values.as_slice() else {
        return Err(Error::answer("HMGET", Some(&key)));
    };
    let unmarked = agree(&key, "layout", layout, LAYOUT)? | agree(&key, "shards", shards, u64::from(keys.shards()))?;
    Ok((facts, unmarked))
}

/// Commands that mark a prefix as ours at its first use. Two daemons may do so at once; the first one counts, and the
/// other one hears of it when it asks again.
pub(super) fn marks(keys: &Keys) -> redis::Pipeline {
    let mut pipe = redis::pipe();
    pipe.cmd("HSETNX").arg(keys.meta()).arg("layout").arg(LAYOUT);
    pipe.cmd("HSETNX").arg(keys.meta()).arg("shards").arg(keys.shards());
    pipe
}

// === helpers ===

/// True: nothing is written there yet.
fn agree(key: &str, field: &str, found: &Value, ours: u64) -> Result<bool, Error> {
    if *found == Value::Nil {
        return Ok(true);
    }
    if reply::integer(found) == Some(ours) {
        return Ok(false);
    }
    let found = reply::text(found.clone()).unwrap_or_else(|| "something else".into());
    let what = format!(
        "{field} is {found} in Redis and {ours} here: with another number messages would not be found again; \
         use the one in Redis, or another key_prefix"
    );
    Err(Error::new("check", Some(key), Kind::Unfit(what)))
}

fn fitness(info: &HashMap<String, String>, appendfsync: Option<&str>, durability: Durability) -> Result<Facts, Error> {
    let get = |field: &str| info.get(field).map_or("", String::as_str);
    let unfit = |what: String| Err(Error::new("check", None, Kind::Unfit(what)));

    // Valkey goes on telling old clients that it is redis 7.2.4.
    let (name, version) = match (get("server_name"), get("valkey_version")) {
        ("valkey", version) if !version.is_empty() => ("valkey", version),
        _ => ("redis", get("redis_version")),
    };
    let server = format!("{name} {version}");
    if get("redis_mode") == "cluster" {
        return unfit(format!("{server} is a node of a cluster; dwell does not speak to clusters yet"));
    }
    if get("redis_mode") == "sentinel" {
        return unfit(format!("{server} is a sentinel; give the address of the master"));
    }
    if number(get("redis_version")) < (5, 0) {
        return unfit(format!("{server} is too old: scripts may use the server's clock from 5.0 on"));
    }
    if get("role") != "master" {
        return Err(Error::new("check", None, Kind::Replica));
    }

    let policy = get("maxmemory_policy").to_owned();
    // volatile-* evicts keys with an expiry only, and ours have none.
    if policy != "noeviction" && !policy.starts_with("volatile-") {
        return unfit(format!(
            "maxmemory-policy is {policy:?}, which deletes waiting messages when memory is short; set noeviction"
        ));
    }

    let guarantee = if durability == Durability::Memory {
        Guarantee::Memory
    } else if get("aof_enabled") != "1" {
        return unfit(
            "the append-only file is off (appendonly no), so a restart would lose waiting messages; \
             switch it on, or set durability = \"memory\" to accept that"
                .into(),
        );
    } else if appendfsync == Some("no") {
        return unfit(
            "appendfsync is \"no\", so nobody knows when messages reach the disk; \
             set everysec or always, or durability = \"memory\""
                .into(),
        );
    } else if number(get("redis_version")) >= (7, 2) {
        Guarantee::Waited
    } else if appendfsync == Some("always") {
        Guarantee::Always
    } else {
        Guarantee::Everysec
    };
    // As Redis itself counts it: buffers for replicas and the append-only file do not.
    let bytes = |field: &str| get(field).parse::<u64>().unwrap_or(0);
    let used = bytes("used_memory").saturating_sub(bytes("mem_not_counted_for_evict"));
    let full = bytes("maxmemory") > 0 && used > bytes("maxmemory");
    let online = info.iter().filter(|(field, value)| is_replica(field) && value.contains("state=online")).count();
    let lacking = match durability {
        Durability::Replicas(wanted) if (online as u64) < u64::from(wanted) => {
            Some(format!("{online} replicas are connected, and durability asks for {wanted}"))
        }
        _ => None,
    };
    Ok(Facts { server, guarantee, policy, full, lacking })
}

/// `slave0`, `slave1`, ...: what each replica is at.
fn is_replica(field: &str) -> bool {
    field.strip_prefix("slave").is_some_and(|number| number.parse::<u32>().is_ok())
}

/// Major and minor.
fn number(version: &str) -> (u32, u32) {
    let mut parts = version.split('.').map(|part| part.parse().unwrap_or(0));
    (parts.next().unwrap_or(0), parts.next().unwrap_or(0))
}

fn info_text(value: Value) -> Option<String> {
    match value {
        Value::VerbatimString { text, .. } => Some(text),
        other => reply::text(other),
    }
}

fn fields(info: &str) -> impl Iterator<Item = (String, String)> {
    info.lines()
        .filter_map(|line| line.split_once(':'))
        .map(|(field, value)| (field.to_owned(), value.trim().to_owned()))
}

/// The value in the answer to `CONFIG GET` of one name.
fn config_value(value: Value) -> Option<String> {
    match value {
        Value::Map(pairs) => pairs.into_iter().next().and_then(|(_, value)| reply::text(value)),
        other => reply::array(other)?.into_iter().nth(1).and_then(reply::text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info(changes: &[(&str, &str)]) -> HashMap<String, String> {
        [
            ("redis_version", "7.0.15"),
            ("redis_mode", "standalone"),
            ("role", "master"),
            ("maxmemory_policy", "noeviction"),
            ("aof_enabled", "1"),
        ]
        .iter()
        .chain(changes)
        .map(|(field, value)| ((*field).to_owned(), (*value).to_owned()))
        .collect()
    }

    fn refused(changes: &[(&str, &str)], appendfsync: Option<&str>) -> String {
        let error = fitness(&info(changes), appendfsync, Durability::Fsync).expect_err("it should be refused");
        assert!(error.is_fatal(), "{error}");
        error.to_string()
    }

    #[test]
    fn full_is_above_maxmemory_and_never_without_one() {
        for (used, uncounted, maximum, full) in [
            ("900", "0", "0", false),
            ("900", "0", "1000", false),
            ("1001", "0", "1000", true),
            ("1001", "1", "1000", false),
        ] {
            let info = info(&[("used_memory", used), ("mem_not_counted_for_evict", uncounted), ("maxmemory", maximum)]);
            assert_eq!(fitness(&info, None, Durability::Fsync).expect("fit").full, full, "{used} of {maximum}");
        }
    }

    #[test]
    fn the_guarantee_follows_version_and_appendfsync() {
        for (version, appendfsync, durability, guarantee) in [
            ("7.0.15", Some("everysec"), Durability::Fsync, Guarantee::Everysec),
            ("7.0.15", None, Durability::Fsync, Guarantee::Everysec),
            ("7.0.15", Some("always"), Durability::Fsync, Guarantee::Always),
            ("7.2.0", Some("everysec"), Durability::Fsync, Guarantee::Waited),
            ("8.0.2", Some("always"), Durability::Replicas(1), Guarantee::Waited),
            ("10.0.0", None, Durability::Fsync, Guarantee::Waited),
            ("8.0.2", Some("no"), Durability::Memory, Guarantee::Memory),
        ] {
            let facts = fitness(&info(&[("redis_version", version)]), appendfsync, durability);
            assert_eq!(facts.map(|facts| facts.guarantee), Ok(guarantee), "{version} {appendfsync:?}");
        }
    }

    #[test]
    fn unfit_servers_are_refused_with_the_reason() {
        assert!(refused(&[("maxmemory_policy", "allkeys-lru")], None).contains("allkeys-lru"));
        assert!(refused(&[("maxmemory_policy", "")], None).contains("maxmemory-policy"));
        assert!(refused(&[("aof_enabled", "0")], None).contains("append-only file"));
        assert!(refused(&[], Some("no")).contains("appendfsync"));
        assert!(refused(&[("redis_version", "4.0.14")], None).contains("too old"));
        assert!(refused(&[("redis_mode", "cluster")], None).contains("cluster"));
        assert!(refused(&[("redis_mode", "sentinel")], None).contains("sentinel"));
    }

    #[test]
    fn replicas_count_once_they_are_online() {
        let lacking = |replicas: &[(&str, &str)], durability| {
            fitness(&info(replicas), None, durability).expect("it is fit to write").lacking
        };
        let (syncing, online) = ("ip=10.0.0.2,port=6379,state=wait_bgsave", "ip=10.0.0.3,port=6379,state=online");
        let replicas = [("slave0", syncing), ("slave1", online), ("slave_repl_offset", "state=online")];
        assert_eq!(lacking(&replicas, Durability::Fsync), None);
        assert_eq!(lacking(&replicas, Durability::Replicas(1)), None);
        let text = lacking(&replicas, Durability::Replicas(2)).expect("one is still loading");
        assert!(text.contains('1') && text.contains('2'), "{text}");
        assert!(lacking(&[], Durability::Replicas(1)).is_some());
    }

    #[test]
    fn a_replica_is_a_passing_condition() {
        let error = fitness(&info(&[("role", "slave")]), None, Durability::Fsync).expect_err("it is a replica");
        assert!(error.is_retryable(), "{error}");
    }

    #[test]
    fn memory_is_enough_where_it_was_asked_for() {
        let facts = fitness(&info(&[("aof_enabled", "0")]), None, Durability::Memory);
        assert_eq!(facts.map(|facts| facts.guarantee), Ok(Guarantee::Memory));
    }

    #[test]
    fn valkey_is_called_by_its_name() {
        let changes = [("server_name", "valkey"), ("valkey_version", "8.1.1"), ("redis_version", "7.2.4")];
        let facts = fitness(&info(&changes), None, Durability::Fsync).expect("it is fit");
        assert_eq!((facts.server.as_str(), facts.guarantee), ("valkey 8.1.1", Guarantee::Waited));
    }
}
