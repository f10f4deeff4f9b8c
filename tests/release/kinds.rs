//! Targets other than Deployments, and more than one namespace.

use serde_json::{Value, json};
use serin::api::canary::Phase;
use serin::controller::Options;

use crate::world::{World, workload};

pub async fn a_daemon_set_is_released_step_by_step(world: World) {
    world.canary_of("DaemonSet", json!({})).await;
    let _serin = world.serin().await;
    world.reaches(Phase::Initialized).await;
    world.eventually("web answers", async || world.answers().await).await;
    let (traffic, weights) = (world.traffic(), world.weights().await);
    world.push_to("DaemonSet", "web:v2").await;
    assert_eq!(world.released(1).await.phase, Phase::Succeeded);
    weights.assert_sequence(&[0, 20, 50, 0]).await;
    assert_eq!(world.image_of("DaemonSet", "web-primary").await, "web:v2");
    traffic.assert_all_served();
    world.push_to("DaemonSet", "web:v3-errors-50").await;
    let status = world.released(2).await;
    assert!(status.history[0].reason.contains("request-success-rate"), "{:?}", status.history);
    assert_eq!((status.phase, world.split().await), (Phase::Failed, Some((0, 100))));
    assert_eq!(world.image_of("DaemonSet", "web-primary").await, "web:v2");
}

pub async fn a_service_target_is_released_without_a_workload(world: World) {
    for version in ["v1", "v2"] {
        world.apply(workload("Deployment", &format!("app-{version}"), &format!("web:{version}"))).await;
    }
    let leads = |to: &str| json!({"spec": {"selector": {"app": to}}});
    let mut service = workload("Service", "web", "");
    json_patch::merge(&mut service, &leads("app-v1"));
    world.apply(service).await;
    world.eventually("v1 answers", async || world.answers().await).await;
    let traffic = world.traffic();
    world.canary_of("Service", json!({"analysis": {"interval": "1s", "metrics": null}})).await;
    let _serin = world.serin().await;
    world.reaches(Phase::Initialized).await;
    let (weights, first) = (world.weights().await, traffic.served_by("v1"));
    world.eventually("all get v1", async || traffic.served_by("v1") > first).await;
    assert_eq!(traffic.served_by("v2"), 0);
    world.patch("Service", "web", leads("app-v2")).await;
    assert_eq!(world.released(1).await.phase, Phase::Succeeded);
    weights.assert_sequence(&[0, 20, 50, 0]).await;
    assert_eq!(world.get("Service", "web-primary").await["spec"]["selector"], json!({"app": "app-v2"}));
    world
        .eventually("all get v2", async || {
            let before = traffic.served_by("v1");
            tokio::time::sleep(std::time::Duration::from_secs(1)).await;
            traffic.served_by("v1") == before
        })
        .await;
    traffic.assert_all_served();
}

pub async fn several_namespaces_are_watched_and_others_are_not(world: World) {
    let (near, far) = (world.in_new_namespace().await, world.in_new_namespace().await);
    for world in [&world, &near, &far] {
        world.canary(json!({"analysis": {"interval": "1s", "metrics": null}})).await;
    }
    let namespaces = vec![world.namespace.clone(), near.namespace.clone()];
    let _serin = world.serin_with(Options { namespaces, ..Options::default() }).await;
    for world in [&world, &near] {
        world.reaches(Phase::Initialized).await;
        world.push("web:v2").await;
    }
    for world in [&world, &near] {
        assert_eq!(world.released(1).await.phase, Phase::Succeeded);
        assert_eq!(world.image("web-primary").await, "web:v2");
    }
    assert_eq!(far.get("Canary", "web").await["status"], Value::Null);
    assert!(far.find("Deployment", "web-primary").await.is_none());
    assert_eq!(far.replicas("web").await, 2);
}
