use std::sync::Arc;

use serde_json::{Value, json};

use super::*;
use crate::{
    api::MeshRouteSpec,
    catalog::{
        Access, AccessRule, Catalog, DefaultAccess, EndpointsProvider, Health, MeshTopology, Protocol,
        ServiceKey,
    },
};

/// A catalog that the objects of a cluster feed.
struct World {
    catalog: Arc<Catalog>,
    objects: Arc<ClusterObjects>,
    _running: [tokio_util::task::AbortOnDropHandle<()>; 2],
}

impl World {
    async fn new() -> Self {
        let (catalog, objects) = (Catalog::new(), ClusterObjects::new("east"));
        let (endpoints, topology) = (catalog.endpoints_sink(objects.id()), catalog.topology_sink());
        let (provider, source) = (Arc::clone(&objects), Arc::clone(&objects));
        let running = [
            tokio::spawn(async move { EndpointsProvider::run(&*provider, endpoints).await }),
            tokio::spawn(async move { MeshTopology::run(&*source, topology).await }),
        ];
        tokio::task::yield_now().await;
        let world =
            Self { catalog, objects, _running: running.map(tokio_util::task::AbortOnDropHandle::new) };
        world.apply(Kind::Service, service("web", json!([{"name": "http", "port": 80}])));
        world
    }

    fn apply(&self, kind: Kind, manifest: Value) {
        self.objects.tap(kind, None).applied(&manifest);
    }

    fn delete(&self, kind: Kind, name: &str) {
        self.objects.tap(kind, None).deleted(&object(name, json!({})));
    }

    fn addresses(&self, key: &ServiceKey) -> Vec<(String, Health)> {
        let found = self.catalog.endpoints(key);
        found.endpoints.iter().map(|one| (one.address.to_string(), one.health)).collect()
    }

    fn route(&self, key: &ServiceKey) -> Option<(i64, MeshRouteSpec)> {
        self.catalog.route(key).map(|route| (route.generation, (*route.spec).clone()))
    }

    fn allowed(&self, key: &ServiceKey) -> Vec<(Option<u16>, AccessRule)> {
        match self.catalog.access(key) {
            Access::Policies(policies) => {
                policies.iter().map(|policy| (policy.port, policy.allow.clone())).collect()
            }
            other => panic!("{other:?}"),
        }
    }
}

fn object(name: &str, body: Value) -> Value {
    let mut manifest = json!({"metadata": {"name": name, "namespace": "shop", "generation": 1}});
    json_patch::merge(&mut manifest, &body);
    manifest
}

fn service(name: &str, ports: Value) -> Value {
    object(name, json!({"spec": {"ports": ports}}))
}

fn slice(name: &str, service: &str, endpoints: &[(&str, Value)]) -> Value {
    let endpoint = |(address, conditions): &(&str, Value)| {
        json!({"addresses": [address], "conditions": conditions, "zone": "a",
            "targetRef": {"kind": "Pod", "name": format!("pod-{address}")}})
    };
    let endpoints: Vec<Value> = endpoints.iter().map(endpoint).collect();
    object(
        name,
        json!({
            "metadata": {"labels": {"kubernetes.io/service-name": service}},
            "addressType": "IPv4", "ports": [{"name": "http", "port": 8080}], "endpoints": endpoints,
        }),
    )
}

fn ready() -> Value {
    json!({"ready": true})
}

fn mesh_route(name: &str, generation: i64, weights: [u16; 2]) -> Value {
    let backends =
        json!([{"service": "blue", "weight": weights[0]}, {"service": "green", "weight": weights[1]}]);
    object(
        name,
        json!({"metadata": {"generation": generation},
            "spec": {"service": "web", "port": 80, "rules": [{"backends": backends}]}}),
    )
}

fn key(name: &str, port: u16, protocol: Protocol) -> ServiceKey {
    ServiceKey { cluster: "east".into(), namespace: "shop".into(), name: name.into(), port, protocol }
}

fn web() -> ServiceKey {
    key("web", 80, Protocol::Http1)
}

#[tokio::test]
async fn the_slices_of_a_service_are_its_endpoints_by_the_name_of_the_port() {
    let world = World::new().await;
    let leaving = json!({"ready": false, "serving": true, "terminating": true});
    world.apply(Kind::EndpointSlice, slice("web-1", "web", &[("10.0.0.1", ready()), ("10.0.0.2", leaving)]));
    world.apply(Kind::EndpointSlice, slice("web-2", "web", &[("10.0.0.3", json!({"ready": false}))]));
    world.apply(Kind::EndpointSlice, slice("other-1", "other", &[("10.0.0.9", ready())]));
    let at = |address: &str, health| (format!("{address}:8080"), health);
    assert_eq!(
        world.addresses(&web()),
        [
            at("10.0.0.1", Health::Healthy),
            at("10.0.0.2", Health::Draining),
            at("10.0.0.3", Health::Unhealthy)
        ]
    );
    world.apply(Kind::EndpointSlice, slice("web-1", "web", &[("10.0.0.4", ready())]));
    world.delete(Kind::EndpointSlice, "web-2");
    assert_eq!(world.addresses(&web()), [at("10.0.0.4", Health::Healthy)]);
    world.delete(Kind::Service, "web");
    assert_eq!(world.addresses(&web()), []);
    assert!(world.catalog.service(&web()).is_none());
}

#[tokio::test]
async fn the_protocol_of_a_port_is_that_of_its_application_protocol_or_name() {
    let world = World::new().await;
    let ports = json!([
        {"name": "grpc-api", "port": 1}, {"name": "web", "appProtocol": "kubernetes.io/h2c", "port": 2},
        {"name": "mysql", "port": 3}, {"name": "anything", "port": 4}, {"name": "http-admin", "port": 5},
        {"name": "grpc-web", "port": 6}, {"name": "https", "port": 7},
        {"name": "dns", "protocol": "UDP", "port": 53},
    ]);
    world.apply(Kind::Service, service("many", ports));
    use Protocol::{Http1, Http2, Tcp};
    for (port, protocol) in [(1, Http2), (2, Http2), (3, Tcp), (4, Tcp), (5, Http1), (6, Http2), (7, Tcp)] {
        assert!(world.catalog.service(&key("many", port, protocol)).is_some(), "{port}");
    }
    for protocol in [Http1, Http2, Tcp] {
        assert!(world.catalog.service(&key("many", 53, protocol)).is_none(), "UDP");
    }
}

#[tokio::test]
async fn a_list_removes_what_it_does_not_show_in_its_namespace() {
    let world = World::new().await;
    world.apply(Kind::EndpointSlice, slice("web-1", "web", &[("10.0.0.1", ready())]));
    let mut elsewhere = world.objects.tap(Kind::EndpointSlice, Some("other"));
    elsewhere.list_started();
    elsewhere.list_completed();
    assert_eq!(world.addresses(&web()).len(), 1);
    let mut tap = world.objects.tap(Kind::EndpointSlice, None);
    tap.list_started();
    tap.listed(&slice("web-2", "web", &[("10.0.0.2", ready()), ("10.0.0.3", ready())]));
    assert_eq!(world.addresses(&web()).len(), 3, "until the list is complete");
    tap.list_completed();
    assert_eq!(world.addresses(&web()).len(), 2);
}

#[tokio::test]
async fn the_route_named_as_its_service_comes_before_others_and_before_splits() {
    let world = World::new().await;
    let split = |weights: Value| {
        object(
            "canary",
            json!({"spec": {"service": "web.shop.svc.cluster.local", "backends": [
                {"service": "blue", "weight": weights[0]}, {"service": "green", "weight": weights[1]},
            ]}}),
        )
    };
    let weights = |world: &World| {
        let (_, spec) = world.route(&web()).expect("a route");
        spec.rules[0].backends.iter().map(|backend| backend.weight).collect::<Vec<_>>()
    };
    world.apply(Kind::TrafficSplit, split(json!(["900m", "100m"])));
    assert_eq!(weights(&world), [9000, 1000]);
    world.apply(Kind::TrafficSplit, split(json!([90, 10])));
    assert_eq!(weights(&world), [90, 10]);
    world.apply(Kind::TrafficSplit, split(json!([90_000, 10_000])));
    assert_eq!(weights(&world), [9000, 1000]);
    world.apply(Kind::MeshRoute, mesh_route("theirs", 4, [1, 2]));
    assert_eq!(weights(&world), [1, 2]);
    world.apply(Kind::MeshRoute, mesh_route("web", 7, [3, 4]));
    assert_eq!((weights(&world), world.route(&web()).expect("a route").0), (vec![3, 4], 7));
    assert_eq!(world.objects.mesh_route(&web()), Some(("shop".to_owned(), "web".to_owned())));
    assert_eq!(world.objects.routed_service("shop", "web"), Some(web()));
    assert_eq!(world.objects.routed_service("shop", "theirs"), None);
    for gone in ["web", "theirs"] {
        world.delete(Kind::MeshRoute, gone);
    }
    assert_eq!(weights(&world), [9000, 1000]);
    world.delete(Kind::TrafficSplit, "canary");
    assert_eq!(world.route(&web()), None);
}

#[tokio::test]
async fn a_route_that_moves_to_another_service_leaves_the_first() {
    let world = World::new().await;
    world.apply(Kind::Service, service("blue", json!([{"name": "http", "port": 80}])));
    world.apply(Kind::MeshRoute, mesh_route("theirs", 1, [1, 2]));
    let mut moved = mesh_route("theirs", 2, [1, 2]);
    moved["spec"]["service"] = json!("blue");
    world.apply(Kind::MeshRoute, moved);
    assert_eq!(world.route(&web()), None);
    assert_eq!(world.route(&key("blue", 80, Protocol::Http1)).expect("a route").0, 2);
}

#[tokio::test]
async fn a_split_of_matched_requests_follows_its_group() {
    let world = World::new().await;
    let split = object(
        "canary",
        json!({"spec": {
            "service": "web", "backends": [{"service": "blue", "weight": 1}],
            "matches": [{"kind": "HTTPRouteGroup", "name": "firefox"}],
        }}),
    );
    world.apply(Kind::TrafficSplit, split);
    assert_eq!(world.route(&web()).expect("a route").1.rules, [], "a group that does not exist");
    let matches = json!([{"name": "a", "pathRegex": "/api.*", "methods": ["GET", "HEAD"], "headers": [{"User-Agent": ".*Firefox.*"}]}]);
    for body in [json!({"spec": {"matches": matches}}), json!({"matches": matches})] {
        world.apply(Kind::HttpRouteGroup, object("firefox", body));
        let rules = world.route(&web()).expect("a route").1.rules;
        let condition = json!(rules[0].match_[0]);
        assert_eq!(
            condition,
            json!({"uri": {"regex": "/api.*"}, "method": {"regex": "GET|HEAD"},
                "headers": {"user-agent": {"regex": ".*Firefox.*"}}})
        );
    }
    world.delete(Kind::HttpRouteGroup, "firefox");
    assert_eq!(world.route(&web()).expect("a route").1.rules, []);
}

fn pod(address: &str, account: &str) -> Value {
    object(&format!("pod-{address}"), json!({"spec": {"serviceAccountName": account}}))
}

fn target(body: Value) -> Value {
    object("web", body)
}

#[tokio::test]
async fn a_traffic_target_admits_its_sources_to_what_its_rules_name() {
    let world = World::new().await;
    world.catalog.set_default_access(DefaultAccess::Closed);
    world.apply(Kind::EndpointSlice, slice("web-1", "web", &[("10.0.0.1", ready())]));
    world.apply(Kind::Pod, pod("10.0.0.1", "web"));
    assert_eq!(world.catalog.access(&web()), Access::Nobody);
    let account = |name: &str| json!({"kind": "ServiceAccount", "name": name, "namespace": "shop"});
    let rules = json!([
        {"kind": "HTTPRouteGroup", "name": "api", "matches": ["metrics"]},
        {"kind": "TCPRoute", "name": "store"},
    ]);
    let newest =
        json!({"spec": {"destination": account("web"), "sources": [account("front")], "rules": rules}});
    let oldest = json!({"destination": account("web"), "sources": [account("front")], "specs": rules});
    for form in [newest, oldest] {
        world.apply(Kind::TrafficTarget, target(form));
        assert_eq!(
            world.allowed(&web()),
            [(None, AccessRule::Http(Vec::new()))],
            "nothing exists that it names"
        );
        let matches = json!([
            {"name": "metrics", "pathRegex": "/metrics", "methods": ["GET"]},
            {"name": "everything", "pathRegex": ".*", "methods": ["*"]},
        ]);
        world.apply(Kind::HttpRouteGroup, object("api", json!({"spec": {"matches": matches}})));
        let allowed = world.allowed(&web());
        let [(None, AccessRule::Http(access))] = &allowed[..] else { panic!("{allowed:?}") };
        assert_eq!(access.len(), 1, "the entry that the rule names");
        assert_eq!(access[0].methods, ["GET"]);
        world.apply(Kind::TcpRoute, object("store", json!({"spec": {"matches": {"ports": [80]}}})));
        assert!(world.allowed(&web()).contains(&(Some(80), AccessRule::Everything)));
        world.delete(Kind::TcpRoute, "store");
        world.delete(Kind::HttpRouteGroup, "api");
    }
    world.apply(Kind::Pod, pod("10.0.0.1", "another"));
    assert_eq!(world.catalog.access(&web()), Access::Nobody, "another ServiceAccount");
    world.apply(Kind::Pod, pod("10.0.0.1", "web"));
    world.delete(Kind::TrafficTarget, "web");
    assert_eq!(world.catalog.access(&web()), Access::Nobody);
}

#[tokio::test]
async fn the_catalog_is_ready_once_every_kind_was_listed() {
    let world = World::new().await;
    assert_eq!(world.catalog.unsynced().len(), 2);
    world.objects.set_listed();
    assert_eq!(world.catalog.unsynced().len(), 0);
}
