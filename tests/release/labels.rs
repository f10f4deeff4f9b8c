//! Targets that are recreated with other selector labels, as a chart does that
//! renames them: a selector is immutable, and so is the primary's.

use serde_json::{Value, json};
use serin::api::Weight;
use serin::api::canary::Phase;
use serin::api::canary::status::{CanaryStatus, Outcome};
use serin::api::condition::ConditionStatus;
use serin::engine::command::Verb;

use crate::world::{World, holds, workload};

/// The Deployment `web` with these labels.
fn labelled(labels: &Value, image: &str) -> Value {
    let mut web = workload("Deployment", "web", image);
    web["spec"]["selector"]["matchLabels"] = labels.clone();
    web["spec"]["template"]["metadata"]["labels"] = labels.clone();
    web
}

/// Deletes the Deployment `web` and applies another one.
async fn recreate(world: &World, labels: &Value, image: &str) {
    world.delete("Deployment", "web").await;
    world.is_gone("Deployment", "web").await;
    world.apply(labelled(labels, image)).await;
}

fn warm() -> Value {
    json!({"rollback": {"keepWarmSeconds": 600}})
}

/// A release of a target with other labels, one that fails, one more that succeeds,
/// and its rollback: everybody is served.
async fn recreated_with(world: World, labels: Value) {
    let mut spec = warm();
    spec["progressDeadlineSeconds"] = json!(10);
    let _serin = world.initialized(spec).await;
    let traffic = world.traffic();
    recreate(&world, &labels, "web:v2").await;
    let status = world.released(1).await;
    assert_eq!(status.phase, Phase::Succeeded, "{status:#?}");
    assert_eq!(world.image("web-primary").await, "web:v2");
    world.push("web:v3-crash").await;
    assert_eq!(world.released(2).await.phase, Phase::Failed);
    world.push("web:v4").await;
    assert_eq!(world.released(3).await.phase, Phase::Succeeded);
    world.command(Verb::Rollback).await;
    assert_eq!(world.released(4).await.phase, Phase::Failed);
    assert_eq!(world.image("web-primary").await, "web:v2");
    traffic.assert_all_served();
    assert!(traffic.served_by("v2") > 0 && traffic.served_by("v4") > 0);
}

pub async fn a_target_recreated_with_another_label_value_is_no_outage(world: World) {
    recreated_with(world, json!({"app": "shop-web"})).await;
}

pub async fn a_target_recreated_with_one_more_label_is_no_outage(world: World) {
    recreated_with(world, json!({"app": "web", "tier": "front"})).await;
}

pub async fn a_target_recreated_with_a_renamed_label_is_no_outage(world: World) {
    recreated_with(world, json!({"name": "web"})).await;
}

pub async fn a_failing_target_recreated_with_other_labels_is_no_outage(world: World) {
    let _serin = world.initialized(json!({"progressDeadlineSeconds": 10})).await;
    let traffic = world.traffic();
    recreate(&world, &json!({"app": "shop-web"}), "web:v2-crash").await;
    let status = world.released(1).await;
    assert_eq!((status.phase, status.history[0].outcome), (Phase::Failed, Outcome::RolledBack));
    world.sleep_long().await;
    traffic.assert_all_served();
    assert_eq!(traffic.versions().into_keys().collect::<Vec<_>>(), ["v1"]);
}

pub async fn a_target_recreated_with_other_labels_during_its_release_is_no_outage(world: World) {
    let _serin = world.initialized(json!({"analysis": {"stepWeights": [20], "interval": "5s"}})).await;
    world.push("web:v2").await;
    world.becomes("at the first weight", |status| status.canary_weight > Weight::ZERO).await;
    world.delete("Deployment", "web").await;
    world.eventually("the traffic is withdrawn", async || world.split().await == Some((0, 100))).await;
    let traffic = world.traffic();
    world.is_gone("Deployment", "web").await;
    world.apply(labelled(&json!({"app": "shop-web"}), "web:v3")).await;
    let status = world.released(2).await;
    assert_eq!(status.phase, Phase::Succeeded, "{status:#?}");
    assert_eq!(world.image("web-primary").await, "web:v3");
    traffic.assert_all_served();
}

/// Its own selector would match the primary's pods too.
pub async fn a_target_that_would_share_pods_with_its_primary_is_refused(world: World) {
    world.apply(labelled(&json!({"app": "web", "tier": "front"}), "web:v1")).await;
    let _serin = world.initialized(json!({})).await;
    let traffic = world.traffic();
    recreate(&world, &json!({"tier": "front"}), "web:v2").await;
    let stalled = |status: &CanaryStatus| status.conditions.iter().any(|it| it.type_ == "Stalled");
    let status = world.becomes("refused", stalled).await;
    assert_eq!(holds(&status, "Stalled"), ConditionStatus::True);
    let message = status.message.unwrap_or_default();
    assert!(message.contains("Deployment web and its primary web-primary would share pods"), "{message}");
    world.sleep_long().await;
    assert_eq!(traffic.versions().into_keys().collect::<Vec<_>>(), ["v1"]);
    recreate(&world, &json!({"app": "web", "tier": "back"}), "web:v3").await;
    assert_eq!(world.released(1).await.phase, Phase::Succeeded);
    traffic.assert_all_served();
}

/// `-primary` at the end of the target's own label is nobody else's.
pub async fn a_target_labelled_as_a_primary_has_a_primary_of_its_own(world: World) {
    world.apply(labelled(&json!({"app": "web-primary"}), "web:v1")).await;
    let _serin = world.initialized(json!({})).await;
    let selector = world.get("Deployment", "web-primary").await["spec"]["selector"].clone();
    assert_eq!(selector["matchLabels"], json!({"app": "web-primary-primary"}));
    world.push("web:v2").await;
    world.becomes("at the first weight", |status| status.canary_weight > Weight::ZERO).await;
    let primary = world.get("Service", "web-primary").await;
    assert_eq!(primary["spec"]["selector"], json!({"app": "web-primary-primary"}));
}
