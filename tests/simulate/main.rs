//! The whole of Serin in simulation: the real controller on `serin::local`,
//! with virtual time, people who do as they please, and trouble from a seed. The invariants
//! are checked at every write; in the end everything must come to rest.
//!
//! `make simulate` runs two thousand seeds, `cargo test` two hundred; `make
//! simulate SEED=n` runs one again and tells its history.

mod flow;
mod laws;
mod onlooker;
mod run;
mod scene;
mod seen;
mod world;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use parking_lot::Mutex;

const SEEDS: u64 = 200;

#[test]
fn every_seed_keeps_the_invariants() {
    let number = |name: &str| std::env::var(name).ok().map(|text| text.parse::<u64>().expect("a number"));
    if let Some(seed) = number("SEED") {
        let ran = run::run(seed);
        println!("{}", ran.history);
        assert!(ran.broken.is_none(), "seed {seed}: {}", ran.broken.unwrap_or_default());
        return;
    }
    let (first, count) = (number("FIRST").unwrap_or(0), number("SEEDS").unwrap_or(SEEDS));
    let (next, began) = (AtomicU64::new(first), Instant::now());
    let failed = Mutex::new(BTreeMap::new());
    let tally = Mutex::new(BTreeMap::<String, u64>::new());
    let threads = std::thread::available_parallelism().map_or(2, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= first + count || failed.lock().len() >= 10 {
                        return;
                    }
                    let ran = run::run(seed);
                    for (what, times) in &ran.tally {
                        *tally.lock().entry(what.clone()).or_default() += times;
                    }
                    if let Some(why) = ran.broken {
                        eprintln!("seed {seed}: {why}");
                        failed.lock().insert(seed, (why, ran.history));
                    }
                }
            });
        }
    });
    println!("{count} seeds in {:.1} s", began.elapsed().as_secs_f64());
    for (what, times) in &*tally.lock() {
        println!("{times:>9}  {what}");
    }
    let failed = failed.into_inner();
    if let Some((seed, (why, history))) = failed.first_key_value() {
        println!("{history}");
        let all: Vec<_> = failed.keys().collect();
        panic!("seed {seed}: {why}\nall that failed: {all:?}\nrun one again: make simulate SEED={seed}");
    }
}
