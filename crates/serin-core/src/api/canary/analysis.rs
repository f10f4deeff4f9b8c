//! Steps, checks, gates and alerts of a release.

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Alert, HttpMatch, Metric, Step, Webhook};
use crate::api::{
    Duration, Weight,
    judge::{Judge, OnMissing},
};

/// How a new revision is released. The field that holds it explains it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = ("has(self.iterations) || has(self.stepWeight) || has(self.stepWeights) || has(self.steps)",
        "analysis does not say how to release: add one of iterations, stepWeight, stepWeights and steps"),
    validation = ("[has(self.iterations), has(self.stepWeight), has(self.stepWeights), has(self.steps)].filter(x, x).size() <= 1",
        "analysis says how to release in several ways: keep one of iterations, stepWeight, stepWeights and steps"),
    validation = ("!has(self.maxWeight) || !has(self.stepWeight) || self.stepWeight <= self.maxWeight",
        "analysis.maxWeight is below the first step: raise maxWeight or lower stepWeight"),
    validation = ("!has(self.maxWeight) || !has(self.stepWeights) || self.stepWeights.size() == 0 || self.stepWeights[0] <= self.maxWeight",
        "analysis.maxWeight is below the first step: raise maxWeight or lower stepWeights[0]"),
    validation = ("!has(self.maxWeight) || !has(self.steps) || self.steps.filter(s, has(s.weight)).size() == 0 || self.steps.exists(s, has(s.weight) && s.weight <= self.maxWeight)",
        "analysis.maxWeight is below the first step: raise maxWeight or lower the first weight in steps"),
)]
pub struct Analysis {
    /// How long each check lasts, and how often closed gates are called. At
    /// least 1s. Default: 1m.
    #[x_kube(validation = Duration::at_least("1s", "analysis.interval"))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub interval: Option<Duration>,

    /// How many failed checks roll the release back. Default: 1.
    #[schemars(range(min = 0, max = 1_000_000))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub threshold: Option<u32>,

    /// How many checks must pass, for A/B testing (with `match`) and for
    /// Blue/Green (without).
    #[schemars(range(min = 1, max = 1_000_000))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub iterations: Option<u32>,

    /// How much the canary's share of the traffic grows at each step, in
    /// percent; fractions such as 0.5 need a router that supports them.
    #[x_kube(validation = ("self >= 0.01", "analysis.stepWeight must be at least 0.01: the canary would never get traffic"))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub step_weight: Option<Weight>,

    /// The canary's share of the traffic at each step, in percent and rising,
    /// such as `[1, 5, 20, 50]`. The last one is its highest share before the
    /// promotion.
    #[x_kube(
        validation = ("self.size() > 0", "analysis.stepWeights is empty: list at least one weight"),
        validation = ("self.map(w, double(w)).isSorted() && self.all(w, self.exists_one(x, x == w))",
            "analysis.stepWeights must rise: each weight above the one before it"),
    )]
    #[schemars(length(max = 100))]
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub step_weights: Vec<Weight>,

    /// Explicit steps: weights, pauses, approvals, matches, mirrors, replicas,
    /// each with its own interval. For example:
    ///
    /// ```yaml
    /// steps:
    /// - match: [{headers: {x-team: {exact: ours}}}]
    /// - weight: 0.5
    ///   interval: 10m
    /// - weight: 20
    ///   approval: {message: "Is the on-call happy?"}
    /// - weight: 50
    /// ```
    #[x_kube(
        validation = ("self.size() > 0", "analysis.steps is empty: list at least one step"),
        validation = ("self.filter(s, has(s.weight)).map(s, double(s.weight)).isSorted() && self.all(s, !has(s.weight) || self.exists_one(x, has(x.weight) && x.weight == s.weight))",
            "the weights in analysis.steps must rise: each above the one before it"),
    )]
    #[schemars(length(max = 50))]
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub steps: Vec<Step>,

    /// The canary's highest share of the traffic before the promotion, in
    /// percent. Default: 100.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_weight: Option<Weight>,

    /// How much of the traffic shifts back to the promoted primary at a time, in
    /// percent. Default: all at once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub step_weight_promotion: Option<Weight>,

    /// Before the first step, send the canary a copy of the traffic and drop
    /// its responses, for one interval. Needs a router that can mirror and
    /// idempotent requests. Default: false.
    #[serde(default, skip_serializing_if = "crate::api::is_default")]
    pub mirror: bool,

    /// How much of the traffic is copied while mirroring, in percent. Default:
    /// 100.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mirror_weight: Option<Weight>,

    /// The share of the primary's pods, in percent, that must be available for
    /// it to count as ready. Default: 100.
    #[schemars(range(min = 0, max = 100))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub primary_ready_threshold: Option<u32>,

    /// The share of the canary's pods, in percent, that must be available for
    /// it to count as ready. Default: 100.
    #[schemars(range(min = 0, max = 100))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub canary_ready_threshold: Option<u32>,

    /// Requests that go to the canary whatever the weight. With `iterations`
    /// that is A/B testing: they go to the canary and all others to the
    /// primary. For example:
    ///
    /// ```yaml
    /// match:
    /// - headers:
    ///     x-canary: {exact: insider}
    /// ```
    #[x_kube(
        validation = ("self.size() > 0",
            "analysis.match is empty: A/B testing needs at least one condition; for Blue/Green remove match"),
        validation = HttpMatch::each_has_condition("analysis.match"),
    )]
    #[schemars(length(max = 16))]
    #[serde(default, rename = "match", skip_serializing_if = "Vec::is_empty")]
    pub match_: Vec<HttpMatch>,

    /// Metrics that are measured at every check. Default: none, and the release
    /// advances whenever the canary is ready.
    #[schemars(length(max = 50))]
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub metrics: Vec<Metric>,

    /// Gates and hooks that are called during the release.
    #[schemars(length(max = 50))]
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub webhooks: Vec<Webhook>,

    /// Notifications about the release.
    #[schemars(length(max = 50))]
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub alerts: Vec<Alert>,

    /// Keep a user on the version that served the first request, by a cookie.
    /// Needs `istio` or `gatewayapi`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session_affinity: Option<SessionAffinity>,

    /// The judge of every metric that sets none. Default: `threshold` for
    /// metrics with a range, `sequential` for built-in metrics without one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub judge: Option<Judge>,

    /// How long the requests of young pods of the canary count for nothing but
    /// total failure, from when they are ready and have traffic: caches are cold and
    /// code is not compiled yet. For judge `sequential`; steps wait for it. 0s
    /// switches it off. Default: 30s.
    #[x_kube(validation = Duration::at_most("1h", "analysis.warmup", "a canary must be judged at some time"))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub warmup: Option<Duration>,

    /// What follows when the `sequential` judge finds one pod of the canary to be
    /// bad and the others not, for which its metric must be counted by pod. With
    /// `replace` the controller needs the right to read and delete pods
    /// (`replacePods` of the chart). Default: rollback.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub on_broken_pod: Option<OnBrokenPod>,

    /// The share of the traffic, in percent, that stays with the primary in a step
    /// of 100 % that is judged by `sequential`: without requests to the primary there
    /// is nothing to compare with. 0 sends all traffic to the canary, and then only
    /// `thresholdRange` and total failure are judged. Default: 5.
    #[x_kube(validation = ("self <= 50", "analysis.controlWeight must be at most 50: it is the smaller part of the traffic"))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub control_weight: Option<Weight>,

    /// Hold the release when the request counts of the built-in metrics do not
    /// match the weight (sample ratio mismatch): a mesh that ignores the weight
    /// makes every other judgement meaningless. Switch it off where many
    /// requests reach the pods without the route. Default: true.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub verify_split: Option<bool>,

    /// Effect on the release when a metric has no data, usually because there
    /// was no traffic. Default: hold.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub on_no_data: Option<OnMissing>,

    /// Effect on the release when the metrics provider cannot be reached.
    /// Default: hold.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub on_unavailable: Option<OnMissing>,

    /// Seconds that checks may be inconclusive before the release is rolled back:
    /// no data, too little of it, or a provider that cannot be reached.
    /// `progressDeadlineSeconds` does not count that time. Default: none, and the
    /// release holds until there is data, or a user promotes or aborts it.
    #[schemars(range(min = 1, max = 31_536_000))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub no_data_deadline_seconds: Option<u32>,
}

/// A cookie that keeps a user on one version.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct SessionAffinity {
    /// Name of the cookie for users of the canary.
    #[schemars(length(min = 1, max = 253))]
    pub cookie_name: String,

    /// Name of the cookie for users of the primary. Default: none, and only
    /// users of the canary are kept.
    #[schemars(length(min = 1, max = 253))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub primary_cookie_name: Option<String>,

    /// Host that the cookie is sent to. Default: the one that set it.
    #[schemars(length(max = 253))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub domain: Option<String>,

    /// Hide the cookie from scripts. Default: false.
    #[serde(default, skip_serializing_if = "crate::api::is_default")]
    pub http_only: bool,

    /// Seconds until the cookie expires. Default: 86400, one day; 0 is the default too.
    #[schemars(range(min = 0, max = 31_536_000))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_age: Option<u32>,

    /// Keep the cookie in partitioned storage. Default: false.
    #[serde(default, skip_serializing_if = "crate::api::is_default")]
    pub partitioned: bool,

    /// Path that the cookie is sent for. Default: that of the request.
    #[schemars(length(max = 2048))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,

    /// Whether the cookie is sent with requests from other sites. Default: that
    /// of the browser.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub same_site: Option<SameSite>,

    /// Send the cookie over HTTPS only. Default: false.
    #[serde(default, skip_serializing_if = "crate::api::is_default")]
    pub secure: bool,
}

/// Whether a cookie is sent with requests from other sites.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum SameSite {
    /// never.
    Strict,
    /// only when the user follows a link.
    Lax,
    /// always.
    None,
}

/// What follows when one pod of the canary is bad and the others are not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum OnBrokenPod {
    /// roll the release back.
    #[default]
    Rollback,
    /// delete the pod, once in a release, and judge the canary anew: a node may be
    /// broken and not the revision. The second finding rolls back.
    Replace,
}
