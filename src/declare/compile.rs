//! Topology → declarations (pure).
//!
//! The routing, for bridge `orders`, in the order in which a message meets it:
//!
//! ```text
//! orders.delay ──(a header that needs the daemon)──────────────► orders.intake
//!   └ alternate: orders.tiers ──(x-delay = a tier)──► orders.wait.<ttl> ──(TTL)──► orders (work exchange)
//!       └ alternate: orders.rest ──(has an x-delay)───────────► orders.intake
//!           └ alternate: orders.default ──► the default tier's buffer queue, or orders.intake
//! orders ──(routing key)──► work queues        └ alternate: orders.unrouted
//! ```
//!
//! Every bridge has the whole chain, also where it uses no tier: an alternate exchange is an argument, and arguments
//! of an exchange cannot be changed while messages pass through it. What a bridge uses of the chain is said by
//! bindings alone, which can be changed at any time.

use super::declaration::{Argument, Arguments, Binding, Declarations, Exchange, Object, Queue, Target};
use crate::duration::Millis;
use crate::names::{self, header};
use crate::topology::{self, Bridge, QueueType, Topology, WorkQueue};

/// After how many deliveries without an answer a message leaves an intake queue. What the AMQP client cannot parse
/// kills its connection each time, and this is the only way out.
const INTAKE_DELIVERY_LIMIT: i64 = 100;

/// The same for work queues: RabbitMQ 4's own default, said aloud so that 3.10 counts alike.
const WORK_DELIVERY_LIMIT: i64 = 20;

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
    Declarations { objects: out.objects }
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
    out.exchange(&default, "fanout", true, Some(rejected));
    out.exchange(&rest, "headers", true, Some(&default));
    out.exchange(&tiers, "headers", true, Some(&rest));
    if bridge.uses_tiers() {
        for &ttl in &bridge.tiers {
            let buffer = names::buffer(b, ttl);
            out.queue(&buffer, buffer_arguments(ttl, work, bridge.queue_type));
            out.bind(place, Target::Queue(buffer.clone()), "", exactly(header::TIER, Argument::Text(buffer.clone())));
        }
    }
    match bridge.default_delay {
        Some(ttl) if bridge.uses_tiers() && bridge.tiers.contains(&ttl) => {
            out.bind(&default, Target::Queue(names::buffer(b, ttl)), "", Arguments::new());
        }
        _ => out.bind(&default, Target::Exchange(intake.clone()), "", Arguments::new()),
    }
    let mut has_delay = Arguments::from([("x-match".into(), Argument::Text("any-with-x".into()))]);
    has_delay.insert(header::DELAY.into(), Argument::Present);
    out.bind(&rest, Target::Exchange(intake.clone()), "", has_delay);
    if bridge.uses_tiers() {
        for &ttl in &bridge.tiers {
            let buffer = names::buffer(b, ttl);
            // All integer types match one integer binding; a string needs its own.
            for value in [Argument::Int(as_int(ttl)), Argument::Text(ttl.0.to_string())] {
                out.bind(&tiers, Target::Queue(buffer.clone()), "", exactly(header::DELAY, value));
            }
        }
    }

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
    arguments.insert("x-message-ttl".into(), Argument::Int(as_int(ttl)));
    arguments
}

/// A match on one header; plain `all` would skip names that begin with `x-` and then match everything.
fn exactly(name: &str, value: Argument) -> Arguments {
    Arguments::from([("x-match".into(), Argument::Text("all-with-x".into())), (name.to_owned(), value)])
}

fn as_int(ttl: Millis) -> i64 {
    // Tiers are at most ten years: validated.
    i64::try_from(ttl.0).unwrap_or(i64::MAX)
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
}

impl Builder {
    fn exchange(&mut self, name: &str, kind: &'static str, internal: bool, alternate: Option<&str>) {
        let arguments =
            alternate.map(|a| ("alternate-exchange".to_owned(), Argument::Text(a.to_owned()))).into_iter().collect();
        self.objects.push(Object::Exchange(Exchange { name: name.to_owned(), kind, internal, arguments }));
    }

    fn queue(&mut self, name: &str, arguments: Arguments) {
        self.objects.push(Object::Queue(Queue { name: name.to_owned(), arguments }));
    }

    fn bind(&mut self, source: &str, target: Target, routing_key: &str, arguments: Arguments) {
        let binding = Binding { source: source.to_owned(), target, routing_key: routing_key.to_owned(), arguments };
        self.objects.push(Object::Binding(binding));
    }
}
