//! Latency, by histograms of ten bounds.

use serin::analysis::Measurement;
use serin::analysis::measurement::{Arms, Histogram};
use serin::analysis::sequential::{Evidence, Sequential, Settings};
use serin::analysis::verdict::JudgeOutcome;
use statrs::distribution::{ContinuousCDF, LogNormal};

use crate::random::{Poisson, Random};
use crate::traffic::{CHECK_INTERVAL, runs};
use crate::{median_and_p90, row, share};

const BOUNDS: [f64; 10] = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0];
const CHECKS: u64 = 60;
const RUNS: usize = 500;

/// How durations are spread: the share of requests within a bound.
type LatencyCdf = fn(f64) -> f64;

/// A median of 50 ms with a long tail.
fn usual_latency(bound: f64) -> f64 {
    LogNormal::new(0.05_f64.ln(), 0.6).unwrap().cdf(bound)
}

fn half_as_slow_again(bound: f64) -> f64 {
    usual_latency(bound / 1.5)
}

fn two_percent_half_a_second_slower(bound: f64) -> f64 {
    0.98 * usual_latency(bound) + 0.02 * usual_latency((bound - 0.5).max(0.0))
}

/// A Poisson count for every bucket.
fn buckets(requests: f64, within: LatencyCdf) -> Vec<(f64, Poisson)> {
    let bounds = BOUNDS.into_iter().chain([f64::INFINITY]);
    let mut below = 0.0;
    let share = |bound: f64| if bound.is_finite() { within(bound) } else { 1.0 };
    bounds
        .map(|bound| {
            let poisson = Poisson::new(requests * (share(bound) - below));
            below = share(bound);
            (bound, poisson)
        })
        .collect()
}

fn draw(buckets: &[(f64, Poisson)], random: &mut Random) -> Histogram {
    let mut count = 0;
    let cumulative = buckets.iter().map(|(bound, poisson)| {
        count += poisson.draw(random);
        (*bound, count)
    });
    Histogram::cumulative(cumulative).unwrap()
}

/// The seconds after which each run was rolled back.
fn rolled_back(rps: f64, canary: LatencyCdf) -> Vec<u64> {
    let judge = Sequential::try_from(Settings::default()).unwrap();
    let requests = rps * CHECK_INTERVAL as f64;
    let (canary, primary) = (buckets(0.05 * requests, canary), buckets(0.95 * requests, usual_latency));
    let found = runs(RUNS, |run| {
        let mut random = Random::seeded(run);
        let mut evidence = Evidence::default();
        (1..=CHECKS).find(|_| {
            let arms = Arms { canary: draw(&canary, &mut random), primary: draw(&primary, &mut random) };
            matches!(judge.outcome(&mut evidence, &Measurement::Histogram(arms)), JudgeOutcome::Fail { .. })
        })
    });
    found.into_iter().flatten().map(|look| look * CHECK_INTERVAL).collect()
}

#[test]
fn slower_latency_is_detected_and_equal_latency_is_not() {
    let traffic = [50.0, 500.0];
    row("latency: rolled back, of 500, and seconds", &traffic.map(|rps| format!("{rps} rps")));
    let healthy = traffic.map(|rps| share(rolled_back(rps, usual_latency).len(), RUNS));
    row("  as fast as the primary", &healthy);
    assert!(healthy.iter().all(|rate| *rate <= 0.01), "{healthy:?}");
    for (name, slow) in [
        ("2 % of requests half a second slower", two_percent_half_a_second_slower as LatencyCdf),
        ("all requests half as slow again", half_as_slow_again),
    ] {
        let found = traffic.map(|rps| {
            let times = rolled_back(rps, slow);
            let found = share(times.len(), RUNS);
            assert!(found > 0.9, "{name} at {rps} rps: found {found}");
            let (median, p90) = median_and_p90(times);
            format!("{found:.2} {median}/{p90} s")
        });
        row(&format!("  {name}"), &found);
    }
}
