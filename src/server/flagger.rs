//! Series with Flagger's names, labels and units, for dashboards and alerts
//! written for it. The label `name` is that of the target, not of the Canary.

use std::collections::{BTreeMap, HashSet};

use super::{
    exposition::{Exposition, Kind},
    series::CanarySeries,
};
use crate::{
    api::canary::{Phase, Provider, status::Outcome},
    telemetry::{ReleaseLabels, label_value},
};

pub fn write(
    text: &mut Exposition,
    provider: Option<Provider>,
    counts: &BTreeMap<String, usize>,
    canaries: &[CanarySeries<'_>],
) {
    // Canaries with the same target would duplicate series: only the first counts.
    let mut targets = HashSet::new();
    let canaries: Vec<&CanarySeries<'_>> =
        canaries.iter().filter(|shown| targets.insert((&shown.namespace, target(shown)))).collect();
    let mesh = provider.map(|provider| label_value(&provider)).unwrap_or_default();
    text.family("flagger", Kind::Info, "Version and mesh provider.")
        .put(&[("version", env!("CARGO_PKG_VERSION")), ("mesh_provider", &mesh)], 1.0);
    // A gauge, despite its name.
    let mut family = text.family("flagger_canary_total", Kind::Gauge, "Canaries in a namespace.");
    for (namespace, count) in counts {
        family.put(&[("namespace", namespace)], *count as f64);
    }
    let help = "The last release: 0 in progress, 1 succeeded, 2 failed.";
    let mut family = text.family("flagger_canary_status", Kind::Gauge, help);
    for shown in &canaries {
        family.put(&labels(shown), status_value(shown.status.phase));
    }
    let mut family = text.family("flagger_canary_weight", Kind::Gauge, "Share of the traffic, in percent.");
    for shown in &canaries {
        let (weight, target) = (shown.status.canary_weight, target(shown));
        let primary = format!("{target}-primary");
        for (workload, weight) in [(primary.as_str(), weight.complement()), (target, weight)] {
            family.put(&[("workload", workload), ("namespace", &shown.namespace)], weight.percent());
        }
    }
    let help = "Seconds spent on an analysis.";
    let mut family = text.family("flagger_canary_duration_seconds", Kind::Histogram, help);
    for shown in canaries.iter().filter(|shown| shown.counters.check_seconds.count() > 0) {
        family.put_histogram(&labels(shown), &shown.counters.check_seconds);
    }
    let help = "Last measured value of the canary.";
    let mut family = text.family("flagger_canary_metric_analysis", Kind::Gauge, help);
    for shown in &canaries {
        for metric in &shown.status.metrics {
            if let Some(value) = metric.canary {
                let [name, namespace] = labels(shown);
                let value = flagger_unit(shown, &metric.name, value);
                family.put(&[name, namespace, ("metric", &metric.name)], value);
            }
        }
    }
    write_outcomes(
        text,
        &canaries,
        "flagger_canary_successes",
        "Releases that were promoted.",
        &[Outcome::Promoted],
    );
    let failures = [Outcome::RolledBack, Outcome::Aborted];
    write_outcomes(text, &canaries, "flagger_canary_failures", "Releases that were rolled back.", &failures);
}

/// The current strategy has a series from the start, at 0.
fn write_outcomes(
    text: &mut Exposition,
    canaries: &[&CanarySeries<'_>],
    name: &str,
    help: &str,
    outcomes: &[Outcome],
) {
    let mut family = text.family(name, Kind::Counter, help);
    for shown in canaries {
        let current = ReleaseLabels::of(shown.canary, outcomes[0]);
        let mut counts = BTreeMap::from([((current.strategy, current.skipped), 0)]);
        let releases = shown.counters.releases.iter();
        for (labels, count) in releases.filter(|(labels, _)| outcomes.contains(&labels.outcome)) {
            *counts.entry((labels.strategy, labels.skipped)).or_default() += count;
        }
        for ((strategy, skipped), count) in counts {
            let [name, namespace] = labels(shown);
            let analysis = if skipped { "skipped" } else { "completed" };
            let labels = [name, namespace, ("deployment_strategy", strategy), ("analysis_status", analysis)];
            family.put(&labels, count as f64);
        }
    }
}

fn labels<'a>(shown: &'a CanarySeries<'_>) -> [(&'a str, &'a str); 2] {
    [("name", target(shown)), ("namespace", &shown.namespace)]
}

fn target<'a>(shown: &'a CanarySeries<'_>) -> &'a str {
    &shown.canary.spec.target_ref.name
}

fn status_value(phase: Phase) -> f64 {
    match phase {
        Phase::Progressing => 0.0,
        Phase::Failed => 2.0,
        _ => 1.0,
    }
}

/// The built-in duration is in milliseconds in Serin and in seconds in Flagger.
fn flagger_unit(shown: &CanarySeries<'_>, metric: &str, value: f64) -> f64 {
    let is_built_in = |spec: &crate::api::canary::Metric| {
        spec.name == metric && spec.template_ref.is_none() && spec.query.is_none()
    };
    match metric {
        "request-duration" if shown.canary.spec.analysis.metrics.iter().any(is_built_in) => value / 1000.0,
        _ => value,
    }
}
