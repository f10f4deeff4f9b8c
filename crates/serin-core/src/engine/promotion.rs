//! A release that passed: its revision is copied to the primary, then traffic
//! returns to the primary.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::{
    WakeReason,
    action::{Action, Split, Stable},
    decider::{DeadlineState, Decider, ProgressDeadline, StallCause, after},
    plan::steps::Strategy,
    report::Reason,
};
use crate::api::{
    Weight,
    canary::{Phase, status::Outcome},
};

impl Decider<'_> {
    /// Metrics that were judged on too few requests to find a much worse canary.
    fn metrics_with_low_power(&self) -> Vec<String> {
        let low = self.status.metrics.iter().filter(|metric| metric.low_power);
        low.map(|metric| metric.name.clone()).collect()
    }

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
        if !self.release_is_persisted() {
            // A restart would take the primary's new revision for a mistake and
            // restore the old one.
            let revision = target.revision.clone();
            let low_power = self.metrics_with_low_power();
            return self.block(Reason::Promoting { revision, low_power }, ProgressDeadline::Paused);
        }
        if !self.canary_is_ready() {
            self.withdraw_unless_judged();
            let reason = self.canary_not_ready();
            return self.block(reason, ProgressDeadline::Running(StallCause::Canary));
        }
        if !self.may_advance() || !self.take_slot() {
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
        let low_power = self.metrics_with_low_power();
        self.block(Reason::Promoting { revision, low_power }, ProgressDeadline::Running(StallCause::Copy));
    }

    /// Traffic stays where it is until the primary is ready with the promoted
    /// revision, unless the canary's pods are replaced by another one.
    fn wait_for_primary(&mut self) {
        let has_capacity = self.primary_has_capacity();
        if !self.primary_is_ready() || !has_capacity {
            self.withdraw_unless_judged();
            let primary = self.observed.primary.as_ref();
            let pods = primary.map(|primary| primary.pods).unwrap_or_default();
            let trouble = primary.and_then(|primary| primary.trouble.clone());
            let (ready, desired) = (pods.updated_and_ready(), pods.desired);
            return self.block(
                Reason::PrimaryRolling { ready, desired, trouble },
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

    /// Has the primary, which gets the canary's traffic back, as many pods as carry
    /// it now? If not, requests them.
    fn primary_has_capacity(&mut self) -> bool {
        let (Some(target), Some(primary)) = (&self.observed.target, &self.observed.primary) else {
            return true;
        };
        let share = u64::from(self.status.canary_weight.hundredths());
        let full = u64::from(Weight::FULL.hundredths());
        let carrying = (u64::from(target.pods.desired) * share).div_ceil(full);
        let carrying = if self.target_is_at_release() { carrying } else { 0 };
        let most = primary.max_replicas.unwrap_or(u32::MAX);
        let replicas = u32::try_from(carrying).unwrap_or(u32::MAX).min(most);
        let enough = primary.pods.desired >= replicas;
        if !enough {
            self.request(Action::ScalePrimary { replicas });
        }
        enough
    }

    /// A canary without a ready pod of the analysed revision gets no traffic, as
    /// long as another workload can serve: any pod of the primary runs a revision
    /// that was judged, the old or the new one.
    pub fn withdraw_unless_judged(&mut self) {
        if self.canary_serves() && self.target_is_at_release() {
            return;
        }
        if let Some(stable) = self.serving_stable() {
            self.withdraw();
            self.route(Split { stable, ..Split::all_primary() });
        }
    }

    /// The stable workload that has a ready pod.
    fn serving_stable(&self) -> Option<Stable> {
        let warm = self.observed.previous.as_ref().is_some_and(|previous| previous.pods.ready > 0);
        match self.primary_serves() {
            true => Some(Stable::Primary),
            false => warm.then_some(Stable::Previous),
        }
    }

    /// The target has the revision of this release, so its pods were judged.
    pub fn target_is_at_release(&self) -> bool {
        self.observed.target.as_ref().is_some_and(|target| target.revision == self.release_revision())
    }

    /// Returns traffic to the primary, at once or by steps; then the release
    /// has succeeded.
    pub fn finalise(&mut self) {
        let has_capacity = self.primary_has_capacity();
        if !(self.primary_is_ready() && has_capacity) && self.canary_serves() {
            match self.run_deadline(ProgressDeadline::Running(StallCause::Primary)) {
                DeadlineState::Exceeded(_) if self.primary_serves() => {}
                // The idle phase returns the traffic once the primary can serve.
                DeadlineState::Exceeded(_) => return self.finish_promotion(Reason::PrimaryUnavailable),
                state => {
                    if let DeadlineState::Ends(at) = state {
                        self.wake_at(at, WakeReason::PrimaryAwaited);
                    }
                    self.withdraw_unless_judged();
                    return self.report_idle(self.primary_not_ready());
                }
            }
        }
        let weight = self.status.canary_weight;
        if weight > Weight::ZERO {
            return self.step_down_weight(weight);
        }
        if !self.route(Split::all_primary()) {
            return self.report_idle(Reason::TrafficReturning { weight });
        }
        let revision = self.release().revision.clone();
        self.finish_promotion(Reason::Promoted { revision });
    }

    fn finish_promotion(&mut self, reason: Reason) {
        self.archive_release(Outcome::Promoted, "promoted".to_owned());
        self.emit(reason);
        self.enter(Phase::Succeeded);
    }

    fn step_down_weight(&mut self, weight: Weight) {
        // Only pods of the analysed revision may keep traffic.
        let by = if self.target_is_at_release() && self.canary_serves() {
            self.plan.step_down_weight
        } else {
            Weight::FULL
        };
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
