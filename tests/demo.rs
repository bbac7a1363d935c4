//! The demo is a test: it passes where all is well, and notices where something is not.
//!
//! Needs the services of `make services`; without their addresses the runs are skipped by name.

#[allow(dead_code)] // The demo uses all of it.
#[path = "../examples/demo/ground.rs"]
mod ground;
#[allow(dead_code)] // The same.
#[path = "../examples/demo/table.rs"]
mod table;

use std::process::{Command, Output};
use std::time::Duration;

use table::{By, Came, Fault, Sent, Way, faults, render, verdict};

// === The whole demo, on the real services ===

#[test]
fn every_message_of_the_demo_comes_out_once_and_when_due() {
    let Some(demo) = run_demo("every_message_of_the_demo_comes_out_once_and_when_due", &[]) else { return };
    assert_eq!(demo.status.code(), Some(0), "{}", shown(&demo));
    let out = String::from_utf8_lossy(&demo.stdout);
    assert!(out.contains("All 8 came, each once, none early"), "{out}");
    assert!(!out.contains("MISSING"), "{out}");
    assert_nothing_is_left(&out);
}

#[test]
fn a_bridge_without_its_work_queues_binding_fails_the_demo() {
    let name = "a_bridge_without_its_work_queues_binding_fails_the_demo";
    let Some(demo) = run_demo(name, &["--break", "work"]) else { return };
    assert_eq!(demo.status.code(), Some(1), "{}", shown(&demo));
    let out = String::from_utf8_lossy(&demo.stdout);
    assert_eq!(out.matches("MISSING").count(), 7, "all but the rejected one: {out}");
    assert_eq!(out.matches("is missing").count(), 7, "{out}");
    assert_nothing_is_left(&out);
}

#[test]
fn a_tier_that_the_daemon_must_stand_in_for_fails_the_demo() {
    let name = "a_tier_that_the_daemon_must_stand_in_for_fails_the_demo";
    let Some(demo) = run_demo(name, &["--break", "tier"]) else { return };
    assert_eq!(demo.status.code(), Some(1), "{}", shown(&demo));
    let out = String::from_utf8_lossy(&demo.stdout);
    assert!(out.contains("a tier, as an integer (x-delay: 1000) should have come by RabbitMQ alone"), "{out}");
    assert!(!out.contains("MISSING"), "it comes all the same: {out}");
    assert_nothing_is_left(&out);
}

/// `examples/publish.py`, the example of the README, on `topology/orders.toml`.
#[tokio::test]
async fn the_python_example_publishes_and_consumes_ten_seconds_later() {
    let name = "the_python_example_publishes_and_consumes_ten_seconds_later";
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let python = root.join(".dev/venv/bin/python");
    if std::env::var_os("DWELL_TEST_AMQP_URL").is_none() || !python.exists() {
        return skip(name, "no services, or no .dev/venv: make services");
    }
    let mut ground = ground::Ground::prepare().unwrap();
    let topology = std::fs::read_to_string(root.join("topology/orders.toml")).unwrap();
    let program = std::path::Path::new(env!("CARGO_BIN_EXE_dwell"));
    ground.start_daemon(program, &topology, Duration::from_secs(2 * 86_400)).await.unwrap();

    let began = std::time::Instant::now();
    let mut command = Command::new(python);
    command.arg(root.join("examples/publish.py")).env("AMQP_URL", ground.amqp.as_str());
    let said = command.output().unwrap();
    assert!(said.status.success(), "{}", shown(&said));
    assert_eq!(String::from_utf8_lossy(&said.stdout), "order.4711.close close it unless it was paid\n");
    assert!(began.elapsed() >= Duration::from_secs(10), "it came early: {:?}", began.elapsed());
}

/// `None`: skipped, and said so.
fn run_demo(test: &str, arguments: &[&str]) -> Option<Output> {
    if std::env::var_os("DWELL_TEST_AMQP_URL").is_none() {
        skip(test, "no services: DWELL_TEST_AMQP_URL is not set");
        return None;
    }
    let mut command = Command::new(env!("CARGO"));
    command.current_dir(env!("CARGO_MANIFEST_DIR")).args(["run", "--quiet", "--example", "demo", "--"]);
    command.args(["--dwell", env!("CARGO_BIN_EXE_dwell")]).args(arguments);
    // What cargo tells a test about its package would make this cargo build ring anew, and all that needs it.
    for (name, _) in std::env::vars_os() {
        if ["CARGO_PKG_", "CARGO_MANIFEST_", "CARGO_BIN_"].iter().any(|own| name.to_string_lossy().starts_with(own)) {
            command.env_remove(name);
        }
    }
    Some(command.output().expect("cargo runs"))
}

/// As `make test` reads it.
fn skip(test: &str, why: &str) {
    let line = format!("SKIPPED demo::{test}: {why}\n");
    eprint!("{line}");
    if let Some(file) = std::env::var_os("DWELL_TEST_SKIPS") {
        use std::io::Write;
        let file = std::fs::OpenOptions::new().append(true).create(true).open(file);
        let _ = file.and_then(|mut file| file.write_all(line.as_bytes()));
    }
}

fn shown(demo: &Output) -> String {
    format!("{}\n{}", String::from_utf8_lossy(&demo.stdout), String::from_utf8_lossy(&demo.stderr))
}

/// Neither the vhost nor a key survives a run.
fn assert_nothing_is_left(out: &str) {
    let name: String = out
        .split_once("in the vhost ")
        .map(|(_, rest)| rest.chars().take_while(|c| !c.is_whitespace()).collect())
        .unwrap();
    assert!(name.starts_with("dwell-demo-"), "{name}");
    let management = std::env::var("DWELL_TEST_MANAGEMENT_URL").unwrap();
    let agent: ureq::Agent = ureq::Agent::config_builder().http_status_as_error(false).build().into();
    let vhost = agent.get(format!("{}/api/vhosts/{name}", management.trim_end_matches('/'))).call().unwrap();
    assert_eq!(vhost.status(), 404, "the vhost {name} is still there");

    let url = std::env::var("DWELL_TEST_REDIS_URL").unwrap();
    let mut redis = redis::Client::open(url).unwrap().get_connection().unwrap();
    let pattern = format!("{name}:*");
    let left: Vec<String> =
        redis::Commands::scan_match(&mut redis, pattern).unwrap().collect::<redis::RedisResult<_>>().unwrap();
    assert!(left.is_empty(), "{left:?}");
}

// === The table alone ===

fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

fn sent() -> Vec<Sent> {
    let sent = |name, header: &str, due, by| Sent { name, header: header.into(), at: ms(10), due, by };
    vec![
        sent("a tier", "x-delay: 1000", Some(ms(1010)), By::Broker),
        sent("off-tier", "x-delay: 1234", Some(ms(1244)), By::Dwell),
        sent("unreadable", "x-delay: \"soon\"", None, By::Rejected("invalid-delay")),
    ]
}

fn came(number: usize, at: u64, way: Way) -> Came {
    Came { number, at: ms(at), way, unchanged: true }
}

fn all_well() -> Vec<Came> {
    vec![
        came(2, 15, Way::Rejected("invalid-delay".into())),
        came(0, 1012, Way::Broker("orders.wait.1s".into())),
        came(1, 1247, Way::Dwell(ms(1236))),
    ]
}

#[test]
fn the_table_shows_way_due_time_arrival_and_lateness() {
    let rows = render(&sent(), &all_well());
    let rows: Vec<String> = rows.lines().map(|row| row.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
    assert_eq!(rows[2], "a tier x-delay: 1000 RabbitMQ alone (orders.wait.1s) 1.000 s 1.002 s 2.0 ms");
    assert_eq!(rows[3], "off-tier x-delay: 1234 dwell, held 1.2 s in Redis 1.234 s 1.237 s 3.0 ms");
    assert_eq!(rows[4], "unreadable x-delay: \"soon\" dwell.rejected: invalid-delay never 0.005 s");
    assert_eq!(faults(&sent(), &all_well()), []);
    assert!(verdict(&sent(), &[]).starts_with("All 3 came"));
}

#[test]
fn what_has_not_come_is_missing_and_says_so() {
    let nothing = render(&sent(), &[]);
    assert_eq!(nothing.matches("MISSING").count(), 3);
    let missing = faults(&sent(), &[]);
    assert_eq!(missing, [(0, Fault::Missing), (1, Fault::Missing), (2, Fault::Missing)]);
    assert!(verdict(&sent(), &missing).contains("off-tier (x-delay: 1234) is missing"));
}

#[test]
fn a_whole_millisecond_early_is_a_fault_and_the_brokers_rounding_is_none() {
    let mut early = all_well();
    early[1].at = Duration::from_micros(1_009_500);
    assert_eq!(faults(&sent(), &early), []);
    early[1].at = Duration::from_micros(1_008_900);
    assert!(matches!(faults(&sent(), &early)[..], [(0, Fault::Early(ms))] if (ms - 1.1).abs() < 0.01));
}

#[test]
fn copies_other_ways_and_changes_are_faults() {
    let mut twice = all_well();
    twice.push(twice[1].clone());
    assert_eq!(faults(&sent(), &twice), [(0, Fault::Copies(2))]);
    assert_eq!(render(&sent(), &twice).matches("orders.wait.1s").count(), 2, "each copy has its line");

    let mut detour = all_well();
    detour[1].way = Way::Tier("orders.wait.1s".into());
    assert_eq!(faults(&sent(), &detour), [(0, Fault::OtherWay)]);

    let mut other_reason = all_well();
    other_reason[0].way = Way::Rejected("delay-too-large".into());
    assert_eq!(faults(&sent(), &other_reason), [(2, Fault::OtherWay)]);

    let mut changed = all_well();
    changed[2].unchanged = false;
    assert_eq!(faults(&sent(), &changed), [(1, Fault::Changed)]);
}
