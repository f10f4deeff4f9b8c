//! Defects of Flagger, each with a test that Serin does not have it.

use std::time::Duration;

use serin::{
    api::canary::{Phase, Severity},
    engine::{
        Action, Plan, Reason,
        action::{Split, Stable},
        command::Verb,
        observed::Pods,
    },
};

use crate::world::{Health, World, canary, canary_with, pods};

const ERRORS: &str = "metrics: [{name: errors, query: q, thresholdRange: {max: 1}}]";

fn five_steps() -> World {
    World::releasing(&canary(&format!("interval: 1m, threshold: 2, stepWeight: 10, maxWeight: 50, {ERRORS}")))
}

#[test]
fn a_revision_pushed_while_the_primary_is_not_ready_is_released_later() {
    let mut world = World::initialized(&canary(&format!("stepWeight: 50, {ERRORS}")));
    world.primary.as_mut().unwrap().pods.ready = 1;
    world.push("v1-b");
    world.run_for(Duration::from_secs(300));
    assert_eq!(world.status.phase, Phase::Waiting);
    assert!(world.status.message.as_deref().unwrap().contains("the primary is not ready (1 of 3 pods)"));
    world.primary.as_mut().unwrap().pods = pods(3);
    world.run();
    assert_eq!(world.status.phase, Phase::Succeeded);
    assert_eq!(world.promotions, ["v1-b"]);
}

/// A promotion whose primary does not start, with all traffic at the canary.
fn failed_promotion(canary: &serin::api::Canary) -> World {
    let mut world = World::releasing(canary);
    world.primary_starts = false;
    world.run_to(Phase::Failed);
    world
}

#[test]
fn a_fix_pushed_after_a_failed_promotion_sends_nothing_to_the_broken_primary() {
    let mut world = failed_promotion(&canary(&format!("stepWeights: [100], {ERRORS}")));
    assert_eq!(world.split.canary.percent(), 100.0);
    world.settle();
    world.primary.as_mut().unwrap().pods.ready = 0;
    world.push("v1-c");
    world.run_for(Duration::from_secs(1800));
    assert_eq!(world.split.canary.percent(), 100.0, "the primary is still broken");
    world.primary.as_mut().unwrap().pods = pods(3);
    world.primary_starts = true;
    world.run();
    assert_eq!(world.status.phase, Phase::Succeeded);
    assert_eq!(world.promotions, ["v1-b", "v1-c"]);
    assert_eq!(world.split, Split::all_primary());
}

#[test]
fn after_a_failed_promotion_the_primary_gets_its_revision_back() {
    let mut world = failed_promotion(&canary(&format!("stepWeights: [50], {ERRORS}")));
    world.primary_starts = true;
    world.primary.as_mut().unwrap().pods = pods(3);
    world.run();
    assert!(world.journal.contains(&"    restore primary v1-a".to_owned()));
    assert_eq!(world.primary.as_ref().unwrap().revision.as_deref(), Some("v1-a"));
    assert_eq!(world.split, Split::all_primary());
    assert_eq!(world.status.phase, Phase::Failed);
}

#[test]
fn after_a_failed_promotion_the_version_before_serves_if_it_is_warm() {
    let warm = canary_with("rollback: {keepWarmSeconds: 600}", &format!("stepWeights: [50], {ERRORS}"));
    let mut world = failed_promotion(&warm);
    world.run_until(|world| world.split.stable == Stable::Previous);
    assert!(!world.split.reaches_canary());
}

#[test]
fn a_revision_pushed_during_a_gate_call_is_not_promoted() {
    let gated =
        format!("stepWeights: [50], {ERRORS}, webhooks: [{{name: ship, type: confirm-promotion, url: u}}]");
    let mut world = World::releasing(&canary(&gated));
    world.closed.insert("ship".to_owned());
    world.run_to(Phase::WaitingPromotion);
    // The gate opens for b at the very moment c is pushed.
    world.closed.clear();
    world.push("v1-c");
    world.run_until(|world| !world.promotions.is_empty());
    assert_eq!(world.promotions, ["v1-c"]);
    let c = world.status.release.as_ref().unwrap();
    assert_eq!(c.revision, "v1-c");
    assert_eq!(world.status.releases, 2, "c had a release of its own");
}

#[test]
fn a_revision_pushed_after_the_promotion_decision_is_not_promoted() {
    let mut world = five_steps();
    world.run_to(Phase::Promoting);
    world.promotions.clear();
    world.primary.as_mut().unwrap().revision = Some("v1-a".to_owned());
    world.push("v1-c");
    let decision = world.step();
    assert!(!decision.actions.iter().any(|action| matches!(action, Action::Promote { .. })));
    assert_eq!(decision.status.phase, Phase::Waiting);
}

#[test]
fn editing_the_weights_in_the_middle_never_jumps_ahead() {
    for (edited, routes) in [
        ("stepWeights: [5, 100]", "5 100 0"),
        ("stepWeights: [20, 60, 100]", "60 100 0"),
        ("stepWeights: [40, 100]", "0 40 100 0"),
        ("stepWeight: 25", "0 25 50 75 100 0"),
        ("stepWeight: 20, maxWeight: 40", "40 0"),
        ("iterations: 3", "0 100 0"),
    ] {
        let mut world = five_steps();
        world.run_to_weight(20.0);
        world.plan = Plan::try_from(&canary(&format!("interval: 1m, {edited}, {ERRORS}"))).unwrap();
        world.journal.clear();
        world.run();
        let routed =
            world.journal.iter().filter_map(|line| line.trim().strip_prefix("route ")?.strip_suffix(" %"));
        assert_eq!(routed.collect::<Vec<_>>().join(" "), routes, "{edited}");
        assert_eq!(world.status.phase, Phase::Succeeded, "{edited}");
    }
}

#[test]
fn equal_steps_stop_at_the_largest_weight() {
    let plan = Plan::try_from(&canary("stepWeight: 30, maxWeight: 50")).unwrap();
    let weights: Vec<_> = plan.steps.iter().map(|step| step.split.canary.percent()).collect();
    assert_eq!(weights, [30.0, 50.0]);
}

#[test]
fn editing_something_else_moves_no_traffic() {
    let mut world = five_steps();
    world.run_to_weight(20.0);
    let calmer = format!("interval: 2m, threshold: 9, stepWeight: 10, maxWeight: 50, {ERRORS}");
    let mut edited = canary(&calmer);
    edited.spec.service.as_mut().unwrap().port = 8080;
    world.plan = Plan::try_from(&edited).unwrap();
    let decision = world.step();
    assert!(!decision.actions.iter().any(|action| matches!(action, Action::Route(_))));
    assert_eq!(decision.status.canary_weight.percent(), 20.0);
}

#[test]
fn the_rollback_gate_is_called_while_waiting() {
    let gates = "webhooks: [{name: go, type: confirm-rollout, url: u}, {name: stop, type: rollback, url: u}]";
    let mut world = World::releasing(&canary(&format!("stepWeights: [50], {ERRORS}, {gates}")));
    world.closed.insert("go".to_owned());
    world.run_for(Duration::from_secs(300));
    assert_eq!(world.status.phase, Phase::Waiting);
    world.rollback_gates_open.insert("stop".to_owned());
    world.run_for(Duration::from_secs(300));
    assert_eq!(world.status.phase, Phase::Failed);
}

#[test]
fn a_deadline_rollback_is_reported_as_an_error() {
    let mut world = World::initialized(&canary(&format!("stepWeights: [50], {ERRORS}")));
    world.canary_starts = false;
    world.push("v1-b");
    let report = loop {
        let decision = world.step();
        if decision.status.phase == Phase::Failed {
            break decision.report;
        }
        world.now = world.next_wake.unwrap();
    };
    assert!(report.should_notify);
    assert_eq!(report.severity, Severity::Error);
    assert_eq!(
        report.message,
        "Revision v1-b is rolled back: no progress for 600 seconds; waiting for the canary: 0 of 3 pods ready."
    );
}

#[test]
fn an_alert_without_a_severity_gets_every_event() {
    let alert = serin::api::canary::Alert::default();
    for reason in [Reason::Initialized, Reason::TargetMissing, Reason::PrimaryUnavailable] {
        assert!(reason.severity() >= alert.severity.unwrap_or_default());
    }
}

#[test]
fn no_data_is_no_failure() {
    for silence in [Health::NoData, Health::Unavailable] {
        let metrics = "metrics: [{name: request-success-rate}]";
        let mut world = World::releasing(&canary(&format!("interval: 1m, stepWeights: [50], {metrics}")));
        world.health = silence;
        // Prometheus is down for a day, or there is no traffic for a day.
        world.run_for(Duration::from_secs(24 * 3600));
        assert_eq!(world.status.phase, Phase::Progressing, "{silence:?}");
        assert_eq!(world.status.failed_checks, 0);
        assert!(world.status.message.as_deref().unwrap().starts_with("Holding, inconclusive"));
        world.health = Health::Good;
        world.run();
        assert_eq!(world.status.phase, Phase::Succeeded, "{silence:?}");
    }
}

#[test]
fn a_release_with_little_traffic_takes_longer_and_is_judged() {
    let metrics = "metrics: [{name: request-success-rate}]";
    let mut world = World::releasing(&canary(&format!("interval: 1m, stepWeights: [50], {metrics}")));
    // Two requests per check; twenty are needed.
    world.health = Health::FewRequests;
    world.run_to_weight(50.0);
    let began = world.now;
    world.run_to(Phase::Promoting);
    assert!(world.now.duration_since(began).as_secs() > 60);
}

#[test]
fn an_explicit_deadline_ends_a_release_without_data() {
    let own = "noDataDeadlineSeconds: 900, metrics: [{name: request-success-rate}]";
    let mut world = World::releasing(&canary(&format!("interval: 1m, stepWeights: [50], {own}")));
    world.health = Health::NoData;
    world.run_for(Duration::from_secs(600));
    assert_eq!(world.status.phase, Phase::Progressing);
    world.run_for(Duration::from_secs(600));
    assert_eq!(world.status.phase, Phase::Failed);
}

#[test]
fn no_data_fails_if_configured_to() {
    let strict = format!("stepWeights: [50], onNoData: fail, {ERRORS}");
    let mut world = World::releasing(&canary(&strict));
    world.health = Health::NoData;
    world.run();
    assert_eq!(world.status.phase, Phase::Failed);
}

#[test]
fn the_primary_keeps_its_size_until_it_has_all_traffic() {
    let mut world = five_steps();
    let mut pinned_at_first_weight = None;
    for _ in 0..200 {
        world.step();
        let pinned = world.primary.as_ref().unwrap().pinned;
        if world.split.canary.percent() > 0.0 {
            pinned_at_first_weight.get_or_insert(pinned);
            assert!(pinned, "with {} % at the canary", world.split.canary);
        }
        if let Some(at) = world.next_wake {
            world.now = at.max(world.now);
        }
    }
    assert_eq!(pinned_at_first_weight, Some(true));
    assert_eq!(world.status.phase, Phase::Succeeded);
    assert!(!world.primary.as_ref().unwrap().pinned);
}

#[test]
fn a_canary_that_dies_under_traffic_loses_it_and_gets_it_back() {
    let mut world = five_steps();
    world.run_to_weight(20.0);
    world.target.pods = Pods { ready: 0, ..pods(3) };
    world.settle();
    assert_eq!(world.split, Split::all_primary());
    assert_eq!(world.status.phase, Phase::Progressing);
    world.target.pods = pods(3);
    world.settle();
    assert_eq!(world.split.canary.percent(), 20.0);
}

#[test]
fn a_retry_needs_no_dummy_annotation() {
    let mut world = five_steps();
    world.health = Health::Bad;
    world.run();
    assert_eq!(world.status.phase, Phase::Failed);
    world.health = Health::Good;
    world.run();
    assert_eq!(world.status.phase, Phase::Failed, "not by itself");
    world.command(Verb::Retry);
    world.run();
    assert_eq!(world.status.phase, Phase::Succeeded);
    assert_eq!(world.promotions, ["v1-b"]);
}

/// Status counts lag: terminating pods still count as ready, so a canary that is
/// scaled up meanwhile looks ready too early.
#[test]
fn a_target_just_scaled_down_is_not_treated_as_ready() {
    // One of them was ready, two were about to be.
    let just_emptied = |world: &mut World| world.target.pods = Pods { desired: 0, ready: 1, ..pods(3) };
    let not_ready_yet = |world: &mut World| world.target.pods = Pods { desired: 0, ready: 0, ..pods(2) };
    let scales = |action: &Action| matches!(action, Action::ScaleCanary { replicas } if *replicas > 0);

    let mut world = World::initialized(&canary(&format!("stepWeight: 50, {ERRORS}")));
    world.push("v1-b");
    just_emptied(&mut world);
    assert!(!world.settle().actions.iter().any(scales));
    not_ready_yet(&mut world);
    assert!(!world.settle().actions.iter().any(scales));
    assert_eq!(world.status.phase, Phase::Waiting);
    world.target.pods = pods(0);
    world.run();
    assert_eq!(world.status.phase, Phase::Succeeded);

    let mut world = World::initialized(&canary_with("revertOnDeletion: true", "stepWeight: 50"));
    world.deleting = true;
    just_emptied(&mut world);
    assert!(!world.settle().actions.iter().any(scales));
    assert_eq!(world.status.phase, Phase::Terminating);
    world.target.pods = pods(0);
    world.run();
    assert_eq!(world.status.phase, Phase::Terminated);
}
