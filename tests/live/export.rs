//! Teams who declare by import: what `dwell export definitions` prints is what `dwell` finds as it should be.

use serde_json::Value as Json;

use crate::support::{Bench, Out, SOON, ms};

const ONE: &str = "version = 1\n[bridge.b]\ntiers = [\"500ms\", \"1s\"]\ndefault_delay = \"500ms\"\n\
                   [[bridge.b.queue]]\nname = \"work\"\nbind = [\"#\"]\n";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn imported_definitions_are_as_they_should_be_but_for_the_bindings_that_json_cannot_say() {
    let mut bench = Bench::new("export", ONE);
    bench.managed();
    let said = bench.run(&["export", "definitions"]);
    assert_eq!(said.code, Some(0), "{}", said.err);
    assert!(said.err.contains("2 bindings are not among the definitions"), "{}", said.err);
    let definitions: Json = serde_json::from_str(&said.out).expect("JSON");
    let path = format!("/api/definitions/{}", bench.vhost);
    let (status, answer) = bench.manage("POST", &path, Some(definitions));
    assert!(matches!(status, 200 | 201 | 204), "{status} {answer}");

    let said = bench.run(&["plan"]);
    assert_eq!(said.code, Some(3), "{}", said.out);
    assert!(said.out.contains("To do: 2 to create, 32 as they should be"), "{}", said.out);
    let mut daemon = bench.daemon().await;
    assert_eq!(bench.run(&["plan", "--prune"]).code, Some(0));
    let client = bench.client().await;
    let work = client.collect("work").await;
    let sent = client.publish(&Out::new("b.delay", "k", "tier").delay_ms(1000)).await;
    let default = client.publish(&Out::new("b.delay", "k", "default")).await;
    work.wait_for("tier", SOON).await.is_on_time(sent, ms(1000));
    work.wait_for("default", SOON).await.is_on_time(default, ms(500));
    bench.ends_empty("b", std::slice::from_mut(&mut daemon)).await;

    let named: Json = serde_json::from_str(&bench.run(&["export", "definitions", "--vhost", "v"]).out).expect("JSON");
    for kind in ["exchanges", "queues", "bindings"] {
        assert!(named[kind].as_array().expect("a list").iter().all(|object| object["vhost"] == "v"), "{kind}");
    }
}
