//! When a MeshRoute is in force, by what its proxies acknowledged.

use serde_json::{Value, json};
use serin::api::Weight;
use serin::engine::action::Split;

use crate::routers;
use crate::support;
use crate::world::World;

/// A route at half of the weight, its generation, and the status of two replicas.
async fn at_half(world: &World) -> (Split, i64) {
    let half = Split::weight(Weight::from_percent(50.0).expect("a weight"));
    world.try_set(&Split::all_primary()).await.expect("a route");
    world.try_set(&half).await.expect("a route");
    let route = world.get(&world.route()).await;
    (half, route.metadata.generation.expect("a generation"))
}

fn replica(name: &str, generation: i64, [proxies, acknowledged, refused]: [u32; 3]) -> Value {
    let refusal = (refused > 0).then_some("edge-1: unknown weighted cluster 'nosuch'");
    json!({"name": name, "generation": generation, "proxies": proxies,
        "acknowledged": acknowledged, "refused": refused, "refusal": refusal})
}

async fn report(world: &World, replicas: &[Value]) {
    world.write_status(&world.route(), json!({ "replicas": replicas })).await;
}

async fn in_force(world: &World) -> Option<Split> {
    world.split_in(&world.cached_objects().await)
}

async fn pending(world: &World) -> Option<String> {
    world.router().pending_reason(&world.canary, &world.cached_objects().await)
}

async fn refusal(world: &World) -> Option<String> {
    world.router().refusal(&world.canary, &world.cached_objects().await)
}

#[tokio::test]
async fn a_route_without_proxies_is_in_force_once_written() {
    let world = World::new(support::local().await, routers::xds()).await;
    let (half, generation) = at_half(&world).await;
    assert_eq!(in_force(&world).await, Some(half.clone()));
    report(&world, &[replica("serin-0", generation - 1, [0, 0, 0])]).await;
    assert_eq!(in_force(&world).await, Some(half));
}

#[tokio::test]
async fn a_route_is_in_force_once_every_proxy_of_every_replica_uses_this_generation() {
    let world = World::new(support::local().await, routers::xds()).await;
    let (half, generation) = at_half(&world).await;
    let waits = [
        [replica("serin-0", generation, [3, 2, 0]), replica("serin-1", generation, [1, 1, 0])],
        [replica("serin-0", generation, [3, 3, 0]), replica("serin-1", generation - 1, [1, 1, 0])],
    ];
    for replicas in waits {
        report(&world, &replicas).await;
        assert_eq!(in_force(&world).await, None, "{replicas:?}");
        let why = pending(&world).await.expect("a reason");
        assert!(why.contains("3 of 4 proxies use the MeshRoute") || why.contains("3 of 4"), "{why}");
        assert_eq!(refusal(&world).await, None);
    }
    report(&world, &[replica("serin-0", generation, [3, 3, 0]), replica("serin-1", generation, [1, 1, 0])])
        .await;
    assert_eq!(in_force(&world).await, Some(half));
    assert_eq!(pending(&world).await, None);
}

#[tokio::test]
async fn a_refusal_is_reported_in_the_words_of_the_proxy_and_many_withdraw_the_route() {
    let world = World::new(support::local().await, routers::xds()).await;
    let (_, generation) = at_half(&world).await;
    let words = "edge-1: unknown weighted cluster 'nosuch'";
    for (refused, withdrawn) in [(1, false), (2, true), (20, true)] {
        let others = 20 - refused;
        report(&world, &[replica("serin-0", generation, [20, others, refused])]).await;
        assert_eq!(in_force(&world).await, None);
        let why = pending(&world).await.expect("a reason");
        assert!(why.contains(words) && why.contains(&format!("{refused} of 20 proxies refused")), "{why}");
        // A tenth is held, more is withdrawn.
        let withdrawn = withdrawn && refused * 10 > 20;
        assert_eq!(refusal(&world).await.is_some(), withdrawn, "{refused} of 20");
    }
    // Of an earlier generation.
    report(&world, &[replica("serin-0", generation - 1, [20, 0, 20])]).await;
    assert_eq!(refusal(&world).await, None);
}

#[tokio::test]
async fn the_route_has_all_that_the_canary_asks_for() {
    let mut world = World::new(support::local().await, routers::xds()).await;
    let service = json!({
        "timeout": "7s", "rewrite": {"uri": "/v2"}, "headers": {"request": {"set": {"x-a": "1"}}},
        "match": [{"uri": {"prefix": "/shop"}}, {"headers": {"x-zone": {"exact": "eu"}}}],
        "retries": {"attempts": 3, "perTryTimeout": "2s", "retryOn": "5xx"},
    });
    world.edit(json!({ "service": service })).await;
    let matches = serde_json::from_value::<Vec<_>>(json!([{"headers": {"x-team": {"exact": "ours"}}}]));
    let split = Split {
        matches: matches.expect("conditions").into(),
        mirror: Weight::from_percent(0.5).expect("a weight"),
        ..Split::weight(Weight::from_percent(0.01).expect("a weight"))
    };
    world.set(&split).await;
    let spec = world.get(&world.route()).await.data["spec"].clone();
    assert_eq!((&spec["service"], &spec["port"]), (&json!("web"), &json!(80)));
    assert_eq!(spec["hosts"], json!(["shop.example.com"]));
    let team = json!({"x-team": {"exact": "ours"}});
    let [matched, rest] = [&spec["rules"][0], &spec["rules"][1]];
    assert_eq!(
        matched["match"],
        json!([{"uri": {"prefix": "/shop"}, "headers": team},
            {"headers": {"x-team": {"exact": "ours"}, "x-zone": {"exact": "eu"}}}])
    );
    let weights =
        |rule: &Value| [rule["backends"][0]["weight"].clone(), rule["backends"][1]["weight"].clone()];
    assert_eq!(weights(matched), [0, 100]);
    assert_eq!(weights(rest), [9999, 1]);
    assert_eq!(rest["match"], service["match"]);
    assert_eq!(rest["mirror"], json!({"service": "web-canary", "percent": "0.5%"}));
    for rule in [matched, rest] {
        assert_eq!((&rule["timeout"], &rule["rewrite"]), (&json!("7s"), &json!({"uri": "/v2"})));
        assert_eq!(rule["retries"], json!({"attempts": 3, "perTryTimeout": "2s", "retryOn": "5xx"}));
        assert_eq!(rule["headers"], service["headers"]);
    }
}

#[tokio::test]
async fn a_retry_policy_that_a_mesh_route_does_not_have_is_refused() {
    let mut world = World::new(support::local().await, routers::xds()).await;
    for (retries, what) in [
        (json!({"attempts": 3, "retryRemoteLocalities": true}), "retryRemoteLocalities"),
        (json!({"attempts": 11, "retryRemoteLocalities": null}), "11 attempts"),
        (json!({"attempts": 1, "perTryTimeout": "soon"}), "perTryTimeout"),
    ] {
        world.edit(json!({"service": {"retries": retries}})).await;
        let plan = serin::engine::Plan::try_from(&world.canary).expect("a plan");
        let why = world.router().check(&world.canary, &plan).expect_err(what).to_string();
        assert!(why.contains("spec.service.retries") && why.contains(what), "{why}");
    }
}
