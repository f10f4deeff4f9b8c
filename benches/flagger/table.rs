//! Both columns, and how they relate.

use std::time::Instant;

use super::phases::{BenchmarkResult, INTERVALS_DURATION};
use super::watcher::ReleaseTimes;

/// Of Serin alone, where nobody is beside it.
pub fn print(count: usize, theirs: Option<&BenchmarkResult>, ours: &BenchmarkResult) {
    println!("\n### {count} canaries\n");
    println!("| | Flagger 1.43 | Serin | Flagger ÷ Serin |\n|---|---|---|---|");
    let row = |what: &str, figure: &dyn Fn(&BenchmarkResult) -> f64, digits: usize, unit: &str| {
        let (theirs, ours) = (theirs.map_or(f64::NAN, figure), figure(ours));
        let shown = |value: f64| match value.is_nan() {
            true => "–".to_owned(),
            false => format!("{value:.digits$}{unit}"),
        };
        let ratio = theirs / ours;
        let ratio = match ratio.is_finite() {
            true => format!("{ratio:.1}"),
            false => "–".to_owned(),
        };
        println!("| {what} | {} | {} | {ratio} |", shown(theirs), shown(ours));
    };
    let each = count as f64;
    row("idle: API requests a minute per canary", &|of| of.idle.count() as f64 / each, 2, "");
    row("idle: share of a core", &|of| of.idle_cpu.as_secs_f64() / 60.0 * 100.0, 2, " %");
    row("idle: memory", &|of| megabytes(of.idle_memory), 1, " MB");
    row("API requests per release", &|of| of.releasing.count() as f64 / each, 1, "");
    row("CPU per release", &|of| of.releasing_cpu.as_secs_f64() * 1e3 / each, 1, " ms");
    row("peak memory", &|of| megabytes(of.peak_memory), 1, " MB");
    for (share, named) in [(0.5, "p50"), (0.99, "p99")] {
        let row = |what: &str, since: TimeOf, until: TimeOf| {
            row(&format!("{what}, {named}"), &|of| quantile(of, since, until, share), 2, " s");
        };
        row("new revision → first weight", |of| of.pushed, |of| of.routed);
        row("canary ready → first weight", |of| of.ready, |of| of.routed);
        row(
            "release beyond its intervals",
            |of| of.pushed.map(|at| at + INTERVALS_DURATION),
            |of| of.succeeded,
        );
    }
    let done =
        |of: &BenchmarkResult| of.release_times.iter().filter(|of| of.succeeded.is_some()).count() as f64;
    row("not done", &|of| each - done(of), 0, &format!(" of {count}"));
    println!();
    let both = theirs.map(|theirs| ("Flagger", theirs)).into_iter().chain([("Serin", ours)]);
    for (name, of) in both {
        println!(
            "{name}: watches and leases apart: {} and {} in the idle minute, {} and {} while releasing.",
            of.idle.watches, of.idle.leases, of.releasing.watches, of.releasing.leases
        );
        for (phase, requests) in [("idle", &of.idle), ("releasing", &of.releasing)] {
            let mut kinds: Vec<_> = requests.by_kind.iter().collect();
            kinds.sort_by_key(|(_, count)| std::cmp::Reverse(**count));
            let told: Vec<_> = kinds
                .iter()
                .take(12)
                .map(|(kind, count)| format!("{kind} {:.2}", **count as f64 / each))
                .collect();
            println!(
                "  {phase}, per canary: {}",
                if told.is_empty() { "nothing".to_owned() } else { told.join(", ") }
            );
        }
    }
    println!();
}

type TimeOf = fn(&ReleaseTimes) -> Option<Instant>;

/// In seconds; a negative time is one that was over before it could begin.
/// Not a number if it did not come to that for so many.
fn quantile(of: &BenchmarkResult, since: TimeOf, until: TimeOf, share: f64) -> f64 {
    let seconds = |moments: &ReleaseTimes| {
        let (since, until) = (since(moments)?, until(moments)?);
        let ahead = since.saturating_duration_since(until);
        Some(until.saturating_duration_since(since).as_secs_f64() - ahead.as_secs_f64())
    };
    // Those that never came to it are the slowest.
    let mut all: Vec<f64> = of.release_times.iter().map(|of| seconds(of).unwrap_or(f64::INFINITY)).collect();
    all.sort_by(f64::total_cmp);
    let at = (all.len().saturating_sub(1) as f64 * share).round() as usize;
    all.get(at).copied().filter(|value| value.is_finite()).unwrap_or(f64::NAN)
}

fn megabytes(bytes: u64) -> f64 {
    bytes as f64 / 1e6
}
