//! Releases to judge: requests of both arms, check by check.

use std::num::NonZero;
use std::thread;

use serin::analysis::measurement::{Arms, Counts};

use crate::random::{Poisson, Random};

/// Seconds between two checks.
pub const CHECK_INTERVAL: u64 = 10;

/// A stretch of a release during which nothing changes.
#[derive(Clone, Copy)]
pub struct TrafficPhase {
    pub checks: u32,
    /// Requests a second, both arms together.
    pub rps: f64,
    /// The canary's share of them.
    pub weight: f64,
    pub errors: Arms<f64>,
    /// Failures that come together.
    pub clump: u64,
}

impl TrafficPhase {
    /// Ten minutes with five percent of the traffic on a canary as healthy as the primary.
    pub fn healthy(rps: f64, errors: f64) -> Self {
        TrafficPhase {
            checks: 60,
            rps,
            weight: 0.05,
            errors: Arms { canary: errors, primary: errors },
            clump: 1,
        }
    }

    pub fn canary_errors(self, canary: f64) -> Self {
        TrafficPhase { errors: Arms { canary, ..self.errors }, ..self }
    }

    pub fn weight(self, weight: f64) -> Self {
        TrafficPhase { weight, ..self }
    }

    pub fn checks(self, looks: u32) -> Self {
        TrafficPhase { checks: looks, ..self }
    }

    pub fn clumps_of(self, clump: u64) -> Self {
        TrafficPhase { clump, ..self }
    }
}

pub struct Release(Vec<(u32, Arms<Arm>)>);

struct Arm {
    good: Poisson,
    clumps: Poisson,
    clump: u64,
}

impl Arm {
    fn new(requests: f64, errors: f64, clump: u64) -> Self {
        let clumps = Poisson::new(requests * errors / clump as f64);
        Arm { good: Poisson::new(requests * (1.0 - errors)), clumps, clump }
    }

    fn draw(&self, random: &mut Random) -> Counts {
        let bad = self.clump * self.clumps.draw(random);
        Counts::of_bad(bad, bad + self.good.draw(random))
    }
}

impl Release {
    pub fn new(stretches: &[TrafficPhase]) -> Self {
        let stretches = stretches.iter().map(|s| {
            let requests = s.rps * CHECK_INTERVAL as f64;
            let canary = Arm::new(requests * s.weight, s.errors.canary, s.clump);
            let primary = Arm::new(requests * (1.0 - s.weight), s.errors.primary, s.clump);
            (s.checks, Arms { canary, primary })
        });
        Release(stretches.collect())
    }

    /// The measurements of one run of this release, check by check.
    pub fn checks(&self, run: u64) -> impl Iterator<Item = Arms<Counts>> {
        let mut random = Random::seeded(run);
        let arms = self.0.iter().flat_map(|(looks, arms)| (0..*looks).map(move |_| arms));
        arms.map(move |arms| Arms {
            canary: arms.canary.draw(&mut random),
            primary: arms.primary.draw(&mut random),
        })
    }
}

/// The results of many runs, in order, on all cores.
pub fn runs<T: Send>(count: usize, run: impl Fn(u64) -> T + Sync) -> Vec<T> {
    let threads = thread::available_parallelism().map_or(1, NonZero::get);
    let part = count.div_ceil(threads);
    thread::scope(|scope| {
        let parts: Vec<_> = (0..threads)
            .map(|i| {
                let run = &run;
                let mine = i * part..count.min((i + 1) * part);
                scope.spawn(move || mine.map(|i| run(i as u64)).collect::<Vec<T>>())
            })
            .collect();
        parts.into_iter().flat_map(|part| part.join().expect("a run must not panic")).collect()
    })
}
