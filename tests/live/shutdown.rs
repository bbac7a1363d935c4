//! Ends and beginnings: in the order of the flow, without loss, without copies, and never hanging.

use rustix::process::Signal;

use crate::support::{Bench, Out, Private, SLACK, SOON, Services, copies_are_marked, ms, throughout, until};

const ONE: &str = r##"
version = 1

[bridge.b]
tiers = ["500ms"]

[[bridge.b.queue]]
name = "work"
bind = ["#"]
"##;

/// Case B139: SIGTERM with messages in every stage; the next daemon finds the rest, and no message comes twice.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b139_a_graceful_stop_with_messages_in_flight_loses_and_doubles_nothing() {
    let bench = Bench::new("stop", ONE);
    let client = bench.client().await;
    let mut daemon = bench.daemon().await;
    let work = client.collect("work").await;
    let mut outs = Vec::new();
    let mut sent = Vec::new();
    for round in 0..4 {
        let batch: Vec<Out> = (0..200)
            .map(|i| Out::new("b.delay", "k", &format!("{}", round * 200 + i)).delay_ms(i64::from(i % 8) * 100))
            .collect();
        sent.extend(client.publish_all(&batch).await);
        outs.extend(batch);
        // At least fifty are in flight: the intake is being emptied, the pump releases the round before.
        daemon.signal(Signal::TERM);
        assert_eq!(daemon.exit(SOON).await, Some(0), "{}", daemon.log());
        daemon = bench.daemon().await;
    }
    for arrival in work.wait(outs.len(), SOON).await {
        let i: usize = arrival.text().parse().expect("its number");
        let took = arrival.at.duration_since(sent[i]);
        assert!(took + ms(1) > ms((i as u64 % 8) * 100), "'{i}' is early: {took:?}");
    }
    bench.ends_empty("b", std::slice::from_mut(&mut daemon)).await;
    assert_eq!(work.count(), outs.len(), "each once");
}

/// Case B139: a stop that waits for a store that hangs is cut short by a second signal; nothing is lost by it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b139_a_second_signal_leaves_at_once() {
    let Some(redis) = Private::redis("shutdown::b139_a_second_signal_leaves_at_once", &[]) else { return };
    let bench = Bench::on(Services::given().with_redis(&redis), "second", ONE);
    let mut daemon = bench.daemon().await;
    let client = bench.client().await;
    let work = client.collect("work").await;
    redis.pause();
    let outs: Vec<Out> = (0..50).map(|i| Out::new("b.delay", "k", &i.to_string()).delay_ms(1200)).collect();
    client.publish_all(&outs).await;
    until("all are taken in", SOON, async || {
        (daemon.metric(r#"dwell_intake_deliveries_total{bridge="b"}"#) >= 50.0).then_some(())
    })
    .await;
    daemon.signal(Signal::TERM);
    throughout("one signal waits for what is in hand", ms(500), async || daemon.exited().is_none()).await;
    daemon.signal(Signal::TERM);
    assert_eq!(daemon.exit(SLACK).await, Some(1), "{}", daemon.log());
    redis.resume();
    let mut daemon = bench.daemon().await;
    work.wait(50, SOON).await;
    bench.ends_empty("b", std::slice::from_mut(&mut daemon)).await;
    copies_are_marked(&work.now());
}

/// Cases B123 and B125: what is in the way is said, one word each, while the process lives; and it starts to work by
/// itself once that is there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn readiness_says_what_is_in_the_way_and_liveness_never_fails() {
    let mut bench = Bench::new("ready", ONE);
    let (mut amqp, mut redis) = (bench.amqp_proxy(), bench.redis_proxy());
    let mut daemon = bench.start(&[]);
    let says = async |daemon: &crate::support::Daemon, words: &[&str]| {
        until(&format!("/readyz says {words:?}"), SOON, async || {
            let (status, body) = daemon.try_get("/readyz")?;
            (status == 503 && words.iter().all(|word| body.contains(word))).then_some(())
        })
        .await;
        assert_eq!(daemon.get("/healthz").0, 200);
    };
    says(&daemon, &["broker-unreachable", "topology-not-declared"]).await;
    redis.up().await;
    amqp.up().await;
    daemon.ready().await;
    redis.down().await;
    says(&daemon, &["store-unreachable"]).await;
    redis.up().await;
    daemon.ready().await;
    amqp.down().await;
    says(&daemon, &["broker-unreachable"]).await;
    amqp.up().await;
    daemon.ready().await;

    let client = bench.client().await;
    let work = client.collect("work").await;
    let sent = client.publish(&Out::new("b.delay", "k", "all is well").delay_ms(700)).await;
    work.wait_for("all is well", SOON).await.is_on_time(sent, ms(700));
    assert_eq!(daemon.get("/healthz").0, 200);
    bench.ends_empty("b", std::slice::from_mut(&mut daemon)).await;

    // A daemon that waits for its broker ends at the first signal.
    amqp.down().await;
    let mut waiting = bench.start(&[]);
    says(&waiting, &["broker-unreachable"]).await;
    waiting.stop().await;
}
