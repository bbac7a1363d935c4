//! Dead letters that go round without passing the daemon.
//!
//! RabbitMQ drops a message that comes back by expiry alone to a queue it was in before, without a word (case B69). So
//! a circle of queues with `x-message-ttl` that dead-letter to each other is refused. (A circle that needs a consumer's
//! reject, or that leads through a delay exchange, is no such circle.)

use super::Check;
use crate::problem::{Code, Problem, show};
use crate::topology::model::{Argument, Bridge, ExchangeKind, WorkQueue};
use crate::topology::pattern;
use crate::topology::raw;

/// A work queue with its bridge and where it is written.
#[derive(Clone, Copy)]
struct Node<'a> {
    raw: &'a raw::Queue,
    queue: &'a WorkQueue,
    bridge: &'a Bridge,
}

impl Check<'_> {
    /// `raw` and `bridges` are in the same order, and so are their queues.
    pub(super) fn loops(&mut self, raw: &[raw::Bridge], bridges: &[Bridge]) {
        let nodes: Vec<Node<'_>> = raw
            .iter()
            .zip(bridges)
            .flat_map(|(raw, bridge)| {
                raw.queues.iter().zip(&bridge.queues).map(move |(raw, queue)| Node { raw, queue, bridge })
            })
            .collect();
        for node in &nodes {
            self.dead_letters_to_a_queue(node, &nodes, bridges);
        }
        let edges: Vec<Vec<usize>> =
            nodes.iter().map(|from| (0..nodes.len()).filter(|to| expires_into(from, &nodes[*to])).collect()).collect();
        let mut reported = vec![false; nodes.len()];
        for start in 0..nodes.len() {
            if reported[start] {
                continue;
            }
            if let Some(circle) = circle_from(start, &edges) {
                for i in &circle {
                    reported[*i] = true;
                }
                let circle: Vec<Node<'_>> = circle.into_iter().map(|i| nodes[i]).collect();
                self.report(&circle);
            }
        }
    }

    fn report(&mut self, circle: &[Node<'_>]) {
        let [first, rest @ ..] = circle else { return };
        let names: Vec<String> =
            circle.iter().chain(std::iter::once(first)).map(|node| show(&node.queue.name)).collect();
        let Some(at) = first.raw.arguments.get("x-dead-letter-exchange") else { return };
        let mut problem = Problem::error(
            Code::DeadLetterLoop,
            at.value.place.clone(),
            format!("expired messages go round: {}", names.join(" → ")),
        )
        .label("back to a queue they were in")
        .why("RabbitMQ drops a message that expires its way back to a queue it was in, without a word")
        .help("dead-letter to the bridge's delay exchange instead: the daemon then stands between, and nothing is dropped");
        for node in rest {
            if let Some(at) = node.raw.arguments.get("x-dead-letter-exchange") {
                problem = problem.also(at.value.place.clone(), "and from here");
            }
        }
        self.problems.push(problem);
    }

    /// Case B48: the name of a queue where an exchange is meant.
    fn dead_letters_to_a_queue(&mut self, node: &Node<'_>, nodes: &[Node<'_>], bridges: &[Bridge]) {
        let Some(at) = node.raw.arguments.get("x-dead-letter-exchange") else { return };
        let Argument::Text(name) = &at.value.value else { return };
        let exchange = bridges.iter().any(|bridge| bridge.exchange == *name || bridge.work_exchange.name == *name);
        if let (false, Some(queue)) = (exchange, nodes.iter().find(|other| other.queue.name == *name)) {
            self.problems.push(
                Problem::error(
                    Code::BadReference,
                    at.value.place.clone(),
                    format!("{} is a queue, not an exchange", show(name)),
                )
                .label("needs an exchange")
                .also(queue.raw.name.place.clone(), "the queue is declared here")
                .why("RabbitMQ drops dead letters for an exchange that does not exist, without a word")
                .help(format!("write `x-dead-letter-exchange = \"\", x-dead-letter-routing-key = \"{name}\"`")),
            );
        }
    }
}

/// True if a message that expires in `from` can land in `to` by the broker alone.
fn expires_into(from: &Node<'_>, to: &Node<'_>) -> bool {
    let text = |name: &str| match from.queue.arguments.get(name) {
        Some(Argument::Text(text)) => Some(text.as_str()),
        _ => None,
    };
    let Some(exchange) = text("x-dead-letter-exchange") else { return false };
    if !from.queue.arguments.contains_key("x-message-ttl") {
        return false;
    }
    let key = text("x-dead-letter-routing-key");
    let own: Vec<&str> = from.queue.bindings.iter().map(|binding| binding.routing_key.as_str()).collect();
    if exchange.is_empty() {
        return match key {
            Some(key) => key == to.queue.name,
            // The message keeps its key, which is one that its queue is bound for.
            None => own.iter().any(|pattern| pattern::matches(pattern, &to.queue.name)),
        };
    }
    if exchange != to.bridge.work_exchange.name {
        return false;
    }
    let same_queue = std::ptr::eq(from.queue, to.queue);
    match (to.bridge.work_exchange.kind, key) {
        (ExchangeKind::Fanout, _) => true,
        // Which headers a message has is unknown; the ones that brought it here, it still has.
        (ExchangeKind::Headers, _) => same_queue,
        (ExchangeKind::Direct, Some(key)) => to.queue.bindings.iter().any(|binding| binding.routing_key == key),
        (ExchangeKind::Topic, Some(key)) => {
            to.queue.bindings.iter().any(|binding| pattern::matches(&binding.routing_key, key))
        }
        (ExchangeKind::Direct | ExchangeKind::Topic, None) => {
            same_queue
                || to
                    .queue
                    .bindings
                    .iter()
                    .any(|binding| own.iter().any(|own| pattern::meet(own, &binding.routing_key)))
        }
    }
}

/// The shortest way from a node back to itself.
fn circle_from(start: usize, edges: &[Vec<usize>]) -> Option<Vec<usize>> {
    let mut before: Vec<Option<usize>> = vec![None; edges.len()];
    let mut queue = std::collections::VecDeque::from([start]);
    while let Some(at) = queue.pop_front() {
        for &next in edges.get(at)? {
            if next == start {
                let mut way = vec![at];
                let mut node = at;
                while let Some(previous) = before[node].filter(|_| node != start) {
                    way.push(previous);
                    node = previous;
                }
                way.reverse();
                return Some(way);
            }
            if before[next].is_none() {
                before[next] = Some(at);
                queue.push_back(next);
            }
        }
    }
    None
}
