//! All of Serin in simulation: the real controller on `kube_local` in virtual
//! time, with users and faults drawn from a seed. The invariants are checked at
//! every write; when the faults end, every Canary must settle.
//!
//! `make simulate` runs two thousand seeds, `make simulate SEEDS=200` fewer;
//! `make simulate SEED=n` runs one again and prints its history; `FIRST` and `THREADS`
//! set the first seed and how many run at a time.

#[path = "../support/invariant.rs"]
mod invariant;
#[path = "../world/refusals.rs"]
mod refusal;

mod agenda;
mod checks;
mod connection;
mod dice;
mod lag_clock;
mod letters;
mod manifests;
mod model;
mod perform;
mod receivers;
mod recorder;
mod refusals;
mod run;
mod scenario;
mod specs;
mod standing;
mod traffic;
mod trouble;
mod world;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use invariant::{Coverage, Invariant};
use parking_lot::Mutex;

/// As in the binary, and for the same reason.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const SEEDS: u64 = 300;

#[test]
fn every_seed_keeps_the_invariants() {
    let number = |name: &str| std::env::var(name).ok().map(|text| text.parse::<u64>().expect("a number"));
    if let Some(seed) = number("SEED") {
        let ran = run::run_and_print(seed);
        if let Some(violation) = ran.violation {
            panic!("seed {seed}: {violation}");
        }
        return;
    }
    let (first, count) = (number("FIRST").unwrap_or(0), number("SEEDS").unwrap_or(SEEDS));
    let max_failures = number("FAILURES").unwrap_or(10) as usize;
    let (next, done, began) = (AtomicU64::new(first), AtomicU64::new(0), Instant::now());
    let failed = Mutex::new(BTreeMap::new());
    let tally = Mutex::new(BTreeMap::<String, u64>::new());
    let coverage = Mutex::new(Coverage::default());
    let threads = number("THREADS").map(|threads| threads as usize);
    let threads = threads.unwrap_or_else(|| std::thread::available_parallelism().map_or(2, usize::from));
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= first + count || failed.lock().len() >= max_failures {
                        return;
                    }
                    let ran = run::run(seed);
                    for (what, times) in &ran.counts {
                        *tally.lock().entry(what.clone()).or_default() += times;
                    }
                    coverage.lock().merge(&ran.coverage);
                    if let Some(violation) = ran.violation {
                        println!("seed {seed}: {violation}");
                        failed.lock().insert(seed, (violation, ran.history));
                    }
                    let done = done.fetch_add(1, Ordering::Relaxed) + 1;
                    if done.is_multiple_of(100) {
                        println!("{done} of {count} seeds after {:.0} s", began.elapsed().as_secs_f64());
                    }
                }
            });
        }
    });
    let (tally, coverage) = (tally.into_inner(), coverage.into_inner());
    println!("{count} seeds in {:.1} s", began.elapsed().as_secs_f64());
    for (what, times) in &tally {
        println!("{times:>9}  {what}");
    }
    for (invariant, times) in coverage.iter() {
        println!("{times:>9}  checks of invariant {}", invariant.number());
    }
    let failed = failed.into_inner();
    if let Some((seed, (violation, history))) = failed.first_key_value() {
        println!("{history}");
        let all: Vec<_> = failed.keys().collect();
        let all = format!("{all:?}");
        panic!("seed {seed}: {violation}\nall that failed: {all}\nrun one again: make simulate SEED={seed}");
    }
    // The first hundred seeds suffice to exercise every invariant.
    if first == 0 && count >= 100 {
        coverage.assert_exercised(&Invariant::ALL);
    }
    if first == 0 && count >= SEEDS {
        for (what, least) in MIN_COUNTS {
            let times = tally.get(what).copied().unwrap_or(0);
            assert!(times * SEEDS >= least * count, "{what}: only {times} times in {count} seeds");
        }
    }
}

/// What three hundred seeds must contain at least, so that they prove something.
const MIN_COUNTS: [(&str, u64); 31] = [
    ("promoted", 300),
    ("rolled back", 130),
    ("superseded", 300),
    ("aborted", 25),
    ("killed", 140),
    ("ended", 90),
    ("frozen", 80),
    ("metrics lost", 90),
    ("gate dead", 60),
    ("gate slow", 90),
    ("fault: 409", 500),
    ("fault: 429", 350),
    ("fault: 5xx before the work", 450),
    ("fault: 5xx after the work", 400),
    ("fault: watch dropped", 450),
    ("fault: watch forgotten", 200),
    ("refusal", 55),
    ("refused: 400", 500),
    ("refused: 403", 400),
    ("refused: 422", 150),
    ("companion lost", 13),
    ("template lost", 15),
    ("primary lost", 16),
    ("recreated", 20),
    ("relabelled", 16),
    ("clock stepped", 20),
    ("pushed while Progressing", 250),
    ("pushed while Promoting", 15),
    ("pushed while Finalising", 6),
    ("replicas reverted", 80),
    ("route reverted", 140),
];

#[test]
fn a_seed_replays_exactly() {
    for seed in [3, 8, 21, 45, 161] {
        let [first, again] = [run::run(seed), run::run(seed)].map(|ran| ran.history);
        let differs = first.lines().zip(again.lines()).position(|(a, b)| a != b);
        if let Some(at) = differs {
            let [first, again] = [&first, &again].map(|text| text.lines().nth(at).unwrap_or_default());
            panic!("seed {seed} differs from line {at} on:\n{first}\n{again}");
        }
        assert_eq!(first.len(), again.len(), "seed {seed}");
    }
}
