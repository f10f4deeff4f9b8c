//! Error rates: `sequential` beside `threshold` with Flagger's usual settings.

use serin::analysis::Measurement;
use serin::analysis::measurement::{Arms, Counts};
use serin::analysis::sequential::{Evidence, Sequential, Settings};
use serin::analysis::threshold::Threshold;
use serin::analysis::verdict::JudgeOutcome;

use crate::traffic::{CHECK_INTERVAL, Release, TrafficPhase, runs};
use crate::{median_and_p90, row, share};

const RUNS: usize = 10_000;
const FALSE_ROLLBACK: f64 = 0.01;
const TRAFFIC: [f64; 2] = [50.0, 500.0];

fn sequential(margin: f64) -> Sequential {
    let settings = Settings { false_rollback: FALSE_ROLLBACK, margin, ..Settings::default() };
    Sequential::try_from(settings).unwrap()
}

/// When a release was rolled back, and how many bad requests that took.
struct Rollback {
    check: u64,
    bad: u64,
}

/// Checked after every scrape.
fn sequential_rollback(
    judge: &Sequential,
    release: &Release,
    mut evidence: Evidence,
    run: u64,
) -> Option<Rollback> {
    let mut bad = 0;
    for (look, seen) in (1..).zip(release.checks(run)) {
        bad += seen.canary.bad();
        if matches!(judge.outcome(&mut evidence, &Measurement::Counts(seen)), JudgeOutcome::Fail { .. }) {
            return Some(Rollback { check: look, bad });
        }
    }
    None
}

/// Flagger's usual settings: a success rate of 99 %, checked every minute, and
/// five failed checks.
fn threshold_rollback(release: &Release, run: u64) -> Option<Rollback> {
    const CHECKS_PER_MINUTE: u64 = 60 / CHECK_INTERVAL;
    const FAILED_CHECKS: u32 = 5;
    let judge = Threshold::new(Some(99.0), None).unwrap();
    let (mut bad, mut failed, mut minute) = (0, 0, (0, 0));
    for (look, seen) in (1..).zip(release.checks(run)) {
        bad += seen.canary.bad();
        minute = (minute.0 + seen.canary.bad(), minute.1 + seen.canary.total());
        if look % CHECKS_PER_MINUTE == 0 {
            let canary = Counts::of_bad(minute.0, minute.1);
            let verdict = judge.check(&Measurement::Counts(Arms { canary, primary: Counts::default() }));
            failed += u32::from(matches!(verdict.outcome, JudgeOutcome::Fail { .. }));
            minute = (0, 0);
        }
        if failed == FAILED_CHECKS {
            return Some(Rollback { check: look, bad });
        }
    }
    None
}

fn rollbacks(count: usize, release: &Release, evidence: &Evidence) -> f64 {
    let judge = sequential(1.5);
    let failed = runs(count, |run| sequential_rollback(&judge, release, evidence.clone(), run));
    share(failed.into_iter().flatten().count(), count)
}

#[track_caller]
fn at_most(rate: f64, limit: f64) -> f64 {
    assert!(rate <= limit, "{rate} of the healthy releases were rolled back, more than {limit}");
    rate
}

#[test]
fn a_healthy_release_is_rolled_back_at_most_once_in_a_hundred() {
    row("healthy releases rolled back, of 10,000", &["10 rps", "50 rps", "500 rps"]);
    for errors in [0.0, 0.001, 0.01] {
        let rates = [10.0, 50.0, 500.0].map(|rps| {
            let release = Release::new(&[TrafficPhase::healthy(rps, errors)]);
            at_most(rollbacks(RUNS, &release, &Evidence::default()), FALSE_ROLLBACK)
        });
        row(&format!("  both arms {} % errors", 100.0 * errors), &rates);
    }
}

#[test]
fn incidents_ramps_and_wrong_splits_cause_no_false_rollbacks() {
    type Shape = fn(f64) -> Vec<TrafficPhase>;
    let shapes: [(&str, Shape); 10] = [
        ("incident in both arms, 0.5 to 5 %", |rps| {
            let (calm, storm) =
                (TrafficPhase::healthy(rps, 0.005).checks(20), TrafficPhase::healthy(rps, 0.05).checks(20));
            vec![calm, storm, calm]
        }),
        ("ramp 5, 20, 50 % with a shifting baseline", |rps| {
            [(0.05, 0.005), (0.2, 0.02), (0.5, 0.002)]
                .map(|(weight, errors)| TrafficPhase::healthy(rps, errors).weight(weight).checks(20))
                .into()
        }),
        ("split is 6 %, believed 5 %", |rps| vec![TrafficPhase::healthy(rps, 0.005).weight(0.06)]),
        ("last step at 100 %: the primary is idle", |rps| {
            [0.05, 0.5, 1.0]
                .map(|weight| TrafficPhase::healthy(rps / 5.0, 0.005).weight(weight).checks(12))
                .into()
        }),
        ("hardly any traffic: either arm often idle", |rps| {
            vec![TrafficPhase::healthy(rps / 250.0, 0.01).weight(0.5).checks(120)]
        }),
        ("both arms fail half of their requests, from the tenth check on", |rps| {
            vec![TrafficPhase::healthy(rps, 0.005).checks(10), TrafficPhase::healthy(rps, 0.5).checks(50)]
        }),
        ("both arms fail everything for a while", |rps| {
            let calm = TrafficPhase::healthy(rps, 0.005).checks(20);
            vec![calm, TrafficPhase::healthy(rps, 1.0).checks(20), calm]
        }),
        ("no primary, and half of the requests fail", |rps| {
            vec![TrafficPhase::healthy(rps / 50.0, 0.5).weight(1.0)]
        }),
        ("no primary, 30 % of the requests fail by seven", |rps| {
            vec![TrafficPhase::healthy(rps / 5.0, 0.3).weight(1.0).clumps_of(7)]
        }),
        ("1.5 times worse: at the margin", |rps| {
            vec![TrafficPhase::healthy(rps, 0.005).canary_errors(0.0075)]
        }),
    ];
    row("healthy releases rolled back, of 2,500", &TRAFFIC.map(|rps| format!("{rps} rps")));
    for (name, shape) in shapes {
        let rates = TRAFFIC.map(|rps| {
            at_most(rollbacks(RUNS / 4, &Release::new(&shape(rps)), &Evidence::default()), FALSE_ROLLBACK)
        });
        row(&format!("  {name}"), &rates);
    }
}

/// Retries make failures come together: variance is seven times the mean.
#[test]
fn clustered_failures_cause_few_false_rollbacks() {
    let judge = sequential(1.5);
    row("healthy releases rolled back, of 5,000", &TRAFFIC.map(|rps| format!("{rps} rps")));
    for (name, known) in [("first release", false), ("next release", true)] {
        let rates = TRAFFIC.map(|rps| {
            let release = Release::new(&[TrafficPhase::healthy(rps, 0.005).clumps_of(7)]);
            let mut evidence = Evidence::default();
            if known {
                for seen in release.checks(u64::MAX) {
                    judge.outcome(&mut evidence, &Measurement::Counts(seen));
                }
            }
            at_most(rollbacks(RUNS / 2, &release, &evidence.next_release()), FALSE_ROLLBACK)
        });
        row(&format!("  failures come by seven, {name}"), &rates);
    }
}

#[test]
fn a_bad_canary_serves_fewer_bad_requests_than_under_a_threshold() {
    row("found, seconds (median/p90), bad requests (same)", &TRAFFIC.map(|rps| format!("{rps} rps")));
    for (canary, primary) in [(0.03, 0.005), (0.015, 0.005), (0.005, 0.0005)] {
        let judge = sequential(1.5);
        let releases = TRAFFIC.map(|rps| {
            Release::new(&[TrafficPhase::healthy(rps, primary).canary_errors(canary).checks(180)])
        });
        let ours = releases.each_ref().map(|release| {
            summary(runs(RUNS / 5, |run| sequential_rollback(&judge, release, Evidence::default(), run)))
        });
        let theirs = releases
            .each_ref()
            .map(|release| summary(runs(RUNS / 5, |run| threshold_rollback(release, run))));
        let name = format!("{} to {} %", 100.0 * primary, 100.0 * canary);
        row(&format!("  {name}, sequential"), &ours.each_ref().map(|found| found.text.clone()));
        row(
            &format!("  {name}, threshold 99 %, 5 failed checks"),
            &theirs.each_ref().map(|found| found.text.clone()),
        );
        if canary == 0.03 {
            for (ours, theirs) in ours.iter().zip(&theirs) {
                assert_eq!(ours.found, 1.0, "every bad canary is found");
                assert!(
                    ours.bad.0 < theirs.bad.0 && ours.bad.1 < theirs.bad.1,
                    "{} vs {}",
                    ours.text,
                    theirs.text
                );
            }
        }
    }
}

#[test]
fn a_total_failure_is_found_by_a_dozen_requests_without_a_primary() {
    let judge = sequential(1.5);
    row("found, seconds (median/p90), bad requests (same)", &["0.1 rps", "0.3 rps"]);
    for errors in [1.0, 0.9] {
        let texts = [0.1, 0.3].map(|rps| {
            let release = Release::new(&[TrafficPhase::healthy(rps, errors).weight(1.0)]);
            let found = summary(runs(RUNS / 5, |run| {
                sequential_rollback(&judge, &release, Evidence::default(), run)
            }));
            assert_eq!(found.found, 1.0, "every broken canary is found");
            assert!(found.bad.0 <= if errors == 1.0 { 12 } else { 20 }, "{}", found.text);
            found.text
        });
        row(&format!("  no primary, canary {} % errors", 100.0 * errors), &texts);
    }
}

#[test]
fn a_canary_that_turns_bad_after_half_an_hour_is_found_within_minutes() {
    let judge = sequential(1.5);
    let well = 180;
    let texts = TRAFFIC.map(|rps| {
        let healthy = TrafficPhase::healthy(rps, 0.005);
        let release = Release::new(&[healthy.checks(well), healthy.canary_errors(0.03).checks(120)]);
        let found = runs(RUNS / 10, |run| sequential_rollback(&judge, &release, Evidence::default(), run));
        let late = found
            .into_iter()
            .flatten()
            .map(|back| back.check.saturating_sub(u64::from(well)) * CHECK_INTERVAL);
        let (median, p90) = median_and_p90(late.collect());
        assert!(p90 <= 900, "only after {p90} s");
        format!("{median}/{p90} s")
    });
    row("  0.5 to 3 % after half an hour, sequential", &texts);
}

#[test]
fn a_canary_at_the_margin_is_non_inferior_at_most_once_in_a_hundred() {
    row("certified, of 1,000, and seconds (median/p90)", &TRAFFIC.map(|rps| format!("{rps} rps")));
    for margin in [2.0, 3.0] {
        let judge = sequential(margin);
        let certified = |release: &Release| {
            let looks = runs(RUNS / 10, |run| {
                let mut evidence = Evidence::default();
                let outcomes =
                    release.checks(run).map(|seen| judge.outcome(&mut evidence, &Measurement::Counts(seen)));
                (1..)
                    .zip(outcomes)
                    .find(|(_, outcome)| *outcome == JudgeOutcome::Pass { non_inferior: true })
                    .map(|(look, _)| look)
            });
            looks.into_iter().flatten().map(|look: u64| look * CHECK_INTERVAL).collect::<Vec<_>>()
        };
        let healthy = TRAFFIC.map(|rps| {
            let times = certified(&Release::new(&[TrafficPhase::healthy(rps, 0.005).checks(240)]));
            let found = share(times.len(), RUNS / 10);
            let (median, p90) = median_and_p90(times);
            format!("{found:.3} {median}/{p90} s")
        });
        row(&format!("  as healthy as the primary, margin {margin}"), &healthy);
        let wrong = TRAFFIC.map(|rps| {
            let release =
                Release::new(&[TrafficPhase::healthy(rps, 0.005).canary_errors(0.005 * margin).checks(240)]);
            at_most(share(certified(&release).len(), RUNS / 10), 0.01)
        });
        row(&format!("  {margin} times worse, margin {margin}"), &wrong);
    }
}

#[test]
fn the_interval_covers_the_true_odds_ratio_at_all_checks() {
    let judge = sequential(1.5);
    for (canary, primary) in [(0.005, 0.005), (0.03, 0.005)] {
        let odds = |p: f64| p / (1.0 - p);
        let truth = odds(canary) / odds(primary);
        let release = Release::new(&[TrafficPhase::healthy(50.0, primary).canary_errors(canary)]);
        let missed = runs(RUNS / 10, |run| {
            let mut evidence = Evidence::default();
            release.checks(run).any(|seen| {
                let estimate = judge.check(&mut evidence, &Measurement::Counts(seen)).estimate;
                estimate.is_some_and(|e| {
                    e.low.is_some_and(|low| truth <= low) || e.high.is_some_and(|high| truth >= high)
                })
            })
        });
        let missed = share(missed.into_iter().filter(|missed| *missed).count(), RUNS / 10);
        row(&format!("  95 % interval missed an odds ratio of {truth:.1}"), &[missed]);
        assert!(missed <= 0.05, "{missed}");
    }
}

struct DetectionSummary {
    found: f64,
    bad: (u64, u64),
    text: String,
}

fn summary(found: Vec<Option<Rollback>>) -> DetectionSummary {
    let all = found.len();
    let found: Vec<Rollback> = found.into_iter().flatten().collect();
    let rate = share(found.len(), all);
    if found.is_empty() {
        return DetectionSummary { found: rate, bad: (u64::MAX, u64::MAX), text: "never".into() };
    }
    let times = median_and_p90(found.iter().map(|back| back.check * CHECK_INTERVAL).collect());
    let bad = median_and_p90(found.iter().map(|back| back.bad).collect());
    let text = format!("{rate:.2} {}/{} s {}/{}", times.0, times.1, bad.0, bad.1);
    DetectionSummary { found: rate, bad, text }
}
