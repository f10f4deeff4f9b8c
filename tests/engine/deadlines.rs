//! When a release that makes no progress is rolled back, and when it is not.

use std::time::Duration;

use serin::api::canary::Phase;
use serin::api::canary::status::Outcome;
use serin::engine::Plan;
use serin::engine::action::Split;
use serin::engine::command::Verb;
use serin::engine::observed::Pods;

use crate::world::{Health, World, canary, canary_with, pods};

const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3600);

/// A Deployment of twenty pods that replaces them one by one, with so many of the
/// present template by now. All pods are ready.
fn replaced(new: u32) -> Pods {
    let older = 20 - new;
    Pods { desired: 20, exist: true, updated: new.saturating_sub(older), ready: 20, older }
}

/// A Deployment of twenty pods of one template, so many of which are ready.
fn started(ready: u32) -> Pods {
    Pods { ready, ..pods(20) }
}

#[test]
fn a_primary_of_many_pods_that_roll_slowly_is_promoted() {
    let mut world = World::initialized(&canary("interval: 1m, stepWeights: [50]"));
    world.primary.as_mut().unwrap().pods = pods(20);
    world.primary_starts = false;
    world.push("v1-b");
    world.run_until(|world| world.promotions == ["v1-b"]);
    for new in 0..=20 {
        world.primary.as_mut().unwrap().pods = replaced(new);
        world.run_for(MINUTE);
    }
    world.run();
    assert_eq!(world.status.phase, Phase::Succeeded, "{:?}", world.status.message);
}

#[test]
fn a_canary_of_many_pods_that_start_slowly_is_released() {
    let mut world = World::initialized(&canary("interval: 1m, stepWeights: [50]"));
    world.canary_starts = false;
    world.push("v1-b");
    world.run_for(MINUTE);
    for ready in 0..=20 {
        world.target.pods = started(ready);
        world.run_for(MINUTE);
    }
    world.run();
    assert_eq!(world.status.phase, Phase::Succeeded, "{:?}", world.status.message);
}

#[test]
fn pods_that_come_and_go_are_no_progress() {
    let mut world = World::initialized(&canary("interval: 1m, stepWeights: [50]"));
    world.canary_starts = false;
    world.push("v1-b");
    world.run_for(MINUTE);
    for minute in 0..11 {
        world.target.pods = started(4 + minute % 2);
        world.run_for(MINUTE);
    }
    assert_eq!(world.status.phase, Phase::Failed);
    let reason = &world.status.history[0].reason;
    assert!(reason.starts_with("no progress for 600 seconds; waiting for the canary"), "{reason}");
}

/// A release whose canary does not start, nine minutes before an hour's stop.
fn nine_minutes_in() -> World {
    let mut world = World::initialized(&canary("interval: 1m, stepWeights: [50]"));
    world.canary_starts = false;
    world.push("v1-b");
    world.run_for(9 * MINUTE);
    assert_eq!(world.status.phase, Phase::Progressing);
    world
}

fn replan(spec: &str) -> Plan {
    World::new(&canary_with(spec, "interval: 1m, stepWeights: [50]")).plan
}

#[test]
fn a_release_that_may_go_on_has_the_whole_deadline_again() {
    type Change = fn(&mut World);
    let pauses: [(&str, Change, Change); 3] = [
        ("suspended", |world| world.plan = replan("suspend: true"), |world| world.plan = replan("")),
        ("paused", |world| world.command(Verb::Pause), |world| world.command(Verb::Resume)),
        (
            "frozen",
            |world| {
                let freeze = "releaseWindows: [{kind: freeze, cron: '* * * * *', duration: 1m}]";
                world.plan = replan(freeze);
            },
            |world| world.plan = replan(""),
        ),
    ];
    for (what, stop, resume) in pauses {
        let mut world = nine_minutes_in();
        stop(&mut world);
        world.settle();
        world.run_for(HOUR);
        assert_eq!(world.status.phase, Phase::Progressing, "{what}");
        resume(&mut world);
        world.settle();
        world.run_for(9 * MINUTE);
        assert_eq!(world.status.phase, Phase::Progressing, "{what} a minute before its deadline");
        world.run_for(2 * MINUTE);
        assert_eq!(world.status.phase, Phase::Failed, "{what}");
    }
}

#[test]
fn the_progress_deadline_is_not_about_metrics() {
    for silence in [Health::NoData, Health::Unavailable] {
        let metrics = "metrics: [{name: request-success-rate}]";
        let analysis = format!("interval: 1m, stepWeights: [50], {metrics}");
        let mut world = World::releasing(&canary_with("progressDeadlineSeconds: 60", &analysis));
        world.health = silence;
        world.run_to_weight(50.0);
        world.run_for(HOUR);
        assert_eq!(world.status.phase, Phase::Progressing, "{silence:?}");
        world.health = Health::Good;
        world.run();
        assert_eq!(world.status.phase, Phase::Succeeded, "{silence:?}");
    }
}

#[test]
fn a_primary_that_stays_unready_ends_a_release_under_way() {
    let mut world = World::releasing(&canary("interval: 1m, stepWeights: [20, 50]"));
    world.run_to_weight(20.0);
    world.primary.as_mut().unwrap().pods.ready = 1;
    world.run_for(9 * MINUTE);
    assert_eq!((world.status.phase, world.split.canary.percent()), (Phase::Progressing, 20.0));
    world.run_for(3 * MINUTE);
    assert_eq!((world.status.phase, &world.split), (Phase::Failed, &Split::all_primary()));
    let reason = &world.status.history[0].reason;
    assert_eq!(reason, "no progress for 600 seconds; holding: the primary is not ready (1 of 3 pods)");
}

#[test]
fn a_primary_that_stays_unready_ends_a_release_that_waits() {
    let mut world = World::initialized(&canary("interval: 1m, stepWeights: [20, 50]"));
    world.primary.as_mut().unwrap().pods.ready = 1;
    world.push("v1-b");
    world.run_for(9 * MINUTE);
    assert_eq!(world.status.phase, Phase::Waiting);
    world.run_for(2 * MINUTE);
    assert_eq!((world.status.phase, world.target.pods.desired), (Phase::Failed, 0));
    assert_eq!(world.status.history[0].outcome, Outcome::RolledBack);
}

/// A promoted revision whose primary has so few ready pods as traffic returns.
fn degraded_while_traffic_returns(ready: u32) -> World {
    let mut world = World::releasing(&canary("interval: 1m, stepWeights: [60], stepWeightPromotion: 30"));
    world.run_to(Phase::Finalising);
    world.primary.as_mut().unwrap().pods.ready = ready;
    world.run_for(9 * MINUTE);
    assert_eq!((world.status.phase, world.split.canary.percent()), (Phase::Finalising, 60.0));
    world
}

#[test]
fn traffic_returns_at_the_deadline_to_a_promoted_primary_that_can_serve() {
    let mut world = degraded_while_traffic_returns(1);
    world.run_for(2 * MINUTE);
    assert_eq!(world.split.canary.percent(), 30.0);
    world.run();
    assert_eq!((world.status.phase, &world.split), (Phase::Succeeded, &Split::all_primary()));
}

#[test]
fn a_promoted_primary_that_died_ends_the_release_and_gets_its_traffic_once_it_serves() {
    let mut world = degraded_while_traffic_returns(0);
    world.run_for(2 * MINUTE);
    assert_eq!(world.status.history[0].outcome, Outcome::Promoted);
    assert_eq!((world.status.phase, world.split.canary.percent()), (Phase::Succeeded, 60.0));
    let message = world.status.message.clone().unwrap_or_default();
    assert!(message.contains("the primary has no ready pod"), "{message}");
    assert_eq!(world.target.pods.desired, 3, "its pods serve");
    world.primary.as_mut().unwrap().pods.ready = 1;
    world.run();
    assert_eq!((&world.split, world.target.pods.desired), (&Split::all_primary(), 0));
}

#[test]
fn a_canary_that_dies_under_its_traffic_again_and_again_is_rolled_back() {
    let mut world = World::releasing(&canary("interval: 1m, stepWeights: [20, 50]"));
    for death in 1..=3 {
        world.run_to_weight(20.0);
        world.run_for(MINUTE / 2);
        world.target.pods = started(0);
        world.settle();
        assert_eq!(world.split, Split::all_primary(), "death {death}");
        let phase = if death < 3 { Phase::Progressing } else { Phase::Failed };
        assert_eq!(world.status.phase, phase, "death {death}");
        world.target.pods = started(20);
        world.settle();
    }
    assert_eq!(
        world.status.history[0].reason,
        "the canary lost all its ready pods 3 times while it had traffic"
    );
}

#[test]
fn a_canary_that_is_restarted_without_traffic_does_not_count_as_dead() {
    let mut world = World::releasing(&canary("interval: 1m, iterations: 5"));
    for _ in 0..4 {
        world.run_for(MINUTE / 2);
        world.target.pods = started(0);
        world.settle();
        world.target.pods = started(20);
        world.settle();
    }
    world.run();
    assert_eq!(world.status.phase, Phase::Succeeded);
}
