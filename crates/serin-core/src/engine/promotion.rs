//! A release that passed: its revision is copied to the primary, then traffic
//! returns to the primary.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::{
    WakeReason,
    action::{Action, Split},
    decider::{Decider, ProgressDeadline, REQUEUE_DELAY, StallCause, after},
    plan::steps::Strategy,
    report::Reason,
};
use crate::api::{
    Weight,
    canary::{Phase, status::Outcome},
};

impl Decider<'_> {
    /// Copies exactly the analysed revision to the primary and waits until the
    /// primary is ready with it.
    pub fn promote(&mut self) {
        if self.promotion_begun() {
            return self.wait_for_primary();
        }
        let Some(target) = &self.observed.target else { return self.handle_missing_target() };
        if self.release().revision != target.revision {
            return self.supersede(target);
        }
        if self.status.releases > self.observed.persisted_releases {
            // The release must be in the written status first. Otherwise a
            // restart would take the primary's new revision for a mistake and
            // restore the old one.
            self.wake_at(after(self.now, REQUEUE_DELAY), WakeReason::Requeue);
            return self
                .block(Reason::Promoting { revision: target.revision.clone() }, ProgressDeadline::Paused);
        }
        if !self.canary_is_ready() {
            let pods = target.pods;
            self.withdraw_if_down();
            return self.block(
                Reason::CanaryNotReady { ready: pods.updated_and_ready(), desired: pods.desired },
                ProgressDeadline::Running(StallCause::Canary),
            );
        }
        if !self.may_advance() {
            return;
        }
        if self.plan.strategy == Strategy::BlueGreen && self.status.step.is_some() {
            // The primary serves no traffic while it is overwritten.
            self.set_weight(Weight::FULL);
            if !self.route(Split::weight(Weight::FULL)) {
                return self.block(Reason::Switching, ProgressDeadline::Running(StallCause::Route));
            }
        }
        let revision = self.release().revision.clone();
        if let Some(before) = self.promoted_revision().filter(|_| !self.plan.keep_warm.is_zero()) {
            let warm = self.observed.previous.as_ref().is_some_and(|previous| previous.revision == before);
            if !warm {
                self.request(Action::KeepPrevious { revision: before.to_owned() });
            }
        }
        self.request(Action::Promote { revision: revision.clone() });
        self.block(Reason::Promoting { revision }, ProgressDeadline::Running(StallCause::Primary));
    }

    /// Traffic stays where it is until the primary is ready with the promoted
    /// revision.
    fn wait_for_primary(&mut self) {
        if !self.primary_is_ready() {
            self.withdraw_if_down();
            let pods = self.observed.primary.as_ref().map(|primary| primary.pods).unwrap_or_default();
            return self.block(
                Reason::PrimaryRolling { ready: pods.updated_and_ready(), desired: pods.desired },
                ProgressDeadline::Running(StallCause::Primary),
            );
        }
        let revision = self.release().revision.clone();
        let revisions = self.revisions();
        revisions.previous = revisions.primary.replace(revision);
        revisions.rejected = None;
        let warm = !self.plan.keep_warm.is_zero()
            && self.status.revisions.as_ref().is_some_and(|r| r.previous.is_some());
        self.status.warm_until = warm.then(|| Time(after(self.now, self.plan.keep_warm)));
        self.status.step = None;
        self.release().state.traffic_withdrawn = false;
        self.enter(Phase::Finalising);
    }

    /// A canary without a ready pod gets no traffic, whatever the plan was.
    fn withdraw_if_down(&mut self) {
        let down = !self.canary_serves();
        let primary_serves = self.observed.primary.as_ref().is_some_and(|primary| primary.pods.can_serve());
        if down && primary_serves {
            self.withdraw();
            self.route(Split::all_primary());
        }
    }

    /// Returns traffic to the primary, at once or by steps; then the release
    /// has succeeded.
    pub fn finalise(&mut self) {
        if !self.primary_is_ready() && self.canary_serves() {
            return self.report_idle(self.primary_not_ready());
        }
        let weight = self.status.canary_weight;
        if weight > Weight::ZERO {
            return self.step_down_weight(weight);
        }
        if !self.route(Split::all_primary()) {
            return self.report_idle(Reason::TrafficReturning { weight });
        }
        let revision = self.release().revision.clone();
        self.archive_release(Outcome::Promoted, "promoted".to_owned());
        self.emit(Reason::Promoted { revision });
        self.enter(Phase::Succeeded);
    }

    fn step_down_weight(&mut self, weight: Weight) {
        // Only pods of the analysed revision may keep traffic.
        let unchanged = self.observed.target.as_ref().is_some_and(|t| t.revision == self.release_revision());
        let by = if unchanged && self.canary_serves() { self.plan.step_down_weight } else { Weight::FULL };
        let due = after(self.release().last_progress_at.0, self.plan.interval);
        if by < Weight::FULL && due > self.now {
            self.wake_at(due, WakeReason::TrafficReturns);
            self.route(Split::weight(weight));
            return self.report_idle(Reason::TrafficReturning { weight });
        }
        let next =
            Weight::from_hundredths(weight.hundredths().saturating_sub(by.hundredths())).unwrap_or_default();
        self.status.canary_weight = next;
        self.note_progress();
        match next {
            // `Promoted` is reported once this split is in force.
            Weight::ZERO => self.report_idle(Reason::TrafficReturning { weight: next }),
            _ => self.emit(Reason::TrafficReturning { weight: next }),
        }
        self.route(Split::weight(next));
    }
}
