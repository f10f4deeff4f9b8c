//! Overdispersion: do bad requests come one by one, or in clumps?
//!
//! A client that retries turns one failure into seven, all on the same arm.
//! Counted one by one they would look like seven times the evidence. So the
//! variance of the primary's bad requests from look to look is compared with
//! the variance by chance alone; evidence is divided by that factor. The primary
//! is used because it has most of the traffic.
//!
//! Only neighbouring looks are compared: a rising baseline, a shared incident
//! or a changed weight moves one pair, not all of them. And old pairs fade.
//!
//! Until enough pairs are known, there might be bursts. A single look should
//! hardly fail the canary then, since a first retry storm is one look.

use serde::{Deserialize, Serialize};

use super::fixed::Fixed;
use crate::analysis::measurement::Counts;

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Overdispersion {
    last: Counts,
    /// Sum over pairs of squared jump by expected squared jump, and how many pairs.
    jumps: Fixed,
    pairs: Fixed,
}

/// Pseudo-pairs without a burst, so that a first burst does not dominate.
const PRIOR_PAIRS: f64 = 2.0;
/// Pairs after which the damping has halved.
const CAUTION_HALF_LIFE: f64 = 4.0;
/// The log-evidence of a look that counts in full, and the initial divisor of
/// the rest, minus one.
const UNDAMPED_GAIN: f64 = 2.0;
const INITIAL_DAMPING: f64 = 7.0;
/// A pair counts for about this many looks; then it has faded.
const MEMORY_CHECKS: f64 = 64.0;

impl Overdispersion {
    /// Variance of the primary's bad counts over that by chance alone; at least one.
    pub fn variance_inflation(&self) -> f64 {
        ((PRIOR_PAIRS + self.jumps.get()) / (PRIOR_PAIRS + self.pairs.get())).max(1.0)
    }

    /// Damps a single look's gain in log-evidence while few pairs are known: up
    /// to a point all of it counts, beyond that a part. It only ever shrinks the
    /// gain, so the error bound still holds.
    pub fn damp(&self, gain: f64) -> f64 {
        let unknown = CAUTION_HALF_LIFE / (CAUTION_HALF_LIFE + self.pairs.get());
        gain.min(UNDAMPED_GAIN + (gain - UNDAMPED_GAIN) / (1.0 + INITIAL_DAMPING * unknown))
    }

    pub fn update(&mut self, primary: Counts) {
        if primary.total() == 0 {
            return;
        }
        if let Some(jump) = jump(self.last, primary) {
            let fade = 1.0 - 1.0 / MEMORY_CHECKS;
            self.jumps = Fixed::of(self.jumps.get() * fade + jump);
            self.pairs = Fixed::of(self.pairs.get() * fade + 1.0);
        }
        self.last = primary;
    }
}

/// The squared jump between two looks over its variance if the bad requests of
/// both fell on either by chance: one on average, however rates or traffic are.
fn jump(a: Counts, b: Counts) -> Option<f64> {
    let (na, nb) = (a.total() as f64, b.total() as f64);
    let (n, bad) = (na + nb, a.bad() as f64 + b.bad() as f64);
    let variance = bad * (n - bad) * na * nb / (n * n * (n - 1.0));
    let excess = b.bad() as f64 - bad * nb / n;
    (variance > 0.0).then(|| excess * excess / variance)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn variance_inflation_of(counts: impl IntoIterator<Item = (u64, u64)>) -> f64 {
        let mut overdispersion = Overdispersion::default();
        counts.into_iter().for_each(|(bad, total)| overdispersion.update(Counts::of_bad(bad, total)));
        overdispersion.variance_inflation()
    }

    #[test]
    fn single_failures_are_no_bursts() {
        assert_eq!(variance_inflation_of((0..100).map(|i| (u64::from(i % 4 == 0), 1000))), 1.0);
        assert_eq!(variance_inflation_of((0..100).map(|i| (5 + i % 3, 1000))), 1.0);
    }

    #[test]
    fn a_first_check_alone_hardly_fails_and_a_later_one_may() {
        let mut overdispersion = Overdispersion::default();
        assert_eq!([-3.0, 1.5, 10.0].map(|gain| overdispersion.damp(gain)), [-3.0, 1.5, 3.0]);
        (0..400).for_each(|i| overdispersion.update(Counts::of_bad(5 + i % 3, 1000)));
        assert!(overdispersion.damp(10.0) > 7.0);
    }

    #[test]
    fn clumps_of_seven_are_estimated() {
        let factor = variance_inflation_of((0..400).map(|i| (7 * u64::from(i % 5 == 0), 1000)));
        assert!((6.0..7.5).contains(&factor), "{factor}");
    }

    #[test]
    fn a_change_of_traffic_or_baseline_is_no_burst() {
        assert_eq!(
            variance_inflation_of((0..100).map(|i| if i < 50 { (5, 1000) } else { (50, 10_000) })),
            1.0
        );
        let incident = variance_inflation_of((0..400).map(|i| (if i < 100 { 5 } else { 50 }, 1000)));
        assert_eq!(incident, 1.0);
    }

    #[test]
    fn checks_without_requests_change_nothing() {
        let clumps = |i| (7 * u64::from(i % 5 == 0), 1000);
        let idle = (0..100).flat_map(|i| [clumps(i), (0, 0)]);
        assert_eq!(variance_inflation_of((0..100).map(clumps)), variance_inflation_of(idle));
    }
}
