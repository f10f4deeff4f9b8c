//! Overdispersion: do bad requests come one by one, or in clumps?
//!
//! A client that retries turns one failure into seven, all on the same arm.
//! Counted one by one they would look like seven times the evidence. So the
//! variance of the primary's bad requests from look to look is compared with
//! the variance by chance alone; evidence is divided by that factor. The primary
//! is used because it has most of the traffic.
//!
//! Only neighbouring looks are compared: a rising baseline, a shared incident
//! or a changed weight moves one pair, not all of them. A pair that is far beyond
//! all before counts for a limited part, so that one incident does not blunt the
//! judge for the rest of a release; and old pairs fade.

use super::compact::{Reader, Writer};
use super::fixed::Fixed;
use crate::analysis::measurement::{Arms, Counts};

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Overdispersion {
    last: Counts,
    /// Sum over pairs of squared jump by expected squared jump, and how many pairs.
    jumps: Fixed,
    pairs: Fixed,
}

/// Pseudo-pairs without a burst, so that a first burst does not dominate.
const PRIOR_PAIRS: f64 = 2.0;
/// A jump counts for at most this many times the usual one.
const MAX_JUMP: f64 = 10.0;
/// A pair counts for about this many looks; then it has faded.
const MEMORY_CHECKS: f64 = 40.0;

/// Pairs of either arm that the recent bursts are estimated from.
const RECENT_CHECKS: f64 = 8.0;
const RECENT_PRIOR_PAIRS: f64 = 4.0;
const MAX_RECENT_JUMP: f64 = 40.0;

/// Bursts of the last minutes, on either arm: those that began in the middle of a
/// release, and those that the canary alone had, are not in the variance of the
/// primary yet. A canary that is steadily bad has none.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct RecentBursts(Arms<Overdispersion>);

impl RecentBursts {
    pub fn update(&mut self, look: Arms<Counts>) {
        for (arm, counts) in [(&mut self.0.canary, look.canary), (&mut self.0.primary, look.primary)] {
            arm.add_pair(counts, MAX_RECENT_JUMP, RECENT_CHECKS);
        }
    }

    pub fn variance_inflation(&self) -> f64 {
        let Arms { canary, primary } = &self.0;
        let sum = |of: fn(&Overdispersion) -> Fixed| of(canary).get() + of(primary).get();
        let (jumps, pairs) = (sum(|arm| arm.jumps), sum(|arm| arm.pairs));
        ((RECENT_PRIOR_PAIRS + jumps) / (RECENT_PRIOR_PAIRS + pairs)).max(1.0)
    }
}

impl RecentBursts {
    pub fn write(&self, writer: &mut Writer) {
        [&self.0.canary, &self.0.primary].into_iter().for_each(|arm| arm.write(writer));
    }

    pub fn read(reader: &mut Reader<'_>) -> Option<Self> {
        Some(RecentBursts(Arms {
            canary: Overdispersion::read(reader)?,
            primary: Overdispersion::read(reader)?,
        }))
    }
}

impl Overdispersion {
    pub fn write(&self, writer: &mut Writer) {
        writer.counts(self.last);
        writer.fixed(self.jumps);
        writer.fixed(self.pairs);
    }

    pub fn read(reader: &mut Reader<'_>) -> Option<Self> {
        Some(Overdispersion { last: reader.counts()?, jumps: reader.fixed()?, pairs: reader.fixed()? })
    }

    /// Variance of the primary's bad counts over that by chance alone; at least one.
    pub fn variance_inflation(&self) -> f64 {
        ((PRIOR_PAIRS + self.jumps.get()) / (PRIOR_PAIRS + self.pairs.get())).max(1.0)
    }

    /// Pairs of looks that it is estimated from; old ones have faded.
    pub fn pairs(&self) -> f64 {
        self.pairs.get()
    }

    pub fn update(&mut self, primary: Counts) {
        self.add_pair(primary, MAX_JUMP * self.variance_inflation(), MEMORY_CHECKS);
    }

    fn add_pair(&mut self, primary: Counts, most: f64, memory: f64) {
        if primary.total() == 0 {
            return;
        }
        if let Some(jump) = jump(self.last, primary) {
            let jump = jump.min(most);
            let fade = 1.0 - 1.0 / memory;
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
    fn one_incident_inflates_the_variance_little() {
        let incident = |i: u64| (if (50..60).contains(&i) { 500 } else { 5 + i % 3 }, 10_000);
        let after = variance_inflation_of((0..65).map(incident));
        assert!(after < 2.0, "{after}");
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
