//! An exact tier is delayed by the broker alone; what needs the daemon goes through it, also with a tier's delay.

use lapin::options::QueueDeleteOptions;
use lapin::types::{AMQPValue, FieldArray, FieldTable};

use crate::support::{Bench, Out, SLACK, SOON, ms, text, until};

const TIERS: &str = r##"
version = 1

[bridge.b]
tiers = ["100ms", "1s"]

[[bridge.b.queue]]
name = "work"
bind = ["job.#"]

[bridge.d]
tiers         = ["100ms", "2s"]
default_delay = "100ms"

[[bridge.d.queue]]
name = "defaults"
bind = ["#"]
"##;

fn every_integer_type_and_text(n: u8) -> Vec<(&'static str, AMQPValue)> {
    vec![
        ("i8", AMQPValue::ShortShortInt(i8::try_from(n).expect("at most 127"))),
        ("u8", AMQPValue::ShortShortUInt(n)),
        ("i16", AMQPValue::ShortInt(i16::from(n))),
        ("u16", AMQPValue::ShortUInt(u16::from(n))),
        ("i32", AMQPValue::LongInt(i32::from(n))),
        ("u32", AMQPValue::LongUInt(u32::from(n))),
        ("i64", AMQPValue::LongLongInt(i64::from(n))),
        ("text", text(&n.to_string())),
    ]
}

/// The daemon does not even exist from before the publish until after the receipt, so neither can Redis matter. What it
/// would have touched bears a `dwell-id`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_exact_tier_is_delayed_by_the_broker_alone() {
    let bench = Bench::new("native", TIERS);
    bench.daemon().await.stop().await;
    let client = bench.client().await;
    let work = client.collect("work").await;
    let outs: Vec<Out> = every_integer_type_and_text(100)
        .into_iter()
        .map(|(name, value)| Out::new("b.delay", "job.native", name).header("x-delay", value))
        .collect();
    let sent = client.publish_all(&outs).await;
    for (out, sent) in outs.iter().zip(&sent) {
        let body = String::from_utf8_lossy(&out.body).into_owned();
        let arrival = work.wait_for(&body, SOON).await;
        arrival.is_on_time(*sent, ms(100));
        assert_eq!((arrival.exchange.as_str(), arrival.key.as_str()), ("b", "job.native"));
        assert_eq!(arrival.header("dwell-id"), None, "no daemon touched it");
        assert_eq!(arrival.header("x-delay"), out.properties.headers().as_ref().and_then(|h| h.inner().get("x-delay")));
    }
    assert_eq!(work.count(), outs.len(), "each once");
}

/// Cases B08 (b) and B57: no header, a default delay that is a tier, no daemon; and no return at the publish although
/// nothing is in a work queue yet.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b08_without_a_header_the_default_delay_is_native_too_and_a_present_header_wins() {
    let bench = Bench::new("default", TIERS);
    let mut daemon = bench.daemon().await;
    daemon.stop().await;
    let client = bench.client().await;
    let queue = client.collect("defaults").await;
    let sent = client.publish(&Out::new("d.delay", "any", "no header")).await;
    let arrival = queue.wait_for("no header", SOON).await;
    arrival.is_on_time(sent, ms(100));
    assert_eq!(arrival.header("dwell-id"), None);

    // Other headers change nothing; a header that is no delay of ours neither.
    let sent = client.publish(&Out::new("d.delay", "any", "another header").header("kind", text("x"))).await;
    queue.wait_for("another header", SOON).await.is_on_time(sent, ms(100));

    let _daemon = bench.daemon().await;
    let sent = client.publish(&Out::new("d.delay", "any", "zero").delay_ms(0)).await;
    let zero = queue.wait_for("zero", SOON).await;
    assert!(zero.at.duration_since(sent) < SLACK);
    assert!(zero.header("dwell-id").is_some(), "it went through the daemon");
    let sent = client.publish(&Out::new("d.delay", "any", "own").delay_ms(400)).await;
    queue.wait_for("own", SOON).await.is_on_time(sent, ms(400));
    // (a): a bridge without a default forwards at once.
    let work = client.collect("work").await;
    client.publish(&Out::new("b.delay", "job.plain", "plain")).await;
    work.wait_for("plain", SOON).await;
    assert_eq!((queue.count(), work.count()), (4, 1), "each once");
}

/// Headers that need the daemon lead through it although the delay is exactly a tier.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_a_gate_header_an_exact_tier_goes_through_the_intake() {
    let bench = Bench::new("gate", TIERS);
    let mut daemon = bench.daemon().await;
    let client = bench.client().await;
    let work = client.collect("work").await;
    let rejected = client.collect("dwell.rejected").await;

    let mut death = FieldTable::default();
    death.insert("queue".into(), text("work"));
    death.insert("reason".into(), text("expired"));
    death.insert("count".into(), AMQPValue::LongLongInt(1));
    death.insert("exchange".into(), text(""));
    death.insert("routing-keys".into(), AMQPValue::FieldArray(FieldArray::from(vec![text("work")])));
    let deaths = AMQPValue::FieldArray(FieldArray::from(vec![AMQPValue::FieldTable(death)]));
    let gated = [
        ("x-delay-key", text("k")),
        ("x-delay-retry", text("5s")),
        ("x-death", deaths),
        ("x-first-death-queue", text("work")),
        ("dwell-id", text("forged")),
        ("dwell-attempt", AMQPValue::LongLongInt(7)),
        ("dwell-queue", text("somebody's")),
        ("dwell-bridge", text("d")),
        ("dwell-tier", text("d.wait.2s")),
    ];
    let outs: Vec<Out> = gated
        .iter()
        .map(|(name, value)| Out::new("b.delay", "job.gated", name).delay_ms(1000).header(name, value.clone()))
        .collect();
    let sent = client.publish_all(&outs).await;
    for ((name, value), sent) in gated.iter().zip(&sent) {
        let arrival = work.wait_for(name, SOON).await;
        arrival.is_on_time(*sent, ms(1000));
        let id = arrival.header_text("dwell-id").unwrap_or_default();
        assert_eq!(id.len(), 36, "{name}: it went through the daemon, which gave it an id of its own: {id}");
        match *name {
            "x-delay-key" | "x-delay-retry" => {
                assert_eq!(arrival.header(name), Some(value), "{name} is the publisher's");
            }
            "x-death" | "x-first-death-queue" => {
                assert_ne!(arrival.header(name), Some(value), "{name} of an earlier pass is stripped");
            }
            // Set by the daemon, for the buffer queue that it placed the message in.
            "dwell-tier" => assert_eq!(arrival.header_text(name).as_deref(), Some("b.wait.1s")),
            "dwell-id" => assert_ne!(id, "forged"),
            _ => assert_eq!(arrival.header(name), None, "{name} of an earlier pass is stripped"),
        }
    }
    let both =
        Out::new("b.delay", "job.gated", "both").delay_ms(1000).header("x-deliver-at", text("2030-01-01T00:00:00Z"));
    client.publish(&both).await;
    let arrival = rejected.wait_for("both", SOON).await;
    assert_eq!(arrival.header_text("dwell-reason").as_deref(), Some("both-headers"));
    assert_eq!((work.count(), rejected.count()), (gated.len(), 1), "each once");
    bench.ends_empty("b", std::slice::from_mut(&mut daemon)).await;
}

/// Case B69 (b): RabbitMQ 3.x drops a message without a word that comes by a queue named in its own history. The gate
/// catches it, and the daemon strips the history.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b69_a_work_queue_whose_ttl_leads_back_into_the_delay_exchange_survives_five_rounds() {
    let bench = Bench::new(
        "rounds",
        r##"
        version = 1
        [bridge.b]
        tiers = ["100ms"]
        [[bridge.b.queue]]
        name = "round"
        bind = ["#"]
        arguments = { x-message-ttl = 100, x-dead-letter-exchange = "b.delay" }
        "##,
    );
    let mut daemon = bench.daemon().await;
    let client = bench.client().await;
    client.publish(&Out::new("b.delay", "k", "round and round").delay_ms(100)).await;
    until("five rounds through the daemon", SOON, async || {
        (daemon.metric(r#"dwell_placed_total{bridge="b",path="tier"}"#) >= 5.0).then_some(())
    })
    .await;
    let arrivals = client.drain("round", 1).await;
    assert_eq!(arrivals[0].text(), "round and round");
    assert_eq!(arrivals[0].key, "k");
    bench.ends_empty("b", std::slice::from_mut(&mut daemon)).await;
    assert_eq!(client.depth("round").await, 0);
}

/// Cases B22, B24, B25: each delay has a queue of its own, so none waits behind a longer one; and what is due at the
/// same time comes first in, first out.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b22_b24_b25_a_short_delay_never_waits_behind_a_long_one() {
    let bench = Bench::new(
        "order",
        r##"
        version = 1
        [bridge.b]
        tiers = ["500ms", "3s"]
        [[bridge.b.queue]]
        name = "work"
        bind = ["#"]
        "##,
    );
    let mut daemon = bench.daemon().await;
    let client = bench.client().await;
    let work = client.collect("work").await;
    let long = client.publish(&Out::new("b.delay", "k", "long").delay_ms(3000)).await;
    let short = client.publish(&Out::new("b.delay", "k", "short").delay_ms(500)).await;
    work.wait_for("short", SOON).await.is_on_time(short, ms(500));
    work.wait_for("long", SOON).await.is_on_time(long, ms(3000));

    // Twenty of mixed delays, tiers and store, each at its own due time; the order of arrival is that of being due.
    let delays = [
        1200, 3000, 500, 2100, 3000, 1200, 500, 2100, 1200, 3000, 500, 3000, 2100, 1200, 500, 2100, 3000, 1200, 500,
        2100,
    ];
    let outs: Vec<Out> =
        delays.iter().enumerate().map(|(i, d)| Out::new("b.delay", "k", &format!("{i}")).delay_ms(*d)).collect();
    let sent = client.publish_all(&outs).await;
    let arrivals = work.wait(2 + outs.len(), SOON).await.split_off(2);
    for arrival in &arrivals {
        let i: usize = arrival.text().parse().expect("its number");
        arrival.is_on_time(sent[i], ms(delays[i].unsigned_abs()));
    }
    let order: Vec<i64> = arrivals.iter().map(|a| delays[a.text().parse::<usize>().expect("its number")]).collect();
    assert!(order.is_sorted(), "delays in the order of arrival: {order:?}");
    // In the store two messages of one delay are due some microseconds apart, by whose clock nobody promises.
    for delay in [500, 3000] {
        let numbers: Vec<usize> = arrivals
            .iter()
            .map(|a| a.text().parse::<usize>().expect("its number"))
            .filter(|i| delays[*i] == delay)
            .collect();
        assert!(numbers.is_sorted(), "{delay} ms: first in, first out: {numbers:?}");
    }
    bench.ends_empty("b", std::slice::from_mut(&mut daemon)).await;
    assert_eq!(work.count(), 2 + outs.len(), "each once");
}

/// Two queues bound to the fanout of the default way would make two messages of one. The old default is in no file any
/// more, and AMQP cannot list bindings: the daemon must have remembered it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_changed_default_delay_leaves_one_way_also_when_its_old_tier_left_the_files() {
    let topology = |tiers: &str, default: &str| {
        format!(
            "version = 1\n[bridge.d]\ntiers = {tiers}\ndefault_delay = \"{default}\"\n\
             [[bridge.d.queue]]\nname = \"work\"\nbind = [\"#\"]\n"
        )
    };
    let bench = Bench::new("changed-default", &topology(r#"["300ms", "1s"]"#, "300ms"));
    let mut daemon = bench.daemon().await;
    daemon.stop().await;
    bench.write_topology("main.toml", &topology(r#"["1s"]"#, "1s"));
    let mut daemon = bench.daemon().await;
    let client = bench.client().await;
    let work = client.collect("work").await;
    let sent = client.publish(&Out::new("d.delay", "any", "second default")).await;
    let arrival = work.wait_for("second default", SOON).await;
    arrival.is_on_time(sent, ms(1000));
    assert_eq!(arrival.header("dwell-id"), None, "the broker alone");

    // No default tier any more: the daemon decides, and nothing of the old way is left.
    daemon.stop().await;
    bench.write_topology("main.toml", &topology(r#"["1s"]"#, "700ms"));
    let _daemon = bench.daemon().await;
    let sent = client.publish(&Out::new("d.delay", "any", "no tier")).await;
    let arrival = work.wait_for("no tier", SOON).await;
    arrival.is_on_time(sent, ms(700));
    assert!(arrival.header("dwell-id").is_some(), "the daemon");
    // A marker behind both: what an old way would have made has come by then.
    let sent = client.publish(&Out::new("d.delay", "any", "marker").delay_ms(1500)).await;
    work.wait_for("marker", SOON).await.is_on_time(sent, ms(1500));
    assert_eq!(work.count(), 3, "each once");
}

/// A message that could not be placed at first waits for what is left, not for less.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_placement_that_is_tried_again_is_never_early() {
    let bench = Bench::new(
        "again",
        "version = 1\n[bridge.b]\ntiers = [\"3s\"]\n[[bridge.b.queue]]\nname = \"work\"\nbind = [\"#\"]\n",
    );
    let _daemon = bench.daemon().await;
    let client = bench.client().await;
    let work = client.collect("work").await;
    let channel = client.channel().await;
    channel.queue_delete("b.wait.3s".into(), QueueDeleteOptions::default()).await.expect("deleted");
    // A duration string is no exact match for the broker: it comes by the daemon.
    let sent = client.publish(&Out::new("b.delay", "any", "again").header("x-delay", text("3s"))).await;
    work.wait_for("again", SOON).await.is_on_time(sent, ms(3000));
    assert_eq!(work.count(), 1);
}
