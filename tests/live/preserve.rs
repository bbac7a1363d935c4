//! What comes out is what went in: body, properties, headers and their types; by the broker alone, by a tier that the
//! daemon placed it in, and by the store.

use lapin::BasicProperties;
use lapin::types::{AMQPValue, DecimalValue, FieldArray, FieldTable, LongString};

use crate::support::{Arrival, Bench, Dice, Out, SOON, User, ms, text};

const ONE: &str = r##"
version = 1

[bridge.b]
tiers = ["500ms"]

[[bridge.b.queue]]
name = "work"
bind = ["job.#"]

[[bridge.b.queue]]
name = "w2"
bind = ["w2"]
"##;

/// The three ways through: header that chooses it, delay.
const WAYS: [(&str, Option<&str>, i64); 3] =
    [("native", None, 500), ("placed", Some("dwell-attempt"), 500), ("stored", None, 700)];

fn every_header_type() -> FieldTable {
    let mut inner = FieldTable::default();
    inner.insert("deep".into(), AMQPValue::LongLongInt(-1));
    let mut h = FieldTable::default();
    for (name, value) in [
        ("bool", AMQPValue::Boolean(true)),
        ("i8", AMQPValue::ShortShortInt(-8)),
        ("u8", AMQPValue::ShortShortUInt(8)),
        ("i16", AMQPValue::ShortInt(-16)),
        ("u16", AMQPValue::ShortUInt(16)),
        ("i32", AMQPValue::LongInt(-32)),
        ("u32", AMQPValue::LongUInt(32)),
        ("i64", AMQPValue::LongLongInt(i64::MIN)),
        ("f32", AMQPValue::Float(1.5)),
        ("f64", AMQPValue::Double(-2.25)),
        ("decimal", AMQPValue::DecimalValue(DecimalValue { scale: 2, value: 12345 })),
        ("text", text("grün")),
        ("empty", text("")),
        ("bytes", AMQPValue::LongString(LongString::from(vec![0xff, 0x00, 0xfe]))),
        ("array", AMQPValue::FieldArray(FieldArray::from(vec![AMQPValue::Void, AMQPValue::LongInt(7)]))),
        ("timestamp", AMQPValue::Timestamp(1_764_547_200)),
        ("table", AMQPValue::FieldTable(inner)),
        ("byte-array", AMQPValue::ByteArray(vec![0u8, 1, 255].into())),
        ("void", AMQPValue::Void),
        ("x-dead-letter-reason", text("the application's own")),
    ] {
        h.insert(name.into(), value);
    }
    h
}

fn every_property() -> BasicProperties {
    BasicProperties::default()
        .with_content_type("application/json".into())
        .with_content_encoding("gzip".into())
        .with_headers(every_header_type())
        .with_delivery_mode(2)
        .with_priority(4)
        .with_correlation_id("correlation".into())
        .with_reply_to("reply".into())
        .with_message_id("message".into())
        .with_timestamp(1_764_547_200)
        .with_type("kind".into())
        .with_app_id("app".into())
        .with_cluster_id("cluster".into())
}

/// What dwell and the broker add by design; everything else must be as it was.
fn is_documented_addition(name: &str) -> bool {
    matches!(name, "dwell-id" | "dwell-tier" | "dwell-user-id" | "x-death" | "x-delivery-count")
        || name.starts_with("x-first-death-")
        || name.starts_with("x-last-death-")
}

fn is_unchanged(way: &str, sent: &Out, arrival: &Arrival) {
    let (before, after) = (&sent.properties, &arrival.properties);
    let headers = |p: &BasicProperties| p.headers().clone().unwrap_or_default();
    for (name, value) in headers(before).inner() {
        if name.as_str() != "dwell-attempt" {
            assert_eq!(headers(after).inner().get(name), Some(value), "{way}: header {name}");
        }
    }
    for name in headers(after).inner().keys() {
        let known = headers(before).inner().contains_key(name) || is_documented_addition(name.as_str());
        assert!(known, "{way}: header {name} was added");
    }
    let without_headers = |p: &BasicProperties| p.clone().with_headers(FieldTable::default());
    assert_eq!(without_headers(after), without_headers(before), "{way}: properties");
    assert_eq!(arrival.key, sent.key, "{way}: routing key");
    assert!(arrival.body == sent.body, "{way}: body of {} bytes", sent.body.len());
}

/// Cases B83 and B88.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b83_b88_body_properties_and_header_types_come_out_as_they_went_in_by_every_way() {
    let bench = Bench::new("preserve", ONE);
    let mut daemon = bench.daemon().await;
    let client = bench.client().await;
    let work = client.collect("work").await;
    let mut dice = Dice::new("bodies");
    let bodies: Vec<Vec<u8>> = vec![
        Vec::new(),
        vec![0x00, 0xff, 0xfe, 0x0d, 0x0a],
        vec![0xed, 0xa0, 0x80],
        (0..1 << 20).map(|_| u8::try_from(dice.below(256)).expect("a byte")).collect(),
    ];
    for (way, gate, delay) in WAYS {
        for (i, body) in bodies.iter().enumerate() {
            let mut out = Out::new("b.delay", "job.key.of.its.own", "");
            out.body.clone_from(body);
            out.properties = every_property();
            let mut out = out.delay_ms(delay);
            if let Some(gate) = gate {
                out = out.header(gate, text("stale"));
            }
            if way == "stored" {
                out = out.with(|p| p.with_expiration("60000".into()).with_user_id("guest".into()));
            }
            let already = work.count();
            let sent = client.publish(&out).await;
            let arrival = work.wait(already + 1, SOON).await.remove(already);
            arrival.is_on_time(sent, ms(delay.unsigned_abs()));
            is_unchanged(&format!("{way}, body {i}"), &out, &arrival);
            assert_eq!(arrival.header("dwell-id").is_some(), way != "native");
            assert_eq!(arrival.header("dwell-tier").is_some(), way == "placed");
        }
    }
    // A message without any property is one without any afterwards, but for what dwell adds.
    for (_, _, delay) in [WAYS[0], WAYS[2]] {
        let mut out = Out::new("b.delay", "job.bare", "bare");
        out.properties = BasicProperties::default();
        let out = out.delay_ms(delay);
        let already = work.count();
        client.publish(&out).await;
        let arrival = work.wait(already + 1, SOON).await.remove(already);
        let kinds =
            [arrival.properties.content_type(), arrival.properties.message_id(), arrival.properties.expiration()];
        assert!(kinds.iter().all(|p| p.is_none()), "{kinds:?}");
    }
    bench.ends_empty("b", std::slice::from_mut(&mut daemon)).await;
}

/// Case B84: what the daemon handles is persistent from then on, whatever it was.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b84_a_transient_message_becomes_persistent_in_the_daemons_hands() {
    let bench = Bench::new("transient", ONE);
    let mut daemon = bench.daemon().await;
    let client = bench.client().await;
    let work = client.collect("work").await;
    for (way, gate, delay) in &WAYS[1..] {
        let mut out = Out::new("b.delay", "job.x", way).delay_ms(*delay).with(|p| p.with_delivery_mode(1));
        if let Some(gate) = gate {
            out = out.header(gate, text("stale"));
        }
        client.publish(&out).await;
        assert_eq!(work.wait_for(way, SOON).await.properties.delivery_mode(), &Some(2), "{way}");
    }
    bench.ends_empty("b", std::slice::from_mut(&mut daemon)).await;
}

/// Case B85: another user's `user_id` would close the daemon's channel for ever; it comes out in a header instead.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b85_a_foreign_user_id_is_carried_in_a_header_and_stops_nobody() {
    let bench = Bench::new("user", ONE);
    let user = User::new(&bench, "app", "only-for-this-test", "");

    let mut daemon = bench.daemon().await;
    let client = bench.client().await;
    let work = client.collect("work").await;
    let mut url = url::Url::parse(&bench.amqp_url()).expect("a url");
    url.set_username(&user.name).expect("a user name");
    url.set_password(Some("only-for-this-test")).expect("a password");
    let app = crate::support::Client::connect(url.as_str()).await;
    for (way, gate, delay) in WAYS.into_iter().chain([("now", None, 0)]) {
        let mut out = Out::new("b.delay", "job.x", way)
            .delay_ms(delay)
            .with(|p| p.with_user_id(user.name.as_str().into()).with_correlation_id("kept".into()));
        if let Some(gate) = gate {
            out = out.header(gate, text("stale"));
        }
        app.publish(&out).await;
        let arrival = work.wait_for(way, SOON).await;
        if way == "native" {
            assert_eq!(arrival.properties.user_id().as_ref().map(|u| u.as_str()), Some(user.name.as_str()));
        } else {
            assert_eq!(arrival.properties.user_id(), &None, "{way}");
            assert_eq!(arrival.header_text("dwell-user-id"), Some(user.name.clone()), "{way}");
        }
        assert_eq!(arrival.properties.correlation_id().as_ref().map(|c| c.as_str()), Some("kept"));
    }
    bench.ends_empty("b", std::slice::from_mut(&mut daemon)).await;
    assert_eq!(work.count(), 4, "each once");
}

/// Case B62: `CC` is kept. Each queue gets the message once, when it is due, by every way.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b62_a_copy_by_cc_comes_once_and_when_due() {
    let bench = Bench::new("cc", ONE);
    let mut daemon = bench.daemon().await;
    let client = bench.client().await;
    let (work, w2) = (client.collect("work").await, client.collect("w2").await);
    let cc = AMQPValue::FieldArray(FieldArray::from(vec![text("w2")]));
    for (way, gate, delay) in WAYS {
        let mut out = Out::new("b.delay", "job.x", way).delay_ms(delay).header("CC", cc.clone());
        if let Some(gate) = gate {
            out = out.header(gate, text("stale"));
        }
        let sent = client.publish(&out).await;
        work.wait_for(way, SOON).await.is_on_time(sent, ms(delay.unsigned_abs()));
        w2.wait_for(way, SOON).await.is_on_time(sent, ms(delay.unsigned_abs()));
    }
    bench.ends_empty("b", std::slice::from_mut(&mut daemon)).await;
    assert_eq!((work.count(), w2.count()), (3, 3), "each once");
}
