//! One step of a release: its split comes into force, looks are taken until
//! enough passed, a pause ends, somebody approves; then the next.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::{
    WakeReason,
    action::Action,
    look::Looked,
    pass::{Clock, Pass, Stall, after},
    report::{Cause, Reason},
    steps::{Asking, Pause, Step},
};
use crate::api::{
    Weight,
    canary::{HookType, Phase, status::StepStatus},
};

impl Pass<'_> {
    pub fn run_step(&mut self, at: usize) {
        let plan = self.plan;
        let Some(step) = plan.steps.get(at) else { return self.advance(at) };
        if self.release().state.withdrawn {
            // Back to what it had, on the same terms as any rise.
            if !self.may_move() {
                return;
            }
            self.release().state.withdrawn = false;
            self.set_weight(step.split.canary);
        }
        if !self.route(self.step_split()) {
            self.stop_look();
            let weight = self.status.canary_weight;
            return match self.seen.split {
                Some(_) => self.hold(Reason::RouteNotInForce { weight }, Clock::Runs(Stall::Route)),
                None => self.hold(self.unrouted(weight, Reason::RoutingUnknown), Clock::Stands),
            };
        }
        self.begin_look();
        let mut doubt = None;
        match self.look(at, step) {
            Looked::NotYet => {}
            Looked::Passed => self.passed(self.status.iterations.saturating_add(1), step),
            Looked::Certified => self.passed(self.status.iterations.max(step.looks), step),
            Looked::Failed(why) => {
                if self.check_failed(why) {
                    return;
                }
            }
            Looked::Decided(cause) => return self.fail(cause),
            Looked::Doubt(why) => doubt = Some(why),
        }
        if self.status.iterations < step.looks {
            return match doubt.or_else(|| self.doubt(step)).or_else(|| self.route_doubt(step)) {
                Some(why) => self.hold(Reason::Inconclusive { why }, Clock::Runs(Stall::Evidence)),
                None => self.hold(self.judging(at, step), Clock::Stands),
            };
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
        self.advance(at + 1);
    }

    /// Looks that passed beyond what the step needs are no progress.
    fn passed(&mut self, looks: u32, step: &Step) {
        if self.status.iterations < step.looks {
            self.progress();
        }
        self.status.iterations = looks;
    }

    /// What the last look could not tell.
    fn doubt(&self, step: &Step) -> Option<String> {
        let judged = |name: &str| step.metrics.iter().any(|at| self.plan.metrics[*at].name == name);
        let doubtful =
            self.status.metrics.iter().find(|metric| metric.inconclusives > 0 && judged(&metric.name))?;
        Some(format!("{}: {}", doubtful.name, doubtful.reason))
    }

    fn judging(&self, at: usize, step: &Step) -> Reason {
        Reason::Judging {
            step: at as u32,
            of: self.plan.steps.len() as u32,
            name: step.name.clone(),
            passed: self.status.iterations,
            needed: step.looks,
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
        self.hold(Reason::PauseStep { name: step.name.clone(), until }, Clock::Stands);
        false
    }

    fn is_approved(&mut self, at: usize, step: &Step, approval: &Asking) -> bool {
        match self.gate_open(&step.name, None, approval.expires, Some(at as u32)) {
            Ok(()) => return true,
            Err(Some(cause)) => self.fail(cause),
            Err(None) => {
                let (name, message) = (step.name.clone(), approval.message.clone());
                self.hold(Reason::AwaitingApproval { name, message }, Clock::Stands);
            }
        }
        false
    }

    /// On to the next step, or to the promotion.
    pub fn advance(&mut self, next: usize) {
        if !self.canary_is_ready() {
            let pods = self.seen.target.as_ref().map(|target| target.pods).unwrap_or_default();
            return self.hold(
                Reason::CanaryNotReady { ready: pods.in_place(), desired: pods.desired },
                Clock::Runs(Stall::Canary),
            );
        }
        if !self.may_move() {
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
            self.take_step(next);
            self.say(Reason::Advanced {
                step: next as u32,
                of: plan.steps.len() as u32,
                name: step.name.clone(),
                weight: self.status.canary_weight,
                matched: !step.split.matches.is_empty(),
            });
            self.route(self.step_split());
        } else if self.gates_open(HookType::ConfirmPromotion, None) {
            self.enter(Phase::Promoting);
        } else if self.status.phase == Phase::Progressing {
            self.enter(Phase::WaitingPromotion);
        }
    }

    /// Replicas come first: a step begins with the pods it asks for.
    fn is_scaled_for(&mut self, next: usize) -> bool {
        self.release().state.scale_for = Some(next as u32);
        let desired = self.seen.target.as_ref().map_or(0, |target| target.pods.desired);
        let wanted = self.wanted_replicas(desired);
        if !self.plan.scales || wanted == desired {
            return true;
        }
        self.act(Action::ScaleCanary { replicas: wanted });
        self.hold(Reason::StartingCanary { replicas: wanted }, Clock::Runs(Stall::Canary));
        false
    }

    fn take_step(&mut self, at: usize) {
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
            look_started_at: None,
            looks: 0,
        });
        let state = &mut self.release().state;
        (state.resumed, state.scale_for) = (false, None);
        // Gates on the way up are behind it; a release of a hundred steps must
        // not drag them all along.
        self.status.gates.retain(|gate| {
            gate.type_ != Some(HookType::ConfirmTrafficIncrease) || gate.step >= Some(at as u32)
        });
        self.begin_judging();
        self.progress();
    }

    /// One more failed check. True if it was one too many.
    pub fn check_failed(&mut self, why: String) -> bool {
        self.status.failed_checks += 1;
        let (failed, threshold) = (self.status.failed_checks, self.plan.threshold);
        if failed >= threshold {
            self.fail(Cause::Checks { failed, why });
            return true;
        }
        self.say(Reason::CheckFailed { failed, threshold, why });
        false
    }

    /// The steps were edited while the release was at one of them. It goes on
    /// from the first new step with the most traffic that is no more than it
    /// has, and that step is judged anew; without one it begins again.
    pub fn reposition(&mut self) {
        let plan = self.plan;
        self.release().state.plan.clone_from(&plan.fingerprint);
        if self.status.step.is_none() {
            return;
        }
        let has = self.status.canary_weight;
        let weight_at = |at: &usize| plan.steps[*at].split.canary;
        let fitting = (0..plan.steps.len()).filter(|at| weight_at(at) <= has);
        let first = fitting.max_by_key(|at| (weight_at(at), std::cmp::Reverse(*at)));
        match first {
            Some(at) => {
                self.take_step(at);
                let of = plan.steps.len() as u32;
                self.say(Reason::StepsChanged { step: at as u32, of, weight: self.status.canary_weight });
            }
            None => {
                self.status.step = None;
                self.status.canary_weight = Weight::ZERO;
                self.progress();
            }
        }
        if self.status.phase == Phase::WaitingPromotion {
            self.enter(Phase::Progressing);
        }
    }
}
