//! Work that is refused again and again: users are protected meanwhile, and the
//! object reports it in the server's own words.

use std::time::Duration;

use serde_json::{Value, json};
use serin::api::Weight;
use serin::api::canary::status::Outcome;
use serin::api::canary::{CanaryStatus, Phase};
use serin::api::condition::ConditionStatus;
use serin::engine::command::Verb;
use tokio::time::sleep;

use crate::world::{World, denied_by_admission, forbidden, holds, webhook_failed};

fn degraded(status: &CanaryStatus) -> Option<&str> {
    let condition = status.conditions.iter().find(|condition| condition.type_ == "Degraded")?;
    Some(&condition.message)
}

/// Waits until the object reports a failure in these words.
async fn reports(world: &World, words: &str) -> CanaryStatus {
    let reported = |status: &CanaryStatus| degraded(status).is_some_and(|message| message.contains(words));
    world.becomes(words, reported).await
}

/// An autoscaler `web` that does not exist.
fn missing_autoscaler() -> Value {
    let scaler = json!({"apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler", "name": "web"});
    json!({ "autoscalerRef": scaler })
}

async fn create_autoscaler(world: &World) {
    let target = json!({"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"});
    let spec = json!({"scaleTargetRef": target, "minReplicas": 1, "maxReplicas": 4});
    world
        .apply(json!({
            "apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler",
            "metadata": {"name": "web"}, "spec": spec,
        }))
        .await;
}

pub async fn a_bad_canary_is_rolled_back_though_its_autoscaler_is_gone(world: World) {
    create_autoscaler(&world).await;
    let _serin = world.initialized(missing_autoscaler()).await;
    let _traffic = world.traffic();
    world.delete("HorizontalPodAutoscaler", "web").await;
    world.push("web:v2-errors-50").await;
    let status = world.released(1).await;
    assert_eq!((status.phase, status.history[0].outcome), (Phase::Failed, Outcome::RolledBack));
    assert!(status.history[0].reason.contains("request-success-rate"), "{:?}", status.history);
    assert_eq!(world.split().await, Some((0, 100)));
    world
        .event_contains("HorizontalPodAutoscaler web does not exist. The release continues meanwhile.")
        .await;
}

pub async fn a_release_runs_without_its_autoscaler_and_reports_it(world: World) {
    let _serin = world.initialized(missing_autoscaler()).await;
    let _traffic = world.traffic();
    world.push("web:v2").await;
    reports(&world, "Cannot pin the primary: HorizontalPodAutoscaler web does not exist").await;
    assert_eq!(world.released(1).await.phase, Phase::Succeeded);
    create_autoscaler(&world).await;
    world.becomes("in order again", |status| degraded(status).is_none()).await;
}

pub async fn a_budget_that_cannot_be_copied_blocks_neither_verdict_nor_abort(world: World) {
    let _serin = world.initialized(json!({})).await;
    let refusal = denied_by_admission("PATCH", "/poddisruptionbudgets/web-primary", "budgets are ours");
    world.refuse(refusal);
    let selector = json!({"matchLabels": {"app": "web"}});
    world
        .apply(json!({
            "apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "web"},
            "spec": {"minAvailable": 1, "selector": selector},
        }))
        .await;
    reports(&world, "denied the request: budgets are ours").await;
    // Without requests there is no verdict.
    world.push("web:v2").await;
    world.becomes("at the first weight", |status| status.canary_weight > Weight::ZERO).await;
    world.command(Verb::Abort).await;
    let status = world.released(1).await;
    assert_eq!(status.history[0].outcome, Outcome::Aborted);
    assert_eq!(world.split().await, Some((0, 100)));
    let _traffic = world.traffic();
    world.push("web:v3-errors-50").await;
    assert_eq!(world.released(2).await.history[0].outcome, Outcome::RolledBack);
    world.refuse_nothing();
    world.becomes("in order again", |status| degraded(status).is_none()).await;
    assert!(world.find("PodDisruptionBudget", "web-primary").await.is_some());
}

pub async fn a_primary_that_admission_denies_is_reported_and_made_once_it_may(world: World) {
    world.refuse(denied_by_admission("POST", "/deployments", "no primaries today"));
    world.canary(json!({})).await;
    let _serin = world.serin().await;
    let status = reports(&world, "denied the request: no primaries today").await;
    assert_eq!(holds(&status, "Stalled"), ConditionStatus::True);
    assert_eq!(holds(&status, "Ready"), ConditionStatus::False);
    let message = status.message.unwrap_or_default();
    assert!(message.contains("no primaries today"), "{message}");
    world.event_contains("no primaries today").await;
    sleep(Duration::from_secs(20)).await;
    let events = world.event_messages().await;
    let reported = events.iter().filter(|event| event.contains("no primaries today")).count();
    assert_eq!(reported, 1, "{events:#?}");
    world.refuse_nothing();
    let status = world.reaches(Phase::Initialized).await;
    world.becomes("in order again", |status| degraded(status).is_none()).await;
    assert_eq!(status.conditions.iter().find(|condition| condition.type_ == "Stalled"), None);
}

pub async fn a_promotion_that_admission_denies_ends_at_its_deadline(world: World) {
    let _serin = world.initialized(json!({"progressDeadlineSeconds": 20})).await;
    let traffic = world.traffic();
    world.refuse(denied_by_admission("PATCH", "/deployments/web-primary", "frozen"));
    world.push("web:v2").await;
    reports(&world, "denied the request: frozen").await;
    let status = world.released(1).await;
    assert_eq!((status.phase, status.history[0].outcome), (Phase::Failed, Outcome::RolledBack));
    assert!(status.history[0].reason.contains("no progress for 20 seconds"), "{:?}", status.history);
    assert_eq!(world.split().await, Some((0, 100)));
    assert_eq!(world.image("web-primary").await, "web:v1");
    traffic.assert_all_served();
}

pub async fn a_route_that_may_not_be_written_is_reported_and_ends_at_the_deadline(world: World) {
    let _serin = world.initialized(json!({"progressDeadlineSeconds": 20})).await;
    let traffic = world.traffic();
    let rule = "apiGroups: [\"split.smi-spec.io\"], resources: [\"trafficsplits\"], verbs: [\"patch\"]";
    world.refuse(forbidden("PATCH", "/trafficsplits/web", "patch", "trafficsplits.split.smi-spec.io"));
    world.push("web:v2").await;
    reports(&world, rule).await;
    let status = world.released(1).await;
    assert_eq!((status.phase, status.history[0].outcome), (Phase::Failed, Outcome::RolledBack));
    assert_eq!(world.split().await, Some((0, 100)));
    traffic.assert_all_served();
}

pub async fn a_route_that_admission_denies_is_reported_in_its_words(world: World) {
    world.refuse(denied_by_admission("PATCH", "/trafficsplits/web", "weights are frozen"));
    world.canary(json!({})).await;
    let _serin = world.serin().await;
    let status = reports(&world, "denied the request: weights are frozen").await;
    assert_eq!(holds(&status, "Stalled"), ConditionStatus::True);
    assert!(status.message.unwrap_or_default().contains("weights are frozen"));
    world.refuse_nothing();
    world.reaches(Phase::Initialized).await;
}

pub async fn a_route_whose_webhook_is_down_is_reported_in_its_words(world: World) {
    world.refuse(webhook_failed("PATCH", "/trafficsplits/web"));
    world.canary(json!({})).await;
    let _serin = world.serin().await;
    let status = reports(&world, "failed calling webhook").await;
    assert!(status.message.unwrap_or_default().contains("failed calling webhook"));
    world.refuse_nothing();
    world.reaches(Phase::Initialized).await;
}

pub async fn a_kind_that_may_not_be_watched_is_reported_with_the_missing_rule(world: World) {
    let path = "/trafficsplits";
    world.refuse(forbidden("GET", path, "list", "trafficsplits.split.smi-spec.io"));
    world.canary(json!({})).await;
    let _serin = world.serin().await;
    let rule = "apiGroups: [\"split.smi-spec.io\"], resources: [\"trafficsplits\"], verbs: [\"list\"]";
    let status = reports(&world, rule).await;
    assert_eq!(holds(&status, "Stalled"), ConditionStatus::True);
    world.refuse_nothing();
    world.reaches(Phase::Initialized).await;
}

pub async fn companions_that_may_not_be_watched_stop_no_release(world: World) {
    world.refuse(forbidden("GET", "/poddisruptionbudgets", "list", "poddisruptionbudgets.policy"));
    let _serin = world.initialized(json!({})).await;
    let _traffic = world.traffic();
    world.push("web:v2").await;
    assert_eq!(world.released(1).await.phase, Phase::Succeeded);
    let rule = "apiGroups: [\"policy\"], resources: [\"poddisruptionbudgets\"], verbs: [\"list\"]";
    reports(&world, rule).await;
}

/// A Canary with a metric of the template `extra`.
async fn with_template(world: &World) -> crate::world::Running {
    world
        .apply(json!({
            "apiVersion": "serin.dev/v1alpha1", "kind": "AnalysisTemplate", "metadata": {"name": "extra"},
            "spec": {"provider": {"type": "prometheus", "address": "http://127.0.0.1:9"}, "query": "vector(1)"},
        }))
        .await;
    let extra = json!({"name": "extra", "templateRef": {"name": "extra"}, "thresholdRange": {"min": 0}});
    let metrics = json!([{"name": "request-success-rate"}, extra]);
    world.initialized(json!({"analysis": { "metrics": metrics }})).await
}

pub async fn a_release_whose_status_is_refused_does_not_move_to_and_fro(world: World) {
    let _serin = world.initialized(json!({})).await;
    let (_traffic, weights) = (world.traffic(), world.weights().await);
    world.push("web:v2").await;
    world.becomes("at the first weight", |status| status.canary_weight > Weight::ZERO).await;
    world.refuse(denied_by_admission("PUT", "/canaries/web/status", "no status today"));
    world.event_contains("denied the request: no status today. Nothing advances until").await;
    world.sleep_long().await;
    let moved = weights.observed();
    let raised = moved.windows(2).filter(|pair| pair[1] > pair[0]).count();
    assert!(raised <= 2, "the canary's weight was raised again and again: {moved:?}");
    world.refuse_nothing();
    assert_eq!(world.released(1).await.phase, Phase::Succeeded);
}

pub async fn an_abort_is_obeyed_though_the_status_is_refused(world: World) {
    let _serin = world.initialized(json!({})).await;
    world.push("web:v2").await;
    world.becomes("at the first weight", |status| status.canary_weight > Weight::ZERO).await;
    world.refuse(denied_by_admission("PUT", "/canaries/web/status", "no status today"));
    world.command(Verb::Abort).await;
    world.eventually("all traffic is at the primary", async || world.split().await == Some((0, 100))).await;
    world.refuse_nothing();
    assert_eq!(world.released(1).await.history[0].outcome, Outcome::Aborted);
}

pub async fn an_invalid_canary_obeys_an_abort(world: World) {
    let _serin = with_template(&world).await;
    let traffic = world.traffic();
    world.push("web:v2").await;
    world.becomes("at the first weight", |status| status.canary_weight > Weight::ZERO).await;
    world.delete("AnalysisTemplate", "extra").await;
    let stalled = |status: &CanaryStatus| status.conditions.iter().any(|it| it.type_ == "Stalled");
    world.becomes("invalid", stalled).await;
    assert_eq!(world.split().await, Some((20, 80)), "its traffic stays while it serves");
    world.command(Verb::Abort).await;
    let status = world.released(1).await;
    assert_eq!(status.history[0].outcome, Outcome::Aborted);
    assert_eq!(world.split().await, Some((0, 100)));
    world.becomes("reported as invalid", stalled).await;
    traffic.assert_all_served();
}

pub async fn an_invalid_canary_that_dies_loses_its_traffic(world: World) {
    let _serin = with_template(&world).await;
    world.push("web:v2").await;
    world.becomes("at the first weight", |status| status.canary_weight > Weight::ZERO).await;
    world.delete("AnalysisTemplate", "extra").await;
    world.becomes("invalid", |status| status.conditions.iter().any(|it| it.type_ == "Stalled")).await;
    world.patch("Deployment", "web", json!({"spec": {"replicas": 0}})).await;
    world.eventually("the traffic is withdrawn", async || world.split().await == Some((0, 100))).await;
    world.becomes("recorded", |status| status.canary_weight == Weight::ZERO).await;
}

pub async fn a_suspended_release_obeys_an_abort(world: World) {
    let _serin = world.initialized(json!({})).await;
    world.push("web:v2").await;
    world.becomes("at the first weight", |status| status.canary_weight > Weight::ZERO).await;
    world.edit(json!({"suspend": true})).await;
    world
        .becomes("suspended", |status| status.message.as_deref().is_some_and(|m| m.contains("Suspended")))
        .await;
    world.command(Verb::Abort).await;
    world.eventually("the traffic is back", async || world.split().await == Some((0, 100))).await;
    let aborted = |status: &CanaryStatus| status.history.iter().any(|past| past.outcome == Outcome::Aborted);
    world.becomes("recorded", aborted).await;
}

pub async fn a_scaled_object_that_is_gone_blocks_no_deletion(world: World) {
    let spec = json!({"scaleTargetRef": {"name": "web"}, "triggers": [{"type": "cpu", "metadata": {}}]});
    world
        .apply(json!({
            "apiVersion": "keda.sh/v1alpha1", "kind": "ScaledObject", "metadata": {"name": "web"}, "spec": spec,
        }))
        .await;
    let scaler = json!({"apiVersion": "keda.sh/v1alpha1", "kind": "ScaledObject", "name": "web"});
    let _serin = world.initialized(json!({"autoscalerRef": scaler, "revertOnDeletion": true})).await;
    world.delete("ScaledObject", "web").await;
    world.delete("Canary", "web").await;
    world.eventually("the Canary is gone", async || world.find("Canary", "web").await.is_none()).await;
    assert_eq!(world.replicas("web").await, 2);
}
