//! One step of a release: its split comes into force, checks run until enough
//! passed, the pause ends, the approval is given; then the next step.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::{
    WakeReason,
    action::Action,
    check::CheckResult,
    decider::{Decider, ProgressDeadline, REQUEUE_DELAY, StallCause, after},
    plan::steps::{ApprovalGate, Pause, Step},
    report::{Reason, RollbackCause},
    revert::is_route_reverted,
};
use crate::api::{
    Weight,
    canary::{
        HookType, Phase,
        status::{StepStatus, UnpassedCheck, UnpassedOutcome},
    },
};

impl Decider<'_> {
    pub fn run_step(&mut self, at: usize) {
        let plan = self.plan;
        let Some(step) = plan.steps.get(at) else { return self.advance(at) };
        self.delete_replaced_pod();
        if self.release().state.traffic_withdrawn {
            // Restoring the weight needs the same conditions as any increase.
            if !self.may_advance() {
                return;
            }
            self.release().state.traffic_withdrawn = false;
            self.set_weight(step.split.canary);
        }
        if is_route_reverted(plan, &self.status, self.observed) && self.count_revert(step) {
            return;
        }
        if !self.route(self.step_split()) {
            if let Some(why) = &self.observed.route_refused {
                return self.fail(RollbackCause::RouteRefused { why: why.clone() });
            }
            self.abort_check_window();
            let weight = self.status.canary_weight;
            return match self.observed.split {
                Some(_) => self
                    .block(Reason::RouteNotInForce { weight }, ProgressDeadline::Running(StallCause::Route)),
                None => self.block(
                    self.route_blocked_reason(weight, Reason::RoutingUnknown),
                    ProgressDeadline::Paused,
                ),
            };
        }
        self.start_check_window();
        match self.check(at, step) {
            CheckResult::Pending => {}
            CheckResult::Passed => self.record_passed_checks(self.status.iterations.saturating_add(1), step),
            CheckResult::PassedEarly => {
                self.record_passed_checks(self.status.iterations.max(step.checks), step)
            }
            CheckResult::Failed(why) => {
                self.record_unpassed_check(UnpassedOutcome::Failed, why.clone());
                if self.check_failed(why) {
                    return;
                }
            }
            CheckResult::ReplacePod { pod, why } => return self.replace_pod(pod, why),
            CheckResult::RollBack(cause) => return self.fail(cause),
            CheckResult::Inconclusive(why) => self.record_unpassed_check(UnpassedOutcome::Inconclusive, why),
        }
        let unpassed = self.status.step.as_ref().and_then(|step| step.unpassed_check.clone());
        let inconclusive =
            |why| (Reason::Inconclusive { why }, ProgressDeadline::Running(StallCause::Evidence));
        if self.status.iterations < step.checks {
            let why = unpassed.filter(|check| check.outcome == UnpassedOutcome::Inconclusive);
            let why = why.map(|check| check.reason).or_else(|| self.sample_ratio_warning(step));
            let analyzing = || (self.analyzing_reason(at, step), ProgressDeadline::Paused);
            let (reason, deadline) = why.map_or_else(analyzing, inconclusive);
            return self.block(reason, deadline);
        }
        if let Some(pause) = step.pause
            && !self.pause_is_over(step, pause)
        {
            return;
        }
        if let Some(approval) = &step.approval
            && !self.is_approved(at, step, approval)
        {
            return;
        }
        match unpassed {
            None => self.advance(at + 1),
            Some(UnpassedCheck { outcome: UnpassedOutcome::Failed, reason: why }) => {
                self.block(Reason::LatestCheckFailed { why }, ProgressDeadline::Paused)
            }
            Some(UnpassedCheck { outcome: UnpassedOutcome::Inconclusive, reason: why }) => {
                let (reason, deadline) = inconclusive(why);
                self.block(reason, deadline)
            }
        }
    }

    /// Passed checks beyond those the step needs are no progress.
    fn record_passed_checks(&mut self, checks: u32, step: &Step) {
        if self.status.iterations < step.checks {
            self.note_progress();
        }
        self.status.iterations = checks;
        if let Some(step) = &mut self.status.step {
            step.unpassed_check = None;
        }
    }

    fn record_unpassed_check(&mut self, outcome: UnpassedOutcome, reason: String) {
        if let Some(step) = &mut self.status.step {
            step.unpassed_check = Some(UnpassedCheck { outcome, reason });
        }
    }

    fn analyzing_reason(&self, at: usize, step: &Step) -> Reason {
        Reason::Analyzing {
            step: at as u32,
            of: self.plan.steps.len() as u32,
            name: step.name.clone(),
            passed: self.status.iterations,
            needed: step.checks,
        }
    }

    fn pause_is_over(&mut self, step: &Step, pause: Pause) -> bool {
        if self.release().state.resumed {
            return true;
        }
        let began =
            self.status.step.as_ref().and_then(|step| step.started_at.as_ref()).map_or(self.now, |at| at.0);
        let until = match pause {
            Pause::For(length) => Some(after(began, length)),
            Pause::UntilResumed => None,
        };
        if until.is_some_and(|until| until <= self.now) {
            return true;
        }
        if let Some(until) = until {
            self.wake_at(until, WakeReason::PauseEnds);
        }
        self.block(Reason::StepPaused { name: step.name.clone(), until }, ProgressDeadline::Paused);
        false
    }

    fn is_approved(&mut self, at: usize, step: &Step, approval: &ApprovalGate) -> bool {
        match self.gate_open(&step.name, None, approval.expires, Some(at as u32)) {
            Ok(()) => return true,
            Err(Some(cause)) => self.fail(cause),
            Err(None) => {
                let (name, message) = (step.name.clone(), approval.message.clone());
                self.block(Reason::AwaitingApproval { name, message }, ProgressDeadline::Paused);
            }
        }
        false
    }

    /// On to the next step, or to the promotion.
    pub fn advance(&mut self, next: usize) {
        if !self.canary_is_ready() {
            let reason = self.canary_not_ready();
            return self.block(reason, ProgressDeadline::Running(StallCause::Canary));
        }
        if !self.may_advance() {
            return;
        }
        let plan = self.plan;
        if let Some(step) = plan.steps.get(next) {
            if !self.is_scaled_for(next) {
                return;
            }
            let now = self.step_split();
            let rises = step.split.canary > now.canary || step.split.matches != now.matches;
            if rises && !self.gates_open(HookType::ConfirmTrafficIncrease, Some(next as u32)) {
                return;
            }
            if !self.take_slot() {
                return;
            }
            self.enter_step(next);
            self.emit(Reason::Advanced {
                step: next as u32,
                of: plan.steps.len() as u32,
                name: step.name.clone(),
                weight: self.status.canary_weight,
                matched: !step.split.matches.is_empty(),
            });
            if self.route(self.step_split()) {
                // Nothing changes that would ask for the next decision: the check
                // begins once this one is written.
                self.wake_at(after(self.now, REQUEUE_DELAY), WakeReason::Requeue);
            }
        } else if self.gates_open(HookType::ConfirmPromotion, None) {
            self.enter(Phase::Promoting);
        } else if self.status.phase == Phase::Progressing {
            self.enter(Phase::WaitingPromotion);
        }
    }

    /// Replicas come first: a step begins only with its replicas in place.
    fn is_scaled_for(&mut self, next: usize) -> bool {
        self.release().state.scale_for_step = Some(next as u32);
        let desired = self.observed.target.as_ref().map_or(0, |target| target.pods.desired);
        let replicas = self.step_replicas(desired);
        if !self.plan.scalable || replicas == desired {
            return true;
        }
        self.request(Action::ScaleCanary { replicas });
        self.block(Reason::StartingCanary { replicas }, ProgressDeadline::Running(StallCause::Canary));
        false
    }

    fn enter_step(&mut self, at: usize) {
        let plan = self.plan;
        let (step, total) = (&plan.steps[at], plan.steps.len() as u32);
        self.set_weight(step.split.canary);
        self.status.iterations = 0;
        self.status.step = Some(StepStatus {
            index: at as u32,
            total,
            progress: format!("{}/{total}", at + 1),
            name: step.name.clone(),
            started_at: Some(Time(self.now)),
            check_started_at: None,
            checks: 0,
            unpassed_check: None,
        });
        let state = &mut self.release().state;
        (state.resumed, state.scale_for_step) = (false, None);
        // Drops the traffic-increase gates of earlier steps: a release of a
        // hundred steps must not accumulate them.
        self.status.gates.retain(|gate| {
            gate.type_ != Some(HookType::ConfirmTrafficIncrease) || gate.step >= Some(at as u32)
        });
        self.reset_step_evidence();
        self.end_reverts();
        self.note_progress();
    }

    /// Counts a failed check. True if it reached the threshold and rolled back.
    pub fn check_failed(&mut self, why: String) -> bool {
        self.status.failed_checks += 1;
        let (failed, threshold) = (self.status.failed_checks, self.plan.threshold);
        if failed >= threshold {
            self.fail(RollbackCause::Checks { failed, why });
            return true;
        }
        self.emit(Reason::CheckFailed { failed, threshold, why });
        false
    }

    /// The steps were edited during the release. It continues from the first
    /// new step with the highest weight not above the present one, and judges
    /// that step from its beginning; without one it starts at the first step.
    pub fn resume_after_edit(&mut self) {
        let plan = self.plan;
        self.release().state.plan.clone_from(&plan.fingerprint);
        if self.status.step.is_none() {
            return;
        }
        let weight = self.status.canary_weight;
        let weight_at = |at: &usize| plan.steps[*at].split.canary;
        let not_above = (0..plan.steps.len()).filter(|at| weight_at(at) <= weight);
        match not_above.max_by_key(|at| (weight_at(at), std::cmp::Reverse(*at))) {
            Some(at) => {
                self.enter_step(at);
                let of = plan.steps.len() as u32;
                self.emit(Reason::StepsChanged { step: at as u32, of, weight: self.status.canary_weight });
            }
            None => {
                self.status.step = None;
                self.status.canary_weight = Weight::ZERO;
                self.note_progress();
            }
        }
        if self.status.phase == Phase::WaitingPromotion {
            self.enter(Phase::Progressing);
        }
    }
}
