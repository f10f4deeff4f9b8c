//! A release through the Gateway API, with somebody else to wait for.

use std::time::Duration;

use kube::api::{Api, ApiResource, DynamicObject, Patch, PatchParams};
use kube::core::GroupVersionKind;
use serde_json::{Value, json};
use serin::api::Weight;
use serin::api::canary::Phase;
use tokio::time::sleep;

use crate::support::Part;
use crate::world::{World, install};

fn routes(world: &World) -> Api<DynamicObject> {
    let kind = GroupVersionKind::gvk("gateway.networking.k8s.io", "v1", "HTTPRoute");
    let kind = ApiResource::from_gvk_with_plural(&kind, "httproutes");
    Api::namespaced_with(world.client.clone(), &world.namespace, &kind)
}

/// Plays the controller of the Gateway; true if there was something to accept.
async fn accept(world: &World) -> bool {
    let routes = routes(world);
    let Some(live) = routes.get_opt("web").await.expect("an answer") else { return false };
    let generation = live.metadata.generation;
    let condition = |kind: &str| {
        json!({"type": kind, "status": "True", "observedGeneration": generation,
            "reason": "Accepted", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"})
    };
    let parents = json!([{"parentRef": {"name": "public"}, "controllerName": "example.com/gateway",
        "conditions": [condition("Accepted"), condition("ResolvedRefs")]}]);
    let spoken = &live.data["status"]["parents"][0]["conditions"][0]["observedGeneration"];
    if spoken.as_i64() == generation {
        return false;
    }
    let patch = Patch::Merge(json!({"status": {"parents": parents}}));
    routes.patch_status("web", &PatchParams::default(), &patch).await.is_ok()
}

#[tokio::test(start_paused = true)]
async fn a_release_waits_until_the_gateway_has_taken_each_step() {
    let world = World::new().await;
    let file = Part::GatewayApi.folder().join("gateway.networking.k8s.io_httproutes.yaml");
    let text = std::fs::read_to_string(file).expect("run `testbed/setup gateway-api`");
    install(&world.client, serde_saphyr::from_str(&text).expect("a definition")).await;
    world
        .canary(json!({
            "provider": "gatewayapi:v1",
            "service": {"gatewayRefs": [{"name": "public"}]},
            "analysis": {"stepWeights": [0.5, 50], "metrics": null},
        }))
        .await;
    let _serin = world.serin().await;
    let says = |text: &'static str| {
        move |status: &serin::api::canary::CanaryStatus| {
            status.message.as_ref().is_some_and(|message| message.contains(text))
        }
    };
    world.becomes("waiting", says("the Gateway default/public has said nothing about the HTTPRoute")).await;
    assert!(accept(&world).await);
    world.reaches(Phase::Initialized).await;

    world.push("web:v2").await;
    let half = Weight::from_percent(0.5).unwrap();
    let first = world.becomes("at the first step", |status| status.canary_weight == half).await;
    assert_eq!(first.phase, Phase::Progressing);
    world.becomes("held", says("has not looked at the HTTPRoute default/web since it was changed")).await;
    // Nobody answers for an hour, and nothing is asked of the API meanwhile.
    let before = world.requests().len();
    sleep(Duration::from_secs(3600)).await;
    let held = world.status().await;
    assert_eq!((held.canary_weight, held.phase, held.failed_checks), (half, Phase::Progressing, 0));
    let asked: Vec<Value> = world.requests()[before..].iter().map(|request| json!(request)).collect();
    assert!(asked.len() <= 3, "{asked:?}");

    let mut accepted = 0;
    while world.status().await.phase != Phase::Succeeded {
        accepted += u32::from(accept(&world).await);
        sleep(Duration::from_millis(500)).await;
        assert!(accepted < 10, "{:#?}", world.status().await);
    }
    assert!(accepted >= 3, "two steps and the way home");
    let route = routes(&world).get("web").await.expect("the route");
    assert_eq!(route.data["spec"]["rules"][0]["backendRefs"][1]["weight"], 0);
}
