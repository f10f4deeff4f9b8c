//! Queries to CloudWatch and their results: against moto, and against a server
//! that computes the statistics that moto lacks.

#![cfg(feature = "aws")]

#[path = "../support/mod.rs"]
mod support;
#[path = "../world/mod.rs"]
mod world;

mod batches;
mod built_in;
mod cbor;
mod errors;
mod math;
mod moto;
mod queries;
mod refusals;
mod releases;
mod roles;
mod server;
mod templates;

use std::sync::Arc;

use jiff::Timestamp;
use serde_json::{Value, json};
use serin::analysis::Measurement;
use serin::analysis::measurement::{Arms, Counts};
use serin::api::canary::{Metric, Provider};
use serin::api::judge::JudgeType;
use serin::api::{AnalysisTemplateSpec, Canary};
use serin::metrics::scrape::HttpFetch;
use serin::metrics::{
    Credentials, MeasureContext, MetricQuery, QueryContext, QueryError, Sources, Template, Window,
};

use server::{KEY, Server};

/// A whole minute, long ago.
const NOON: i64 = 1_700_000_040;

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(NOON + seconds).expect("a time")
}

/// From `since` until `until` seconds after [`NOON`].
fn window(since: i64, until: i64) -> Window {
    Window { since: at(since), until: at(until) }
}

fn sources() -> Sources {
    Sources::new(Arc::new(HttpFetch::new().expect("an HTTP client")))
}

fn keys() -> Credentials {
    Credentials::from_iter([("aws_access_key_id", KEY), ("aws_secret_access_key", "s3cret")])
}

/// A metric called `metric` of the Canary of `app`, by a template with this
/// spec beside the provider.
fn query_of(app: &str, metric: &str, spec: Value, judge: JudgeType) -> Result<MetricQuery, QueryError> {
    let metric = Metric { name: metric.to_owned(), ..Metric::default() };
    query_for_metric(app, &metric, spec, judge)
}

/// The same for a metric with further fields.
fn query_for_metric(
    app: &str,
    metric: &Metric,
    spec: Value,
    judge: JudgeType,
) -> Result<MetricQuery, QueryError> {
    let mut whole = json!({
        "provider": {"type": "cloudwatch", "region": "eu-west-1", "secretRef": {"name": "keys"}},
    });
    json_patch::merge(&mut whole, &spec);
    let spec: AnalysisTemplateSpec = serde_json::from_value(whole).expect("the spec of an AnalysisTemplate");
    let canary: Canary = serde_json::from_value(json!({
        "apiVersion": "serin.dev/v1alpha1", "kind": "Canary",
        "metadata": {"name": app, "namespace": "shop"},
        "spec": {
            "targetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": app},
            "service": {"port": 80},
            "analysis": {"interval": "1m", "threshold": 1, "stepWeight": 10},
        },
    }))
    .expect("a Canary");
    let subject =
        QueryContext { canary: &canary, mesh: Provider::Kubernetes, metrics_server: None, versions: None };
    let template = Template { name: "watched", namespace: "shop", spec: &spec };
    MetricQuery::new(&subject, metric, Some(&template), judge)
}

/// The same, measured at a server.
fn query_on_server(server: &str, spec: Value, judge: JudgeType) -> MetricQuery {
    let mut spec = spec;
    json_patch::merge(&mut spec, &json!({"provider": {"address": server}}));
    query_of("web", "errors", spec, judge).unwrap_or_else(|refusal| panic!("{refusal}"))
}

async fn measure(sources: &Sources, ask: &MetricQuery, window: Window) -> Measurement {
    sources.measure(ask, Some(&keys()), &MeasureContext { window, pods: &Arms::default() }).await
}

/// Errors of requests, of both arms, as counts.
fn counted() -> Value {
    json!({
        "counts": {"bad": "errors", "total": "requests"},
        "cloudwatch": {
            "namespace": "shop", "canary": {"Group": "canary"}, "primary": {"Group": "primary"},
            "metrics": {"errors": {"name": "Errors"}, "requests": {"name": "Requests"}},
        },
    })
}

/// Bad and all requests of the canary, then of the primary.
fn counts(canary: (u64, u64), primary: (u64, u64)) -> Measurement {
    let arm = |(bad, total)| Counts::of_bad(bad, total);
    Measurement::Counts(Arms { canary: arm(canary), primary: arm(primary) })
}

#[track_caller]
fn unavailable(measured: Measurement) -> String {
    match measured {
        Measurement::Unavailable { why } => why,
        other => panic!("{other:?} is available"),
    }
}
