//! A primary that is deleted, and one that its autoscaler shrank.

use serde_json::{Value, json};
use serin::api::Weight;
use serin::api::canary::Phase;
use serin::api::canary::status::CanaryStatus;

use crate::world::{World, workload};

async fn six_pods(world: &World) {
    let mut web = workload("Deployment", "web", "web:v1");
    web["spec"]["replicas"] = json!(6);
    world.apply(web).await;
}

async fn is_ready(world: &World, deployment: &str, pods: u64) {
    let ready = async || {
        let found = world.find("Deployment", deployment).await;
        found.is_some_and(|found| found["status"]["availableReplicas"] == pods)
    };
    world.eventually(&format!("{deployment} has {pods} pods"), ready).await;
}

pub async fn a_primary_deleted_at_rest_comes_back_with_its_size(world: World) {
    six_pods(&world).await;
    let _serin = world.initialized(json!({})).await;
    world.delete("Deployment", "web-primary").await;
    is_ready(&world, "web-primary", 6).await;
    world.eventually("web answers", async || world.answers().await).await;
    let traffic = world.traffic();
    world.push("web:v2").await;
    assert_eq!(world.released(1).await.phase, Phase::Succeeded);
    traffic.assert_all_served();
    assert_eq!(
        (world.image("web-primary").await.as_str(), world.replicas("web-primary").await),
        ("web:v2", 6)
    );
}

/// The target is at another revision by then: only the backup has the primary's.
pub async fn a_primary_deleted_in_a_release_comes_back_while_the_canary_serves(world: World) {
    world.apply(workload("Deployment", "web", "web:v1-delay-5s")).await;
    let analysis = json!({"stepWeights": [20, 50], "interval": "5s"});
    let _serin = world.initialized(json!({ "analysis": analysis })).await;
    world.push("web:v2").await;
    world.becomes("at the first weight", |status| status.canary_weight > Weight::ZERO).await;
    world.delete("Deployment", "web-primary").await;
    world.eventually("the canary has all traffic", async || world.split().await == Some((100, 0))).await;
    let traffic = world.traffic();
    is_ready(&world, "web-primary", 2).await;
    assert_eq!(world.image("web-primary").await, "web:v1-delay-5s");
    let status = world.released(1).await;
    assert_eq!(status.phase, Phase::Succeeded, "{status:#?}");
    assert_eq!(world.image("web-primary").await, "web:v2");
    traffic.assert_all_served();
    world.event_contains("The primary was deleted and is being created again").await;
}

/// All traffic is on the canary meanwhile, so an autoscaler sees an idle primary.
pub async fn a_primary_that_its_autoscaler_shrank_grows_before_traffic_returns(world: World) {
    six_pods(&world).await;
    let target = json!({"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"});
    let spec = json!({"scaleTargetRef": target, "minReplicas": 1, "maxReplicas": 8});
    let autoscaler = json!({
        "apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler", "metadata": {"name": "web"},
        "spec": spec,
    });
    world.apply(autoscaler).await;
    let scaler = json!({"apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler", "name": "web"});
    let analysis = json!({"interval": "1s", "stepWeights": null, "iterations": 2, "metrics": null});
    let _serin = world.initialized(json!({"autoscalerRef": scaler, "analysis": analysis})).await;
    let traffic = world.traffic();
    world.push("web:v2-delay-10s").await;
    let rolls = async || world.image("web-primary").await == "web:v2-delay-10s";
    world.eventually("the primary rolls", rolls).await;
    let sizes = world.follow("Deployment", "web-primary", |it: &Value| it["spec"]["replicas"].as_u64()).await;
    world.patch("Deployment", "web-primary", json!({"spec": {"replicas": 1}})).await;
    let pinned = async || {
        let copy = world.get("HorizontalPodAutoscaler", "web-primary").await;
        copy["spec"]["minReplicas"] == 6 && world.replicas("web-primary").await == 6
    };
    world.eventually("it grows", pinned).await;
    assert_eq!(world.split().await, Some((100, 0)));
    let succeeded = |status: &CanaryStatus| status.phase == Phase::Succeeded;
    world.becomes("promoted", succeeded).await;
    is_ready(&world, "web-primary", 6).await;
    sizes.assert_sequence(&[6, 1, 6]).await;
    traffic.assert_all_served();
}
