//! A route that something else overwrites while a release is judged on it.

use std::time::Duration;

use serin::api::canary::Phase;
use serin::engine::action::Split;
use serin::engine::command::Verb;

use crate::world::{World, canary, canary_with};

const MINUTE: Duration = Duration::from_secs(60);

/// A release at its first weight, whose route a GitOps controller also writes.
fn contested(spec: &str, analysis: &str) -> World {
    let mut world = World::releasing(&canary_with(spec, analysis));
    world.route_writer = Some("argocd-controller".to_owned());
    world.run_to_weight(20.0);
    world.settle();
    world
}

/// Reverts the route this often, as long as the release is under way.
fn revert_every(world: &mut World, gap: Duration, times: u32) {
    for _ in 0..times {
        world.run_for(gap);
        if world.status.phase != Phase::Progressing {
            return;
        }
        world.split = Split::all_primary();
        world.settle();
    }
}

fn events_about_reverts(world: &World) -> usize {
    world.journal.iter().filter(|line| line.contains("overwrote the route")).count()
}

#[test]
fn a_route_that_is_reverted_before_any_check_completes_ends_the_release_at_the_deadline() {
    let mut world = contested("", "interval: 1m, stepWeights: [20, 50]");
    revert_every(&mut world, MINUTE / 3, 29);
    assert_eq!(world.status.phase, Phase::Progressing);
    let message = world.status.message.clone().unwrap_or_default();
    assert_eq!(
        message,
        "argocd-controller overwrote the route 29 times in this release, and the check starts again each time: \
         list the route in spec.ignoreDifferences of the Application with managedFieldsManagers: [serin], and \
         add RespectIgnoreDifferences=true to its syncOptions."
    );
    assert_eq!(events_about_reverts(&world), 1, "{:#?}", world.journal);
    revert_every(&mut world, MINUTE / 3, 3);
    assert_eq!((world.status.phase, &world.split), (Phase::Failed, &Split::all_primary()));
    let reason = &world.status.history[0].reason;
    assert!(
        reason.starts_with("no progress for 600 seconds; argocd-controller overwrote the route"),
        "{reason}"
    );
}

#[test]
fn reverts_between_checks_that_complete_are_reported_once_and_end_nothing() {
    let mut world = contested("", "interval: 1m, steps: [{weight: 20, iterations: 60}]");
    revert_every(&mut world, 5 * MINUTE, 6);
    assert_eq!(world.status.phase, Phase::Progressing);
    assert_eq!(events_about_reverts(&world), 1, "{:#?}", world.journal);
    world.run();
    assert_eq!(world.status.phase, Phase::Succeeded);
}

#[test]
fn one_revert_is_not_reported() {
    let mut world = contested("", "interval: 1m, stepWeights: [20, 50]");
    revert_every(&mut world, MINUTE / 3, 1);
    world.run();
    assert_eq!((world.status.phase, events_about_reverts(&world)), (Phase::Succeeded, 0));
}

#[test]
fn reverts_have_at_least_an_interval_to_let_a_check_complete() {
    let mut world = contested("", "interval: 1h, stepWeights: [20]");
    revert_every(&mut world, 11 * MINUTE, 2);
    world.run();
    assert_eq!(world.status.phase, Phase::Succeeded, "{:?}", world.status.message);
}

#[test]
fn a_release_that_was_stopped_has_the_whole_deadline_of_reverts_again() {
    let plan = |spec: &str| World::new(&canary_with(spec, "interval: 1m, stepWeights: [20, 50]")).plan;
    let mut world = contested("", "interval: 1m, stepWeights: [20, 50]");
    revert_every(&mut world, MINUTE / 3, 27);
    world.plan = plan("suspend: true");
    world.settle();
    world.split = Split::all_primary();
    world.run_for(60 * MINUTE);
    world.plan = plan("");
    world.settle();
    revert_every(&mut world, MINUTE / 3, 27);
    assert_eq!(world.status.phase, Phase::Progressing);
    world.command(Verb::Pause);
    revert_every(&mut world, MINUTE / 3, 27);
    assert_eq!(world.status.phase, Phase::Progressing);
}

#[test]
fn an_edit_of_the_canary_is_no_revert() {
    let mut world = World::releasing(&canary("interval: 1m, stepWeights: [20, 50]"));
    world.run_to_weight(20.0);
    world.settle();
    let mut observed = world.observe();
    observed.split = None;
    assert!(serin::engine::is_route_reverted(&world.plan, &world.status, &observed));
    observed.generation = Some(2);
    assert!(!serin::engine::is_route_reverted(&world.plan, &world.status, &observed));
}
