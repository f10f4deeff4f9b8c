//! The three Services of a Canary.

use std::time::Duration;

use kube::api::Api;
use kube::{ResourceExt, core::ObjectMeta};
use serde_json::json;
use serin::api::Canary;
use serin::engine::action::Split;

use crate::world::World;

pub async fn services_are_created_from_the_spec(mut world: World) {
    world
        .edit(json!({"service": {
            "portName": "grpc", "appProtocol": "kubernetes.io/h2c", "trafficDistribution": "PreferClose",
            "apex": {"labels": {"side": "apex"}, "annotations": {"example.com/side": "apex"}},
            "primary": {"labels": {"side": "primary"}},
            "canary": {"annotations": {"example.com/side": "canary"}},
        }}))
        .await;
    world.set(&Split::all_primary()).await;
    for name in ["web", "web-primary", "web-canary"] {
        let service = world.get(&world.service(name)).await;
        let spec = &service.data["spec"];
        assert_eq!(
            spec["ports"],
            json!([{"name": "grpc", "port": 80, "protocol": "TCP", "targetPort": 8080,
                    "appProtocol": "kubernetes.io/h2c"}])
        );
        assert_eq!(spec["trafficDistribution"], "PreferClose");
        assert_eq!(service.labels()["app"], name, "for ServiceMonitors");
        assert_eq!(service.annotations()["kustomize.toolkit.fluxcd.io/reconcile"], "disabled");
        assert_eq!(service.annotations()["helm.toolkit.fluxcd.io/driftDetection"], "disabled");
        assert_eq!(service.annotations()["argocd.argoproj.io/sync-options"], "Prune=false");
    }
    assert_eq!(world.get(&world.service("web")).await.labels()["side"], "apex");
    assert_eq!(world.get(&world.service("web")).await.annotations()["example.com/side"], "apex");
    assert_eq!(world.get(&world.service("web-primary")).await.labels()["side"], "primary");
    assert_eq!(world.get(&world.service("web-canary")).await.annotations()["example.com/side"], "canary");
}

pub async fn an_edit_of_the_canary_is_applied_to_services(mut world: World) {
    world.edit(json!({"service": {"apex": {"labels": {"side": "apex"}}}})).await;
    let split = Split::weight(world.partial_weight());
    world.set(&split).await;
    world.edit(json!({"service": {"targetPort": "http"}})).await;
    assert_eq!(world.split().await, None, "the Services are out of sync");
    world.set(&split).await;
    assert_eq!(world.get(&world.service("web-canary")).await.data["spec"]["ports"][0]["targetPort"], "http");

    world.edit(json!({"service": {"apex": null}})).await;
    assert_eq!(world.split().await, None, "the label is not desired any more");
    world.set(&split).await;
    assert!(!world.get(&world.service("web")).await.labels().contains_key("side"));

    world.edit(json!({"service": {"port": 81}})).await;
    world.set(&split).await;
    let apex = world.get(&world.service("web")).await;
    assert_eq!(apex.data["spec"]["ports"].as_array().expect("ports").len(), 1, "the old port is gone");
    assert_eq!(apex.data["spec"]["ports"][0]["port"], 81);
}

pub async fn ports_of_the_containers_are_added(mut world: World) {
    world.edit(json!({"service": {"portDiscovery": true}})).await;
    world.set(&Split::all_primary()).await;
    let ports = world.get(&world.service("web-canary")).await.data["spec"]["ports"].clone();
    // 8080 is the target of port 80 already.
    let named = |at: usize| (ports[at]["name"].clone(), ports[at]["port"].clone());
    let own = world.case.service.get("portName").cloned().unwrap_or(json!("http"));
    assert_eq!((named(0), named(1)), ((own, json!(80)), (json!("admin"), json!(9090))));
    assert_eq!(ports.as_array().expect("ports").len(), 2);
}

pub async fn a_headless_service_stays_headless(mut world: World) {
    world.edit(json!({"service": {"headless": true}})).await;
    world.set(&Split::all_primary()).await;
    assert_eq!(world.get(&world.service("web")).await.data["spec"]["clusterIP"], "None");
    world.edit(json!({"service": {"headless": false, "portName": "web"}})).await;
    world.set(&Split::all_primary()).await;
    assert_eq!(world.get(&world.service("web")).await.data["spec"]["clusterIP"], "None");
}

pub async fn unmanaged_metadata_is_left_alone(mut world: World) {
    world
        .edit(json!({"service": {
            "apex": {"labels": {"mine": "1", "theirs": "1"}},
            "unmanagedMetadata": {"labels": ["theirs"], "annotations": ["helm.toolkit.fluxcd.io/driftDetection"]},
        }}))
        .await;
    world.set(&Split::all_primary()).await;
    let apex = world.service("web");
    let live = world.get(&apex).await;
    assert_eq!(live.labels()["mine"], "1");
    assert!(!live.labels().contains_key("theirs"));
    assert!(!live.annotations().contains_key("helm.toolkit.fluxcd.io/driftDetection"));
    world.patch_as_user(&apex, &json!({"metadata": {"labels": {"theirs": "2"}}})).await;
    world.set(&Split::weight(world.partial_weight())).await;
    assert_eq!(world.get(&apex).await.labels()["theirs"], "2");
}

pub async fn owned_services_are_deleted_with_the_canary(world: World) {
    world.set(&Split::all_primary()).await;
    let canaries = Api::<Canary>::namespaced(world.client.clone(), &world.namespace);
    canaries.delete(&world.canary.name_any(), &Default::default()).await.unwrap();
    let deadline = tokio::time::Instant::now() + Duration::from_secs(60);
    for object in world.router().objects(&world.canary) {
        while let Some(live) = world.find(&object).await {
            let ObjectMeta { owner_references, .. } = live.metadata;
            assert!(tokio::time::Instant::now() < deadline, "{object} is still there: {owner_references:?}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}
