//! Pushes, lost primaries and sizes around a promotion.

use std::time::Duration;

use serin::api::Weight;
use serin::api::canary::{Phase, status::Outcome};
use serin::engine::action::{Split, Stable};
use serin::engine::observed::Pods;

use crate::world::{World, canary, canary_with, pods};

/// A primary of three pods of which so many are replaced by the promoted revision,
/// with so many ready.
fn rolling(updated: u32, ready: u32) -> Pods {
    Pods { desired: 3, exist: true, updated, ready, older: 3 - updated }
}

/// A release whose primary rolls, while the canary has its traffic.
fn promoting(world: &mut World) {
    world.primary_starts = false;
    world.run_until(|world| world.promotions == ["v1-b"]);
    world.settle();
    assert!(world.split.reaches_canary());
}

#[test]
fn a_push_while_the_primary_rolls_sends_traffic_to_the_primary() {
    for (strategy, weight) in [("stepWeights: [50]", 50.0), ("iterations: 1", 100.0)] {
        let mut world = World::releasing(&canary(&format!("interval: 1m, {strategy}")));
        promoting(&mut world);
        assert_eq!(world.split.canary.percent(), weight);
        world.push("v1-c");
        world.settle();
        assert_eq!(world.split, Split::all_primary(), "nobody judged v1-c");
        world.primary_starts = true;
        world.primary.as_mut().unwrap().pods = pods(3);
        world.run();
        let outcomes: Vec<_> = world.status.history.iter().map(|past| past.outcome).collect();
        assert_eq!(outcomes, [Outcome::Promoted, Outcome::Promoted], "both were released");
        assert_eq!(world.promotions, ["v1-b", "v1-c"]);
    }
}

#[test]
fn a_push_while_the_primary_rolls_keeps_traffic_until_the_primary_or_a_warm_copy_can_serve() {
    for warm in [false, true] {
        let keep = if warm { "rollback: {keepWarmSeconds: 900}" } else { "" };
        let mut world = World::releasing(&canary_with(keep, "interval: 1m, iterations: 1"));
        promoting(&mut world);
        world.primary.as_mut().unwrap().pods = rolling(3, 0);
        world.push("v1-c");
        world.settle();
        match warm {
            true => assert_eq!(world.split, Split { stable: Stable::Previous, ..Split::all_primary() }),
            false => assert_eq!(world.split.canary, Weight::FULL, "nobody else answers"),
        }
        world.primary.as_mut().unwrap().pods = rolling(3, 1);
        world.settle();
        assert_eq!(world.split, Split::all_primary());
        world.primary.as_mut().unwrap().pods = pods(3);
        world.run_until(|world| world.status.history.first().is_some_and(|past| past.revision == "v1-b"));
        assert_eq!(world.status.history[0].outcome, Outcome::Promoted);
    }
}

#[test]
fn a_push_while_traffic_returns_by_steps_ends_at_the_primary_at_once() {
    let mut world = World::releasing(&canary("interval: 1m, stepWeights: [60], stepWeightPromotion: 20"));
    world.run_to(Phase::Finalising);
    world.run_until(|world| world.split.canary.percent() == 40.0);
    world.primary.as_mut().unwrap().pods = rolling(3, 2);
    world.push("v1-c");
    world.settle();
    assert_eq!(world.split, Split::all_primary(), "two pods of the primary are better than v1-c");
}

#[test]
fn an_abort_after_a_push_while_the_primary_rolls_leaves_nobody_on_the_unjudged_revision() {
    let mut world = World::releasing(&canary("interval: 1m, iterations: 1"));
    promoting(&mut world);
    world.push("v1-c");
    world.command(serin::engine::command::Verb::Abort);
    world.settle();
    assert_eq!(world.split, Split::all_primary());
}

/// The pods that carry the canary's traffic are those that somebody found to be bad.
#[test]
fn an_abort_while_the_primary_rolls_has_its_effect_within_a_minute() {
    for (ready, returns) in [(1, true), (0, false)] {
        let mut world = World::releasing(&canary("interval: 1m, stepWeights: [50]"));
        promoting(&mut world);
        world.command(serin::engine::command::Verb::Abort);
        world.settle();
        assert_eq!(world.primary.as_ref().unwrap().revision.as_deref(), Some("v1-a"));
        world.primary.as_mut().unwrap().pods = rolling(2, ready);
        world.run_for(Duration::from_secs(30));
        assert!(world.split.reaches_canary(), "the primary may be ready soon");
        world.run_for(Duration::from_secs(25));
        assert_eq!(world.split == Split::all_primary(), returns, "{ready} ready");
    }
}

#[test]
fn a_primary_that_is_not_ready_long_after_a_failed_promotion_gets_the_traffic_if_it_serves() {
    let mut world = World::releasing(&canary("interval: 1m, stepWeights: [50]"));
    promoting(&mut world);
    world.run_to(Phase::Failed);
    world.settle();
    world.primary.as_mut().unwrap().pods = rolling(2, 2);
    world.run_for(Duration::from_secs(500));
    assert!(world.split.reaches_canary());
    world.run_for(Duration::from_secs(200));
    assert_eq!(world.split, Split::all_primary());
}

/// Pods that run since before an edit of a config do not carry it.
#[test]
fn a_config_change_is_judged_on_pods_that_started_after_it() {
    let mut world = World::initialized(&canary("interval: 1m, stepWeights: [50]"));
    let config = |digest: &str| [("configmap/web".to_owned(), digest.to_owned())].into();
    world.target.configs = config("1");
    world.push("v1-b");
    world.run();
    assert_eq!(world.status.phase, Phase::Succeeded);
    world.target.pods = pods(2);
    world.run();
    world.target.configs = config("2");
    world.target.revision = "v1-c".to_owned();
    world.run_until(|world| world.target.pods.desired == 0);
    assert_eq!(world.status.phase, Phase::Waiting, "the pods at rest read the old one");
    world.run_to(Phase::Succeeded);
}

#[test]
fn a_config_change_after_a_template_that_waits_is_judged_on_pods_that_started_after_it() {
    let mut world = World::initialized(&canary(
        "interval: 1m, stepWeights: [50], webhooks: [{name: start, type: confirm-rollout, url: u}]",
    ));
    let config = |digest: &str| [("configmap/web".to_owned(), digest.to_owned())].into();
    world.target.configs = config("1");
    world.push("v1-b");
    world.run();
    world.target.pods = pods(2);
    world.closed.insert("start".to_owned());
    world.push("v1-c");
    world.run_for(Duration::from_secs(10));
    assert_eq!((world.status.phase, world.target.pods.desired), (Phase::Waiting, 2));
    world.target.configs = config("2");
    world.target.revision = "v1-d".to_owned();
    world.run_for(Duration::from_secs(10));
    assert_eq!((world.status.phase, world.target.pods.desired), (Phase::Waiting, 0));
}

#[test]
fn a_broken_first_version_is_replaced_while_initializing() {
    let mut world = World::new(&canary("interval: 1m, stepWeights: [50]"));
    world.split = Split::weight(Weight::FULL);
    world.step();
    world.primary.as_mut().unwrap().pods.ready = 0;
    world.run_for(Duration::from_secs(60));
    world.push("v1-b");
    world.run();
    let primary = world.primary.as_ref().unwrap();
    assert_eq!((world.status.phase, primary.revision.as_deref()), (Phase::Initialized, Some("v1-b")));
    assert_eq!(world.status.releases, 0);
}

/// A lost status: the primary serves, and the target's revision was never judged.
#[test]
fn a_primary_that_serves_is_not_replaced_while_initializing() {
    let mut world = World::releasing(&canary("interval: 1m, stepWeights: [50]"));
    world.status = Default::default();
    world.primary.as_mut().unwrap().pods.ready = 1;
    world.settle();
    assert_eq!(world.primary.as_ref().unwrap().revision.as_deref(), Some("v1-a"));
}

#[test]
fn a_size_written_with_a_superseding_revision_is_kept() {
    for waits in [false, true] {
        let mut world = World::releasing(&canary("interval: 1m, stepWeights: [50]"));
        world.run_to_weight(50.0);
        if waits {
            world.push("v1-c");
            world.run_until(|world| world.target.pods.desired == 0);
        }
        world.target.pods = pods(5);
        world.push("v1-d");
        world.run_to_weight(0.0);
        world.run_until(|world| world.target.pods.desired == 0);
        world.run_to_weight(50.0);
        assert_eq!(world.target.pods.desired, 5, "superseded while waiting: {waits}");
    }
}
