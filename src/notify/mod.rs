//! Notifications about releases, to chats and event receivers.
//!
//! ```text
//!   Report ── notifications ──▶ Notification ── meets_severity_of(alert)? ──▶ Outbox::send ──▶ Destination
//! ```
//!
//! Each kind of receiver is one file that turns a [`Notification`] into the message
//! it takes; the [`Outbox`] delivers. A Slack bot has one message for each release, which
//! is updated, with the steps in its [`thread`]. Guarantees: sending never blocks or fails
//! a release; an alert without a severity gets every notification; texts are cut to
//! the receiver's limits; addresses and tokens are never logged.

mod cloud_event;
mod delivery;
mod destination;
mod discord;
mod google_chat;
mod incident;
mod mail;
mod outbox;
mod rocket;
pub mod slack;
mod teams;
mod template;
mod text;
pub mod thread;

use jiff::Timestamp;
use serde::Serialize;

pub use destination::{Destination, DestinationError};
pub use mail::MailRouteError;
pub use outbox::{DeliveryCounters, Options, Outbox, OutboxSetupError};
use thread::Threads;

use crate::api::{
    Canary, CanaryStatus, Weight,
    canary::{Alert, Phase, Severity, status::Verdict},
};
use crate::engine::names::name_of;
use crate::engine::report::{Reason, Report};

/// The installation that notifies: the same for every notification of a controller.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Site {
    /// Shown in every message, since several clusters may write to one channel.
    pub cluster: Option<String>,
    /// Of the dashboard, without a slash at the end.
    pub dashboard: Option<String>,
    /// Slack sends clicks on buttons to this controller.
    pub buttons: bool,
}

/// The release that a notification is about.
pub struct Subject<'a> {
    pub canary: &'a Canary,
    /// Of the decision.
    pub status: &'a CanaryStatus,
    pub site: &'a Site,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Notification {
    pub name: String,
    pub namespace: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cluster: Option<String>,
    /// Of the Canary.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uid: Option<String>,
    /// Number of the release, from 1; 0 before the first.
    pub release: u64,
    pub phase: Phase,
    /// The canary's share of the traffic.
    pub weight: Weight,
    /// `2/5`, during a release.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub step: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub revision: Option<String>,
    /// `web:v1 → v2`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    pub severity: Severity,
    /// CamelCase code.
    pub reason: &'static str,
    /// The reason as text.
    pub sentence: String,
    /// The last verdict of each metric.
    pub metrics: Vec<MetricLine>,
    pub at: Timestamp,
    /// The Canary in the dashboard.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub link: Option<String>,
    /// The release waits for this.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub approval: Option<ApprovalRequest>,
    /// Of earlier messages of this release.
    #[serde(skip)]
    pub threads: Threads,
}

/// A question to people.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ApprovalRequest {
    pub gate: String,
    /// Index of the step.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub step_index: Option<u32>,
    /// For a shell.
    pub command: String,
    /// Slack sends clicks on buttons to the controller.
    #[serde(skip)]
    pub buttons: bool,
    #[serde(skip_serializing_if = "Option::is_none", flatten)]
    pub links: Option<AnswerLinks>,
}

/// Signed links, each of which asks for a confirmation and works once.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct AnswerLinks {
    pub approve_url: String,
    pub reject_url: String,
}

/// The look of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tone {
    /// Somebody should answer.
    Question,
    Progress,
    Success,
    Warning,
    Failure,
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

/// The notifiable reports of a decision, in order.
pub fn notifications(about: &Subject<'_>, report: &Report, at: Timestamp) -> Vec<Notification> {
    let reports = report.preceding.iter().chain([report]);
    reports
        .filter(|report| {
            report.should_notify && is_notifiable(&report.reason) && !is_muted(about.canary, &report.reason)
        })
        .map(|report| notification(about, report, at))
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

    fn tone(&self) -> Tone {
        match self.severity {
            _ if self.approval.is_some() => Tone::Question,
            Severity::Info if self.is_promoted() => Tone::Success,
            Severity::Info => Tone::Progress,
            Severity::Warn => Tone::Warning,
            Severity::Error => Tone::Failure,
        }
    }

    fn is_promoted(&self) -> bool {
        self.reason == PROMOTED
    }

    /// The line that is read first: `web.prod: approve web:v1 → v2?`
    fn headline(&self) -> String {
        let author = self.author();
        match (&self.approval, self.reason) {
            (Some(_), _) => match &self.image {
                Some(image) => format!("{author}: approve {image}?"),
                None => format!("{author}: approve this release?"),
            },
            (None, PROMOTED) => format!("{author}: promoted"),
            (None, ROLLED_BACK) => format!("{author}: rolled back"),
            (None, _) => format!("{author}: {:?}", self.phase),
        }
    }

    /// The released revision's share: all of it once it is promoted, although the canary
    /// has none then.
    fn share(&self) -> Weight {
        if self.is_promoted() { Weight::FULL } else { self.weight }
    }

    /// Titles and values, shown besides headline, sentence and bar, which have phase and weight.
    fn fields(&self) -> Vec<(&'static str, String)> {
        let fields = [
            ("Cluster", &self.cluster),
            ("Image", &self.image),
            ("Step", &self.step),
            ("Revision", &self.revision),
        ];
        fields.into_iter().filter_map(|(title, value)| Some((title, value.clone()?))).collect()
    }

    /// What somebody who is asked has to know: the verdict, and the command that approves.
    fn question_fields(&self) -> Vec<(&'static str, String)> {
        let Some(approval) = &self.approval else { return Vec::new() };
        vec![("Verdict", text::summary(&self.metrics)), ("Approve with", approval.command.clone())]
    }

    /// Titles and URLs: the answers to a question, and the dashboard.
    fn links(&self) -> Vec<(&'static str, &str)> {
        let answers = self.approval.iter().filter_map(|approval| approval.links.as_ref());
        let answers = answers.flat_map(|AnswerLinks { approve_url, reject_url }| {
            [("Approve…", approve_url.as_str()), ("Reject…", reject_url.as_str())]
        });
        answers.chain(self.link.as_deref().map(|link| ("Dashboard", link))).collect()
    }
}

const PROMOTED: &str = "Promoted";
const ROLLED_BACK: &str = "RolledBack";

fn notification(about: &Subject<'_>, report: &Report, at: Timestamp) -> Notification {
    let Subject { canary, status, site } = about;
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
    let name = canary.metadata.name.clone().unwrap_or_default();
    let namespace = canary.metadata.namespace.clone().unwrap_or_default();
    let approval = match &report.reason {
        Reason::AwaitingApproval { name: gate, message: _ } => Some(ApprovalRequest {
            step_index: status.step.as_ref().map(|step| step.index),
            command: command(&name, &namespace, gate),
            gate: gate.clone(),
            buttons: site.buttons,
            links: None,
        }),
        _ => None,
    };
    Notification {
        cluster: site.cluster.clone(),
        link: site.dashboard.as_ref().map(|url| format!("{url}/#/c/{namespace}/{name}")),
        name,
        namespace,
        uid: canary.metadata.uid.clone(),
        release: status.releases,
        phase: status.phase,
        weight: status.canary_weight,
        step: status.step.as_ref().map(|step| step.progress.clone()),
        revision: release.or(candidate).map(|revision| name_of(status, revision).to_owned()),
        image: Some(&status.image).filter(|image| !image.is_empty()).cloned(),
        severity: report.severity,
        reason: report.reason.code(),
        sentence: report.message.clone(),
        metrics: metrics.collect(),
        at,
        approval,
        threads: thread::recorded(canary),
    }
}

fn command(name: &str, namespace: &str, gate: &str) -> String {
    let is_plain = gate.chars().all(|c| c.is_ascii_alphanumeric() || "-_./:".contains(c));
    let gate = if is_plain { gate.to_owned() } else { format!("'{}'", gate.replace('\'', r"'\''")) };
    format!("serin approve {name} --namespace {namespace} --gate {gate}")
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
        | Reason::PodReplaced { .. }
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
        // Sent with the rollback.
        | Reason::TargetRejected { .. }
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
