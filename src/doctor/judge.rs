//! Facts → findings (pure).

use std::collections::BTreeSet;
use std::fmt::Write as _;

use regex_lite::Regex;

use super::{Facts, Finding};
use crate::declare::Declarations;
use crate::declare::declaration::{Argument, Arguments, Object, Target, TierWay};
use crate::declare::plan::{Action, By, Phase};
use crate::management::QueueInfo;
use crate::names;
use crate::store::{Guarantee, Kind};
use crate::topology::{Bridge, Topology};

/// Above this difference between Redis' clock and ours absolute times are off by too much; `run` is not ready then.
const STORE_SKEW_MS: i64 = 100;

/// RabbitMQ's clock is told by an HTTP header, to a second.
const BROKER_SKEW_MS: i64 = 2_500;

/// Queue states of a healthy broker.
const HEALTHY: [&str; 3] = ["running", "idle", "flow"];

/// Findings, what breaks a promise first.
#[must_use]
pub fn examine(facts: &Facts) -> Vec<Finding> {
    let mut findings = Vec::new();
    planned(facts, &mut findings);
    if let Some(queues) = &facts.queues {
        findings.extend(shortened(&facts.topology, &facts.wanted, queues));
        work_queue_limits(facts, queues, &mut findings);
        queue_health(facts, queues, &mut findings);
    }
    broker(facts, &mut findings);
    rights(facts, &mut findings);
    store(facts, &mut findings);
    findings.sort_by_key(|finding| !finding.breaks);
    findings
}

/// What differs from the files.
fn planned(facts: &Facts, findings: &mut Vec<Finding>) {
    let mut missing = Vec::new();
    let mut leftover = 0;
    for step in &facts.plan.steps {
        match &step.action {
            Action::Create(_) if step.by == By::Apply => missing.push(step.subject()),
            Action::Refuse { help, .. } => findings.push(Finding {
                code: "conflict",
                breaks: true,
                what: step.subject(),
                why: step.reason.clone(),
                help: help.clone(),
            }),
            Action::Unbind(_) if step.by == By::Apply => findings.push(Finding {
                code: "two-ways",
                breaks: true,
                what: format!("{} is there", step.subject()),
                why: step.reason.clone(),
                help: "`dwell apply` (or a restart of the daemon) takes it away".into(),
            }),
            Action::SetPolicy(policy) => findings.push(Finding {
                code: "policy-missing",
                breaks: false,
                what: format!("the policy '{}' on {} is not set", policy.name, policy.pattern),
                why: step.reason.clone(),
                help: "`dwell plan --policies` shows it, `dwell apply --policies` sets it".into(),
            }),
            Action::Drain { queue, phase: Phase::Holds(messages) } => findings.push(Finding {
                code: "overdue",
                breaks: true,
                what: format!("queue '{queue}' holds {messages} messages after their time"),
                why: "all of them should have come out: their dead letters find no queue that takes them".into(),
                help: "look whether its work exchange and work queues exist, and whether one of them is full".into(),
            }),
            Action::Unbind(_) | Action::Drain { .. } => leftover += 1,
            Action::Create(_) | Action::Keep(_) | Action::Assert(_) => {}
        }
    }
    if !missing.is_empty() {
        let more = missing.len().saturating_sub(5);
        let mut named = missing[..missing.len().min(5)].join("; ");
        if more > 0 {
            let _ = write!(named, "; and {more} more");
        }
        findings.push(Finding {
            code: "missing",
            breaks: true,
            what: format!("{} of the topology's objects are missing: {named}", missing.len()),
            why: "what should be caught, delayed or delivered there is returned to its publisher, rejected, or lost with a \
                  dead-letter exchange that does not exist"
                .into(),
            help: "`dwell plan` lists them all, `dwell apply` (or a restart of the daemon) makes them".into(),
        });
    }
    if leftover > 0 {
        findings.push(Finding {
            code: "leftover",
            breaks: false,
            what: format!("{leftover} bindings or buffer queues of earlier files are left"),
            why: "they go on to route".into(),
            help: "`dwell plan --prune` lists them, `dwell apply --prune` takes them away".into(),
        });
    }
    for note in &facts.plan.notes {
        findings.push(Finding {
            code: if facts.plan.complete { "topology" } else { "not-compared" },
            breaks: false,
            what: note.clone(),
            why: "it cannot be judged by itself".into(),
            help: if facts.plan.complete {
                "decide whether it is meant so".into()
            } else {
                "set management.url, with a user who has the tag `monitoring`".into()
            },
        });
    }
}

/// Queues of dwell's own on which a policy puts an end to messages: `run` refuses to begin with them.
#[must_use]
pub fn shortened(topology: &Topology, wanted: &Declarations, queues: &[QueueInfo]) -> Vec<Finding> {
    let own = own_queues(topology, wanted);
    let mut findings = Vec::new();
    for queue in queues.iter().filter(|queue| own.contains(&queue.name)) {
        for (key, value) in limits_of(queue) {
            findings.push(Finding {
                code: "queue-limit",
                breaks: true,
                what: format!("{} sets {key} = {value} on queue '{}', which is dwell's own", policy_of(queue), queue.name),
                why: match key.as_str() {
                    "message-ttl" => "messages would leave it before they are due, or before anybody has looked at them",
                    "expires" => "the queue would be deleted with what waits in it",
                    _ => "what exceeds it would be refused, thrown away or delivered early",
                }
                .into(),
                help: format!(
                    "narrow the policy's pattern so that it does not match '{}', or give it a more specific one of higher \
                     priority without this key",
                    queue.name
                ),
            });
        }
    }
    findings
}

/// All but the work queues.
fn own_queues(topology: &Topology, wanted: &Declarations) -> BTreeSet<String> {
    let work = |name: &str| topology.bridges.iter().flat_map(|bridge| &bridge.queues).any(|queue| queue.name == name);
    let declared =
        wanted.objects.iter().filter_map(|o| if let Object::Queue(q) = o { Some(q.name.clone()) } else { None });
    let buffers = wanted.tiers.iter().flat_map(TierWay::members);
    declared.filter(|name| !work(name)).chain(buffers).collect()
}

/// Keys in force by policy that put an end to messages.
fn limits_of(queue: &QueueInfo) -> Vec<(String, String)> {
    ["message-ttl", "expires", "max-length", "max-length-bytes"]
        .into_iter()
        .filter_map(|key| Some((key.to_owned(), queue.effective_policy_definition.get(key)?.to_string())))
        .collect()
}

fn policy_of(queue: &QueueInfo) -> String {
    match (&queue.policy, &queue.operator_policy) {
        (Some(policy), None) => format!("the policy '{policy}'"),
        (None, Some(policy)) => format!("the operator policy '{policy}'"),
        (Some(policy), Some(operator)) => format!("the policy '{policy}' or the operator policy '{operator}'"),
        (None, None) => "a policy".into(),
    }
}

/// A full work queue holds its bridge's tiers; one that drops loses.
fn work_queue_limits(facts: &Facts, queues: &[QueueInfo], findings: &mut Vec<Finding>) {
    for bridge in &facts.topology.bridges {
        for work in &bridge.queues {
            let Some(queue) = queues.iter().find(|queue| queue.name == work.name) else { continue };
            for (key, value) in limits_of(queue) {
                let holds = bridge.uses_tiers() && key.starts_with("max-length");
                findings.push(Finding {
                    code: "work-queue-limit",
                    breaks: false,
                    what: format!("{} sets {key} = {value} on work queue '{}'", policy_of(queue), queue.name),
                    why: if holds {
                        "once it is full its bridge's tiers hold everything back, also for the other queues".into()
                    } else {
                        "messages that came out when due end there before anybody consumed them".into()
                    },
                    help: if holds {
                        format!("take it out, or write `native = false` in bridge '{}'", bridge.name)
                    } else {
                        "take it out unless it is meant so".into()
                    },
                });
            }
        }
    }
}

fn queue_health(facts: &Facts, queues: &[QueueInfo], findings: &mut Vec<Finding>) {
    let needed: BTreeSet<String> = own_queues(&facts.topology, &facts.wanted)
        .into_iter()
        .chain(facts.topology.bridges.iter().flat_map(|bridge| bridge.queues.iter().map(|queue| queue.name.clone())))
        .collect();
    let mut alone = Vec::new();
    for queue in queues.iter().filter(|queue| needed.contains(&queue.name)) {
        let state = queue.state.as_deref().unwrap_or("running");
        if !HEALTHY.contains(&state) {
            findings.push(Finding {
                code: "queue-down",
                breaks: true,
                what: format!("queue '{}' is {state}", queue.name),
                why: "it takes and gives nothing until a majority of its members is back".into(),
                help: "bring its nodes back (`rabbitmq-diagnostics check_if_node_is_quorum_critical`)".into(),
            });
        }
        if facts.nodes.is_some_and(|nodes| nodes >= 3) && queue.members.as_ref().is_some_and(|m| m.len() < 3) {
            alone.push(queue.name.as_str());
        }
    }
    if let Some(first) = alone.first() {
        findings.push(Finding {
            code: "few-members",
            breaks: false,
            what: format!(
                "{} queues, such as '{first}', have fewer than three members in a cluster of three or more",
                alone.len()
            ),
            why: "the loss of one node can stop them".into(),
            help: "`rabbitmq-queues grow <node> all --vhost-pattern <vhost>`".into(),
        });
    }
}

fn broker(facts: &Facts, findings: &mut Vec<Finding>) {
    if let Some(trouble) = &facts.trouble {
        findings.push(Finding {
            code: "management",
            breaks: false,
            what: trouble.clone(),
            why: "arguments, bindings, policies, rights and the version were not looked at".into(),
            help: "correct management.url; its user needs the tag `monitoring`, and `policymaker` to set policies"
                .into(),
        });
    }
    let Some(overview) = &facts.overview else { return };
    let version = overview.rabbitmq_version.as_str();
    match number(version) {
        Some(n) if n < (3, 10) => findings.push(Finding {
            code: "old-broker",
            breaks: true,
            what: format!("RabbitMQ is {version}"),
            why: "quorum queues have a message TTL and at-least-once dead-lettering from 3.10 on: without them nothing can wait \
                  in the broker safely"
                .into(),
            help: "upgrade RabbitMQ to 3.10 or later".into(),
        }),
        Some((4, 0..=2)) if facts.topology.bridges.iter().any(Bridge::uses_tiers) => findings.push(Finding {
            code: "priority-late",
            breaks: false,
            what: format!("RabbitMQ is {version}: a message of priority above 4 makes others in its tier late"),
            why: "on 4.0 to 4.2 such messages go first in a quorum queue, and those behind them expire only after them".into(),
            help: "write `native = false` in bridges whose publishers set priorities, or upgrade to 4.3".into(),
        }),
        _ => {}
    }
    if let Some(skew) = facts.broker_skew_ms.filter(|skew| skew.abs() > BROKER_SKEW_MS) {
        findings.push(Finding {
            code: "broker-clock",
            breaks: false,
            what: format!("RabbitMQ's clock is about {} s {} this machine's", skew.abs() / 1000, ahead(skew)),
            why: "tiers wait by RabbitMQ's clock and are not concerned, but `x-deliver-at` counts by this machine's"
                .into(),
            help: "let all machines follow one time server (NTP)".into(),
        });
    }
}

/// What the user lacks, by RabbitMQ's rules: declaring needs configure; a queue that dead-letters also read on itself and
/// write on that exchange, an exchange with an alternate one likewise; binding needs write on the target and read on the
/// source.
fn rights(facts: &Facts, findings: &mut Vec<Finding>) {
    let Some(permissions) = &facts.permissions else {
        if facts.queues.is_some() {
            findings.push(Finding {
                code: "rights-unknown",
                breaks: false,
                what: format!("what user '{}' may do was not looked at", facts.user),
                why: "the management API tells that only to administrators".into(),
                help: "docs/settings.md has the rights that dwell needs".into(),
            });
        }
        return;
    };
    let mut needs: [BTreeSet<String>; 3] = Default::default();
    let [configure, write, read] = &mut needs;
    if facts.declares {
        for object in &facts.wanted.objects {
            let behind = |arguments: &Arguments, key: &str| match arguments.get(key) {
                Some(Argument::Text(name)) => Some(name.clone()),
                _ => None,
            };
            match object {
                Object::Exchange(x) => {
                    configure.insert(x.name.clone());
                    if let Some(alternate) = behind(&x.arguments, "alternate-exchange") {
                        read.insert(x.name.clone());
                        write.insert(alternate);
                    }
                }
                Object::Queue(q) => {
                    configure.insert(q.name.clone());
                    if let Some(dlx) = behind(&q.arguments, "x-dead-letter-exchange") {
                        read.insert(q.name.clone());
                        write.insert(dlx);
                    }
                }
                Object::Binding(b) | Object::Unbound(b) => {
                    read.insert(b.source.clone());
                    let (Target::Queue(target) | Target::Exchange(target)) = &b.target;
                    write.insert(target.clone());
                }
            }
        }
        for tier in facts.wanted.tiers.iter().filter(|tier| tier.used) {
            configure.insert(tier.queue.name.clone());
            read.extend([tier.queue.name.clone(), tier.tiers.clone(), tier.place.clone()]);
            write.insert(tier.queue.name.clone());
        }
    }
    for bridge in &facts.topology.bridges {
        read.extend([names::intake(&bridge.name), names::intake_late(&bridge.name)]);
        write.extend([bridge.work_exchange.name.clone(), names::unrouted(&bridge.name)]);
    }
    write.extend([names::place(&facts.prefix), names::rejected(&facts.prefix)]);
    for (right, pattern, names) in [
        ("configure", &permissions.configure, &needs[0]),
        ("write", &permissions.write, &needs[1]),
        ("read", &permissions.read, &needs[2]),
    ] {
        // Erlang's expressions are richer; one that cannot be read here is not judged.
        let Ok(regex) = Regex::new(pattern) else { continue };
        // The empty pattern means nothing at all, not everything.
        let lacking: Vec<&str> =
            names.iter().map(String::as_str).filter(|name| pattern.is_empty() || !regex.is_match(name)).collect();
        let Some(first) = lacking.first() else { continue };
        findings.push(Finding {
            code: "rights",
            breaks: true,
            what: format!("user '{}' may not {right} {} names, such as '{first}'", facts.user, lacking.len()),
            why: format!("its pattern for {right} is '{pattern}'"),
            help: "docs/settings.md has the patterns; without configure, `dwell run --verify-only` runs what somebody else has \
                   applied"
                .into(),
        });
    }
}

fn store(facts: &Facts, findings: &mut Vec<Finding>) {
    match &facts.store {
        None => findings.push(Finding {
            code: "no-store",
            breaks: false,
            what: "there is no [redis] section".into(),
            why: "delays that are no tier are rejected, `store-needed`".into(),
            help: "set redis.url, or declare a tier for each delay in use".into(),
        }),
        Some(Err(error)) => findings.push(Finding {
            code: "store",
            breaks: true,
            what: format!("the store cannot be used: {error}"),
            why: "what must wait in it stays in the intake queue, unacknowledged".into(),
            help: match error.kind() {
                Kind::Unreachable(_) | Kind::Timeout(_) => "start Redis, or correct redis.url".into(),
                Kind::Full => "raise `maxmemory`, or free memory".into(),
                Kind::Replica => "give the address of the primary".into(),
                Kind::Denied(_) => "correct user and password, or the ACL".into(),
                _ => "change it in Redis' configuration, or choose what docs/settings.md offers instead".into(),
            },
        }),
        Some(Ok(health)) => {
            if health.skew_ms.abs() > STORE_SKEW_MS {
                findings.push(Finding {
                    code: "store-clock",
                    breaks: true,
                    what: format!(
                        "Redis' clock is {} ms {} this machine's",
                        health.skew_ms.abs(),
                        ahead(health.skew_ms)
                    ),
                    why: "absolute times would be off by it; the daemon is not ready above 100 ms".into(),
                    help: "let both machines follow one time server (NTP)".into(),
                });
            }
            match health.guarantee {
                Guarantee::Everysec => findings.push(Finding {
                    code: "loss-window",
                    breaks: false,
                    what: format!("{} flushes its disk once a second and cannot say when", health.server),
                    why: "a crash of its machine may cost the last second of acknowledged messages".into(),
                    help: "use Redis 7.2 or later (or Valkey), or `appendfsync always`".into(),
                }),
                Guarantee::Memory => findings.push(Finding {
                    code: "loss-window",
                    breaks: false,
                    what: "redis.durability = \"memory\": Redis need not write anything down".into(),
                    why: "a restart of Redis may cost all that waits in it".into(),
                    help: "write `durability = \"fsync\"` unless it is meant so".into(),
                }),
                Guarantee::Waited | Guarantee::Always => {}
            }
        }
    }
}

fn ahead(skew: i64) -> &'static str {
    if skew > 0 { "ahead of" } else { "behind" }
}

/// The first two numbers of a version.
fn number(version: &str) -> Option<(u32, u32)> {
    let mut parts = version.split(['.', '-', '+']);
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::declare::{compile, observed::Observed, plan::diff};
    use crate::management::{Overview, PermissionInfo};
    use crate::store::Health;
    use crate::topology::{Limits, parse_texts};

    /// A broker and a Redis with nothing wrong, as far as each test does not say otherwise.
    fn facts() -> Facts {
        let text = "version = 1\n[bridge.b]\ntiers = [\"1s\"]\n[[bridge.b.queue]]\nname = \"work\"\nbind = [\"#\"]\n";
        let loaded = parse_texts(vec![("test.toml".into(), text.into())], &Limits::default());
        let topology = loaded.topology.unwrap_or_else(|| panic!("{:?}", loaded.problems));
        let wanted = compile(&topology, "dwell");
        // Nothing was looked for: then nothing is known to be missing.
        let plan = diff(&wanted, &topology, "dwell", &Observed::default(), 0);
        let plan = crate::declare::plan::Plan { notes: Vec::new(), complete: true, ..plan };
        let all = ".*".to_owned();
        Facts {
            topology,
            wanted,
            prefix: "dwell".into(),
            declares: true,
            plan,
            trouble: None,
            queues: Some(Vec::new()),
            overview: Some(Overview { rabbitmq_version: "4.3.6".into(), clock_ms: None }),
            nodes: Some(1),
            permissions: Some(PermissionInfo {
                user: "u".into(),
                configure: all.clone(),
                write: all.clone(),
                read: all,
            }),
            user: "u".into(),
            broker_skew_ms: Some(900),
            store: Some(Ok(Health {
                server: "redis 8.0.2".into(),
                guarantee: Guarantee::Waited,
                skew_ms: -100,
                policy: "noeviction".into(),
            })),
        }
    }

    /// The broker has one queue, with this known of it.
    fn only(facts: &mut Facts, name: &str, more: serde_json::Value) {
        let mut json = serde_json::json!({ "name": name, "durable": true, "auto_delete": false });
        if let (serde_json::Value::Object(into), serde_json::Value::Object(more)) = (&mut json, more) {
            into.extend(more);
        }
        facts.queues = Some(vec![serde_json::from_value(json).expect("a queue")]);
    }

    fn limit(facts: &mut Facts, queue: &str, key: &str) {
        only(facts, queue, serde_json::json!({ "effective_policy_definition": { key: 5 } }));
    }

    fn version(facts: &mut Facts, version: &str) {
        facts.overview = Some(Overview { rabbitmq_version: version.into(), clock_ms: None });
    }

    fn codes(facts: &Facts) -> Vec<(&'static str, bool)> {
        examine(facts).iter().map(|finding| (finding.code, finding.breaks)).collect()
    }

    #[test]
    fn each_fact_has_its_finding_and_a_healthy_system_has_none() {
        type Spoil = fn(&mut Facts);
        let cases: [(Spoil, &[(&str, bool)]); 14] = [
            (|_| {}, &[]),
            (|f| f.trouble = Some("it does not answer".into()), &[("management", false)]),
            (|f| version(f, "3.9.29"), &[("old-broker", true)]),
            (|f| version(f, "3.10.0"), &[]),
            (|f| version(f, "4.2.1"), &[("priority-late", false)]),
            (|f| f.broker_skew_ms = Some(-60_000), &[("broker-clock", false)]),
            (|f| f.store = None, &[("no-store", false)]),
            (
                |f| {
                    if let Some(Ok(health)) = &mut f.store {
                        health.skew_ms = 101;
                        health.guarantee = Guarantee::Everysec;
                    }
                },
                &[("store-clock", true), ("loss-window", false)],
            ),
            (|f| f.permissions = None, &[("rights-unknown", false)]),
            (|f| limit(f, "b.wait.1s.2", "expires"), &[("queue-limit", true)]),
            (|f| limit(f, "theirs", "expires"), &[]),
            (|f| limit(f, "work", "max-length"), &[("work-queue-limit", false)]),
            (|f| only(f, "b.intake", serde_json::json!({ "state": "minority" })), &[("queue-down", true)]),
            (
                |f| {
                    f.nodes = Some(3);
                    only(f, "b.intake", serde_json::json!({ "members": ["a"] }));
                },
                &[("few-members", false)],
            ),
        ];
        for (spoil, wanted) in cases {
            let mut facts = facts();
            spoil(&mut facts);
            assert_eq!(codes(&facts), wanted);
        }
    }

    #[test]
    fn the_rights_of_the_page_are_enough_and_each_of_them_is_needed() {
        let page = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/settings.md")).expect("the page");
        let pattern = |right: &str| {
            let line = page.lines().find_map(|line| line.strip_prefix(right)).expect("the right");
            // The page's bridge is `orders` with a work queue `orders.close`; here they are `b` and `work`.
            line.trim().replace("failed|close))", "failed)|work)").replace("orders", "b")
        };
        let rights = |f: &mut Facts| {
            f.permissions = Some(PermissionInfo {
                user: "u".into(),
                configure: pattern("configure").replace(r"(\..+)?)$", r"(\..+)?|work)$"),
                write: pattern("write"),
                read: pattern("read").replace(r"(\..+)?)$", r"(\..+)?|work)$"),
            });
        };
        let mut facts = facts();
        rights(&mut facts);
        assert_eq!(codes(&facts), [], "{:?}", facts.permissions);
        for right in 0..3 {
            rights(&mut facts);
            if let Some(permissions) = &mut facts.permissions {
                let patterns = [&mut permissions.configure, &mut permissions.write, &mut permissions.read];
                patterns.into_iter().nth(right).expect("a right").clear();
            }
            assert_eq!(codes(&facts), [("rights", true)]);
        }
    }
}
