//! One reason for each decision, with its data, and one message rendered from
//! it. Events, conditions, logs, notifications and the dashboard all show this
//! message.
//!
//! Messages contain no current time: a release that holds renders the same
//! message at every decision, so it is published once.

use std::collections::BTreeMap;
use std::fmt::{self, Write};

use jiff::Timestamp;
use serde::Serialize;

use crate::api::{
    Weight,
    canary::{CanaryStatus, Severity},
};

/// The last transition of a decision, or the reason why there was none.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    pub reason: Reason,
    /// The reason as text.
    pub message: String,
    pub severity: Severity,
    /// False: `reason` explains why nothing changed.
    pub is_transition: bool,
    /// Not published before: needs an Event and, by its severity, a notification.
    pub should_notify: bool,
    /// Earlier transitions of the same decision; rarely any.
    pub preceding: Vec<Report>,
}

/// Why a release moved, holds, or ended.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "reason", rename_all_fields = "camelCase")]
pub enum Reason {
    // Before the first release, and between releases.
    TargetMissing,
    PrimaryMissing,
    CreatingPrimary,
    PrimaryStarting {
        ready: u32,
        desired: u32,
        trouble: Option<String>,
    },
    ScalingDownTarget,
    Initialized,
    Suspended,
    Promoted {
        revision: String,
    },
    NoChange {
        revision: String,
    },
    RestoringPrimary {
        revision: String,
    },
    PostRolloutHook {
        hook: String,
    },
    PrimaryDown,
    PrimaryDegraded {
        ready: u32,
        desired: u32,
    },

    // A new revision waits.
    NewRevision {
        revision: String,
        cause: RevisionCause,
    },
    Superseded {
        by: String,
    },
    PrimaryNotReady {
        ready: u32,
        desired: u32,
    },
    WindowClosed {
        frozen: bool,
        until: Option<Timestamp>,
    },
    TooManyReleases {
        others: u32,
        cap: u32,
    },
    CanaryTerminating,
    GateClosed {
        gate: String,
        why: String,
    },

    // A release moves.
    StartingCanary {
        replicas: u32,
    },
    CanaryNotReady {
        ready: u32,
        desired: u32,
        trouble: Option<String>,
    },
    CanaryDown,
    RouteNotInForce {
        weight: Weight,
    },
    RoutePending {
        weight: Weight,
        why: String,
    },
    RoutingUnknown,
    RouteReverted {
        times: u32,
        by: Option<String>,
    },
    HookPending {
        hook: String,
        why: String,
    },
    Advanced {
        step: u32,
        of: u32,
        name: String,
        weight: Weight,
        matched: bool,
    },
    StepsChanged {
        step: u32,
        of: u32,
        weight: Weight,
    },
    Analyzing {
        step: u32,
        of: u32,
        name: String,
        passed: u32,
        needed: u32,
    },
    CheckFailed {
        failed: u32,
        threshold: u32,
        why: String,
    },
    LatestCheckFailed {
        why: String,
    },
    PodReplaced {
        pod: String,
        why: String,
    },
    Inconclusive {
        why: String,
    },
    Paused,
    StepPaused {
        name: String,
        until: Option<Timestamp>,
    },
    AwaitingApproval {
        name: String,
        message: Option<String>,
    },

    // A release ends well.
    Switching,
    /// With the metrics whose requests were too few to find a much worse canary.
    Promoting {
        revision: String,
        low_power: Vec<String>,
    },
    PrimaryRolling {
        ready: u32,
        desired: u32,
        trouble: Option<String>,
    },
    TrafficReturning {
        weight: Weight,
    },

    // A release ends badly.
    RolledBack {
        revision: String,
        cause: RollbackCause,
    },
    StaysRolledBack {
        revision: String,
        why: String,
    },
    TargetRejected {
        revision: String,
        promoted: String,
    },
    PrimaryUnavailable,

    // Commands.
    CommandRefused {
        verb: String,
        why: String,
    },

    // Work that fails again and again.
    Failing {
        why: String,
        refused: bool,
    },
    MaintenanceFailing {
        why: String,
    },

    // The Canary itself.
    InvalidSpec {
        why: String,
    },
    RestoringOriginals,
    DeletionHeld {
        revision: String,
        promoted: String,
        until: Timestamp,
    },
    Terminated,
}

/// Why a revision is new.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub enum RevisionCause {
    Template,
    /// Of a target without a pod template.
    Target,
    Configs(Vec<String>),
    Retry,
}

/// Why a release was rolled back.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all_fields = "camelCase")]
pub enum RollbackCause {
    /// The threshold of failed checks; `why` is of the last one.
    Checks {
        failed: u32,
        why: String,
    },
    /// The limit of one metric.
    Metric {
        metric: String,
        why: String,
    },
    /// No progress in time.
    Deadline {
        seconds: u64,
        what: String,
    },
    /// The canary lost all its pods under its traffic.
    CanaryDied {
        times: u32,
    },
    /// The proxies refuse the split of a step.
    RouteRefused {
        why: String,
    },
    GateExpired {
        gate: String,
    },
    /// A user refused approval.
    ApprovalRefused {
        gate: String,
        why: String,
    },
    RollbackGate {
        gate: String,
    },
    Aborted {
        by: Option<String>,
    },
    /// The promoted version was rolled back by command.
    PromotionRolledBack {
        by: Option<String>,
    },
}

impl Reason {
    /// Machine-readable reason of conditions and Events.
    pub fn code(&self) -> &'static str {
        match self {
            Self::TargetMissing => "TargetMissing",
            Self::PrimaryMissing => "PrimaryMissing",
            Self::CreatingPrimary => "CreatingPrimary",
            Self::PrimaryStarting { .. } => "PrimaryStarting",
            Self::ScalingDownTarget => "ScalingDownTarget",
            Self::Initialized => "Initialized",
            Self::Suspended => "Suspended",
            Self::Promoted { .. } => "Promoted",
            Self::NoChange { .. } => "NoChange",
            Self::RestoringPrimary { .. } => "RestoringPrimary",
            Self::PostRolloutHook { .. } => "PostRolloutHook",
            Self::NewRevision { .. } => "NewRevision",
            Self::Superseded { .. } => "Superseded",
            Self::PrimaryNotReady { .. } => "PrimaryNotReady",
            Self::WindowClosed { .. } => "WindowClosed",
            Self::TooManyReleases { .. } => "TooManyReleases",
            Self::CanaryTerminating => "CanaryTerminating",
            Self::GateClosed { .. } => "GateClosed",
            Self::StartingCanary { .. } => "StartingCanary",
            Self::CanaryNotReady { .. } => "CanaryNotReady",
            Self::CanaryDown => "CanaryDown",
            Self::RouteNotInForce { .. } => "RouteNotInForce",
            Self::RoutePending { .. } => "RoutePending",
            Self::RoutingUnknown => "RoutingUnknown",
            Self::RouteReverted { .. } => "RouteReverted",
            Self::HookPending { .. } => "HookPending",
            Self::Advanced { .. } => "Advanced",
            Self::StepsChanged { .. } => "StepsChanged",
            Self::Analyzing { .. } => "Analyzing",
            Self::CheckFailed { .. } => "CheckFailed",
            Self::LatestCheckFailed { .. } => "LatestCheckFailed",
            Self::PodReplaced { .. } => "PodReplaced",
            Self::Inconclusive { .. } => "Inconclusive",
            Self::Paused => "Paused",
            Self::StepPaused { .. } => "StepPaused",
            Self::AwaitingApproval { .. } => "AwaitingApproval",
            Self::Switching => "Switching",
            Self::Promoting { .. } => "Promoting",
            Self::PrimaryRolling { .. } => "PrimaryRolling",
            Self::TrafficReturning { .. } => "TrafficReturning",
            Self::RolledBack { .. } | Self::StaysRolledBack { .. } => "RolledBack",
            Self::TargetRejected { .. } => "TargetRejected",
            Self::PrimaryUnavailable => "PrimaryUnavailable",
            Self::PrimaryDown => "PrimaryDown",
            Self::PrimaryDegraded { .. } => "PrimaryNotReady",
            Self::CommandRefused { .. } => "CommandRefused",
            Self::Failing { .. } => "Failing",
            Self::MaintenanceFailing { .. } => "MaintenanceFailing",
            Self::InvalidSpec { .. } => "InvalidSpec",
            Self::RestoringOriginals => "RestoringOriginals",
            Self::DeletionHeld { .. } => "DeletionHeld",
            Self::Terminated => "Terminated",
        }
    }

    /// Expected to resolve by itself within an interval; published only if it
    /// lasts longer.
    pub fn is_transient(&self) -> bool {
        matches!(
            self,
            Self::PrimaryStarting { trouble: None, .. }
                | Self::ScalingDownTarget
                | Self::CanaryTerminating
                | Self::StartingCanary { .. }
                | Self::CanaryNotReady { trouble: None, .. }
                | Self::RouteNotInForce { .. }
                | Self::PrimaryDegraded { .. }
                | Self::PrimaryRolling { trouble: None, .. }
                | Self::TrafficReturning { .. }
        )
    }

    /// Names revisions as people do.
    pub fn name_revisions(&mut self, names: &BTreeMap<String, String>) {
        let rename = |revision: &mut String| {
            if let Some(name) = names.get(revision) {
                revision.clone_from(name);
            }
        };
        match self {
            Self::Promoted { revision }
            | Self::NoChange { revision }
            | Self::RestoringPrimary { revision }
            | Self::NewRevision { revision, .. }
            | Self::Superseded { by: revision }
            | Self::Promoting { revision, .. }
            | Self::RolledBack { revision, .. }
            | Self::StaysRolledBack { revision, .. } => rename(revision),
            Self::DeletionHeld { revision, promoted, .. } | Self::TargetRejected { revision, promoted } => {
                rename(revision);
                rename(promoted);
            }
            _ => {}
        }
    }

    /// The outcome of the last release, reported before, is all there is to report.
    pub fn is_resting(&self) -> bool {
        matches!(self, Self::Initialized | Self::Promoted { .. } | Self::StaysRolledBack { .. })
    }

    /// Nothing moves until a person acts, or a deadline that is set beside.
    pub fn needs_person(&self) -> bool {
        matches!(
            self,
            Self::Paused | Self::StepPaused { .. } | Self::AwaitingApproval { .. } | Self::GateClosed { .. }
        )
    }

    /// A release that holds for this reason waits for a person or a time, and others
    /// may run meanwhile.
    pub fn yields_slot(&self) -> bool {
        match self {
            Self::Paused
            | Self::StepPaused { .. }
            | Self::AwaitingApproval { .. }
            | Self::WindowClosed { .. } => true,
            // A gate that has not answered yet is no wait.
            Self::GateClosed { why, .. } => !why.is_empty(),
            _ => false,
        }
    }

    /// Rollbacks are errors; problems of a running release are warnings.
    pub fn severity(&self) -> Severity {
        match self {
            Self::RolledBack { .. }
            | Self::StaysRolledBack { .. }
            | Self::PrimaryUnavailable
            | Self::PrimaryDown => Severity::Error,
            Self::TargetMissing
            | Self::RestoringPrimary { .. }
            | Self::PrimaryMissing
            | Self::CanaryDown
            | Self::CheckFailed { .. }
            | Self::LatestCheckFailed { .. }
            | Self::PodReplaced { .. }
            | Self::Inconclusive { .. }
            | Self::RoutingUnknown
            | Self::RouteReverted { .. }
            | Self::TargetRejected { .. }
            | Self::DeletionHeld { .. }
            | Self::CommandRefused { .. }
            | Self::Failing { .. }
            | Self::MaintenanceFailing { .. }
            | Self::InvalidSpec { .. } => Severity::Warn,
            _ => Severity::Info,
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TargetMissing => f.write_str("Waiting for the target: the workload of spec.targetRef does not exist."),
            Self::PrimaryMissing => f.write_str(
                "The primary was deleted and is being created again; until it is ready, traffic goes to the canary or the previous version, if one of them can serve.",
            ),
            Self::CreatingPrimary => f.write_str("Creating the primary from the target."),
            Self::PrimaryStarting { ready, desired, trouble } => {
                write!(f, "Waiting for the new primary: {ready} of {desired} pods ready")?;
                write_trouble(f, trouble.as_deref())
            }
            Self::ScalingDownTarget => f.write_str("The primary serves all traffic; scaling the target, now the canary, to zero."),
            Self::Initialized => f.write_str("The primary serves all traffic; waiting for a new revision."),
            Self::Suspended => f.write_str("Suspended: nothing moves until spec.suspend is false again."),
            Self::Promoted { revision } => write!(f, "Revision {revision} is promoted and serves all traffic."),
            Self::NoChange { revision } => {
                write!(f, "The target is back at revision {revision}, which the primary runs: nothing to release.")
            }
            Self::RestoringPrimary { revision } => {
                write!(f, "Restoring the primary to revision {revision}; traffic returns once it is ready.")
            }
            Self::PostRolloutHook { hook } => write!(f, "The release is over; calling the hook {hook}."),
            Self::NewRevision { revision, cause } => match cause {
                RevisionCause::Template => write!(f, "New revision {revision}: the pod template changed."),
                RevisionCause::Target => write!(f, "New revision {revision}: the target changed."),
                RevisionCause::Configs(names) => write!(f, "New revision {revision}: {} changed.", names.join(", ")),
                RevisionCause::Retry => write!(f, "Revision {revision} is released again."),
            },
            Self::Superseded { by } => write!(f, "Revision {by} supersedes this release."),
            Self::PrimaryNotReady { ready, desired } => {
                write!(f, "Holding: the primary is not ready ({ready} of {desired} pods).")
            }
            Self::WindowClosed { frozen, until } => {
                f.write_str(if *frozen {
                    "Holding: a release freeze is on"
                } else {
                    "Holding: no release window is open"
                })?;
                match until {
                    Some(until) => write!(f, " until {until:.0}."),
                    None => f.write_str("."),
                }
            }
            Self::TooManyReleases { others, cap } => {
                write!(f, "Waiting for a free slot: {others} other releases are running, the limit is {cap}.")
            }
            Self::CanaryTerminating => f.write_str("Waiting for the canary's old pods to terminate."),
            Self::GateClosed { gate, why } if why.is_empty() => write!(f, "Waiting for the gate {gate} to open."),
            Self::GateClosed { gate, why } => write!(f, "Waiting for the gate {gate} to open: {why}."),
            Self::StartingCanary { replicas } => write!(f, "Starting the canary with {replicas} replicas."),
            Self::CanaryNotReady { ready, desired, trouble } => {
                write!(f, "Waiting for the canary: {ready} of {desired} pods ready")?;
                write_trouble(f, trouble.as_deref())
            }
            Self::CanaryDown => f.write_str("The canary has no ready pod: all traffic goes to the primary until it has."),
            Self::RouteNotInForce { weight } => write!(f, "Waiting for the split of {weight} % to be in force."),
            Self::RoutePending { weight, why } => {
                write!(f, "Holding until the split of {weight} % is in force: {why}.")
            }
            Self::RoutingUnknown => f.write_str("Holding: the router does not report which split is in force."),
            Self::RouteReverted { times, by } => write!(
                f,
                "{} overwrote the route {times} times in this release, and the check starts again each time: {}.",
                by.as_deref().unwrap_or("Something else"),
                stop_reverting(by.as_deref())
            ),
            Self::HookPending { hook, why } if why.is_empty() => write!(f, "Waiting for the hook {hook} to pass."),
            Self::HookPending { hook, why } => write!(f, "Waiting for the hook {hook} to pass: {why}."),
            Self::Advanced { step, of, name, weight, matched } => {
                let matched = if *matched { " and the matched requests" } else { "" };
                write!(f, "Step {} of {of}, {name}: the canary has {weight} % of the traffic{matched}.", step + 1)
            }
            Self::StepsChanged { step, of, weight } => write!(
                f,
                "The steps were edited: continuing from step {} of {of}, {weight} % of the traffic.",
                step + 1
            ),
            Self::Analyzing { step, of, name, passed, needed } => {
                write!(f, "Step {} of {of}, {name}: {passed} of {needed} checks passed.", step + 1)
            }
            Self::CheckFailed { failed, threshold, why } => {
                write!(f, "Check failed, {failed} of {threshold} that roll back: {why}.")
            }
            Self::LatestCheckFailed { why } => {
                write!(f, "Holding until a check passes; the latest one failed: {why}.")
            }
            Self::PodReplaced { pod, why } => {
                write!(f, "Pod {pod} of the canary is replaced, and the canary judged anew: {why}.")
            }
            Self::Inconclusive { why } => write!(f, "Holding, inconclusive: {why}."),
            Self::Paused => f.write_str("Paused by command; analysis continues, and resume ends the pause."),
            Self::StepPaused { name, until: Some(until) } => write!(f, "Step {name}: pausing until {until:.0}."),
            Self::StepPaused { name, until: None } => write!(f, "Step {name}: pausing until it is resumed."),
            Self::AwaitingApproval { name, message: Some(message) } => {
                write!(f, "Step {name}: waiting for approval: {message}")
            }
            Self::AwaitingApproval { name, message: None } => write!(f, "Step {name}: waiting for approval."),
            Self::Switching => f.write_str("Switching all traffic to the canary while the primary is updated."),
            Self::Promoting { revision, low_power } => {
                write!(f, "Promoting revision {revision}: copying it to the primary.")?;
                match low_power.as_slice() {
                    [] => Ok(()),
                    metrics => write!(
                        f,
                        " By {} a canary three times worse could have passed unseen: there were too few requests.",
                        metrics.join(" and ")
                    ),
                }
            }
            Self::PrimaryRolling { ready, desired, trouble } => {
                write!(f, "Waiting for the primary to run the promoted revision: {ready} of {desired} pods ready")?;
                write_trouble(f, trouble.as_deref())
            }
            Self::TrafficReturning { weight } => {
                write!(f, "Shifting traffic back to the primary: {weight} % still on the canary.")
            }
            Self::RolledBack { revision, cause } => write!(f, "Revision {revision} is rolled back: {cause}."),
            Self::StaysRolledBack { revision, why } => write!(f, "Revision {revision} is rolled back: {why}."),
            Self::TargetRejected { revision, promoted } => write!(
                f,
                "The target is still at revision {revision}, which was rolled back; the primary serves {promoted}. \
                 Applying the same manifest again starts no release: revert the change at its source, push a mended one, \
                 or retry it by command."
            ),
            Self::PrimaryUnavailable => f.write_str("Traffic stays with the canary: the primary has no ready pod."),
            Self::PrimaryDown => f.write_str("The primary has no ready pod."),
            Self::PrimaryDegraded { ready, desired } => {
                write!(f, "The primary is not ready: {ready} of {desired} pods.")
            }
            Self::CommandRefused { verb, why } => write!(f, "Refused to {verb}: {why}."),
            Self::Failing { why, refused: true } => {
                write!(f, "{}. Nothing advances until that is corrected.", capitalized(why))
            }
            Self::Failing { why, refused: false } => write!(f, "{}. Trying again.", capitalized(why)),
            Self::MaintenanceFailing { why } => {
                write!(f, "{}. The release continues meanwhile.", capitalized(why))
            }
            Self::InvalidSpec { why } => write!(f, "The Canary is invalid: {why}."),
            Self::DeletionHeld { revision, promoted, until } => write!(
                f,
                "The target is at revision {revision}, which was not promoted: the primary keeps the traffic \
                 until the target is set back to {promoted}, or until {until:.0}."
            ),
            Self::RestoringOriginals => f.write_str("Restoring the state from before this Canary."),
            Self::Terminated => f.write_str("Everything is restored."),
        }
    }
}

impl fmt::Display for RollbackCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Checks { failed: 1, why } => write!(f, "a check failed ({why})"),
            Self::Checks { failed, why } => write!(f, "{failed} checks failed, the last one {why}"),
            Self::Metric { metric, why } => write!(f, "{metric} failed ({why})"),
            Self::Deadline { seconds, what } => write!(f, "no progress for {seconds} seconds; {what}"),
            Self::CanaryDied { times } => {
                write!(f, "the canary lost all its ready pods {times} times while it had traffic")
            }
            Self::RouteRefused { why } => f.write_str(why),
            Self::GateExpired { gate } => write!(f, "the gate {gate} expired before it opened"),
            Self::ApprovalRefused { gate, why } if why.is_empty() => {
                write!(f, "approval of {gate} was refused")
            }
            Self::ApprovalRefused { gate, why } => write!(f, "approval of {gate} was refused ({why})"),
            Self::RollbackGate { gate } => write!(f, "the rollback gate {gate} requested it"),
            Self::Aborted { by } => write_with_actor(f, "aborted", by),
            Self::PromotionRolledBack { by } => write_with_actor(f, "returned to the previous version", by),
        }
    }
}

/// Ends a sentence that counts pods.
fn write_trouble(f: &mut fmt::Formatter<'_>, trouble: Option<&str>) -> fmt::Result {
    match trouble {
        Some(trouble) => write!(f, "; {}.", trouble.trim_end_matches('.')),
        None => f.write_str("."),
    }
}

/// How to keep a writer, by the name of its field manager, from the route.
fn stop_reverting(manager: Option<&str>) -> String {
    let known = match manager {
        None => "find the writer in metadata.managedFields of the route and exclude the route from it",
        Some(manager) if manager.starts_with("argocd") => {
            "list the route in spec.ignoreDifferences of the Application with managedFieldsManagers: [serin], and add RespectIgnoreDifferences=true to its syncOptions"
        }
        Some("kustomize-controller") => {
            "annotate the route in its source with kustomize.toolkit.fluxcd.io/ssa: IfNotPresent"
        }
        Some("helm-controller") => "list the route in spec.driftDetection.ignore of the HelmRelease",
        Some(other) => return format!("keep {other} from writing the route"),
    };
    known.to_owned()
}

/// A message as a sentence of its own, without its full stop.
fn capitalized(message: &str) -> String {
    let mut chars = message.trim_end_matches('.').chars();
    chars.next().map_or(String::new(), |first| first.to_uppercase().chain(chars).collect())
}

fn write_with_actor(f: &mut fmt::Formatter<'_>, what: &str, by: &Option<String>) -> fmt::Result {
    match by {
        Some(by) => write!(f, "{what} by {by}"),
        None => f.write_str(what),
    }
}

impl Report {
    /// Does the status already have this message?
    pub fn matches_status(&self, status: &CanaryStatus) -> bool {
        status.message.as_deref() == Some(&self.message)
    }

    /// As [`Report::matches_status`], with any numbers.
    pub fn matches_ignoring_numbers(&self, status: &CanaryStatus) -> bool {
        let words = |text: &str| text.replace(|c: char| c.is_ascii_digit() || c == '.' || c == ',', "");
        status.message.as_deref().map(words) == Some(words(&self.message))
    }
}

/// Of a sentence in the status, in bytes. Some quote what another system returned, and a
/// status that is too large cannot be written.
const MAX_SENTENCE: usize = 1024;

/// A sentence for the status, cut if it is too long for it.
pub fn cut(mut sentence: String) -> String {
    const ELLIPSIS: char = '…';
    if sentence.len() > MAX_SENTENCE {
        sentence.truncate(sentence.floor_char_boundary(MAX_SENTENCE - ELLIPSIS.len_utf8()));
        sentence.push(ELLIPSIS);
    }
    sentence
}

impl From<Reason> for Report {
    fn from(reason: Reason) -> Self {
        // Fits most messages, so the buffer seldom grows.
        let mut message = String::with_capacity(128);
        let _ = write!(message, "{reason}");
        let (severity, message) = (reason.severity(), cut(message));
        Self { reason, message, severity, is_transition: true, should_notify: true, preceding: Vec::new() }
    }
}
