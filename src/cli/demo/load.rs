//! Load generator: requests at a steady rate through the mesh, with statistics
//! by arm.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use http::Request;
use parking_lot::Mutex;
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval};
use tokio_util::task::AbortOnDropHandle;

use kube_local::mesh::Mesh;

/// Requests a second.
pub const RATE: u32 = 500;

/// Slower responses count as bad.
pub const SLOW_THRESHOLD: Duration = Duration::from_millis(250);

/// Window of the statistics in the view.
const RECENT_WINDOW: Duration = Duration::from_secs(4);

const TICK: Duration = Duration::from_millis(10);

/// A tick that is late sends what it owes for this long. A machine that stops for longer gets
/// fewer requests, not bursts.
const MAX_CATCH_UP: Duration = Duration::from_millis(100);

/// Bounds memory when a pod hangs.
const MAX_IN_FLIGHT: usize = 4_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arm {
    Primary,
    Canary,
}

/// Stops when dropped.
pub struct Load {
    pub traffic: Traffic,
    _sending: AbortOnDropHandle<()>,
}

/// Request statistics; clones share them.
#[derive(Clone, Default)]
pub struct Traffic(Arc<Mutex<TrafficState>>);

#[derive(Default)]
struct TrafficState {
    totals: RequestTotals,
    recent: VecDeque<RequestRecord>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RequestTotals {
    pub requests: u64,
    pub failed: u64,
    /// Failed, or slower than [`SLOW_THRESHOLD`].
    pub bad: u64,
}

struct RequestRecord {
    at: Instant,
    arm: Arm,
    ok: bool,
    latency: Duration,
}

/// One arm in the last [`RECENT_WINDOW`].
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct RecentStats {
    pub per_second: f64,
    /// None without requests.
    pub success_ratio: Option<f64>,
    pub median: Option<Duration>,
    pub p99: Option<Duration>,
}

impl Load {
    /// Sends to a Service until dropped, `rate` requests a second.
    pub fn start(mesh: Mesh, namespace: String, service: String, rate: u32) -> Self {
        let traffic = Traffic::default();
        let sending = tokio::spawn(send_all(mesh, namespace.into(), service.into(), (rate, traffic.clone())));
        Self { traffic, _sending: AbortOnDropHandle::new(sending) }
    }
}

async fn send_all(mesh: Mesh, namespace: Arc<str>, service: Arc<str>, (rate, traffic): (u32, Traffic)) {
    let mut ticks = interval(TICK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
    let mut pace = Pace::new(rate, Instant::now());
    let mut in_flight = JoinSet::new();
    loop {
        ticks.tick().await;
        while in_flight.try_join_next().is_some() {}
        for _ in 0..pace.due(Instant::now()) {
            if in_flight.len() < MAX_IN_FLIGHT {
                in_flight.spawn(send(mesh.clone(), namespace.clone(), service.clone(), traffic.clone()));
            }
        }
    }
}

/// How many requests are due.
struct Pace {
    per_second: f64,
    last: Instant,
    /// Of the next request.
    part: f64,
}

impl Pace {
    fn new(rate: u32, now: Instant) -> Self {
        Self { per_second: rate.into(), last: now, part: 0.0 }
    }

    fn due(&mut self, now: Instant) -> u32 {
        let elapsed = now.saturating_duration_since(self.last).min(MAX_CATCH_UP);
        self.last = now;
        let due = self.part + self.per_second * elapsed.as_secs_f64();
        self.part = due.fract();
        due as u32
    }
}

async fn send(mesh: Mesh, namespace: Arc<str>, service: Arc<str>, traffic: Traffic) {
    let mut request = Request::new(Body::empty());
    *request.uri_mut() = http::Uri::from_static("/");
    let start = Instant::now();
    let (arm, ok) = match mesh.send(&namespace, &service, request).await {
        Ok(routed) if routed.backend.ends_with("-canary") => {
            (Arm::Canary, !routed.response.status().is_server_error())
        }
        Ok(routed) => (Arm::Primary, !routed.response.status().is_server_error()),
        Err(_) => (Arm::Primary, false),
    };
    traffic.record(arm, ok, start.elapsed());
}

impl Traffic {
    /// Both arms, since the start.
    pub fn totals(&self) -> RequestTotals {
        self.0.lock().totals
    }

    /// For the next release.
    pub fn reset_recent(&self) {
        self.0.lock().recent.clear();
    }

    pub fn recent(&self, arm: Arm) -> RecentStats {
        let mut state = self.0.lock();
        state.drop_expired(Instant::now());
        let (mut latencies, mut succeeded) = (Vec::new(), 0_usize);
        for request in state.recent.iter().filter(|request| request.arm == arm) {
            latencies.push(request.latency);
            succeeded += usize::from(request.ok);
        }
        drop(state);
        latencies.sort_unstable();
        let quantile = |q: f64| latencies.get((latencies.len() as f64 * q) as usize).copied();
        RecentStats {
            per_second: latencies.len() as f64 / RECENT_WINDOW.as_secs_f64(),
            success_ratio: (!latencies.is_empty()).then(|| succeeded as f64 / latencies.len() as f64),
            median: quantile(0.5),
            p99: quantile(0.99),
        }
    }

    fn record(&self, arm: Arm, ok: bool, latency: Duration) {
        let mut state = self.0.lock();
        state.totals.requests += 1;
        state.totals.failed += u64::from(!ok);
        state.totals.bad += u64::from(!ok || latency > SLOW_THRESHOLD);
        let at = Instant::now();
        state.recent.push_back(RequestRecord { at, arm, ok, latency });
        state.drop_expired(at);
    }
}

impl TrafficState {
    fn drop_expired(&mut self, now: Instant) {
        while self.recent.front().is_some_and(|oldest| now - oldest.at > RECENT_WINDOW) {
            self.recent.pop_front();
        }
    }
}

impl std::ops::Sub for RequestTotals {
    type Output = RequestTotals;

    fn sub(self, before: RequestTotals) -> RequestTotals {
        RequestTotals {
            requests: self.requests - before.requests,
            failed: self.failed - before.failed,
            bad: self.bad - before.bad,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn late_ticks_send_what_they_owe_and_a_stop_makes_no_burst() {
        let began = Instant::now();
        let mut pace = Pace::new(500, began);
        // Ticks of 7 to 37 ms, for ten seconds.
        let (mut now, mut sent) = (began, 0);
        for tick in 0..455_u64 {
            now += Duration::from_millis(7 + tick % 31);
            sent += pace.due(now);
        }
        let owed = (now - began).as_secs_f64() * 500.0;
        assert!((f64::from(sent) - owed).abs() <= 1.0, "{sent} of {owed}");
        assert!(pace.due(now + Duration::from_secs(5)) <= 51);
    }

    #[tokio::test(start_paused = true)]
    async fn slow_responses_are_bad_and_old_ones_expire() {
        let traffic = Traffic::default();
        traffic.record(Arm::Canary, false, Duration::from_millis(1));
        traffic.record(Arm::Canary, true, SLOW_THRESHOLD * 2);
        traffic.record(Arm::Primary, true, Duration::from_millis(1));
        assert_eq!(traffic.totals(), RequestTotals { requests: 3, failed: 1, bad: 2 });
        let canary = traffic.recent(Arm::Canary);
        assert_eq!((canary.success_ratio, canary.p99), (Some(0.5), Some(SLOW_THRESHOLD * 2)));
        tokio::time::advance(RECENT_WINDOW * 2).await;
        assert_eq!(traffic.recent(Arm::Canary), RecentStats::default());
        assert_eq!(traffic.totals().bad, 2);
    }
}
