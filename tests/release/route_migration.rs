//! An existing Canary gets another Service or another router.

use serde_json::json;
use serin::api::Weight;
use serin::api::canary::Phase;

use crate::world::World;

const OLD: [(&str, &str); 3] = [("Service", "web-canary"), ("Service", "web-primary"), ("Service", "web")];

pub async fn a_renamed_service_moves_all_objects(world: World) {
    let _serin = world.initialized(json!({"analysis": {"interval": "3s", "metrics": null}})).await;
    world.push("web:v2").await;
    world.becomes("under way", |status| status.canary_weight > Weight::ZERO).await;
    world.edit(json!({"service": {"name": "shop"}})).await;
    for (kind, name) in OLD.into_iter().chain([("TrafficSplit", "web")]) {
        world.is_gone(kind, name).await;
    }
    let status = world.released(1).await;
    assert_eq!((status.phase, world.image("web-primary").await.as_str()), (Phase::Succeeded, "web:v2"));
    let split = world.get("TrafficSplit", "shop").await;
    assert_eq!(split["spec"]["service"], "shop");
    for name in ["shop", "shop-primary", "shop-canary"] {
        world.get("Service", name).await;
    }
}

pub async fn another_router_replaces_the_route(world: World) {
    let analysis = json!({"interval": "1s", "stepWeights": null, "iterations": 2, "metrics": null});
    let serin = world.initialized(json!({ "analysis": analysis })).await;
    let traffic = world.traffic();
    assert_eq!(world.split().await, Some((0, 100)));
    // Also if no controller ran when it was changed.
    serin.end().await;
    world.edit(json!({"provider": "kubernetes"})).await;
    let _again = world.serin().await;
    world.is_gone("TrafficSplit", "web").await;
    world.push("web:v2").await;
    assert_eq!(world.released(1).await.phase, Phase::Succeeded);
    assert_eq!(world.image("web-primary").await, "web:v2");
    traffic.assert_all_served();
}
