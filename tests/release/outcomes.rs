//! How releases end.

use std::time::Duration;

use serde_json::json;
use serin::api::Weight;
use serin::api::canary::Phase;
use serin::api::canary::status::Outcome;
use serin::api::condition::ConditionStatus;
use tokio::time::{Instant, sleep};

use crate::world::{World, holds};

pub async fn a_healthy_revision_is_promoted(world: World) {
    let _serin = world.initialized(json!({})).await;
    assert_eq!((world.image("web-primary").await.as_str(), world.replicas("web").await), ("web:v1", 0));
    let (traffic, weights) = (world.traffic(), world.weights().await);
    world.push("web:v2").await;
    let status = world.released(1).await;
    assert_eq!((status.phase, status.failed_checks), (Phase::Succeeded, 0));
    assert_eq!(status.history[0].outcome, Outcome::Promoted);
    assert_eq!(holds(&status, "Promoted"), ConditionStatus::True);
    assert_eq!(holds(&status, "Ready"), ConditionStatus::True);
    weights.assert_sequence(&[0, 20, 50, 0]).await;
    assert_eq!((world.image("web-primary").await.as_str(), world.replicas("web").await), ("web:v2", 0));
    traffic.assert_all_served();
    assert!(traffic.served_by("v1") > 0 && traffic.served_by("v2") > 0, "{:?}", traffic.versions());
    for event in [
        "the pod template changed",
        "Step 1 of 2, 20 %: the canary has 20 % of the traffic.",
        "Step 2 of 2, 50 %: the canary has 50 % of the traffic.",
        "is promoted and serves all traffic.",
    ] {
        world.event_contains(event).await;
    }
}

pub async fn errors_roll_back(world: World) {
    rolls_back(world, "web:v2-errors-50", "request-success-rate").await;
}

pub async fn slowness_rolls_back(world: World) {
    rolls_back(world, "web:v2-slow-2s", "request-duration").await;
}

pub async fn a_total_failure_is_rolled_back_though_the_primary_is_idle(world: World) {
    let _serin = world.initialized(json!({"analysis": {"interval": "20s", "stepWeights": [100]}})).await;
    let (_traffic, weights) = (world.traffic(), world.weights().await);
    world.push("web:v2-errors-100").await;
    let status = world.released(1).await;
    assert_eq!((status.phase, status.canary_weight), (Phase::Failed, Weight::ZERO));
    let reason = &status.history[0].reason;
    assert!(reason.contains("canary fails 100 % of its requests"), "{reason}");
    weights.assert_sequence(&[0, 100, 0]).await;
    assert_eq!(world.image("web-primary").await, "web:v1");
}

async fn rolls_back(world: World, image: &str, metric: &str) {
    let _serin = world.initialized(json!({})).await;
    let (_traffic, weights) = (world.traffic(), world.weights().await);
    world.push(image).await;
    let status = world.released(1).await;
    assert_eq!((status.phase, status.canary_weight), (Phase::Failed, Weight::ZERO));
    assert_eq!(status.history[0].outcome, Outcome::RolledBack);
    assert!(status.history[0].reason.contains(metric), "{}", status.history[0].reason);
    assert_eq!(holds(&status, "Promoted"), ConditionStatus::False);
    let highest = weights.observed();
    let planned = [vec![0, 20, 0], vec![0, 20, 50, 0]];
    assert!(planned.contains(&highest), "{highest:?}");
    assert_eq!(world.split().await, Some((0, 100)));
    assert_eq!((world.image("web-primary").await.as_str(), world.replicas("web").await), ("web:v1", 0));
    world.event_contains("is rolled back").await;
}

pub async fn a_revision_that_never_becomes_ready_gets_no_traffic_and_is_rolled_back(world: World) {
    let _serin = world.initialized(json!({"progressDeadlineSeconds": 5})).await;
    let (traffic, weights) = (world.traffic(), world.weights().await);
    world.push("web:v2-crash").await;
    let status = world.released(1).await;
    assert_eq!((status.phase, status.history[0].highest_weight), (Phase::Failed, Weight::ZERO));
    assert!(status.history[0].reason.contains("no progress for 5 seconds"), "{:?}", status.history);
    assert_eq!((world.image("web-primary").await.as_str(), world.replicas("web").await), ("web:v1", 0));
    weights.assert_sequence(&[0]).await;
    traffic.assert_all_served();
}

pub async fn missing_traffic_holds_a_release_and_does_not_fail_it(world: World) {
    let _serin = world.initialized(json!({})).await;
    world.push("web:v2").await;
    world.becomes("at the first weight", |status| status.canary_weight > Weight::ZERO).await;
    world.sleep_long().await;
    let status = world.status().await;
    assert_eq!((status.phase, status.failed_checks), (Phase::Progressing, 0), "{status:#?}");
    assert_eq!(world.split().await, Some((20, 80)));
    world.event_contains("Holding, inconclusive: request-success-rate").await;
    let _traffic = world.traffic();
    world.reaches(Phase::Succeeded).await;
}

pub async fn without_analysis_a_ready_revision_is_promoted_and_a_crashing_one_is_not(world: World) {
    let _serin = world.initialized(json!({"skipAnalysis": true})).await;
    let (traffic, weights) = (world.traffic(), world.weights().await);
    world.push("web:v2").await;
    assert_eq!(world.released(1).await.phase, Phase::Succeeded);
    assert_eq!(world.image("web-primary").await, "web:v2");
    world.edit(json!({"progressDeadlineSeconds": 5})).await;
    world.push("web:v3-crash").await;
    let status = world.released(2).await;
    assert_eq!((status.phase, status.history[0].highest_weight), (Phase::Failed, Weight::ZERO));
    assert_eq!((world.image("web-primary").await.as_str(), world.replicas("web").await), ("web:v2", 0));
    weights.assert_sequence(&[0]).await;
    traffic.assert_all_served();
}

pub async fn a_recreated_canary_starts_over(world: World) {
    let _serin = world.initialized(json!({"revertOnDeletion": false})).await;
    let _traffic = world.traffic();
    world.push("web:v2").await;
    world.becomes("under way", |status| status.canary_weight > Weight::ZERO).await;
    world.delete("Canary", "web").await;
    world.is_gone("Canary", "web").await;
    world.canary(json!({})).await;
    world.reaches(Phase::Initialized).await;
    assert_eq!((world.image("web-primary").await.as_str(), world.split().await), ("web:v2", Some((0, 100))));
    world.push("web:v3-errors-50").await;
    assert_eq!(world.released(1).await.phase, Phase::Failed);
    assert_eq!(world.image("web-primary").await, "web:v2");
}

#[tokio::test(start_paused = true)]
async fn a_sample_ratio_mismatch_holds_a_release_until_it_ends() {
    let world = World::new().await;
    let _serin = world.initialized(json!({"analysis": {"interval": "2m", "stepWeights": [10, 50]}})).await;
    let (_traffic, direct_traffic) = (world.traffic(), world.direct_traffic());
    world.push("web:v2").await;
    world.becomes("at the first weight", |status| status.canary_weight > Weight::ZERO).await;
    sleep(Duration::from_secs(600)).await;
    world.event_contains("its weight is 10 %: the route does not split by its weight").await;
    assert_eq!((world.status().await.phase, world.split().await), (Phase::Progressing, Some((10, 90))));
    drop(direct_traffic);
    sleep(Duration::from_secs(600)).await;
    assert_eq!(world.released(1).await.phase, Phase::Succeeded);
}

#[tokio::test(start_paused = true)]
async fn a_release_costs_a_few_requests() {
    let world = World::new().await;
    let _serin =
        world.initialized(json!({"analysis": {"interval": "10s", "stepWeights": [10, 30, 60]}})).await;
    let _traffic = world.traffic();
    let before = world.requests().len();
    world.push("web:v2").await;
    world.released(1).await;
    let requests = world.requests().split_off(before);
    // Three for the beginning, three a step, one for the first numbers, eight for the
    // promotion, with an Event that says that requests were few, and one when the
    // canary's pods have outlived its traffic.
    assert!(requests.len() <= 22, "{} requests for one release: {requests:#?}", requests.len());
}

#[tokio::test(start_paused = true)]
async fn an_idle_canary_costs_no_request() {
    let world = World::new().await;
    let _serin = world.initialized(json!({})).await;
    sleep(Duration::from_secs(30)).await;
    let before = world.requests().len();
    let (_traffic, began) = (world.traffic(), Instant::now());
    sleep(Duration::from_secs(120)).await;
    assert_eq!(world.requests()[before..], [] as [String; 0], "in {:?}", began.elapsed());
}

/// The primary takes longer than an interval; then all traffic returns at once.
#[tokio::test(start_paused = true)]
async fn an_action_already_done_is_not_announced() {
    let world = World::new().await;
    let _serin = world.initialized(json!({"analysis": {"metrics": null}})).await;
    world.push("web:v2-delay-20s").await;
    assert_eq!(world.released(1).await.phase, Phase::Succeeded);
    world.event_contains("is promoted and serves all traffic.").await;
    let events = world.event_messages().await;
    assert!(events.iter().any(|event| event.contains("Waiting for the primary")), "{events:#?}");
    assert!(!events.iter().any(|event| event.contains("Shifting traffic back")), "{events:#?}");
}
