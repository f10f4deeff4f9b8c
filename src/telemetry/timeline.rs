//! The course of one release: its split, steps, measurements and verdicts, with times.
//!
//! Bounded: a series that is full keeps every second point, so that it always spans the
//! whole release. It is of this process and starts when the process first sees the release;
//! measurements are known only where they are taken, verdicts everywhere.

use std::collections::BTreeMap;

use jiff::Timestamp;

use crate::{
    analysis::measurement::{Arms, Counts, Measurement, Values},
    api::{
        CanaryStatus, Weight,
        canary::status::{MetricStatus, Phase, Verdict},
    },
    engine::observed::CheckMeasurements,
};

/// Points of one series.
const MAX_POINTS: usize = 120;
/// Metrics that are followed.
const MAX_METRICS: usize = 16;
/// The quantiles of durations that are kept.
pub const QUANTILES: [f64; 3] = [0.5, 0.9, 0.99];

#[derive(Clone, Debug, Default)]
pub struct Timeline {
    /// Number of the release.
    pub release: u64,
    /// Since when this process has seen it.
    pub since: Option<Timestamp>,
    pub splits: Vec<(Timestamp, Weight)>,
    pub steps: Vec<StepAt>,
    pub phases: Vec<(Timestamp, Phase)>,
    pub metrics: BTreeMap<String, MetricCourse>,
}

#[derive(Clone, Debug)]
pub struct StepAt {
    pub index: u32,
    pub at: Timestamp,
}

#[derive(Clone, Debug, Default)]
pub struct MetricCourse {
    pub measured: Vec<Measured>,
    pub verdicts: Vec<VerdictAt>,
}

/// One measurement.
#[derive(Clone, Debug)]
pub struct Measured {
    pub at: Timestamp,
    pub arms: Arms<ArmMeasured>,
    /// The source had no data, or did not respond.
    pub is_missing: bool,
}

#[derive(Clone, Debug, Default)]
pub struct ArmMeasured {
    pub value: Option<f32>,
    /// Since the release began.
    pub counts: Counts,
    /// Of [`QUANTILES`], in milliseconds.
    pub quantiles: Option<[f32; 3]>,
}

#[derive(Clone, Debug)]
pub struct VerdictAt {
    pub at: Timestamp,
    pub verdict: Verdict,
    pub canary: Option<f32>,
    pub primary: Option<f32>,
    pub evidence: Option<f32>,
}

impl Timeline {
    pub fn record_status(&mut self, status: Option<&CanaryStatus>, now: Timestamp) {
        let Some(status) = status else { return };
        if self.since.is_none() || status.releases != self.release {
            *self = Self { release: status.releases, since: Some(now), ..Self::default() };
        }
        if self.splits.last().map(|(_, weight)| *weight) != Some(status.canary_weight) {
            push(&mut self.splits, (now, status.canary_weight));
        }
        if self.phases.last().map(|(_, phase)| *phase) != Some(status.phase) {
            let at = status.last_transition_time.as_ref().map_or(now, |at| at.0);
            push(&mut self.phases, (at, status.phase));
        }
        if let Some(step) = &status.step
            && self.steps.last().map(|last| last.index) != Some(step.index)
        {
            let at = step.started_at.as_ref().map_or(now, |at| at.0);
            push(&mut self.steps, StepAt { index: step.index, at });
        }
        for metric in &status.metrics {
            if let Some(at) = &metric.at
                && let Some(course) = self.course(&metric.name)
                && course.verdicts.last().is_none_or(|last| last.at < at.0)
            {
                push(&mut course.verdicts, VerdictAt::of(metric, at.0));
            }
        }
    }

    pub fn record_measurements(&mut self, measured: &CheckMeasurements) {
        if measured.check.release != self.release {
            return;
        }
        for (name, measurement) in &measured.results {
            if let Some(course) = self.course(name) {
                let last = course.measured.last().map(|last| &last.arms);
                let measured = Measured::of(measurement, measured.at, last);
                push(&mut course.measured, measured);
            }
        }
    }

    /// None for one metric too many.
    fn course(&mut self, metric: &str) -> Option<&mut MetricCourse> {
        if !self.metrics.contains_key(metric) {
            if self.metrics.len() >= MAX_METRICS {
                return None;
            }
            self.metrics.insert(metric.to_owned(), MetricCourse::default());
        }
        self.metrics.get_mut(metric)
    }
}

impl VerdictAt {
    fn of(metric: &MetricStatus, at: Timestamp) -> Self {
        let small = |number: Option<f64>| number.map(|number| number as f32);
        Self {
            at,
            verdict: metric.verdict,
            canary: small(metric.canary),
            primary: small(metric.primary),
            evidence: small(metric.evidence),
        }
    }
}

impl Measured {
    fn of(measurement: &Measurement, at: Timestamp, last: Option<&Arms<ArmMeasured>>) -> Self {
        let before = last.map(|arms| arms.map(|arm| arm.counts)).unwrap_or_default();
        let unchanged = before.map(|counts| ArmMeasured { counts: *counts, ..ArmMeasured::default() });
        let mut is_missing = false;
        let arms = match measurement.clone().summed() {
            Measurement::Counts(arms) => Arms {
                canary: ArmMeasured::counted(arms.canary, before.canary),
                primary: ArmMeasured::counted(arms.primary, before.primary),
            },
            Measurement::Histogram(arms) => {
                let quantiles = arms.map(|histogram| {
                    let [p50, p90, p99] = QUANTILES.map(|share| histogram.quantile(share));
                    Some([p50? as f32, p90? as f32, p99? as f32])
                });
                let arm = |quantiles: Option<[f32; 3]>, total, before: Counts| ArmMeasured {
                    value: quantiles.map(|[_, _, p99]| p99),
                    counts: sum(before, Counts::of_bad(0, total)),
                    quantiles,
                };
                Arms {
                    canary: arm(quantiles.canary, arms.canary.total(), before.canary),
                    primary: arm(quantiles.primary, arms.primary.total(), before.primary),
                }
            }
            Measurement::Scalar(value) => {
                let canary = ArmMeasured { value: Some(value as f32), ..unchanged.canary };
                Arms { canary, primary: unchanged.primary }
            }
            Measurement::Samples(arms) => {
                let mean = |points: &Vec<f64>| {
                    (!points.is_empty()).then(|| (points.iter().sum::<f64>() / points.len() as f64) as f32)
                };
                arms.map(|points| ArmMeasured { value: mean(points), ..ArmMeasured::default() })
            }
            Measurement::Values(arms) => {
                let arm = |values: &Values, before: Counts| ArmMeasured {
                    value: values.summary().map(|value| value as f32),
                    counts: sum(before, Counts::of_bad(0, values.requests())),
                    quantiles: None,
                };
                Arms { canary: arm(&arms.canary, before.canary), primary: arm(&arms.primary, before.primary) }
            }
            Measurement::PodCounts(_)
            | Measurement::PodHistograms(_)
            | Measurement::NoData
            | Measurement::Unavailable { .. } => {
                is_missing = true;
                unchanged
            }
        };
        Self { at, arms, is_missing }
    }
}

impl ArmMeasured {
    /// The value is the share of good requests, in percent.
    fn counted(counts: Counts, before: Counts) -> Self {
        let value = counts.rate().map(|bad| (100.0 * (1.0 - bad)) as f32);
        Self { value, counts: sum(before, counts), quantiles: None }
    }
}

fn sum(a: Counts, b: Counts) -> Counts {
    Counts::of_bad(a.bad().saturating_add(b.bad()), a.total().saturating_add(b.total()))
}

/// A full series keeps its first point and every second one after it.
fn push<T>(series: &mut Vec<T>, point: T) {
    if series.len() >= MAX_POINTS {
        let mut at = 0;
        series.retain(|_| {
            at += 1;
            at % 2 == 1
        });
    }
    series.push(point);
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::{analysis::measurement::Histogram, engine::action::Check};

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn measured(second: i64, measurement: Measurement) -> CheckMeasurements {
        CheckMeasurements {
            check: Check { release: 1, step: 0, index: 0, full: true, metrics: Vec::new() },
            at: at(second),
            available_until: BTreeMap::new(),
            known_until: BTreeMap::new(),
            results: BTreeMap::from([("m".to_owned(), measurement)]),
        }
    }

    fn began() -> Timeline {
        let mut timeline = Timeline::default();
        timeline.record_status(Some(&CanaryStatus { releases: 1, ..CanaryStatus::default() }), at(0));
        timeline
    }

    #[test]
    fn a_long_release_stays_bounded_and_spans_its_whole_time() {
        let mut timeline = began();
        for second in 1..=5_000 {
            let counts = Arms { canary: Counts::of_bad(1, 10), primary: Counts::of_bad(0, 90) };
            timeline.record_measurements(&measured(second, Measurement::Counts(counts)));
        }
        let points = &timeline.metrics["m"].measured;
        assert!(points.len() <= MAX_POINTS && points.len() > MAX_POINTS / 4, "{}", points.len());
        assert_eq!((points[0].at, points[points.len() - 1].at), (at(1), at(5_000)));
        let last = &points[points.len() - 1].arms;
        assert_eq!(
            (last.canary.counts, last.primary.counts.total()),
            (Counts::of_bad(5_000, 50_000), 450_000)
        );
    }

    #[test]
    fn no_data_is_a_point_of_its_own() {
        let mut timeline = began();
        timeline.record_measurements(&measured(1, Measurement::NoData));
        let point = &timeline.metrics["m"].measured[0];
        assert!(point.is_missing && point.arms.canary.value.is_none());
    }

    #[test]
    fn quantiles_of_both_arms_are_kept() {
        let mut timeline = began();
        let buckets = [(0.1, 50), (0.2, 100), (f64::INFINITY, 100)];
        let histogram = Histogram::cumulative(buckets).unwrap();
        let arms = Arms { canary: histogram.clone(), primary: histogram };
        timeline.record_measurements(&measured(1, Measurement::Histogram(arms)));
        let point = &timeline.metrics["m"].measured[0];
        assert_eq!(point.arms.primary.quantiles, Some([100.0, 180.0, 198.0]));
    }

    #[test]
    fn another_release_begins_anew() {
        let mut timeline = began();
        timeline.record_measurements(&measured(1, Measurement::NoData));
        timeline.record_status(Some(&CanaryStatus { releases: 2, ..CanaryStatus::default() }), at(9));
        assert!(timeline.metrics.is_empty() && timeline.since == Some(at(9)));
        timeline.record_measurements(&measured(10, Measurement::NoData));
        assert!(timeline.metrics.is_empty(), "of the release before");
    }
}
