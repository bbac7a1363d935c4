//! The ground that the demo stands on: a vhost, a key prefix and a daemon of its own, all gone afterwards.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::json;
use tempfile::TempDir;
use url::Url;

/// What goes wrong, in words for the person at the terminal.
pub type Trouble = Box<dyn std::error::Error + Send + Sync>;

/// The bridge of the demo.
#[allow(dead_code)] // A test stands on this ground too, with a topology of its own.
pub const TOPOLOGY: &str = r#"version = 1

[bridge.orders]
tiers         = ["1s", "2s"]
default_delay = "1s"

[[bridge.orders.queue]]
name = "orders.close"
bind = ["order.*.close"]
"#;

/// Dropping it stops the daemon and deletes vhost, keys and files, whatever happened before.
pub struct Ground {
    /// Vhost and key prefix have the same name.
    pub name: String,
    /// RabbitMQ, in the demo's vhost.
    pub amqp: Url,
    redis: Url,
    management: Management,
    folder: TempDir,
    daemon: Option<Child>,
}

/// RabbitMQ's management API, as far as the demo needs it.
struct Management {
    base: Url,
    agent: ureq::Agent,
}

/// How long the daemon may take to be ready.
const READY_WITHIN: Duration = Duration::from_secs(20);

/// How long it may take to stop.
const STOP_WITHIN: Duration = Duration::from_secs(5);

// === impl Ground ===

impl Ground {
    /// Makes the vhost, on the services that `DWELL_TEST_*` name.
    pub fn prepare() -> Result<Ground, Trouble> {
        let (mut amqp, redis) = (address("DWELL_TEST_AMQP_URL")?, address("DWELL_TEST_REDIS_URL")?);
        let management = Management::new(address("DWELL_TEST_MANAGEMENT_URL")?);
        let random = uuid::Uuid::now_v7().simple().to_string();
        let name = format!("dwell-demo-{}", &random[24..]);
        let user = if amqp.username().is_empty() { "guest".to_owned() } else { amqp.username().to_owned() };
        amqp.set_path(&format!("/{name}"));
        let folder = tempfile::Builder::new().prefix("dwell-demo-").tempdir()?;
        // From here on there is something to clean up.
        let ground = Ground { name, amqp, redis, management, folder, daemon: None };
        ground.management.put(&["vhosts", &ground.name], &json!({}))?;
        let all = json!({ "configure": ".*", "write": ".*", "read": ".*" });
        ground.management.put(&["permissions", &ground.name, &user], &all)?;
        Ok(ground)
    }

    /// Writes settings and topology, starts the daemon on them and waits until it is ready.
    pub async fn start_daemon(
        &mut self,
        program: &Path,
        topology_file: &str,
        broker_limit: Duration,
    ) -> Result<(), Trouble> {
        // Taken and given back: another process may take it in between, and the daemon then says so.
        let http = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
        let settings = self.folder.path().join("dwell.toml");
        let topology = self.folder.path().join("topology");
        std::fs::write(
            &settings,
            format!(
                "[amqp]\nurl = {:?}\n\n[redis]\nurl = {:?}\nkey_prefix = {:?}\n\n[delay]\nbroker_limit = \"{}ms\"\n\n\
                 [http]\nlisten = \"{http}\"\n",
                self.amqp.as_str(),
                self.redis.as_str(),
                self.name,
                broker_limit.as_millis()
            ),
        )?;
        std::fs::create_dir(&topology)?;
        std::fs::write(topology.join("orders.toml"), topology_file)?;

        let log = File::create(self.log())?;
        let mut command = Command::new(program);
        command.arg("run").arg("--config").arg(&settings).arg("--topology").arg(&topology);
        // Settings of somebody's own daemon must not reach this one.
        for (variable, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("DWELL_")) {
            command.env_remove(variable);
        }
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        self.daemon = Some(command.spawn().map_err(|e| format!("{} cannot be started: {e}", program.display()))?);

        let ready = format!("http://{http}/readyz");
        let deadline = Instant::now() + READY_WITHIN;
        let mut answer = "no answer".to_owned();
        while Instant::now() < deadline {
            if let Some(status) = self.daemon.as_mut().and_then(|daemon| daemon.try_wait().ok().flatten()) {
                return Err(format!("the daemon ended with {status} instead of getting ready").into());
            }
            match self.management.agent.get(&ready).call() {
                Ok(response) if response.status() == 200 => return Ok(()),
                Ok(mut response) => answer = response.body_mut().read_to_string().unwrap_or_default(),
                Err(_) => {}
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Err(format!("the daemon is not ready after {} s: {}", READY_WITHIN.as_secs(), answer.trim()).into())
    }

    /// The last lines that the daemon wrote, for when something went wrong.
    #[must_use]
    pub fn last_words(&self) -> String {
        const TAIL: u64 = 4000;
        let mut text = Vec::new();
        if let Ok(mut file) = File::open(self.log()) {
            let length = file.metadata().map_or(0, |m| m.len());
            let _ = file.seek(SeekFrom::Start(length.saturating_sub(TAIL)));
            let _ = file.read_to_end(&mut text);
        }
        String::from_utf8_lossy(&text).into_owned()
    }

    fn log(&self) -> PathBuf {
        self.folder.path().join("dwell.log")
    }

    /// Asks the daemon to stop, by its pid, and insists after a while.
    fn stop_daemon(&mut self) {
        let Some(mut daemon) = self.daemon.take() else { return };
        let asked = Command::new("kill").arg(daemon.id().to_string()).status().is_ok_and(|status| status.success());
        let deadline = Instant::now() + STOP_WITHIN;
        while asked && Instant::now() < deadline {
            if !matches!(daemon.try_wait(), Ok(None)) {
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        let _ = daemon.kill();
        let _ = daemon.wait();
    }

    fn delete_keys(&self) -> redis::RedisResult<()> {
        let mut connection = redis::Client::open(self.redis.as_str())?.get_connection()?;
        let pattern = format!("{}:*", self.name);
        let keys: Vec<Vec<u8>> =
            redis::Commands::scan_match(&mut connection, pattern)?.collect::<redis::RedisResult<_>>()?;
        for key in keys {
            redis::cmd("UNLINK").arg(key).exec(&mut connection)?;
        }
        Ok(())
    }
}

impl Drop for Ground {
    fn drop(&mut self) {
        self.stop_daemon();
        if let Err(error) = self.management.delete(&["vhosts", &self.name]) {
            eprintln!("the vhost {} could not be deleted: {error}", self.name);
        }
        if let Err(error) = self.delete_keys() {
            eprintln!("the keys {}:* could not be deleted: {error}", self.name);
        }
    }
}

// === impl Management ===

impl Management {
    fn new(base: Url) -> Management {
        let config =
            ureq::Agent::config_builder().timeout_global(Some(Duration::from_secs(5))).http_status_as_error(false);
        Management { base, agent: config.build().into() }
    }

    fn put(&self, path: &[&str], body: &serde_json::Value) -> Result<(), Trouble> {
        let url = self.url(path)?;
        answered(self.agent.put(url.as_str()).send_json(body), &url)
    }

    fn delete(&self, path: &[&str]) -> Result<(), Trouble> {
        let url = self.url(path)?;
        answered(self.agent.delete(url.as_str()).call(), &url)
    }

    fn url(&self, path: &[&str]) -> Result<Url, Trouble> {
        let mut url = self.base.clone();
        url.path_segments_mut().map_err(|()| "no http address")?.pop_if_empty().push("api").extend(path);
        Ok(url)
    }
}

// === Helpers ===

fn answered(answer: Result<ureq::http::Response<ureq::Body>, ureq::Error>, url: &Url) -> Result<(), Trouble> {
    // The address without its password.
    let shown = format!("{}{}", url.authority().rsplit('@').next().unwrap_or_default(), url.path());
    match answer {
        Ok(response) if response.status().is_success() => Ok(()),
        Ok(response) => Err(format!("{shown} answered {}", response.status()).into()),
        Err(error) => Err(format!("{shown}: {error}").into()),
    }
}

fn address(variable: &str) -> Result<Url, Trouble> {
    let text = std::env::var(variable)
        .map_err(|_| format!("{variable} is not set; `make demo` starts the services and sets it"))?;
    text.parse().map_err(|e| format!("{variable} is no address: {e}").into())
}
