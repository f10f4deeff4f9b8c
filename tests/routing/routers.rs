//! One case per router: how to select it, and how another client edits its route.

use std::sync::Arc;

use kube::api::{ApiResource, DynamicObject};
use serde_json::{Value, json};
use serin::api::canary::Provider;
use serin::routing::{AppMeshOptions, Router, ServedKinds, app_mesh as calling_app_mesh, select};

use crate::support::app_mesh::AppMeshServer;

pub struct RouterCase {
    pub provider: Provider,
    pub router: Arc<dyn Router>,
    /// A merge patch of `spec.service`.
    pub service: Value,
    /// A merge patch by which another client changes the weights.
    pub foreign_patch: Value,
    /// A route from before the Canary, without `metadata`. None if the route is
    /// the apex Service.
    pub existing_route: Option<Value>,
    /// None if the route is an object of its own.
    pub list: Option<SharedListCase>,
    /// The mesh of a route outside the cluster.
    pub mesh: Option<AppMeshServer>,
}

/// A list with the route as one entry, next to those of others.
pub struct SharedListCase {
    pub at: &'static str,
    /// An entry with a condition and another backend.
    pub foreign_entry: Value,
    /// An entry with a condition and the apex Service as backend.
    pub apex_entry: Value,
}

impl SharedListCase {
    pub fn of<'a>(&self, object: &'a DynamicObject) -> &'a [Value] {
        object.data.pointer(self.at).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default()
    }
}

pub fn kubernetes() -> RouterCase {
    RouterCase {
        provider: Provider::Kubernetes,
        router: selected_router(Provider::Kubernetes, ServedKinds::default()),
        service: json!({}),
        foreign_patch: json!({"spec": {"selector": {"app": "other"}}}),
        existing_route: None,
        list: None,
        mesh: None,
    }
}

pub fn smi_v1alpha1() -> RouterCase {
    smi("v1alpha1", json!("33"), json!("67"))
}

pub fn smi_v1alpha2() -> RouterCase {
    smi("v1alpha2", json!(33), json!(67))
}

pub fn smi_v1alpha3() -> RouterCase {
    smi("v1alpha3", json!(33), json!(67))
}

pub fn smi_v1alpha4() -> RouterCase {
    smi("v1alpha4", json!(33), json!(67))
}

fn smi(version: &str, third: Value, rest: Value) -> RouterCase {
    let served = [
        resource("split.smi-spec.io", version, "TrafficSplit", "trafficsplits"),
        resource("specs.smi-spec.io", "v1alpha4", "HTTPRouteGroup", "httproutegroups"),
    ];
    let backends = |one: &str, other: &str| json!({"spec": {"backends": [{"service": one, "weight": third}, {"service": other, "weight": rest}]}});
    let mut before = backends("blue", "green");
    before["spec"]["service"] = json!("web");
    RouterCase {
        provider: Provider::Linkerd,
        router: selected_router(Provider::Linkerd, served.into_iter().collect()),
        service: json!({}),
        foreign_patch: backends("web-canary", "web-primary"),
        existing_route: Some(before),
        list: None,
        mesh: None,
    }
}

pub fn xds() -> RouterCase {
    let service = json!({"hosts": ["shop.example.com"], "retries": {"attempts": 2, "retryOn": "5xx"}});
    xds_row(service)
}

/// Weights only.
pub fn xds_tcp() -> RouterCase {
    xds_row(json!({"portName": "tcp-store"}))
}

fn xds_row(service: Value) -> RouterCase {
    let served = [resource("serin.dev", "v1alpha1", "MeshRoute", "meshroutes")];
    let backends =
        |one: &str, other: &str| json!([{"service": one, "weight": 33}, {"service": other, "weight": 67}]);
    let rules = json!([{"backends": backends("blue", "green"), "timeout": "9s"}]);
    RouterCase {
        provider: Provider::Xds,
        router: selected_router(Provider::Xds, served.into_iter().collect()),
        service,
        foreign_patch: json!({"spec": {"rules": [{"backends": backends("web-canary", "web-primary")}]}}),
        existing_route: Some(json!({"spec": {"service": "blue", "port": 8080, "rules": rules}})),
        list: None,
        mesh: None,
    }
}

/// North-south: two Gateways, one of them in another namespace.
pub fn gateway() -> RouterCase {
    let gateways =
        json!([{"name": "public"}, {"name": "internal", "namespace": "infra", "sectionName": "https"}]);
    let service = json!({"gatewayRefs": gateways, "hosts": ["shop.example.com"]});
    let condition = |path: &str| json!([{"path": {"type": "PathPrefix", "value": path}}]);
    gateway_row(Provider::GatewayApiV1, service, condition)
}

/// Within a mesh: the apex Service is the parent.
pub fn gateway_mesh() -> RouterCase {
    let condition = |path: &str| json!([{"path": {"type": "PathPrefix", "value": path}}]);
    gateway_row(Provider::Linkerd, json!({}), condition)
}

pub fn gateway_grpc() -> RouterCase {
    let service = json!({"portName": "grpc", "gatewayRefs": [{"name": "public"}]});
    let condition = |path: &str| json!([{"headers": [{"name": "x-path", "value": path}]}]);
    gateway_row(Provider::GatewayApiV1Beta1, service, condition)
}

fn gateway_row(provider: Provider, service: Value, condition: impl Fn(&str) -> Value) -> RouterCase {
    let group = "gateway.networking.k8s.io";
    let served = [
        resource(group, "v1", "HTTPRoute", "httproutes"),
        resource(group, "v1beta1", "HTTPRoute", "httproutes"),
        resource(group, "v1", "GRPCRoute", "grpcroutes"),
    ];
    let backends = |one: &str, other: &str| json!([{"name": one, "port": 80, "weight": 33}, {"name": other, "port": 80, "weight": 67}]);
    let theirs = json!({"matches": condition("/legacy"), "backendRefs": backends("legacy", "older")});
    let filter = json!({"type": "RequestHeaderModifier", "requestHeaderModifier": {"remove": ["x-debug"]}});
    let apex = json!({"matches": condition("/shop"), "filters": [filter], "backendRefs": [{"name": "web", "port": 80}]});
    let mut before = json!({"spec": {"rules": [theirs, {"backendRefs": backends("blue", "green")}]}});
    before["spec"]["parentRefs"] = json!([{"name": "old"}]);
    RouterCase {
        provider,
        router: selected_router(provider, served.into_iter().collect()),
        service,
        foreign_patch: json!({"spec": {"rules": [{"backendRefs": backends("web-canary", "web-primary")}]}}),
        existing_route: Some(before),
        list: Some(SharedListCase { at: "/spec/rules", foreign_entry: theirs, apex_entry: apex }),
        mesh: None,
    }
}

pub fn istio() -> RouterCase {
    let condition = |path: &str| json!([{"uri": {"prefix": path}}]);
    istio_row("v1", "/spec/http", json!({}), condition)
}

/// The oldest version that is served, at a gateway.
pub fn istio_v1alpha3() -> RouterCase {
    let service =
        json!({"gateways": ["infra/public"], "hosts": ["shop.example.com"], "portDiscovery": false});
    let condition = |path: &str| json!([{"headers": {"x-path": {"exact": path}}}]);
    istio_row("v1alpha3", "/spec/http", service, condition)
}

pub fn istio_tcp() -> RouterCase {
    let condition = |path: &str| json!([{"port": 4000 + path.len()}]);
    istio_row("v1", "/spec/tcp", json!({"portName": "tcp-store"}), condition)
}

/// Within the mesh, where the sidecars do not decrypt.
pub fn istio_tls() -> RouterCase {
    let condition =
        |path: &str| json!([{"sniHosts": [format!("{}.example.com", path.trim_start_matches('/'))]}]);
    let service = json!({"portName": "tls-store", "hosts": ["store.example.com"]});
    istio_row("v1", "/spec/tls", service, condition)
}

fn istio_row(
    version: &str,
    at: &'static str,
    service: Value,
    condition: impl Fn(&str) -> Value,
) -> RouterCase {
    let group = "networking.istio.io";
    let served = [
        resource(group, version, "VirtualService", "virtualservices"),
        resource(group, version, "DestinationRule", "destinationrules"),
    ];
    let route = |one: &str, other: &str| json!([{"destination": {"host": one}, "weight": 33}, {"destination": {"host": other}, "weight": 67}]);
    let theirs = json!({"match": condition("/legacy"), "route": route("legacy", "older")});
    let mut apex = json!({"match": condition("/shop"), "route": [{"destination": {"host": "web"}}]});
    let (mut before, mut meddle) =
        (json!({"spec": {"hosts": ["web"], "exportTo": ["."]}}), json!({"spec": {}}));
    let field = at.rsplit('/').next().expect("a field");
    if field == "http" {
        apex["name"] = json!("shop");
        apex["retries"] = json!({"attempts": 3});
        apex["fault"] = json!({"abort": {"httpStatus": 503, "percentage": {"value": 0.1}}});
    }
    let (mut rest, mut ours) =
        (json!({"route": route("blue", "green")}), json!({"route": route("web-canary", "web-primary")}));
    if field == "tls" {
        // A TLS route has a server name.
        (rest["match"], ours["match"]) = (condition("/rest"), condition("/store"));
    }
    before["spec"][field] = json!([theirs, rest]);
    meddle["spec"][field] = json!([ours]);
    RouterCase {
        provider: Provider::Istio,
        router: selected_router(Provider::Istio, served.into_iter().collect()),
        service,
        foreign_patch: meddle,
        existing_route: Some(before),
        list: Some(SharedListCase { at, foreign_entry: theirs, apex_entry: apex }),
        mesh: None,
    }
}

pub fn app_mesh() -> RouterCase {
    app_mesh_row("http", json!({}))
}

pub fn app_mesh_grpc() -> RouterCase {
    app_mesh_row("grpc", json!({"portName": "grpc"}))
}

fn app_mesh_row(protocol: &str, service: Value) -> RouterCase {
    let group = "appmesh.k8s.aws";
    let served = [
        resource(group, "v1beta2", "VirtualRouter", "virtualrouters"),
        resource(group, "v1beta2", "VirtualNode", "virtualnodes"),
        resource(group, "v1beta2", "VirtualService", "virtualservices"),
    ];
    let kind = format!("{protocol}Route");
    let condition = |at: &str| match protocol {
        "grpc" => json!({"serviceName": at.trim_start_matches('/')}),
        _ => json!({"prefix": at}),
    };
    let everything = if protocol == "grpc" { json!({}) } else { json!({"prefix": "/"}) };
    let node = |name: &str, weight: u8| json!({"virtualNodeRef": {"name": name}, "weight": weight});
    let route = |name: &str, condition: Value, targets: Value| json!({"name": name, kind.as_str(): {"match": condition, "action": {"weightedTargets": targets}}});
    let pair = |one: &str, other: &str| json!([node(one, 33), node(other, 67)]);
    let theirs = route("theirs", condition("/legacy"), pair("legacy", "older"));
    let mut apex = route("shop", condition("/shop"), json!([node("web", 100)]));
    apex["priority"] = json!(7);
    let listener = json!({"portMapping": {"port": 8080, "protocol": protocol}});
    let rest = route("rest", everything.clone(), pair("blue", "green"));
    RouterCase {
        provider: Provider::AppMeshV1Beta2,
        router: selected_router(Provider::AppMeshV1Beta2, served.into_iter().collect()),
        service,
        foreign_patch: json!({"spec": {"routes": [route("web", everything, pair("web-canary", "web-primary"))]}}),
        existing_route: Some(json!({"spec": {"listeners": [listener], "routes": [theirs, rest]}})),
        list: Some(SharedListCase { at: "/spec/routes", foreign_entry: theirs, apex_entry: apex }),
        mesh: None,
    }
}

pub fn app_mesh_api() -> RouterCase {
    app_mesh_api_row("http", json!({}))
}

pub fn app_mesh_api_grpc() -> RouterCase {
    app_mesh_api_row("grpc", json!({"portName": "grpc"}))
}

pub fn app_mesh_api_tcp() -> RouterCase {
    app_mesh_api_row("tcp", json!({"portName": "tcp-store"}))
}

fn app_mesh_api_row(protocol: &str, service: Value) -> RouterCase {
    let mesh = AppMeshServer::start();
    let (provider, router) = (Provider::AppMeshAws, Some(app_mesh_router(mesh.options())));
    let node = |name: &str, weight: u8| json!({"virtualNode": name, "weight": weight});
    let mut route = json!({"action": {"weightedTargets": [node("blue", 33), node("green", 67)]}});
    match protocol {
        "http" => route["match"] = json!({"prefix": "/"}),
        "grpc" => route["match"] = json!({}),
        _ => {}
    }
    let route = json!({"spec": {format!("{protocol}Route"): route}});
    RouterCase {
        provider,
        router: select(Some(provider), None, &ServedKinds::default(), router.as_ref())
            .expect("a router")
            .router,
        service,
        foreign_patch: route.clone(),
        existing_route: Some(route),
        list: None,
        mesh: Some(mesh),
    }
}

pub fn app_mesh_router(options: AppMeshOptions) -> Arc<dyn Router> {
    serin::tls::install_crypto_provider();
    calling_app_mesh(&options, Arc::new(|_, _| true)).expect("a build that can")
}

fn selected_router(provider: Provider, served: ServedKinds) -> Arc<dyn Router> {
    select(Some(provider), None, &served, None).unwrap_or_else(|why| panic!("{why}")).router
}

fn resource(group: &str, version: &str, kind: &str, plural: &str) -> ApiResource {
    ApiResource {
        group: group.to_owned(),
        version: version.to_owned(),
        api_version: format!("{group}/{version}"),
        kind: kind.to_owned(),
        plural: plural.to_owned(),
    }
}
