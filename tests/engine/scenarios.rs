//! Whole releases, told as stories.

use std::time::Duration;

use serin::{
    api::canary::Phase,
    engine::command::Verb,
};

use crate::world::{Health, World, canary, canary_with};

const ERRORS: &str = "metrics: [{name: errors, query: q, thresholdRange: {max: 1}}]";

fn story(world: &World) -> String {
    world.journal.join("\n")
}

#[test]
fn first_the_primary_is_made() {
    let mut world = World::new(&canary(&format!("stepWeight: 50, {ERRORS}")));
    world.run();
    insta::assert_snapshot!(story(&world));
}

#[test]
fn a_good_revision_is_promoted_step_by_step() {
    let mut world = World::releasing(&canary(&format!("interval: 1m, stepWeight: 30, maxWeight: 70, {ERRORS}")));
    world.run();
    insta::assert_snapshot!(story(&world));
}
