//! What is valid, and hardly meant.

use jiff::{SignedDuration, Timestamp};

use super::{Code, Document, Finding, Options};
use crate::api::canary::{Canary, Metric, metric::BUILT_IN};
use crate::engine::Plan;
use crate::engine::plan::metrics::Judge;
use crate::engine::plan::steps::Strategy;
use crate::engine::windows::Windows;

/// Two scrapes at the usual interval.
const SHORTEST_WINDOW: std::time::Duration = std::time::Duration::from_secs(30);

/// Nobody accepts a 99th percentile of that few milliseconds from a service behind a proxy.
const SUSPICIOUS_MILLISECONDS: f64 = 5.0;

/// Appends the findings about the metrics of a Canary, whether it can be released or not.
pub fn metrics(document: &Document, canary: &Canary, findings: &mut Vec<Finding>) {
    let mut find =
        |code: Code, path: &str, message: String| findings.push(document.finding(code, path, message));
    for (at, metric) in canary.spec.analysis.metrics.iter().enumerate() {
        let path = format!("spec.analysis.metrics[{at}]");
        units(metric, &path, &mut find);
        let window = metric.interval.map(|interval| interval.get());
        if let Some(window) = window.filter(|window| *window < SHORTEST_WINDOW) {
            let text = format!(
                "{path}.interval: a window of {} s is shorter than two scrapes at the usual interval of 15 s; write at least 30s, unless you scrape more often",
                window.as_secs_f64()
            );
            find(Code::ShortWindow, &format!("{path}.interval"), text);
        }
    }
}

/// Appends the findings about the steps of a Canary that can be released.
pub fn steps(
    document: &Document,
    canary: &Canary,
    plan: &Plan,
    options: &Options,
    findings: &mut Vec<Finding>,
) {
    let mut find =
        |code: Code, path: &str, message: String| findings.push(document.finding(code, path, message));
    if let Some(rate) = options.requests_per_second {
        traffic(plan, rate, &mut find);
    }
    if never_opens(&plan.windows, Timestamp::now()) {
        let text = "spec.releaseWindows: they freeze all of the time that they allow, so no release ever starts; shorten a freeze";
        find(Code::NeverOpen, "spec.releaseWindows", text.to_owned());
    }
    let approved = plan.steps.iter().any(|step| step.approval.is_some());
    if plan.metrics.is_empty()
        && plan.gates.is_empty()
        && !approved
        && canary.spec.analysis.metrics.is_empty()
    {
        let text = "spec.analysis has no metrics, gates or approvals: every revision is promoted whose pods become ready; add request-success-rate";
        find(Code::NoMetrics, "spec.analysis", text.to_owned());
    }
}

/// Not once within a year.
fn never_opens(windows: &Windows, now: Timestamp) -> bool {
    let year = SignedDuration::from_hours(366 * 24);
    let mut at = now;
    while at.duration_since(now) < year {
        match windows.check(at) {
            Ok(()) => return false,
            Err(closed) => match closed.until.filter(|until| *until > at) {
                Some(until) => at = until,
                None => return true,
            },
        }
    }
    true
}

fn units(metric: &Metric, path: &str, find: &mut impl FnMut(Code, &str, String)) {
    let range = metric.threshold_range.as_ref();
    let (min, max) = (range.and_then(|range| range.min), range.and_then(|range| range.max));
    // `threshold` is a minimum of the rate, and a maximum of the duration.
    if metric.name == BUILT_IN[0]
        && let Some(min) = min.or(metric.threshold).filter(|min| *min > 0.0 && *min <= 1.0)
    {
        let text = format!(
            "{path}: a success rate of at least {min} % passes nearly everything; it is in percent, so write {}",
            (min * 100_000.0).round() / 1000.0
        );
        find(Code::FractionForPercent, path, text);
    }
    if metric.name == BUILT_IN[1]
        && let Some(max) = max.or(metric.threshold).filter(|max| *max > 0.0 && *max < SUSPICIOUS_MILLISECONDS)
    {
        let text = format!(
            "{path}: a 99th percentile of at most {max} ms fails nearly everything; it is in milliseconds, so write {}",
            (max * 1_000_000.0).round() / 1000.0
        );
        find(Code::SecondsForMilliseconds, path, text);
    }
}

/// Steps whose checks are inconclusive at this rate.
fn traffic(plan: &Plan, rate: f64, find: &mut impl FnMut(Code, &str, String)) {
    if plan.strategy != Strategy::Canary {
        return;
    }
    let needed = plan
        .metrics
        .iter()
        .filter_map(|metric| match &metric.policy.judge {
            Judge::Sequential(judge) => Some(judge.settings().min_requests),
            Judge::Threshold(_) | Judge::MannWhitney(_) => None,
        })
        .max();
    let Some(needed) = needed else { return };
    for (at, step) in plan.steps.iter().enumerate().filter(|(_, step)| step.checks > 0) {
        let share = step.split.canary.percent() / 100.0;
        let requests = rate * share * step.interval.as_secs_f64();
        if share > 0.0 && requests < needed as f64 {
            let text = format!(
                "step {} of {}: {} % of {rate} requests a second are {requests:.0} in an interval of {} s, and a verdict needs {needed}: it waits for more intervals; raise the weight or the interval",
                at + 1,
                plan.steps.len(),
                step.split.canary,
                step.interval.as_secs()
            );
            find(Code::TooLittleTraffic, "spec.analysis", text);
        }
    }
}
