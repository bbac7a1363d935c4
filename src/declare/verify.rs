//! Whether the broker is as the topology says; nothing is declared.

use std::sync::Arc;

use super::Buffers;
use super::apply::{Error, Refusal};
use super::declaration::{Declarations, Object};
use super::observed::{Observed, Seen};
use super::plan::{Action, By, Plan, Step, diff};
use super::{compile, observe};
use crate::broker::Connection;
use crate::topology::Topology;

/// Looks whether all is there, with what the management API has `listed`, else by passive declares; says which buffer
/// queue each tier has.
///
/// What the broker will not tell (403) counts as there: consuming and publishing will show.
///
/// # Errors
/// [`Error::NotAsDeclared`] with all that is missing or otherwise; [`Error::Stopped`] where the connection was lost.
pub async fn verify(
    connection: Arc<Connection>,
    topology: &Topology,
    prefix: &str,
    listed: Option<Observed>,
) -> Result<Buffers, Error> {
    let wanted = compile(topology, prefix);
    let observed = match listed {
        Some(listed) => listed,
        None => observe::probe(connection, &wanted, topology)
            .await
            .map_err(|source| Error::Stopped { at: "looking at the topology".into(), source })?,
    };
    let plan = diff(&wanted, topology, prefix, &observed, 0);
    let lacking: Vec<Refusal> = plan.steps.iter().filter(|step| step.by == By::Apply).filter_map(lacking).collect();
    if lacking.is_empty() { Ok(buffers(&wanted, &plan, &observed)) } else { Err(Error::NotAsDeclared(lacking)) }
}

/// What a step would have to change.
fn lacking(step: &Step) -> Option<Refusal> {
    let (code, why, help) = match &step.action {
        Action::Create(_) => {
            (404, step.reason.clone(), "let somebody with the right to configure run `dwell apply`".into())
        }
        Action::Unbind(_) => {
            (406, step.reason.clone(), "let somebody with the right to configure run `dwell apply`".into())
        }
        Action::Refuse { help, .. } => (406, step.reason.clone(), help.clone()),
        Action::Keep(_) | Action::Assert(_) | Action::Drain { .. } | Action::SetPolicy(_) => return None,
    };
    Some(Refusal { code, object: step.subject(), why, help })
}

/// The member of each tier's family that the plan keeps; where nothing could be compared, the newest that exists.
fn buffers(wanted: &Declarations, plan: &Plan, observed: &Observed) -> Buffers {
    let kept = |name: &str| {
        plan.steps.iter().any(|step| matches!(&step.action, Action::Keep(Object::Queue(q)) if q.name == name))
    };
    let tiers = wanted.tiers.iter().filter(|tier| tier.used);
    tiers
        .filter_map(|way| {
            let member = if observed.complete {
                way.members().find(|member| kept(member))
            } else {
                way.members().filter(|member| observed.queue(member) == Seen::Exists).last()
            };
            Some(((way.bridge.clone(), way.ttl), member?))
        })
        .collect()
}
