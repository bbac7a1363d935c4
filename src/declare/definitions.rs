//! Declarations → RabbitMQ's definitions JSON, for teams who declare by import (pure).

use serde_json::{Map, Value, json};

use super::declaration::{Argument, Arguments, Binding, Declarations, Object, Queue, Target};

/// The definitions, and the bindings that they cannot say: JSON has no word for AMQP's void value (RabbitMQ refuses
/// `null`, `null_not_allowed`), which matches the presence of a header.
///
/// With `vhost` each object names it, as the import of a whole broker wants; without it they are for one vhost.
#[must_use]
pub fn definitions(wanted: &Declarations, vhost: Option<&str>) -> (Value, Vec<String>) {
    let (mut exchanges, mut queues, mut bindings, mut left_out) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let mut bind = |binding: &Binding| {
        if binding.arguments.values().any(|value| *value == Argument::Present) {
            left_out.push(Object::Binding(binding.clone()).to_string());
            return;
        }
        let (kind, to) = match &binding.target {
            Target::Queue(name) => ("queue", name),
            Target::Exchange(name) => ("exchange", name),
        };
        bindings.push(json!({
            "source": binding.source, "destination": to, "destination_type": kind, "routing_key": binding.routing_key,
            "arguments": table(&binding.arguments),
        }));
    };
    for object in &wanted.objects {
        match object {
            Object::Exchange(x) => exchanges.push(json!({
                "name": x.name, "type": x.kind, "durable": true, "auto_delete": false, "internal": x.internal,
                "arguments": table(&x.arguments),
            })),
            Object::Queue(q) => queues.push(queue(q)),
            Object::Binding(b) => bind(b),
            Object::Unbound(_) => {}
        }
    }
    for tier in wanted.tiers.iter().filter(|tier| tier.used) {
        queues.push(queue(&tier.queue));
        for binding in tier.bindings(&tier.queue.name) {
            bind(&binding);
        }
    }
    for way in &wanted.defaults {
        let tier = wanted.tiers.iter().find(|tier| tier.bridge == way.bridge && Some(tier.ttl) == way.ttl);
        if let Some(tier) = tier {
            bind(&way.to(&tier.queue.name));
        }
    }
    for object in exchanges.iter_mut().chain(&mut queues).chain(&mut bindings) {
        if let Some(vhost) = vhost {
            object["vhost"] = vhost.into();
        }
    }
    (json!({ "exchanges": exchanges, "queues": queues, "bindings": bindings }), left_out)
}

fn queue(q: &Queue) -> Value {
    json!({ "name": q.name, "durable": true, "auto_delete": false, "arguments": table(&q.arguments) })
}

/// A void value is null, which no argument has otherwise.
pub(super) fn table(arguments: &Arguments) -> Value {
    let each = arguments.iter().map(|(name, value)| {
        let value = match value {
            Argument::Bool(b) => json!(b),
            Argument::Int(n) => json!(n),
            Argument::Text(s) | Argument::Other(s) => json!(s),
            Argument::Present => Value::Null,
        };
        (name.clone(), value)
    });
    Value::Object(each.collect::<Map<_, _>>())
}
