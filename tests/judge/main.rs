//! Error rates of the judges, by Monte Carlo with fixed seeds and a check after
//! every scrape. Each test prints its part of the table.

mod errors;
mod latency;
mod random;
mod split;
mod traffic;

use std::fmt::Display;
use std::io::Write;

/// One line of the table, also where the harness captures what tests print.
fn row(name: &str, cells: &[impl Display]) {
    let cells: Vec<String> = cells.iter().map(|cell| format!("{cell:>24}")).collect();
    let _ = writeln!(std::io::stderr(), "{name:<54}{}", cells.concat());
}

/// A share of runs, as the table shows it.
fn share(part: usize, whole: usize) -> f64 {
    part as f64 / whole as f64
}

/// The middle and the ninth decile of some runs.
fn median_and_p90(mut values: Vec<u64>) -> (u64, u64) {
    assert!(!values.is_empty(), "there is no run to take the middle of");
    values.sort_unstable();
    (values[values.len() / 2], values[values.len() * 9 / 10])
}
