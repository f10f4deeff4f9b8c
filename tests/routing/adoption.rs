//! What was there before the Canary is there after it.

use kube::ResourceExt;
use serde_json::{Value, json};
use serin::api::Weight;
use serin::engine::action::Split;
use serin::routing::{Error, Subject};

use crate::world::{World, create_canary, is_owned_by, written};

/// A Service as people have them: selected by two labels, under a port name of
/// their own, labelled and annotated.
fn theirs() -> Value {
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
    for split in [Split::home(), Split::weight(world.some()), Split::weight(Weight::FULL), Split::home()] {
        world.set(&split).await;
    }
}

pub async fn an_existing_service_is_adopted_and_put_back(world: World) {
    let apex = world.service("web");
    let before = world.create(&apex, theirs()).await;
    release(&world).await;
    let during = world.get(&apex).await;
    assert_eq!(during.data["spec"]["selector"], json!(world.arms.primary));
    assert_eq!(during.data["spec"]["type"], "NodePort");
    assert_eq!(during.labels()["team"], "web");
    assert_eq!(during.labels()["app"], "mine", "an adopted Service keeps its labels");
    assert!(!during.annotations().contains_key("argocd.argoproj.io/sync-options"), "it may be in Git");
    assert!(!is_owned_by(&during, &world.canary), "it must outlive the Canary");
    assert!(!world.is_restored().await);

    world.restore().await;
    assert_eq!(written(&world.get(&apex).await), written(&before));
    assert_eq!(world.split().await, None);
}

pub async fn an_existing_route_is_adopted_and_put_back(world: World) {
    // Where the apex Service is the route, that is what is adopted.
    let route = world.route();
    let mut body = world.row.before.clone().unwrap_or_else(theirs);
    body["metadata"]["labels"] = json!({"team": "web"});
    let before = world.create(&route, body).await;
    release(&world).await;
    let during = world.get(&route).await;
    assert_eq!(during.labels()["team"], "web");
    assert!(!is_owned_by(&during, &world.canary), "it must outlive the Canary");
    world.restore().await;
    assert_eq!(written(&world.get(&route).await), written(&before));
}

pub async fn what_others_changed_meanwhile_stays(world: World) {
    let apex = world.service("web");
    world.create(&apex, theirs()).await;
    world.set(&Split::home()).await;
    world.meddle(&apex, &json!({"metadata": {"labels": {"team": "shop", "new": "1"}}})).await;
    world.meddle(&apex, &json!({"spec": {"sessionAffinity": "ClientIP"}})).await;
    world.set(&Split::weight(world.some())).await;
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
    world.set(&Split::home()).await;
    let ports = world.get(&apex).await.data["spec"]["ports"].clone();
    let numbers: Vec<_> = ports.as_array().expect("ports").iter().map(|port| port["port"].clone()).collect();
    assert!(numbers.contains(&json!(8000)) && numbers.contains(&json!(80)), "{ports}");
    world.restore().await;
    assert_eq!(written(&world.get(&apex).await), written(&before));
}

pub async fn a_later_edit_is_put_back_as_well(mut world: World) {
    let apex = world.service("web");
    let before = world.create(&apex, theirs()).await;
    world.set(&Split::home()).await;
    let labels = json!({"team": "serin", "fresh": "1"});
    world.edit(json!({"service": {"apex": {"labels": labels}, "trafficDistribution": "PreferClose"}})).await;
    world.set(&Split::home()).await;
    assert_eq!(world.get(&apex).await.labels()["team"], "serin", "as the Canary says");
    world.restore().await;
    assert_eq!(written(&world.get(&apex).await), written(&before));
}

pub async fn restoring_twice_is_harmless(world: World) {
    assert!(world.is_restored().await, "nothing was done");
    world.restore().await;
    let apex = world.service("web");
    world.create(&apex, theirs()).await;
    world.set(&Split::weight(world.some())).await;
    let stale = world.seen().await;
    world.restore().await;
    let after = written(&world.get(&apex).await);
    world.router().restore(&world.client, &world.canary, &stale).await.unwrap();
    assert_eq!(written(&world.get(&apex).await), after);
    assert!(world.is_restored().await);
}

pub async fn an_apex_of_ours_leads_to_the_target_in_the_end(world: World) {
    world.set(&Split::home()).await;
    assert!(!world.is_restored().await);
    world.restore().await;
    assert_eq!(world.selector("web").await, json!(world.arms.canary));
    let route = world.route();
    assert!(route.kind.kind == "Service" || world.find(&route).await.is_none(), "nothing divides any more");
}

pub async fn what_belongs_to_another_canary_is_not_taken(world: World) {
    world.create(&world.service("web"), theirs()).await;
    world.set(&Split::home()).await;
    let mut spec = serde_json::to_value(&world.canary.spec).expect("a spec");
    spec["service"]["name"] = json!("web");
    let rival = create_canary(&world.client, &world.namespace, "rival", spec).await;
    let on = Subject { canary: &rival, arms: &world.arms, stood: None };
    let seen = world.seen().await;
    assert_eq!(world.router().split(&on, &seen), None);
    let refused = world.router().set(&world.client, &on, &seen, &Split::home()).await;
    assert!(matches!(&refused, Err(error @ Error::Taken { .. }) if error.is_final()), "{refused:?}");
    assert!(refused.unwrap_err().to_string().contains("Canary web"));
    // Nor is it put back on behalf of somebody else.
    world.router().restore(&world.client, &rival, &seen).await.unwrap();
    assert_eq!(world.split().await, Some(Split::home()));
}
