//! The bench: a vhost and a key prefix of a test's own, daemons, a publisher, collecting consumers, and servers that
//! may be killed.
//!
//! Nothing here sleeps in hope: [`until`] looks again and again until a deadline. All times are taken by one process'
//! monotonic clock, from before the publish to the arrival, so "never early" is judged by what a publisher can see.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU16, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};

use futures_util::StreamExt;
use lapin::options::{
    BasicAckOptions, BasicConsumeOptions, BasicPublishOptions, BasicQosOptions, ConfirmSelectOptions,
    QueueDeclareOptions,
};
use lapin::types::{AMQPValue, FieldTable, LongString};
use lapin::{BasicProperties, Channel, Confirmation, Connection, ConnectionProperties};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value as Json;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::Notify;

/// Where the servers are that a test works on.
#[derive(Clone, Debug)]
pub struct Services {
    /// `amqp://user:password@host:port`, without vhost.
    pub amqp: String,
    pub redis: String,
    pub management: String,
}

/// One test's own corner of the servers. Dropping it deletes the vhost and the keys, also after a panic.
pub struct Bench {
    services: Services,
    pub vhost: String,
    pub key_prefix: String,
    dir: TempDir,
    settings: BTreeMap<String, String>,
}

/// A running daemon. Dropping it kills it; after a panic its log is shown.
pub struct Daemon {
    child: Child,
    http: SocketAddr,
    log: PathBuf,
}

/// A publisher of the test's own.
pub struct Client {
    connection: Connection,
    channel: Channel,
}

/// A message to publish, and where.
#[derive(Clone)]
pub struct Out {
    pub exchange: String,
    pub key: String,
    pub properties: BasicProperties,
    pub body: Vec<u8>,
}

/// A message that came out.
#[derive(Clone, Debug)]
pub struct Arrival {
    pub at: Instant,
    pub exchange: String,
    pub key: String,
    pub redelivered: bool,
    pub properties: BasicProperties,
    pub body: Vec<u8>,
}

/// What has come out of one queue so far.
pub struct Collector {
    shared: Arc<Collected>,
    _channel: Channel,
    task: tokio::task::JoinHandle<()>,
}

#[derive(Default)]
struct Collected {
    arrivals: Mutex<Vec<Arrival>>,
    more: Notify,
}

/// A RabbitMQ or Redis of a test's own, which may be killed.
pub struct Private {
    script: &'static str,
    dir: TempDir,
    /// What the start script printed.
    pub says: BTreeMap<String, String>,
}

/// A way to a server that a test may close, cut and freeze.
pub struct Proxy {
    address: SocketAddr,
    url: String,
    target: String,
    frozen: tokio::sync::watch::Sender<bool>,
    task: Option<tokio::task::JoinHandle<()>>,
}

/// A user of RabbitMQ's, in one bench's vhost. Dropping it deletes it.
pub struct User<'a> {
    bench: &'a Bench,
    pub name: String,
}

/// What a command said and how it ended.
#[derive(Debug)]
pub struct Said {
    pub code: Option<i32>,
    pub out: String,
    pub err: String,
}

/// Dice that can be thrown again: the seed is printed, and `DWELL_TEST_SEED` sets it.
pub struct Dice(u64);

/// How long something may take that a healthy machine does at once: generous, as machines that run tests are busy.
pub const SOON: Duration = Duration::from_secs(30);

/// How late a message may be before a test fails. Lateness is measured elsewhere; here it only tells late from never.
pub const SLACK: Duration = Duration::from_secs(20);

/// Held by tests that fill the machine: one of them at a time, beside the light ones.
pub static HEAVY: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

/// Tells the benches and logs of one process apart.
static NEXT: AtomicU32 = AtomicU32::new(0);

// === conditions ===

/// Looks until `look` answers; fails at the deadline, naming what was waited for.
pub async fn until<T>(what: &str, within: Duration, mut look: impl AsyncFnMut() -> Option<T>) -> T {
    let late = Instant::now() + within;
    loop {
        if let Some(found) = look().await {
            return found;
        }
        assert!(Instant::now() < late, "not within {within:?}: {what}");
        // The one pause of this suite: between two looks.
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Watches for `during`: something must stay as it is all the time.
pub async fn throughout(what: &str, during: Duration, mut holds: impl AsyncFnMut() -> bool) {
    let end = Instant::now() + during;
    while Instant::now() < end {
        assert!(holds().await, "{what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Runs one future for each input, each on a thread and runtime of its own, side by side; fails with the first that
/// fails, after all have ended.
pub fn in_lanes<T: Send>(inputs: impl IntoIterator<Item = T>, lane: impl AsyncFn(T) + Sync) {
    std::thread::scope(|scope| {
        let lane = &lane;
        for input in inputs {
            scope.spawn(move || {
                let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
                runtime.expect("a runtime").block_on(lane(input));
            });
        }
    });
}

/// Notes a test that cannot run here; `make test` lists and counts them.
pub fn skip(name: &str, reason: &str) {
    let line = format!("SKIPPED {name}: {reason}\n");
    eprint!("{line}");
    if let Some(path) = std::env::var_os("DWELL_TEST_SKIPS") {
        let file = OpenOptions::new().append(true).create(true).open(path);
        file.and_then(|mut f| f.write_all(line.as_bytes())).expect("the list of skips can be written");
    }
}

// === impl Services ===

impl Services {
    /// The ones of the environment.
    pub fn given() -> Services {
        let get = |name: &str| match std::env::var(name) {
            Ok(value) if !value.is_empty() => value,
            _ => panic!("{name} is not set: run make services, or make test"),
        };
        Services {
            amqp: without_path(&get("DWELL_TEST_AMQP_URL")),
            redis: get("DWELL_TEST_REDIS_URL"),
            management: get("DWELL_TEST_MANAGEMENT_URL").trim_end_matches('/').to_owned(),
        }
    }

    /// The same, but for one server.
    pub fn with_redis(mut self, redis: &Private) -> Services {
        self.redis.clone_from(&redis.says["URL"]);
        self
    }

    /// The same, but for one server.
    pub fn with_rabbitmq(mut self, rabbitmq: &Private) -> Services {
        self.amqp = without_path(&rabbitmq.says["URL"]);
        self.management.clone_from(&rabbitmq.says["MANAGEMENT_URL"]);
        self
    }
}

fn without_path(url: &str) -> String {
    let (scheme, rest) = url.split_once("://").expect("a url");
    format!("{scheme}://{}", rest.split('/').next().unwrap_or(rest))
}

// === impl Bench ===

impl Bench {
    /// On the servers of the environment, with one topology file.
    pub fn new(name: &str, topology: &str) -> Bench {
        Bench::on(Services::given(), name, topology)
    }

    /// On those servers.
    pub fn on(services: Services, name: &str, topology: &str) -> Bench {
        let unique = format!("{name}-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::SeqCst));
        let vhost = format!("dwell-test-{unique}");
        let dir = tempfile::Builder::new().prefix("dwell-test-").tempdir().expect("a temporary directory");
        std::fs::create_dir(dir.path().join("topology")).expect("a directory for the topology");
        let bench = Bench { services, key_prefix: vhost.clone(), vhost, dir, settings: BTreeMap::new() };
        bench.write_topology("main.toml", topology);
        let (status, answer) = bench.manage("PUT", &format!("/api/vhosts/{}", bench.vhost), None);
        assert!(matches!(status, 201 | 204), "could not make the vhost {}: {status} {answer}", bench.vhost);
        bench
    }

    /// One more setting of the daemons to come, as an environment variable: `("DWELL_DELAY__BROKER_LIMIT", "2s")`.
    pub fn set(&mut self, name: &str, value: &str) -> &mut Bench {
        self.settings.insert(name.to_owned(), value.to_owned());
        self
    }

    /// What a dead daemon had claimed is found after seconds instead of half a minute.
    pub fn short_lease(&mut self) -> &mut Bench {
        self.set("DWELL_PUMP__LEASE", "4s").set("DWELL_RUN__CONFIRM_TIMEOUT", "3s")
    }

    pub fn write_topology(&self, file: &str, text: &str) {
        std::fs::write(self.dir.path().join("topology").join(file), text).expect("a topology file");
    }

    pub fn topology_dir(&self) -> PathBuf {
        self.dir.path().join("topology")
    }

    /// The bench's own way to Redis for its daemons, closed until [`Proxy::up`].
    pub fn redis_proxy(&mut self) -> Proxy {
        let (proxy, url) = Proxy::to(&self.services.redis);
        self.set("DWELL_REDIS__URL", &url);
        proxy
    }

    /// The bench's own way to RabbitMQ for its daemons, closed until [`Proxy::up`].
    pub fn amqp_proxy(&mut self) -> Proxy {
        let (proxy, url) = Proxy::to(&self.amqp_url());
        self.set("DWELL_AMQP__URL", &url);
        proxy
    }

    pub fn amqp_url(&self) -> String {
        format!("{}/{}", self.services.amqp, self.vhost)
    }

    /// Starts a daemon and waits until it is ready.
    pub async fn daemon(&self) -> Daemon {
        let mut daemon = self.start(&[]);
        daemon.ready().await;
        daemon
    }

    /// Starts a daemon, with further environment variables, and does not wait for it.
    pub fn start(&self, environment: &[(&str, &str)]) -> Daemon {
        let http = free_address();
        let log = self.dir.path().join(format!("daemon-{}.log", NEXT.fetch_add(1, Ordering::SeqCst)));
        let out = File::create(&log).expect("a log file");
        let mut command = self.dwell();
        command
            .arg("run")
            .arg("--topology")
            .arg(self.topology_dir())
            .env("DWELL_HTTP__LISTEN", http.to_string())
            .envs(environment.iter().copied())
            .stdout(out.try_clone().expect("a log file"))
            .stderr(out);
        let child = command.spawn().expect("the daemon starts");
        Daemon { child, http, log }
    }

    /// Runs a command to its end: `["plan", "--prune"]`, with the bench's topology and settings.
    pub fn run(&self, arguments: &[&str]) -> Said {
        self.run_with(arguments, &[])
    }

    /// The same, with further environment variables.
    pub fn run_with(&self, arguments: &[&str], environment: &[(&str, &str)]) -> Said {
        let mut command = self.dwell();
        command.args(arguments).arg("--topology").arg(self.topology_dir()).envs(environment.iter().copied());
        let output = command.output().expect("the command runs");
        Said {
            code: output.status.code(),
            out: String::from_utf8_lossy(&output.stdout).into_owned(),
            err: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }

    /// The program, with the bench's settings and nothing else.
    fn dwell(&self) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_dwell"));
        // What happens to be in the environment must not reach a daemon under test.
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("DWELL_")) {
            command.env_remove(name);
        }
        command
            .env("DWELL_AMQP__URL", self.amqp_url())
            .env("DWELL_REDIS__URL", &self.services.redis)
            .env("DWELL_REDIS__KEY_PREFIX", &self.key_prefix)
            .envs(&self.settings)
            .current_dir(self.dir.path())
            .stdin(Stdio::null());
        command
    }

    /// Lets daemons and commands use the management API.
    pub fn managed(&mut self) -> &mut Bench {
        let url = self.services.management.clone();
        self.set("DWELL_MANAGEMENT__URL", &url)
    }

    /// A publisher in this vhost.
    pub async fn client(&self) -> Client {
        Client::connect(&self.amqp_url()).await
    }

    /// Asks the management API.
    pub fn manage(&self, method: &str, path: &str, body: Option<Json>) -> (u16, Json) {
        let url = format!("{}{path}", self.services.management);
        request(method, &url, body)
    }

    /// The same, below `/api/<what>/<vhost>`; the answer must be a success.
    pub fn look(&self, what: &str, rest: &str) -> Json {
        let (status, answer) = self.manage("GET", &format!("/api/{what}/{}{rest}", self.vhost), None);
        assert_eq!(status, 200, "{what} {rest}: {answer}");
        answer
    }

    /// A connection to Redis, for looking at what the store holds.
    pub fn redis(&self) -> redis::Connection {
        let client = redis::Client::open(self.services.redis.as_str()).expect("a redis url");
        client.get_connection().expect("Redis answers")
    }

    /// A key of the store's only shard: `due`, `lease`, ….
    pub fn key(&self, bridge: &str, what: &str) -> String {
        format!("{}:{{{bridge}.0}}:{what}", self.key_prefix)
    }

    /// How many messages the store holds: pending and claimed.
    pub fn stored(&self, bridge: &str) -> u64 {
        let mut redis = self.redis();
        let count = |redis: &mut redis::Connection, what: &str| -> u64 {
            redis::cmd("ZCARD").arg(self.key(bridge, what)).query(redis).expect("ZCARD")
        };
        count(&mut redis, "due") + count(&mut redis, "lease")
    }

    /// The due times in the store, in epoch milliseconds, ascending.
    pub fn due_times(&self, bridge: &str) -> Vec<u64> {
        let scored: Vec<(Vec<u8>, f64)> = redis::cmd("ZRANGE")
            .arg(self.key(bridge, "due"))
            .arg(0)
            .arg(-1)
            .arg("WITHSCORES")
            .query(&mut self.redis())
            .expect("ZRANGE");
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // Milliseconds, far below 2^53.
        scored.into_iter().map(|(_, score)| score as u64).collect()
    }

    /// Waits until a daemon has nothing in hand and nothing left to do: the intake is empty, all that was taken in is
    /// answered, and the store is empty.
    pub async fn quiet(&self, bridge: &str, daemon: &Daemon) {
        let client = self.client().await;
        until(&format!("bridge {bridge} has nothing left to do"), SOON, async || {
            let taken = daemon.metric(&format!(r#"dwell_intake_deliveries_total{{bridge="{bridge}"}}"#));
            let answered: f64 = ["acked", "requeued", "lost"]
                .into_iter()
                .map(|o| daemon.metric(&format!(r#"dwell_intake_settled_total{{bridge="{bridge}",outcome="{o}"}}"#)))
                .sum();
            let waiting =
                client.depth(&format!("{bridge}.intake")).await + client.depth(&format!("{bridge}.intake.late")).await;
            let idle = waiting == 0 && (taken - answered).abs() < 0.1 && self.stored(bridge) == 0;
            idle.then_some(())
        })
        .await;
    }

    /// Stops the daemons gracefully, and makes sure that nothing is left on the way: neither in the store nor in any of
    /// the bridge's queues, unacknowledged deliveries among them (they have come back by then).
    pub async fn ends_empty(&self, bridge: &str, daemons: &mut [Daemon]) {
        for daemon in daemons.iter_mut() {
            daemon.stop().await;
        }
        assert_eq!(self.stored(bridge), 0, "left in the store");
        let client = self.client().await;
        for queue in [format!("{bridge}.intake"), format!("{bridge}.intake.late")] {
            assert_eq!(client.depth(&queue).await, 0, "left in {queue}");
        }
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        let _ = ureq_agent().delete(format!("{}/api/vhosts/{}", self.services.management, self.vhost)).call();
        let Ok(client) = redis::Client::open(self.services.redis.as_str()) else { return };
        let Ok(mut redis) = client.get_connection_with_timeout(Duration::from_secs(2)) else { return };
        let pattern = format!("{}:*", self.key_prefix);
        let keys: Vec<Vec<u8>> = redis::cmd("KEYS").arg(pattern).query(&mut redis).unwrap_or_default();
        for chunk in keys.chunks(500) {
            let _: redis::RedisResult<()> = redis::cmd("UNLINK").arg(chunk).query(&mut redis);
        }
    }
}

/// A free port on the loopback address, below the range that outgoing connections use.
pub fn free_address() -> SocketAddr {
    static PORT: AtomicU16 = AtomicU16::new(0);
    let base = 10_000 + u16::try_from(std::process::id() % 9_000).expect("below 9000");
    loop {
        let port = base + PORT.fetch_add(1, Ordering::SeqCst) % 900;
        if let Ok(listener) = TcpListener::bind(("127.0.0.1", port)) {
            return listener.local_addr().expect("it is bound");
        }
    }
}

fn ureq_agent() -> ureq::Agent {
    let config =
        ureq::Agent::config_builder().http_status_as_error(false).timeout_global(Some(Duration::from_secs(20))).build();
    ureq::Agent::new_with_config(config)
}

fn request(method: &str, url: &str, body: Option<Json>) -> (u16, Json) {
    let agent = ureq_agent();
    let answer = match (method, body) {
        ("GET", _) => agent.get(url).call(),
        ("DELETE", _) => agent.delete(url).call(),
        ("PUT", body) => agent.put(url).send_json(body.unwrap_or_else(|| serde_json::json!({}))),
        ("POST", body) => agent.post(url).send_json(body.unwrap_or_else(|| serde_json::json!({}))),
        _ => panic!("no such method: {method}"),
    };
    let mut answer = answer.unwrap_or_else(|e| panic!("{method} of the management API: {e}"));
    let status = answer.status().as_u16();
    let text = answer.body_mut().read_to_string().unwrap_or_default();
    (status, serde_json::from_str(&text).unwrap_or(Json::String(text)))
}

// === impl Daemon ===

impl Daemon {
    /// Waits until `/readyz` says so.
    pub async fn ready(&mut self) {
        until("the daemon is ready", SOON, async || {
            if let Some(code) = self.exited() {
                panic!("the daemon ended with {code:?}\n{}", self.log());
            }
            self.try_get("/readyz").filter(|(status, _)| *status == 200)
        })
        .await;
    }

    /// One HTTP request; `None` while nothing answers.
    pub fn try_get(&self, path: &str) -> Option<(u16, String)> {
        let mut answer = ureq_agent().get(format!("http://{}{path}", self.http)).call().ok()?;
        let status = answer.status().as_u16();
        Some((status, answer.body_mut().read_to_string().ok()?))
    }

    pub fn get(&self, path: &str) -> (u16, String) {
        self.try_get(path).unwrap_or_else(|| panic!("nothing answers at {}", self.http))
    }

    /// The value of a metric with exactly these labels as Prometheus writes them: `dwell_placed_total{bridge="b",…}`.
    pub fn metric(&self, series: &str) -> f64 {
        let (_, text) = self.get("/metrics");
        let line = text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
        line.and_then(|value| value.parse().ok()).unwrap_or(0.0)
    }

    /// kill -9.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    pub fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw).expect("a pid");
        kill_process(pid, signal).expect("the daemon is there");
    }

    /// `Some` once it has ended: its exit code, `None` inside where a signal ended it.
    #[allow(clippy::option_option)] // Not ended, ended by a signal, ended with a code.
    pub fn exited(&mut self) -> Option<Option<i32>> {
        self.child.try_wait().expect("the daemon is our child").map(|status| status.code())
    }

    /// Waits for its end.
    pub async fn exit(&mut self, within: Duration) -> Option<i32> {
        until("the daemon ends", within, async || self.exited()).await
    }

    /// SIGTERM, and a graceful end.
    pub async fn stop(&mut self) {
        self.signal(Signal::TERM);
        let code = self.exit(SOON).await;
        assert_eq!(code, Some(0), "a graceful stop ends with 0");
    }

    pub fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.kill();
        if std::thread::panicking() {
            let log = self.log();
            let lines: Vec<&str> = log.lines().collect();
            eprintln!("--- the daemon's log, its last lines:");
            for line in &lines[lines.len().saturating_sub(40)..] {
                eprintln!("{line}");
            }
        }
    }
}

// === impl Client ===

impl Client {
    pub async fn connect(url: &str) -> Client {
        let connection =
            Connection::connect(url, ConnectionProperties::default()).await.expect("RabbitMQ takes a connection");
        let channel = connection.create_channel().await.expect("a channel");
        channel.confirm_select(ConfirmSelectOptions::default()).await.expect("confirms");
        Client { connection, channel }
    }

    /// A channel to do anything with.
    pub async fn channel(&self) -> Channel {
        self.connection.create_channel().await.expect("a channel")
    }

    /// Publishes one message, mandatory, and hears its confirm; the moment before it was handed over.
    pub async fn publish(&self, out: &Out) -> Instant {
        let before = Instant::now();
        let confirmation = self.begin(out).await.await.expect("a confirm");
        assert_eq!(confirmation, Confirmation::Ack(None), "the broker takes it, and a queue wants it");
        before
    }

    /// Publishes them one behind the other, then hears all confirms; for each the moment before it was handed over.
    pub async fn publish_all(&self, outs: &[Out]) -> Vec<Instant> {
        let mut sent = Vec::with_capacity(outs.len());
        let mut confirms = Vec::with_capacity(outs.len());
        for out in outs {
            sent.push(Instant::now());
            confirms.push(self.begin(out).await);
        }
        for confirm in confirms {
            let confirmation = confirm.await.expect("a confirm");
            assert_eq!(confirmation, Confirmation::Ack(None), "the broker takes it, and a queue wants it");
        }
        sent
    }

    /// Hands one message over; its confirm is still to come.
    pub async fn begin(&self, out: &Out) -> impl Future<Output = lapin::Result<Confirmation>> + use<> {
        self.channel
            .basic_publish(
                out.exchange.as_str().into(),
                out.key.as_str().into(),
                BasicPublishOptions { mandatory: true, ..BasicPublishOptions::default() },
                &out.body,
                out.properties.clone(),
            )
            .await
            .expect("the connection takes it")
    }

    /// Collects what comes out of a queue, from now on.
    pub async fn collect(&self, queue: &str) -> Collector {
        let channel = self.channel().await;
        channel.basic_qos(1000, BasicQosOptions::default()).await.expect("a prefetch");
        let mut stream = channel
            .basic_consume(queue.into(), "".into(), BasicConsumeOptions::default(), FieldTable::default())
            .await
            .unwrap_or_else(|e| panic!("{queue} can be consumed: {e}"));
        let shared = Arc::new(Collected::default());
        let into = shared.clone();
        let task = tokio::spawn(async move {
            while let Some(Ok(d)) = stream.next().await {
                let arrival = Arrival {
                    at: Instant::now(),
                    exchange: d.exchange.to_string(),
                    key: d.routing_key.to_string(),
                    redelivered: d.redelivered,
                    properties: d.properties,
                    body: d.data,
                };
                into.arrivals.lock().expect("no holder panics").push(arrival);
                into.more.notify_waiters();
                let _ = d.acker.ack(BasicAckOptions::default()).await;
            }
        });
        Collector { shared, _channel: channel, task }
    }

    /// How many messages are ready in a queue.
    pub async fn depth(&self, queue: &str) -> u32 {
        self.try_depth(queue).await.unwrap_or_else(|| panic!("there is no queue {queue}"))
    }

    /// The same; `None` where there is no such queue.
    pub async fn try_depth(&self, queue: &str) -> Option<u32> {
        let channel = self.channel().await;
        let options = QueueDeclareOptions { passive: true, ..QueueDeclareOptions::default() };
        let found = channel.queue_declare(queue.into(), options, FieldTable::default()).await.ok()?;
        let count = found.message_count();
        let _ = channel.close(200, "done".into()).await;
        Some(count)
    }

    /// Takes every message out of a queue that nobody else consumes, `n` of them at least.
    pub async fn drain(&self, queue: &str, n: usize) -> Vec<Arrival> {
        self.collect(queue).await.wait(n, SOON).await
    }
}

// === impl Collector ===

impl Collector {
    /// What is here now.
    pub fn now(&self) -> Vec<Arrival> {
        self.shared.arrivals.lock().expect("no holder panics").clone()
    }

    pub fn count(&self) -> usize {
        self.shared.arrivals.lock().expect("no holder panics").len()
    }

    /// Waits until `n` have arrived in all.
    pub async fn wait(&self, n: usize, within: Duration) -> Vec<Arrival> {
        let enough = async {
            loop {
                let more = self.shared.more.notified();
                if self.count() >= n {
                    return;
                }
                more.await;
            }
        };
        if tokio::time::timeout(within, enough).await.is_err() {
            let bodies: Vec<String> = self.now().iter().map(Arrival::text).take(50).collect();
            panic!("{} of {n} messages arrived within {within:?}: {bodies:?}", self.count());
        }
        self.now()
    }

    /// Waits for one with that body.
    pub async fn wait_for(&self, body: &str, within: Duration) -> Arrival {
        until(&format!("'{body}' arrives"), within, async || self.now().into_iter().find(|a| a.body == body.as_bytes()))
            .await
    }
}

impl Drop for Collector {
    fn drop(&mut self) {
        self.task.abort();
    }
}

// === impl Arrival ===

impl Arrival {
    pub fn header(&self, name: &str) -> Option<&AMQPValue> {
        self.properties.headers().as_ref().and_then(|h| h.inner().get(name))
    }

    /// A header that is a text.
    pub fn header_text(&self, name: &str) -> Option<String> {
        match self.header(name)? {
            AMQPValue::LongString(s) => Some(s.to_string()),
            _ => None,
        }
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// It came when due: not a whole millisecond early, and not absurdly late.
    pub fn is_on_time(&self, sent: Instant, delay: Duration) {
        let took = self.at.duration_since(sent);
        assert!(took + Duration::from_millis(1) > delay, "'{}' is early: {took:?} of {delay:?}", self.text());
        assert!(took < delay + SLACK, "'{}' is very late: {took:?} of {delay:?}", self.text());
    }
}

// === messages ===

impl Out {
    pub fn new(exchange: &str, key: &str, body: &str) -> Out {
        Out {
            exchange: exchange.to_owned(),
            key: key.to_owned(),
            properties: BasicProperties::default().with_delivery_mode(2),
            body: body.as_bytes().to_vec(),
        }
    }

    pub fn header(mut self, name: &str, value: AMQPValue) -> Out {
        let mut headers = self.properties.headers().clone().unwrap_or_default();
        headers.insert(name.into(), value);
        self.properties = self.properties.with_headers(headers);
        self
    }

    pub fn delay_ms(self, ms: i64) -> Out {
        self.header("x-delay", AMQPValue::LongLongInt(ms))
    }

    pub fn with(mut self, set: impl FnOnce(BasicProperties) -> BasicProperties) -> Out {
        self.properties = set(self.properties);
        self
    }
}

pub fn text(value: &str) -> AMQPValue {
    AMQPValue::LongString(LongString::from(value))
}

pub fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

pub fn epoch_ms() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("after 1970");
    u64::try_from(since.as_millis()).expect("fits")
}

/// Where copies of one message are found, each is told by its `dwell-id`, or by `dwell-redelivered`.
pub fn copies_are_marked(arrivals: &[Arrival]) {
    let mut seen: BTreeMap<String, Vec<&Arrival>> = BTreeMap::new();
    for arrival in arrivals {
        seen.entry(arrival.text()).or_default().push(arrival);
    }
    for (body, copies) in seen {
        let mut unmarked: Vec<Option<String>> = copies
            .iter()
            .filter(|a| a.header("dwell-redelivered").is_none() && !a.redelivered)
            .map(|a| a.header_text("dwell-id"))
            .collect();
        unmarked.sort();
        unmarked.dedup();
        assert!(unmarked.len() <= 1, "'{body}' came {} times, unmarked under several ids: {unmarked:?}", copies.len());
    }
}

// === impl Proxy ===

impl Proxy {
    fn to(url: &str) -> (Proxy, String) {
        let mut url = url::Url::parse(url).expect("a url");
        let target = format!("{}:{}", url.host_str().expect("a host"), url.port().expect("a port"));
        let address = free_address();
        url.set_host(Some("127.0.0.1")).expect("a host can be set");
        url.set_port(Some(address.port())).expect("a port can be set");
        let frozen = tokio::sync::watch::Sender::new(false);
        let url = url.to_string();
        (Proxy { address, url: url.clone(), target, frozen, task: None }, url)
    }

    /// The server's address by this way.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Opens the way.
    pub async fn up(&mut self) {
        let listener =
            until("the proxy's port is free", SOON, async || tokio::net::TcpListener::bind(self.address).await.ok())
                .await;
        let (target, frozen) = (self.target.clone(), self.frozen.subscribe());
        self.task = Some(tokio::spawn(async move {
            let mut open = tokio::task::JoinSet::new();
            while let Ok((near, _)) = listener.accept().await {
                let (target, frozen) = (target.clone(), frozen.clone());
                open.spawn(async move {
                    let Ok(far) = tokio::net::TcpStream::connect(target).await else { return };
                    let (near_in, near_out) = near.into_split();
                    let (far_in, far_out) = far.into_split();
                    tokio::select! {
                        () = carry(near_in, far_out, frozen.clone()) => {}
                        () = carry(far_in, near_out, frozen) => {}
                    }
                });
            }
        }));
    }

    /// Closes the way, and every connection on it.
    pub async fn down(&mut self) {
        if let Some(task) = self.task.take() {
            task.abort();
            let _ = task.await;
        }
    }

    /// Closes every connection on it, and is open again at once.
    pub async fn cut(&mut self) {
        self.down().await;
        self.up().await;
    }

    /// Nothing passes any more, and nothing is closed either: a half-open connection.
    pub fn freeze(&self, frozen: bool) {
        self.frozen.send_replace(frozen);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        if let Some(task) = self.task.take() {
            task.abort();
        }
    }
}

async fn carry(
    mut from: tokio::net::tcp::OwnedReadHalf,
    mut to: tokio::net::tcp::OwnedWriteHalf,
    mut frozen: tokio::sync::watch::Receiver<bool>,
) {
    let mut buffer = vec![0; 64 * 1024];
    loop {
        let Ok(n) = from.read(&mut buffer).await else { return };
        if n == 0 || frozen.wait_for(|frozen| !frozen).await.is_err() || to.write_all(&buffer[..n]).await.is_err() {
            return;
        }
    }
}

// === impl User ===

impl User<'_> {
    /// With all rights but to configure, which `configure` says.
    pub fn new<'a>(bench: &'a Bench, name: &str, password: &str, configure: &str) -> User<'a> {
        User::with_rights(bench, name, password, [configure, ".*", ".*"])
    }

    /// With these rights: configure, write, read.
    pub fn with_rights<'a>(bench: &'a Bench, name: &str, password: &str, rights: [&str; 3]) -> User<'a> {
        let [configure, write, read] = rights;
        let user = User { bench, name: format!("{}-{name}", bench.vhost) };
        let secret = serde_json::json!({ "password": password, "tags": "" });
        let (status, answer) = bench.manage("PUT", &format!("/api/users/{}", user.name), Some(secret));
        assert!(matches!(status, 201 | 204), "{status} {answer}");
        let rights = serde_json::json!({ "configure": configure, "write": write, "read": read });
        let path = format!("/api/permissions/{}/{}", bench.vhost, user.name);
        let (status, answer) = bench.manage("PUT", &path, Some(rights));
        assert!(matches!(status, 201 | 204), "{status} {answer}");
        user
    }
}

impl Drop for User<'_> {
    fn drop(&mut self) {
        let url = format!("{}/api/users/{}", self.bench.services.management, self.name);
        let _ = ureq_agent().delete(url).call();
    }
}

// === impl Dice ===

impl Dice {
    pub fn new(what: &str) -> Dice {
        let given = std::env::var("DWELL_TEST_SEED").ok().and_then(|s| s.parse().ok());
        let seed = given.unwrap_or_else(|| epoch_ms() ^ (u64::from(NEXT.fetch_add(1, Ordering::SeqCst)) << 48));
        println!("{what}: DWELL_TEST_SEED={seed}");
        Dice(seed)
    }

    /// From 0 to below `n` (splitmix64; its slight bias does not matter here).
    pub fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % n
    }
}

// === impl Private ===

impl Private {
    /// A Redis with its append-only file on. `None`, and noted as skipped, where a test may not start one.
    pub fn redis(test: &str, arguments: &[&str]) -> Option<Private> {
        Private::start_new("private-redis", test, arguments)
    }

    /// A RabbitMQ with management.
    pub fn rabbitmq(test: &str) -> Option<Private> {
        Private::start_new("private-rabbitmq", test, &[])
    }

    fn start_new(script: &'static str, test: &str, arguments: &[&str]) -> Option<Private> {
        if std::env::var("DWELL_TEST_SERVICES").is_ok_and(|s| s == "given") {
            skip(test, "it kills a server, and the servers are given");
            return None;
        }
        let dir = tempfile::Builder::new().prefix("dwell-test-server-").tempdir().expect("a temporary directory");
        let mut private = Private { script, dir, says: BTreeMap::new() };
        let out = private.call("start", arguments);
        if out.status.code() == Some(69) {
            skip(test, String::from_utf8_lossy(&out.stderr).lines().last().unwrap_or("not available"));
            return None;
        }
        private.hear(&out);
        Some(private)
    }

    pub fn kill(&self) {
        let out = self.call("kill", &[]);
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    }

    /// Brings it back after a kill: same ports, same data.
    pub fn start(&mut self) {
        let out = self.call("start", &[]);
        self.hear(&out);
    }

    /// SIGSTOP: it is there and says nothing.
    pub fn pause(&self) {
        assert!(self.call("pause", &[]).status.success());
    }

    pub fn resume(&self) {
        assert!(self.call("resume", &[]).status.success());
    }

    /// rabbitmqctl.
    pub fn ctl(&self, arguments: &[&str]) {
        let out = self.call("ctl", arguments);
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    }

    fn hear(&mut self, out: &std::process::Output) {
        assert!(out.status.success(), "{}: {}", self.script, String::from_utf8_lossy(&out.stderr));
        let text = String::from_utf8_lossy(&out.stdout).into_owned();
        self.says = text
            .lines()
            .filter_map(|line| line.split_once('='))
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .collect();
    }

    fn call(&self, verb: &str, arguments: &[&str]) -> std::process::Output {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts").join(self.script);
        Command::new(script)
            .arg(verb)
            .arg(self.dir.path())
            .args(arguments)
            .stdin(Stdio::null())
            .output()
            .expect("the script runs")
    }
}

impl Drop for Private {
    fn drop(&mut self) {
        // Nothing in it is wanted any more: killed first, as an orderly stop takes seconds; stop ends what is left.
        let _ = self.call("kill", &[]);
        let _ = self.call("stop", &[]);
    }
}
