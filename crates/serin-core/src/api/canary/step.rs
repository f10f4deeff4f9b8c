//! One explicit step of a release.

use kube::KubeSchema;
use serde::{Deserialize, Serialize};

use super::HttpMatch;
use crate::api::{Duration, Weight};

/// One step of a release.
///
/// A step first applies its `replicas`, then `weight`, `match` and `mirror`. It
/// is over when all of these hold: the metrics passed `iterations` checks, one
/// each `interval`; the `pause` is over; the `approval` is given.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = ("has(self.weight) || has(self.match) || has(self.mirror) || has(self.replicas) || has(self.pause) || has(self.approval) || has(self.analysis) || has(self.iterations) || has(self.interval)",
        "a step does nothing: give it one of weight, match, mirror, replicas, pause, approval and analysis"),
)]
pub struct Step {
    /// Name of the step, for the dashboard and for notifications. Default: a
    /// short description.
    #[schemars(length(max = 253))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,

    /// The canary's share of the traffic from this step on, in percent;
    /// fractions such as 0.5 need a router that supports them. Default:
    /// unchanged.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub weight: Option<Weight>,

    /// Requests that go to the canary whatever the weight, from this step on.
    /// Default: unchanged, at first `analysis.match`.
    #[x_kube(
        validation = ("self.size() > 0", "steps[].match is empty: list at least one condition, or remove match"),
        validation = HttpMatch::each_has_condition("steps[].match"),
    )]
    #[schemars(length(max = 16))]
    #[serde(default, rename = "match", skip_serializing_if = "Vec::is_empty")]
    pub match_: Vec<HttpMatch>,

    /// The share of the primary's traffic, in percent, of which the canary gets
    /// a copy during this step. Its responses to copies are dropped. Default: 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mirror: Option<Weight>,

    /// Replicas of the canary from this step on. Default: those of the target or
    /// its autoscaler.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replicas: Option<StepReplicas>,

    /// How long one check of this step lasts. At least 1s. Default: the interval
    /// of the analysis.
    #[x_kube(validation = Duration::at_least("1s", "steps[].interval"))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub interval: Option<Duration>,

    /// How many checks must pass. Default: 1.
    #[schemars(range(min = 1, max = 1_000_000))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub iterations: Option<u32>,

    /// Metrics that are judged during this step. Default: all; a step that only
    /// pauses, scales or waits for approval needs no passed check.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub analysis: Option<StepAnalysis>,

    /// Wait, for a time or until the release is resumed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pause: Option<Pause>,

    /// Wait until a user approves.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub approval: Option<Approval>,
}

/// Replicas of the canary.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[x_kube(
    validation = ("has(self.count) != has(self.percent)",
        "steps[].replicas needs exactly one of count and percent"),
)]
pub struct StepReplicas {
    /// This many.
    #[schemars(range(min = 1, max = 100_000))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub count: Option<u32>,

    /// This part of the primary's replicas, in percent and rounded up.
    #[schemars(range(min = 1, max = 1000))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub percent: Option<u32>,
}

/// Metrics that are judged during a step.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
pub struct StepAnalysis {
    /// Judge nothing during this step. Default: false.
    #[serde(default, skip_serializing_if = "crate::api::is_default")]
    pub skip: bool,

    /// Names of the metrics to judge. Default: all of `analysis.metrics`.
    #[schemars(length(max = 50))]
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub metrics: Vec<String>,
}

/// A wait.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
pub struct Pause {
    /// How long. Default: until the release is resumed, in the dashboard or with
    /// `serin resume`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub duration: Option<Duration>,
}

/// A request for approval by a user.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Approval {
    /// The question to the user.
    #[schemars(length(max = 1024))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,

    /// How long to wait; then the release is rolled back. Default: for ever, and
    /// the progress deadline does not run meanwhile.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expire_after: Option<Duration>,
}
