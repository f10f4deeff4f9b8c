//! Which weights a release goes through, and in which order.

use serde_json::{Value, json};
use serin::api::Weight;
use serin::api::canary::Phase;

use crate::world::{World, weight};

/// A release by these steps, of nothing but weights.
fn with_steps(steps: Value) -> Value {
    let mut analysis = json!({"interval": "1s", "stepWeights": null, "metrics": null});
    json_patch::merge(&mut analysis, &steps);
    json!({ "analysis": analysis })
}

async fn assert_split_sequence(world: World, steps: Value, expected: &[(u64, u64)]) {
    let _serin = world.initialized(with_steps(steps)).await;
    let both = |split: &Value| Some((weight(split, "web-canary")?, weight(split, "web-primary")?));
    let (traffic, weights) = (world.traffic(), world.follow("TrafficSplit", "web", both).await);
    world.push("web:v2").await;
    assert_eq!(world.released(1).await.phase, Phase::Succeeded);
    weights.assert_sequence(expected).await;
    assert_eq!(world.image("web-primary").await, "web:v2");
    traffic.assert_all_served();
}

pub async fn listed_weights_are_applied_in_order(world: World) {
    let expected = [(0, 100), (5, 995), (25, 75), (60, 40), (0, 100)];
    assert_split_sequence(world, json!({"stepWeights": [0.5, 25, 60]}), &expected).await;
}

pub async fn equal_weights_end_at_the_greatest(world: World) {
    let expected = [(0, 100), (40, 60), (50, 50), (0, 100)];
    assert_split_sequence(world, json!({"stepWeight": 40, "maxWeight": 50}), &expected).await;
}

pub async fn traffic_returns_to_the_primary_step_by_step(world: World) {
    let steps = json!({"stepWeights": [60], "stepWeightPromotion": 25});
    let expected = [(0, 100), (60, 40), (35, 65), (10, 90), (0, 100)];
    assert_split_sequence(world.clone(), steps, &expected).await;
    world.event_contains("Shifting traffic back to the primary: 35 % still on the canary.").await;
}

pub async fn edited_steps_continue_from_the_current_weight(world: World) {
    let _serin = world.initialized(with_steps(json!({"stepWeights": [20, 50], "interval": "3s"}))).await;
    let weights = world.weights().await;
    world.push("web:v2").await;
    world.becomes("at 20 %", |status| status.canary_weight > Weight::ZERO).await;
    world.edit(with_steps(json!({"stepWeights": [10, 30, 70]}))).await;
    assert_eq!(world.released(1).await.phase, Phase::Succeeded);
    weights.assert_sequence(&[0, 20, 10, 30, 70, 0]).await;
    world.event_contains("The steps were edited: continuing from step 1 of 3, 10 % of the traffic.").await;
}

pub async fn an_edit_of_the_service_does_not_change_the_weights(world: World) {
    let _serin = world.initialized(with_steps(json!({"stepWeights": [20, 50], "interval": "3s"}))).await;
    let (traffic, weights) = (world.traffic(), world.weights().await);
    world.push("web:v2").await;
    world.becomes("at 20 %", |status| status.canary_weight > Weight::ZERO).await;
    world.edit(json!({"service": {"apex": {"labels": {"team": "shop"}}}})).await;
    assert_eq!(world.released(1).await.phase, Phase::Succeeded);
    assert_eq!(world.get("Service", "web").await["metadata"]["labels"]["team"], "shop");
    weights.assert_sequence(&[0, 20, 50, 0]).await;
    traffic.assert_all_served();
}
