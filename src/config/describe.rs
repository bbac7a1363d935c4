//! The settings in one text, for the log at start: everything that counts, nothing that is secret.

use std::fmt;

use super::model::{Durability, LogFormat, Settings, TopologyMode};
use super::url::redact;

impl fmt::Display for Settings {
    /// One `key=value` after the other, on one line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let urls: Vec<String> = self.amqp.urls.iter().map(|url| redact(url.expose())).collect();
        write!(
            f,
            "amqp.urls={} amqp.prefix={} amqp.prefetch={}",
            urls.join(","),
            self.amqp.prefix,
            self.amqp.prefetch
        )?;
        write!(f, " amqp.connect_timeout={}", self.amqp.connect_timeout)?;
        if let Some(management) = &self.management {
            write!(f, " management.url={}", redact(management.url.expose()))?;
        }
        if let Some(redis) = &self.redis {
            write!(f, " redis.url={} redis.key_prefix={}", redact(redis.url.expose()), redis.key_prefix)?;
            write!(
                f,
                " redis.durability={} redis.shards={} redis.timeout={}",
                redis.durability, redis.shards, redis.timeout
            )?;
        }
        write!(f, " delay.broker_limit={} delay.max_delay={}", self.delay.broker_limit, self.delay.max_delay)?;
        write!(f, " pump.batch={} pump.lease={}", self.pump.batch, self.pump.lease)?;
        let topology = match self.run.topology {
            TopologyMode::Declare => "declare",
            TopologyMode::Verify => "verify",
        };
        write!(f, " run.topology={topology}")?;
        write!(f, " run.stop_deadline={} run.confirm_timeout={}", self.run.stop_deadline, self.run.confirm_timeout)?;
        let format = match self.log.format {
            LogFormat::Text => "text",
            LogFormat::Json => "json",
        };
        write!(f, " log.level={} log.format={format}", self.log.level)?;
        let token = if self.http.token.is_some() { "set" } else { "none" };
        write!(f, " http.listen={} http.token={token}", self.http.listen)
    }
}

impl fmt::Display for Durability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Durability::Fsync => f.write_str("fsync"),
            Durability::Replicas(n) => write!(f, "replicas:{n}"),
            Durability::Memory => f.write_str("memory"),
        }
    }
}
