//! The valid settings: what the rest of dwell may rely on once file, environment and flags were read.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;

use percent_encoding::percent_decode_str;
use url::Url;

use crate::duration::Millis;

/// All settings, with defaults filled in.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// How to reach RabbitMQ.
    pub amqp: Amqp,
    /// `None`: no `[management]` section.
    pub management: Option<Management>,
    /// `None`: no `[redis]` section; dwell then runs without a store.
    pub redis: Option<Redis>,
    /// Limits of delays.
    pub delay: Delay,
    /// The loop that releases what is due.
    pub pump: Pump,
    /// How the daemon behaves.
    pub run: Run,
    /// What is logged, and how.
    pub log: Log,
    /// The HTTP face.
    pub http: Http,
}

/// How to reach RabbitMQ.
#[derive(Clone, Debug, PartialEq)]
pub struct Amqp {
    /// Tried in turn; never empty. `amqp://` or `amqps://`, all with the same vhost, the user name and password of
    /// the separate keys filled in.
    pub urls: Vec<Secret>,
    /// Begins all vhost-wide names: two teams on one vhost.
    pub prefix: String,
    /// Unacknowledged messages per bridge at most, 1 to 65535.
    pub prefetch: u16,
    /// How long a connection may take to be ready.
    pub connect_timeout: Millis,
    /// Files for TLS.
    pub tls: Tls,
}

/// Files for TLS; all optional.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Tls {
    /// Certificates of authorities to trust besides the usual ones, PEM.
    pub ca_file: Option<PathBuf>,
    /// Our own certificate, PEM; only together with its key.
    pub cert_file: Option<PathBuf>,
    /// The key of our own certificate, PEM.
    pub key_file: Option<PathBuf>,
}

/// How to reach RabbitMQ's management API.
#[derive(Clone, Debug, PartialEq)]
pub struct Management {
    /// `http://` or `https://`, with user name and password.
    pub url: Secret,
}

/// How to reach Redis.
#[derive(Clone, Debug, PartialEq)]
pub struct Redis {
    /// `redis://`, `rediss://` or `unix://`.
    pub url: Secret,
    /// Begins every key; no braces (they would change Cluster slots).
    pub key_prefix: String,
    /// What an acknowledged park has survived.
    pub durability: Durability,
    /// Into how many parts each bridge's records are divided, 1 to 256. Written in Redis at first use; another
    /// number later is refused.
    pub shards: u16,
    /// How long one command may take.
    pub timeout: Millis,
}

/// What an acknowledged park has survived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// On the disk of the Redis server: `WAITAOF` where it exists (7.2+), else its append-only file is required.
    Fsync,
    /// In that many replicas, by `WAIT`, besides what `Fsync` asks.
    Replicas(u16),
    /// In memory only.
    Memory,
}

/// Limits of delays where the bridge sets none of its own.
#[derive(Clone, Debug, PartialEq)]
pub struct Delay {
    /// The longest delay that may wait in the broker.
    pub broker_limit: Millis,
    /// The longest delay at all.
    pub max_delay: Millis,
}

/// The loop that releases what is due.
#[derive(Clone, Debug, PartialEq)]
pub struct Pump {
    /// Messages in one claim at most, 1 to 1000.
    pub batch: u16,
    /// How long a claim lasts unless it is renewed.
    pub lease: Millis,
}

/// What the daemon does about the topology in RabbitMQ.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TopologyMode {
    /// Creates what is missing and binds it, at the start and after every reconnect.
    #[default]
    Declare,
    /// Only looks whether it is there: for a user without the right to configure.
    Verify,
}

/// How the daemon behaves.
#[derive(Clone, Debug, PartialEq)]
pub struct Run {
    /// Whether it declares the topology or only verifies it.
    pub topology: TopologyMode,
    /// How long a graceful stop may take.
    pub stop_deadline: Millis,
    /// How long one publish may wait for its confirm.
    pub confirm_timeout: Millis,
}

/// What is logged, and how.
#[derive(Clone, Debug, PartialEq)]
pub struct Log {
    /// `error`, `warn`, `info`, `debug` or `trace`, or a filter in tracing's syntax.
    pub level: String,
    /// The form of log lines.
    pub format: LogFormat,
}

/// The form of log lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    /// For people.
    Text,
    /// For programs: one object a line.
    Json,
}

/// The HTTP face.
#[derive(Clone, Debug, PartialEq)]
pub struct Http {
    /// Where it listens.
    pub listen: SocketAddr,
    /// Needed by `/api` and `/` on any address that is not loopback.
    pub token: Option<Secret>,
}

/// A value that is never printed: passwords, tokens, addresses that hold them.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

// === impl Amqp ===

impl Amqp {
    /// The one vhost that all addresses name.
    #[must_use]
    pub fn vhost(&self) -> String {
        let path = self.urls.first().and_then(|url| Url::parse(url.expose()).ok()).map(|url| url.path().to_owned());
        match path.as_deref() {
            None | Some("") => "/".to_owned(),
            Some(path) => percent_decode_str(&path[1..]).decode_utf8_lossy().into_owned(),
        }
    }
}

// === impl Secret ===

impl Secret {
    /// Wraps a value that must not be printed.
    #[must_use]
    pub fn new(value: impl Into<String>) -> Secret {
        Secret(value.into())
    }

    /// The value itself, for the one place that needs it.
    #[must_use]
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}
