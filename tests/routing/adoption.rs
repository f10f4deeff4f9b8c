//! Objects that existed before the Canary are adopted and restored.

use kube::ResourceExt;
use serde_json::{Value, json};
use serin::api::Weight;
use serin::engine::action::Split;
use serin::routing::{Error, RouteContext};

use crate::world::{World, create_canary, is_owned_by, user_fields};

/// A user's Service: a selector of two labels, a named port, a label and an
/// annotation.
fn users_service() -> Value {
    json!({
        "metadata": {"labels": {"team": "web", "app": "mine"}, "annotations": {"example.com/note": "keep"}},
        "spec": {
            "type": "NodePort",
            "selector": {"app": "web", "tier": "front"},
            "ports": [{"name": "web", "port": 80, "protocol": "TCP", "targetPort": "http"}],
        },
    })
}

async fn release(world: &World) {
    for split in [
        Split::all_primary(),
        Split::weight(world.partial_weight()),
        Split::weight(Weight::FULL),
        Split::all_primary(),
    ] {
        world.set(&split).await;
    }
}

pub async fn an_existing_service_is_adopted_and_restored(world: World) {
    let apex = world.service("web");
    let before = world.create(&apex, users_service()).await;
    release(&world).await;
    let during = world.get(&apex).await;
    assert_eq!(during.data["spec"]["selector"], json!(world.selectors.primary));
    assert_eq!(during.data["spec"]["type"], "NodePort");
    assert_eq!(during.labels()["team"], "web");
    assert_eq!(during.labels()["app"], "mine", "an adopted Service keeps its labels");
    assert!(!during.annotations().contains_key("argocd.argoproj.io/sync-options"), "it may be in Git");
    assert!(!is_owned_by(&during, &world.canary), "it must outlive the Canary");
    assert!(!world.is_restored().await);

    world.restore().await;
    assert_eq!(user_fields(&world.get(&apex).await), user_fields(&before));
    assert_eq!(world.split().await, None);
}

pub async fn an_existing_route_is_adopted_and_restored(world: World) {
    // Where the apex Service is the route, it is the adopted object.
    let route = world.route();
    let mut body = world.case.existing_route.clone().unwrap_or_else(users_service);
    body["metadata"]["labels"] = json!({"team": "web"});
    let before = world.create(&route, body).await;
    release(&world).await;
    let during = world.get(&route).await;
    assert_eq!(during.labels()["team"], "web");
    assert!(!is_owned_by(&during, &world.canary), "it must outlive the Canary");
    world.restore().await;
    assert_eq!(user_fields(&world.get(&route).await), user_fields(&before));
}

pub async fn changes_by_others_are_kept(world: World) {
    let apex = world.service("web");
    world.create(&apex, users_service()).await;
    world.set(&Split::all_primary()).await;
    world.patch_as_user(&apex, &json!({"metadata": {"labels": {"team": "shop", "new": "1"}}})).await;
    world.patch_as_user(&apex, &json!({"spec": {"sessionAffinity": "ClientIP"}})).await;
    world.set(&Split::weight(world.partial_weight())).await;
    world.restore().await;
    let after = world.get(&apex).await;
    assert_eq!(after.labels()["team"], "shop");
    assert_eq!(after.labels()["new"], "1");
    assert_eq!(after.data["spec"]["sessionAffinity"], "ClientIP");
    assert_eq!(after.data["spec"]["selector"], json!({"app": "web", "tier": "front"}));
}

pub async fn another_port_by_the_same_name_is_kept(world: World) {
    let apex = world.service("web");
    let ports = json!([{"name": "http", "port": 8000, "targetPort": 8080}]);
    let before = world.create(&apex, json!({"spec": {"selector": {"app": "web"}, "ports": ports}})).await;
    world.set(&Split::all_primary()).await;
    let ports = world.get(&apex).await.data["spec"]["ports"].clone();
    let numbers: Vec<_> = ports.as_array().expect("ports").iter().map(|port| port["port"].clone()).collect();
    assert!(numbers.contains(&json!(8000)) && numbers.contains(&json!(80)), "{ports}");
    world.restore().await;
    assert_eq!(user_fields(&world.get(&apex).await), user_fields(&before));
}

pub async fn a_later_edit_is_restored_as_well(mut world: World) {
    let apex = world.service("web");
    let before = world.create(&apex, users_service()).await;
    world.set(&Split::all_primary()).await;
    let labels = json!({"team": "serin", "fresh": "1"});
    world.edit(json!({"service": {"apex": {"labels": labels}, "trafficDistribution": "PreferClose"}})).await;
    world.set(&Split::all_primary()).await;
    assert_eq!(world.get(&apex).await.labels()["team"], "serin", "from the Canary");
    world.restore().await;
    assert_eq!(user_fields(&world.get(&apex).await), user_fields(&before));
}

pub async fn restoring_twice_is_harmless(world: World) {
    assert!(world.is_restored().await, "nothing was written");
    world.restore().await;
    let apex = world.service("web");
    world.create(&apex, users_service()).await;
    world.set(&Split::weight(world.partial_weight())).await;
    let stale = world.cached_objects().await;
    world.restore().await;
    let after = user_fields(&world.get(&apex).await);
    world.router().restore(&world.client, &world.canary, &stale).await.unwrap();
    assert_eq!(user_fields(&world.get(&apex).await), after);
    assert!(world.is_restored().await);
}

pub async fn an_owned_apex_selects_the_target_after_restore(world: World) {
    world.set(&Split::all_primary()).await;
    assert!(!world.is_restored().await);
    world.restore().await;
    assert_eq!(world.selector("web").await, json!(world.selectors.canary));
    let route = world.route();
    assert!(route.kind.kind == "Service" || world.find(&route).await.is_none(), "no route is left");
}

pub async fn an_object_of_another_canary_is_not_taken_over(world: World) {
    world.create(&world.service("web"), users_service()).await;
    world.set(&Split::all_primary()).await;
    let mut spec = serde_json::to_value(&world.canary.spec).expect("a spec");
    spec["service"]["name"] = json!("web");
    let rival = create_canary(&world.client, &world.namespace, "rival", spec).await;
    let on = RouteContext { canary: &rival, pod_selectors: &world.selectors, services_memo: None };
    let cache = world.cached_objects().await;
    assert_eq!(world.router().effective_split(&on, &cache), None);
    let refused = world.router().apply_split(&world.client, &on, &cache, &Split::all_primary()).await;
    assert!(matches!(&refused, Err(error @ Error::AlreadyOwned { .. }) if error.is_final()), "{refused:?}");
    assert!(refused.unwrap_err().to_string().contains("Canary web"));
    // Nor does another Canary restore it.
    world.router().restore(&world.client, &rival, &cache).await.unwrap();
    assert_eq!(world.split().await, Some(Split::all_primary()));
}

/// As Flagger sets them (pkg/router/kubernetes_default.go of fluxcd/flagger).
pub async fn an_object_of_flagger_is_refused_with_the_safe_way_to_take_it_over(world: World) {
    let apex = world.service("web");
    let mut body = users_service();
    body["metadata"]["ownerReferences"] = json!([{"apiVersion": "flagger.app/v1beta1", "kind": "Canary",
        "name": "web", "uid": "3d2b4f0e-0000-4000-8000-000000000000", "controller": true,
        "blockOwnerDeletion": true}]);
    let before = world.create(&apex, body).await;
    let refused = world.try_set(&Split::all_primary()).await.expect_err("it is Flagger's");
    let sentence = refused.to_string();
    let way = "kubectl delete canaries.flagger.app web --cascade=orphan";
    assert!(refused.is_final() && sentence.contains(way) && sentence.contains("suspend"), "{sentence}");
    assert_eq!(user_fields(&world.get(&apex).await), user_fields(&before));
    // The deletion with --cascade=orphan removes the reference.
    world.patch_as_user(&apex, &json!({"metadata": {"ownerReferences": null}})).await;
    world.set(&Split::all_primary()).await;
}
