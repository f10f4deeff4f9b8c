//! Serin's own series. Those of a Canary are computed from the cache at each
//! scrape: a deleted Canary has none, and a change costs nothing.

use std::{borrow::Cow, collections::BTreeMap};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt as _;

use super::exposition::{Exposition, Kind};
use crate::{
    api::{
        Canary, CanaryStatus,
        canary::Phase,
        condition::{ConditionStatus, READY},
    },
    controller::{CachedCanary, HasMeta as _},
    telemetry::{CanaryCounters, CounterVec, DurationHistogramVec, OUTCOMES, Telemetry, label_value},
};

const PHASES: [Phase; 11] = [
    Phase::Initializing,
    Phase::Initialized,
    Phase::Waiting,
    Phase::Progressing,
    Phase::WaitingPromotion,
    Phase::Promoting,
    Phase::Finalising,
    Phase::Succeeded,
    Phase::Failed,
    Phase::Terminating,
    Phase::Terminated,
];

/// A Canary and its counters, as input of series.
pub struct CanarySeries<'a> {
    pub canary: &'a Canary,
    pub status: Cow<'a, CanaryStatus>,
    pub name: String,
    pub namespace: String,
    pub counters: &'a CanaryCounters,
}

impl<'a> CanarySeries<'a> {
    /// None if the Canary cannot be decoded: it is only counted.
    pub fn from_cached(canary: &'a CachedCanary, counters: &'a CanaryCounters) -> Option<Self> {
        let canary = canary.canary()?;
        let status = canary.status.as_ref().map_or_else(Cow::default, Cow::Borrowed);
        let (name, namespace) = (canary.name_any(), canary.namespace().unwrap_or_default());
        Some(Self { canary, status, name, namespace, counters })
    }

    fn labels(&self) -> [(&str, &str); 2] {
        [("namespace", &self.namespace), ("name", &self.name)]
    }

    fn labels_with<'l>(&'l self, name: &'l str, value: &'l str) -> [(&'l str, &'l str); 3] {
        let [namespace, canary] = self.labels();
        [namespace, canary, (name, value)]
    }
}

pub fn count_by_namespace<'a>(
    canaries: impl IntoIterator<Item = &'a CachedCanary>,
) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for canary in canaries {
        *counts.entry(canary.metadata().namespace.clone().unwrap_or_default()).or_default() += 1;
    }
    counts
}

pub fn write_canaries(
    text: &mut Exposition,
    counts: &BTreeMap<String, usize>,
    canaries: &[CanarySeries<'_>],
) {
    let mut family = text.family("serin_canaries", Kind::Gauge, "Canaries of this replica.");
    for (namespace, count) in counts {
        family.put(&[("namespace", namespace)], *count as f64);
    }
    let phases = PHASES.map(|phase| (phase, label_value(&phase)));
    let mut family = text.family("serin_canary_phase", Kind::Gauge, "1 for the current phase of a Canary.");
    for shown in canaries {
        for (phase, label) in &phases {
            family.put(&shown.labels_with("phase", label), as_gauge(shown.status.phase == *phase));
        }
    }
    let mut gauge = |name: &str, help: &str, value: &dyn Fn(&CanarySeries<'_>) -> Option<f64>| {
        let mut family = text.family(name, Kind::Gauge, help);
        for shown in canaries {
            if let Some(value) = value(shown) {
                family.put(&shown.labels(), value);
            }
        }
    };
    gauge("serin_canary_weight_ratio", "The canary's share of the traffic, 0 to 1.", &|shown| {
        Some(f64::from(shown.status.canary_weight.hundredths()) / 10_000.0)
    });
    gauge("serin_canary_step", "The current step, from 1; 0 without a release.", &|shown| {
        Some(shown.status.step.as_ref().map_or(0.0, |step| f64::from(step.index) + 1.0))
    });
    gauge("serin_canary_steps", "Steps of the current release; 0 without one.", &|shown| {
        Some(shown.status.step.as_ref().map_or(0.0, |step| f64::from(step.total)))
    });
    gauge("serin_canary_failed_checks", "Failed checks of the release.", &|shown| {
        Some(f64::from(shown.status.failed_checks))
    });
    gauge("serin_canary_ready", "1 if the condition Ready is true.", &|shown| {
        Some(as_gauge(is_ready(&shown.status)))
    });
    gauge("serin_canary_suspended", "1 if spec.suspend is set.", &|shown| {
        Some(as_gauge(shown.canary.spec.suspend))
    });
    gauge(
        "serin_canary_last_transition_timestamp_seconds",
        "When the phase last changed, in seconds since 1970.",
        &|shown| shown.status.last_transition_time.as_ref().map(unix_seconds),
    );
    write_measurements(text, canaries);
    write_releases(text, canaries);
}

fn write_measurements(text: &mut Exposition, canaries: &[CanarySeries<'_>]) {
    let help = "Last measured value of a metric, in its own unit, by arm.";
    let mut family = text.family("serin_canary_metric", Kind::Gauge, help);
    for shown in canaries {
        for metric in &shown.status.metrics {
            for (arm, value) in [("canary", metric.canary), ("primary", metric.primary)] {
                if let Some(value) = value {
                    let [namespace, name] = shown.labels();
                    family.put(&[namespace, name, ("metric", &metric.name), ("arm", arm)], value);
                }
            }
        }
    }
}

/// Counted by this process: `status.history` has only the last ten. Every
/// outcome has a series from the start, so that the first one is an increase.
fn write_releases(text: &mut Exposition, canaries: &[CanarySeries<'_>]) {
    let outcomes = OUTCOMES.map(|outcome| (outcome, label_value(&outcome)));
    let help = "Releases that ended in this process.";
    let mut family = text.family("serin_releases", Kind::Counter, help);
    for shown in canaries {
        for (outcome, label) in &outcomes {
            let count = shown.counters.count_releases(|labels| labels.outcome == *outcome);
            family.put(&shown.labels_with("outcome", label), count as f64);
        }
    }
}

pub fn write_process(text: &mut Exposition, telemetry: &Telemetry) {
    text.family("serin", Kind::Info, "The version of Serin.")
        .put(&[("version", env!("CARGO_PKG_VERSION"))], 1.0);
    let help = "Seconds from the start of a release to its end.";
    write_histograms(text, "serin_release_duration_seconds", help, ["outcome"], &telemetry.release_seconds);
    write_counters(text, "serin_reconciles", "Finished reconciles.", ["result"], &telemetry.reconciles);
    let help = "Seconds of a reconcile.";
    write_histograms(text, "serin_reconcile_duration_seconds", help, [], &telemetry.reconcile_seconds);
    text.family("serin_reconciles_running", Kind::Gauge, "Reconciles in progress.")
        .put(&[], telemetry.health.processing() as f64);
    text.family("serin_queue_length", Kind::Gauge, "Canaries in the work queue.")
        .put(&[], telemetry.health.queued() as f64);
    text.family("serin_shards_held", Kind::Gauge, "Shards that this replica holds.")
        .put(&[], telemetry.held_shards() as f64);
    let help = "Watches that failed and were restarted.";
    write_counters(text, "serin_watch_restarts", help, [], &telemetry.watch_restarts);
    let help = "Failed attempts of reconciles, by purpose.";
    write_counters(text, "serin_failures", help, ["purpose"], &telemetry.failures);
    let help = "Requests to the API server, by RBAC verb.";
    write_counters(text, "serin_api_requests", help, ["verb", "result"], &telemetry.requests);
    let help = "Queries to metric sources.";
    write_counters(text, "serin_metric_queries", help, ["source", "result"], &telemetry.queries);
    write_counters(text, "serin_gate_calls", "Webhook calls.", ["type", "result"], &telemetry.gate_calls);
    let help = "Background tasks not run, since too many of their Canary waited.";
    write_counters(text, "serin_dropped_tasks", help, ["kind"], &telemetry.dropped_tasks);
    let help = "Notifications, by result.";
    let mut family = text.family("serin_notifications", Kind::Counter, help);
    for (result, count) in telemetry.notifications.snapshot() {
        family.put(&[("result", result)], count as f64);
    }
}

fn write_counters<const N: usize>(
    text: &mut Exposition,
    name: &str,
    help: &str,
    names: [&str; N],
    counts: &CounterVec<N>,
) {
    let mut family = text.family(name, Kind::Counter, help);
    for (values, count) in counts.snapshot() {
        family.put(&labels(&names, &values), count as f64);
    }
}

fn write_histograms<const N: usize>(
    text: &mut Exposition,
    name: &str,
    help: &str,
    names: [&str; N],
    histograms: &DurationHistogramVec<N>,
) {
    let mut family = text.family(name, Kind::Histogram, help);
    for (values, histogram) in histograms.snapshot() {
        family.put_histogram(&labels(&names, &values), &histogram);
    }
}

fn labels<'a, const N: usize>(
    names: &[&'a str; N],
    values: &'a [Cow<'static, str>; N],
) -> [(&'a str, &'a str); N] {
    std::array::from_fn(|at| (names[at], &*values[at]))
}

fn is_ready(status: &CanaryStatus) -> bool {
    let mut conditions = status.conditions.iter();
    conditions.any(|condition| condition.type_ == READY && condition.status == ConditionStatus::True)
}

fn unix_seconds(at: &Time) -> f64 {
    at.0.as_second() as f64
}

fn as_gauge(value: bool) -> f64 {
    f64::from(u8::from(value))
}
