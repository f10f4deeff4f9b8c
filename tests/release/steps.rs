//! Which weights a release goes through, and in which order.

use serde_json::{Value, json};
use serin::api::Weight;
use serin::api::canary::Phase;

use crate::world::{World, weight};

/// A release by these steps, of nothing but weights.
fn by(steps: Value) -> Value {
    let mut analysis = json!({"interval": "1s", "stepWeights": null, "metrics": null});
    json_patch::merge(&mut analysis, &steps);
    json!({ "analysis": analysis })
}

async fn goes_through(world: World, steps: Value, expected: &[(u64, u64)]) {
    let _serin = world.initialized(by(steps)).await;
    let both = |split: &Value| Some((weight(split, "web-canary")?, weight(split, "web-primary")?));
    let (traffic, weights) = (world.traffic(), world.follow("TrafficSplit", "web", both).await);
    world.push("web:v2").await;
    assert_eq!(world.released(1).await.phase, Phase::Succeeded);
    weights.was(expected).await;
    assert_eq!(world.image("web-primary").await, "web:v2");
    traffic.was_served_well();
}

pub async fn listed_weights_come_one_after_the_other(world: World) {
    let expected = [(0, 100), (5, 995), (25, 75), (60, 40), (0, 100)];
    goes_through(world, json!({"stepWeights": [0.5, 25, 60]}), &expected).await;
}

pub async fn equal_weights_end_at_the_greatest(world: World) {
    let expected = [(0, 100), (40, 60), (50, 50), (0, 100)];
    goes_through(world, json!({"stepWeight": 40, "maxWeight": 50}), &expected).await;
}

pub async fn traffic_goes_home_step_by_step(world: World) {
    let steps = json!({"stepWeights": [60], "stepWeightPromotion": 25});
    let expected = [(0, 100), (60, 40), (35, 65), (10, 90), (0, 100)];
    goes_through(world.clone(), steps, &expected).await;
    world.is_told("Traffic goes home to the primary: 35 % is still at the canary.").await;
}

pub async fn edited_steps_go_on_from_where_traffic_is(world: World) {
    let _serin = world.initialized(by(json!({"stepWeights": [20, 50], "interval": "3s"}))).await;
    let weights = world.weights().await;
    world.push("web:v2").await;
    world.becomes("at 20 %", |status| status.canary_weight > Weight::ZERO).await;
    world.edit(by(json!({"stepWeights": [10, 30, 70]}))).await;
    assert_eq!(world.released(1).await.phase, Phase::Succeeded);
    weights.was(&[0, 20, 10, 30, 70, 0]).await;
    world.is_told("The steps were edited: going on from step 1 of 3, 10 % of the traffic.").await;
}

pub async fn an_edit_of_the_service_leaves_the_weights_alone(world: World) {
    let _serin = world.initialized(by(json!({"stepWeights": [20, 50], "interval": "3s"}))).await;
    let (traffic, weights) = (world.traffic(), world.weights().await);
    world.push("web:v2").await;
    world.becomes("at 20 %", |status| status.canary_weight > Weight::ZERO).await;
    world.edit(json!({"service": {"apex": {"labels": {"team": "shop"}}, "timeout": "15s"}})).await;
    assert_eq!(world.released(1).await.phase, Phase::Succeeded);
    assert_eq!(world.get("Service", "web").await["metadata"]["labels"]["team"], "shop");
    weights.was(&[0, 20, 50, 0]).await;
    traffic.was_served_well();
}
