//! Topology → declarations (pure).
//!
//! The routing, for bridge `orders`, in the order in which a message meets it:
//!
//! ```text
//! orders.delay ──(a header that needs the daemon)──────────────► orders.intake
//!   └ alternate: orders.tiers ──(x-delay = a tier)──► orders.wait.<ttl> ──(TTL)──► orders (work exchange)
//!       └ alternate: orders.rest ──(has an x-delay)───────────► orders.intake
//!           └ alternate: orders.default ──► the default tier's buffer queue
//!               └ alternate: orders.intake (no default tier, or its binding is just being changed)
//! orders ──(routing key)──► work queues        └ alternate: orders.unrouted
//! ```
//!
//! Every bridge has the whole chain, also where it uses no tier: an alternate exchange is an argument, and arguments
//! of an exchange cannot be changed while messages pass through it. What a bridge uses of the chain is said by
//! bindings alone, which can be changed at any time. The tiers' buffer queues are said apart from the other objects: a
//! successor may have to take one's place.

use super::declaration::{
    Argument, Arguments, Binding, Declarations, DefaultWay, Exchange, Object, Queue, Target, TierWay,
};
use crate::duration::Millis;
use crate::names::{self, header};
use crate::topology::{self, Bridge, QueueType, Topology, WorkQueue};

/// After how many deliveries without an answer a message leaves an intake queue. What the AMQP client cannot parse
/// kills its connection each time, and this is the only way out.
const INTAKE_DELIVERY_LIMIT: i64 = 100;

/// The same for work queues: RabbitMQ 4's own default, said aloud so that 3.10 counts alike.
pub(super) const WORK_DELIVERY_LIMIT: i64 = 20;

/// Everything that the topology needs in the broker. `prefix` begins the vhost-wide names.
#[must_use]
pub fn compile(topology: &Topology, prefix: &str) -> Declarations {
    let rejected = names::rejected(prefix);
    let place = names::place(prefix);
    let mut out = Builder::default();

    // Last resorts first.
    out.exchange(&rejected, "fanout", false, None);
    out.queue(&rejected, resting(None));
    out.bind(&rejected, Target::Queue(rejected.clone()), "", Arguments::new());
    // No alternate exchange here: the daemon publishes to it with mandatory, and a buffer queue that is gone must
    // come back to it as a return, to be decided again, rather than end as "rejected" without a reason.
    out.exchange(&place, "headers", false, None);
    for bridge in &topology.bridges {
        compile_bridge(bridge, &rejected, &place, &mut out);
    }
    Declarations { objects: out.objects, tiers: out.tiers, defaults: out.defaults }
}

/// What a bridge needs and others declare: never declared here, but it must exist.
pub(super) fn others(bridge: &Bridge) -> Vec<Object> {
    let work = &bridge.work_exchange;
    let exchange = (!work.declare).then(|| {
        let kind = work.kind.as_str().to_owned();
        Object::Exchange(Exchange { name: work.name.clone(), kind, internal: false, arguments: Arguments::new() })
    });
    let queues = bridge.queues.iter().filter(|queue| !queue.declare);
    let queues = queues.map(|queue| Object::Queue(Queue { name: queue.name.clone(), arguments: Arguments::new() }));
    exchange.into_iter().chain(queues).collect()
}

fn compile_bridge(bridge: &Bridge, rejected: &str, place: &str, out: &mut Builder) {
    let b = bridge.name.as_str();
    let work = bridge.work_exchange.name.as_str();

    // Where things come to rest.
    let unrouted = names::unrouted(b);
    out.exchange(&unrouted, "fanout", false, Some(rejected));
    // Its own dead letters (a message with an expiration) go on to the rejected queue rather than nowhere.
    out.queue(&unrouted, resting(Some(rejected)));
    out.bind(&unrouted, Target::Queue(unrouted.clone()), "", Arguments::new());
    let failed = names::failed(b);
    out.exchange(&failed, "fanout", true, Some(rejected));
    out.queue(&failed, consumed_by_daemon(rejected));
    out.bind(&failed, Target::Queue(failed.clone()), "", Arguments::new());

    // The intake, from its end to its beginning.
    let (intake, late) = (names::intake(b), names::intake_late(b));
    out.exchange(&late, "fanout", true, Some(rejected));
    out.queue(&late, consumed_by_daemon(rejected));
    out.bind(&late, Target::Queue(late.clone()), "", Arguments::new());
    out.exchange(&intake, "fanout", true, Some(rejected));
    let mut arguments = consumed_by_daemon(&late);
    if bridge.cancellable {
        // A key's replacement follows arrival: one consumer at a time.
        arguments.insert("x-single-active-consumer".into(), Argument::Bool(true));
    }
    out.queue(&intake, arguments);
    out.bind(&intake, Target::Queue(intake.clone()), "", Arguments::new());

    // Where things come out.
    if bridge.work_exchange.declare {
        out.exchange(work, bridge.work_exchange.kind.as_str(), false, Some(&unrouted));
    }
    for queue in &bridge.queues {
        compile_work_queue(queue, &failed, work, out);
    }

    // The buffer queues; each knows its dead-letter exchange before it exists.
    let tiers = names::tiers(b);
    let (rest, default) = (names::rest(b), names::default_wait(b));
    out.exchange(&default, "fanout", true, Some(&intake));
    out.exchange(&rest, "headers", true, Some(&default));
    out.exchange(&tiers, "headers", true, Some(&rest));
    let mut has_delay = Arguments::from([("x-match".into(), Argument::Text("any-with-x".into()))]);
    has_delay.insert(header::DELAY.into(), Argument::Present);
    out.bind(&rest, Target::Exchange(intake.clone()), "", has_delay);
    for &ttl in &bridge.tiers {
        out.tiers.push(TierWay {
            bridge: bridge.name.clone(),
            ttl,
            queue: Queue { name: names::buffer(b, ttl), arguments: buffer_arguments(ttl, work, bridge.queue_type) },
            used: bridge.uses_tiers(),
            tiers: tiers.clone(),
            place: place.to_owned(),
        });
    }
    out.defaults.push(DefaultWay { bridge: bridge.name.clone(), exchange: default, ttl: bridge.native_default() });

    // The gate, where publishers enter, last.
    out.exchange(&bridge.exchange, "headers", false, Some(&tiers));
    let mut gated = Arguments::from([("x-match".into(), Argument::Text("any-with-x".into()))]);
    gated.extend(header::GATED.iter().map(|name| ((*name).to_owned(), Argument::Present)));
    out.bind(&bridge.exchange, Target::Exchange(intake), "", gated);
}

fn compile_work_queue(queue: &WorkQueue, failed: &str, work: &str, out: &mut Builder) {
    if queue.declare {
        // From its first declaration the queue has all that retries will need, whether or not they are asked for:
        // arguments cannot be added later.
        let mut arguments = resting(Some(failed));
        arguments.insert("x-delivery-limit".into(), Argument::Int(WORK_DELIVERY_LIMIT));
        arguments.extend(queue.arguments.iter().map(|(name, value)| (name.clone(), value.into())));
        out.queue(&queue.name, arguments);
    }
    for binding in &queue.bindings {
        let arguments = binding.arguments.iter().map(|(name, value)| (name.clone(), value.into())).collect();
        out.bind(work, Target::Queue(queue.name.clone()), &binding.routing_key, arguments);
    }
}

/// A quorum queue; with a dead-letter exchange its dead letters go there at least once. `reject-publish` is what
/// makes that true: without it RabbitMQ silently falls back to at-most-once.
fn resting(dead_letter_exchange: Option<&str>) -> Arguments {
    let mut arguments = Arguments::from([("x-queue-type".into(), Argument::Text("quorum".into()))]);
    if let Some(exchange) = dead_letter_exchange {
        arguments.insert("x-dead-letter-exchange".into(), Argument::Text(exchange.into()));
        arguments.insert("x-dead-letter-strategy".into(), Argument::Text("at-least-once".into()));
        arguments.insert("x-overflow".into(), Argument::Text("reject-publish".into()));
    }
    arguments
}

fn consumed_by_daemon(dead_letter_exchange: &str) -> Arguments {
    let mut arguments = resting(Some(dead_letter_exchange));
    arguments.insert("x-delivery-limit".into(), Argument::Int(INTAKE_DELIVERY_LIMIT));
    arguments
}

/// No dead-letter routing key (the message's own decides), never `x-expires` (it would delete waiting messages),
/// never a length limit.
fn buffer_arguments(ttl: Millis, work: &str, kind: QueueType) -> Arguments {
    let mut arguments = match kind {
        QueueType::Quorum => resting(Some(work)),
        QueueType::Classic => Arguments::from([
            ("x-queue-type".into(), Argument::Text("classic".into())),
            ("x-dead-letter-exchange".into(), Argument::Text(work.into())),
        ]),
    };
    arguments.insert("x-message-ttl".into(), Argument::Int(ttl.to_i64()));
    arguments
}

impl From<&topology::Argument> for Argument {
    fn from(value: &topology::Argument) -> Argument {
        match value {
            topology::Argument::Bool(b) => Argument::Bool(*b),
            topology::Argument::Int(n) => Argument::Int(*n),
            topology::Argument::Text(s) => Argument::Text(s.clone()),
        }
    }
}

/// Collects objects in order.
#[derive(Default)]
struct Builder {
    objects: Vec<Object>,
    tiers: Vec<TierWay>,
    defaults: Vec<DefaultWay>,
}

impl Builder {
    fn exchange(&mut self, name: &str, kind: &str, internal: bool, alternate: Option<&str>) {
        let arguments =
            alternate.map(|a| ("alternate-exchange".to_owned(), Argument::Text(a.to_owned()))).into_iter().collect();
        self.objects.push(Object::Exchange(Exchange {
            name: name.to_owned(),
            kind: kind.to_owned(),
            internal,
            arguments,
        }));
    }

    fn queue(&mut self, name: &str, arguments: Arguments) {
        self.objects.push(Object::Queue(Queue { name: name.to_owned(), arguments }));
    }

    fn bind(&mut self, source: &str, target: Target, routing_key: &str, arguments: Arguments) {
        let binding = Binding { source: source.to_owned(), target, routing_key: routing_key.to_owned(), arguments };
        self.objects.push(Object::Binding(binding));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::{Limits, parse_texts};
    use std::collections::BTreeSet;

    fn compiled(text: &str) -> Declarations {
        let text = format!("version = 1\n{text}");
        let loaded = parse_texts(vec![("test.toml".into(), text)], &Limits::default());
        let topology = loaded.topology.unwrap_or_else(|| panic!("{:?}", loaded.problems));
        compile(&topology, "dwell")
    }

    const ORDERS: &str = r#"
        [bridge.orders]
        tiers = ["10s", "1m"]
        default_delay = "10s"
        [[bridge.orders.queue]]
        name = "orders.close"
        bind = ["order.#"]
    "#;

    fn text(arguments: &Arguments, name: &str) -> Option<String> {
        match arguments.get(name) {
            Some(Argument::Text(text)) => Some(text.clone()),
            _ => None,
        }
    }

    #[test]
    fn what_catches_comes_before_what_leads_to_it() {
        let objects = compiled(ORDERS).objects;
        let mut there = BTreeSet::new();
        for object in &objects {
            let needs: Vec<(&str, String)> = match object {
                Object::Exchange(x) => {
                    text(&x.arguments, "alternate-exchange").map(|a| ("exchange", a)).into_iter().collect()
                }
                Object::Queue(q) => {
                    text(&q.arguments, "x-dead-letter-exchange").map(|a| ("exchange", a)).into_iter().collect()
                }
                Object::Binding(b) => vec![
                    ("exchange", b.source.clone()),
                    match &b.target {
                        Target::Queue(q) => ("queue", q.clone()),
                        Target::Exchange(x) => ("exchange", x.clone()),
                    },
                ],
                Object::Unbound(_) => Vec::new(),
            };
            for need in needs {
                assert!(there.contains(&need), "{object} needs {need:?}, which comes later or never");
            }
            match object {
                Object::Exchange(x) => drop(there.insert(("exchange", x.name.clone()))),
                Object::Queue(q) => drop(there.insert(("queue", q.name.clone()))),
                _ => {}
            }
        }
        let gate = objects.iter().position(|o| matches!(o, Object::Exchange(x) if x.name == "orders.delay"));
        assert_eq!(gate, Some(objects.len() - 2), "the gate and its binding come last");
    }

    #[test]
    fn every_queue_that_dead_letters_does_so_at_least_once_and_none_forgets() {
        let declarations = compiled(ORDERS);
        let queues = declarations.objects.iter().filter_map(|o| if let Object::Queue(q) = o { Some(q) } else { None });
        for q in queues.chain(declarations.tiers.iter().map(|tier| &tier.queue)) {
            assert_eq!(text(&q.arguments, "x-queue-type").as_deref(), Some("quorum"), "{}", q.name);
            for never in ["x-expires", "x-max-length", "x-max-length-bytes", "x-dead-letter-routing-key"] {
                assert!(!q.arguments.contains_key(never), "{} has {never}", q.name);
            }
            if q.arguments.contains_key("x-dead-letter-exchange") {
                assert_eq!(
                    text(&q.arguments, "x-dead-letter-strategy").as_deref(),
                    Some("at-least-once"),
                    "{}",
                    q.name
                );
                // Without it the strategy silently becomes at-most-once.
                assert_eq!(text(&q.arguments, "x-overflow").as_deref(), Some("reject-publish"), "{}", q.name);
            }
        }
    }

    #[test]
    fn an_exact_tier_has_a_binding_for_integers_and_one_for_strings_to_any_member_of_its_family() {
        let declarations = compiled(ORDERS);
        let minute = &declarations.tiers[1];
        assert_eq!(minute.queue.arguments.get("x-message-ttl"), Some(&Argument::Int(60_000)));
        assert_eq!(minute.members().take(2).collect::<Vec<_>>(), ["orders.wait.1m", "orders.wait.1m.2"]);
        let to = |source: &str, name: &str, value: Argument| Binding {
            source: source.into(),
            target: Target::Queue("orders.wait.1m.2".into()),
            routing_key: String::new(),
            arguments: Arguments::from([("x-match".into(), Argument::Text("all-with-x".into())), (name.into(), value)]),
        };
        let wanted = [
            to("orders.tiers", header::DELAY, Argument::Int(60_000)),
            to("orders.tiers", header::DELAY, Argument::Text("60000".into())),
            to("dwell.place", header::TIER, Argument::Text("orders.wait.1m.2".into())),
        ];
        assert_eq!(minute.bindings("orders.wait.1m.2").collect::<Vec<_>>(), wanted);
    }

    #[test]
    fn one_tier_is_the_default_or_none() {
        let way = |text: &str| compiled(text).defaults.remove(0).ttl;
        assert_eq!(way(ORDERS), Some(Millis(10_000)));
        let changed = ORDERS.replace(r#"default_delay = "10s""#, r#"default_delay = "1m""#);
        assert_eq!(way(&changed), Some(Millis(60_000)));
        for none in [
            ORDERS.replace(r#"default_delay = "10s""#, r#"default_delay = "15s""#),
            ORDERS.replace("[bridge.orders]", "[bridge.orders]\nnative = false"),
        ] {
            assert_eq!(way(&none), None);
        }
    }

    #[test]
    fn a_bridge_that_may_not_use_its_tiers_does_not_use_them() {
        let used = |text: &str| compiled(text).tiers.iter().map(|tier| tier.used).collect::<Vec<_>>();
        assert_eq!(used(ORDERS), [true, true]);
        for extra in ["native = false", "cancellable = true"] {
            assert_eq!(used(&ORDERS.replace("[bridge.orders]", &format!("[bridge.orders]\n{extra}"))), [false, false]);
        }
    }

    #[test]
    fn arguments_of_exchanges_do_not_depend_on_what_may_change() {
        let exchanges = |text: &str| -> Vec<Object> {
            compiled(text).objects.into_iter().filter(|o| matches!(o, Object::Exchange(_))).collect()
        };
        let before = exchanges(ORDERS);
        for (from, to) in [
            (r#"default_delay = "10s""#, ""),
            (r#"default_delay = "10s""#, r#"default_delay = "1m""#),
            (r#"tiers = ["10s", "1m"]"#, r#"tiers = ["10s"]"#),
            ("[bridge.orders]", "[bridge.orders]\nnative = false"),
            ("[bridge.orders]", "[bridge.orders]\ncancellable = true"),
        ] {
            assert_eq!(exchanges(&ORDERS.replace(from, to)), before, "{to}");
        }
    }

    #[test]
    fn a_foreign_work_exchange_is_bound_but_not_declared() {
        let objects = compiled(
            r#"
            [bridge.orders]
            work_exchange = { name = "shop", declare = false }
            [[bridge.orders.queue]]
            name = "orders.close"
            bind = ["order.#"]
        "#,
        )
        .objects;
        assert!(!objects.iter().any(|o| matches!(o, Object::Exchange(x) if x.name == "shop")));
        assert!(objects.iter().any(|o| matches!(o, Object::Binding(b) if b.source == "shop")));
    }
}
