//! Whole releases as snapshots of their actions. `INSTA_UPDATE=always` rewrites them.

use std::time::Duration;

use serin::{
    api::canary::{
        Phase,
        status::{GateState, Outcome},
    },
    engine::{
        Action, Plan,
        action::Split,
        command::Verb,
        observed::{GateReply, GateResult, Pods, Respondent},
    },
};

use crate::world::{Health, World, canary, canary_with, pods};

const ERRORS: &str = "metrics: [{name: errors, query: q, thresholdRange: {max: 1}}]";
const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3600);

macro_rules! assert_story {
    ($world:expr) => {
        insta::assert_snapshot!($world.journal.join("\n"))
    };
}

#[test]
fn initialization_creates_the_primary() {
    let mut world = World::new(&canary(&format!("stepWeight: 50, {ERRORS}")));
    world.run();
    assert_story!(world);
}

#[test]
fn a_good_revision_is_promoted_step_by_step() {
    let mut world =
        World::releasing(&canary(&format!("interval: 1m, stepWeight: 30, maxWeight: 70, {ERRORS}")));
    world.run();
    assert_story!(world);
}

#[test]
fn a_bad_revision_is_rolled_back() {
    let mut world =
        World::releasing(&canary(&format!("interval: 1m, threshold: 2, stepWeight: 30, {ERRORS}")));
    world.run_to_weight(60.0);
    world.health = Health::Bad;
    world.run();
    assert_story!(world);
}

#[test]
fn failures_add_up_and_success_does_not_forgive_them() {
    let mut world =
        World::releasing(&canary(&format!("interval: 1m, threshold: 3, stepWeight: 5, {ERRORS}")));
    world.run_to_weight(5.0);
    for percent in [10.0, 15.0] {
        world.health = Health::Bad;
        let before = world.status.failed_checks;
        world.run_until(|world| world.status.failed_checks == before + 1);
        world.health = Health::Good;
        world.run_to_weight(percent);
    }
    world.health = Health::Bad;
    world.run();
    assert_eq!(world.status.phase, Phase::Failed);
    assert_eq!(
        world.status.history[0].reason,
        "3 checks failed, the last one errors: value 7.5, above the maximum 1"
    );
}

#[test]
fn the_sequential_judge_does_not_wait_for_the_interval_to_end() {
    let metric = "metrics: [{name: request-success-rate}]";
    let mut world =
        World::releasing(&canary(&format!("interval: 10m, threshold: 5, stepWeight: 50, {metric}")));
    world.run_to_weight(50.0);
    let began = world.now;
    world.health = Health::Bad;
    world.run_to(Phase::Failed);
    assert!(world.now.duration_since(began).as_secs() <= 20);
}

#[test]
fn metrics_judged_by_rank_are_scored_together() {
    let ranks = |weight: u32| {
        format!(
            "interval: 1m, stepWeights: [50], judge: {{type: mannWhitney}}, metrics: [{{name: ranks, query: q, weight: {weight}}}, \
             {{name: more ranks, query: q}}]"
        )
    };
    let mut world = World::releasing(&canary(&ranks(3)));
    world.run();
    assert_eq!(world.status.phase, Phase::Succeeded);
    world.health = Health::Bad;
    world.push("v1-c");
    world.run();
    assert_eq!(world.status.phase, Phase::Failed);
    let why = &world.status.history[0].reason;
    assert!(why.contains("score 0 %"), "{why}");
}

#[test]
fn evidence_may_end_a_step_early() {
    let metric =
        "metrics: [{name: request-success-rate, judge: {type: sequential, promoteOn: evidence, margin: 3}}]";
    let mut world = World::releasing(&canary(&format!("interval: 1h, stepWeights: [50], {metric}")));
    world.run_to_weight(50.0);
    let began = world.now;
    world.run_to(Phase::Promoting);
    assert!(world.now.duration_since(began).as_secs() < 600);
}

#[test]
fn a_metric_may_be_inconclusive_a_limited_number_of_times() {
    let metric = "metrics: [{name: request-success-rate, inconclusiveLimit: 4}]";
    let mut world = World::releasing(&canary(&format!("interval: 1m, stepWeights: [50], {metric}")));
    world.run_to_weight(50.0);
    world.health = Health::NoData;
    world.run_for(3 * MINUTE);
    assert_eq!(world.status.phase, Phase::Progressing, "glances do not count");
    world.run_for(2 * MINUTE);
    assert_eq!(world.status.phase, Phase::Failed);
}

#[test]
fn a_critical_metric_fails_at_once() {
    let metric = "metrics: [{name: errors, query: q, thresholdRange: {max: 1}, critical: true}]";
    let mut world =
        World::releasing(&canary(&format!("interval: 1m, threshold: 9, stepWeights: [50], {metric}")));
    world.health = Health::Bad;
    world.run_to(Phase::Failed);
    assert_eq!(world.status.failed_checks, 0);
    assert_eq!(world.status.history[0].reason, "errors failed (value 7.5, above the maximum 1)");
}

#[test]
fn blue_green_mirrors_judges_switches_and_returns_to_the_primary() {
    let gates = "webhooks: [{name: test, type: pre-rollout, url: u}, {name: load, url: u}, \
                 {name: ship, type: confirm-promotion, url: u}, {name: after, type: post-rollout, url: u}]";
    let mut world =
        World::releasing(&canary(&format!("interval: 1m, iterations: 2, mirror: true, {ERRORS}, {gates}")));
    world.run();
    assert_story!(world);
}

#[test]
fn ab_testing_counts_iterations_on_matched_requests() {
    let matched = "match: [{headers: {cookie: {regex: 'insider'}}}]";
    let gates = "webhooks: [{name: ship, type: confirm-promotion, url: u}, {name: after, type: post-rollout, url: u}]";
    let mut world =
        World::releasing(&canary(&format!("interval: 1m, iterations: 2, {matched}, {ERRORS}, {gates}")));
    world.closed.insert("ship".to_owned());
    world.run_to(Phase::WaitingPromotion);
    world.run_for(3 * MINUTE);
    world.closed.clear();
    world.run();
    assert_story!(world);
}

#[test]
fn headers_and_weights_go_together() {
    let steps = "steps: [{match: [{headers: {x-team: {exact: ours}}}], iterations: 2}, {weight: 0.5, interval: 10m}, \
                 {weight: 20, name: a fifth, approval: {message: 'Is the on-call happy?'}}, {pause: {duration: 15m}}, \
                 {weight: 60, replicas: {percent: 50}}]";
    let mut world = World::releasing(&canary(&format!("interval: 1m, {steps}, {ERRORS}")));
    world.run_to_weight(20.0);
    world.run_for(5 * MINUTE);
    world.approvals.insert("a fifth".to_owned(), true);
    world.run();
    assert_story!(world);
}

#[test]
fn a_closed_gate_holds_and_judging_goes_on() {
    let gates = "webhooks: [{name: more, type: confirm-traffic-increase, url: u}]";
    let mut world =
        World::releasing(&canary(&format!("interval: 1m, stepWeights: [10, 50], {ERRORS}, {gates}")));
    world.run_to_weight(10.0);
    world.closed.insert("more".to_owned());
    world.run_for(20 * MINUTE);
    assert_eq!(world.split.canary.percent(), 10.0);
    world.health = Health::Bad;
    world.run_for(2 * MINUTE);
    assert_eq!(world.status.phase, Phase::Failed);
}

/// The release waits at the gate `more`, which its webhook keeps closed; a person
/// answers by a clock that is two hours behind.
fn answered_by_a_person(reply: GateReply) -> World {
    let gates = "webhooks: [{name: more, type: confirm-traffic-increase, url: u}]";
    let mut world =
        World::releasing(&canary(&format!("interval: 1m, stepWeights: [10, 50], {ERRORS}, {gates}")));
    world.closed.insert("more".to_owned());
    world.run_for(20 * MINUTE);
    let call = world.answers.last().unwrap().call.clone();
    let at = world.now - (2 * HOUR);
    world.answers.push(GateResult { call, reply, from: Respondent::Person, at });
    world
}

#[test]
fn a_yes_by_a_person_opens_a_gate_whatever_their_clock_shows() {
    let mut world = answered_by_a_person(GateReply::Yes { by: Some("ann".to_owned()) });
    world.step();
    let gate = world.status.gates.iter().rfind(|gate| gate.name == "more").unwrap();
    assert_eq!((gate.state, gate.by.as_deref()), (GateState::Open, Some("ann")));
    assert_eq!(gate.since.as_ref().unwrap().0, world.now, "by the controller's clock");
}

#[test]
fn a_no_by_a_person_keeps_a_gate_closed_and_the_later_of_two_answers_counts() {
    let no = GateReply::No { by: Some("ann".to_owned()), why: "not today".to_owned() };
    let mut world = answered_by_a_person(no);
    world.closed.clear();
    world.run_for(20 * MINUTE);
    assert_eq!(world.split.canary.percent(), 0.0, "the webhook's yes does not count");
    let earlier = world.answers.iter().rfind(|answer| answer.from == Respondent::Person).unwrap().clone();
    let reply = GateReply::Yes { by: Some("bob".to_owned()) };
    world.answers.push(GateResult { reply, at: earlier.at - HOUR, ..earlier });
    world.run();
    assert_eq!(world.status.phase, Phase::Succeeded);
}

#[test]
fn gates_expire() {
    let gates = "webhooks: [{name: go, type: confirm-rollout, url: u, expireAfter: 1h}]";
    let mut world =
        World::releasing(&canary(&format!("interval: 1m, stepWeights: [10, 50], {ERRORS}, {gates}")));
    world.closed.insert("go".to_owned());
    world.run_for(59 * MINUTE);
    assert_eq!(world.status.phase, Phase::Waiting);
    world.run_for(2 * MINUTE);
    assert_eq!(world.status.phase, Phase::Failed);
    assert_eq!(world.status.history[0].reason, "the gate go expired before it opened");
}

#[test]
fn an_approval_that_is_refused_rolls_back() {
    let steps = "steps: [{weight: 20, name: half way, approval: {}}]";
    let mut world = World::releasing(&canary(&format!("interval: 1m, {steps}, {ERRORS}")));
    world.run_for(10 * MINUTE);
    world.approvals.insert("half way".to_owned(), false);
    world.run();
    assert_eq!(world.status.phase, Phase::Failed);
    assert_eq!(world.status.history[0].reason, "approval of half way was refused (not today)");
}

#[test]
fn pre_rollout_refusals_count_once_each() {
    let gates = "webhooks: [{name: test, type: pre-rollout, url: u}]";
    let mut world = World::releasing(&canary(&format!(
        "interval: 1m, threshold: 3, stepWeights: [50], {ERRORS}, {gates}"
    )));
    world.closed.insert("test".to_owned());
    world.settle();
    world.settle();
    assert_eq!(world.status.failed_checks, 1);
    world.run_for(MINUTE);
    assert_eq!(world.status.failed_checks, 2);
    world.closed.clear();
    world.run();
    assert_eq!(world.status.phase, Phase::Succeeded);
}

#[test]
fn an_unreachable_hook_is_no_verdict_on_the_canary() {
    let hook = "webhooks: [{name: load, url: u}]";
    let mut world = World::releasing(&canary(&format!("interval: 1m, stepWeights: [50], {ERRORS}, {hook}")));
    world.unreachable.insert("load".to_owned());
    world.run_for(30 * MINUTE);
    assert_eq!((world.status.phase, world.status.failed_checks), (Phase::Progressing, 0));
    world.unreachable.clear();
    world.run();
    assert_eq!(world.status.phase, Phase::Succeeded);
}

#[test]
fn a_newer_revision_takes_the_place_of_a_running_one() {
    let mut world = World::releasing(&canary(&format!("interval: 1m, stepWeights: [10, 50], {ERRORS}")));
    world.run_to_weight(50.0);
    world.push("v1-c");
    world.run();
    assert_story!(world);
    let outcomes: Vec<_> = world.status.history.iter().map(|past| past.outcome).collect();
    assert_eq!(outcomes, [Outcome::Promoted, Outcome::Superseded]);
}

#[test]
fn a_config_alone_makes_a_release() {
    let mut world = World::new(&canary(&format!("stepWeights: [50], {ERRORS}")));
    world.target.configs.insert("ConfigMap/env".to_owned(), "aa".to_owned());
    world.run();
    world.push("v1-b");
    world.target.configs.insert("ConfigMap/env".to_owned(), "bb".to_owned());
    let decision = world.step();
    assert_eq!(decision.report.message, "New revision v1-b: ConfigMap/env changed.");
    world.run();
    assert_eq!(world.promotions, ["v1-b"]);
}

#[test]
fn a_revert_releases_nothing_and_the_same_bad_revision_again_does() {
    let mut world = World::releasing(&canary(&format!("stepWeights: [50], {ERRORS}")));
    world.health = Health::Bad;
    world.run();
    world.push("v1-a");
    world.run();
    assert_eq!((world.status.phase, world.status.releases), (Phase::Initialized, 1));
    world.health = Health::Good;
    world.push("v1-b");
    world.run();
    assert_eq!((world.status.phase, world.status.releases), (Phase::Succeeded, 2));
}

#[test]
fn a_revert_in_the_middle_calls_the_release_off() {
    let mut world = World::releasing(&canary(&format!("stepWeights: [50], {ERRORS}")));
    world.run_to_weight(50.0);
    world.push("v1-a");
    world.run();
    assert_eq!(world.status.phase, Phase::Initialized);
    assert_eq!(world.split, Split::all_primary());
    assert_eq!(world.target.pods.desired, 0);
    assert!(world.promotions.is_empty());
}

#[test]
fn skip_analysis_promotes_as_soon_as_the_canary_is_ready() {
    let skip = canary_with("skipAnalysis: true", &format!("stepWeights: [50], {ERRORS}"));
    let mut world = World::releasing(&skip);
    world.run();
    assert_eq!(world.promotions, ["v1-b"]);
    // A bad image never gets there.
    world.canary_starts = false;
    world.push("v1-c");
    world.run();
    assert_eq!(world.status.phase, Phase::Failed);
    assert_eq!(world.promotions, ["v1-b"]);
}

#[test]
fn a_suspended_canary_does_nothing_and_loses_nothing() {
    let mut world = World::releasing(&canary(&format!("interval: 1m, stepWeights: [10, 50], {ERRORS}")));
    world.run_to_weight(10.0);
    world.plan.suspend = true;
    world.push("v1-c");
    world.pass_time(60 * MINUTE);
    let decision = world.step();
    assert!(decision.actions.is_empty());
    assert_eq!(world.split.canary.percent(), 10.0);
    world.plan.suspend = false;
    world.run();
    assert_eq!(world.promotions, ["v1-c"]);
}

#[test]
fn traffic_may_return_to_the_primary_stepwise() {
    let mut world = World::releasing(&canary(&format!(
        "interval: 1m, stepWeights: [50], stepWeightPromotion: 20, {ERRORS}"
    )));
    world.run_to(Phase::Finalising);
    world.journal.clear();
    world.run();
    assert_story!(world);
}

#[test]
fn a_freeze_blocks_releases_but_not_rollbacks() {
    let nights = "releaseWindows: [{kind: freeze, cron: '0 18 * * *', duration: 14h}]";
    let mut world = World::releasing(&canary_with(
        nights,
        &format!("interval: 3h, stepWeights: [10, 20, 30, 40, 50], {ERRORS}"),
    ));
    world.run_for(Duration::from_secs(13 * 3600));
    assert_eq!(world.split.canary.percent(), 40.0);
    assert_eq!(
        world.status.message.as_deref(),
        Some("Holding: a release freeze is on until 2025-06-03T08:00:00Z.")
    );
    world.health = Health::Bad;
    world.run_for(Duration::from_secs(4 * 3600));
    assert_eq!(world.status.phase, Phase::Failed);
    assert_eq!(world.split, Split::all_primary());
    world.command(Verb::Retry);
    world.run_for(Duration::from_secs(3600));
    assert_eq!(world.status.phase, Phase::Waiting, "a retry waits for the morning");
}

#[test]
fn releases_beyond_the_cap_wait() {
    let mut world = World::releasing(&canary(&format!("stepWeights: [50], {ERRORS}")));
    (world.other_releases, world.release_cap) = (2, Some(2));
    world.run_for(10 * MINUTE);
    assert_eq!(world.status.phase, Phase::Waiting);
    world.other_releases = 1;
    world.run();
    assert_eq!(world.status.phase, Phase::Succeeded);
}

fn holds_slot(world: &World) -> bool {
    world.status.release.as_ref().is_some_and(|release| release.state.holds_slot)
}

#[test]
fn a_paused_release_gives_its_slot_up_and_needs_one_to_move_again() {
    let mut world = World::releasing(&canary(&format!("interval: 1m, stepWeights: [10, 50], {ERRORS}")));
    world.release_cap = Some(1);
    world.run_to_weight(10.0);
    assert!(holds_slot(&world));
    world.command(Verb::Pause);
    world.step();
    assert!(!holds_slot(&world));
    world.other_releases = 1;
    world.command(Verb::Resume);
    world.run_for(60 * MINUTE);
    assert_eq!((world.status.phase, world.split.canary.percent()), (Phase::Progressing, 10.0));
    assert_eq!(
        world.status.message.as_deref(),
        Some("Waiting for a free slot: 1 other releases are running, the limit is 1.")
    );
    world.health = Health::Bad;
    world.run_for(2 * MINUTE);
    assert_eq!((world.status.phase, world.split.clone()), (Phase::Failed, Split::all_primary()));
}

#[test]
fn a_release_that_waits_for_a_gate_or_is_suspended_holds_no_slot() {
    let gates = "webhooks: [{name: more, type: confirm-traffic-increase, url: u}]";
    let analysis = format!("interval: 1m, stepWeights: [10, 50], {ERRORS}, {gates}");
    let mut world = World::releasing(&canary(&analysis));
    world.release_cap = Some(1);
    world.run_to_weight(10.0);
    world.closed.insert("more".to_owned());
    world.run_for(10 * MINUTE);
    assert!(!holds_slot(&world));
    world.closed.clear();
    world.run_to_weight(50.0);
    assert!(holds_slot(&world));
    world.plan.suspend = true;
    world.step();
    assert!(!holds_slot(&world));
}

#[test]
fn a_superseding_release_keeps_the_slot_or_the_place_of_the_superseded_one() {
    let mut world = World::releasing(&canary(&format!("interval: 1m, stepWeights: [10, 50], {ERRORS}")));
    (world.other_releases, world.release_cap) = (1, Some(1));
    world.run_for(MINUTE);
    let place = world.status.release.as_ref().unwrap().started_at.clone();
    world.pass_time(MINUTE);
    world.push("v1-c");
    world.settle();
    let queued_since = world.status.release.as_ref().unwrap().state.queued_since.clone();
    assert_eq!((queued_since, world.status.phase), (Some(place), Phase::Waiting));
    world.other_releases = 0;
    world.run_to_weight(10.0);
    world.other_releases = 1;
    world.push("v1-d");
    world.run();
    assert_eq!(
        (world.status.phase, world.promotions.as_slice()),
        (Phase::Succeeded, &["v1-d".to_owned()][..])
    );
}

#[test]
fn the_previous_version_stays_warm_and_takes_over_at_once() {
    let warm = canary_with("rollback: {keepWarmSeconds: 3600}", &format!("stepWeights: [50], {ERRORS}"));
    let mut world = World::releasing(&warm);
    world.run_for(30 * MINUTE);
    assert_eq!(world.status.phase, Phase::Succeeded);
    world.journal.clear();
    world.primary_starts = false;
    world.command(Verb::Rollback);
    world.settle();
    world.primary_starts = true;
    world.primary.as_mut().unwrap().pods = pods(3);
    world.run();
    assert_story!(world);
    assert_eq!(world.primary.as_ref().unwrap().revision.as_deref(), Some("v1-a"));
    assert_eq!(world.status.releases, 2, "the revision taken back is not released again by itself");
}

#[test]
fn the_previous_version_is_dropped_after_its_warm_time() {
    let warm = canary_with("rollback: {keepWarmSeconds: 3600}", &format!("stepWeights: [50], {ERRORS}"));
    let mut world = World::releasing(&warm);
    world.run_for(50 * MINUTE);
    assert!(world.previous.is_some());
    world.run();
    assert!(world.previous.is_none());
    assert_eq!(world.next_wake, None, "an idle canary wakes nobody");
}

#[test]
fn commands_steer_a_release() {
    let mut world = World::releasing(&canary(&format!("interval: 1m, stepWeights: [10, 50], {ERRORS}")));
    world.run_to_weight(10.0);
    world.command(Verb::Pause);
    world.run_for(30 * MINUTE);
    assert_eq!(world.split.canary.percent(), 10.0);
    world.command(Verb::Resume);
    world.run_to_weight(50.0);
    world.command(Verb::Abort);
    world.run();
    assert_eq!((world.status.phase, world.split.clone()), (Phase::Failed, Split::all_primary()));
    assert_eq!(world.status.history[0].reason, "aborted by ann");
    world.command(Verb::Retry);
    world.run_to_weight(10.0);
    world.command(Verb::Promote);
    world.step();
    assert_eq!(world.promotions, ["v1-b"]);
    world.run();
    assert_eq!(world.status.phase, Phase::Succeeded);
    assert_eq!(world.status.releases, 2);
}

#[test]
fn a_command_is_applied_once() {
    let mut world = World::releasing(&canary(&format!("stepWeights: [50], {ERRORS}")));
    world.run_to_weight(50.0);
    world.command(Verb::Abort);
    world.command(Verb::Retry);
    world.run();
    assert_eq!((world.status.phase, world.status.releases), (Phase::Succeeded, 2));
}

#[test]
fn a_target_that_is_deleted_and_recreated_starts_no_release() {
    let mut world = World::initialized(&canary(&format!("stepWeights: [50], {ERRORS}")));
    world.target_exists = false;
    let decision = world.step();
    assert!(decision.actions.is_empty());
    world.target_exists = true;
    world.run();
    assert_eq!(world.status.releases, 0);
}

#[test]
fn a_target_deleted_during_a_release_loses_its_traffic() {
    let mut world = World::releasing(&canary(&format!("interval: 1m, stepWeights: [10, 50], {ERRORS}")));
    world.run_to_weight(50.0);
    world.target_exists = false;
    world.settle();
    assert_eq!(world.split, Split::all_primary());
    world.target_exists = true;
    world.run();
    assert_eq!(world.status.phase, Phase::Succeeded);
}

#[test]
fn a_degraded_canary_keeps_its_weight_and_gets_no_more() {
    let mut world = World::releasing(&canary(&format!("interval: 1m, stepWeights: [10, 50], {ERRORS}")));
    world.run_to_weight(10.0);
    world.target.pods = Pods { ready: 2, ..pods(3) };
    world.run_for(5 * MINUTE);
    assert_eq!(world.split.canary.percent(), 10.0);
    world.run_for(10 * MINUTE);
    assert_eq!(world.status.phase, Phase::Failed, "the progress deadline");
}

#[test]
fn deletion_puts_everything_back() {
    let revert = canary_with("revertOnDeletion: true", &format!("stepWeights: [50], {ERRORS}"));
    let mut world = World::releasing(&revert);
    world.run();
    world.journal.clear();
    world.deleting = true;
    world.run();
    assert_story!(world);
    assert!(!world.finalizer);
}

#[test]
fn an_invalid_spec_changes_nothing_and_is_reported() {
    let world = World::releasing(&canary(&format!("stepWeights: [50], {ERRORS}")));
    let refusal = Plan::try_from(&canary("stepWeight: 5, iterations: 2")).unwrap_err();
    let decision = serin::engine::reject(&refusal, &world.status, &world.observe(), world.now);
    assert!(decision.actions.is_empty());
    assert_eq!(
        decision.report.message,
        "The Canary is invalid: spec.analysis says in several ways how to release (iterations, stepWeight); keep one of them."
    );
    let stalled = decision.status.conditions.iter().find(|condition| condition.type_ == "Stalled").unwrap();
    assert_eq!(stalled.message, decision.report.message);
}

/// The one release, killed before each of its actions and before each record.
#[test]
fn a_crash_at_any_action_does_not_change_the_outcome() {
    let gates = "webhooks: [{name: go, type: confirm-rollout, url: u}, {name: ship, type: confirm-promotion, url: u}]";
    let spec = "rollback: {keepWarmSeconds: 600}";
    let plan = canary_with(spec, &format!("interval: 1m, stepWeights: [10, 50], {ERRORS}, {gates}"));
    let calm = {
        let mut world = World::releasing(&plan);
        world.run();
        world
    };
    let mut crashes = 0;
    for victim in 0.. {
        let mut world = World::releasing(&plan);
        let mut performed = 0;
        let mut crashed = false;
        for _ in 0..400 {
            let decision = serin::engine::decide(&world.plan, &world.status, &world.observe(), world.now);
            let mut dies = false;
            for action in &decision.actions {
                if !crashed && performed == victim {
                    dies = true;
                    break;
                }
                performed += 1;
                world.perform(action);
            }
            if !dies && !crashed && performed == victim {
                dies = true;
            }
            if dies {
                crashed = true;
                performed += 1;
                // The controller's memory is lost.
                world.answers.clear();
                world.measured = None;
                continue;
            }
            let idle = world.status == decision.status && decision.actions.is_empty();
            world.record(&decision);
            if idle {
                match world.next_wake {
                    Some(at) => world.now = at.max(world.now),
                    None => break,
                }
            }
        }
        if !crashed {
            break;
        }
        crashes += 1;
        assert_eq!(world.status.phase, calm.status.phase, "crash {victim}");
        assert_eq!(world.status.revisions, calm.status.revisions, "crash {victim}");
        assert_eq!(world.status.releases, calm.status.releases, "crash {victim}");
        assert_eq!(world.promotions, ["v1-b"].repeat(world.promotions.len()), "crash {victim}");
        assert_eq!((&world.split, &world.primary), (&calm.split, &calm.primary), "crash {victim}");
        assert_eq!(world.target, calm.target, "crash {victim}");
    }
    assert!(crashes > 12, "{crashes}");
}

#[test]
fn an_unrecorded_promotion_is_continued() {
    let gate = "webhooks: [{name: ship, type: confirm-promotion, url: u}]";
    let mut world = World::releasing(&canary(&format!("interval: 1m, stepWeights: [50], {ERRORS}, {gate}")));
    world.run_until(|world| world.status.phase == Phase::WaitingPromotion);
    // The controller copies the revision, and dies.
    world.primary.as_mut().unwrap().revision = Some("v1-b".to_owned());
    world.answers.clear();
    world.closed.insert("ship".to_owned());
    world.run();
    assert_eq!(world.status.phase, Phase::Succeeded);
}

#[test]
fn an_idle_world_gets_no_actions() {
    let mut world = World::releasing(&canary(&format!("stepWeights: [50], {ERRORS}")));
    world.run();
    let decision = world.step();
    assert_eq!(decision.actions, Vec::<Action>::new());
    assert_eq!(decision.wake, None);
    assert!(!decision.report.should_notify);
}
