//! Trouble on purpose, drawn from a seed: what a controller must survive.
//!
//! Faults strike the clients made for the program under test; the server's own
//! controllers and a test's checks use a steady client and are spared. The
//! same plan and seed give the same sequence of draws.

use std::collections::BTreeMap;
use std::time::Duration;

use parking_lot::{Mutex, RwLock};

use super::request::Verb;
use super::seeded_rng::SeededRng;

/// How often each fault happens, as a probability from 0 to 1.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FaultPlan {
    /// A write is refused with 409 though nobody else wrote.
    pub conflict: f64,
    /// 429 with Retry-After, before anything is done.
    pub too_many_requests: f64,
    /// 5xx before anything is done.
    pub error_before: f64,
    /// 5xx although the write was done.
    pub error_after: f64,
    /// A request comes late, by up to `latency`.
    pub slow_request: f64,
    /// An answer comes late, by up to `latency`: watches tell of the write
    /// first.
    pub slow_response: f64,
    pub latency: Duration,
    /// A watch ends without a word.
    pub watch_dropped: f64,
    /// A watch tells of a change late, by up to `latency`: its cache is stale.
    pub watch_delayed: f64,
    /// A watch is told 410 and must list again.
    pub watch_expired: f64,
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
    Delayed(Duration),
    Expired,
}

pub struct FaultInjector {
    plan: RwLock<FaultPlan>,
    rng: SeededRng,
    injected: Mutex<BTreeMap<&'static str, u64>>,
}

impl FaultInjector {
    pub fn none() -> FaultInjector {
        FaultInjector::seeded(0, FaultPlan::default())
    }

    pub fn seeded(seed: u64, plan: FaultPlan) -> FaultInjector {
        FaultInjector { plan: RwLock::new(plan), rng: SeededRng::seeded(seed), injected: Mutex::default() }
    }

    /// Replaces the plan; streams under way follow it from their next event.
    pub fn set_plan(&self, plan: FaultPlan) {
        *self.plan.write() = plan;
    }

    /// How often each fault has struck.
    pub fn injected(&self) -> BTreeMap<&'static str, u64> {
        self.injected.lock().clone()
    }

    fn count(&self, fault: &'static str) {
        *self.injected.lock().entry(fault).or_default() += 1;
    }

    /// What goes wrong with this request, if anything.
    pub fn on_request(&self, verb: Verb) -> Option<RequestFault> {
        let plan = self.plan.read();
        let rewrites = matches!(verb, Verb::Update | Verb::Patch | Verb::Delete);
        [
            (plan.too_many_requests, RequestFault::TooManyRequests, true, "429"),
            (plan.error_before, RequestFault::ErrorBefore, true, "5xx before the work"),
            (plan.conflict, RequestFault::Conflict, rewrites, "409"),
            (plan.error_after, RequestFault::ErrorAfter, verb.writes(), "5xx after the work"),
        ]
        .into_iter()
        .find(|(p, _, applies, _)| *applies && self.rng.random_bool(*p))
        .map(|(_, fault, _, name)| {
            self.count(name);
            fault
        })
    }

    /// How long the request is held back.
    pub fn request_delay(&self) -> Option<Duration> {
        self.draw_delay("slow request", |plan| plan.slow_request)
    }

    /// How long the answer is.
    pub fn response_delay(&self) -> Option<Duration> {
        self.draw_delay("late answer", |plan| plan.slow_response)
    }

    fn draw_delay(&self, name: &'static str, how_often: fn(&FaultPlan) -> f64) -> Option<Duration> {
        let plan = self.plan.read();
        self.rng.random_bool(how_often(&plan)).then(|| {
            self.count(name);
            self.random_up_to(plan.latency)
        })
    }

    pub fn on_watch(&self) -> Option<WatchFault> {
        let plan = self.plan.read();
        let (name, fault) = if self.rng.random_bool(plan.watch_dropped) {
            ("watch dropped", WatchFault::Dropped)
        } else if self.rng.random_bool(plan.watch_expired) {
            ("watch forgotten", WatchFault::Expired)
        } else if self.rng.random_bool(plan.watch_delayed) {
            ("watch late", WatchFault::Delayed(self.random_up_to(plan.latency)))
        } else {
            return None;
        };
        self.count(name);
        Some(fault)
    }

    fn random_up_to(&self, most: Duration) -> Duration {
        let most = u64::try_from(most.as_millis()).unwrap_or(u64::MAX).max(1);
        Duration::from_millis(self.rng.next_u64() % most + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_injects_the_same_faults() {
        let plan = FaultPlan { conflict: 0.3, error_after: 0.2, watch_dropped: 0.1, ..FaultPlan::default() };
        let draw = |seed| {
            let faults = FaultInjector::seeded(seed, plan.clone());
            (0..200).map(|_| (faults.on_request(Verb::Update), faults.on_watch())).collect::<Vec<_>>()
        };
        assert_eq!(draw(3), draw(3));
        assert_ne!(draw(3), draw(4));
    }

    #[test]
    fn reads_get_no_write_faults() {
        let plan = FaultPlan { conflict: 1.0, error_after: 1.0, ..FaultPlan::default() };
        assert_eq!(FaultInjector::seeded(1, plan).on_request(Verb::List), None);
    }
}
