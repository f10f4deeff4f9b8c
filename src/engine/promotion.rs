//! A release that passed: the primary takes over its revision, then the
//! traffic comes home.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::{
    WakeReason,
    action::{Action, Split},
    pass::{Clock, Pass, SOON, Stall, after},
    report::Reason,
    steps::Strategy,
};
use crate::api::{
    Weight,
    canary::{Phase, status::Outcome},
};

impl Pass<'_> {
    /// Copies exactly the analysed revision to the primary and waits until the
    /// primary is ready with it.
    pub fn promote(&mut self) {
        if self.promotion_begun() {
            return self.wait_for_primary();
        }
        let Some(target) = &self.seen.target else { return self.lose_target() };
        if self.release().revision != target.revision {
            return self.supersede(target);
        }
        if self.status.releases > self.seen.recorded {
            // Whoever comes after a crash must know whose revision this is, or
            // takes it for a mistake and gives the primary back what it ran.
            self.wake_at(after(self.now, SOON), WakeReason::CheckAgain);
            return self.hold(Reason::Promoting { revision: target.revision.clone() }, Clock::Stands);
        }
        if !self.canary_is_ready() {
            let pods = target.pods;
            self.withdraw_if_down();
            return self.hold(
                Reason::CanaryNotReady { ready: pods.in_place(), desired: pods.desired },
                Clock::Runs(Stall::Canary),
            );
        }
        if !self.may_move() {
            return;
        }
        if self.plan.strategy == Strategy::BlueGreen && self.status.step.is_some() {
            // The switch: the primary is overwritten behind nobody's back.
            self.set_weight(Weight::FULL);
            if !self.route(Split::weight(Weight::FULL)) {
                return self.hold(Reason::Switching, Clock::Runs(Stall::Route));
            }
        }
        let revision = self.release().revision.clone();
        if let Some(before) = self.promoted_revision().filter(|_| !self.plan.keep_warm.is_zero()) {
            let kept = self.seen.previous.as_ref().is_some_and(|previous| previous.revision == before);
            if !kept {
                self.act(Action::KeepPrevious { revision: before.to_owned() });
            }
        }
        self.act(Action::Promote { revision: revision.clone() });
        self.hold(Reason::Promoting { revision }, Clock::Runs(Stall::Primary));
    }

    /// Traffic stays where it is until the primary is ready with the promoted
    /// revision.
    fn wait_for_primary(&mut self) {
        if !self.primary_is_ready() {
            self.withdraw_if_down();
            let pods = self.seen.primary.as_ref().map(|primary| primary.pods).unwrap_or_default();
            return self.hold(
                Reason::PrimaryRolling { ready: pods.in_place(), desired: pods.desired },
                Clock::Runs(Stall::Primary),
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
        self.release().state.withdrawn = false;
        self.enter(Phase::Finalising);
    }

    /// A canary without a ready pod gets no traffic, whatever the plan was.
    fn withdraw_if_down(&mut self) {
        let down = !self.canary_serves();
        let primary_serves = self.seen.primary.as_ref().is_some_and(|primary| primary.pods.can_serve());
        if down && primary_serves {
            self.withdraw();
            self.route(Split::home());
        }
    }

    /// Traffic comes home, at once or little by little; then all is done.
    pub fn finalise(&mut self) {
        if !self.primary_is_ready() && self.canary_serves() {
            return self.rest(self.primary_not_ready());
        }
        let weight = self.status.canary_weight;
        if weight > Weight::ZERO {
            return self.bring_some_home(weight);
        }
        if !self.route(Split::home()) {
            return self.rest(Reason::TrafficReturning { weight });
        }
        let revision = self.release().revision.clone();
        self.end(Outcome::Promoted, "promoted".to_owned());
        self.say(Reason::Promoted { revision });
        self.enter(Phase::Succeeded);
    }

    fn bring_some_home(&mut self, weight: Weight) {
        // Only the very pods that were analysed may go on serving.
        let unchanged = self.seen.target.as_ref().is_some_and(|t| t.revision == self.release_revision());
        let by = if unchanged && self.canary_serves() { self.plan.return_by } else { Weight::FULL };
        let due = after(self.release().last_progress_at.0, self.plan.interval);
        if by < Weight::FULL && due > self.now {
            self.wake_at(due, WakeReason::TrafficReturns);
            self.route(Split::weight(weight));
            return self.rest(Reason::TrafficReturning { weight });
        }
        let next =
            Weight::from_hundredths(weight.hundredths().saturating_sub(by.hundredths())).unwrap_or_default();
        self.status.canary_weight = next;
        self.progress();
        match next {
            // That it is home is said once it is.
            Weight::ZERO => self.rest(Reason::TrafficReturning { weight: next }),
            _ => self.say(Reason::TrafficReturning { weight: next }),
        }
        self.route(Split::weight(next));
    }
}
