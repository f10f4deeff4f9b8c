//! Invariant 11: no request reaches a revision at a share that it was not judged
//! for on the way there.
//!
//! The code of a pod is its image with the config that it started with. The target's
//! pods may have the highest weight that the release of this code has reached, or the
//! next step of the plan; steps without checks count as judged. The code that the
//! primary has, or is being given, may have any share.

use std::collections::BTreeSet;
use std::time::Duration;

use serin::engine::Plan;
use serin::engine::plan::steps::Strategy;

use super::{InvariantChecker, LawResult, is_managed, was_promoted_by_command};
use crate::invariant::Invariant::ShareIsJudged;
use crate::model::{CanaryModel, Workload};

/// A push replaces pods before the controller can know of it.
const MAX_UNJUDGED: Duration = Duration::from_secs(5);

impl InvariantChecker {
    /// The traffic has been divided as in `on.reached` until now. `able_since`: since
    /// when the controller can write the route.
    pub fn check_shares(&mut self, on: &mut CanaryModel, able_since: Duration, at: Duration) -> LawResult {
        let suspended = on.possible_plans().iter().all(|plan| plan.suspend);
        let serves = |primary: &Option<Workload>| primary.as_ref().is_some_and(|p| p.available > 0);
        if !is_managed(on) || suspended || !serves(on.primary.now()) || on.reached.is_empty() {
            on.unjudged_since = None;
            return Ok(());
        }
        let chosen = on.route.now().chosen;
        let excess = on.reached.iter().find(|(code, share)| {
            let allowed = allowed_share(on, code);
            // Matching requests are a share that no weight names.
            if chosen { allowed.is_none() } else { **share * 1e4 > allowed.unwrap_or(0) as f64 + 1.0 }
        });
        let Some((code, share)) = excess.map(|(code, share)| (code.clone(), *share)) else {
            on.unjudged_since = None;
            self.coverage.count(ShareIsJudged);
            return Ok(());
        };
        let since = *on.unjudged_since.get_or_insert(at);
        let length = at.saturating_sub(since.max(able_since).max(on.primary.since()));
        self.law(ShareIsJudged, length <= MAX_UNJUDGED, || {
            let allowed = allowed_share(on, &code).unwrap_or(0);
            let percent = 100.0 * share;
            format!("{code} has had {percent:.1} % of the requests for {length:?}, and may have {allowed} hundredths")
        })
    }
}

/// In hundredths of a percent; none if this code is not being released.
fn allowed_share(on: &CanaryModel, code: &str) -> Option<u64> {
    let is_primary = |primary: &Option<Workload>| primary.as_ref().is_some_and(|p| p.code == code);
    if is_primary(on.primary.now()) {
        return Some(10_000);
    }
    let status = on.status()?;
    let release = status.release.as_ref()?;
    let of_release = |known: &BTreeSet<String>| known.contains(code);
    if !on.released_code.get(&release.revision).is_some_and(of_release) {
        return None;
    }
    if was_promoted_by_command(on) {
        return Some(10_000);
    }
    let had = u64::from(release.state.highest_weight.hundredths());
    let step = status.step.as_ref().map(|step| step.index as usize);
    on.possible_plans().into_iter().map(|plan| had.max(next_weight(plan, step))).max()
}

/// The weight of the step after this one; steps without checks are passed over.
fn next_weight(plan: &Plan, step: Option<usize>) -> u64 {
    let next = step.map_or(0, |step| step + 1);
    if plan.strategy == Strategy::BlueGreen && next >= plan.steps.len() {
        return 10_000;
    }
    let mut highest = 0;
    for step in plan.steps.iter().skip(next) {
        highest = highest.max(u64::from(step.split.canary.hundredths()));
        if step.checks > 0 && !plan.skip_analysis {
            return highest;
        }
    }
    if plan.strategy == Strategy::BlueGreen { 10_000 } else { highest }
}
