//! The provider of a Canary that names none.

use serin::discovery::model::{Choice, Inventory, Key, Kind, Provider, RouteHints};

use super::{CLUSTER, inventory, web};

const GATEWAY_API: &str = "kind: Served\nmetadata: {name: httproutes.gateway.networking.k8s.io}\n---\n";
const ISTIO_API: &str = "kind: Served\nmetadata: {name: virtualservices.networking.istio.io}\n---\n";
const SMI_API: &str = "kind: Served\nmetadata: {name: trafficsplits.split.smi-spec.io}\n---\n";
const APP_MESH_API: &str = "kind: Served\nmetadata: {name: virtualrouters.appmesh.k8s.aws}\n---\n";

const NO_HINTS: RouteHints = RouteHints { gateway_refs: false, istio_gateways: false };

fn choose(inventory: &Inventory, hints: RouteHints) -> Choice {
    let key = |name: &str| Key::new(CLUSTER, "shop", Kind::Deployment, name);
    inventory.choose(&key("web"), &key("web-primary"), hints)
}

/// The provider, or panics with the sentence.
fn chosen(yaml: &str, hints: RouteHints) -> (Provider, String) {
    match choose(&inventory(yaml), hints) {
        Choice::Chosen { provider, evidence } => (provider, evidence),
        other => panic!("{other:?}"),
    }
}

fn refused(yaml: &str) -> String {
    match choose(&inventory(yaml), NO_HINTS) {
        Choice::Refused(why) => why,
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_mesh_of_the_pods_decides() {
    let apis = [GATEWAY_API, ISTIO_API, SMI_API, APP_MESH_API].concat();
    let istio = web("sidecar.istio.io/status: '{}'", "", "");
    let linkerd = web("linkerd.io/proxy-version: v2", "", "");
    let osm = web("", "osm-proxy-uuid: '1'", "containers: [{name: envoy}]");
    let app_mesh =
        web("", "", "containers: [{name: envoy, env: [{name: APPMESH_RESOURCE_ARN, value: 'arn'}]}]");
    for (pods, expected, evidence) in [
        (istio, Provider::Istio, "istio, sidecar: metadata.annotations[sidecar.istio.io/status] of its pods"),
        (
            linkerd,
            Provider::Linkerd,
            "linkerd, sidecar: metadata.annotations[linkerd.io/proxy-version] of its pods",
        ),
        (
            osm,
            Provider::Osm,
            "osm, sidecar: spec.containers[envoy] and metadata.labels[osm-proxy-uuid] of its pods",
        ),
        (
            app_mesh,
            Provider::AppMesh,
            "app-mesh, sidecar: spec.containers[envoy].env[APPMESH_RESOURCE_ARN] of its pods",
        ),
        (web("", "", ""), Provider::Kubernetes, "no pod of Deployment shop/web is in a mesh"),
    ] {
        assert_eq!(chosen(&(pods + &apis), NO_HINTS), (expected, evidence.to_owned()));
    }
}

#[test]
fn app_mesh_is_reached_by_its_api_where_its_controller_is_not_installed() {
    let app_mesh =
        web("", "", "containers: [{name: envoy, env: [{name: APPMESH_RESOURCE_ARN, value: 'arn'}]}]");
    assert_eq!(chosen(&app_mesh, NO_HINTS).0, Provider::AppMeshApi);
    assert_eq!(chosen(&(app_mesh + APP_MESH_API), NO_HINTS).0, Provider::AppMesh);
}

#[test]
fn gateways_that_a_canary_names_decide() {
    let plain = web("", "", "") + GATEWAY_API + ISTIO_API;
    let named = RouteHints { gateway_refs: true, ..NO_HINTS };
    assert_eq!(chosen(&plain, named).0, Provider::GatewayApi);
    let istio = RouteHints { istio_gateways: true, ..NO_HINTS };
    assert_eq!(chosen(&plain, istio).0, Provider::Istio);
    let sidecar = web("sidecar.istio.io/status: '{}'", "", "") + GATEWAY_API + ISTIO_API;
    assert_eq!(chosen(&sidecar, named).0, Provider::GatewayApi, "the Canary comes before the pods");
}

#[test]
fn two_meshes_are_refused_with_the_evidence_of_both() {
    let why = refused(&web("sidecar.istio.io/status: '{}', linkerd.io/proxy-version: v2", "", ""));
    assert!(why.starts_with("two meshes claim Deployment shop/web: istio, sidecar: "), "{why}");
    assert!(why.contains("and linkerd, sidecar: metadata.annotations[linkerd.io/proxy-version]"), "{why}");
    assert!(why.ends_with("or set spec.provider"), "{why}");
}

#[test]
fn ambient_needs_a_waypoint_that_exists() {
    let ambient = web("ambient.istio.io/redirection: enabled", "", "") + GATEWAY_API + ISTIO_API;
    let why = refused(&ambient);
    assert!(why.contains("label the namespace or the Service with istio.io/use-waypoint"), "{why}");
    let namespace = "kind: Namespace\nmetadata: {name: shop, labels: {istio.io/use-waypoint: way}}\n---\n";
    let why = refused(&(ambient.clone() + namespace));
    assert!(why.contains("its waypoint shop/way does not exist"), "{why}");
    let gateway = "kind: Gateway\nmetadata: {name: way, namespace: shop}\nspec: {gatewayClassName: istio-waypoint}\n---\n";
    let (provider, evidence) = chosen(&(ambient + namespace + gateway), NO_HINTS);
    assert_eq!(provider, Provider::GatewayApi);
    assert!(evidence.starts_with("istio, ambient, waypoint shop/way: "), "{evidence}");
}

#[test]
fn a_mesh_without_its_kinds_or_without_proxies_is_refused() {
    let istio = web("sidecar.istio.io/status: '{}'", "", "");
    assert!(refused(&istio).contains("the cluster does not serve VirtualService"));
    let opted = "kind: Namespace\nmetadata: {name: shop, labels: {istio-injection: enabled}}\n---\n";
    let why = refused(&(web("", "", "") + ISTIO_API + opted));
    assert!(why.contains("no pod has its proxy; restart the workload"), "{why}");
    let kuma = refused(&web("kuma.io/sidecar-injected: 'true'", "", ""));
    assert!(kuma.contains("is in kuma, which Serin cannot route through"), "{kuma}");
}

#[test]
fn a_service_behind_a_gateway_needs_the_gateway_in_the_canary() {
    let route = "
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: public, namespace: shop}
spec: {parentRefs: [{name: edge}], rules: [{backendRefs: [{name: web}]}]}
---
";
    let why = refused(&(web("", "", "") + GATEWAY_API + route));
    assert!(why.contains("HTTPRoute shop/public routes requests of Gateway shop/edge to it"), "{why}");
    assert!(why.contains("set spec.service.gatewayRefs"), "{why}");
}

#[test]
fn without_pods_the_primary_decides_and_without_both_nothing_does() {
    let target = "
kind: Deployment
metadata: {name: web, namespace: shop}
spec: {replicas: 0, template: {metadata: {labels: {app: web}}}}
---
";
    let unknown = choose(&inventory(target), NO_HINTS);
    assert!(
        matches!(&unknown, Choice::Unknown(why) if why.contains("no pod of Deployment shop/web runs")),
        "{unknown:?}"
    );
    let primary = web("sidecar.istio.io/status: '{}'", "", "")
        .replace("name: web,", "name: web-primary,")
        .replace("web-abc", "web-primary-abc");
    assert_eq!(chosen(&(target.to_owned() + &primary + ISTIO_API), NO_HINTS).0, Provider::Istio);
    let missing = choose(&inventory(""), NO_HINTS);
    assert_eq!(missing, Choice::Unknown("Deployment shop/web does not exist".to_owned()));
}
