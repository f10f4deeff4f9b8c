//! Fuzzing of everything that a tenant or a tenant's server writes: no panic, and a bounded
//! cost for each input.
//!
//! `cargo test` plays some hundred inputs of a fixed seed. `make fuzz` plays others for
//! `FUZZ_SECONDS` per target and prints the dearest input of each: CPU time of the thread
//! and growth of the process's peak memory. It fails beyond [`MAX_CPU`] and
//! [`MAX_GROWTH`], which are limits of an optimised build, times three.
//!
//! An input is a well-formed one with a few edits: parts removed, repeated, exchanged
//! for words of its format, or for anything.

// Only its encoder is used.
#[allow(dead_code)]
#[path = "../cloudwatch/cbor.rs"]
mod cbor;
mod input;
mod targets;

use std::time::{Duration, Instant};

use proptest::strategy::{Strategy as _, ValueTree as _};
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

use input::Corpus;

const MAX_CPU: Duration = Duration::from_millis(300);

/// In bytes.
const MAX_GROWTH: u64 = 150 << 20;

/// Of `cargo test`.
const FEW: usize = 300;

/// What one input costs.
#[derive(Clone, Copy, Debug, Default, PartialEq, PartialOrd)]
struct Cost {
    cpu: Duration,
    growth: u64,
}

/// Plays inputs: a fixed few, or for as long as `FUZZ_SECONDS` has.
fn fuzz(name: &str, corpus: &Corpus, mut run: impl FnMut(&[u8])) {
    let long = std::env::var("FUZZ_SECONDS").ok().map(|text| text.parse().expect("FUZZ_SECONDS is a number"));
    let limit = long.map(Duration::from_secs);
    let seed = match limit {
        Some(_) => fastrand::u64(..),
        None => 1,
    };
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
    let mut runner = TestRunner::new_with_rng(Config::default(), rng);
    let strategy = corpus.inputs();
    let began = Instant::now();
    let (mut played, mut dearest, mut largest) = (0_usize, (Cost::default(), Vec::new()), Cost::default());
    while limit.map_or(played < FEW, |limit| began.elapsed() < limit) {
        let input = strategy.new_tree(&mut runner).expect("an input").current();
        let cost = match limit {
            Some(_) => measured(|| run(&input)),
            None => {
                run(&input);
                Cost::default()
            }
        };
        played += 1;
        if cost.cpu > dearest.0.cpu {
            dearest = (cost, input.clone());
        }
        if cost.growth > largest.growth {
            largest = cost;
        }
        assert!(
            cost.cpu < MAX_CPU && cost.growth < MAX_GROWTH,
            "{name}, seed {seed}: {cost:?} by {}",
            shown(&input)
        );
    }
    if limit.is_some() {
        let (cost, input) = dearest;
        println!(
            "{name}: {played} inputs; at most {:.1} ms of CPU by {} bytes, and {} MB; the dearest: {}",
            cost.cpu.as_secs_f64() * 1e3,
            input.len(),
            largest.growth >> 20,
            shown(&input)
        );
    }
}

fn shown(input: &[u8]) -> String {
    let text = String::from_utf8_lossy(input);
    text.chars().take(200).collect::<String>().escape_debug().to_string()
}

/// By the kernel's count of this thread and of the process's peak memory.
fn measured(run: impl FnOnce()) -> Cost {
    let cpu = || {
        let stat = std::fs::read_to_string("/proc/thread-self/schedstat").expect("Linux");
        Duration::from_nanos(
            stat.split(' ').next().and_then(|nanos| nanos.parse().ok()).expect("nanoseconds"),
        )
    };
    let memory = |field: &str| {
        let status = std::fs::read_to_string("/proc/self/status").expect("Linux");
        let line = status.lines().find_map(|line| line.strip_prefix(field)).expect("a field");
        let kib: u64 = line.trim().trim_end_matches(" kB").parse().expect("a number");
        kib << 10
    };
    // Resets the peak.
    std::fs::write("/proc/self/clear_refs", "5").expect("a process may reset its own peak");
    let (before, began) = (memory("VmRSS:"), cpu());
    run();
    Cost { cpu: cpu() - began, growth: memory("VmHWM:").saturating_sub(before) }
}
