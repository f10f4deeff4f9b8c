//! What a pass leaves behind: the status that people and programs read, with
//! conditions as kstatus, Argo CD, Flux and Flagger's users know them.

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
        let (happened, held) = (self.emitted.pop(), self.idle_reason.take());
        let said = happened.is_some();
        let waits =
            self.status.phase == Phase::Waiting && held.as_ref().is_some_and(|held| !held.is_transient());
        if said && waits {
            // What it waits for is said next, whether or not anything else happens.
            self.wake_at(after(self.now, REQUEUE_DELAY), WakeReason::Requeue);
        }
        let reason = happened.or(held).unwrap_or(Reason::Initialized);
        let mut report = Report::from(reason);
        report.preceding = self.emitted.drain(..).map(Report::from).collect();
        let expected = !said && self.is_implied_by_status(&report.reason);
        // Judging goes on and on, and so may doubt; that it does is no news.
        let is_foreign_change = match report.reason {
            Reason::Analyzing { .. } => false,
            Reason::Inconclusive { .. } => !report.matches_ignoring_numbers(&self.status),
            _ => !report.matches_status(&self.status),
        };
        report.is_transition = said;
        report.should_notify = said || (!expected && is_foreign_change);
        let quiet = expected && self.conditions_current();
        if self.status.release.is_some() || !self.actions.is_empty() {
            // Whatever was lost on the way, an event or an answer, is found.
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
        if !quiet {
            write_conditions(status, &report, self.observed.generation, self.now);
        }
        Decision { status: self.status, actions: self.actions, wake: self.wake, report }
    }
}

impl Decider<'_> {
    /// What is said already makes one expect this. Each pod that starts would
    /// cost a write otherwise; but what takes an interval is worth a word.
    fn is_implied_by_status(&self, reason: &Reason) -> bool {
        let Some(ready) = self.condition(READY) else { return false };
        if matches!(reason, Reason::Analyzing { passed: 0, .. }) {
            return ready.reason == "Advanced";
        }
        let said_at = ready.last_update_time.as_ref().map_or(Timestamp::MIN, |at| at.0);
        reason.is_transient() && after(said_at, self.plan.interval) > self.now
    }

    /// The conditions are right but for their words.
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

/// Says a report on a status: message, generation and conditions.
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
    let refused = matches!(report.reason, Reason::InvalidSpec { .. });
    let (ready, reconciling, stalled) = match status.phase {
        _ if refused => (false, false, true),
        Phase::Initialized | Phase::Succeeded => (true, false, false),
        Phase::Failed => (false, false, true),
        _ => (false, true, false),
    };
    let promoted = match status.phase {
        Phase::Initialized | Phase::Succeeded => ConditionStatus::True,
        Phase::Failed => ConditionStatus::False,
        _ => ConditionStatus::Unknown,
    };
    let truth = |holds: bool| if holds { ConditionStatus::True } else { ConditionStatus::False };
    let code = report.reason.code();
    let phase = phase_name(status.phase);
    let mut writer = ConditionWriter { status, report, generation, now };
    writer.set(READY, truth(ready), code);
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
    /// A condition that is only there while it holds.
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
