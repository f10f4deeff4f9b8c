//! The status of a decision, with conditions as kstatus, Argo CD, Flux and
//! Flagger's users know them.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::{
    Decision, Observed, WakeReason,
    action::{Purpose, Split},
    decider::{Decider, REQUEUE_DELAY, after},
    names::{phase_name, state},
    report::{Reason, Report},
    revert::REPORTED_REVERTS,
};
use crate::api::{
    Weight,
    canary::{CanaryStatus, Phase, status::NextDeadline},
    condition::{
        Condition, ConditionStatus, DEGRADED, PAUSED, PROMOTED, READY, RECONCILING, STALLED, TARGET_REJECTED,
    },
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
        let failing = self
            .blocking_failure()
            .map(|failure| Reason::Failing { why: failure.message.clone(), refused: failure.refused });
        let unready = self.unready_reason(idle.as_ref());
        let paused = self.paused_reason(idle.as_ref());
        let idle = match (idle, &unready) {
            (Some(resting), Some(unready)) if resting.is_resting() => Some(unready.clone()),
            (idle, _) => idle,
        };
        let mut reason = transition.or(failing).or(idle).unwrap_or(Reason::Initialized);
        let needs_person = reason.needs_person();
        let empty = BTreeMap::new();
        let names = self.status.revisions.as_ref().map_or(&empty, |revisions| &revisions.names);
        reason.name_revisions(names);
        let named = |mut reason: Reason| {
            reason.name_revisions(names);
            Report::from(reason)
        };
        let mut report = Report::from(reason);
        report.preceding = self.emitted.drain(..).chain(self.refused_commands.drain(..)).map(named).collect();
        let unready = unready.map(named);
        let paused = paused.map(Report::from);
        self.forget_names();
        report.preceding.extend(write_degraded(&mut self.status, self.observed, self.now));
        self.write_target_rejected();
        let implied = !is_transition && self.is_implied_by_status(&report.reason);
        let changed = match report.reason {
            // A step that begins is a transition; each check that passes has an Event.
            Reason::Analyzing { passed, .. } => passed > 0 && !report.matches_status(&self.status),
            // A failed check has its own Event, and a primary that is scaled up is not
            // ready for moments.
            Reason::LatestCheckFailed { .. } | Reason::PrimaryDegraded { .. } => false,
            // Reported when it happened.
            _ if report.reason.is_resting() => false,
            Reason::RouteReverted { times, .. } => {
                times == REPORTED_REVERTS && !report.matches_ignoring_numbers(&self.status)
            }
            Reason::Inconclusive { .. } => !report.matches_ignoring_numbers(&self.status),
            _ => !report.matches_status(&self.status),
        };
        report.is_transition = is_transition;
        report.should_notify = is_transition || (!implied && changed);
        let unchanged = implied && self.conditions_current(unready.is_none());
        let recovers = self.status.release.is_some() || !self.actions.is_empty();
        if recovers || (unchanged && !report.matches_status(&self.status)) {
            // Recovers from a lost watch event or result, or publishes a transient reason that lasts.
            self.wake_at(after(self.now, self.plan.interval), WakeReason::Requeue);
        }
        let deadline = self.next_deadline(needs_person);
        let status = &mut self.status;
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
        let mut writer = ConditionWriter { status, generation: self.observed.generation, now: self.now };
        writer.set_if(PAUSED, paused.as_ref());
        if !unchanged {
            writer.write(&report, unready.as_ref());
        }
        write_state(&mut self.status, self.plan.suspend);
        Decision { status: self.status, actions: self.actions, wake: self.wake, report }
    }

    /// Sets or removes the condition `TargetRejected`.
    fn write_target_rejected(&mut self) {
        let (target, failed) = (self.observed.target.as_ref(), self.status.phase == Phase::Failed);
        let revisions = self.status.revisions.as_ref().filter(|_| failed && !self.observed.deleting);
        let is_rejected = |rejected: &&String| target.is_some_and(|target| target.revision == **rejected);
        let rejected = revisions.and_then(|revisions| revisions.rejected.as_ref()).filter(is_rejected);
        let report = rejected.map(|revision| {
            let promoted = revisions.and_then(|revisions| revisions.primary.clone()).unwrap_or_default();
            let (revision, promoted) = (self.name_of(revision), self.name_of(&promoted));
            Report::from(Reason::TargetRejected { revision, promoted })
        });
        let (status, generation) = (&mut self.status, self.observed.generation);
        ConditionWriter { status, generation, now: self.now }.set_if(TARGET_REJECTED, report.as_ref());
    }

    /// Between releases: why users are not, or may not be, served by the primary
    /// alone.
    fn unready_reason(&self, idle: Option<&Reason>) -> Option<Reason> {
        if !matches!(self.status.phase, Phase::Initialized | Phase::Succeeded) {
            return None;
        }
        let known = idle.filter(|idle| {
            matches!(
                idle,
                Reason::CreatingPrimary
                    | Reason::PrimaryMissing
                    | Reason::PrimaryUnavailable
                    | Reason::RestoringPrimary { .. }
            )
        });
        let found = match &self.observed.primary {
            None => Reason::PrimaryMissing,
            Some(primary) if !primary.pods.can_serve() => Reason::PrimaryDown,
            Some(primary) if !self.primary_is_ready() => Reason::PrimaryDegraded {
                ready: primary.pods.updated_and_ready(),
                desired: primary.pods.desired,
            },
            Some(_) if self.observed.split != Some(Split::all_primary()) => {
                let weight = Weight::ZERO;
                self.route_blocked_reason(weight, Reason::RouteNotInForce { weight })
            }
            Some(_) => return known.cloned(),
        };
        Some(known.cloned().unwrap_or(found))
    }

    /// Why a person has to act, or a pause to end, before anything moves.
    fn paused_reason(&self, idle: Option<&Reason>) -> Option<Reason> {
        let by_command = self.status.release.as_ref().is_some_and(|release| release.paused);
        match idle {
            _ if self.plan.suspend && !self.observed.deleting => Some(Reason::Suspended),
            _ if by_command => Some(Reason::Paused),
            Some(paused @ Reason::StepPaused { .. }) => Some(paused.clone()),
            _ => None,
        }
    }

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
    fn conditions_current(&self, serves: bool) -> bool {
        let (Some(ready), Some(promoted)) = (self.condition(READY), self.condition(PROMOTED)) else {
            return false;
        };
        let is_ready = serves && matches!(self.status.phase, Phase::Initialized | Phase::Succeeded);
        promoted.reason == phase_name(self.status.phase)
            && (ready.status == ConditionStatus::True) == is_ready
            && ready.observed_generation == self.observed.generation
    }

    fn condition(&self, type_: &str) -> Option<&Condition> {
        self.status.conditions.iter().find(|condition| condition.type_ == type_)
    }
}

/// A decision without actions, for a Canary that cannot be decided on. Nothing is
/// known about its primary, so it is not ready.
pub(super) fn report_only(
    reason: Reason,
    status: &CanaryStatus,
    observed: &Observed,
    now: Timestamp,
) -> Decision {
    let mut status = status.clone();
    let mut report = Report::from(reason);
    report.is_transition = false;
    report.should_notify = !report.matches_status(&status);
    write_degraded(&mut status, observed, now);
    let mut writer = ConditionWriter { status: &mut status, generation: observed.generation, now };
    writer.write(&report, Some(&report));
    write_state(&mut status, false);
    Decision { status, actions: Vec::new(), wake: None, report }
}

/// From the conditions of this decision.
fn write_state(status: &mut CanaryStatus, suspended: bool) {
    let state = state(status, suspended);
    if status.state != state {
        state.clone_into(&mut status.state);
    }
}

/// Sets or removes the condition `Degraded`. Failed maintenance is reported when its
/// message is new; other failures are the reason of the decision itself.
fn write_degraded(status: &mut CanaryStatus, observed: &Observed, now: Timestamp) -> Option<Report> {
    let Observed { failures, generation, .. } = observed;
    let why = failures.iter().map(|failure| failure.message.as_str()).collect::<Vec<_>>().join("; ");
    let mut blocking = failures.iter().filter(|failure| failure.purpose != Purpose::Maintain).peekable();
    let blocks = blocking.peek().is_some();
    let report = Report::from(match blocks {
        true => Reason::Failing { why, refused: blocking.all(|failure| failure.refused) },
        false => Reason::MaintenanceFailing { why },
    });
    let known = status.conditions.iter().find(|condition| condition.type_ == DEGRADED);
    let is_new = known.is_none_or(|degraded| degraded.message != report.message);
    let mut writer = ConditionWriter { status, generation: *generation, now };
    writer.set_if(DEGRADED, (!failures.is_empty()).then_some(&report));
    (!failures.is_empty() && is_new && !blocks).then_some(report)
}

struct ConditionWriter<'a> {
    status: &'a mut CanaryStatus,
    generation: Option<i64>,
    now: Timestamp,
}

impl ConditionWriter<'_> {
    /// Writes a report to the status: message, generation and conditions. `unready`
    /// is why a Canary at rest is not ready all the same.
    fn write(&mut self, report: &Report, unready: Option<&Report>) {
        let status = &mut *self.status;
        status.observed_generation = self.generation.or(status.observed_generation);
        if !report.matches_status(status) {
            status.message = Some(report.message.clone());
        }
        let phase = status.phase;
        let rests = matches!(phase, Phase::Initialized | Phase::Succeeded);
        let rejected =
            matches!(report.reason, Reason::InvalidSpec { .. } | Reason::Failing { refused: true, .. });
        let stalled = rejected || phase == Phase::Failed;
        let ready = rests && !stalled && unready.is_none();
        let why = unready.filter(|_| !rejected).unwrap_or(report);
        self.set(READY, if ready { ConditionStatus::True } else { ConditionStatus::False }, why);
        self.set_if(RECONCILING, (!ready && !stalled).then_some(why));
        self.set_if(STALLED, stalled.then_some(why));
        self.set_promoted(report);
    }

    /// The outcome of the last release, until the next one: reports of other matters
    /// do not replace its message.
    fn set_promoted(&mut self, report: &Report) {
        let phase = self.status.phase;
        let (outcome, is_over) = match phase {
            Phase::Initialized | Phase::Succeeded => (ConditionStatus::True, true),
            Phase::Failed => (ConditionStatus::False, true),
            _ => (ConditionStatus::Unknown, false),
        };
        let reason = phase_name(phase);
        let known = self.status.conditions.iter().find(|condition| condition.type_ == PROMOTED);
        let message = match known {
            Some(known) if is_over && known.reason == reason => known.message.clone(),
            _ => report.message.clone(),
        };
        self.set_fields(PROMOTED, outcome, reason, &message);
    }

    /// Removes the condition if there is no report.
    fn set_if(&mut self, type_: &str, why: Option<&Report>) {
        match why {
            Some(why) => self.set(type_, ConditionStatus::True, why),
            None => self.status.conditions.retain(|condition| condition.type_ != type_),
        }
    }

    fn set(&mut self, type_: &str, status: ConditionStatus, why: &Report) {
        self.set_fields(type_, status, why.reason.code(), &why.message);
    }

    fn set_fields(&mut self, type_: &str, status: ConditionStatus, reason: &str, message: &str) {
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
            && condition.message == message
            && condition.observed_generation == self.generation;
        if same {
            return;
        }
        if condition.status != status {
            condition.status = status;
            condition.last_transition_time = Some(Time(self.now));
        }
        reason.clone_into(&mut condition.reason);
        message.clone_into(&mut condition.message);
        condition.observed_generation = self.generation;
        condition.last_update_time = Some(Time(self.now));
    }
}
