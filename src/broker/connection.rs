//! One connection to RabbitMQ: opened under a deadline, watched, and able to die at once.
//!
//! dwell dials the socket itself and hands it to lapin, for three reasons: half-open peers must be noticed
//! (keepalive, `TCP_USER_TIMEOUT`; case B116), each way to fail to connect gets its own words (case B125), and a
//! blocked connection must be droppable together with the frames that lapin has buffered: on the blocked connection
//! itself nothing can be written any more, not even a close, and what was buffered would be published whenever the
//! alarm ends, long after the claim on it has lapsed.

use std::net::Shutdown;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_compat::Compat;
use futures_util::StreamExt;
use lapin::options::BasicQosOptions;
use lapin::protocol::{AMQPErrorKind, AMQPHardError};
use lapin::tcp::{AsyncTcpStream, OwnedIdentity, OwnedTLSConfig};
use lapin::uri::{AMQPScheme, AMQPUri};
use lapin::{ConnectionProperties, ErrorKind, Event};
use tokio::sync::watch;
use tokio::time::timeout;

use super::error::Error;
use crate::config::Amqp;

/// What a connection is able to do now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// All is well.
    Up,
    /// The broker reads nothing from us (memory or disk alarm); its reason.
    Blocked(String),
    /// It is gone; the cause.
    Down {
        /// For people.
        why: String,
        /// Something came in that lapin cannot parse.
        unparsable: bool,
    },
}

/// An open connection. Dropping it closes the socket.
#[derive(Debug)]
pub struct Connection {
    inner: lapin::Connection,
    /// A second handle on the same socket, for [`Connection::abort`].
    socket: std::net::TcpStream,
    state: watch::Receiver<State>,
    user: String,
}

/// How often the state is compared with lapin's own, in case an event was missed.
const STATE_CHECK: Duration = Duration::from_secs(1);

/// A deadline for small requests (open a channel, set a prefetch) that a healthy broker answers in milliseconds.
pub(super) const REQUEST_DEADLINE: Duration = Duration::from_secs(20);

// === impl Connection ===

impl Connection {
    /// Opens a connection to the first address that answers.
    ///
    /// `name` is shown in RabbitMQ's management pages.
    ///
    /// # Errors
    /// [`Error::Unreachable`] of the last address where none answers.
    pub async fn open(settings: &Amqp, name: &str) -> Result<Connection, Error> {
        let mut last = None;
        for url in &settings.urls {
            match Self::open_one(settings, url.expose(), name).await {
                Ok(connection) => return Ok(connection),
                Err(e) => {
                    tracing::debug!(error = %e, "this address does not answer");
                    last = Some(e);
                }
            }
        }
        Err(last.unwrap_or(Error::Unreachable { address: "nowhere".into(), why: "no address is configured".into() }))
    }

    async fn open_one(settings: &Amqp, url: &str, name: &str) -> Result<Connection, Error> {
        // The parser's own error may quote the password; settings were validated, so this is a defect if it shows.
        let uri: AMQPUri = url
            .parse()
            .map_err(|_| Error::Unreachable { address: "amqp url".into(), why: "the url cannot be read".into() })?;
        let address = format!("{}:{}", uri.authority.host, uri.authority.port);
        let unreachable = |why: String| Error::Unreachable { address: address.clone(), why };
        let deadline = settings.connect_timeout.to_std();

        let socket = timeout(deadline, dial(&uri))
            .await
            .map_err(|_| unreachable(format!("no TCP connection within {} ms", deadline.as_millis())))?
            .map_err(|e| unreachable(format!("no TCP connection: {e}")))?;
        let second = socket.try_clone().map_err(|e| unreachable(e.to_string()))?;
        let tls = tls_config(settings).map_err(&unreachable)?;
        let user = uri.authority.userinfo.username.clone();
        let vhost = uri.vhost.clone();

        let handshake = async {
            let stream = tokio::net::TcpStream::from_std(socket).map_err(|e| e.to_string())?;
            let mut stream = AsyncTcpStream::Plain(Compat::new(stream));
            if uri.scheme == AMQPScheme::AMQPS {
                stream = stream
                    .into_tls(&uri.authority.host, tls.as_ref())
                    .await
                    .map_err(|e| format!("TLS: {e}; check amqp.tls.ca_file and the host name in the url"))?;
            }
            // lapin asks for a stream when its loop starts; it gets this one once, and an error if it asked again
            // (it does not: reconnecting is ours).
            let once = Arc::new(Mutex::new(Some(stream)));
            let properties = ConnectionProperties::default().with_connection_name(name.to_owned().into());
            let runtime = lapin::runtime::default_runtime().map_err(|e| e.to_string())?;
            lapin::Connection::connector(
                uri.clone(),
                runtime,
                async move |_, _| {
                    let stream = once.lock().ok().and_then(|mut slot| slot.take());
                    stream.ok_or_else(|| {
                        lapin::Error::from(ErrorKind::IOError(Arc::new(std::io::ErrorKind::NotConnected.into())))
                    })
                },
                properties,
            )
            .await
            .map_err(|e| login_problem(&e, &vhost))
        };
        let Ok(result) = timeout(deadline, handshake).await else {
            // The handshake's thread still holds the socket; without this it would wait for ever.
            let _ = second.shutdown(Shutdown::Both);
            return Err(unreachable(format!(
                "handshake timeout: it took the connection but sent no AMQP answer within {} ms",
                deadline.as_millis()
            )));
        };
        let inner = result.map_err(&unreachable)?;
        let state = watch_state(&inner);
        Ok(Connection { inner, socket: second, state, user })
    }

    /// What the connection is able to do, as it changes.
    #[must_use]
    pub fn state(&self) -> watch::Receiver<State> {
        self.state.clone()
    }

    /// Whether it died over something that lapin cannot parse. What was asked of it at that moment failed for other
    /// reasons ("closed"); the true one follows within moments.
    pub async fn died_unparsable(&self) -> bool {
        let mut state = self.state();
        let down = state.wait_for(|s| matches!(s, State::Down { .. }));
        let _ = timeout(Duration::from_millis(500), down).await;
        matches!(&*self.state.borrow(), State::Down { unparsable: true, .. })
    }

    /// Whether it can be used now.
    #[must_use]
    pub fn is_up(&self) -> bool {
        *self.state.borrow() == State::Up && self.inner.status().connected()
    }

    /// The user that the broker knows us by.
    #[must_use]
    pub fn user(&self) -> &str {
        &self.user
    }

    /// The largest frame, in bytes. Properties and headers of one message must fit one frame.
    #[must_use]
    pub fn frame_max(&self) -> u32 {
        match self.inner.configuration().frame_max() {
            // 0 is AMQP's "no limit"; RabbitMQ's own default is then the safe assumption.
            0 => 131_072,
            n => n,
        }
    }

    /// Awaits one answer of the broker: not for ever, and no longer than the connection lives. (What is asked of a
    /// connection in the moment it dies is not always answered by lapin.)
    pub(super) async fn ask<T>(&self, what: &str, request: impl Future<Output = lapin::Result<T>>) -> Result<T, Error> {
        let mut state = self.state();
        tokio::select! {
            biased;
            answer = under_deadline(what, request) => answer,
            _ = state.wait_for(|s| matches!(s, State::Down { .. })) => {
                Err(match &*self.state.borrow() {
                    State::Down { unparsable: true, .. } => Error::Unparsable { what: what.to_owned() },
                    State::Down { why, .. } => Error::Lost { what: what.to_owned(), why: why.clone() },
                    _ => Error::Lost { what: what.to_owned(), why: "the connection ended".into() },
                })
            }
        }
    }

    /// A fresh channel.
    pub(super) async fn channel(&self) -> Result<lapin::Channel, Error> {
        self.ask("opening a channel", self.inner.create_channel()).await
    }

    /// A fresh channel with a prefetch.
    pub(super) async fn channel_with_prefetch(&self, prefetch: u16) -> Result<lapin::Channel, Error> {
        let channel = self.channel().await?;
        self.ask("setting the prefetch", channel.basic_qos(prefetch, BasicQosOptions::default())).await?;
        Ok(channel)
    }

    /// Cuts the socket: whatever lapin has buffered dies unsent. The only way out of a blocked connection.
    pub fn abort(&self) {
        let _ = self.socket.shutdown(Shutdown::Both);
    }

    /// Closes politely, or cuts the socket where that does not work within the deadline.
    pub async fn close(&self, deadline: Duration) {
        let polite = self.inner.close(200, "bye".into());
        if !matches!(timeout(deadline, polite).await, Ok(Ok(()))) {
            self.abort();
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.abort();
    }
}

/// Awaits one answer of the broker, but not for ever.
pub(super) async fn under_deadline<T>(what: &str, request: impl Future<Output = lapin::Result<T>>) -> Result<T, Error> {
    match timeout(REQUEST_DEADLINE, request).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(e)) => Err(Error::from_lapin(&e, what)),
        Err(_) => Err(Error::Timeout {
            what: what.to_owned(),
            ms: u64::try_from(REQUEST_DEADLINE.as_millis()).unwrap_or(u64::MAX),
        }),
    }
}

async fn dial(uri: &AMQPUri) -> std::io::Result<std::net::TcpStream> {
    // An IPv6 host stands in brackets in a url, and without them in a resolver call.
    let host = uri.authority.host.trim_start_matches('[').trim_end_matches(']');
    let stream = tokio::net::TcpStream::connect((host, uri.authority.port)).await?;
    stream.set_nodelay(true)?;
    let options = socket2::SockRef::from(&stream);
    options.set_tcp_keepalive(
        &socket2::TcpKeepalive::new().with_time(Duration::from_secs(30)).with_interval(Duration::from_secs(10)),
    )?;
    #[cfg(target_os = "linux")]
    options.set_tcp_user_timeout(Some(Duration::from_secs(60)))?;
    stream.into_std()
}

fn tls_config(settings: &Amqp) -> Result<OwnedTLSConfig, String> {
    let read = |path: &std::path::Path| std::fs::read(path).map_err(|e| format!("{}: {e}", path.display()));
    let tls = &settings.tls;
    let cert_chain = match &tls.ca_file {
        None => None,
        Some(path) => Some(
            String::from_utf8(read(path)?)
                .map_err(|_| format!("{}: amqp.tls.ca_file is no PEM text", path.display()))?,
        ),
    };
    let identity = match (&tls.cert_file, &tls.key_file) {
        (Some(cert), Some(key)) => Some(OwnedIdentity::PKCS8 { pem: read(cert)?, key: read(key)? }),
        _ => None,
    };
    Ok(OwnedTLSConfig { identity, cert_chain })
}

/// A failed handshake in words of its own: wrong vhost, wrong password, something that does not speak AMQP.
fn login_problem(error: &lapin::Error, vhost: &str) -> String {
    let text = error.to_string();
    if text.contains("NOT_ALLOWED") || text.contains("not found") {
        format!("vhost '{vhost}' not found, or not allowed for this user: {text}")
    } else if text.contains("ACCESS_REFUSED") || text.contains("ACCESS-REFUSED") {
        format!("login refused: check user and password ({text})")
    } else {
        text
    }
}

/// Whether something that came in is to blame: bytes that lapin cannot parse, or a frame above the size agreed on (the
/// broker adds headers of its own to a delivery, and a header block that just fitted then does not).
fn is_unparsable(error: &lapin::Error) -> bool {
    match error.kind() {
        ErrorKind::ParsingError(_) => true,
        ErrorKind::ProtocolError(e) => matches!(e.kind(), AMQPErrorKind::Hard(AMQPHardError::FRAMEERROR)),
        _ => false,
    }
}

/// The one listener of a connection's events (lapin's listeners split them), as a state that many can watch.
fn watch_state(connection: &lapin::Connection) -> watch::Receiver<State> {
    let (tx, rx) = watch::channel(State::Up);
    let mut events = Box::pin(connection.events_listener());
    let status = connection.status().clone();
    tokio::spawn(async move {
        loop {
            let event = tokio::select! {
                event = events.next() => event,
                () = tokio::time::sleep(STATE_CHECK) => {
                    if status.connected() { continue }
                    let _ = tx.send(State::Down { why: "the connection ended".into(), unparsable: false });
                    return;
                }
            };
            let next = match event {
                Some(Event::ConnectionBlocked(reason)) => State::Blocked(reason),
                Some(Event::ConnectionUnblocked) => State::Up,
                // A channel's error is the channel's own affair.
                Some(Event::Error(e)) if e.is_amqp_soft_error() => continue,
                Some(Event::Error(e)) => State::Down { why: e.to_string(), unparsable: is_unparsable(&e) },
                Some(_) => continue,
                None => State::Down { why: "the connection ended".into(), unparsable: false },
            };
            let down = matches!(next, State::Down { .. });
            if tx.send(next).is_err() || down {
                return;
            }
        }
    });
    rx
}
