//! The status of a decision, with conditions as kstatus, Argo CD, Flux and
//! Flagger's users know them.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::{
    Decision, WakeReason,
    decider::{Decider, REQUEUE_DELAY, after},
    report::{Reason, Report},
};
use crate::api::{
    canary::{CanaryStatus, Phase, status::NextDeadline},
    condition::{Condition, ConditionStatus, PROMOTED, READY, RECONCILING, STALLED},
};

impl Decider<'_> {
    pub fn into_decision(mut self) -> Decision {
        let (transition, idle) = (self.emitted.pop(), self.idle_reason.take());
        let is_transition = transition.is_some();
        let waits =
            self.status.phase == Phase::Waiting && idle.as_ref().is_some_and(|idle| !idle.is_transient());
        if is_transition && waits {
            // The reason for waiting is reported next, even if nothing else changes.
            self.wake_at(after(self.now, REQUEUE_DELAY), WakeReason::Requeue);
        }
        let reason = transition.or(idle).unwrap_or(Reason::Initialized);
        let mut report = Report::from(reason);
        report.preceding = self.emitted.drain(..).map(Report::from).collect();
        let implied = !is_transition && self.is_implied_by_status(&report.reason);
        // Progress of the analysis changes the numbers at every check: no Event for that.
        let changed = match report.reason {
            Reason::Analyzing { .. } => false,
            Reason::Inconclusive { .. } => !report.matches_ignoring_numbers(&self.status),
            _ => !report.matches_status(&self.status),
        };
        report.is_transition = is_transition;
        report.should_notify = is_transition || (!implied && changed);
        let unchanged = implied && self.conditions_current();
        if self.status.release.is_some() || !self.actions.is_empty() {
            // Recovers from a lost watch event or result.
            self.wake_at(after(self.now, self.plan.interval), WakeReason::Requeue);
        }
        let status = &mut self.status;
        let deadline = self.wake.and_then(|(at, why)| Some((at, why.message()?)));
        let recorded =
            status.next_deadline.as_ref().map(|deadline| (deadline.at.0, deadline.reason.as_str()));
        if deadline != recorded {
            status.next_deadline =
                deadline.map(|(at, reason)| NextDeadline { at: Time(at), reason: reason.to_owned() });
        }
        if let Some(revisions) = &status.revisions {
            status.last_applied_spec.clone_from(&revisions.seen);
            status.last_promoted_spec.clone_from(&revisions.primary);
        }
        if !unchanged {
            write_conditions(status, &report, self.observed.generation, self.now);
        }
        Decision { status: self.status, actions: self.actions, wake: self.wake, report }
    }
}

impl Decider<'_> {
    /// True if the Ready condition already implies this reason; saves one write
    /// per starting pod, for at most one interval.
    fn is_implied_by_status(&self, reason: &Reason) -> bool {
        let Some(ready) = self.condition(READY) else { return false };
        if matches!(reason, Reason::Analyzing { passed: 0, .. }) {
            return ready.reason == "Advanced";
        }
        let updated_at = ready.last_update_time.as_ref().map_or(Timestamp::MIN, |at| at.0);
        reason.is_transient() && after(updated_at, self.plan.interval) > self.now
    }

    /// True if the conditions are correct except for their messages.
    fn conditions_current(&self) -> bool {
        let (Some(ready), Some(promoted)) = (self.condition(READY), self.condition(PROMOTED)) else {
            return false;
        };
        promoted.reason == phase_name(self.status.phase)
            && ready.observed_generation == self.observed.generation
    }

    fn condition(&self, type_: &str) -> Option<&Condition> {
        self.status.conditions.iter().find(|condition| condition.type_ == type_)
    }
}

/// Writes a report to a status: message, generation and conditions.
pub(super) fn write_conditions(
    status: &mut CanaryStatus,
    report: &Report,
    generation: Option<i64>,
    now: Timestamp,
) {
    status.observed_generation = generation.or(status.observed_generation);
    if !report.matches_status(status) {
        status.message = Some(report.message.clone());
    }
    let invalid = matches!(report.reason, Reason::InvalidSpec { .. });
    let (ready, reconciling, stalled) = match status.phase {
        _ if invalid => (false, false, true),
        Phase::Initialized | Phase::Succeeded => (true, false, false),
        Phase::Failed => (false, false, true),
        _ => (false, true, false),
    };
    let promoted = match status.phase {
        Phase::Initialized | Phase::Succeeded => ConditionStatus::True,
        Phase::Failed => ConditionStatus::False,
        _ => ConditionStatus::Unknown,
    };
    let condition_status = |holds: bool| if holds { ConditionStatus::True } else { ConditionStatus::False };
    let code = report.reason.code();
    let phase = phase_name(status.phase);
    let mut writer = ConditionWriter { status, report, generation, now };
    writer.set(READY, condition_status(ready), code);
    writer.set_if(RECONCILING, reconciling, code);
    writer.set_if(STALLED, stalled, code);
    writer.set(PROMOTED, promoted, phase);
}

struct ConditionWriter<'a> {
    status: &'a mut CanaryStatus,
    report: &'a Report,
    generation: Option<i64>,
    now: Timestamp,
}

impl ConditionWriter<'_> {
    /// Removes the condition if it does not hold.
    fn set_if(&mut self, type_: &str, holds: bool, reason: &str) {
        if holds {
            self.set(type_, ConditionStatus::True, reason);
        } else {
            self.status.conditions.retain(|condition| condition.type_ != type_);
        }
    }

    fn set(&mut self, type_: &str, status: ConditionStatus, reason: &str) {
        let conditions = &mut self.status.conditions;
        let at = conditions.iter().position(|condition| condition.type_ == type_).unwrap_or_else(|| {
            conditions.push(Condition {
                type_: type_.to_owned(),
                status,
                reason: String::new(),
                message: String::new(),
                observed_generation: None,
                last_transition_time: Some(Time(self.now)),
                last_update_time: None,
            });
            conditions.len() - 1
        });
        let condition = &mut conditions[at];
        let same = condition.status == status
            && condition.reason == reason
            && condition.message == self.report.message
            && condition.observed_generation == self.generation;
        if same {
            return;
        }
        if condition.status != status {
            condition.status = status;
            condition.last_transition_time = Some(Time(self.now));
        }
        reason.clone_into(&mut condition.reason);
        condition.message.clone_from(&self.report.message);
        condition.observed_generation = self.generation;
        condition.last_update_time = Some(Time(self.now));
    }
}

/// The phase as Flagger's condition names it.
fn phase_name(phase: Phase) -> &'static str {
    match phase {
        Phase::Initializing => "Initializing",
        Phase::Initialized => "Initialized",
        Phase::Waiting => "Waiting",
        Phase::Progressing => "Progressing",
        Phase::WaitingPromotion => "WaitingPromotion",
        Phase::Promoting => "Promoting",
        Phase::Finalising => "Finalising",
        Phase::Succeeded => "Succeeded",
        Phase::Failed => "Failed",
        Phase::Terminating => "Terminating",
        Phase::Terminated => "Terminated",
    }
}
