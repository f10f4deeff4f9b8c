//! Mesh, Workload and MeshService objects that the controller writes.

use std::time::Duration;

use kube::api::{Api, DynamicObject, ListParams};
use serde_json::{Value, json};
use serin::api::{Mesh, MeshService, Workload};
use serin::controller::InventoryResources;
use serin::discovery::live::LiveInventory;

use super::CLUSTER;
use super::live::always;
use super::world::{World, workload};

const CONTROL_PLANE: &str = "
apiVersion: apps/v1
kind: Deployment
metadata: {name: istiod, namespace: default, labels: {app: istiod}}
spec:
  replicas: 1
  selector: {matchLabels: {app: istiod}}
  template: {metadata: {labels: {app: istiod}}, spec: {containers: [{name: discovery, image: 'istio/pilot:1.29.0'}]}}
";

async fn meshes(world: &World) -> Vec<Mesh> {
    Api::<Mesh>::all(world.client.clone()).list(&ListParams::default()).await.expect("meshes").items
}

async fn workloads(world: &World) -> Vec<Workload> {
    let api = Api::<Workload>::namespaced(world.client.clone(), &world.namespace);
    api.list(&ListParams::default()).await.expect("workloads").items
}

fn writes(requests: &[String]) -> Vec<&String> {
    requests.iter().filter(|request| !request.starts_with("GET")).collect()
}

#[tokio::test(start_paused = true)]
async fn facts_are_written_once_and_pruned_when_gone() {
    let world = World::new().await;
    super::cluster::create(&world.client, CONTROL_PLANE).await;
    let mut web = workload("Deployment", "web", "web:v1");
    web["spec"]["template"]["metadata"]["annotations"] = json!({"sidecar.istio.io/status": "{}"});
    world.apply(web).await;
    world.apply(workload("Service", "web", "")).await;
    let live = LiveInventory::new(CLUSTER);
    let _serin = world.serin_feeding(live.clone(), always(InventoryResources::All)).await;
    world
        .eventually("web is written", async || {
            workloads(&world).await.iter().any(|found| found.spec.meshes.items == ["istio, sidecar"])
        })
        .await;
    world.sleep_long().await;
    let found = meshes(&world).await;
    let istio = found.iter().find(|mesh| mesh.spec.kind == "istio").expect("istio");
    assert_eq!(istio.spec.version.as_deref(), Some("1.29.0"));
    assert_eq!(istio.spec.namespaces.items, ["default"]);
    let services: Vec<MeshService> = Api::namespaced(world.client.clone(), &world.namespace)
        .list(&ListParams::default())
        .await
        .expect("services")
        .items;
    let web = services.iter().find(|found| found.spec.reference.name == "web").expect("web");
    assert_eq!(web.spec.workloads.items, ["Deployment default/web"]);

    let before = world.requests().len();
    let pods: Api<k8s_openapi::api::core::v1::Pod> = Api::namespaced(world.client.clone(), &world.namespace);
    pods.delete_collection(&Default::default(), &ListParams::default().labels("app=web"))
        .await
        .expect("pods");
    tokio::time::sleep(Duration::from_secs(300)).await;
    let requests = world.requests().split_off(before);
    let of_web: Vec<_> =
        writes(&requests).into_iter().filter(|request| request.contains("/workloads/web")).cloned().collect();
    assert!(of_web.len() <= 2, "pods that are replaced are news only while there are none: {of_web:#?}");

    world.delete("Deployment", "web").await;
    world.delete("Deployment", "istiod").await;
    world
        .eventually("web is pruned", async || {
            workloads(&world).await.iter().all(|found| found.spec.reference.name != "web")
        })
        .await;
    world
        .eventually("istio is pruned", async || {
            meshes(&world).await.iter().all(|mesh| mesh.spec.kind != "istio")
        })
        .await;
}

#[tokio::test(start_paused = true)]
async fn a_restart_writes_nothing_that_is_there() {
    let world = World::new().await;
    world.apply(workload("Deployment", "web", "web:v1")).await;
    let serin = world.serin_feeding(LiveInventory::new(CLUSTER), always(InventoryResources::All)).await;
    world.eventually("web is written", async || !workloads(&world).await.is_empty()).await;
    world.sleep_long().await;
    serin.end().await;
    let before = world.requests().len();
    let _serin = world.serin_feeding(LiveInventory::new(CLUSTER), always(InventoryResources::All)).await;
    world.sleep_long().await;
    let requests = world.requests().split_off(before);
    assert_eq!(writes(&requests), [] as [&String; 0]);
}

/// Names, lists and sentences of any length.
#[tokio::test(start_paused = true)]
async fn an_entry_stays_under_four_kilobytes() {
    let world = World::new().await;
    let mut web = workload("Deployment", &"w".repeat(63), "web:v1");
    let containers: Vec<Value> = (0..40)
        .map(|at| json!({"name": format!("c{at}"), "image": format!("registry.example.com/{}/image:{at}", "x".repeat(180))}))
        .collect();
    web["spec"]["template"]["spec"]["containers"] = containers.into();
    web["spec"]["replicas"] = json!(0);
    world.apply(web).await;
    for at in 0..20 {
        let mut service = workload("Service", &format!("s{at}-{}", "s".repeat(50)), "");
        service["spec"]["selector"] = json!({"app": "w".repeat(63)});
        world.apply(service).await;
    }
    let _serin = world.serin_feeding(LiveInventory::new(CLUSTER), always(InventoryResources::All)).await;
    let is_there = async || workloads(&world).await.iter().any(|found| found.spec.services.count == 20);
    world.eventually("it is written", is_there).await;
    world.sleep_long().await;
    for kind in ["Workload", "MeshService"] {
        for object in world.objects(kind).list(&ListParams::default()).await.expect("objects").items {
            let DynamicObject { mut metadata, data, .. } = object;
            metadata.managed_fields = None;
            let size = json!({"metadata": metadata, "spec": data["spec"]}).to_string().len();
            assert!(size < 4096, "{size} bytes: {data:#}");
            for list in
                data["spec"].as_object().expect("a spec").values().filter_map(|list| list["items"].as_array())
            {
                assert!(list.len() <= 10, "{list:?}");
            }
        }
    }
    let found = workloads(&world).await;
    let web = found.iter().find(|found| found.spec.reference.name.starts_with('w')).expect("the workload");
    assert_eq!((web.spec.images.count, web.spec.services.count), (40, 20), "counts stay");
}
