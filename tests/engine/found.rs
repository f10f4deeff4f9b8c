//! What the simulation found, each as a test of its own.

use std::time::Duration;

use serin::api::canary::Phase;

use crate::world::{Health, World, canary};

#[test]
fn a_step_is_not_judged_by_a_look_that_passed_at_the_moment_it_began() {
    let mut world = World::releasing(&canary(
        "interval: 1m, stepWeights: [10, 30, 60], metrics: [{name: request-success-rate}]",
    ));
    world.run_to_weight(30.0);
    world.health = Health::Quiet;
    world.run_for(Duration::from_secs(70));
    assert_eq!(world.split.canary.percent(), 30.0, "a dozen requests are not enough");
    world.health = Health::Good;
    world.run();
    assert_eq!(world.status.phase, Phase::Succeeded);
}

#[test]
fn nor_is_a_second_look_by_the_first() {
    let mut world = World::releasing(&canary(
        "interval: 1m, steps: [{weight: 10, iterations: 2}, {weight: 60}], metrics: [{name: request-success-rate}]",
    ));
    world.run_until(|world| world.status.iterations == 1);
    world.health = Health::Quiet;
    world.run_for(Duration::from_secs(70));
    assert_eq!((world.split.canary.percent(), world.status.iterations), (10.0, 1));
}
