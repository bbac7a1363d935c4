//! RabbitMQ's management API: the only room that speaks it.
//!
//! AMQP itself cannot list anything. Where an address is configured, what exists in the vhost is read here, with
//! arguments, bindings, policies and counts; where none is, `plan` knows only whether an object exists.

use std::time::Duration;

use base64::prelude::{BASE64_STANDARD, Engine};
use serde::Deserialize;
use serde_json::Value;
use url::Url;

use crate::config;

/// The API of one broker, for one vhost.
#[derive(Clone)]
pub struct Management {
    agent: ureq::Agent,
    /// Without credentials and trailing slash.
    base: String,
    authorization: String,
    vhost: String,
}

/// The API did not answer as expected.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No answer.
    #[error("the management API at {base} does not answer: {why}")]
    Unreachable {
        /// The address, without credentials.
        base: String,
        /// The cause.
        why: String,
    },
    /// It answered with an error.
    #[error("the management API refuses {what}: HTTP {status}")]
    Refused {
        /// Method and path.
        what: String,
        /// HTTP status.
        status: u16,
    },
    /// Its answer cannot be read.
    #[error("the management API's answer to {what} cannot be read: {why}")]
    Unreadable {
        /// Method and path.
        what: String,
        /// The cause.
        why: String,
    },
}

/// An exchange as the API tells it.
#[derive(Clone, Debug, Deserialize)]
pub struct ExchangeInfo {
    /// Its name; empty for the default exchange.
    pub name: String,
    /// Its type.
    #[serde(rename = "type")]
    pub kind: String,
    /// Survives a restart.
    pub durable: bool,
    /// Goes with its last binding.
    pub auto_delete: bool,
    /// Clients may not publish to it.
    pub internal: bool,
    /// Its arguments.
    #[serde(default)]
    pub arguments: serde_json::Map<String, Value>,
    /// The policy that applies to it.
    #[serde(default)]
    pub policy: Option<String>,
}

/// A queue as the API tells it.
#[derive(Clone, Debug, Deserialize)]
pub struct QueueInfo {
    /// Its name.
    pub name: String,
    /// Survives a restart.
    pub durable: bool,
    /// Goes with its last consumer.
    pub auto_delete: bool,
    /// One connection's own.
    #[serde(default)]
    pub exclusive: bool,
    /// `classic`, `quorum` or `stream`.
    #[serde(default, rename = "type")]
    pub kind: Option<String>,
    /// Its arguments; the type is among them unless the vhost's default decided.
    #[serde(default)]
    pub arguments: serde_json::Map<String, Value>,
    /// What policies make of it: the effective values.
    #[serde(default)]
    pub effective_policy_definition: Value,
    /// Ready and unacknowledged; absent right after the broker has started.
    #[serde(default)]
    pub messages: Option<u64>,
    /// Dead letters under way, not confirmed by their targets (quorum queues).
    #[serde(default)]
    pub messages_dlx: Option<u64>,
    /// The policy that applies to it.
    #[serde(default)]
    pub policy: Option<String>,
    /// The operator policy that applies to it.
    #[serde(default)]
    pub operator_policy: Option<String>,
    /// `running`, `down`, `minority` and the like.
    #[serde(default)]
    pub state: Option<String>,
    /// The nodes of a quorum queue.
    #[serde(default)]
    pub members: Option<Vec<String>>,
}

/// A binding as the API tells it.
#[derive(Clone, Debug, Deserialize)]
pub struct BindingInfo {
    /// The exchange it leads from; empty for the default exchange.
    pub source: String,
    /// Where it leads.
    pub destination: String,
    /// `queue` or `exchange`.
    pub destination_type: String,
    /// Its key.
    pub routing_key: String,
    /// Its arguments.
    #[serde(default)]
    pub arguments: serde_json::Map<String, Value>,
}

/// A policy, or an operator policy, as the API tells it and takes it.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct PolicyInfo {
    /// Its name.
    pub name: String,
    /// A regular expression on names.
    pub pattern: String,
    /// `queues`, `exchanges`, `all`, or a type of queue.
    #[serde(rename = "apply-to")]
    pub apply_to: String,
    /// Of all that match, the highest wins.
    #[serde(default)]
    pub priority: i64,
    /// What it sets.
    pub definition: serde_json::Map<String, Value>,
}

/// What a user may do in a vhost, each a regular expression on names.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct PermissionInfo {
    /// The user.
    pub user: String,
    /// Declare and delete.
    pub configure: String,
    /// Publish, and bind to.
    pub write: String,
    /// Consume, and bind from.
    pub read: String,
}

/// What the whole broker says of itself.
#[derive(Clone, Debug, Deserialize)]
pub struct Overview {
    /// Such as `4.3.6`.
    pub rabbitmq_version: String,
    /// The broker's clock when it answered, in epoch milliseconds, to a second (the `Date` of its answer).
    #[serde(skip)]
    pub clock_ms: Option<i64>,
}

/// A node of the broker, as the API tells it.
#[derive(Clone, Debug, Deserialize)]
pub struct NodeInfo {
    /// Its name.
    pub name: String,
}

/// How long one request may take.
const TIMEOUT: Duration = Duration::from_secs(10);

// === impl Management ===

impl Management {
    /// For that address, and the vhost of the AMQP address. No I/O.
    #[must_use]
    pub fn new(settings: &config::Management, vhost: &str) -> Management {
        // Settings are validated: the url can be read, and has no trailing slash.
        let url = Url::parse(settings.url.expose()).ok();
        let decode = |s: &str| percent_encoding::percent_decode_str(s).decode_utf8_lossy().into_owned();
        let (user, password) = url
            .as_ref()
            .map_or_else(Default::default, |u| (decode(u.username()), decode(u.password().unwrap_or_default())));
        let base = url
            .map(|mut u| {
                let _ = u.set_username("");
                let _ = u.set_password(None);
                u.as_str().trim_end_matches('/').to_owned()
            })
            .unwrap_or_default();
        let agent = ureq::Agent::config_builder()
            .timeout_global(Some(TIMEOUT))
            .http_status_as_error(false)
            .user_agent("dwell")
            .build()
            .new_agent();
        Management { agent, base, authorization: basic(&user, &password), vhost: encode(vhost) }
    }

    /// All exchanges of the vhost.
    pub async fn exchanges(&self) -> Result<Vec<ExchangeInfo>, Error> {
        self.get(format!("/api/exchanges/{}", self.vhost)).await
    }

    /// All queues of the vhost.
    pub async fn queues(&self) -> Result<Vec<QueueInfo>, Error> {
        self.get(format!("/api/queues/{}", self.vhost)).await
    }

    /// One queue; `None` where there is none of that name.
    pub async fn queue(&self, name: &str) -> Result<Option<QueueInfo>, Error> {
        match self.get(format!("/api/queues/{}/{}", self.vhost, encode(name))).await {
            Ok(queue) => Ok(Some(queue)),
            Err(Error::Refused { status: 404, .. }) => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// All bindings of the vhost.
    pub async fn bindings(&self) -> Result<Vec<BindingInfo>, Error> {
        self.get(format!("/api/bindings/{}", self.vhost)).await
    }

    /// The broker's version and clock.
    pub async fn overview(&self) -> Result<Overview, Error> {
        let this = self.clone();
        off_the_runtime(move || {
            let (mut overview, date) = this.get_dated::<Overview>("/api/overview", "GET /api/overview")?;
            overview.clock_ms =
                date.and_then(|date| jiff::fmt::rfc2822::parse(&date).ok().map(|at| at.timestamp().as_millisecond()));
            Ok(overview)
        })
        .await
    }

    /// The nodes of the broker; needs the tag `monitoring`.
    pub async fn nodes(&self) -> Result<Vec<NodeInfo>, Error> {
        self.get("/api/nodes".to_owned()).await
    }

    /// The policies of the vhost.
    pub async fn policies(&self) -> Result<Vec<PolicyInfo>, Error> {
        self.get(format!("/api/policies/{}", self.vhost)).await
    }

    /// The operator policies of the vhost.
    pub async fn operator_policies(&self) -> Result<Vec<PolicyInfo>, Error> {
        self.get(format!("/api/operator-policies/{}", self.vhost)).await
    }

    /// Sets a policy of the vhost: a new one, or in place of one of that name.
    pub async fn set_policy(&self, policy: &PolicyInfo) -> Result<(), Error> {
        let path = format!("/api/policies/{}/{}", self.vhost, encode(&policy.name));
        let body = serde_json::json!({
            "pattern": policy.pattern,
            "apply-to": policy.apply_to,
            "priority": policy.priority,
            "definition": policy.definition,
        });
        let this = self.clone();
        off_the_runtime(move || {
            let what = format!("PUT {path}");
            let url = format!("{}{path}", this.base);
            let answer = this
                .agent
                .put(&url)
                .header("authorization", &this.authorization)
                .send_json(body)
                .map_err(|e| Error::Unreachable { base: this.base.clone(), why: e.to_string() })?;
            match answer.status().as_u16() {
                200..300 => Ok(()),
                status => Err(Error::Refused { what, status }),
            }
        })
        .await
    }

    /// What a user may do in the vhost; `None`: nothing at all.
    pub async fn permissions(&self, user: &str) -> Result<Option<PermissionInfo>, Error> {
        match self.get(format!("/api/permissions/{}/{}", self.vhost, encode(user))).await {
            Ok(permissions) => Ok(Some(permissions)),
            Err(Error::Refused { status: 404, .. }) => Ok(None),
            Err(e) => Err(e),
        }
    }

    async fn get<T: serde::de::DeserializeOwned + Send + 'static>(&self, path: String) -> Result<T, Error> {
        let this = self.clone();
        let what = format!("GET {path}");
        off_the_runtime(move || this.get_dated(&path, &what).map(|(answer, _)| answer)).await
    }

    /// The answer, and when the broker gave it.
    fn get_dated<T: serde::de::DeserializeOwned>(&self, path: &str, what: &str) -> Result<(T, Option<String>), Error> {
        let url = format!("{}{path}", self.base);
        let mut answer = self
            .agent
            .get(&url)
            .header("authorization", &self.authorization)
            .call()
            .map_err(|e| Error::Unreachable { base: self.base.clone(), why: e.to_string() })?;
        let status = answer.status().as_u16();
        if status != 200 {
            return Err(Error::Refused { what: what.to_owned(), status });
        }
        let date = answer.headers().get("date").and_then(|date| date.to_str().ok()).map(ToOwned::to_owned);
        // A vhost with 100,000 queues answers with some hundred MB; nothing smaller is a limit worth having.
        answer
            .body_mut()
            .with_config()
            .limit(1 << 30)
            .read_json()
            .map(|answer| (answer, date))
            .map_err(|e| Error::Unreadable { what: what.to_owned(), why: e.to_string() })
    }
}

impl std::fmt::Debug for Management {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Management").field("base", &self.base).field("vhost", &self.vhost).finish_non_exhaustive()
    }
}

/// The client is a blocking one: simple, and kept off the daemon's threads.
async fn off_the_runtime<T: Send + 'static>(
    ask: impl FnOnce() -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    let asked = tokio::task::spawn_blocking(ask).await;
    asked.unwrap_or_else(|e| Err(Error::Unreadable { what: "a request".into(), why: e.to_string() }))
}

/// A name as one part of a path.
fn encode(name: &str) -> String {
    percent_encoding::utf8_percent_encode(name, percent_encoding::NON_ALPHANUMERIC).to_string()
}

/// The value of an `Authorization` header.
fn basic(user: &str, password: &str) -> String {
    format!("Basic {}", BASE64_STANDARD.encode(format!("{user}:{password}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_one_part_of_a_path() {
        assert_eq!(encode("/"), "%2F");
        assert_eq!(encode("a b/ü"), "a%20b%2F%C3%BC");
    }

    #[test]
    fn the_address_is_shown_without_its_credentials() {
        let settings = config::Management { url: config::Secret::new("http://u:p%40ss@127.0.0.1:15672") };
        let management = Management::new(&settings, "/");
        assert_eq!(management.base, "http://127.0.0.1:15672");
        assert!(!format!("{management:?}").contains("p%40ss"));
    }
}
