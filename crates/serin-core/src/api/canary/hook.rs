//! Webhooks and alerts.

use std::collections::BTreeMap;

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::api::{
    Duration,
    reference::{AlertProviderRef, SecretRef},
};

/// A gate or hook that is called over HTTP.
///
/// The request is a POST of `{name, namespace, phase, checksum, metadata}`. A
/// status up to 202 means yes; any other, or no response in time, means no.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = ("!has(self.expireAfter) || (has(self.type) && self.type in ['confirm-rollout', 'confirm-traffic-increase', 'confirm-promotion'])",
        "webhooks[].expireAfter is for gates: use it with type confirm-rollout, confirm-traffic-increase or confirm-promotion"),
)]
pub struct Webhook {
    /// Name of the webhook.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,

    /// When it is called, and the effect of its response. Default: rollout.
    #[schemars(extend("enum" = ["", "rollout", "confirm-rollout", "pre-rollout", "confirm-traffic-increase", "confirm-promotion", "post-rollout", "rollback", "target-rejected", "event"]))]
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    pub type_: Option<HookType>,

    /// URL to call.
    #[x_kube(validation = ("self.startsWith('http://') || self.startsWith('https://')",
        "webhooks[].url must begin with http:// or https://"))]
    #[schemars(length(min = 1, max = 2048))]
    pub url: String,

    /// How long to wait for a response, at most 5m. Default: 10s.
    #[x_kube(validation = Duration::at_most("5m", "webhooks[].timeout",
        "for a longer test, let a gate say no until it is done, which is called again at each interval"))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout: Option<Duration>,

    /// How often to retry when there is no response, or one with the status 429 or
    /// 5xx; all attempts together take at most 5m. Default: 0.
    #[schemars(range(min = 0, max = 100))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retries: Option<u32>,

    /// Additional data for the receiver, sent unchanged.
    #[schemars(extend("maxProperties" = 64))]
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub metadata: BTreeMap<String, String>,

    /// Send no alert about this webhook. Default: false.
    #[serde(default, skip_serializing_if = "crate::api::is_default")]
    pub mute_alert: bool,

    /// Do not verify the certificate of the receiver. Default: false.
    #[serde(default, rename = "disableTLS", skip_serializing_if = "crate::api::is_default")]
    pub disable_tls: bool,

    /// How long a gate may stay closed; then the release is rolled back.
    /// Default: for ever.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expire_after: Option<Duration>,

    /// A Secret in the namespace of the Canary whose key `hmac` signs each
    /// request: the header `X-Serin-Signature` carries `sha256=` and the HMAC of
    /// the body. Default: requests are not signed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub secret_ref: Option<SecretRef>,
}

/// When a webhook is called, and the effect of its response.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum HookType {
    /// at every check, before the metrics: a no is a failed check. An empty
    /// type means the same.
    #[default]
    #[serde(alias = "")]
    Rollout,
    /// a gate before the release starts: it waits for a yes.
    ConfirmRollout,
    /// before the canary gets traffic, for tests: a no is a failed check.
    PreRollout,
    /// a gate before each rise of the weight.
    ConfirmTrafficIncrease,
    /// a gate before the promotion.
    ConfirmPromotion,
    /// after the release, however it ended; the response is ignored.
    PostRollout,
    /// at every check: a yes rolls the release back.
    Rollback,
    /// after a rollback that leaves the target at the revision that was rolled back, for
    /// example to open a revert in its Git repository; the response is ignored.
    TargetRejected,
    /// at every event; the response is ignored.
    Event,
}

/// A notification.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Alert {
    /// Name of the alert.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,

    /// The lowest severity that is sent. Default: info.
    #[schemars(extend("enum" = ["", "info", "warn", "error"]))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub severity: Option<Severity>,

    /// The destination.
    pub provider_ref: AlertProviderRef,
}

/// How severe an event is.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// everything: starts, weights, promotions. An empty severity means the
    /// same.
    #[default]
    #[serde(alias = "")]
    Info,
    /// holds, failed checks and rollbacks.
    Warn,
    /// rollbacks only.
    Error,
}
