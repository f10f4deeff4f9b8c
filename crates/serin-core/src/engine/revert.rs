//! A route that something else overwrites again and again, such as a GitOps
//! controller that finds it changed. Each time the split is set again and the check
//! starts anew, so a release could go on for ever without one that completes.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::{
    decider::{Decider, after, step_split},
    observed::Observed,
    plan::{Plan, steps::Step},
    report::Reason,
};
use crate::api::canary::{CanaryStatus, Phase};

/// One revert may be an edit by hand; from the second on they are reported.
pub(super) const REPORTED_REVERTS: u32 = 2;

/// Has something else overwritten the split that was in force in this step? An
/// edit of the Canary, or a mesh that is not ready, is no revert.
pub fn is_route_reverted(plan: &Plan, status: &CanaryStatus, observed: &Observed) -> bool {
    let was_in_force = status.step.as_ref().is_some_and(|step| step.check_started_at.is_some());
    matches!(status.phase, Phase::Progressing | Phase::WaitingPromotion)
        && was_in_force
        && observed.route_pending.is_none()
        && observed.generation == status.observed_generation
        && observed.split.as_ref() != Some(&step_split(plan, status))
}

impl Decider<'_> {
    /// Counts a revert. True if reverts have kept every check from completing for
    /// the whole deadline, and at least for one interval, and the release is rolled
    /// back.
    pub fn count_revert(&mut self, step: &Step) -> bool {
        let (now, stands_still) = (self.now, self.deadlines_stand_still());
        let limit = self.plan.deadline.after.max(step.interval);
        let writer = self.observed.route_writer.clone();
        let state = &mut self.release().state;
        state.reverts = state.reverts.saturating_add(1);
        if let Some(writer) = writer {
            state.reverted_by = writer;
        }
        if stands_still {
            state.reverted_since = None;
        }
        let since = state.reverted_since.get_or_insert(Time(now)).0;
        if after(since, limit) <= now
            && let Some(reason) = self.revert_reason()
        {
            self.fail_deadline(limit, &reason);
        }
        self.status.phase == Phase::Failed
    }

    /// A check completed, or a step began: the deadline of reverts is over.
    pub fn end_reverts(&mut self) {
        if let Some(release) = &mut self.status.release {
            release.state.reverted_since = None;
        }
    }

    /// The report while reverts keep checks from completing.
    pub fn revert_reason(&self) -> Option<Reason> {
        let state = &self.status.release.as_ref()?.state;
        let by = Some(&state.reverted_by).filter(|by| !by.is_empty()).cloned();
        let reported = state.reverted_since.is_some() && state.reverts >= REPORTED_REVERTS;
        reported.then_some(Reason::RouteReverted { times: state.reverts, by })
    }
}
