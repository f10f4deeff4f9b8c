//! The release state machine. Pure: no async, no clock, no client.
//!
//! ```text
//!              primary ready, all traffic on it, target at zero
//!   Initializing ────────────────────────────────────────────▶ Initialized
//!                                                                   │
//!        ┌──────────────── new revision, retry ◀────────────────────┤
//!        ▼                                                          │
//!   ┌─ Waiting ◀─ superseded ──────────┬──────────────┐             │
//!   │    │ primary ready, window open, │              │             │
//!   │    │ free slot, confirm-rollout  │              │             │
//!   │    ▼                             │              │             │
//!   ├─ Progressing ────────────────────┤              │             │
//!   │    │  scale up, pre-rollout; then step by step: │             │
//!   │    │  route ▶ in force ▶ check ▶ judge ▶ gate   │             │
//!   │    ▼ last step passed            │              │             │
//!   ├─ WaitingPromotion ───────────────┘              │             │
//!   │    │ confirm-promotion, window open             │             │
//!   │    ▼                                            │             │
//!   ├─ Promoting ── target changed before the copy ───┘             │
//!   │    │ primary ready with exactly the analysed revision         │
//!   │    ▼                                                          │
//!   │  Finalising ── traffic back, at once or by steps ──▶ Succeeded┤
//!   │                                                       │       │
//!   │ checks failed, deadline, gate expired, rollback gate, │ rollback
//!   │ abort, approval refused                               ▼       │
//!   └────────────────────────────────────────────────────▶ Failed ──┘
//!
//!   any ── deleted ──▶ Terminating ── target serves, routes back ──▶ Terminated
//! ```
//!
//! [`decide`] takes a [`Plan`] (the validated spec of a Canary), the recorded
//! status, one observation of the cluster and the time. It returns the new
//! status, the actions to perform, the time of the next call and a report.
//! Extra calls are harmless. A call after a crash anywhere reaches the same
//! end, because actions follow from the recorded status and the observation,
//! never from earlier actions.
//!
//! Invariants, by construction and by the tests in `tests/engine`:
//!
//! 1. The revision promoted is exactly the revision analysed.
//! 2. A canary has traffic only while it can serve, and gets more only while
//!    ready, along the plan, after the present share was judged.
//! 3. Failed, aborted or superseded: all traffic goes to the primary and stays
//!    there, unless the primary is the broken one.
//! 4. After a promotion traffic returns to the primary only once it is ready
//!    with the promoted revision, or can serve while the target is at another
//!    revision, which nobody judged, or can serve and did not become ready again
//!    within the deadline.
//! 5. No data is not bad: only evidence, or the user's own deadline, rolls back.
//! 6. A new revision is never lost.
//! 7. A crash between any two actions changes nothing about the end.
//! 8. Inside a freeze nothing starts, advances or promotes; rollback may.
//! 9. A new Serin starts no release.
//!
//! Duties of the caller:
//!
//! - It performs actions by [`Purpose`](action::Purpose), in order, and writes the
//!   status last, guarded by its resourceVersion, and never decides on a status
//!   older than it wrote. A failed action does not keep the status from being
//!   written; if it lasts, it is passed in as [`Observed::failures`]. If actions
//!   changed the observation it may decide again, on the status that
//!   it has not written yet, and write only the last one
//!   ([`Decision::absorb_earlier`]). [`Observed::persisted_releases`] counts
//!   the releases in the written status even then.
//! - A running [`Action::CallGate`] or [`Action::Measure`] is not started again.
//!   Results are passed in until they are no longer requested; keeping them
//!   longer, or losing them, is harmless.
//! - [`Observed::split`] is the split in force, read back from the router, not
//!   the last one requested.
//! - The target's revision uses the hash version of the recorded one:
//!   `revision(HashVersion::of(status.revisions.primary), …)`.
//! - Each of `report.preceding`, and `report` itself if `should_notify`, is
//!   published once: as an Event, and by its severity as a notification.

pub mod action;
mod broken_pod;
mod check;
mod clock_step;
pub mod command;
mod conditions;
mod decider;
mod deletion;
mod gate;
mod idle;
mod judging;
mod lost_primary;
pub mod names;
pub mod observed;
pub mod plan;
mod promotion;
mod protect;
mod release;
pub mod report;
mod revert;
pub mod revision;
mod run_step;
mod sample_ratio;
pub mod windows;

use std::fmt::Display;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

pub use action::Action;
pub use broken_pod::replaced_pod;
pub use observed::Observed;
pub use plan::{Plan, PlanError, metrics::JudgeError};
pub use protect::protect;
pub use report::{Reason, Report};
pub use revert::is_route_reverted;

use crate::api::canary::{
    CanaryStatus, Phase,
    status::{CommandStatus, ReleaseStatus, Trigger},
};
use command::{Command, Denied, Verb, admit};
use decider::Decider;
use report::RollbackCause;

/// Result of [`decide`].
#[derive(Clone, Debug, PartialEq)]
pub struct Decision {
    pub status: CanaryStatus,
    /// In this order, before the status is written.
    pub actions: Vec<Action>,
    /// When to decide again, if nothing changes before.
    pub wake: Option<(Timestamp, WakeReason)>,
    pub report: Report,
}

impl Decision {
    /// Replaces a decision whose actions were performed but whose status was
    /// not written. Its reports are kept, except transient ones.
    pub fn absorb_earlier(&mut self, mut earlier: Decision) {
        let mut preceding = std::mem::take(&mut earlier.report.preceding);
        if earlier.report.is_transition || !earlier.report.reason.is_transient() {
            preceding.push(earlier.report);
        }
        preceding.append(&mut self.report.preceding);
        self.report.preceding = preceding;
    }
}

/// Why to decide again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WakeReason {
    /// When to run the next check, interim or full.
    CheckDue,
    /// When to roll back a release that made no progress.
    Deadline,
    /// When the target of a deleted Canary gets the traffic, whatever it waits for.
    TargetTakesOver,
    /// When to leave a step whose pause has a duration.
    PauseEnds,
    /// When to roll back because a gate or approval stayed closed.
    GateExpires,
    /// When to call a closed gate again.
    GateRetry,
    /// When to continue after a freeze, or in the next allow window.
    WindowOpens,
    /// When to shift the next share of traffic back to the promoted primary.
    TrafficReturns,
    /// When to stop waiting for a promoted primary that is no longer ready.
    PrimaryAwaited,
    /// When to delete the warm copy of the previous version.
    WarmEnds,
    /// When to scale pods down that no proxy routes to any more.
    Drained,
    /// When to decide on the status just written, or to find a lost watch event
    /// or result.
    Requeue,
}

/// Text of `status.nextDeadline` for [`WakeReason::Deadline`].
pub const NO_PROGRESS: &str = "without progress the release is rolled back";

impl WakeReason {
    /// Text of `status.nextDeadline`; none for internal timers.
    pub(crate) fn message(self) -> Option<&'static str> {
        match self {
            Self::CheckDue => Some("the next check"),
            Self::Deadline => Some(NO_PROGRESS),
            Self::TargetTakesOver => Some("the target gets the traffic, and the Canary is deleted"),
            Self::PauseEnds => Some("the pause ends"),
            Self::GateExpires => Some("unless the gate opens the release is rolled back"),
            Self::WindowOpens => Some("releases may move again"),
            Self::TrafficReturns => Some("more traffic shifts back to the primary"),
            Self::PrimaryAwaited => Some("the promoted primary is no longer awaited"),
            Self::WarmEnds => Some("the warm copy of the previous version is deleted"),
            Self::Drained | Self::GateRetry | Self::Requeue => None,
        }
    }
}

/// One pass of the state machine over one observation.
pub fn decide(plan: &Plan, status: &CanaryStatus, observed: &Observed, now: Timestamp) -> Decision {
    let mut decider = Decider::new(plan, status, observed, now);
    decider.run();
    decider.record_primary_size(status);
    decider.record_names();
    decider.migrate_route();
    decider.into_decision()
}

/// Releases that have started by this status, which excludes a waiting one.
pub fn started_releases(status: &CanaryStatus) -> u64 {
    status.releases.saturating_sub(u64::from(status.phase == Phase::Waiting))
}

/// Decision on an invalid Canary that has no routes: a report and no action. See
/// [`protect`] for one that has.
pub fn reject(error: &impl Display, status: &CanaryStatus, observed: &Observed, now: Timestamp) -> Decision {
    conditions::report_only(Reason::InvalidSpec { why: error.to_string() }, status, observed, now)
}

/// Decision while the cluster cannot be observed: a report of
/// [`Observed::failures`] and no action.
pub fn report_failures(status: &CanaryStatus, observed: &Observed, now: Timestamp) -> Decision {
    let why = observed.failures.iter().map(|failure| failure.message.as_str()).collect::<Vec<_>>().join("; ");
    let refused = observed.failures.iter().all(|failure| failure.refused);
    conditions::report_only(Reason::Failing { why, refused }, status, observed, now)
}

/// More phases than one decision can go through.
const MAX_PHASES_PER_DECISION: usize = 12;

impl Decider<'_> {
    /// Goes through as many phases as this one observation allows.
    fn run(&mut self) {
        if self.observed.deleting {
            return self.terminate();
        }
        self.process_commands();
        if self.plan.suspend {
            // An abort returns the traffic even so.
            if self.status.phase == Phase::Failed && self.primary_at_promoted_revision() {
                self.route_all_to_primary();
            }
            self.stop_deadline();
            self.end_reverts();
            if let Some(release) = &mut self.status.release {
                release.state.holds_slot = false;
            }
            return self.report_idle(Reason::Suspended);
        }
        self.track_all_primary();
        for _ in 0..MAX_PHASES_PER_DECISION {
            let before = (self.status.phase, self.status.releases);
            let lost = self.primary_is_lost();
            match self.invalid {
                _ if lost => self.hold_for_primary(),
                None => self.run_phase(),
                Some(why) => self.protect_phase(why),
            }
            if before == (self.status.phase, self.status.releases) {
                break;
            }
            // Actions of the phase just left are obsolete.
            self.actions.clear();
        }
    }

    fn run_phase(&mut self) {
        match self.status.phase {
            Phase::Initializing => self.initialize(),
            Phase::Initialized | Phase::Succeeded | Phase::Failed => self.idle(),
            Phase::Waiting => self.wait(),
            Phase::Progressing | Phase::WaitingPromotion => self.progress_steps(),
            Phase::Promoting => self.promote(),
            Phase::Finalising => self.finalise(),
            Phase::Terminating | Phase::Terminated => self.terminate(),
        }
    }

    /// Records the route that the split is in force on, once the objects of another
    /// one recorded before are removed.
    fn migrate_route(&mut self) {
        let Observed { route: Some(route), split: Some(_), deleting: false, .. } = self.observed else {
            return;
        };
        match &self.status.route {
            Some(from) if from != route && self.observed.migrated_from.as_ref() != Some(from) => {
                self.request(Action::MigrateRoute { from: from.clone() });
            }
            known => {
                let evidence = &self.observed.provider_evidence;
                // Words that differ for the same provider are no news.
                let is_same = known.as_ref().is_some_and(|known| known.provider == route.provider)
                    && self.status.provider_evidence.is_some() == evidence.is_some();
                if !is_same {
                    self.status.provider_evidence.clone_from(evidence);
                }
                self.status.route = Some(route.clone());
            }
        }
    }

    /// Accepts or rejects the commands since `status.lastCommand`, in order.
    fn process_commands(&mut self) {
        let commands = &self.observed.commands;
        let last = self.status.last_command.as_ref().map(|last| last.id.as_str());
        let pending =
            commands.iter().position(|command| Some(command.id.as_str()) == last).map_or(0, |at| at + 1);
        for command in &commands[pending..] {
            let denied = match (self.invalid, command.verb) {
                (None, _) | (Some(_), Verb::Abort | Verb::Rollback) => {
                    admit(self.plan, &self.status, self.observed, command, self.now).err()
                }
                (Some(_), _) => Some(Denied::Invalid),
            };
            let denied = denied.map(|denied| match denied {
                Denied::OtherRevision { expected, actual } => {
                    Denied::OtherRevision { expected: self.name_of(&expected), actual: self.name_of(&actual) }
                }
                other => other,
            });
            let message = denied.as_ref().map_or("done".to_owned(), ToString::to_string);
            self.status.last_command = Some(CommandStatus {
                id: command.id.clone(),
                verb: command.verb.name().to_owned(),
                accepted: denied.is_none(),
                message: message.clone(),
                at: Time(self.now),
            });
            match denied {
                None => self.apply_command(command),
                Some(_) => {
                    let verb = command.verb.name().to_owned();
                    self.refused_commands.push(Reason::CommandRefused { verb, why: message });
                }
            }
        }
    }

    fn apply_command(&mut self, command: &Command) {
        match command.verb {
            Verb::Abort => self.fail(RollbackCause::Aborted { by: command.by.clone() }),
            Verb::Promote => {
                self.release().paused = false;
                self.enter(Phase::Promoting);
            }
            Verb::Pause => {
                let release = self.release();
                (release.paused, release.state.holds_slot) = (true, false);
            }
            Verb::Resume => {
                let release = self.release();
                release.state.resumed = !release.paused;
                release.paused = false;
                self.note_progress();
            }
            // The target's revision then counts as new.
            Verb::Retry => self.revisions().seen = None,
            Verb::Rollback => self.roll_back_promotion(command.by.clone()),
        }
    }

    /// Rolls the promoted revision back: the primary gets the previous revision
    /// again, and the warm copy serves until it is ready.
    fn roll_back_promotion(&mut self, by: Option<String>) {
        let now = Time(self.now);
        self.status.releases += 1;
        let revisions = self.revisions();
        let promoted = revisions.primary.clone().unwrap_or_default();
        revisions.primary = revisions.previous.take();
        self.status.release = Some(ReleaseStatus {
            revision: promoted,
            trigger: Trigger::Rollback,
            started_at: now.clone(),
            last_progress_at: now,
            paused: false,
            state: Default::default(),
        });
        self.fail(RollbackCause::PromotionRolledBack { by });
        self.release().state.restoring = true;
    }
}
