//! Specs compiled into plans, or rejected.

use serin::{
    api::{Canary, Weight},
    engine::{
        Plan,
        plan::steps::{Pause, Replicas, Strategy},
    },
};

use crate::world::{canary, canary_with};

fn plan(analysis: &str) -> Plan {
    Plan::try_from(&canary(analysis)).unwrap_or_else(|error| panic!("{error}"))
}

fn weights(analysis: &str) -> Vec<f64> {
    plan(analysis).steps.iter().map(|step| step.split.canary.percent()).collect()
}

#[track_caller]
fn refused(canary: &Canary, words: &str) {
    let error = Plan::try_from(canary).expect_err("should be refused").to_string();
    assert!(error.contains(words), "{error:?} does not contain {words:?}");
    assert!(error.contains("spec."), "{error:?} names no field");
}

#[test]
fn all_four_step_notations_make_the_same_plan() {
    assert_eq!(weights("stepWeight: 25"), [25.0, 50.0, 75.0, 100.0]);
    assert_eq!(weights("stepWeight: 0.5, maxWeight: 1.2"), [0.5, 1.0, 1.2]);
    assert_eq!(weights("stepWeights: [1, 10, 80], maxWeight: 60"), [1.0, 10.0, 60.0]);
    assert_eq!(weights("stepWeights: [1, 10, 80, 90], maxWeight: 10"), [1.0, 10.0]);
    assert_eq!(weights("iterations: 5"), [0.0]);
    assert_eq!(weights("steps: [{weight: 5}, {pause: {}}, {weight: 70}], maxWeight: 50"), [5.0, 5.0, 50.0]);
}

#[test]
fn a_compared_step_of_all_traffic_leaves_the_primary_a_share() {
    let compared = "metrics: [{name: request-success-rate}]";
    let ranged = "metrics: [{name: request-success-rate, thresholdRange: {min: 99}}]";
    assert_eq!(weights(&format!("stepWeights: [50, 100], {compared}")), [50.0, 95.0]);
    assert_eq!(weights(&format!("stepWeights: [50, 100], controlWeight: 10, {compared}")), [50.0, 90.0]);
    assert_eq!(weights(&format!("stepWeights: [50, 100], controlWeight: 0, {compared}")), [50.0, 100.0]);
    assert_eq!(weights(&format!("stepWeights: [50, 100], {ranged}")), [50.0, 100.0], "as in Flagger");
    assert_eq!(weights(&format!("stepWeights: [100], {compared}")), [100.0], "a router may only switch");
}

#[test]
fn a_range_beside_a_comparison_must_limit_something() {
    let metric = "metrics: [{name: request-duration, judge: {type: sequential}, thresholdRange: {min: 5}}]";
    refused(&canary(&format!("stepWeights: [50], {metric}")), "limits errors by min");
    let power = "judge: {type: sequential, minPower: 1.2}, metrics: [{name: request-success-rate}]";
    refused(&canary(&format!("stepWeights: [50], {power}")), "judge.minPower: 1.2 is not above the margin");
}

#[test]
fn the_strategy_follows_from_the_fields() {
    let strategy = |analysis: &str| plan(analysis).strategy;
    assert_eq!(strategy("stepWeight: 50"), Strategy::Canary);
    assert_eq!(strategy("iterations: 5"), Strategy::BlueGreen);
    assert_eq!(strategy("iterations: 5, match: [{headers: {x: {exact: y}}}]"), Strategy::AB);
}

#[test]
fn a_router_that_cannot_divide_traffic_gets_blue_green() {
    let plan = Plan::try_from(&canary_with("provider: kubernetes", "stepWeight: 10")).unwrap();
    assert_eq!((plan.strategy, plan.steps.len(), plan.steps[0].checks), (Strategy::BlueGreen, 1, 10));
}

#[test]
fn defaults_are_those_of_flagger() {
    let plan = plan("stepWeight: 50");
    assert_eq!(plan.interval.as_secs(), 60);
    assert_eq!(plan.threshold, 1);
    assert_eq!(plan.deadline.after.as_secs(), 600);
    assert_eq!((plan.primary_ready_percent, plan.canary_ready_percent), (100, 100));
    assert_eq!(plan.step_down_weight, Weight::FULL);
}

#[test]
fn blue_green_mirrors_during_every_check() {
    let plan = plan("iterations: 3, mirror: true, mirrorWeight: 30");
    let [step] = &plan.steps[..] else { panic!("{:#?}", plan.steps) };
    assert_eq!((step.checks, step.split.mirror.percent(), step.split.canary), (3, 30.0, Weight::ZERO));
}

#[test]
fn mirroring_comes_first() {
    let plan = plan("stepWeight: 50, mirror: true, mirrorWeight: 30");
    assert_eq!(plan.steps.len(), 3);
    assert_eq!(plan.steps[0].split.mirror.percent(), 30.0);
    assert!(!plan.steps[0].split.reaches_canary());
}

#[test]
fn explicit_steps_set_replicas_weights_and_pauses() {
    let plan = plan(
        "interval: 1m, match: [{headers: {x: {exact: y}}}], metrics: [{name: request-success-rate}, {name: request-duration}], \
         steps: [{weight: 5, replicas: {percent: 20}}, {pause: {duration: 5m}}, {approval: {expireAfter: 1h}}, \
                 {weight: 30, interval: 10s, iterations: 6, analysis: {metrics: [request-duration]}}, {mirror: 10, analysis: {skip: true}}]",
    );
    let [five, pause, approval, thirty, mirror] = &plan.steps[..] else { panic!("{:#?}", plan.steps) };
    assert_eq!((five.replicas, five.checks, five.split.matches.len()), (Some(Replicas::Percent(20)), 1, 1));
    assert_eq!((pause.checks, pause.pause), (0, Some(Pause::For(std::time::Duration::from_secs(300)))));
    assert_eq!(pause.metrics, [0, 1], "metrics are judged during a pause");
    assert!(approval.approval.is_some());
    assert_eq!((thirty.checks, thirty.interval.as_secs(), &thirty.metrics[..]), (6, 10, &[1][..]));
    assert_eq!((mirror.split.canary.percent(), mirror.split.mirror.percent()), (30.0, 10.0));
    assert_eq!(mirror.metrics, Vec::<usize>::new());
    assert_eq!(mirror.replicas, Some(Replicas::Percent(20)), "from that step on");
}

#[test]
fn replicas_are_rounded_up_and_never_none() {
    assert_eq!(Replicas::Percent(20).of(6), 2);
    assert_eq!(Replicas::Percent(1).of(1), 1);
    assert_eq!(Replicas::Percent(50).of(0), 1);
    assert_eq!(Replicas::Count(4).of(1), 4);
}

#[test]
fn a_plan_error_names_the_field_and_the_remedy() {
    refused(&canary("threshold: 2"), "write one of iterations, stepWeight, stepWeights and steps");
    refused(&canary("stepWeight: 5, stepWeights: [1]"), "(stepWeight, stepWeights); keep one");
    refused(&canary("stepWeight: 0"), "spec.analysis.stepWeight is 0");
    refused(&canary("stepWeight: 0.01"), "more than a thousand steps");
    refused(&canary("stepWeights: [10, 10]"), "spec.analysis.stepWeights[1] does not rise");
    refused(
        &canary("steps: [{weight: 10}, {pause: {}}, {weight: 5}]"),
        "spec.analysis.steps[2] does not rise",
    );
    refused(&canary("stepWeight: 20, maxWeight: 10"), "raise maxWeight or lower stepWeight");
    refused(&canary("stepWeights: [20], maxWeight: 10"), "lower stepWeights[0]");
    refused(&canary("steps: [{name: nothing}]"), "spec.analysis.steps[0] does nothing");
    refused(&canary("steps: [{replicas: {}}]"), "exactly one of count and percent");
    refused(&canary("steps: [{weight: 5, analysis: {metrics: [x]}}]"), "names \"x\"");
    refused(&canary("stepWeight: 5, interval: 10ms"), "spec.analysis.interval is shorter");
    refused(&canary("steps: [{weight: 5, interval: 10ms}]"), "spec.analysis.steps[0].interval is shorter");
    refused(&canary("stepWeight: 5, primaryReadyThreshold: 101"), "write 0 to 100");
    refused(&canary("stepWeight: 5, metrics: [{name: x}]"), "measures nothing");
    refused(
        &canary("stepWeight: 5, metrics: [{name: x, templateRef: {name: t}}]"),
        "names \"t\", which does not exist",
    );
    refused(&canary("stepWeight: 5, metrics: [{name: x, query: q}]"), "set thresholdRange, or a judge");
    refused(
        &canary("stepWeight: 5, metrics: [{name: x, query: q, thresholdRange: {min: 2, max: 1}}]"),
        "min 2 is above max 1",
    );
    refused(
        &canary("stepWeight: 5, metrics: [{name: request-duration, judge: {type: threshold}}]"),
        "judge threshold needs thresholdRange",
    );
    refused(
        &canary(
            "stepWeight: 5, metrics: [{name: request-success-rate, judge: {type: sequential, margin: 0.5}}]",
        ),
        "judge.margin",
    );
    refused(
        &canary("stepWeight: 5, metrics: [{name: request-duration}, {name: request-duration}]"),
        "two entries named \"request-duration\"",
    );
    refused(
        &canary("stepWeight: 5, webhooks: [{name: a, url: u}, {name: a, url: v}]"),
        "two entries named \"a\"",
    );
    refused(
        &canary("stepWeight: 5, webhooks: [{name: a, url: u, expireAfter: 1h}]"),
        "expireAfter is for gates",
    );
    refused(&canary("stepWeight: 5, sessionAffinity: {cookieName: ''}"), "cookieName is empty");
    refused(
        &canary_with("releaseWindows: [{cron: '0 9 * *', duration: 8h}]", "stepWeight: 5"),
        "spec.releaseWindows[0]: schedule \"0 9 * *\" must have five fields",
    );
    refused(
        &canary_with("releaseWindows: [{cron: '0 9 * * *', timeZone: Mars, duration: 8h}]", "stepWeight: 5"),
        "write an IANA name",
    );
}

#[test]
fn a_range_on_a_metric_means_the_threshold_judge() {
    let ranged = "metrics: [{name: request-success-rate, thresholdRange: {min: 99}}]";
    let may_peek = |analysis: &str| plan(analysis).metrics[0].policy.judge.may_peek();
    assert!(!may_peek(&format!("stepWeight: 5, {ranged}")));
    assert!(!may_peek(&format!("stepWeight: 5, judge: {{type: sequential}}, {ranged}")));
    assert!(!may_peek("stepWeight: 5, metrics: [{name: request-success-rate, threshold: 99}]"));
    assert!(may_peek("stepWeight: 5, metrics: [{name: request-success-rate}]"));
}
