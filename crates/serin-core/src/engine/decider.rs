//! One pass of the engine over one observation, and the operations that all
//! phases share: request an action, block, route, fail, archive.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::{
    WakeReason,
    action::{Action, Purpose, Split},
    clock_step::{pull_back_future_times, restart_at_step},
    observed::{Failure, Observed, Target},
    plan::Plan,
    report::{Reason, RollbackCause},
};
use crate::api::{
    Weight,
    canary::{
        CanaryStatus, HookType, Phase,
        status::{GateState, Outcome, PastRelease, ReleaseStatus, Revisions, Trigger},
    },
};

pub(super) struct Decider<'a> {
    pub plan: &'a Plan,
    pub observed: &'a Observed,
    pub now: Timestamp,
    pub status: CanaryStatus,
    /// Phase and release number of the status passed in.
    persisted: (Phase, u64),
    pub actions: Vec<Action>,
    pub wake: Option<(Timestamp, WakeReason)>,
    /// The first of each kind that the status may show.
    deadlines: Vec<(Timestamp, WakeReason)>,
    /// Transitions, in order.
    pub emitted: Vec<Reason>,
    /// Reported besides the reason of the decision, which they do not replace.
    pub refused_commands: Vec<Reason>,
    /// Why there was no transition.
    pub idle_reason: Option<Reason>,
    /// Why the spec is invalid; see [`protect`](super::protect()).
    pub invalid: Option<&'a str>,
}

/// Whether the progress deadline runs while a release is blocked.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum ProgressDeadline {
    /// The release itself makes no progress.
    Running(StallCause),
    /// The release waits for something outside: a gate, a window, a user.
    Paused,
}

/// Part of a release that makes no progress. Each has the whole deadline.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum StallCause {
    /// Pods of the canary; the deadline restarts as more become ready.
    Canary,
    /// Pods of the primary, likewise.
    Primary,
    /// The copy of the revision to the primary.
    Copy,
    Route,
    /// No data about the canary, which is no evidence against it: has a deadline
    /// of its own, by default none.
    Evidence,
    /// The spec became invalid.
    Spec,
    /// An action fails again and again.
    Failure,
}

impl StallCause {
    fn name(self) -> &'static str {
        match self {
            Self::Canary => "canary",
            Self::Primary => "primary",
            Self::Copy => "copy",
            Self::Route => "route",
            Self::Evidence => "evidence",
            Self::Spec => "spec",
            Self::Failure => "failure",
        }
    }
}

/// Result of [`Decider::run_deadline`].
pub(super) enum DeadlineState {
    StandsStill,
    Ends(Timestamp),
    /// There was no progress for this long.
    Exceeded(Duration),
}

/// Long enough for the status of this decision to be written.
pub(super) const REQUEUE_DELAY: Duration = Duration::from_millis(100);

/// Entries of `status.history`.
const HISTORY_LIMIT: usize = 10;

impl<'a> Decider<'a> {
    pub fn new(plan: &'a Plan, status: &CanaryStatus, observed: &'a Observed, now: Timestamp) -> Self {
        let persisted = (status.phase, status.releases);
        let mut status = status.clone();
        pull_back_future_times(&mut status, now);
        if let Some(stepped_at) = observed.clock_stepped_at {
            restart_at_step(&mut status, stepped_at);
        }
        Self {
            plan,
            observed,
            now,
            status,
            persisted,
            actions: Vec::new(),
            wake: None,
            deadlines: Vec::new(),
            emitted: Vec::new(),
            refused_commands: Vec::new(),
            idle_reason: None,
            invalid: None,
        }
    }

    /// Was the present phase of this release entered by an earlier decision? If
    /// not, requeues for when the status is written.
    pub fn is_persisted(&mut self) -> bool {
        let persisted = self.persisted == (self.status.phase, self.status.releases);
        if !persisted {
            self.wake_at(after(self.now, REQUEUE_DELAY), WakeReason::Requeue);
        }
        persisted
    }

    /// Is the start of this release in the written status? If not, requeues for when
    /// it is.
    pub fn release_is_persisted(&mut self) -> bool {
        let persisted = self.status.releases <= self.observed.persisted_releases;
        if !persisted {
            self.wake_at(after(self.now, REQUEUE_DELAY), WakeReason::Requeue);
        }
        persisted
    }

    /// Requests an action; duplicates are dropped.
    pub fn request(&mut self, action: Action) {
        if !self.actions.contains(&action) {
            self.actions.push(action);
        }
    }

    /// Reports a transition.
    pub fn emit(&mut self, reason: Reason) {
        self.emitted.push(reason);
    }

    /// Reports why there is no transition.
    pub fn report_idle(&mut self, reason: Reason) {
        self.idle_reason = Some(reason);
    }

    /// Reports why a release holds, and rolls it back once the deadline has
    /// passed.
    pub fn block(&mut self, reason: Reason, progress_deadline: ProgressDeadline) {
        if reason.yields_slot() {
            self.release().state.holds_slot = false;
        }
        match self.run_deadline(progress_deadline) {
            DeadlineState::StandsStill => {}
            DeadlineState::Ends(at) => self.wake_at(at, WakeReason::Deadline),
            DeadlineState::Exceeded(limit) => return self.fail_deadline(limit, &reason),
        }
        self.report_idle(self.revert_reason().unwrap_or(reason));
    }

    /// Rolls back a release that made no progress for this long.
    pub fn fail_deadline(&mut self, limit: Duration, reason: &Reason) {
        let mut reason = reason.clone();
        if let Some(revisions) = &self.status.revisions {
            reason.name_revisions(&revisions.names);
        }
        self.fail(RollbackCause::Deadline { seconds: limit.as_secs(), what: lowercase(&reason.to_string()) });
    }

    /// Lets the deadline of a stall run, which restarts as pods become ready, or
    /// stops it: a release that goes on has the whole deadline again.
    pub fn run_deadline(&mut self, progress_deadline: ProgressDeadline) -> DeadlineState {
        let limits = self.plan.deadline;
        let stall = match progress_deadline {
            ProgressDeadline::Running(StallCause::Evidence) => {
                limits.no_data.map(|limit| (StallCause::Evidence, limit))
            }
            ProgressDeadline::Running(stall) => Some((stall, limits.after)),
            ProgressDeadline::Paused => None,
        };
        let failing = self.blocking_failure().map(|_| (StallCause::Failure, limits.after));
        let Some((stall, limit)) = stall.or(failing).filter(|_| !self.deadlines_stand_still()) else {
            self.stop_deadline();
            return DeadlineState::StandsStill;
        };
        let (now, ready) = (self.now, self.ready_pods(stall));
        let state = &mut self.release().state;
        if state.stalled_on != stall.name() || ready > state.stalled_ready_pods {
            stall.name().clone_into(&mut state.stalled_on);
            state.stalled_since = None;
            state.stalled_ready_pods = ready;
        }
        let until = after(state.stalled_since.get_or_insert(Time(now)).0, limit);
        if until <= now { DeadlineState::Exceeded(limit) } else { DeadlineState::Ends(until) }
    }

    /// Nothing is expected of a release that people stopped or that may not move.
    pub fn deadlines_stand_still(&mut self) -> bool {
        self.plan.suspend || self.release().paused || self.plan.windows.check(self.now).is_err()
    }

    pub fn stop_deadline(&mut self) {
        if let Some(release) = &mut self.status.release {
            release.state.stalled_since = None;
            release.state.stalled_on.clear();
            release.state.stalled_ready_pods = 0;
        }
    }

    /// Pods whose readiness is the progress of a stall.
    fn ready_pods(&self, stall: StallCause) -> u32 {
        let pods = match stall {
            StallCause::Canary => self.observed.target.as_ref().map(|target| target.pods),
            StallCause::Primary => self.observed.primary.as_ref().map(|primary| primary.pods),
            StallCause::Copy
            | StallCause::Route
            | StallCause::Evidence
            | StallCause::Spec
            | StallCause::Failure => None,
        };
        pods.map_or(0, |pods| pods.ready_beyond_older())
    }

    /// A lasting failure that keeps the release from moving.
    pub fn blocking_failure(&self) -> Option<&Failure> {
        self.observed.failures.iter().find(|failure| failure.purpose != Purpose::Maintain)
    }

    /// The next time at which the release moves or is rolled back, by itself. A check
    /// of a release that waits for a person moves nothing.
    pub fn next_deadline(&self, needs_person: bool) -> Option<(Timestamp, &'static str)> {
        let shown = self.deadlines.iter().filter(|(_, why)| !needs_person || *why != WakeReason::CheckDue);
        shown.min_by_key(|(at, _)| *at).and_then(|(at, why)| Some((*at, why.message()?)))
    }

    /// Why the canary's pods hold the release.
    pub fn canary_not_ready(&self) -> Reason {
        let target = self.observed.target.as_ref();
        let pods = target.map(|target| target.pods).unwrap_or_default();
        let trouble = target.and_then(|target| target.trouble.clone());
        Reason::CanaryNotReady { ready: pods.updated_and_ready(), desired: pods.desired, trouble }
    }

    pub fn wake_at(&mut self, at: Timestamp, why: WakeReason) {
        if why.message().is_some() {
            self.deadlines.push((at, why));
        }
        if self.wake.as_ref().is_none_or(|(earliest, _)| at < *earliest) {
            self.wake = Some((at, why));
        }
    }

    pub fn enter(&mut self, phase: Phase) {
        self.status.phase = phase;
        self.status.last_transition_time = Some(Time(self.now));
        // Those of the phase before do not come any more.
        self.deadlines.clear();
        if !matches!(phase, Phase::Waiting | Phase::Progressing | Phase::WaitingPromotion) {
            self.drop_waiting_gates();
        }
        self.note_progress();
    }

    /// Removes gates that the release no longer waits for. Rollback and
    /// post-rollout hooks may still be called.
    fn drop_waiting_gates(&mut self) {
        self.status.gates.retain(|gate| {
            let still_called = matches!(gate.type_, Some(HookType::Rollback | HookType::PostRollout));
            gate.state != GateState::Waiting || still_called
        });
    }

    /// Restarts the progress deadline.
    pub fn note_progress(&mut self) {
        let now = self.now;
        if let Some(release) = &mut self.status.release {
            release.last_progress_at = Time(now);
        }
        self.stop_deadline();
    }

    /// The current release. A status that lost it gets one without a revision,
    /// which the target's own revision then supersedes.
    pub fn release(&mut self) -> &mut ReleaseStatus {
        let now = self.now;
        self.status.release.get_or_insert_with(|| ReleaseStatus {
            revision: String::new(),
            trigger: Trigger::PodTemplate,
            started_at: Time(now),
            last_progress_at: Time(now),
            paused: false,
            state: Default::default(),
        })
    }

    pub fn revisions(&mut self) -> &mut Revisions {
        self.status.revisions.get_or_insert_default()
    }

    pub fn promoted_revision(&self) -> Option<&str> {
        self.status.revisions.as_ref()?.primary.as_deref()
    }

    /// The primary has the revision of this release: promotion has begun.
    pub fn promotion_begun(&self) -> bool {
        let copied = self.observed.primary.as_ref().and_then(|primary| primary.revision.as_deref());
        copied == Some(self.release_revision()) && copied != self.promoted_revision()
    }

    pub fn release_revision(&self) -> &str {
        self.status.release.as_ref().map_or("", |release| release.revision.as_str())
    }

    pub fn canary_is_ready(&self) -> bool {
        self.observed.target.as_ref().is_some_and(|target| self.is_ready(target))
    }

    pub fn is_ready(&self, target: &Target) -> bool {
        target.pods.desired > 0 && target.pods.are_ready(self.plan.canary_ready_percent)
    }

    /// The target is scaled to zero and still has pods. If it were scaled up
    /// now, terminating pods would count as ready ones.
    pub fn is_scaling_down(&self, target: &Target) -> bool {
        self.plan.scalable && target.pods.desired == 0 && target.pods.exist
    }

    /// The canary has at least one ready pod.
    pub fn canary_serves(&self) -> bool {
        self.observed.target.as_ref().is_some_and(|target| target.pods.ready > 0)
    }

    /// The primary has at least one ready pod, or none is desired.
    pub fn primary_serves(&self) -> bool {
        self.observed.primary.as_ref().is_some_and(|primary| primary.pods.can_serve())
    }

    pub fn primary_is_ready(&self) -> bool {
        self.observed
            .primary
            .as_ref()
            .is_some_and(|primary| primary.pods.are_ready(self.plan.primary_ready_percent))
    }

    pub fn primary_not_ready(&self) -> Reason {
        let pods = self.observed.primary.as_ref().map(|primary| primary.pods).unwrap_or_default();
        Reason::PrimaryNotReady { ready: pods.updated_and_ready(), desired: pods.desired }
    }

    /// Is this split in force? If not, requests it.
    pub fn route(&mut self, split: Split) -> bool {
        let in_force = self.observed.split.as_ref() == Some(&split);
        if !in_force {
            self.request(Action::Route(split));
        }
        in_force
    }

    /// The router's own reason why a split is not in force, else `otherwise`.
    pub fn route_blocked_reason(&self, weight: Weight, otherwise: Reason) -> Reason {
        match &self.observed.route_pending {
            Some(why) => Reason::RoutePending { weight, why: why.clone() },
            None => otherwise,
        }
    }

    /// Rolls the release back. The phase `Failed` then routes all traffic to the
    /// primary and scales the canary down.
    pub fn fail(&mut self, cause: RollbackCause) {
        let outcome = match cause {
            RollbackCause::Aborted { .. } => Outcome::Aborted,
            _ => Outcome::RolledBack,
        };
        let revision = self.release().revision.clone();
        // Once promotion was decided the primary may have changed, observed or
        // not.
        self.release().state.restoring = self.status.phase == Phase::Promoting;
        self.release().paused = false;
        self.revisions().rejected = Some(revision.clone());
        self.archive_release(outcome, cause.to_string());
        self.emit(Reason::RolledBack { revision, cause });
        self.enter(Phase::Failed);
    }

    /// Adds the release to `status.history`.
    pub fn archive_release(&mut self, outcome: Outcome, reason: String) {
        let now = Time(self.now);
        let release = self.release();
        let past = PastRelease {
            revision: release.revision.clone(),
            outcome,
            reason,
            started_at: release.started_at.clone(),
            finished_at: now,
            highest_weight: release.state.highest_weight,
        };
        self.status.history.insert(0, past);
        self.status.history.truncate(HISTORY_LIMIT);
        self.status.step = None;
        self.status.iterations = 0;
        self.status.previous_session_affinity_cookie = self.status.session_affinity_cookie.take();
        self.status.primary_session_affinity_cookie = None;
    }

    pub fn step_split(&self) -> Split {
        step_split(self.plan, &self.status)
    }

    /// Records the canary's share.
    pub fn set_weight(&mut self, weight: Weight) {
        self.status.canary_weight = weight;
        let highest = &mut self.release().state.highest_weight;
        *highest = weight.max(*highest);
    }
}

/// The desired split while the canary may have traffic: the recorded weight, with
/// the matches and the mirror of the current step.
pub(super) fn step_split(plan: &Plan, status: &CanaryStatus) -> Split {
    let withdrawn = status.release.as_ref().is_some_and(|release| release.state.traffic_withdrawn);
    let step = status.step.as_ref().and_then(|step| plan.steps.get(step.index as usize));
    match step {
        _ if withdrawn => Split::all_primary(),
        Some(step) => Split { canary: status.canary_weight, ..step.split.clone() },
        None => Split::weight(status.canary_weight),
    }
}

/// Saturates at `Timestamp::MAX`.
pub(super) fn after(at: Timestamp, length: Duration) -> Timestamp {
    let length = SignedDuration::try_from(length).unwrap_or(SignedDuration::MAX);
    at.checked_add(length).unwrap_or(Timestamp::MAX)
}

/// A message as part of another one: without its full stop and capital.
fn lowercase(message: &str) -> String {
    let trimmed = message.trim_end_matches('.');
    let mut chars = trimmed.chars();
    chars.next().map_or(String::new(), |first| first.to_lowercase().chain(chars).collect())
}
