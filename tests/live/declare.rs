//! The topology in the broker: declared as a whole, twice without a change, with every conflict said.

use lapin::ExchangeKind;
use lapin::options::{ExchangeDeclareOptions, QueueDeclareOptions};
use lapin::types::{AMQPValue, FieldTable};
use serde_json::Value as Json;

use crate::support::{Bench, Out, SOON, ms, text, until};

const ONE: &str = r##"
version = 1

[bridge.b]
tiers = ["500ms", "1s"]

[[bridge.b.queue]]
name = "work"
bind = ["job.#"]

[[bridge.b.queue]]
name = "audit"
bind = ["#"]
"##;

fn names(list: &Json) -> Vec<String> {
    let mut names: Vec<String> = list
        .as_array()
        .expect("a list")
        .iter()
        .map(|object| object["name"].as_str().unwrap_or_default().to_owned())
        .filter(|name| !name.starts_with("amq.") && !name.is_empty())
        .collect();
    names.sort();
    names
}

fn bindings(bench: &Bench) -> Vec<String> {
    let mut all: Vec<String> = bench
        .look("bindings", "")
        .as_array()
        .expect("a list")
        .iter()
        .map(|b| format!("{} {} {} {}", b["source"], b["destination"], b["routing_key"], b["arguments"]))
        .collect();
    all.sort();
    all
}

/// Cases B39, B40, B44: each conflict names the object, the argument and both values; everything else is declared.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b39_b40_b44_conflicts_are_refused_by_name_and_the_rest_is_declared() {
    let bench = Bench::new("conflict", ONE);
    let client = bench.client().await;
    let durable = QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() };
    let mut classic = FieldTable::default();
    classic.insert("x-queue-type".into(), text("classic"));
    client.channel().await.queue_declare("work".into(), durable, classic).await.expect("declared");
    let mut other_ttl = FieldTable::default();
    for (name, value) in [
        ("x-queue-type", text("quorum")),
        ("x-dead-letter-exchange", text("b")),
        ("x-dead-letter-strategy", text("at-least-once")),
        ("x-overflow", text("reject-publish")),
        ("x-message-ttl", AMQPValue::LongLongInt(999)),
    ] {
        other_ttl.insert(name.into(), value);
    }
    client.channel().await.queue_declare("b.wait.1s".into(), durable, other_ttl).await.expect("declared");
    let options = ExchangeDeclareOptions { durable: true, ..ExchangeDeclareOptions::default() };
    let channel = client.channel().await;
    channel.exchange_declare("b".into(), ExchangeKind::Direct, options, FieldTable::default()).await.expect("declared");

    let mut daemon = bench.start(&[]);
    assert_eq!(daemon.exit(SOON).await, Some(4), "{}", daemon.log());
    let log = daemon.log();
    for words in ["queue 'work'", "'b.failed'", "x-message-ttl", "'999'", "'1000'", "exchange 'b'", "direct", "topic"] {
        assert!(log.contains(words), "{words} is not in:\n{log}");
    }
    // A buffer queue that is otherwise is no conflict: its successor takes its place.
    assert!(log.contains("successor=b.wait.1s.2"), "{log}");
    let queues = names(&bench.look("queues", ""));
    for queue in [
        "audit",
        "b.wait.500ms",
        "b.wait.1s.2",
        "b.intake",
        "b.intake.late",
        "b.unrouted",
        "b.failed",
        "dwell.rejected",
    ] {
        assert!(queues.contains(&queue.to_owned()), "{queue} is not among {queues:?}");
    }
    assert!(names(&bench.look("exchanges", "")).contains(&"b.delay".to_owned()));
}

/// Cases B38, B39, B51, B75: the same TTL in another integer width is no conflict; a second start changes nothing; no
/// buffer queue expires or has a limit, and each queue says its type and strategy.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b38_b39_b51_b75_declaring_again_changes_nothing_whatever_the_integers_width() {
    let bench = Bench::new("again", ONE);
    let client = bench.client().await;
    let mut narrow = FieldTable::default();
    for (name, value) in [
        ("x-queue-type", text("quorum")),
        ("x-dead-letter-exchange", text("b")),
        ("x-dead-letter-strategy", text("at-least-once")),
        ("x-overflow", text("reject-publish")),
        ("x-message-ttl", AMQPValue::LongInt(1000)),
    ] {
        narrow.insert(name.into(), value);
    }
    let durable = QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() };
    client.channel().await.queue_declare("b.wait.1s".into(), durable, narrow).await.expect("declared");

    let mut first = bench.daemon().await;
    first.stop().await;
    let (queues, exchanges, bound) = (bench.look("queues", ""), names(&bench.look("exchanges", "")), bindings(&bench));
    for queue in queues.as_array().expect("a list") {
        let (name, arguments) = (&queue["name"], &queue["arguments"]);
        assert_eq!(arguments["x-queue-type"], "quorum", "{name}");
        assert_eq!(queue["durable"], true, "{name}");
        for never in ["x-expires", "x-max-length", "x-max-length-bytes"] {
            assert!(arguments.get(never).is_none(), "{name} has {never}");
        }
        if arguments.get("x-dead-letter-exchange").is_some() {
            assert_eq!(arguments["x-dead-letter-strategy"], "at-least-once", "{name}");
            assert_eq!(arguments["x-overflow"], "reject-publish", "{name}");
        }
        if name.as_str().is_some_and(|n| n.contains(".wait.")) {
            assert_eq!(arguments["x-dead-letter-exchange"], "b", "{name}");
            assert!(arguments.get("x-dead-letter-routing-key").is_none(), "{name}");
        }
    }
    assert_eq!(
        queues.as_array().expect("a list").iter().find(|q| q["name"] == "work").expect("work")["arguments"]["x-delivery-limit"],
        20
    );

    let mut second = bench.daemon().await;
    second.stop().await;
    assert_eq!(names(&bench.look("queues", "")), names(&queues));
    assert_eq!(names(&bench.look("exchanges", "")), exchanges);
    assert_eq!(bindings(&bench), bound);
}

/// Cases B54 and B47: what somebody has deleted is back with the next connection.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b54_a_deleted_binding_and_a_deleted_queue_are_back_after_a_reconnect() {
    let mut bench = Bench::new("deleted", ONE);
    let mut proxy = bench.amqp_proxy();
    proxy.up().await;
    let mut daemon = bench.daemon().await;
    let before = bindings(&bench);
    let client = bench.client().await;
    let channel = client.channel().await;
    channel.queue_unbind("work".into(), "b".into(), "job.#".into(), FieldTable::default()).await.expect("unbound");
    channel.queue_delete("audit".into(), lapin::options::QueueDeleteOptions::default()).await.expect("deleted");
    channel.queue_delete("b.wait.1s".into(), lapin::options::QueueDeleteOptions::default()).await.expect("deleted");
    assert_ne!(bindings(&bench), before);
    proxy.cut().await;
    until("all is back", SOON, async || (bindings(&bench) == before).then_some(())).await;
    daemon.ready().await;
    let work = client.collect("work").await;
    let sent = client.publish(&Out::new("b.delay", "job.x", "tier").delay_ms(1000)).await;
    work.wait_for("tier", SOON).await.is_on_time(sent, ms(1000));
    bench.ends_empty("b", std::slice::from_mut(&mut daemon)).await;
}
