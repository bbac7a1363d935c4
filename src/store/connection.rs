//! One connection to Redis that is rebuilt whenever it is in doubt.
//!
//! redis-rs' own manager reconnects on a dropped connection only: after a failover it goes on talking to the replica,
//! and on a half-open socket it times out for ever. So it is done here, with one rule: whatever makes a connection
//! doubtful takes it out of its slot, and the next call makes another one, checked from the beginning. Calls that are
//! under way on the old one end on it.

use std::time::{Duration, Instant};

use redis::aio::MultiplexedConnection;
use redis::io::tcp::{TcpSettings, socket2::TcpKeepalive};
use redis::{AsyncConnectionConfig, Client, Cmd, IntoConnectionInfo, Pipeline, RedisResult, Value};
use tokio::sync::Mutex;

use super::error::{self, Error, Kind};
use super::health::{self, Facts};
use super::keys::Keys;
use super::script;
use crate::backoff::Backoff;
use crate::config;
use crate::duration::Millis;

/// A place for one connection. Several tasks may use it at once; they share the socket.
pub(super) struct Slot {
    client: Client,
    keys: Keys,
    durability: config::Durability,
    /// How long one command may take.
    timeout: Duration,
    /// What `CLIENT LIST` shows.
    name: String,
    state: Mutex<State>,
}

struct State {
    live: Option<Live>,
    used: Instant,
    /// Counts connections, so that a late failure of an old one does not take out the new one.
    count: u64,
    backoff: Backoff,
    /// Until then nobody tries again, and everybody hears this.
    refused: Option<(Instant, Error)>,
}

/// A connection that was checked, and what was found.
#[derive(Clone)]
pub(super) struct Live {
    connection: MultiplexedConnection,
    pub(super) facts: Facts,
    pub(super) number: u64,
}

/// Reconnect at once, then with these waits: a failover is found within 2 s of its end.
const FIRST_WAIT: Duration = Duration::from_millis(50);
const LONGEST_WAIT: Duration = Duration::from_secs(2);

/// A connection that was idle for so long is asked whether it is still there: firewalls drop idle ones without a word.
const IDLE: Duration = Duration::from_secs(5);

/// One second more for every so many bytes that a call moves.
const BYTES_PER_SECOND: usize = 4 << 20;

// === impl Slot ===

impl Slot {
    /// No I/O yet. Fails only where the settings are no usable address.
    pub(super) fn new(settings: &config::Redis, keys: Keys, name: &str) -> Result<Slot, Error> {
        let unusable = |error: &redis::RedisError| Error::sort("open", None, error);
        let timeout = settings.timeout.to_std();
        let keepalive = TcpKeepalive::new().with_time(Duration::from_secs(10)).with_interval(Duration::from_secs(5));
        // A peer that is gone without a word is noticed by the kernel, also while nobody waits for an answer.
        let tcp = TcpSettings::default()
            .set_nodelay(true)
            .set_keepalive(keepalive)
            .set_user_timeout(timeout.max(Duration::from_secs(5)));
        let info =
            settings.url.expose().into_connection_info().map_err(|error| unusable(&error))?.set_tcp_settings(tcp);
        let client = Client::open(info).map_err(|error| unusable(&error))?;
        let state = State {
            live: None,
            used: Instant::now(),
            count: 0,
            backoff: Backoff::new(FIRST_WAIT, LONGEST_WAIT),
            refused: None,
        };
        Ok(Slot {
            client,
            keys,
            durability: settings.durability,
            timeout,
            name: format!("{}:{name}", settings.key_prefix).replace(|c: char| !c.is_ascii_graphic(), "_"),
            state: Mutex::new(state),
        })
    }

    /// The connection, made and checked if there is none. While one caller connects the others wait for it.
    pub(super) async fn live(&self, verb: &'static str) -> Result<Live, Error> {
        let mut state = self.state.lock().await;
        if let Some(live) = state.live.clone() {
            let idle = state.used.elapsed() >= IDLE;
            state.used = Instant::now();
            if !idle || self.answers(&live).await {
                return Ok(live);
            }
            state.live = None;
        }
        if let Some((until, error)) = &state.refused
            && Instant::now() < *until
        {
            return Err(error.clone().of(verb, None));
        }
        state.count += 1;
        match self.connect(state.count).await {
            Ok(live) => {
                state.backoff.reset();
                state.refused = None;
                state.used = Instant::now();
                state.live = Some(live.clone());
                Ok(live)
            }
            Err(error) => {
                let wait = state.backoff.next_wait();
                state.refused = Some((Instant::now() + wait, error.clone()));
                tracing::debug!(connection = %self.name, error = %error, wait = ?wait, "Redis was not reached.");
                Err(error.of(verb, None))
            }
        }
    }

    /// Takes a doubtful connection out of the slot.
    pub(super) async fn discard(&self, number: u64) {
        let mut state = self.state.lock().await;
        if state.live.as_ref().is_some_and(|live| live.number == number) {
            state.live = None;
        }
    }

    /// One command; see [`Slot::all`].
    pub(super) async fn one(&self, verb: &'static str, key: &str, command: Cmd) -> Result<Value, Error> {
        let mut pipe = redis::pipe();
        pipe.add_command(command);
        let answers = self.all(verb, Some(key), &pipe, 0).await?;
        let answer = answers.into_iter().next().ok_or_else(|| Error::answer(verb, Some(key)))?;
        answer.map_err(|error| Error::sort(verb, Some(key), &error))
    }

    /// Commands in one round trip, each with its own outcome. `bytes`: what is expected to be moved, for the deadline.
    ///
    /// They are sent once more when the connection broke and nobody knows whether they ran: for a read that is
    /// harmless, for a script a second run changes nothing, or nothing that a lapse does not mend.
    pub(super) async fn all(
        &self,
        verb: &'static str,
        key: Option<&str>,
        pipe: &Pipeline,
        bytes: usize,
    ) -> Result<Vec<RedisResult<Value>>, Error> {
        let live = self.live(verb).await?;
        let commands: Vec<&Cmd> = pipe.cmd_iter().collect();
        let first = self.run(&live, &commands, &[], self.deadline(bytes)).await;
        let outcome = match first {
            Err(error) if matches!(error.kind(), Kind::Unreachable(_)) => {
                let live = self.live(verb).await?;
                self.run(&live, &commands, &[], self.deadline(bytes)).await
            }
            other => other,
        };
        outcome.map(|(answers, _)| answers).map_err(|error| error.of(verb, key))
    }

    /// Commands and, after them, `tail` on this very connection in one round trip: what the tail waits for includes
    /// what the commands wrote. Where the server has lost our scripts they are loaded and those calls are made once
    /// more, again with the tail. Anything that makes the connection doubtful takes it out of the slot.
    pub(super) async fn run(
        &self,
        live: &Live,
        commands: &[&Cmd],
        tail: &[Cmd],
        deadline: Duration,
    ) -> Result<(Vec<RedisResult<Value>>, Vec<RedisResult<Value>>), Error> {
        let (mut answers, mut tail_answers) =
            self.send(live, commands.iter().map(|command| (*command).clone()), tail, deadline).await?;
        let unknown: Vec<usize> = answers
            .iter()
            .enumerate()
            .filter(|(_, answer)| answer.as_ref().is_err_and(error::is_unknown_script))
            .map(|(index, _)| index)
            .collect();
        if !unknown.is_empty() {
            tracing::debug!(connection = %self.name, "Redis had lost our scripts; they are loaded again.");
            self.send(live, script::load_all(), &[], deadline).await?;
            let calls = unknown.iter().map(|index| commands[*index].clone());
            let (second, second_tail) = self.send(live, calls, tail, deadline).await?;
            for (index, answer) in unknown.into_iter().zip(second) {
                answers[index] = answer;
            }
            tail_answers = second_tail;
        }
        let doubtful = answers
            .iter()
            .chain(&tail_answers)
            .filter_map(|answer| answer.as_ref().err())
            .any(|error| Error::sort("", None, error).spoils_connection());
        if doubtful {
            self.discard(live.number).await;
        }
        Ok((answers, tail_answers))
    }

    /// How long a call may take that moves so many bytes.
    pub(super) fn deadline(&self, bytes: usize) -> Duration {
        self.timeout + Duration::from_secs((bytes / BYTES_PER_SECOND) as u64)
    }

    /// What the server is now, asked anew. A server that is no longer fit loses the connection.
    pub(super) async fn examine(&self, live: &Live) -> Result<Facts, Error> {
        let examined = self.ask(live).await;
        if examined.is_err() {
            self.discard(live.number).await;
        }
        examined
    }

    /// Mutex held: only for the beginning of a connection and for one that was idle.
    async fn answers(&self, live: &Live) -> bool {
        let mut connection = live.connection.clone();
        let ping = async move { redis::cmd("PING").query_async::<Value>(&mut connection).await };
        matches!(tokio::time::timeout(self.timeout, ping).await, Ok(Ok(_)))
    }

    async fn connect(&self, number: u64) -> Result<Live, Error> {
        // redis-rs' own limit for answers is off: each call here has its own.
        let config = AsyncConnectionConfig::new().set_connection_timeout(Some(self.timeout)).set_response_timeout(None);
        let connecting = self.client.get_multiplexed_async_connection_with_config(&config);
        // The driver's limit does not cover the handshake after the socket is there.
        let connection = tokio::time::timeout(self.timeout * 2, connecting)
            .await
            .map_err(|_| Error::new("connect", None, Kind::Timeout(millis(self.timeout))))?
            .map_err(|error| Error::sort("connect", None, &error))?;
        let facts = Facts {
            server: String::new(),
            guarantee: health::Guarantee::Memory,
            policy: String::new(),
            full: false,
            lacking: None,
        };
        let mut live = Live { connection, facts, number };
        live.facts = self.ask(&live).await?;

        let mut name = redis::cmd("CLIENT");
        name.arg("SETNAME").arg(&self.name);
        // The name is for people; a user who may not set it loses nothing.
        let _ = self.exchange(&live, std::iter::once(name), self.timeout).await?;
        for answer in self.exchange(&live, script::load_all(), self.timeout).await? {
            answer.map_err(|error| Error::sort("SCRIPT LOAD", None, &error))?;
        }
        Ok(live)
    }

    /// Is the server fit, and does the prefix agree with our settings? Marks it at its first use.
    async fn ask(&self, live: &Live) -> Result<Facts, Error> {
        let questions = health::questions(&self.keys);
        let answers = self.exchange(live, questions.cmd_iter().cloned(), self.timeout).await?;
        let (facts, unmarked) = health::judge(answers, self.durability, &self.keys)?;
        if !unmarked {
            return Ok(facts);
        }
        let key = self.keys.meta();
        for answer in self.exchange(live, health::marks(&self.keys).cmd_iter().cloned(), self.timeout).await? {
            answer.map_err(|error| Error::sort("HSETNX", Some(&key), &error))?;
        }
        // Another daemon with other settings may have been first.
        let answers = self.exchange(live, questions.cmd_iter().cloned(), self.timeout).await?;
        health::judge(answers, self.durability, &self.keys).map(|(facts, _)| facts)
    }

    async fn send(
        &self,
        live: &Live,
        commands: impl Iterator<Item = Cmd>,
        tail: &[Cmd],
        deadline: Duration,
    ) -> Result<(Vec<RedisResult<Value>>, Vec<RedisResult<Value>>), Error> {
        match self.exchange(live, commands.chain(tail.iter().cloned()), deadline).await {
            Ok(mut answers) => {
                let tail = answers.split_off(answers.len().saturating_sub(tail.len()));
                Ok((answers, tail))
            }
            Err(error) => {
                self.discard(live.number).await;
                Err(error)
            }
        }
    }

    /// One round trip.
    async fn exchange(
        &self,
        live: &Live,
        commands: impl Iterator<Item = Cmd>,
        deadline: Duration,
    ) -> Result<Vec<RedisResult<Value>>, Error> {
        let mut pipe = redis::pipe();
        pipe.ignore_errors();
        for command in commands {
            pipe.add_command(command);
        }
        let count = pipe.len();
        if count == 0 {
            return Ok(Vec::new());
        }
        let mut connection = live.connection.clone();
        let answers: Vec<RedisResult<Value>> = tokio::time::timeout(deadline, pipe.query_async(&mut connection))
            .await
            .map_err(|_| Error::new("call", None, Kind::Timeout(millis(deadline))))?
            .map_err(|error| Error::sort("call", None, &error))?;
        if answers.len() == count { Ok(answers) } else { Err(Error::answer("call", None)) }
    }
}

// === helpers ===

pub(super) fn millis(duration: Duration) -> Millis {
    Millis(u64::try_from(duration.as_millis()).unwrap_or(u64::MAX))
}
