//! Error rates: `sequential` beside `threshold` with Flagger's usual settings.

use serin::analysis::Measurement;
use serin::analysis::measurement::{Arms, Counts};
use serin::analysis::sequential::{Evidence, Sequential, Settings};
use serin::analysis::threshold::Threshold;
use serin::analysis::verdict::Outcome;

use crate::traffic::{Release, SCRAPE, Stretch, runs};
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
    look: u64,
    bad: u64,
}

/// Looks after every scrape.
fn by_sequential(
    judge: &Sequential,
    release: &Release,
    mut evidence: Evidence,
    run: u64,
) -> Option<Rollback> {
    let mut bad = 0;
    for (look, seen) in (1..).zip(release.looks(run)) {
        bad += seen.canary.bad();
        if matches!(judge.outcome(&mut evidence, &Measurement::Counts(seen)), Outcome::Fail { .. }) {
            return Some(Rollback { look, bad });
        }
    }
    None
}

/// Flagger's usual settings: a success rate of 99 %, checked every minute, and
/// five failed checks.
fn by_threshold(release: &Release, run: u64) -> Option<Rollback> {
    const LOOKS_A_MINUTE: u64 = 60 / SCRAPE;
    const FAILED_CHECKS: u32 = 5;
    let judge = Threshold::new(Some(99.0), None).unwrap();
    let (mut bad, mut failed, mut minute) = (0, 0, (0, 0));
    for (look, seen) in (1..).zip(release.looks(run)) {
        bad += seen.canary.bad();
        minute = (minute.0 + seen.canary.bad(), minute.1 + seen.canary.total());
        if look % LOOKS_A_MINUTE == 0 {
            let canary = Counts::of_bad(minute.0, minute.1);
            let verdict = judge.look(&Measurement::Counts(Arms { canary, primary: Counts::default() }));
            failed += u32::from(matches!(verdict.outcome, Outcome::Fail { .. }));
            minute = (0, 0);
        }
        if failed == FAILED_CHECKS {
            return Some(Rollback { look, bad });
        }
    }
    None
}

fn rollbacks(count: usize, release: &Release, evidence: &Evidence) -> f64 {
    let judge = sequential(1.5);
    let failed = runs(count, |run| by_sequential(&judge, release, evidence.clone(), run));
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
            let release = Release::new(&[Stretch::healthy(rps, errors)]);
            at_most(rollbacks(RUNS, &release, &Evidence::default()), FALSE_ROLLBACK)
        });
        row(&format!("  both arms {} % errors", 100.0 * errors), &rates);
    }
}

#[test]
fn neither_incidents_nor_ramps_nor_a_wrong_split_count_against_the_canary() {
    type Shape = fn(f64) -> Vec<Stretch>;
    let shapes: [(&str, Shape); 6] = [
        ("incident in both arms, 0.5 to 5 %", |rps| {
            let (calm, storm) =
                (Stretch::healthy(rps, 0.005).looks(20), Stretch::healthy(rps, 0.05).looks(20));
            vec![calm, storm, calm]
        }),
        ("ramp 5, 20, 50 % with a shifting baseline", |rps| {
            [(0.05, 0.005), (0.2, 0.02), (0.5, 0.002)]
                .map(|(weight, errors)| Stretch::healthy(rps, errors).weight(weight).looks(20))
                .into()
        }),
        ("split is 6 %, believed 5 %", |rps| vec![Stretch::healthy(rps, 0.005).weight(0.06)]),
        ("last step at 100 %: the primary is idle", |rps| {
            [0.05, 0.5, 1.0].map(|weight| Stretch::healthy(rps / 5.0, 0.005).weight(weight).looks(12)).into()
        }),
        ("hardly any traffic: either arm often idle", |rps| {
            vec![Stretch::healthy(rps / 250.0, 0.01).weight(0.5).looks(120)]
        }),
        ("1.5 times worse: at the margin", |rps| vec![Stretch::healthy(rps, 0.005).canary_errors(0.0075)]),
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
fn failures_in_clumps_are_harmless_and_more_so_once_they_are_known() {
    let judge = sequential(1.5);
    row("healthy releases rolled back, of 5,000", &TRAFFIC.map(|rps| format!("{rps} rps")));
    for (name, known) in [("first release", false), ("next release", true)] {
        let rates = TRAFFIC.map(|rps| {
            let release = Release::new(&[Stretch::healthy(rps, 0.005).clumps_of(7)]);
            let mut evidence = Evidence::default();
            if known {
                for seen in release.looks(u64::MAX) {
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
        let releases = TRAFFIC
            .map(|rps| Release::new(&[Stretch::healthy(rps, primary).canary_errors(canary).looks(180)]));
        let ours = releases.each_ref().map(|release| {
            summary(runs(RUNS / 5, |run| by_sequential(&judge, release, Evidence::default(), run)))
        });
        let theirs =
            releases.each_ref().map(|release| summary(runs(RUNS / 5, |run| by_threshold(release, run))));
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
fn a_canary_that_turns_bad_after_half_an_hour_is_found_within_minutes() {
    let judge = sequential(1.5);
    let well = 180;
    let texts = TRAFFIC.map(|rps| {
        let healthy = Stretch::healthy(rps, 0.005);
        let release = Release::new(&[healthy.looks(well), healthy.canary_errors(0.03).looks(120)]);
        let found = runs(RUNS / 10, |run| by_sequential(&judge, &release, Evidence::default(), run));
        let late = found.into_iter().flatten().map(|back| back.look.saturating_sub(u64::from(well)) * SCRAPE);
        let (median, p90) = median_and_p90(late.collect());
        assert!(p90 <= 900, "only after {p90} s");
        format!("{median}/{p90} s")
    });
    row("  0.5 to 3 % after half an hour, sequential", &texts);
}

#[test]
fn a_canary_at_the_margin_is_certified_at_most_once_in_a_hundred() {
    row("certified, of 1,000, and seconds (median/p90)", &TRAFFIC.map(|rps| format!("{rps} rps")));
    for margin in [2.0, 3.0] {
        let judge = sequential(margin);
        let certified = |release: &Release| {
            let looks = runs(RUNS / 10, |run| {
                let mut evidence = Evidence::default();
                let outcomes =
                    release.looks(run).map(|seen| judge.outcome(&mut evidence, &Measurement::Counts(seen)));
                (1..)
                    .zip(outcomes)
                    .find(|(_, outcome)| *outcome == Outcome::Pass { certified: true })
                    .map(|(look, _)| look)
            });
            looks.into_iter().flatten().map(|look: u64| look * SCRAPE).collect::<Vec<_>>()
        };
        let healthy = TRAFFIC.map(|rps| {
            let times = certified(&Release::new(&[Stretch::healthy(rps, 0.005).looks(240)]));
            let found = share(times.len(), RUNS / 10);
            let (median, p90) = median_and_p90(times);
            format!("{found:.3} {median}/{p90} s")
        });
        row(&format!("  as healthy as the primary, margin {margin}"), &healthy);
        let wrong = TRAFFIC.map(|rps| {
            let release =
                Release::new(&[Stretch::healthy(rps, 0.005).canary_errors(0.005 * margin).looks(240)]);
            at_most(share(certified(&release).len(), RUNS / 10), 0.01)
        });
        row(&format!("  {margin} times worse, margin {margin}"), &wrong);
    }
}

#[test]
fn the_interval_holds_the_true_odds_ratio_at_all_looks_together() {
    let judge = sequential(1.5);
    for (canary, primary) in [(0.005, 0.005), (0.03, 0.005)] {
        let odds = |p: f64| p / (1.0 - p);
        let truth = odds(canary) / odds(primary);
        let release = Release::new(&[Stretch::healthy(50.0, primary).canary_errors(canary)]);
        let missed = runs(RUNS / 10, |run| {
            let mut evidence = Evidence::default();
            release.looks(run).any(|seen| {
                let estimate = judge.look(&mut evidence, &Measurement::Counts(seen)).estimate;
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

struct Found {
    found: f64,
    bad: (u64, u64),
    text: String,
}

fn summary(found: Vec<Option<Rollback>>) -> Found {
    let all = found.len();
    let found: Vec<Rollback> = found.into_iter().flatten().collect();
    let rate = share(found.len(), all);
    if found.is_empty() {
        return Found { found: rate, bad: (u64::MAX, u64::MAX), text: "never".into() };
    }
    let times = median_and_p90(found.iter().map(|back| back.look * SCRAPE).collect());
    let bad = median_and_p90(found.iter().map(|back| back.bad).collect());
    let text = format!("{rate:.2} {}/{} s {}/{}", times.0, times.1, bad.0, bad.1);
    Found { found: rate, bad, text }
}
