//! The objects that remain after a Canary is deleted.

use serde_json::{Value, json};
use serin::api::Weight;
use serin::api::canary::Phase;

use crate::world::{Running, Traffic, World, workload};

pub async fn a_deletion_leaves_the_target_serving(world: World) {
    let _serin = world.initialized(json!({})).await;
    assert_eq!(world.replicas("web").await, 0);
    world.delete("Canary", "web").await;
    world.is_gone("Canary", "web").await;
    assert_eq!(world.replicas("web").await, 2);
    world.is_gone("Deployment", "web-primary").await;
    for service in ["web", "web-primary", "web-canary"] {
        world.is_gone("Service", service).await;
    }
    assert!(world.find("TrafficSplit", "web").await.is_none());
    world.event_contains("Restoring the state from before this Canary.").await;
}

pub async fn a_service_and_a_route_that_were_there_before_come_back(world: World) {
    world.apply(workload("Deployment", "web", "web:v1")).await;
    let mut service = workload("Service", "web", "");
    service["metadata"]["annotations"] = json!({"team.example/owner": "shop"});
    service["spec"]["ports"].as_array_mut().unwrap().push(json!({"name": "admin", "port": 9090}));
    world.apply(service).await;
    let route = json!({"service": "web", "backends": [{"service": "web", "weight": 7}]});
    world
        .apply(json!({
            "apiVersion": "split.smi-spec.io/v1alpha4", "kind": "TrafficSplit",
            "metadata": {"name": "web", "labels": {"ours": "yes"}}, "spec": route,
        }))
        .await;
    world.eventually("the target serves", async || world.answers().await).await;
    let (service, route) = (world.get("Service", "web").await, world.get("TrafficSplit", "web").await);
    // From here on no request may fail.
    let traffic = world.traffic();
    world.canary(json!({})).await;
    let _serin = world.serin().await;
    world.reaches(Phase::Initialized).await;
    assert_eq!(world.split().await, Some((0, 100)));
    world.push("web:v2").await;
    assert_eq!(world.released(1).await.phase, Phase::Succeeded);
    world.delete("Canary", "web").await;
    world.is_gone("Canary", "web").await;
    assert_eq!(world.replicas("web").await, 2);
    assert_eq!(user_fields(world.get("Service", "web").await), user_fields(service));
    assert_eq!(user_fields(world.get("TrafficSplit", "web").await), user_fields(route));
    world.is_gone("Deployment", "web-primary").await;
    let served = traffic.served_by("v2");
    world.eventually("they are served", async || traffic.served_by("v2") > served + 50).await;
    traffic.assert_all_served();
}

/// People's own Service, a Canary, and a release at its first weight.
async fn releasing_behind_an_own_service(world: &World, spec: Value) -> (Running, Traffic) {
    world.apply(workload("Deployment", "web", "web:v1")).await;
    world.apply(workload("Service", "web", "")).await;
    world.eventually("the target serves", async || world.answers().await).await;
    let traffic = world.traffic();
    world.canary(spec).await;
    let serin = world.serin().await;
    world.reaches(Phase::Initialized).await;
    world.push("web:v2").await;
    world.becomes("at the first weight", |status| status.canary_weight > Weight::ZERO).await;
    (serin, traffic)
}

pub async fn a_deletion_in_a_release_ends_when_the_target_is_set_back(world: World) {
    let (_serin, traffic) = releasing_behind_an_own_service(&world, json!({})).await;
    world.delete("Canary", "web").await;
    world.event_contains("which was not promoted: the primary keeps the traffic").await;
    world.eventually("the traffic is back", async || world.split().await == Some((0, 100))).await;
    world.push("web:v1").await;
    world.is_gone("Canary", "web").await;
    assert_eq!(world.replicas("web").await, 2);
    assert_eq!(world.get("Service", "web").await["spec"]["selector"], json!({"app": "web"}));
    world.is_gone("Deployment", "web-primary").await;
    traffic.assert_all_served();
}

pub async fn a_deletion_in_a_release_takes_over_at_the_deadline(world: World) {
    let spec = json!({"progressDeadlineSeconds": 20});
    let (_serin, traffic) = releasing_behind_an_own_service(&world, spec).await;
    world.delete("Canary", "web").await;
    world.is_gone("Canary", "web").await;
    world.is_gone("Deployment", "web-primary").await;
    let served = traffic.served_by("v2");
    world.eventually("v2 serves", async || traffic.served_by("v2") > served + 50).await;
    traffic.assert_all_served();
}

pub async fn a_deletion_without_revert_leaves_everything_in_place(world: World) {
    let _serin = world.initialized(json!({"revertOnDeletion": false})).await;
    world.delete("Canary", "web").await;
    world.is_gone("Canary", "web").await;
    world.is_gone("Deployment", "web-primary").await;
    assert_eq!(world.replicas("web").await, 0, "the target is left as it was");
}

/// The fields of an object that users wrote and must find again.
fn user_fields(object: Value) -> Value {
    let metadata = &object["metadata"];
    json!({"labels": metadata["labels"], "annotations": metadata["annotations"], "spec": object["spec"]})
}
