//! Any number of daemons, killed at any moment: none lost, none early, and no copy without a fault.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::support::{
    Arrival, Bench, Daemon, Dice, Out, Private, SOON, Services, copies_are_marked, in_lanes, ms, until,
};

const ONE: &str = r##"
version = 1

[bridge.b]
tiers = ["500ms", "1s"]

[[bridge.b.queue]]
name = "work"
bind = ["#"]
"##;

/// Every body of `sent` is among the arrivals, none before its delay.
fn none_lost_none_early(sent: &BTreeMap<String, (Instant, Duration)>, arrivals: &[Arrival]) {
    for arrival in arrivals {
        let (at, delay) = sent.get(&arrival.text()).expect("it was sent");
        let took = arrival.at.duration_since(*at);
        assert!(took + ms(1) > *delay, "'{}' is early: {took:?} of {delay:?}", arrival.text());
    }
    let came: std::collections::BTreeSet<String> = arrivals.iter().map(Arrival::text).collect();
    let lost: Vec<&String> = sent.keys().filter(|body| !came.contains(*body)).collect();
    assert!(lost.is_empty(), "{} lost: {lost:?}", lost.len());
}

fn distinct(arrivals: &[Arrival]) -> usize {
    arrivals.iter().map(Arrival::text).collect::<std::collections::BTreeSet<String>>().len()
}

/// Case B96: three daemons on one intake and one store; native, placed, stored and due-now messages; exactly as many
/// come out as went in.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b96_three_daemons_without_a_fault_deliver_each_message_exactly_once() {
    let bench = Bench::new("three", ONE);
    let mut daemons = vec![bench.daemon().await, bench.daemon().await, bench.daemon().await];
    let client = bench.client().await;
    let work = client.collect("work").await;
    let mut dice = Dice::new("three daemons");
    let same_instant = i64::try_from(crate::support::epoch_ms()).expect("fits") + 3000;
    let outs: Vec<Out> = (0..3000)
        .map(|i| {
            let out = Out::new("b.delay", "k", &i.to_string());
            match i % 6 {
                0 => out.delay_ms(1000),
                1 => out.delay_ms(500).header("dwell-attempt", crate::support::text("stale")),
                2 => out.delay_ms(0),
                // A third of all is due in the very same millisecond.
                3 | 4 => out.header("x-deliver-at", lapin::types::AMQPValue::LongLongInt(same_instant)),
                _ => out.delay_ms(i64::try_from(dice.below(3000)).expect("small")),
            }
        })
        .collect();
    let mut sent = BTreeMap::new();
    for chunk in outs.chunks(500) {
        for (out, at) in chunk.iter().zip(client.publish_all(chunk).await) {
            let delay = out.properties.headers().as_ref().and_then(|h| match h.inner().get("x-delay") {
                Some(lapin::types::AMQPValue::LongLongInt(n)) => Some(ms(n.unsigned_abs())),
                _ => None,
            });
            sent.insert(String::from_utf8_lossy(&out.body).into_owned(), (at, delay.unwrap_or_default()));
        }
    }
    let arrivals = work.wait(outs.len(), SOON).await;
    assert!(crate::support::epoch_ms() >= same_instant.unsigned_abs(), "what has an instant came after it");
    none_lost_none_early(&sent, &arrivals);
    let taken: Vec<f64> = daemons.iter().map(|d| d.metric(r#"dwell_intake_deliveries_total{bridge="b"}"#)).collect();
    println!("taken in by each: {taken:?}");
    bench.ends_empty("b", &mut daemons).await;
    assert_eq!(work.count(), outs.len(), "each once");
}

/// Cases B94 and B95, 50 rounds in ten lanes: the daemon dies by kill -9 at a random moment of a message's life, and is
/// started again. Each lane ends with two rounds without a kill, which must be exact.
#[test]
fn b94_b95_fifty_kills_of_the_daemon_lose_nothing_and_make_nothing_early() {
    in_lanes(0..10, lane_of_kills);
}

async fn lane_of_kills(lane: u64) {
    let mut bench = Bench::new(&format!("kills{lane}"), ONE);
    bench.set("DWELL_DELAY__BROKER_LIMIT", "2s").short_lease();
    let mut dice = Dice::new(&format!("kills, lane {lane}"));
    let mut daemon = bench.daemon().await;
    let client = bench.client().await;
    let work = client.collect("work").await;
    let mut sent = BTreeMap::new();
    for round in 0..5 {
        let outs: Vec<Out> =
            (0..10).map(|i| Out::new("b.delay", "k", &format!("{lane}/{round}/{i}")).delay_ms(3000)).collect();
        let began = Instant::now();
        let at = client.publish_all(&outs).await;
        for (out, at) in outs.iter().zip(at) {
            sent.insert(String::from_utf8_lossy(&out.body).into_owned(), (at, ms(3000)));
        }
        // Half of the kills fall into the first 50 ms (intake and parking), a third about the due time (the pump).
        let moment = match dice.below(6) {
            0..3 => dice.below(50),
            3..5 => 2950 + dice.below(150),
            _ => dice.below(3200),
        };
        tokio::time::sleep_until((began + ms(moment)).into()).await;
        daemon.kill();
        daemon = bench.daemon().await;
        until(&format!("all of round {round} have come"), SOON * 2, async || {
            (distinct(&work.now()) == sent.len()).then_some(())
        })
        .await;
    }
    let arrivals = work.now();
    none_lost_none_early(&sent, &arrivals);
    copies_are_marked(&arrivals);
    println!("lane {lane}: {} messages, {} copies", sent.len(), arrivals.len() - sent.len());

    // What a kill has left claimed is over now (all have come; a copy may still be to come after its lease).
    bench.quiet("b", &daemon).await;
    let before = work.count();
    let mut sent = BTreeMap::new();
    for round in 5..7 {
        let outs: Vec<Out> =
            (0..10).map(|i| Out::new("b.delay", "k", &format!("{lane}/{round}/{i}")).delay_ms(3000)).collect();
        for (out, at) in outs.iter().zip(client.publish_all(&outs).await) {
            sent.insert(String::from_utf8_lossy(&out.body).into_owned(), (at, ms(3000)));
        }
    }
    let arrivals = work.wait(before + 20, SOON).await.split_off(before);
    none_lost_none_early(&sent, &arrivals);
    bench.ends_empty("b", std::slice::from_mut(&mut daemon)).await;
    assert_eq!(work.count(), before + 20, "exactly once without a kill");
}

/// Fifty kills of Redis while messages are parked and released all the time; its append-only file is written at every
/// command, so what it has acknowledged is there again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fifty_kills_of_redis_lose_nothing_and_make_nothing_early() {
    let name = "several::fifty_kills_of_redis_lose_nothing_and_make_nothing_early";
    let Some(mut redis) = Private::redis(name, &["--appendfsync", "always"]) else { return };
    let mut bench = Bench::on(Services::given().with_redis(&redis), "rediskills", ONE);
    bench.set("DWELL_DELAY__BROKER_LIMIT", "2s").short_lease();
    let mut daemon = bench.daemon().await;
    let client = bench.client().await;
    let work = client.collect("work").await;
    let mut dice = Dice::new("kills of Redis");
    let mut sent = BTreeMap::new();
    let burst = async |sent: &mut BTreeMap<String, (Instant, Duration)>, round: usize| {
        let outs: Vec<Out> =
            (0..20).map(|i| Out::new("b.delay", "k", &format!("{round}/{i}")).delay_ms(3000)).collect();
        for (out, at) in outs.iter().zip(client.publish_all(&outs).await) {
            sent.insert(String::from_utf8_lossy(&out.body).into_owned(), (at, ms(3000)));
        }
    };
    // Without a kill: exact.
    burst(&mut sent, 1000).await;
    work.wait(20, SOON).await;
    until("all is settled", SOON, async || (bench.stored("b") == 0).then_some(())).await;
    assert_eq!(work.count(), 20, "exactly once without a kill");
    for round in 0..50 {
        burst(&mut sent, round).await;
        // At a random moment after the burst: while it is parked, or while an earlier one is released.
        tokio::time::sleep(ms(dice.below(400))).await;
        redis.kill();
        redis.start();
    }
    until("all have come", SOON * 2, async || (distinct(&work.now()) == sent.len()).then_some(())).await;
    bench.quiet("b", &daemon).await;
    bench.ends_empty("b", std::slice::from_mut(&mut daemon)).await;
    let arrivals = work.now();
    none_lost_none_early(&sent, &arrivals);
    copies_are_marked(&arrivals);
    println!("{} messages, {} copies", sent.len(), arrivals.len() - sent.len());
}

/// Cases B94 and B95 at every crash point: the process dies between two effects, and the sentence beside the point holds.
#[test]
fn b94_b95_dying_at_every_crash_point_loses_nothing_and_marks_copies() {
    in_lanes(dwell::crash::POINTS, die_at);
}

async fn die_at(point: &'static str) {
    let mut bench = Bench::new(&format!("die-{}", point.replace('.', "-")), ONE);
    bench.set("DWELL_DELAY__BROKER_LIMIT", "2s").short_lease();
    let client = bench.client().await;
    bench.daemon().await.stop().await;
    let work = client.collect("work").await;
    let mut sent = BTreeMap::new();
    let outs: Vec<Out> = (0..60)
        .map(|i| {
            let out = Out::new("b.delay", "k", &i.to_string());
            match i % 3 {
                0 => out.delay_ms(0),
                1 => out.delay_ms(500).header("dwell-attempt", crate::support::text("stale")),
                _ => out.delay_ms(2000),
            }
        })
        .collect();
    for (i, (out, at)) in outs.iter().zip(client.publish_all(&outs).await).enumerate() {
        sent.insert(String::from_utf8_lossy(&out.body).into_owned(), (at, ms([0, 500, 2000][i % 3])));
    }
    if point == "reaper.reaped" {
        // Somebody must have died with a claim for it.
        dies(&bench, "pump.claimed").await;
    }
    dies(&bench, point).await;
    let mut daemon = bench.daemon().await;
    until(&format!("{point}: all have come"), SOON * 2, async || (distinct(&work.now()) == sent.len()).then_some(()))
        .await;
    bench.quiet("b", &daemon).await;
    bench.ends_empty("b", std::slice::from_mut(&mut daemon)).await;
    let arrivals = work.now();
    none_lost_none_early(&sent, &arrivals);
    copies_are_marked(&arrivals);
    println!("{point}: {} copies", arrivals.len() - sent.len());
    // At the points after an acknowledgement the frame may still be in the client's buffer, and dies with it.
    if matches!(point, "intake.taken" | "pump.claimed" | "pump.settled" | "reaper.reaped") {
        // Nothing was on its way twice at that moment: such a death costs time only.
        assert_eq!(arrivals.len(), sent.len(), "{point}: no copies");
    }
}

async fn dies(bench: &Bench, point: &str) {
    let mut daemon: Daemon = bench.start(&[("DWELL_CRASH_AT", point)]);
    assert_eq!(daemon.exit(SOON).await, None, "{point}: it died by a signal\n{}", daemon.log());
}

/// Ten thousand messages of random delays at a thousand a second: each once, none early. How late they are is printed
/// beside a plain publish and consume of the same run.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_random_delays_arrive_each_once_and_none_early() {
    let bench = Bench::new("tenk", ONE);
    let mut daemon = bench.daemon().await;
    let client = bench.client().await;
    let work = client.collect("work").await;
    let mut dice = Dice::new("ten thousand");
    let mut sent = BTreeMap::new();
    let mut plain = BTreeMap::new();
    let mut confirms = Vec::new();
    let began = Instant::now();
    for tick in 0..1000_u32 {
        tokio::time::sleep_until((began + ms(10) * tick).into()).await;
        for i in 0..10 {
            let delay = dice.below(5000);
            let body = format!("{tick}/{i}");
            let out = Out::new("b.delay", "k", &body).delay_ms(i64::try_from(delay).expect("small"));
            sent.insert(body, (Instant::now(), ms(delay)));
            confirms.push(client.begin(&out).await);
        }
        let body = format!("plain {tick}");
        plain.insert(body.clone(), Instant::now());
        confirms.push(client.begin(&Out::new("b", "k", &body)).await);
    }
    let took = began.elapsed();
    for confirm in confirms {
        assert_eq!(confirm.await.expect("a confirm"), lapin::Confirmation::Ack(None));
    }
    let all = sent.len() + plain.len();
    let arrivals = work.wait(all, SOON * 2).await;
    bench.ends_empty("b", std::slice::from_mut(&mut daemon)).await;
    assert_eq!(work.count(), all, "each once");
    let (of_plain, delayed): (Vec<Arrival>, Vec<Arrival>) =
        arrivals.into_iter().partition(|a| plain.contains_key(&a.text()));
    none_lost_none_early(&sent, &delayed);
    let late = delayed.iter().map(|a| {
        let (at, delay) = sent[&a.text()];
        a.at.duration_since(at).saturating_sub(delay)
    });
    let transit = of_plain.iter().map(|a| a.at.duration_since(plain[&a.text()]));
    println!("published {} messages in {took:?}", sent.len());
    println!("lateness of the delayed ones: {}", percentiles(late.collect()));
    println!("plain publish and consume:    {}", percentiles(transit.collect()));
}

fn percentiles(mut all: Vec<Duration>) -> String {
    all.sort();
    let at = |percent: usize| all[(all.len() - 1) * percent / 100];
    format!("p50 {:?}, p99 {:?}, max {:?}", at(50), at(99), at(100))
}
