//! Conditions: they hold only while the cluster is as they say, and reports of other
//! matters do not replace their messages.

use std::time::Duration;

use serin::api::canary::{CanaryStatus, Phase};
use serin::api::condition::{Condition, ConditionStatus};
use serin::engine::action::Split;
use serin::engine::command::Verb;
use serin::engine::{Decision, Reason, Report};

use crate::world::{Health, World, canary, pods};

fn condition<'a>(status: &'a CanaryStatus, type_: &str) -> Option<&'a Condition> {
    status.conditions.iter().find(|condition| condition.type_ == type_)
}

fn ready(status: &CanaryStatus) -> (bool, &str) {
    let ready = condition(status, "Ready").expect("a condition");
    (ready.status == ConditionStatus::True, &ready.message)
}

fn published(decision: &Decision) -> Vec<&Report> {
    let all = decision.report.preceding.iter().chain([&decision.report]);
    all.filter(|report| report.should_notify).collect()
}

fn promoted() -> World {
    let mut world = World::releasing(&canary("interval: 1m, stepWeights: [50]"));
    world.run_to(Phase::Succeeded);
    world.run();
    assert_eq!(ready(&world.status), (true, "Revision v1-b is promoted and serves all traffic."));
    world
}

fn rolled_back() -> World {
    let metric = "metrics: [{name: request-success-rate}]";
    let mut world = World::releasing(&canary(&format!("interval: 1m, stepWeights: [50], {metric}")));
    world.health = Health::Bad;
    world.run_to(Phase::Failed);
    world.run();
    world
}

#[test]
fn a_canary_is_ready_only_while_its_primary_is() {
    let mut world = promoted();
    let primary = world.primary.clone().unwrap();
    world.primary.as_mut().unwrap().pods.ready = 0;
    let down = world.step();
    assert_eq!(ready(&world.status), (false, "The primary has no ready pod."));
    assert_eq!(world.status.message.as_deref(), Some("The primary has no ready pod."));
    assert!(
        condition(&world.status, "Reconciling").is_some() && condition(&world.status, "Stalled").is_none()
    );
    assert_eq!(published(&down).len(), 1);
    assert_eq!(published(&world.step()), Vec::<&Report>::new(), "it is reported once");
    let outcome = condition(&world.status, "Promoted").unwrap();
    assert_eq!(outcome.status, ConditionStatus::True);
    assert_eq!(outcome.message, "Revision v1-b is promoted and serves all traffic.");
    world.primary = Some(primary);
    let back = world.step();
    assert_eq!(ready(&world.status), (true, "Revision v1-b is promoted and serves all traffic."));
    assert_eq!(published(&back), Vec::<&Report>::new(), "it was promoted before");
    assert!(condition(&world.status, "Reconciling").is_none());
}

#[test]
fn a_primary_that_scales_up_is_no_event_and_its_last_count_is_recorded() {
    let mut world = promoted();
    for ready_pods in [3, 4] {
        world.primary.as_mut().unwrap().pods = pods(5);
        world.primary.as_mut().unwrap().pods.ready = ready_pods;
        assert_eq!(published(&world.step()), Vec::<&Report>::new());
        assert_eq!(ready(&world.status), (false, "The primary is not ready: 3 of 5 pods."));
    }
    world.now = world.next_wake.expect("a wake for the message that is behind");
    assert_eq!(published(&world.step()), Vec::<&Report>::new());
    assert_eq!(ready(&world.status), (false, "The primary is not ready: 4 of 5 pods."));
    world.primary.as_mut().unwrap().pods = pods(5);
    world.step();
    assert!(ready(&world.status).0);
    assert_eq!(world.next_wake, None);
}

#[test]
fn a_canary_whose_route_is_not_in_force_is_not_ready() {
    let mut world = promoted();
    world.split = Split::weight(serin::api::Weight::from_percent(20.0).unwrap());
    world.router_applies = false;
    world.step();
    assert_eq!(ready(&world.status), (false, "Waiting for the split of 0 % to be in force."));
    world.router_applies = true;
    world.run();
    assert!(ready(&world.status).0);
}

#[test]
fn a_canary_without_a_primary_is_not_ready_until_it_is_created_again() {
    let mut world = promoted();
    world.primary = None;
    world.target.revision = "v1-c".to_owned();
    world.step();
    assert!(!ready(&world.status).0);
    assert!(ready(&world.status).1.starts_with("The primary was deleted"), "{:?}", ready(&world.status));
    assert!(
        condition(&world.status, "Stalled").is_none() && condition(&world.status, "Reconciling").is_some()
    );
}

#[test]
fn a_suspended_canary_whose_primary_is_down_is_not_ready() {
    let mut world = promoted();
    world.plan.suspend = true;
    world.step();
    assert!(ready(&world.status).0);
    world.primary.as_mut().unwrap().pods.ready = 0;
    world.step();
    assert_eq!(ready(&world.status), (false, "The primary has no ready pod."));
    assert_eq!(world.status.message.as_deref(), Some(Reason::Suspended.to_string().as_str()));
}

#[test]
fn every_passed_check_is_published_once() {
    let mut world = World::releasing(&canary("interval: 1m, iterations: 3"));
    let mut passed = Vec::new();
    for _ in 0..60 {
        for report in published(&world.step()) {
            if report.message.contains("checks passed") {
                passed.push(report.message.clone());
            }
        }
        world.pass_time(Duration::from_secs(10));
    }
    let text = |count| format!("Step 1 of 1, no live traffic: {count} of 3 checks passed.");
    assert_eq!(passed, [text(1), text(2)], "the third is the promotion");
}

#[test]
fn a_refused_command_is_answered_and_replaces_no_reason() {
    let mut world = rolled_back();
    let before = world.status.clone();
    assert!(before.message.as_deref().is_some_and(|message| message.contains("is rolled back")));
    world.command(Verb::Promote);
    let refused = world.step();
    let last = world.status.last_command.as_ref().unwrap();
    assert_eq!(
        (last.accepted, last.message.as_str()),
        (false, "the revision was rolled back; retry it first, then promote that release")
    );
    let messages: Vec<_> = published(&refused).iter().map(|report| report.message.as_str()).collect();
    assert_eq!(
        messages,
        ["Refused to promote: the revision was rolled back; retry it first, then promote that release."]
    );
    assert_eq!((&world.status.message, &world.status.conditions), (&before.message, &before.conditions));
    assert_eq!(published(&world.step()), Vec::<&Report>::new());
}

#[test]
fn a_refused_command_mid_release_leaves_the_reason_of_the_step() {
    let mut world = World::releasing(&canary("interval: 1m, stepWeights: [10, 50]"));
    world.run_to_weight(10.0);
    world.settle();
    let message = world.status.message.clone();
    world.command(Verb::Resume);
    world.step();
    assert!(!world.status.last_command.as_ref().unwrap().accepted);
    assert_eq!(world.status.message, message);
}

#[test]
fn a_release_paused_by_a_person_has_the_condition_paused_until_it_is_resumed() {
    let mut world = World::releasing(&canary("interval: 1m, stepWeights: [10, 50]"));
    world.run_to_weight(10.0);
    assert_eq!(condition(&world.status, "Paused"), None);
    world.command(Verb::Pause);
    world.step();
    let paused =
        condition(&world.status, "Paused").expect("a condition, though the step is judged meanwhile");
    assert_eq!((paused.status, paused.reason.as_str()), (ConditionStatus::True, "Paused"));
    assert!(paused.message.contains("resume ends the pause"), "{}", paused.message);
    world.command(Verb::Resume);
    world.step();
    assert_eq!(condition(&world.status, "Paused"), None);
}

#[test]
fn a_step_that_pauses_and_a_suspended_canary_have_the_condition_paused() {
    let mut world = World::releasing(&canary("interval: 1m, steps: [{weight: 10, pause: {}}, {weight: 50}]"));
    world.run_until(|world| condition(&world.status, "Paused").is_some());
    let paused = condition(&world.status, "Paused").unwrap();
    assert_eq!(paused.reason, "StepPaused");
    world.plan.suspend = true;
    world.step();
    assert_eq!(condition(&world.status, "Paused").unwrap().reason, "Suspended");
    world.plan.suspend = false;
    world.command(Verb::Resume);
    world.run();
    assert_eq!((world.status.phase, condition(&world.status, "Paused")), (Phase::Succeeded, None));
}

/// The hash is for machines.
#[test]
fn revisions_are_called_by_their_images() {
    let mut world = World::new(&canary("interval: 1m, stepWeights: [50]"));
    world.target.name = Some("web:v1".to_owned());
    world.run_to(Phase::Initialized);
    world.run();
    assert_eq!(world.status.image, "web:v1");
    world.push("v1-b");
    world.target.name = Some("web:v2".to_owned());
    if let Some(primary) = &mut world.primary {
        primary.name = Some("web:v1".to_owned());
    }
    world.run_to(Phase::Progressing);
    assert_eq!(world.status.image, "web:v1 → v2");
    assert!(
        world.journal.iter().any(|line| line.ends_with("New revision web:v2: the pod template changed."))
    );
    world.command(Verb::Abort);
    world.run_to(Phase::Failed);
    world.run();
    assert_eq!(world.status.message.as_deref(), Some("Revision web:v2 is rolled back: aborted by ann."));
    assert_eq!(world.status.history[0].revision, "v1-b", "programs get the hash");
    let names = |world: &World| world.status.revisions.as_ref().unwrap().names.clone();
    assert_eq!(names(&world).get("v1-b").map(String::as_str), Some("web:v2"));
    world.push("v1-c");
    world.target.name = Some("web:v3".to_owned());
    world.status.history.clear();
    world.run_to(Phase::Succeeded);
    world.run();
    assert!(!names(&world).contains_key("v1-b"), "nothing mentions it any more: {:?}", names(&world));
}

#[test]
fn nothing_is_announced_for_a_release_that_waits_for_a_person() {
    let steps = "interval: 1m, steps: [{weight: 10}, {weight: 50, approval: {}}]";
    let metric = "metrics: [{name: request-success-rate}]";
    let mut world = World::releasing(&canary(&format!("{steps}, {metric}")));
    world.run_to_weight(10.0);
    world.settle();
    let announced = |world: &World| world.status.next_deadline.as_ref().map(|next| next.reason.clone());
    assert_eq!(announced(&world).as_deref(), Some("the next check"));
    world.run_until(|world| world.status.state == "AwaitingApproval");
    world.settle();
    assert_eq!(announced(&world), None, "checks go on and move nothing");
    world.command(Verb::Pause);
    world.settle();
    assert_eq!((world.status.state.as_str(), announced(&world)), ("AwaitingApproval", None));
}

/// Within seconds, and not after the progress deadline.
#[test]
fn what_keeps_a_pod_from_becoming_ready_is_in_the_message_at_once() {
    let mut world = World::initialized(&canary("interval: 1m, stepWeights: [50]"));
    world.canary_starts = false;
    world.push("v1-b");
    world.run_until(|world| world.status.phase == Phase::Progressing);
    world.settle();
    assert!(!world.journal.iter().any(|line| line.contains("pods ready")), "a start is no news");
    world.target.trouble = Some("web-1: container web is in CrashLoopBackOff, exit code 1".to_owned());
    let decision = world.step();
    let sentence = "Waiting for the canary: 0 of 3 pods ready; web-1: container web is in CrashLoopBackOff, exit code 1.";
    assert_eq!(published(&decision)[0].message, sentence);
    assert_eq!(world.status.message.as_deref(), Some(sentence));
    assert!(published(&world.step()).is_empty(), "once");
}
