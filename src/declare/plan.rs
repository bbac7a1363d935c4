//! wanted × observed → plan (pure).
//!
//! A plan is data before it is action: `dwell plan` prints it, `dwell apply` carries out exactly its steps. The first
//! start is a plan against an empty broker. A test replays plans on a model of a broker and compares the outcome with
//! what was wanted.

use std::collections::BTreeSet;

use serde_json::{Map, json};

use super::declaration::{
    Argument, Binding, Declarations, DefaultWay, Exchange, Object, Queue, SINCE, Target, TierWay,
};
use super::observed::{Difference, Observed, Seen, differences};
use crate::duration::Millis;
use crate::management::PolicyInfo;
use crate::names;
use crate::topology::{Bridge, QueueType, Topology};

/// The steps from what is to what should be, in the order in which they must be done.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// In order.
    pub steps: Vec<Step>,
    /// What a person should know and dwell does nothing about.
    pub notes: Vec<String>,
    /// False: without the management API arguments, bindings and leftovers could not be compared.
    pub complete: bool,
}

/// One step and why.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    /// What is done.
    pub action: Action,
    /// Why, in a few words; for [`Action::Refuse`] what is in the way, with both values.
    pub reason: String,
    /// What must be asked for.
    pub by: By,
}

/// What must be asked for so that a step is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    /// `dwell apply`, and `dwell run` does it too.
    Apply,
    /// `dwell apply --prune`: two versions of the files in a rolling deployment must not fight.
    Prune,
    /// `dwell apply --policies`.
    Policies,
}

/// What the caller asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Scope {
    /// Also unbind, drain and delete what no file asks for any more.
    pub prune: bool,
    /// Also set policies on what others have declared.
    pub policies: bool,
}

/// What a step does.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Declares an object that is missing.
    Create(Object),
    /// Nothing: it is as it should be, as far as that can be seen.
    Keep(Object),
    /// It may be there or not; it is declared, which changes nothing if it is.
    Assert(Object),
    /// Removes a binding.
    Unbind(Binding),
    /// Brings a buffer queue of dwell's own to its end.
    Drain {
        /// The queue.
        queue: String,
        /// How far it is.
        phase: Phase,
    },
    /// Sets a policy.
    SetPolicy(PolicyInfo),
    /// Nothing can be done: an object that cannot be changed is in the way, or one of somebody else's is missing.
    Refuse {
        /// The object.
        object: Object,
        /// What to do.
        help: String,
    },
}

/// How far a buffer queue is on its way out. Quorum queues know no delete-if-empty, and a passive declare counts no dead
/// letters under way: so it goes only when nothing has led to it for longer than its TTL and [`GRACE`], and the
/// management API has counted nothing in it three times.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Nothing leads to it from now on.
    Begin,
    /// Nothing leads to it; it may be deleted after this instant, in epoch milliseconds.
    Until(u64),
    /// Its time is over, but it holds messages (its dead letters find no place): a person must look.
    Holds(u64),
    /// Its time is over, but somebody else's exchange leads to it.
    Led(String),
    /// It is deleted once it has been seen empty three times.
    Ready,
}

/// How many steps of each kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// To be created.
    pub create: usize,
    /// As they should be.
    pub keep: usize,
    /// Declared without knowing.
    pub assert: usize,
    /// Bindings to be removed.
    pub unbind: usize,
    /// Queues that drain.
    pub drain: usize,
    /// Policies to be set.
    pub policies: usize,
    /// In the way.
    pub refuse: usize,
}

/// How long a buffer queue is kept beyond its TTL once nothing leads to it.
pub const GRACE: Millis = Millis(10 * 60 * 1000);

/// Above all policies that teams usually write (0 to 100).
const POLICY_PRIORITY: i64 = 200;

/// Compares. `wanted` is what [`super::compile`] made of `topology`; `now_ms` is the wall clock in epoch milliseconds.
#[must_use]
pub fn diff(wanted: &Declarations, topology: &Topology, prefix: &str, observed: &Observed, now_ms: u64) -> Plan {
    let mut planner =
        Planner { plan: Plan { complete: observed.complete, ..Plan::default() }, observed, prefix, now_ms };
    planner.others(topology);
    for object in &wanted.objects {
        match object {
            Object::Exchange(x) => planner.exchange(x),
            Object::Queue(q) => planner.queue(q),
            Object::Binding(b) => planner.binding(b),
            Object::Unbound(b) => planner.unbound(b),
        }
    }
    let buffers: Vec<(&TierWay, Option<String>)> = wanted.tiers.iter().map(|way| (way, planner.tier(way))).collect();
    for way in &wanted.defaults {
        let ours = buffers.iter().find(|(tier, _)| tier.bridge == way.bridge && Some(tier.ttl) == way.ttl);
        planner.default(way, ours.and_then(|(_, member)| member.as_deref()));
    }
    if observed.complete {
        planner.leftovers(topology);
        let kept: BTreeSet<&str> = buffers.iter().filter_map(|(_, member)| member.as_deref()).collect();
        planner.drains(topology, &kept);
    }
    planner.policies(topology);
    planner.notes(topology);
    planner.plan
}

/// The plan in the making, and what it is made of.
struct Planner<'a> {
    plan: Plan,
    observed: &'a Observed,
    prefix: &'a str,
    now_ms: u64,
}

// === impl Planner ===

impl Planner<'_> {
    fn push(&mut self, by: By, action: Action, reason: impl Into<String>) {
        self.plan.steps.push(Step { action, reason: reason.into(), by });
    }

    fn keep(&mut self, object: Object) {
        self.push(By::Apply, Action::Keep(object), "as it should be");
    }

    fn refuse(&mut self, object: Object, reason: String, help: String) {
        self.push(By::Apply, Action::Refuse { object, help }, reason);
    }

    /// What others declare must be there.
    fn others(&mut self, topology: &Topology) {
        for bridge in &topology.bridges {
            for object in super::compile::others(bridge) {
                let missing = match &object {
                    Object::Exchange(x) => self.observed.exchange(&x.name) == Seen::Missing,
                    Object::Queue(q) => self.observed.queue(&q.name) == Seen::Missing,
                    Object::Binding(_) | Object::Unbound(_) => false,
                };
                if missing {
                    let reason = format!("bridge '{}' says declare = false, and it does not exist", bridge.name);
                    self.refuse(object, reason, MISSING_HELP.to_owned());
                }
            }
        }
    }

    fn exchange(&mut self, wanted: &Exchange) {
        let object = Object::Exchange(wanted.clone());
        match self.observed.exchange(&wanted.name) {
            Seen::Whole(present) => {
                let mut differing = differences(&wanted.arguments, &present.arguments);
                for (name, wanted, present) in [
                    ("type", &wanted.kind, &present.kind),
                    ("internal", &wanted.internal.to_string(), &present.internal.to_string()),
                ] {
                    if wanted != present {
                        differing.push(Difference {
                            name: name.to_owned(),
                            wanted: wanted.clone(),
                            present: present.clone(),
                        });
                    }
                }
                if differing.is_empty() {
                    self.keep(object);
                } else {
                    self.refuse(object, it_exists_with(&differing), EXCHANGE_HELP.to_owned());
                }
            }
            seen => self.partly(object, &seen),
        }
    }

    fn queue(&mut self, wanted: &Queue) {
        let object = Object::Queue(wanted.clone());
        match self.observed.queue(&wanted.name) {
            Seen::Whole(present) => {
                let differing = differences(&wanted.arguments, &present.arguments);
                if differing.is_empty() {
                    self.keep(object);
                } else {
                    self.refuse(object, it_exists_with(&differing), queue_help(&wanted.name, &differing));
                }
            }
            seen => self.partly(object, &seen),
        }
    }

    /// An object that is missing, or of which little is known.
    fn partly<T>(&mut self, object: Object, seen: &Seen<T>) {
        let (action, reason) = match seen {
            Seen::Missing => (Action::Create(object), "missing"),
            Seen::Unknown => (Action::Assert(object), "the broker does not say whether it exists"),
            Seen::Exists | Seen::Whole(_) => (Action::Keep(object), "exists; its arguments were not compared"),
        };
        self.push(By::Apply, action, reason);
    }

    fn binding(&mut self, wanted: &Binding) {
        let object = Object::Binding(wanted.clone());
        match self.observed.has(wanted) {
            Some(true) => self.keep(object),
            Some(false) => self.push(By::Apply, Action::Create(object), "missing"),
            None => {
                self.push(By::Apply, Action::Assert(object), "bindings cannot be listed without the management API");
            }
        }
    }

    fn unbound(&mut self, unwanted: &Binding) {
        if self.observed.has(unwanted) == Some(true) {
            self.push(By::Apply, Action::Unbind(unwanted.clone()), "it must not be there");
        }
    }

    /// The member of a tier's family that is led to from now on; the same choice as `run` makes without knowing: the first
    /// whose name is free or who has the wanted arguments.
    fn tier(&mut self, way: &TierWay) -> Option<String> {
        let named = |member: &str| Queue { name: member.to_owned(), ..way.queue.clone() };
        if !self.observed.complete {
            return way.used.then(|| self.tier_unseen(way));
        }
        let mut ours = None;
        let mut in_the_way = Vec::new();
        for member in way.members().filter(|_| way.used) {
            let Seen::Whole(present) = self.observed.queue(&member) else {
                ours = Some((member, false));
                break;
            };
            let differing = differences(&way.queue.arguments, &present.arguments);
            if differing.is_empty() {
                ours = Some((member, true));
                break;
            }
            in_the_way.push((member, differing));
        }
        match (&ours, in_the_way.last()) {
            (Some((member, true)), _) => self.keep(Object::Queue(named(member))),
            (Some((member, false)), None) => {
                self.push(By::Apply, Action::Create(Object::Queue(named(member))), "missing");
            }
            (Some((member, false)), Some((other, differing))) => {
                let reason = format!(
                    "takes the place of queue '{other}', which cannot be changed: {}",
                    it_exists_with(differing)
                );
                self.push(By::Apply, Action::Create(Object::Queue(named(member))), reason);
            }
            (None, Some((other, differing))) => {
                let help =
                    format!("let the old ones drain and delete them (`dwell apply --prune`): {other} is the last name");
                self.refuse(Object::Queue(way.queue.clone()), it_exists_with(differing), help);
            }
            (None, None) => {}
        }
        let ours = ours.map(|(member, _)| member);
        let reason = if way.used {
            "another buffer queue serves this tier now: with both a message would come twice"
        } else {
            "this bridge does not use its tiers: its messages go by the daemon"
        };
        for member in way.members().filter(|member| Some(member) != ours.as_ref()) {
            for binding in way.bindings(&member) {
                if self.observed.has(&binding) == Some(true) {
                    self.push(By::Apply, Action::Unbind(binding), reason);
                }
            }
        }
        if let Some(ours) = &ours {
            for binding in way.bindings(ours) {
                self.binding(&binding);
            }
        }
        ours
    }

    /// The same without arguments and bindings to compare: the newest member that exists, else the first.
    fn tier_unseen(&mut self, way: &TierWay) -> String {
        let exists = |member: &String| self.observed.queue(member) == Seen::Exists;
        let member = way.members().filter(exists).last().unwrap_or_else(|| way.queue.name.clone());
        let seen = self.observed.queue(&member);
        self.partly(Object::Queue(Queue { name: member.clone(), ..way.queue.clone() }), &seen);
        for binding in way.bindings(&member) {
            self.binding(&binding);
        }
        member
    }

    /// A fanout: whatever else it leads to would make a second message of one.
    fn default(&mut self, way: &DefaultWay, ours: Option<&str>) {
        let wanted = ours.map(|queue| way.to(queue));
        let strangers: Vec<Binding> = self
            .observed
            .bindings_from(&way.exchange)
            .filter(|binding| Some(*binding) != wanted.as_ref())
            .cloned()
            .collect();
        for binding in strangers {
            self.push(
                By::Apply,
                Action::Unbind(binding),
                "it is not the way of messages without a delay header any more",
            );
        }
        if let Some(wanted) = wanted {
            self.binding(&wanted);
        }
    }

    /// Bindings that an earlier version of the files has left behind, in objects that are dwell's own.
    fn leftovers(&mut self, topology: &Topology) {
        let known: BTreeSet<&Binding> = self
            .plan
            .steps
            .iter()
            .filter_map(|step| match &step.action {
                Action::Create(Object::Binding(b)) | Action::Keep(Object::Binding(b)) | Action::Unbind(b) => Some(b),
                _ => None,
            })
            .collect();
        let place = names::place(self.prefix);
        let mut left: Vec<Binding> = Vec::new();
        for bridge in &topology.bridges {
            let failed = names::failed(&bridge.name);
            let own = |queue: &str| {
                bridge.queues.iter().any(|q| q.name == queue)
                    // It is in no file, but dwell has made it: nobody else sends failures there.
                    || matches!(self.observed.queue(queue), Seen::Whole(q)
                        if q.arguments.get("x-dead-letter-exchange") == Some(&Argument::Text(failed.clone())))
            };
            for source in [&bridge.exchange, &names::tiers(&bridge.name), &names::rest(&bridge.name)] {
                left.extend(self.observed.bindings_from(source).cloned());
            }
            left.extend(self.observed.bindings_from(&place).filter(|b| is_buffer_of(&b.target, &bridge.name)).cloned());
            left.extend(
                self.observed
                    .bindings_from(&bridge.work_exchange.name)
                    .filter(|b| matches!(&b.target, Target::Queue(queue) if own(queue)))
                    .cloned(),
            );
        }
        left.retain(|binding| !known.contains(binding));
        left.sort();
        left.dedup();
        for binding in left {
            self.push(By::Prune, Action::Unbind(binding), "no file asks for it any more");
        }
    }

    /// Buffer queues that no tier has any more.
    fn drains(&mut self, topology: &Topology, kept: &BTreeSet<&str>) {
        let draining = names::draining(self.prefix);
        let unbinding: BTreeSet<Binding> = self
            .plan
            .steps
            .iter()
            .filter_map(|step| if let Action::Unbind(binding) = &step.action { Some(binding.clone()) } else { None })
            .collect();
        let mut drains = Vec::new();
        for (name, seen) in &self.observed.queues {
            let Seen::Whole(queue) = seen else { continue };
            let Some(ttl) = topology.bridges.iter().find_map(|bridge| buffer_ttl(bridge, queue)) else { continue };
            if kept.contains(name.as_str()) {
                continue;
            }
            let mut led = self.observed.bindings_to(name).filter(|binding| binding.source != draining);
            let since = self.observed.bindings_from(&draining).find_map(|binding| since_of(binding, name));
            let phase = match (led.next(), since) {
                // With this plan's own steps nothing leads there any more.
                (Some(binding), _) if unbinding.contains(binding) && led.all(|b| unbinding.contains(b)) => Phase::Begin,
                (Some(binding), _) => Phase::Led(binding.source.clone()),
                (None, None) => Phase::Begin,
                (None, Some(since)) => {
                    let until = since.saturating_add(ttl.0).saturating_add(GRACE.0);
                    match self.observed.depths.get(name) {
                        _ if until > self.now_ms => Phase::Until(until),
                        Some(0) => Phase::Ready,
                        // Not counted yet, right after the broker's start: as good as not empty.
                        messages => Phase::Holds(messages.copied().unwrap_or(0)),
                    }
                }
            };
            drains.push((name.clone(), phase));
        }
        for (queue, phase) in drains {
            let reason = self.why_drained(&queue, &phase);
            self.push(By::Prune, Action::Drain { queue, phase }, reason);
        }
    }

    fn why_drained(&self, queue: &str, phase: &Phase) -> String {
        let messages = match self.observed.depths.get(queue) {
            Some(0) => "it is empty".to_owned(),
            Some(1) => "1 message waits in it and comes out when due".to_owned(),
            Some(n) => format!("{n} messages wait in it and come out when due"),
            None => "how many messages wait in it is not known yet".to_owned(),
        };
        match phase {
            Phase::Begin => format!("no tier needs it any more; {messages}; it is deleted by a later `dwell apply --prune`, once its TTL and ten minutes have passed"),
            Phase::Until(at) => format!("nothing leads to it any more; {messages}; it may be deleted from {} on", instant(*at)),
            Phase::Holds(_) => format!("{messages}, although all should have come out: look at what they wait for (`dwell doctor`)"),
            Phase::Led(source) => format!("exchange '{source}' leads to it, which is not dwell's: unbind it there"),
            Phase::Ready => "it is empty, and nothing has led to it for long enough; it is deleted if it stays so for twenty seconds".to_owned(),
        }
    }

    /// Policies that make the promises hold on objects that others declare.
    fn policies(&mut self, topology: &Topology) {
        for bridge in &topology.bridges {
            let work = &bridge.work_exchange;
            if !work.declare
                && matches!(self.observed.exchange(&work.name), Seen::Whole(_))
                && !self.observed.caught.contains(&work.name)
            {
                let policy = policy(
                    &format!("dwell.{}.{}", bridge.name, work.name),
                    &work.name,
                    "exchanges",
                    json!({ "alternate-exchange": names::unrouted(&bridge.name) }),
                );
                let reason = format!(
                    "exchange '{}' is somebody else's and has no alternate exchange: what no queue wants would be lost, so \
                     until then all of bridge '{}' waits in the store and its tiers are not used",
                    work.name, bridge.name
                );
                self.set_policy(policy, reason);
            }
            for queue in bridge.queues.iter().filter(|queue| !queue.declare && queue.retry.is_some()) {
                let Seen::Whole(present) = self.observed.queue(&queue.name) else { continue };
                if self.observed.dead_lettered.contains(&queue.name)
                    || present.arguments.contains_key("x-dead-letter-exchange")
                {
                    continue;
                }
                let quorum = present.arguments.get("x-queue-type") == Some(&Argument::Text("quorum".into()));
                let failed = names::failed(&bridge.name);
                let definition = if quorum {
                    json!({
                        "dead-letter-exchange": failed,
                        "dead-letter-strategy": "at-least-once",
                        "overflow": "reject-publish",
                        "delivery-limit": super::compile::WORK_DELIVERY_LIMIT,
                    })
                } else {
                    json!({ "dead-letter-exchange": failed })
                };
                let policy = policy(&format!("dwell.{}", queue.name), &queue.name, "queues", definition);
                let reason = format!(
                    "queue '{}' is somebody else's and has no dead-letter exchange: without one its failures do not come to \
                     dwell, and `retry` does nothing",
                    queue.name
                );
                self.set_policy(policy, reason);
            }
        }
    }

    /// Unless it is set already, and comes into force any moment.
    fn set_policy(&mut self, policy: PolicyInfo, reason: String) {
        if !self.observed.policies.contains(&policy) {
            self.push(By::Policies, Action::SetPolicy(policy), reason);
        }
    }

    fn notes(&mut self, topology: &Topology) {
        if !self.observed.complete {
            self.plan.notes.push(
                "there is no [management] section (or it does not answer): arguments, bindings and leftovers were not compared, \
                 policies not looked at; nothing is ever unbound or deleted"
                    .into(),
            );
        }
        for bridge in topology.bridges.iter().filter(|b| b.queue_type == QueueType::Classic && b.uses_tiers()) {
            self.plan.notes.push(format!(
                "bridge '{}' has classic buffer queues: on one node, and what falls due while that dies can be lost",
                bridge.name
            ));
        }
        let here = |name: &str| topology.bridges.iter().any(|bridge| bridge.name == name);
        let rejected = Argument::Text(names::rejected(self.prefix));
        let removed: BTreeSet<String> = self
            .observed
            .exchanges
            .iter()
            .filter_map(|(name, seen)| {
                let bridge = name.strip_suffix(".intake")?;
                // Ours by the alternate exchange, which begins with our prefix.
                matches!(seen, Seen::Whole(x) if x.arguments.get("alternate-exchange") == Some(&rejected))
                    .then(|| bridge.to_owned())
            })
            .chain(self.observed.records.iter().filter(|(_, n)| **n > 0).map(|(name, _)| name.clone()))
            .filter(|bridge| !here(bridge))
            .collect();
        for bridge in removed {
            let records = self.observed.records.get(&bridge).copied().unwrap_or(0);
            let intake = self.observed.depths.get(&names::intake(&bridge)).copied().unwrap_or(0);
            let waiting: u64 = self
                .observed
                .depths
                .iter()
                .filter(|(queue, _)| names::tier_of_buffer(&bridge, queue).is_some())
                .map(|(_, n)| n)
                .sum();
            self.plan.notes.push(format!(
                "bridge '{bridge}' is in no file: {records} of its messages wait in the store and {waiting} in its tiers, and come \
                 out when due; {intake} wait in its intake, which no daemon of these files reads. Its objects stay: put it back \
                 until its intake is empty, then delete them, '{}' first, so that publishers hear of it",
                names::gate(&bridge)
            ));
        }
    }
}

// === impl Plan ===

impl Plan {
    /// How many steps of each kind.
    #[must_use]
    pub fn summary(&self) -> Summary {
        let mut s = Summary::default();
        for step in &self.steps {
            match step.action {
                Action::Create(_) => s.create += 1,
                Action::Assert(_) => s.assert += 1,
                Action::Keep(_) => s.keep += 1,
                Action::Unbind(_) => s.unbind += 1,
                Action::Drain { .. } => s.drain += 1,
                Action::SetPolicy(_) => s.policies += 1,
                Action::Refuse { .. } => s.refuse += 1,
            }
        }
        s
    }

    /// The steps that would change something and are asked for, in order.
    pub fn changes(&self, scope: Scope) -> impl Iterator<Item = &Step> {
        self.steps.iter().filter(move |step| step.changes() && scope.covers(step.by))
    }

    /// Whether something that cannot be changed is in the way.
    #[must_use]
    pub fn is_refused(&self) -> bool {
        self.steps.iter().any(|step| matches!(step.action, Action::Refuse { .. }))
    }
}

// === impl Step ===

impl Step {
    /// Whether carrying it out would change anything.
    #[must_use]
    pub fn changes(&self) -> bool {
        match &self.action {
            Action::Create(_) | Action::Unbind(_) | Action::SetPolicy(_) => true,
            Action::Drain { phase, .. } => matches!(phase, Phase::Begin | Phase::Ready),
            Action::Keep(_) | Action::Assert(_) | Action::Refuse { .. } => false,
        }
    }
}

// === impl Scope ===

impl Scope {
    /// Whether what needs `by` was asked for.
    #[must_use]
    pub fn covers(self, by: By) -> bool {
        match by {
            By::Apply => true,
            By::Prune => self.prune,
            By::Policies => self.policies,
        }
    }
}

// === helpers ===

const EXCHANGE_HELP: &str = "RabbitMQ cannot change this on an exchange that exists: name another one in the topology file, make the \
                             file say what exists, or say declare = false where another team owns it";
const MISSING_HELP: &str = "let its owner declare it first, correct the name in the topology file, or let dwell declare it (without declare = false)";

fn queue_help(queue: &str, differing: &[Difference]) -> String {
    if differing.iter().any(|difference| difference.name == "x-single-active-consumer") {
        return format!(
            "`cancellable` decides this when the bridge is made: give the bridge another name (what waits in the old one still \
             comes out), or stop its publishers, let '{queue}' become empty, delete it and apply again"
        );
    }
    if differing.iter().any(|difference| difference.name == "durable") {
        return format!(
            "a queue that is not durable loses its messages with its node, and RabbitMQ 4.3 refuses such queues: delete it \
             (rabbitmqadmin delete queue name={queue}) and apply again, or name another queue in the topology file"
        );
    }
    format!(
        "RabbitMQ cannot change this on a queue that exists: make the file say what exists, name another queue in the \
         topology file, or say declare = false where another team owns it; where it is dwell's own, stop what fills it, let it \
         be emptied, delete it (rabbitmqadmin delete queue name={queue}) and apply again"
    )
}

fn it_exists_with(differing: &[Difference]) -> String {
    let each: Vec<String> =
        differing.iter().map(|d| format!("{} = {}, and the topology says {}", d.name, d.present, d.wanted)).collect();
    format!("it exists with {}", each.join("; "))
}

fn is_buffer_of(target: &Target, bridge: &str) -> bool {
    matches!(target, Target::Queue(queue) if names::tier_of_buffer(bridge, queue).is_some())
}

/// The TTL of a buffer queue that dwell made for that bridge; a work queue that happens to be named like one is not.
fn buffer_ttl(bridge: &Bridge, queue: &Queue) -> Option<Millis> {
    let ttl = names::tier_of_buffer(&bridge.name, &queue.name)?;
    let is_ours = queue.arguments.get("x-message-ttl") == Some(&Argument::Int(ttl.to_i64()))
        && queue.arguments.contains_key("x-dead-letter-exchange")
        && !bridge.queues.iter().any(|work| work.name == queue.name);
    is_ours.then_some(ttl)
}

/// Since when a queue drains, as its marker says.
fn since_of(marker: &Binding, queue: &str) -> Option<u64> {
    match (&marker.target, marker.arguments.get(SINCE)) {
        (Target::Queue(name), Some(Argument::Int(since))) if name == queue => u64::try_from(*since).ok(),
        _ => None,
    }
}

/// For exactly that object.
fn policy(name: &str, object: &str, apply_to: &str, definition: serde_json::Value) -> PolicyInfo {
    let definition = if let serde_json::Value::Object(map) = definition { map } else { Map::new() };
    PolicyInfo {
        name: name.to_owned(),
        pattern: format!("^{}$", escape(object)),
        apply_to: apply_to.to_owned(),
        priority: POLICY_PRIORITY,
        definition,
    }
}

/// A name as a regular expression that matches nothing else.
fn escape(name: &str) -> String {
    name.chars()
        .flat_map(|c| (!c.is_alphanumeric() && c != '_' && c != '-').then_some('\\').into_iter().chain([c]))
        .collect()
}

/// `2026-12-01T10:00:00Z`.
fn instant(ms: u64) -> String {
    let ms = i64::try_from(ms).unwrap_or(i64::MAX);
    jiff::Timestamp::from_millisecond(ms - ms % 1000).map_or_else(|_| format!("{ms} ms"), |at| at.to_string())
}
