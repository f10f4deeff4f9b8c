//! What one look costs, in the middle of a release.

use divan::{Bencher, black_box};
use serin::analysis::Measurement;
use serin::analysis::mann_whitney::{self, MannWhitney};
use serin::analysis::measurement::{Arms, Counts, Histogram};
use serin::analysis::sequential::{Evidence, Sequential, Settings};

fn main() {
    divan::main();
}

fn judge() -> Sequential {
    Sequential::try_from(Settings::default()).unwrap()
}

/// A look at so many requests, five percent of them on the canary and half a
/// percent failed.
fn counts(requests: u64) -> Measurement {
    let (canary, primary) = (requests / 20, requests - requests / 20);
    let failed = |requests| Counts::of_bad(requests / 200, requests);
    Measurement::Counts(Arms { canary: failed(canary), primary: failed(primary) })
}

/// The same requests by duration, spread over ten bounds.
fn durations(requests: u64) -> Measurement {
    let bounds = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, f64::INFINITY];
    let within = [10, 50, 200, 500, 800, 950, 990, 996, 998, 999, 1000];
    let arm = |requests: u64| {
        let counts = within.map(|share| requests * share / 1000);
        Histogram::cumulative(bounds.into_iter().zip(counts)).unwrap()
    };
    Measurement::Histogram(Arms { canary: arm(requests / 20), primary: arm(requests - requests / 20) })
}

fn check(bencher: Bencher, seen: Measurement) {
    let judge = judge();
    let mut evidence = Evidence::default();
    judge.check(&mut evidence, &seen);
    bencher
        .with_inputs(|| evidence.clone())
        .bench_values(|mut evidence| judge.check(&mut evidence, black_box(&seen)));
}

#[divan::bench(args = [500, 5_000, 100_000, 1_000_000])]
fn sequential_errors(bencher: Bencher, requests: u64) {
    check(bencher, counts(requests));
}

#[divan::bench(args = [500, 5_000, 100_000, 1_000_000])]
fn sequential_latency(bencher: Bencher, requests: u64) {
    check(bencher, durations(requests));
}

#[divan::bench(args = [60, 1_000, 10_000])]
fn mann_whitney(bencher: Bencher, points: u64) {
    let judge = MannWhitney::try_from(mann_whitney::Settings::default()).unwrap();
    let sample = |offset: u64| (0..points).map(|i| (i * 7919 % 1009 + offset) as f64).collect();
    let seen = Measurement::Samples(Arms { canary: sample(5), primary: sample(0) });
    bencher.bench(|| judge.check(black_box(&seen)));
}
