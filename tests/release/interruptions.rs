//! Interruptions of a release: pushes, edits, faults, restarts.

use std::time::Duration;

use kube_local::faults::FaultPlan;
use serde_json::{Value, json};
use serin::api::Weight;
use serin::api::canary::Phase;
use serin::api::canary::status::Outcome;
use serin::engine::command::Verb;
use tokio::time::{Instant, sleep};

use crate::world::{Running, World};

pub async fn a_newer_revision_takes_the_place_of_the_one_under_way(world: World) {
    let _serin = world.initialized(json!({})).await;
    let (traffic, weights) = (world.traffic(), world.weights().await);
    world.push("web:v2").await;
    world.becomes("under way", |status| status.canary_weight > Weight::ZERO).await;
    world.push("web:v3").await;
    let status = world.released(2).await;
    let outcomes: Vec<_> = status.history.iter().map(|past| past.outcome).collect();
    assert_eq!(outcomes, [Outcome::Promoted, Outcome::Superseded]);
    assert_eq!(world.image("web-primary").await, "web:v3");
    weights.assert_sequence(&[0, 20, 0, 20, 50, 0]).await;
    traffic.assert_all_served();
    world.event_contains("supersedes this release").await;
}

pub async fn a_suspended_release_stays_where_it_is(world: World) {
    let _serin = world.initialized(json!({})).await;
    let (_traffic, weights) = (world.traffic(), world.weights().await);
    world.push("web:v2").await;
    world.becomes("under way", |status| status.canary_weight > Weight::ZERO).await;
    world.edit(json!({"suspend": true})).await;
    world.event_contains("Suspended: nothing moves").await;
    world.sleep_long().await;
    assert_eq!(world.split().await, Some((20, 80)));
    world.edit(json!({"suspend": false})).await;
    assert_eq!(world.released(1).await.phase, Phase::Succeeded);
    weights.assert_sequence(&[0, 20, 50, 0]).await;
}

pub async fn a_revision_pushed_while_no_controller_runs_is_released(world: World) {
    let serin = world.initialized(json!({})).await;
    serin.end().await;
    let _traffic = world.traffic();
    world.push("web:v2-errors-50").await;
    let _again = world.serin().await;
    let status = world.released(1).await;
    assert_eq!(status.phase, Phase::Failed, "{status:#?}");
    assert_eq!(world.image("web-primary").await, "web:v1");
}

pub async fn a_restart_in_a_release_changes_nothing(world: World) {
    let serin = world.initialized(json!({})).await;
    let (traffic, weights) = (world.traffic(), world.weights().await);
    world.push("web:v2").await;
    world.becomes("under way", |status| status.canary_weight > Weight::ZERO).await;
    drop(serin);
    let _again = world.serin().await;
    let status = world.released(1).await;
    assert_eq!((status.phase, status.history.len()), (Phase::Succeeded, 1));
    weights.assert_sequence(&[0, 20, 50, 0]).await;
    traffic.assert_all_served();
}

pub async fn another_replica_takes_over_a_release_under_way(world: World) {
    for (release, gently) in [(1, true), (2, false)] {
        let image = format!("web:v{}", release + 1);
        world.canary(json!({})).await;
        let first = world.replica("first", 1);
        world
            .becomes("at rest", |status| {
                status.releases == release - 1
                    && status.release.is_none()
                    && status.phase != Phase::Initializing
            })
            .await;
        world.eventually("held by the first", async || world.holders().await == ["first"]).await;
        let _second = world.replica("second", 1);
        let _traffic = world.traffic();
        world.push(&image).await;
        world.becomes("under way", |status| status.canary_weight > Weight::ZERO).await;
        assert_eq!(world.holders().await, ["first"]);
        match gently {
            true => first.end().await,
            false => drop(first),
        }
        let status = world.released(release).await;
        assert_eq!(world.holders().await, ["second"]);
        assert_eq!((status.phase, status.history.len() as u64), (Phase::Succeeded, release));
        assert_eq!(world.image("web-primary").await, image);
        _second.end().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_restart_at_any_moment_reaches_the_same_outcome() {
    for moment in 0..8 {
        let world = World::new().await;
        let serin = world.initialized(json!({})).await;
        let _traffic = world.traffic();
        world.push("web:v2").await;
        sleep(Duration::from_millis(137 + 800 * moment)).await;
        // Odd ones are killed, even ones shut down.
        match moment % 2 {
            0 => serin.end().await,
            _ => drop(serin),
        }
        let _again = world.serin().await;
        let status = world.released(1).await;
        assert_eq!((status.phase, status.history.len()), (Phase::Succeeded, 1), "killed at moment {moment}");
        assert_eq!(world.image("web-primary").await, "web:v2");
    }
}

/// A minute for each check, and watch events that always follow the responses to
/// Serin's own writes.
async fn with_delayed_watches(steps: Value) -> (World, Running) {
    let world = World::new().await;
    let mut analysis = json!({"interval": "60s", "stepWeights": null, "metrics": null});
    json_patch::merge(&mut analysis, &steps);
    let serin = world.initialized(json!({ "analysis": analysis })).await;
    world.set_faults(FaultPlan { watch_delayed: 1.0, latency: Duration::from_secs(1), ..Default::default() });
    world.push("web:v2").await;
    (world, serin)
}

#[tokio::test(start_paused = true)]
async fn a_switch_completes_with_delayed_watches() {
    let (world, _serin) = with_delayed_watches(json!({"iterations": 1})).await;
    let began = Instant::now();
    assert_eq!(world.released(1).await.phase, Phase::Succeeded);
    let took = began.elapsed();
    assert!(took < Duration::from_secs(100), "one look, and the promotion: {took:?}");
}

#[tokio::test(start_paused = true)]
async fn a_rollback_completes_with_delayed_watches() {
    let (world, _serin) = with_delayed_watches(json!({"stepWeights": [50]})).await;
    world.becomes("under way", |status| status.canary_weight > Weight::ZERO).await;
    let began = Instant::now();
    world.command(Verb::Abort).await;
    assert_eq!(world.released(1).await.phase, Phase::Failed);
    let took = began.elapsed();
    assert!(took < Duration::from_secs(30), "traffic home, and the pods gone: {took:?}");
}

#[tokio::test(start_paused = true)]
async fn api_server_faults_do_not_change_the_outcome() {
    for seed in 1..=4 {
        let faults = FaultPlan {
            conflict: 0.05,
            too_many_requests: 0.05,
            error_before: 0.05,
            error_after: 0.05,
            watch_dropped: 0.02,
            watch_delayed: 0.1,
            watch_expired: 0.02,
            latency: Duration::from_millis(300),
            ..FaultPlan::default()
        };
        let world = World::with(kube_local::Options { seed, ..Default::default() }).await;
        let _serin = world.initialized(json!({})).await;
        world.set_faults(faults);
        let _traffic = world.traffic();
        world.push("web:v2").await;
        assert_eq!(world.released(1).await.phase, Phase::Succeeded, "seed {seed}");
        assert_eq!(world.image("web-primary").await, "web:v2", "seed {seed}");
        world.push("web:v3-errors-50").await;
        assert_eq!(world.released(2).await.phase, Phase::Failed, "seed {seed}");
        assert_eq!(world.image("web-primary").await, "web:v2", "seed {seed}");
    }
}
