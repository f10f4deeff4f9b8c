//! Counters, histograms and health of the controller; every Canary as it changes. Below the controller: it is
//! given to one and outlives it. Nothing here decides anything.

mod api_requests;
mod counters;
mod health;
mod live_canaries;
pub mod timeline;
mod traces;

use std::{
    collections::HashMap,
    sync::{Arc, OnceLock},
    time::Duration,
};

use parking_lot::Mutex;

pub use api_requests::is_watch;
pub use health::{ControllerView, Health};
pub use live_canaries::{Change, LiveCanaries};
pub use traces::Traces;

use crate::{
    analysis::measurement::Measurement,
    api::{
        Canary,
        canary::status::{Outcome, PastRelease},
    },
    controller::{CachedCanary, NamespacedName},
    engine::{action::Purpose, observed::GateReply},
    notify,
};
pub use counters::{CounterVec, DurationHistogram, DurationHistogramVec, LabelValues, label_value};

/// Label values of `outcome`.
pub const OUTCOMES: [Outcome; 4] =
    [Outcome::Promoted, Outcome::RolledBack, Outcome::Aborted, Outcome::Superseded];

/// Seconds of a reconcile: a millisecond to half a minute.
const RECONCILE_BUCKETS: [f64; 11] = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1.0, 5.0, 30.0];
/// Seconds of a release: a minute to two days.
const RELEASE_BUCKETS: [f64; 10] =
    [60.0, 300.0, 600.0, 1800.0, 3600.0, 7200.0, 14400.0, 28800.0, 86400.0, 172800.0];
/// Seconds of a check: the defaults of Prometheus' libraries.
const CHECK_BUCKETS: [f64; 11] = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];

pub struct Telemetry {
    /// By result: ok, failed or panicked.
    pub reconciles: CounterVec<1>,
    pub reconcile_seconds: DurationHistogramVec<0>,
    /// By outcome.
    pub release_seconds: DurationHistogramVec<1>,
    /// By verb and result.
    pub requests: CounterVec<2>,
    /// By source and result.
    pub queries: CounterVec<2>,
    /// By type and result.
    pub gate_calls: CounterVec<2>,
    /// Watches that broke and were restarted.
    pub watch_restarts: CounterVec<0>,
    /// Failed attempts of reconciles, by purpose.
    pub failures: CounterVec<1>,
    /// Background tasks that were not run because too many waited, by kind.
    pub dropped_tasks: CounterVec<1>,
    pub notifications: Arc<notify::DeliveryCounters>,
    pub health: Health,
    /// Empty without a collector.
    pub traces: OnceLock<Traces>,
    /// Every Canary as it changes, those of other replicas included.
    pub live: Arc<LiveCanaries>,
    canaries: Mutex<HashMap<NamespacedName, CanaryCounters>>,
}

/// Counters of one Canary.
#[derive(Clone, Debug)]
pub struct CanaryCounters {
    pub releases: Vec<(ReleaseLabels, u64)>,
    /// Duration of the measurements of each check.
    pub check_seconds: DurationHistogram,
}

/// How a release ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReleaseLabels {
    pub outcome: Outcome,
    pub strategy: &'static str,
    /// Promoted without being judged.
    pub skipped: bool,
}

impl Default for Telemetry {
    fn default() -> Self {
        let results = ["ok", "failed", "panicked"].map(|result| [result.into()]);
        Self {
            reconciles: CounterVec::with_labels(results),
            reconcile_seconds: DurationHistogramVec::with_buckets(&RECONCILE_BUCKETS, [[]]),
            release_seconds: DurationHistogramVec::with_buckets(
                &RELEASE_BUCKETS,
                OUTCOMES.map(|end| [label_value(&end)]),
            ),
            requests: CounterVec::with_labels([]),
            queries: CounterVec::with_labels([]),
            gate_calls: CounterVec::with_labels([]),
            watch_restarts: CounterVec::with_labels([[]]),
            failures: CounterVec::with_labels(
                [Purpose::Protect, Purpose::Advance, Purpose::Maintain]
                    .map(|purpose| [purpose.name().into()]),
            ),
            dropped_tasks: CounterVec::with_labels(
                ["gate_call", "measurement", "event_hook", "alert"].map(|kind| [kind.into()]),
            ),
            notifications: Arc::default(),
            health: Health::default(),
            traces: OnceLock::new(),
            live: Arc::default(),
            canaries: Mutex::default(),
        }
    }
}

impl Default for CanaryCounters {
    fn default() -> Self {
        Self { releases: Vec::new(), check_seconds: DurationHistogram::with_buckets(&CHECK_BUCKETS) }
    }
}

impl CanaryCounters {
    pub fn count_releases(&self, is_meant: impl Fn(&ReleaseLabels) -> bool) -> u64 {
        self.releases.iter().filter(|(end, _)| is_meant(end)).map(|(_, count)| count).sum()
    }
}

impl ReleaseLabels {
    /// The labels of a release of this Canary with this outcome.
    pub fn of(canary: &Canary, outcome: Outcome) -> Self {
        let analysis = &canary.spec.analysis;
        let strategy = match (analysis.iterations.is_some_and(|count| count > 0), analysis.match_.is_empty())
        {
            (true, false) => "ab-testing",
            (true, true) => "blue-green",
            (false, _) => "canary",
        };
        Self { outcome, strategy, skipped: outcome == Outcome::Promoted && canary.spec.skip_analysis }
    }
}

/// For the server.
impl Telemetry {
    /// Canaries that this replica reconciles, with their counters.
    pub fn canaries(&self) -> Vec<(Arc<CachedCanary>, CanaryCounters)> {
        let Some(controller) = self.health.controller() else { return Vec::new() };
        let canaries = controller.canaries();
        let counters = self.canaries.lock();
        let with_counters = |(name, canary)| (canary, counters.get(&name).cloned().unwrap_or_default());
        canaries.into_iter().map(with_counters).collect()
    }

    /// Shards that this replica holds.
    pub fn held_shards(&self) -> usize {
        self.health.controller().map_or(0, |controller| controller.held_shards())
    }
}

/// For the controller.
impl Telemetry {
    pub fn observe_reconcile(&self, result: &'static str, took: Duration) {
        self.reconciles.inc([result.into()]);
        self.reconcile_seconds.observe([], took.as_secs_f64());
        self.health.reconcile_finished();
    }

    pub fn observe_failure(&self, purpose: Purpose) {
        self.failures.inc([purpose.name().into()]);
    }

    /// Counts the releases that a decision added to the history.
    pub fn observe_releases(&self, canary: &Canary, before: &[PastRelease], after: &[PastRelease]) {
        for past in after.iter().take_while(|past| Some(*past) != before.first()) {
            let took = past.finished_at.0.duration_since(past.started_at.0);
            self.release_seconds.observe([label_value(&past.outcome)], took.as_secs_f64().max(0.0));
            let end = ReleaseLabels::of(canary, past.outcome);
            let mut canaries = self.canaries.lock();
            let ends = &mut canaries.entry(NamespacedName::of(canary)).or_default().releases;
            match ends.iter_mut().find(|(known, _)| *known == end) {
                Some((_, count)) => *count += 1,
                None => ends.push((end, 1)),
            }
        }
    }

    pub fn observe_check(&self, canary: &NamespacedName, took: Duration) {
        let mut canaries = self.canaries.lock();
        canaries.entry(canary.clone()).or_default().check_seconds.observe(took.as_secs_f64());
    }

    pub fn observe_query(&self, source: &impl serde::Serialize, measured: &Measurement) {
        let result = match measured {
            Measurement::NoData => "no_data",
            Measurement::Unavailable { .. } => "unavailable",
            _ => "ok",
        };
        self.queries.inc([label_value(source), result.into()]);
    }

    pub fn observe_gate_call(&self, kind: &impl serde::Serialize, reply: &GateReply) {
        let result = match reply {
            GateReply::Yes { .. } => "yes",
            GateReply::No { .. } => "no",
            GateReply::Unreachable { .. } => "unreachable",
        };
        self.gate_calls.inc([label_value(kind), result.into()]);
    }

    pub fn forget(&self, canary: &NamespacedName) {
        self.canaries.lock().remove(canary);
    }
}
