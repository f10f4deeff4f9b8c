//! Sample ratio: does the observed split match the requested one?

use std::time::Duration;

use serin::analysis::measurement::{Arms, Counts};
use serin::analysis::sample_ratio::{SampleRatioState, SampleRatioTest, Tolerance};
use serin::analysis::verdict::JudgeOutcome;

use crate::traffic::{CHECK_INTERVAL, Release, TrafficPhase, runs};
use crate::{median_and_p90, row, share};

const RUNS: usize = 500;

/// The seconds after which each run a split other than five percent was detected.
fn detection_times(rps: f64, weight: f64) -> Vec<u64> {
    let split = SampleRatioTest::new(0.01).unwrap();
    let release = Release::new(&[TrafficPhase::healthy(rps, 0.0).weight(weight)]);
    let looks = runs(RUNS, |run| {
        let mut evidence = SampleRatioState::default();
        (1..).zip(release.checks(run)).find_map(|(look, seen): (u64, Arms<Counts>)| {
            let counted = (seen.map(Counts::total), Duration::from_secs(CHECK_INTERVAL));
            let verdict = split.check(&mut evidence, 0.05, counted, Tolerance::default());
            matches!(verdict.outcome, JudgeOutcome::Fail { .. }).then_some(look * CHECK_INTERVAL)
        })
    });
    looks.into_iter().flatten().collect()
}

#[test]
fn a_split_of_six_percent_instead_of_five_is_detected_and_five_is_not() {
    let traffic = [50.0, 500.0];
    row("split of 5 % doubted, of 500, and seconds", &traffic.map(|rps| format!("{rps} rps")));
    let right = traffic.map(|rps| share(detection_times(rps, 0.05).len(), RUNS));
    row("  it is 5 %", &right);
    assert!(right.iter().all(|rate| *rate <= 0.01), "{right:?}");
    let wrong = traffic.map(|rps| {
        let times = detection_times(rps, 0.06);
        let rate = share(times.len(), RUNS);
        assert!(rate > 0.9, "found only {rate}");
        let (median, p90) = median_and_p90(times);
        format!("{rate:.2} {median}/{p90} s")
    });
    row("  it is 6 %", &wrong);
}
