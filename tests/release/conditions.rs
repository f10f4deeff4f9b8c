//! Conditions of a Canary, as `kubectl wait` and GitOps tools read them.

use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::{DeleteParams, ListParams};
use serde_json::json;
use serin::api::Weight;
use serin::api::canary::{CanaryStatus, Phase};
use serin::api::condition::ConditionStatus;
use serin::engine::command::Verb;

use crate::world::{World, holds, workload};

fn message<'a>(status: &'a CanaryStatus, condition: &str) -> Option<&'a str> {
    let found = status.conditions.iter().find(|found| found.type_ == condition)?;
    Some(&found.message)
}

fn is_ready(status: &CanaryStatus) -> bool {
    holds(status, "Ready") == ConditionStatus::True
}

pub async fn a_canary_is_ready_only_while_its_primary_has_pods(world: World) {
    // New pods take some seconds.
    world.apply(workload("Deployment", "web", "web:v1-delay-3s")).await;
    let _serin = world.initialized(json!({})).await;
    world.becomes("ready", is_ready).await;
    let pods: Api<Pod> = Api::namespaced(world.client.clone(), &world.namespace);
    let primary = ListParams::default().labels("app=web-primary");
    pods.delete_collection(&DeleteParams::default(), &primary).await.expect("no pods");
    let down = world.becomes("not ready", |status| !is_ready(status)).await;
    assert_eq!(down.phase, Phase::Initialized);
    assert!(message(&down, "Ready").is_some_and(|why| why.starts_with("The primary")), "{down:#?}");
    assert!(message(&down, "Reconciling").is_some() && message(&down, "Stalled").is_none());
    let back = world.becomes("ready again", is_ready).await;
    assert_eq!(message(&back, "Reconciling"), None);
    let events = world.event_messages().await;
    let reported = events.iter().filter(|event| event.contains("The primary has no ready pod")).count();
    assert!(reported <= 1, "{events:#?}");
}

pub async fn a_refused_command_leaves_the_reason_of_the_failure(world: World) {
    let _serin = world.initialized(json!({})).await;
    world.push("web:v2").await;
    world.becomes("under way", |status| status.canary_weight > Weight::ZERO).await;
    world.command(Verb::Abort).await;
    let failed = world.released(1).await;
    world.command(Verb::Promote).await;
    let refused = |status: &CanaryStatus| {
        status.last_command.as_ref().is_some_and(|last| last.verb == "promote" && !last.accepted)
    };
    let status = world.becomes("answered", refused).await;
    assert!(failed.message.as_deref().is_some_and(|why| why.contains("aborted")), "{failed:#?}");
    assert_eq!(status.message, failed.message);
    for condition in ["Ready", "Promoted", "Stalled"] {
        assert_eq!(message(&status, condition), message(&failed, condition), "{condition}");
    }
    world.event_contains("Refused to promote: the revision was rolled back; retry it first").await;
}

pub async fn a_paused_release_has_the_condition_paused(world: World) {
    let _serin = world.initialized(json!({})).await;
    let _traffic = world.traffic();
    world.push("web:v2").await;
    world.becomes("under way", |status| status.canary_weight > Weight::ZERO).await;
    world.command(Verb::Pause).await;
    let paused = |status: &CanaryStatus| message(status, "Paused").is_some();
    let status = world.becomes("paused", paused).await;
    assert_eq!(holds(&status, "Paused"), ConditionStatus::True);
    world.command(Verb::Resume).await;
    world.becomes("resumed", |status| !paused(status)).await;
    assert_eq!(world.released(1).await.phase, Phase::Succeeded);
}
