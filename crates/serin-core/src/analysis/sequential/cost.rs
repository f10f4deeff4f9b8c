//! The work of one check is bounded, whatever counts a source reports: engine and judge
//! run on the controller's only thread. Counted in fillings of tables, not in seconds.

use proptest::prelude::*;

use super::*;
use crate::analysis::contingency_table::FILLINGS;
use crate::analysis::measurement::PodHistograms;

/// Of the arms' tables and of the pods' together.
const MOST: u64 = 2_000_000;

/// Fillings summed for each of these looks.
fn work_of(looks: impl IntoIterator<Item = Measurement>) -> Vec<u64> {
    let judge = Sequential::try_from(Settings::default()).expect("settings");
    let mut evidence = Evidence::default();
    let work = |look| {
        let before = FILLINGS.get();
        judge.check(&mut evidence, &look);
        FILLINGS.get() - before
    };
    looks.into_iter().map(work).collect()
}

/// Pods whose histograms have so many bounds, half of the requests beyond the middle one.
fn pods(arm: &str, number: usize, bounds: u64, requests: u64) -> PodHistograms {
    let of_each = || {
        let buckets = (1..=bounds).map(|bound| (bound, requests / (bounds + 1) * bound)).collect();
        Histogram::of_buckets(buckets, requests)
    };
    (0..number).map(|pod| (format!("{arm}-{pod}"), of_each())).collect()
}

fn histograms(number: usize, bounds: u64, requests: u64) -> Measurement {
    let arm = |arm| pods(arm, number, bounds, requests);
    Measurement::PodHistograms(Arms { canary: arm("canary"), primary: arm("primary") })
}

#[test]
fn a_hundred_bounds_of_thirty_pods_cost_no_more_than_a_few() {
    for (requests, least) in [(1_000_000, 900_000), (1 << 40, 900_000), (u64::MAX, 0)] {
        let work = work_of(vec![histograms(30, 100, requests); 3]);
        assert!(work.iter().all(|work| (least..=MOST).contains(work)), "{requests}: {work:?}");
    }
}

/// Four thousand requests a second to the canary for ten seconds, in two dozen bounds.
#[test]
fn tables_of_ordinary_traffic_are_whole() {
    let slow = |bound: u64| 2 * 1_600 * bound.min(25 - bound);
    let whole: u64 = (1..=24).map(slow).sum();
    assert_eq!(work_of([histograms(1, 24, 40_000).summed()]), [whole]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]

    #[test]
    fn any_counts_cost_little(
        looks in prop::collection::vec((any::<u64>(), any::<u64>(), any::<u64>(), any::<u64>()), 1..4),
        pods in 1..40_u64,
    ) {
        let looks = looks.into_iter().map(|(bad, total, primary_bad, primary_total)| {
            let arm = |arm: &str, bad: u64, total: u64| {
                (0..pods).map(|pod| (format!("{arm}-{pod}"), Counts::of_bad(bad / pods, total / pods))).collect()
            };
            let arms = Arms { canary: arm("canary", bad, total), primary: arm("primary", primary_bad, primary_total) };
            Measurement::PodCounts(arms)
        });
        let work = work_of(looks);
        prop_assert!(work.iter().all(|work| *work <= MOST), "{work:?}");
    }
}
