//! When a release is checked, and which evidence it keeps.

use std::time::Duration;

use serin::analysis::sequential::Evidence;
use serin::api::canary::{Phase, status::Verdict};
use serin::engine::command::Verb;

use crate::world::{Health, World, canary, canary_with};

const ERRORS: &str = "metrics: [{name: errors, query: q, thresholdRange: {max: 1}}]";
const MINUTE: Duration = Duration::from_secs(60);

/// When a release of one step was measured, in seconds since the step began.
fn measured_at(interval: &str, change: impl Fn(&mut World, i64)) -> Vec<i64> {
    let metric = "metrics: [{name: request-success-rate}]";
    let mut world = World::releasing(&canary(&format!("interval: {interval}, stepWeights: [50], {metric}")));
    world.run_to_weight(50.0);
    let (began, mut moments) = (world.now, Vec::new());
    while world.status.phase == Phase::Progressing && moments.len() < 20 {
        world.settle();
        let now = world.now.duration_since(began).as_secs();
        let measured = world.measured.as_ref().map(|measured| measured.at.duration_since(began).as_secs());
        moments.extend(measured.filter(|at| !moments.contains(at)));
        change(&mut world, now);
        world.now = world.next_wake.unwrap_or(world.now).max(world.now);
    }
    moments
}

#[test]
fn a_check_has_several_interim_checks_and_a_long_one_has_many() {
    assert_eq!(measured_at("2s", |_, _| {}), [1, 2]);
    assert_eq!(measured_at("8s", |_, _| {}), [2, 4, 6, 8]);
    assert_eq!(measured_at("1m", |_, _| {}), [10, 20, 30, 40, 50, 60]);
}

/// When a release of one step was measured in its first minutes, decided as the
/// controller does: when the engine asks for it, and when a result arrives.
#[test]
fn interim_checks_follow_each_other_by_the_engines_own_wakes() {
    let metric = "metrics: [{name: request-success-rate}]";
    let steps = "interval: 1m, steps: [{weight: 50, iterations: 3}]";
    let mut world = World::releasing(&canary(&format!("{steps}, {metric}")));
    world.run_to_weight(50.0);
    let (began, mut moments) = (world.now, Vec::new());
    while world.now < began + 2 * MINUTE {
        let measured = world.measured.clone();
        world.step();
        if world.measured == measured {
            world.now = world.next_wake.expect("a wake").max(world.now);
        } else {
            moments.push(world.now.duration_since(began).as_secs());
        }
    }
    assert_eq!(moments, (1..=11).map(|n| 10 * n).collect::<Vec<i64>>());
}

#[test]
fn a_check_without_data_that_counts_as_failed_counts_once_an_interval() {
    for (health, policy) in [(Health::NoData, "onNoData: fail"), (Health::Unavailable, "onUnavailable: fail")]
    {
        let metric = "metrics: [{name: request-success-rate}]";
        let analysis = format!("interval: 1m, threshold: 3, {policy}, stepWeights: [50], {metric}");
        let mut world = World::releasing(&canary(&analysis));
        world.health = health;
        world.run_to_weight(50.0);
        world.run_for(MINUTE * 5 / 2);
        assert_eq!((world.status.phase, world.status.failed_checks), (Phase::Progressing, 2), "{policy}");
        world.run_for(MINUTE);
        assert_eq!(world.status.phase, Phase::Failed, "{policy}");
    }
}

#[test]
fn a_canary_that_alone_falls_silent_is_rolled_back_after_three_checks() {
    let metric = "metrics: [{name: request-success-rate}]";
    for (more, failed) in [("", true), (", onNoData: ignore", false)] {
        let mut world =
            World::releasing(&canary(&format!("interval: 1m, stepWeights: [20, 50], {metric}{more}")));
        world.health = Health::Silent;
        world.run_to_weight(20.0);
        world.run_for(MINUTE * 5 / 2);
        assert_ne!(world.status.phase, Phase::Failed, "{:?}", world.status.message);
        world.run_for(MINUTE);
        assert_eq!(world.status.phase == Phase::Failed, failed, "{:?}", world.status.message);
        if failed {
            let reason = &world.status.history[0].reason;
            assert!(reason.contains("weight of 20 % and counted no request in 3 checks"), "{reason}");
        }
    }
}

#[test]
fn young_pods_are_not_judged_by_comparison_and_the_step_waits_for_them() {
    for (warmup, expected) in [("30s", Phase::Succeeded), ("0s", Phase::Failed)] {
        let metric = "metrics: [{name: request-success-rate}]";
        let analysis = format!("warmup: {warmup}, interval: 10s, stepWeights: [50], {metric}");
        let mut world = World::releasing(&canary(&analysis));
        world.health = Health::Bad;
        world.run_to_weight(50.0);
        world.run_for(Duration::from_secs(29));
        if expected == Phase::Succeeded {
            assert_eq!(world.status.phase, Phase::Progressing, "{:?}", world.status.message);
            let message = world.status.message.clone().unwrap_or_default();
            assert!(message.contains("its pods are young"), "{message}");
        }
        world.health = Health::Good;
        world.run_for(10 * MINUTE);
        assert_eq!(world.status.phase, expected, "{:?}", world.status.message);
    }
}

#[test]
fn a_range_beside_the_comparison_holds_while_both_arms_are_beyond_it() {
    let metric =
        "metrics: [{name: request-success-rate, judge: {type: sequential}, thresholdRange: {min: 99.9}}]";
    let mut world = World::releasing(&canary(&format!("interval: 1m, stepWeights: [50], {metric}")));
    world.run_to_weight(50.0);
    world.run_for(10 * MINUTE);
    let message = world.status.message.clone().unwrap_or_default();
    assert_eq!(world.status.phase, Phase::Progressing, "{message}");
    assert!(message.contains("incident: both arms are beyond the limit of thresholdRange"), "{message}");
}

#[test]
fn the_rest_of_a_check_that_passed_may_be_without_data() {
    for rest in [Health::FewRequests, Health::NoData] {
        let after_a_glance = |world: &mut World, at: i64| {
            if at >= 10 {
                world.health = rest;
            }
        };
        assert_eq!(measured_at("1m", after_a_glance), [10, 20, 30, 40, 50, 60], "{rest:?}");
    }
}

#[test]
fn a_check_without_data_does_not_pass_by_an_earlier_check() {
    let metric = "metrics: [{name: request-success-rate}]";
    for rest in [Health::FewRequests, Health::NoData] {
        let mut world = World::releasing(&canary(&format!(
            "interval: 1m, iterations: 3, match: [{{headers: {{a: {{exact: b}}}}}}], {metric}"
        )));
        world.run_until(|world| world.status.iterations == 1);
        world.health = rest;
        world.run_for(MINUTE + MINUTE / 2);
        assert_eq!((world.status.phase, world.status.iterations), (Phase::Progressing, 1), "{rest:?}");
    }
}

#[test]
fn a_delayed_source_is_awaited_and_no_window_is_skipped() {
    let metric = "metrics: [{name: request-success-rate}]";
    let mut world = World::releasing(&canary(&format!("interval: 1m, stepWeights: [50], {metric}")));
    world.source_delay = 3 * MINUTE;
    world.run_to_weight(50.0);
    let (began, mut windows) = (world.now, Vec::new());
    while world.status.phase == Phase::Progressing && windows.len() < 200 {
        world.settle();
        if let Some(measured) = &world.measured {
            let asked = &measured.check.metrics[0];
            let window = (asked.since, measured.measured_until(&asked.metric));
            // In seconds since the step began.
            let window = [window.0, window.1].map(|at| at.duration_since(began).as_secs());
            if !windows.contains(&window) {
                windows.push(window);
            }
        }
        world.now = world.next_wake.unwrap_or(world.now).max(world.now);
    }
    assert_eq!(world.status.phase, Phase::Succeeded, "{:?}", world.status.message);
    // Nothing until the delay is over; then on from where the step began.
    assert_eq!(windows[0], [0, 0]);
    assert!(windows[1..].windows(2).all(|pair| pair[1][0] == pair[0][1]), "{windows:?}");
    assert!(windows[1][0] == 0 && windows[1][1] > 0, "{windows:?}");
}

#[test]
fn an_inconclusive_reason_with_new_numbers_is_not_reported_again() {
    let metric = "metrics: [{name: request-success-rate, judge: {type: sequential, minRequests: 1000}}]";
    let mut world = World::releasing(&canary(&format!("interval: 1m, stepWeights: [50], {metric}")));
    world.health = Health::FewRequests;
    world.run_to_weight(50.0);
    world.run_for(20 * MINUTE);
    let events: Vec<_> = world.journal.iter().filter(|line| line.contains("Holding")).collect();
    assert_eq!(events.len(), 1, "{events:#?}");
    assert_ne!(Some(events[0].as_str()), world.status.message.as_deref(), "but the status has the latest");
    world.health = Health::Unavailable;
    world.run_for(5 * MINUTE);
    assert_eq!(world.journal.iter().filter(|line| line.contains("Holding")).count(), 2);
}

#[test]
fn verdicts_carry_their_numbers() {
    let metric = "metrics: [{name: request-success-rate}]";
    let mut world = World::releasing(&canary(&format!("interval: 1m, stepWeights: [50], {metric}")));
    world.run_until(|world| world.status.metrics.iter().any(|metric| metric.at.is_some()));
    let metric = &world.status.metrics[0];
    assert_eq!((metric.canary, metric.primary), (Some(99.5), Some(99.5)));
    assert_eq!((metric.canary_count, metric.primary_count), (Some(200.0), Some(200.0)));
    assert_eq!(metric.evidence, Some(1.0));
    world.health = Health::Bad;
    world.run_to(Phase::Failed);
    let metric = &world.status.metrics[0];
    assert_eq!((metric.canary, metric.primary), (Some(70.0), Some(99.5)));
    assert!(metric.evidence.is_some_and(|evidence| evidence >= 100.0), "{metric:#?}");
}

#[test]
fn a_canary_that_fails_everything_is_rolled_back_though_it_has_all_the_traffic() {
    let metric = "metrics: [{name: request-success-rate}]";
    let mut world = World::releasing(&canary(&format!("interval: 1m, stepWeights: [100], {metric}")));
    world.health = Health::Broken;
    world.run_to_weight(100.0);
    world.run_for(MINUTE / 4);
    assert_eq!(world.status.phase, Phase::Failed, "{:?}", world.status.message);
    let reason = &world.status.history[0].reason;
    assert!(reason.contains("canary fails 100 % of its requests (200 of 200)"), "{reason}");
}

#[test]
fn a_check_begins_anew_when_the_clock_is_stepped_back() {
    let metric = "metrics: [{name: request-success-rate}]";
    let mut world = World::releasing(&canary(&format!("interval: 1m, stepWeights: [50], {metric}")));
    world.run_to_weight(50.0);
    world.run_for(MINUTE / 2);
    world.now -= 60 * MINUTE;
    let began = world.now;
    world.run_to(Phase::Succeeded);
    let took = world.now.duration_since(began);
    assert!(took.as_secs() <= 180, "{took}");
}

#[test]
fn a_check_begins_anew_when_the_clock_is_stepped_forward() {
    for metric in ["metrics: [{name: request-success-rate}]", ERRORS, "metrics: []"] {
        let mut world = World::releasing(&canary(&format!("interval: 1m, stepWeights: [20, 50], {metric}")));
        world.run_to_weight(20.0);
        world.run_for(MINUTE / 2);
        world.now += 60 * MINUTE;
        world.clock_stepped_at = Some(world.now);
        let began = world.now;
        world.run_to_weight(50.0);
        let took = world.now.duration_since(began);
        assert_eq!(took.as_secs(), 60, "{metric}");
        world.run_to(Phase::Succeeded);
    }
}

#[test]
fn a_deadline_begins_anew_when_the_clock_is_stepped_forward() {
    let spec = "progressDeadlineSeconds: 300";
    let mut world = World::initialized(&canary_with(spec, "interval: 1m, stepWeights: [20]"));
    world.canary_starts = false;
    world.push("v1-b");
    world.run_for(2 * MINUTE);
    world.now += 60 * MINUTE;
    world.clock_stepped_at = Some(world.now);
    let began = world.now;
    world.run_to(Phase::Failed);
    assert_eq!(world.now.duration_since(began).as_secs(), 300);
}

#[test]
fn evidence_about_the_primary_outlives_a_release_and_verdicts_do_not() {
    let metric =
        "metrics: [{name: request-success-rate}, {name: errors, query: q, thresholdRange: {max: 1}}]";
    let mut world = World::releasing(&canary(&format!("interval: 1m, stepWeights: [50], {metric}")));
    world.run();
    assert_eq!((world.status.phase, world.status.metrics.len()), (Phase::Succeeded, 2));
    world.push("v1-c");
    world.run_to_weight(50.0);
    let [metric] = &world.status.metrics[..] else { panic!("{:#?}", world.status.metrics) };
    assert_eq!(
        (metric.name.as_str(), metric.verdict, &metric.at),
        ("request-success-rate", Verdict::Inconclusive, &None)
    );
    assert_eq!((metric.canary, metric.evidence, &metric.measured_until), (None, None, &None));
    let memory = &metric.analysis_state.as_ref().expect("a memory").0["evidence"];
    let memory: Evidence = serde_json::from_str(memory.as_str().expect("a text")).expect("evidence");
    assert!(memory.overdispersion_pairs() > 0.0, "{memory:#?}");
    assert_eq!((memory.seen().canary, memory.p_value()), (0, 1.0), "{memory:#?}");
}

/// A release at a tenth of the traffic, of which the canary gets half.
fn misrouted(analysis: &str) -> World {
    let mut world = World::initialized(&canary(&format!(
        "interval: 2m, stepWeights: [10, 50], metrics: [{{name: request-success-rate}}]{analysis}"
    )));
    world.router_splits = false;
    world.push("v1-b");
    world
}

#[test]
fn a_sample_ratio_mismatch_holds_the_release_until_it_is_fixed() {
    let mut world = misrouted("");
    world.run_for(Duration::from_secs(1800));
    assert_eq!((world.status.phase, world.split.canary.percent()), (Phase::Progressing, 10.0));
    let message = world.status.message.clone().unwrap_or_default();
    assert!(message.contains("its weight is 10 %: the route does not split by its weight"), "{message}");
    assert!(message.contains("spec.analysis.verifySplit: false"), "{message}");

    world.router_splits = true;
    world.run_for(Duration::from_secs(1800));
    assert_eq!(world.status.phase, Phase::Succeeded, "{:?}", world.status.message);
}

#[test]
fn a_sample_ratio_mismatch_is_ignored_without_verify_split() {
    let mut world = misrouted(", verifySplit: false");
    world.run_for(Duration::from_secs(1800));
    assert_eq!(world.status.phase, Phase::Succeeded, "{:?}", world.status.message);
}

/// Ways in which a check does not pass, with words of the reason that holds the
/// release.
const UNPASSED: [(Health, &str); 3] = [
    (Health::Bad, "Holding until a check passes; the latest one failed: errors"),
    (Health::NoData, "Holding, inconclusive: errors"),
    (Health::Unavailable, "Holding, inconclusive: errors"),
];

#[test]
fn a_step_that_passed_does_not_end_while_its_latest_check_did_not_pass() {
    for (health, reason) in UNPASSED {
        for wait in ["pause: {duration: 5m}", "approval: {}"] {
            let mut world = World::releasing(&canary(&format!(
                "interval: 1m, threshold: 100, {ERRORS}, steps: [{{weight: 20, {wait}}}, {{weight: 50}}]"
            )));
            world.run_until(|world| world.status.iterations == 1);
            world.health = health;
            world.run_for(4 * MINUTE);
            world.approvals.insert("20 %".to_owned(), true);
            world.run_for(5 * MINUTE);
            assert_eq!(world.split.canary.percent(), 20.0, "{health:?} and {wait}");
            let message = world.status.message.clone().unwrap_or_default();
            assert!(message.starts_with(reason), "{message}");
            world.health = Health::Good;
            world.run();
            assert_eq!(world.status.phase, Phase::Succeeded, "{health:?} and {wait}");
        }
    }
}

#[test]
fn nothing_is_promoted_while_the_latest_check_did_not_pass() {
    let gate = "webhooks: [{name: ship, type: confirm-promotion, url: u}]";
    for (health, reason) in UNPASSED {
        let mut world = World::initialized(&canary(&format!(
            "interval: 1m, threshold: 100, stepWeights: [50], {ERRORS}, {gate}"
        )));
        world.closed.insert("ship".to_owned());
        world.push("v1-b");
        world.run_to(Phase::WaitingPromotion);
        world.health = health;
        world.run_for(3 * MINUTE);
        world.closed.clear();
        world.run_for(10 * MINUTE);
        assert_eq!(world.promotions, [] as [String; 0], "{health:?}");
        let message = world.status.message.clone().unwrap_or_default();
        assert!(message.starts_with(reason), "{message}");
        world.health = Health::Good;
        world.run();
        assert_eq!(world.promotions, ["v1-b"], "{health:?}");
    }
}

#[test]
fn a_hook_that_does_not_pass_holds_a_step_that_passed_before() {
    let hook = "webhooks: [{name: load, url: u}]";
    for (closed, reason) in [(true, "the hook load refused"), (false, "the hook load did not respond")] {
        let mut world = World::releasing(&canary(&format!(
            "interval: 1m, threshold: 100, {hook}, steps: [{{weight: 20, pause: {{duration: 5m}}}}]"
        )));
        world.run_until(|world| world.status.iterations == 1);
        let hooks = if closed { &mut world.closed } else { &mut world.unreachable };
        hooks.insert("load".to_owned());
        world.run_for(10 * MINUTE);
        assert_eq!(world.status.phase, Phase::Progressing);
        let message = world.status.message.clone().unwrap_or_default();
        assert!(message.contains(reason), "{message}");
        (world.closed, world.unreachable) = Default::default();
        world.run();
        assert_eq!(world.status.phase, Phase::Succeeded);
    }
}

#[test]
fn a_promotion_by_command_skips_a_failed_check() {
    let mut world = World::releasing(&canary(&format!(
        "interval: 1m, threshold: 100, {ERRORS}, steps: [{{weight: 20, pause: {{}}}}]"
    )));
    world.run_until(|world| world.status.iterations == 1);
    world.health = Health::Bad;
    world.run_for(3 * MINUTE);
    world.command(Verb::Promote);
    world.run();
    assert_eq!((world.status.phase, &*world.promotions), (Phase::Succeeded, &["v1-b".to_owned()][..]));
}

#[test]
fn a_release_that_could_not_tell_says_so_before_it_promotes() {
    let promoting = |analysis: &str| {
        let metrics = "metrics: [{name: request-success-rate}]";
        let mut world = World::releasing(&canary(&format!("{analysis}, {metrics}")));
        world.run_to(Phase::Promoting);
        world.settle();
        world.journal.iter().rfind(|line| line.contains("Promoting revision")).cloned().unwrap_or_default()
    };
    let short = promoting("interval: 10s, stepWeights: [20]");
    assert!(
        short.contains("By request-success-rate a canary three times worse could have passed unseen"),
        "{short}"
    );
    let long = promoting("interval: 10m, stepWeights: [20]");
    assert!(long.ends_with("copying it to the primary."), "{long}");
}

#[test]
fn a_verdict_has_its_effect_size_and_interval() {
    let mut world = World::releasing(&canary("stepWeights: [20], metrics: [{name: request-success-rate}]"));
    world.health = Health::Bad;
    world.run_to(Phase::Failed);
    let metric = &world.status.metrics[0];
    let times = metric.times_worse.expect("an effect size");
    assert!(times.low.is_some_and(|low| low > 1.5 && low < times.value), "{times:?}");
    assert!(metric.reason.contains("times the primary's with 95 %"), "{}", metric.reason);
}
