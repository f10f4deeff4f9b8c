//! An interval around a share of requests that holds at every look at once.
//!
//! The mixture martingale of Robbins with a Beta(1/2, 1/2) prior: over all looks of a
//! release together, the true share leaves its interval with a probability of at most
//! `alpha` (Ville's inequality), if requests fail independently. For people who watch a
//! release; the judge has its own evidence.

use std::f64::consts::PI;

use statrs::function::gamma::ln_gamma;

use super::measurement::Counts;

/// Halvings: the bounds are exact to 1e-9.
const HALVINGS: u32 = 30;

/// Lower and upper bound of the share of bad requests, with all requests of the release so
/// far. Without requests everything is possible.
pub fn anytime_valid(counts: Counts, alpha: f64) -> (f64, f64) {
    let (bad, total) = (counts.bad() as f64, counts.total() as f64);
    if counts.total() == 0 {
        return (0.0, 1.0);
    }
    let good = total - bad;
    let half_beta = |a: f64, b: f64| ln_gamma(a + 0.5) + ln_gamma(b + 0.5) - ln_gamma(a + b + 1.0);
    // B(1/2, 1/2) is π.
    let mixture = half_beta(bad, good) - PI.ln();
    let term = |count: f64, share: f64| if count > 0.0 { count * share.ln() } else { 0.0 };
    let is_possible = |share: f64| mixture - term(bad, share) - term(good, 1.0 - share) <= -alpha.ln();
    let observed = bad / total;
    let bound = |mut outside: f64| {
        let mut inside = observed;
        if is_possible(outside) {
            return outside;
        }
        for _ in 0..HALVINGS {
            let middle = f64::midpoint(inside, outside);
            match is_possible(middle) {
                true => inside = middle,
                false => outside = middle,
            }
        }
        outside
    };
    (bound(0.0), bound(1.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interval_contains_what_was_observed_and_narrows() {
        let width = |bad, total| {
            let (low, high) = anytime_valid(Counts::of_bad(bad, total), 0.05);
            let observed = bad as f64 / total as f64;
            assert!((0.0..=observed).contains(&low) && (observed..=1.0).contains(&high), "{low} {high}");
            high - low
        };
        assert!(width(1, 10) > 0.4);
        assert!(width(10, 100) > width(100, 1_000) && width(100, 1_000) > width(10_000, 100_000));
        assert_eq!(anytime_valid(Counts::of_bad(0, 50), 0.05).0, 0.0);
        assert_eq!(anytime_valid(Counts::of_bad(50, 50), 0.05).1, 1.0);
        assert_eq!(anytime_valid(Counts::default(), 0.05), (0.0, 1.0));
    }

    /// With intervals for one look, a fifth of these histories left theirs.
    #[test]
    fn looking_after_every_request_keeps_the_promise() {
        let (mut seed, mut missed) = (42_u64, 0);
        let mut random = || {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (seed >> 11) as f64 / (1_u64 << 53) as f64
        };
        for _ in 0..300 {
            let mut bad = 0;
            let left = (1..=300_u64).any(|total| {
                bad += u64::from(random() < 0.1);
                let (low, high) = anytime_valid(Counts::of_bad(bad, total), 0.05);
                !(low..=high).contains(&0.1)
            });
            missed += u32::from(left);
        }
        assert!(missed <= 15, "{missed} of 300");
    }
}
