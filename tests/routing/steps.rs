//! A release, as the router sees it.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use kube::ResourceExt;
use serde_json::{Value, json};
use serin::api::Weight;
use serin::api::canary::HttpMatch;
use serin::engine::Plan;
use serin::engine::action::Split;
use serin::routing::{Error, Unsupported, aws};

use crate::world::{World, counted, is_owned_by, previous, written};

fn percent(percent: f64) -> Weight {
    Weight::from_percent(percent).expect("a share")
}

pub async fn initialising_sends_all_traffic_home(world: World) {
    assert_eq!(world.split().await, None, "before anything is written");
    world.set(&Split::home()).await;
    assert_eq!(world.selector("web").await, json!(world.arms.primary));
    assert_eq!(world.selector("web-primary").await, json!(world.arms.primary));
    assert_eq!(world.selector("web-canary").await, json!(world.arms.canary));
    for name in ["web", "web-primary", "web-canary"] {
        assert!(is_owned_by(&world.get(&world.service(name)).await, &world.canary), "{name}");
    }
    assert!(is_owned_by(&world.get(&world.route()).await, &world.canary));
}

pub async fn every_step_is_in_force_once_written(world: World) {
    let finest = world.can().finest_weight;
    for share in [0.0, 1.0, 5.0, 33.0, 50.0, 99.0, 100.0] {
        let weight = percent(share);
        if weight.hundredths().is_multiple_of(finest.hundredths()) {
            world.set(&Split::weight(weight)).await;
        } else {
            let before = world.split().await;
            let refused = world.try_set(&Split::weight(weight)).await;
            assert!(matches!(refused, Err(Error::Unsupported(_))), "{weight}: {refused:?}");
            assert_eq!(world.split().await, before, "a refusal touches nothing");
        }
    }
}

pub async fn a_share_finer_than_a_percent_is_exact(world: World) {
    if world.can().finest_weight > percent(0.01) {
        let refused = world.try_set(&Split::weight(percent(0.5))).await;
        assert!(matches!(refused, Err(Error::Unsupported(_))), "{refused:?}");
        return;
    }
    for share in [0.5, 0.01, 12.34, 99.99] {
        world.set(&Split::weight(percent(share))).await;
    }
}

/// Requests to choose, as the Canary of this row may name them.
pub fn chosen(world: &World) -> Arc<[HttpMatch]> {
    let mut chosen = json!([
        {"name": "insiders", "headers": {"cookie": {"regex": "^(.*?;)?(type=insider)(;.*)?$"}}},
        {"uri": {"prefix": "/beta"}, "method": {"exact": "GET"}, "headers": {"x-team": {"exact": "ours"}}},
    ]);
    if world.row.service["portName"] == "grpc" {
        chosen[1] = json!({"headers": {"x-team": {"exact": "ours"}}});
    }
    serde_json::from_value::<Vec<HttpMatch>>(chosen).expect("conditions").into()
}

pub async fn chosen_requests_and_a_share_of_the_others_go_to_the_canary(world: World) {
    let split = Split { matches: chosen(&world), ..Split::weight(world.some()) };
    if !world.can().match_with_weight {
        let refused = world.try_set(&split).await;
        assert!(matches!(refused, Err(Error::Unsupported(_))), "{refused:?}");
        return;
    }
    world.set(&Split { matches: chosen(&world), ..Split::home() }).await;
    world.set(&split).await;
    world.set(&Split::weight(world.some())).await;
    world.set(&Split::home()).await;
}

pub async fn copies_of_requests_go_to_the_canary(world: World) {
    let can = world.can();
    for share in [100.0, 25.0, 0.5] {
        let split = Split { mirror: percent(share), ..Split::home() };
        if can.mirror && (can.partial_mirror || share == 100.0) {
            world.set(&split).await;
            let route = world.get(&world.route()).await.data["spec"].to_string();
            assert!(route.contains("irror"), "{route}");
        } else {
            let refused = world.try_set(&split).await;
            assert!(matches!(refused, Err(Error::Unsupported(_))), "{share}: {refused:?}");
        }
    }
    world.set(&Split::home()).await;
}

pub async fn users_stay_where_they_are(mut world: World) {
    let cookies = json!({"cookieName": "side", "primaryCookieName": "stable-side", "secure": true});
    world.edit(json!({"analysis": {"sessionAffinity": cookies}})).await;
    let plan = Plan::try_from(&world.canary).expect("a plan");
    if !world.can().affinity {
        let refused = world.router().check(&world.canary, &plan);
        assert!(matches!(refused, Err(Unsupported::Affinity { .. })), "{refused:?}");
        return;
    }
    let split = Split::weight(world.some());
    world.set(&Split::home()).await;
    let cookie = json!({"sessionAffinityCookie": "canary-7", "primarySessionAffinityCookie": "primary-7"});
    world.edit_status(cookie).await;
    world.set(&split).await;
    let route = world.get(&world.route()).await.data["spec"].to_string();
    for said in ["side=canary-7", "; Max-Age=86400; Secure", "stable-side=primary-7", "; Max-Age=60"] {
        assert!(route.contains(said), "{said} in {route}");
    }
    world.set(&Split::weight(Weight::FULL)).await;
    let route = world.get(&world.route()).await.data["spec"].to_string();
    assert!(!route.contains("stable-side"), "all means all: {route}");
    world.set(&split).await;
    // The next release has other cookies.
    world.edit_status(json!({"sessionAffinityCookie": "canary-8"})).await;
    assert_eq!(world.split().await, None);
    world.set(&split).await;
    assert!(!world.get(&world.route()).await.data["spec"].to_string().contains("canary-7"));
    world.set(&Split::home()).await;
    let route = world.get(&world.route()).await.data["spec"].to_string();
    assert!(route.contains("side=; Max-Age=0; Secure") && !route.contains("canary-8"), "{route}");
}

pub async fn chosen_requests_go_to_the_canary(world: World) {
    let split = Split { matches: chosen(&world), ..Split::home() };
    if !world.can().matches {
        let refused = world.try_set(&split).await;
        assert!(matches!(refused, Err(Error::Unsupported(_))), "{refused:?}");
        assert!(world.find(&world.route()).await.is_none(), "a refusal touches nothing");
        return;
    }
    world.set(&Split::home()).await;
    world.set(&split).await;
    let fewer = Split { matches: split.matches[..1].into(), ..Split::home() };
    world.set(&fewer).await;
    world.set(&Split::home()).await;
    assert_eq!(world.get(&world.route()).await.data["spec"].get("matches"), None);
}

pub async fn a_rollback_brings_traffic_home(world: World) {
    world.set(&Split::home()).await;
    world.set(&Split::weight(world.some())).await;
    world.set(&Split::home()).await;
    assert_eq!(world.selector("web").await, json!(world.arms.primary));
}

pub async fn a_promotion_goes_all_the_way_and_home(world: World) {
    world.set(&Split::home()).await;
    world.set(&Split::weight(Weight::FULL)).await;
    world.set(&Split::home()).await;
}

pub async fn the_version_before_can_take_over(world: World) {
    world.set(&Split::home()).await;
    world.set(&previous()).await;
    assert_eq!(world.selector("web").await, json!(world.arms.previous));
    assert_eq!(world.selector("web-primary").await, json!(world.arms.previous));
    world.set(&Split::home()).await;
    assert_eq!(world.selector("web-primary").await, json!(world.arms.primary));
}

pub async fn a_step_costs_one_request_and_what_is_right_none(world: World) {
    world.set(&Split::home()).await;
    let split = Split::weight(world.some());
    for expected in [1, 0] {
        let (client, count) = counted(&world.client);
        let (seen, before) = (world.seen().await, world.writes_elsewhere());
        world.router().set(&client, &world.subject(), &seen, &split).await.unwrap();
        let elsewhere = world.writes_elsewhere() - before;
        assert_eq!(count.load(Ordering::Relaxed) as usize + elsewhere, expected);
    }
}

pub async fn a_stranger_s_fields_survive_every_step(world: World) {
    world.set(&Split::home()).await;
    let route = world.route();
    let theirs =
        json!({"metadata": {"labels": {"team": "web"}, "annotations": {"example.com/note": "keep"}}});
    world.meddle(&route, &theirs).await;
    let apex = world.service("web");
    let port = json!({"name": "metrics", "port": 9100, "protocol": "TCP", "targetPort": 9100});
    let mut ports = world.get(&apex).await.data["spec"]["ports"].clone();
    ports.as_array_mut().expect("ports").push(port.clone());
    world.meddle(&apex, &json!({"spec": {"ports": ports, "sessionAffinity": "ClientIP"}})).await;
    assert_eq!(world.split().await, Some(Split::home()), "they do not touch the split");

    for split in [Split::weight(world.some()), Split::weight(Weight::FULL), previous(), Split::home()] {
        world.set(&split).await;
    }
    let route = world.get(&route).await;
    assert_eq!(route.labels()["team"], "web");
    assert_eq!(route.annotations()["example.com/note"], "keep");
    let apex = world.get(&apex).await;
    assert_eq!(apex.data["spec"]["sessionAffinity"], "ClientIP");
    assert!(apex.data["spec"]["ports"].as_array().expect("ports").contains(&port));
}

pub async fn a_stranger_s_edit_is_noticed_and_undone(world: World) {
    let split = Split::weight(world.some());
    world.set(&split).await;
    world.meddle(&world.route(), &world.row.meddle).await;
    assert_ne!(world.split().await, Some(split.clone()));
    world.set(&split).await;

    world.meddle(&world.service("web-primary"), &json!({"spec": {"selector": {"app": "web"}}})).await;
    assert_eq!(world.split().await, None, "the stable side is not what it should be");
    world.set(&split).await;
}

pub async fn an_edit_at_the_same_moment_loses_nothing(world: World) {
    world.set(&Split::home()).await;
    let stale = world.seen().await;
    let theirs = json!({"metadata": {"labels": {"team": "web"}}});
    world.meddle(&world.route(), &theirs).await;
    world.meddle(&world.route(), &world.row.meddle).await;
    let split = Split::weight(world.some());
    world.set_from(&stale, &split).await.unwrap();
    assert_eq!(world.split().await, Some(split));
    assert_eq!(world.get(&world.route()).await.labels()["team"], "web");
}

pub async fn a_deleted_object_is_noticed_and_made_again(world: World) {
    let split = Split::weight(world.some());
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

pub async fn what_is_gone_is_not_written_to_from_memory(world: World) {
    world.set(&Split::home()).await;
    let stale = world.seen().await;
    world.delete(&world.route()).await;
    let split = Split::weight(world.some());
    let outcome = world.set_from(&stale, &split).await;
    let changed = matches!(outcome, Err(Error::Changed { .. } | Error::AppMesh(aws::Error::Changed { .. })));
    assert!(changed, "{outcome:?}");
    assert!(world.find(&world.route()).await.is_none());
}

pub async fn what_is_not_seen_yet_is_not_trampled_on(world: World) {
    let blind = world.seen().await;
    let body: Value = world.row.before.clone().unwrap_or_else(|| json!({"spec": {"ports": [{"port": 80}]}}));
    let before = world.create(&world.route(), body).await;
    world.set_from(&blind, &Split::home()).await.unwrap();
    assert_eq!(world.split().await, Some(Split::home()));
    assert!(!is_owned_by(&world.get(&world.route()).await, &world.canary), "it was somebody's before");
    // Our own that we have not seen yet is simply ours.
    world.set_from(&blind, &Split::home()).await.unwrap();
    world.restore().await;
    assert_eq!(written(&world.get(&world.route()).await), written(&before));
}
