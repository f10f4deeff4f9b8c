//! Autoscalers: the primary has its own, and edits of users reach it at once.

use serde_json::{Value, json};
use serin::api::canary::Phase;

use crate::world::World;

fn scaled_by(kind: &str, version: &str) -> Value {
    let scaler = json!({"apiVersion": version, "kind": kind, "name": "web"});
    json!({"autoscalerRef": scaler, "analysis": {"interval": "1s", "metrics": null}})
}

pub async fn an_autoscaler_is_copied_and_edits_follow(world: World) {
    let target = json!({"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"});
    let cpu = json!({"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 80}});
    world
        .apply(json!({
            "apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler", "metadata": {"name": "web"},
            "spec": {
                "scaleTargetRef": target, "minReplicas": 1, "maxReplicas": 4,
                "metrics": [{"type": "Resource", "resource": cpu}],
            },
        }))
        .await;
    let copy = async || world.get("HorizontalPodAutoscaler", "web-primary").await["spec"].take();
    let _serin = world.initialized(scaled_by("HorizontalPodAutoscaler", "autoscaling/v2")).await;
    let made = "the primary has one";
    world
        .eventually(made, async || world.find("HorizontalPodAutoscaler", "web-primary").await.is_some())
        .await;
    assert_eq!(copy().await["scaleTargetRef"]["name"], "web-primary");
    assert_eq!(copy().await["maxReplicas"], 4);

    world.patch("HorizontalPodAutoscaler", "web", json!({"spec": {"maxReplicas": 9}})).await;
    world.eventually("the edit follows", async || copy().await["maxReplicas"] == 9).await;
    assert_eq!(world.status().await.releases, 0, "it is no release");

    let least = |scaler: &Value| scaler["spec"]["minReplicas"].as_u64();
    let pinned = world.follow("HorizontalPodAutoscaler", "web-primary", least).await;
    world.push("web:v2").await;
    assert_eq!(world.released(1).await.phase, Phase::Succeeded);
    pinned.assert_sequence(&[1, 2, 1]).await;
}

pub async fn keda_is_paused_except_during_a_release(world: World) {
    let trigger = json!({"type": "prometheus", "metadata": {"query": "sum(rate(x{app=\"web\"}[1m]))"}});
    let spec = json!({"scaleTargetRef": {"name": "web"}, "maxReplicaCount": 5, "triggers": [trigger]});
    world
        .apply(json!({
            "apiVersion": "keda.sh/v1alpha1", "kind": "ScaledObject", "metadata": {"name": "web"}, "spec": spec,
        }))
        .await;
    let _serin = world.initialized(scaled_by("ScaledObject", "keda.sh/v1alpha1")).await;
    let paused = |scaler: &Value| {
        Some(!scaler["metadata"]["annotations"]["autoscaling.keda.sh/paused-replicas"].is_null())
    };
    let rest = world.follow("ScaledObject", "web", paused).await;
    world
        .eventually("the primary has one", async || world.find("ScaledObject", "web-primary").await.is_some())
        .await;
    let copy = world.get("ScaledObject", "web-primary").await;
    assert_eq!(copy["spec"]["scaleTargetRef"]["name"], "web-primary");
    assert_eq!(copy["spec"]["triggers"][0]["metadata"]["query"], "sum(rate(x{app=\"web-primary\"}[1m]))");
    assert_eq!(paused(&copy), Some(false));
    world.push("web:v2").await;
    assert_eq!(world.released(1).await.phase, Phase::Succeeded);
    rest.assert_sequence(&[true, false, true]).await;
}

fn budget(name: &str, selector: Value) -> Value {
    json!({
        "apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": name},
        "spec": {"minAvailable": 1, "selector": {"matchLabels": selector}},
    })
}

/// A pod with two budgets cannot be evicted, so drains of its node hang.
pub async fn no_pod_of_the_primary_has_two_budgets(world: World) {
    world.apply(budget("web", json!({"app": "web"}))).await;
    let _serin = world.initialized(json!({})).await;
    let copied = async || world.find("PodDisruptionBudget", "web-primary").await.is_some();
    world.eventually("the primary has a budget", copied).await;
    world.apply(budget("mine", json!({"app": "web-primary"}))).await;
    world.is_gone("PodDisruptionBudget", "web-primary").await;
    // Of the name that a copy would have.
    world.delete("PodDisruptionBudget", "mine").await;
    world.eventually("the primary has a budget again", copied).await;
    world.apply(budget("mine", json!({"app": "web-primary"}))).await;
    world.is_gone("PodDisruptionBudget", "web-primary").await;
    world.apply(budget("web-primary", json!({"app": "another"}))).await;
    world.delete("PodDisruptionBudget", "mine").await;
    let reported = "PodDisruptionBudget web-primary exists and is no copy by Serin";
    world.event_contains(reported).await;
    let theirs = world.get("PodDisruptionBudget", "web-primary").await;
    assert_eq!(theirs["spec"]["selector"]["matchLabels"], json!({"app": "another"}));
    assert_eq!(theirs["metadata"]["ownerReferences"], Value::Null);
}
