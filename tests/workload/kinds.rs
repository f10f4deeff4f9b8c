//! Targets other than Deployments, and deletion of the Canary.

use serde_json::{Value, json};
use serin::workload::{FromCache, Kind, LostPrimary};

use crate::world::{World, deployment, eventually, spec};

const DS: Kind = Kind::DaemonSet;

fn daemon_set(image: &str) -> Value {
    json!({ "spec": spec(json!({ "app": "agent" }), image) })
}

pub async fn a_daemon_set_is_scaled_to_zero_and_back(world: World) {
    let mut set = daemon_set("agent:1");
    set["spec"]["template"]["spec"]["nodeSelector"] = json!({ "disk": "ssd" });
    world.apply(DS, "agent", set).await;
    let workload = world.workload("DaemonSet", "agent", json!({})).await;
    let revision = world.make_primary(&workload).await;
    for _ in 0..2 {
        workload.scale_canary(&world.client, &world.cache, 0).await.unwrap();
    }
    let target = world.target(&workload).await;
    assert_eq!((target.revision.as_str(), target.pods.desired), (revision.as_str(), 0));
    let nodes =
        async |name: &str| world.get(DS, name).await["spec"]["template"]["spec"]["nodeSelector"].clone();
    assert_eq!(nodes("agent").await, json!({ "disk": "ssd", "serin.dev/scale-to-zero": "true" }));
    assert_eq!(nodes("agent-primary").await, json!({ "disk": "ssd" }));

    // Promoted while the target is scaled to zero, the primary is not.
    let mut next = daemon_set("agent:2");
    next["spec"]["template"]["spec"]["nodeSelector"] = json!({ "disk": "ssd" });
    world.apply(DS, "agent", next).await;
    world.promote(&workload).await;
    assert_eq!(nodes("agent-primary").await, json!({ "disk": "ssd" }));
    workload.scale_canary(&world.client, &world.cache, 1).await.unwrap();
    assert_eq!(nodes("agent").await, json!({ "disk": "ssd" }));
}

pub async fn a_target_records_after_which_release_it_was_scaled_down(mut world: World) {
    world.options.prefixes = vec!["*".to_owned()];
    for (kind, name) in [(DS, "agent"), (Kind::Deployment, "web")] {
        let target = |image: &str| match kind {
            DS => daemon_set(image),
            _ => deployment(name, image),
        };
        world.apply(kind, name, target("app:1")).await;
        let workload = world.workload(kind.name(), name, json!({})).await;
        world.make_primary(&workload).await;
        workload.scale_canary(&world.client, &world.cache, 0).await.unwrap();
        assert_eq!(world.target(&workload).await.scaled_down_after, None);
        world.cache.take_responses();
        workload.scale_down_canary(&world.client, &world.cache, 7).await.unwrap();
        assert!(workload.is_scaled_down(&world.cache.take_responses()[0]));
        // The record survives another manifest and is not copied to the primary.
        world.apply(kind, name, target("app:2")).await;
        workload.scale_canary(&world.client, &world.cache, 1).await.unwrap();
        let observed = world.target(&workload).await;
        assert_eq!(
            (observed.scaled_down_after, workload.is_scaled_down(&world.snapshot(kind, name).await)),
            (Some(7), false)
        );
        world.promote(&workload).await;
        let copied = world.get(kind, &workload.primary_name()).await["metadata"]["annotations"].clone();
        assert_eq!(copied["serin.dev/scaled-down-after"], Value::Null, "{copied}");
        // It does not count for another Canary of the same name.
        world.delete_canary(name).await;
        let another = world.workload(kind.name(), name, json!({})).await;
        assert_eq!(world.target(&another).await.scaled_down_after, None);
    }
}

pub async fn a_daemon_set_is_promoted_and_restored(world: World) {
    world.apply(DS, "agent", daemon_set("agent:1")).await;
    let workload = world.workload("DaemonSet", "agent", json!({})).await;
    let first = world.make_primary(&workload).await;
    let image = async |name: &str| {
        world.get(DS, name).await["spec"]["template"]["spec"]["containers"][0]["image"].clone()
    };
    workload.scale_canary(&world.client, &world.cache, 0).await.unwrap();
    workload.keep_previous(&world.client, &first).await.unwrap();
    world.apply(DS, "agent", daemon_set("agent:2")).await;
    world.promote(&workload).await;
    assert_eq!(
        (image("agent-primary").await, image("agent-previous").await),
        (json!("agent:2"), json!("agent:1"))
    );
    let primary = world.get(DS, "agent-primary").await;
    assert_eq!(primary["spec"]["selector"]["matchLabels"], json!({ "app": "agent-primary" }));
    assert_eq!(primary["spec"]["template"]["spec"]["nodeSelector"], Value::Null);
    workload.restore_primary(&world.client, &world.cache, &first, &LostPrimary::default()).await.unwrap();
    assert_eq!(image("agent-primary").await, "agent:1");
    let responses = world.cache.take_responses().into_iter().map(|written| written.metadata.name);
    assert!(responses.flatten().eq(["agent", "agent-primary", "agent-primary"]));
    workload.drop_previous(&world.client).await.unwrap();
    assert!(!world.exists(DS, "agent-previous").await);
}

pub async fn a_service_has_a_primary_and_a_canary_of_its_own(world: World) {
    let service = |version: &str| json!({ "spec": { "selector": { "app": "web", "version": version }, "ports": [{ "name": "http", "port": 80 }] } });
    let version =
        async |name: &str| world.get(Kind::Service, name).await["spec"]["selector"]["version"].clone();
    world.apply(Kind::Service, "web", service("1")).await;
    let workload = world.workload("Service", "web", json!({})).await;
    let first = world.make_primary(&workload).await;
    assert_eq!(world.sync_companions(&workload).await, 1);
    assert_eq!(world.sync_companions(&workload).await, 0);
    let address = async |name: &str| world.get(Kind::Service, name).await["spec"]["clusterIP"].clone();
    let of_primary = address("web-primary").await;
    assert_ne!(of_primary, address("web").await);

    world.apply(Kind::Service, "web", service("2")).await;
    let second = world.revision(&workload).await;
    assert_ne!(second, first);
    assert_eq!(world.sync_companions(&workload).await, 1);
    assert_eq!((version("web-canary").await, version("web-primary").await), (json!("2"), json!("1")));
    workload.keep_previous(&world.client, &first).await.unwrap();
    workload.promote(&world.client, &world.cache, &second, FromCache::default()).await.unwrap();
    assert_eq!((version("web-previous").await, version("web-primary").await), (json!("1"), json!("2")));
    assert_eq!(address("web-primary").await, of_primary);
    let primary = workload
        .observe_primary(&world.snapshot(Kind::Service, "web-primary").await, None)
        .unwrap()
        .expect("a primary");
    assert_eq!(primary.revision, Some(second));
    workload.restore_primary(&world.client, &world.cache, &first, &LostPrimary::default()).await.unwrap();
    assert_eq!(version("web-primary").await, "1");
    let primary = workload
        .observe_primary(&world.snapshot(Kind::Service, "web-primary").await, None)
        .unwrap()
        .expect("a primary");
    assert_eq!(primary.revision, Some(first));
    assert!(world.cache.take_responses().is_empty(), "a Service is left to its watch event");
}

pub async fn the_target_stays_when_the_canary_is_deleted(world: World) {
    world.apply(Kind::ConfigMap, "settings", json!({ "data": { "a": "1" } })).await;
    let mut target = deployment("web", "web:1");
    target["spec"]["template"]["spec"]["containers"][0]["envFrom"] =
        json!([{ "configMapRef": { "name": "settings" } }]);
    world.apply(Kind::Deployment, "web", target).await;
    let workload = world.workload("Deployment", "web", json!({})).await;
    world.make_primary(&workload).await;
    workload.scale_canary(&world.client, &world.cache, 0).await.unwrap();
    let primary = workload
        .observe_primary(&world.snapshot(Kind::Deployment, "web-primary").await, None)
        .unwrap()
        .expect("a primary");
    workload.scale_canary(&world.client, &world.cache, primary.pods.desired).await.unwrap();

    world.delete_canary("web").await;
    eventually("the primary and all copies are gone", async || {
        let configs = world.names(Kind::ConfigMap).await;
        !world.exists(Kind::Deployment, "web-primary").await
            && !configs.iter().any(|name| name.starts_with("settings-primary"))
    })
    .await;
    assert_eq!(world.get(Kind::Deployment, "web").await["spec"]["replicas"], 2);
    assert!(world.exists(Kind::ConfigMap, "settings").await);
}
