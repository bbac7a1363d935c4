//! Names against names: what dwell derives from one bridge must not be what another bridge, or the user, means by it.
//!
//! Every name that will exist in RabbitMQ is claimed, in its namespace (exchanges and queues are two), with the place
//! that makes it exist. Two claims to one name are a problem, except where exchanges or queues are shared on purpose.

use std::collections::BTreeMap;

use super::Check;
use super::names::predeclared_kind;
use crate::problem::{Code, Place, Problem, show};
use crate::topology::model::{Bridge, ExchangeKind};
use crate::topology::raw;

/// Exchanges or queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Space {
    Exchange,
    Queue,
}

/// What a name is needed for.
#[derive(Clone, Debug, PartialEq)]
enum Role {
    DelayExchange,
    WorkExchange {
        kind: ExchangeKind,
        declare: bool,
    },
    WorkQueue {
        declare: bool,
        bridge: String,
    },
    DeadQueue {
        of: String,
    },
    /// One of the names that dwell makes of a bridge's name.
    Derived,
}

/// Somebody needs a name.
#[derive(Clone, Debug)]
struct Claim {
    role: Role,
    place: Place,
    /// For messages: "bridge `orders` as its intake".
    by: String,
}

/// What dwell may declare for any bridge, now or in a later release, whatever its keys say: a name that is free only
/// until somebody adds a `default_delay` is not free.
const DERIVED: &[(&str, &str, &[Space])] = &[
    (".tiers", "as the exchange of its tiers", &[Space::Exchange]),
    (".rest", "as the exchange behind its tiers", &[Space::Exchange]),
    (".intake", "as its intake", &[Space::Exchange, Space::Queue]),
    (".intake.late", "for what expires in its intake", &[Space::Exchange, Space::Queue]),
    (".unrouted", "for what no work queue wanted", &[Space::Exchange, Space::Queue]),
    (".failed", "for failures", &[Space::Exchange, Space::Queue]),
    (".out", "as its exit queue", &[Space::Exchange, Space::Queue]),
];

impl Check<'_> {
    /// `raw` and `bridges` are in the same order.
    pub(super) fn collisions(&mut self, raw: &[raw::Bridge], bridges: &[Bridge]) {
        let mut named: BTreeMap<&str, &Place> = BTreeMap::new();
        let mut claims: BTreeMap<(Space, String), Vec<Claim>> = BTreeMap::new();
        let mut waits: Vec<(String, Claim)> = Vec::new();
        for (raw, bridge) in raw.iter().zip(bridges) {
            if let Some(first) = named.get(bridge.name.as_str()) {
                self.problems.push(declared_twice("bridge", &bridge.name, &raw.name.place, first));
                // Its names would all collide with those of the first one, which helps nobody.
                continue;
            }
            named.insert(&bridge.name, &raw.name.place);
            for (key, claim) in claims_of(raw, bridge) {
                self.claim(&mut claims, &key, claim);
            }
            let by = format!("bridge {} for its buffer queues", show(&bridge.name));
            let claim = Claim { role: Role::Derived, place: raw.name.place.clone(), by };
            waits.push((format!("{}.wait.", bridge.name), claim));
        }
        self.buffer_queues(&claims, &waits);
        for bridge in bridges {
            self.predeclared(raw, bridge);
        }
    }

    fn claim(&mut self, claims: &mut BTreeMap<(Space, String), Vec<Claim>>, key: &(Space, String), claim: Claim) {
        let known = claims.entry(key.clone()).or_default();
        if let Some(problem) = known.iter().find_map(|first| conflict(key, first, &claim)) {
            self.problems.push(problem);
            return;
        }
        known.push(claim);
    }

    /// `orders.wait.*` belongs to the bridge as a whole: tiers come and go, and old ones drain under their names.
    fn buffer_queues(&mut self, claims: &BTreeMap<(Space, String), Vec<Claim>>, waits: &[(String, Claim)]) {
        for ((space, name), claims) in claims {
            for (prefix, owner) in waits.iter().filter(|(prefix, _)| name.starts_with(prefix.as_str())) {
                for claim in
                    claims.iter().filter(|claim| *space == Space::Queue && matches!(claim.role, Role::WorkQueue { .. }))
                {
                    self.problems.push(collision(Space::Queue, name, owner, claim).why(format!(
                        "every queue `{prefix}*` is a buffer queue of that bridge, also those of earlier tiers"
                    )));
                }
            }
        }
    }

    /// RabbitMQ's own exchanges have the types they have.
    fn predeclared(&mut self, raw: &[raw::Bridge], bridge: &Bridge) {
        let exchange = &bridge.work_exchange;
        let Some(kind) = predeclared_kind(&exchange.name).filter(|kind| !exchange.declare && *kind != exchange.kind)
        else {
            return;
        };
        let written = raw.iter().find(|raw| raw.name.value == bridge.name).and_then(|raw| raw.work_exchange.as_ref());
        let Some(place) = written.and_then(|w| w.kind.as_ref().or(w.name.as_ref())).map(|at| at.place.clone()) else {
            return;
        };
        self.problems.push(
            Problem::error(
                Code::NameCollision,
                place,
                format!("{} is a {} exchange, not {}", show(&exchange.name), kind.as_str(), exchange.kind.as_str()),
            )
            .label("another type")
            .why("RabbitMQ makes this exchange itself, and its type cannot be changed")
            .help(format!("write `type = \"{}\"`", kind.as_str())),
        );
    }
}

fn claims_of(raw: &raw::Bridge, bridge: &Bridge) -> Vec<((Space, String), Claim)> {
    let name = &bridge.name;
    let header = &raw.name.place;
    let mut claims = Vec::new();
    let exchange_place = raw.exchange.as_ref().map_or(header, |at| &at.place);
    claims.push((
        (Space::Exchange, bridge.exchange.clone()),
        Claim {
            role: Role::DelayExchange,
            place: exchange_place.clone(),
            by: format!("bridge {} as its delay exchange", show(name)),
        },
    ));
    let work = &bridge.work_exchange;
    let work_place =
        raw.work_exchange.as_ref().and_then(|exchange| exchange.name.as_ref()).map_or(header, |at| &at.place);
    claims.push((
        (Space::Exchange, work.name.clone()),
        Claim {
            role: Role::WorkExchange { kind: work.kind, declare: work.declare },
            place: work_place.clone(),
            by: format!("bridge {} as its work exchange", show(name)),
        },
    ));
    for (suffix, what, spaces) in DERIVED {
        for space in *spaces {
            let by = format!("bridge {} {what}", show(name));
            claims
                .push(((*space, format!("{name}{suffix}")), Claim { role: Role::Derived, place: header.clone(), by }));
        }
    }
    for (raw, queue) in raw.queues.iter().zip(&bridge.queues) {
        let place = raw.name.place.clone();
        claims.push((
            (Space::Queue, queue.name.clone()),
            Claim {
                role: Role::WorkQueue { declare: queue.declare, bridge: name.clone() },
                place: place.clone(),
                by: "as a work queue".to_owned(),
            },
        ));
        claims.push((
            (Space::Queue, format!("{}.dead", queue.name)),
            Claim {
                role: Role::DeadQueue { of: queue.name.clone() },
                place,
                by: format!("queue {} for its dead", show(&queue.name)),
            },
        ));
    }
    claims
}

/// What is wrong between two claims to one name, if anything.
fn conflict(key: &(Space, String), first: &Claim, second: &Claim) -> Option<Problem> {
    let (space, name) = key;
    match (&first.role, &second.role) {
        (Role::WorkExchange { declare: true, .. }, Role::WorkExchange { declare: true, .. }) => Some(
            declared_twice("work exchange", name, &second.place, &first.place)
                .why("both bridges would put an unrouted queue of their own behind it, and an exchange has room for one")
                .help(format!(
                    "give each bridge a work exchange of its own, or write `work_exchange = {{ name = \"{name}\", declare = false }}` in one of them"
                )),
        ),
        (Role::WorkExchange { kind: a, .. }, Role::WorkExchange { kind: b, .. }) => (a != b).then(|| {
            collision(*space, name, first, second)
                .why(format!("it is a {} exchange there and a {} exchange here", a.as_str(), b.as_str()))
                .help("write the same `type` in both bridges")
        }),
        (Role::DelayExchange, Role::DelayExchange) => Some(declared_twice("delay exchange", name, &second.place, &first.place)),
        (Role::WorkQueue { declare: a, bridge: from }, Role::WorkQueue { declare: b, bridge: to }) => {
            // One queue may be bound to two work exchanges, if only one bridge declares it.
            (from == to || (*a && *b)).then(|| {
                declared_twice("queue", name, &second.place, &first.place).help(if from == to {
                    "write one `[[bridge.….queue]]` with all its bindings"
                } else {
                    "to bind one queue to both work exchanges, write `declare = false` for it in one of the bridges"
                })
            })
        }
        (Role::DeadQueue { of: a }, Role::DeadQueue { of: b }) if a == b => None,
        (Role::DelayExchange, Role::WorkExchange { .. }) | (Role::WorkExchange { .. }, Role::DelayExchange) => Some(
            collision(*space, name, first, second)
                .why("a due message would come in by a delay exchange again")
                .help("let due messages come out of an exchange of its own"),
        ),
        _ => Some(collision(*space, name, first, second)),
    }
}

fn collision(space: Space, name: &str, first: &Claim, second: &Claim) -> Problem {
    let what = match space {
        Space::Exchange => "exchange",
        Space::Queue => "queue",
    };
    Problem::error(Code::NameCollision, second.place.clone(), format!("{what} {} is needed twice", show(name)))
        .label(format!("here: {}", second.by))
        .also(first.place.clone(), format!("there: {}", first.by))
        .why("one name is one thing in RabbitMQ: messages meant for one would reach the other")
        .help("change one of the two names")
}

fn declared_twice(what: &str, name: &str, second: &Place, first: &Place) -> Problem {
    Problem::error(Code::DeclaredTwice, second.clone(), format!("{what} {} is declared twice", show(name)))
        .label("again here")
        .also(first.clone(), "first here")
        .help("keep one of the two, or change one of the names")
}
