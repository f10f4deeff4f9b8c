//! What a release has come to. Written by Serin only.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{HookType, Provider};
use crate::api::{Object, Weight, condition::Condition};

/// What the release has come to.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(transform = crate::api::schema::tidy)]
pub struct CanaryStatus {
    /// The generation of the spec that this status speaks about.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,

    /// Where the release stands.
    #[schemars(extend("enum" = ["", "Initializing", "Initialized", "Waiting", "Progressing", "WaitingPromotion", "Promoting", "Finalising", "Succeeded", "Failed", "Terminating", "Terminated"]))]
    #[serde(default)]
    pub phase: Phase,

    /// What happens now and why, in one sentence.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,

    /// Failed checks of this release.
    #[serde(default)]
    pub failed_checks: u32,

    /// The canary's share of the traffic, in percent.
    #[serde(default)]
    pub canary_weight: Weight,

    /// Checks that passed in this step, for A/B testing and Blue/Green in this
    /// release.
    #[serde(default)]
    pub iterations: u32,

    /// Since when all traffic is the primary's, as far as was written. Pods
    /// that had traffic before stay until every proxy must have followed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub all_primary_since: Option<Time>,

    /// The release whose canary pods are to go. That they went is noted on the
    /// target itself, by the annotation `serin.dev/scaled-down-after`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scale_down_after_release: Option<u64>,

    /// The step under way.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub step: Option<StepStatus>,

    /// Which revision is where.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub revisions: Option<Revisions>,

    /// How the workload is reached.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub route: Option<RouteStatus>,

    /// The release under way.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub release: Option<ReleaseStatus>,

    /// How many releases there were, with the one under way.
    #[serde(default, skip_serializing_if = "crate::api::is_default")]
    pub releases: u64,

    /// The last command that was answered.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_command: Option<CommandStatus>,

    /// The last verdict of every metric.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub metrics: Vec<MetricStatus>,

    /// Every gate and approval that the release has met.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gates: Vec<GateStatus>,

    /// What is waited for, and until when.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_deadline: Option<NextDeadline>,

    /// Until when the pods of the version before stay up for an instant
    /// rollback.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub warm_until: Option<Time>,

    /// The last ten releases, newest first.
    #[schemars(length(max = 10))]
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub history: Vec<PastRelease>,

    /// Value of the cookie that keeps users on the canary of this release.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session_affinity_cookie: Option<String>,

    /// Value of the cookie that keeps users on the primary of this release.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub primary_session_affinity_cookie: Option<String>,

    /// Value of the cookie of the release before, which is being taken back.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub previous_session_affinity_cookie: Option<String>,

    /// Checksum of each ConfigMap and Secret that the target uses.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub tracked_configs: BTreeMap<String, String>,

    /// Hash of the pod template that was last released or is being released.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_applied_spec: Option<String>,

    /// Hash of the pod template that was last promoted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_promoted_spec: Option<String>,

    /// When `phase` last changed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_transition_time: Option<Time>,

    /// Ready, Reconciling and Stalled, which Argo CD and Flux read, and
    /// Promoted.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
}

/// Where a release stands, in Flagger's words.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum Phase {
    /// the primary and its routes are being made.
    #[default]
    #[serde(alias = "")]
    Initializing,
    /// the primary serves all traffic; no release has happened yet.
    Initialized,
    /// a new revision waits for a gate or a release window to open.
    Waiting,
    /// the canary gets traffic and is judged.
    Progressing,
    /// the canary passed and waits for the promotion to be confirmed.
    WaitingPromotion,
    /// the primary takes over the revision.
    Promoting,
    /// all traffic is on the primary; the canary is being scaled down.
    Finalising,
    /// the revision was promoted.
    Succeeded,
    /// the revision was rolled back.
    Failed,
    /// the Canary is being deleted and what was there before is put back.
    Terminating,
    /// everything is put back.
    Terminated,
}

/// The step under way.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct StepStatus {
    /// Which step, from 0.
    pub index: u32,

    /// How many steps there are.
    pub total: u32,

    /// The same for people: `2/5`.
    pub progress: String,

    /// What the step does, or its name.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub name: String,

    /// When the step began.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub started_at: Option<Time>,

    /// When the check under way began.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub check_started_at: Option<Time>,

    /// How many checks were taken.
    #[serde(default, skip_serializing_if = "crate::api::is_default")]
    pub checks: u32,
}

/// Which revision is where. A hash begins with the version of the hash, so a
/// new Serin does not take an old revision for a new one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Revisions {
    /// What the primary runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub primary: Option<String>,

    /// What is being released, or was released last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub candidate: Option<String>,

    /// What the target was last seen at.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seen: Option<String>,

    /// What was last rolled back. It is not tried again by itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rejected: Option<String>,

    /// What the primary ran before the last promotion.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub previous: Option<String>,
}

/// How a workload is reached. What is left of it when the spec says otherwise
/// is taken away.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
pub struct RouteStatus {
    /// Who carries the traffic weights.
    #[schemars(with = "String")]
    pub provider: Provider,

    /// Name of the apex Service.
    pub service: String,
}

/// The release under way.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct ReleaseStatus {
    /// Hash of the revision.
    pub revision: String,

    /// Why it started.
    pub trigger: Trigger,

    /// When it started.
    pub started_at: Time,

    /// When it last got further; the progress deadline counts from here.
    pub last_progress_at: Time,

    /// Whether a person paused it.
    #[serde(default, skip_serializing_if = "crate::api::is_default")]
    pub paused: bool,

    /// What the engine must remember from one decision to the next.
    #[serde(default, skip_serializing_if = "crate::api::is_default")]
    pub state: ReleaseState,
}

/// What the engine must remember of a release from one decision to the next.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct ReleaseState {
    /// Fingerprint of the steps that `step.index` counts.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub plan: String,

    /// The most traffic that the canary has got, in percent.
    #[serde(default, skip_serializing_if = "crate::api::is_default")]
    pub highest_weight: Weight,

    /// Since when nothing moves although it should; the progress deadline
    /// counts from here.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stalled_since: Option<Time>,

    /// What it waits for meanwhile: canary, primary, route or evidence.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub stalled_on: String,

    /// The pods of the superseded revision must go before this one starts.
    #[serde(default, skip_serializing_if = "crate::api::is_default")]
    pub wait_for_termination: bool,

    /// The step whose replicas the canary gets before that step begins.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scale_for_step: Option<u32>,

    /// The canary went down and lost its traffic until it is ready again.
    #[serde(default, skip_serializing_if = "crate::api::is_default")]
    pub traffic_withdrawn: bool,

    /// Somebody ended the pause of this step.
    #[serde(default, skip_serializing_if = "crate::api::is_default")]
    pub resumed: bool,

    /// The primary was overwritten and gets its version before back.
    #[serde(default, skip_serializing_if = "crate::api::is_default")]
    pub restoring: bool,

    /// The requests so far against the weights that were asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sample_ratio: Option<Object>,
}

/// A command and what became of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct CommandStatus {
    /// Which command; the same one is not accepted twice.
    pub id: String,

    /// What was asked for.
    pub verb: String,

    /// Whether it was accepted.
    pub accepted: bool,

    /// The answer, in one sentence.
    pub message: String,

    /// When it was answered.
    pub at: Time,
}

/// Why a release started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Trigger {
    /// the pod template changed.
    PodTemplate,
    /// a ConfigMap or Secret changed.
    Config,
    /// a person asked for another try.
    Retry,
    /// a person asked to go back to the version before.
    Rollback,
}

/// The last verdict of one metric, with its numbers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct MetricStatus {
    /// Name of the metric.
    pub name: String,

    /// The verdict.
    pub verdict: Verdict,

    /// Why, in one sentence with numbers.
    pub reason: String,

    /// When it was given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub at: Option<Time>,

    /// The canary's value.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub canary: Option<f64>,

    /// The primary's value over the same time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub primary: Option<f64>,

    /// Requests or samples that the canary's value rests on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub canary_count: Option<f64>,

    /// Requests or samples that the primary's value rests on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub primary_count: Option<f64>,

    /// Evidence against the canary: 1 is none at all; at 100 the chance of a
    /// healthy canary looking so bad is one in a hundred.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub evidence: Option<f64>,

    /// Failed checks in this release.
    #[serde(default, skip_serializing_if = "crate::api::is_default")]
    pub failures: u32,

    /// Inconclusive checks in a row.
    #[serde(default, skip_serializing_if = "crate::api::is_default")]
    pub inconclusives: u32,

    /// Until when requests have been counted in this step.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub measured_until: Option<Time>,

    /// What the judge must remember from one check to the next.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub analysis_state: Option<Object>,
}

/// What a judge says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Verdict {
    /// enough was seen and nothing speaks against the canary.
    Pass,
    /// the evidence speaks against the canary.
    Fail,
    /// not enough was seen, or it could not be measured.
    Inconclusive,
}

/// A gate or approval.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct GateStatus {
    /// Name of the webhook, or of the step that asks for approval.
    pub name: String,

    /// Kind of the webhook; none for an approval step.
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    pub type_: Option<HookType>,

    /// Index of the step that it was met in.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub step: Option<u32>,

    /// Whether it let the release through.
    pub state: GateState,

    /// Since when it is so.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<Time>,

    /// When it expires.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Time>,

    /// Who opened or refused it, if a person did.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,

    /// The last answer, in one sentence.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
}

/// Whether a gate lets the release through.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum GateState {
    /// it is still closed.
    Waiting,
    /// it is open.
    Open,
    /// somebody said no.
    Refused,
    /// nobody said yes in time.
    Expired,
}

/// What is waited for, and until when.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
pub struct NextDeadline {
    /// When the release goes on, or gives up.
    pub at: Time,

    /// Which of the two, and why, in one sentence.
    pub reason: String,
}

/// A release that is over.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct PastRelease {
    /// Hash of the revision.
    pub revision: String,

    /// How it ended.
    pub outcome: Outcome,

    /// Why, in one sentence.
    pub reason: String,

    /// When it started.
    pub started_at: Time,

    /// When it ended.
    pub finished_at: Time,

    /// The most traffic that the canary got, in percent.
    #[serde(default)]
    pub highest_weight: Weight,
}

/// How a release ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Outcome {
    /// the primary runs the revision.
    Promoted,
    /// the evidence spoke against it, or it made no progress.
    RolledBack,
    /// a person ended it.
    Aborted,
    /// a newer revision took its place.
    Superseded,
}
