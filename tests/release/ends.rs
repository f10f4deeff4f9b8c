//! How releases end.

use std::sync::atomic::Ordering;
use std::time::Duration;

use kube::api::DeleteParams;
use serde_json::json;
use serin::api::Canary;
use serin::api::Weight;
use serin::api::canary::Phase;
use serin::api::canary::status::Outcome;
use tokio::time::{Instant, sleep};

use crate::world::World;

#[tokio::test(start_paused = true)]
async fn a_healthy_revision_is_promoted() {
    let world = World::new().await;
    world.canary(json!({})).await;
    let _serin = world.serin().await;
    world.reaches(Phase::Initialized).await;
    assert_eq!((world.image("web-primary").await.as_str(), world.replicas("web").await), ("web:v1", 0));
    assert_eq!(world.split().await, Some((0, 100)));

    let traffic = world.traffic();
    let (before, began) = (world.requests().len(), Instant::now());
    world.push("web:v2").await;
    let mut weights = Vec::new();
    loop {
        let split = world.split().await.expect("a split").0;
        if weights.last() != Some(&split) {
            weights.push(split);
        }
        if world.status().await.phase == Phase::Succeeded {
            break;
        }
        assert!(began.elapsed() < Duration::from_secs(300), "{:#?}", world.status().await);
        sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(weights, [0, 10, 30, 60, 0]);
    world.becomes("at rest", |status| status.release.is_none()).await;
    assert_eq!((world.image("web-primary").await.as_str(), world.replicas("web").await), ("web:v2", 0));
    assert_eq!(traffic.bad.load(Ordering::Relaxed), 0);
    let (requests, seconds) = (world.requests().split_off(before), began.elapsed().as_secs_f64());
    let count = requests.len();
    println!("{count} requests and {seconds:.1} s for a release of three steps of 10 s: {requests:#?}");
    // Three for the beginning, three a step, seven for the promotion.
    assert!(count <= 19, "{count} requests for one release");
}

#[tokio::test(start_paused = true)]
async fn errors_roll_back() {
    rolls_back("web:v2-errors-20", "request-success-rate").await;
}

#[tokio::test(start_paused = true)]
async fn slowness_rolls_back() {
    rolls_back("web:v2-slow-2s", "request-duration").await;
}

async fn rolls_back(image: &str, metric: &str) {
    let world = World::new().await;
    world.canary(json!({})).await;
    let _serin = world.serin().await;
    world.reaches(Phase::Initialized).await;
    let _traffic = world.traffic();
    world.push(image).await;
    let status = world.reaches(Phase::Failed).await;
    assert_eq!(status.history[0].outcome, Outcome::RolledBack);
    assert!(status.history[0].reason.contains(metric), "{}", status.history[0].reason);
    assert!(status.history[0].highest_weight <= Weight::from_hundredths(3000).unwrap());
    world.becomes("at rest", |status| status.release.is_none()).await;
    assert_eq!(world.split().await, Some((0, 100)));
    assert_eq!((world.image("web-primary").await.as_str(), world.replicas("web").await), ("web:v1", 0));
}

#[tokio::test(start_paused = true)]
async fn a_revision_that_never_becomes_ready_gets_no_traffic_and_is_rolled_back() {
    let world = World::new().await;
    world.canary(json!({"progressDeadlineSeconds": 60})).await;
    let _serin = world.serin().await;
    world.reaches(Phase::Initialized).await;
    world.push("web:v2-crash").await;
    let status = world.reaches(Phase::Failed).await;
    assert_eq!(status.history[0].highest_weight, Weight::ZERO);
    assert_eq!(world.image("web-primary").await, "web:v1");
}

#[tokio::test(start_paused = true)]
async fn no_traffic_holds_and_is_not_bad() {
    let world = World::new().await;
    world.canary(json!({})).await;
    let _serin = world.serin().await;
    world.reaches(Phase::Initialized).await;
    world.push("web:v2").await;
    world.becomes("at the first weight", |status| status.canary_weight > Weight::ZERO).await;
    sleep(Duration::from_secs(1200)).await;
    let status = world.status().await;
    assert_eq!((status.phase, status.failed_checks), (Phase::Progressing, 0), "{status:#?}");
    assert_eq!(world.split().await, Some((10, 90)));
    let _traffic = world.traffic();
    world.reaches(Phase::Succeeded).await;
}

#[tokio::test(start_paused = true)]
async fn without_analysis_a_revision_is_promoted_once_it_is_ready() {
    let world = World::new().await;
    world.canary(json!({"skipAnalysis": true})).await;
    let _serin = world.serin().await;
    world.reaches(Phase::Initialized).await;
    world.push("web:v2").await;
    world.reaches(Phase::Succeeded).await;
    assert_eq!(world.image("web-primary").await, "web:v2");
}

#[tokio::test(start_paused = true)]
async fn an_idle_canary_costs_no_request() {
    let world = World::new().await;
    world.canary(json!({})).await;
    let _serin = world.serin().await;
    world.reaches(Phase::Initialized).await;
    sleep(Duration::from_secs(30)).await;
    let before = world.requests().len();
    let _traffic = world.traffic();
    sleep(Duration::from_secs(120)).await;
    assert_eq!(world.requests()[before..], [] as [String; 0]);
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_done_is_said_and_nothing_is_touched() {
    let world = World::new().await;
    world.canary(json!({"provider": "istio"})).await;
    let _serin = world.serin().await;
    let refused = world.becomes("refused", |status| !status.conditions.is_empty()).await;
    assert!(refused.conditions.iter().any(|condition| condition.type_ == "Stalled"));
    assert!(refused.message.unwrap().contains("spec.provider istio"));
    assert_eq!((world.replicas("web").await, world.service("web").await.is_none()), (2, true));
    world.edit(json!({"provider": "smi:v1alpha2"})).await;
    world.reaches(Phase::Initialized).await;
}

#[tokio::test(start_paused = true)]
async fn a_deletion_that_reverts_leaves_the_target_serving() {
    let world = World::new().await;
    world.canary(json!({"revertOnDeletion": true})).await;
    let _serin = world.serin().await;
    world.reaches(Phase::Initialized).await;
    let canaries = world.api::<Canary>();
    canaries.delete("web", &DeleteParams::default()).await.expect("a deletion");
    let began = Instant::now();
    while canaries.get_opt("web").await.expect("an answer").is_some() {
        assert!(began.elapsed() < Duration::from_secs(120), "{:#?}", world.status().await);
        sleep(Duration::from_millis(100)).await;
    }
    assert_eq!(world.replicas("web").await, 2);
}

#[tokio::test(start_paused = true)]
async fn a_canary_that_comes_back_begins_anew() {
    let world = World::new().await;
    world.canary(json!({})).await;
    let _serin = world.serin().await;
    world.reaches(Phase::Initialized).await;
    let _traffic = world.traffic();
    world.push("web:v2").await;
    world.becomes("under way", |status| status.canary_weight > Weight::ZERO).await;
    let canaries = world.api::<Canary>();
    canaries.delete("web", &DeleteParams::default()).await.expect("a deletion");
    world.canary(json!({})).await;
    world.reaches(Phase::Initialized).await;
    assert_eq!((world.image("web-primary").await.as_str(), world.split().await), ("web:v2", Some((0, 100))));
    world.push("web:v3-errors-20").await;
    world.reaches(Phase::Failed).await;
    assert_eq!(world.image("web-primary").await, "web:v2");
}

/// On the real servers, in real time, and so all in one.
#[tokio::test]
async fn on_real_servers_the_good_is_promoted_and_the_bad_rolled_back() {
    let world = World::real().await;
    world.canary(json!({"analysis": {"interval": "2s", "stepWeights": [30, 60]}})).await;
    let _serin = world.serin().await;
    world.reaches(Phase::Initialized).await;
    let _traffic = world.traffic();
    world.push("web:v2").await;
    world.reaches(Phase::Succeeded).await;
    assert_eq!((world.image("web-primary").await.as_str(), world.split().await), ("web:v2", Some((0, 100))));
    world.push("web:v3-errors-20").await;
    let status = world.reaches(Phase::Failed).await;
    assert!(status.history[0].reason.contains("request-success-rate"), "{:#?}", status.history);
    assert_eq!((world.image("web-primary").await.as_str(), world.split().await), ("web:v2", Some((0, 100))));
}
