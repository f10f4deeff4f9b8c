//! One check: hooks are called, metrics are measured and judged, and the results
//! are combined into one [`CheckResult`].
//!
//! A check begins when the step's split is in force and ends, one interval
//! later, with a full check of every metric of the step. Sequential judges run
//! interim checks in between: they can end a bad release early, and on evidence
//! a good step. While a canary is suspected they come twice as often.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::{
    WakeReason,
    action::{Action, Check, GateScope, MetricWindow},
    decider::{Decider, after},
    observed::{CheckMeasurements, GateReply},
    plan::{MetricPlan, steps::Step},
    report::RollbackCause,
};
use crate::{
    analysis::{
        measurement::{Arms, Counts, Histogram, Measurement, SLOW_QUANTILE},
        sequential::Look,
        verdict::{InconclusiveReason, JudgeOutcome, Verdict},
    },
    api::{
        canary::{
            HookType,
            status::{MetricStatus, Verdict as StatusVerdict},
        },
        judge::OnMissing,
    },
};

pub(super) enum CheckResult {
    /// The interval is not over, or results are missing.
    Pending,
    Passed,
    /// The canary is shown to be non-inferior; the step may end now.
    PassedEarly,
    Failed(String),
    /// One metric alone ends the release.
    RollBack(RollbackCause),
    Inconclusive(String),
}

/// Interim checks of sequential judges: four per interval, 1–10 s apart, since
/// one alone carries little evidence.
const INTERIM_CHECKS: u32 = 4;
const MIN_INTERIM_GAP: Duration = Duration::from_secs(1);
const MAX_INTERIM_GAP: Duration = Duration::from_secs(10);
/// Evidence against the canary from which on it is suspected.
const SUSPICION: f64 = 10.0;
/// Checks in a row at which only the primary has requests, and the time since the
/// step began, after which the release is rolled back: a metrics server may find new
/// pods late.
const MAX_SILENT_CHECKS: u32 = 3;
const MIN_SILENCE: Duration = Duration::from_secs(120);
/// Requests that the weight owes the canary for their absence to be silence.
const MIN_OWED_REQUESTS: f64 = 20.0;
/// A part of the ready pods that is young if it is at least one in this many.
const YOUNG_PART: u32 = 4;

impl Decider<'_> {
    /// Starts to count requests once the split is in force.
    pub fn start_check_window(&mut self) {
        let now = self.now;
        self.count_young_pods();
        if let Some(step) = &mut self.status.step
            && step.check_started_at.is_none()
        {
            step.check_started_at = Some(Time(now));
            self.status.metrics.iter_mut().for_each(|metric| metric.measured_until = None);
            match self.status.release.as_ref().is_some_and(|release| release.state.reverted_since.is_some()) {
                true => self.stop_deadline(),
                false => self.note_progress(),
            }
        }
    }

    /// Notes when the canary has traffic and a good part of its pods became ready.
    fn count_young_pods(&mut self) {
        let now = self.now;
        let ready = self.observed.target.as_ref().map_or(0, |target| target.pods.ready);
        let state = &mut self.release().state;
        let young = ready.saturating_sub(state.warm_pods);
        if young > 0 && young.saturating_mul(YOUNG_PART) >= ready {
            state.young_since = Some(Time(now));
        }
        state.warm_pods = ready;
    }

    /// Whether a window has requests of young pods. A source that lags counts them
    /// later.
    fn is_warming_up(&self, since: Timestamp, lag: Duration) -> bool {
        let young_since = self.status.release.as_ref().and_then(|release| release.state.young_since.as_ref());
        young_since.is_some_and(|young| since < after(young.0, self.plan.warmup.saturating_add(lag)))
            && !self.plan.warmup.is_zero()
    }

    /// Discards the running measurement: the split is no longer in force.
    pub fn abort_check_window(&mut self) {
        if let Some(step) = &mut self.status.step
            && step.check_started_at.take().is_some()
        {
            step.checks = step.checks.saturating_add(1);
        }
    }

    /// Each step must show non-inferiority on its own traffic.
    pub fn reset_step_evidence(&mut self) {
        for metric in &mut self.status.metrics {
            metric.measured_until = None;
            metric.inconclusives = 0;
        }
    }

    /// Drops all evidence of the last release, except the overdispersion of the
    /// primary.
    pub fn reset_metrics(&mut self) {
        let plan = self.plan;
        for status in std::mem::take(&mut self.status.metrics) {
            let judge = plan.metrics.iter().find(|metric| metric.name == status.name);
            let judge = judge.map(|metric| &metric.policy.judge);
            let state = judge.and_then(|judge| judge.carry_over(status.analysis_state.as_ref()));
            if state.is_some() {
                self.metric_status(&status.name).analysis_state = state;
            }
        }
    }

    /// Runs the check that is due, if any.
    pub fn check(&mut self, at: usize, step: &Step) -> CheckResult {
        let Some(began) = self.check_started_at() else { return CheckResult::Pending };
        if step.checks == 0 && !step.split.reaches_canary() {
            return CheckResult::Pending;
        }
        let ends = after(began, step.interval);
        if ends <= self.now {
            return self.full_check(at, step);
        }
        self.wake_at(ends, WakeReason::CheckDue);
        self.interim_check(at, step, began)
    }

    fn check_started_at(&self) -> Option<Timestamp> {
        Some(self.status.step.as_ref()?.check_started_at.as_ref()?.0)
    }

    fn full_check(&mut self, at: usize, step: &Step) -> CheckResult {
        let hooks = self.call_rollout_hooks(at);
        let check = self.check_request(at, step, true);
        if !check.metrics.is_empty() && self.results(&check).is_none() {
            self.request(Action::Measure(check));
            return CheckResult::Pending;
        }
        let Some(hooks) = hooks else { return CheckResult::Pending };
        let check_result = most_severe(hooks, self.judge(step, &check));
        if let Some(step) = &mut self.status.step {
            step.check_started_at = Some(Time(self.now));
            step.checks = step.checks.saturating_add(1);
        }
        self.end_reverts();
        self.wake_at(after(self.now, step.interval), WakeReason::CheckDue);
        if step.metrics.iter().any(|at| self.plan.metrics[*at].policy.judge.may_peek()) {
            self.wake_at(after(self.now, self.interim_gap(step)), WakeReason::CheckDue);
        }
        check_result
    }

    /// Calls the hooks of a check. None while a result is missing; an
    /// unreachable hook is no evidence about the canary.
    fn call_rollout_hooks(&mut self, at: usize) -> Option<CheckResult> {
        let plan = self.plan;
        let check = self.status.step.as_ref().map_or(0, |step| step.checks);
        let scope = GateScope::Check { step: at as u32, check };
        let mut all = Some(CheckResult::PassedEarly);
        for gate in plan.gates(HookType::Rollout) {
            let Some(result) = self.call_gate(&gate.name, Some(HookType::Rollout), scope) else {
                all = None;
                continue;
            };
            let check_result = match &result.reply {
                GateReply::Yes { .. } => CheckResult::Passed,
                GateReply::No { why, .. } => {
                    CheckResult::Failed(format!("the hook {} refused ({why})", gate.name))
                }
                GateReply::Unreachable { why } => {
                    CheckResult::Inconclusive(format!("the hook {} did not respond ({why})", gate.name))
                }
            };
            all = all.map(|so_far| most_severe(so_far, check_result));
        }
        all
    }

    /// Before the interval is over, with the judges that may.
    fn interim_check(&mut self, at: usize, step: &Step, began: Timestamp) -> CheckResult {
        let mut peeking =
            step.metrics.iter().map(|at| &self.plan.metrics[*at]).filter(|m| m.policy.judge.may_peek());
        let last = |metric: &MetricPlan| {
            let status = self.status.metrics.iter().find(|status| status.name == metric.name)?;
            status.at.as_ref().map(|at| at.0)
        };
        let Some(first) = peeking.next() else { return CheckResult::Pending };
        let last = peeking.filter_map(last).chain(last(first)).max();
        let gap = self.interim_gap(step);
        let due = after(last.map_or(began, |last| last.max(began)), gap);
        if due >= after(began, step.interval) {
            return CheckResult::Pending;
        }
        if due > self.now {
            self.wake_at(due, WakeReason::CheckDue);
            return CheckResult::Pending;
        }
        let check = self.check_request(at, step, false);
        if self.results(&check).is_none() {
            self.request(Action::Measure(check));
            return CheckResult::Pending;
        }
        let check_result = self.judge(step, &check);
        if let Some(step) = &mut self.status.step {
            step.checks = step.checks.saturating_add(1);
        }
        self.wake_at(after(self.now, self.interim_gap(step)), WakeReason::CheckDue);
        let all =
            check.metrics.len() == step.metrics.len() && self.plan.gates(HookType::Rollout).next().is_none();
        match check_result {
            CheckResult::RollBack(_) => check_result,
            CheckResult::PassedEarly if all => check_result,
            _ => CheckResult::Pending,
        }
    }

    fn interim_gap(&self, step: &Step) -> Duration {
        let gap = (step.interval / INTERIM_CHECKS).clamp(MIN_INTERIM_GAP, MAX_INTERIM_GAP);
        let suspected = |metric: &MetricStatus| {
            metric.verdict == StatusVerdict::Inconclusive
                && metric.evidence.is_some_and(|evidence| evidence >= SUSPICION)
        };
        match self.status.metrics.iter().any(suspected) {
            true => (gap / 2).max(MIN_INTERIM_GAP),
            false => gap,
        }
    }

    fn check_request(&self, at: usize, step: &Step, full: bool) -> Check {
        let began = self.check_started_at().unwrap_or(self.now);
        let since = |metric: &MetricPlan| {
            let status = self.status.metrics.iter().find(|status| status.name == metric.name);
            status.and_then(|status| status.measured_until.as_ref()).map_or(began, |until| until.0)
        };
        let metrics = step.metrics.iter().map(|at| &self.plan.metrics[*at]);
        Check {
            release: self.status.releases,
            step: at as u32,
            index: self.status.step.as_ref().map_or(0, |step| step.checks),
            full,
            metrics: metrics
                .filter(|metric| full || metric.policy.judge.may_peek())
                .map(|metric| MetricWindow { metric: metric.name.clone(), since: since(metric) })
                .collect(),
        }
    }

    /// The measurements of exactly this check.
    fn results(&self, check: &Check) -> Option<&CheckMeasurements> {
        self.observed.measurements.as_ref().filter(|measured| measured.check == *check)
    }

    fn judge(&mut self, step: &Step, check: &Check) -> CheckResult {
        let plan = self.plan;
        let mut all = CheckResult::PassedEarly;
        let mut scored = Vec::new();
        for metric in step.metrics.iter().map(|at| &plan.metrics[*at]) {
            let Some(requested) = check.metrics.iter().find(|window| window.metric == metric.name) else {
                continue;
            };
            let measured = self.observed.measurements.as_ref();
            let until = measured.map_or(self.now, |measured| measured.measured_until(&metric.name));
            let known = measured.map_or(until, |measured| measured.known_until(&metric.name));
            let lag = Duration::try_from(until.duration_since(known)).unwrap_or_default();
            let look = Look {
                until: until.as_millisecond(),
                known_until: known.as_millisecond(),
                warming_up: self.is_warming_up(requested.since, lag),
                full: check.full,
            };
            let window = (requested.since, until);
            let check_result = match measured.and_then(|measured| measured.results.get(&metric.name)) {
                Some(result) => self.judge_metric(metric, result, window, look),
                None => {
                    let missing = Measurement::Unavailable { why: "nothing was returned".to_owned() };
                    self.judge_metric(metric, &missing, window, look)
                }
            };
            match (&metric.policy.score_weight, &check_result) {
                (Some(share), CheckResult::Passed) => {
                    scored.push((share, JudgeOutcome::Pass { non_inferior: false }))
                }
                (Some(share), CheckResult::Failed(_)) => {
                    scored.push((share, JudgeOutcome::Fail { critical: false }))
                }
                _ => all = most_severe(all, check_result),
            }
        }
        if let Some((share, _)) = scored.first() {
            all = most_severe(
                all,
                score_result(
                    share.score.combine(scored.iter().map(|(share, outcome)| (*outcome, share.weight))),
                ),
            );
        }
        all = most_severe(all, self.check_silence(step, check));
        match most_severe(all, self.check_sample_ratio(step, check)) {
            CheckResult::PassedEarly if step.metrics.is_empty() => CheckResult::Passed,
            all => all,
        }
    }

    /// A canary that has a weight and no requests, while the primary has some, for
    /// several checks: its requests are lost, or nobody sees what it answers.
    fn check_silence(&mut self, step: &Step, check: &Check) -> CheckResult {
        let plan = self.plan;
        let mut counting = step.metrics.iter().map(|at| &plan.metrics[*at]);
        let Some(metric) = counting.find(|metric| {
            metric.counts_requests
                && metric.policy.on_no_data != OnMissing::Ignore
                && self.sample_ratio_applies(step)
        }) else {
            return CheckResult::PassedEarly;
        };
        let measured = self.results(check).and_then(|measured| measured.results.get(&metric.name));
        let Some(requests) = measured.map(|measured| summary_values(measured).1) else {
            return CheckResult::PassedEarly;
        };
        let (weight, now) = (step.split.canary, self.now);
        let owed = requests.primary as f64 * weight.percent() / weight.complement().percent();
        let began =
            self.status.step.as_ref().and_then(|step| step.started_at.as_ref()).map_or(now, |at| at.0);
        let state = &mut self.release().state;
        if requests.canary > 0 {
            state.silent_checks = 0;
        } else if check.full && owed >= MIN_OWED_REQUESTS {
            state.silent_checks = state.silent_checks.saturating_add(1);
        }
        let checks = state.silent_checks;
        if checks < MAX_SILENT_CHECKS || now < after(began, MIN_SILENCE) {
            return CheckResult::PassedEarly;
        }
        roll_back_for(
            metric,
            &format!(
                "the canary has a weight of {weight} % and counted no request in {checks} checks, the primary {} \
                 in the last one: its requests are lost, or its metrics are; set onNoData: ignore to go on",
                requests.primary
            ),
        )
    }

    /// Feeds the requests of the first metric that counts them to the sample
    /// ratio test: always the same metric, so no request counts twice.
    fn check_sample_ratio(&mut self, step: &Step, check: &Check) -> CheckResult {
        let plan = self.plan;
        let mut counting = step.metrics.iter().map(|at| &plan.metrics[*at]);
        let Some(metric) = counting.find(|metric| metric.counts_requests && self.sample_ratio_applies(step))
        else {
            return CheckResult::PassedEarly;
        };
        let until = self.results(check).map(|measured| measured.measured_until(&metric.name));
        let counted = self.metric_status(&metric.name).measured_until == until.map(Time);
        let measured = self.results(check).and_then(|measured| measured.results.get(&metric.name));
        let since = check.metrics.iter().find(|window| window.metric == metric.name).map(|w| w.since);
        let lasted = since.zip(until).and_then(|(since, until)| until.duration_since(since).try_into().ok());
        let requests = measured.filter(|_| counted).map(|measured| summary_values(measured).1).zip(lasted);
        self.update_sample_ratio(step, requests.unwrap_or_default(), check.full)
    }

    /// Judges the measurement of one window. Only full checks count towards
    /// limits; an interim check rolls back only where one failure does.
    fn judge_metric(
        &mut self,
        plan: &MetricPlan,
        measured: &Measurement,
        (since, until): (Timestamp, Timestamp),
        look: Look,
    ) -> CheckResult {
        let full = look.full;
        let (began, now) = (self.check_started_at(), self.now);
        let policy = &plan.policy;
        let status = self.metric_status(&plan.name);
        let (verdict, evidence) =
            policy.judge.check(&mut status.analysis_state, measured, look, status.measured_until.is_none());
        let passed_before = status.verdict == StatusVerdict::Pass
            && status.at.as_ref().zip(began).is_some_and(|(at, began)| at.0 > began);
        let counted = match verdict.outcome {
            JudgeOutcome::Pass { .. } | JudgeOutcome::Fail { .. } | JudgeOutcome::BeyondLimit => true,
            JudgeOutcome::Inconclusive { reason } => {
                !matches!(
                    reason,
                    InconclusiveReason::NoData
                        | InconclusiveReason::Unavailable
                        | InconclusiveReason::WrongMeasurementKind
                ) && policy.judge.is_stateful()
            }
        };
        if counted {
            status.measured_until = Some(Time(until));
        } else if until <= since {
            // The source lags and has no data of this window yet. The next
            // window must not start after the data it will have then.
            status.measured_until = Some(Time(since));
        }
        let check_result = match verdict.outcome {
            // After an interim check passed, the rest of the interval may be too
            // short for a verdict, or for the lag of the source.
            JudgeOutcome::Inconclusive {
                reason: InconclusiveReason::TooFewSamples | InconclusiveReason::NoData,
            } if passed_before => {
                status.at = Some(Time(now));
                return CheckResult::Passed;
            }
            outcome => to_check_result(plan, outcome, &verdict.message, full),
        };
        let outcome = verdict.outcome;
        record_verdict(status, verdict, measured, now);
        status.evidence = evidence;
        let (count, limit) = match &check_result {
            CheckResult::Failed(_) => {
                status.inconclusives = 0;
                status.failures = status.failures.saturating_add(u32::from(full));
                match outcome {
                    JudgeOutcome::Fail { .. } => (status.failures.max(1), policy.failure_limit),
                    _ => (status.failures, policy.check_failure_limit),
                }
            }
            CheckResult::Inconclusive(_) => {
                let temporary = matches!(
                    outcome,
                    JudgeOutcome::Inconclusive {
                        reason: InconclusiveReason::WarmingUp | InconclusiveReason::Incident
                    }
                );
                status.inconclusives = status.inconclusives.saturating_add(u32::from(full && !temporary));
                (status.inconclusives, policy.inconclusive_limit)
            }
            _ => {
                status.inconclusives = 0;
                return check_result;
            }
        };
        match limit {
            Some(limit) if count >= limit => roll_back_for(plan, &status.reason),
            _ => check_result,
        }
    }

    fn metric_status(&mut self, name: &str) -> &mut MetricStatus {
        let metrics = &mut self.status.metrics;
        let at = metrics.iter().position(|metric| metric.name == name).unwrap_or_else(|| {
            metrics.push(MetricStatus {
                name: name.to_owned(),
                verdict: StatusVerdict::Inconclusive,
                reason: "not judged yet".to_owned(),
                at: None,
                canary: None,
                primary: None,
                canary_count: None,
                primary_count: None,
                evidence: None,
                failures: 0,
                inconclusives: 0,
                measured_until: None,
                analysis_state: None,
            });
            metrics.len() - 1
        });
        &mut metrics[at]
    }
}

/// Combines results: all must pass for the release to advance, any failure
/// counts, and a rollback overrides everything.
fn most_severe(a: CheckResult, b: CheckResult) -> CheckResult {
    let rank = |check_result: &CheckResult| match check_result {
        CheckResult::PassedEarly => 0,
        CheckResult::Passed => 1,
        CheckResult::Pending => 2,
        CheckResult::Inconclusive(_) => 3,
        CheckResult::Failed(_) => 4,
        CheckResult::RollBack(_) => 5,
    };
    if rank(&b) > rank(&a) { b } else { a }
}

/// Applies the policy of a metric to a verdict. A metric without data at an interim
/// check may have some at the full one.
fn to_check_result(plan: &MetricPlan, outcome: JudgeOutcome, message: &str, full: bool) -> CheckResult {
    let why = || format!("{}: {message}", plan.name);
    let on_missing = match outcome {
        JudgeOutcome::Pass { non_inferior: true } if plan.policy.ends_on_evidence => {
            return CheckResult::PassedEarly;
        }
        JudgeOutcome::Pass { .. } => return CheckResult::Passed,
        JudgeOutcome::Fail { critical: true } => return roll_back_for(plan, message),
        JudgeOutcome::Fail { critical: false } | JudgeOutcome::BeyondLimit => {
            return CheckResult::Failed(why());
        }
        JudgeOutcome::Inconclusive { reason: InconclusiveReason::NoData } => plan.policy.on_no_data,
        JudgeOutcome::Inconclusive { reason: InconclusiveReason::Unavailable } => plan.policy.on_unavailable,
        JudgeOutcome::Inconclusive {
            reason:
                InconclusiveReason::TooFewSamples
                | InconclusiveReason::Suspected
                | InconclusiveReason::Incident
                | InconclusiveReason::WarmingUp
                | InconclusiveReason::WrongMeasurementKind,
        } => OnMissing::Hold,
    };
    match on_missing {
        OnMissing::Hold => CheckResult::Inconclusive(why()),
        OnMissing::Fail if full => CheckResult::Failed(why()),
        OnMissing::Fail => CheckResult::Inconclusive(why()),
        OnMissing::Ignore => CheckResult::Passed,
    }
}

fn roll_back_for(plan: &MetricPlan, why: &str) -> CheckResult {
    CheckResult::RollBack(RollbackCause::Metric { metric: plan.name.clone(), why: why.to_owned() })
}

/// Result of the common score of several metrics.
fn score_result(verdict: Verdict) -> CheckResult {
    match verdict.outcome {
        JudgeOutcome::Pass { .. } => CheckResult::Passed,
        JudgeOutcome::Fail { .. } | JudgeOutcome::BeyondLimit => CheckResult::Failed(verdict.message),
        JudgeOutcome::Inconclusive { .. } => CheckResult::Inconclusive(verdict.message),
    }
}

fn record_verdict(status: &mut MetricStatus, verdict: Verdict, measured: &Measurement, now: Timestamp) {
    status.verdict = match verdict.outcome {
        JudgeOutcome::Pass { .. } => StatusVerdict::Pass,
        JudgeOutcome::Fail { .. } | JudgeOutcome::BeyondLimit => StatusVerdict::Fail,
        JudgeOutcome::Inconclusive { .. } => StatusVerdict::Inconclusive,
    };
    status.reason = verdict.message;
    status.at = Some(Time(now));
    let (values, counts) = summary_values(measured);
    (status.canary, status.primary) = (values.canary, values.primary);
    let some = |count: u64| (count > 0).then_some(count as f64);
    (status.canary_count, status.primary_count) = (some(counts.canary), some(counts.primary));
}

/// One value per arm for the status, and the requests or points behind it.
fn summary_values(measured: &Measurement) -> (Arms<Option<f64>>, Arms<u64>) {
    match measured {
        Measurement::Scalar(value) => (Arms { canary: Some(*value), primary: None }, Arms::default()),
        Measurement::Counts(arms) => {
            let success = |counts: &Counts| counts.rate().map(|bad| rounded(100.0 * (1.0 - bad)));
            (arms.map(success), arms.map(Counts::total))
        }
        Measurement::PodCounts(_) => summary_values(&measured.clone().summed()),
        Measurement::Histogram(arms) => {
            (arms.map(|arm| arm.quantile(SLOW_QUANTILE).map(rounded)), arms.map(Histogram::total))
        }
        Measurement::Samples(arms) => (arms.map(|arm| median(arm)), arms.map(|arm| arm.len() as u64)),
        Measurement::NoData | Measurement::Unavailable { .. } => Default::default(),
    }
}

/// To six decimals.
fn rounded(value: f64) -> f64 {
    (value * 1e6).round() / 1e6
}

fn median(points: &[f64]) -> Option<f64> {
    let mut points: Vec<f64> = points.iter().copied().filter(|point| point.is_finite()).collect();
    points.sort_by(f64::total_cmp);
    points.get(points.len() / 2).copied()
}
