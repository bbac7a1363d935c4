//! The broker and the store → what is there.

use std::sync::Arc;

use super::declaration::{Declarations, Object, Queue};
use super::observed::{Observed, Seen};
use crate::broker::admin::Admin;
use crate::broker::{self, Connection};
use crate::management::{self, Management};
use crate::store::{self, Store};
use crate::topology::Topology;

/// All that the management API shows of the vhost.
///
/// # Errors
/// The API does not answer, or not to this user.
pub async fn list(management: &Management) -> Result<Observed, management::Error> {
    let (exchanges, queues, bindings, policies) =
        tokio::try_join!(management.exchanges(), management.queues(), management.bindings(), management.policies())?;
    Ok(Observed::listed(exchanges, queues, bindings, policies))
}

/// What AMQP alone shows of the objects that a topology needs: whether each exchange and queue exists. Where the broker
/// will not even say that (403), it is unknown, not missing (case B53).
///
/// # Errors
/// The broker is gone, or too slow.
pub async fn probe(
    connection: Arc<Connection>,
    declarations: &Declarations,
    topology: &Topology,
) -> Result<Observed, broker::Error> {
    let mut admin = Admin::new(connection);
    let mut observed = Observed::default();
    let others = topology.bridges.iter().flat_map(super::compile::others);
    for object in declarations.objects.iter().cloned().chain(others) {
        match &object {
            Object::Exchange(x) => {
                let seen = Seen::passively(admin.exists(&object).await?);
                observed.exchanges.insert(x.name.clone(), seen);
            }
            Object::Queue(q) => {
                let seen = Seen::passively(admin.exists(&object).await?);
                observed.queues.insert(q.name.clone(), seen);
            }
            Object::Binding(_) | Object::Unbound(_) => {}
        }
    }
    for way in declarations.tiers.iter().filter(|tier| tier.used) {
        // Each that is missing costs a channel, so the search ends behind the newest. (An older one may be gone already.)
        let mut found = false;
        for member in way.members() {
            let queue = Queue { name: member.clone(), ..way.queue.clone() };
            let exists = admin.exists(&Object::Queue(queue)).await?;
            if found && exists != Some(true) {
                break;
            }
            found |= exists == Some(true);
            observed.queues.insert(member, Seen::passively(exists));
            if exists.is_none() {
                break;
            }
        }
    }
    Ok(observed)
}

/// How many records wait for each bridge.
///
/// # Errors
/// The store does not answer.
pub async fn count_records(store: &Store, observed: &mut Observed) -> Result<(), store::Error> {
    for bridge in store.bridges_with_records().await? {
        let depth = store.depth(&bridge).await?;
        observed.records.insert(bridge, depth.pending + depth.claimed);
    }
    Ok(())
}

/// Notes which work exchanges of others do not lose what they cannot route: only then may a bridge use its tiers.
pub fn note_caught(topology: &mut Topology, observed: &Observed) {
    for work in topology.bridges.iter_mut().map(|bridge| &mut bridge.work_exchange) {
        work.catches = work.declare || observed.caught.contains(&work.name);
    }
}
