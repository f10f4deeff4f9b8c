//! Invariant 12: `Ready` is never a lie.

use std::time::Duration;

use serin::api::condition::{ConditionStatus, READY};

use super::{InvariantChecker, LawResult, Violation};
use crate::invariant::Invariant::ReadyIsTrue;
use crate::model::{CanaryModel, Route, StableTarget};

/// The controller observes, then writes.
const MAX_LIE: Duration = Duration::from_secs(15);

/// The primary's share of the requests must reach a pod by then.
const MAX_OUTAGE: Duration = Duration::from_secs(15);

impl InvariantChecker {
    /// `able_since`: since when the controller can write the status.
    pub fn check_ready(&mut self, on: &mut CanaryModel, able_since: Duration, at: Duration) -> LawResult {
        if !claims_ready(on) {
            on.lie_since = None;
            return Ok(());
        }
        let Some(lie) = lie(on) else {
            on.lie_since = None;
            self.coverage.count(ReadyIsTrue);
            return Ok(());
        };
        let since = *on.lie_since.get_or_insert(at);
        let length = at.saturating_sub(since.max(able_since));
        self.law(ReadyIsTrue, length <= MAX_LIE, || {
            format!("{} is Ready for {length:?} although {lie}", on.name)
        })
    }

    /// The primary has ready pods, and its requests reach none of them.
    pub fn check_outage(&mut self, on: &CanaryModel, able_since: Duration, at: Duration) -> LawResult {
        let Some(since) = on.primary_unserved_since else { return Ok(()) };
        let available = on.primary.now().as_ref().is_some_and(|primary| primary.available > 0);
        let length = at.saturating_sub(since.max(able_since).max(on.primary.since()));
        match super::is_managed(on) && available && length > MAX_OUTAGE {
            true => Err(Violation::from(format!(
                "{}: for {length:?} no request reaches the primary, which has ready pods",
                on.name
            ))),
            false => Ok(()),
        }
    }
}

fn claims_ready(on: &CanaryModel) -> bool {
    let deleting = on.canary.as_ref().is_none_or(|canary| canary.metadata.deletion_timestamp.is_some());
    let ready = |status: &serin::api::CanaryStatus| {
        status.conditions.iter().any(|it| it.type_ == READY && it.status == ConditionStatus::True)
    };
    !deleting && on.status().is_some_and(ready)
}

fn lie(on: &CanaryModel) -> Option<String> {
    let Some(primary) = on.primary.now() else { return Some("there is no primary".to_owned()) };
    let percents = on.possible_plans().into_iter().map(|plan| plan.primary_ready_percent).min();
    if !primary.is_ready(percents.unwrap_or(100)) {
        return Some(format!("the primary is not: {primary:?}"));
    }
    let home = Route { canary: 0, chosen: false, stable: StableTarget::Primary };
    (*on.route.now() != home).then(|| format!("the route is {:?}", on.route.now()))
}
