//! What publishers write into their headers, end to end: on time, or at rest with a reason; never at once by mistake.

use std::time::Duration;

use lapin::types::{AMQPValue, DecimalValue, FieldArray, FieldTable, LongString, ShortString};

use crate::support::{Bench, Out, SOON, epoch_ms, ms, text, throughout, until};

const ONE: &str = r##"
version = 1

[bridge.b]
tiers = ["1s"]

[[bridge.b.queue]]
name = "work"
bind = ["#"]
"##;

/// Cases B01, B02, B05, B06, B17, B18, B20, B111 and the forms of `x-deliver-at`, published together.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b01_b02_b05_b06_b17_b18_b20_b111_every_form_of_a_delay_is_met_or_rejected() {
    use AMQPValue as V;
    let bench = Bench::new("forms", ONE);
    let mut daemon = bench.daemon().await;
    let client = bench.client().await;
    let work = client.collect("work").await;
    let rejected = client.collect("dwell.rejected").await;

    let in_2s = epoch_ms() + 2000;
    let rfc3339 = |at_ms: u64| {
        let at = jiff::Timestamp::from_millisecond(i64::try_from(at_ms).expect("fits")).expect("a time");
        at.to_string()
    };
    let bytes = |b: &[u8]| V::ByteArray(b.to_vec().into());
    let mut table = FieldTable::default();
    table.insert("ms".into(), V::LongInt(5000));

    // Each with the wait it asks for: counted from the publish, or until an instant.
    let relative: Vec<(V, u64)> = vec![
        (text("1500"), 1500),
        (text("01500"), 1500),
        (text(" 1500"), 1500),
        (text("1500 "), 1500),
        (text("+1500"), 1500),
        (text("1s"), 1000),
        (text("1s500ms"), 1500),
        (V::Double(1500.0), 1500),
        (V::Double(1500.9), 1500),
        (V::Float(1500.0), 1500),
        (V::LongLongInt(1500), 1500),
        (V::LongUInt(1500), 1500),
        (V::LongInt(1500), 1500),
        (V::ShortUInt(1500), 1500),
        (V::ShortInt(1500), 1500),
        (V::ShortShortUInt(200), 200),
        (V::ShortShortInt(100), 100),
        (bytes(b"1500"), 1500),
        (V::LongLongInt(0), 0),
        (V::LongLongInt(-1), 0),
        (V::LongLongInt(-5000), 0),
        (V::LongLongInt(i64::MIN), 0),
        (text("-5000"), 0),
        (V::Double(-0.5), 0),
    ];
    let absolute: Vec<(V, u64)> = vec![
        (V::LongLongInt(i64::try_from(in_2s).expect("fits")), in_2s),
        (text(&in_2s.to_string()), in_2s),
        (text(&rfc3339(in_2s)), in_2s),
        (V::Timestamp(in_2s / 1000), in_2s / 1000 * 1000),
        (V::LongLongInt(i64::try_from(in_2s - 60_000).expect("fits")), 0),
        (text("2001-02-03T04:05:06+01:00"), 0),
    ];
    let mal: Vec<(&str, V, &str)> = vec![
        ("x-delay", text("soon"), "invalid-delay"),
        ("x-delay", text("5,000"), "invalid-delay"),
        ("x-delay", text("1e3"), "invalid-delay"),
        ("x-delay", text("0x10"), "invalid-delay"),
        ("x-delay", text(""), "invalid-delay"),
        ("x-delay", V::LongString(LongString::from(vec![0xff, 0xfe])), "invalid-delay"),
        // NaN and the infinities never come so far: RabbitMQ itself closes the publisher's connection over them.
        ("x-delay", V::Double(1e300), "delay-too-large"),
        ("x-delay", V::Boolean(true), "invalid-delay"),
        ("x-delay", V::Timestamp(5000), "invalid-delay"),
        ("x-delay", V::FieldArray(FieldArray::from(vec![V::LongInt(5000)])), "invalid-delay"),
        ("x-delay", V::FieldTable(table), "invalid-delay"),
        ("x-delay", V::Void, "invalid-delay"),
        ("x-delay", V::DecimalValue(DecimalValue { scale: 0, value: 5000 }), "invalid-delay"),
        ("x-delay", V::LongLongInt(366 * 86_400_000), "delay-too-large"),
        ("x-delay", text("366d"), "delay-too-large"),
        ("x-delay", V::LongLongInt(i64::MAX), "delay-too-large"),
        ("x-delay", text("99999999999999999999999999999999999999999999"), "delay-too-large"),
        ("x-deliver-at", V::LongLongInt(1_764_547_200), "looks-like-seconds"),
        ("x-deliver-at", text("1764547200"), "looks-like-seconds"),
        ("x-deliver-at", V::LongInt(1_764_547_200), "looks-like-seconds"),
        ("x-deliver-at", text("2030-01-01T00:00:00"), "invalid-delay"),
        ("x-deliver-at", text("tomorrow"), "invalid-delay"),
        ("x-deliver-at", V::Boolean(true), "invalid-delay"),
        ("x-deliver-at", text("2999-01-01T00:00:00Z"), "delay-too-large"),
    ];

    let mut outs: Vec<Out> = Vec::new();
    for (i, (value, _)) in relative.iter().enumerate() {
        outs.push(Out::new("b.delay", "k", &format!("relative {i}")).header("x-delay", value.clone()));
    }
    for (i, (value, _)) in absolute.iter().enumerate() {
        outs.push(Out::new("b.delay", "k", &format!("absolute {i}")).header("x-deliver-at", value.clone()));
    }
    for (i, (name, value, _)) in mal.iter().enumerate() {
        let out = Out::new("b.delay", "some.key", &format!("malformed {i}"));
        // Case B32's other half: what rests must not run away by an expiration of its own.
        outs.push(
            out.header(name, value.clone()).header("keep", text("me")).with(|p| p.with_expiration("600000".into())),
        );
    }
    let sent = client.publish_all(&outs).await;
    let sent_epoch = epoch_ms();

    for (i, (value, wait)) in relative.iter().enumerate() {
        let arrival = work.wait_for(&format!("relative {i}"), SOON).await;
        arrival.is_on_time(sent[i], ms(*wait));
        assert_eq!(arrival.header("x-delay"), Some(value), "the header stays as it was");
    }
    for (i, (value, at)) in absolute.iter().enumerate() {
        let arrival = work.wait_for(&format!("absolute {i}"), SOON).await;
        // Both clocks were read at about the same moment; the wall clock's own millisecond is all that is lost.
        let left = ms(at.saturating_sub(sent_epoch).saturating_sub(1));
        arrival.is_on_time(sent[sent.len() - 1], left.saturating_sub(ms(5)));
        assert_eq!(arrival.header("x-deliver-at"), Some(value));
        if *at > 0 {
            assert!(epoch_ms() >= *at, "absolute {i} is early");
        }
    }
    for (i, (name, value, reason)) in mal.iter().enumerate() {
        let arrival = rejected.wait_for(&format!("malformed {i}"), SOON).await;
        assert_eq!(arrival.header_text("dwell-reason").as_deref(), Some(*reason), "{name} {value:?}");
        assert_eq!(arrival.header_text("dwell-bridge").as_deref(), Some("b"));
        assert_eq!(arrival.header_text("dwell-expiration").as_deref(), Some("600000"));
        assert_eq!(arrival.properties.expiration(), &None, "nothing that rests expires");
        assert_eq!(arrival.header_text("keep").as_deref(), Some("me"));
        assert_eq!(arrival.header(name), Some(value), "the header stays as it was");
        assert_eq!(arrival.key, "some.key");
    }
    assert_eq!(work.count(), relative.len() + absolute.len(), "each once");
    assert_eq!(rejected.count(), mal.len(), "each once");
    for reason in ["invalid-delay", "delay-too-large", "looks-like-seconds"] {
        let count = mal.iter().filter(|(_, _, r)| *r == reason).count();
        let series = format!(r#"dwell_rejected_total{{bridge="b",reason="{reason}"}}"#);
        #[allow(clippy::cast_precision_loss)] // A dozen.
        let count = count as f64;
        assert!((daemon.metric(&series) - count).abs() < 0.1, "{series}: {} of {count}", daemon.metric(&series));
    }
    bench.ends_empty("b", std::slice::from_mut(&mut daemon)).await;
}

/// Cases B10, B11, B14, B15: what does not fit 32 bits is neither now nor never. The store says when it is due.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b10_b11_b14_delays_above_32_bits_wait_in_the_store_with_their_exact_due_time() {
    let bench = Bench::new("large", ONE);
    let daemon = bench.daemon().await;
    let client = bench.client().await;
    let work = client.collect("work").await;
    let day: u64 = 86_400_000;
    let mut delays =
        [1 << 31, (1_u64 << 31) - 1, (1 << 32) - 1, 1 << 32, 60 * day, 180 * day, 365 * day, 3_600_000_000];
    delays.sort_unstable();
    let outs: Vec<Out> = delays
        .iter()
        .map(|d| Out::new("b.delay", "k", &d.to_string()).delay_ms(i64::try_from(*d).expect("fits")))
        .collect();
    let before = epoch_ms();
    client.publish_all(&outs).await;
    until("all are in the store", SOON, async || (bench.stored("b") == delays.len() as u64).then_some(())).await;
    let after = epoch_ms();
    let due = bench.due_times("b");
    for (delay, due) in delays.iter().zip(&due) {
        assert!(
            (before + delay..=after + delay + 1).contains(due),
            "{delay}: due {} ms after the publish",
            due - before
        );
    }
    // The pump has nothing to do for weeks, and does nothing: it looks once a second.
    let polls = daemon.log().len();
    throughout("nothing comes out", Duration::from_secs(3), async || work.count() == 0).await;
    assert!(daemon.log().len() - polls < 10_000, "the daemon is quiet meanwhile");
    assert_eq!(client.depth("dwell.rejected").await, 0);
}

/// Case B80: one bad message parks, and the good ones behind it pass.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b80_one_bad_message_does_not_stop_the_good_ones_behind_it() {
    let bench = Bench::new("bad-good-good", ONE);
    let mut daemon = bench.daemon().await;
    let client = bench.client().await;
    let work = client.collect("work").await;
    client.publish(&Out::new("b.delay", "k", "bad").header("x-delay", text("bad"))).await;
    client.publish(&Out::new("b.delay", "k", "good 1").delay_ms(0)).await;
    let sent = client.publish(&Out::new("b.delay", "k", "good 2").delay_ms(300)).await;
    work.wait_for("good 1", SOON).await;
    work.wait_for("good 2", SOON).await.is_on_time(sent, ms(300));
    assert_eq!(client.drain("dwell.rejected", 1).await[0].text(), "bad");
    bench.ends_empty("b", std::slice::from_mut(&mut daemon)).await;
}

/// Case B90: headers that fill a whole frame cannot be published again with anything added; they go to rest by the
/// broker's own dead-lettering, and the consumer lives.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b90_headers_as_large_as_a_frame_go_to_rest_and_stop_nobody() {
    let bench = Bench::new("frame", ONE);
    let mut daemon = bench.daemon().await;
    let client = bench.client().await;
    let work = client.collect("work").await;
    for (size, body) in [(130_000, "huge"), (120_000, "large")] {
        let header = text(&"x".repeat(size));
        client.publish(&Out::new("b.delay", "k", body).delay_ms(200).header("big", header)).await;
    }
    client.publish(&Out::new("b.delay", "k", "small").delay_ms(200)).await;
    work.wait_for("small", SOON).await;
    work.wait_for("large", SOON).await;
    let rested = client.drain("dwell.rejected", 1).await;
    assert_eq!(rested[0].text(), "huge");
    bench.ends_empty("b", std::slice::from_mut(&mut daemon)).await;
    assert_eq!(work.count(), 2, "each once");
}

/// Cases B31 and B32: a publisher's `expiration` of 100 ms runs out in the intake while the daemon is away. All come
/// when due all the same, and their `expiration` is as it was.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b31_b32_an_expiration_does_not_make_a_message_early_nor_lose_it_while_the_daemon_is_away() {
    let bench = Bench::new("expiration", ONE);
    let mut daemon = bench.daemon().await;
    daemon.stop().await;
    let client = bench.client().await;
    let outs: Vec<Out> = (0..10)
        .map(|i| {
            let out = Out::new("b.delay", "some.key", &i.to_string()).delay_ms(3000);
            out.with(|p| p.with_expiration("100".into()))
        })
        .collect();
    let sent = client.publish_all(&outs).await;
    until("all ten have expired in the intake", SOON, async || {
        (client.depth("b.intake").await == 0 && client.depth("b.intake.late").await == 10).then_some(())
    })
    .await;
    let work = client.collect("work").await;
    let mut daemon = bench.daemon().await;
    let arrivals = work.wait(10, SOON).await;
    for arrival in arrivals {
        let i: usize = arrival.text().parse().expect("its number");
        arrival.is_on_time(sent[i], ms(3000));
        assert_eq!(arrival.properties.expiration().as_ref().map(ShortString::as_str), Some("100"));
        assert_eq!(arrival.key, "some.key");
        assert_eq!(arrival.header("x-death"), None, "the history of the intake is stripped");
    }
    assert_eq!(client.depth("dwell.rejected").await, 0);
    bench.ends_empty("b", std::slice::from_mut(&mut daemon)).await;
    assert_eq!(work.count(), 10, "each once");
}

/// Case B34: the broker would close the channel over an `expiration` that is no number. One can only come by a history
/// of deaths that somebody has written; it is dropped, and the message is not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b34_a_bad_expiration_in_a_history_of_deaths_is_dropped_and_costs_no_channel() {
    let bench = Bench::new("badexp", ONE);
    let mut daemon = bench.daemon().await;
    let client = bench.client().await;
    let work = client.collect("work").await;
    let cases = ["10.5", "1e3", "", " 10", "-1", "315360000001", "60000"];
    for original in cases {
        let mut death = FieldTable::default();
        for (name, value) in [("queue", "b.intake"), ("reason", "expired"), ("original-expiration", original)] {
            death.insert(name.into(), text(value));
        }
        let deaths = AMQPValue::FieldArray(FieldArray::from(vec![AMQPValue::FieldTable(death)]));
        // By the default exchange, straight into the queue where the intake's dead letters go.
        client.publish(&Out::new("", "b.intake.late", original).delay_ms(300).header("x-death", deaths)).await;
    }
    for arrival in work.wait(cases.len(), SOON).await {
        let expected = (arrival.text() == "60000").then_some("60000");
        assert_eq!(arrival.properties.expiration().as_ref().map(ShortString::as_str), expected, "'{}'", arrival.text());
    }
    assert_eq!(client.depth("dwell.rejected").await, 0);
    bench.ends_empty("b", std::slice::from_mut(&mut daemon)).await;
    assert_eq!(work.count(), cases.len(), "each once");
}

/// Case B12: what RabbitMQ itself refuses (a TTL above ten years) stops the daemon before it touches anything.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b12_a_tier_above_the_brokers_own_ceiling_is_refused_before_anything_is_declared() {
    let mut bench = Bench::new(
        "ceiling",
        r##"
        version = 1
        [bridge.b]
        tiers = ["315360000001ms"]
        [[bridge.b.queue]]
        name = "work"
        bind = ["#"]
        "##,
    );
    bench.set("DWELL_DELAY__BROKER_LIMIT", "4000d").set("DWELL_DELAY__MAX_DELAY", "4000d");
    let mut daemon = bench.start(&[]);
    assert_eq!(daemon.exit(SOON).await, Some(65), "{}", daemon.log());
    assert!(daemon.log().contains("315360000000"), "names the limit: {}", daemon.log());
    assert_eq!(bench.look("queues", "").as_array().map(Vec::len), Some(0), "nothing was declared");
}

/// The broker cancels a consumer whose queue is deleted, and lapin says so once, behind what it has buffered.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_intake_queue_deleted_under_load_is_back_and_consumed() {
    let bench =
        Bench::new("intake-gone", "version = 1\n[bridge.b]\n[[bridge.b.queue]]\nname = \"work\"\nbind = [\"#\"]\n");
    bench.daemon().await.stop().await;
    let client = bench.client().await;
    let outs: Vec<Out> = (0..3000).map(|n| Out::new("b.delay", "k", &format!("load {n}")).delay_ms(0)).collect();
    client.publish_all(&outs).await;
    let work = client.collect("work").await;
    let daemon = bench.start(&[]);
    work.wait(100, SOON).await;
    let channel = client.channel().await;
    channel.queue_delete("b.intake".into(), lapin::options::QueueDeleteOptions::default()).await.expect("deleted");
    // In this order: between the queue's declaration and its binding the daemon is not ready.
    until("the queue is back", SOON, async || client.try_depth("b.intake").await).await;
    until("ready again", SOON, async || (daemon.get("/readyz").0 == 200).then_some(())).await;
    let sent = client.publish(&Out::new("b.delay", "k", "after").delay_ms(50)).await;
    work.wait_for("after", SOON).await.is_on_time(sent, ms(50));
}
