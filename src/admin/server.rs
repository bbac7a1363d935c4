//! Listens, answers, and stops last.
//!
//! hyper is driven by hand rather than by `axum::serve`, which sets no timer: without one a client that sends half a
//! request keeps its connection for ever.

use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{DefaultBodyLimit, Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{any, get};
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::{Access, Health};
use crate::metrics::{self, Metrics};

/// What the paths show.
#[derive(Clone, Debug)]
pub struct Site {
    /// Answers `/readyz`.
    pub health: Health,
    /// Answers `/metrics`.
    pub metrics: Metrics,
    /// Guards `/` and `/api`.
    pub access: Access,
}

/// Nothing can listen there.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {address}: {}", self.why())]
pub struct BindError {
    /// The setting `http.listen`.
    pub address: SocketAddr,
    /// What the operating system said.
    #[source]
    pub source: io::Error,
}

/// Connections at one time; further ones wait in the backlog. A probe, a Prometheus and a few people need ten.
const MAX_CONNECTIONS: u32 = 64;
/// For a request's line and headers, and between two requests on one connection.
const HEAD_TIMEOUT: Duration = Duration::from_secs(10);
/// For a whole request, its body included.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// After that a connection is closed between two requests, so that a client which never reads gives its place up.
const CONNECTION_LIFETIME: Duration = Duration::from_secs(300);
/// For answers under way when a connection is to end.
const LAST_ANSWER: Duration = Duration::from_secs(2);
/// After a failed accept (mostly: no file descriptors left).
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Request line and headers together, in bytes; beyond it: 431.
const MAX_HEAD: usize = 16 * 1024;
const MAX_HEADERS: usize = 64;
/// Of a request, in bytes; beyond it: 413. No path of today reads a body.
const MAX_BODY: usize = 64 * 1024;

/// Takes the address.
pub async fn bind(address: SocketAddr) -> Result<TcpListener, BindError> {
    TcpListener::bind(address).await.map_err(|source| BindError { address, source })
}

/// Answers requests until `stop`; returns once answers under way are out, or 2 seconds later.
pub async fn serve(listener: TcpListener, site: Site, stop: CancellationToken) {
    let router = router(site);
    let places = Arc::new(Semaphore::new(MAX_CONNECTIONS as usize));
    let accept = async {
        loop {
            // Fails on a closed semaphore only, and nobody closes it.
            let place = Arc::clone(&places).acquire_owned().await;
            match listener.accept().await {
                Ok((stream, _)) => {
                    let (router, stop) = (router.clone(), stop.clone());
                    tokio::spawn(async move {
                        converse(stream, router, stop).await;
                        drop(place);
                    });
                }
                Err(error) => {
                    tracing::debug!(%error, "An HTTP connection could not be accepted.");
                    sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    };
    tokio::select! {
        () = stop.cancelled() => {}
        () = accept => {}
    }
    drop(listener);
    // All places free again: all connections ended. Each keeps to LAST_ANSWER by itself.
    let _ = places.acquire_many(MAX_CONNECTIONS).await;
}

/// One connection from its first request to its last.
async fn converse(stream: TcpStream, router: Router, stop: CancellationToken) {
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .max_buf_size(MAX_HEAD)
        .max_headers(MAX_HEADERS)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
    let mut connection = pin!(connection);
    tokio::select! {
        // An error is a client that broke off, sent no HTTP or was too slow: nothing that an operator can mend.
        _ = connection.as_mut() => return,
        () = stop.cancelled() => {}
        () = sleep(CONNECTION_LIFETIME) => {}
    }
    connection.as_mut().graceful_shutdown();
    let _ = timeout(LAST_ANSWER, connection).await;
}

fn router(site: Site) -> Router {
    let guarded = Router::new()
        .route("/", get(contents))
        // The guard stands before the API does, so that an unknown path tells a stranger nothing.
        .route("/api/{*path}", any(not_found))
        .route_layer(middleware::from_fn_with_state(site.access.clone(), guard));
    Router::new()
        .route("/healthz", get(alive))
        .route("/readyz", get(ready))
        .route("/metrics", get(exposition))
        .merge(guarded)
        .fallback(not_found)
        .layer(DefaultBodyLimit::max(MAX_BODY))
        .layer(middleware::from_fn(in_time))
        .with_state(site)
}

// === Paths ===

/// The process answers: nothing else is meant by it. A blocked broker is no reason to restart dwell (case B123).
async fn alive() -> Response {
    (NO_STORE, "alive\n").into_response()
}

async fn ready(State(site): State<Site>, headers: HeaderMap) -> Response {
    let readiness = site.health.readiness();
    let status = if readiness.ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    if wants_json(&headers) {
        let json = serde_json::to_string(&readiness).expect("plain data becomes JSON");
        (status, NO_STORE, [(header::CONTENT_TYPE, "application/json")], json).into_response()
    } else {
        (status, NO_STORE, readiness.to_string()).into_response()
    }
}

async fn exposition(State(site): State<Site>) -> Response {
    ([(header::CONTENT_TYPE, metrics::CONTENT_TYPE)], site.metrics.render()).into_response()
}

async fn contents() -> &'static str {
    concat!(
        "dwell ",
        env!("CARGO_PKG_VERSION"),
        "\n\n",
        "/healthz  whether the process answers\n",
        "/readyz   whether messages flow, and if not, why (Accept: application/json for JSON)\n",
        "/metrics  for Prometheus\n",
    )
}

async fn not_found() -> Response {
    (StatusCode::NOT_FOUND, "not found\n").into_response()
}

// === Around the paths ===

async fn guard(State(access): State<Access>, request: Request, next: Next) -> Response {
    if access.admits(request.headers()) {
        return next.run(request).await;
    }
    let challenge = [(header::WWW_AUTHENTICATE, "Bearer realm=\"dwell\"")];
    (StatusCode::UNAUTHORIZED, challenge, "a bearer token is needed (setting http.token)\n").into_response()
}

async fn in_time(request: Request, next: Next) -> Response {
    timeout(REQUEST_TIMEOUT, next.run(request))
        .await
        .unwrap_or_else(|_| (StatusCode::REQUEST_TIMEOUT, "too slow\n").into_response())
}

// === impl BindError ===

impl BindError {
    /// Why, in words.
    #[must_use]
    pub fn why(&self) -> String {
        match self.source.kind() {
            io::ErrorKind::AddrInUse => "the address is in use".to_owned(),
            io::ErrorKind::AddrNotAvailable => "this machine has no such address".to_owned(),
            io::ErrorKind::PermissionDenied => "it is not allowed (ports below 1024 need a privilege)".to_owned(),
            _ => self.source.to_string(),
        }
    }

    /// What to do about it.
    #[must_use]
    pub fn help(&self) -> &'static str {
        match self.source.kind() {
            io::ErrorKind::AddrInUse => {
                "another dwell or another program listens there: stop it, or set http.listen (--http-listen) to a free port"
            }
            _ => "set http.listen (--http-listen) to an address of this machine, like 127.0.0.1:8672",
        }
    }
}

// === Helpers ===

/// Probes must see this moment's answer.
const NO_STORE: [(header::HeaderName, &str); 1] = [(header::CACHE_CONTROL, "no-store")];

/// People at a terminal send `*/*` and get lines.
fn wants_json(headers: &HeaderMap) -> bool {
    headers
        .get_all(header::ACCEPT)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .any(|kind| kind.split(';').next().is_some_and(|kind| kind.trim().eq_ignore_ascii_case("application/json")))
}
