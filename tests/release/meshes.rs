//! Releases through the route objects of other meshes.

use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};
use serin::api::Weight;
use serin::api::canary::{CanaryStatus, Phase};

use crate::support::{definitions, route_status};
use crate::world::World;

/// Plays the controller of the Gateway; true if there was something to accept.
async fn report_accepted(world: &World) -> bool {
    let Some(live) = world.find("HTTPRoute", "web").await else { return false };
    let seen = &live["status"]["parents"][0]["conditions"][0]["observedGeneration"];
    if *seen == live["metadata"]["generation"] {
        return false;
    }
    let patch = Patch::Merge(json!({"status": route_status::parent_status(&live)}));
    world.objects("HTTPRoute").patch_status("web", &PatchParams::default(), &patch).await.is_ok()
}

pub async fn each_step_waits_until_the_gateway_has_accepted_it(world: World) {
    definitions::install(&world.client, definitions::gateway()).await;
    world
        .canary(json!({
            "provider": "gatewayapi:v1",
            "service": {"gatewayRefs": [{"name": "public"}]},
            "analysis": {"stepWeights": [0.5, 50], "metrics": null},
        }))
        .await;
    let _serin = world.serin().await;
    let says = |text: String| {
        move |status: &CanaryStatus| status.message.as_ref().is_some_and(|message| message.contains(&text))
    };
    let gateway = format!("the Gateway {}/public", world.namespace);
    world.becomes("waiting", says(format!("{gateway} has not reported on the HTTPRoute"))).await;
    assert!(report_accepted(&world).await);
    world.reaches(Phase::Initialized).await;

    world.push("web:v2").await;
    let half = Weight::from_percent(0.5).unwrap();
    world.becomes("at the first step", |status| status.canary_weight == half).await;
    world.becomes("held", says(format!("{gateway} has not processed the HTTPRoute"))).await;
    let before = world.requests().len();
    world.sleep_long().await;
    let held = world.status().await;
    assert_eq!((held.canary_weight, held.phase, held.failed_checks), (half, Phase::Progressing, 0));
    let asked = world.requests().split_off(before);
    assert!(asked.len() <= 3, "waiting costs nothing: {asked:?}");

    let mut accepted = 0;
    world
        .eventually("the release is over", async || {
            accepted += u32::from(report_accepted(&world).await);
            world.status().await.phase == Phase::Succeeded
        })
        .await;
    assert!(accepted >= 3, "two steps and the way home");
    let route = world.get("HTTPRoute", "web").await;
    assert_eq!(route["spec"]["rules"][0]["backendRefs"][1]["weight"], 0);
}

pub async fn an_adopted_virtual_service_is_stepped_and_restored(world: World) {
    definitions::install(&world.client, definitions::istio()).await;
    let to = |host: &str| json!([{"destination": {"host": host}}]);
    let legacy = json!({"match": [{"uri": {"prefix": "/legacy"}}], "route": to("legacy")});
    world
        .apply(json!({
            "apiVersion": "networking.istio.io/v1", "kind": "VirtualService", "metadata": {"name": "web"},
            "spec": {"hosts": ["web"], "http": [legacy, {"timeout": "5s", "route": to("web")}]},
        }))
        .await;
    let before = world.get("VirtualService", "web").await;
    let analysis = json!({"metrics": null});
    let _serin =
        world.initialized(json!({"provider": "istio", "revertOnDeletion": true, "analysis": analysis})).await;
    let weight = |route: &Value| route["spec"]["http"][1]["route"][1]["weight"].as_u64();
    let weights = world.follow("VirtualService", "web", weight).await;
    world.push("web:v2").await;
    world.released(1).await;
    // Between releases the route is as its owner wrote it.
    weights.assert_sequence(&[20, 50]).await;
    assert_eq!(world.get("VirtualService", "web").await["spec"], before["spec"]);

    world.delete("Canary", "web").await;
    world.is_gone("Canary", "web").await;
    let after = world.get("VirtualService", "web").await;
    assert_eq!(after["spec"], before["spec"]);
    assert_eq!(after["metadata"].get("annotations"), before["metadata"].get("annotations"));
}
