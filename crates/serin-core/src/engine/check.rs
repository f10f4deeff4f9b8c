//! One check: hooks are called, metrics are measured and judged, and the results
//! are combined into one [`CheckResult`].
//!
//! A check begins when the step's split is in force and ends, one interval
//! later, with a full check of every metric of the step. Sequential judges run
//! interim checks in between: they can end a bad release early, and on evidence
//! a good step. While a canary is suspected they come twice as often.
//!
//! [`judging`](super::judging) turns the measurements of a check into its result.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::{
    WakeReason,
    action::{Action, Check, GateScope, MetricWindow},
    decider::{Decider, after},
    judging::most_severe,
    observed::{CheckMeasurements, GateReply},
    plan::{MetricPlan, steps::Step},
    report::RollbackCause,
};
use crate::api::canary::{
    HookType,
    status::{MetricStatus, Verdict as StatusVerdict},
};

pub(super) enum CheckResult {
    /// The interval is not over, or results are missing.
    Pending,
    Passed,
    /// The canary is shown to be non-inferior; the step may end now.
    PassedEarly,
    Failed(String),
    /// One pod of the canary alone is bad, and the release may replace it.
    ReplacePod {
        pod: String,
        why: String,
    },
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
    pub(super) fn is_warming_up(&self, since: Timestamp, lag: Duration) -> bool {
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

    pub(super) fn check_started_at(&self) -> Option<Timestamp> {
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
            CheckResult::RollBack(_) | CheckResult::ReplacePod { .. } => check_result,
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
    pub(super) fn results(&self, check: &Check) -> Option<&CheckMeasurements> {
        self.observed.measurements.as_ref().filter(|measured| measured.check == *check)
    }
}
