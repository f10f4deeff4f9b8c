//! Companions of a target: autoscalers and disruption budgets.

use serde_json::{Value, json};
use serin::workload::{Kind, Workload};

use crate::world::{World, deployment};

const D: Kind = Kind::Deployment;
const HPA: Kind = Kind::HorizontalPodAutoscaler;
const KEDA: Kind = Kind::ScaledObject;
const PDB: Kind = Kind::PodDisruptionBudget;

fn hpa(least: u32, most: u32) -> Value {
    json!({ "spec": {
        "scaleTargetRef": { "apiVersion": "apps/v1", "kind": "Deployment", "name": "web" },
        "minReplicas": least,
        "maxReplicas": most,
        "metrics": [{ "type": "Resource", "resource": {
            "name": "cpu", "target": { "type": "Utilization", "averageUtilization": 80 },
        } }],
    } })
}

async fn scaled(world: &World, extra: Value) -> Workload {
    world.apply(D, "web", deployment("web", "web:1")).await;
    let mut scaler =
        json!({ "apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler", "name": "web" });
    json_patch::merge(&mut scaler, &extra);
    let workload = world.workload("Deployment", "web", json!({ "autoscalerRef": scaler })).await;
    world.make_primary(&workload).await;
    workload
}

pub async fn an_edit_of_the_autoscaler_is_copied_at_once(world: World) {
    world.apply(HPA, "web", hpa(2, 10)).await;
    let workload = scaled(&world, json!({ "primaryScalerReplicas": { "minReplicas": 4 } })).await;
    assert_eq!(world.sync_companions(&workload).await, 1);
    let copy = world.get(HPA, "web-primary").await;
    assert_eq!(copy["spec"]["scaleTargetRef"]["name"], "web-primary");
    assert_eq!((&copy["spec"]["minReplicas"], &copy["spec"]["maxReplicas"]), (&json!(4), &json!(10)));
    assert_eq!(copy["metadata"]["ownerReferences"][0]["kind"], "Canary");
    assert_eq!(world.sync_companions(&workload).await, 0, "in sync");

    let mut edited = hpa(2, 20);
    edited["spec"]["behavior"] = json!({ "scaleDown": { "stabilizationWindowSeconds": 60 } });
    world.apply(HPA, "web", edited).await;
    assert_eq!(world.sync_companions(&workload).await, 1);
    assert_eq!(world.sync_companions(&workload).await, 0);
    let copy = world.get(HPA, "web-primary").await;
    assert_eq!(copy["spec"]["maxReplicas"], 20);
    assert_eq!(copy["spec"]["behavior"]["scaleDown"]["stabilizationWindowSeconds"], 60);

    world.apply(HPA, "web", hpa(2, 20)).await;
    world.sync_companions(&workload).await;
    assert_eq!(world.get(HPA, "web-primary").await["spec"], {
        let mut spec = world.get(HPA, "web").await["spec"].clone();
        spec["scaleTargetRef"]["name"] = "web-primary".into();
        spec["minReplicas"] = 4.into();
        spec
    });
    // An edit of the copy by another client is reverted.
    world.patch(HPA, "web-primary", json!({ "spec": { "maxReplicas": 99 } })).await;
    assert_eq!(world.sync_companions(&workload).await, 1);
    assert_eq!(world.get(HPA, "web-primary").await["spec"]["maxReplicas"], 20);
}

pub async fn a_pinned_primary_does_not_shrink(world: World) {
    world.apply(HPA, "web", hpa(2, 10)).await;
    let workload = scaled(&world, json!({})).await;
    world.sync_companions(&workload).await;
    world.patch(D, "web-primary", json!({ "spec": { "replicas": 7 } })).await;
    let least = async || world.get(HPA, "web-primary").await["spec"]["minReplicas"].clone();
    let pinned = async || {
        let scaler = world.api(HPA).get("web-primary").await.unwrap();
        let primary = world.snapshot(D, "web-primary").await;
        workload.observe_primary(&primary, Some(&scaler)).unwrap().expect("a primary").pinned
    };
    assert!(!pinned().await);
    workload.pin_primary(&world.client).await.unwrap();
    assert!(pinned().await);
    assert_eq!(least().await, 7);
    // An edit of the original keeps the pin, and a second pin does not move it.
    world.apply(HPA, "web", hpa(3, 12)).await;
    world.sync_companions(&workload).await;
    world.patch(D, "web-primary", json!({ "spec": { "replicas": 9 } })).await;
    workload.pin_primary(&world.client).await.unwrap();
    assert_eq!(least().await, 7);
    assert_eq!(world.get(HPA, "web-primary").await["spec"]["maxReplicas"], 12);
    workload.unpin_primary(&world.client).await.unwrap();
    assert!(!pinned().await);
    assert_eq!(least().await, 3);
    assert_eq!(world.sync_companions(&workload).await, 0);
}

pub async fn a_primary_that_is_scaled_up_stays_up(world: World) {
    world.apply(HPA, "web", hpa(2, 10)).await;
    let workload = scaled(&world, json!({})).await;
    world.sync_companions(&workload).await;
    workload.pin_primary(&world.client).await.unwrap();
    workload.scale_primary(&world.client, &world.cache, 5).await.unwrap();
    let least = async || world.get(HPA, "web-primary").await["spec"]["minReplicas"].clone();
    assert_eq!(
        (world.get(D, "web-primary").await["spec"]["replicas"].clone(), least().await),
        (json!(5), json!(5))
    );
    let scaler = world.api(HPA).get("web-primary").await.unwrap();
    let observed = workload
        .observe_primary(&world.snapshot(D, "web-primary").await, Some(&scaler))
        .unwrap()
        .expect("a primary");
    assert_eq!((observed.pods.desired, observed.max_replicas), (5, Some(10)));
    workload.unpin_primary(&world.client).await.unwrap();
    assert_eq!(least().await, 2);
}

pub async fn the_copy_of_an_autoscaler_is_deleted_with_it(world: World) {
    world.apply(HPA, "web", hpa(2, 10)).await;
    let workload = scaled(&world, json!({})).await;
    world.sync_companions(&workload).await;
    world.apply(HPA, "other-primary", hpa(1, 2)).await;
    world.delete(HPA, "web").await;
    assert_eq!(world.sync_companions(&workload).await, 1);
    assert_eq!(world.names(HPA).await, ["other-primary"]);
    assert_eq!(world.sync_companions(&workload).await, 0);
    let error = workload.pin_primary(&world.client).await.unwrap_err();
    assert_eq!(error.to_string(), "cannot pin the primary: HorizontalPodAutoscaler web does not exist");
}

pub async fn keda_is_paused_while_the_canary_has_no_pods(world: World) {
    let scaled_object = json!({
        "metadata": { "annotations": { "scaledobject.keda.sh/transfer-hpa-ownership": "true" } },
        "spec": {
            "scaleTargetRef": { "name": "web" },
            "minReplicaCount": 2,
            "maxReplicaCount": 10,
            "advanced": { "horizontalPodAutoscalerConfig": { "name": "web-hpa" } },
            "triggers": [
                { "type": "prometheus", "name": "load", "metadata": { "query": "sum(rate(x{app=\"web\"}[1m]))" } },
                { "type": "prometheus", "name": "queue", "metadata": { "query": "queue" } },
            ],
        },
    });
    world.apply(KEDA, "web", scaled_object).await;
    let keda = json!({
        "apiVersion": "keda.sh/v1alpha1", "kind": "ScaledObject",
        "primaryScalerQueries": { "queue": "primary_queue" },
        "primaryScalerReplicas": { "maxReplicas": 30 },
    });
    let workload = scaled(&world, keda).await;
    let annotation = async || {
        world.get(KEDA, "web").await["metadata"]["annotations"]["autoscaling.keda.sh/paused-replicas"].clone()
    };
    for _ in 0..2 {
        workload.scale_canary(&world.client, &world.cache, 0).await.unwrap();
        assert_eq!(annotation().await, "0");
        assert_eq!(world.get(D, "web").await["spec"]["replicas"], 0);
    }

    assert_eq!(world.sync_companions(&workload).await, 1);
    assert_eq!(world.sync_companions(&workload).await, 0);
    let copy = world.get(KEDA, "web-primary").await;
    let spec = &copy["spec"];
    assert_eq!(spec["scaleTargetRef"]["name"], "web-primary");
    assert_eq!((&spec["minReplicaCount"], &spec["maxReplicaCount"]), (&json!(2), &json!(30)));
    assert_eq!(
        spec["triggers"][0]["metadata"]["query"], "sum(rate(x{app=\"web\"}[1m]))",
        "others are written"
    );
    assert_eq!(spec["triggers"][1]["metadata"]["query"], "primary_queue");
    assert_eq!(spec["advanced"]["horizontalPodAutoscalerConfig"]["name"], "web-hpa-primary");
    let annotations = &copy["metadata"]["annotations"];
    assert_eq!(annotations["autoscaling.keda.sh/paused-replicas"], Value::Null);
    assert_eq!(annotations["scaledobject.keda.sh/transfer-hpa-ownership"], "true");
    workload.pin_primary(&world.client).await.unwrap();
    assert_eq!(world.get(KEDA, "web-primary").await["spec"]["minReplicaCount"], 2);

    for _ in 0..2 {
        workload.scale_canary(&world.client, &world.cache, 3).await.unwrap();
        assert_eq!(annotation().await, Value::Null);
        assert_eq!(world.get(D, "web").await["spec"]["replicas"], 3);
    }
    // A ScaledObject that the user paused stays paused.
    let users = json!({ "metadata": { "annotations": { "autoscaling.keda.sh/paused-replicas": "1" } } });
    world.patch(KEDA, "web", users).await;
    workload.scale_canary(&world.client, &world.cache, 0).await.unwrap();
    workload.scale_canary(&world.client, &world.cache, 3).await.unwrap();
    assert_eq!(annotation().await, "1");
}

pub async fn a_budget_covers_the_primary_too(world: World) {
    let mut target = deployment("web", "web:1");
    target["spec"]["template"]["metadata"]["labels"]["tier"] = "front".into();
    world.apply(D, "web", target).await;
    let budget =
        |selector: Value| json!({ "spec": { "minAvailable": 1, "selector": { "matchLabels": selector } } });
    world.apply(PDB, "mine", budget(json!({ "app": "web", "tier": "front" }))).await;
    world.apply(PDB, "other", budget(json!({ "app": "other" }))).await;
    let workload = world.workload("Deployment", "web", json!({})).await;
    world.make_primary(&workload).await;
    assert_eq!(world.sync_companions(&workload).await, 1);
    assert_eq!(world.sync_companions(&workload).await, 0);
    let copy = world.get(PDB, "mine-primary").await;
    assert_eq!(copy["spec"]["selector"]["matchLabels"], json!({ "app": "web-primary" }));
    assert_eq!(copy["spec"]["minAvailable"], 1);

    world.patch(PDB, "mine", json!({ "spec": { "minAvailable": 2 } })).await;
    world.sync_companions(&workload).await;
    assert_eq!(world.get(PDB, "mine-primary").await["spec"]["minAvailable"], 2);
    // One that covers both, of users, is enough.
    world.apply(PDB, "all", budget(json!({ "tier": "front" }))).await;
    world.sync_companions(&workload).await;
    assert_eq!(world.names(PDB).await, ["all", "mine", "other"]);
    world.delete(PDB, "all").await;
    world.sync_companions(&workload).await;
    assert_eq!(world.names(PDB).await, ["mine", "mine-primary", "other"]);
    world.delete(PDB, "mine").await;
    world.sync_companions(&workload).await;
    assert_eq!(world.names(PDB).await, ["other"]);
}

pub async fn a_flux_helm_release_does_not_resize_the_target(world: World) {
    let mut target = deployment("web", "web:1");
    target["metadata"]["labels"] = json!({ "helm.toolkit.fluxcd.io/name": "shop" });
    world.apply(D, "web", target).await;
    let workload = world.workload("Deployment", "web", json!({})).await;
    let revision = world.make_primary(&workload).await;
    assert_eq!(world.sync_companions(&workload).await, 1);
    assert_eq!(world.sync_companions(&workload).await, 0);
    let annotations = &world.get(D, "web").await["metadata"]["annotations"];
    assert_eq!(annotations["helm.toolkit.fluxcd.io/driftDetection"], "disabled");
    assert_eq!(world.revision(&workload).await, revision);
}
