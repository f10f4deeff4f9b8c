//! A release on its way: waiting for its turn, then step by step until it may
//! be promoted.

use super::{
    WakeReason,
    action::{Action, Moment, Split},
    look::Looked,
    observed::{Answer, Reply, Target},
    pass::{Clock, Pass, Stall, Standing, after},
    plan::Gate,
    report::{Cause, Reason},
    steps::{Asking, Pause, Step},
};
use crate::api::{
    Weight,
    canary::{
        HookType, Phase,
        status::{GateState, Outcome, StepStatus},
    },
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

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
            if self.plan.scales && target.pods.existing > 0 {
                return self.hold(Reason::ClearingCanary, Clock::Stands);
            }
            self.release().state.clear_first = false;
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
            desired => Reason::CanaryNotReady { ready: pods.ready, desired },
        };
        self.hold(reason, Clock::Runs(Stall::Canary));
        false
    }

    /// What the step asks for, or the next one once the canary is scaled for
    /// it; else what there is, or as many as the primary has.
    fn wanted_replicas(&self, desired: u32) -> u32 {
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
            return self.hold(Reason::RouteNotInForce { weight: Weight::ZERO }, Clock::Runs(Stall::Route));
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
        let standing = self.ask(&gate.name, kind, Moment::Release);
        let status = self.gate_status(&gate.name, kind, None);
        let closed = |why: &str| Reason::HookPending { hook: gate.name.clone(), why: why.to_owned() };
        match standing {
            Standing::Pending => self.hold(closed(""), Clock::Stands),
            Standing::Answered(Answer { reply: Reply::Silence { why }, .. }) => {
                self.hold(closed(why), Clock::Stands)
            }
            Standing::Answered(Answer { reply: Reply::Yes { .. }, .. }) => {
                status.state = GateState::Open;
                status.message.clear();
                self.progress();
                return true;
            }
            Standing::Answered(Answer { reply: Reply::No { why, .. }, at, .. }) => {
                let counted = status.state == GateState::Refused && status.since == Some(Time(*at));
                status.state = GateState::Refused;
                status.since = Some(Time(*at));
                status.message.clone_from(why);
                if counted || !self.check_failed(format!("the hook {} said no ({why})", gate.name)) {
                    self.hold(closed(why), Clock::Stands);
                }
            }
        }
        false
    }

    /// One more failed check. True if it was one too many.
    fn check_failed(&mut self, why: String) -> bool {
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
    fn reposition(&mut self) {
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
            }
        }
        if self.status.phase == Phase::WaitingPromotion {
            self.enter(Phase::Progressing);
        }
    }

    fn run_step(&mut self, at: usize) {
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
                None => self.hold(Reason::RoutingUnknown, Clock::Stands),
            };
        }
        self.begin_look();
        let mut doubt = self.doubt(step);
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
            return match doubt {
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
        let place = Some(at as u32);
        if self.gate_status(&step.name, None, place).state == GateState::Open {
            return true;
        }
        let standing = self.ask(&step.name, None, Moment::Step(at as u32));
        let status = self.gate_status(&step.name, None, place);
        if let Standing::Answered(Answer { reply, at, .. }) = standing {
            match reply {
                Reply::Yes { by } => {
                    status.state = GateState::Open;
                    status.since = Some(Time(*at));
                    status.by.clone_from(by);
                    self.progress();
                    return true;
                }
                Reply::No { by, why } => {
                    status.state = GateState::Refused;
                    status.by.clone_from(by);
                    self.fail(Cause::ApprovalRefused { gate: step.name.clone(), why: why.clone() });
                    return false;
                }
                Reply::Silence { why } => status.message.clone_from(why),
            }
        }
        let since = status.since.as_ref().map(|since| since.0);
        let expires = approval.expires.zip(since).map(|(length, since)| after(since, length));
        status.expires_at = expires.map(Time);
        if let Some(cause) = self.expired(expires, &step.name, None, place) {
            self.fail(cause);
            return false;
        }
        let reason = Reason::AwaitingApproval { name: step.name.clone(), message: approval.message.clone() };
        self.hold(reason, Clock::Stands);
        false
    }

    /// On to the next step, or to the promotion.
    fn advance(&mut self, next: usize) {
        if !self.canary_is_ready() {
            let pods = self.seen.target.as_ref().map(|target| target.pods).unwrap_or_default();
            return self.hold(
                Reason::CanaryNotReady { ready: pods.ready, desired: pods.desired },
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
}
