//! The shop's customers: requests at a steady rate through the mesh, and what
//! became of them, arm by arm.

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

/// What takes longer is as bad for a customer as an error.
pub const SLOW_THRESHOLD: Duration = Duration::from_millis(250);

/// How far back a view of the traffic looks.
const RECENT_WINDOW: Duration = Duration::from_secs(4);

const TICK: Duration = Duration::from_millis(10);

/// A pod that hangs does not pile up requests without end.
const MAX_IN_FLIGHT: usize = 4_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arm {
    Primary,
    Canary,
}

/// Ends when dropped.
pub struct Load {
    pub traffic: Traffic,
    _sending: AbortOnDropHandle<()>,
}

/// What customers saw; clones are the same.
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
    /// Failed, or slower than [`SLOW`].
    pub bad: u64,
}

struct RequestRecord {
    at: Instant,
    arm: Arm,
    ok: bool,
    latency: Duration,
}

/// The last seconds of one arm.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct RecentStats {
    pub per_second: f64,
    /// A share of all, without errors; none without requests.
    pub success_ratio: Option<f64>,
    pub median: Option<Duration>,
    pub p99: Option<Duration>,
}

impl Load {
    /// Sends to a Service until dropped.
    pub fn start(mesh: Mesh, namespace: String, service: String) -> Self {
        let traffic = Traffic::default();
        let sending = tokio::spawn(send_all(mesh, namespace.into(), service.into(), traffic.clone()));
        Self { traffic, _sending: AbortOnDropHandle::new(sending) }
    }
}

async fn send_all(mesh: Mesh, namespace: Arc<str>, service: Arc<str>, traffic: Traffic) {
    let mut ticks = interval(TICK);
    // A machine that is too slow gets fewer requests, not bursts of them.
    ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
    let each_tick = RATE * TICK.as_millis() as u32 / 1_000;
    let mut in_flight = JoinSet::new();
    loop {
        ticks.tick().await;
        while in_flight.try_join_next().is_some() {}
        for _ in 0..each_tick {
            if in_flight.len() < MAX_IN_FLIGHT {
                in_flight.spawn(send(mesh.clone(), namespace.clone(), service.clone(), traffic.clone()));
            }
        }
    }
}

async fn send(mesh: Mesh, namespace: Arc<str>, service: Arc<str>, traffic: Traffic) {
    let mut request = Request::new(Body::empty());
    *request.uri_mut() = http::Uri::from_static("/");
    let began = Instant::now();
    let (arm, fine) = match mesh.send(&namespace, &service, request).await {
        Ok(answer) if answer.backend.ends_with("-canary") => {
            (Arm::Canary, !answer.response.status().is_server_error())
        }
        Ok(answer) => (Arm::Primary, !answer.response.status().is_server_error()),
        Err(_) => (Arm::Primary, false),
    };
    traffic.record(arm, fine, began.elapsed());
}

impl Traffic {
    /// Both arms, since the beginning.
    pub fn totals(&self) -> RequestTotals {
        self.0.lock().totals
    }

    /// The canary is another one from now on.
    pub fn reset_recent(&self) {
        self.0.lock().recent.clear();
    }

    pub fn recent(&self, of: Arm) -> RecentStats {
        let mut seen = self.0.lock();
        seen.drop_expired(Instant::now());
        let (mut times, mut fine) = (Vec::new(), 0_usize);
        for answered in seen.recent.iter().filter(|answered| answered.arm == of) {
            times.push(answered.latency);
            fine += usize::from(answered.ok);
        }
        drop(seen);
        times.sort_unstable();
        let quantile = |share: f64| times.get((times.len() as f64 * share) as usize).copied();
        RecentStats {
            per_second: times.len() as f64 / RECENT_WINDOW.as_secs_f64(),
            success_ratio: (!times.is_empty()).then(|| fine as f64 / times.len() as f64),
            median: quantile(0.5),
            p99: quantile(0.99),
        }
    }

    fn record(&self, arm: Arm, fine: bool, took: Duration) {
        let mut seen = self.0.lock();
        seen.totals.requests += 1;
        seen.totals.bad += u64::from(!fine || took > SLOW_THRESHOLD);
        let at = Instant::now();
        seen.recent.push_back(RequestRecord { at, arm, ok: fine, latency: took });
        seen.drop_expired(at);
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
        RequestTotals { requests: self.requests - before.requests, bad: self.bad - before.bad }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn slow_answers_are_bad_and_old_ones_forgotten() {
        let traffic = Traffic::default();
        traffic.record(Arm::Canary, false, Duration::from_millis(1));
        traffic.record(Arm::Canary, true, SLOW_THRESHOLD * 2);
        traffic.record(Arm::Primary, true, Duration::from_millis(1));
        assert_eq!(traffic.totals(), RequestTotals { requests: 3, bad: 2 });
        let canary = traffic.recent(Arm::Canary);
        assert_eq!((canary.success_ratio, canary.p99), (Some(0.5), Some(SLOW_THRESHOLD * 2)));
        tokio::time::advance(RECENT_WINDOW * 2).await;
        assert_eq!(traffic.recent(Arm::Canary), RecentStats::default());
        assert_eq!(traffic.totals().bad, 2);
    }
}
