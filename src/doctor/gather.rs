//! Settings and files → facts, by AMQP, the management API and Redis.

use std::sync::Arc;
use std::time::SystemTime;

use super::Facts;
use crate::broker::{self, Connection};
use crate::config::{Settings, TopologyMode};
use crate::declare::observed::Observed;
use crate::declare::{self, observe, plan::diff};
use crate::management::Management;
use crate::store::{self, Store};
use crate::topology::Topology;

/// Nothing could be looked at.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// RabbitMQ.
    #[error(transparent)]
    Broker(#[from] broker::Error),
    /// The store's settings make no sense.
    #[error(transparent)]
    Store(#[from] store::Error),
}

/// Looks at everything that answers. A management API or a Redis that does not is a fact, a broker that does not is an
/// error.
///
/// # Errors
/// See [`Error`].
pub async fn gather(settings: &Settings, mut topology: Topology) -> Result<Facts, Error> {
    let connection = Arc::new(Connection::open(&settings.amqp, "dwell doctor").await?);
    let user = connection.user().to_owned();
    let prefix = settings.amqp.prefix.clone();
    let api = settings.management.as_ref().map(|api| Management::new(api, &settings.amqp.vhost()));
    let (mut listed, mut trouble) = (None, None);
    let (mut queues, mut overview, mut nodes, mut permissions) = (None, None, None, None);
    if let Some(api) = &api {
        let looked = tokio::try_join!(observe::list(api), api.queues(), api.overview());
        match looked {
            Ok((all, some, broker)) => (listed, queues, overview) = (Some(all), Some(some), Some(broker)),
            Err(error) => trouble = Some(error.to_string()),
        }
        // Both need more rights than the rest; without them they are just not known.
        nodes = api.nodes().await.ok().map(|nodes| nodes.len());
        permissions = api.permissions(&user).await.ok().flatten();
    }
    if let Some(listed) = &listed {
        observe::note_caught(&mut topology, listed);
    }
    let wanted = declare::compile(&topology, &prefix);
    let mut observed: Observed = match listed {
        Some(listed) => listed,
        None => observe::probe(connection.clone(), &wanted, &topology).await?,
    };
    let store = settings.redis.as_ref().map(Store::open).transpose()?;
    let health = match &store {
        Some(store) => {
            if let Err(error) = observe::count_records(store, &mut observed).await {
                tracing::debug!(error = %error, "records were not counted");
            }
            Some(store.check().await)
        }
        None => None,
    };
    let now_ms = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |now| now.as_millis());
    let now_ms = u64::try_from(now_ms).unwrap_or(u64::MAX);
    let plan = diff(&wanted, &topology, &prefix, &observed, now_ms);
    let broker_skew_ms = overview
        .as_ref()
        .and_then(|overview| overview.clock_ms)
        .map(|clock| clock - i64::try_from(now_ms).unwrap_or(i64::MAX));
    Ok(Facts {
        topology,
        wanted,
        prefix,
        declares: settings.run.topology == TopologyMode::Declare,
        plan,
        trouble,
        queues,
        overview,
        nodes,
        permissions,
        user,
        broker_skew_ms,
        store: health,
    })
}
