//! AnalysisTemplate: a reusable metric. It accepts the fields of Flagger's
//! MetricTemplate, and more.

use std::collections::BTreeMap;

use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{
    cloudwatch::{AwsRole, CloudWatch},
    condition::PlainStatus,
    judge::{Direction, Judge, OnMissing, ThresholdRange},
    reference::SecretRef,
};

/// A reusable metric: where it is measured, by which query, and how it is
/// judged. A Canary names it in `spec.analysis.metrics[].templateRef`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, CustomResource, KubeSchema)]
#[kube(
    group = "serin.dev",
    version = "v1alpha1",
    kind = "AnalysisTemplate",
    namespaced,
    status = "PlainStatus",
    derive = "PartialEq",
    category = "serin",
    shortname = "at",
    doc = "A reusable metric: where it is measured, by which query, and how it is judged.",
    printcolumn(name = "Provider", type_ = "string", json_path = ".spec.provider.type"),
    printcolumn(name = "Judge", type_ = "string", json_path = ".spec.judge.type", priority = "1"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
#[schemars(transform = super::schema::tidy)]
#[x_kube(
    validation = ("has(self.query) || has(self.counts) || has(self.histogram) || has(self.values) || has(self.cloudwatch) && has(self.cloudwatch.builtIn)",
        "an AnalysisTemplate measures nothing: set spec.query (one value), spec.counts (good or bad of total), spec.histogram (durations) or spec.values"),
    validation = ("!has(self.values) || !has(self.counts) && !has(self.histogram)",
        "spec.values is a metric of its own; move spec.counts or spec.histogram to another AnalysisTemplate"),
    validation = ("!has(self.values) || has(self.direction) && self.direction != 'either'",
        "spec.values needs spec.direction: decrease if lower values are worse, as with revenue, or increase"),
)]
pub struct AnalysisTemplateSpec {
    /// Description of the metric, for the dashboard and for notifications.
    #[schemars(length(max = 1024))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,

    /// The system that is queried.
    pub provider: MetricProvider,

    /// A query that returns one value, in the language of the provider. Between
    /// `{{` and `}}` it may use `name` (of the Canary), `namespace`,
    /// `target` (the workload; of the primary `NAME-primary`), `arm` (`canary`
    /// or `primary`), `service`, `ingress`, `route`, `interval` and
    /// `variables.NAME`. For example, in percent:
    ///
    /// ```text
    /// 100
    /// * sum(rate(errors_total{app="{{ target }}"}[{{ interval }}]))
    /// / sum(rate(requests_total{app="{{ target }}"}[{{ interval }}]))
    /// ```
    #[schemars(length(min = 1, max = 16384))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub query: Option<String>,

    /// The metric as counts of requests. They distinguish one error in ten
    /// requests from a hundred in a thousand, which a ratio cannot: the
    /// `sequential` judge needs them for error rates.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub counts: Option<CountsSpec>,

    /// A query that returns a histogram: one cumulative count per upper bound
    /// `le`. The `sequential` judge compares the whole distribution, not one
    /// percentile. It runs once for each arm, which `{{ target }}` or
    /// `{{ arm }}` selects. For example:
    ///
    /// ```text
    /// sum by (le) (http_request_duration_seconds_bucket{app="{{ target }}"})
    /// ```
    ///
    /// For `cloudwatch` it is one metric of durations: with a unit of time, or
    /// divided by how many of its units are a second, as in `durations / 1000`.
    #[schemars(length(min = 1, max = 16384))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub histogram: Option<String>,

    /// The metric as values, such as the revenue of a request, the size of an
    /// order or the length of a queue; `direction` says which ones are worse. A
    /// mean is never judged, since one order may move it: the `sequential` judge
    /// counts the values above thresholds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub values: Option<ValuesSpec>,

    /// For `cloudwatch`: the metrics that `query`, `counts` and `histogram`
    /// refer to. Without it they are JSON lists of MetricDataQueries.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cloudwatch: Option<CloudWatch>,

    /// Which way the metric is worse. Default: increase; decrease for `counts`
    /// and for a range with only a `min`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub direction: Option<Direction>,

    /// The values that pass, for the `threshold` judge. A range on the metric of
    /// a Canary takes precedence over this one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub threshold_range: Option<ThresholdRange>,

    /// How the metric is judged. Default: `threshold` with a `thresholdRange`,
    /// else `sequential` with `counts`, `histogram` or `values`, else the judge of
    /// the Canary's analysis.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub judge: Option<Judge>,

    /// Failed checks of this metric that roll the release back. Default: the
    /// `threshold` of the Canary's analysis, counted over all metrics.
    #[schemars(range(min = 1, max = 1000))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failure_limit: Option<u32>,

    /// Inconclusive checks of this metric in a row that roll the release back.
    /// Default: no limit but the Canary's `analysis.noDataDeadlineSeconds`.
    #[schemars(range(min = 1, max = 1000))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub inconclusive_limit: Option<u32>,

    /// Effect on the release when the query has no data. Default: as the Canary
    /// specifies.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub on_no_data: Option<OnMissing>,

    /// Effect on the release when the provider cannot be reached. Default: as
    /// the Canary specifies.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub on_unavailable: Option<OnMissing>,

    /// Default values of `variables.NAME` in the queries; the Canary's
    /// `templateVariables` take precedence.
    #[schemars(extend("maxProperties" = 64))]
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub variables: BTreeMap<String, String>,
}

/// A system that is queried for metrics.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = ("self.type != 'web' || has(self.address)",
        "provider.type web needs provider.address: the URL to query"),
)]
pub struct MetricProvider {
    /// Kind of system.
    #[serde(rename = "type")]
    pub type_: MetricProviderType,

    /// URL of the system, such as `http://prometheus.monitoring:9090`.
    /// Default: for `prometheus` the metrics server of the Canary or of the
    /// controller; for hosted systems their public address.
    #[schemars(length(max = 2048))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,

    /// Headers to send with every request. For example:
    ///
    /// ```yaml
    /// X-Scope-OrgID: ["tenant-1"]
    /// ```
    #[schemars(extend("maxProperties" = 64))]
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub headers: BTreeMap<String, Vec<String>>,

    /// A Secret in the namespace of the template with the credentials:
    /// `username` and `password`, or `token`; for `cloudwatch`
    /// `aws_access_key_id`, `aws_secret_access_key` and optionally
    /// `aws_session_token`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub secret_ref: Option<SecretRef>,

    /// Region, for `cloudwatch`. Default: that of the controller.
    #[schemars(length(max = 64))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub region: Option<String>,

    /// An IAM role to assume, for `cloudwatch` of another account.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub role: Option<AwsRole>,

    /// Do not verify the certificate of `address`. Default: false.
    #[serde(default, skip_serializing_if = "super::is_default")]
    pub insecure_skip_verify: bool,

    /// For `web`: the request, and the place of the value in the response.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub web: Option<WebRequest>,

    /// For `scrape`: the port and path to read of each pod.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scrape: Option<ScrapeTarget>,
}

/// Systems that can be queried.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum MetricProviderType {
    /// Prometheus and every system with its API; the query is PromQL.
    Prometheus,
    /// InfluxDB 2; the query is Flux.
    Influxdb,
    /// Datadog.
    Datadog,
    /// the external metrics API of the cluster.
    Externalmetrics,
    /// Google Cloud Monitoring; the query is MQL.
    Stackdriver,
    /// Amazon CloudWatch; the query is metric math over `spec.cloudwatch`, or a
    /// JSON list of MetricDataQueries. It needs the IAM action
    /// `cloudwatch:GetMetricData`.
    Cloudwatch,
    /// New Relic; the query is NRQL.
    Newrelic,
    /// Graphite.
    Graphite,
    /// Dynatrace.
    Dynatrace,
    /// Keptn; the query names a KeptnMetric or Analysis.
    Keptn,
    /// Splunk Observability; the query is SignalFlow.
    Splunk,
    /// any HTTP service that responds with JSON; the query is the rest of the
    /// address, or the body.
    Web,
    /// the `/metrics` of the pods, scraped by Serin: no Prometheus needed; the
    /// query names a series.
    Scrape,
}

/// A metric as counts of requests. Queries return cumulative counters, not
/// rates. They run once for each arm, which `{{ target }}` or `{{ arm }}`
/// selects.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[x_kube(
    validation = ("has(self.good) != has(self.bad)",
        "counts needs exactly one of good and bad beside total"),
)]
pub struct CountsSpec {
    /// Counts the good requests, such as those without a 5xx response.
    #[schemars(length(min = 1, max = 16384))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub good: Option<String>,

    /// Counts the bad requests, where that is easier to query.
    #[schemars(length(min = 1, max = 16384))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bad: Option<String>,

    /// Counts all requests.
    #[schemars(length(min = 1, max = 16384))]
    pub total: String,
}

/// A metric as values. Its queries return cumulative counters, and run once for
/// each arm, which `{{ target }}` or `{{ arm }}` selects.
///
/// The thresholds are the bounds of the histogram nearest to the quartiles and the
/// 90th percentile of the primary's values in the release before, and do not change
/// during a release. The first release of a Canary learns them from the first
/// hundred values of its primary.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
pub struct ValuesSpec {
    /// Returns a histogram of the values: one cumulative count per upper bound
    /// `le`, in any unit. For example:
    ///
    /// ```text
    /// sum by (le) (order_value_bucket{app="{{ target }}"})
    /// ```
    #[schemars(length(min = 1, max = 16384))]
    pub histogram: String,

    /// Counts all requests, where the histogram has only those with a value:
    /// the others count as zero. With it the revenue of all requests is judged,
    /// and fewer orders are found; without it the size of an order.
    #[schemars(length(min = 1, max = 16384))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub total: Option<String>,
}

/// Request of a `web` provider.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct WebRequest {
    /// Method of the request. Default: GET.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub method: Option<WebMethod>,

    /// JSON pointer to the number in the response, such as `/data/0/value`.
    /// Default: the response itself is the number.
    #[schemars(length(max = 1024))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value_at: Option<String>,
}

/// Methods of a `web` request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "UPPERCASE")]
pub enum WebMethod {
    /// the query is the rest of the address, such as `/score?app={{ target }}`.
    Get,
    /// the query is the body, in JSON.
    Post,
}

/// Port and path that `scrape` reads of each pod.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct ScrapeTarget {
    /// Port to read. Default: the pod's `prometheus.io/port` annotation, else
    /// the target port of the Canary's service.
    #[schemars(range(min = 1, max = 65535))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,

    /// Path to read. Default: the pod's `prometheus.io/path` annotation, else
    /// `/metrics`.
    #[schemars(length(max = 1024))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
}
