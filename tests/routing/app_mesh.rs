//! Tests specific to the custom resources of App Mesh.

use serde_json::{Value, json};
use serin::api::Weight;
use serin::engine::action::Split;
use serin::routing::{Error, ObjectKey, Unsupported};

use crate::routers;
use crate::steps::match_conditions;
use crate::support;
use crate::world::World;

async fn world(case: routers::RouterCase) -> World {
    World::new(support::real().await, case).await
}

fn object(world: &World, kind: &str, name: &str) -> ObjectKey {
    let objects = world.router().objects(&world.canary);
    objects.into_iter().find(|object| object.kind.kind == kind && object.name == name).expect("an object")
}

async fn spec(world: &World, kind: &str, name: &str) -> Value {
    world.get(&object(world, kind, name)).await.data["spec"].clone()
}

#[tokio::test]
async fn nodes_and_services_are_created_from_the_spec() {
    let mut world = world(routers::app_mesh()).await;
    let elsewhere = "arn:aws:appmesh:eu-west-1:123456789012:mesh/m/virtualService/db";
    world
        .edit(json!({"service": {"backends": ["cart", elsewhere], "timeout": "15s",
            "retries": {"attempts": 3, "perTryTimeout": "1s", "retryOn": "gateway-error,client-error"}}}))
        .await;
    world.set(&Split::weight(Weight::from_percent(10.0).unwrap())).await;
    let wait = json!({"unit": "ms", "value": 15000});
    let node = spec(&world, "VirtualNode", "web-canary").await;
    assert_eq!(
        node,
        json!({
            "podSelector": {"matchLabels": {"app": "web"}},
            "listeners": [{"portMapping": {"port": 8080, "protocol": "http"},
                "timeout": {"http": {"perRequest": wait}}}],
            "serviceDiscovery": {"dns": {"hostname": format!("web-canary.{}.svc.cluster.local", world.namespace)}},
            "backends": [{"virtualService": {"virtualServiceRef": {"name": "cart"}}},
                {"virtualService": {"virtualServiceARN": elsewhere}}],
        })
    );
    let pods = spec(&world, "VirtualNode", "web-primary").await["podSelector"].clone();
    let either = json!([{"key": "app", "operator": "In", "values": ["web-previous", "web-primary"]}]);
    assert_eq!(pods, json!({"matchExpressions": either}), "the previous version is part of the stable side");
    let leads = json!({"provider": {"virtualRouter": {"virtualRouterRef": {"name": "web"}}}});
    assert_eq!(spec(&world, "VirtualService", "web").await, leads);
    let leads = json!({"provider": {"virtualNode": {"virtualNodeRef": {"name": "web-canary"}}}});
    assert_eq!(spec(&world, "VirtualService", "web-canary").await, leads);

    let router = spec(&world, "VirtualRouter", "web").await;
    assert!(router.get("meshRef").is_none() && router.get("awsName").is_none());
    let route = &router["routes"][0]["httpRoute"];
    assert_eq!(
        route["action"]["weightedTargets"][0],
        json!({"virtualNodeRef": {"name": "web-canary"}, "weight": 10})
    );
    assert_eq!(route["timeout"], json!({"perRequest": wait}));
    assert_eq!(route["retryPolicy"]["httpRetryEvents"], json!(["gateway-error", "client-error"]));
}

#[tokio::test]
async fn each_condition_has_a_route_before_the_others() {
    let mut world = world(routers::app_mesh()).await;
    world.edit(json!({"service": {"match": [{"uri": {"prefix": "/shop"}}]}})).await;
    world
        .set(&Split {
            matches: match_conditions(&world),
            ..Split::weight(Weight::from_percent(10.0).unwrap())
        })
        .await;
    let routes = spec(&world, "VirtualRouter", "web").await["routes"].clone();
    let route = |at: usize| {
        (routes[at]["name"].clone(), routes[at]["priority"].clone(), routes[at]["httpRoute"]["match"].clone())
    };
    let cookie =
        json!([{"name": "cookie", "invert": false, "match": {"regex": "^(.*?;)?(type=insider)(;.*)?$"}}]);
    assert_eq!(route(0), (json!("web-match-0"), json!(10), json!({"prefix": "/shop", "headers": cookie})));
    assert_eq!(route(1).2["prefix"], "/beta");
    assert_eq!(route(1).2["method"], "GET");
    assert_eq!(route(2), (json!("web"), Value::Null, json!({"prefix": "/shop"})));
}

#[tokio::test]
async fn condition_routes_precede_an_adopted_route() {
    let world = world(routers::app_mesh()).await;
    let mut before = world.case.existing_route.clone().expect("a route");
    before["spec"]["routes"][1]["priority"] = json!(7);
    world.create(&world.route(), before).await;
    world.set(&Split { matches: match_conditions(&world), ..Split::all_primary() }).await;
    let routes = spec(&world, "VirtualRouter", "web").await["routes"].clone();
    let priorities: Vec<_> = [1, 2, 3].map(|at: usize| routes[at]["priority"].clone()).into();
    assert_eq!(priorities, [json!(5), json!(6), json!(7)]);
}

#[tokio::test]
async fn a_split_is_in_force_once_the_mesh_reports_it() {
    let world = world(routers::app_mesh()).await;
    world.set(&Split::all_primary()).await;
    let router = world.route();
    let split = Split::weight(Weight::from_percent(10.0).unwrap());
    world.try_set(&split).await.unwrap();
    let why = || async {
        world.router().pending_reason(&world.canary, &world.cached_objects().await).unwrap_or_default()
    };
    assert_eq!(world.split_in(&world.cached_objects().await), None);
    assert!(why().await.contains("has not processed the VirtualRouter"), "{}", why().await);
    world.report_mesh_active(&router, "False").await;
    assert_eq!(world.split_in(&world.cached_objects().await), None);
    assert!(why().await.ends_with("is not active: the test says so"), "{}", why().await);
    assert_eq!(world.split().await, Some(split));
    assert_eq!(why().await, "");
}

#[tokio::test]
async fn a_service_that_bypasses_the_router_is_refused_before_any_write() {
    let world = world(routers::app_mesh()).await;
    let theirs = object(&world, "VirtualService", "web");
    let provider = json!({"virtualNode": {"virtualNodeRef": {"name": "web"}}});
    world.create(&theirs, json!({"spec": {"provider": provider}})).await;
    let refused = world.try_set(&Split::all_primary()).await;
    assert!(matches!(&refused, Err(Error::Unsupported(Unsupported::Field { .. }))), "{refused:?}");
    assert!(world.find(&world.service("web")).await.is_none());
}
