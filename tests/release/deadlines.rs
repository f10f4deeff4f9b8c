//! Releases that make slow progress, or none.

use std::time::Duration;

use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use serde_json::json;
use serin::api::Weight;
use serin::api::canary::status::Outcome;
use serin::api::canary::{CanaryStatus, Phase};
use tokio::time::sleep;

use crate::world::{World, spawn, workload};

/// Has this release a check under way, on the split of its step?
fn is_judged(status: &CanaryStatus) -> bool {
    status.canary_weight > Weight::ZERO
        && status.step.as_ref().is_some_and(|step| step.check_started_at.is_some())
}

/// Each pod takes a third of the deadline, one at a time.
pub async fn a_slow_rollout_of_many_pods_is_promoted(world: World) {
    let mut web = workload("Deployment", "web", "web:v1");
    web["spec"]["replicas"] = 6.into();
    web["spec"]["strategy"] = json!({"rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}});
    world.apply(web).await;
    let spec = json!({"progressDeadlineSeconds": 15, "analysis": {"metrics": null}});
    let _serin = world.initialized(spec).await;
    world.push("web:v2-delay-5s").await;
    let status = world.released(1).await;
    assert_eq!(
        (status.phase, status.history[0].outcome),
        (Phase::Succeeded, Outcome::Promoted),
        "{status:#?}"
    );
    assert_eq!(world.image("web-primary").await, "web:v2-delay-5s");
    let took = status.history[0].finished_at.0.duration_since(status.history[0].started_at.0);
    assert!(took.as_secs() > 30, "the pods rolled in {took:?}, which shows nothing");
}

pub async fn a_suspended_release_has_its_deadline_back(world: World) {
    let _serin = world.initialized(json!({"progressDeadlineSeconds": 10})).await;
    world.push("web:v2-crash").await;
    world.reaches(Phase::Progressing).await;
    world.edit(json!({"suspend": true})).await;
    world.event_contains("Suspended: nothing moves").await;
    sleep(Duration::from_secs(20)).await;
    world.edit(json!({"suspend": false})).await;
    let resumed = |status: &CanaryStatus| {
        status.release.as_ref().is_some_and(|release| release.state.stalled_since.is_some())
    };
    world.becomes("resumed", resumed).await;
    sleep(Duration::from_secs(5)).await;
    assert_eq!(world.status().await.phase, Phase::Progressing);
    let status = world.released(1).await;
    assert!(status.history[0].reason.starts_with("no progress for 10 seconds"), "{:?}", status.history);
}

pub async fn a_canary_that_dies_under_its_traffic_is_rolled_back(world: World) {
    let _serin = world.initialized(json!({"analysis": {"interval": "5m", "metrics": null}})).await;
    let _traffic = world.traffic();
    world.push("web:v2-delay-3s").await;
    let (canary, kill) = (ListParams::default().labels("app=web"), DeleteParams::default().grace_period(0));
    for death in 1..=3 {
        world.becomes("judged", is_judged).await;
        world.objects("Pod").delete_collection(&kill, &canary).await.expect("pods die");
        let withdrawals = |status: &CanaryStatus| match &status.release {
            Some(release) => release.state.withdrawals,
            None => 3,
        };
        let status = world.becomes("withdrawn", |status| withdrawals(status) == death).await;
        assert_eq!(status.canary_weight, Weight::ZERO, "death {death}");
    }
    let status = world.released(1).await;
    assert_eq!((status.phase, world.split().await), (Phase::Failed, Some((0, 100))));
    let reason = "the canary lost all its ready pods 3 times while it had traffic";
    assert_eq!(status.history[0].reason, reason);
}

pub async fn silence_after_a_step_passed_holds_it(world: World) {
    let steps = json!([{"weight": 20, "pause": {"duration": "6s"}}, {"weight": 50}]);
    let _serin = world.initialized(json!({"analysis": {"stepWeights": null, "steps": steps}})).await;
    let traffic = world.traffic();
    world.push("web:v2").await;
    world.becomes("judged", |status| status.iterations > 0).await;
    drop(traffic);
    world.event_contains("Holding, inconclusive").await;
    world.sleep_long().await;
    assert_eq!(world.split().await, Some((20, 80)));
    let _traffic = world.traffic();
    assert_eq!(world.released(1).await.phase, Phase::Succeeded);
}

/// As a GitOps controller sets the route back to its source.
async fn revert_route(world: &World) {
    let backends = json!([
        {"service": "web-canary", "weight": 0}, {"service": "web-primary", "weight": 100},
    ]);
    let params = PatchParams { field_manager: Some("argocd-controller".to_owned()), ..Default::default() };
    let patch = Patch::Merge(json!({"spec": { "backends": backends }}));
    world.objects("TrafficSplit").patch("web", &params, &patch).await.expect("a revert");
}

pub async fn a_route_that_something_else_reverts_names_the_writer_and_ends_at_the_deadline(world: World) {
    let analysis = json!({"interval": "10s", "metrics": null});
    let _serin = world.initialized(json!({"progressDeadlineSeconds": 20, "analysis": analysis})).await;
    let traffic = world.traffic();
    world.push("web:v2").await;
    let reverting = spawn({
        let world = world.clone();
        async move {
            loop {
                sleep(Duration::from_secs(3)).await;
                if world.split().await == Some((20, 80)) {
                    revert_route(&world).await;
                }
            }
        }
    });
    world.event_contains("argocd-controller overwrote the route 2 times").await;
    let status = world.released(1).await;
    drop(reverting);
    assert_eq!((status.phase, world.split().await), (Phase::Failed, Some((0, 100))));
    let reason = &status.history[0].reason;
    for words in ["no progress for 20 seconds", "argocd-controller overwrote the route", "ignoreDifferences"]
    {
        assert!(reason.contains(words), "{reason}");
    }
    let events = world.event_messages().await;
    let reported = events.iter().filter(|event| event.starts_with("RouteReverted")).count();
    assert_eq!(reported, 1, "{events:#?}");
    traffic.assert_all_served();
}
