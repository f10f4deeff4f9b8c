//! The status of a Canary. Written by Serin only.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{HookType, Provider};
use crate::api::{Object, Weight, condition::Condition};

/// The state of the release.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(transform = crate::api::schema::tidy)]
pub struct CanaryStatus {
    /// The generation of the spec that this status is about.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,

    /// Phase of the release.
    #[schemars(extend("enum" = ["", "Initializing", "Initialized", "Waiting", "Progressing", "WaitingPromotion", "Promoting", "Finalising", "Succeeded", "Failed", "Terminating", "Terminated"]))]
    #[serde(default)]
    pub phase: Phase,

    /// What the Canary does or waits for, in one word: its phase, or Refused, Suspended,
    /// Paused, AwaitingApproval, AwaitingGate, Frozen, Queued or Degraded.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub state: String,

    /// The image of the primary and, if it differs, that of the target: `web:v1 → v2`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub image: String,

    /// The current activity and its reason, in one sentence.
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

    /// Since when the route sends all traffic to the primary. Pods that had
    /// traffic before stay until every proxy has applied the route.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub all_primary_since: Option<Time>,

    /// The release whose canary is to be scaled to zero. The annotation
    /// `serin.dev/scaled-down-after` of the target records that it was.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scale_down_after_release: Option<u64>,

    /// Replicas of the primary when this status was written. A primary that is
    /// deleted comes back with them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub primary_replicas: Option<u32>,

    /// SHA-256 digests of both specs in the backup of the primary, by revision. A backup
    /// that was edited is not restored.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backup_digests: Option<String>,

    /// The current step.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub step: Option<StepStatus>,

    /// Revisions of the primary and the target.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub revisions: Option<Revisions>,

    /// How the workload is reached.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub route: Option<RouteStatus>,

    /// Why this provider was chosen, for a Canary without `spec.provider`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub provider_evidence: Option<String>,

    /// The current release.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub release: Option<ReleaseStatus>,

    /// Number of releases, including the current one.
    #[serde(default, skip_serializing_if = "crate::api::is_default")]
    pub releases: u64,

    /// The last command that was processed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_command: Option<CommandStatus>,

    /// The last verdict of every metric.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub metrics: Vec<MetricStatus>,

    /// Every gate and approval that the release has reached.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gates: Vec<GateStatus>,

    /// The next time at which the release moves or is rolled back. None while it waits
    /// for a person, for as long as no expiry is set.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_deadline: Option<NextDeadline>,

    /// Until when the pods of the previous version stay up for an instant
    /// rollback.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub warm_until: Option<Time>,

    /// The last ten releases, newest first.
    #[schemars(length(max = 10))]
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub history: Vec<PastRelease>,

    /// The cookie that keeps users on the canary of this release, as `name=value`: a
    /// request with it reaches the canary.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session_affinity_cookie: Option<String>,

    /// The cookie that keeps users on the primary of this release, as `name=value`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub primary_session_affinity_cookie: Option<String>,

    /// The cookie of the previous release, which is being expired, as `name=value`.
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

    /// Ready, Reconciling and Stalled, which Argo CD and Flux read; Promoted;
    /// Degraded while writes fail; Paused while the release is paused or the Canary
    /// is suspended.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
}

/// Phases of a release, as in Flagger.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum Phase {
    /// the primary and its routes are being created.
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
    /// the revision is being copied to the primary.
    Promoting,
    /// all traffic is on the primary; the canary is being scaled down.
    Finalising,
    /// the revision was promoted.
    Succeeded,
    /// the revision was rolled back.
    Failed,
    /// the Canary is being deleted and the state from before is restored.
    Terminating,
    /// the state from before the Canary is restored.
    Terminated,
}

/// The current step.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct StepStatus {
    /// Index of the step, from 0.
    pub index: u32,

    /// Number of steps.
    pub total: u32,

    /// Both for display: `2/5`.
    pub progress: String,

    /// Name of the step, or a short description.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub name: String,

    /// When the step began.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub started_at: Option<Time>,

    /// When the current check began.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub check_started_at: Option<Time>,

    /// Number of checks in this step, including interim ones.
    #[serde(default, skip_serializing_if = "crate::api::is_default")]
    pub checks: u32,

    /// The latest check, if it did not pass: the step ends only after one that
    /// does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unpassed_check: Option<UnpassedCheck>,
}

/// A check that did not pass.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
pub struct UnpassedCheck {
    /// How it ended.
    pub outcome: UnpassedOutcome,

    /// Why, in one sentence with numbers.
    pub reason: String,
}

/// How a check that did not pass ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum UnpassedOutcome {
    /// there is evidence against the canary.
    Failed,
    /// there is too little data, or it could not be measured.
    Inconclusive,
}

/// Revisions of the primary and the target. A hash begins with the version of
/// the hash, so a new Serin does not take an old revision for a new one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Revisions {
    /// Revision of the primary.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub primary: Option<String>,

    /// Revision that is being released, or was released last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub candidate: Option<String>,

    /// Last observed revision of the target.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seen: Option<String>,

    /// Revision that was last rolled back. It is not retried automatically.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rejected: Option<String>,

    /// Revision of the primary before the last promotion.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub previous: Option<String>,

    /// What people call each revision above and in the history: its image, or its
    /// version label where the image has no tag.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub names: BTreeMap<String, String>,
}

/// How a workload is reached. Objects of an earlier route are removed when the
/// spec changes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
pub struct RouteStatus {
    /// The router that applies the traffic weights.
    #[schemars(with = "String")]
    pub provider: Provider,

    /// Name of the apex Service.
    pub service: String,

    /// Objects of the route, besides the Services. Their kinds are those of the
    /// router that wrote them, which may be another one after a restart.
    #[schemars(length(max = 16))]
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub objects: Vec<RouteObject>,
}

/// An object of a route, in the namespace of the Canary.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct RouteObject {
    /// API group and version that it was written with.
    pub api_version: String,

    /// Kind.
    pub kind: String,

    /// Name.
    pub name: String,
}

impl RouteObject {
    /// The API group.
    pub fn group(&self) -> &str {
        self.api_version.split_once('/').map_or("", |(group, _)| group)
    }
}

/// The current release.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct ReleaseStatus {
    /// Hash of the revision.
    pub revision: String,

    /// Why it started.
    pub trigger: Trigger,

    /// When it started.
    pub started_at: Time,

    /// When it last made progress.
    pub last_progress_at: Time,

    /// Whether a user paused it.
    #[serde(default, skip_serializing_if = "crate::api::is_default")]
    pub paused: bool,

    /// Internal state of the engine.
    #[serde(default, skip_serializing_if = "crate::api::is_default")]
    pub state: ReleaseState,
}

/// Internal state of the engine, kept from one decision to the next.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct ReleaseState {
    /// Fingerprint of the steps that `step.index` counts.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub plan: String,

    /// The canary's highest share of the traffic so far, in percent.
    #[serde(default, skip_serializing_if = "crate::api::is_default")]
    pub highest_weight: Weight,

    /// Since when the release makes no progress; the progress deadline counts
    /// from here.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stalled_since: Option<Time>,

    /// The part that makes no progress: canary, primary, copy, route, evidence, spec
    /// or failure.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub stalled_on: String,

    /// The most pods of that part that were ready since; only more are progress.
    #[serde(default, skip_serializing_if = "crate::api::is_default")]
    pub stalled_ready_pods: u32,

    /// Whether it holds one of the slots that limit concurrent releases. It gives
    /// the slot up while it is paused or waits for a gate, an approval or a window.
    #[serde(default, skip_serializing_if = "crate::api::is_default")]
    pub holds_slot: bool,

    /// Its place among the releases that wait for a slot: when the first release
    /// started that it supersedes. Default: when it started itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queued_since: Option<Time>,

    /// The pods of the superseded revision must terminate before this one starts.
    #[serde(default, skip_serializing_if = "crate::api::is_default")]
    pub wait_for_termination: bool,

    /// Replicas of the target before its pods were terminated.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub written_replicas: Option<u32>,

    /// The step whose replicas the canary gets before that step begins.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scale_for_step: Option<u32>,

    /// The canary has no ready pod and gets no traffic until it is ready again.
    #[serde(default, skip_serializing_if = "crate::api::is_default")]
    pub traffic_withdrawn: bool,

    /// How often the canary lost all its ready pods while it had traffic.
    #[serde(default, skip_serializing_if = "crate::api::is_default")]
    pub withdrawals: u32,

    /// How often something else overwrote the route while its split was in force.
    #[serde(default, skip_serializing_if = "crate::api::is_default")]
    pub reverts: u32,

    /// The first of the reverts since the last complete check.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reverted_since: Option<Time>,

    /// The field manager that overwrote the route last, as far as known.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reverted_by: String,

    /// A user ended the pause of this step.
    #[serde(default, skip_serializing_if = "crate::api::is_default")]
    pub resumed: bool,

    /// The primary was overwritten and is restored to its previous version, or was
    /// deleted and is created again.
    #[serde(default, skip_serializing_if = "crate::api::is_default")]
    pub restoring: bool,

    /// State of the sample ratio mismatch test.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sample_ratio: Option<Object>,

    /// Ready pods of the canary when they were last counted.
    #[serde(default, skip_serializing_if = "crate::api::is_default")]
    pub warm_pods: u32,

    /// Since when a good part of them is ready and has traffic.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub young_since: Option<Time>,

    /// The broken pod that was deleted, or is to be, for another one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replaced_pod: Option<String>,

    /// Checks in a row at which the primary had requests and the canary none.
    #[serde(default, skip_serializing_if = "crate::api::is_default")]
    pub silent_checks: u32,
}

/// A command and its result.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct CommandStatus {
    /// ID of the command; the same one is not accepted twice.
    pub id: String,

    /// The command, such as `pause`.
    pub verb: String,

    /// Whether it was accepted.
    pub accepted: bool,

    /// The result, in one sentence.
    pub message: String,

    /// When it was processed.
    pub at: Time,
}

/// Why a release started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Trigger {
    /// the pod template changed.
    PodTemplate,
    /// a ConfigMap or Secret changed.
    Config,
    /// a user retried a rejected revision.
    Retry,
    /// a user rolled back to the previous version.
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

    /// Requests or samples behind the canary's value.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub canary_count: Option<f64>,

    /// Requests or samples behind the primary's value.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub primary_count: Option<f64>,

    /// Evidence against the canary: 1 is none at all; at 100 the chance of a
    /// healthy canary looking so bad is one in a hundred.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub evidence: Option<f64>,

    /// How many times the odds of a bad request to the canary are those of the
    /// primary, by the requests of this step.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub times_worse: Option<TimesWorse>,

    /// The requests so far are too few to find a canary three times worse than the
    /// primary with 90 %.
    #[serde(default, skip_serializing_if = "crate::api::is_default")]
    pub low_power: bool,

    /// Failed checks in this release.
    #[serde(default, skip_serializing_if = "crate::api::is_default")]
    pub failures: u32,

    /// Inconclusive checks in a row.
    #[serde(default, skip_serializing_if = "crate::api::is_default")]
    pub inconclusives: u32,

    /// Until when requests have been counted in this step.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub measured_until: Option<Time>,

    /// Internal state of the judge.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub analysis_state: Option<Object>,
}

/// An odds ratio, and the interval that holds it with 95 %, at any number of checks. A
/// bound that is none is not known yet.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
pub struct TimesWorse {
    /// The estimate.
    pub value: f64,

    /// At least.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub low: Option<f64>,

    /// At most.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub high: Option<f64>,
}

/// Verdicts of a judge.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Verdict {
    /// there is enough data and no evidence against the canary.
    Pass,
    /// there is evidence against the canary.
    Fail,
    /// there is too little data, or it could not be measured.
    Inconclusive,
}

/// A gate or approval.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct GateStatus {
    /// Name of the webhook, or of the step that needs approval.
    pub name: String,

    /// Kind of the webhook; none for an approval step.
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    pub type_: Option<HookType>,

    /// Index of its step.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub step: Option<u32>,

    /// Whether it is open.
    pub state: GateState,

    /// Since when it has this state.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<Time>,

    /// When it expires.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Time>,

    /// The user who opened or refused it, if one did.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,

    /// The last response, in one sentence.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
}

/// Whether a gate is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum GateState {
    /// it is still closed.
    Waiting,
    /// it is open.
    Open,
    /// it was refused.
    Refused,
    /// it was not opened in time.
    Expired,
}

/// The next time at which the release moves or is rolled back.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
pub struct NextDeadline {
    /// When the release moves or is rolled back.
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

    /// The canary's highest share of the traffic, in percent.
    #[serde(default)]
    pub highest_weight: Weight,
}

/// How a release ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Outcome {
    /// the primary runs the revision.
    Promoted,
    /// there was evidence against it, or it made no progress.
    RolledBack,
    /// a user aborted it.
    Aborted,
    /// a newer revision superseded it.
    Superseded,
}
