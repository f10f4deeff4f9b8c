//! One metric of the analysis.

use std::collections::BTreeMap;

use kube::KubeSchema;
use serde::{Deserialize, Serialize};

use crate::api::{
    Duration,
    judge::{Direction, Judge, OnMissing, ThresholdRange},
    reference::TemplateRef,
};

/// Metrics that need no query: each router has its own counters for them.
pub const BUILT_IN: [&str; 2] = ["request-success-rate", "request-duration"];

/// A metric that is measured at every check.
///
/// Two are built in: `request-success-rate` (requests without a server error,
/// in percent) and `request-duration` (99th percentile, in milliseconds). All
/// others come from a template.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = ("has(self.templateRef) || has(self.query) || self.name in ['request-success-rate', 'request-duration']",
        "a metric measures nothing: set templateRef to an AnalysisTemplate, or use a built-in name (request-success-rate, request-duration)"),
)]
pub struct Metric {
    /// Name of the metric.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,

    /// The window of a query, ending at the check. At least 1s. Default: 1m.
    #[x_kube(validation = Duration::at_least("1s", "metrics[].interval"))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub interval: Option<Duration>,

    /// Old form of `thresholdRange`: the smallest success rate, or the largest
    /// value of anything else.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub threshold: Option<f64>,

    /// The values that pass. A metric with a range and no judge is judged by
    /// `threshold`. Beside judge `sequential` it is a limit in addition to the
    /// comparison: each check beyond it is a failed check, and while the primary is
    /// beyond it too the release holds. Default: for built-in metrics none, and the
    /// canary is compared with the primary.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub threshold_range: Option<ThresholdRange>,

    /// Old form of a template: a query to the metrics server.
    #[schemars(length(min = 1, max = 16384))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub query: Option<String>,

    /// The template of the metric: provider, query and judge.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub template_ref: Option<TemplateRef>,

    /// Values for `variables.NAME` in the template's queries.
    #[schemars(extend("maxProperties" = 64))]
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub template_variables: BTreeMap<String, String>,

    /// How this metric is judged. Default: that of its template, else that of
    /// the analysis.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub judge: Option<Judge>,

    /// Which way the metric is worse. Default: that of its template, else for
    /// `request-success-rate` decrease, else increase.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub direction: Option<Direction>,

    /// One failure of this metric rolls the release back, whatever the
    /// `threshold`. Default: false.
    #[serde(default, skip_serializing_if = "crate::api::is_default")]
    pub critical: bool,

    /// How much this metric counts in the score of `mannWhitney`. Default: 1.
    #[schemars(range(min = 0, max = 1_000_000))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub weight: Option<f64>,

    /// Failed checks of this metric that roll the release back. Default: that of
    /// its template, else the `threshold` of the analysis over all metrics.
    #[schemars(range(min = 1, max = 1_000_000))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failure_limit: Option<u32>,

    /// Inconclusive checks of this metric in a row that roll the release back.
    /// Default: that of its template, else no limit but that of `noDataDeadlineSeconds`.
    #[schemars(range(min = 1, max = 1_000_000))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub inconclusive_limit: Option<u32>,

    /// Effect on the release when this metric has no data. Default: that of its
    /// template, else that of the analysis.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub on_no_data: Option<OnMissing>,

    /// Effect on the release when this metric cannot be read. Default: that of
    /// its template, else that of the analysis.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub on_unavailable: Option<OnMissing>,
}
