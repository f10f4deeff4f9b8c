//! Steps of the wall clock: NTP, a changed date, a machine that was suspended.

use std::time::Duration;

use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp};
use kube_local::Options;
use serde_json::{Value, json};
use serin::api::canary::Phase;
use serin::clock::Clock;
use tokio::time::Instant;

use crate::world::World;

const HOUR: SignedDuration = SignedDuration::from_hours(1);
/// A step is found within ten seconds, and acted upon at once.
const SOON: Duration = Duration::from_secs(12);

async fn world() -> World {
    let clock = Clock::starting_at("2026-03-02T08:00:00Z".parse().expect("a time"));
    World::with(Options { clock: Some(clock), ..Options::default() }).await
}

/// One step at 20 % that pauses for fifty minutes.
fn with_pause() -> Value {
    json!({"analysis": {
        "stepWeights": null,
        "steps": [{"weight": 20, "pause": {"duration": "50m"}}, {"weight": 50}],
    }})
}

/// A daily freeze of two hours that begins at this time.
fn freeze_from(begin: Timestamp) -> Value {
    let begin = begin.to_zoned(TimeZone::UTC);
    let cron = format!("{} {} * * *", begin.minute(), begin.hour());
    json!({"releaseWindows": [{"kind": "freeze", "cron": cron, "duration": "2h"}]})
}

#[tokio::test(start_paused = true)]
async fn a_pause_that_is_over_by_the_new_clock_ends_within_seconds() {
    let world = world().await;
    let _serin = world.initialized(with_pause()).await;
    let _traffic = world.traffic();
    world.push("web:v2").await;
    world.event_contains("Step 1 of 2").await;
    world.sleep_long().await;
    assert_eq!(world.split().await, Some((20, 80)));
    let stepped_at = Instant::now();
    world.clock.step_by(HOUR);
    world.event_contains("Step 2 of 2").await;
    assert!(stepped_at.elapsed() < SOON, "only after {:?}", stepped_at.elapsed());
    assert_eq!(world.released(1).await.phase, Phase::Succeeded);
}

#[tokio::test(start_paused = true)]
async fn a_freeze_that_has_begun_by_the_new_clock_holds_a_release() {
    let world = world().await;
    let mut spec = with_pause();
    json_patch::merge(&mut spec, &freeze_from(world.clock.now() + HOUR / 2));
    let _serin = world.initialized(spec).await;
    let _traffic = world.traffic();
    world.push("web:v2").await;
    world.event_contains("Step 1 of 2").await;
    let stepped_at = Instant::now();
    world.clock.step_by(HOUR);
    world.event_contains("a release freeze is on").await;
    assert!(stepped_at.elapsed() < SOON, "only after {:?}", stepped_at.elapsed());
    world.sleep_long().await;
    assert_eq!((world.status().await.phase, world.split().await), (Phase::Progressing, Some((20, 80))));
    world.clock.step_by(HOUR * 3);
    assert_eq!(world.released(1).await.phase, Phase::Succeeded);
}

#[tokio::test(start_paused = true)]
async fn a_step_that_has_hardly_begun_is_judged_for_its_whole_interval() {
    let world = world().await;
    let _serin = world.initialized(json!({"analysis": {"interval": "1m"}})).await;
    let (traffic, weights) = (world.traffic(), world.weights().await);
    world.push("web:v2").await;
    world.event_contains("Step 1 of 2").await;
    world.clock.step_by(HOUR);
    let stepped_at = Instant::now();
    world.event_contains("Step 2 of 2").await;
    assert!(stepped_at.elapsed() > Duration::from_secs(55), "after {:?}", stepped_at.elapsed());
    assert_eq!(world.released(1).await.phase, Phase::Succeeded);
    weights.assert_sequence(&[0, 20, 50, 0]).await;
    traffic.assert_all_served();
}

#[tokio::test(start_paused = true)]
async fn a_release_goes_on_after_a_step_back() {
    let world = world().await;
    let _serin = world.initialized(json!({})).await;
    let (traffic, weights) = (world.traffic(), world.weights().await);
    world.push("web:v2").await;
    world.event_contains("Step 1 of 2").await;
    let stepped_at = Instant::now();
    world.clock.step_by(-HOUR);
    assert_eq!(world.released(1).await.phase, Phase::Succeeded);
    assert!(stepped_at.elapsed() < Duration::from_secs(120), "only after {:?}", stepped_at.elapsed());
    weights.assert_sequence(&[0, 20, 50, 0]).await;
    traffic.assert_all_served();
}

#[tokio::test(start_paused = true)]
async fn a_bad_canary_is_found_after_a_step_back() {
    let world = world().await;
    let _serin = world.initialized(json!({"analysis": {"interval": "1m"}})).await;
    let _traffic = world.traffic();
    world.push("web:v2-errors-50").await;
    world.event_contains("Step 1 of 2").await;
    world.clock.step_by(-HOUR);
    let stepped_at = Instant::now();
    world.reaches(Phase::Failed).await;
    // The step is found, and the check that begins then is the one that convicts.
    assert!(stepped_at.elapsed() < Duration::from_secs(75), "only after {:?}", stepped_at.elapsed());
}
