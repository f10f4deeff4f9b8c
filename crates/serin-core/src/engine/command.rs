//! Commands of users, and when each is accepted. [`admit`] only checks; it
//! changes nothing.
//!
//! | command  | does                                               | when                          |
//! |----------|----------------------------------------------------|-------------------------------|
//! | abort    | rolls the release back                             | before the revision is promoted |
//! | promote  | skips the remaining steps and promotes             | the canary is ready, no freeze |
//! | pause    | holds; analysis continues                          | before the promotion          |
//! | resume   | ends a pause, or the pause of the present step     | there is one                  |
//! | retry    | releases the rejected revision again               | it is still the target's      |
//! | rollback | restores the previous version, at once             | the previous version is warm  |

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::{
    observed::Observed,
    plan::{Plan, steps::Step},
};
use crate::api::canary::{
    CanaryStatus, Phase,
    status::{ReleaseStatus, Revisions},
};

/// A command of a user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Command {
    /// Unique: the same command is not accepted twice.
    pub id: String,
    pub verb: Verb,
    /// The revision the command is for; none for whichever is current.
    pub revision: Option<String>,
    pub by: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Verb {
    Abort,
    Promote,
    Pause,
    Resume,
    Retry,
    Rollback,
}

impl Verb {
    pub const ALL: [Self; 6] =
        [Self::Abort, Self::Promote, Self::Pause, Self::Resume, Self::Retry, Self::Rollback];

    pub fn name(self) -> &'static str {
        match self {
            Self::Abort => "abort",
            Self::Promote => "promote",
            Self::Pause => "pause",
            Self::Resume => "resume",
            Self::Retry => "retry",
            Self::Rollback => "rollback",
        }
    }
}

/// Why a command is rejected. This list is closed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Denied {
    #[error("this Canary is being deleted")]
    Deleting,
    #[error("this Canary is suspended; set spec.suspend to false first")]
    Suspended,
    #[error("this Canary is invalid; correct its spec first, or abort")]
    Invalid,
    #[error("no release is running")]
    NoRelease,
    #[error("the revision was rolled back; retry it first, then promote that release")]
    RolledBack,
    #[error("a release is running; abort it first")]
    ReleaseRunning,
    #[error("it was meant for revision {expected}, and {actual} is being released")]
    OtherRevision { expected: String, actual: String },
    #[error("the revision is already promoted; use rollback while the previous version is kept warm")]
    AlreadyPromoted,
    #[error("the revision is being promoted")]
    Promoting,
    #[error("the release is already paused")]
    AlreadyPaused,
    #[error("the release is not paused")]
    NotPaused,
    #[error("nothing may be promoted now{}", until(.0))]
    WindowClosed(Option<Timestamp>),
    #[error("the canary is not ready")]
    CanaryNotReady,
    #[error("the primary is not ready")]
    PrimaryNotReady,
    #[error("no revision was rolled back that the target still has")]
    NothingToRetry,
    #[error(
        "the previous version is not kept warm (spec.rollback.keepWarmSeconds keeps it); set the target back to it instead, which is released like any revision"
    )]
    PreviousNotWarm,
}

fn until(at: &Option<Timestamp>) -> String {
    at.map(|at| format!(" until {at}")).unwrap_or_default()
}

/// May this command be accepted now?
pub fn admit(
    plan: &Plan,
    status: &CanaryStatus,
    observed: &Observed,
    command: &Command,
    now: Timestamp,
) -> Result<(), Denied> {
    if observed.deleting {
        return Err(Denied::Deleting);
    }
    if plan.suspend && command.verb != Verb::Abort {
        return Err(Denied::Suspended);
    }
    match command.verb {
        Verb::Abort => active_release(status, command).map(drop),
        Verb::Promote => {
            active_release(status, command).map_err(|denied| match can_retry(status, observed) {
                true if denied == Denied::NoRelease => Denied::RolledBack,
                _ => denied,
            })?;
            match status.phase {
                Phase::Progressing | Phase::WaitingPromotion => {}
                Phase::Promoting => return Err(Denied::Promoting),
                _ => return Err(Denied::CanaryNotReady),
            }
            let canary = observed.target.as_ref().map(|target| target.pods).unwrap_or_default();
            if canary.desired == 0 || !canary.are_ready(plan.canary_ready_percent) {
                return Err(Denied::CanaryNotReady);
            }
            if !observed
                .primary
                .as_ref()
                .is_some_and(|primary| primary.pods.are_ready(plan.primary_ready_percent))
            {
                return Err(Denied::PrimaryNotReady);
            }
            plan.windows.check(now).map_err(|closed| Denied::WindowClosed(closed.until))
        }
        Verb::Pause => match active_release(status, command)? {
            _ if status.phase == Phase::Promoting => Err(Denied::Promoting),
            release if release.paused => Err(Denied::AlreadyPaused),
            _ => Ok(()),
        },
        Verb::Resume => {
            let release = active_release(status, command)?;
            let step = status.step.as_ref().and_then(|step| plan.steps.get(step.index as usize));
            let pausing = step.is_some_and(|step: &Step| step.pause.is_some()) && !release.state.resumed;
            if release.paused || pausing { Ok(()) } else { Err(Denied::NotPaused) }
        }
        Verb::Retry => {
            require_idle(status)?;
            let rejected = revisions(status).and_then(|revisions| revisions.rejected.as_deref());
            match rejected.filter(|_| can_retry(status, observed)) {
                Some(rejected) => check_revision(command, rejected),
                None => Err(Denied::NothingToRetry),
            }
        }
        Verb::Rollback => {
            require_idle(status)?;
            let warm = observed.previous.as_ref().filter(|previous| {
                let recorded = revisions(status).and_then(|revisions| revisions.previous.as_ref());
                recorded == Some(&previous.revision) && previous.pods.ready > 0
            });
            match warm {
                Some(_) if status.phase == Phase::Succeeded => {
                    let promoted = revisions(status).and_then(|revisions| revisions.primary.as_deref());
                    check_revision(command, promoted.unwrap_or_default())
                }
                _ => Err(Denied::PreviousNotWarm),
            }
        }
    }
}

/// Is the target still at the revision that was rolled back last?
fn can_retry(status: &CanaryStatus, observed: &Observed) -> bool {
    let rejected = revisions(status).and_then(|revisions| revisions.rejected.as_ref());
    status.phase == Phase::Failed
        && rejected.is_some()
        && observed.target.as_ref().map(|target| &target.revision) == rejected
}

/// The release that a command is for, if its outcome is still open.
fn active_release<'a>(status: &'a CanaryStatus, command: &Command) -> Result<&'a ReleaseStatus, Denied> {
    let release = match (status.phase, &status.release) {
        (Phase::Waiting | Phase::Progressing | Phase::WaitingPromotion | Phase::Promoting, Some(release)) => {
            release
        }
        (Phase::Finalising, _) => return Err(Denied::AlreadyPromoted),
        _ => return Err(Denied::NoRelease),
    };
    check_revision(command, &release.revision).map(|()| release)
}

fn require_idle(status: &CanaryStatus) -> Result<(), Denied> {
    match status.phase {
        Phase::Initialized | Phase::Succeeded | Phase::Failed => Ok(()),
        Phase::Initializing => Err(Denied::NoRelease),
        Phase::Terminating | Phase::Terminated => Err(Denied::Deleting),
        Phase::Waiting
        | Phase::Progressing
        | Phase::WaitingPromotion
        | Phase::Promoting
        | Phase::Finalising => Err(Denied::ReleaseRunning),
    }
}

fn check_revision(command: &Command, actual: &str) -> Result<(), Denied> {
    match &command.revision {
        Some(expected) if expected != actual => {
            Err(Denied::OtherRevision { expected: expected.clone(), actual: actual.to_owned() })
        }
        _ => Ok(()),
    }
}

fn revisions(status: &CanaryStatus) -> Option<&Revisions> {
    status.revisions.as_ref()
}
