//! A primary that is deleted, and one that is too small for the traffic it gets back.

use std::time::Duration;

use serin::api::Weight;
use serin::api::canary::{Phase, status::Outcome};
use serin::engine::action::{Split, Stable};
use serin::engine::command::Verb;
use serin::engine::{Action, PlanError};

use crate::world::{World, canary, canary_with, pods};

const STEPS: &str = "interval: 1m, stepWeights: [20, 50]";

#[test]
fn a_primary_deleted_in_a_release_comes_back_while_the_canary_serves() {
    let mut world = World::releasing(&canary(STEPS));
    world.run_to_weight(20.0);
    world.primary = None;
    world.primary_starts = false;
    world.settle();
    let primary = world.primary.clone().expect("it is restored");
    assert_eq!((primary.revision.as_deref(), primary.pods.desired), (Some("v1-a"), 3));
    assert_eq!(world.split, Split::weight(Weight::FULL), "nobody else answers");
    assert_eq!(world.status.phase, Phase::Progressing);
    world.run_for(Duration::from_secs(300));
    assert_eq!(world.split, Split::weight(Weight::FULL), "it cannot serve yet");
    world.primary_starts = true;
    world.primary.as_mut().unwrap().pods.ready = 1;
    world.settle();
    assert_eq!(world.split.canary, Weight::from_percent(20.0).unwrap());
    world.primary.as_mut().unwrap().pods = pods(3);
    world.run();
    assert_eq!(world.status.history[0].outcome, Outcome::Promoted);
    assert_eq!(world.split, Split::all_primary());
}

#[test]
fn a_primary_deleted_in_a_promotion_comes_back() {
    let mut world = World::releasing(&canary("interval: 1m, iterations: 1"));
    world.run_to(Phase::Promoting);
    world.run_until(|world| world.split.canary == Weight::FULL);
    world.primary = None;
    world.run();
    assert_eq!((world.status.phase, world.split.canary), (Phase::Succeeded, Weight::ZERO));
    assert_eq!(world.primary.as_ref().unwrap().revision.as_deref(), Some("v1-b"));
}

#[test]
fn a_primary_deleted_at_rest_comes_back_with_its_size() {
    let mut world = World::initialized(&canary(STEPS));
    assert_eq!(world.target.pods.desired, 0);
    world.primary = None;
    let decision = world.step();
    let restore = Action::RestorePrimary { revision: "v1-a".to_owned(), replicas: Some(3) };
    assert!(decision.actions.contains(&restore), "{:?}", decision.actions);
    world.run();
    assert_eq!(world.primary.as_ref().unwrap().pods.desired, 3);
}

#[test]
fn a_warm_copy_serves_while_a_deleted_primary_comes_back() {
    let mut world = World::releasing(&canary_with("rollback: {keepWarmSeconds: 9000}", STEPS));
    world.run_to(Phase::Succeeded);
    world.settle();
    assert!(world.previous.is_some());
    world.target.pods = pods(0);
    world.primary = None;
    world.primary_starts = false;
    world.settle();
    assert_eq!(world.split, Split { stable: Stable::Previous, ..Split::all_primary() });
    world.primary.as_mut().unwrap().pods = pods(3);
    world.settle();
    assert_eq!(world.split, Split::all_primary());
}

#[test]
fn an_abort_without_a_primary_ends_at_the_restored_primary() {
    let mut world = World::releasing(&canary(STEPS));
    world.run_to_weight(20.0);
    world.primary = None;
    world.command(Verb::Abort);
    world.run();
    assert_eq!((world.status.phase, world.split.clone()), (Phase::Failed, Split::all_primary()));
    assert_eq!(world.primary.as_ref().unwrap().revision.as_deref(), Some("v1-a"));
}

/// A release of a canary with ten pods, beside a primary with so many.
fn promoting(analysis: &str, primary: u32, most: Option<u32>) -> World {
    let mut world = World::releasing(&canary(analysis));
    world.run_to(Phase::Promoting);
    world.target.pods = pods(10);
    let present = world.primary.as_mut().unwrap();
    (present.pods, present.max_replicas) = (pods(primary), most);
    world
}

#[test]
fn the_primary_gets_traffic_back_only_with_as_many_pods_as_carry_it() {
    for (analysis, primary, most, expected) in [
        ("interval: 1m, iterations: 1", 2, None, 10),
        ("interval: 1m, stepWeights: [50]", 2, None, 5),
        ("interval: 1m, stepWeights: [50]", 6, None, 6),
        ("interval: 1m, iterations: 1", 2, Some(4), 4),
    ] {
        let mut world = promoting(analysis, primary, most);
        world.run_to(Phase::Succeeded);
        assert_eq!(world.primary.as_ref().unwrap().pods.desired, expected, "{analysis}, {primary}, {most:?}");
    }
}

#[test]
fn a_primary_that_shrank_while_it_rolled_grows_before_it_gets_traffic() {
    let mut world = promoting("interval: 1m, iterations: 1", 10, None);
    world.primary_starts = false;
    world.run_until(|world| world.promotions == ["v1-b"]);
    world.primary.as_mut().unwrap().pods = pods(1);
    world.settle();
    assert_eq!(world.split, Split::weight(Weight::FULL));
    let grown = world.primary.as_mut().unwrap();
    assert_eq!(grown.pods.desired, 10);
    grown.pods = pods(10);
    world.run_to(Phase::Succeeded);
}

#[test]
fn replicas_of_steps_and_an_autoscaler_are_refused_together() {
    let scaler = "autoscalerRef: {apiVersion: autoscaling/v2, kind: HorizontalPodAutoscaler, name: web}";
    let steps = "steps: [{weight: 10}, {weight: 20, replicas: {count: 2}}]";
    let refused = serin::engine::Plan::try_from(&canary_with(scaler, steps)).unwrap_err();
    assert_eq!(refused, PlanError::StepReplicasWithAutoscaler { at: 1 });
    assert_eq!(
        refused.to_string(),
        "spec.analysis.steps[1].replicas and spec.autoscalerRef would both set the canary's size; remove one of them"
    );
}
