//! Plans replayed on a model of a broker: carried out, a plan reaches what was wanted, from whatever earlier files have
//! left behind; and no step in between would make two messages of one.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use proptest::prelude::*;

use super::compile;
use super::declaration::{Argument, Arguments, Binding, Object, SINCE, Target};
use super::observed::{Observed, Seen};
use super::plan::{Action, GRACE, Phase, Plan, Scope, diff};
use crate::duration::Millis;
use crate::names;
use crate::topology::{Limits, Topology, parse_texts};

const ALL: Scope = Scope { prune: true, policies: true };

/// One version of a team's files.
#[derive(Clone, Debug)]
struct Files {
    bridges: Vec<FileBridge>,
}

#[derive(Clone, Debug)]
struct FileBridge {
    name: &'static str,
    tiers: Vec<&'static str>,
    default: Option<&'static str>,
    native: bool,
    classic: bool,
    work: &'static str,
    binds: Vec<&'static str>,
}

fn topology(files: &Files) -> Topology {
    let mut text = "version = 1\n".to_owned();
    for b in &files.bridges {
        let _ =
            writeln!(text, "[bridge.{}]\nwork_exchange = {{ name = \"{}\" }}\ntiers = {:?}", b.name, b.work, b.tiers);
        let _ = writeln!(text, "native = {}", b.native);
        if let Some(default) = b.default {
            let _ = writeln!(text, "default_delay = \"{default}\"");
        }
        if b.classic {
            text.push_str("queue_type = \"classic\"\n");
        }
        let _ = writeln!(text, "[[bridge.{}.queue]]\nname = \"{}.close\"\nbind = {:?}", b.name, b.name, b.binds);
    }
    let loaded = parse_texts(vec![("test.toml".into(), text.clone())], &Limits::default());
    loaded.topology.unwrap_or_else(|| panic!("{text}\n{:?}", loaded.problems))
}

fn bridge(name: &'static str) -> impl Strategy<Value = FileBridge> {
    (
        prop::sample::subsequence(vec!["1s", "10s", "1m", "30m"], 0..=4),
        prop::option::of(prop::sample::select(vec!["1s", "1m", "45s"])),
        (prop::bool::weighted(0.8), prop::bool::weighted(0.3)),
        prop::sample::select(vec!["work", "other"]),
        prop::sample::subsequence(vec!["a.#", "b", "c.*"], 1..=3),
    )
        .prop_map(move |(tiers, default, (native, classic), work, binds)| FileBridge {
            name,
            tiers,
            default,
            native,
            classic,
            work: if name == "x" { work } else { "third" },
            binds,
        })
}

fn files() -> impl Strategy<Value = Files> {
    (bridge("x"), prop::option::of(bridge("y")))
        .prop_map(|(x, y)| Files { bridges: [Some(x), y].into_iter().flatten().collect() })
}

/// What a broker would do.
fn carry_out(model: &mut Observed, plan: &Plan, now_ms: u64) {
    for step in plan.changes(ALL) {
        let bindings = model.bindings.get_or_insert_default();
        match &step.action {
            Action::Create(Object::Exchange(x)) => {
                model.exchanges.insert(x.name.clone(), Seen::Whole(x.clone()));
            }
            Action::Create(Object::Queue(q)) => {
                assert!(!model.queues.contains_key(&q.name), "{} is created twice", q.name);
                model.queues.insert(q.name.clone(), Seen::Whole(q.clone()));
                model.depths.insert(q.name.clone(), 0);
            }
            Action::Create(Object::Binding(b)) => {
                assert!(model.exchanges.contains_key(&b.source), "{b:?} leads from nowhere");
                if let Target::Queue(queue) = &b.target {
                    assert!(model.queues.contains_key(queue), "{b:?} leads nowhere");
                }
                bindings.insert(b.clone());
            }
            Action::Unbind(b) => assert!(bindings.remove(b), "{b:?} is not there"),
            Action::Drain { queue, phase: Phase::Begin } => {
                let source = names::draining("dwell");
                bindings.retain(|b| b.source != source || b.target != Target::Queue(queue.clone()));
                bindings.insert(mark(queue, now_ms));
            }
            Action::Drain { queue, phase: Phase::Ready } => {
                let source = names::draining("dwell");
                let led = bindings.iter().find(|b| b.source != source && b.target == Target::Queue(queue.clone()));
                assert_eq!(led, None, "{queue} is deleted while something leads to it");
                assert_eq!(model.depths.remove(queue), Some(0), "{queue} is deleted with messages in it");
                model.queues.remove(queue);
                bindings.retain(|b| b.target != Target::Queue(queue.clone()));
            }
            other => panic!("{other:?} changes nothing"),
        }
        nothing_is_doubled(model);
    }
}

fn mark(queue: &str, now_ms: u64) -> Binding {
    Binding {
        source: names::draining("dwell"),
        target: Target::Queue(queue.to_owned()),
        routing_key: String::new(),
        arguments: Arguments::from([(SINCE.into(), Argument::Int(i64::try_from(now_ms).expect("a date")))]),
    }
}

/// One delay leads to one buffer queue at most, and so does the lack of one.
fn nothing_is_doubled(model: &Observed) {
    let mut seen = BTreeSet::new();
    for b in model
        .bindings
        .iter()
        .flatten()
        .filter(|b| ["x.tiers", "y.tiers", "x.default", "y.default"].contains(&b.source.as_str()))
    {
        assert!(seen.insert((&b.source, &b.arguments)), "two ways from {} on {:?}", b.source, b.arguments);
    }
}

fn plan_of(files: &Files, model: &Observed, now_ms: u64) -> Plan {
    let topology = topology(files);
    diff(&compile(&topology, "dwell"), &topology, "dwell", model, now_ms)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn carrying_out_a_plan_reaches_what_was_wanted_from_whatever_was_there(
        versions in prop::collection::vec(files(), 1..5),
        waiting in 0..4_u64,
    ) {
        let mut now_ms = 1_800_000_000_000_u64;
        let mut model = Observed { complete: true, bindings: Some(BTreeSet::new()), ..Observed::default() };
        for files in &versions {
            let plan = plan_of(files, &model, now_ms);
            // (`cancellable` is left out: it is an argument of the intake queue, and changing it is refused.)
            prop_assert!(!plan.is_refused(), "{}", plan.for_people(ALL));
            carry_out(&mut model, &plan, now_ms);
            let again = plan_of(files, &model, now_ms);
            prop_assert_eq!(again.changes(ALL).count(), 0, "{}", again.for_people(ALL));
            // Whatever drains holds messages until long after.
            for step in &again.steps {
                if let Action::Drain { queue, .. } = &step.action {
                    model.depths.insert(queue.clone(), waiting);
                }
            }
            now_ms += 1000;
        }
        let last = versions.last().expect("one at least");
        now_ms += Millis::days(1).0 + GRACE.0;
        if waiting > 0 {
            let plan = plan_of(last, &model, now_ms);
            prop_assert_eq!(plan.changes(ALL).count(), 0, "deletes what holds messages: {}", plan.for_people(ALL));
            model.depths.values_mut().for_each(|n| *n = 0);
        }
        // Deleting frees a first name, which the next plan takes back; after that one is deleted too, all is still.
        for _ in 0..3 {
            let plan = plan_of(last, &model, now_ms);
            carry_out(&mut model, &plan, now_ms);
            now_ms += Millis::days(1).0 + GRACE.0;
        }
        let end = plan_of(last, &model, now_ms);
        prop_assert_eq!(end.changes(ALL).count(), 0, "{}", end.for_people(ALL));
        prop_assert_eq!(end.summary().drain, 0);
        let topology = topology(last);
        for bridge in &topology.bridges {
            let buffers = model.queues.keys().filter(|queue| names::tier_of_buffer(&bridge.name, queue).is_some()).count();
            prop_assert_eq!(buffers, if bridge.uses_tiers() { bridge.tiers.len() } else { 0 });
        }
    }
}

/// What the policies make better is used, and what is somebody else's is left alone.
#[test]
fn somebody_elses_work_exchange_gets_a_policy_and_nothing_else() {
    let text = r#"
        version = 1
        [bridge.x]
        tiers = ["1s"]
        work_exchange = { name = "shop", declare = false }
        [[bridge.x.queue]]
        name = "theirs"
        bind = ["a.#"]
        retry = ["1s"]
        declare = false
    "#;
    let loaded = parse_texts(vec![("test.toml".into(), text.into())], &Limits::default());
    let topology = loaded.topology.unwrap_or_else(|| panic!("{:?}", loaded.problems));
    let wanted = compile(&topology, "dwell");
    let mut model = Observed { complete: true, bindings: Some(BTreeSet::new()), ..Observed::default() };
    let plan = diff(&wanted, &topology, "dwell", &model, 0);
    let refused: Vec<String> = plan
        .steps
        .iter()
        .filter(|step| matches!(step.action, Action::Refuse { .. }))
        .map(super::plan::Step::subject)
        .collect();
    assert_eq!(refused, ["exchange 'shop', topic", "queue 'theirs'"], "both must be there");
    for object in super::compile::others(&topology.bridges[0]) {
        match object {
            Object::Exchange(x) => drop(model.exchanges.insert(x.name.clone(), Seen::Whole(x))),
            Object::Queue(mut q) => {
                q.arguments.insert("x-queue-type".into(), Argument::Text("classic".into()));
                model.queues.insert(q.name.clone(), Seen::Whole(q));
            }
            _ => {}
        }
    }
    let plan = diff(&wanted, &topology, "dwell", &model, 0);
    assert!(!plan.is_refused(), "{}", plan.for_people(ALL));
    let policies: Vec<(String, String)> = plan
        .steps
        .iter()
        .filter_map(|step| match &step.action {
            Action::SetPolicy(policy) => {
                Some((policy.pattern.clone(), serde_json::Value::Object(policy.definition.clone()).to_string()))
            }
            _ => None,
        })
        .collect();
    assert_eq!(
        policies,
        [
            ("^shop$".to_owned(), r#"{"alternate-exchange":"x.unrouted"}"#.to_owned()),
            ("^theirs$".to_owned(), r#"{"dead-letter-exchange":"x.failed"}"#.to_owned()),
        ]
    );
    assert!(
        !plan.changes(Scope::default()).any(|step| matches!(step.action, Action::SetPolicy(_))),
        "only when asked for"
    );
    model.caught.insert("shop".into());
    model.dead_lettered.insert("theirs".into());
    assert_eq!(diff(&wanted, &topology, "dwell", &model, 0).summary().policies, 0);
}
