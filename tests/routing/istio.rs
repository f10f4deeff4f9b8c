//! Tests specific to Istio.

use serde_json::{Value, json};
use serin::api::Weight;
use serin::engine::Plan;
use serin::engine::action::Split;
use serin::routing::ObjectKey;

use crate::routers;
use crate::steps::match_conditions;
use crate::support;
use crate::world::{World, user_fields};

async fn world(case: routers::RouterCase) -> World {
    World::new(support::real().await, case).await
}

async fn spec(world: &World) -> Value {
    world.get(&world.route()).await.data["spec"].clone()
}

fn rule(world: &World, name: &str) -> ObjectKey {
    let objects = world.router().objects(&world.canary);
    let named = |object: &ObjectKey| object.kind.kind == "DestinationRule" && object.name == name;
    objects.into_iter().find(named).expect("a DestinationRule")
}

#[tokio::test]
async fn a_rule_for_each_service_has_the_policy_and_no_subsets() {
    let mut world = world(routers::istio()).await;
    world.edit(json!({"service": {"trafficPolicy": {"tls": {"mode": "ISTIO_MUTUAL"}}}})).await;
    world.set(&Split::all_primary()).await;
    for name in ["web-primary", "web-canary"] {
        let live = world.get(&rule(&world, name)).await;
        assert_eq!(
            live.data["spec"],
            json!({"host": name, "trafficPolicy": {"tls": {"mode": "ISTIO_MUTUAL"}}})
        );
    }
    world.edit(json!({"service": {"trafficPolicy": null}})).await;
    assert_eq!(world.split().await, None, "the policy is one too many");
    world.set(&Split::all_primary()).await;
    assert_eq!(world.get(&rule(&world, "web-canary")).await.data["spec"], json!({"host": "web-canary"}));
}

#[tokio::test]
async fn hosts_and_gateways_come_from_the_canary_or_the_adopted_service() {
    let mut world = world(routers::istio()).await;
    world.set(&Split::all_primary()).await;
    assert_eq!(
        (&spec(&world).await["hosts"], &spec(&world).await["gateways"]),
        (&json!(["web"]), &json!(["mesh"]))
    );
    world
        .edit(json!({"service": {"hosts": ["shop.example.com"], "gateways": ["infra/public", "mesh"]}}))
        .await;
    world.set(&Split::all_primary()).await;
    assert_eq!(spec(&world).await["hosts"], json!(["shop.example.com", "web"]));
    assert_eq!(spec(&world).await["gateways"], json!(["infra/public", "mesh"]));
    world.edit(json!({"service": {"hosts": null, "gateways": null, "delegation": true}})).await;
    world.set(&Split::all_primary()).await;
    assert_eq!((spec(&world).await.get("hosts"), spec(&world).await.get("gateways")), (None, None));
    world.restore().await;

    let theirs = world.create(&world.route(), world.case.existing_route.clone().unwrap()).await;
    world.edit(json!({"service": {"delegation": false}})).await;
    world.set(&Split::weight(Weight::FULL)).await;
    assert_eq!(spec(&world).await["hosts"], theirs.data["spec"]["hosts"]);
    assert_eq!(spec(&world).await.get("gateways"), None, "neither the route nor the Canary has any");
    world.restore().await;
    assert_eq!(user_fields(&world.get(&world.route()).await), user_fields(&theirs));
}

#[tokio::test]
async fn route_options_of_the_canary_are_in_every_route() {
    let mut world = world(routers::istio()).await;
    let retries = json!({"attempts": 3, "perTryTimeout": "1s", "retryOn": "5xx"});
    let cors = json!({"allowOrigins": [{"regex": ".*"}], "maxAge": "24h"});
    let headers = json!({"request": {"add": {"x-a": "1"}}, "response": {"remove": ["x-b"]}});
    world
        .edit(json!({"service": {
            "timeout": "1m30s", "retries": retries, "corsPolicy": cors, "headers": headers,
            "match": [{"uri": {"prefix": "/shop"}}], "rewrite": {"uri": "/"},
        }}))
        .await;
    let ten = Weight::from_percent(10.0).unwrap();
    let split = Split { matches: match_conditions(&world), mirror: ten, ..Split::weight(ten) };
    world.set(&split).await;
    let routes = spec(&world).await["http"].clone();
    let [first, last] = [&routes[0], &routes[1]];
    for route in [first, last] {
        assert_eq!(route["timeout"], "90s");
        assert_eq!((&route["retries"], &route["corsPolicy"], &route["headers"]), (&retries, &cors, &headers));
        assert_eq!(
            (&route["match"][0]["uri"], &route["rewrite"]),
            (&json!({"prefix": "/shop"}), &json!({"uri": "/"}))
        );
    }
    let weights = |route: &Value| (route["route"][0]["weight"].clone(), route["route"][1]["weight"].clone());
    assert_eq!(weights(first), (json!(0), json!(100)));
    assert_eq!(weights(last), (json!(90), json!(10)));
    assert!(first["match"][0]["headers"]["cookie"].is_object() && first.get("mirror").is_none());
    assert_eq!(first["match"][1]["uri"], json!({"prefix": "/beta"}), "the narrower of two counts");
    assert_eq!(
        (&last["mirror"], &last["mirrorPercentage"]),
        (&json!({"host": "web-canary"}), &json!({"value": 10}))
    );
}

#[tokio::test]
async fn a_port_without_http_has_a_route_without_conditions() {
    let mut world = world(routers::istio_tcp()).await;
    world.set(&Split::weight(Weight::from_percent(10.0).unwrap())).await;
    let live = spec(&world).await;
    assert!(live.get("http").is_none() && live["tcp"][0]["route"][1]["weight"] == 10, "{live}");
    let refused =
        |world: &World| world.router().check(&world.canary, &Plan::try_from(&world.canary).expect("a plan"));
    refused(&world).unwrap();
    world.edit(json!({"service": {"match": [{"uri": {"prefix": "/"}}]}})).await;
    assert!(refused(&world).unwrap_err().to_string().contains("spec.service.match"));
    world.edit(json!({"service": {"match": [{"port": 4000}], "appProtocol": "mysql"}})).await;
    refused(&world).unwrap();
    world.set(&Split::all_primary()).await;
    assert_eq!(spec(&world).await["tcp"][0]["match"], json!([{"port": 4000}]));
}

#[tokio::test]
async fn a_tls_port_within_the_mesh_has_routes_by_server_name() {
    let check = |world: &World| {
        let plan = Plan::try_from(&world.canary).expect("a plan");
        world.router().check(&world.canary, &plan).map_err(|why| why.to_string())
    };
    for port_name in ["tls-store", "https"] {
        let mut world = world(routers::istio_tls()).await;
        world.edit(json!({"service": {"portName": port_name}})).await;
        check(&world).unwrap();
        world.set(&Split::weight(Weight::from_percent(10.0).unwrap())).await;
        let live = spec(&world).await;
        assert!(live.get("http").is_none() && live.get("tcp").is_none(), "{live}");
        assert_eq!(live["tls"][0]["match"], json!([{"sniHosts": ["store.example.com"]}]));
        assert_eq!(live["tls"][0]["route"][1]["weight"], 10);
        world.edit(json!({"service": {"hosts": null}})).await;
        assert!(check(&world).unwrap_err().contains("spec.service.hosts"));
        world
            .edit(json!({"service": {"hosts": ["store.example.com"], "gateways": ["infra/public", "mesh"]}}))
            .await;
        assert!(check(&world).unwrap_err().contains("spec.service.gateways"));
        // A gateway may have decrypted by then.
        world.edit(json!({"service": {"gateways": ["infra/public"]}})).await;
        check(&world).unwrap();
        world.set(&Split::all_primary()).await;
        let field = if port_name == "https" { "http" } else { "tcp" };
        assert!(spec(&world).await[field][0]["route"].is_array());
    }
}

#[tokio::test]
async fn a_delegating_virtual_service_has_the_hosts() {
    let mut world = world(routers::istio()).await;
    world.edit(json!({"service": {"delegation": true, "hosts": ["shop.example.com"]}})).await;
    let refused = world.router().check(&world.canary, &Plan::try_from(&world.canary).expect("a plan"));
    assert!(refused.unwrap_err().to_string().contains("remove hosts and gateways"));
}
