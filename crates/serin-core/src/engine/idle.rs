//! The idle phases: before the first release, and between releases.
//! However a release ended, `converge_idle` leads to the same state: all traffic
//! to the primary, canary scaled down, primary not pinned.

use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::{
    WakeReason,
    action::{Action, GateScope, Split, Stable},
    clock_step::is_ahead,
    decider::{Decider, after},
    observed::Target,
    report::{Reason, RevisionCause},
};
use crate::api::{
    Weight,
    canary::{
        HookType, Phase,
        status::{GateState, Outcome, ReleaseStatus, Trigger},
    },
};

/// How long pods stay after their traffic was routed away: longer than any
/// proxy takes to apply the new route.
const DRAIN: Duration = Duration::from_secs(5);

/// How long an aborted canary keeps its traffic at most while the primary is restored and
/// can serve: the route is written within a minute.
const MAX_ABORT_DELAY: Duration = Duration::from_secs(45);

impl Decider<'_> {
    /// Creates the primary, routes all traffic to it and scales the target down.
    pub fn initialize(&mut self) {
        let Some(target) = &self.observed.target else { return self.report_idle(Reason::TargetMissing) };
        let Some(primary) = &self.observed.primary else {
            self.request(Action::CreatePrimary { revision: target.revision.clone() });
            return self.report_idle(Reason::CreatingPrimary);
        };
        let serves = primary.pods.ready > 0 && self.observed.split == Some(Split::all_primary());
        let copied = primary.revision.as_ref() == Some(&target.revision);
        let adopted = primary.revision.is_none();
        if adopted || (!self.primary_is_ready() && !serves && !copied) {
            // No copy of the target yet, or of a first version that was mended before
            // it served anybody.
            self.request(Action::CreatePrimary { revision: target.revision.clone() });
            return self.report_idle(Reason::CreatingPrimary);
        }
        if !self.primary_is_ready() {
            let (pods, trouble) = (primary.pods, primary.trouble.clone());
            return self.report_idle(Reason::PrimaryStarting {
                ready: pods.updated_and_ready(),
                desired: pods.desired,
                trouble,
            });
        }
        if !self.route(Split::all_primary()) {
            let weight = Weight::ZERO;
            return self.report_idle(self.route_blocked_reason(weight, Reason::RouteNotInForce { weight }));
        }
        if !self.scale_canary_down() {
            return self.report_idle(Reason::ScalingDownTarget);
        }
        // A target that changed meanwhile differs from the primary and is
        // released like any other revision.
        let running = primary.revision.clone();
        let revisions = self.revisions();
        revisions.primary.clone_from(&running);
        revisions.seen = running;
        self.status.tracked_configs.clone_from(&target.configs);
        self.emit(Reason::Initialized);
        self.enter(Phase::Initialized);
    }

    /// Between releases: starts one for a new revision of the target.
    pub fn idle(&mut self) {
        if !self.converge_idle() {
            return;
        }
        let Some(target) = &self.observed.target else { return self.report_idle(Reason::TargetMissing) };
        let revisions = self.revisions();
        if revisions.seen.as_deref() == Some(&target.revision) {
            return self.report_resting();
        }
        if revisions.primary.as_deref() == Some(&target.revision) {
            return self.target_unchanged(target);
        }
        self.start(target, false);
    }

    fn report_resting(&mut self) {
        let revision = self.promoted_revision().unwrap_or_default().to_owned();
        let reason = match (self.status.phase, self.status.history.first()) {
            (Phase::Failed, Some(past)) => {
                Reason::StaysRolledBack { revision: past.revision.clone(), why: past.reason.clone() }
            }
            (Phase::Succeeded, _) => Reason::Promoted { revision },
            _ => Reason::Initialized,
        };
        self.report_idle(reason);
    }

    /// The target is back at the promoted revision.
    pub fn target_unchanged(&mut self, target: &Target) {
        self.revisions().seen = Some(target.revision.clone());
        self.status.tracked_configs.clone_from(&target.configs);
        let promoted_once = self.status.history.iter().any(|past| past.outcome == Outcome::Promoted);
        self.emit(Reason::NoChange { revision: target.revision.clone() });
        self.enter(if promoted_once { Phase::Succeeded } else { Phase::Initialized });
    }

    /// Starts the release of a revision, in the phase `Waiting`. A changed config
    /// restarts no pod, so pods that run already must terminate: they do not
    /// carry it.
    pub fn start(&mut self, target: &Target, wait_for_termination: bool) {
        let cause = self.revision_cause(target);
        let wait_for_termination = wait_for_termination || self.changed_configs(target).next().is_some();
        let trigger = match cause {
            RevisionCause::Template | RevisionCause::Target => Trigger::PodTemplate,
            RevisionCause::Configs(_) => Trigger::Config,
            RevisionCause::Retry => Trigger::Retry,
        };
        let revision = target.revision.clone();
        self.reset_metrics();
        let status = &mut self.status;
        status.releases += 1;
        status.scale_down_after_release = None;
        let mut release = ReleaseStatus {
            revision: revision.clone(),
            trigger,
            started_at: Time(self.now),
            last_progress_at: Time(self.now),
            paused: false,
            state: Default::default(),
        };
        release.state.wait_for_termination = wait_for_termination;
        status.release = Some(release);
        status.step = None;
        status.failed_checks = 0;
        status.iterations = 0;
        status.gates.clear();
        status.tracked_configs.clone_from(&target.configs);
        // The time makes the value unique among Canaries and their successors by name.
        let (releases, at) = (status.releases, self.now.as_millisecond());
        let cookie = |name: &String, arm: &str| format!("{name}={arm}-{releases}-{at:x}");
        let cookies = self.plan.affinity.as_ref();
        status.session_affinity_cookie = cookies.map(|cookies| cookie(&cookies.canary, "canary"));
        status.primary_session_affinity_cookie =
            cookies.and_then(|cookies| Some(cookie(cookies.primary.as_ref()?, "primary")));
        let revisions = self.revisions();
        revisions.candidate = Some(revision.clone());
        revisions.seen = Some(revision.clone());
        self.emit(Reason::NewRevision { revision, cause });
        self.enter(Phase::Waiting);
    }

    fn revision_cause(&self, target: &Target) -> RevisionCause {
        let rejected = self.status.revisions.as_ref().and_then(|revisions| revisions.rejected.as_deref());
        if rejected == Some(&target.revision) {
            return RevisionCause::Retry;
        }
        let changed: Vec<String> = self.changed_configs(target).cloned().collect();
        // A template that reads other configs than before has changed itself.
        let same_configs = self.status.tracked_configs.keys().eq(target.configs.keys());
        if same_configs && !changed.is_empty() {
            RevisionCause::Configs(changed)
        } else if self.plan.scalable {
            RevisionCause::Template
        } else {
            RevisionCause::Target
        }
    }

    /// Configs with other contents than before.
    fn changed_configs<'t>(&self, target: &'t Target) -> impl Iterator<Item = &'t String> {
        let before = &self.status.tracked_configs;
        let changed =
            move |(name, digest): &(&String, &String)| before.get(*name).is_some_and(|old| old != *digest);
        target.configs.iter().filter(changed).map(|(name, _)| name)
    }

    /// Leads to the idle state. True once it is reached.
    pub fn converge_idle(&mut self) -> bool {
        if !self.primary_at_promoted_revision() || !self.route_all_to_primary() {
            return false;
        }
        if self.observed.primary.as_ref().is_some_and(|primary| primary.pinned) {
            self.request(Action::UnpinPrimary);
        }
        self.expire_previous();
        let hooks_called = self.status.release.is_none() || self.run_post_rollout_hooks();
        let scaled_down = self.scale_down_after_release();
        if hooks_called {
            self.status.release = None;
            if !scaled_down {
                self.report_resting();
            }
        }
        scaled_down && hooks_called
    }

    /// Records since when all traffic goes to the primary.
    pub fn track_all_primary(&mut self) {
        let all_primary = self.observed.split.as_ref() == Some(&Split::all_primary());
        let since = self.status.all_primary_since.take().unwrap_or(Time(self.now));
        self.status.all_primary_since = all_primary.then_some(since);
    }

    /// Proxies apply a route some time after the router reports it in force, and
    /// still send requests to the old pods until then.
    fn is_drained(&mut self) -> bool {
        let drained = after(self.status.all_primary_since.as_ref().map_or(self.now, |since| since.0), DRAIN);
        if drained > self.now {
            self.wake_at(drained, WakeReason::Drained);
        }
        drained <= self.now
    }

    /// Scales the canary to zero once it is drained. True once its desired
    /// replicas are zero.
    pub fn scale_canary_down(&mut self) -> bool {
        let scaled_down = !self.plan.scalable
            || self.observed.target.as_ref().is_none_or(|target| target.pods.desired == 0);
        if !scaled_down && self.is_drained() {
            self.request(Action::ScaleCanary { replicas: 0 });
        }
        scaled_down
    }

    /// Scales the canary to zero once per release, and records that in an
    /// annotation of the target: it needs no status write, and from then on the
    /// target's replicas belong to its owner again. True once done.
    ///
    /// The end of the release must be in the written status first: if it were
    /// lost, the release would continue and start the pods again.
    fn scale_down_after_release(&mut self) -> bool {
        let running =
            self.observed.target.as_ref().filter(|target| self.plan.scalable && target.pods.desired > 0);
        if self.status.release.is_some() && running.is_some() {
            self.status.scale_down_after_release = Some(self.status.releases);
        }
        let due = self
            .status
            .scale_down_after_release
            .filter(|after| running.is_some_and(|target| target.scaled_down_after != Some(*after)));
        if let Some(release) = due
            && self.is_drained()
            && self.is_persisted()
        {
            self.request(Action::ScaleDownCanary { after: release });
        }
        due.is_none()
    }

    /// Is the primary at the promoted revision? If not, after a promotion that
    /// failed or was rolled back, restores it. The failure must be in the
    /// written status first: if it were lost, the revision would be promoted
    /// again.
    pub fn primary_at_promoted_revision(&mut self) -> bool {
        let promoted = self.promoted_revision().map(str::to_owned);
        match (&self.observed.primary, promoted) {
            (None, Some(_)) => {
                self.restore_missing_primary();
                false
            }
            (Some(primary), Some(promoted)) if primary.revision.as_ref().is_some_and(|r| *r != promoted) => {
                if let Some(release) = &mut self.status.release {
                    release.state.restoring = true;
                }
                if self.is_persisted() {
                    self.request(Action::RestorePrimary { revision: promoted, replicas: None });
                }
                self.route_during_restore();
                false
            }
            _ => true,
        }
    }

    /// While the primary is restored, the warm copy of the previous version
    /// serves if there is one; else the canary keeps its traffic as long as it
    /// has a ready pod, and its revision was judged or the primary has none. A primary
    /// that serves and is not ready in time gets the traffic as it is.
    fn route_during_restore(&mut self) {
        let revision = self.promoted_revision().unwrap_or_default().to_owned();
        self.report_idle(Reason::RestoringPrimary { revision });
        let judged = self.status.phase != Phase::Waiting && self.target_is_at_release();
        let warm = self.observed.previous.as_ref().filter(|previous| previous.pods.ready > 0);
        if warm.is_some_and(|warm| self.promoted_revision() == Some(warm.revision.as_str())) {
            self.route(Split { stable: Stable::Previous, ..Split::all_primary() });
            self.status.canary_weight = Weight::ZERO;
        } else if !self.canary_serves() || (self.primary_serves() && (!judged || self.has_awaited_restore()))
        {
            self.route(Split::all_primary());
            self.status.canary_weight = Weight::ZERO;
        }
    }

    /// Was the primary that is restored awaited for the whole deadline, or after an abort as
    /// long as people wait for its effect? If not, requeues for when it was.
    fn has_awaited_restore(&mut self) -> bool {
        let Some(Time(since)) = self.status.last_transition_time else { return true };
        let aborted = self.status.history.first().is_some_and(|past| past.outcome == Outcome::Aborted);
        let revision = self.observed.primary.as_ref().and_then(|primary| primary.revision.as_deref());
        let deadline = self.plan.deadline.after;
        let limit = match aborted {
            true => deadline.min(MAX_ABORT_DELAY),
            false if revision == self.promoted_revision() => deadline,
            // It may be the broken one.
            false => return false,
        };
        let until = after(since, limit);
        let is_over = until <= self.now || is_ahead(since, self.now);
        if !is_over {
            self.wake_at(until, WakeReason::TrafficReturns);
        }
        is_over
    }

    /// All traffic to the primary, unless the primary is the broken one and
    /// the canary is not. True once it is in force.
    pub fn route_all_to_primary(&mut self) -> bool {
        let restoring = self.status.release.as_ref().is_some_and(|release| release.state.restoring);
        let all_primary = Split::all_primary();
        if self.observed.split.as_ref() == Some(&all_primary) {
            self.status.canary_weight = Weight::ZERO;
            if let Some(release) = &mut self.status.release {
                release.state.restoring = false;
            }
            return true;
        }
        if restoring && !self.primary_is_ready() {
            self.route_during_restore();
        } else if !self.primary_serves() && (self.canary_serves() || self.previous_has_traffic()) {
            self.report_idle(Reason::PrimaryUnavailable);
        } else {
            self.status.canary_weight = Weight::ZERO;
            self.route(all_primary);
            self.report_resting();
        }
        false
    }

    /// Deletes the warm copy of the previous version once its time is over.
    fn expire_previous(&mut self) {
        let Some(previous) = &self.observed.previous else {
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
                    self.request(Action::DropPrevious);
                }
            }
        }
    }

    /// Calls the post-rollout hooks once each. True once every call has a
    /// result, whichever.
    fn run_post_rollout_hooks(&mut self) -> bool {
        let plan = self.plan;
        let kind = Some(HookType::PostRollout);
        let mut all_called = true;
        for gate in plan.gates(HookType::PostRollout) {
            if self.gate_status(&gate.name, kind, None).state == GateState::Open {
                continue;
            }
            if self.call_gate(&gate.name, kind, GateScope::Release).is_some() {
                self.gate_status(&gate.name, kind, None).state = GateState::Open;
            } else {
                self.report_idle(Reason::PostRolloutHook { hook: gate.name.clone() });
                all_called = false;
            }
        }
        all_called
    }
}
