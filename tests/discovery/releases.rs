//! Releases of Canaries that name no provider, by the real controller.

use std::time::Duration;

use kube::api::{Api, Patch, PatchParams};
use serde_json::{Value, json};
use serin::api::canary::{CanaryStatus, Phase, Provider};
use serin::controller::{InventoryMode, InventoryOptions, Options};
use tokio_util::task::AbortOnDropHandle;

use super::support::app_mesh::Path;
use super::support::{definitions, objects, route_status};
use super::world::{World, spawn, workload};

const ISTIO: &str = "sidecar.istio.io/status";
const LINKERD: &str = "linkerd.io/proxy-version";

/// As an injector would: the pods of the template carry the proof.
async fn deploy(world: &World, proofs: &[&str]) {
    let mut web = workload("Deployment", "web", "web:v1");
    let proofs: serde_json::Map<String, Value> =
        proofs.iter().map(|key| ((*key).to_owned(), json!("{}"))).collect();
    web["spec"]["template"]["metadata"]["annotations"] = proofs.into();
    world.apply(web).await;
}

/// As the injectors of App Mesh and OSM do: the proxy is a native sidecar.
async fn deploy_with_envoy(world: &World, env: Value, labels: Value) {
    let mut web = workload("Deployment", "web", "web:v1");
    let template = &mut web["spec"]["template"];
    json_patch::merge(&mut template["metadata"]["labels"], &labels);
    template["spec"]["initContainers"] =
        json!([{"name": "envoy", "image": "envoy:v1", "restartPolicy": "Always", "env": env}]);
    world.apply(web).await;
}

/// A Canary of `web` without a provider.
async fn canary(world: &World, spec: Value) {
    let mut fields = json!({"analysis": {"interval": "2s", "threshold": 2, "stepWeights": [20, 50]}});
    json_patch::merge(&mut fields, &spec);
    fields["provider"] = Value::Null;
    world.apply(objects::canary("web", &fields)).await;
}

/// Of all namespaces: the cluster is this test's own.
fn everywhere() -> Options {
    Options::default()
}

fn provider(status: &CanaryStatus) -> Provider {
    status.route.as_ref().expect("a route").provider
}

fn says(text: &str) -> impl Fn(&CanaryStatus) -> bool {
    move |status| status.message.as_ref().is_some_and(|message| message.contains(text))
}

/// Plays the controller that accepts HTTPRoutes.
fn accept_routes(world: &World) -> AbortOnDropHandle<()> {
    accept(world, "HTTPRoute", |route, _| route_status::parent_status(route))
}

/// Plays a controller that accepts each generation of the object `web` by this status.
fn accept(world: &World, kind: &'static str, status: fn(&Value, &str) -> Value) -> AbortOnDropHandle<()> {
    let world = world.clone();
    spawn(async move {
        let mut accepted = Value::Null;
        loop {
            tokio::time::sleep(Duration::from_millis(100)).await;
            let Some(live) = world.find(kind, "web").await else { continue };
            if accepted != live["metadata"]["generation"] {
                let patch = Patch::Merge(json!({"status": status(&live, "True")}));
                let written = world.objects(kind).patch_status("web", &PatchParams::default(), &patch).await;
                if written.is_ok() {
                    accepted = live["metadata"]["generation"].clone();
                }
            }
        }
    })
}

async fn a_sidecar_of_istio_is_released_by_virtual_services(world: World, options: Options) {
    definitions::install(&world.client, definitions::istio()).await;
    deploy(&world, &[ISTIO]).await;
    canary(&world, json!({})).await;
    let _serin = world.serin_with(options).await;
    let status = world.reaches(Phase::Initialized).await;
    assert_eq!(provider(&status), Provider::Istio);
    let evidence = status.provider_evidence.expect("evidence");
    assert_eq!(evidence, "istio, sidecar: metadata.annotations[sidecar.istio.io/status] of its pods");
    let weight = |route: &Value| route["spec"]["http"][0]["route"][1]["weight"].as_u64();
    let weights = world.follow("VirtualService", "web", weight).await;
    world.push("web:v2").await;
    assert_eq!(world.released(1).await.phase, Phase::Succeeded);
    weights.assert_sequence(&[0, 20, 50, 0]).await;
}

#[tokio::test(start_paused = true)]
async fn istio_is_chosen() {
    a_sidecar_of_istio_is_released_by_virtual_services(World::new().await, everywhere()).await;
}

#[tokio::test]
async fn istio_is_chosen_on_the_real_server() {
    let world = World::real().await;
    let options = world.options();
    a_sidecar_of_istio_is_released_by_virtual_services(world, options).await;
}

#[tokio::test(start_paused = true)]
async fn linkerd_is_chosen() {
    let world = World::new().await;
    definitions::install(&world.client, definitions::gateway()).await;
    deploy(&world, &[LINKERD]).await;
    canary(&world, json!({})).await;
    let _mesh = accept_routes(&world);
    let _serin = world.serin_with(everywhere()).await;
    assert_eq!(provider(&world.reaches(Phase::Initialized).await), Provider::Linkerd);
    world.push("web:v2").await;
    assert_eq!(world.released(1).await.phase, Phase::Succeeded);
    assert_eq!(world.get("HTTPRoute", "web").await["spec"]["parentRefs"][0]["kind"], "Service");
}

#[tokio::test(start_paused = true)]
async fn open_service_mesh_is_chosen() {
    let world = World::new().await;
    deploy_with_envoy(&world, json!([]), json!({"osm-proxy-uuid": "1"})).await;
    canary(&world, json!({})).await;
    let _serin = world.serin_with(everywhere()).await;
    let status = world.reaches(Phase::Initialized).await;
    assert_eq!(provider(&status), Provider::Osm);
    let evidence = status.provider_evidence.expect("evidence");
    assert_eq!(
        evidence,
        "osm, native sidecar: spec.initContainers[envoy] and metadata.labels[osm-proxy-uuid] of its pods"
    );
    world.push("web:v2").await;
    assert_eq!(world.released(1).await.phase, Phase::Succeeded);
    assert_eq!(world.split().await, Some((0, 100)), "a TrafficSplit carried it");
}

const NODE_ENV: &str = "APPMESH_RESOURCE_ARN";

#[tokio::test(start_paused = true)]
async fn the_resources_of_app_mesh_are_chosen_where_its_controller_is_installed() {
    let world = World::new().await;
    definitions::install(&world.client, definitions::app_mesh()).await;
    deploy_with_envoy(&world, json!([{"name": NODE_ENV, "value": "mesh/shop/virtualNode/web"}]), json!({}))
        .await;
    canary(&world, json!({})).await;
    let _mesh = accept(&world, "VirtualRouter", route_status::app_mesh_status);
    let _serin = world.serin_with(everywhere()).await;
    assert_eq!(provider(&world.reaches(Phase::Initialized).await), Provider::AppMeshV1Beta2);
    world.push("web:v2").await;
    assert_eq!(world.released(1).await.phase, Phase::Succeeded);
    assert_eq!(world.get("VirtualRouter", "web").await["status"]["conditions"][0]["status"], "True");
}

/// No kind of App Mesh is in the cluster, only proxies that name their virtual node.
#[tokio::test(start_paused = true)]
async fn the_api_of_app_mesh_is_chosen_where_its_controller_is_not_installed() {
    let world = World::new().await;
    let mesh = world.app_mesh();
    deploy_with_envoy(&world, json!([{"name": NODE_ENV, "value": "mesh/shop/virtualNode/web"}]), json!({}))
        .await;
    canary(&world, json!({})).await;
    let _serin = world.serin_with(Options { app_mesh: mesh.options(), ..everywhere() }).await;
    let status = world.reaches(Phase::Initialized).await;
    assert_eq!(provider(&status), Provider::AppMeshAws);
    let evidence = status.provider_evidence.expect("evidence");
    assert_eq!(
        evidence,
        "app-mesh, native sidecar: spec.initContainers[envoy].env[APPMESH_RESOURCE_ARN] of its pods"
    );
    world.push("web:v2").await;
    assert_eq!(world.released(1).await.phase, Phase::Succeeded);
    let route = Path::Route { router: "web_default".to_owned(), name: "web".to_owned() };
    let weight = |route: &Value| route["httpRoute"]["action"]["weightedTargets"][0]["weight"].as_u64();
    let mut weights: Vec<u64> =
        mesh.as_user(|people| people.history(&route)).iter().filter_map(weight).collect();
    weights.dedup();
    assert_eq!(weights, [0, 20, 50, 0]);
}

#[tokio::test(start_paused = true)]
async fn a_gateway_that_the_canary_names_is_chosen() {
    let world = World::new().await;
    definitions::install(&world.client, definitions::gateway()).await;
    deploy(&world, &[]).await;
    canary(&world, json!({"service": {"gatewayRefs": [{"name": "public"}]}})).await;
    let _gateway = accept_routes(&world);
    let _serin = world.serin_with(everywhere()).await;
    assert_eq!(provider(&world.reaches(Phase::Initialized).await), Provider::GatewayApiV1);
    world.push("web:v2").await;
    assert_eq!(world.released(1).await.phase, Phase::Succeeded);
}

#[tokio::test(start_paused = true)]
async fn without_a_mesh_the_service_switches_and_idle_costs_no_request() {
    let world = World::new().await;
    deploy(&world, &[]).await;
    canary(&world, json!({"analysis": {"iterations": 2, "stepWeights": null}})).await;
    let _serin = world.serin_with(everywhere()).await;
    let status = world.reaches(Phase::Initialized).await;
    assert_eq!(provider(&status), Provider::Kubernetes);
    world.push("web:v2").await;
    assert_eq!(world.released(1).await.phase, Phase::Succeeded);
    world.sleep_long().await;
    let before = world.requests().len();
    world.apply(workload("Deployment", "other", "other:v1")).await;
    tokio::time::sleep(Duration::from_secs(1200)).await;
    assert_eq!(world.requests()[before..], [] as [String; 0], "pods of others are watched, not asked for");
}

#[tokio::test(start_paused = true)]
async fn two_meshes_are_refused_until_one_is_left() {
    let world = World::new().await;
    definitions::install(&world.client, definitions::istio()).await;
    deploy(&world, &[ISTIO, LINKERD]).await;
    canary(&world, json!({})).await;
    let _serin = world.serin_with(everywhere()).await;
    world.becomes("refused", says("two meshes claim Deployment default/web")).await;
    assert!(world.find("VirtualService", "web").await.is_none());
    deploy(&world, &[ISTIO]).await;
    assert_eq!(provider(&world.reaches(Phase::Initialized).await), Provider::Istio);
}

#[tokio::test(start_paused = true)]
async fn a_waypoint_that_is_named_later_is_noticed_without_a_restart() {
    let world = World::new().await;
    definitions::install(&world.client, definitions::gateway()).await;
    definitions::install(&world.client, definitions::inventory()).await;
    let mut web = workload("Deployment", "web", "web:v1");
    web["spec"]["template"]["metadata"]["annotations"] = json!({"ambient.istio.io/redirection": "enabled"});
    world.apply(web).await;
    canary(&world, json!({})).await;
    let _mesh = accept_routes(&world);
    let _serin = world.serin_with(everywhere()).await;
    world.becomes("refused", says("label the namespace or the Service with istio.io/use-waypoint")).await;
    let namespaces: Api<k8s_openapi::api::core::v1::Namespace> = Api::all(world.client.clone());
    let label = json!({"metadata": {"labels": {"istio.io/use-waypoint": "way"}}});
    namespaces.patch("default", &PatchParams::default(), &Patch::Merge(label)).await.expect("a label");
    world.becomes("refused for the waypoint itself", says("its waypoint default/way does not exist")).await;
    let gateway = json!({"apiVersion": "gateway.networking.k8s.io/v1", "kind": "Gateway",
        "metadata": {"name": "way", "namespace": "default"}, "spec": {"gatewayClassName": "istio-waypoint"}});
    super::cluster::create(&world.client, &gateway.to_string()).await;
    assert_eq!(provider(&world.reaches(Phase::Initialized).await), Provider::GatewayApiV1);
}

#[tokio::test(start_paused = true)]
async fn istio_in_ambient_mode_is_refused_with_the_way_out() {
    let world = World::new().await;
    for kinds in [definitions::istio().to_vec(), definitions::gateway().to_vec(), definitions::inventory()] {
        definitions::install(&world.client, kinds).await;
    }
    let mut web = workload("Deployment", "web", "web:v1");
    web["spec"]["template"]["metadata"]["annotations"] = json!({"ambient.istio.io/redirection": "enabled"});
    world.apply(web).await;
    world.canary(json!({"provider": "istio", "analysis": {"metrics": null}})).await;
    let _mesh = accept_routes(&world);
    let _serin = world.serin_with(everywhere()).await;
    let label = "label the namespace or the Service with istio.io/use-waypoint, and set spec.provider to";
    world.becomes("refused", says(label)).await;
    assert!(world.find("VirtualService", "web").await.is_none(), "nothing reads it");

    let gateway = json!({"apiVersion": "gateway.networking.k8s.io/v1", "kind": "Gateway",
        "metadata": {"name": "way", "namespace": "default"}, "spec": {"gatewayClassName": "istio-waypoint"}});
    super::cluster::create(&world.client, &gateway.to_string()).await;
    let namespaces: Api<k8s_openapi::api::core::v1::Namespace> = Api::all(world.client.clone());
    let label = json!({"metadata": {"labels": {"istio.io/use-waypoint": "way"}}});
    namespaces.patch("default", &PatchParams::default(), &Patch::Merge(label)).await.expect("a label");
    world.becomes("refused", says("VirtualService is alpha; set spec.provider to gatewayapi:v1")).await;

    // A gateway of Istio reads VirtualServices, whatever is behind it.
    world.edit(json!({"service": {"gateways": ["infra/public"]}})).await;
    assert_eq!(provider(&world.reaches(Phase::Initialized).await), Provider::Istio);
}

#[tokio::test(start_paused = true)]
async fn definitions_of_a_mesh_that_appear_later_are_noticed_without_a_restart() {
    let world = World::new().await;
    deploy(&world, &[ISTIO]).await;
    canary(&world, json!({})).await;
    let _serin = world.serin_with(everywhere()).await;
    world.becomes("refused", says("the cluster does not serve VirtualService")).await;
    definitions::install(&world.client, definitions::istio()).await;
    assert_eq!(provider(&world.reaches(Phase::Initialized).await), Provider::Istio);
}

#[tokio::test(start_paused = true)]
async fn a_mesh_that_changes_in_a_release_changes_its_provider_only_after_it() {
    let world = World::new().await;
    definitions::install(&world.client, definitions::istio()).await;
    deploy(&world, &[ISTIO]).await;
    canary(&world, json!({})).await;
    let _serin = world.serin_with(everywhere()).await;
    world.reaches(Phase::Initialized).await;
    world.push("web:v2").await;
    world.becomes("at its first weight", |status| status.canary_weight.percent() > 0.0).await;
    // Somebody's pod of the target has the proxy of another mesh.
    world
        .apply(json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {
                "name": "web-stray", "annotations": {LINKERD: "v2"}, "labels": {"pod-template-hash": "stray"},
                "ownerReferences": [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web-stray", "uid": "1", "controller": true}],
            },
            "spec": {"containers": [{"name": "web", "image": "web:v1"}]},
        }))
        .await;
    let status = world.reaches(Phase::Succeeded).await;
    assert_eq!((status.releases, provider(&status)), (1, Provider::Istio));
}

#[tokio::test(start_paused = true)]
async fn a_canary_that_names_its_provider_starts_no_inventory() {
    let world = World::new().await;
    world.canary(json!({"analysis": {"metrics": null}})).await;
    let _serin = world.serin_with(everywhere()).await;
    let status = world.reaches(Phase::Initialized).await;
    assert_eq!(status.provider_evidence, None);
    let asked: Vec<String> = world.requests();
    assert!(asked.iter().all(|request| !request.ends_with("/namespaces")), "{asked:#?}");
}

#[tokio::test(start_paused = true)]
async fn without_an_inventory_a_canary_has_to_name_its_provider() {
    let world = World::new().await;
    deploy(&world, &[]).await;
    canary(&world, json!({})).await;
    let inventory = InventoryOptions { mode: InventoryMode::Never, ..InventoryOptions::default() };
    let _serin = world.serin_with(Options { inventory, ..everywhere() }).await;
    world.becomes("refused", says("spec.provider is missing")).await;
}
