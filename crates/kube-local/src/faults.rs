//! Fault injection from a seed: errors, delays and broken watches that a
//! controller must survive.
//!
//! Faults apply to clients of the program under test. The server's own
//! controllers, and the checks of a test, use a fault-exempt client. The same
//! plan and seed give the same sequence of faults.

use std::collections::BTreeMap;
use std::time::Duration;

use parking_lot::{Mutex, RwLock};

use super::request::Verb;
use super::seeded_rng::SeededRng;

/// The probability of each fault, from 0 to 1.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FaultPlan {
    /// A write fails with 409 without a concurrent write.
    pub conflict: f64,
    /// 429 with Retry-After, before the request is processed.
    pub too_many_requests: f64,
    /// 5xx before the request is processed.
    pub error_before: f64,
    /// 5xx although the write was committed.
    pub error_after: f64,
    /// A request is delayed by up to `latency`.
    pub slow_request: f64,
    /// A response is delayed by up to `latency`: the watch event may come first.
    pub slow_response: f64,
    pub latency: Duration,
    /// A watch ends without an error.
    pub watch_dropped: f64,
    /// A watch event is delayed by up to `latency`: the client's cache is stale.
    pub watch_delayed: f64,
    /// A watch ends with 410, and the client must list again.
    pub watch_expired: f64,
}

/// The fault of one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestFault {
    Conflict,
    TooManyRequests,
    ErrorBefore,
    ErrorAfter,
}

/// The fault of one watch event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WatchFault {
    Dropped,
    Delayed(Duration),
    Expired,
}

/// Draws faults from a seed, by a plan, and counts them.
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

    /// Replaces the plan; open watches follow it from their next event.
    pub fn set_plan(&self, plan: FaultPlan) {
        *self.plan.write() = plan;
    }

    /// The number of injected faults, by name.
    pub fn injected(&self) -> BTreeMap<&'static str, u64> {
        self.injected.lock().clone()
    }

    fn count(&self, fault: &'static str) {
        *self.injected.lock().entry(fault).or_default() += 1;
    }

    /// The fault to inject into a request, if any.
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

    /// Delay before the request is processed.
    pub fn request_delay(&self) -> Option<Duration> {
        self.draw_delay("slow request", |plan| plan.slow_request)
    }

    /// Delay before the response is sent.
    pub fn response_delay(&self) -> Option<Duration> {
        self.draw_delay("slow response", |plan| plan.slow_response)
    }

    fn draw_delay(&self, name: &'static str, probability: fn(&FaultPlan) -> f64) -> Option<Duration> {
        let plan = self.plan.read();
        self.rng.random_bool(probability(&plan)).then(|| {
            self.count(name);
            self.random_up_to(plan.latency)
        })
    }

    /// The fault to inject into a watch event, if any.
    pub fn on_watch(&self) -> Option<WatchFault> {
        let plan = self.plan.read();
        let (name, fault) = if self.rng.random_bool(plan.watch_dropped) {
            ("watch dropped", WatchFault::Dropped)
        } else if self.rng.random_bool(plan.watch_expired) {
            ("watch forgotten", WatchFault::Expired)
        } else if self.rng.random_bool(plan.watch_delayed) {
            ("watch delayed", WatchFault::Delayed(self.random_up_to(plan.latency)))
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
