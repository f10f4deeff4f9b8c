//! Invariant 10: an abort gets all traffic back to the primary within a minute, as
//! long as the route can be written.

use std::time::Duration;

use super::{InvariantChecker, LawResult};
use crate::invariant::Invariant::AbortReturnsTraffic;
use crate::model::{CanaryModel, Workload};

const MAX_RETURN: Duration = Duration::from_secs(60);

/// Aborts that nobody has answered yet.
#[derive(Default)]
pub struct PendingAborts {
    pending: Vec<(String, Duration)>,
}

impl PendingAborts {
    pub fn record_command(&mut self, id: String, at: Duration) {
        self.pending.push((id, at));
    }

    /// A command was answered. A refused abort obliges to nothing, and an accepted one to
    /// nothing more if the canary has no traffic: the next release may get some.
    pub fn record_answer(&mut self, id: &str, accepted: bool, canary_has_traffic: bool) {
        if !accepted || !canary_has_traffic {
            self.pending.retain(|(pending, _)| pending != id);
        }
    }

    pub fn clear(&mut self) {
        self.pending.clear();
    }
}

impl InvariantChecker {
    /// Without traffic at the canary, aborts are obeyed.
    pub fn record_return(&mut self, on: &mut CanaryModel) {
        if !on.aborts.pending.is_empty() && !on.route.now().reaches_canary() {
            self.coverage.count(AbortReturnsTraffic);
            on.aborts.clear();
        }
    }

    /// `able_since`: since when the controller can write the route.
    pub fn check_aborts(&mut self, on: &mut CanaryModel, able_since: Duration, at: Duration) -> LawResult {
        if on.canary.is_none() || on.aborts.pending.is_empty() {
            on.aborts.clear();
            return Ok(());
        }
        self.record_return(on);
        if on.aborts.pending.is_empty() {
            return Ok(());
        }
        let serves = |primary: &Option<Workload>| primary.as_ref().is_some_and(|p| p.available > 0);
        let serving_since = on.primary.held_without_gap(serves);
        let (id, since) = &on.aborts.pending[0];
        let length = at.saturating_sub((*since).max(able_since).max(serving_since.unwrap_or(at)));
        self.law(AbortReturnsTraffic, length < MAX_RETURN, || {
            format!(
                "{} was aborted by {id}, and its canary has {:?} after {length:?}",
                on.name,
                on.route.now()
            )
        })
    }
}
