//! A deleted Canary: the target takes over, and nobody gets a revision that was not
//! promoted before the deadline.

use std::time::Duration;

use serin::{
    api::canary::Phase,
    engine::{Action, action::Split},
};

use crate::world::{World, canary, canary_with, pods};

const MINUTE: Duration = Duration::from_secs(60);

fn at_half() -> World {
    let mut world = World::releasing(&canary("interval: 1m, stepWeights: [50]"));
    world.run_to_weight(50.0);
    world
}

#[test]
fn a_deletion_waits_for_a_target_as_large_as_the_primary() {
    let mut world = World::initialized(&canary("interval: 1m, stepWeights: [50]"));
    world.primary.as_mut().unwrap().pods = pods(20);
    world.target.pods = pods(1);
    world.canary_starts = false;
    world.deleting = true;
    world.settle();
    assert_eq!((world.target.pods.desired, world.restored), (20, false));
    world.target.pods = pods(20);
    world.settle();
    assert!(world.restored && !world.finalizer);
}

#[test]
fn a_deletion_does_not_wait_for_ever_for_a_target_that_cannot_start() {
    let mut world = World::initialized(&canary("stepWeights: [50]"));
    world.canary_starts = false;
    world.deleting = true;
    world.run_for(5 * MINUTE);
    assert!(world.finalizer);
    world.run_for(6 * MINUTE);
    assert!(!world.finalizer);
}

#[test]
fn a_deletion_in_a_release_returns_the_traffic_and_holds_until_the_target_is_set_back() {
    let mut world = at_half();
    world.deleting = true;
    world.run_for(5 * MINUTE);
    assert_eq!((world.split.clone(), world.restored, world.finalizer), (Split::all_primary(), false, true));
    let message = world.status.message.clone().expect("a message");
    assert!(message.contains("until the target is set back to v1-a, or until"), "{message}");
    world.push("v1-a");
    world.run_for(MINUTE);
    assert!(world.restored && !world.finalizer);
}

#[test]
fn a_deletion_in_a_release_goes_on_at_the_deadline_and_then_waits_for_pods() {
    let mut world = at_half();
    world.deleting = true;
    world.run_for(9 * MINUTE);
    world.target.pods.ready = 0;
    world.canary_starts = false;
    world.run_for(6 * MINUTE);
    assert!(world.finalizer, "the pods have a deadline of their own");
    world.run_for(6 * MINUTE);
    assert!(!world.finalizer);
}

#[test]
fn a_deletion_of_a_rejected_revision_holds_too() {
    let mut world = at_half();
    world.command(serin::engine::command::Verb::Abort);
    world.run();
    assert_eq!(world.status.phase, Phase::Failed);
    world.deleting = true;
    world.run_for(5 * MINUTE);
    assert!(world.finalizer && world.target.pods.desired == 0);
}

#[test]
fn a_deletion_without_revert_only_removes_the_finalizer() {
    let mut world =
        World::releasing(&canary_with("revertOnDeletion: false", "interval: 1m, stepWeights: [50]"));
    world.run_to_weight(50.0);
    world.deleting = true;
    let decision = world.step();
    assert_eq!(decision.actions, vec![Action::RemoveFinalizer]);
}
