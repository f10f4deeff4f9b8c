//! A running release: waiting to start, then starting the canary, calling
//! pre-rollout hooks, and withdrawing traffic from a canary that is not ready.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::{
    WakeReason,
    action::{Action, GateScope, Split},
    decider::{Decider, ProgressDeadline, StallCause},
    observed::{GateReply, Target},
    plan::Gate,
    report::{Reason, RollbackCause},
};
use crate::api::{
    Weight,
    canary::{
        HookType, Phase,
        status::{GateState, Outcome},
    },
};

/// A canary that lost all its pods under its traffic this often is rolled back.
const MAX_WITHDRAWALS: u32 = 3;

impl Decider<'_> {
    /// A revision waits to be released. No pod of it runs yet.
    pub fn wait(&mut self) {
        let Some(target) = &self.observed.target else {
            self.route_all_to_primary();
            return self.block(Reason::TargetMissing, ProgressDeadline::Paused);
        };
        if self.release().revision != target.revision {
            return self.supersede(target);
        }
        if let Some(cause) = self.rollback_gate() {
            return self.fail(cause);
        }
        if !self.primary_at_promoted_revision() || !self.route_all_to_primary() {
            return;
        }
        if self.release().state.wait_for_termination {
            // No pod that started with the superseded template or config may
            // be measured as the new one. The size that people wrote for it is
            // the one to start again with.
            if target.pods.desired > 0 {
                self.release().state.written_replicas = Some(target.pods.desired);
            }
            if self.is_persisted() {
                self.scale_canary_down();
            }
            // Those that are wanted may be starting, and no status counts them yet.
            if self.plan.scalable && (target.pods.exist || target.pods.desired > 0) {
                return self.block(Reason::CanaryTerminating, ProgressDeadline::Paused);
            }
            self.release().state.wait_for_termination = false;
        }
        if self.is_scaling_down(target) {
            return self.block(Reason::CanaryTerminating, ProgressDeadline::Paused);
        }
        if !self.may_advance() {
            return;
        }
        if self.gates_open(HookType::ConfirmRollout, None) && self.take_slot() {
            let plan = self.plan;
            self.release().state.plan.clone_from(&plan.fingerprint);
            self.enter(Phase::Progressing);
        }
    }

    /// Replaces the release of an older revision.
    pub fn supersede(&mut self, target: &Target) {
        let by = target.revision.clone();
        let waited = self.status.phase == Phase::Waiting;
        let wait_for_termination = !waited || self.release().state.wait_for_termination;
        let paused = self.release().paused;
        let written_replicas = self.release().state.written_replicas.filter(|_| waited);
        let holds_slot = self.release().state.holds_slot;
        let started_at = self.release().started_at.clone();
        let queued_since = self.release().state.queued_since.take().unwrap_or(started_at);
        self.archive_release(Outcome::Superseded, format!("{} took its place", self.name_of(&by)));
        if self.promoted_revision() == Some(by.as_str()) {
            self.target_unchanged(target);
        } else {
            self.emit(Reason::Superseded { by });
            self.start(target, wait_for_termination);
            // A user paused the releases of this target: a new revision does not
            // end that.
            self.release().paused = paused;
            let state = &mut self.release().state;
            state.written_replicas = written_replicas;
            (state.holds_slot, state.queued_since) = (holds_slot, Some(queued_since));
        }
    }

    /// Nothing starts, advances or promotes unless the primary is ready, the
    /// release is not paused, and a release window is open. Blocks otherwise.
    pub fn may_advance(&mut self) -> bool {
        if self.release().paused {
            self.block(Reason::Paused, ProgressDeadline::Paused);
        } else if !self.primary_is_ready() {
            self.block(self.primary_not_ready(), ProgressDeadline::Running(StallCause::Primary));
        } else if let Err(closed) = self.plan.windows.check(self.now) {
            if let Some(until) = closed.until {
                self.wake_at(until, WakeReason::WindowOpens);
            }
            self.block(
                Reason::WindowClosed { frozen: closed.frozen, until: closed.until },
                ProgressDeadline::Paused,
            );
        } else {
            return true;
        }
        false
    }

    /// Takes a slot of the limit of concurrent releases, unless the release holds
    /// one. Blocks while none is free.
    pub fn take_slot(&mut self) -> bool {
        let others = self.observed.other_releases;
        if let Some(cap) = self.observed.release_cap
            && others >= cap
            && !self.release().state.holds_slot
        {
            self.block(Reason::TooManyReleases { others, cap }, ProgressDeadline::Paused);
            return false;
        }
        self.release().state.holds_slot = true;
        true
    }

    /// The canary runs, and gets more traffic step by step.
    pub fn progress_steps(&mut self) {
        if self.promotion_begun() {
            // A crash lost the status written after the promotion began.
            return self.enter(Phase::Promoting);
        }
        let Some(target) = &self.observed.target else { return self.handle_missing_target() };
        if self.release().revision != target.revision {
            return self.supersede(target);
        }
        if let Some(cause) = self.rollback_gate() {
            return self.fail(cause);
        }
        if self.observed.primary.as_ref().is_some_and(|primary| !primary.pinned) {
            self.request(Action::PinPrimary);
        }
        let plan = self.plan;
        if self.release().state.plan != plan.fingerprint {
            self.resume_after_edit();
        }
        if !self.ensure_canary_ready(target) {
            return;
        }
        match self.status.step.as_ref().map(|step| step.index as usize) {
            _ if self.plan.skip_analysis => {
                if self.may_advance() {
                    self.enter(Phase::Promoting);
                }
            }
            None => self.before_first_step(),
            Some(at) => self.run_step(at),
        }
    }

    /// The target was deleted: all traffic goes to the primary.
    pub fn handle_missing_target(&mut self) {
        self.withdraw();
        self.route(Split::all_primary());
        self.block(Reason::TargetMissing, ProgressDeadline::Paused);
    }

    /// Withdraws the canary's traffic until it is ready again.
    pub fn withdraw(&mut self) {
        self.release().state.traffic_withdrawn = true;
        self.status.canary_weight = Weight::ZERO;
        self.abort_check_window();
    }

    /// Scales the canary to the step's replicas and waits until it can serve. A
    /// canary without a ready pod loses its traffic.
    fn ensure_canary_ready(&mut self, target: &Target) -> bool {
        let pods = target.pods;
        let replicas = self.step_replicas(pods.desired);
        // Pods that were started for a release which no status names would stay for ever, if
        // the target were set back meanwhile.
        if self.plan.scalable && replicas != pods.desired && self.release_is_persisted() {
            self.request(Action::ScaleCanary { replicas });
        }
        if pods.ready == 0 {
            if self.step_split().reaches_canary() {
                self.withdraw();
                if self.observed.split.as_ref().is_some_and(Split::reaches_canary) && self.count_withdrawal()
                {
                    return false;
                }
            }
            self.route(Split::all_primary());
        }
        let withdrawn = self.release().state.traffic_withdrawn;
        let started = self.status.step.is_some() && !withdrawn;
        if self.canary_is_ready() || (started && self.canary_serves()) {
            return true;
        }
        let reason = match pods.desired {
            _ if withdrawn => {
                self.route(Split::all_primary());
                Reason::CanaryDown
            }
            0 => Reason::StartingCanary { replicas },
            _ => self.canary_not_ready(),
        };
        self.block(reason, ProgressDeadline::Running(StallCause::Canary));
        false
    }

    /// Counts that the canary lost all its pods under its traffic. True if that was
    /// once too often and the release is rolled back.
    fn count_withdrawal(&mut self) -> bool {
        let withdrawals = &mut self.release().state.withdrawals;
        *withdrawals = withdrawals.saturating_add(1);
        let times = *withdrawals;
        let rolled_back = times >= MAX_WITHDRAWALS;
        if rolled_back {
            self.fail(RollbackCause::CanaryDied { times });
        }
        rolled_back
    }

    /// Replicas of the step, or of the next one once the canary is scaled for
    /// it; else the present ones, those written before it was scaled to zero, or
    /// as many as the primary has.
    pub fn step_replicas(&self, desired: u32) -> u32 {
        let primary = self.observed.primary.as_ref().map_or(1, |primary| primary.pods.desired.max(1));
        let present = self.status.step.as_ref().map_or(0, |step| step.index);
        let next = self.status.release.as_ref().and_then(|release| release.state.scale_for_step);
        let at = next.unwrap_or(present) as usize;
        let written = self.status.release.as_ref().and_then(|release| release.state.written_replicas);
        let scaled_by_steps = self.plan.steps.iter().any(|step| step.replicas.is_some());
        match self.plan.steps.get(at).and_then(|step| step.replicas) {
            Some(replicas) => replicas.of(primary),
            None if desired == 0 && !scaled_by_steps => written.unwrap_or(primary),
            None if desired == 0 => primary,
            None if scaled_by_steps => desired.max(primary),
            None => desired,
        }
    }

    /// The canary is ready and has no traffic yet: hooks may test it.
    fn before_first_step(&mut self) {
        if !self.route(Split::all_primary()) {
            let weight = Weight::ZERO;
            let why = self.route_blocked_reason(weight, Reason::RouteNotInForce { weight });
            return self.block(why, ProgressDeadline::Running(StallCause::Route));
        }
        let plan = self.plan;
        let mut passed = true;
        for gate in plan.gates(HookType::PreRollout) {
            passed &= self.call_pre_rollout(gate);
            if self.status.phase == Phase::Failed {
                return;
            }
        }
        if !passed {
            return;
        }
        if self.release_is_persisted() {
            self.advance(0);
        } else {
            // A release whose status cannot be written gets no traffic: nobody would
            // know why.
            let replicas = self.observed.target.as_ref().map_or(0, |target| target.pods.desired);
            self.block(Reason::StartingCanary { replicas }, ProgressDeadline::Paused);
        }
    }

    /// Calls one pre-rollout hook until it passes. Each refusal counts as one
    /// failed check.
    fn call_pre_rollout(&mut self, gate: &Gate) -> bool {
        let kind = Some(HookType::PreRollout);
        if self.gate_status(&gate.name, kind, None).state == GateState::Open {
            return true;
        }
        let result = self.call_gate(&gate.name, kind, GateScope::Release);
        let status = self.gate_status(&gate.name, kind, None);
        let pending = |why: &str| Reason::HookPending { hook: gate.name.clone(), why: why.to_owned() };
        match result.map(|result| (&result.reply, result.at)) {
            None => self.block(pending(""), ProgressDeadline::Paused),
            Some((GateReply::Unreachable { why }, _)) => self.block(pending(why), ProgressDeadline::Paused),
            Some((GateReply::Yes { .. }, _)) => {
                status.state = GateState::Open;
                status.message.clear();
                self.note_progress();
                return true;
            }
            Some((GateReply::No { why, .. }, at)) => {
                let counted = status.state == GateState::Refused && status.since == Some(Time(at));
                status.state = GateState::Refused;
                status.since = Some(Time(at));
                status.message.clone_from(why);
                if counted || !self.check_failed(format!("the hook {} refused ({why})", gate.name)) {
                    self.block(pending(why), ProgressDeadline::Paused);
                }
            }
        }
        false
    }
}
