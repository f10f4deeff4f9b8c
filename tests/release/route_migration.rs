//! An existing Canary gets another Service or another router.

use kube::api::{Patch, PatchParams};
use serde_json::json;
use serin::api::Weight;
use serin::api::canary::Phase;
use serin::engine::command::Verb;

use crate::support::{definitions, route_status};
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

/// The canary's weight in the TrafficSplit, which is a text in its first version.
async fn old_weight(world: &World) -> String {
    let split = world.get("TrafficSplit", "web").await;
    let backends = split["spec"]["backends"].as_array().cloned().unwrap_or_default();
    let canary = backends.iter().find(|backend| backend["service"] == "web-canary").expect("the canary");
    canary["weight"].to_string().trim_matches('"').to_owned()
}

/// The mesh accepts the HTTPRoute as it is now.
async fn report_accepted(world: &World) {
    let live = world.get("HTTPRoute", "web").await;
    let patch = Patch::Merge(json!({"status": route_status::parent_status(&live)}));
    world.objects("HTTPRoute").patch_status("web", &PatchParams::default(), &patch).await.expect("a status");
}

/// Aborts at a weight, while the new route waits for its mesh.
async fn the_route_left_behind_is_emptied_and_removed(world: &World) {
    world
        .becomes("waiting for the mesh", |status| {
            status
                .message
                .as_ref()
                .is_some_and(|message| message.contains("has not reported on the HTTPRoute"))
        })
        .await;
    assert_eq!(old_weight(world).await, "20", "in force until the new route is");
    world.command(Verb::Abort).await;
    world.eventually("no traffic for the canary", async || old_weight(world).await == "0").await;
    assert_eq!(world.status().await.route.expect("a route").objects[0].kind, "TrafficSplit");
    world
        .eventually("the old route is removed", async || {
            report_accepted(world).await;
            world.find("TrafficSplit", "web").await.is_none()
        })
        .await;
    world
        .becomes("recorded", |status| {
            status.route.as_ref().is_some_and(|route| route.objects.iter().any(|one| one.kind == "HTTPRoute"))
        })
        .await;
    assert_eq!(world.status().await.phase, Phase::Failed);
}

pub async fn another_router_in_a_release_leaves_no_traffic_on_the_old_route(world: World) {
    definitions::install(&world.client, definitions::gateway()).await;
    let _serin = world.initialized(json!({"analysis": {"interval": "60s", "metrics": null}})).await;
    world.push("web:v2").await;
    world.becomes("under way", |status| status.canary_weight > Weight::ZERO).await;
    world.edit(json!({"provider": "gatewayapi:v1"})).await;
    the_route_left_behind_is_emptied_and_removed(&world).await;
}

/// Only where the definitions of others do not stay: the Gateway API appears.
mod local {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn linkerd_changes_its_kind_of_route_in_a_release() {
        let world = World::new().await;
        let analysis = json!({"interval": "60s", "metrics": null});
        let serin = world.initialized(json!({"provider": "linkerd", "analysis": analysis})).await;
        world.push("web:v2").await;
        world.becomes("under way", |status| status.canary_weight > Weight::ZERO).await;
        serin.end().await;
        definitions::install(&world.client, definitions::gateway()).await;
        let _again = world.serin().await;
        the_route_left_behind_is_emptied_and_removed(&world).await;
    }
}
