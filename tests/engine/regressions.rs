//! Bugs found by the simulation and with a real Istio.

use std::time::Duration;

use jiff::SignedDuration;
use serin::api::Weight;
use serin::api::canary::{Phase, status::GateState};
use serin::engine::action::{Split, Stable};
use serin::engine::command::Verb;
use serin::engine::decide;
use serin::engine::observed::Pods;

use crate::world::{Health, World, canary, canary_with, pods};

#[test]
fn a_step_is_not_judged_by_a_check_that_passed_when_it_began() {
    let mut world = World::releasing(&canary(
        "interval: 1m, stepWeights: [10, 30, 60], metrics: [{name: request-success-rate}]",
    ));
    world.run_to_weight(30.0);
    world.health = Health::FewRequests;
    world.run_for(Duration::from_secs(70));
    assert_eq!(world.split.canary.percent(), 30.0, "a dozen requests are not enough");
    world.health = Health::Good;
    world.run();
    assert_eq!(world.status.phase, Phase::Succeeded);
}

#[test]
fn a_second_check_is_not_judged_by_the_first() {
    let mut world = World::releasing(&canary(
        "interval: 1m, steps: [{weight: 10, iterations: 2}, {weight: 60}], metrics: [{name: request-success-rate}]",
    ));
    world.run_until(|world| world.status.iterations == 1);
    world.health = Health::FewRequests;
    world.run_for(Duration::from_secs(70));
    assert_eq!((world.split.canary.percent(), world.status.iterations), (10.0, 1));
}

#[test]
fn a_release_is_not_promoted_before_it_is_recorded() {
    let mut world = World::initialized(&canary_with("skipAnalysis: true", "stepWeight: 50"));
    world.target.pods = pods(3);
    world.push("v1-b");
    for _ in 0..3 {
        let decision = decide(&world.plan, &world.status, &world.observe(), world.now);
        decision.actions.iter().for_each(|action| world.perform(action));
        world.status = decision.status;
    }
    assert!(world.promotions.is_empty(), "the status could never be written");
    world.recorded = world.status.releases;
    world.run();
    assert_eq!((world.status.phase, &*world.promotions), (Phase::Succeeded, &["v1-b".to_owned()][..]));
}

/// The target is set back before the status could be written: nothing would know of the
/// pods, or of the size that people gave to those that ran before.
#[test]
fn the_target_is_not_scaled_for_a_release_that_is_not_recorded() {
    for at_rest in [0, 5] {
        let mut world = World::initialized(&canary("interval: 1m, stepWeights: [50]"));
        world.target.pods = pods(at_rest);
        world.target.configs.insert("configmap/settings".to_owned(), "1".to_owned());
        world.status.tracked_configs.insert("configmap/settings".to_owned(), "0".to_owned());
        world.push("v1-b");
        for _ in 0..3 {
            let decision = decide(&world.plan, &world.status, &world.observe(), world.now);
            decision.actions.iter().for_each(|action| world.perform(action));
            world.pass_time(Duration::from_secs(10));
        }
        assert_eq!(world.target.pods.desired, at_rest);
        world.push("v1-a");
        world.run();
        assert_eq!((world.status.phase, world.target.pods.desired), (Phase::Initialized, at_rest));
    }
}

/// After a crash, the recorded status says Waiting: the primary would be restored,
/// and the revision promoted twice.
#[test]
fn a_release_recorded_as_waiting_is_not_promoted() {
    let mut world = World::initialized(&canary_with("skipAnalysis: true", "stepWeight: 50"));
    world.target.pods = pods(3);
    world.release_cap = Some(0);
    world.push("v1-b");
    world.run_for(Duration::from_secs(1));
    assert_eq!(world.status.phase, Phase::Waiting);
    world.release_cap = None;
    for _ in 0..3 {
        let decision = decide(&world.plan, &world.status, &world.observe(), world.now);
        assert_eq!(decision.status.phase, Phase::Promoting);
        decision.actions.iter().for_each(|action| world.perform(action));
    }
    assert!(world.promotions.is_empty(), "the status could never be written");
    world.run();
    assert_eq!((world.status.phase, &*world.promotions), (Phase::Succeeded, &["v1-b".to_owned()][..]));
}

#[test]
fn restarted_steps_have_the_whole_deadline() {
    let mut world = World::releasing(&canary("interval: 1m, stepWeights: [20, 40]"));
    world.router_applies = false;
    world.run_until(|world| world.status.step.is_some());
    world.step();
    world.router_applies = true;
    world.step();
    // The controller is down for as long as the deadline.
    world.pass_time(Duration::from_secs(600));
    world.plan = World::new(&canary("interval: 1m, stepWeights: [30, 60]")).plan;
    world.run();
    assert_eq!(world.status.phase, Phase::Succeeded);
}

/// Proxies follow the old weight for a tenth of a second, and would call deleted
/// pods.
#[test]
fn canary_pods_are_kept_until_proxies_have_drained() {
    for (health, pushed_again) in [(Health::Good, false), (Health::Bad, false), (Health::Good, true)] {
        let mut world = World::releasing(&canary(
            "threshold: 1, stepWeights: [50], metrics: [{name: errors, query: q, thresholdRange: {max: 1}}]",
        ));
        world.run_to_weight(50.0);
        world.health = health;
        if pushed_again {
            world.push("v1-c");
        }
        world.run_until(|world| world.split == Split::all_primary());
        let withdrawn_at = world.now;
        world.run_until(|world| world.target.pods.desired == 0);
        let stayed = world.now.duration_since(withdrawn_at);
        assert!(stayed >= SignedDuration::from_secs(5), "{health:?}, pushed again: {pushed_again}");
    }
}

/// The pods that served before the primary existed drain like canary pods.
#[test]
fn a_target_is_scaled_down_after_proxies_moved_to_its_primary() {
    let mut world = World::new(&canary("stepWeights: [50]"));
    world.split = Split::weight(Weight::FULL);
    world.run_until(|world| world.split == Split::all_primary());
    let withdrawn_at = world.now;
    world.run_until(|world| world.target.pods.desired == 0);
    assert!(world.now.duration_since(withdrawn_at) >= SignedDuration::from_secs(5));
    world.run();
    assert_eq!(world.status.phase, Phase::Initialized);
}

/// The previous version's copy drains like canary pods once it has served.
#[test]
fn a_previous_copy_that_served_during_a_restore_is_dropped_after_proxies_moved() {
    let mut world = World::releasing(&canary_with("rollback: {keepWarmSeconds: 3600}", "stepWeights: [50]"));
    world.run_to(Phase::Succeeded);
    world.settle();
    world.primary_starts = false;
    world.command(Verb::Rollback);
    world.run_until(|world| world.split.stable == Stable::Previous);
    world.primary_starts = true;
    world.primary.iter_mut().for_each(|primary| primary.pods = pods(3));
    world.run_until(|world| world.split == Split::all_primary());
    let withdrawn_at = world.now;
    world.run_until(|world| world.previous.is_none());
    assert!(world.now.duration_since(withdrawn_at) >= SignedDuration::from_secs(5));
}

/// An annotation on the target records the scale-down, so the status is not
/// written for it, and a user may scale the target up afterwards.
#[test]
fn canary_pods_are_scaled_down_once_and_later_sizes_are_kept() {
    for health in [Health::Good, Health::Bad] {
        let mut world = World::releasing(&canary(
            "threshold: 1, stepWeights: [50], metrics: [{name: errors, query: q, thresholdRange: {max: 1}}]",
        ));
        world.health = health;
        world.run_until(|world| matches!(world.status.phase, Phase::Succeeded | Phase::Failed));
        world.settle();
        let status = world.status.clone();
        assert!(status.release.is_none() && world.target.pods.desired > 0, "over, and draining: {status:?}");
        world.run();
        assert_eq!((world.target.pods.desired, &world.status), (0, &status));
        world.target.pods = pods(2);
        world.run();
        assert_eq!((world.target.pods.desired, &world.status), (2, &status));
        // The pods of the next release are scaled down, too.
        world.health = Health::Good;
        world.push("v1-c");
        world.run();
        assert_eq!((world.status.phase, world.target.pods.desired), (Phase::Succeeded, 0));
    }
}

/// A user may scale up the target of a release that left no pods.
#[test]
fn a_release_without_pods_scales_nothing_down() {
    let mut world = World::releasing(&canary(
        "stepWeights: [50], webhooks: [{name: gate, type: confirm-rollout, url: 'http://gate'}]",
    ));
    world.closed.insert("gate".to_owned());
    world.run_to(Phase::Waiting);
    world.settle();
    world.command(Verb::Abort);
    world.run();
    assert_eq!((world.status.phase, world.target.pods.desired), (Phase::Failed, 0));
    world.target.pods = pods(2);
    world.run();
    assert_eq!(world.target.pods.desired, 2);
}

/// If the record of the failure is lost, the release continues, and its pods must
/// not be annotated as scaled down.
#[test]
fn canary_pods_are_scaled_down_only_after_the_end_of_the_release_is_recorded() {
    let mut world = World::releasing(&canary(
        "threshold: 1, stepWeights: [50], webhooks: [{name: smoke, type: pre-rollout, url: 'http://smoke'}]",
    ));
    world.closed.insert("smoke".to_owned());
    world.run_until(|world| !world.answers.is_empty());
    for _ in 0..3 {
        let decision = decide(&world.plan, &world.status, &world.observe(), world.now);
        assert_eq!(decision.status.phase, Phase::Failed);
        decision.actions.iter().for_each(|action| world.perform(action));
    }
    assert!(world.target.pods.desired > 0, "the status could never be written");
    world.run();
    assert_eq!((world.status.phase, world.target.pods.desired), (Phase::Failed, 0));
}

/// If the record of the failure is lost, the revision must not be promoted again.
#[test]
fn the_primary_is_restored_only_after_the_failure_is_recorded() {
    let mut world = World::releasing(&canary("interval: 1m, stepWeights: [50]"));
    world.primary_starts = false;
    world.run_until(|world| world.status.phase == Phase::Promoting);
    world.command(Verb::Abort);
    for _ in 0..3 {
        let decision = decide(&world.plan, &world.status, &world.observe(), world.now);
        assert_eq!(decision.status.phase, Phase::Failed);
        decision.actions.iter().for_each(|action| world.perform(action));
    }
    let runs = |world: &World| world.primary.as_ref().and_then(|primary| primary.revision.clone());
    assert_eq!(runs(&world).as_deref(), Some("v1-b"), "the status could never be written");
    world.primary_starts = true;
    world.run();
    assert_eq!((world.status.phase, runs(&world).as_deref()), (Phase::Failed, Some("v1-a")));
}

#[test]
fn pods_of_an_earlier_revision_are_not_counted_as_ready() {
    let mut world = World::releasing(&canary("interval: 1m, stepWeights: [50]"));
    world.primary_starts = false;
    world.run_to(Phase::Promoting);
    world.settle();
    let rolling = Pods { desired: 2, exist: true, updated: 0, ready: 3, older: 3 };
    world.primary.as_mut().expect("a primary").pods = rolling;
    world.run_for(Duration::from_secs(120));
    let message = world.status.message.expect("a message");
    assert_eq!(message, "Waiting for the primary to run the promoted revision: 0 of 2 pods ready.");
}

/// A gate of an ended release could be approved, and stayed Waiting in the status
/// for ever.
#[test]
fn no_gate_waits_after_its_release_went_on() {
    let gate = "webhooks: [{name: ship, type: confirm-promotion, url: u}]";
    for verb in [Verb::Promote, Verb::Abort] {
        let mut world = World::releasing(&canary(&format!("interval: 1m, stepWeights: [50], {gate}")));
        world.run_to(Phase::WaitingPromotion);
        let waits = |world: &World| world.status.gates.iter().any(|gate| gate.state == GateState::Waiting);
        assert!(waits(&world), "{verb:?}");
        world.command(verb);
        world.run();
        assert!(world.status.phase != Phase::WaitingPromotion && !waits(&world), "{verb:?}");
    }
}

/// Only an unrelated watch event of the Deployment triggered the report.
#[test]
fn a_waiting_reason_is_reported_without_any_other_event() {
    let mut world = World::initialized(&canary("interval: 10m, stepWeights: [50]"));
    (world.other_releases, world.release_cap) = (2, Some(2));
    world.push("v1-b");
    world.run_for(Duration::from_secs(1));
    let message = world.status.message.as_deref();
    assert_eq!(message, Some("Waiting for a free slot: 2 other releases are running, the limit is 2."));
}
