//! The steps of a release, from any of the four notations.

use std::{sync::Arc, time::Duration};

use sha2::{Digest, Sha256};

use super::PlanError;
use crate::{
    api::{
        Weight,
        canary::{Analysis, HttpMatch, Provider, step::Approval, step::StepReplicas},
    },
    engine::action::Split,
};

/// One step: its settings, and the conditions for the next.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    pub name: String,
    pub split: Split,
    /// None: as the target or its autoscaler has it.
    pub replicas: Option<Replicas>,
    /// How many checks must pass. A step that only pauses, scales or waits for
    /// approval needs none, but a failed check still counts.
    pub checks: u32,
    /// How long one check lasts.
    pub interval: Duration,
    /// Indexes into [`super::Plan::metrics`].
    pub metrics: Vec<usize>,
    pub pause: Option<Pause>,
    pub approval: Option<ApprovalGate>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Replicas {
    Count(u32),
    /// Of the primary's, rounded up.
    Percent(u32),
}

impl Replicas {
    /// At least one.
    pub fn of(self, primary: u32) -> u32 {
        match self {
            Self::Count(count) => count.max(1),
            Self::Percent(percent) => {
                let share = u64::from(primary) * u64::from(percent);
                u32::try_from(share.div_ceil(100)).unwrap_or(u32::MAX).max(1)
            }
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pause {
    For(Duration),
    UntilResumed,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApprovalGate {
    pub message: Option<String>,
    pub expires: Option<Duration>,
}

impl From<&Approval> for ApprovalGate {
    fn from(approval: &Approval) -> Self {
        Self { message: approval.message.clone(), expires: approval.expire_after.map(Into::into) }
    }
}

/// How traffic moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Strategy {
    Canary,
    /// Matched requests go to the canary.
    AB,
    /// No live request goes to the canary, until all do.
    BlueGreen,
}

/// Flagger's default for a router that cannot divide traffic.
const SWITCH_ITERATIONS: u32 = 10;
/// Limit of a generated list of steps.
const MAX_STEPS: usize = 1000;

/// Compiles the four notations into one list.
pub fn steps(
    analysis: &Analysis,
    provider: Option<Provider>,
    interval: Duration,
    metrics: &[&str],
) -> Result<(Strategy, Vec<Step>), PlanError> {
    let notations = [
        ("iterations", analysis.iterations.is_some()),
        ("stepWeight", analysis.step_weight.is_some()),
        ("stepWeights", !analysis.step_weights.is_empty()),
        ("steps", !analysis.steps.is_empty()),
    ];
    let used: Vec<_> = notations.iter().filter(|(_, used)| *used).map(|(name, _)| *name).collect();
    let [notation] = used[..] else {
        return Err(if used.is_empty() { PlanError::NoSteps } else { PlanError::AmbiguousSteps(used) });
    };
    let builder = Builder {
        analysis,
        interval,
        all_metrics: (0..metrics.len()).collect(),
        matches: analysis.match_[..].into(),
    };
    let switch_only = provider == Some(Provider::Kubernetes) && notation != "steps";
    match notation {
        "steps" => Ok((Strategy::Canary, builder.explicit_steps(metrics)?)),
        _ if switch_only => {
            let checks = analysis.iterations.unwrap_or(SWITCH_ITERATIONS);
            Ok((Strategy::BlueGreen, builder.fixed_split_steps(checks, &Arc::default())))
        }
        "iterations" => {
            let strategy = if analysis.match_.is_empty() { Strategy::BlueGreen } else { Strategy::AB };
            Ok((strategy, builder.fixed_split_steps(analysis.iterations.unwrap_or(1), &builder.matches)))
        }
        "stepWeight" => Ok((Strategy::Canary, builder.weights(builder.linear_weights()?))),
        _ => Ok((Strategy::Canary, builder.weights(builder.listed_weights()?))),
    }
}

/// Leaves the primary a share of the traffic in steps of 100 % that compare with it.
/// A plan without any other share of traffic is one for a router that can only
/// switch, and stays as it is.
pub fn keep_control(steps: &mut [Step], control: Weight, compared: impl Fn(&Step) -> bool) {
    let divides = |step: &Step| Weight::ZERO < step.split.canary && step.split.canary < Weight::FULL;
    if steps.iter().any(divides) {
        let full = steps.iter_mut().filter(|step| step.split.canary == Weight::FULL && compared(step));
        full.for_each(|step| step.split.canary = control.complement());
    }
}

/// Identifies a list of steps, to detect an edit during a release. Fields that
/// do not move traffic are left out: a new name, interval or metric simply
/// applies from now on.
pub fn fingerprint(strategy: Strategy, steps: &[Step]) -> String {
    let mut digest = Sha256::new();
    digest.update(format!("{strategy:?}"));
    for Step { name: _, split, replicas, checks, interval: _, metrics: _, pause, approval } in steps {
        digest.update(format!("{split:?} {replicas:?} {checks} {pause:?} {}", approval.is_some()));
    }
    digest.finalize()[..4].iter().map(|byte| format!("{byte:02x}")).collect()
}

struct Builder<'a> {
    analysis: &'a Analysis,
    interval: Duration,
    all_metrics: Vec<usize>,
    matches: Arc<[HttpMatch]>,
}

impl Builder<'_> {
    fn max_weight(&self) -> Weight {
        self.analysis.max_weight.filter(|max| *max > Weight::ZERO).unwrap_or(Weight::FULL)
    }

    /// Multiples of `stepWeight`, capped at the maximum.
    fn linear_weights(&self) -> Result<Vec<Weight>, PlanError> {
        let step = self.analysis.step_weight.unwrap_or_default();
        let max = self.max_weight();
        if step == Weight::ZERO {
            return Err(PlanError::StepWeightZero);
        }
        if step > max {
            return Err(PlanError::MaxWeightTooLow { field: "stepWeight", max });
        }
        let count = usize::from(max.hundredths()).div_ceil(usize::from(step.hundredths()));
        if count > MAX_STEPS {
            return Err(PlanError::TooManySteps { step });
        }
        let mut weights = vec![step];
        while let Some(last) = weights.last().filter(|last| **last < max) {
            weights.push(last.plus(step).min(max));
        }
        Ok(weights)
    }

    fn listed_weights(&self) -> Result<Vec<Weight>, PlanError> {
        let listed = &self.analysis.step_weights;
        check_increasing(listed.iter().copied().enumerate(), "stepWeights")?;
        let max = self.max_weight();
        if listed.first().is_some_and(|first| *first > max) {
            return Err(PlanError::MaxWeightTooLow { field: "stepWeights[0]", max });
        }
        let mut weights: Vec<_> = listed.iter().map(|weight| (*weight).min(max)).collect();
        weights.dedup();
        Ok(weights)
    }

    fn weights(&self, weights: Vec<Weight>) -> Vec<Step> {
        let step = |weight| Step {
            name: format!("{weight} %"),
            split: Split { matches: self.matches.clone(), ..Split::weight(weight) },
            ..self.plain()
        };
        self.mirror().into_iter().chain(weights.into_iter().map(step)).collect()
    }

    /// Without a match it is Blue/Green, where `mirror: true` mirrors during every check.
    fn fixed_split_steps(&self, checks: u32, matches: &Arc<[HttpMatch]>) -> Vec<Step> {
        let checks = checks.max(1);
        let step = Step {
            name: if matches.is_empty() { "no live traffic" } else { "matched requests" }.to_owned(),
            split: Split { matches: matches.clone(), ..Split::all_primary() },
            checks,
            ..self.plain()
        };
        match self.mirror() {
            Some(mirrored) if matches.is_empty() => vec![Step { checks, ..mirrored }],
            mirrored => mirrored.into_iter().chain([step]).collect(),
        }
    }

    /// `mirror: true` adds one check on mirrored traffic before the first step.
    fn mirror(&self) -> Option<Step> {
        let share = self.analysis.mirror_weight.filter(|share| *share > Weight::ZERO).unwrap_or(Weight::FULL);
        self.analysis.mirror.then(|| Step {
            name: format!("mirror {share} %"),
            split: Split { mirror: share, ..Split::all_primary() },
            ..self.plain()
        })
    }

    fn plain(&self) -> Step {
        Step {
            name: String::new(),
            split: Split::all_primary(),
            replicas: None,
            checks: 1,
            interval: self.interval,
            metrics: self.all_metrics.clone(),
            pause: None,
            approval: None,
        }
    }

    fn explicit_steps(&self, metrics: &[&str]) -> Result<Vec<Step>, PlanError> {
        let max = self.max_weight();
        let specs = &self.analysis.steps;
        check_increasing(
            specs.iter().enumerate().filter_map(|(at, step)| Some((at, step.weight?))),
            "steps",
        )?;
        if specs.iter().find_map(|step| step.weight).is_some_and(|first| first > max) {
            return Err(PlanError::MaxWeightTooLow { field: "the first weight in steps", max });
        }
        let (mut weight, mut matches, mut replicas) = (Weight::ZERO, self.matches.clone(), None);
        let mut steps = Vec::with_capacity(specs.len() + 1);
        steps.extend(self.mirror());
        for (at, step) in specs.iter().enumerate() {
            let moves = step.weight.is_some() || !step.match_.is_empty() || step.mirror.is_some();
            let judges = step.analysis.is_some() || step.iterations.is_some() || step.interval.is_some();
            if !moves && !judges && step.replicas.is_none() && step.pause.is_none() && step.approval.is_none()
            {
                return Err(PlanError::EmptyStep { at });
            }
            weight = step.weight.map_or(weight, |weight| weight.min(max));
            if !step.match_.is_empty() {
                matches = step.match_[..].into();
            }
            if let Some(spec) = step.replicas {
                replicas = Some(replicas_of(at, spec)?);
            }
            let interval = step.interval.map_or(self.interval, Into::into);
            if interval < Duration::from_secs(1) {
                return Err(PlanError::IntervalTooShort { field: format!("steps[{at}].interval") });
            }
            let judged = match &step.analysis {
                None => self.all_metrics.clone(),
                Some(analysis) if analysis.skip => Vec::new(),
                Some(analysis) if analysis.metrics.is_empty() => self.all_metrics.clone(),
                Some(analysis) => metric_indexes(at, &analysis.metrics, metrics)?,
            };
            let mirror = step.mirror.unwrap_or_default();
            steps.push(Step {
                name: step.name.clone().unwrap_or_else(|| default_name(step, weight)),
                split: Split { matches: matches.clone(), mirror, ..Split::weight(weight) },
                replicas,
                checks: if moves || judges { step.iterations.unwrap_or(1).max(1) } else { 0 },
                interval,
                metrics: judged,
                pause: step
                    .pause
                    .map(|pause| pause.duration.map_or(Pause::UntilResumed, |d| Pause::For(d.into()))),
                approval: step.approval.as_ref().map(ApprovalGate::from),
            });
        }
        Ok(steps)
    }
}

fn check_increasing(
    weights: impl Iterator<Item = (usize, Weight)>,
    field: &'static str,
) -> Result<(), PlanError> {
    let mut last = None;
    for (at, weight) in weights {
        if last.is_some_and(|last| weight <= last) {
            return Err(PlanError::WeightsNotIncreasing { field, at });
        }
        last = Some(weight);
    }
    Ok(())
}

fn replicas_of(at: usize, spec: StepReplicas) -> Result<Replicas, PlanError> {
    match (spec.count, spec.percent) {
        (Some(count), None) => Ok(Replicas::Count(count)),
        (None, Some(percent)) => Ok(Replicas::Percent(percent)),
        _ => Err(PlanError::StepReplicas { at }),
    }
}

fn metric_indexes(at: usize, names: &[String], metrics: &[&str]) -> Result<Vec<usize>, PlanError> {
    let index = |name: &String| {
        metrics
            .iter()
            .position(|metric| metric == name)
            .ok_or_else(|| PlanError::StepMetricUnknown { at, metric: name.clone() })
    };
    names.iter().map(index).collect()
}

fn default_name(step: &crate::api::canary::Step, weight: Weight) -> String {
    if step.weight.is_some() {
        format!("{weight} %")
    } else if let Some(share) = step.mirror {
        format!("mirror {share} %")
    } else if !step.match_.is_empty() {
        "matched requests".to_owned()
    } else if step.approval.is_some() {
        "approval".to_owned()
    } else if step.pause.is_some() {
        "pause".to_owned()
    } else if step.replicas.is_some() {
        "scale".to_owned()
    } else {
        "analysis".to_owned()
    }
}
