//! The program inside a container: a small HTTP server with metrics.
//!
//! `/` and unknown paths return the app's name and version, with the latency and
//! error rate of its [`Behaviour`]. `/status/503` returns that status,
//! `/delay/2s` waits. `/healthz` and `/metrics` do not count as traffic.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use http::{Method, Request, StatusCode, header};
use parking_lot::Mutex;
use serde_json::json;
use tokio::time::{Instant, sleep};

use super::behaviour::{self, Behaviour};
use super::log::Log;
use crate::seeded_rng::SeededRng;

/// Upper bounds in seconds: the defaults of Prometheus clients.
const BUCKETS: [f64; 11] = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];

/// The HTTP server of one container.
pub struct App {
    behaviour: Behaviour,
    pod: String,
    namespace: String,
    rng: SeededRng,
    traffic: Mutex<BTreeMap<RequestLabels, RequestStats>>,
    log: Option<Log>,
}

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
struct RequestLabels {
    method: String,
    path: &'static str,
    status: u16,
}

#[derive(Default)]
struct RequestStats {
    count: u64,
    seconds: f64,
    buckets: [u64; BUCKETS.len()],
}

impl App {
    /// The same seed gives the same errors and latencies.
    pub fn new(behaviour: Behaviour, namespace: &str, pod: &str, seed: u64) -> App {
        App {
            behaviour,
            pod: pod.to_owned(),
            namespace: namespace.to_owned(),
            rng: SeededRng::seeded(seed),
            traffic: Mutex::default(),
            log: None,
        }
    }

    /// Logs each answer.
    pub fn with_log(self, log: Log) -> App {
        App { log: Some(log), ..self }
    }

    pub fn router(self) -> Router {
        Router::new().fallback(respond).with_state(Arc::new(self))
    }

    /// A standard normal variate (Box-Muller).
    fn draw_normal(&self) -> f64 {
        let uniform = || ((self.rng.next_u64() >> 11) as f64 + 0.5) / (1u64 << 53) as f64;
        (-2.0 * uniform().ln()).sqrt() * (std::f64::consts::TAU * uniform()).cos()
    }

    async fn serve(&self) -> Response {
        let fails = self.rng.random_bool(self.behaviour.error_rate);
        let latency = self.behaviour.latency.sample(self.draw_normal());
        if !latency.is_zero() {
            sleep(latency).await;
        }
        if fails {
            return (StatusCode::INTERNAL_SERVER_ERROR, "this version fails now and then\n").into_response();
        }
        let body = json!({
            "name": self.behaviour.name,
            "version": self.behaviour.version,
            "namespace": self.namespace,
            "pod": self.pod,
        });
        ([(header::CONTENT_TYPE, "application/json")], format!("{body}\n")).into_response()
    }

    fn health(&self) -> Response {
        if self.behaviour.never_ready {
            (StatusCode::SERVICE_UNAVAILABLE, "never ready\n").into_response()
        } else {
            "ok\n".into_response()
        }
    }

    fn count(&self, method: &Method, path: &'static str, status: StatusCode, took: Duration) {
        let series = RequestLabels { method: method.to_string(), path, status: status.as_u16() };
        let mut traffic = self.traffic.lock();
        let tally = traffic.entry(series).or_default();
        tally.count += 1;
        tally.seconds += took.as_secs_f64();
        for (bucket, bound) in tally.buckets.iter_mut().zip(BUCKETS) {
            *bucket += u64::from(took.as_secs_f64() <= bound);
        }
    }

    /// The metrics in Prometheus' text format.
    fn metrics(&self) -> String {
        let mut text = String::new();
        let traffic = self.traffic.lock();
        text.push_str("# HELP http_requests_total Requests answered.\n# TYPE http_requests_total counter\n");
        for (RequestLabels { method, path, status }, tally) in &*traffic {
            let labels = format!("code=\"{status}\",status=\"{status}\",method=\"{method}\",path=\"{path}\"");
            let _ = writeln!(text, "http_requests_total{{{labels}}} {}", tally.count);
        }
        text.push_str("# HELP http_request_duration_seconds How long requests took.\n");
        text.push_str("# TYPE http_request_duration_seconds histogram\n");
        for (RequestLabels { method, path, status }, tally) in &*traffic {
            let labels = format!("method=\"{method}\",path=\"{path}\",status=\"{status}\"");
            for (count, bound) in tally.buckets.iter().zip(BUCKETS) {
                let _ =
                    writeln!(text, "http_request_duration_seconds_bucket{{{labels},le=\"{bound}\"}} {count}");
            }
            let _ = writeln!(
                text,
                "http_request_duration_seconds_bucket{{{labels},le=\"+Inf\"}} {}",
                tally.count
            );
            let _ = writeln!(text, "http_request_duration_seconds_sum{{{labels}}} {}", tally.seconds);
            let _ = writeln!(text, "http_request_duration_seconds_count{{{labels}}} {}", tally.count);
        }
        text.push_str("# HELP app_info What runs here.\n# TYPE app_info gauge\n");
        let (name, version) = (&self.behaviour.name, &self.behaviour.version);
        let _ = writeln!(text, "app_info{{name=\"{name}\",version=\"{version}\"}} 1");
        text
    }
}

async fn respond(State(app): State<Arc<App>>, request: Request<Body>) -> Response {
    let began = Instant::now();
    let path = request.uri().path();
    let (route, response) = match path.trim_start_matches('/').split_once('/') {
        _ if path == "/metrics" => {
            return ([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], app.metrics()).into_response();
        }
        _ if path == "/healthz" || path == "/readyz" => return app.health(),
        Some(("status", code)) => {
            let code = code.parse().ok().filter(|code| (200..600).contains(code));
            let code =
                code.and_then(|code| StatusCode::from_u16(code).ok()).unwrap_or(StatusCode::BAD_REQUEST);
            ("/status", code.into_response())
        }
        Some(("delay", length)) => match behaviour::duration(length) {
            Some(length) => {
                sleep(length).await;
                ("/delay", StatusCode::OK.into_response())
            }
            None => {
                ("/delay", (StatusCode::BAD_REQUEST, "give a duration such as 200ms or 3s\n").into_response())
            }
        },
        _ => ("/", app.serve().await),
    };
    let (status, took) = (response.status(), began.elapsed());
    app.count(request.method(), route, status, took);
    if let Some(log) = &app.log {
        log.line(format!("{} {path} {} {} ms", request.method(), status.as_u16(), took.as_millis()));
    }
    response
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt;
    use tower::ServiceExt;

    use super::*;

    fn router(image: &str, seed: u64) -> Router {
        App::new(Behaviour::of(image, &BTreeMap::new()).unwrap(), "shop", "web-1", seed).router()
    }

    async fn get(router: &Router, path: &str) -> (u16, String) {
        let request = Request::get(path).body(Body::empty()).unwrap();
        let response = router.clone().oneshot(request).await.unwrap();
        let status = response.status().as_u16();
        let body = response.into_body().collect().await.unwrap().to_bytes();
        (status, String::from_utf8(body.to_vec()).unwrap())
    }

    #[tokio::test]
    async fn the_app_returns_its_name_and_version() {
        let (status, body) = get(&router("team/podinfo:v2", 1), "/").await;
        let body: serde_json::Value = serde_json::from_str(&body).unwrap();
        assert_eq!(status, 200);
        assert_eq!(body, json!({"name": "podinfo", "version": "v2", "namespace": "shop", "pod": "web-1"}));
    }

    #[tokio::test]
    async fn errors_have_the_configured_rate_and_replay_from_the_seed() {
        let outcomes = async |seed| {
            let router = router("app:v3-errors-20", seed);
            let mut outcomes = Vec::new();
            for _ in 0..1000 {
                outcomes.push(get(&router, "/").await.0);
            }
            outcomes
        };
        let first = outcomes(7).await;
        let errors = first.iter().filter(|status| **status == 500).count();
        assert!((150..250).contains(&errors), "{errors}");
        assert_eq!(first, outcomes(7).await);
        assert_ne!(first, outcomes(8).await);
    }

    #[tokio::test(start_paused = true)]
    async fn requests_take_the_configured_latency() {
        let router = router("app:v4-slow-1s", 1);
        let mut times = Vec::new();
        for _ in 0..1000 {
            let began = Instant::now();
            get(&router, "/").await;
            times.push(began.elapsed());
        }
        times.sort();
        assert!((0.2..0.3).contains(&times[500].as_secs_f64()), "{:?}", times[500]);
        assert!((0.7..1.5).contains(&times[990].as_secs_f64()), "{:?}", times[990]);
    }

    #[tokio::test(start_paused = true)]
    async fn status_and_delay_paths_respond_as_requested() {
        let router = router("app:v1", 1);
        assert_eq!(get(&router, "/status/503").await.0, 503);
        assert_eq!(get(&router, "/status/9").await.0, 400);
        let began = Instant::now();
        assert_eq!(get(&router, "/delay/3s").await.0, 200);
        assert!(began.elapsed() >= Duration::from_secs(3));
        assert_eq!(get(&router, "/delay/soon").await.0, 400);
    }

    #[tokio::test(start_paused = true)]
    async fn metrics_count_traffic_and_not_probes() {
        let router = router("app:v1", 1);
        get(&router, "/").await;
        get(&router, "/any/path").await;
        get(&router, "/status/500").await;
        get(&router, "/delay/300ms").await;
        get(&router, "/healthz").await;
        let (_, text) = get(&router, "/metrics").await;
        let has = |line: &str| assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
        has(r#"http_requests_total{code="200",status="200",method="GET",path="/"} 2"#);
        has(r#"http_request_duration_seconds_count{method="GET",path="/status",status="500"} 1"#);
        has(r#"http_request_duration_seconds_bucket{method="GET",path="/delay",status="200",le="0.25"} 0"#);
        has(r#"http_request_duration_seconds_bucket{method="GET",path="/delay",status="200",le="0.5"} 1"#);
        has(r#"http_request_duration_seconds_bucket{method="GET",path="/delay",status="200",le="+Inf"} 1"#);
        has(r#"app_info{name="app",version="v1"} 1"#);
        assert!(!text.contains("healthz"));
    }

    #[tokio::test]
    async fn a_version_that_is_never_ready_serves_and_fails_its_health_check() {
        let router = router("app:v6-never-ready", 1);
        assert_eq!(get(&router, "/healthz").await.0, 503);
        assert_eq!(get(&router, "/").await.0, 200);
    }
}
