//! Every metric: name, kind, unit, labels and help, in this file only. The rest of dwell says what happened.
//!
//! Names begin with `dwell_`, units are base units (seconds), counters end in `_total`. Where a number moves fast
//! between two scrapes there is a pair of counters instead of a gauge: what was begun and how it ended; the
//! difference is what is in hand. Label values are bounded: bridges, paths, reasons, queues, connections; never a
//! message's id or routing key.
//!
//! [`TABLE`] is the whole list; the README's table is checked against it.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use prometheus_client::encoding::prometheus_text;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Metric, Registry};

use crate::duration::Millis;

/// What kind of number a metric is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Only grows, from 0 at the start of the process.
    Counter,
    /// Goes up and down.
    Gauge,
    /// Counts observations in buckets.
    Histogram,
}

/// One line of [`TABLE`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Definition {
    /// As a scrape shows it; a histogram's series add `_bucket`, `_sum` and `_count`.
    pub name: &'static str,
    /// What its numbers may do.
    pub kind: Kind,
    /// In the order in which values are given.
    pub labels: &'static [&'static str],
    /// One sentence without a full stop (the exposition adds it).
    pub help: &'static str,
}

/// Which way a message took: the label `path`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Path {
    /// Due when it came: to the work exchange at once.
    Now,
    /// A tier's buffer queue, placed by the daemon. What the broker places by itself is in nobody's count.
    Tier,
    /// Redis.
    Store,
    /// The rejected queue.
    Rejected,
}

/// How a publish ended: the label `outcome` of the publish counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Publish {
    /// The broker has it.
    Confirmed,
    /// The broker found no queue for it, and has not kept it.
    Returned,
    /// The broker could not keep it (`basic.nack`).
    Nacked,
    /// The broker closed the channel over it.
    Refused,
    /// No answer: connection lost, or the confirm took too long. The broker may or may not have it.
    Unknown,
}

/// How the intake let go of a delivery: the label `outcome` of its counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Settled {
    /// Acknowledged: it is safe elsewhere.
    Acked,
    /// Given back to the queue.
    Requeued,
    /// The channel died under it; the broker gives it out again.
    Lost,
}

/// Why a queue keeps its messages for a person: the label `kind` of the resting queues' depth.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resting {
    /// Its delay could not be understood.
    Rejected,
    /// No work queue wanted it.
    Unrouted,
    /// It failed in a work queue, and waits in `<bridge>.failed`.
    Failed,
    /// Its retries are used up.
    Dead,
}

/// All metrics of the process; clones are handles to the same ones.
#[derive(Clone)]
pub struct Metrics(Arc<Inner>);

/// The metrics of one bridge. Making one sets every series of the bridge to zero, so that a rate sees the first
/// event too. Keep it where messages pass: it holds its counters ready.
#[derive(Clone)]
pub struct BridgeMetrics(Arc<Bridge>);

/// The metrics of one connection.
#[derive(Clone)]
pub struct ConnectionMetrics {
    up: Gauge,
    blocked: Gauge,
    opened: Counter,
    lost: Counter,
}

/// Upper bounds of the lateness buckets in seconds. Dense where the promise lies (6 ms for tiers and store, 10 ms for
/// the ladder), then up to the hour that an outage may cost.
const LATENESS_BUCKETS: [f64; 18] =
    [0.001, 0.002, 0.004, 0.006, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 3600.0];

/// Writes each metric once: as a constant to register it by, and as a line of [`TABLE`].
macro_rules! definitions {
    ($($constant:ident: $kind:ident $name:literal [$($label:literal),*] $help:literal;)*) => {
        $(const $constant: Definition =
            Definition { name: $name, kind: Kind::$kind, labels: &[$($label),*], help: $help };)*
        /// Every metric that a scrape can show.
        pub const TABLE: &[Definition] = &[$($constant),*];
    };
}

definitions! {
    // The intake.
    TAKEN_IN: Counter "dwell_intake_deliveries_total" ["bridge"]
        "Deliveries that the intake took from the broker";
    SETTLED: Counter "dwell_intake_settled_total" ["bridge", "outcome"]
        "Deliveries that the intake let go of: acked, requeued, or lost with their channel; those taken less these are in hand";
    REDELIVERED: Counter "dwell_intake_redelivered_total" ["bridge"]
        "Deliveries marked redelivered, whose first copy may have been placed: suspected duplicates";
    PLACED: Counter "dwell_placed_total" ["bridge", "path"]
        "Messages that the daemon put where they wait or belong, confirmed there";
    REJECTED: Counter "dwell_rejected_total" ["bridge", "reason"]
        "Messages put into the rejected queue";
    CLAMPED: Counter "dwell_clamped_delays_total" ["bridge"]
        "Negative delays and instants in the past, taken as due at once";
    // Publishing.
    PUBLISH_BEGUN: Counter "dwell_publishes_begun_total" ["bridge"]
        "Publishes handed to a connection; these less those ended are awaiting their confirm";
    PUBLISHED: Counter "dwell_publishes_ended_total" ["bridge", "outcome"]
        "Publishes that ended: confirmed, returned, nacked, refused, or unknown";
    UNROUTABLE: Counter "dwell_unroutable_total" ["bridge"]
        "Due messages that no work queue wanted, put into the unrouted queue by the daemon; what the broker puts there by itself is in its depth only";
    RELEASED: Counter "dwell_released_total" ["bridge", "path"]
        "Due messages that the daemon published to the work exchange, confirmed";
    LATENESS: Histogram "dwell_release_lateness_seconds" ["bridge", "path"]
        "From the due time to the broker's confirm of the release";
    // The store.
    PARKED: Counter "dwell_store_parked_total" ["bridge"]
        "Messages that the store acknowledged with the durability asked for";
    PARK_FAILURES: Counter "dwell_store_park_failures_total" ["bridge"]
        "Messages that the store did not take; they stay with the broker";
    CLAIMS: Counter "dwell_store_claims_total" ["bridge"]
        "Messages claimed for release; these less those settled, given back and lapsed are in claim";
    CLAIMS_SETTLED: Counter "dwell_store_claims_settled_total" ["bridge"]
        "Claimed messages whose release was confirmed and whose record was removed";
    CLAIMS_GIVEN_BACK: Counter "dwell_store_claims_given_back_total" ["bridge"]
        "Claimed messages given back unpublished";
    CLAIMS_LAPSED: Counter "dwell_store_claims_lapsed_total" ["bridge"]
        "Lapsed claims that this daemon made due again, whoever held them";
    REPLACED: Counter "dwell_store_replaced_total" ["bridge"]
        "Messages that a later one of the same key replaced";
    CANCELLED: Counter "dwell_store_cancelled_total" ["bridge"]
        "Messages cancelled by a person or a program";
    PENDING: Gauge "dwell_store_pending" ["bridge"]
        "Messages waiting in the store, not claimed";
    CLAIMED: Gauge "dwell_store_claimed" ["bridge"]
        "Messages in claim by any daemon";
    NEXT_DUE: Gauge "dwell_store_next_due_timestamp_seconds" ["bridge"]
        "When the earliest waiting message falls due, as Unix time; absent while none waits";
    OVERDUE: Gauge "dwell_store_oldest_overdue_seconds" ["bridge"]
        "For how long the earliest message in the store has been due; 0 when none is";
    LAST_POLL: Gauge "dwell_store_last_poll_timestamp_seconds" ["bridge"]
        "When the pump last asked the store what is due and was answered, as Unix time";
    // Queues.
    RESTING: Gauge "dwell_resting_messages" ["kind", "queue"]
        "Messages in a rejected, unrouted or dead queue: each waits for a person";
    TIER_DEPTH: Gauge "dwell_tier_messages" ["bridge", "tier"]
        "Messages in a tier's buffer queue";
    // The process.
    UP: Gauge "dwell_connection_up" ["connection"]
        "1 while the connection to RabbitMQ or Redis is open";
    BLOCKED: Gauge "dwell_connection_blocked" ["connection"]
        "1 while the broker takes nothing from this connection (memory or disk alarm)";
    OPENED: Counter "dwell_connections_opened_total" ["connection"]
        "Times that the connection was opened";
    LOST: Counter "dwell_connections_lost_total" ["connection"]
        "Times that the connection was lost or given up";
    CLOCK_SKEW: Gauge "dwell_clock_skew_seconds" []
        "The clock of Redis less this machine's";
    DECLARED: Gauge "dwell_topology_declared" []
        "1 once every exchange, queue and binding of the topology is known to exist";
    BUILD: Gauge "dwell_build_info" ["version"]
        "Always 1; its label is the version that runs";
}

/// Pairs of label name and value.
type Labels = Vec<(&'static str, String)>;
type FloatGauge = Gauge<f64, AtomicU64>;

/// One metric with its series, one for each set of label values.
struct Series<M> {
    definition: &'static Definition,
    family: Family<Labels, M, fn() -> M>,
}

struct Inner {
    registry: Registry,
    taken_in: Series<Counter>,
    settled: Series<Counter>,
    redelivered: Series<Counter>,
    placed: Series<Counter>,
    rejected: Series<Counter>,
    clamped: Series<Counter>,
    publish_begun: Series<Counter>,
    published: Series<Counter>,
    unroutable: Series<Counter>,
    released: Series<Counter>,
    lateness: Series<Histogram>,
    parked: Series<Counter>,
    park_failures: Series<Counter>,
    claims: Series<Counter>,
    claims_settled: Series<Counter>,
    claims_given_back: Series<Counter>,
    claims_lapsed: Series<Counter>,
    replaced: Series<Counter>,
    cancelled: Series<Counter>,
    pending: Series<Gauge>,
    claimed: Series<Gauge>,
    next_due: Series<FloatGauge>,
    overdue: Series<FloatGauge>,
    last_poll: Series<FloatGauge>,
    resting: Series<Gauge>,
    tier_depth: Series<Gauge>,
    up: Series<Gauge>,
    blocked: Series<Gauge>,
    opened: Series<Counter>,
    lost: Series<Counter>,
    clock_skew: FloatGauge,
    declared: Gauge,
}

struct Bridge {
    name: String,
    /// For the series whose second label is not known beforehand.
    all: Metrics,
    taken_in: Counter,
    settled: [Counter; Settled::ALL.len()],
    redelivered: Counter,
    placed: [Counter; Path::ALL.len()],
    clamped: Counter,
    publish_begun: Counter,
    published: [Counter; Publish::ALL.len()],
    unroutable: Counter,
    released: [Counter; Path::RELEASING.len()],
    lateness: [Histogram; Path::RELEASING.len()],
    parked: Counter,
    park_failures: Counter,
    claims: Counter,
    claims_settled: Counter,
    claims_given_back: Counter,
    claims_lapsed: Counter,
    replaced: Counter,
    cancelled: Counter,
    pending: Gauge,
    claimed: Gauge,
    overdue: FloatGauge,
    last_poll: FloatGauge,
}

// === impl Metrics ===

impl Metrics {
    /// A set of its own, all at zero. The daemon makes one; tests make as many as they like.
    #[must_use]
    pub fn new() -> Metrics {
        let mut registry = Registry::default();
        let r = &mut registry;
        let (taken_in, settled) = (counters(r, &TAKEN_IN), counters(r, &SETTLED));
        let (redelivered, placed) = (counters(r, &REDELIVERED), counters(r, &PLACED));
        let (rejected, clamped) = (counters(r, &REJECTED), counters(r, &CLAMPED));
        let (publish_begun, published) = (counters(r, &PUBLISH_BEGUN), counters(r, &PUBLISHED));
        let (unroutable, released) = (counters(r, &UNROUTABLE), counters(r, &RELEASED));
        let lateness = series(r, &LATENESS, || Histogram::new(LATENESS_BUCKETS));
        let (parked, park_failures) = (counters(r, &PARKED), counters(r, &PARK_FAILURES));
        let (claims, claims_settled) = (counters(r, &CLAIMS), counters(r, &CLAIMS_SETTLED));
        let (claims_given_back, claims_lapsed) = (counters(r, &CLAIMS_GIVEN_BACK), counters(r, &CLAIMS_LAPSED));
        let (replaced, cancelled) = (counters(r, &REPLACED), counters(r, &CANCELLED));
        let (pending, claimed) = (gauges(r, &PENDING), gauges(r, &CLAIMED));
        let (next_due, overdue) = (gauges(r, &NEXT_DUE), gauges(r, &OVERDUE));
        let last_poll = gauges(r, &LAST_POLL);
        let (resting, tier_depth) = (gauges(r, &RESTING), gauges(r, &TIER_DEPTH));
        let (up, blocked) = (gauges(r, &UP), gauges(r, &BLOCKED));
        let (opened, lost) = (counters(r, &OPENED), counters(r, &LOST));
        let clock_skew = gauges(r, &CLOCK_SKEW).of(&[]);
        let declared = gauges(r, &DECLARED).of(&[]);
        gauges::<Gauge>(r, &BUILD).of(&[env!("CARGO_PKG_VERSION")]).set(1);
        Metrics(Arc::new(Inner {
            registry,
            taken_in,
            settled,
            redelivered,
            placed,
            rejected,
            clamped,
            publish_begun,
            published,
            unroutable,
            released,
            lateness,
            parked,
            park_failures,
            claims,
            claims_settled,
            claims_given_back,
            claims_lapsed,
            replaced,
            cancelled,
            pending,
            claimed,
            next_due,
            overdue,
            last_poll,
            resting,
            tier_depth,
            up,
            blocked,
            opened,
            lost,
            clock_skew,
            declared,
        }))
    }

    /// The metrics of one bridge, all of them shown from now on.
    #[must_use]
    pub fn bridge(&self, name: &str) -> BridgeMetrics {
        let all = &self.0;
        let one = |series: &Series<Counter>| series.of(&[name]);
        BridgeMetrics(Arc::new(Bridge {
            name: name.to_owned(),
            all: self.clone(),
            taken_in: one(&all.taken_in),
            settled: Settled::ALL.map(|outcome| all.settled.of(&[name, outcome.as_str()])),
            redelivered: one(&all.redelivered),
            placed: Path::ALL.map(|path| all.placed.of(&[name, path.as_str()])),
            clamped: one(&all.clamped),
            publish_begun: one(&all.publish_begun),
            published: Publish::ALL.map(|outcome| all.published.of(&[name, outcome.as_str()])),
            unroutable: one(&all.unroutable),
            released: Path::RELEASING.map(|path| all.released.of(&[name, path.as_str()])),
            lateness: Path::RELEASING.map(|path| all.lateness.of(&[name, path.as_str()])),
            parked: one(&all.parked),
            park_failures: one(&all.park_failures),
            claims: one(&all.claims),
            claims_settled: one(&all.claims_settled),
            claims_given_back: one(&all.claims_given_back),
            claims_lapsed: one(&all.claims_lapsed),
            replaced: one(&all.replaced),
            cancelled: one(&all.cancelled),
            pending: all.pending.of(&[name]),
            claimed: all.claimed.of(&[name]),
            overdue: all.overdue.of(&[name]),
            last_poll: all.last_poll.of(&[name]),
        }))
    }

    /// The metrics of one connection, by a name that does not change when it reconnects (`orders.intake`, `redis`).
    #[must_use]
    pub fn connection(&self, name: &str) -> ConnectionMetrics {
        ConnectionMetrics {
            up: self.0.up.of(&[name]),
            blocked: self.0.blocked.of(&[name]),
            opened: self.0.opened.of(&[name]),
            lost: self.0.lost.of(&[name]),
        }
    }

    /// A resting queue holds that many messages. `None`: it could not be asked, and the series is taken away rather
    /// than left at an old number.
    pub fn resting(&self, kind: Resting, queue: &str, messages: Option<u64>) {
        self.0.resting.set_or_remove(&[kind.as_str(), queue], messages.map(count));
    }

    /// The clock of Redis less this machine's, in milliseconds.
    #[expect(clippy::cast_precision_loss, reason = "a skew beyond 285,000 years may lose its last digit")]
    pub fn clock_skew(&self, millis: i64) {
        self.0.clock_skew.set(millis as f64 / 1e3);
    }

    /// Whether everything that the topology names is known to exist in the broker.
    pub fn topology_declared(&self, yes: bool) {
        self.0.declared.set(i64::from(yes));
    }

    /// All metrics in Prometheus' text form, of the type [`CONTENT_TYPE`].
    #[must_use]
    pub fn render(&self) -> String {
        let mut text = String::new();
        // Only the writer can fail, and a String does not.
        let _ = prometheus_text::encode(&mut text, &self.0.registry);
        text
    }
}

/// The media type of [`Metrics::render`].
pub const CONTENT_TYPE: &str = prometheus_text::CONTENT_TYPE;

impl Default for Metrics {
    fn default() -> Metrics {
        Metrics::new()
    }
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Metrics")
    }
}

// === impl BridgeMetrics ===

impl BridgeMetrics {
    /// The intake was handed a delivery; `redelivered` as the broker marked it.
    pub fn taken_in(&self, redelivered: bool) {
        self.0.taken_in.inc();
        if redelivered {
            self.0.redelivered.inc();
        }
    }

    /// The intake let go of that many deliveries.
    pub fn settled(&self, outcome: Settled, deliveries: u64) {
        self.0.settled[outcome as usize].inc_by(deliveries);
    }

    /// A message is safe where the decision sent it. A rejected one is said by [`BridgeMetrics::rejected`].
    pub fn placed(&self, path: Path) {
        self.0.placed[path as usize].inc();
    }

    /// A message is safe in the rejected queue; `reason` as in its `dwell-reason` header.
    pub fn rejected(&self, reason: &'static str) {
        self.placed(Path::Rejected);
        self.0.all.0.rejected.of(&[&self.0.name, reason]).inc();
    }

    /// A delay was below zero, or an instant past, and was taken as now (case B17).
    pub fn clamped(&self) {
        self.0.clamped.inc();
    }

    /// That many publishes were handed to the connection.
    pub fn publish_begun(&self, publishes: u64) {
        self.0.publish_begun.inc_by(publishes);
    }

    /// A publish ended.
    pub fn published(&self, outcome: Publish) {
        self.0.published[outcome as usize].inc();
    }

    /// A due message is safe in the unrouted queue, put there by the daemon.
    pub fn unroutable(&self) {
        self.0.unroutable.inc();
    }

    /// A due message came out of the work exchange that long after its due time. `path` is one that the daemon
    /// releases by: now or store.
    pub fn released(&self, path: Path, late: Millis) {
        let Some(index) = Path::RELEASING.iter().position(|releasing| *releasing == path) else {
            debug_assert!(false, "nothing is released by the path {}", path.as_str());
            return;
        };
        self.0.released[index].inc();
        self.0.lateness[index].observe(late.to_std().as_secs_f64());
    }

    /// The store acknowledged that many messages.
    pub fn parked(&self, messages: u64) {
        self.0.parked.inc_by(messages);
    }

    /// The store did not take that many messages.
    pub fn park_failed(&self, messages: u64) {
        self.0.park_failures.inc_by(messages);
    }

    /// That many messages were claimed.
    pub fn claimed(&self, messages: u64) {
        self.0.claims.inc_by(messages);
    }

    /// The records of that many claimed messages were removed, their release confirmed.
    pub fn claim_settled(&self, messages: u64) {
        self.0.claims_settled.inc_by(messages);
    }

    /// That many claimed messages were given back unpublished.
    pub fn claim_given_back(&self, messages: u64) {
        self.0.claims_given_back.inc_by(messages);
    }

    /// The reaper made that many messages of lapsed claims due again.
    pub fn claims_lapsed(&self, messages: u64) {
        self.0.claims_lapsed.inc_by(messages);
    }

    /// A later message of the same key took a waiting one's place.
    pub fn replaced(&self) {
        self.0.replaced.inc();
    }

    /// That many waiting messages were cancelled.
    pub fn cancelled(&self, messages: u64) {
        self.0.cancelled.inc_by(messages);
    }

    /// What the store holds now: messages waiting, and messages in claim by any daemon.
    pub fn store_depth(&self, pending: u64, claimed: u64) {
        self.0.pending.set(count(pending));
        self.0.claimed.set(count(claimed));
    }

    /// The store answered the pump at `now` (Unix milliseconds of the same clock as `next_due`, the earliest due time
    /// of what waits).
    pub fn polled(&self, now: i64, next_due: Option<i64>) {
        self.0.last_poll.set(unix_seconds(now));
        self.0.overdue.set(next_due.map_or(0.0, |due| unix_seconds(now.saturating_sub(due).max(0))));
        self.0.all.0.next_due.set_or_remove(&[&self.0.name], next_due.map(unix_seconds));
    }

    /// A tier's buffer queue holds that many messages; `None`: it could not be asked.
    pub fn tier_depth(&self, tier: Millis, messages: Option<u64>) {
        self.0.all.0.tier_depth.set_or_remove(&[&self.0.name, &tier.to_string()], messages.map(count));
    }
}

impl fmt::Debug for BridgeMetrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("BridgeMetrics").field(&self.0.name).finish()
    }
}

// === impl ConnectionMetrics ===

impl ConnectionMetrics {
    /// It is open. A new connection is not blocked until the broker says so.
    pub fn opened(&self) {
        self.opened.inc();
        self.up.set(1);
        self.blocked.set(0);
    }

    /// It was lost or given up.
    pub fn lost(&self) {
        self.lost.inc();
        self.up.set(0);
        self.blocked.set(0);
    }

    /// The broker takes nothing from it, or takes again.
    pub fn blocked(&self, yes: bool) {
        self.blocked.set(i64::from(yes));
    }
}

impl fmt::Debug for ConnectionMetrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ConnectionMetrics")
    }
}

// === impl Path, Publish, Settled, Resting, Kind ===

impl Path {
    /// In the order of their numbers.
    const ALL: [Path; 4] = [Path::Now, Path::Tier, Path::Store, Path::Rejected];
    /// Those by which the daemon itself brings a message to the work exchange.
    const RELEASING: [Path; 2] = [Path::Now, Path::Store];

    /// The label's value.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Path::Now => "now",
            Path::Tier => "tier",
            Path::Store => "store",
            Path::Rejected => "rejected",
        }
    }
}

impl Publish {
    const ALL: [Publish; 5] =
        [Publish::Confirmed, Publish::Returned, Publish::Nacked, Publish::Refused, Publish::Unknown];

    /// The label's value.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Publish::Confirmed => "confirmed",
            Publish::Returned => "returned",
            Publish::Nacked => "nacked",
            Publish::Refused => "refused",
            Publish::Unknown => "unknown",
        }
    }
}

impl Settled {
    const ALL: [Settled; 3] = [Settled::Acked, Settled::Requeued, Settled::Lost];

    /// The label's value.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Settled::Acked => "acked",
            Settled::Requeued => "requeued",
            Settled::Lost => "lost",
        }
    }
}

impl Resting {
    /// The label's value.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Resting::Rejected => "rejected",
            Resting::Unrouted => "unrouted",
            Resting::Failed => "failed",
            Resting::Dead => "dead",
        }
    }
}

impl Kind {
    /// As `# TYPE` lines say it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram => "histogram",
        }
    }
}

// === impl Series ===

impl<M: Clone> Series<M> {
    /// The series with these label values, made if it is new.
    fn of(&self, values: &[&str]) -> M {
        self.family.get_or_create_owned(&self.labels(values))
    }

    fn labels(&self, values: &[&str]) -> Labels {
        debug_assert_eq!(values.len(), self.definition.labels.len(), "labels of {}", self.definition.name);
        self.definition.labels.iter().copied().zip(values.iter().map(|value| (*value).to_owned())).collect()
    }
}

impl<N: Send, A: Default + prometheus_client::metrics::gauge::Atomic<N>> Series<Gauge<N, A>> {
    /// Sets the series, or takes it away: an absent series is honest where an old number is not.
    fn set_or_remove(&self, values: &[&str], value: Option<N>) {
        match value {
            Some(value) => {
                self.of(values).set(value);
            }
            None => {
                self.family.remove(&self.labels(values));
            }
        }
    }
}

// === Helpers ===

fn counters(registry: &mut Registry, definition: &'static Definition) -> Series<Counter> {
    series(registry, definition, Counter::default)
}

fn gauges<M>(registry: &mut Registry, definition: &'static Definition) -> Series<M>
where
    M: Clone + Default,
    Family<Labels, M, fn() -> M>: Metric,
{
    series(registry, definition, M::default)
}

fn series<M>(registry: &mut Registry, definition: &'static Definition, new: fn() -> M) -> Series<M>
where
    M: Clone,
    Family<Labels, M, fn() -> M>: Metric,
{
    let family = Family::new_with_constructor(new);
    // The exposition adds `_total` to a counter's name by itself.
    let name = definition.name.strip_suffix("_total").unwrap_or(definition.name);
    registry.register(name, definition.help, family.clone());
    Series { definition, family }
}

/// A gauge's integers are signed.
fn count(n: u64) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}

/// Prometheus counts time in seconds.
#[expect(clippy::cast_precision_loss, reason = "milliseconds since 1970 are exact in a float for 285,000 years")]
fn unix_seconds(millis: i64) -> f64 {
    millis as f64 / 1e3
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The samples of one series, as the scrape shows them.
    fn value(metrics: &Metrics, series: &str) -> Option<String> {
        metrics.render().lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' ').map(str::to_owned))
    }

    /// Every series of every metric, once.
    fn everything() -> Metrics {
        let metrics = Metrics::new();
        let bridge = metrics.bridge("orders");
        bridge.rejected("invalid-delay");
        bridge.polled(1_000, Some(500));
        bridge.tier_depth(Millis::seconds(30), Some(1));
        metrics.resting(Resting::Dead, "orders.close.dead", Some(1));
        metrics.connection("orders.intake").opened();
        metrics
    }

    #[test]
    fn the_scrape_shows_what_the_table_says() {
        let text = everything().render();
        let mut lines = text.lines();
        for definition in TABLE {
            let name = definition.name;
            assert_eq!(lines.next(), Some(format!("# HELP {name} {}.", definition.help).as_str()));
            assert_eq!(lines.next(), Some(format!("# TYPE {name} {}", definition.kind.as_str()).as_str()));
            let mut samples = lines.clone().take_while(|line| !line.starts_with('#')).peekable();
            assert!(samples.peek().is_some(), "{name} has no sample");
            for sample in samples {
                let (series, _) = sample.split_once(' ').expect("name and value");
                let (series_name, labels) = series.split_once('{').unwrap_or((series, ""));
                assert!(series_name.starts_with(name), "{sample}");
                let shown: Vec<&str> = labels
                    .trim_end_matches('}')
                    .split(',')
                    .filter_map(|pair| pair.split_once('=').map(|(label, _)| label))
                    .filter(|label| *label != "le")
                    .collect();
                assert_eq!(shown, definition.labels, "{sample}");
                lines.next();
            }
        }
        assert_eq!(lines.next(), None);
    }

    #[test]
    fn names_follow_the_conventions() {
        for Definition { name, kind, help, .. } in TABLE {
            assert!(name.starts_with("dwell_"), "{name}");
            assert_eq!(name.ends_with("_total"), *kind == Kind::Counter, "{name}");
            assert!(!name.contains("millis") && !name.contains("_ms"), "{name} is in base units");
            assert!(!help.ends_with('.'), "{name}: the exposition adds the full stop");
        }
        let mut names: Vec<&str> = TABLE.iter().map(|definition| definition.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), TABLE.len());
    }

    #[test]
    fn a_bridge_is_shown_at_zero_before_its_first_message() {
        let metrics = Metrics::new();
        let _bridge = metrics.bridge("orders");
        for series in [
            r#"dwell_placed_total{bridge="orders",path="store"}"#,
            r#"dwell_publishes_ended_total{bridge="orders",outcome="unknown"}"#,
            r#"dwell_release_lateness_seconds_count{bridge="orders",path="store"}"#,
        ] {
            assert_eq!(value(&metrics, series).as_deref(), Some("0"), "{series}");
        }
    }

    #[test]
    fn each_event_moves_its_own_series_only() {
        let metrics = Metrics::new();
        let bridge = metrics.bridge("orders");
        let other = metrics.bridge("mail");
        let before = metrics.render();
        for (path, series) in Path::ALL.into_iter().zip(["now", "tier", "store", "rejected"]) {
            bridge.placed(path);
            let series = format!(r#"dwell_placed_total{{bridge="orders",path="{series}"}}"#);
            assert_eq!(value(&metrics, &series).as_deref(), Some("1"), "{series}");
        }
        for (outcome, name) in Publish::ALL.into_iter().zip(["confirmed", "returned", "nacked", "refused", "unknown"]) {
            bridge.published(outcome);
            let series = format!(r#"dwell_publishes_ended_total{{bridge="orders",outcome="{name}"}}"#);
            assert_eq!(value(&metrics, &series).as_deref(), Some("1"), "{series}");
        }
        let after = metrics.render();
        let moved = before.lines().zip(after.lines()).filter(|(old, new)| old != new).count();
        assert_eq!(moved, 9);
        drop(other);
    }

    #[test]
    fn handles_of_the_same_bridge_count_together() {
        let metrics = Metrics::new();
        metrics.bridge("orders").taken_in(false);
        metrics.bridge("orders").taken_in(true);
        assert_eq!(value(&metrics, r#"dwell_intake_deliveries_total{bridge="orders"}"#).as_deref(), Some("2"));
        assert_eq!(value(&metrics, r#"dwell_intake_redelivered_total{bridge="orders"}"#).as_deref(), Some("1"));
    }

    #[test]
    fn lateness_falls_into_its_bucket_in_seconds() {
        let metrics = Metrics::new();
        metrics.bridge("orders").released(Path::Store, Millis(5));
        let bucket =
            |le: &str| format!(r#"dwell_release_lateness_seconds_bucket{{bridge="orders",path="store",le="{le}"}}"#);
        assert_eq!(value(&metrics, &bucket("0.004")).as_deref(), Some("0"));
        assert_eq!(value(&metrics, &bucket("0.006")).as_deref(), Some("1"));
        assert_eq!(
            value(&metrics, r#"dwell_release_lateness_seconds_sum{bridge="orders",path="store"}"#).as_deref(),
            Some("0.005")
        );
    }

    #[test]
    fn what_is_not_known_is_absent_rather_than_old() {
        let metrics = Metrics::new();
        let bridge = metrics.bridge("orders");
        let (next, overdue) = (
            r#"dwell_store_next_due_timestamp_seconds{bridge="orders"}"#,
            r#"dwell_store_oldest_overdue_seconds{bridge="orders"}"#,
        );
        bridge.polled(10_000, Some(8_500));
        assert_eq!((value(&metrics, next).as_deref(), value(&metrics, overdue).as_deref()), (Some("8.5"), Some("1.5")));
        bridge.polled(11_000, None);
        assert_eq!((value(&metrics, next), value(&metrics, overdue).as_deref()), (None, Some("0.0")));

        metrics.resting(Resting::Rejected, "dwell.rejected", Some(3));
        let depth = r#"dwell_resting_messages{kind="rejected",queue="dwell.rejected"}"#;
        assert_eq!(value(&metrics, depth).as_deref(), Some("3"));
        metrics.resting(Resting::Rejected, "dwell.rejected", None);
        assert_eq!(value(&metrics, depth), None);
    }

    #[test]
    fn a_lost_connection_is_not_blocked_any_more() {
        let metrics = Metrics::new();
        let connection = metrics.connection("orders.publish");
        let state = || {
            ["up", "blocked"].map(|gauge| {
                value(&metrics, &format!(r#"dwell_connection_{gauge}{{connection="orders.publish"}}"#)).expect("shown")
            })
        };
        assert_eq!(state(), ["0", "0"]);
        connection.opened();
        connection.blocked(true);
        assert_eq!(state(), ["1", "1"]);
        connection.lost();
        assert_eq!(state(), ["0", "0"]);
    }
}
