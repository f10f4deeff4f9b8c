//! Which route object wins, by the rules of the mesh that reads it.

use serin::discovery::model::{Inventory, Key, Kind, Outcome, Scope, Service};

use super::{CLUSTER, answer, inventory, web, workload};

fn service<'i>(inventory: &'i Inventory, name: &str) -> &'i Service {
    inventory.service(&Key::new(CLUSTER, "shop", Kind::Service, name)).expect("a Service")
}

/// Kind and outcome, in order.
fn routes(service: &Service) -> Vec<(Kind, bool)> {
    let mesh = service.routes.iter().filter(|route| route.scope == Scope::Mesh);
    mesh.map(|route| (route.route.kind, route.outcome.wins())).collect()
}

fn http_route(name: &str, created: u32) -> String {
    format!(
        "
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {{name: {name}, namespace: shop, creationTimestamp: '2026-01-0{created}T00:00:00Z'}}
spec: {{parentRefs: [{{kind: Service, name: web}}], rules: [{{backendRefs: [{{name: web}}]}}]}}
---
"
    )
}

fn virtual_service(name: &str, created: u32) -> String {
    format!(
        "
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {{name: {name}, namespace: shop, creationTimestamp: '2026-01-0{created}T00:00:00Z'}}
spec: {{hosts: [web.shop.svc.cluster.local], http: [{{route: [{{destination: {{host: web}}}}]}}]}}
---
"
    )
}

const PROFILE: &str = "
apiVersion: linkerd.io/v1alpha2
kind: ServiceProfile
metadata: {name: web.shop.svc.cluster.local, namespace: shop}
---
kind: Served
metadata: {name: httproutes.gateway.networking.k8s.io}
---
";

#[test]
fn a_service_profile_overrides_an_http_route_in_linkerd() {
    let linkerd = web("linkerd.io/proxy-version: v2", "", "");
    let inventory = inventory(&format!("{linkerd}{PROFILE}{}", http_route("web", 1)));
    let service = service(&inventory, "web");
    assert_eq!(routes(service), [(Kind::ServiceProfile, true), (Kind::HttpRoute, false)]);
    let why = answer(workload(&inventory, "web"), "linkerd").why.as_deref();
    assert_eq!(why, Some("ServiceProfile shop/web.shop.svc.cluster.local overrides HTTPRoute"));
}

#[test]
fn the_oldest_virtual_service_of_a_host_wins() {
    let istio = web("sidecar.istio.io/status: '{}'", "", "");
    let inventory = inventory(&format!("{istio}{}{}", virtual_service("a", 2), virtual_service("b", 1)));
    let names: Vec<&str> = service(&inventory, "web").routes.iter().map(|r| r.route.name.as_str()).collect();
    assert_eq!(names, ["b", "a"]);
    let lost = &service(&inventory, "web").routes[1].outcome;
    assert_eq!(*lost, Outcome::Loses("VirtualService shop/b is older".to_owned()));
}

#[test]
fn routes_of_both_kinds_are_undefined_in_ambient_mode() {
    let ambient = web("ambient.istio.io/redirection: enabled", "", "");
    let inventory = inventory(&format!("{ambient}{}{}", virtual_service("web", 1), http_route("web", 2)));
    let routes = &service(&inventory, "web").routes;
    assert!(routes.iter().all(|route| matches!(route.outcome, Outcome::Undefined(_))), "{routes:?}");
}

#[test]
fn without_a_mesh_nothing_reads_a_route_of_the_mesh() {
    let inventory = inventory(&(web("", "", "") + &http_route("web", 1)));
    assert!(matches!(service(&inventory, "web").routes[0].outcome, Outcome::Ignored(_)));
}

#[test]
fn a_route_of_argo_cd_is_named_as_such() {
    let linkerd = web("linkerd.io/proxy-version: v2", "", "");
    let owned = http_route("web", 1).replace(
        "namespace: shop,",
        "namespace: shop, annotations: {argocd.argoproj.io/tracking-id: 'shop-app:x'},",
    );
    let served = "kind: Served\nmetadata: {name: httproutes.gateway.networking.k8s.io}\n---\n";
    let inventory = inventory(&format!("{linkerd}{served}{owned}"));
    let why = answer(workload(&inventory, "web"), "linkerd").why.clone().expect("a reason");
    assert!(why.contains("owned by Argo CD application shop-app"), "{why}");
}

#[test]
fn an_ingress_competes_at_its_own_entrance() {
    let ingress = "
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata: {name: web, namespace: shop}
spec: {ingressClassName: nginx, rules: [{http: {paths: [{backend: {service: {name: web}}}]}}]}
";
    let inventory = inventory(&(web("", "", "") + ingress));
    let route = &service(&inventory, "web").routes[0];
    assert_eq!(
        (&route.scope, &route.outcome),
        (&Scope::Gateway("ingress class nginx".to_owned()), &Outcome::Wins)
    );
}

#[test]
fn services_have_subsets_ports_and_workloads() {
    let inventory = inventory(&web("", "", ""));
    let service = service(&inventory, "web");
    assert_eq!((service.subsets[0].version.as_str(), service.workloads.len()), ("v1", 1));
    assert_eq!((service.ports[0].port, service.ports[0].protocol.as_str()), (80, "http"));
}
