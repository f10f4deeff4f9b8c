//! Probes a container periodically.

use std::time::Duration;

use axum::Router;
use axum::body::Body;
use http::Request;
use k8s_openapi::api::core::v1::Probe;
use tokio::time::{sleep, timeout};
use tower::ServiceExt;

/// A readiness, liveness or startup probe.
pub struct Prober {
    /// The HTTP path; `None` for probes that pass while the app listens (TCP, exec, gRPC).
    path: Option<String>,
    initial_delay: Duration,
    period: Duration,
    timeout: Duration,
    successes: u32,
    failures: u32,
}

impl Prober {
    pub fn new(probe: &Probe) -> Prober {
        let seconds = |value: Option<i32>, default: u64| {
            Duration::from_secs(value.and_then(|value| u64::try_from(value).ok()).unwrap_or(default))
        };
        let times = |value: Option<i32>, default| {
            value.and_then(|value| u32::try_from(value).ok()).unwrap_or(default).max(1)
        };
        Prober {
            path: probe
                .http_get
                .as_ref()
                .map(|get| get.path.clone().filter(|path| !path.is_empty()).unwrap_or("/".into())),
            initial_delay: seconds(probe.initial_delay_seconds, 0),
            period: seconds(probe.period_seconds, 10).max(Duration::from_secs(1)),
            timeout: seconds(probe.timeout_seconds, 1).max(Duration::from_secs(1)),
            successes: times(probe.success_threshold, 1),
            failures: times(probe.failure_threshold, 3),
        }
    }

    pub async fn initial_delay(&self) {
        sleep(self.initial_delay).await;
    }

    /// Returns after as many consecutive results equal to `expected` as the
    /// probe's threshold. `app` is `None` while nothing listens.
    pub async fn wait_for(&self, expected: bool, app: impl Fn() -> Option<Router>) {
        let needed = if expected { self.successes } else { self.failures };
        let mut in_a_row = 0;
        loop {
            in_a_row = if self.probe_once(app()).await == expected { in_a_row + 1 } else { 0 };
            if in_a_row >= needed {
                return;
            }
            sleep(self.period).await;
        }
    }

    /// Waits for one period.
    pub async fn wait_period(&self) {
        sleep(self.period).await;
    }

    async fn probe_once(&self, app: Option<Router>) -> bool {
        let (Some(app), Some(path)) = (app.clone(), &self.path) else { return app.is_some() };
        let Ok(request) = Request::get(path).header("user-agent", "kube-probe").body(Body::empty()) else {
            return false;
        };
        match timeout(self.timeout, app.oneshot(request)).await {
            Ok(Ok(response)) => (200..400).contains(&response.status().as_u16()),
            Ok(Err(never)) => match never {},
            Err(_) => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    use http::StatusCode;
    use serde_json::json;
    use tokio::time::Instant;

    use super::*;

    fn prober() -> Prober {
        let probe =
            json!({"httpGet": {"path": "/healthz", "port": 80}, "periodSeconds": 5, "failureThreshold": 3});
        Prober::new(&serde_json::from_value(probe).unwrap())
    }

    fn app(healthy: Arc<AtomicBool>) -> Option<Router> {
        Some(Router::new().fallback(move || async move {
            if healthy.load(Ordering::Relaxed) { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE }
        }))
    }

    #[tokio::test(start_paused = true)]
    async fn one_success_counts_at_once_and_a_failure_only_the_third_time() {
        let healthy = Arc::new(AtomicBool::new(true));
        let began = Instant::now();
        prober().wait_for(true, || app(healthy.clone())).await;
        assert_eq!(began.elapsed(), Duration::ZERO);
        healthy.store(false, Ordering::Relaxed);
        prober().wait_for(false, || app(healthy.clone())).await;
        assert_eq!(began.elapsed().as_secs(), 10);
    }

    #[tokio::test(start_paused = true)]
    async fn a_container_that_does_not_listen_yet_is_probed_again() {
        let began = Instant::now();
        let up_after =
            |seconds| (began.elapsed().as_secs() >= seconds).then(|| app(Arc::new(true.into()))).flatten();
        prober().wait_for(true, || up_after(7)).await;
        assert_eq!(began.elapsed().as_secs(), 10);
    }
}
