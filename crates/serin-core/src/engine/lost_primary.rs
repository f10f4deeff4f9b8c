//! A primary that was deleted: it is created again from its backup, and meanwhile
//! traffic goes where pods answer.

use super::{
    action::{Action, Split, Stable},
    decider::{Decider, ProgressDeadline},
    report::Reason,
};
use crate::api::{
    Weight,
    canary::{CanaryStatus, Phase},
};

impl Decider<'_> {
    /// The primary was deleted, or was created again in this release and cannot
    /// serve yet.
    pub fn primary_is_lost(&mut self) -> bool {
        match self.status.phase {
            Phase::Initializing | Phase::Terminating | Phase::Terminated => false,
            Phase::Initialized | Phase::Succeeded | Phase::Failed => self.primary_is_missing(),
            Phase::Waiting
            | Phase::Progressing
            | Phase::WaitingPromotion
            | Phase::Promoting
            | Phase::Finalising => {
                let lost =
                    self.primary_is_missing() || (self.release().state.restoring && !self.primary_serves());
                self.release().state.restoring = lost;
                lost
            }
        }
    }

    fn primary_is_missing(&self) -> bool {
        self.observed.primary.is_none() && self.promoted_revision().is_some()
    }

    /// A release holds until the primary can serve again.
    pub fn hold_for_primary(&mut self) {
        let reason = match self.observed.primary {
            None => Reason::PrimaryMissing,
            Some(_) => self.primary_not_ready(),
        };
        if self.observed.primary.is_none() {
            self.restore_missing_primary();
        } else {
            self.route_around_primary();
        }
        if !matches!(self.status.phase, Phase::Initialized | Phase::Succeeded | Phase::Failed) {
            self.abort_check_window();
            self.block(reason, ProgressDeadline::Paused);
        }
    }

    pub fn restore_missing_primary(&mut self) {
        let revision = self.promoted_revision().unwrap_or_default().to_owned();
        self.request(Action::RestorePrimary { revision, replicas: self.status.primary_replicas });
        self.route_around_primary();
        self.report_idle(Reason::PrimaryMissing);
    }

    /// All traffic goes to the canary if its revision is the promoted one or is being
    /// judged, else to the warm copy of the previous version. If neither answers, the
    /// split stays.
    fn route_around_primary(&mut self) {
        let promoted = self.promoted_revision();
        let is_promoted =
            self.observed.target.as_ref().is_some_and(|target| promoted == Some(target.revision.as_str()));
        let is_judged = self.target_is_at_release()
            && matches!(
                self.status.phase,
                Phase::Progressing | Phase::WaitingPromotion | Phase::Promoting | Phase::Finalising
            );
        if self.canary_serves() && (is_promoted || is_judged) {
            self.route(Split::weight(Weight::FULL));
        } else if self.observed.previous.as_ref().is_some_and(|previous| previous.pods.ready > 0) {
            self.route(Split { stable: Stable::Previous, ..Split::all_primary() });
        }
    }

    /// The warm copy of the previous version has traffic, and answers.
    pub fn previous_has_traffic(&self) -> bool {
        let routed = self.observed.split.as_ref().is_some_and(|split| split.stable == Stable::Previous);
        routed && self.observed.previous.as_ref().is_some_and(|previous| previous.pods.ready > 0)
    }

    /// Records the size to restore the primary with, in a status that is written
    /// anyway: autoscalers change the size at any time.
    pub fn record_primary_size(&mut self, before: &CanaryStatus) {
        if let Some(primary) = &self.observed.primary
            && self.status != *before
        {
            self.status.primary_replicas = Some(primary.pods.desired);
        }
    }
}
