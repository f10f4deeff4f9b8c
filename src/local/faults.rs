//! Trouble on purpose, drawn from a seed: what a controller must survive.
//!
//! Faults strike the clients made for the program under test; the server's own
//! controllers and a test's checks use a steady client and are spared. The
//! same plan and seed give the same sequence of draws.

use std::time::Duration;

use parking_lot::RwLock;

use super::chance::Chance;
use super::request::Verb;

/// How often each fault happens, as a probability from 0 to 1.
#[derive(Clone, Debug, Default)]
pub struct FaultPlan {
    /// A write is refused with 409 though nobody else wrote.
    pub conflict: f64,
    /// 429 with Retry-After, before anything is done.
    pub too_many_requests: f64,
    /// 5xx before anything is done.
    pub error_before: f64,
    /// 5xx although the write was done.
    pub error_after: f64,
    /// An answer comes late, by up to `latency`.
    pub slow: f64,
    pub latency: Duration,
    /// A watch ends without a word.
    pub watch_dropped: f64,
    /// A watch tells of a change late, by up to `latency`: its cache is stale.
    pub watch_late: f64,
    /// A watch is told 410 and must list again.
    pub watch_forgotten: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestFault {
    Conflict,
    TooManyRequests,
    ErrorBefore,
    ErrorAfter,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WatchFault {
    Dropped,
    Late(Duration),
    Forgotten,
}

pub struct Faults {
    plan: RwLock<FaultPlan>,
    chance: Chance,
}

impl Faults {
    pub fn none() -> Faults {
        Faults { plan: RwLock::new(FaultPlan::default()), chance: Chance::seeded(0) }
    }

    pub fn seeded(seed: u64, plan: FaultPlan) -> Faults {
        Faults { plan: RwLock::new(plan), chance: Chance::seeded(seed) }
    }

    /// Replaces the plan; streams under way follow it from their next event.
    pub fn change(&self, plan: FaultPlan) {
        *self.plan.write() = plan;
    }

    /// What goes wrong with this request, if anything.
    pub fn on_request(&self, verb: Verb) -> Option<RequestFault> {
        let plan = self.plan.read();
        let rewrites = matches!(verb, Verb::Update | Verb::Patch | Verb::Delete);
        [
            (plan.too_many_requests, RequestFault::TooManyRequests, true),
            (plan.error_before, RequestFault::ErrorBefore, true),
            (plan.conflict, RequestFault::Conflict, rewrites),
            (plan.error_after, RequestFault::ErrorAfter, verb.writes()),
        ]
        .into_iter()
        .find_map(|(p, fault, applies)| (applies && self.chance.happens(p)).then_some(fault))
    }

    /// How long the answer is held back.
    pub fn delay(&self) -> Option<Duration> {
        let plan = self.plan.read();
        self.chance.happens(plan.slow).then(|| self.up_to(plan.latency))
    }

    pub fn on_watch(&self) -> Option<WatchFault> {
        let plan = self.plan.read();
        if self.chance.happens(plan.watch_dropped) {
            Some(WatchFault::Dropped)
        } else if self.chance.happens(plan.watch_forgotten) {
            Some(WatchFault::Forgotten)
        } else {
            self.chance.happens(plan.watch_late).then(|| WatchFault::Late(self.up_to(plan.latency)))
        }
    }

    fn up_to(&self, most: Duration) -> Duration {
        let most = u64::try_from(most.as_millis()).unwrap_or(u64::MAX).max(1);
        Duration::from_millis(self.chance.next() % most + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_brings_the_same_trouble() {
        let plan = FaultPlan { conflict: 0.3, error_after: 0.2, watch_dropped: 0.1, ..FaultPlan::default() };
        let draw = |seed| {
            let faults = Faults::seeded(seed, plan.clone());
            (0..200).map(|_| (faults.on_request(Verb::Update), faults.on_watch())).collect::<Vec<_>>()
        };
        assert_eq!(draw(3), draw(3));
        assert_ne!(draw(3), draw(4));
    }

    #[test]
    fn reads_meet_no_write_faults() {
        let plan = FaultPlan { conflict: 1.0, error_after: 1.0, ..FaultPlan::default() };
        assert_eq!(Faults::seeded(1, plan).on_request(Verb::List), None);
    }
}
