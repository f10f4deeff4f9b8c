//! The release state machine. Pure: no async, no clock, no client.
//!
//! ```text
//!                    primary ready, traffic home, target empty
//!   Initializing ────────────────────────────────────────────▶ Initialized
//!                                                                   │
//!        ┌──────────────── new revision, retry ◀────────────────────┤
//!        ▼                                                          │
//!   ┌─ Waiting ◀─ superseded ──────────┬──────────────┐             │
//!   │    │ primary ready, window open, │              │             │
//!   │    │ turn come, confirm-rollout  │              │             │
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
//!   │  Finalising ── traffic home, at once or by steps ──▶ Succeeded┤
//!   │                                                       │       │
//!   │ checks failed, deadline, gate expired, rollback gate, │ rollback
//!   │ abort, approval refused                               ▼       │
//!   └────────────────────────────────────────────────────▶ Failed ──┘
//!
//!   any ── deleted ──▶ Terminating ── target serves, routes back ──▶ Terminated
//! ```
//!
//! [`decide`] takes a [`Plan`] (a Canary that was understood), the recorded
//! status, one observation of the world and the time, and says what to record,
//! what to do, when to be called again, and why. Calling it too often is
//! harmless; calling it again after a crash anywhere reaches the same end,
//! because every action follows from what is recorded and what is seen, never
//! from what was done.
//!
//! What holds, by construction and by the tests in `tests/engine`:
//!
//! 1. The revision promoted is exactly the revision analysed.
//! 2. A canary has traffic only while it can serve, and gets more only while
//!    ready, along the plan, after the present share was judged.
//! 3. Failed, aborted or superseded: traffic goes home and stays, unless the
//!    primary is the broken one.
//! 4. After a promotion traffic goes home only once the primary is ready with
//!    the promoted revision.
//! 5. No data is not bad: only evidence, or the user's own deadline, rolls back.
//! 6. A new revision is never lost.
//! 7. A crash between any two actions changes nothing about the end.
//! 8. Inside a freeze nothing starts, advances or promotes; rollback may.
//! 9. A new Serin starts no release.
//!
//! What the caller owes in return:
//!
//! - It performs actions in order and records the status last, guarded by its
//!   resourceVersion, and never decides on a status older than it recorded. If
//!   its actions have changed what is seen it may decide again, on the status
//!   that it has not recorded yet, and record only that ([`Decision::absorb_earlier`]).
//!   [`Observed::persisted_releases`] says what is on record even so.
//! - An [`Action::CallGate`] or [`Action::Measure`] already under way is not begun
//!   again. Answers are handed in until they are no longer asked for; keeping
//!   them longer, or losing them, is harmless.
//! - [`Observed::split`] is what is in force, read back from the router, not
//!   what was last asked for.
//! - The target's revision is made in the form of what is recorded:
//!   `revision(HashVersion::of(status.revisions.primary), …)`.
//! - Each of `report.preceding`, and `report` itself if it is news, is told once:
//!   as an event, and by its severity as a notification.

pub mod action;
mod check;
pub mod command;
mod conditions;
mod decider;
mod gate;
mod idle;
pub mod judge;
pub mod observed;
pub mod plan;
mod promotion;
mod release;
pub mod report;
pub mod revision;
mod run_step;
mod sample_ratio;
pub mod steps;
pub mod windows;

use std::fmt::Display;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

pub use action::Action;
pub use judge::JudgeError;
pub use observed::Observed;
pub use plan::{Plan, PlanError};
pub use report::{Reason, Report};

use crate::api::canary::{
    CanaryStatus, Phase,
    status::{CommandStatus, ReleaseStatus, Trigger},
};
use command::{Command, Verb, admit};
use decider::Decider;
use report::RollbackCause;

/// What to record, what to do, when to decide again, and why.
#[derive(Clone, Debug, PartialEq)]
pub struct Decision {
    pub status: CanaryStatus,
    /// In this order, before the status is recorded.
    pub actions: Vec<Action>,
    pub wake: Option<(Timestamp, WakeReason)>,
    pub report: Report,
}

impl Decision {
    /// Takes the place of one that was acted on and not recorded: what that
    /// one had to say is said with this one, except that something is under way
    /// which is done by now.
    pub fn absorb_earlier(&mut self, mut earlier: Decision) {
        let mut before = std::mem::take(&mut earlier.report.preceding);
        if earlier.report.is_transition || !earlier.report.reason.is_transient() {
            before.push(earlier.report);
        }
        before.append(&mut self.report.preceding);
        self.report.preceding = before;
    }
}

/// Why to be called again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WakeReason {
    CheckDue,
    Deadline,
    PauseEnds,
    GateExpires,
    GateRetry,
    WindowOpens,
    TrafficReturns,
    WarmEnds,
    Drained,
    Requeue,
}

impl WakeReason {
    /// In words, for those that people care about.
    fn message(self) -> Option<&'static str> {
        match self {
            Self::CheckDue => Some("the next check"),
            Self::Deadline => Some("without progress the release gives up"),
            Self::PauseEnds => Some("the pause ends"),
            Self::GateExpires => Some("unless the gate opens the release is rolled back"),
            Self::WindowOpens => Some("releases may move again"),
            Self::TrafficReturns => Some("more traffic shifts back to the primary"),
            Self::WarmEnds => Some("the version before is let go"),
            Self::Drained | Self::GateRetry | Self::Requeue => None,
        }
    }
}

/// Decides what follows from what is recorded and what is seen.
pub fn decide(plan: &Plan, status: &CanaryStatus, seen: &Observed, now: Timestamp) -> Decision {
    let mut decider = Decider::new(plan, status, seen, now);
    decider.run();
    decider.migrate_route();
    decider.into_decision()
}

/// How many releases have begun, by this record. One that waits has not.
pub fn started_releases(status: &CanaryStatus) -> u64 {
    status.releases.saturating_sub(u64::from(status.phase == Phase::Waiting))
}

/// What follows from a Canary that cannot be carried out: it is said, and
/// nothing is touched.
pub fn reject(error: &impl Display, status: &CanaryStatus, seen: &Observed, now: Timestamp) -> Decision {
    let mut status = status.clone();
    let mut report = Report::from(Reason::InvalidSpec { why: error.to_string() });
    report.is_transition = false;
    report.should_notify = !report.matches_status(&status);
    conditions::write_conditions(&mut status, &report, seen.generation, now);
    Decision { status, actions: Vec::new(), wake: None, report }
}

/// More phases than one pass can go through.
const MAX_PHASES_PER_DECISION: usize = 12;

impl Decider<'_> {
    /// Goes through as many phases as this one observation allows.
    fn run(&mut self) {
        if self.observed.deleting {
            return self.terminate();
        }
        self.process_commands();
        if self.plan.suspend {
            return self.report_idle(Reason::Suspended);
        }
        self.track_all_primary();
        for _ in 0..MAX_PHASES_PER_DECISION {
            let before = (self.status.phase, self.status.releases);
            match self.status.phase {
                Phase::Initializing => self.initialize(),
                Phase::Initialized | Phase::Succeeded | Phase::Failed => self.idle(),
                Phase::Waiting => self.wait(),
                Phase::Progressing | Phase::WaitingPromotion => self.progress_steps(),
                Phase::Promoting => self.promote(),
                Phase::Finalising => self.finalise(),
                Phase::Terminating | Phase::Terminated => self.terminate(),
            }
            if before == (self.status.phase, self.status.releases) {
                break;
            }
            // What the phase just left wanted done is not wanted any more.
            self.actions.clear();
        }
    }

    /// Records the route that the split is in force on; the objects of another one
    /// recorded before are orphaned.
    fn migrate_route(&mut self) {
        let Observed { route: Some(route), split: Some(_), deleting: false, .. } = self.observed else {
            return;
        };
        let recorded = self.status.route.replace(route.clone());
        if let Some(from) = recorded.filter(|recorded| recorded != route) {
            self.request(Action::MigrateRoute { from });
        }
    }

    /// Answers the commands that were not answered yet, in their order.
    fn process_commands(&mut self) {
        let commands = &self.observed.commands;
        let answered = self.status.last_command.as_ref().map(|last| last.id.as_str());
        let fresh =
            commands.iter().position(|command| Some(command.id.as_str()) == answered).map_or(0, |at| at + 1);
        for command in &commands[fresh..] {
            let denied = admit(self.plan, &self.status, self.observed, command, self.now).err();
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
                    self.emit(Reason::CommandRefused { verb: command.verb.name().to_owned(), why: message })
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
            Verb::Pause => self.release().paused = true,
            Verb::Resume => {
                let release = self.release();
                release.state.resumed = !release.paused;
                release.paused = false;
                self.note_progress();
            }
            // What was never seen is new.
            Verb::Retry => self.revisions().seen = None,
            Verb::Rollback => self.roll_back_promotion(command.by.clone()),
        }
    }

    /// The promoted revision is taken back: what it replaced is promoted again,
    /// and the copy kept warm serves until the primary runs it.
    fn roll_back_promotion(&mut self, by: Option<String>) {
        let now = Time(self.now);
        self.status.releases += 1;
        let revisions = self.revisions();
        let taken = revisions.primary.clone().unwrap_or_default();
        revisions.primary = revisions.previous.take();
        self.status.release = Some(ReleaseStatus {
            revision: taken,
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
