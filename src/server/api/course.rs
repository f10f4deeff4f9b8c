//! The course of a release over time, as the charts of the page draw it. Pure.

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::Serialize;

use crate::{
    analysis::{interval::anytime_valid, measurement::Counts},
    api::canary::status::{Phase, Verdict},
    telemetry::timeline::{ArmMeasured, Measured, MetricCourse, Timeline, VerdictAt},
};

/// The chance that a share ever leaves its interval during a release.
const ALPHA: f64 = 0.05;

#[derive(Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Course {
    /// Number of the release.
    pub release: u64,
    /// Since when this process has recorded it.
    #[schemars(with = "Option<String>")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<Timestamp>,
    pub splits: Vec<SplitPoint>,
    pub steps: Vec<StepPoint>,
    pub phases: Vec<PhasePoint>,
    pub metrics: Vec<MetricPoints>,
    #[schemars(with = "String")]
    pub now: Timestamp,
}

#[derive(Serialize, JsonSchema)]
pub struct SplitPoint {
    #[schemars(with = "String")]
    pub at: Timestamp,
    /// The canary's share, in percent.
    pub weight: f64,
}

#[derive(Serialize, JsonSchema)]
pub struct StepPoint {
    #[schemars(with = "String")]
    pub at: Timestamp,
    /// From 0.
    pub index: u32,
}

#[derive(Serialize, JsonSchema)]
pub struct PhasePoint {
    #[schemars(with = "String")]
    pub at: Timestamp,
    pub phase: Phase,
}

#[derive(Serialize, JsonSchema)]
pub struct MetricPoints {
    pub name: String,
    /// Taken by this process; empty where another replica measures.
    pub measured: Vec<Point>,
    pub verdicts: Vec<VerdictPoint>,
}

/// One measurement of both arms.
#[derive(Serialize, JsonSchema)]
pub struct Point {
    #[schemars(with = "String")]
    pub at: Timestamp,
    /// The source had no data, or did not respond.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub missing: bool,
    pub canary: ArmPoint,
    pub primary: ArmPoint,
}

#[derive(Serialize, JsonSchema)]
pub struct ArmPoint {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value: Option<f32>,
    /// Requests since the release began.
    pub requests: u64,
    /// Lowest and highest success rate, in percent, that all requests of the release
    /// leave possible; the true one leaves it at any time of the release with a chance of 5 %.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub interval: Option<[f32; 2]>,
    /// p50, p90 and p99 in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub quantiles: Option<[f32; 3]>,
}

#[derive(Serialize, JsonSchema)]
pub struct VerdictPoint {
    #[schemars(with = "String")]
    pub at: Timestamp,
    pub verdict: Verdict,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub canary: Option<f32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub primary: Option<f32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub evidence: Option<f32>,
}

impl Course {
    pub fn of(timeline: &Timeline, now: Timestamp) -> Self {
        let metric = |(name, course): (&String, &MetricCourse)| MetricPoints {
            name: name.clone(),
            measured: course.measured.iter().map(Point::of).collect(),
            verdicts: course.verdicts.iter().map(VerdictPoint::of).collect(),
        };
        Self {
            release: timeline.release,
            since: timeline.since,
            splits: timeline
                .splits
                .iter()
                .map(|(at, weight)| SplitPoint { at: *at, weight: weight.percent() })
                .collect(),
            steps: timeline.steps.iter().map(|step| StepPoint { at: step.at, index: step.index }).collect(),
            phases: timeline.phases.iter().map(|(at, phase)| PhasePoint { at: *at, phase: *phase }).collect(),
            metrics: timeline.metrics.iter().map(metric).collect(),
            now,
        }
    }
}

impl Point {
    fn of(measured: &Measured) -> Self {
        Self {
            at: measured.at,
            missing: measured.is_missing,
            canary: ArmPoint::of(&measured.arms.canary),
            primary: ArmPoint::of(&measured.arms.primary),
        }
    }
}

impl ArmPoint {
    fn of(arm: &ArmMeasured) -> Self {
        let is_rate = arm.quantiles.is_none() && arm.counts.total() > 0;
        Self {
            value: arm.value,
            requests: arm.counts.total(),
            interval: is_rate.then(|| success_interval(arm.counts)),
            quantiles: arm.quantiles,
        }
    }
}

fn success_interval(counts: Counts) -> [f32; 2] {
    let (low, high) = anytime_valid(counts, ALPHA);
    [(100.0 * (1.0 - high)) as f32, (100.0 * (1.0 - low)) as f32]
}

impl VerdictPoint {
    fn of(verdict: &VerdictAt) -> Self {
        let VerdictAt { at, verdict, canary, primary, evidence } = verdict.clone();
        Self { at, verdict, canary, primary, evidence }
    }
}
