//! The doctor finds what is wrong with a live system, and nothing on a healthy one.

use lapin::options::{ExchangeDeleteOptions, QueueDeleteOptions};
use lapin::types::{AMQPValue, FieldTable};
use serde_json::{Value as Json, json};

use crate::support::{Bench, Private, SOON, Services, User, text, until};

const ONE: &str = "version = 1\n[bridge.b]\ntiers = [\"1s\"]\n[[bridge.b.queue]]\nname = \"work\"\nbind = [\"#\"]\n";

fn bench(name: &str) -> Bench {
    let mut bench = Bench::new(name, ONE);
    bench.managed();
    let said = bench.run(&["apply"]);
    assert_eq!(said.code, Some(0), "{}{}", said.out, said.err);
    bench
}

/// The codes of the findings that break a promise, and of those that do not.
fn found(bench: &Bench, environment: &[(&str, &str)]) -> (Vec<String>, Vec<String>, Json) {
    let said = bench.run_with(&["doctor", "--json"], environment);
    let json: Json = serde_json::from_str(&said.out).unwrap_or_else(|e| panic!("{e}: {}{}", said.out, said.err));
    let codes = |breaks: bool| -> Vec<String> {
        let list = json["findings"].as_array().expect("a list").iter().filter(|f| f["breaks"] == breaks);
        list.filter_map(|f| f["code"].as_str()).map(ToOwned::to_owned).collect()
    };
    let (broken, notes) = (codes(true), codes(false));
    assert_eq!(said.code, Some(i32::from(!broken.is_empty())), "1 only where a promise breaks: {json}");
    assert_eq!(json["well"], broken.is_empty());
    (broken, notes, json)
}

fn set_policy(bench: &Bench, kind: &str, name: &str, pattern: &str, definition: &Json) {
    let path = format!("/api/{kind}/{}/{name}", bench.vhost);
    let body = json!({ "pattern": pattern, "definition": definition, "apply-to": "queues" });
    let (status, answer) = bench.manage("PUT", &path, Some(body));
    assert!(matches!(status, 201 | 204), "{status} {answer}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_wrong_with_a_healthy_system() {
    let bench = bench("well");
    let (broken, notes, json) = found(&bench, &[]);
    assert!(broken.is_empty(), "{json}");
    // What cannot be helped on these versions.
    assert!(notes.iter().all(|note| ["loss-window", "priority-late"].contains(&note.as_str())), "{json}");
    let said = bench.run(&["check", "--broker"]);
    assert_eq!(said.code, Some(0), "{}", said.out);
    assert!(said.out.contains("all well") && said.out.contains("Nothing breaks a promise"), "{}", said.out);
}

/// Case B35: a policy that limits a buffer queue makes messages early; the doctor finds it, and `run` refuses to begin.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b35_policies_that_end_messages_in_dwells_own_queues_are_found_and_refused() {
    let bench = bench("policies");
    for (kind, key, value) in [
        ("policies", "max-length", 2),
        ("policies", "message-ttl", 100),
        ("policies", "expires", 1_800_000),
        ("operator-policies", "max-length-bytes", 1000),
    ] {
        set_policy(&bench, kind, "trap", r"^b\.(wait|intake)", &json!({ key: value }));
        until("the policy is in force", SOON, async || {
            let queue = bench.look("queues", "/b.wait.1s");
            queue["effective_policy_definition"].get(key).is_some().then_some(())
        })
        .await;
        let (broken, _, json) = found(&bench, &[]);
        assert!(broken.contains(&"queue-limit".to_owned()), "{json}");
        let text = json.to_string();
        for words in ["'trap'", "'b.wait.1s'", "'b.intake'", key] {
            assert!(text.contains(words), "{words} is not in {text}");
        }
        let mut daemon = bench.start(&[]);
        assert_eq!(daemon.exit(SOON).await, Some(4), "{}", daemon.log());
        assert!(daemon.log().contains("queue-limit") && daemon.log().contains(key), "{}", daemon.log());
        let (status, _) = bench.manage("DELETE", &format!("/api/{kind}/{}/trap", bench.vhost), None);
        assert_eq!(status, 204);
    }
    // On a work queue it is its owner's decision, and worth knowing.
    set_policy(&bench, "policies", "limit", "^work$", &json!({ "max-length": 1000 }));
    until("the policy is in force", SOON, async || {
        (bench.look("queues", "/work")["effective_policy_definition"]["max-length"] == 1000).then_some(())
    })
    .await;
    let (broken, notes, json) = found(&bench, &[]);
    assert!(broken.is_empty() && notes.contains(&"work-queue-limit".to_owned()), "{json}");
    let mut daemon = bench.daemon().await;
    daemon.stop().await;
}

/// Case B47, and its kind: what was deleted by hand is named.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_missing_or_leads_two_ways_is_named() {
    let bench = bench("missing");
    let client = bench.client().await;
    let channel = client.channel().await;
    channel.exchange_delete("b".into(), ExchangeDeleteOptions::default()).await.expect("deleted");
    channel.queue_delete("b.intake.late".into(), QueueDeleteOptions::default()).await.expect("deleted");
    let mut arguments = FieldTable::default();
    arguments.insert("x-match".into(), text("all-with-x"));
    arguments.insert("x-delay".into(), AMQPValue::LongLongInt(1000));
    channel.queue_unbind("b.wait.1s".into(), "b.tiers".into(), "".into(), arguments).await.expect("unbound");
    let (broken, _, json) = found(&bench, &[]);
    assert_eq!(broken, ["missing"], "{json}");
    let what = json["findings"][0]["what"].as_str().expect("a text");
    for words in ["exchange 'b'", "queue 'b.intake.late'"] {
        assert!(what.contains(words), "{words} is not in {what}");
    }
    // The daemon mends it by itself; without the management API what exists is still looked for.
    let mut daemon = bench.daemon().await;
    daemon.stop().await;
    assert!(found(&bench, &[]).0.is_empty());
    channel.queue_delete("work".into(), QueueDeleteOptions::default()).await.expect("deleted");
    let (broken, notes, json) = found(&bench, &[("DWELL_MANAGEMENT__URL", "http://guest:guest@127.0.0.1:9")]);
    assert_eq!(broken, ["missing"], "{json}");
    assert!(notes.contains(&"management".to_owned()), "{json}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rights_that_are_missing_are_named() {
    let bench = bench("rights-found");
    let user = User::with_rights(&bench, "poor", "poor", ["", "^b$", ".*"]);
    let mut url = url::Url::parse(&bench.amqp_url()).expect("a url");
    url.set_username(&user.name).expect("a name");
    url.set_password(Some("poor")).expect("a password");
    let (broken, _, json) = found(&bench, &[("DWELL_AMQP__URL", url.as_str())]);
    assert_eq!(broken, ["rights", "rights"], "configure and write: {json}");
    let (broken, _, json) = found(&bench, &[("DWELL_AMQP__URL", url.as_str()), ("DWELL_RUN__TOPOLOGY", "verify")]);
    assert_eq!(broken, ["rights"], "who declares nothing needs no configure: {json}");
    assert!(json.to_string().contains("may not write"), "{json}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redis_that_would_lose_messages_is_found() {
    for (name, arguments, code, words) in [
        ("evicts", &["--maxmemory-policy", "allkeys-lru"][..], "store", "allkeys-lru"),
        ("volatile", &["--appendonly", "no"][..], "store", "appendonly"),
    ] {
        let Some(redis) = Private::redis("doctor::a_redis_that_would_lose_messages_is_found", arguments) else {
            return;
        };
        let mut bench = Bench::on(Services::given().with_redis(&redis), name, ONE);
        bench.managed();
        bench.run(&["apply"]);
        let (broken, _, json) = found(&bench, &[]);
        assert_eq!(broken, [code], "{json}");
        assert!(json.to_string().contains(words), "{words} is not in {json}");
        redis.kill();
        let (broken, _, json) = found(&bench, &[]);
        assert_eq!(broken, ["store"], "{json}");
    }
    let bench = bench("no-broker");
    let said = bench.run_with(&["doctor"], &[("DWELL_AMQP__URL", "amqp://guest:guest@127.0.0.1:9/%2f")]);
    assert_eq!(said.code, Some(69), "{}", said.err);
}
