//! Two samples by rank: how often one is above the other, and by how much it
//! would have to be shifted for that to even out.
//!
//! Both samples are sorted once; every statistic after that is one pass over
//! them. Shifts are found by bisection, since the statistic only decreases as
//! the canary is shifted down: n log n in all, with nothing of size n².

use super::mann_whitney::sorted;

/// The sorted samples.
pub(crate) struct Ranks {
    canary: Vec<f64>,
    primary: Vec<f64>,
}

/// The pairs of one shift.
struct Pairs {
    /// Pairs with canary above primary, a tie as half of one, minus half of all.
    excess: f64,
    /// Standard deviation of the excess by chance alone.
    deviation: f64,
}

impl Ranks {
    /// Neither sample may be empty, nor hold anything but finite numbers.
    pub fn new(canary: &[f64], primary: &[f64]) -> Self {
        Ranks { canary: sorted(canary), primary: sorted(primary) }
    }

    /// Hodges and Lehmann: the median difference of all pairs.
    pub fn shift(&self) -> f64 {
        let low = self.last_shift(|pairs| pairs.excess > 0.0);
        let high = self.last_shift(|pairs| pairs.excess >= 0.0);
        low + (high - low) / 2.0
    }

    /// The shifts that a two-sided test at ±`z` does not reject.
    pub fn interval(&self, z: f64) -> (f64, f64) {
        (self.last_shift(|pairs| pairs.z() > z), self.last_shift(|pairs| pairs.z() >= -z))
    }

    /// The chance that a point of the canary is above one of the primary.
    pub fn chance_above(&self) -> f64 {
        0.5 + self.shifted_by(0.0).excess / (self.canary.len() * self.primary.len()) as f64
    }

    /// The largest shift for which a property holds that larger shifts do not
    /// have, by bisection within the range of differences.
    fn last_shift(&self, holds: impl Fn(&Pairs) -> bool) -> f64 {
        let mut low = self.canary[0] - self.primary[self.primary.len() - 1];
        let mut high = self.canary[self.canary.len() - 1] - self.primary[0];
        if !holds(&self.shifted_by(low)) {
            return low;
        }
        if holds(&self.shifted_by(high)) {
            return high;
        }
        for _ in 0..f64::MANTISSA_DIGITS {
            let middle = low + (high - low) / 2.0;
            if holds(&self.shifted_by(middle)) { low = middle } else { high = middle }
        }
        high
    }

    fn shifted_by(&self, shift: f64) -> Pairs {
        let (n, m) = (self.canary.len() as f64, self.primary.len() as f64);
        let all = n + m;
        let mut canary = self.canary.iter().map(|point| point - shift).peekable();
        let mut primary = self.primary.iter().copied().peekable();
        let (mut above, mut passed, mut tied) = (0.0, 0.0, 0.0);
        loop {
            let value = match (canary.peek(), primary.peek()) {
                (Some(&a), Some(&b)) => a.min(b),
                (Some(&a), None) => a,
                (None, Some(&b)) => b,
                (None, None) => break,
            };
            let mut equal = Tied::default();
            while canary.next_if_eq(&value).is_some() {
                equal.canary += 1.0;
            }
            while primary.next_if_eq(&value).is_some() {
                equal.primary += 1.0;
            }
            above += equal.canary * (passed + equal.primary / 2.0);
            passed += equal.primary;
            let ties = equal.canary + equal.primary;
            tied += ties * (ties * ties - 1.0);
        }
        let variance = n * m / 12.0 * (all + 1.0 - tied / (all * (all - 1.0)));
        Pairs { excess: above - n * m / 2.0, deviation: variance.max(0.0).sqrt() }
    }
}

#[derive(Default)]
struct Tied {
    canary: f64,
    primary: f64,
}

impl Pairs {
    /// In standard deviations, half a pair nearer to none for continuity.
    /// Where all points are tied there is no excess, and no deviation either.
    fn z(&self) -> f64 {
        if self.excess == 0.0 {
            return 0.0;
        }
        (self.excess - 0.5 * self.excess.signum()) / self.deviation
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use statrs::distribution::{ContinuousCDF, Normal};
    use statrs::stats_tests::Alternative;
    use statrs::stats_tests::mannwhitneyu::{MannWhitneyUMethod, mannwhitneyu};

    /// Coarse values, so that ties are many.
    fn sample() -> impl Strategy<Value = Vec<f64>> {
        prop::collection::vec((0..30i32).prop_map(|v| f64::from(v) / 4.0), 2..25)
    }

    fn differences(canary: &[f64], primary: &[f64]) -> Vec<f64> {
        let all: Vec<f64> = canary.iter().flat_map(|a| primary.iter().map(move |b| a - b)).collect();
        sorted(&all)
    }

    /// z from the definition: every pair, every tie, one by one.
    fn naive_z(canary: &[f64], primary: &[f64], shift: f64) -> f64 {
        let excess: f64 = differences(canary, primary)
            .iter()
            .map(|d| {
                if *d > shift {
                    0.5
                } else if *d < shift {
                    -0.5
                } else {
                    0.0
                }
            })
            .sum();
        let pool: Vec<f64> = canary.iter().map(|a| a - shift).chain(primary.iter().copied()).collect();
        let (n, m, all) = (canary.len() as f64, primary.len() as f64, pool.len() as f64);
        // Each point counts its group's t² − 1, so a group adds t³ − t.
        let ties: f64 =
            pool.iter().map(|a| pool.iter().filter(|b| *b == a).count() as f64).map(|t| t * t - 1.0).sum();
        let variance = n * m / 12.0 * (all + 1.0 - ties / (all * (all - 1.0)));
        if excess == 0.0 { 0.0 } else { (excess - 0.5 * excess.signum()) / variance.sqrt() }
    }

    proptest! {
        #[test]
        fn the_p_value_is_that_of_statrs(canary in sample(), primary in sample()) {
            let z = Ranks::new(&canary, &primary).shifted_by(0.0).z();
            prop_assume!(z != 0.0);
            let ours = 2.0 * Normal::standard().cdf(-z.abs());
            let method = MannWhitneyUMethod::AsymptoticInclContinuityCorrection;
            let (_, theirs) = mannwhitneyu(&canary, &primary, method, Alternative::TwoSided).unwrap();
            prop_assert!((ours - theirs).abs() < 1e-9, "{} is not {}", ours, theirs);
        }

        #[test]
        fn the_shift_is_the_median_difference(canary in sample(), primary in sample()) {
            let all = differences(&canary, &primary);
            let median = (all[(all.len() - 1) / 2] + all[all.len() / 2]) / 2.0;
            let shift = Ranks::new(&canary, &primary).shift();
            prop_assert!((shift - median).abs() < 1e-9, "{} is not {}", shift, median);
        }

        #[test]
        fn the_interval_ends_where_the_test_begins_to_reject(canary in sample(), primary in sample()) {
            let z = 2.326;
            let mut all = differences(&canary, &primary);
            all.dedup();
            let (low, high) = Ranks::new(&canary, &primary).interval(z);
            let between = |pair: &[f64]| (pair[0] + pair[1]) / 2.0;
            for shift in all.windows(2).map(between).chain(all.iter().copied()) {
                let rejected = naive_z(&canary, &primary, shift).abs() > z;
                if shift < low - 1e-9 || shift > high + 1e-9 {
                    prop_assert!(rejected, "{} outside {}..{}", shift, low, high);
                } else if shift > low + 1e-9 && shift < high - 1e-9 {
                    prop_assert!(!rejected, "{} inside {}..{}", shift, low, high);
                }
            }
        }

        #[test]
        fn the_chance_is_that_of_all_pairs(canary in sample(), primary in sample()) {
            let all = differences(&canary, &primary);
            let above: f64 = all.iter().map(|d| if *d > 0.0 { 1.0 } else if *d == 0.0 { 0.5 } else { 0.0 }).sum();
            let chance = Ranks::new(&canary, &primary).chance_above();
            prop_assert!((chance - above / all.len() as f64).abs() < 1e-12);
        }
    }

    #[test]
    fn twenty_thousand_points_take_no_quadratic_time() {
        let points: Vec<f64> = (0..20_000).map(|i| f64::from(i % 9973)).collect();
        let shifted: Vec<f64> = points.iter().map(|point| point + 250.0).collect();
        let shift = Ranks::new(&shifted, &points).shift();
        assert!((shift - 250.0).abs() < 1e-6, "{shift}");
    }
}
