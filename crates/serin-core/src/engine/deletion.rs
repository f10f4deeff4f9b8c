//! Deletion of a Canary. The target takes over from the primary, which is deleted
//! with the Canary: it is ready, with the primary's capacity, before the routes lead
//! to it again. With `revertOnDeletion: false` only the finalizer is removed.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::{
    WakeReason,
    action::Action,
    decider::{Decider, after},
    observed::Target,
    report::Reason,
};
use crate::api::canary::Phase;

/// What the deletion waits for. Each has the whole progress deadline, since a
/// deletion must not wait for ever.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Awaited {
    /// The target is set back to the promoted revision.
    Revision,
    /// The target's pods are ready.
    Pods,
}

impl Awaited {
    /// In `status.release.state.stalledOn`.
    fn name(self) -> &'static str {
        match self {
            Self::Revision => "revision",
            Self::Pods => "target",
        }
    }
}

impl Decider<'_> {
    pub fn terminate(&mut self) {
        if !matches!(self.status.phase, Phase::Terminating | Phase::Terminated) {
            self.emit(Reason::RestoringOriginals);
            self.enter(Phase::Terminating);
        }
        if !self.plan.revert_on_deletion {
            return self.finish_termination();
        }
        if let Some(target) = &self.observed.target
            && (self.is_held_by_revision(target) || self.is_held_by_pods(target))
        {
            return;
        }
        if !self.observed.routing_restored {
            self.request(Action::RestoreRouting);
            return self.report_idle(Reason::RestoringOriginals);
        }
        self.finish_termination();
    }

    /// A target at another revision than the primary's would give everybody a
    /// revision that was not promoted, or was even rejected. As long as the primary
    /// serves, it keeps all traffic until the target is set back or the deadline
    /// has passed.
    fn is_held_by_revision(&mut self, target: &Target) -> bool {
        let Some(primary) = self.observed.primary.as_ref().filter(|_| self.primary_serves()) else {
            return false;
        };
        let promoted =
            self.promoted_revision().or(primary.revision.as_deref()).unwrap_or_default().to_owned();
        let same = target.revision == promoted || primary.revision.as_ref() == Some(&target.revision);
        if same || promoted.is_empty() || self.release().state.stalled_on == Awaited::Pods.name() {
            return false;
        }
        let until = self.termination_deadline(Awaited::Revision);
        if until <= self.now {
            return false;
        }
        self.wake_at(until, WakeReason::TargetTakesOver);
        self.route_all_to_primary();
        self.report_idle(Reason::DeletionHeld { revision: target.revision.clone(), promoted, until });
        true
    }

    /// The target gets the capacity of the primary.
    fn is_held_by_pods(&mut self, target: &Target) -> bool {
        let replicas = self.observed.primary.as_ref().map_or(1, |primary| primary.pods.desired.max(1));
        let short = self.plan.scalable && target.pods.desired < replicas;
        if short && !self.is_scaling_down(target) {
            self.request(Action::ScaleCanary { replicas });
        }
        let until = self.termination_deadline(Awaited::Pods);
        let is_held = (short || !self.is_ready(target)) && until > self.now;
        if is_held {
            self.wake_at(until, WakeReason::TargetTakesOver);
            self.report_idle(Reason::RestoringOriginals);
        }
        is_held
    }

    /// When the deletion goes on without this.
    fn termination_deadline(&mut self, awaited: Awaited) -> Timestamp {
        let (now, limit) = (self.now, self.plan.deadline.after);
        let state = &mut self.release().state;
        if state.stalled_on != awaited.name() {
            awaited.name().clone_into(&mut state.stalled_on);
            state.stalled_since = None;
        }
        after(state.stalled_since.get_or_insert(Time(now)).0, limit)
    }

    fn finish_termination(&mut self) {
        self.request(Action::RemoveFinalizer);
        self.status.release = None;
        if self.status.phase != Phase::Terminated {
            self.enter(Phase::Terminated);
        }
        self.report_idle(Reason::Terminated);
    }
}
