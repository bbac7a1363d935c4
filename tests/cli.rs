//! The binary as a shell sees it: output and exit code of each command.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use tempfile::TempDir;

const GOOD: &str = r#"
version = 1

[bridge.orders]
tiers = ["10s", "1m"]

[[bridge.orders.queue]]
name = "orders.close"
bind = ["order.*.close"]
"#;

#[test]
fn help_and_version_are_no_errors() {
    for args in [
        &["--help"][..],
        &["--version"],
        &["run", "--help"],
        &["check", "--help"],
        &["plan", "--help"],
        &["doctor", "--help"],
        &["init", "--help"],
        &["export", "definitions", "--help"],
        &["send", "--help"],
    ] {
        let output = dwell(Path::new("."), args);
        assert_eq!(code(&output), 0, "{args:?}");
        assert!(output.stderr.is_empty() && !output.stdout.is_empty(), "{args:?}");
    }
}

#[test]
fn a_wrong_command_line_is_usage() {
    for args in [
        &[][..],
        &["frobnicate"],
        &["run", "--nonsense"],
        &["send", "--routing-key", "k", "body"],
        &["send", "--exchange", "e", "--routing-key", "k"],
        // A typo is no body.
        &["send", "--exchange", "e", "--routing-key", "k", "--dely"],
        &["send", "--exchange", "e", "--routing-key", "k", "--delay", "5s", "--at", "2030-01-01T00:00:00Z", "body"],
        &["send", "--exchange", "e", "--routing-key", "k", "--file", "f", "body"],
    ] {
        let output = dwell(Path::new("."), args);
        assert_eq!((code(&output), stdout(&output).as_str()), (64, ""), "{args:?}");
        assert!(!output.stderr.is_empty(), "{args:?}");
    }
}

#[test]
fn what_cannot_be_understood_in_a_message_is_usage_with_a_hint() {
    let output = dwell(Path::new("."), &["send", "--exchange", "e", "--routing-key", "k", "--delay", "7", "body"]);
    assert_eq!(code(&output), 64);
    let text = stderr(&output);
    assert!(text.contains("`7` has no unit") && text.contains("--delay") && text.contains("`7d`"), "{text}");
}

#[test]
fn a_good_folder_is_summed_up() {
    let folder = folder(&[("topology/orders.toml", GOOD)]);
    let output = dwell(folder.path(), &["check"]);
    assert_eq!((code(&output), stderr(&output).as_str()), (0, ""));
    assert_eq!(
        stdout(&output),
        "1 bridge, 2 tiers, 1 work queue: all well\n  orders: orders.delay → tiers 10s 1m → orders → orders.close\n"
    );
}

#[test]
fn init_writes_a_pair_that_is_well_and_never_over_anything() {
    let folder = folder(&[]);
    let output = dwell(folder.path(), &["init"]);
    assert_eq!((code(&output), stderr(&output).as_str()), (0, ""));
    let said = stdout(&output);
    for file in ["topology/orders.toml", "topology/dwell.schema.json", "config/dwell.toml"] {
        assert!(said.contains(file) && folder.path().join(file).is_file(), "{file}: {said}");
    }
    let output = dwell(folder.path(), &["check"]);
    assert_eq!((code(&output), stderr(&output).as_str()), (0, ""), "what it writes is well");

    std::fs::remove_file(folder.path().join("topology/orders.toml")).expect("removed");
    let output = dwell(folder.path(), &["init"]);
    assert_eq!((code(&output), stdout(&output).as_str()), (4, ""));
    assert!(stderr(&output).contains("config/dwell.toml exists already"), "{}", stderr(&output));
    assert!(!folder.path().join("topology/orders.toml").exists(), "nothing was written");
    let output = dwell(folder.path(), &["init", "elsewhere"]);
    assert_eq!(code(&output), 0);
    assert!(folder.path().join("elsewhere/topology/orders.toml").is_file());
}

#[test]
fn schema_prints_the_schema() {
    let output = dwell(Path::new("."), &["schema"]);
    assert_eq!((code(&output), stderr(&output).as_str()), (0, ""));
    let schema: serde_json::Value = serde_json::from_str(&stdout(&output)).expect("JSON");
    assert_eq!(schema["$schema"], "https://json-schema.org/draft/2020-12/schema");
}

#[test]
fn problems_of_settings_and_topology_come_in_one_run() {
    let folder = folder(&[
        ("topology/orders.toml", &GOOD.replace("\"10s\"", "10")),
        ("config/dwell.toml", "[pump]\nbatch = 0\n"),
    ]);
    let output = dwell(folder.path(), &["check"]);
    assert_eq!((code(&output), stdout(&output).as_str()), (65, ""));
    let text = stderr(&output);
    assert!(text.contains("topology/orders.toml:5") && text.contains("config/dwell.toml:2"), "{text}");
}

#[test]
fn check_answers_in_json() {
    let folder = folder(&[("topology/orders.toml", GOOD)]);
    let output = dwell(folder.path(), &["check", "--json"]);
    let json: serde_json::Value = serde_json::from_str(&stdout(&output)).expect("JSON");
    assert_eq!(
        json,
        serde_json::json!({ "ok": true, "problems": [], "bridges": [{
            "name": "orders", "exchange": "orders.delay", "work_exchange": "orders",
            "tiers": ["10s", "1m"], "queues": ["orders.close"],
        }] })
    );

    let bad = self::folder(&[("topology/orders.toml", &GOOD.replace("tiers", "tires"))]);
    let output = dwell(bad.path(), &["check", "--json"]);
    assert_eq!((code(&output), stderr(&output).as_str()), (65, ""));
    let json: serde_json::Value = serde_json::from_str(&stdout(&output)).expect("JSON");
    assert_eq!((&json["ok"], &json["problems"][0]["code"]), (&false.into(), &"unknown-key".into()), "{json}");
}

#[test]
fn files_that_are_named_must_be_there() {
    let folder = folder(&[("topology/orders.toml", GOOD)]);
    assert_eq!(code(&dwell(folder.path(), &["check", "--config", "absent.toml"])), 65);
    assert_eq!(code(&dwell(folder.path(), &["check", "--topology", "absent"])), 65);
    assert_eq!(code(&dwell(folder.path(), &["run", "--topology", "absent"])), 65);
    let send = ["send", "--exchange", "e", "--routing-key", "k", "--file", "absent"];
    let output = dwell(folder.path(), &send);
    assert_eq!(code(&output), 65);
    assert!(stderr(&output).contains("the body cannot be read from absent"), "{}", stderr(&output));
}

#[test]
fn a_flag_wins_over_the_file_and_its_mistakes_name_it() {
    let folder =
        folder(&[("topology/orders.toml", GOOD), ("config/dwell.toml", "[http]\nlisten = \"0.0.0.0:8672\"\n")]);
    // Beyond this machine a token is needed.
    assert_eq!(code(&dwell(folder.path(), &["check"])), 65);
    assert_eq!(code(&dwell(folder.path(), &["check", "--http-listen", "127.0.0.1:0"])), 0);
    let output = dwell(folder.path(), &["check", "--http-listen", "nowhere"]);
    assert_eq!(code(&output), 65);
    assert!(stderr(&output).contains("--http-listen"), "{}", stderr(&output));
}

#[test]
fn a_password_is_never_printed() {
    let folder = folder(&[("topology/orders.toml", GOOD)]);
    let url = "amqp://guest:s3cret@127.0.0.1:1/%zz";
    let output = dwell(folder.path(), &["check", "--amqp-url", url]);
    assert_eq!(code(&output), 65);
    assert!(!stderr(&output).contains("s3cret"), "{}", stderr(&output));
}

/// Port 1 of this machine: nobody listens there.
#[test]
fn a_broker_out_of_reach_is_said_so() {
    let folder = folder(&[]);
    let output = dwell(
        folder.path(),
        &["send", "--url", "amqp://127.0.0.1:1/%2f", "--exchange", "e", "--routing-key", "k", "--json", "body"],
    );
    assert_eq!(code(&output), 69, "{}", stderr(&output));
    let json: serde_json::Value = serde_json::from_str(&stdout(&output)).expect("JSON");
    assert_eq!((&json["confirmed"], &json["bytes"]), (&false.into(), &4.into()), "{json}");
}

#[test]
fn a_body_comes_from_the_argument_a_file_or_standard_input() {
    let folder = folder(&[("body.bin", "seven b")]);
    let send = |how: &[&str]| {
        let to = ["send", "--json", "--url", "amqp://127.0.0.1:1/%2f", "--exchange", "e", "--routing-key", "k"];
        let mut child = command(folder.path(), &[&to, how].concat())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("dwell starts");
        // It may be over before it reads anything.
        let _ = child.stdin.take().expect("piped").write_all(b"from stdin");
        let output = child.wait_with_output().expect("it ends");
        let json: serde_json::Value = serde_json::from_str(&stdout(&output)).expect("JSON");
        json["bytes"].clone()
    };
    assert_eq!(send(&["four"]), 4);
    assert_eq!(send(&["--file", "body.bin"]), 7);
    assert_eq!(send(&["-"]), 10);
    assert_eq!(send(&[""]), 0);
    // A body that looks like a flag.
    assert_eq!(send(&["--", "--x"]), 3);
}

/// Cases B123 and B139: no broker is a reason not to be ready, not to die; and SIGTERM ends the daemon in order.
#[test]
fn a_daemon_without_a_broker_lives_is_not_ready_and_stops_when_told() {
    let folder = folder(&[("topology/orders.toml", GOOD)]);
    let mut daemon = Daemon::start(folder.path(), "amqp://127.0.0.1:1/%2f");
    assert_eq!(daemon.get("/healthz"), "HTTP/1.1 200 OK");
    assert_eq!(daemon.get("/readyz"), "HTTP/1.1 503 Service Unavailable");
    daemon.signal("TERM");
    assert_eq!(daemon.0.wait().expect("it ends").code(), Some(0));
}

#[test]
fn an_address_in_use_is_unavailable() {
    let folder = folder(&[("topology/orders.toml", GOOD)]);
    let taken = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = taken.local_addr().expect("bound").to_string();
    let output = dwell(folder.path(), &["run", "--amqp-url", "amqp://127.0.0.1:1/%2f", "--http-listen", &address]);
    assert_eq!(code(&output), 69);
    assert!(stderr(&output).contains("the address is in use"), "{}", stderr(&output));
}

#[test]
fn a_reader_that_goes_away_is_no_crash() {
    let folder = folder(&[("topology/orders.toml", GOOD)]);
    let mut child = command(folder.path(), &["check"]).stdout(Stdio::piped()).spawn().expect("dwell starts");
    drop(child.stdout.take());
    assert_eq!(child.wait().expect("it ends").code(), Some(0));
}

// === The daemon ===

/// A daemon and its HTTP address; killed if a test fails before it ended.
struct Daemon(Child, SocketAddr);

impl Daemon {
    fn start(folder: &Path, amqp_url: &str) -> Daemon {
        // Free a moment ago. Somebody else may take it, and then the daemon says so and the test fails aloud.
        let free = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = free.local_addr().expect("bound");
        drop(free);
        let args = ["run", "--amqp-url", amqp_url, "--http-listen", &address.to_string()];
        let child = command(folder, &args).stderr(Stdio::null()).spawn().expect("dwell starts");
        let mut daemon = Daemon(child, address);
        while TcpStream::connect(address).is_err() {
            assert_eq!(daemon.0.try_wait().expect("its state"), None, "it ended before it listened");
            std::thread::yield_now();
        }
        daemon
    }

    /// The status line.
    fn get(&self, path: &str) -> String {
        let mut stream = TcpStream::connect(self.1).expect("it listens");
        write!(stream, "GET {path} HTTP/1.1\r\nHost: dwell\r\nConnection: close\r\n\r\n").expect("sent");
        let mut text = String::new();
        stream.read_to_string(&mut text).expect("an answer");
        text.lines().next().unwrap_or_default().to_owned()
    }

    fn signal(&self, name: &str) {
        let kill = Command::new("kill").args(["-s", name, &self.0.id().to_string()]).status().expect("kill runs");
        assert!(kill.success());
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

// === Helpers ===

fn dwell(folder: &Path, args: &[&str]) -> Output {
    command(folder, args).output().expect("dwell starts")
}

/// With nothing of the caller's environment that dwell would read.
fn command(folder: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_dwell"));
    command.current_dir(folder).args(args).stdin(Stdio::null());
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("DWELL_") {
            command.env_remove(name);
        }
    }
    command
}

fn folder(files: &[(&str, &str)]) -> TempDir {
    let folder = TempDir::new().expect("a temporary folder");
    for (name, text) in files {
        let path = folder.path().join(name);
        std::fs::create_dir_all(path.parent().expect("inside the folder")).expect("a folder");
        std::fs::File::create(path).and_then(|mut file| file.write_all(text.as_bytes())).expect("a file");
    }
    folder
}

fn code(output: &Output) -> i32 {
    output.status.code().expect("it ended by itself")
}

fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}
