//! The HTTP face, asked over a real socket: status, headers and body as a probe or Prometheus sees them.

use std::net::SocketAddr;

use dwell::admin::{self, Access, Health, Part, Reason, Site};
use dwell::config::Secret;
use dwell::metrics::{Metrics, Path};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// A server on a free port, and what its answers are made of.
struct Served {
    address: SocketAddr,
    health: Health,
    metrics: Metrics,
    stop: CancellationToken,
    task: JoinHandle<()>,
}

struct Answer {
    status: u16,
    /// In lower case.
    head: String,
    body: String,
}

#[tokio::test]
async fn alive_even_when_nothing_is_ready() {
    let served = Served::start(Access::Local).await;
    let answer = served.get("/healthz").await;
    assert_eq!((answer.status, answer.body.as_str()), (200, "alive\n"));
}

/// Case B123: during an alarm the process lives but is not ready, and says why.
#[tokio::test]
async fn b123_a_blocked_broker_is_alive_and_not_ready() {
    let served = Served::start(Access::Local).await;
    served.health.set(Part::Topology, None);
    assert_eq!(served.get("/readyz").await.status, 200);

    served.health.set(Part::Connection("orders.publish".to_owned()), Some(Reason::BrokerBlocked));
    assert_eq!(served.get("/healthz").await.status, 200);
    let answer = served.get("/readyz").await;
    assert_eq!((answer.status, answer.body.as_str()), (503, "not ready\nbroker-blocked: connection orders.publish\n"));
    assert!(answer.head.contains("cache-control: no-store"), "{}", answer.head);

    served.health.set(Part::Connection("orders.publish".to_owned()), None);
    assert_eq!(served.get("/readyz").await.status, 200);
}

#[tokio::test]
async fn readiness_is_json_for_who_asks_for_json() {
    let served = Served::start(Access::Local).await;
    served.health.set(Part::Store, Some(Reason::StoreUnreachable));
    let answer = served.ask("GET /readyz HTTP/1.1", "Accept: text/html, Application/JSON;q=0.9\r\n").await;
    assert_eq!(answer.status, 503);
    assert!(answer.head.contains("content-type: application/json"), "{}", answer.head);
    let json: serde_json::Value = serde_json::from_str(&answer.body).expect("JSON");
    assert_eq!(
        json,
        serde_json::json!({ "ready": false, "reasons": [
            { "reason": "store-unreachable", "parts": ["store"] },
            { "reason": "topology-not-declared", "parts": ["topology"] },
        ] })
    );
}

#[tokio::test]
async fn metrics_are_prometheus_text() {
    let served = Served::start(Access::Local).await;
    served.metrics.bridge("orders").placed(Path::Store);
    let answer = served.get("/metrics").await;
    assert_eq!(answer.status, 200);
    assert!(answer.head.contains("content-type: text/plain; version=0.0.4; charset=utf-8"), "{}", answer.head);
    assert!(answer.body.contains("dwell_placed_total{bridge=\"orders\",path=\"store\"} 1\n"), "{}", answer.body);
}

#[tokio::test]
async fn off_loopback_only_the_page_and_the_api_need_the_token() {
    let served = Served::start(Access::Token(Secret::new("s3cret"))).await;
    for open in ["/healthz", "/metrics"] {
        assert_eq!(served.get(open).await.status, 200, "{open}");
    }
    for guarded in ["/", "/api/v1/messages", "/api/v1/nonsense"] {
        let answer = served.get(guarded).await;
        assert_eq!(answer.status, 401, "{guarded}");
        assert!(answer.head.contains("www-authenticate: bearer"), "{}", answer.head);
        let wrong = served.ask(&format!("GET {guarded} HTTP/1.1"), "Authorization: Bearer s3creT\r\n").await;
        assert_eq!(wrong.status, 401, "{guarded}");
    }
    let page = served.ask("GET / HTTP/1.1", "Authorization: Bearer s3cret\r\n").await;
    assert_eq!(page.status, 200);
    let api = served.ask("GET /api/v1/messages HTTP/1.1", "Authorization: Bearer s3cret\r\n").await;
    assert_eq!(api.status, 404);
}

#[tokio::test]
async fn the_page_lists_the_paths_and_others_are_not_found() {
    let served = Served::start(Access::Local).await;
    let page = served.get("/").await;
    assert_eq!(page.status, 200);
    for path in ["/healthz", "/readyz", "/metrics"] {
        assert!(page.body.contains(path), "{}", page.body);
    }
    assert_eq!(served.get("/nonsense").await.status, 404);
    assert_eq!(served.ask("POST /healthz HTTP/1.1", "Content-Length: 0\r\n").await.status, 405);
}

#[tokio::test]
async fn too_large_a_head_is_refused() {
    let served = Served::start(Access::Local).await;
    let header = format!("X-Padding: {}\r\n", "x".repeat(17 * 1024));
    assert_eq!(served.ask("GET /healthz HTTP/1.1", &header).await.status, 431);
}

/// Paused time: the clock jumps as soon as nothing else can happen.
#[tokio::test(start_paused = true)]
async fn half_a_request_does_not_keep_its_connection() {
    let served = Served::start(Access::Local).await;
    let mut stream = TcpStream::connect(served.address).await.expect("connected");
    stream.write_all(b"GET /healthz HTTP/1.1\r\nHost: ").await.expect("sent");
    let mut rest = Vec::new();
    // Ends only because the server closes: there is no timeout on this side.
    let _ = stream.read_to_end(&mut rest).await;
    assert!(!rest.starts_with(b"HTTP/1.1 200"));
}

#[tokio::test]
async fn a_stop_closes_idle_connections_and_frees_the_address() {
    let served = Served::start(Access::Local).await;
    let mut idle = TcpStream::connect(served.address).await.expect("connected");
    idle.write_all(b"GET /healthz HTTP/1.1\r\nHost: dwell\r\n\r\n").await.expect("sent");
    let mut first = [0; 12];
    idle.read_exact(&mut first).await.expect("an answer");
    assert_eq!(&first, b"HTTP/1.1 200");

    served.stop.cancel();
    served.task.await.expect("the server ended well");
    idle.read_to_end(&mut Vec::new()).await.expect("closed by the server");
    admin::bind(served.address).await.expect("free again");
}

#[tokio::test]
async fn an_address_in_use_is_said_so() {
    let taken = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = taken.local_addr().expect("bound");
    let error = admin::bind(address).await.expect_err("taken");
    assert_eq!(error.to_string(), format!("cannot listen on {address}: the address is in use"));
    assert!(error.help().contains("http.listen"), "{}", error.help());
}

// === impl Served ===

impl Served {
    async fn start(access: Access) -> Served {
        let listener = admin::bind("127.0.0.1:0".parse().expect("an address")).await.expect("a free port");
        let address = listener.local_addr().expect("bound");
        let (health, metrics, stop) = (Health::starting(), Metrics::new(), CancellationToken::new());
        let site = Site { health: health.clone(), metrics: metrics.clone(), access };
        let task = tokio::spawn(admin::serve(listener, site, stop.clone()));
        Served { address, health, metrics, stop, task }
    }

    async fn get(&self, path: &str) -> Answer {
        self.ask(&format!("GET {path} HTTP/1.1"), "").await
    }

    /// One request on a connection of its own; `headers` with their line ends.
    async fn ask(&self, line: &str, headers: &str) -> Answer {
        let mut stream = TcpStream::connect(self.address).await.expect("connected");
        let request = format!("{line}\r\nHost: dwell\r\nConnection: close\r\n{headers}\r\n");
        stream.write_all(request.as_bytes()).await.expect("sent");
        let mut bytes = Vec::new();
        // A server that closes before it has read all (431) resets the connection behind its answer.
        let _ = stream.read_to_end(&mut bytes).await;
        let text = String::from_utf8(bytes).expect("text");
        let (head, body) = text.split_once("\r\n\r\n").expect("head and body");
        let status = head.split(' ').nth(1).and_then(|code| code.parse().ok()).expect("a status");
        Answer { status, head: head.to_ascii_lowercase(), body: body.to_owned() }
    }
}
