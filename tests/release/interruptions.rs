//! What may come in between.

use std::time::Duration;

use serde_json::json;
use serin::api::Weight;
use serin::api::canary::Phase;
use serin::api::canary::status::Outcome;
use serin::local::faults::FaultPlan;
use tokio::time::sleep;

use crate::world::World;

#[tokio::test(start_paused = true)]
async fn a_newer_revision_takes_the_place_of_the_one_under_way() {
    let world = World::new().await;
    world.canary(json!({})).await;
    let _serin = world.serin().await;
    world.reaches(Phase::Initialized).await;
    let _traffic = world.traffic();
    world.push("web:v2").await;
    world.becomes("under way", |status| status.canary_weight > Weight::ZERO).await;
    world.push("web:v3").await;
    let status = world.reaches(Phase::Succeeded).await;
    let outcomes: Vec<_> = status.history.iter().map(|past| past.outcome).collect();
    assert_eq!(outcomes, [Outcome::Promoted, Outcome::Superseded]);
    assert_eq!(world.image("web-primary").await, "web:v3");
}

#[tokio::test(start_paused = true)]
async fn a_suspended_release_stays_where_it_is() {
    let world = World::new().await;
    world.canary(json!({})).await;
    let _serin = world.serin().await;
    world.reaches(Phase::Initialized).await;
    let _traffic = world.traffic();
    world.push("web:v2").await;
    world.becomes("under way", |status| status.canary_weight > Weight::ZERO).await;
    world.edit(json!({"suspend": true})).await;
    sleep(Duration::from_secs(300)).await;
    assert_eq!(world.split().await, Some((10, 90)));
    world.edit(json!({"suspend": false})).await;
    world.reaches(Phase::Succeeded).await;
}

#[tokio::test(start_paused = true)]
async fn a_restart_at_any_moment_reaches_the_same_end() {
    for moment in 0..8 {
        let world = World::new().await;
        world.canary(json!({})).await;
        let serin = world.serin().await;
        world.reaches(Phase::Initialized).await;
        let _traffic = world.traffic();
        world.push("web:v2").await;
        sleep(Duration::from_millis(137 + 5300 * moment)).await;
        // Odd ones are killed, even ones may say their last words.
        match moment % 2 {
            0 => serin.end().await,
            _ => drop(serin),
        }
        let _again = world.serin().await;
        let status = world.reaches(Phase::Succeeded).await;
        assert_eq!(status.history.len(), 1, "killed at moment {moment}");
        assert_eq!(world.image("web-primary").await, "web:v2");
    }
}

#[tokio::test(start_paused = true)]
async fn a_revision_pushed_while_nobody_looks_is_released() {
    let world = World::new().await;
    world.canary(json!({})).await;
    let serin = world.serin().await;
    world.reaches(Phase::Initialized).await;
    serin.end().await;
    let _traffic = world.traffic();
    world.push("web:v2-errors-20").await;
    let _again = world.serin().await;
    world.reaches(Phase::Failed).await;
    assert_eq!(world.image("web-primary").await, "web:v1");
}

#[tokio::test(start_paused = true)]
async fn faults_of_the_api_server_change_nothing_about_the_end() {
    for seed in 1..=4 {
        let faults = FaultPlan {
            conflict: 0.05,
            too_many_requests: 0.05,
            error_before: 0.05,
            error_after: 0.05,
            watch_dropped: 0.02,
            watch_late: 0.1,
            watch_forgotten: 0.02,
            latency: Duration::from_millis(300),
            ..FaultPlan::default()
        };
        let world = World::with(serin::local::Options { seed, ..Default::default() }).await;
        world.canary(json!({})).await;
        let _serin = world.serin().await;
        world.reaches(Phase::Initialized).await;
        world.set_faults(faults);
        let _traffic = world.traffic();
        world.push("web:v2").await;
        world.reaches(Phase::Succeeded).await;
        assert_eq!(world.image("web-primary").await, "web:v2", "seed {seed}");
        world.push("web:v3-errors-20").await;
        world.reaches(Phase::Failed).await;
        assert_eq!(world.image("web-primary").await, "web:v2", "seed {seed}");
    }
}
