//! A connection that is always being kept up: opened, watched, and opened again with growing pauses.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::connection::{Connection, State};
use crate::backoff::Backoff;
use crate::config::Amqp;

/// A handle on a connection that [`Link::keep_up`] maintains. Clones share it.
#[derive(Clone, Debug)]
pub struct Link {
    settings: Arc<Amqp>,
    name: Arc<str>,
    current: Arc<watch::Sender<Option<Arc<Connection>>>>,
    state: Arc<watch::Sender<State>>,
}

/// First and longest pause between attempts to connect.
const PAUSES: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(10));

/// After something that lapin cannot parse, the pause is short and does not grow: the broker gives such a message up
/// only after it was delivered a hundred times (the intake's delivery limit), and each connection is one delivery.
const PAUSE_AFTER_UNPARSABLE: Duration = Duration::from_millis(100);

/// How long a polite close may take.
const CLOSE: Duration = Duration::from_secs(2);

// === impl Link ===

impl Link {
    /// A link that is down until [`Link::keep_up`] runs. `name` is shown in RabbitMQ's management pages.
    #[must_use]
    pub fn new(settings: Arc<Amqp>, name: &str) -> Link {
        let down = State::Down { why: "not connected yet".into(), unparsable: false };
        Link {
            settings,
            name: name.into(),
            current: Arc::new(watch::Sender::new(None)),
            state: Arc::new(watch::Sender::new(down)),
        }
    }

    /// A link to one connection that is there already; nobody keeps it up.
    #[must_use]
    pub fn to(settings: Arc<Amqp>, connection: Arc<Connection>) -> Link {
        let link = Link::new(settings, "once");
        link.current.send_replace(Some(connection));
        link.state.send_replace(State::Up);
        link
    }

    /// The name it was given.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What the connection is able to do, as it changes; also across reconnects.
    #[must_use]
    pub fn state(&self) -> watch::Receiver<State> {
        self.state.subscribe()
    }

    /// The connection, as soon as there is one that takes something. Callers put a deadline around it.
    pub async fn connection(&self) -> Arc<Connection> {
        let (mut current, mut state) = (self.current.subscribe(), self.state.subscribe());
        loop {
            state.borrow_and_update();
            if let Some(connection) = current.borrow_and_update().clone().filter(|c| c.is_up()) {
                return connection;
            }
            // A new connection, or the end of a block. Both senders live in `self`, so neither wait can fail.
            let _ = tokio::select! {
                changed = current.changed() => changed,
                changed = state.changed() => changed,
            };
        }
    }

    /// Keeps the connection up until `stop`; then closes it.
    pub async fn keep_up(&self, stop: CancellationToken) {
        let mut backoff = Backoff::new(PAUSES.0, PAUSES.1);
        loop {
            let opened = tokio::select! {
                () = stop.cancelled() => return,
                opened = Connection::open(&self.settings, &self.name) => opened,
            };
            let pause = match opened {
                Err(e) => {
                    tracing::warn!(connection = %self.name, error = %e, "RabbitMQ is out of reach; trying again");
                    self.state.send_replace(State::Down { why: e.to_string(), unparsable: false });
                    backoff.next_wait()
                }
                Ok(connection) => {
                    let connection = Arc::new(connection);
                    let mut state = connection.state();
                    self.state.send_replace(State::Up);
                    self.current.send_replace(Some(connection.clone()));
                    tracing::info!(connection = %self.name, "connected to RabbitMQ");
                    let since = tokio::time::Instant::now();
                    let unparsable = tokio::select! {
                        () = stop.cancelled() => {
                            self.current.send_replace(None);
                            connection.close(CLOSE).await;
                            return;
                        }
                        unparsable = self.watch(&mut state) => unparsable,
                    };
                    self.current.send_replace(None);
                    connection.abort();
                    // A connection that held for a while was a good one: start over with short pauses.
                    if since.elapsed() > PAUSES.1 {
                        backoff.reset();
                    }
                    if unparsable { PAUSE_AFTER_UNPARSABLE } else { backoff.next_wait() }
                }
            };
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(pause) => {}
            }
        }
    }

    /// Passes states on until the connection is down; whether because of something that cannot be parsed.
    async fn watch(&self, state: &mut watch::Receiver<State>) -> bool {
        loop {
            let now = state.borrow_and_update().clone();
            match &now {
                State::Down { why, unparsable } => {
                    tracing::warn!(connection = %self.name, why = %why, "the connection to RabbitMQ was lost");
                    let unparsable = *unparsable;
                    self.state.send_replace(now);
                    return unparsable;
                }
                State::Blocked(reason) => {
                    tracing::warn!(connection = %self.name, reason = %reason,
                        "RabbitMQ has blocked publishing (memory or disk alarm); what is due waits");
                }
                State::Up => {}
            }
            self.state.send_replace(now);
            if state.changed().await.is_err() {
                let gone = State::Down { why: "the connection ended".into(), unparsable: false };
                self.state.send_replace(gone);
                return false;
            }
        }
    }
}
