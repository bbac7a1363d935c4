//! Servers that go away, hang, forget or refuse: what can go on goes on, and what cannot waits and is not lost.

use std::time::Duration;

use crate::support::{Bench, Out, Private, SLACK, SOON, Services, copies_are_marked, ms, text, throughout, until};

const ONE: &str = r##"
version = 1

[bridge.b]
tiers = ["500ms", "4s"]

[[bridge.b.queue]]
name = "work"
bind = ["#"]
"##;

/// Cases B109, B133: without Redis the broker's part goes on (tiers, also by the daemon, and what is due now); the rest
/// waits in the intake, comes when Redis is back, and is not early. Redis may have forgotten every script meanwhile.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b109_b133_without_redis_tiers_go_on_and_the_rest_waits_without_being_early() {
    let mut bench = Bench::new("noredis", ONE);
    let mut redis = bench.redis_proxy();
    redis.up().await;
    let mut daemon = bench.daemon().await;
    let client = bench.client().await;
    let work = client.collect("work").await;
    let before = client.publish(&Out::new("b.delay", "k", "parked before").delay_ms(900)).await;
    until("it is parked", SOON, async || (bench.stored("b") == 1).then_some(())).await;
    redis.down().await;

    let long: Vec<Out> = (0..20).map(|i| Out::new("b.delay", "k", &format!("long {i}")).delay_ms(1500)).collect();
    let long_sent = client.publish_all(&long).await;
    let year = Out::new("b.delay", "k", "60 days").delay_ms(60 * 86_400_000);
    client.publish(&year).await;
    for round in 0..3 {
        let name = |what: &str| format!("{what} {round}");
        let native = client.publish(&Out::new("b.delay", "k", &name("native")).delay_ms(500)).await;
        let placed = client
            .publish(&Out::new("b.delay", "k", &name("placed")).delay_ms(500).header("dwell-id", text("x")))
            .await;
        let now = client.publish(&Out::new("b.delay", "k", &name("now")).delay_ms(0)).await;
        work.wait_for(&name("native"), SOON).await.is_on_time(native, ms(500));
        work.wait_for(&name("placed"), SOON).await.is_on_time(placed, ms(500));
        work.wait_for(&name("now"), SOON).await.is_on_time(now, ms(0));
    }
    assert_eq!(work.count(), 9, "nothing that needs the store came");
    let flushed: String = redis::cmd("SCRIPT").arg("FLUSH").query(&mut bench.redis()).expect("SCRIPT FLUSH");
    assert_eq!(flushed, "OK");
    redis.up().await;
    let arrivals = work.wait(9 + 21, SOON).await;
    for arrival in &arrivals[9..] {
        match arrival.text().strip_prefix("long ") {
            Some(i) => {
                let i: usize = i.parse().expect("its number");
                let took = arrival.at.duration_since(long_sent[i]);
                assert!(took + ms(1) > ms(1500), "'{}' is early: {took:?}", arrival.text());
            }
            None => assert!(arrival.at.duration_since(before) > ms(899), "{}", arrival.text()),
        }
    }
    until("the sixty days are in the store", SOON, async || (bench.stored("b") == 1).then_some(())).await;
    let due = bench.due_times("b")[0];
    assert!(due > crate::support::epoch_ms() + 59 * 86_400_000, "not early after all that");
    daemon.ready().await;
    daemon.stop().await;
    assert_eq!(work.count(), 30, "each once");
    assert_eq!(client.depth("b.intake").await, 0);
}

/// Cases B108, B117, B124, B132: connections to both servers are cut again and again; the loops live, and each message
/// comes out soon after.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b108_b117_b124_b132_cut_connections_are_made_again_and_nothing_is_lost() {
    let mut bench = Bench::new("cut", ONE);
    bench.short_lease();
    let (mut amqp, mut redis) = (bench.amqp_proxy(), bench.redis_proxy());
    amqp.up().await;
    redis.up().await;
    let mut daemon = bench.daemon().await;
    let client = bench.client().await;
    let work = client.collect("work").await;
    let mut sent = Vec::new();
    for round in 0..25_u64 {
        let outs: Vec<Out> = (0..4_u8)
            .map(|i| {
                Out::new("b.delay", "k", &format!("{}", round * 4 + u64::from(i)))
                    .delay_ms([0, 300, 700, 500][usize::from(i)])
            })
            .collect();
        sent.extend(client.publish_all(&outs).await);
        redis.cut().await;
        if round % 5 == 0 {
            amqp.cut().await;
        }
    }
    until("all have come", SOON * 2, async || {
        let came: std::collections::BTreeSet<String> = work.now().iter().map(crate::support::Arrival::text).collect();
        (came.len() == sent.len()).then_some(())
    })
    .await;
    daemon.ready().await;
    for arrival in work.now() {
        let i: usize = arrival.text().parse().expect("its number");
        let took = arrival.at.duration_since(sent[i]);
        assert!(took + ms(1) > ms([0, 300, 700, 500][i % 4]), "'{i}' is early: {took:?}");
    }
    copies_are_marked(&work.now());
    bench.quiet("b", &daemon).await;
    bench.ends_empty("b", std::slice::from_mut(&mut daemon)).await;
}

/// Case B116: a peer that is gone without a word is noticed by heartbeats; the daemon connects again and goes on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b116_a_half_open_connection_is_noticed_and_replaced() {
    let mut bench = Bench::new("halfopen", ONE);
    let mut amqp = bench.amqp_proxy();
    amqp.up().await;
    let url = format!("{}?heartbeat=2", amqp.url());
    bench.set("DWELL_AMQP__URL", &url);
    let daemon = bench.daemon().await;
    let client = bench.client().await;
    let work = client.collect("work").await;
    amqp.freeze(true);
    client.publish(&Out::new("b.delay", "k", "behind the silence").delay_ms(100)).await;
    until("the silence is noticed", SOON, async || {
        (daemon.try_get("/readyz")?.1.contains("broker-unreachable")).then_some(())
    })
    .await;
    // What was on the frozen connections is gone with them: the network is back, the old connections are not.
    amqp.cut().await;
    amqp.freeze(false);
    work.wait_for("behind the silence", SOON).await;
}

/// Cases B84, B115, B136: RabbitMQ dies by kill -9 with messages in a tier, in the store's hands and in the intake, and
/// comes back.
///
/// Cases B122, B123: then its memory alarm blocks publishing while messages fall due: they wait, are neither lost nor
/// doubled, and readiness says why.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b84_b115_b122_b123_b136_a_killed_and_a_blocked_rabbitmq_lose_nothing() {
    let name = "faults::b84_b115_b122_b123_b136_a_killed_and_a_blocked_rabbitmq_lose_nothing";
    let Some(mut rabbitmq) = Private::rabbitmq(name) else { return };
    let mut bench = Bench::on(Services::given().with_rabbitmq(&rabbitmq), "rabbitkill", ONE);
    bench.short_lease();
    let mut daemon = bench.daemon().await;
    // A quorum queue that is killed within about a second of its declaration comes back empty, confirmed messages or not
    // (measured on 3.10.8, 4.0.5 and 4.3.6): its name was not on disk yet. That is no fault that this test is about.
    tokio::time::sleep(Duration::from_secs(3)).await;
    let client = bench.client().await;
    let mut outs = Vec::new();
    for i in 0..60 {
        outs.push(Out::new("b.delay", "k", &i.to_string()).delay_ms(if i < 30 { 4000 } else { 3000 }));
    }
    let mut sent = client.publish_all(&outs).await;
    until("thirty are in the store", SOON, async || (bench.stored("b") == 30).then_some(())).await;
    daemon.stop().await;
    let intake: Vec<Out> = (60..90).map(|i| Out::new("b.delay", "k", &i.to_string()).delay_ms(1000)).collect();
    sent.extend(client.publish_all(&intake).await);
    rabbitmq.kill();
    let mut daemon = bench.start(&[]);
    rabbitmq.start();
    daemon.ready().await;
    let client = bench.client().await;
    let work = client.collect("work").await;
    // RabbitMQ 3.10 begins to expire a quorum queue's messages about a minute after it was killed; lost they are not.
    let mut latest = Duration::ZERO;
    for arrival in work.wait(90, SOON * 8).await {
        let i: usize = arrival.text().parse().expect("its number");
        let took = arrival.at.duration_since(sent[i]);
        let delay = [4000, 3000, 1000][i / 30];
        assert!(took + ms(1) > ms(delay), "'{i}' is early: {took:?} of {delay} ms");
        latest = latest.max(took.saturating_sub(ms(delay)));
    }
    println!("after the kill the last one was {latest:?} late");
    bench.quiet("b", &daemon).await;
    assert_eq!(work.count(), 90, "each once: the daemon itself had no fault");

    let outs: Vec<Out> =
        (100..150).map(|i| Out::new("b.delay", "k", &i.to_string()).delay_ms(12_000 + 10 * i64::from(i))).collect();
    // rabbitmqctl starts a virtual machine of its own: the alarm must be on before the first one is due.
    client.publish_all(&outs).await;
    until("they are in the store", SOON, async || (bench.stored("b") == 50).then_some(())).await;
    rabbitmq.ctl(&["set_vm_memory_high_watermark", "absolute", "1"]);
    until("readiness says that the broker is blocked", SOON, async || {
        let (status, body) = daemon.try_get("/readyz")?;
        (status == 503 && body.contains("broker-blocked")).then_some(())
    })
    .await;
    assert_eq!(daemon.get("/healthz").0, 200);
    throughout("alive while blocked, for longer than a claim lasts", Duration::from_secs(5), async || {
        daemon.get("/healthz").0 == 200
    })
    .await;
    rabbitmq.ctl(&["set_vm_memory_high_watermark", "absolute", "2GB"]);
    daemon.ready().await;
    until("all have come", SOON, async || {
        let came: std::collections::BTreeSet<String> = work.now().iter().map(crate::support::Arrival::text).collect();
        (came.len() == 140).then_some(())
    })
    .await;
    bench.quiet("b", &daemon).await;
    bench.ends_empty("b", std::slice::from_mut(&mut daemon)).await;
    copies_are_marked(&work.now());
    println!("copies after the alarm: {}", work.count() - 140);
}

/// Cases B104 and B105: a Redis that answers but refuses (a replica, out of memory) is waited for; nothing is dropped,
/// tiers go on, readiness says so.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b104_b105_a_redis_that_refuses_is_waited_for() {
    let Some(redis) = Private::redis("faults::b104_b105_a_redis_that_refuses_is_waited_for", &[]) else { return };
    let bench = Bench::on(Services::given().with_redis(&redis), "refuses", ONE);
    let mut daemon = bench.daemon().await;
    let client = bench.client().await;
    let work = client.collect("work").await;
    let tell = |words: &[&str]| {
        let mut command = redis::cmd(words[0]);
        command.arg(&words[1..]);
        let _: redis::Value = command.query(&mut bench.redis()).expect("Redis does it");
    };
    for (refuse, allow) in [
        (["REPLICAOF", "127.0.0.1", "1"].as_slice(), ["REPLICAOF", "NO", "ONE"].as_slice()),
        (["CONFIG", "SET", "maxmemory", "1"].as_slice(), ["CONFIG", "SET", "maxmemory", "0"].as_slice()),
    ] {
        let state = refuse.join(" ");
        tell(refuse);
        let already = work.count();
        let outs: Vec<Out> = (0..10).map(|i| Out::new("b.delay", "k", &format!("{state} {i}")).delay_ms(700)).collect();
        let sent = client.publish_all(&outs).await;
        let tier = client.publish(&Out::new("b.delay", "k", &format!("{state} tier")).delay_ms(500)).await;
        let arrival = work.wait_for(&format!("{state} tier"), SOON).await;
        arrival.is_on_time(tier, ms(500));
        until(&format!("{state}: readiness says so"), SOON, async || {
            let (status, body) = daemon.try_get("/readyz")?;
            (status == 503 && body.contains("store-")).then_some(())
        })
        .await;
        assert_eq!(work.count(), already + 1, "{state}: nothing else came");
        tell(allow);
        daemon.ready().await;
        for arrival in &work.wait(already + 11, SOON).await[already + 1..] {
            let i: usize = arrival.text().rsplit(' ').next().and_then(|n| n.parse().ok()).expect("its number");
            let took = arrival.at.duration_since(sent[i]);
            assert!(took + ms(1) > ms(700) && took < SOON + SLACK, "'{}' after {took:?}", arrival.text());
        }
    }
    bench.ends_empty("b", std::slice::from_mut(&mut daemon)).await;
    assert_eq!(work.count(), 22, "each once");
}
