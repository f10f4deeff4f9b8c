//! Invariant 14: one Canary's trouble never delays another's decision beyond a
//! bound.
//!
//! The status announces the time of the next check. A Canary without trouble of its
//! own must have done something by [`MAX_DELAY`] after that: written its status, read
//! a pod's metrics or called a hook.

use std::time::Duration;

use super::{InvariantChecker, LawResult, is_managed};
use crate::invariant::Invariant::TroubleStaysAtHome;
use crate::model::CanaryModel;

pub const MAX_DELAY: Duration = Duration::from_secs(30);

impl InvariantChecker {
    /// `due` is the time of the next check by the recorded status, `calm_since` the
    /// end of the Canary's own trouble; `elsewhere`: another Canary has trouble.
    pub fn check_delay(
        &mut self,
        on: &CanaryModel,
        due: Duration,
        calm_since: Duration,
        (at, elsewhere): (Duration, bool),
    ) -> LawResult {
        let plans = on.possible_plans();
        let able = is_managed(on) && !plans.is_empty() && plans.iter().all(|plan| !plan.suspend);
        let ready =
            |workload: &Option<crate::model::Workload>| workload.as_ref().is_some_and(|it| it.is_ready(100));
        let calm = able && ready(on.target.now()) && ready(on.primary.now());
        let since = [due, calm_since, on.target.since(), on.primary.since()].into_iter().max().unwrap_or(due);
        let delay = at.saturating_sub(since.max(on.decided_at));
        if !calm || on.decided_at >= due || at < due {
            return Ok(());
        }
        if elsewhere {
            self.coverage.count(TroubleStaysAtHome);
        }
        super::forbid(TroubleStaysAtHome, delay > MAX_DELAY, || {
            format!("{} was to check at {due:?} and has not for {delay:?}", on.name)
        })
    }
}
