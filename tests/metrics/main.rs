//! Measurements equal the requests served: with a real Prometheus and real pods.

#[path = "../support/mod.rs"]
mod support;

mod connections;
mod increase;
mod limits;
mod pods;
mod queries;
mod scraping;
mod web;

use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use serde_json::{Value, json};
use serin::analysis::Measurement;
use serin::analysis::measurement::Arms;
use serin::api::canary::{Metric, Provider};
use serin::api::judge::JudgeType;
use serin::api::{AnalysisTemplateSpec, Canary};
use serin::metrics::scrape::HttpFetch;
use serin::metrics::{
    Credentials, Endpoint, MeasureContext, MetricQuery, QueryContext, QueryError, Sources, Template, Window,
};

/// Two cores shared with a build are slow.
const TIMEOUT: Duration = Duration::from_secs(90);

/// A Canary of the Deployment `web`.
fn canary(namespace: &str) -> Canary {
    let manifest = json!({
        "apiVersion": "serin.dev/v1alpha1",
        "kind": "Canary",
        "metadata": {"name": "web", "namespace": namespace},
        "spec": {
            "targetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"},
            "service": {"port": 80},
            "analysis": {"interval": "10s", "threshold": 1, "stepWeight": 10},
        },
    });
    serde_json::from_value(manifest).expect("a Canary")
}

fn metric(name: &str) -> Metric {
    Metric { name: name.to_owned(), ..Metric::default() }
}

fn template(spec: Value) -> AnalysisTemplateSpec {
    serde_json::from_value(spec).expect("the spec of an AnalysisTemplate")
}

/// A built-in metric of a Canary without a mesh.
fn built_in(namespace: &str, name: &str, judge: JudgeType, server: Option<&str>) -> MetricQuery {
    let canary = canary(namespace);
    let subject =
        QueryContext { versions: None, canary: &canary, mesh: Provider::Kubernetes, metrics_server: server };
    MetricQuery::new(&subject, &metric(name), None, judge).expect("a built-in metric can be asked for")
}

fn from_template(
    spec: &AnalysisTemplateSpec,
    judge: JudgeType,
    server: Option<&str>,
) -> Result<MetricQuery, QueryError> {
    let canary = canary("shop");
    let subject =
        QueryContext { versions: None, canary: &canary, mesh: Provider::Kubernetes, metrics_server: server };
    let template = Template { name: "AnalysisTemplate shop/errors", namespace: "shop", spec };
    MetricQuery::new(&subject, &metric("errors"), Some(&template), judge)
}

fn sources() -> Sources {
    Sources::new(Arc::new(HttpFetch::new().expect("an HTTP client")))
}

/// The context of a source that needs no pods, from `since` until now.
async fn measure_since(sources: &Sources, ask: &MetricQuery, since: Timestamp) -> Measurement {
    measure(sources, ask, None, since, &Arms::default()).await
}

/// Without its pods.
async fn measure(
    sources: &Sources,
    ask: &MetricQuery,
    credentials: Option<&Credentials>,
    since: Timestamp,
    pods: &Arms<Vec<Endpoint>>,
) -> Measurement {
    measure_pods(sources, ask, credentials, since, pods).await.summed()
}

/// By pod where the source can tell.
async fn measure_pods(
    sources: &Sources,
    ask: &MetricQuery,
    credentials: Option<&Credentials>,
    since: Timestamp,
    pods: &Arms<Vec<Endpoint>>,
) -> Measurement {
    let window = Window { since, until: Timestamp::now() };
    sources.measure(ask, credentials, &MeasureContext { window, pods }).await
}

#[track_caller]
fn unavailable(measured: Measurement) -> String {
    match measured {
        Measurement::Unavailable { why } => why,
        other => panic!("{other:?} is available"),
    }
}

/// Polls Prometheus until the result of a query is this number.
async fn await_value(server: &str, query: &str, expected: f64) {
    let client = reqwest::Client::new();
    let began = Instant::now();
    let mut last = Value::Null;
    while began.elapsed() < TIMEOUT {
        let request = client.get(format!("{server}/api/v1/query")).query(&[("query", query)]);
        if let Ok(answer) = request.send().await {
            last = answer.json().await.unwrap_or_default();
            let value = last["data"]["result"][0]["value"][1].as_str().and_then(|value| value.parse().ok());
            if value == Some(expected) {
                return;
            }
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    panic!("{query} is not {expected} after {TIMEOUT:?} but {last}");
}
