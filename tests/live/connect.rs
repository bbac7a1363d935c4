//! Getting in: each way to fail has its own words, and what is allowed to stand in an address works.

use tokio::net::TcpListener;

use crate::support::{Bench, Out, SOON, User, free_address, ms, text, until};

const ONE: &str = r##"
version = 1

[bridge.b]
tiers = ["200ms"]

[[bridge.b.queue]]
name = "work"
bind = ["#"]
"##;

/// Case B125: an unknown vhost, a wrong password, a port that says nothing, a port where nobody is. The daemon says
/// which, and goes on trying.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b125_each_way_to_fail_to_connect_has_its_own_words() {
    let mut bench = Bench::new("refused", ONE);
    bench.set("DWELL_AMQP__CONNECT_TIMEOUT", "2s");
    // Takes connections (the system does, in its backlog) and says nothing.
    let silent = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let good = url::Url::parse(&bench.amqp_url()).expect("a url");
    let mut no_vhost = good.clone();
    no_vhost.set_path("/dwell-test-nowhere");
    let mut wrong = good.clone();
    wrong.set_password(Some("wrong-password")).expect("a password");
    let local = |port: u16| format!("amqp://guest:guest@127.0.0.1:{port}/v");
    for (url, words) in [
        (no_vhost.to_string(), "vhost"),
        (wrong.to_string(), "user"),
        (local(silent.local_addr().expect("bound").port()), "handshake timeout"),
        (local(free_address().port()), "no TCP connection"),
    ] {
        let mut daemon = bench.start(&[("DWELL_AMQP__URL", &url)]);
        until(&format!("the log speaks of '{words}'"), SOON, async || daemon.log().contains(words).then_some(())).await;
        assert!(!daemon.log().contains("wrong-password"), "no password in the log");
        assert_eq!(daemon.get("/healthz").0, 200);
        daemon.stop().await;
    }
}

/// Case B127: `#`, `/`, `@`, `%`, `+`, a blank and an umlaut in a password, encoded in the address and as a setting.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b127_a_password_of_special_characters_logs_in() {
    let bench = Bench::new("password", ONE);
    let password = "p#$@/:%+ é";
    let user = User::new(&bench, "special", password, ".*");
    let mut encoded = url::Url::parse(&bench.amqp_url()).expect("a url");
    encoded.set_username(&user.name).expect("a name");
    let mut bare = encoded.clone();
    encoded.set_password(Some("p%23%24%40%2F%3A%25%2B%20%C3%A9")).expect("a password");
    let mut daemon = bench.start(&[("DWELL_AMQP__URL", encoded.as_str())]);
    daemon.ready().await;
    daemon.stop().await;
    bare.set_username("").expect("no name");
    bare.set_password(None).expect("no password");
    let mut daemon = bench.start(&[
        ("DWELL_AMQP__URL", bare.as_str()),
        ("DWELL_AMQP__USERNAME", &user.name),
        ("DWELL_AMQP__PASSWORD", password),
    ]);
    daemon.ready().await;
    daemon.stop().await;
}

/// Case B91: the smallest frame that RabbitMQ 4.1 still takes, and headers that fit it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b91_a_small_frame_carries_headers_that_fit_it() {
    let mut bench = Bench::new("small", ONE);
    let url = format!("{}?frame_max=8192", bench.amqp_url());
    bench.set("DWELL_AMQP__URL", &url);
    let mut daemon = bench.daemon().await;
    let client = bench.client().await;
    let work = client.collect("work").await;
    for (delay, body) in [(0, "now"), (700, "stored")] {
        let mut out = Out::new("b.delay", "k", body).delay_ms(delay).header("big", text(&"x".repeat(3000)));
        out.body.resize(100_000, b' ');
        let sent = client.publish(&out).await;
        let already = work.count();
        let arrival = work.wait(already.max(usize::from(delay > 0) + 1), SOON).await.pop().expect("one");
        arrival.is_on_time(sent, ms(delay.unsigned_abs()));
        assert!(arrival.body == out.body, "{body}");
    }
    bench.ends_empty("b", std::slice::from_mut(&mut daemon)).await;
    assert_eq!(work.count(), 2, "each once");
}

/// Case B52: without the right to configure, the daemon names the object and the right, and does not pretend to run.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b52_a_user_who_may_not_declare_is_told_which_object_and_what_it_lacks() {
    let bench = Bench::new("rights", ONE);
    let user = User::new(&bench, "limited", "limited", "");
    let mut url = url::Url::parse(&bench.amqp_url()).expect("a url");
    url.set_username(&user.name).expect("a name");
    url.set_password(Some("limited")).expect("a password");
    let mut daemon = bench.start(&[("DWELL_AMQP__URL", url.as_str())]);
    assert_eq!(daemon.exit(SOON).await, Some(69), "{}", daemon.log());
    let log = daemon.log();
    for words in ["exchange 'b.delay'", "queue 'b.intake'", "may not declare", "configure"] {
        assert!(log.contains(words), "{words} is not in:\n{log}");
    }
}
