//! How the controller is doing: what it counts as it works, and whether it
//! works at all. Nothing here costs anything while nothing happens and nobody
//! asks; nothing here decides anything.
//!
//! It outlives the controller it is given to.

mod api_requests;
mod counters;

use std::{
    collections::HashMap,
    sync::{
        Arc, Weak,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use tokio::{
    sync::watch,
    time::{Instant, timeout},
};

pub use api_requests::is_watch;

use super::{CachedCanary, Context, NamespacedName, fence::ShardOwnership};
use crate::{
    analysis::measurement::Measurement,
    api::{
        Canary,
        canary::status::{Outcome, PastRelease},
    },
    engine::observed::GateReply,
    notify,
};
pub use counters::{CounterVec, DurationHistogram, DurationHistogramVec, LabelValues, label_value};

/// How long the loop may take to notice that it was asked.
const HEARTBEAT_TIMEOUT: Duration = Duration::from_secs(3);

/// Every request has a timeout, of five minutes at most; when Canaries wait and
/// none was finished for so long, none will be.
const STUCK_AFTER: Duration = Duration::from_secs(900);

pub const OUTCOMES: [Outcome; 4] =
    [Outcome::Promoted, Outcome::RolledBack, Outcome::Aborted, Outcome::Superseded];

/// Of work on one Canary, from a millisecond to half a minute.
const RECONCILE_BUCKETS: [f64; 11] = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1.0, 5.0, 30.0];
/// Of a release, from a minute to two days.
const RELEASE_BUCKETS: [f64; 10] =
    [60.0, 300.0, 600.0, 1800.0, 3600.0, 7200.0, 14400.0, 28800.0, 86400.0, 172800.0];
/// Of a check, as Prometheus' own libraries choose them.
const CHECK_BUCKETS: [f64; 11] = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];

#[derive(Debug)]
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
    /// Watches that broke and were begun again.
    pub watch_restarts: CounterVec<0>,
    pub notifications: Arc<notify::DeliveryCounters>,
    queued: AtomicUsize,
    processing: AtomicUsize,
    canaries: Mutex<HashMap<NamespacedName, CanaryCounters>>,
    /// Why Canaries could not be asked for, the last time they were.
    canary_watch_error: Mutex<Option<String>>,
    /// When work on any Canary last came to an end.
    last_finished: Mutex<Instant>,
    heartbeat_requested: watch::Sender<u64>,
    heartbeat_answered: watch::Sender<u64>,
    lifecycle: Mutex<Lifecycle>,
}

/// What was counted for one Canary.
#[derive(Clone, Debug)]
pub struct CanaryCounters {
    pub releases: Vec<(ReleaseLabels, u64)>,
    /// How long measuring took, check by check.
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

#[derive(Debug)]
enum Lifecycle {
    Starting,
    Running(Weak<Context>),
    /// What is under way comes to its end.
    Stopping,
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
            notifications: Arc::default(),
            queued: AtomicUsize::new(0),
            processing: AtomicUsize::new(0),
            canaries: Mutex::default(),
            canary_watch_error: Mutex::default(),
            last_finished: Mutex::new(Instant::now()),
            heartbeat_requested: watch::Sender::new(0),
            heartbeat_answered: watch::Sender::new(0),
            lifecycle: Mutex::new(Lifecycle::Starting),
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
    /// How a release of this Canary is called when it ends so.
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

/// For whoever shows it.
impl Telemetry {
    /// Canaries that this replica works on, and what was counted for each. One
    /// that cannot be read has no numbers.
    pub fn canaries(&self) -> Vec<(Arc<CachedCanary>, CanaryCounters)> {
        let Some(ctx) = self.context() else { return Vec::new() };
        let named = |canary: Arc<CachedCanary>| {
            let name = NamespacedName::of(&*canary);
            ctx.fence.check(&name).is_ok().then_some((name, canary))
        };
        let canaries: Vec<_> = ctx.caches.canaries.list_all().into_iter().filter_map(named).collect();
        let tallies = self.canaries.lock();
        let with_tally = |(name, canary)| (canary, tallies.get(&name).cloned().unwrap_or_default());
        canaries.into_iter().map(with_tally).collect()
    }

    /// Shards of the Canaries that this replica holds; alone it holds the one
    /// there is.
    pub fn held_shards(&self) -> usize {
        let holds = self.context().map(|ctx| ctx.fence.clone().owned_shards());
        holds.unwrap_or_default().into_iter().filter(|hold| *hold != ShardOwnership::NotHeld).count()
    }

    /// Canaries that wait for their turn.
    pub fn queued(&self) -> usize {
        self.queued.load(Ordering::Relaxed)
    }

    /// Canaries that are worked on.
    pub fn processing(&self) -> usize {
        self.processing.load(Ordering::Relaxed)
    }

    /// Does the loop still turn? Asks it, and so knows about now.
    pub async fn liveness(&self) -> Result<(), String> {
        if self.context().is_none() {
            return Ok(());
        }
        let mut asked = 0;
        self.heartbeat_requested.send_modify(|count| {
            *count += 1;
            asked = *count;
        });
        let mut answered = self.heartbeat_answered.subscribe();
        let answer = timeout(HEARTBEAT_TIMEOUT, answered.wait_for(|answered| *answered >= asked)).await;
        if answer.is_err() && self.context().is_some() {
            return Err(format!("the controller's loop did not answer within {HEARTBEAT_TIMEOUT:?}"));
        }
        let (waiting, since) = (self.queued(), self.last_finished.lock().elapsed());
        if waiting > 0 && since > STUCK_AFTER {
            let running = self.processing();
            return Err(format!(
                "{waiting} Canaries wait and work on {running} has not ended for {} s",
                since.as_secs()
            ));
        }
        Ok(())
    }

    /// Can it do its work? Else what is missing, a line each.
    pub fn readiness(&self) -> Result<(), Vec<String>> {
        let mut missing = Vec::new();
        match &*self.lifecycle.lock() {
            Lifecycle::Starting => missing.push("the controller has not begun yet".to_owned()),
            Lifecycle::Stopping => missing.push("the controller ends".to_owned()),
            Lifecycle::Running(ctx) => match ctx.upgrade() {
                None => missing.push("the controller has ended".to_owned()),
                Some(ctx) => missing.extend(ctx.caches.pending_syncs()),
            },
        }
        if let Some(why) = &*self.canary_watch_error.lock() {
            missing.push(format!("the API server does not answer: {why}"));
        }
        if missing.is_empty() { Ok(()) } else { Err(missing) }
    }

    fn context(&self) -> Option<Arc<Context>> {
        match &*self.lifecycle.lock() {
            Lifecycle::Running(ctx) => ctx.upgrade(),
            Lifecycle::Starting | Lifecycle::Stopping => None,
        }
    }
}

/// For the controller.
impl Telemetry {
    /// It works; hands out what the loop has to answer with [`Self::answer`].
    pub(super) fn started(&self, ctx: &Arc<Context>) -> watch::Receiver<u64> {
        *self.lifecycle.lock() = Lifecycle::Running(Arc::downgrade(ctx));
        *self.last_finished.lock() = Instant::now();
        let mut asked = self.heartbeat_requested.subscribe();
        // Whoever asked before means this loop too.
        asked.mark_changed();
        asked
    }

    pub(super) fn stopping(&self) {
        *self.lifecycle.lock() = Lifecycle::Stopping;
    }

    pub(super) fn heartbeat(&self, asked: u64) {
        self.heartbeat_answered.send_replace(asked);
    }

    pub(super) fn set_queue_depth(&self, queued: usize, processing: usize) {
        self.queued.store(queued, Ordering::Relaxed);
        self.processing.store(processing, Ordering::Relaxed);
    }

    pub(super) fn observe_reconcile(&self, result: &'static str, took: Duration) {
        self.reconciles.inc([result.into()]);
        self.reconcile_seconds.observe([], took.as_secs_f64());
        *self.last_finished.lock() = Instant::now();
    }

    /// Counts the releases that history has after a decision and had not before.
    pub(super) fn observe_releases(&self, canary: &Canary, before: &[PastRelease], after: &[PastRelease]) {
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

    pub(super) fn observe_check(&self, canary: &NamespacedName, took: Duration) {
        let mut canaries = self.canaries.lock();
        canaries.entry(canary.clone()).or_default().check_seconds.observe(took.as_secs_f64());
    }

    pub(super) fn observe_query(&self, source: &impl serde::Serialize, measured: &Measurement) {
        let result = match measured {
            Measurement::NoData => "no_data",
            Measurement::Unavailable { .. } => "unavailable",
            _ => "ok",
        };
        self.queries.inc([label_value(source), result.into()]);
    }

    pub(super) fn observe_gate_call(&self, kind: &impl serde::Serialize, reply: &GateReply) {
        let result = match reply {
            GateReply::Yes { .. } => "yes",
            GateReply::No { .. } => "no",
            GateReply::Unreachable { .. } => "unreachable",
        };
        self.gate_calls.inc([label_value(kind), result.into()]);
    }

    pub(super) fn forget(&self, canary: &NamespacedName) {
        self.canaries.lock().remove(canary);
    }
}
