//! What is due comes out of the store, whatever else is due beside it.

use lapin::ExchangeKind;
use lapin::options::{ExchangeDeclareOptions, ExchangeDeleteOptions, QueueBindOptions};
use lapin::types::FieldTable;

use crate::support::{Bench, Client, Out, SLACK, SOON, ms, until};

const OWN: &str = r##"
version = 1

[bridge.b]
tiers = ["500ms"]

[[bridge.b.queue]]
name = "work"
bind = ["job.#"]
"##;

const THEIRS: &str = r##"
version = 1

[bridge.f]
work_exchange = { name = "theirs", type = "topic", declare = false }

[[bridge.f.queue]]
name = "foreign"
bind = ["job.#"]

[bridge.good]

[[bridge.good.queue]]
name = "good"
bind = ["#"]
"##;

/// Two hundred messages, every sixth to a key that no queue wants (32 of them); all due at about the same time.
fn two_hundred(exchange: &str, delay: i64) -> Vec<Out> {
    (0..200)
        .map(|i| {
            let key = if i % 6 == 0 && i < 192 { "nobody.wants" } else { "job.x" };
            Out::new(exchange, key, &i.to_string()).delay_ms(delay)
        })
        .collect()
}

async fn declare_theirs(client: &Client) {
    let options = ExchangeDeclareOptions { durable: true, ..ExchangeDeclareOptions::default() };
    let channel = client.channel().await;
    channel
        .exchange_declare("theirs".into(), ExchangeKind::Topic, options, FieldTable::default())
        .await
        .expect("their exchange");
}

/// Cases B49, B56, B121: on dwell's own work exchange the unrouted queue stands behind; by store and by tier.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b49_b56_unroutable_messages_rest_in_the_unrouted_queue_and_hold_up_nothing() {
    let bench = Bench::new("unrouted", OWN);
    let mut daemon = bench.daemon().await;
    let client = bench.client().await;
    let work = client.collect("work").await;
    let unrouted = client.collect("b.unrouted").await;
    for (round, delay) in [(1, 1500), (2, 500)] {
        let outs = two_hundred("b.delay", delay);
        let sent = client.publish_all(&outs).await;
        let good = work.wait(round * 168, SOON).await;
        for arrival in &good[(round - 1) * 168..] {
            let i: usize = arrival.text().parse().expect("its number");
            arrival.is_on_time(sent[i], ms(delay.unsigned_abs()));
        }
        for arrival in &unrouted.wait(round * 32, SOON).await[(round - 1) * 32..] {
            let i: usize = arrival.text().parse().expect("its number");
            arrival.is_on_time(sent[i], ms(delay.unsigned_abs()));
            assert_eq!(arrival.key, "nobody.wants");
        }
    }
    bench.ends_empty("b", std::slice::from_mut(&mut daemon)).await;
    assert_eq!((work.count(), unrouted.count()), (336, 64), "each once");
}

/// Case B121: behind somebody else's exchange there is nothing; what comes back is told by its id over the batch.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b121_what_a_foreign_work_exchange_returns_rests_with_its_reason() {
    let bench = Bench::new("returned", THEIRS);
    let client = bench.client().await;
    declare_theirs(&client).await;
    let mut daemon = bench.daemon().await;
    let foreign = client.collect("foreign").await;
    let unrouted = client.collect("f.unrouted").await;
    let sent = client.publish_all(&two_hundred("f.delay", 1200)).await;
    client.publish(&Out::new("f.delay", "nobody.wants", "now").delay_ms(0)).await;
    for arrival in foreign.wait(168, SOON).await {
        let i: usize = arrival.text().parse().expect("its number");
        arrival.is_on_time(sent[i], ms(1200));
    }
    let rested = unrouted.wait(33, SOON).await;
    for arrival in &rested {
        assert_eq!(arrival.header_text("dwell-reason").as_deref(), Some("unroutable"), "{}", arrival.text());
        assert_eq!(arrival.header_text("dwell-bridge").as_deref(), Some("f"));
        assert_eq!(arrival.key, "nobody.wants");
    }
    assert!(rested.iter().any(|a| a.text() == "now"));
    assert!((daemon.metric(r#"dwell_unroutable_total{bridge="f"}"#) - 33.0).abs() < 0.1);
    bench.ends_empty("f", std::slice::from_mut(&mut daemon)).await;
    assert_eq!((foreign.count(), unrouted.count()), (168, 33), "each once");
}

/// Cases B79 and B56 across bridges: while one bridge's target is gone, another one is not a moment late; and what
/// waited for the target comes out once it is back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b79_a_bridge_without_its_target_stalls_no_other_and_recovers() {
    let mut bench = Bench::new("stall", THEIRS);
    bench.short_lease();
    let client = bench.client().await;
    declare_theirs(&client).await;
    let mut daemon = bench.daemon().await;
    let good = client.collect("good").await;
    let foreign = client.collect("foreign").await;
    let channel = client.channel().await;
    channel.exchange_delete("theirs".into(), ExchangeDeleteOptions::default()).await.expect("deleted");

    let bad: Vec<Out> = (0..60)
        .map(|i| Out::new("f.delay", "job.x", &i.to_string()).delay_ms(if i % 2 == 0 { 0 } else { 300 }))
        .collect();
    client.publish_all(&bad).await;
    until("the pump has met the missing exchange", SOON, async || {
        (daemon.metric(r#"dwell_publishes_ended_total{bridge="f",outcome="refused"}"#) > 0.0).then_some(())
    })
    .await;
    let outs: Vec<Out> =
        (0..100).map(|i| Out::new("good.delay", "k", &i.to_string()).delay_ms(i64::from(i % 5) * 200)).collect();
    let sent = client.publish_all(&outs).await;
    for arrival in good.wait(100, SOON).await {
        let i: usize = arrival.text().parse().expect("its number");
        let delay = ms((i as u64 % 5) * 200);
        arrival.is_on_time(sent[i], delay);
        let late = arrival.at.duration_since(sent[i]).saturating_sub(delay);
        assert!(late < SLACK / 2, "'{i}' is {late:?} late beside a broken bridge");
    }
    assert_eq!(foreign.count(), 0);
    // The exchange comes back; the binding by us a moment later: what is tried in between is unroutable, and rests.
    declare_theirs(&client).await;
    channel
        .queue_bind(
            "foreign".into(),
            "theirs".into(),
            "job.#".into(),
            QueueBindOptions::default(),
            FieldTable::default(),
        )
        .await
        .expect("bound");
    let unrouted = client.collect("f.unrouted").await;
    until("all sixty have come out", SOON * 2, async || (foreign.count() + unrouted.count() >= 60).then_some(())).await;
    bench.quiet("f", &daemon).await;
    bench.ends_empty("f", std::slice::from_mut(&mut daemon)).await;
    assert_eq!((good.count(), foreign.count() + unrouted.count()), (100, 60), "each once");
    assert_eq!(client.depth("dwell.rejected").await, 0);
}

/// Case B36: a full work queue refuses (nack); what it refused stays in the intake or the store and is tried again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b36_a_full_work_queue_holds_its_messages_back_and_loses_none() {
    let mut bench = Bench::new(
        "full",
        r##"
        version = 1
        [bridge.b]
        native = false
        [[bridge.b.queue]]
        name = "work"
        bind = ["#"]
        arguments = { x-max-length = 2 }
        "##,
    );
    bench.short_lease();
    let mut daemon = bench.daemon().await;
    let client = bench.client().await;
    let outs: Vec<Out> =
        (0..40).map(|i| Out::new("b.delay", "k", &i.to_string()).delay_ms(if i % 2 == 0 { 0 } else { 300 })).collect();
    // One after the other: a quorum queue notices that it is full a moment late.
    for out in &outs {
        client.publish(out).await;
    }
    until("the queue has refused some", SOON, async || {
        (daemon.metric(r#"dwell_publishes_ended_total{bridge="b",outcome="nacked"}"#) > 0.0).then_some(())
    })
    .await;
    let work = client.collect("work").await;
    until("all have come", SOON * 3, async || {
        let came: std::collections::BTreeSet<String> = work.now().iter().map(crate::support::Arrival::text).collect();
        (came.len() == outs.len()).then_some(())
    })
    .await;
    bench.quiet("b", &daemon).await;
    bench.ends_empty("b", std::slice::from_mut(&mut daemon)).await;
    assert_eq!(work.count(), outs.len(), "each once");
}
