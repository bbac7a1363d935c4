//! Builds every part, starts the loops in the order of the flow, watches them, and stops them in that order.

use std::collections::{BTreeMap, BTreeSet};
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use futures_util::FutureExt;
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

use crate::admin::{self, Access, Health, Part, Reason, Site};
use crate::broker::admin::Admin;
use crate::broker::{self, Link, Publisher, State};
use crate::clock::{Clock, Real};
use crate::config::{Settings, TopologyMode};
use crate::decide::Rules;
use crate::declare::observed::Observed;
use crate::declare::{self, Buffers, Declarations, observe};
use crate::doctor::{self, Finding};
use crate::exit::Code;
use crate::intake::Intake;
use crate::management::Management;
use crate::metrics::{Metrics, Resting};
use crate::names;
use crate::parking;
use crate::pump::Pump;
use crate::reaper::Reaper;
use crate::rested::Rested;
use crate::shutdown::{Ended, Signals, Stage, Stages};
use crate::store::{self, Guarantee, Store};
use crate::topology::{Bridge, Topology};

/// The daemon, built and not yet running.
#[derive(Debug)]
pub struct App {
    settings: Settings,
    topology: Topology,
    metrics: Metrics,
    health: Health,
    store: Option<Store>,
    clock: Arc<dyn Clock>,
    skew_ms: Arc<AtomicI64>,
    /// Declares and looks; publishes nothing.
    control: Link,
    wakes: Wakes,
}

/// Why the daemon could not start.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The store's settings make no sense.
    #[error(transparent)]
    Store(#[from] store::Error),
    /// The topology was refused.
    #[error(transparent)]
    Declare(#[from] declare::Error),
    /// A policy puts an end to messages in dwell's own queues.
    #[error("{}", doctor::render(.0))]
    Shortened(Vec<Finding>),
}

/// The stages of a graceful stop, in the order of the flow.
#[derive(Clone, Debug)]
pub struct Flow {
    /// Nothing new is taken in; what was taken is seen to its place.
    pub intake: Stage,
    /// What was handed to the store is parked and acknowledged.
    pub parking: Stage,
    /// What is due stays in the store from now on.
    pub pump: Stage,
    /// The connections.
    pub links: Stage,
    /// Names of loops that have panicked.
    pub died: mpsc::UnboundedSender<String>,
}

/// A loop of its own, whatever its type.
type Loop = Pin<Box<dyn Future<Output = ()> + Send>>;

/// One waker a bridge: parking tells it, pumps listen.
type Wakes = BTreeMap<String, watch::Sender<()>>;

/// How often the depths of queues and store are looked at.
const LOOK_EVERY: Duration = Duration::from_secs(5);

/// How long a batch may take to be handed to the connection.
const HAND_OVER: Duration = Duration::from_secs(10);

/// How often the store is checked: reachable, fit, and by which clock.
const CHECK_EVERY: Duration = Duration::from_secs(2);

/// How often bridges are looked for that have records but are in no file any more.
const FIND_EVERY: Duration = Duration::from_secs(10);

/// Above this difference between Redis' clock and ours the daemon is not ready: absolute times would be off by it.
const SKEW_LIMIT_MS: i64 = 100;

// === impl Flow ===

impl Flow {
    /// Starts a loop in a stage. One that panics is a defect, and takes the daemon with it: it would look alive and do
    /// half of its work. Every hop acknowledges last, so what it held is delivered again.
    pub fn start(&self, stage: &Stage, name: impl Into<String>, task: impl Future<Output = ()> + Send + 'static) {
        let (name, died) = (name.into(), self.died.clone());
        let watched = name.clone();
        stage.spawn(name, async move {
            if AssertUnwindSafe(task).catch_unwind().await.is_err() {
                let _ = died.send(watched);
            }
        });
    }
}

// === impl App ===

impl App {
    /// Puts the parts together; no I/O.
    ///
    /// # Errors
    /// The store's address makes no sense.
    pub fn build(settings: Settings, topology: Topology, metrics: Metrics, health: Health) -> Result<App, Error> {
        let store = settings.redis.as_ref().map(Store::open).transpose()?;
        let amqp = Arc::new(settings.amqp.clone());
        let wakes = topology.bridges.iter().map(|b| (b.name.clone(), watch::Sender::new(()))).collect();
        health.set(Part::Topology, Some(Reason::TopologyNotDeclared));
        Ok(App {
            control: Link::new(amqp, "dwell control"),
            settings,
            topology,
            metrics,
            health,
            store,
            clock: Arc::new(Real),
            skew_ms: Arc::default(),
            wakes,
        })
    }

    /// Connects and declares, waiting for the broker as long as it takes; then starts every loop on `tasks`.
    ///
    /// # Errors
    /// The topology is refused: an object exists with other arguments, or may not be declared.
    pub async fn start(&self, flow: &Flow) -> Result<(), Error> {
        let link = self.control.clone();
        self.keep_up(&link, flow);

        let stop = flow.intake.token();
        let prefix = &self.settings.amqp.prefix;
        let (connection, topology, declarations, buffers) = loop {
            let connection = tokio::select! {
                () = stop.cancelled() => return Ok(()),
                connection = link.connection() => connection,
            };
            // Not before there is a broker: its management API comes and goes with it.
            let listed = self.list().await;
            let mut topology = self.topology.clone();
            if let Some(listed) = &listed {
                observe::note_caught(&mut topology, listed);
            }
            let declarations = declare::compile(&topology, prefix);
            let attempt = match self.settings.run.topology {
                TopologyMode::Declare => declare::apply(connection.clone(), &declarations, self.store.as_ref()).await,
                TopologyMode::Verify => declare::verify(connection.clone(), &topology, prefix, listed).await,
            };
            match attempt {
                Ok(buffers) => break (connection, topology, declarations, buffers),
                // Lost in the middle: the next connection begins again, and what is declared stays so.
                Err(declare::Error::Stopped { at, source }) => {
                    tracing::warn!(at = %at, error = %source, "declaring was interrupted; beginning again");
                    tokio::time::sleep(Duration::from_millis(200)).await;
                }
                Err(refused) => return Err(refused.into()),
            }
        };
        self.refuse_policies(&topology, &declarations).await?;
        let (exchanges, queues, bindings) = declarations.counts();
        match self.settings.run.topology {
            TopologyMode::Declare => tracing::info!(exchanges, queues, bindings, "the topology is declared"),
            TopologyMode::Verify => {
                tracing::info!(exchanges, queues, bindings, "the topology is there; nothing was declared");
            }
        }
        self.metrics.topology_declared(true);

        if let Some(store) = &self.store {
            self.health.set(Part::Store, Some(Reason::StoreUnreachable));
            flow.start(&flow.pump, "store check", self.check_store(store.clone(), flow.pump.token()));
        }
        let user = connection.user().to_owned();
        for bridge in &topology.bridges {
            self.start_bridge(bridge, &buffers, &user, flow);
        }
        flow.start(&flow.pump, "depths", self.look_at_depths(buffers, flow.pump.token()));
        if let Some(store) = &self.store {
            flow.start(&flow.pump, "bridges without files", self.serve_others(store.clone(), user, flow));
        }
        // Last: every part that may be in the way has entered itself by now.
        self.health.set(Part::Topology, None);
        Ok(())
    }

    /// What the management API shows, where it is configured. It is a help: without it the daemon runs too.
    async fn list(&self) -> Option<Observed> {
        let api = self.settings.management.as_ref()?;
        match observe::list(&Management::new(api, &self.settings.amqp.vhost())).await {
            Ok(listed) => Some(listed),
            Err(error) => {
                tracing::warn!(error = %error, "the topology is not compared, and work exchanges of others count as without \
                    an alternate exchange");
                None
            }
        }
    }

    /// Policies that would make messages early, or end them. Looked at once the queues exist: the broker itself says what is
    /// in force on each.
    async fn refuse_policies(&self, topology: &Topology, declarations: &Declarations) -> Result<(), Error> {
        let Some(api) = &self.settings.management else { return Ok(()) };
        match Management::new(api, &self.settings.amqp.vhost()).queues().await {
            Ok(queues) => {
                let findings = doctor::shortened(topology, declarations, &queues);
                if findings.is_empty() { Ok(()) } else { Err(Error::Shortened(findings)) }
            }
            Err(error) => {
                tracing::warn!(error = %error, "whether policies shorten what waits was not looked at");
                Ok(())
            }
        }
    }

    fn start_bridge(&self, bridge: &Bridge, buffers: &Buffers, user: &str, flow: &Flow) {
        let name: Arc<str> = bridge.name.as_str().into();
        let metrics = self.metrics.bridge(&name);
        let rested = Rested::new(name.clone());
        let amqp = Arc::new(self.settings.amqp.clone());
        let link = Link::new(amqp.clone(), &format!("dwell consume {name}"));
        self.keep_up(&link, flow);
        let publishing = self.publishing_link(&name, flow);

        let wake = self.wakes.get(bridge.name.as_str()).cloned().unwrap_or_default();
        let parking = self.store.as_ref().map(|store| {
            let (parking, parker) = parking::new(name.clone(), store.clone(), metrics.clone(), wake);
            flow.start(&flow.parking, format!("parking of {name}"), parker.run(flow.parking.token()));
            parking
        });
        let own = Topology { bridges: vec![bridge.clone()] };
        let mut rules = Rules::of(bridge, &self.settings.delay, self.store.is_some(), true);
        rules.use_buffers(&name, buffers);
        let declares = self.settings.run.topology == TopologyMode::Declare;
        let intake = Intake {
            bridge: name.clone(),
            rules,
            work_exchange: bridge.work_exchange.name.clone(),
            prefix: self.settings.amqp.prefix.clone(),
            declarations: declares.then(|| declare::compile(&own, &self.settings.amqp.prefix)),
            link,
            publisher: self.publisher(&publishing),
            parking,
            store: self.store.clone(),
            prefetch: self.settings.amqp.prefetch,
            // Handing over takes longer only where the broker takes nothing; a stop must not wait for that.
            publish_timeout: self.settings.run.confirm_timeout.to_std().min(HAND_OVER),
            metrics,
            rested,
            clock: self.clock.clone(),
            health: self.health.clone(),
        };
        self.health.set(Part::Intake(name.to_string()), Some(Reason::TopologyNotDeclared));
        flow.start(&flow.intake, format!("intake of {name}"), intake.run(flow.intake.token()));
        if let Some(store) = &self.store {
            for (what, task) in self.release_loops(&name, store, &publishing, user, &flow.pump.token()) {
                flow.start(&flow.pump, what, task);
            }
        }
    }

    /// The pump and the reaper of every shard of a bridge.
    fn release_loops(
        &self,
        bridge: &Arc<str>,
        store: &Store,
        publishing: &Link,
        user: &str,
        stop: &CancellationToken,
    ) -> Vec<(String, Loop)> {
        let metrics = self.metrics.bridge(bridge);
        let mut loops: Vec<(String, Loop)> = Vec::new();
        for shard in 0..store.shards() {
            let wake =
                self.wakes.get(&**bridge).map_or_else(|| watch::Sender::new(()).subscribe(), watch::Sender::subscribe);
            let pump = Pump {
                bridge: bridge.clone(),
                shard,
                store: store.clone(),
                link: publishing.clone(),
                publisher: self.publisher(publishing),
                prefix: self.settings.amqp.prefix.clone(),
                user: user.to_owned(),
                batch: self.settings.pump.batch,
                lease: self.settings.pump.lease,
                metrics: metrics.clone(),
                rested: Rested::new(bridge.clone()),
                wake,
                clock: self.clock.clone(),
                skew_ms: self.skew_ms.clone(),
            };
            let reaper = Reaper { bridge: bridge.clone(), shard, store: store.clone(), metrics: metrics.clone() };
            loops.push((format!("pump of {bridge}, shard {shard}"), Box::pin(pump.run(stop.clone()))));
            loops.push((format!("reaper of {bridge}, shard {shard}"), Box::pin(reaper.run(stop.clone()))));
        }
        loops
    }

    /// A publishing connection of the bridge's own. A channel would not be enough: where the broker closes a channel over
    /// one message (404), lapin may still send what it has buffered for it, and the broker then closes the connection.
    fn publishing_link(&self, bridge: &str, flow: &Flow) -> Link {
        let link = Link::new(Arc::new(self.settings.amqp.clone()), &format!("dwell publish {bridge}"));
        self.keep_up(&link, flow);
        link
    }

    fn publisher(&self, publishing: &Link) -> Publisher {
        Publisher::new(publishing.clone(), self.settings.run.confirm_timeout.to_std())
    }

    /// Keeps a connection up, and carries its state into health and metrics.
    fn keep_up(&self, link: &Link, flow: &Flow) {
        let (kept, stop) = (link.clone(), flow.links.token());
        flow.start(&flow.links, format!("connection '{}'", link.name()), async move { kept.keep_up(stop).await });
        let (health, metrics) = (self.health.clone(), self.metrics.connection(link.name()));
        let part = Part::Connection(link.name().to_owned());
        // Said before any task runs: readiness must not be true between two of them.
        health.set(part.clone(), Some(Reason::BrokerUnreachable));
        let mut state = link.state();
        let stop = flow.links.token();
        flow.start(&flow.links, format!("state of connection '{}'", link.name()), async move {
            let mut was_up = false;
            loop {
                let now = state.borrow_and_update().clone();
                let reason = match &now {
                    State::Up => None,
                    State::Blocked(_) => Some(Reason::BrokerBlocked),
                    State::Down { .. } => Some(Reason::BrokerUnreachable),
                };
                match (&now, was_up) {
                    (State::Up, false) => metrics.opened(),
                    (State::Down { .. }, true) => metrics.lost(),
                    _ => metrics.blocked(matches!(now, State::Blocked(_))),
                }
                was_up = !matches!(now, State::Down { .. });
                health.set(part.clone(), reason);
                tokio::select! {
                    () = stop.cancelled() => return,
                    changed = state.changed() => if changed.is_err() { return },
                }
            }
        });
    }

    /// Whether the store is there and fit, and how far its clock is from ours.
    fn check_store(&self, store: Store, stop: CancellationToken) -> impl Future<Output = ()> + Send + 'static {
        let (health, metrics, skew) = (self.health.clone(), self.metrics.clone(), self.skew_ms.clone());
        async move {
            let mut last: Option<Result<Guarantee, String>> = None;
            loop {
                let now = match store.check().await {
                    Ok(found) => {
                        skew.store(found.skew_ms, Ordering::Relaxed);
                        metrics.clock_skew(found.skew_ms);
                        let skewed = found.skew_ms.abs() > SKEW_LIMIT_MS;
                        health.set(Part::Store, None);
                        health.set(Part::Clock, skewed.then_some(Reason::ClockSkew));
                        let now = Ok(found.guarantee);
                        if last.as_ref() != Some(&now) {
                            tracing::info!(server = %found.server, parked_survives = ?found.guarantee, skew_ms = found.skew_ms,
                                "the store is ready");
                        }
                        now
                    }
                    Err(error) => {
                        health.set(Part::Store, Some(Reason::StoreUnreachable));
                        let now = Err(error.to_string());
                        if last.as_ref() != Some(&now) {
                            tracing::error!(error = %error, "the store cannot be used; long delays stay unacknowledged in the intake");
                        }
                        now
                    }
                };
                last = Some(now);
                tokio::select! {
                    () = stop.cancelled() => return,
                    () = tokio::time::sleep(CHECK_EVERY) => {}
                }
            }
        }
    }

    /// Bridges that have records but stand in no file any more: what waits is released all the same.
    fn serve_others(&self, store: Store, user: String, flow: &Flow) -> impl Future<Output = ()> + Send + 'static {
        let mut served: BTreeSet<String> = self.topology.bridges.iter().map(|b| b.name.clone()).collect();
        let (app, flow) = (self.without_bridges(), flow.clone());
        async move {
            let stop = flow.pump.token();
            loop {
                for bridge in store.bridges_with_records().await.unwrap_or_default() {
                    if served.insert(bridge.clone()) {
                        tracing::warn!(bridge = %bridge, "this bridge is in no topology file, but records wait for it; releasing them when due");
                        let publishing = app.publishing_link(&bridge, &flow);
                        for (name, task) in
                            app.release_loops(&bridge.as_str().into(), &store, &publishing, &user, &flow.pump.token())
                        {
                            flow.start(&flow.pump, name, task);
                        }
                    }
                }
                tokio::select! {
                    () = stop.cancelled() => return,
                    () = tokio::time::sleep(FIND_EVERY) => {}
                }
            }
        }
    }

    /// The same app for bridges that are in no file.
    fn without_bridges(&self) -> App {
        App {
            settings: self.settings.clone(),
            topology: Topology { bridges: Vec::new() },
            metrics: self.metrics.clone(),
            health: self.health.clone(),
            store: self.store.clone(),
            clock: self.clock.clone(),
            skew_ms: self.skew_ms.clone(),
            control: self.control.clone(),
            wakes: Wakes::new(),
        }
    }

    /// How much waits where, for the metrics.
    fn look_at_depths(&self, buffers: Buffers, stop: CancellationToken) -> impl Future<Output = ()> + Send + 'static {
        let (link, metrics, store) = (self.control.clone(), self.metrics.clone(), self.store.clone());
        let (bridges, prefix) = (self.topology.bridges.clone(), self.settings.amqp.prefix.clone());
        async move {
            let mut depths = Depths { buffers, refused: BTreeMap::new() };
            loop {
                tokio::select! {
                    () = stop.cancelled() => return,
                    () = tokio::time::sleep(LOOK_EVERY) => {}
                }
                let look = async {
                    let mut admin = Admin::new(link.connection().await);
                    depths.look(&mut admin, &metrics, store.as_ref(), &bridges, &prefix).await
                };
                if let Ok(Err(error)) = tokio::time::timeout(LOOK_EVERY, look).await {
                    tracing::debug!(error = %error, "could not look at the depths");
                }
            }
        }
    }
}

/// Looks at queue depths, and remembers which queues it was not allowed to look at.
#[derive(Debug)]
struct Depths {
    /// The buffer queues in use when the daemon started.
    buffers: Buffers,
    /// Looks to go until a queue that was refused is asked for again: each refusal costs a channel and a line in the
    /// broker's log.
    refused: BTreeMap<String, u32>,
}

/// Looks without a queue that was refused; five minutes.
const REFUSED_FOR: u32 = 60;

// === impl Depths ===

impl Depths {
    async fn look(
        &mut self,
        admin: &mut Admin,
        metrics: &Metrics,
        store: Option<&Store>,
        bridges: &[Bridge],
        prefix: &str,
    ) -> Result<(), broker::Error> {
        self.refused.retain(|_, left| {
            *left -= 1;
            *left > 0
        });
        let rejected = names::rejected(prefix);
        metrics.resting(Resting::Rejected, &rejected, self.depth(admin, &rejected).await?);
        for bridge in bridges {
            let unrouted = names::unrouted(&bridge.name);
            metrics.resting(Resting::Unrouted, &unrouted, self.depth(admin, &unrouted).await?);
            let failed = names::failed(&bridge.name);
            metrics.resting(Resting::Failed, &failed, self.depth(admin, &failed).await?);
            let of_bridge = metrics.bridge(&bridge.name);
            for &ttl in &bridge.tiers {
                if let Some(buffer) = self.buffers.get(&(bridge.name.clone(), ttl)).cloned() {
                    of_bridge.tier_depth(ttl, self.depth(admin, &buffer).await?);
                }
            }
            if let Some(store) = store
                && let Ok(depth) = store.depth(&bridge.name).await
            {
                of_bridge.store_depth(depth.pending, depth.claimed);
            }
        }
        Ok(())
    }

    async fn depth(&mut self, admin: &mut Admin, queue: &str) -> Result<Option<u64>, broker::Error> {
        if self.refused.contains_key(queue) {
            return Ok(None);
        }
        let depth = admin.depth(queue).await?.map(u64::from);
        if depth.is_none() {
            self.refused.insert(queue.to_owned(), REFUSED_FOR);
        }
        Ok(depth)
    }
}

/// Runs the daemon until a signal, and stops it gracefully; the exit code of `dwell run`.
pub async fn run(settings: Settings, topology: Topology) -> Code {
    let metrics = Metrics::new();
    let health = Health::starting();
    let mut signals = match Signals::listen() {
        Ok(signals) => signals,
        Err(error) => {
            tracing::error!(error = %error, "cannot listen for signals");
            return Code::Failed;
        }
    };
    let access = match Access::of(&settings.http) {
        Ok(access) => access,
        Err(error) => {
            tracing::error!("{error}");
            return Code::BadInput;
        }
    };
    let listener = match admin::bind(settings.http.listen).await {
        Ok(listener) => listener,
        Err(error) => {
            tracing::error!(error = %error, help = error.help(), "HTTP cannot start");
            return Code::Unavailable;
        }
    };
    let deadline = settings.run.stop_deadline.to_std();
    let site = Site { health: health.clone(), metrics: metrics.clone(), access };
    let app = match App::build(settings, topology, metrics, health.clone()) {
        Ok(app) => app,
        Err(error) => {
            tracing::error!(error = %error, "the daemon cannot be put together");
            return Code::BadInput;
        }
    };

    let mut stages = Stages::new();
    let (died, mut deaths) = mpsc::unbounded_channel();
    let flow = Flow {
        intake: stages.stage("intake"),
        parking: stages.stage("parking"),
        pump: stages.stage("pump"),
        links: stages.stage("connections"),
        died,
    };
    let http = stages.stage("http");
    http.spawn("server", admin::serve(listener, site, http.token()));

    // While it starts (the broker may be away for hours) a signal must end it too.
    let started = tokio::select! {
        started = app.start(&flow) => Some(started),
        _ = signals.next() => None,
    };
    let code = match started {
        Some(Ok(())) => {
            tracing::info!("running");
            tokio::select! {
                signal = signals.next() => {
                    tracing::info!(signal = %signal, deadline_ms = deadline.as_millis(),
                        "stopping; a second signal leaves at once");
                    Code::Done
                }
                Some(name) = deaths.recv() => {
                    tracing::error!(task = %name, "a loop has panicked, which is a defect of dwell; stopping");
                    Code::Failed
                }
            }
        }
        Some(Err(error)) => {
            tracing::error!("{error}");
            match error {
                Error::Declare(declare::Error::Refused(refusals)) if refusals.iter().any(|r| r.code == 403) => {
                    Code::Unavailable
                }
                Error::Declare(_) | Error::Shortened(_) => Code::Refused,
                Error::Store(_) => Code::BadInput,
            }
        }
        None => Code::Done,
    };
    health.set(Part::Process, Some(Reason::Stopping));
    match stages.stop(&mut signals, deadline).await {
        Ended::Graceful => {
            tracing::info!("stopped");
            code
        }
        Ended::Late(late) => {
            tracing::error!(late = ?late, "the deadline came before these ended; what they held is delivered again");
            Code::Failed
        }
        Ended::Forced(left) => {
            tracing::warn!(left = ?left, "a second signal: left at once; what these held is delivered again");
            Code::Failed
        }
    }
}
