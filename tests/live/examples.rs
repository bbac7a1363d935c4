//! The topologies of this repository do what their comments promise, with times scaled down.

use std::path::Path;

use crate::support::{Bench, Out, SOON, ms, text};

/// An example with its durations replaced; each of them must be there.
fn example(file: &str, scale: &[(&str, &str)]) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("topology").join(file);
    let mut written = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    for (from, to) in scale {
        let (from, to) = (format!("\"{from}\""), format!("\"{to}\""));
        assert!(written.contains(&from), "{file} does not say {from} any more");
        written = written.replace(&from, &to);
    }
    written
}

/// `topology/orders.toml`: an order that is not paid in time is closed when its time has come, by the broker alone
/// where the delay is a tier; any other delay works too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn orders_are_closed_when_their_time_has_come() {
    let topology = example("orders.toml", &[("10s", "300ms"), ("1m", "800ms"), ("30m", "1500ms"), ("24h", "2500ms")]);
    let bench = Bench::new("orders", &topology);
    let mut daemon = bench.daemon().await;
    let client = bench.client().await;
    let close = client.collect("orders.close").await;
    let outs: Vec<(Out, u64)> = [300, 800, 1500, 2500, 1100]
        .into_iter()
        .map(|d: u64| {
            let out = Out::new("orders.delay", &format!("order.{d}.close"), &d.to_string());
            (out.delay_ms(i64::try_from(d).expect("small")), d)
        })
        .collect();
    let mut sent = Vec::new();
    for (out, _) in &outs {
        sent.push(client.publish(out).await);
    }
    // Of no interest to this queue: it rests where it can be found.
    client.publish(&Out::new("orders.delay", "order.1.paid", "paid").delay_ms(300)).await;
    for ((out, delay), sent) in outs.iter().zip(sent) {
        let arrival = close.wait_for(&delay.to_string(), SOON).await;
        arrival.is_on_time(sent, ms(*delay));
        assert_eq!((arrival.exchange.as_str(), &arrival.key), ("orders", &out.key));
        assert_eq!(arrival.header("dwell-id").is_none(), *delay != 1100, "tiers wait in the broker alone");
    }
    assert_eq!(client.drain("orders.unrouted", 1).await[0].text(), "paid");
    bench.ends_empty("orders", std::slice::from_mut(&mut daemon)).await;
    assert_eq!(close.count(), outs.len(), "each once");
}

/// `topology/reminder.toml`: seven days (here 1.5 s) wait in the store; a message with the same key replaces the one
/// before; a delay above the bridge's `max_delay` is a mistake.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reminder_comes_after_its_days_and_a_new_one_of_the_same_key_replaces_it() {
    let mut bench = Bench::new("reminder", &example("reminder.toml", &[("90d", "20s")]));
    bench.set("DWELL_DELAY__BROKER_LIMIT", "1s");
    let mut daemon = bench.daemon().await;
    let client = bench.client().await;
    let queue = client.collect("reminder.send").await;
    let remind = |user: &str, body: &str, delay: &str| {
        Out::new("reminder.delay", &format!("user.{user}.remind"), body)
            .header("x-delay", text(delay))
            .header("x-delay-key", text(&format!("user-{user}")))
    };
    let first = client.publish(&remind("1", "first of 1", "1500ms")).await;
    client.publish(&remind("2", "replaced", "1500ms")).await;
    let second = client.publish(&remind("2", "second of 2", "2500ms")).await;
    client.publish(&remind("3", "too long", "21s")).await;
    let arrival = queue.wait_for("first of 1", SOON).await;
    arrival.is_on_time(first, ms(1500));
    assert_eq!(arrival.key, "user.1.remind");
    assert_eq!(arrival.header_text("x-delay-key").as_deref(), Some("user-1"));
    queue.wait_for("second of 2", SOON).await.is_on_time(second, ms(2500));
    let rejected = client.drain("dwell.rejected", 1).await;
    assert_eq!(rejected[0].header_text("dwell-reason").as_deref(), Some("delay-too-large"));
    bench.ends_empty("reminder", std::slice::from_mut(&mut daemon)).await;
    assert_eq!(queue.count(), 2, "the replaced one never comes");
}
