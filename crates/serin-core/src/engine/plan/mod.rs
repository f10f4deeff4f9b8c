//! The plan: the validated spec of a Canary. The rest of the engine reads the
//! plan and never the raw spec; an invalid spec is rejected here, with the
//! field at fault and the remedy.

pub mod metrics;
pub mod steps;

use std::{collections::BTreeSet, time::Duration};

use self::{
    metrics::{JudgeError, MetricPolicy},
    steps::{Step, Strategy},
};
use super::windows::{Effect, Window, WindowError, Windows};
use crate::api::{
    AnalysisTemplateSpec, Canary, Weight,
    canary::{CanarySpec, HookType, Metric, OnBrokenPod, SessionAffinity, WindowKind},
    reference::TemplateRef,
};

/// How one Canary releases.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    pub strategy: Strategy,
    pub steps: Vec<Step>,
    /// Identifies this list of steps; see [`steps::fingerprint`].
    pub fingerprint: String,
    /// How long a check lasts and how often a closed gate is called again.
    pub interval: Duration,
    /// Failed checks that roll back.
    pub threshold: u32,
    pub deadline: Deadline,
    pub primary_ready_percent: u32,
    pub canary_ready_percent: u32,
    /// How much traffic returns to the primary at a time; by default all.
    pub step_down_weight: Weight,
    pub gates: Vec<Gate>,
    pub metrics: Vec<MetricPlan>,
    pub windows: Windows,
    pub keep_warm: Duration,
    /// Users are kept on the version that served them first.
    pub affinity: Option<AffinityCookies>,
    /// How long young pods of the canary are judged by total failure only.
    pub warmup: Duration,
    pub on_broken_pod: OnBrokenPod,
    /// Run the sample ratio mismatch test.
    pub verifies_split: bool,
    /// The target has replicas of its own.
    pub scalable: bool,
    pub skip_analysis: bool,
    pub suspend: bool,
    pub revert_on_deletion: bool,
}

/// Names of the cookies that keep users on a version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AffinityCookies {
    pub canary: String,
    pub primary: Option<String>,
}

impl From<&SessionAffinity> for AffinityCookies {
    fn from(spec: &SessionAffinity) -> Self {
        Self { canary: spec.cookie_name.clone(), primary: spec.primary_cookie_name.clone() }
    }
}

/// How long a release may make no progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deadline {
    pub after: Duration,
    /// How long checks may be inconclusive; none is for ever.
    pub no_data: Option<Duration>,
}

/// A webhook, as far as the engine needs it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gate {
    pub name: String,
    pub kind: HookType,
    /// How long it may stay closed.
    pub expires: Option<Duration>,
}

/// A metric and its policy.
#[derive(Clone, Debug, PartialEq)]
pub struct MetricPlan {
    pub name: String,
    pub policy: MetricPolicy,
    /// It counts every request of both arms: input of the sample ratio test.
    pub counts_requests: bool,
}

/// Why a spec is invalid.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum PlanError {
    #[error(
        "spec.analysis does not say how to release; write one of iterations, stepWeight, stepWeights and steps"
    )]
    NoSteps,
    #[error("spec.analysis says in several ways how to release ({}); keep one of them", .0.join(", "))]
    AmbiguousSteps(Vec<&'static str>),
    #[error("spec.analysis.stepWeight is 0, so the canary would never get traffic; write one such as 10")]
    StepWeightZero,
    #[error(
        "spec.analysis.stepWeight of {step} makes more than a thousand steps; write a larger one, or list stepWeights"
    )]
    TooManySteps { step: Weight },
    #[error("spec.analysis.{field}[{at}] does not rise; write each weight above the one before it")]
    WeightsNotIncreasing { field: &'static str, at: usize },
    #[error("spec.analysis.maxWeight of {max} is below {field}; raise maxWeight or lower {field}")]
    MaxWeightTooLow { field: &'static str, max: Weight },
    #[error(
        "spec.analysis.steps[{at}] does nothing; give it one of weight, match, mirror, replicas, pause, approval and analysis"
    )]
    EmptyStep { at: usize },
    #[error("spec.analysis.steps[{at}].replicas must have exactly one of count and percent; keep one")]
    StepReplicas { at: usize },
    #[error(
        "spec.analysis.steps[{at}].replicas and spec.autoscalerRef would both set the canary's size; remove one of them"
    )]
    StepReplicasWithAutoscaler { at: usize },
    #[error(
        "spec.analysis.steps[{at}].analysis.metrics names {metric:?}, which spec.analysis.metrics does not list; add it there"
    )]
    StepMetricUnknown { at: usize, metric: String },
    #[error("spec.analysis.{field} is shorter than a second; write at least 1s")]
    IntervalTooShort { field: String },
    #[error("spec.analysis.{field} of {percent} is no share of pods; write 0 to 100")]
    ReadyThreshold { field: &'static str, percent: u32 },
    #[error(
        "spec.analysis.{list} has two entries named {name:?}; rename one, since results are matched by name"
    )]
    DuplicateName { list: &'static str, name: String },
    #[error(
        "spec.analysis.metrics[{at}] ({name}) measures nothing; set templateRef, or use a built-in name (request-success-rate, request-duration)"
    )]
    NoQuery { at: usize, name: String },
    #[error(
        "spec.analysis.metrics[{at}].templateRef names {template:?}, which does not exist; create it or name another"
    )]
    TemplateMissing { at: usize, template: String },
    #[error("spec.analysis.metrics[{at}] ({name}): {why}")]
    Judge { at: usize, name: String, why: JudgeError },
    #[error(
        "spec.analysis.webhooks[{at}].expireAfter is for gates; use it with confirm-rollout, confirm-traffic-increase or confirm-promotion"
    )]
    ExpireAfter { at: usize },
    #[error("spec.analysis.sessionAffinity.cookieName is empty; write the name of a cookie")]
    CookieName,
    #[error("spec.releaseWindows[{at}]: {why}")]
    Window { at: usize, why: WindowError },
}

/// Default of `analysis.warmup`.
const WARMUP: Duration = Duration::from_secs(30);
/// Default of `analysis.controlWeight`: five percent.
const CONTROL_WEIGHT: Weight = match Weight::from_hundredths(500) {
    Some(weight) => weight,
    None => Weight::ZERO,
};

impl TryFrom<&Canary> for Plan {
    type Error = PlanError;

    /// For a Canary whose metrics need no templates.
    fn try_from(canary: &Canary) -> Result<Self, PlanError> {
        Self::new(&canary.spec, |_| None)
    }
}

impl Plan {
    /// Validates a spec, with the templates that its metrics refer to.
    pub fn new<'t>(
        spec: &CanarySpec,
        template: impl Fn(&TemplateRef) -> Option<&'t AnalysisTemplateSpec>,
    ) -> Result<Self, PlanError> {
        let analysis = &spec.analysis;
        let interval = analysis.interval.map_or(Duration::from_secs(60), Into::into);
        if interval < Duration::from_secs(1) {
            return Err(PlanError::IntervalTooShort { field: "interval".to_owned() });
        }
        let names: Vec<_> = analysis.metrics.iter().map(|metric| metric.name.as_str()).collect();
        distinct("metrics", &names, |name| *name)?;
        let metrics = metrics(spec, template)?;
        let (strategy, mut steps) = steps::steps(analysis, spec.provider, interval, &names)?;
        let compared = |step: &Step| step.metrics.iter().any(|at| metrics[*at].policy.judge.is_stateful());
        steps::keep_control(&mut steps, analysis.control_weight.unwrap_or(CONTROL_WEIGHT), compared);
        if analysis.session_affinity.as_ref().is_some_and(|cookie| cookie.cookie_name.is_empty()) {
            return Err(PlanError::CookieName);
        }
        let sized_step = analysis.steps.iter().position(|step| step.replicas.is_some());
        if let Some(at) = sized_step.filter(|_| spec.autoscaler_ref.is_some()) {
            return Err(PlanError::StepReplicasWithAutoscaler { at });
        }
        Ok(Self {
            fingerprint: steps::fingerprint(strategy, &steps),
            strategy,
            steps,
            interval,
            threshold: analysis.threshold.unwrap_or(1).max(1),
            deadline: deadline(spec),
            primary_ready_percent: percent("primaryReadyThreshold", analysis.primary_ready_threshold)?,
            canary_ready_percent: percent("canaryReadyThreshold", analysis.canary_ready_threshold)?,
            step_down_weight: analysis
                .step_weight_promotion
                .filter(|by| *by > Weight::ZERO)
                .unwrap_or(Weight::FULL),
            gates: gates(spec)?,
            metrics,
            windows: windows(spec)?,
            keep_warm: seconds(spec.rollback.and_then(|rollback| rollback.keep_warm_seconds).unwrap_or(0)),
            affinity: analysis.session_affinity.as_ref().map(AffinityCookies::from),
            warmup: analysis.warmup.map_or(WARMUP, Into::into),
            on_broken_pod: analysis.on_broken_pod.unwrap_or_default(),
            verifies_split: analysis.verify_split.unwrap_or(true),
            scalable: spec.target_ref.kind.is_scalable(),
            skip_analysis: spec.skip_analysis,
            suspend: spec.suspend,
            revert_on_deletion: spec.reverts_on_deletion(),
        })
    }

    /// The plan of a Canary that is deleted or has become invalid. It needs no
    /// valid spec.
    pub fn minimal(spec: &CanarySpec) -> Self {
        Self {
            strategy: Strategy::Canary,
            steps: Vec::new(),
            fingerprint: String::new(),
            interval: Duration::from_secs(60),
            threshold: 1,
            deadline: deadline(spec),
            primary_ready_percent: 100,
            canary_ready_percent: 100,
            step_down_weight: Weight::FULL,
            gates: Vec::new(),
            metrics: Vec::new(),
            windows: Windows::default(),
            keep_warm: Duration::ZERO,
            affinity: None,
            warmup: WARMUP,
            on_broken_pod: OnBrokenPod::default(),
            verifies_split: false,
            scalable: spec.target_ref.kind.is_scalable(),
            skip_analysis: false,
            suspend: false,
            revert_on_deletion: spec.reverts_on_deletion(),
        }
    }

    /// The gates of one kind, in the order of the spec.
    pub fn gates(&self, kind: HookType) -> impl Iterator<Item = &Gate> {
        self.gates.iter().filter(move |gate| gate.kind == kind)
    }
}

fn seconds(seconds: u32) -> Duration {
    Duration::from_secs(seconds.into())
}

fn deadline(spec: &CanarySpec) -> Deadline {
    Deadline {
        after: seconds(spec.progress_deadline_seconds.unwrap_or(600)),
        no_data: spec.analysis.no_data_deadline_seconds.map(seconds),
    }
}

fn percent(field: &'static str, percent: Option<u32>) -> Result<u32, PlanError> {
    match percent.unwrap_or(100) {
        percent @ 0..=100 => Ok(percent),
        percent => Err(PlanError::ReadyThreshold { field, percent }),
    }
}

fn distinct<T, K: Ord + ToString>(
    list: &'static str,
    items: &[T],
    key: impl Fn(&T) -> K,
) -> Result<(), PlanError> {
    let mut names = BTreeSet::new();
    match items.iter().map(key).find(|name| !names.insert(name.to_string())) {
        Some(name) => Err(PlanError::DuplicateName { list, name: name.to_string() }),
        None => Ok(()),
    }
}

fn gates(spec: &CanarySpec) -> Result<Vec<Gate>, PlanError> {
    use HookType::{ConfirmPromotion, ConfirmRollout, ConfirmTrafficIncrease};
    let hooks = &spec.analysis.webhooks;
    let kind = |at: usize| hooks[at].type_.unwrap_or_default();
    for (at, hook) in hooks.iter().enumerate() {
        if hook.expire_after.is_some()
            && !matches!(kind(at), ConfirmRollout | ConfirmTrafficIncrease | ConfirmPromotion)
        {
            return Err(PlanError::ExpireAfter { at });
        }
        if (0..at).any(|other| kind(other) == kind(at) && hooks[other].name == hook.name) {
            return Err(PlanError::DuplicateName { list: "webhooks", name: hook.name.clone() });
        }
    }
    let gate = |(at, hook): (usize, &crate::api::canary::Webhook)| Gate {
        name: hook.name.clone(),
        kind: kind(at),
        expires: hook.expire_after.map(Into::into),
    };
    Ok(hooks.iter().enumerate().map(gate).collect())
}

fn metrics<'t>(
    spec: &CanarySpec,
    template: impl Fn(&TemplateRef) -> Option<&'t AnalysisTemplateSpec>,
) -> Result<Vec<MetricPlan>, PlanError> {
    let plan =
        |(at, metric): (usize, &Metric)| {
            let name = metric.name.clone();
            let template = match &metric.template_ref {
                Some(reference) => Some(
                    template(reference)
                        .ok_or_else(|| PlanError::TemplateMissing { at, template: reference.name.clone() })?,
                ),
                None if metric.query.is_some()
                    || crate::api::canary::metric::BUILT_IN.contains(&name.as_str()) =>
                {
                    None
                }
                None => return Err(PlanError::NoQuery { at, name }),
            };
            let policy = MetricPolicy::new(metric, template, &spec.analysis)
                .map_err(|why| PlanError::Judge { at, name: name.clone(), why })?;
            let counts_requests = template.is_none() && metric.query.is_none() && policy.judge.is_stateful();
            Ok(MetricPlan { name, policy, counts_requests })
        };
    spec.analysis.metrics.iter().enumerate().map(plan).collect()
}

fn windows(spec: &CanarySpec) -> Result<Windows, PlanError> {
    let window = |(at, window): (usize, &crate::api::canary::ReleaseWindow)| {
        let effect = match window.kind.unwrap_or_default() {
            WindowKind::Allow => Effect::Allow,
            WindowKind::Freeze => Effect::Freeze,
        };
        let zone = window.time_zone.as_deref().unwrap_or("UTC");
        Window::parse(effect, &window.cron, zone, window.duration.into())
            .map_err(|why| PlanError::Window { at, why })
    };
    Ok(Windows::new(spec.release_windows.iter().enumerate().map(window).collect::<Result<_, _>>()?))
}
