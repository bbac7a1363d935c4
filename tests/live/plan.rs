//! plan and apply: what they say is what they do, what they change loses nothing, and what they cannot change they say.

use std::time::Duration;

use lapin::ExchangeKind;
use lapin::options::{ExchangeDeclareOptions, QueueBindOptions, QueueDeclareOptions};
use lapin::types::{AMQPValue, FieldTable};
use serde_json::Value as Json;

use crate::support::{Bench, Client, Dice, Out, SOON, User, ms, text, until};

fn one(tiers: &str, more: &str, bind: &str) -> String {
    format!("version = 1\n[bridge.b]\ntiers = {tiers}\n{more}\n[[bridge.b.queue]]\nname = \"work\"\nbind = {bind}\n")
}

/// A bench whose commands see all of the broker.
fn bench(name: &str, topology: &str) -> Bench {
    let mut bench = Bench::new(name, topology);
    bench.managed();
    bench
}

/// `plan` says that there is nothing to do.
fn settled(bench: &Bench, arguments: &[&str]) {
    let said = bench.run(&[&["plan"], arguments].concat());
    assert_eq!(said.code, Some(0), "{}{}", said.out, said.err);
    assert!(said.out.contains("Nothing to do"), "{}", said.out);
}

fn applied(bench: &Bench, arguments: &[&str]) -> String {
    let said = bench.run(&[&["apply"], arguments].concat());
    assert_eq!(said.code, Some(0), "{}{}", said.out, said.err);
    said.out
}

fn queues(bench: &Bench) -> Vec<String> {
    let list = bench.look("queues", "");
    list.as_array().expect("a list").iter().filter_map(|q| q["name"].as_str()).map(ToOwned::to_owned).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_first_start_is_a_plan_against_nothing_and_again_is_a_no_op() {
    let bench = bench("first", &one(r#"["500ms", "1m"]"#, "default_delay = \"500ms\"", r##"["#"]"##));
    let said = bench.run(&["plan"]);
    assert_eq!(said.code, Some(3), "{}", said.out);
    for words in ["+ create  queue 'b.wait.500ms'", "on x-delay = 60000", "exchange 'b.delay'", "To do:"] {
        assert!(said.out.contains(words), "{words} is not in:\n{}", said.out);
    }
    assert!(queues(&bench).is_empty(), "a plan touches nothing");
    let lines = |out: &str| {
        let mut lines: Vec<String> = out.lines().filter(|l| l.starts_with('+')).map(ToOwned::to_owned).collect();
        lines.sort();
        lines
    };
    assert_eq!(lines(&applied(&bench, &[])), lines(&said.out), "apply does exactly what plan printed");
    settled(&bench, &[]);
    assert!(applied(&bench, &["--prune", "--policies"]).contains("nothing to do"));

    // The daemon finds all as it should be, and changes nothing either.
    let mut daemon = bench.daemon().await;
    settled(&bench, &["--prune"]);
    let client = bench.client().await;
    let work = client.collect("work").await;
    let sent = client.publish(&Out::new("b.delay", "k", "tier").delay_ms(500)).await;
    let default = client.publish(&Out::new("b.delay", "k", "default")).await;
    work.wait_for("tier", SOON).await.is_on_time(sent, ms(500));
    work.wait_for("default", SOON).await.is_on_time(default, ms(500));
    bench.ends_empty("b", std::slice::from_mut(&mut daemon)).await;
    assert_eq!(work.count(), 2, "each once");

    let json = bench.run(&["plan", "--json"]);
    let plan: Json = serde_json::from_str(&json.out).expect("JSON");
    assert_eq!((plan["complete"].as_bool(), plan["changes"].as_u64()), (Some(true), Some(0)), "{plan}");
}

/// Without the management API a plan says what it cannot know, and `apply` declares as `run` does.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_the_management_api_a_plan_says_what_it_does_not_know() {
    let bench = Bench::new("blind", &one(r#"["1s"]"#, "", r#"["a"]"#));
    let said = bench.run(&["plan"]);
    assert_eq!(said.code, Some(3), "{}", said.out);
    assert!(said.out.contains("not compared") && said.out.contains("[management]"), "{}", said.out);
    assert_eq!(bench.run(&["apply"]).code, Some(0));
    assert_eq!(bench.run(&["plan"]).code, Some(0));
    for flag in ["--prune", "--policies"] {
        let said = bench.run(&["apply", flag]);
        assert_eq!(said.code, Some(69), "{}", said.err);
        assert!(said.err.contains("management.url"), "{}", said.err);
    }
    // An address where nothing answers is no reason to do less than that.
    let said = bench.run_with(&["plan"], &[("DWELL_MANAGEMENT__URL", "http://guest:guest@127.0.0.1:9")]);
    assert_eq!(said.code, Some(0), "{}", said.err);
    assert!(said.err.contains("does not answer"), "{}", said.err);
}

/// Case B42: messages wait in an old tier while it is replaced, twice; all come out, each once and on time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b42_a_thousand_messages_wait_in_a_tier_that_is_replaced_twice() {
    let quorum = one(r#"["6s"]"#, "", r##"["#"]"##);
    let classic = one(r#"["6s"]"#, "queue_type = \"classic\"", r##"["#"]"##);
    let bench = bench("replace", &quorum);
    applied(&bench, &[]);
    let client = bench.client().await;
    let work = client.collect("work").await;
    let mut sent = Vec::new();
    for (round, file) in [Some(&classic), Some(&quorum), None].into_iter().enumerate() {
        let outs: Vec<Out> =
            (0..1000).map(|i| Out::new("b.delay", "k", &(round * 1000 + i).to_string()).delay_ms(6000)).collect();
        sent.extend(client.publish_all(&outs).await);
        let Some(file) = file else { break };
        bench.write_topology("main.toml", file);
        let out = applied(&bench, &["--prune"]);
        assert!(out.contains("drain"), "{out}");
        settled(&bench, &["--prune"]);
    }
    for arrival in work.wait(3000, SOON).await {
        let i: usize = arrival.text().parse().expect("its number");
        arrival.is_on_time(sent[i], ms(6000));
    }
    assert!(bench.run(&["plan", "--prune"]).out.contains("it may be deleted from"), "not before its time");
    assert_eq!(work.count(), 3000, "each once");
    // The same file again names the same queue: the first name was kept, and the successor drains.
    let there = queues(&bench);
    assert!(there.contains(&"b.wait.6s".to_owned()) && there.contains(&"b.wait.6s.2".to_owned()), "{there:?}");
}

/// What `run` does by itself when a buffer queue cannot be changed, without the management API.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn run_takes_a_successor_where_a_buffer_queue_cannot_be_changed() {
    let mut bench = Bench::new("successor", &one(r#"["2s"]"#, "default_delay = \"2s\"", r##"["#"]"##));
    let mut daemon = bench.daemon().await;
    let client = bench.client().await;
    let work = client.collect("work").await;
    let outs = |from: usize| -> Vec<Out> {
        // By the broker, by the daemon (digits are native too, a duration is not), and without a header.
        (from..from + 30)
            .map(|i| {
                let out = Out::new("b.delay", "k", &i.to_string());
                match i % 3 {
                    0 => out.delay_ms(2000),
                    1 => out.header("x-delay", text("2s")),
                    _ => out,
                }
            })
            .collect()
    };
    let mut sent = client.publish_all(&outs(0)).await;
    for (from, kind) in [(30, "classic"), (60, "quorum"), (90, "classic")] {
        daemon.stop().await;
        bench.write_topology(
            "main.toml",
            &one(r#"["2s"]"#, &format!("default_delay = \"2s\"\nqueue_type = \"{kind}\""), r##"["#"]"##),
        );
        daemon = bench.daemon().await;
        sent.extend(client.publish_all(&outs(from)).await);
    }
    for arrival in work.wait(120, SOON).await {
        let i: usize = arrival.text().parse().expect("its number");
        arrival.is_on_time(sent[i], ms(2000));
    }
    bench.ends_empty("b", std::slice::from_mut(&mut daemon)).await;
    assert_eq!(work.count(), 120, "each once");
    bench.managed();
    settled(&bench, &[]);
}

/// A buffer queue goes when nothing has led to it for its TTL and ten minutes, and never with a message in it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_drained_queue_goes_and_one_that_holds_a_message_stays() {
    let bench = bench("drain", &one(r#"["500ms", "1h", "2h", "3h"]"#, "", r##"["#"]"##));
    applied(&bench, &[]);
    let client = bench.client().await;
    bench.write_topology("main.toml", &one(r#"["500ms"]"#, "", r##"["#"]"##));
    // Without --prune nothing is taken away.
    settled(&bench, &[]);
    assert!(bench.run(&["plan"]).out.contains("with --prune:"));
    applied(&bench, &["--prune"]);
    settled(&bench, &["--prune"]);
    assert!(queues(&bench).contains(&"b.wait.1h".to_owned()), "not before its time");

    // As if it had been long ago.
    let channel = client.channel().await;
    let marks = |since: i64| {
        let mut mark = FieldTable::default();
        mark.insert("x-match".into(), text("all-with-x"));
        mark.insert("dwell-draining-since".into(), AMQPValue::LongLongInt(since));
        mark
    };
    let markers = bench.look("bindings", "");
    for queue in ["b.wait.1h", "b.wait.2h", "b.wait.3h"] {
        let marker = markers
            .as_array()
            .expect("a list")
            .iter()
            .find(|b| b["source"] == "dwell.draining" && b["destination"] == queue);
        let since = marker.and_then(|b| b["arguments"]["dwell-draining-since"].as_i64()).expect("it is marked");
        channel.queue_unbind(queue.into(), "dwell.draining".into(), "".into(), marks(since)).await.expect("unbound");
        channel
            .queue_bind(
                queue.into(),
                "dwell.draining".into(),
                "".into(),
                QueueBindOptions::default(),
                marks(since - 4 * 3_600_000),
            )
            .await
            .expect("bound");
    }
    // Past every binding, into the queue itself.
    client.publish(&Out::new("", "b.wait.2h", "still here")).await;
    // And somebody's own exchange leads to the third.
    channel
        .queue_bind(
            "b.wait.3h".into(),
            "amq.topic".into(),
            "theirs".into(),
            QueueBindOptions::default(),
            FieldTable::default(),
        )
        .await
        .expect("bound");
    let phase = |queue: &str| {
        let plan: Json = serde_json::from_str(&bench.run(&["plan", "--prune", "--json"]).out).expect("JSON");
        let steps = plan["steps"].as_array().expect("steps").clone();
        let step = steps.into_iter().find(|s| s["action"] == "drain" && s["object"]["name"] == queue);
        step.map(|s| s["phase"].clone()).unwrap_or_default()
    };
    until("the broker has counted the message", SOON, async || (phase("b.wait.2h")["messages"] == 1).then_some(()))
        .await;
    until("the empty one may go", SOON, async || (phase("b.wait.1h")["is"] == "ready").then_some(())).await;
    assert_eq!(phase("b.wait.3h")["is"], "led");
    let began = std::time::Instant::now();
    let out = applied(&bench, &["--prune"]);
    assert!(began.elapsed() > Duration::from_secs(19), "looked at three times, ten seconds apart");
    assert!(out.contains("queue 'b.wait.1h'"), "{out}");
    let there = queues(&bench);
    assert!(!there.contains(&"b.wait.1h".to_owned()), "{there:?}");
    for stays in ["b.wait.2h", "b.wait.3h", "b.wait.500ms"] {
        assert!(there.contains(&stays.to_owned()), "{stays} is gone: {there:?}");
    }
    assert_eq!(client.depth("b.wait.2h").await, 1);
}

/// Case B43: a binding that left the files is shown, stays without `--prune`, and goes with it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b43_a_binding_that_left_the_files_is_shown_and_goes_with_prune() {
    let bench = bench("unbind", &one(r#"["500ms"]"#, "", r#"["a", "b"]"#));
    applied(&bench, &[]);
    let client = bench.client().await;
    let work = client.collect("work").await;
    bench.write_topology("main.toml", &one(r#"["500ms"]"#, "", r#"["a"]"#));
    let said = bench.run(&["plan"]);
    assert_eq!(said.code, Some(0), "{}", said.out);
    assert!(said.out.contains("- unbind  binding of queue 'work' to exchange 'b' on key 'b'"), "{}", said.out);
    applied(&bench, &[]);
    client.publish(&Out::new("b.delay", "b", "still bound").delay_ms(500)).await;
    work.wait_for("still bound", SOON).await;
    let out = applied(&bench, &["--prune"]);
    assert!(out.contains("on key 'b'"), "{out}");
    client.publish(&Out::new("b.delay", "b", "unbound").delay_ms(500)).await;
    let rests = client.drain("b.unrouted", 1).await;
    assert_eq!(rests[0].text(), "unbound");
}

/// Somebody else's exchange, made without a word of dwell: the policy is printed, set on request, and makes tiers safe.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn somebody_elses_exchange_and_queue_get_policies_and_then_tiers() {
    let topology = "version = 1\n[bridge.b]\ntiers = [\"700ms\"]\nwork_exchange = { name = \"shop\", declare = false }\n\
                    [[bridge.b.queue]]\nname = \"theirs\"\nbind = [\"k\"]\nretry = [\"1s\"]\ndeclare = false\n";
    let bench = bench("foreign", topology);
    let said = bench.run(&["apply"]);
    assert_eq!(said.code, Some(4), "{}", said.out);
    for words in ["exchange 'shop'", "queue 'theirs'", "does not exist", "declare = false"] {
        assert!(said.out.contains(words), "{words} is not in:\n{}", said.out);
    }
    assert!(queues(&bench).is_empty(), "a refused plan touches nothing");
    let client = bench.client().await;
    let channel = client.channel().await;
    let options = ExchangeDeclareOptions { durable: true, ..ExchangeDeclareOptions::default() };
    channel.exchange_declare("shop".into(), ExchangeKind::Topic, options, FieldTable::default()).await.expect("theirs");
    let options = QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() };
    channel.queue_declare("theirs".into(), options, FieldTable::default()).await.expect("theirs");

    let said = bench.run(&["plan"]);
    assert_eq!(said.code, Some(3), "{}", said.out);
    assert!(said.out.contains("with --policies:") && said.out.contains("^shop$"), "{}", said.out);
    assert!(!said.out.contains("b.wait.700ms"), "no tier without an alternate exchange:\n{}", said.out);
    let out = applied(&bench, &["--policies"]);
    assert!(out.contains("b.unrouted") && out.contains("b.failed"), "{out}");
    let policies = bench.look("policies", "");
    assert_eq!(policies.as_array().map(Vec::len), Some(2), "{policies}");
    until("the policy is in force", SOON, async || {
        (bench.look("exchanges", "/shop")["policy"] == "dwell.b.shop").then_some(())
    })
    .await;
    // Now tiers are safe.
    assert!(applied(&bench, &["--policies"]).contains("b.wait.700ms"));
    settled(&bench, &["--policies", "--prune"]);
    let mut daemon = bench.daemon().await;
    let work = client.collect("theirs").await;
    daemon.stop().await;
    let sent = client.publish(&Out::new("b.delay", "k", "native").delay_ms(700)).await;
    client.publish(&Out::new("b.delay", "nobody", "unroutable").delay_ms(700)).await;
    work.wait_for("native", SOON).await.is_on_time(sent, ms(700));
    assert_eq!(client.drain("b.unrouted", 1).await[0].text(), "unroutable");
}

/// Cases B52, B53: a user without the right to configure, and without any right on most objects, runs what another one
/// has applied; what the broker will not tell him is not missing; what is missing is named.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b52_b53_who_may_not_declare_verifies_and_runs() {
    let bench = Bench::new("verify", &one(r#"["500ms"]"#, "default_delay = \"500ms\"", r##"["#"]"##));
    let mut admin = bench.daemon().await;
    admin.stop().await;
    // Write to where messages go, read where they come from; nothing on the tiers' exchanges and queues.
    let rights = ["", r"^(b|b\.unrouted|dwell\.(place|rejected))$", r"^b\.intake(\.late)?$"];
    let user = User::with_rights(&bench, "runner", "runner", rights);
    let mut url = url::Url::parse(&bench.amqp_url()).expect("a url");
    url.set_username(&user.name).expect("a name");
    url.set_password(Some("runner")).expect("a password");
    let verify = [("DWELL_AMQP__URL", url.as_str()), ("DWELL_RUN__TOPOLOGY", "verify")];
    let mut daemon = bench.start(&verify);
    daemon.ready().await;
    assert!(daemon.log().contains("nothing was declared"), "{}", daemon.log());
    let client = bench.client().await;
    let work = client.collect("work").await;
    for (delay, body) in [(0, "now"), (500, "tier"), (900, "store")] {
        let sent = client.publish(&Out::new("b.delay", "k", body).delay_ms(delay)).await;
        work.wait_for(body, SOON).await.is_on_time(sent, ms(delay.unsigned_abs()));
    }
    let sent = client.publish(&Out::new("b.delay", "k", "placed").header("x-delay", text("500ms"))).await;
    work.wait_for("placed", SOON).await.is_on_time(sent, ms(500));
    bench.ends_empty("b", std::slice::from_mut(&mut daemon)).await;

    let mut lacking = Bench::new("lacking", &one(r#"["500ms"]"#, "", r##"["#"]"##));
    for managed in [false, true] {
        if managed {
            lacking.managed();
        }
        let said = lacking.run(&["run", "--verify-only", "--http-listen", "127.0.0.1:0"]);
        assert_eq!(said.code, Some(4), "{}{}", said.out, said.err);
        for words in ["exchange 'b.delay'", "queue 'b.wait.500ms'", "missing", "dwell apply"] {
            assert!(said.err.contains(words), "{words} is not in:\n{}", said.err);
        }
    }
    assert!(queues(&lacking).is_empty(), "nothing was declared");
}

/// Cases B44, B46: each refusal names the object, the argument, both values and the way out; nothing is begun.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b44_b46_refusals_name_object_argument_both_values_and_the_way_out() {
    let bench = bench("refuse", &one(r#"["500ms"]"#, "", r##"["#"]"##));
    let client = bench.client().await;
    let channel = client.channel().await;
    let options = ExchangeDeclareOptions { durable: true, ..ExchangeDeclareOptions::default() };
    channel.exchange_declare("b".into(), ExchangeKind::Fanout, options, FieldTable::default()).await.expect("theirs");
    // RabbitMQ 4.3 takes no queue that is neither durable nor exclusive.
    let transient =
        channel.queue_declare("work".into(), QueueDeclareOptions::default(), FieldTable::default()).await.is_ok();
    let said = bench.run(&["plan"]);
    assert_eq!(said.code, Some(4), "{}", said.out);
    let mut wanted =
        vec!["! refuse  exchange 'b'", "type = fanout", "topology says topic", "do: RabbitMQ cannot change"];
    if transient {
        wanted.extend(["! refuse  queue 'work'", "durable = false", "topology says true", "RabbitMQ 4.3"]);
    }
    for words in wanted {
        assert!(said.out.contains(words), "{words} is not in:\n{}", said.out);
    }
    let said = bench.run(&["apply"]);
    assert_eq!(said.code, Some(4), "{}", said.out);
    let there = queues(&bench);
    assert!(!there.iter().any(|queue| queue.starts_with("b.")), "a refused plan touches nothing: {there:?}");
}

/// A bridge that left the files is named, with what waits; its messages come out all the same.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bridge_that_left_the_files_is_named_and_its_messages_come_out() {
    let gone = "[bridge.gone]\ntiers = [\"3s\"]\n[[bridge.gone.queue]]\nname = \"gone.work\"\nbind = [\"#\"]\n";
    let file = one(r#"["500ms"]"#, "", r##"["#"]"##);
    let bench = bench("removed", &format!("{file}{gone}"));
    let mut daemon = bench.daemon().await;
    let client = bench.client().await;
    let work = client.collect("gone.work").await;
    let tier = client.publish(&Out::new("gone.delay", "k", "tier").delay_ms(3000)).await;
    let store = client.publish(&Out::new("gone.delay", "k", "store").delay_ms(4000)).await;
    until("it is parked", SOON, async || (bench.stored("gone") == 1).then_some(())).await;
    daemon.stop().await;
    bench.write_topology("main.toml", &file);
    let said = bench.run(&["plan"]);
    for words in ["bridge 'gone' is in no file", "1 of its messages wait in the store", "'gone.delay' first"] {
        assert!(said.out.contains(words), "{words} is not in:\n{}", said.out);
    }
    assert_eq!(said.code, Some(0), "{}", said.out);
    applied(&bench, &["--prune"]);
    let mut daemon = bench.daemon().await;
    work.wait_for("tier", SOON).await.is_on_time(tier, ms(3000));
    work.wait_for("store", SOON).await.is_on_time(store, ms(4000));
    bench.ends_empty("b", std::slice::from_mut(&mut daemon)).await;
}

/// Two daemons with two versions of the files, one restarted after the other, under load: nothing is lost, nothing comes
/// twice or early, and in the end all is as the new files say.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rolling_change_of_the_files_under_load_loses_nothing_and_settles() {
    let old = one(r#"["500ms", "1s", "2s"]"#, "default_delay = \"1s\"", r#"["a.#", "old"]"#);
    let new = one(r#"["500ms", "2s", "3s"]"#, "default_delay = \"2s\"\nqueue_type = \"classic\"", r#"["a.#", "new"]"#);
    let bench = bench("rolling", &old);
    let mut first = bench.daemon().await;
    let mut second = bench.daemon().await;
    let client = bench.client().await;
    let work = client.collect("work").await;
    let publisher = tokio::spawn(load(bench.client().await, 16));
    let at = async |n: usize| {
        until("the load goes on", SOON, async || (work.count() >= n).then_some(())).await;
    };
    at(200).await;
    bench.write_topology("main.toml", &new);
    first.stop().await;
    let mut first = bench.daemon().await;
    at(1000).await;
    second.stop().await;
    let second = bench.daemon().await;
    at(1800).await;
    let out = applied(&bench, &["--prune"]);
    assert!(out.contains("on key 'old'"), "{out}");
    let sent = publisher.await.expect("the publisher ends");
    for arrival in work.wait(sent.len(), SOON).await {
        let i: usize = arrival.text().parse().expect("its number");
        let (at, delay) = sent[i];
        // Which default holds at the moment of the publish nobody can say; it is one of the two.
        arrival.is_on_time(at, delay.unwrap_or(ms(1000)));
    }
    settled(&bench, &["--prune"]);
    bench.quiet("b", &first).await;
    let mut daemons = [second];
    first.stop().await;
    bench.ends_empty("b", &mut daemons).await;
    assert_eq!(work.count(), sent.len(), "each once");
}

/// 250 messages a second for that many seconds, some exactly a tier of the old, the new or both files, some of no tier,
/// some without a header: when each was published, and with which delay.
async fn load(client: Client, seconds: u64) -> Vec<(std::time::Instant, Option<Duration>)> {
    let mut dice = Dice::new("rolling");
    let mut sent = Vec::new();
    let mut tick = tokio::time::interval(ms(100));
    for _ in 0..seconds * 10 {
        tick.tick().await;
        let delays: Vec<Option<u64>> = (0..25)
            .map(|_| match dice.below(8) {
                0 => None,
                1 => Some(500),
                2 => Some(1000),
                3 => Some(2000),
                4 => Some(3000),
                _ => Some(1 + dice.below(3000)),
            })
            .collect();
        let outs: Vec<Out> = delays
            .iter()
            .enumerate()
            .map(|(i, delay)| {
                let out = Out::new("b.delay", "a.b", &(sent.len() + i).to_string());
                match delay {
                    Some(delay) => out.delay_ms(i64::try_from(*delay).expect("small")),
                    None => out,
                }
            })
            .collect();
        let at = client.publish_all(&outs).await;
        sent.extend(at.into_iter().zip(delays.into_iter().map(|delay| delay.map(ms))));
    }
    sent
}

/// The README's chapter "Changing the topology", line by line, from an empty vhost: each file is written, each command
/// run, each line of its output found in this order.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_chapter_of_the_readme_is_what_happens() {
    let readme = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/README.md")).expect("the README");
    let (_, chapter) = readme.split_once("\n## Changing the topology\n").expect("the chapter");
    let (chapter, _) = chapter.split_once("\n## ").expect("the next chapter");
    let bench = bench("chapter", "");
    let mut commands = 0;
    for block in chapter.split("```").skip(1).step_by(2) {
        let (kind, text) = block.split_once('\n').expect("a kind");
        match kind {
            "toml" => bench.write_topology("main.toml", text),
            "console" => {
                for said in text.split("$ dwell ").skip(1) {
                    let (command, expected) = said.split_once('\n').expect("a command and its output");
                    commands += 1;
                    is_said(command, expected, &bench.run(&command.split(' ').collect::<Vec<_>>()).out);
                }
            }
            _ => {}
        }
    }
    assert!(commands >= 6, "{commands} commands were run");
}

/// `…` stands for any number of lines; all others must follow one another.
fn is_said(command: &str, expected: &str, out: &str) {
    let mut lines = out.lines();
    let mut skipping = false;
    for wanted in expected.lines() {
        if wanted == "…" {
            skipping = true;
            continue;
        }
        let found = if skipping { lines.find(|line| *line == wanted) } else { lines.next() };
        assert_eq!(found, Some(wanted), "dwell {command} says:\n{out}");
        skipping = false;
    }
    assert!(skipping || lines.next().is_none(), "dwell {command} says more:\n{out}");
}
