//! Serin's own series. Those of a Canary are computed from the cache when they
//! are asked for: a Canary that is gone has none, and one that changes costs
//! nothing.

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

/// A Canary as it is shown.
pub struct CanarySeries<'a> {
    pub canary: &'a Canary,
    pub status: Cow<'a, CanaryStatus>,
    pub name: String,
    pub namespace: String,
    pub counters: &'a CanaryCounters,
}

impl<'a> CanarySeries<'a> {
    /// Those that can be read; of the others only their number is known.
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

/// How many there are in each namespace.
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
    let mut family = text.family("serin_canaries", Kind::Gauge, "Canaries that this replica works on.");
    for (namespace, count) in counts {
        family.put(&[("namespace", namespace)], *count as f64);
    }
    let words = PHASES.map(|phase| (phase, label_value(&phase)));
    let mut family = text.family("serin_canary_phase", Kind::Gauge, "1 for the phase that a Canary is in.");
    for shown in canaries {
        for (phase, word) in &words {
            family.put(&shown.labels_with("phase", word), as_gauge(shown.status.phase == *phase));
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
    gauge("serin_canary_step", "The step under way, from 1; 0 if none is.", &|shown| {
        Some(shown.status.step.as_ref().map_or(0.0, |step| f64::from(step.index) + 1.0))
    });
    gauge("serin_canary_steps", "Steps of the release under way; 0 if none is.", &|shown| {
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
    let help = "What a metric last measured, in its own unit, by arm.";
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

/// Of this process: the status remembers only the last ten. Every outcome is
/// there from the start, so that the first one is an increase.
fn write_releases(text: &mut Exposition, canaries: &[CanarySeries<'_>]) {
    let words = OUTCOMES.map(|outcome| (outcome, label_value(&outcome)));
    let help = "Releases that this process brought to their end.";
    let mut family = text.family("serin_releases", Kind::Counter, help);
    for shown in canaries {
        for (outcome, word) in &words {
            let count = shown.counters.count_releases(|end| end.outcome == *outcome);
            family.put(&shown.labels_with("outcome", word), count as f64);
        }
    }
}

pub fn write_process(text: &mut Exposition, vitals: &Telemetry) {
    text.family("serin", Kind::Info, "The version that runs.")
        .put(&[("version", env!("CARGO_PKG_VERSION"))], 1.0);
    let help = "Seconds from the start of a release to its end.";
    write_histograms(text, "serin_release_duration_seconds", help, ["outcome"], &vitals.release_seconds);
    write_counters(
        text,
        "serin_reconciles",
        "Work on one Canary that ended.",
        ["result"],
        &vitals.reconciles,
    );
    let help = "Seconds of work on one Canary.";
    write_histograms(text, "serin_reconcile_duration_seconds", help, [], &vitals.reconcile_seconds);
    text.family("serin_reconciles_running", Kind::Gauge, "Canaries that are worked on now.")
        .put(&[], vitals.health.processing() as f64);
    text.family("serin_queue_length", Kind::Gauge, "Canaries that wait for their turn.")
        .put(&[], vitals.health.queued() as f64);
    text.family("serin_shards_held", Kind::Gauge, "Shards of the Canaries that this replica holds.")
        .put(&[], vitals.held_shards() as f64);
    let help = "Watches that broke and were begun again.";
    write_counters(text, "serin_watch_restarts", help, [], &vitals.watch_restarts);
    let help = "Requests to the API server, as its rules name them.";
    write_counters(text, "serin_api_requests", help, ["verb", "result"], &vitals.requests);
    let help = "Questions to sources of metrics.";
    write_counters(text, "serin_metric_queries", help, ["source", "result"], &vitals.queries);
    write_counters(
        text,
        "serin_gate_calls",
        "Webhooks that were called.",
        ["type", "result"],
        &vitals.gate_calls,
    );
    let help = "What became of notifications.";
    let mut family = text.family("serin_notifications", Kind::Counter, help);
    for (result, count) in vitals.notifications.snapshot() {
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
    seen: &DurationHistogramVec<N>,
) {
    let mut family = text.family(name, Kind::Histogram, help);
    for (values, seen) in seen.snapshot() {
        family.put_histogram(&labels(&names, &values), &seen);
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

fn as_gauge(holds: bool) -> f64 {
    f64::from(u8::from(holds))
}
