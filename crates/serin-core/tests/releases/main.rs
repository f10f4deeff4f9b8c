//! Whole releases: traffic by second and pod, read through the model of a metric
//! source, and judged by `engine::decide`, which is called when it asks to be, as
//! the controller calls it. Flagger's rule and one like Kayenta's judge the same
//! traffic.
//!
//! `cargo test` plays a small part of the table with fixed seeds. `make judge` prints
//! all of it, with standard errors; `RUNS` sets the releases of each cell, `FIRST` the
//! seed of the first one, and `CELLS` selects rows by a part of their names. Its seeds
//! are not those of `cargo test`, which the judge was tuned on.

extern crate serin_core as serin;

mod peers;
mod table;

use std::{num::NonZero, ops::Range, thread};

/// The results of the runs with these seeds, in order, on all cores.
fn runs<T: Send>(seeds: Range<u64>, run: impl Fn(u64) -> T + Sync) -> Vec<T> {
    let threads = thread::available_parallelism().map_or(1, NonZero::get) as u64;
    let part = (seeds.end - seeds.start).div_ceil(threads);
    thread::scope(|scope| {
        let parts: Vec<_> = (0..threads)
            .map(|i| {
                let run = &run;
                let first = seeds.start + i * part;
                let mine = first..seeds.end.min(first + part);
                scope.spawn(move || mine.map(run).collect::<Vec<T>>())
            })
            .collect();
        parts.into_iter().flat_map(|part| part.join().expect("a run must not panic")).collect()
    })
}

/// The middle and the ninth decile of some runs.
fn median_and_p90(mut values: Vec<u64>) -> (u64, u64) {
    values.sort_unstable();
    let at = |part: usize| values.get((values.len() * part / 10).min(values.len().saturating_sub(1)));
    (at(5).copied().unwrap_or_default(), at(9).copied().unwrap_or_default())
}
