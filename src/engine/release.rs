//! A release on its way: waiting for its turn, then with a canary that is
//! started, tested, and kept able to serve while its steps go by.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::{
    WakeReason,
    action::{Action, Moment, Split},
    observed::{Reply, Target},
    pass::{Clock, Pass, Stall},
    plan::Gate,
    report::Reason,
};
use crate::api::{
    Weight,
    canary::{
        HookType, Phase,
        status::{GateState, Outcome},
    },
};

impl Pass<'_> {
    /// A revision waits for its turn. Nothing of it runs yet.
    pub fn wait(&mut self) {
        let Some(target) = &self.seen.target else {
            self.bring_home();
            return self.hold(Reason::TargetMissing, Clock::Stands);
        };
        if self.release().revision != target.revision {
            return self.supersede(target);
        }
        if let Some(cause) = self.rollback_gate() {
            return self.fail(cause);
        }
        if !self.primary_is_right() || !self.bring_home() {
            return;
        }
        if self.release().state.clear_first {
            // No pod that started with the superseded template or config may
            // be measured as the new one.
            self.empty_canary();
            if self.plan.scales && target.pods.exist {
                return self.hold(Reason::ClearingCanary, Clock::Stands);
            }
            self.release().state.clear_first = false;
        }
        if self.was_just_emptied(target) {
            return self.hold(Reason::ClearingCanary, Clock::Stands);
        }
        if !self.may_move() {
            return;
        }
        if let (others, Some(cap)) = (self.seen.other_releases, self.seen.release_cap)
            && others >= cap
        {
            return self.hold(Reason::TooManyReleases { others, cap }, Clock::Stands);
        }
        if self.gates_open(HookType::ConfirmRollout, None) {
            let plan = self.plan;
            self.release().state.plan.clone_from(&plan.fingerprint);
            self.enter(Phase::Progressing);
        }
    }

    /// Another revision took the place of the one under way.
    pub fn supersede(&mut self, target: &Target) {
        let by = target.revision.clone();
        let waited = self.status.phase == Phase::Waiting;
        let clear_first = !waited || self.release().state.clear_first;
        let paused = self.release().paused;
        self.end(Outcome::Superseded, format!("revision {by} took its place"));
        if self.promoted_revision() == Some(by.as_str()) {
            self.reverted(target);
        } else {
            self.say(Reason::Superseded { by });
            self.start(target, clear_first);
            // Somebody stopped the releases of this target: a push does not
            // outvote them.
            self.release().paused = paused;
        }
    }

    /// Nothing starts, advances or promotes unless the primary is ready, nobody
    /// paused, and the calendar allows it. Holds otherwise.
    pub fn may_move(&mut self) -> bool {
        if self.release().paused {
            self.hold(Reason::Paused, Clock::Stands);
        } else if !self.primary_is_ready() {
            self.hold(self.primary_not_ready(), Clock::Stands);
        } else if let Err(closed) = self.plan.windows.check(self.now) {
            if let Some(until) = closed.until {
                self.wake_at(until, WakeReason::WindowOpens);
            }
            self.hold(Reason::WindowClosed { frozen: closed.frozen, until: closed.until }, Clock::Stands);
        } else {
            return true;
        }
        false
    }

    /// The canary runs, and step by step gets more.
    pub fn progress_steps(&mut self) {
        if self.promotion_begun() {
            // Decided, done, but not recorded before a crash.
            return self.enter(Phase::Promoting);
        }
        let Some(target) = &self.seen.target else { return self.lose_target() };
        if self.release().revision != target.revision {
            return self.supersede(target);
        }
        if let Some(cause) = self.rollback_gate() {
            return self.fail(cause);
        }
        if self.seen.primary.as_ref().is_some_and(|primary| !primary.pinned) {
            self.act(Action::PinPrimary);
        }
        let plan = self.plan;
        if self.release().state.plan != plan.fingerprint {
            self.reposition();
        }
        if !self.canary_is_up(target) {
            return;
        }
        match self.status.step.as_ref().map(|step| step.index as usize) {
            _ if self.plan.skip_analysis => {
                if self.may_move() {
                    self.enter(Phase::Promoting);
                }
            }
            None => self.before_first_step(),
            Some(at) => self.run_step(at),
        }
    }

    /// The target was deleted: whatever went to it goes to the primary.
    pub fn lose_target(&mut self) {
        self.withdraw();
        self.route(Split::home());
        self.hold(Reason::TargetMissing, Clock::Stands);
    }

    /// Takes the canary's traffic away until it is ready again.
    pub fn withdraw(&mut self) {
        self.release().state.withdrawn = true;
        self.status.canary_weight = Weight::ZERO;
        self.stop_look();
    }

    /// Scales the canary as the step wants it and waits until it can serve. A
    /// canary that has traffic and no ready pod loses its traffic.
    fn canary_is_up(&mut self, target: &Target) -> bool {
        let pods = target.pods;
        let wanted = self.wanted_replicas(pods.desired);
        if self.plan.scales && wanted != pods.desired {
            self.act(Action::ScaleCanary { replicas: wanted });
        }
        if pods.ready == 0 {
            if self.step_split().reaches_canary() {
                self.withdraw();
            }
            self.route(Split::home());
        }
        let withdrawn = self.release().state.withdrawn;
        let started = self.status.step.is_some() && !withdrawn;
        if self.canary_is_ready() || (started && self.canary_serves()) {
            return true;
        }
        let reason = match pods.desired {
            _ if withdrawn => {
                self.route(Split::home());
                Reason::CanaryDown
            }
            0 => Reason::StartingCanary { replicas: wanted },
            desired => Reason::CanaryNotReady { ready: pods.in_place(), desired },
        };
        self.hold(reason, Clock::Runs(Stall::Canary));
        false
    }

    /// What the step asks for, or the next one once the canary is scaled for
    /// it; else what there is, or as many as the primary has.
    pub fn wanted_replicas(&self, desired: u32) -> u32 {
        let primary = self.seen.primary.as_ref().map_or(1, |primary| primary.pods.desired.max(1));
        let present = self.status.step.as_ref().map_or(0, |step| step.index);
        let next = self.status.release.as_ref().and_then(|release| release.state.scale_for);
        let at = next.unwrap_or(present) as usize;
        let scaled_by_steps = self.plan.steps.iter().any(|step| step.replicas.is_some());
        match self.plan.steps.get(at).and_then(|step| step.replicas) {
            Some(replicas) => replicas.of(primary),
            None if desired == 0 => primary,
            None if scaled_by_steps => desired.max(primary),
            None => desired,
        }
    }

    /// The canary is ready and has no traffic yet: hooks may test it.
    fn before_first_step(&mut self) {
        if !self.route(Split::home()) {
            let weight = Weight::ZERO;
            let why = self.unrouted(weight, Reason::RouteNotInForce { weight });
            return self.hold(why, Clock::Runs(Stall::Route));
        }
        let plan = self.plan;
        let mut passed = true;
        for gate in plan.gates(HookType::PreRollout) {
            passed &= self.pre_rollout(gate);
            if self.status.phase == Phase::Failed {
                return;
            }
        }
        if passed {
            self.advance(0);
        }
    }

    /// Asks one pre-rollout hook until it says yes. Each no is a failed check,
    /// once.
    fn pre_rollout(&mut self, gate: &Gate) -> bool {
        let kind = Some(HookType::PreRollout);
        if self.gate_status(&gate.name, kind, None).state == GateState::Open {
            return true;
        }
        let answer = self.ask(&gate.name, kind, Moment::Release);
        let status = self.gate_status(&gate.name, kind, None);
        let pending = |why: &str| Reason::HookPending { hook: gate.name.clone(), why: why.to_owned() };
        match answer.map(|answer| (&answer.reply, answer.at)) {
            None => self.hold(pending(""), Clock::Stands),
            Some((Reply::Silence { why }, _)) => self.hold(pending(why), Clock::Stands),
            Some((Reply::Yes { .. }, _)) => {
                status.state = GateState::Open;
                status.message.clear();
                self.progress();
                return true;
            }
            Some((Reply::No { why, .. }, at)) => {
                let counted = status.state == GateState::Refused && status.since == Some(Time(at));
                status.state = GateState::Refused;
                status.since = Some(Time(at));
                status.message.clone_from(why);
                if counted || !self.check_failed(format!("the hook {} said no ({why})", gate.name)) {
                    self.hold(pending(why), Clock::Stands);
                }
            }
        }
        false
    }
}
