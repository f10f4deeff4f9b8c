//! Thresholds and queries of users.

use std::sync::Arc;

use parking_lot::Mutex;
use serde_json::{Value, json};
use serin::api::Weight;
use serin::api::canary::Phase;

use crate::support::http_fixtures::GuardedProxy;
use crate::world::World;
use crate::{Stage, initialized};

/// Requests to one arm.
const REQUESTS: &str = r#"http_requests_total{kubernetes_namespace="{{ namespace }}",kubernetes_pod_name=~"{{ target }}-[0-9a-z]+-[0-9a-z]+""#;

async fn template(world: &World, spec: Value) {
    let (version, metadata) = ("serin.dev/v1alpha1", json!({"name": "answers"}));
    world
        .apply(json!({"apiVersion": version, "kind": "AnalysisTemplate", "metadata": metadata, "spec": spec}))
        .await;
}

pub async fn thresholds_judge_as_in_flagger(stage: Arc<Stage>) {
    let metrics = json!([
        {"name": "request-success-rate", "threshold": 95, "interval": "5s"},
        {"name": "request-duration", "threshold": 500, "interval": "5s"},
    ]);
    let (world, _serin) = stage.initialized(json!({"threshold": 2, "metrics": metrics})).await;
    let _traffic = world.traffic();
    world.push("web:v2").await;
    world.released(1).await;
    world.push("web:v3-errors-30").await;
    let status = world.released(2).await;
    assert_eq!(status.failed_checks, 2);
    let reason = &status.history[0].reason;
    assert!(reason.starts_with("2 checks failed, the last one request-success-rate: value "), "{reason}");
    assert!(reason.ends_with("below the minimum 95"), "{reason}");
    world
        .event_contains("CheckFailed: Check failed, 1 of 2 that roll back: request-success-rate: value ")
        .await;
    assert_eq!((world.image("web-primary").await.as_str(), world.split().await), ("web:v2", Some((0, 100))));
}

pub async fn a_custom_query_judges_a_release(stage: Arc<Stage>) {
    let world = stage.world().await;
    let rate = |labels: &str| format!("sum(rate({REQUESTS}{labels}}}[{{{{ interval }}}}]))");
    let query = format!("100 * {} / {}", rate(r#",code=~"{{ variables.good }}""#), rate(""));
    let provider = json!({"type": "prometheus"});
    template(&world, json!({"provider": provider, "query": query, "thresholdRange": {"min": 99.9}})).await;
    let metric = json!({
        "name": "good answers", "interval": "5s", "templateRef": {"name": "answers"},
        "templateVariables": {"good": "2.."}, "thresholdRange": {"min": 90},
    });
    let analysis = json!({"threshold": 1, "metrics": [metric]});
    let _serin = initialized(&world, &stage.prometheus, analysis).await;
    let _traffic = world.traffic();
    world.push("web:v2").await;
    let status = world.released(1).await;
    assert_eq!(status.metrics[0].reason, "value 100, not below 90");
    world.push("web:v3-errors-30").await;
    let status = world.released(2).await;
    let reason = &status.history[0].reason;
    assert!(reason.starts_with("a check failed (good answers: value "), "{reason}");
    assert_eq!(world.image("web-primary").await, "web:v2");
}

/// The token is replaced at Prometheus first, and in the Secret later.
pub async fn a_rotated_token_is_used(stage: Arc<Stage>) {
    let world = stage.world().await;
    let proxy =
        GuardedProxy { bearer: Mutex::new(Some("first")), ..GuardedProxy::to(stage.prometheus.url()) };
    let (proxy, address, _open) = proxy.open().await;
    let keep = async |token: &str| {
        let (data, metadata) = (json!({"token": token}), json!({"name": "prometheus"}));
        world
            .apply(json!({"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "stringData": data}))
            .await;
    };
    keep("first").await;
    let counts = json!({"bad": format!(r#"{REQUESTS},code=~"5.."}}"#), "total": format!("{REQUESTS}}}")});
    let provider = json!({"type": "prometheus", "address": address, "secretRef": {"name": "prometheus"}});
    template(&world, json!({"provider": provider, "counts": counts})).await;
    let metrics = json!([{"name": "answers", "templateRef": {"name": "answers"}}]);
    let steps = json!({"metrics": metrics, "stepWeights": [20, 40, 60]});
    let _serin = initialized(&world, &stage.prometheus, steps).await;
    let _traffic = world.traffic();
    world.push("web:v2").await;
    let first = Weight::from_hundredths(2000).unwrap();
    world.becomes("beyond the first step", |status| status.canary_weight > first).await;
    *proxy.bearer.lock() = Some("second");
    let held = world.becomes("held", |status| status.metrics[0].inconclusives > 1).await;
    assert_eq!((held.phase, held.failed_checks), (Phase::Progressing, 0));
    let message = held.message.expect("a message");
    assert!(message.contains("responded 403") && !message.contains("first"), "{message}");
    keep("second").await;
    world.released(1).await;
    assert_eq!(world.image("web-primary").await, "web:v2");
}
