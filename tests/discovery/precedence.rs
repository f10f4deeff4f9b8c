//! Which route object wins, by the rules of the mesh that reads it.

use serin::discovery::model::{External, Inventory, Key, Kind, Object, Outcome, Scope, Service};

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
fn a_route_of_argo_cd_at_a_gateway_is_named_by_annotation_or_label() {
    let class = "
apiVersion: gateway.networking.k8s.io/v1
kind: GatewayClass
metadata: {name: edge}
spec: {controllerName: example.com/gateway}
status: {conditions: [{type: Accepted, status: 'True'}]}
---
kind: Served
metadata: {name: httproutes.gateway.networking.k8s.io}
---
";
    let route = http_route("web", 1).replace("{kind: Service, name: web}", "{name: edge}");
    let free = inventory(&(web("", "", "") + class + &route));
    assert!(answer(workload(&free, "web"), "gatewayapi").yes);
    for owner in [
        "annotations: {argocd.argoproj.io/tracking-id: 'edge:x'}",
        "labels: {argocd.argoproj.io/instance: edge}",
    ] {
        let owned = route.replace("namespace: shop,", &format!("namespace: shop, {owner},"));
        let inventory = inventory(&(web("", "", "") + class + &owned));
        let why = answer(workload(&inventory, "web"), "gatewayapi").why.clone().expect("a reason");
        assert!(why.contains("HTTPRoute shop/web is owned by Argo CD application edge"), "{why}");
    }
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

/// Name and outcome of the routes for calls in the mesh, in order.
fn outcomes(service: &Service) -> Vec<(&str, &Outcome)> {
    let mesh = service.routes.iter().filter(|route| route.scope == Scope::Mesh);
    mesh.map(|route| (route.route.name.as_str(), &route.outcome)).collect()
}

fn grpc_route(name: &str, created: u32) -> String {
    http_route(name, created).replace("kind: HTTPRoute", "kind: GRPCRoute")
}

const ISTIO: &str = "sidecar.istio.io/status: '{}'";
const LINKERD: &str = "linkerd.io/proxy-version: v2";

#[test]
fn http_routes_of_one_namespace_are_merged_by_istio_and_linkerd() {
    for mesh in [ISTIO, LINKERD] {
        let routes = http_route("second", 2) + &http_route("first", 1);
        let inventory = inventory(&(web(mesh, "", "") + &routes));
        let expected = [("first", &Outcome::Wins), ("second", &Outcome::Merged)];
        assert_eq!(outcomes(service(&inventory, "web")), expected, "{mesh}");
    }
}

#[test]
fn istio_does_not_merge_http_routes_of_two_namespaces() {
    let foreign = http_route("foreign", 1)
        .replace("namespace: shop,", "namespace: bank,")
        .replace("{kind: Service, name: web}", "{kind: Service, name: web, namespace: shop}");
    let inventory = inventory(&(web(ISTIO, "", "") + &foreign + &http_route("own", 2)));
    let [(_, own), (_, foreign)] = outcomes(service(&inventory, "web"))[..] else { panic!("two routes") };
    assert_eq!(*own, Outcome::Wins, "that of the Service's namespace comes first, although it is younger");
    assert!(matches!(foreign, Outcome::Loses(_)), "{foreign:?}");
}

#[test]
fn a_grpc_route_hides_the_http_routes_of_linkerd_and_is_merged_by_istio() {
    let routes = http_route("http", 1) + &grpc_route("grpc", 2);
    let linkerd = inventory(&(web(LINKERD, "", "") + &routes));
    let why = "GRPCRoute shop/grpc is attached to the same Service".to_owned();
    let expected = [("grpc", &Outcome::Wins), ("http", &Outcome::Loses(why))];
    assert_eq!(outcomes(service(&linkerd, "web")), expected);
    let istio = inventory(&(web(ISTIO, "", "") + &routes));
    assert_eq!(outcomes(service(&istio, "web")), [("http", &Outcome::Wins), ("grpc", &Outcome::Merged)]);
}

#[test]
fn the_service_profile_of_another_namespace_is_for_its_clients_only() {
    let other = PROFILE.replace("namespace: shop", "namespace: bank");
    let inventory = inventory(&(web(LINKERD, "", "") + &other + PROFILE));
    let routes = &service(&inventory, "web").routes;
    assert_eq!((routes[0].route.namespace.as_str(), &routes[0].outcome), ("shop", &Outcome::Wins));
    assert!(
        routes[1].outcome.why().is_some_and(|why| why.ends_with("except for clients in bank")),
        "{routes:?}"
    );
}

#[test]
fn kuma_reads_one_http_route_and_consul_none() {
    let kuma = web("kuma.io/sidecar-injected: 'true'", "", "");
    let one = inventory(&(kuma.clone() + &http_route("web", 1) + &virtual_service("vs", 1)));
    let [(_, first), (_, vs)] = outcomes(service(&one, "web"))[..] else { panic!("two routes") };
    assert_eq!(*first, Outcome::Wins);
    assert!(matches!(vs, Outcome::Ignored(_)), "{vs:?}");
    let two = inventory(&(kuma + &http_route("a", 1) + &http_route("b", 2)));
    let second = outcomes(service(&two, "web"))[1].1;
    assert!(matches!(second, Outcome::Undefined(why) if why.contains("HTTPRoute shop/a")), "{second:?}");
    let consul = web("consul.hashicorp.com/connect-inject-status: injected", "", "");
    let consul = inventory(&(consul + &http_route("web", 1)));
    let read = outcomes(service(&consul, "web"))[0].1;
    assert!(matches!(read, Outcome::Ignored(why) if why.contains("ServiceSplitter")), "{read:?}");
}

#[test]
fn cilium_reads_http_routes_in_the_namespace_of_the_service() {
    let class = "
apiVersion: gateway.networking.k8s.io/v1
kind: GatewayClass
metadata: {name: cilium}
spec: {controllerName: io.cilium/gateway-controller}
status: {conditions: [{type: Accepted, status: 'True'}]}
---
";
    let consumer = http_route("consumer", 1)
        .replace("namespace: shop,", "namespace: bank,")
        .replace("{kind: Service, name: web}", "{kind: Service, name: web, namespace: shop}");
    let inventory = inventory(&(web("", "", "") + class + &consumer + &http_route("own", 2)));
    let [(_, consumer), (_, own)] = outcomes(service(&inventory, "web"))[..] else { panic!("two routes") };
    assert_eq!(*own, Outcome::Wins);
    assert!(matches!(consumer, Outcome::Ignored(_)), "{consumer:?}");
}

const ACCOUNT: &str = "aws:123456789012:eu-west-1";

/// A pod of `web` that is a virtual node of the mesh `shop`.
fn in_app_mesh() -> String {
    let env = "env: [{name: APPMESH_RESOURCE_ARN, value: mesh/shop/virtualNode/web}]";
    web("", "", &format!("containers: [{{name: envoy, {env}}}]"))
}

fn virtual_service_of(mesh: &str, name: &str, router: &str) -> Object {
    let key = Key::new(ACCOUNT, mesh, Kind::AppMeshVirtualService, name);
    let provider = Some(format!("virtualRouter/{router}"));
    Object::external(key, Some(1), External::VirtualService { provider })
}

fn route(name: &str, priority: Option<i32>) -> Object {
    let targets = vec!["virtualNode/web=100".to_owned()];
    let key = Key::new(ACCOUNT, "shop", Kind::AppMeshRoute, name);
    Object::external(key, Some(1), External::Route { targets, priority })
}

#[test]
fn in_app_mesh_the_virtual_service_wins_and_its_routes_follow_by_priority() {
    let mut inventory = inventory(&(in_app_mesh() + &http_route("web", 1)));
    for object in [
        virtual_service_of("shop", "web.shop.svc.cluster.local", "web"),
        virtual_service_of("other-mesh", "web.shop", "web"),
        virtual_service_of("shop", "web.bank", "web"),
        route("web/rest", None),
        route("web/beta", Some(10)),
        route("web/first", Some(0)),
        route("api/all", Some(0)),
    ] {
        inventory.apply(object);
    }
    inventory.refresh();
    let ignored = Outcome::Ignored("the mesh does not read HTTPRoute objects".to_owned());
    let expected = [
        ("web.shop.svc.cluster.local", &Outcome::Wins),
        ("web/first", &Outcome::Merged),
        ("web/beta", &Outcome::Merged),
        ("web/rest", &Outcome::Merged),
        ("web", &ignored),
    ];
    assert_eq!(outcomes(service(&inventory, "web")), expected);
}

#[test]
fn a_route_of_app_mesh_that_changes_changes_the_services_behind_it() {
    let mut inventory = inventory(&in_app_mesh());
    inventory.apply(virtual_service_of("shop", "web.shop", "web"));
    inventory.apply(route("web/all", None));
    inventory.refresh();
    inventory.remove(&Key::new(ACCOUNT, "shop", Kind::AppMeshRoute, "web/all"), None);
    assert_eq!(inventory.refresh(), [Key::new(CLUSTER, "shop", Kind::Service, "web")].into());
    assert_eq!(outcomes(service(&inventory, "web")), [("web.shop", &Outcome::Wins)]);
}
