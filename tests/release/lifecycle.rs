//! One revision after the other: rolled back, reverted, tried again.

use serde_json::{Value, json};
use serin::api::canary::Phase;
use serin::api::canary::status::Outcome;
use serin::engine::command::Verb;

use crate::support::receiver::answer;
use crate::world::World;

pub async fn a_rolled_back_revision_is_retried_by_command(world: World) {
    assert_retried(world, async |world| world.command(Verb::Retry).await, "is released again.").await;
}

pub async fn a_rolled_back_revision_is_retried_by_annotation(world: World) {
    let retry = async |world: &World| {
        let annotations = json!({"example.com/retry": "1"});
        let patch = json!({"spec": {"template": {"metadata": {"annotations": annotations}}}});
        world.patch("Deployment", "web", patch).await;
    };
    assert_retried(world, retry, "the pod template changed.").await;
}

async fn assert_retried(world: World, retry: impl AsyncFn(&World), event: &str) {
    let noes = (0..4).map(|_| answer(500, "the database is down"));
    let acceptance = world.receiver(noes).await;
    let hooks = json!([{"name": "acceptance", "type": "rollout", "url": acceptance.url}]);
    let analysis = json!({"interval": "1s", "metrics": null, "webhooks": hooks});
    let _serin = world.initialized(json!({ "analysis": analysis })).await;
    let (traffic, weights) = (world.traffic(), world.weights().await);

    world.push("web:v2").await;
    let status = world.released(1).await;
    assert_eq!((status.phase, status.failed_checks), (Phase::Failed, 2));
    let reason = &status.history[0].reason;
    assert!(reason.contains("acceptance refused (500 Internal Server Error)"), "{reason}");
    world.push("web:v1").await;
    let status = world.becomes("reverted", |status| status.phase == Phase::Initialized).await;
    assert_eq!(status.releases, 1, "what the primary runs is not released");
    world.event_contains("which the primary runs: nothing to release.").await;
    world.push("web:v2").await;
    let status = world.released(2).await;
    assert_eq!((status.phase, status.history[0].outcome), (Phase::Failed, Outcome::RolledBack));
    assert_eq!(world.image("web-primary").await, "web:v1");

    world.sleep_long().await;
    assert_eq!(world.status().await.releases, 2, "it is not tried again by itself");
    retry(&world).await;
    let status = world.released(3).await;
    assert_eq!((status.phase, world.image("web-primary").await.as_str()), (Phase::Succeeded, "web:v2"));
    weights.assert_sequence(&[0, 20, 0, 20, 0, 20, 50, 0]).await;
    world.event_contains(event).await;
    traffic.assert_all_served();
}

pub async fn a_promotion_can_be_rolled_back_while_the_previous_version_is_warm(world: World) {
    let warm = json!({"rollback": {"keepWarmSeconds": 600}, "analysis": {"interval": "1s", "metrics": null}});
    let _serin = world.initialized(warm).await;
    let (traffic, weights) = (world.traffic(), world.weights().await);
    world.push("web:v2").await;
    let status = world.released(1).await;
    assert!(status.phase == Phase::Succeeded && status.warm_until.is_some(), "{status:#?}");
    assert_eq!(world.image("web-previous").await, "web:v1");
    world.eventually("it is warm", async || ready(&world.get("Deployment", "web-previous").await) == 2).await;

    let selector = |service: &Value| Some(service["spec"]["selector"]["app"].as_str()?.to_owned());
    let stable = world.follow("Service", "web-primary", selector).await;
    world.command(Verb::Rollback).await;
    let status = world.released(2).await;
    assert_eq!((status.phase, status.history[0].outcome), (Phase::Failed, Outcome::RolledBack));
    assert!(status.history[0].reason.starts_with("returned to the previous version"), "{:?}", status.history);
    stable.assert_sequence(&["web-primary", "web-previous", "web-primary"].map(str::to_owned)).await;
    assert_eq!(world.image("web-primary").await, "web:v1");
    weights.assert_sequence(&[0, 20, 50, 0]).await;
    traffic.assert_all_served();
    world.is_gone("Deployment", "web-previous").await;
}

fn ready(deployment: &Value) -> u64 {
    deployment["status"]["readyReplicas"].as_u64().unwrap_or_default()
}
