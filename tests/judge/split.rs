//! Is the split what was asked for?

use std::time::Duration;

use serin::analysis::measurement::{Arms, Counts};
use serin::analysis::split::{Leeway, Split, SplitEvidence};
use serin::analysis::verdict::Outcome;

use crate::traffic::{Release, SCRAPE, Stretch, runs};
use crate::{median_and_p90, row, share};

const RUNS: usize = 500;

/// The seconds after which each run was found not to split by five percent.
fn found(rps: f64, weight: f64) -> Vec<u64> {
    let split = Split::new(0.01).unwrap();
    let release = Release::new(&[Stretch::healthy(rps, 0.0).weight(weight)]);
    let looks = runs(RUNS, |run| {
        let mut evidence = SplitEvidence::default();
        (1..).zip(release.looks(run)).find_map(|(look, seen): (u64, Arms<Counts>)| {
            let counted = (seen.map(Counts::total), Duration::from_secs(SCRAPE));
            let verdict = split.look(&mut evidence, 0.05, counted, Leeway::default());
            matches!(verdict.outcome, Outcome::Fail { .. }).then_some(look * SCRAPE)
        })
    });
    looks.into_iter().flatten().collect()
}

#[test]
fn a_split_of_six_percent_instead_of_five_is_found_and_five_is_left_alone() {
    let traffic = [50.0, 500.0];
    row("split of 5 % doubted, of 500, and seconds", &traffic.map(|rps| format!("{rps} rps")));
    let right = traffic.map(|rps| share(found(rps, 0.05).len(), RUNS));
    row("  it is 5 %", &right);
    assert!(right.iter().all(|rate| *rate <= 0.01), "{right:?}");
    let wrong = traffic.map(|rps| {
        let times = found(rps, 0.06);
        let rate = share(times.len(), RUNS);
        assert!(rate > 0.9, "found only {rate}");
        let (median, p90) = median_and_p90(times);
        format!("{rate:.2} {median}/{p90} s")
    });
    row("  it is 6 %", &wrong);
}
