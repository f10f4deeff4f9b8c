//! What the API answers about a Canary: objects in, JSON out. Pure.
//!
//! Text and numbers of the status, nothing of the spec but names and limits: a spec may hold
//! addresses and query texts that readers of the page need not see.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use schemars::JsonSchema;
use serde::Serialize;

use crate::{
    api::{
        Canary, CanaryStatus,
        canary::{
            Metric,
            status::{GateState, GateStatus, MetricStatus, Outcome, PastRelease, Phase, Trigger, Verdict},
        },
        condition::ConditionStatus,
        judge::ThresholdRange,
    },
    controller::{CachedCanary, HasMeta as _, NamespacedName},
    engine::{
        command::Verb,
        names,
        plan::steps::{Pause, Step, steps},
    },
    gates::annotations::pending_approvals,
    routing::provider_name,
};

/// A Canary in the list.
#[derive(Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Row {
    pub namespace: String,
    pub name: String,
    pub attention: Attention,
    /// What it does, in one word, as `serin get` shows it.
    pub state: String,
    /// The canary's share of the traffic, in percent.
    pub weight: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub step: Option<StepProgress>,
    /// The current activity and its reason, in one sentence.
    pub message: String,
    /// Since when it is in its phase.
    #[schemars(with = "Option<String>")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<Timestamp>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next: Option<Next>,
    /// Kind and name of the workload.
    pub target: String,
    /// Gates that wait for a person.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub waiting: Vec<String>,
}

/// Whether a person has to do something.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum Attention {
    Person,
    Moving,
    Rest,
}

#[derive(Serialize, JsonSchema)]
pub struct StepProgress {
    /// From 0.
    pub index: u32,
    pub total: u32,
    pub name: String,
}

/// The next time at which the release moves or is rolled back.
#[derive(Serialize, JsonSchema)]
pub struct Next {
    #[schemars(with = "String")]
    pub at: Timestamp,
    pub reason: String,
}

/// One Canary.
#[derive(Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Detail {
    #[serde(flatten)]
    pub row: Row,
    /// Number of releases, including the current one.
    pub releases: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub release: Option<CurrentRelease>,
    pub steps: Vec<StepView>,
    pub metrics: Vec<MetricView>,
    pub gates: Vec<GateView>,
    pub conditions: Vec<ConditionView>,
    /// Newest first, at most ten.
    pub history: Vec<Release>,
    pub failed_checks: u32,
    /// The router, and why it was chosen.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub provider: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub provider_evidence: Option<String>,
    /// Kind and name of the objects of the route.
    pub route: Vec<String>,
    /// Whether the caller may approve gates and give commands.
    pub may_act: bool,
    /// Commands that have an effect now.
    pub commands: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_command: Option<LastCommand>,
    #[schemars(with = "Option<String>")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub warm_until: Option<Timestamp>,
    /// The server's clock.
    #[schemars(with = "String")]
    pub now: Timestamp,
}

#[derive(Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CurrentRelease {
    pub revision: String,
    /// What people call the revision: its image, or its version label.
    pub name: String,
    pub trigger: Trigger,
    #[schemars(with = "String")]
    pub started_at: Timestamp,
    pub paused: bool,
}

#[derive(Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct StepView {
    pub label: String,
    /// In percent.
    pub weight: f64,
    pub state: StepState,
    /// What ends it.
    pub until: String,
    #[schemars(with = "Option<String>")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub started_at: Option<Timestamp>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum StepState {
    Done,
    Current,
    ToCome,
}

#[derive(Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct MetricView {
    pub name: String,
    pub verdict: Verdict,
    pub reason: String,
    #[schemars(with = "Option<String>")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub at: Option<Timestamp>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub canary: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub primary: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub canary_count: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub primary_count: Option<f64>,
    /// Evidence against the canary: 1 is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub evidence: Option<f64>,
    /// Evidence that convicts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub evidence_limit: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max: Option<f64>,
    pub failures: u32,
    pub inconclusives: u32,
}

#[derive(Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct GateView {
    pub name: String,
    /// A webhook answers it; else a person does.
    pub webhook: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub step: Option<u32>,
    pub state: GateState,
    #[schemars(with = "Option<String>")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<Timestamp>,
    #[schemars(with = "Option<String>")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Timestamp>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
    pub message: String,
    /// A person may open it now.
    pub approvable: bool,
    /// A person may refuse it now.
    pub rejectable: bool,
    /// The same from a shell.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
}

#[derive(Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ConditionView {
    #[serde(rename = "type")]
    pub type_: String,
    pub status: bool,
    pub reason: String,
    pub message: String,
}

/// A release that is over.
#[derive(Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Release {
    pub revision: String,
    /// What people call the revision: its image, or its version label.
    pub name: String,
    pub outcome: Outcome,
    pub reason: String,
    #[schemars(with = "String")]
    pub started_at: Timestamp,
    #[schemars(with = "String")]
    pub finished_at: Timestamp,
    /// In percent.
    pub highest_weight: f64,
}

#[derive(Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LastCommand {
    pub id: String,
    pub verb: String,
    pub accepted: bool,
    pub message: String,
    #[schemars(with = "String")]
    pub at: Timestamp,
}

fn attention(state: &str) -> Attention {
    match state {
        "AwaitingApproval" | "Refused" | "Failed" | "Paused" | "Degraded" => Attention::Person,
        "Succeeded" | "Initialized" | "Suspended" | "Terminated" => Attention::Rest,
        _ => Attention::Moving,
    }
}

impl Row {
    pub fn of(cached: &CachedCanary) -> Self {
        let NamespacedName { namespace, name } = NamespacedName::of(cached);
        let Some(canary) = cached.canary() else {
            return Self {
                namespace,
                name,
                attention: Attention::Person,
                state: "Unreadable".to_owned(),
                weight: 0.0,
                step: None,
                message: "This version of Serin cannot read the Canary: compare it with the definition."
                    .to_owned(),
                since: cached.metadata().creation_timestamp.as_ref().map(|at| at.0),
                next: None,
                target: String::new(),
                waiting: Vec::new(),
            };
        };
        let (state, target) = (names::state_of(canary), &canary.spec.target_ref);
        let unseen = CanaryStatus {
            message: Some("The controller has not seen this Canary yet.".to_owned()),
            ..CanaryStatus::default()
        };
        let status = canary.status.as_ref().unwrap_or(&unseen);
        let waits = |gate: &&GateStatus| gate.state == GateState::Waiting && gate.type_.is_none();
        let releases = status.release.is_some();
        Self {
            namespace,
            name,
            attention: attention(state),
            state: state.to_owned(),
            weight: status.canary_weight.percent(),
            step: status.step.as_ref().filter(|_| releases).map(|step| StepProgress {
                index: step.index,
                total: step.total,
                name: step.name.clone(),
            }),
            message: status.message.clone().unwrap_or_default(),
            since: time(status.last_transition_time.as_ref()),
            next: status
                .next_deadline
                .as_ref()
                .map(|next| Next { at: next.at.0, reason: next.reason.clone() }),
            target: format!("{:?}/{}", target.kind, target.name),
            waiting: match releases {
                true => status.gates.iter().filter(waits).map(|gate| gate.name.clone()).collect(),
                false => Vec::new(),
            },
        }
    }
}

impl Detail {
    pub fn of(canary: &CachedCanary, may_act: bool, now: Timestamp) -> Self {
        let row = Row::of(canary);
        let nothing = CanaryStatus::default();
        let status = canary.canary().and_then(|canary| canary.status.as_ref()).unwrap_or(&nothing);
        let metrics = canary.canary().map_or(&[][..], |canary| &canary.spec.analysis.metrics[..]);
        let spec = |status: &MetricStatus| metrics.iter().find(|metric| metric.name == status.name);
        let judge = canary.canary().and_then(|canary| canary.spec.analysis.judge.as_ref());
        let default_risk = judge.and_then(|judge| judge.false_rollback).map_or(0.01, |risk| risk.fraction());
        Self {
            releases: status.releases,
            release: status.release.as_ref().map(|release| CurrentRelease {
                revision: release.revision.clone(),
                name: names::name_of(status, &release.revision).to_owned(),
                trigger: release.trigger,
                started_at: release.started_at.0,
                paused: release.paused,
            }),
            steps: canary.canary().map(|canary| step_views(canary, status)).unwrap_or_default(),
            metrics: status
                .metrics
                .iter()
                .map(|metric| MetricView::of(metric, spec(metric), default_risk))
                .collect(),
            gates: canary.canary().map(|canary| gate_views(canary, status, &row)).unwrap_or_default(),
            conditions: status
                .conditions
                .iter()
                .map(|condition| ConditionView {
                    type_: condition.type_.clone(),
                    status: condition.status == ConditionStatus::True,
                    reason: condition.reason.clone(),
                    message: condition.message.clone(),
                })
                .collect(),
            history: status.history.iter().map(|past| Release::of(past, status)).collect(),
            failed_checks: status.failed_checks,
            provider: status.route.as_ref().map(|route| provider_name(route.provider)),
            provider_evidence: status.provider_evidence.clone(),
            route: status
                .route
                .iter()
                .flat_map(|route| &route.objects)
                .map(|object| format!("{}/{}", object.kind, object.name))
                .collect(),
            may_act,
            commands: commands(status, now).into_iter().map(|verb| verb.name().to_owned()).collect(),
            last_command: status.last_command.as_ref().map(|last| LastCommand {
                id: last.id.clone(),
                verb: last.verb.clone(),
                accepted: last.accepted,
                message: last.message.clone(),
                at: last.at.0,
            }),
            warm_until: time(status.warm_until.as_ref()),
            now,
            row,
        }
    }
}

impl Release {
    fn of(past: &PastRelease, status: &CanaryStatus) -> Self {
        Self {
            revision: past.revision.clone(),
            name: names::name_of(status, &past.revision).to_owned(),
            outcome: past.outcome,
            reason: past.reason.clone(),
            started_at: past.started_at.0,
            finished_at: past.finished_at.0,
            highest_weight: past.highest_weight.percent(),
        }
    }
}

impl MetricView {
    fn of(status: &MetricStatus, spec: Option<&Metric>, default_risk: f64) -> Self {
        let judge = spec.and_then(|metric| metric.judge.as_ref());
        let risk = judge.and_then(|judge| judge.false_rollback).map_or(default_risk, |risk| risk.fraction());
        let legacy = spec.and_then(|metric| {
            let threshold = metric.threshold?;
            Some(match metric.name.as_str() {
                "request-success-rate" => ThresholdRange { min: Some(threshold), max: None },
                _ => ThresholdRange { min: None, max: Some(threshold) },
            })
        });
        let range = spec.and_then(|metric| metric.threshold_range).or(legacy);
        Self {
            name: status.name.clone(),
            verdict: status.verdict,
            reason: status.reason.clone(),
            at: time(status.at.as_ref()),
            canary: status.canary,
            primary: status.primary,
            canary_count: status.canary_count,
            primary_count: status.primary_count,
            evidence: status.evidence,
            evidence_limit: status.evidence.map(|_| 1.0 / risk),
            min: range.and_then(|range| range.min),
            max: range.and_then(|range| range.max),
            failures: status.failures,
            inconclusives: status.inconclusives,
        }
    }
}

fn gate_views(canary: &Canary, status: &CanaryStatus, row: &Row) -> Vec<GateView> {
    if status.release.is_none() {
        return Vec::new();
    }
    let pending = pending_approvals(canary);
    let view = |gate: &GateStatus| {
        let approvable = pending.iter().any(|call| call.gate == gate.name && call.kind == gate.type_);
        let approvable = approvable && gate.state == GateState::Waiting;
        GateView {
            name: gate.name.clone(),
            webhook: gate.type_.is_some(),
            step: gate.step,
            state: gate.state,
            since: time(gate.since.as_ref()),
            expires_at: time(gate.expires_at.as_ref()),
            by: gate.by.clone(),
            message: gate.message.clone(),
            approvable,
            rejectable: approvable && gate.type_.is_none(),
            command: approvable.then(|| {
                let name = gate.name.replace('\'', "'\\''");
                format!("serin approve {} -n {} --gate '{name}'", row.name, row.namespace)
            }),
        }
    };
    status.gates.iter().map(view).collect()
}

fn step_views(canary: &Canary, status: &CanaryStatus) -> Vec<StepView> {
    let analysis = &canary.spec.analysis;
    let provider = canary.spec.provider.or(status.route.as_ref().map(|route| route.provider));
    let names: Vec<&str> = analysis.metrics.iter().map(|metric| metric.name.as_str()).collect();
    let interval = analysis.interval.map_or(Duration::from_secs(60), Duration::from);
    let Ok((_, steps)) = steps(analysis, provider, interval, &names) else { return Vec::new() };
    let current = status.step.as_ref().filter(|_| status.release.is_some());
    let promoting = matches!(status.phase, Phase::Promoting | Phase::Finalising);
    let view = |(at, step): (usize, &Step)| {
        let state = match current {
            None => StepState::ToCome,
            Some(now) if at < now.index as usize || promoting => StepState::Done,
            Some(now) if at == now.index as usize => StepState::Current,
            Some(_) => StepState::ToCome,
        };
        let started = current.filter(|now| now.index as usize == at);
        StepView {
            label: label(step),
            weight: step.split.canary.percent(),
            state,
            until: until(step),
            started_at: started.and_then(|step| time(step.started_at.as_ref())),
        }
    };
    steps.iter().enumerate().map(view).collect()
}

fn label(step: &Step) -> String {
    let weight = format!("{} %", step.split.canary);
    match step.name.is_empty() || step.name == weight {
        true => weight,
        false => step.name.clone(),
    }
}

fn until(step: &Step) -> String {
    let mut parts = Vec::new();
    match step.checks {
        0 => {}
        1 => parts.push(format!("a check of {:?} passes", step.interval)),
        count => parts.push(format!("{count} checks of {:?} pass", step.interval)),
    }
    match step.pause {
        Some(Pause::For(time)) => parts.push(format!("a pause of {time:?} is over")),
        Some(Pause::UntilResumed) => parts.push("a person resumes it".to_owned()),
        None => {}
    }
    if step.approval.is_some() {
        parts.push("a person approves it".to_owned());
    }
    parts.join(", and ")
}

fn commands(status: &CanaryStatus, now: Timestamp) -> Vec<Verb> {
    match &status.release {
        Some(release) => {
            let pause = if release.paused { Verb::Resume } else { Verb::Pause };
            vec![pause, Verb::Promote, Verb::Abort]
        }
        None => {
            let rejected = status.revisions.as_ref().is_some_and(|revisions| revisions.rejected.is_some());
            let retry = (status.phase == Phase::Failed && rejected).then_some(Verb::Retry);
            let warm = status.warm_until.as_ref().is_some_and(|until| until.0 > now);
            retry.into_iter().chain(warm.then_some(Verb::Rollback)).collect()
        }
    }
}

fn time(at: Option<&Time>) -> Option<Timestamp> {
    at.map(|at| at.0)
}
