//! A Canary whose spec became invalid after its routes were written: a template
//! was deleted, or an edit was bad. Nothing starts, advances or promotes, and users
//! stay protected: an abort is obeyed, a canary without ready pods loses its
//! traffic, a promotion that has begun is completed, and the progress deadline
//! rolls back a release that nobody judges.

use jiff::Timestamp;

use super::{
    Decision,
    action::Split,
    decider::{Decider, ProgressDeadline, StallCause},
    observed::Observed,
    plan::Plan,
    report::Reason,
};
use crate::api::canary::{CanaryStatus, Phase};

/// One pass over the observation of an invalid Canary. `plan` is
/// [`Plan::minimal`], `why` the one sentence, without its full stop, that says what
/// to correct.
pub fn protect(
    plan: &Plan,
    status: &CanaryStatus,
    observed: &Observed,
    why: &str,
    now: Timestamp,
) -> Decision {
    let mut decider = Decider::new(plan, status, observed, now);
    decider.invalid = Some(why);
    decider.run();
    decider.into_decision()
}

impl Decider<'_> {
    /// The present phase as far as it protects users.
    pub fn protect_phase(&mut self, why: &str) {
        let invalid = Reason::InvalidSpec { why: why.to_owned() };
        match self.status.phase {
            Phase::Initializing => self.report_idle(invalid),
            Phase::Initialized | Phase::Succeeded | Phase::Failed => {
                self.converge_idle();
                self.report_idle(invalid);
            }
            Phase::Waiting => {
                self.route_all_to_primary();
                self.block(invalid, ProgressDeadline::Paused);
            }
            Phase::Progressing | Phase::WaitingPromotion | Phase::Promoting if self.promotion_begun() => {
                self.promote();
            }
            Phase::Progressing | Phase::WaitingPromotion | Phase::Promoting => self.hold_invalid(invalid),
            Phase::Finalising => self.finalise(),
            Phase::Terminating | Phase::Terminated => self.terminate(),
        }
    }

    /// The split stays as it is unless the canary cannot serve, or serves another
    /// revision than the release's. A target that is refused counts as missing.
    fn hold_invalid(&mut self, invalid: Reason) {
        let Some(target) = &self.observed.target else {
            self.withdraw();
            self.route(Split::all_primary());
            return self.block(invalid, ProgressDeadline::Running(StallCause::Spec));
        };
        if self.release_revision() != target.revision {
            return self.supersede(target);
        }
        if self.status.phase == Phase::Promoting {
            self.withdraw_unless_judged();
        } else if !self.canary_serves() {
            self.withdraw();
            self.route(Split::all_primary());
        }
        self.block(invalid, ProgressDeadline::Running(StallCause::Spec));
    }
}
