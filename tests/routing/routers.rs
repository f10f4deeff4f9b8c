//! One row a router: how to get it, and what a stranger would do to its route.

use std::sync::Arc;

use kube::api::{ApiResource, DynamicObject};
use serde_json::{Value, json};
use serin::api::canary::Provider;
use serin::routing::{AppMeshOptions, Router, Served, app_mesh as calling_app_mesh, select};

use crate::support::app_mesh::AppMeshServer;

pub struct Row {
    pub provider: Provider,
    pub router: Arc<dyn Router>,
    /// A merge patch of `spec.service`.
    pub service: Value,
    /// A merge patch by which a stranger moves traffic.
    pub meddle: Value,
    /// A route that people had before the Canary, beside `metadata`. None if
    /// the route is the apex Service.
    pub before: Option<Value>,
    /// None if the route is an object of its own.
    pub list: Option<List>,
    /// Where the route is, if not in the cluster.
    pub mesh: Option<AppMeshServer>,
}

/// A list that the route is an entry of, beside those of other people.
pub struct List {
    pub at: &'static str,
    /// For some requests, to somebody else.
    pub theirs: Value,
    /// For some requests, to the apex Service.
    pub apex: Value,
}

impl List {
    pub fn of<'a>(&self, object: &'a DynamicObject) -> &'a [Value] {
        object.data.pointer(self.at).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default()
    }
}

pub fn kubernetes() -> Row {
    Row {
        provider: Provider::Kubernetes,
        router: chosen(Provider::Kubernetes, Served::default()),
        service: json!({}),
        meddle: json!({"spec": {"selector": {"app": "somebody-else"}}}),
        before: None,
        list: None,
        mesh: None,
    }
}

pub fn smi_v1alpha1() -> Row {
    smi("v1alpha1", json!("33"), json!("67"))
}

pub fn smi_v1alpha2() -> Row {
    smi("v1alpha2", json!(33), json!(67))
}

pub fn smi_v1alpha3() -> Row {
    smi("v1alpha3", json!(33), json!(67))
}

pub fn smi_v1alpha4() -> Row {
    smi("v1alpha4", json!(33), json!(67))
}

fn smi(version: &str, third: Value, rest: Value) -> Row {
    let served = [
        resource("split.smi-spec.io", version, "TrafficSplit", "trafficsplits"),
        resource("specs.smi-spec.io", "v1alpha4", "HTTPRouteGroup", "httproutegroups"),
    ];
    let backends = |one: &str, other: &str| json!({"spec": {"backends": [{"service": one, "weight": third}, {"service": other, "weight": rest}]}});
    let mut before = backends("blue", "green");
    before["spec"]["service"] = json!("web");
    Row {
        provider: Provider::Linkerd,
        router: chosen(Provider::Linkerd, served.into_iter().collect()),
        service: json!({}),
        meddle: backends("web-canary", "web-primary"),
        before: Some(before),
        list: None,
        mesh: None,
    }
}

/// North-south: two Gateways, one of them in another namespace.
pub fn gateway() -> Row {
    let gateways =
        json!([{"name": "public"}, {"name": "internal", "namespace": "infra", "sectionName": "https"}]);
    let service = json!({"gatewayRefs": gateways, "hosts": ["shop.example.com"]});
    let condition = |path: &str| json!([{"path": {"type": "PathPrefix", "value": path}}]);
    gateway_row(Provider::GatewayApiV1, service, condition)
}

/// Within a mesh: the apex Service is the parent.
pub fn gateway_mesh() -> Row {
    let condition = |path: &str| json!([{"path": {"type": "PathPrefix", "value": path}}]);
    gateway_row(Provider::Linkerd, json!({}), condition)
}

pub fn gateway_grpc() -> Row {
    let service = json!({"portName": "grpc", "gatewayRefs": [{"name": "public"}]});
    let condition = |path: &str| json!([{"headers": [{"name": "x-path", "value": path}]}]);
    gateway_row(Provider::GatewayApiV1Beta1, service, condition)
}

fn gateway_row(provider: Provider, service: Value, condition: impl Fn(&str) -> Value) -> Row {
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
    Row {
        provider,
        router: chosen(provider, served.into_iter().collect()),
        service,
        meddle: json!({"spec": {"rules": [{"backendRefs": backends("web-canary", "web-primary")}]}}),
        before: Some(before),
        list: Some(List { at: "/spec/rules", theirs, apex }),
        mesh: None,
    }
}

pub fn istio() -> Row {
    let condition = |path: &str| json!([{"uri": {"prefix": path}}]);
    istio_row("v1", "/spec/http", json!({}), condition)
}

/// The oldest version that is served, at a gateway.
pub fn istio_v1alpha3() -> Row {
    let service =
        json!({"gateways": ["infra/public"], "hosts": ["shop.example.com"], "portDiscovery": false});
    let condition = |path: &str| json!([{"headers": {"x-path": {"exact": path}}}]);
    istio_row("v1alpha3", "/spec/http", service, condition)
}

pub fn istio_tcp() -> Row {
    let condition = |path: &str| json!([{"port": 4000 + path.len()}]);
    istio_row("v1", "/spec/tcp", json!({"portName": "tcp-store"}), condition)
}

fn istio_row(version: &str, at: &'static str, service: Value, condition: impl Fn(&str) -> Value) -> Row {
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
    before["spec"][field] = json!([theirs, {"route": route("blue", "green")}]);
    meddle["spec"][field] = json!([{"route": route("web-canary", "web-primary")}]);
    Row {
        provider: Provider::Istio,
        router: chosen(Provider::Istio, served.into_iter().collect()),
        service,
        meddle,
        before: Some(before),
        list: Some(List { at, theirs, apex }),
        mesh: None,
    }
}

pub fn app_mesh() -> Row {
    app_mesh_row("http", json!({}))
}

pub fn app_mesh_grpc() -> Row {
    app_mesh_row("grpc", json!({"portName": "grpc"}))
}

fn app_mesh_row(protocol: &str, service: Value) -> Row {
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
    Row {
        provider: Provider::AppMeshV1Beta2,
        router: chosen(Provider::AppMeshV1Beta2, served.into_iter().collect()),
        service,
        meddle: json!({"spec": {"routes": [route("web", everything, pair("web-canary", "web-primary"))]}}),
        before: Some(json!({"spec": {"listeners": [listener], "routes": [theirs, rest]}})),
        list: Some(List { at: "/spec/routes", theirs, apex }),
        mesh: None,
    }
}

pub fn app_mesh_api() -> Row {
    app_mesh_api_row("http", json!({}))
}

pub fn app_mesh_api_grpc() -> Row {
    app_mesh_api_row("grpc", json!({"portName": "grpc"}))
}

pub fn app_mesh_api_tcp() -> Row {
    app_mesh_api_row("tcp", json!({"portName": "tcp-store"}))
}

fn app_mesh_api_row(protocol: &str, service: Value) -> Row {
    let mesh = AppMeshServer::start();
    let (provider, router) = (Provider::AppMeshAws, Some(calling(mesh.options())));
    let node = |name: &str, weight: u8| json!({"virtualNode": name, "weight": weight});
    let mut route = json!({"action": {"weightedTargets": [node("blue", 33), node("green", 67)]}});
    match protocol {
        "http" => route["match"] = json!({"prefix": "/"}),
        "grpc" => route["match"] = json!({}),
        _ => {}
    }
    let route = json!({"spec": {format!("{protocol}Route"): route}});
    Row {
        provider,
        router: select(Some(provider), None, &Served::default(), router.as_ref()).expect("a router").router,
        service,
        meddle: route.clone(),
        before: Some(route),
        list: None,
        mesh: Some(mesh),
    }
}

pub fn calling(options: AppMeshOptions) -> Arc<dyn Router> {
    serin::tls::choose_cryptography();
    calling_app_mesh(&options, Arc::new(|_, _| true)).expect("a build that can")
}

fn chosen(provider: Provider, served: Served) -> Arc<dyn Router> {
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
