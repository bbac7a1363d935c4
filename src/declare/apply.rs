//! Declarations → broker: each object declared idempotently, all conflicts gathered before giving up.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::declaration::{Declarations, DefaultWay, Object, Queue, TierWay};
use crate::broker::admin::{Admin, DeclareError};
use crate::broker::{self, Connection};
use crate::duration::Millis;
use crate::store::Store;

/// The topology could not be declared as it stands.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Objects exist with other arguments, or this user may not declare them. Everything else was declared.
    #[error("RabbitMQ refused {} of the topology's objects{}", .0.len(), render(.0))]
    Refused(Vec<Refusal>),
    /// Nothing may be declared, and the broker is not as the topology says.
    #[error("{} of the topology's objects are not as it says, and this daemon declares nothing{}", .0.len(), render(.0))]
    NotAsDeclared(Vec<Refusal>),
    /// The broker went away in the middle.
    #[error("declaring the topology stopped at {at}: {source}")]
    Stopped {
        /// The object that was being declared.
        at: String,
        /// The cause.
        source: broker::Error,
    },
}

/// One object that the broker refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// AMQP reply code: 406 it exists otherwise, 403 not allowed.
    pub code: u16,
    /// Such as `queue 'orders.wait.10s'`.
    pub object: String,
    /// What is in the way, with both values where the broker says them.
    pub why: String,
    /// What to do.
    pub help: String,
}

/// Which member of each tier's family is in use, by bridge and tier.
pub type Buffers = BTreeMap<(String, Millis), String>;

/// Declares everything, in order, without knowing what is there.
///
/// An object that is refused does not keep the others from being declared: each refusal costs a channel, and the
/// next object gets a fresh one (case B40). A crash in the middle costs nothing: declaring again is a no-op for what
/// is there, and what is not bound yet goes by the intake.
///
/// # Errors
/// [`Error::Refused`] with every refusal; [`Error::Stopped`] where the connection was lost.
pub async fn apply(
    connection: Arc<Connection>,
    declarations: &Declarations,
    store: Option<&Store>,
) -> Result<Buffers, Error> {
    let mut admin = Admin::new(connection);
    let mut refusals = Vec::new();
    for object in &declarations.objects {
        match admin.declare(object).await {
            Ok(()) => {}
            Err(DeclareError::Refused { code, text }) => refusals.push(explain(object, code, &text)),
            Err(DeclareError::Broker(source)) => return Err(Error::Stopped { at: object.to_string(), source }),
        }
    }
    let mut buffers = Buffers::new();
    for way in &declarations.tiers {
        match lead_tier(&mut admin, way).await {
            Ok(member) => buffers.extend(member.map(|member| ((way.bridge.clone(), way.ttl), member))),
            Err(Trouble::Refused(refusal)) => refusals.push(refusal),
            Err(Trouble::Broker(source)) => return Err(Error::Stopped { at: way.queue.name.clone(), source }),
        }
    }
    for way in &declarations.defaults {
        match lead_default(&mut admin, way, &declarations.tiers, &buffers, store).await {
            Ok(()) => {}
            Err(Trouble::Refused(refusal)) => refusals.push(refusal),
            Err(Trouble::Broker(source)) => return Err(Error::Stopped { at: way.exchange.clone(), source }),
        }
    }
    if refusals.is_empty() { Ok(buffers) } else { Err(Error::Refused(refusals)) }
}

/// Why a way could not be led.
enum Trouble {
    Refused(Refusal),
    Broker(broker::Error),
}

/// One step of leading a way.
async fn step(admin: &mut Admin, object: &Object) -> Result<(), Trouble> {
    admin.declare(object).await.map_err(|e| match e {
        DeclareError::Refused { code, text } => Trouble::Refused(explain(object, code, &text)),
        DeclareError::Broker(source) => Trouble::Broker(source),
    })
}

/// Makes a tier lead to one member of its family, and says to which.
///
/// The first member whose name is free or who has the wanted arguments. In this order: the others unbound, ours bound,
/// the others unbound again: what comes between goes by the intake. Two daemons with different files that do this at
/// once end with one of the two bound, or with none: for both to stay bound, each would have had to bind after the
/// other's last unbinding. AMQP cannot list queues, so all are unbound that could exist; that is no error for those that
/// do not.
async fn lead_tier(admin: &mut Admin, way: &TierWay) -> Result<Option<String>, Trouble> {
    let mut ours = None;
    if way.used {
        let mut refused = None;
        for member in way.members() {
            match step(admin, &Object::Queue(Queue { name: member.clone(), ..way.queue.clone() })).await {
                Ok(()) => {
                    ours = Some(member);
                    break;
                }
                Err(Trouble::Refused(refusal)) if refusal.code == 406 => {
                    refused.get_or_insert(refusal);
                }
                Err(trouble) => return Err(trouble),
            }
        }
        if let Some(refusal) = refused {
            let Some(ours) = &ours else { return Err(Trouble::Refused(refusal)) };
            tracing::info!(bridge = %way.bridge, old = %refusal.object, why = %refusal.why, successor = %ours,
                "a buffer queue cannot be changed: its successor takes its place, and it drains");
        }
    }
    let others: Vec<String> = way.members().filter(|member| Some(member) != ours.as_ref()).collect();
    unbind_all(admin, way, &others).await?;
    if let Some(ours) = &ours {
        for binding in way.bindings(ours) {
            step(admin, &Object::Binding(binding)).await?;
        }
        unbind_all(admin, way, &others).await?;
    }
    Ok(ours)
}

async fn unbind_all(admin: &mut Admin, way: &TierWay, members: &[String]) -> Result<(), Trouble> {
    for member in members {
        for binding in way.bindings(member) {
            step(admin, &Object::Unbound(binding)).await?;
        }
    }
    Ok(())
}

/// Makes the way of messages without a header lead to one queue.
///
/// In this order: remember ours, unbind every other that was ever remembered, bind ours, look again. Whatever is
/// unbound between is caught by the intake. A crash after remembering leaves one name too many in the memory, never one
/// too few. Two daemons with different files that do this at once end with one of the two queues, or with none.
async fn lead_default(
    admin: &mut Admin,
    way: &DefaultWay,
    tiers: &[TierWay],
    buffers: &Buffers,
    store: Option<&Store>,
) -> Result<(), Trouble> {
    let ours = way.ttl.and_then(|ttl| buffers.get(&(way.bridge.clone(), ttl)));
    let family = tiers.iter().filter(|tier| tier.bridge == way.bridge).flat_map(TierWay::members);
    let others: Vec<String> = family.filter(|member| Some(member) != ours).collect();
    for _ in 0..LOOKS {
        let remembered = match store {
            None => Vec::new(),
            Some(store) => match store.remember_default(&way.bridge, ours.map(String::as_str)).await {
                Ok(remembered) => remembered,
                Err(error) => {
                    // What an earlier file has bound cannot be known now. Without a binding of ours nothing can come
                    // twice: either the old one holds still, or the intake decides.
                    tracing::warn!(bridge = %way.bridge, error = %error,
                        "the store does not answer, so the default delay goes through the daemon for now");
                    return Ok(());
                }
            },
        };
        let strangers: Vec<String> = remembered.into_iter().filter(|queue| Some(queue) != ours).collect();
        for queue in strangers.iter().chain(&others) {
            step(admin, &Object::Unbound(way.to(queue))).await?;
        }
        if let Some(ours) = ours {
            step(admin, &Object::Binding(way.to(ours))).await?;
        }
        let Some(store) = store.filter(|_| !strangers.is_empty()) else { return Ok(()) };
        if let Err(error) = store.forget_defaults(&way.bridge, &strangers).await {
            tracing::debug!(bridge = %way.bridge, error = %error, "an unbound default stays remembered; that costs nothing");
            return Ok(());
        }
    }
    Ok(())
}

/// How often the memory is looked at again after a stranger was found: another daemon may be doing the same.
const LOOKS: usize = 4;

/// The broker's words → object, argument, both values, and the way out.
fn explain(object: &Object, code: u16, text: &str) -> Refusal {
    let object_name = object.to_string();
    let (why, help) = match code {
        406 => match inequivalent(text) {
            Some((argument, wanted, present)) => (
                format!("it exists with {argument} = {present}, and the topology says {wanted}"),
                match object {
                    Object::Queue(q) => format!(
                        "RabbitMQ cannot change this on a queue that exists. If it is dwell's own and empty, delete it \
                         (rabbitmqadmin delete queue name={}) and start again; if messages wait in it, unbind it, let it \
                         drain, then delete it; if it belongs to somebody else, rename yours in the topology file or say \
                         declare = false",
                        q.name
                    ),
                    _ => "RabbitMQ cannot change this on an exchange that exists. Rename it in the topology file, make \
                          the file say what exists, or say declare = false where another team owns it"
                        .to_owned(),
                },
            ),
            None => (text.to_owned(), "compare the object in the broker with the topology file".to_owned()),
        },
        403 => (
            format!("this user may not declare it: {text}"),
            "give the user configure, write and read on it (a queue with a dead-letter exchange also needs read on the \
             queue and write on that exchange; an alternate exchange the same), or let somebody else declare it"
                .to_owned(),
        ),
        _ => (
            format!("{code} {text}"),
            "the object it refers to may be missing: names that say declare = false must exist before dwell starts"
                .to_owned(),
        ),
    };
    Refusal { code, object: object_name, why, help }
}

/// `inequivalent arg 'x' for … received … '6000' … but current is … '5000' …` → (x, 6000, 5000).
fn inequivalent(text: &str) -> Option<(String, String, String)> {
    let rest = text.split_once("inequivalent arg '")?.1;
    let (argument, rest) = rest.split_once('\'')?;
    let (received, current) = rest.split_once(" but current")?;
    let received = received.split_once("received")?.1;
    Some((argument.to_owned(), value(received), value(current)))
}

/// The value in the broker's half sentence: what stands in quotes, or "none".
fn value(part: &str) -> String {
    match part.split_once('\'').and_then(|(_, rest)| rest.split_once('\'')) {
        Some((quoted, _)) => format!("'{quoted}'"),
        None => "none".to_owned(),
    }
}

fn render(refusals: &[Refusal]) -> String {
    use std::fmt::Write;
    let mut out = String::new();
    for r in refusals {
        let _ = write!(out, "\n  {}\n    why: {}\n    do:  {}", r.object, r.why, r.help);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::declare::declaration::Arguments;

    #[test]
    fn the_brokers_words_become_object_argument_and_both_values() {
        let queue = Object::Queue(Queue { name: "orders.wait.10s".into(), arguments: Arguments::new() });
        for (text, why) in [
            (
                "PRECONDITION_FAILED - inequivalent arg 'x-message-ttl' for queue 'orders.wait.10s' in vhost '/': \
                 received '6000' but current is '5000'",
                "it exists with x-message-ttl = '5000', and the topology says '6000'",
            ),
            (
                "PRECONDITION_FAILED - inequivalent arg 'x-queue-type' for queue 'q' in vhost '/': received the value \
                 'quorum' of type 'longstr' but current is none",
                "it exists with x-queue-type = none, and the topology says 'quorum'",
            ),
            (
                "PRECONDITION_FAILED - inequivalent arg 'x-delivery-limit' for queue 'q' in vhost '/': received none but \
                 current is the value '20' of type 'signedint'",
                "it exists with x-delivery-limit = '20', and the topology says none",
            ),
        ] {
            let refusal = explain(&queue, 406, text);
            assert_eq!(refusal.object, "queue 'orders.wait.10s'");
            assert_eq!(refusal.why, why);
            assert!(refusal.help.contains("delete queue name=orders.wait.10s"));
        }
    }
}
