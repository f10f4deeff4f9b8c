//! Users stay protected while work for a release fails, and after its Canary became
//! invalid.

use std::time::Duration;

use serin::api::Weight;
use serin::api::canary::{Phase, status::Outcome};
use serin::api::condition::ConditionStatus;
use serin::engine::action::{Purpose, Split};
use serin::engine::command::Verb;
use serin::engine::observed::{Failure, Pods};
use serin::engine::{Action, Decision, Plan, decide, protect};

use crate::world::{World, canary, canary_with};

const WHY: &str = "spec.analysis.metrics[0] names a template that does not exist";

fn failure(purpose: Purpose) -> Failure {
    Failure { purpose, message: "cannot promote: admission denied it".to_owned(), refused: true }
}

/// One pass over a Canary that became invalid, performed and recorded.
fn step_invalid(world: &mut World) -> Decision {
    let plan = Plan::minimal(&canary("stepWeight: 50").spec);
    let decision = protect(&plan, &world.status, &world.observe(), WHY, world.now);
    decision.actions.iter().for_each(|action| world.perform(action));
    world.status = decision.status.clone();
    decision
}

fn at_twenty_percent() -> World {
    let mut world = World::releasing(&canary("interval: 1m, stepWeights: [20, 50]"));
    world.run_to_weight(20.0);
    world
}

#[test]
fn a_failure_that_blocks_is_the_reason_and_runs_the_deadline() {
    let mut world = at_twenty_percent();
    world.failures = vec![failure(Purpose::Advance)];
    let decision = world.step();
    assert_eq!(
        decision.report.message,
        "Cannot promote: admission denied it. Nothing advances until that is corrected."
    );
    let stalled = decision.status.conditions.iter().find(|condition| condition.type_ == "Stalled").unwrap();
    assert_eq!(stalled.status, ConditionStatus::True);
    world.router_applies = false;
    world.run_for(Duration::from_secs(700));
    assert_eq!(world.status.history[0].outcome, Outcome::RolledBack);
}

#[test]
fn failed_maintenance_is_reported_once_and_blocks_nothing() {
    let mut world = at_twenty_percent();
    world.failures = vec![failure(Purpose::Maintain)];
    let reports = |decision: &Decision| {
        decision.report.preceding.iter().filter(|report| report.message.contains("admission denied")).count()
    };
    assert_eq!(reports(&world.step()), 1);
    assert_eq!(reports(&world.step()), 0);
    let degraded = |world: &World| world.status.conditions.iter().any(|it| it.type_ == "Degraded");
    assert!(degraded(&world));
    world.run();
    assert_eq!(world.status.phase, Phase::Succeeded);
    world.failures.clear();
    world.step();
    assert!(!degraded(&world));
}

#[test]
fn an_invalid_canary_holds_its_split_and_reports_it() {
    let mut world = at_twenty_percent();
    let decision = step_invalid(&mut world);
    assert!(decision.actions.is_empty(), "{:?}", decision.actions);
    assert_eq!(decision.report.message, format!("The Canary is invalid: {WHY}."));
    assert_eq!(world.status.canary_weight, Weight::from_percent(20.0).unwrap());
}

#[test]
fn an_invalid_canary_obeys_abort_and_nothing_that_advances() {
    let mut world = at_twenty_percent();
    world.command(Verb::Promote);
    step_invalid(&mut world);
    let refused = world.status.last_command.clone().unwrap();
    assert_eq!((refused.accepted, world.status.phase), (false, Phase::Progressing));
    world.command(Verb::Abort);
    let decision = step_invalid(&mut world);
    assert!(decision.actions.contains(&Action::Route(Split::all_primary())), "{:?}", decision.actions);
    assert_eq!((world.status.phase, world.split.canary), (Phase::Failed, Weight::ZERO));
}

#[test]
fn an_invalid_canary_without_ready_pods_loses_its_traffic() {
    let mut world = at_twenty_percent();
    world.target.pods.ready = 0;
    step_invalid(&mut world);
    assert_eq!((world.split.canary, world.status.phase), (Weight::ZERO, Phase::Progressing));
}

#[test]
fn an_invalid_canary_without_a_target_loses_its_traffic_and_is_reported_as_invalid() {
    let mut world = at_twenty_percent();
    world.target_exists = false;
    let decision = step_invalid(&mut world);
    assert_eq!(decision.report.message, format!("The Canary is invalid: {WHY}."));
    assert_eq!((world.split.canary, world.status.phase), (Weight::ZERO, Phase::Progressing));
}

#[test]
fn an_invalid_canary_whose_target_changes_loses_its_traffic() {
    let mut world = at_twenty_percent();
    world.push("v1-c");
    step_invalid(&mut world);
    assert_eq!((world.split.canary, world.status.phase), (Weight::ZERO, Phase::Waiting));
}

#[test]
fn an_invalid_canary_is_rolled_back_at_the_deadline() {
    let mut world = at_twenty_percent();
    step_invalid(&mut world);
    world.pass_time(Duration::from_secs(601));
    step_invalid(&mut world);
    assert_eq!((world.status.phase, world.split.canary), (Phase::Failed, Weight::ZERO));
}

#[test]
fn a_promotion_that_has_begun_is_completed_for_an_invalid_canary() {
    let mut world = World::releasing(&canary("interval: 1m, stepWeights: [50]"));
    world.primary_starts = false;
    world.run_until(|world| !world.promotions.is_empty());
    step_invalid(&mut world);
    assert_eq!(world.status.phase, Phase::Promoting);
    let primary = world.primary.as_mut().unwrap();
    primary.pods = Pods { updated: primary.pods.desired, ready: primary.pods.desired, ..primary.pods };
    for _ in 0..4 {
        step_invalid(&mut world);
    }
    assert_eq!((world.status.phase, world.split.canary), (Phase::Succeeded, Weight::ZERO));
    assert_eq!(world.status.history[0].outcome, Outcome::Promoted);
}

#[test]
fn an_invalid_canary_starts_nothing() {
    let mut world = World::releasing(&canary("stepWeights: [50]"));
    step_invalid(&mut world);
    assert_eq!((world.status.phase, world.status.releases), (Phase::Initialized, 0));
}

#[test]
fn a_suspended_release_obeys_an_abort() {
    let mut world = at_twenty_percent();
    world.plan = World::new(&canary_with("suspend: true", "interval: 1m, stepWeights: [20, 50]")).plan;
    world.command(Verb::Abort);
    let decision = decide(&world.plan, &world.status, &world.observe(), world.now);
    assert_eq!(decision.status.phase, Phase::Failed);
    assert!(decision.actions.contains(&Action::Route(Split::all_primary())), "{:?}", decision.actions);
}
