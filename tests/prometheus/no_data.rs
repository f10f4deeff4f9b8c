//! Without data a release holds.

use std::sync::Arc;

use serde_json::json;
use serin::api::CanaryStatus;
use serin::api::canary::Phase;
use serin::api::canary::status::Verdict;
use serin::api::condition::{READY, RECONCILING};

use crate::support::prometheus::Prometheus;
use crate::world::World;
use crate::{Stage, initialized};

pub async fn a_killed_prometheus_holds_the_release(stage: Arc<Stage>) {
    let world = stage.world().await;
    let mut prometheus = Prometheus::of_pods_in(&world.namespace, &stage.cluster.kubeconfig()).await;
    let _serin = initialized(&world, &prometheus, json!({"stepWeights": [20, 40, 60]})).await;
    let _traffic = world.traffic();
    world.push("web:v2").await;
    let judged = |status: &CanaryStatus| status.metrics.iter().any(|metric| metric.verdict == Verdict::Pass);
    world.becomes("judged", judged).await;
    prometheus.stop();
    let url = prometheus.url();
    assert_held(&world, &[&format!("not measured: Prometheus at {url}/ cannot be reached"), "refused"]).await;
    prometheus.restart().await;
    world.released(1).await;
    assert_eq!((world.image("web-primary").await.as_str(), world.split().await), ("web:v2", Some((0, 100))));
}

pub async fn missing_traffic_holds_the_release(stage: Arc<Stage>) {
    let metrics = json!([
        {"name": "request-success-rate"},
        {"name": "request-duration", "threshold": 500, "interval": "5s"},
    ]);
    let (world, _serin) = stage.initialized(json!({"threshold": 1, "metrics": metrics})).await;
    world.push("web:v2").await;
    let status = assert_held(&world, &["request-success-rate: no data"]).await;
    assert!(
        status.metrics.iter().all(|metric| metric.reason.starts_with("no data")),
        "{:#?}",
        status.metrics
    );
    let _traffic = world.traffic();
    world.released(1).await;
    assert_eq!(world.image("web-primary").await, "web:v2");
}

/// Waits until a release has held for several checks. It must not advance, and
/// status, Events and conditions must have the reason.
async fn assert_held(world: &World, why: &[&str]) -> CanaryStatus {
    let doubted = |status: &CanaryStatus, times: u32| {
        !status.metrics.is_empty() && status.metrics.iter().all(|metric| metric.inconclusives >= times)
    };
    let first = world.becomes("held", |status| doubted(status, 1)).await;
    let split = world.split().await;
    let status = world.becomes("held for long", |status| doubted(status, 4)).await;
    assert_eq!((status.phase, status.failed_checks, status.history.len()), (Phase::Progressing, 0, 0));
    assert_eq!((status.canary_weight, world.split().await), (first.canary_weight, split));
    assert!(
        status.metrics.iter().all(|metric| metric.verdict == Verdict::Inconclusive && metric.failures == 0)
    );
    let explains = |text: &str| text.starts_with("Holding") && why.iter().all(|why| text.contains(why));
    let message = status.message.clone().unwrap_or_default();
    assert!(explains(&message), "{message}");
    for type_ in [READY, RECONCILING] {
        let condition = status.conditions.iter().find(|condition| condition.type_ == type_);
        let condition = condition.unwrap_or_else(|| panic!("no condition {type_}"));
        assert!(condition.reason == "Inconclusive" && condition.message == message, "{condition:?}");
    }
    let events = world.event_messages().await;
    let inconclusive =
        events.iter().filter_map(|event| event.strip_prefix("Inconclusive: ")).filter(|text| explains(text));
    assert_eq!(inconclusive.count(), 1, "one Event: {events:#?}");
    status
}
