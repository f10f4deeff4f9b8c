//! Conditions as kstatus, Argo CD and Flux read them.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Nothing is under way and the last thing asked for is done.
pub const READY: &str = "Ready";
/// Work is under way.
pub const RECONCILING: &str = "Reconciling";
/// A person has to change something before work can go on.
pub const STALLED: &str = "Stalled";
/// The result of the last release, as Flagger reports it.
pub const PROMOTED: &str = "Promoted";

/// One aspect of the state of an object.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Condition {
    /// Which aspect: Ready, Reconciling, Stalled or Promoted.
    #[serde(rename = "type")]
    pub type_: String,

    /// Whether it holds.
    pub status: ConditionStatus,

    /// One word for programs.
    pub reason: String,

    /// One sentence for people.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,

    /// The generation of the spec that this was said about.
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
    /// nobody can say.
    Unknown,
}

/// The status of kinds that do nothing by themselves.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(transform = super::schema::tidy)]
pub struct PlainStatus {
    /// The generation of the spec that `conditions` speak about.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,

    /// Whether the object is fit for use.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
}
