//! Do bad requests come one by one, or in clumps?
//!
//! A client that retries turns one failure into seven, all on the same arm.
//! Counted one by one they would look like seven times the evidence. So the
//! primary, which carries most of the traffic, is watched for how much its
//! count of bad requests jumps from look to look, compared with how much it
//! would by chance; evidence is divided by that factor.
//!
//! Only neighbouring looks are compared: a rising baseline, a shared incident
//! or a changed weight moves one pair, not all of them. And old pairs fade.

use serde::{Deserialize, Serialize};

use super::fixed::Fixed;
use crate::analysis::measurement::Counts;

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Bursts {
    last: Counts,
    /// Sum over pairs of squared jump by expected squared jump, and how many pairs.
    jumps: Fixed,
    pairs: Fixed,
}

/// Before the first pairs are seen there might be bursts: a little caution,
/// worth so many pairs, keeps the first retry storm from being the last.
const PRIOR_FACTOR: f64 = 3.0;
const PRIOR_PAIRS: f64 = 2.0;
/// A pair counts for about this many looks.
const MEMORY: f64 = 64.0;

impl Bursts {
    /// Variance of the primary's bad counts by what chance alone would give; at least one.
    pub fn factor(&self) -> f64 {
        ((PRIOR_PAIRS * PRIOR_FACTOR + self.jumps.get()) / (PRIOR_PAIRS + self.pairs.get())).max(1.0)
    }

    /// Whether more was seen than is assumed.
    pub fn are_known(&self) -> bool {
        self.pairs.get() > PRIOR_PAIRS
    }

    pub fn watch(&mut self, primary: Counts) {
        if primary.total() == 0 {
            return;
        }
        if let Some(jump) = jump(self.last, primary) {
            let fade = 1.0 - 1.0 / MEMORY;
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
    let (n, bad) = (na + nb, (a.bad() + b.bad()) as f64);
    let variance = bad * (n - bad) * na * nb / (n * n * (n - 1.0));
    let excess = b.bad() as f64 - bad * nb / n;
    (variance > 0.0).then(|| excess * excess / variance)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn watching(counts: impl IntoIterator<Item = (u64, u64)>) -> f64 {
        let mut bursts = Bursts::default();
        counts.into_iter().for_each(|(bad, total)| bursts.watch(Counts::of_bad(bad, total)));
        bursts.factor()
    }

    #[test]
    fn single_failures_are_no_bursts() {
        let sparse = watching((0..400).map(|i| (u64::from(i % 4 == 0), 1000)));
        let steady = watching((0..100).map(|i| (5 + i % 3, 1000)));
        assert!(sparse < 1.1 && steady == 1.0, "{sparse} {steady}");
    }

    #[test]
    fn before_anything_is_known_there_might_be_bursts() {
        assert_eq!(watching([]), PRIOR_FACTOR);
    }

    #[test]
    fn clumps_of_seven_are_seen_for_what_they_are() {
        let factor = watching((0..400).map(|i| (7 * u64::from(i % 5 == 0), 1000)));
        assert!((6.0..7.5).contains(&factor), "{factor}");
    }

    #[test]
    fn a_change_of_traffic_or_baseline_is_no_burst() {
        assert_eq!(watching((0..100).map(|i| if i < 50 { (5, 1000) } else { (50, 10_000) })), 1.0);
        let incident = watching((0..400).map(|i| (if i < 100 { 5 } else { 50 }, 1000)));
        assert_eq!(incident, 1.0);
    }

    #[test]
    fn looks_without_requests_change_nothing() {
        let clumps = |i| (7 * u64::from(i % 5 == 0), 1000);
        let idle = (0..100).flat_map(|i| [clumps(i), (0, 0)]);
        assert_eq!(watching((0..100).map(clumps)), watching(idle));
    }
}
