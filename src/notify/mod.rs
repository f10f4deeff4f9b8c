//! Notifications about releases, to chats and event receivers.
//!
//! ```text
//!   Report ── notifications ──▶ Notification ── meets_severity_of(alert)? ──▶ Outbox::send ──▶ Destination
//! ```
//!
//! Each kind of receiver is one file that turns a [`Notification`] into the message
//! it takes; the [`Outbox`] delivers. Guarantees: sending never blocks or fails a
//! release; an alert without a severity gets every notification; texts are cut to
//! the receiver's limits; addresses and tokens are never logged.

mod cloud_event;
mod destination;
mod discord;
mod google_chat;
mod outbox;
mod rocket;
mod slack;
mod teams;
mod text;

use jiff::Timestamp;
use serde::Serialize;

pub use destination::{Destination, DestinationError};
pub use outbox::{DeliveryCounters, Options, Outbox, OutboxSetupError};

use crate::api::{
    Canary, CanaryStatus, Weight,
    canary::{Alert, Phase, Severity, status::Verdict},
};
use crate::engine::report::{Reason, Report};

#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Notification {
    pub name: String,
    pub namespace: String,
    pub phase: Phase,
    /// The canary's share of the traffic.
    pub weight: Weight,
    /// `2/5`, during a release.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub step: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub revision: Option<String>,
    pub severity: Severity,
    /// CamelCase code.
    pub reason: &'static str,
    /// The reason as text.
    pub sentence: String,
    /// The last verdict of each metric.
    pub metrics: Vec<MetricLine>,
    pub at: Timestamp,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct MetricLine {
    pub name: String,
    pub verdict: Verdict,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub canary: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub primary: Option<f64>,
    pub reason: String,
}

/// The notifiable reports of a decision, in order; `status` is that of the
/// decision.
pub fn notifications(
    canary: &Canary,
    status: &CanaryStatus,
    report: &Report,
    at: Timestamp,
) -> Vec<Notification> {
    let reports = report.preceding.iter().chain([report]);
    reports
        .filter(|report| {
            report.should_notify && is_notifiable(&report.reason) && !is_muted(canary, &report.reason)
        })
        .map(|report| notification(canary, status, report, at))
        .collect()
}

impl Notification {
    /// At least the alert's severity?
    pub fn meets_severity_of(&self, alert: &Alert) -> bool {
        self.severity >= alert.severity.unwrap_or_default()
    }

    /// In Flagger's format.
    fn author(&self) -> String {
        format!("{}.{}", self.name, self.namespace)
    }

    /// Titles and values, shown besides the sentence.
    fn fields(&self) -> Vec<(&'static str, String)> {
        let mut fields =
            vec![("Phase", format!("{:?}", self.phase)), ("Canary weight", format!("{} %", self.weight))];
        fields.extend(self.step.clone().map(|step| ("Step", step)));
        fields.extend(self.revision.clone().map(|revision| ("Revision", revision)));
        fields
    }
}

fn notification(canary: &Canary, status: &CanaryStatus, report: &Report, at: Timestamp) -> Notification {
    let release = status.release.as_ref().map(|release| &release.revision);
    let candidate = status.revisions.as_ref().and_then(|revisions| revisions.candidate.as_ref());
    let judged = status.metrics.iter().filter(|metric| metric.at.is_some());
    let metrics = judged.map(|metric| MetricLine {
        name: metric.name.clone(),
        verdict: metric.verdict,
        canary: metric.canary,
        primary: metric.primary,
        reason: metric.reason.clone(),
    });
    Notification {
        name: canary.metadata.name.clone().unwrap_or_default(),
        namespace: canary.metadata.namespace.clone().unwrap_or_default(),
        phase: status.phase,
        weight: status.canary_weight,
        step: status.step.as_ref().map(|step| step.progress.clone()),
        revision: release.or(candidate).cloned(),
        severity: report.severity,
        reason: report.reason.code(),
        sentence: report.message.clone(),
        metrics: metrics.collect(),
        at,
    }
}

/// Intermediate progress, such as each starting pod, is left to Events and the
/// dashboard.
fn is_notifiable(reason: &Reason) -> bool {
    match reason {
        Reason::TargetMissing
        | Reason::PrimaryMissing
        | Reason::Initialized
        | Reason::Suspended
        | Reason::Promoted { .. }
        | Reason::NoChange { .. }
        | Reason::RestoringPrimary { .. }
        | Reason::NewRevision { .. }
        | Reason::Superseded { .. }
        | Reason::WindowClosed { .. }
        | Reason::GateClosed { .. }
        | Reason::CanaryDown
        | Reason::RoutingUnknown
        | Reason::RouteReverted { .. }
        | Reason::HookPending { .. }
        | Reason::Advanced { .. }
        | Reason::StepsChanged { .. }
        | Reason::CheckFailed { .. }
        | Reason::Inconclusive { .. }
        | Reason::Paused
        | Reason::StepPaused { .. }
        | Reason::AwaitingApproval { .. }
        | Reason::Promoting { .. }
        | Reason::RolledBack { .. }
        | Reason::StaysRolledBack { .. }
        | Reason::PrimaryUnavailable
        | Reason::PrimaryDown
        | Reason::Failing { .. }
        | Reason::MaintenanceFailing { .. }
        | Reason::InvalidSpec { .. }
        | Reason::DeletionHeld { .. }
        | Reason::Terminated => true,
        Reason::CreatingPrimary
        | Reason::PrimaryStarting { .. }
        | Reason::ScalingDownTarget
        | Reason::PostRolloutHook { .. }
        | Reason::PrimaryNotReady { .. }
        | Reason::PrimaryDegraded { .. }
        // Its author is answered.
        | Reason::CommandRefused { .. }
        | Reason::TooManyReleases { .. }
        | Reason::CanaryTerminating
        | Reason::StartingCanary { .. }
        | Reason::CanaryNotReady { .. }
        | Reason::RouteNotInForce { .. }
        | Reason::RoutePending { .. }
        | Reason::Analyzing { .. }
        | Reason::LatestCheckFailed { .. }
        | Reason::Switching
        | Reason::PrimaryRolling { .. }
        | Reason::TrafficReturning { .. }
        | Reason::RestoringOriginals => false,
    }
}

/// About a webhook with `muteAlert`? The end of a release is never muted.
fn is_muted(canary: &Canary, reason: &Reason) -> bool {
    let (Reason::GateClosed { gate: hook, .. } | Reason::HookPending { hook, .. }) = reason else {
        return false;
    };
    canary.spec.analysis.webhooks.iter().any(|webhook| webhook.mute_alert && webhook.name == *hook)
}
