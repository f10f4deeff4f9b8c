//! The two-by-two contingency table of one look, and its likelihood.
//!
//! A look has `events` (errors, slow requests) among `canary + primary`
//! requests. Given that many events, how many of them fall on the canary
//! follows Fisher's noncentral hypergeometric law: its weights are
//!
//! ```text
//! r(u) ψ^u,   r(u+1) / r(u) = (canary − u)(events − u) / ((u + 1)(primary − events + u + 1))
//! ```
//!
//! where ψ is the odds ratio of the two arms. Neither the split between the
//! arms nor the error rate both share appears in it: whatever they are and
//! however they move, the law is the same. That is why every judgement of the
//! sequential judge starts here.

/// An odds ratio, with its log at hand.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct OddsRatio {
    ratio: f64,
    log: f64,
}

impl OddsRatio {
    pub fn new(ratio: f64) -> Self {
        OddsRatio { ratio, log: ratio.ln() }
    }

    pub fn ratio(&self) -> f64 {
        self.ratio
    }

    pub fn log(&self) -> f64 {
        self.log
    }
}

/// One look: how many requests each arm had, and how many events both had together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ContingencyTable {
    pub canary: u64,
    pub primary: u64,
    pub events: u64,
}

impl ContingencyTable {
    /// Whether the look is evidence at all: with an idle arm, no event, or
    /// nothing but events there is only one way to fill the table.
    pub fn is_informative(&self) -> bool {
        self.min_on_canary() < self.max_on_canary()
    }

    /// For every odds ratio, the log-likelihood that `on_canary` of the events
    /// fell on the canary, up to a constant that all odds ratios share.
    ///
    /// The weights are summed as a nested product, from the far end inwards:
    /// 1 + ψ r₁ (1 + ψ r₂ (1 + …)), r being the ratios above. That needs one
    /// division for all odds ratios together and no logarithm until the end;
    /// sums that grow out of a float's range are scaled down on the way.
    pub fn log_likelihood<const N: usize>(&self, on_canary: u64, odds: &[OddsRatio; N]) -> [f64; N] {
        let mut sum = [1.0; N];
        let mut one = [1.0; N];
        let mut scaled = [0.0; N];
        #[cfg(test)]
        FILLINGS.set(FILLINGS.get() + self.max_on_canary() - self.min_on_canary());
        for u in (self.min_on_canary()..self.max_on_canary()).rev() {
            let ratio = self.ratio(u);
            for i in 0..N {
                sum[i] = one[i] + odds[i].ratio * ratio * sum[i];
            }
            if u % RESCALE_EVERY == 0 {
                for i in 0..N {
                    if sum[i] > RESCALE_ABOVE {
                        sum[i] /= RESCALE_ABOVE;
                        one[i] /= RESCALE_ABOVE;
                        scaled[i] += 1.0;
                    }
                }
            }
        }
        let beyond = (on_canary - self.min_on_canary()) as f64;
        std::array::from_fn(|i| beyond * odds[i].log - sum[i].ln() - scaled[i] * RESCALE_ABOVE.ln())
    }

    /// r(u + 1) / r(u)
    fn ratio(&self, u: u64) -> f64 {
        let free = (self.primary + u + 1 - self.events) as f64;
        (self.canary - u) as f64 * (self.events - u) as f64 / ((u + 1) as f64 * free)
    }

    fn min_on_canary(&self) -> u64 {
        self.events.saturating_sub(self.primary)
    }

    fn max_on_canary(&self) -> u64 {
        self.events.min(self.canary)
    }
}

/// Sums above this are scaled down, at the latest after so many steps: far
/// enough from overflow for any ratio that counts of requests can give.
const RESCALE_ABOVE: f64 = 1e100;
const RESCALE_EVERY: u64 = 8;

#[cfg(test)]
thread_local! {
    /// Fillings that this thread has summed: the work of a judge.
    pub(super) static FILLINGS: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use statrs::function::factorial::ln_binomial;

    const RATIOS: [f64; 5] = [0.08, 0.7, 1.0, 1.5, 45.0];

    fn log_likelihood(table: ContingencyTable, on_canary: u64) -> [f64; 5] {
        table.log_likelihood(on_canary, &RATIOS.map(OddsRatio::new))
    }

    /// The definition, term by term, with exact binomial coefficients.
    fn by_definition(table: ContingencyTable, on_canary: u64, psi: f64) -> f64 {
        let weight = |u| (choose(table.canary, u) * choose(table.primary, table.events - u)) as f64;
        let sum: f64 =
            (table.min_on_canary()..=table.max_on_canary()).map(|u| weight(u) * psi.powi(u as i32)).sum();
        (psi.powi(on_canary as i32) / sum).ln()
    }

    fn choose(n: u64, k: u64) -> u128 {
        (0..k as u128).fold(1, |c, i| c * (n as u128 - i) / (i + 1))
    }

    fn small_table() -> impl Strategy<Value = (ContingencyTable, u64)> {
        (1..40u64, 1..40u64)
            .prop_flat_map(|(canary, primary)| {
                (0..=canary + primary).prop_map(move |events| ContingencyTable { canary, primary, events })
            })
            .prop_flat_map(|table| (Just(table), table.min_on_canary()..=table.max_on_canary()))
    }

    #[track_caller]
    fn close(a: f64, b: f64, tolerance: f64) {
        assert!((a - b).abs() <= tolerance * (1.0 + a.abs()), "{a} is not {b}");
    }

    proptest! {
        #[test]
        fn differences_equal_the_definition((table, on_canary) in small_table()) {
            let ours = log_likelihood(table, on_canary);
            let base = by_definition(table, on_canary, 1.0);
            for (psi, log) in RATIOS.into_iter().zip(ours) {
                close(log - ours[2], by_definition(table, on_canary, psi) - base, 1e-12);
            }
        }

        #[test]
        fn every_filling_together_has_probability_one((table, _) in small_table()) {
            let ways = |u| (choose(table.canary, u) * choose(table.primary, table.events - u)) as f64;
            let mut total = [0.0; RATIOS.len()];
            for on_canary in table.min_on_canary()..=table.max_on_canary() {
                for (sum, log) in total.iter_mut().zip(log_likelihood(table, on_canary)) {
                    *sum += ways(on_canary) / ways(table.min_on_canary()) * log.exp();
                }
            }
            total.into_iter().for_each(|sum| close(sum, 1.0, 1e-12));
        }
    }

    #[test]
    fn a_million_requests_and_thousands_of_events_keep_every_digit_that_matters() {
        for (canary, primary, events) in [
            (50_000, 950_000, 5_000),
            (500_000, 500_000, 30_000),
            (50_000, 950_000, 500_000),
            (10, 999_990, 400_000),
        ] {
            let table = ContingencyTable { canary, primary, events };
            let on_canary = canary * events / (canary + primary);
            let log_weight = |u: u64| ln_binomial(canary, u) + ln_binomial(primary, events - u);
            let ours = log_likelihood(table, on_canary);
            let direct = RATIOS.map(f64::ln).map(|log_psi| {
                let terms = (table.min_on_canary()..=table.max_on_canary())
                    .map(|u| log_weight(u) + u as f64 * log_psi);
                let largest = terms.clone().fold(f64::MIN, f64::max);
                on_canary as f64 * log_psi - largest - terms.map(|t| (t - largest).exp()).sum::<f64>().ln()
            });
            for i in 0..RATIOS.len() {
                // ln Γ of a million keeps about nine digits; that is the oracle's limit, not ours.
                close(ours[i] - ours[2], direct[i] - direct[2], 1e-8);
            }
        }
    }

    #[test]
    fn a_table_with_one_filling_is_uninformative() {
        for (canary, primary, events) in [(0, 9, 3), (9, 0, 3), (9, 9, 0), (9, 9, 18), (0, 0, 0)] {
            let table = ContingencyTable { canary, primary, events };
            assert!(!table.is_informative());
            let ours = log_likelihood(table, table.min_on_canary());
            assert!(ours.iter().all(|&log| log == 0.0), "{ours:?}");
        }
    }
}
