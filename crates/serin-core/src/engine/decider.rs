//! One pass of the engine over one observation, and the few moves that all
//! phases are made of: act, hold, route, ask, end.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::{
    WakeReason,
    action::{Action, Split},
    observed::{Observed, Target},
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
    /// The phase and the release that it began with.
    persisted: (Phase, u64),
    pub actions: Vec<Action>,
    pub wake: Option<(Timestamp, WakeReason)>,
    /// What happened, in order.
    pub emitted: Vec<Reason>,
    /// Nothing happened, because.
    pub idle_reason: Option<Reason>,
}

/// Whether the progress deadline runs while a release holds.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum ProgressDeadline {
    /// The release itself keeps everybody waiting, by this.
    Running(StallCause),
    /// The release waits for something that is not its fault.
    Paused,
}

/// What a release waits for that should have come by itself. Each has the whole
/// deadline.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum StallCause {
    Canary,
    Primary,
    Route,
    /// Nothing is known about the canary, which is not its fault: only a
    /// deadline that the user wrote runs.
    Evidence,
}

impl StallCause {
    fn name(self) -> &'static str {
        match self {
            Self::Canary => "canary",
            Self::Primary => "primary",
            Self::Route => "route",
            Self::Evidence => "evidence",
        }
    }
}

/// What was decided is on record by then.
pub(super) const REQUEUE_DELAY: Duration = Duration::from_millis(100);

/// Releases that history keeps.
const HISTORY_LIMIT: usize = 10;

impl<'a> Decider<'a> {
    pub fn new(plan: &'a Plan, status: &CanaryStatus, seen: &'a Observed, now: Timestamp) -> Self {
        Self {
            plan,
            observed: seen,
            now,
            status: status.clone(),
            persisted: (status.phase, status.releases),
            actions: Vec::new(),
            wake: None,
            emitted: Vec::new(),
            idle_reason: None,
        }
    }

    /// Was the present phase of the present release entered by an earlier pass?
    /// If not, it is looked at again once it is on record.
    pub fn is_persisted(&mut self) -> bool {
        let on_record = self.persisted == (self.status.phase, self.status.releases);
        if !on_record {
            self.wake_at(after(self.now, REQUEUE_DELAY), WakeReason::Requeue);
        }
        on_record
    }

    /// Wants something done. What is wanted twice is done once.
    pub fn request(&mut self, action: Action) {
        if !self.actions.contains(&action) {
            self.actions.push(action);
        }
    }

    /// Something happened.
    pub fn emit(&mut self, reason: Reason) {
        self.emitted.push(reason);
    }

    /// Nothing happens, because.
    pub fn report_idle(&mut self, reason: Reason) {
        self.idle_reason = Some(reason);
    }

    /// A release holds, because; and gives up once the deadline has run out.
    pub fn block(&mut self, reason: Reason, progress_deadline: ProgressDeadline) {
        let (now, deadline) = (self.now, self.plan.deadline);
        let state = &mut self.release().state;
        let stall = match progress_deadline {
            ProgressDeadline::Running(stall) if stall != StallCause::Evidence || deadline.explicit => stall,
            ProgressDeadline::Running(_) | ProgressDeadline::Paused => {
                state.stalled_since = None;
                state.stalled_on.clear();
                return self.report_idle(reason);
            }
        };
        if state.stalled_on != stall.name() {
            state.stalled_since = None;
            stall.name().clone_into(&mut state.stalled_on);
        }
        let until = after(state.stalled_since.get_or_insert(Time(now)).0, deadline.after);
        if until <= now {
            let seconds = deadline.after.as_secs();
            return self.fail(RollbackCause::Deadline { seconds, what: lowercase(&reason.to_string()) });
        }
        self.wake_at(until, WakeReason::Deadline);
        self.report_idle(reason);
    }

    pub fn wake_at(&mut self, at: Timestamp, why: WakeReason) {
        if self.wake.as_ref().is_none_or(|(earliest, _)| at < *earliest) {
            self.wake = Some((at, why));
        }
    }

    pub fn enter(&mut self, phase: Phase) {
        self.status.phase = phase;
        self.status.last_transition_time = Some(Time(self.now));
        if !matches!(phase, Phase::Waiting | Phase::Progressing | Phase::WaitingPromotion) {
            self.drop_waiting_gates();
        }
        self.note_progress();
    }

    /// The release went on without an answer, or is over: nobody needs to give
    /// it any more.
    fn drop_waiting_gates(&mut self) {
        self.status.gates.retain(|gate| {
            let may_follow_up = matches!(gate.type_, Some(HookType::Rollback | HookType::PostRollout));
            gate.state != GateState::Waiting || may_follow_up
        });
    }

    /// The release got further.
    pub fn note_progress(&mut self) {
        let now = self.now;
        if let Some(release) = &mut self.status.release {
            release.last_progress_at = Time(now);
            release.state.stalled_since = None;
            release.state.stalled_on.clear();
        }
    }

    /// The release under way. A status that lost it gets one of no revision,
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

    /// The primary carries the revision of this release: promotion has begun.
    pub fn promotion_begun(&self) -> bool {
        let carried = self.observed.primary.as_ref().and_then(|primary| primary.revision.as_deref());
        carried == Some(self.release_revision()) && carried != self.promoted_revision()
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

    /// The target was asked for no pods, and is still said to have some. Scaled
    /// up now, it would be said to be ready by the pods that end, or by one
    /// that becomes ready just before it does.
    pub fn is_scaling_down(&self, target: &Target) -> bool {
        self.plan.scalable && target.pods.desired == 0 && target.pods.exist
    }

    /// The canary can answer requests, maybe not with all its pods.
    pub fn canary_serves(&self) -> bool {
        self.observed.target.as_ref().is_some_and(|target| target.pods.ready > 0)
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

    /// Is this split in force? If not, wants it.
    pub fn route(&mut self, split: Split) -> bool {
        let effective_split = self.observed.split.as_ref() == Some(&split);
        if !effective_split {
            self.request(Action::Route(split));
        }
        effective_split
    }

    /// Why a split is not in force: what the router says, or else this.
    pub fn route_blocked_reason(&self, weight: Weight, otherwise: Reason) -> Reason {
        match &self.observed.route_pending {
            Some(why) => Reason::RoutePending { weight, why: why.clone() },
            None => otherwise,
        }
    }

    /// The release ends badly. What follows, follows from the phase: traffic
    /// goes home and the canary is emptied.
    pub fn fail(&mut self, cause: RollbackCause) {
        let outcome = match cause {
            RollbackCause::Aborted { .. } => Outcome::Aborted,
            _ => Outcome::RolledBack,
        };
        let revision = self.release().revision.clone();
        // From the moment promotion was decided the primary may have changed,
        // whether or not that was seen yet.
        self.release().state.restoring = self.status.phase == Phase::Promoting;
        self.release().paused = false;
        self.revisions().rejected = Some(revision.clone());
        self.archive_release(outcome, cause.to_string());
        self.emit(Reason::RolledBack { revision, cause });
        self.enter(Phase::Failed);
    }

    /// Writes the release into history.
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

    /// The split that is wanted while the canary may have traffic: the recorded
    /// share, with the matches and the mirror of the step under way.
    pub fn step_split(&self) -> Split {
        let withdrawn = self.status.release.as_ref().is_some_and(|release| release.state.traffic_withdrawn);
        let step = self.status.step.as_ref().and_then(|step| self.plan.steps.get(step.index as usize));
        match step {
            _ if withdrawn => Split::all_primary(),
            Some(step) => Split { canary: self.status.canary_weight, ..step.split.clone() },
            None => Split::weight(self.status.canary_weight),
        }
    }

    /// Records the canary's share.
    pub fn set_weight(&mut self, weight: Weight) {
        self.status.canary_weight = weight;
        let highest = &mut self.release().state.highest_weight;
        *highest = weight.max(*highest);
    }
}

/// Saturating: a deadline beyond all time is beyond all time.
pub(super) fn after(at: Timestamp, length: Duration) -> Timestamp {
    let length = SignedDuration::try_from(length).unwrap_or(SignedDuration::MAX);
    at.checked_add(length).unwrap_or(Timestamp::MAX)
}

/// A sentence, to go on in the middle of another.
fn lowercase(sentence: &str) -> String {
    let trimmed = sentence.trim_end_matches('.');
    let mut chars = trimmed.chars();
    chars.next().map_or(String::new(), |first| first.to_lowercase().chain(chars).collect())
}
