//! The steps of a release.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use kube::ResourceExt;
use serde_json::{Value, json};
use serin::api::Weight;
use serin::api::canary::HttpMatch;
use serin::engine::Plan;
use serin::engine::action::Split;
use serin::routing::{Error, Unsupported, aws};

use crate::world::{World, counting_client, is_owned_by, previous, user_fields};

fn percent(percent: f64) -> Weight {
    Weight::from_percent(percent).expect("a share")
}

pub async fn initialising_routes_all_traffic_to_the_primary(world: World) {
    assert_eq!(world.split().await, None, "before anything is written");
    world.set(&Split::all_primary()).await;
    assert_eq!(world.selector("web").await, json!(world.selectors.primary));
    assert_eq!(world.selector("web-primary").await, json!(world.selectors.primary));
    assert_eq!(world.selector("web-canary").await, json!(world.selectors.canary));
    for name in ["web", "web-primary", "web-canary"] {
        assert!(is_owned_by(&world.get(&world.service(name)).await, &world.canary), "{name}");
    }
    assert!(is_owned_by(&world.get(&world.route()).await, &world.canary));
}

pub async fn every_written_step_is_in_force(world: World) {
    let finest = world.capabilities().finest_weight;
    for share in [0.0, 1.0, 5.0, 33.0, 50.0, 99.0, 100.0] {
        let weight = percent(share);
        if weight.hundredths().is_multiple_of(finest.hundredths()) {
            world.set(&Split::weight(weight)).await;
        } else {
            let before = world.split().await;
            let refused = world.try_set(&Split::weight(weight)).await;
            assert!(matches!(refused, Err(Error::Unsupported(_))), "{weight}: {refused:?}");
            assert_eq!(world.split().await, before, "a rejection writes nothing");
        }
    }
}

pub async fn a_share_finer_than_a_percent_is_exact(world: World) {
    if world.capabilities().finest_weight > percent(0.01) {
        let refused = world.try_set(&Split::weight(percent(0.5))).await;
        assert!(matches!(refused, Err(Error::Unsupported(_))), "{refused:?}");
        return;
    }
    for share in [0.5, 0.01, 12.34, 99.99] {
        world.set(&Split::weight(percent(share))).await;
    }
}

/// Conditions that the router of this case supports.
pub fn match_conditions(world: &World) -> Arc<[HttpMatch]> {
    let mut chosen = json!([
        {"name": "insiders", "headers": {"cookie": {"regex": "^(.*?;)?(type=insider)(;.*)?$"}}},
        {"uri": {"prefix": "/beta"}, "method": {"exact": "GET"}, "headers": {"x-team": {"exact": "ours"}}},
    ]);
    if world.case.service["portName"] == "grpc" {
        chosen[1] = json!({"headers": {"x-team": {"exact": "ours"}}});
    }
    serde_json::from_value::<Vec<HttpMatch>>(chosen).expect("conditions").into()
}

pub async fn matched_requests_and_a_share_of_the_others_go_to_the_canary(world: World) {
    let split = Split { matches: match_conditions(&world), ..Split::weight(world.partial_weight()) };
    if !world.capabilities().match_with_weight {
        let refused = world.try_set(&split).await;
        assert!(matches!(refused, Err(Error::Unsupported(_))), "{refused:?}");
        return;
    }
    world.set(&Split { matches: match_conditions(&world), ..Split::all_primary() }).await;
    world.set(&split).await;
    world.set(&Split::weight(world.partial_weight())).await;
    world.set(&Split::all_primary()).await;
}

pub async fn mirrored_requests_go_to_the_canary(world: World) {
    let can = world.capabilities();
    for share in [100.0, 25.0, 0.5] {
        let split = Split { mirror: percent(share), ..Split::all_primary() };
        if can.mirror && (can.partial_mirror || share == 100.0) {
            world.set(&split).await;
            let route = world.get(&world.route()).await.data["spec"].to_string();
            assert!(route.contains("irror"), "{route}");
        } else {
            let refused = world.try_set(&split).await;
            assert!(matches!(refused, Err(Error::Unsupported(_))), "{share}: {refused:?}");
        }
    }
    world.set(&Split::all_primary()).await;
}

pub async fn session_affinity_keeps_users_on_their_version(mut world: World) {
    let cookies = json!({"cookieName": "side", "primaryCookieName": "stable-side", "secure": true});
    world.edit(json!({"analysis": {"sessionAffinity": cookies}})).await;
    let plan = Plan::try_from(&world.canary).expect("a plan");
    if !world.capabilities().affinity {
        let refused = world.router().check(&world.canary, &plan);
        assert!(matches!(refused, Err(Unsupported::Affinity { .. })), "{refused:?}");
        return;
    }
    let split = Split::weight(world.partial_weight());
    world.set(&Split::all_primary()).await;
    let cookie = json!({"sessionAffinityCookie": "side=canary-7", "primarySessionAffinityCookie": "stable-side=primary-7"});
    world.edit_status(cookie).await;
    world.set(&split).await;
    let route = world.get(&world.route()).await.data["spec"].to_string();
    for text in ["side=canary-7; Max-Age=86400; Secure", "stable-side=primary-7; Max-Age=60; Secure"] {
        assert!(route.contains(text), "{text} in {route}");
    }
    world.set(&Split::weight(Weight::FULL)).await;
    let route = world.get(&world.route()).await.data["spec"].to_string();
    assert!(!route.contains("stable-side"), "no primary cookie at full weight: {route}");
    world.set(&split).await;
    // The next release has other cookies.
    world.edit_status(json!({"sessionAffinityCookie": "side=canary-8"})).await;
    assert_eq!(world.split().await, None);
    world.set(&split).await;
    assert!(!world.get(&world.route()).await.data["spec"].to_string().contains("canary-7"));
    world.set(&Split::all_primary()).await;
    let route = world.get(&world.route()).await.data["spec"].to_string();
    assert!(route.contains("side=; Max-Age=0; Secure") && !route.contains("canary-8"), "{route}");
}

pub async fn matched_requests_go_to_the_canary(world: World) {
    let split = Split { matches: match_conditions(&world), ..Split::all_primary() };
    if !world.capabilities().matches {
        let refused = world.try_set(&split).await;
        assert!(matches!(refused, Err(Error::Unsupported(_))), "{refused:?}");
        assert!(world.find(&world.route()).await.is_none(), "a rejection writes nothing");
        return;
    }
    world.set(&Split::all_primary()).await;
    world.set(&split).await;
    let fewer = Split { matches: split.matches[..1].into(), ..Split::all_primary() };
    world.set(&fewer).await;
    world.set(&Split::all_primary()).await;
    assert_eq!(world.get(&world.route()).await.data["spec"].get("matches"), None);
}

pub async fn a_rollback_routes_all_traffic_to_the_primary(world: World) {
    world.set(&Split::all_primary()).await;
    world.set(&Split::weight(world.partial_weight())).await;
    world.set(&Split::all_primary()).await;
    assert_eq!(world.selector("web").await, json!(world.selectors.primary));
}

pub async fn a_promotion_routes_all_to_the_canary_and_back(world: World) {
    world.set(&Split::all_primary()).await;
    world.set(&Split::weight(Weight::FULL)).await;
    world.set(&Split::all_primary()).await;
}

pub async fn the_previous_version_can_take_over(world: World) {
    world.set(&Split::all_primary()).await;
    world.set(&previous()).await;
    assert_eq!(world.selector("web").await, json!(world.selectors.previous));
    assert_eq!(world.selector("web-primary").await, json!(world.selectors.previous));
    world.set(&Split::all_primary()).await;
    assert_eq!(world.selector("web-primary").await, json!(world.selectors.primary));
}

pub async fn a_step_costs_one_request_and_a_split_in_force_none(world: World) {
    world.set(&Split::all_primary()).await;
    let split = Split::weight(world.partial_weight());
    for expected in [1, 0] {
        let (client, count) = counting_client(&world.client);
        let (cache, before) = (world.cached_objects().await, world.external_writes());
        world.router().apply_split(&client, &world.route_context(), &cache, &split).await.unwrap();
        let elsewhere = world.external_writes() - before;
        assert_eq!(count.load(Ordering::Relaxed) as usize + elsewhere, expected);
    }
}

pub async fn foreign_fields_survive_every_step(world: World) {
    world.set(&Split::all_primary()).await;
    let route = world.route();
    let theirs =
        json!({"metadata": {"labels": {"team": "web"}, "annotations": {"example.com/note": "keep"}}});
    world.patch_as_user(&route, &theirs).await;
    let apex = world.service("web");
    let port = json!({"name": "metrics", "port": 9100, "protocol": "TCP", "targetPort": 9100});
    let mut ports = world.get(&apex).await.data["spec"]["ports"].clone();
    ports.as_array_mut().expect("ports").push(port.clone());
    world.patch_as_user(&apex, &json!({"spec": {"ports": ports, "sessionAffinity": "ClientIP"}})).await;
    assert_eq!(world.split().await, Some(Split::all_primary()), "these edits do not change the split");

    for split in
        [Split::weight(world.partial_weight()), Split::weight(Weight::FULL), previous(), Split::all_primary()]
    {
        world.set(&split).await;
    }
    let route = world.get(&route).await;
    assert_eq!(route.labels()["team"], "web");
    assert_eq!(route.annotations()["example.com/note"], "keep");
    let apex = world.get(&apex).await;
    assert_eq!(apex.data["spec"]["sessionAffinity"], "ClientIP");
    assert!(apex.data["spec"]["ports"].as_array().expect("ports").contains(&port));
}

pub async fn a_foreign_edit_is_detected_and_reverted(world: World) {
    let split = Split::weight(world.partial_weight());
    world.set(&split).await;
    world.patch_as_user(&world.route(), &world.case.foreign_patch).await;
    assert_ne!(world.split().await, Some(split.clone()));
    world.set(&split).await;

    world.patch_as_user(&world.service("web-primary"), &json!({"spec": {"selector": {"app": "web"}}})).await;
    assert_eq!(world.split().await, None, "the stable side is out of sync");
    world.set(&split).await;
}

pub async fn a_concurrent_edit_is_kept(world: World) {
    world.set(&Split::all_primary()).await;
    let stale = world.cached_objects().await;
    let theirs = json!({"metadata": {"labels": {"team": "web"}}});
    world.patch_as_user(&world.route(), &theirs).await;
    world.patch_as_user(&world.route(), &world.case.foreign_patch).await;
    let split = Split::weight(world.partial_weight());
    world.set_from(&stale, &split).await.unwrap();
    assert_eq!(world.split().await, Some(split));
    assert_eq!(world.get(&world.route()).await.labels()["team"], "web");
}

pub async fn a_deleted_object_is_detected_and_recreated(world: World) {
    let split = Split::weight(world.partial_weight());
    world.set(&split).await;
    let objects = world.objects();
    let mut deleted = 0;
    for object in &objects {
        if world.find(object).await.is_some() {
            world.delete(object).await;
            assert_eq!(world.split().await, None, "without {object}");
            world.set(&split).await;
            deleted += 1;
        }
    }
    assert!(deleted >= 3);
}

pub async fn a_deleted_object_is_not_written_from_a_stale_cache(world: World) {
    world.set(&Split::all_primary()).await;
    let stale = world.cached_objects().await;
    world.delete(&world.route()).await;
    let split = Split::weight(world.partial_weight());
    let outcome = world.set_from(&stale, &split).await;
    let changed =
        matches!(outcome, Err(Error::Conflict { .. } | Error::AppMesh(aws::Error::Conflict { .. })));
    assert!(changed, "{outcome:?}");
    assert!(world.find(&world.route()).await.is_none());
}

pub async fn an_object_missing_from_the_cache_is_not_overwritten(world: World) {
    let blind = world.cached_objects().await;
    let body: Value =
        world.case.existing_route.clone().unwrap_or_else(|| json!({"spec": {"ports": [{"port": 80}]}}));
    let before = world.create(&world.route(), body).await;
    world.set_from(&blind, &Split::all_primary()).await.unwrap();
    assert_eq!(world.split().await, Some(Split::all_primary()));
    assert!(!is_owned_by(&world.get(&world.route()).await, &world.canary), "it existed before");
    // An object of ours that is not in the cache is still ours.
    world.set_from(&blind, &Split::all_primary()).await.unwrap();
    world.restore().await;
    assert_eq!(user_fields(&world.get(&world.route()).await), user_fields(&before));
}
