//! The phases at rest: before the first release, between releases, and the
//! end. Whatever happened, `settle` brings everything to the same place:
//! traffic home, canary empty, primary free.

use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::{
    WakeReason,
    action::{Action, Moment, Split, Stable},
    observed::Target,
    pass::{Pass, after},
    report::{NewBecause, Reason},
};
use crate::api::{
    Weight,
    canary::{
        HookType, Phase,
        status::{GateState, Outcome, ReleaseStatus, Trigger},
    },
};

/// How long pods stay when their traffic has gone: longer than any proxy takes
/// to follow.
const DRAIN: Duration = Duration::from_secs(5);

impl Pass<'_> {
    /// Makes the primary, sends all traffic there and empties the target.
    pub fn initialize(&mut self) {
        let Some(target) = &self.seen.target else { return self.rest(Reason::TargetMissing) };
        let Some(primary) = &self.seen.primary else {
            self.act(Action::CreatePrimary { revision: target.revision.clone() });
            return self.rest(Reason::CreatingPrimary);
        };
        if !self.primary_is_ready() {
            let pods = primary.pods;
            return self.rest(Reason::PrimaryStarting { ready: pods.in_place(), desired: pods.desired });
        }
        if !self.route(Split::home()) {
            let weight = Weight::ZERO;
            return self.rest(self.unrouted(weight, Reason::RouteNotInForce { weight }));
        }
        if !self.empty_canary() {
            return self.rest(Reason::EmptyingTarget);
        }
        // A target that changed meanwhile differs from what the primary runs,
        // and is released like any other revision.
        let running = primary.revision.clone();
        let revisions = self.revisions();
        revisions.primary.clone_from(&running);
        revisions.seen = running;
        self.status.tracked_configs.clone_from(&target.configs);
        self.say(Reason::Initialized);
        self.enter(Phase::Initialized);
    }

    /// Between releases: is there something new?
    pub fn idle(&mut self) {
        if !self.settle() {
            return;
        }
        let Some(target) = &self.seen.target else { return self.rest(Reason::TargetMissing) };
        let revisions = self.revisions();
        if revisions.seen.as_deref() == Some(&target.revision) {
            return self.rest_as_it_is();
        }
        if revisions.primary.as_deref() == Some(&target.revision) {
            return self.reverted(target);
        }
        self.start(target, false);
    }

    fn rest_as_it_is(&mut self) {
        let revision = self.promoted_revision().unwrap_or_default().to_owned();
        let reason = match (self.status.phase, self.status.history.first()) {
            (Phase::Failed, Some(past)) => {
                Reason::StaysRolledBack { revision: past.revision.clone(), why: past.reason.clone() }
            }
            (Phase::Succeeded, _) => Reason::Promoted { revision },
            _ => Reason::Initialized,
        };
        self.rest(reason);
    }

    /// The target is back at what the primary runs.
    pub fn reverted(&mut self, target: &Target) {
        self.revisions().seen = Some(target.revision.clone());
        self.status.tracked_configs.clone_from(&target.configs);
        let promoted_once = self.status.history.iter().any(|past| past.outcome == Outcome::Promoted);
        self.say(Reason::Reverted { revision: target.revision.clone() });
        self.enter(if promoted_once { Phase::Succeeded } else { Phase::Initialized });
    }

    /// A revision begins its release, by waiting for its turn.
    pub fn start(&mut self, target: &Target, clear_first: bool) {
        let cause = self.new_because(target);
        let trigger = match cause {
            NewBecause::Template => Trigger::PodTemplate,
            NewBecause::Configs(_) => Trigger::Config,
            NewBecause::Retry => Trigger::Retry,
        };
        let revision = target.revision.clone();
        self.forget_canary();
        let status = &mut self.status;
        status.releases += 1;
        status.empty_after = None;
        let mut release = ReleaseStatus {
            revision: revision.clone(),
            trigger,
            started_at: Time(self.now),
            last_progress_at: Time(self.now),
            paused: false,
            state: Default::default(),
        };
        release.state.clear_first = clear_first;
        status.release = Some(release);
        status.step = None;
        status.failed_checks = 0;
        status.iterations = 0;
        status.gates.clear();
        status.tracked_configs.clone_from(&target.configs);
        let cookie = |arm: &str| format!("{arm}-{}", status.releases);
        status.session_affinity_cookie = self.plan.affinity.then(|| cookie("canary"));
        status.primary_session_affinity_cookie = self.plan.affinity.then(|| cookie("primary"));
        let revisions = self.revisions();
        revisions.candidate = Some(revision.clone());
        revisions.seen = Some(revision.clone());
        self.say(Reason::NewRevision { revision, cause });
        self.enter(Phase::Waiting);
    }

    fn new_because(&self, target: &Target) -> NewBecause {
        let rejected = self.status.revisions.as_ref().and_then(|revisions| revisions.rejected.as_deref());
        if rejected == Some(&target.revision) {
            return NewBecause::Retry;
        }
        let before = &self.status.tracked_configs;
        let changed: Vec<String> = target
            .configs
            .iter()
            .filter(|(name, digest)| before.get(*name).is_some_and(|before| before != *digest))
            .map(|(name, _)| name.clone())
            .collect();
        // A template that reads other configs than before has changed itself.
        let same_configs = before.keys().eq(target.configs.keys());
        if same_configs && !changed.is_empty() { NewBecause::Configs(changed) } else { NewBecause::Template }
    }

    /// Brings everything to rest. True once it is.
    fn settle(&mut self) -> bool {
        if !self.primary_is_right() || !self.bring_home() {
            return false;
        }
        if self.seen.primary.as_ref().is_some_and(|primary| primary.pinned) {
            self.act(Action::UnpinPrimary);
        }
        self.let_previous_go();
        let told = self.status.release.is_none() || self.told_after_release();
        let emptied = self.empty_after_release();
        if told {
            self.status.release = None;
            if !emptied {
                self.rest_as_it_is();
            }
        }
        emptied && told
    }

    /// Notes since when all traffic is the primary's.
    pub fn note_home(&mut self) {
        let is_home = self.seen.split.as_ref() == Some(&Split::home());
        let since = self.status.home_since.take().unwrap_or(Time(self.now));
        self.status.home_since = is_home.then_some(since);
    }

    /// Proxies follow a route some moments after it is in force for whoever
    /// wrote it, and would still call pods that are gone by then.
    fn is_drained(&mut self) -> bool {
        let drained = after(self.status.home_since.as_ref().map_or(self.now, |since| since.0), DRAIN);
        if drained > self.now {
            self.wake_at(drained, WakeReason::Drained);
        }
        drained <= self.now
    }

    /// No pods for the canary, once nobody calls them any more. True once none
    /// are asked for.
    pub fn empty_canary(&mut self) -> bool {
        let emptied =
            !self.plan.scales || self.seen.target.as_ref().is_none_or(|target| target.pods.desired == 0);
        if !emptied && self.is_drained() {
            self.act(Action::ScaleCanary { replicas: 0 });
        }
        emptied
    }

    /// The pods that a release has left go once, and that they went is noted
    /// where they were: no status has to be written for it, and from then on the
    /// target's size is its owner's affair again. True once they went.
    ///
    /// The end of the release is on record by then: if it were lost, the release
    /// would go on, and start pods that are noted to be gone.
    fn empty_after_release(&mut self) -> bool {
        let running = self.seen.target.as_ref().filter(|target| self.plan.scales && target.pods.desired > 0);
        if self.status.release.is_some() && running.is_some() {
            self.status.empty_after = Some(self.status.releases);
        }
        let due = self
            .status
            .empty_after
            .filter(|after| running.is_some_and(|target| target.emptied_after != Some(*after)));
        if let Some(release) = due
            && self.is_drained()
            && self.is_on_record()
        {
            self.act(Action::EmptyCanary { after: release });
        }
        due.is_none()
    }

    /// The primary must run what was promoted. After a promotion that failed,
    /// or was taken back, it does not yet. That the release has failed is on
    /// record before: if that were lost, it would be promoted once more.
    pub fn primary_is_right(&mut self) -> bool {
        let promoted = self.promoted_revision().map(str::to_owned);
        match (&self.seen.primary, promoted) {
            (None, Some(promoted)) => {
                if self.seen.target.as_ref().is_some_and(|target| target.revision == promoted) {
                    self.act(Action::CreatePrimary { revision: promoted });
                    self.rest(Reason::CreatingPrimary);
                } else {
                    self.rest(Reason::PrimaryMissing);
                }
                false
            }
            (Some(primary), Some(promoted)) if primary.revision.as_ref().is_some_and(|r| *r != promoted) => {
                if let Some(release) = &mut self.status.release {
                    release.state.restoring = true;
                }
                if self.is_on_record() {
                    self.act(Action::RestorePrimary { revision: promoted });
                }
                self.shelter();
                false
            }
            _ => true,
        }
    }

    /// While the primary is restored, the copy of the version before serves if
    /// there is one; else a canary that lost nothing but its promotion does.
    fn shelter(&mut self) {
        let revision = self.promoted_revision().unwrap_or_default().to_owned();
        self.rest(Reason::RestoringPrimary { revision });
        let kept = self.seen.previous.as_ref().filter(|previous| previous.pods.ready > 0);
        if kept.is_some_and(|kept| self.promoted_revision() == Some(kept.revision.as_str())) {
            self.route(Split { stable: Stable::Previous, ..Split::home() });
            self.status.canary_weight = Weight::ZERO;
        } else if !self.canary_serves() {
            self.route(Split::home());
            self.status.canary_weight = Weight::ZERO;
        }
    }

    /// All traffic to the primary, unless the primary is the broken one and
    /// the canary is not. True once it is in force.
    pub fn bring_home(&mut self) -> bool {
        let restoring = self.status.release.as_ref().is_some_and(|release| release.state.restoring);
        let home = Split::home();
        if self.seen.split.as_ref() == Some(&home) {
            self.status.canary_weight = Weight::ZERO;
            if let Some(release) = &mut self.status.release {
                release.state.restoring = false;
            }
            return true;
        }
        let primary = self.seen.primary.as_ref();
        let down = !primary.is_some_and(|primary| primary.pods.can_serve());
        if restoring && !self.primary_is_ready() {
            self.shelter();
        } else if down && self.canary_serves() {
            self.rest(Reason::TrafficHeld);
        } else {
            self.status.canary_weight = Weight::ZERO;
            self.route(home);
            self.rest_as_it_is();
        }
        false
    }

    /// The copy of the version before is kept for a while, and no longer.
    fn let_previous_go(&mut self) {
        let Some(previous) = &self.seen.previous else {
            self.status.warm_until = None;
            return;
        };
        let recorded = self.status.revisions.as_ref().and_then(|revisions| revisions.previous.as_ref());
        match &self.status.warm_until {
            Some(until) if until.0 > self.now && recorded == Some(&previous.revision) => {
                let until = until.0;
                self.wake_at(until, WakeReason::WarmEnds);
            }
            _ => {
                if self.is_drained() {
                    self.act(Action::DropPrevious);
                }
            }
        }
    }

    /// Calls the post-rollout hooks once each. Their answers are ignored, but
    /// waited for.
    fn told_after_release(&mut self) -> bool {
        let plan = self.plan;
        let kind = Some(HookType::PostRollout);
        let mut told = true;
        for gate in plan.gates(HookType::PostRollout) {
            if self.gate_status(&gate.name, kind, None).state == GateState::Open {
                continue;
            }
            if self.ask(&gate.name, kind, Moment::Release).is_some() {
                self.gate_status(&gate.name, kind, None).state = GateState::Open;
            } else {
                self.rest(Reason::AskingAfterRelease { hook: gate.name.clone() });
                told = false;
            }
        }
        told
    }

    /// The Canary is being deleted. With `revertOnDeletion` the target serves
    /// again before the routes lead to it; without, it is simply let go.
    pub fn terminate(&mut self) {
        if !matches!(self.status.phase, Phase::Terminating | Phase::Terminated) {
            self.say(Reason::Reverting);
            self.enter(Phase::Terminating);
            let now = self.now;
            self.release().state.stalled_since = Some(Time(now));
        }
        if !self.plan.revert_on_deletion {
            return self.let_go();
        }
        let now = self.now;
        let since = self.release().state.stalled_since.as_ref().map_or(now, |since| since.0);
        let patience = after(since, self.plan.deadline.after);
        if let Some(target) = &self.seen.target {
            if target.pods.desired == 0 && self.plan.scales && !self.was_just_emptied(target) {
                let replicas = self.seen.primary.as_ref().map_or(1, |primary| primary.pods.desired.max(1));
                self.act(Action::ScaleCanary { replicas });
            }
            // The primary ends with the Canary, so waiting for ever for a
            // target that cannot start would help nobody.
            if !self.is_ready(target) && patience > self.now {
                self.wake_at(patience, WakeReason::Deadline);
                return self.rest(Reason::Reverting);
            }
        }
        if !self.seen.routing_restored {
            self.act(Action::RestoreRouting);
            return self.rest(Reason::Reverting);
        }
        self.let_go();
    }

    fn let_go(&mut self) {
        self.act(Action::RemoveFinalizer);
        self.status.release = None;
        if self.status.phase != Phase::Terminated {
            self.enter(Phase::Terminated);
        }
        self.rest(Reason::Terminated);
    }
}
