//! CloudWatch queries of an AnalysisTemplate, without JSON inside a string.

use std::collections::BTreeMap;

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Duration;

/// CloudWatch metrics under names of your choice. `query`, `counts` and
/// `histogram` then are metric math over these names, or simply one of them. For
/// example:
///
/// ```yaml
/// counts: {bad: errors, total: requests}
/// cloudwatch:
///   namespace: AWS/ApplicationELB
///   dimensions: {LoadBalancer: app/shop/50dc6c495c0c9188}
///   canary: {TargetGroup: targetgroup/shop-canary/73e2d6bc24d8a067}
///   primary: {TargetGroup: targetgroup/shop-primary/943f017f100becff}
///   metrics:
///     errors: {name: HTTPCode_Target_5XX_Count}
///     requests: {name: RequestCount}
/// ```
///
/// Names and dimensions may use the template variables of `query` between `{{`
/// and `}}`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = ("!has(self.builtIn) || !has(self.metrics)",
        "cloudwatch.builtIn brings its own metrics: set one of builtIn and metrics"),
)]
pub struct CloudWatch {
    /// Built-in metrics that need no query, for metrics of a Canary named
    /// `request-success-rate` or `request-duration`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub built_in: Option<CloudWatchBuiltIn>,

    /// The metrics by the names used in the queries: a lower-case letter, then
    /// letters, digits and `_`.
    #[schemars(extend("maxProperties" = 100))]
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub metrics: BTreeMap<String, CloudWatchMetric>,

    /// Namespace of metrics that set none. Default: with `builtIn` its own.
    #[schemars(length(max = 255))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,

    /// Dimensions of all metrics.
    #[schemars(extend("maxProperties" = 30))]
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub dimensions: BTreeMap<String, String>,

    /// Additional dimensions of the canary's metrics.
    #[schemars(extend("maxProperties" = 30))]
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub canary: BTreeMap<String, String>,

    /// Additional dimensions of the primary's metrics.
    #[schemars(extend("maxProperties" = 30))]
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub primary: BTreeMap<String, String>,

    /// Length of a period: 1, 5, 10, 20 or 30 seconds for metrics of high
    /// resolution, else a multiple of a minute. Default: 1m.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub period: Option<Duration>,

    /// How long after its end a period is complete. Until then CloudWatch may
    /// still receive data of it, and it is not read. Default: 2m.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delay: Option<Duration>,
}

/// Sources of built-in metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum CloudWatchBuiltIn {
    /// the target groups of an Application Load Balancer; `dimensions` names
    /// the `LoadBalancer`, `canary` and `primary` each a `TargetGroup`.
    TargetGroups,
    /// the metrics extension of App Mesh's Envoys; `dimensions` names the
    /// `Mesh`, `canary` and `primary` each a `TargetVirtualNode`. Let the agent
    /// send only these dimensions, with `aggregation_dimensions`: it then sums
    /// over all callers.
    AppMesh,
}

/// A statistic of one metric.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct CloudWatchMetric {
    /// Name of the metric, such as `RequestCount`.
    #[schemars(length(min = 1, max = 255))]
    pub name: String,

    /// Namespace of the metric. Default: `cloudwatch.namespace`.
    #[schemars(length(max = 255))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,

    /// Dimensions of this metric alone.
    #[schemars(extend("maxProperties" = 30))]
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub dimensions: BTreeMap<String, String>,

    /// `Sum`, `Average`, `Minimum`, `Maximum`, `SampleCount`, a percentile such
    /// as `p99`, or any other statistic of CloudWatch. Default: Sum.
    #[schemars(length(max = 64))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub statistic: Option<String>,

    /// Count only data with this unit, such as `Seconds`. Default: any unit.
    #[schemars(length(max = 32))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unit: Option<String>,

    /// The account that has the metric, with cross-account observability.
    /// Default: the account that is queried.
    #[schemars(length(max = 12))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub account_id: Option<String>,
}

/// An IAM role for the queries. Default: the credentials of the controller, from
/// its ServiceAccount, its node or its environment.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct AwsRole {
    /// The role to assume, such as `arn:aws:iam::123456789012:role/serin`.
    #[schemars(length(min = 20, max = 2048))]
    pub role_arn: String,

    /// External ID that the trust policy of the role requires.
    #[schemars(length(max = 1224))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub external_id: Option<String>,

    /// URL of the Security Token Service. Default: its public address in the
    /// region.
    #[schemars(length(max = 2048))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub endpoint: Option<String>,
}
