//! Tests specific to the Gateway API.

use kube::api::{Api, ApiResource, DynamicObject, PostParams};
use kube::core::GroupVersionKind;
use serde_json::{Value, json};
use serin::api::Weight;
use serin::engine::Plan;
use serin::engine::action::Split;
use serin::routing::ObjectKey;

use crate::routers;
use crate::support::route_status::{self, Implementation};
use crate::support::{self, definitions};
use crate::world::World;

async fn world(case: routers::RouterCase) -> World {
    World::new(support::real().await, case).await
}

async fn spec(world: &World) -> Value {
    world.get(&world.route()).await.data["spec"].clone()
}

#[tokio::test]
async fn a_split_is_in_force_once_every_parent_accepts_it() {
    let world = world(routers::gateway()).await;
    world.set(&Split::all_primary()).await;
    let route = world.route();
    let split = Split::weight(Weight::from_percent(10.0).unwrap());
    world.try_set(&split).await.unwrap();

    let cache = world.cached_objects().await;
    let why = || async { world.router().pending_reason(&world.canary, &world.cached_objects().await) };
    assert_eq!(world.split_in(&cache), None, "the status is of the previous generation");
    assert!(why().await.unwrap().contains("has not processed the HTTPRoute"), "{:?}", why().await);

    world.report_as(&route, &route_status::ENVOY_GATEWAY, false).await;
    assert_eq!(world.split_in(&world.cached_objects().await), None);
    assert!(why().await.unwrap().contains("ResolvedRefs is False (BackendNotFound)"));

    // One of the two reports nothing any more.
    world.report_parents_ready(&route).await;
    let mut parents = world.get(&route).await.data["status"]["parents"].clone();
    let last = parents.as_array_mut().unwrap().pop().unwrap();
    let patch = kube::api::Patch::Merge(json!({"status": {"parents": parents}}));
    world.api(&route).patch_status(&route.name, &Default::default(), &patch).await.unwrap();
    assert_eq!(last["parentRef"]["name"], "internal");
    assert_eq!(world.split_in(&world.cached_objects().await), None);
    assert!(why().await.unwrap().contains("the Gateway infra/internal has not reported"));

    assert_eq!(world.split().await, Some(split));
    assert_eq!(why().await, None);
}

/// Plays steps of a release with the status that an implementation writes.
async fn is_understood(mut world: World, implementations: &[Implementation], gateway_refs: Value) {
    world.edit(json!({"service": {"gatewayRefs": gateway_refs}})).await;
    for by in implementations {
        let context = format!("{}, read from {}", by.name, by.source);
        for percent in [0.0, 10.0, 100.0] {
            let split = Split::weight(Weight::from_percent(percent).unwrap());
            world.try_set(&split).await.unwrap();
            let route = world.route();
            world.report_as(&route, by, false).await;
            let why = world.router().pending_reason(&world.canary, &world.cached_objects().await);
            assert!(why.as_ref().is_some_and(|why| why.contains("BackendNotFound")), "{context}: {why:?}");
            world.report_as(&route, by, true).await;
            let cache = world.cached_objects().await;
            assert_eq!(world.router().pending_reason(&world.canary, &cache), None, "{context}");
            assert_eq!(world.split_in(&cache), Some(split), "{context}");
        }
    }
}

async fn every_status_is_understood(cluster: &support::Cluster) {
    let gateways = json!([{"name": "public"}, {"name": "internal", "namespace": "infra", "sectionName": "https"},
        {"name": "other", "port": 8443}]);
    is_understood(World::new(cluster, routers::gateway()).await, &route_status::GATEWAYS, gateways).await;
    let world = World::new(cluster, routers::gateway_mesh()).await;
    is_understood(world, &route_status::MESHES, Value::Null).await;
}

#[tokio::test]
async fn the_status_of_every_implementation_is_understood_on_the_real_server() {
    every_status_is_understood(support::real().await).await;
}

#[tokio::test]
async fn the_status_of_every_implementation_is_understood_on_the_local_server() {
    every_status_is_understood(support::local().await).await;
}

async fn weights_are_those_of_vpc_lattice(cluster: &support::Cluster) {
    let world = World::new(cluster, routers::gateway()).await;
    let split = |percent: f64| Split::weight(Weight::from_percent(percent).unwrap());
    world.set(&split(0.0)).await;
    world.set(&split(0.05)).await;
    world.report_as(&world.route(), &route_status::VPC_LATTICE, true).await;
    let refused = world.try_set(&split(0.25)).await.expect_err("finer than its weights").to_string();
    assert!(refused.contains("VPC Lattice") && refused.contains("in steps of 0.1 %"), "{refused}");
    for percent in [0.1, 33.3, 99.9, 100.0, 0.0] {
        world.try_set(&split(percent)).await.unwrap();
        let backends = spec(&world).await["rules"][0]["backendRefs"].clone();
        let weights = backends.as_array().expect("backends").iter().map(|one| one["weight"].as_u64());
        assert!(weights.into_iter().all(|weight| weight.is_some_and(|weight| weight <= 999)), "{backends}");
    }
}

/// Gateways and their classes, of which only the names of each other matter.
async fn a_fine_weight_is_refused_by_the_class(cluster: &support::Cluster) {
    let mut world = World::new(cluster, routers::gateway()).await;
    definitions::install(&world.client, definitions::inventory()).await;
    let check = async |world: &World| {
        let plan = Plan::new(&world.canary.spec, |_| None).expect("a plan");
        let checked = world.router().check_implementation(&world.client, &world.canary, &plan).await;
        checked.map_err(|refused| refused.to_string())
    };
    world.edit(json!({"analysis": {"iterations": null, "stepWeights": [0.05, 50]}})).await;
    assert_eq!(check(&world).await, Ok(()), "without a Gateway nothing is known");
    let object = |kind: &str, plural: &str, name: &str| ObjectKey {
        kind: ApiResource {
            plural: plural.to_owned(),
            ..ApiResource::from_gvk(&GroupVersionKind::gvk("gateway.networking.k8s.io", "v1", kind))
        },
        namespace: world.namespace.clone(),
        name: name.to_owned(),
    };
    let class = format!("lattice-{}", world.namespace);
    let gateway = object("Gateway", "gateways", "public");
    world.create(&gateway, json!({"spec": {"gatewayClassName": class}})).await;
    assert_eq!(check(&world).await, Ok(()), "nor without its class");
    let classes = Api::<DynamicObject>::all_with(
        world.client.clone(),
        &object("GatewayClass", "gatewayclasses", &class).kind,
    );
    let manifest = json!({"apiVersion": "gateway.networking.k8s.io/v1", "kind": "GatewayClass",
        "metadata": {"name": class}, "spec": {"controllerName": route_status::VPC_LATTICE.controller}});
    let manifest = serde_json::from_value(manifest).expect("an object");
    classes.create(&PostParams::default(), &manifest).await.expect("a class");
    let refused = check(&world).await.expect_err("0.05 % of 999");
    assert!(refused.contains("VPC Lattice") && refused.contains("in steps of 0.1 %"), "{refused}");
    assert!(world.find(&world.route()).await.is_none(), "nothing was written");
    world.edit(json!({"analysis": {"stepWeights": [0.1, 50]}})).await;
    assert_eq!(check(&world).await, Ok(()));
}

#[tokio::test]
async fn a_fine_weight_is_refused_by_the_class_on_the_real_server() {
    a_fine_weight_is_refused_by_the_class(support::real().await).await;
}

#[tokio::test]
async fn a_fine_weight_is_refused_by_the_class_on_the_local_server() {
    a_fine_weight_is_refused_by_the_class(support::local().await).await;
}

#[tokio::test]
async fn a_weight_fits_into_the_limits_of_vpc_lattice_on_the_real_server() {
    weights_are_those_of_vpc_lattice(support::real().await).await;
}

#[tokio::test]
async fn a_weight_fits_into_the_limits_of_vpc_lattice_on_the_local_server() {
    weights_are_those_of_vpc_lattice(support::local().await).await;
}

#[tokio::test]
async fn a_parent_without_status_is_not_rewritten_repeatedly() {
    let world = world(routers::gateway()).await;
    let split = Split::all_primary();
    world.try_set(&split).await.unwrap();
    let (client, count) = crate::world::counting_client(&world.client);
    let cache = world.cached_objects().await;
    world.router().apply_split(&client, &world.route_context(), &cache, &split).await.unwrap();
    assert_eq!(count.load(std::sync::atomic::Ordering::Relaxed), 0);
}

#[tokio::test]
async fn within_a_mesh_the_apex_service_is_the_parent() {
    let mut world = world(routers::gateway_mesh()).await;
    world.set(&Split::all_primary()).await;
    let parent = json!([{"group": "", "kind": "Service", "name": "web", "port": 80}]);
    assert_eq!(spec(&world).await["parentRefs"], parent);
    world.edit(json!({"service": {"gatewayRefs": [{"kind": "Service", "name": "web", "port": 80}]}})).await;
    assert_eq!(world.split().await, Some(Split::all_primary()), "the same, in so many words");
}

#[tokio::test]
async fn an_adopted_route_keeps_its_parents_unless_the_canary_names_some() {
    let mut world = world(routers::gateway_mesh()).await;
    world.create(&world.route(), world.case.existing_route.clone().unwrap()).await;
    world.set(&Split::all_primary()).await;
    assert_eq!(spec(&world).await["parentRefs"][0]["name"], "old");
    world.edit(json!({"service": {"gatewayRefs": [{"name": "new"}]}})).await;
    world.set(&Split::all_primary()).await;
    assert_eq!(spec(&world).await["parentRefs"][0]["name"], "new");
    world.restore().await;
    assert_eq!(spec(&world).await["parentRefs"][0]["name"], "old");
}

#[tokio::test]
async fn route_options_of_the_canary_are_in_every_rule() {
    let mut world = world(routers::gateway()).await;
    world
        .edit(json!({"service": {
            "timeout": "1m30s", "backendTimeout": "500ms",
            "match": [{"uri": {"prefix": "/shop"}, "headers": {"x-zone": {"prefix": "eu-"}}}],
            "rewrite": {"uri": "/", "type": "ReplacePrefixMatch"},
            "headers": {"request": {"add": {"x-a": "1"}, "remove": ["x-b"]}, "response": {"set": {"x-c": "2"}}},
            "mirror": [{"backendRef": {"name": "audit", "port": 80}, "percent": 5}],
            "corsPolicy": {"allowOrigins": [{"exact": "https://shop.example.com"}], "maxAge": "24h"},
        }}))
        .await;
    let ten = Weight::from_percent(10.0).unwrap();
    let half = Weight::from_percent(0.5).unwrap();
    let split = Split {
        matches: crate::steps::match_conditions(&world)[..1].into(),
        mirror: half,
        ..Split::weight(ten)
    };
    world.set(&split).await;
    let rules = spec(&world).await["rules"].clone();
    let [first, last] = [&rules[0], &rules[1]];
    for rule in [first, last] {
        assert_eq!(rule["timeouts"], json!({"request": "1m30s", "backendRequest": "500ms"}));
        assert_eq!(rule["matches"][0]["path"]["value"], "/shop");
        let kinds: Vec<_> =
            rule["filters"].as_array().unwrap()[..5].iter().map(|filter| filter["type"].clone()).collect();
        assert_eq!(
            kinds,
            ["RequestHeaderModifier", "ResponseHeaderModifier", "URLRewrite", "RequestMirror", "CORS"]
        );
        let names: Vec<_> =
            rule["backendRefs"].as_array().unwrap().iter().map(|b| b["name"].clone()).collect();
        assert_eq!(names, ["web-primary", "web-canary"]);
    }
    let weights =
        |rule: &Value| (rule["backendRefs"][0]["weight"].clone(), rule["backendRefs"][1]["weight"].clone());
    assert_eq!(weights(first), (json!(0), json!(100)));
    assert_eq!(weights(last), (json!(90), json!(10)));
    assert_eq!(first["matches"][0]["headers"].as_array().unwrap().len(), 2, "{first}");
    let mirror = &last["filters"][5]["requestMirror"];
    assert_eq!(mirror["fraction"], json!({"numerator": 50, "denominator": 10000}));
    assert_eq!(mirror["backendRef"]["name"], "web-canary");
}

#[tokio::test]
async fn a_grpc_route_is_used_unless_only_http_can_express_it() {
    let mut world = world(routers::gateway_grpc()).await;
    let grpc = world.route();
    assert_eq!(grpc.kind.kind, "GRPCRoute");
    world.set(&Split::all_primary()).await;
    world.edit(json!({"service": {"timeout": "10s"}})).await;
    let http = world.route();
    assert_eq!(http.kind.kind, "HTTPRoute");
    assert_eq!(world.split().await, None);
    world.set(&Split::all_primary()).await;
    assert!(world.find(&http).await.is_some() && world.find(&grpc).await.is_none(), "one follows the other");
    world.edit(json!({"service": {"timeout": null, "portName": "http"}})).await;
    assert_eq!(world.route().kind.kind, "HTTPRoute");
    world.edit(json!({"service": {"appProtocol": "grpc"}})).await;
    assert_eq!(world.route().kind.kind, "GRPCRoute");
    world.restore().await;
    assert!(world.find(&http).await.is_none(), "the obsolete route is deleted as well");
}

/// CEL rules of the definition, which the local server must enforce as well.
#[tokio::test]
async fn both_servers_refuse_the_same_routes() {
    let parent = json!({"name": "public"});
    let rewrite = json!({"type": "URLRewrite", "urlRewrite": {"path": {"type": "ReplacePrefixMatch", "replacePrefixMatch": "/"}}});
    let exact = json!([{"path": {"type": "Exact", "value": "/shop"}}]);
    let mirror =
        json!({"backendRef": {"name": "audit", "port": 80}, "percent": 5, "fraction": {"numerator": 1}});
    let bad = [
        json!({"parentRefs": [parent, parent]}),
        json!({"rules": [{"filters": [rewrite], "matches": exact}]}),
        json!({"rules": [{"filters": [{"type": "RequestMirror", "requestMirror": mirror}]}]}),
        json!({"rules": [{"filters": [{"type": "CORS"}]}]}),
        json!({"rules": [{"matches": [{"path": {"type": "PathPrefix", "value": "shop"}}]}]}),
        json!({"rules": [{"matches": [{"path": {"type": "Exact", "value": "/a b"}}]}]}),
        json!({"rules": [{"backendRefs": [{"name": "web"}]}]}),
        json!({"rules": [{"timeouts": {"request": "1s", "backendRequest": "2s"}}]}),
        json!({"rules": (0..16).map(|_| json!({"matches": (0..9).map(|at| json!({"headers": [{"name": "a", "value": at.to_string()}]})).collect::<Vec<_>>()})).collect::<Vec<_>>()}),
    ];
    let good = json!({"parentRefs": [parent], "rules": [{"filters": [rewrite], "timeouts": {"request": "2s", "backendRequest": "1s"}}]});
    let real = World::new(support::real().await, routers::gateway()).await;
    let local = World::new(support::local().await, routers::gateway()).await;
    for (at, spec) in bad.into_iter().chain([good]).enumerate() {
        let mut results = Vec::new();
        for world in [&real, &local] {
            let route = world.route();
            let body = json!({"apiVersion": route.kind.api_version, "kind": "HTTPRoute",
                "metadata": {"name": format!("route-{at}")}, "spec": spec});
            let new = serde_json::from_value(body).unwrap();
            let created = world.api(&route).create(&Default::default(), &new).await;
            results.push(created.map(|_| ()).map_err(|error| error.to_string()));
        }
        assert_eq!(results[0], results[1], "{spec}");
        assert_eq!(results[0].is_ok(), at == 9, "{spec}: {:?}", results[0]);
    }
}
