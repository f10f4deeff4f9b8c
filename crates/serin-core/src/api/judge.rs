//! Judges and their settings, shared by Canary and AnalysisTemplate.

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Percent;

/// A judge and its settings.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = ("!has(self.promoteOn) || self.promoteOn != 'evidence' || self.type == 'sequential'",
        "judge.promoteOn: evidence needs judge.type: sequential, the only judge that can certify a canary early"),
)]
pub struct Judge {
    /// Type of the judge.
    #[serde(rename = "type")]
    pub type_: JudgeType,

    /// `sequential`: the share of healthy releases that may be rolled back by
    /// chance, over the whole release and any number of checks. Written 1% or
    /// 1. Default: 1%.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub false_rollback: Option<Percent>,

    /// `sequential`: the share of canaries worse than `margin` that
    /// `promoteOn: evidence` may let through by chance. Default: 1%.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub false_promotion: Option<Percent>,

    /// `sequential`: how many times worse than the primary the canary may be,
    /// as an odds ratio. At 1.5 a canary with 1.5 % errors beside a primary
    /// with 1 % is still healthy. 1 is too strict for most services: pods
    /// always differ a little. Default: 1.5 for errors, 1.25 for latency, 1.1 for
    /// values.
    #[schemars(range(min = 1, max = 1000))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub margin: Option<f64>,

    /// `sequential`: new requests to the canary that a verdict needs; with fewer
    /// it is inconclusive, which neither advances the release nor counts against
    /// it. Default: 20.
    #[schemars(range(min = 1, max = 1_000_000_000))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_requests: Option<u32>,

    /// `sequential`: a step passes only once a canary this many times worse than
    /// the primary would have been found with a probability of 90 %. Default: none,
    /// and the verdict says what it could have found.
    #[schemars(range(min = 1, max = 1000))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_power: Option<f64>,

    /// When a passing step is over. Default: interval.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub promote_on: Option<PromoteOn>,

    /// `mannWhitney`: the confidence of the interval around the difference.
    /// Default: 98%.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub confidence: Option<Percent>,

    /// `mannWhitney`: the part of the difference that is tolerated before the
    /// canary counts as different, 0 to 1. Default: 0.25.
    #[schemars(range(min = 0, max = 1))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tolerance: Option<f64>,

    /// `mannWhitney`: how large a difference must be to matter. Default: any
    /// difference that `tolerance` does not cover.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub effect_size: Option<EffectSize>,

    /// `mannWhitney`: samples needed on each side; with fewer the verdict is
    /// inconclusive. Default: 50.
    #[schemars(range(min = 2, max = 1_000_000))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_samples: Option<u32>,

    /// `mannWhitney`: whether outliers count. Default: keep.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub outliers: Option<Outliers>,

    /// `mannWhitney`: how samples that are not a number count. Default: remove.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nan_strategy: Option<NanStrategy>,

    /// `mannWhitney`: the weighted share of passing metrics that makes the
    /// whole check a pass. Default: 95%.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pass_score: Option<Percent>,

    /// `mannWhitney`: the weighted share of passing metrics below which the
    /// whole check fails; between this and `passScore` it is inconclusive.
    /// Default: 75%.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub marginal_score: Option<Percent>,
}

/// Types of judge.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum JudgeType {
    /// the value must lie in `thresholdRange`, as in Flagger. The default for a
    /// metric with a range.
    #[default]
    Threshold,
    /// canary against primary over the same time, by a test that stays valid at
    /// any number of checks: it may decide after every scrape and still rolls
    /// back at most `falseRollback` of the healthy releases. The default for
    /// built-in metrics without a range.
    Sequential,
    /// canary against primary by rank, as in Kayenta. For samples without
    /// counts.
    MannWhitney,
}

/// When a passing step is over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum PromoteOn {
    /// when its interval is over.
    #[default]
    Interval,
    /// as soon as the evidence shows the canary to be within `margin`, at the
    /// latest when the interval is over.
    Evidence,
}

/// How large a difference must be to matter.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct EffectSize {
    /// How the effect is measured.
    pub measure: EffectMeasure,

    /// The largest effect upwards that is tolerated; 1.1 with `meanRatio`
    /// tolerates ten percent more.
    #[schemars(range(min = 0))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allowed_increase: Option<f64>,

    /// The largest effect downwards that is tolerated; 0.9 with `meanRatio`
    /// tolerates ten percent less.
    #[schemars(range(min = 0))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allowed_decrease: Option<f64>,

    /// An effect upwards that fails the release at once.
    #[schemars(range(min = 0))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub critical_increase: Option<f64>,

    /// An effect downwards that fails the release at once.
    #[schemars(range(min = 0))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub critical_decrease: Option<f64>,
}

/// How an effect is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum EffectMeasure {
    /// the canary's mean divided by the primary's.
    MeanRatio,
    /// the probability that a sample of the canary is above one of the
    /// primary.
    Cles,
}

/// Whether outliers count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum Outliers {
    /// judge them like any other.
    #[default]
    Keep,
    /// drop samples more than three interquartile ranges outside the quartiles.
    Remove,
}

/// How samples that are not a number count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum NanStrategy {
    /// drop them.
    #[default]
    Remove,
    /// count them as zero.
    Replace,
}

/// Which way a metric is worse.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum Direction {
    /// higher is worse, as with errors and latency.
    #[default]
    Increase,
    /// lower is worse, as with a success rate.
    Decrease,
    /// any change is worse.
    Either,
}

/// Effect of a missing metric on the release.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum OnMissing {
    /// stay at the current weight until there is data, or `noDataDeadlineSeconds`
    /// is over.
    #[default]
    Hold,
    /// count it as a failed check, as Flagger does.
    Fail,
    /// continue without the metric.
    Ignore,
}

/// The values that pass, bounds included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[x_kube(
    validation = ("has(self.min) || has(self.max)", "thresholdRange is empty: set min, max or both"),
    validation = ("!has(self.min) || !has(self.max) || self.min <= self.max",
        "thresholdRange.min is above thresholdRange.max: no value could pass, swap them"),
)]
pub struct ThresholdRange {
    /// The smallest value that passes. Default: no lower bound.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min: Option<f64>,

    /// The largest value that passes. Default: no upper bound.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max: Option<f64>,
}
