//! Conditions as kstatus, Argo CD and Flux read them.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// No work is in progress, the last release, if any, was promoted, and the primary
/// is ready and has all traffic.
pub const READY: &str = "Ready";
/// Work is in progress.
pub const RECONCILING: &str = "Reconciling";
/// A user has to change something before work can continue.
pub const STALLED: &str = "Stalled";
/// Writes or watches for this object fail again and again; the message has the
/// server's own words.
pub const DEGRADED: &str = "Degraded";
/// A person paused the release, its step pauses, or the Canary is suspended.
pub const PAUSED: &str = "Paused";
/// The target is at a revision that was rolled back: its source, such as a Git repository, is
/// ahead of the primary.
pub const TARGET_REJECTED: &str = "TargetRejected";
/// The result of the last release, as Flagger reports it.
pub const PROMOTED: &str = "Promoted";

/// One aspect of the state of an object.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Condition {
    /// Which aspect: Ready, Reconciling, Stalled, Degraded, Paused,
    /// TargetRejected or Promoted.
    #[serde(rename = "type")]
    pub type_: String,

    /// Whether it holds.
    pub status: ConditionStatus,

    /// Machine-readable reason, in one word.
    pub reason: String,

    /// Human-readable message, in one sentence.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,

    /// The generation of the spec that this condition is about.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,

    /// When `status` last changed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_transition_time: Option<Time>,

    /// When anything here last changed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_update_time: Option<Time>,
}

/// Whether a condition holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ConditionStatus {
    /// it holds.
    True,
    /// it does not.
    False,
    /// it is not known.
    Unknown,
}

/// The status of kinds without a controller of their own.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(transform = super::schema::tidy)]
pub struct PlainStatus {
    /// The generation of the spec that `conditions` are about.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,

    /// Whether the object is usable.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
}
