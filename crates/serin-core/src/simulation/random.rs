//! Seeded random numbers.

/// SplitMix64: small, and good enough to draw traffic from.
pub struct Random(u64);

impl Random {
    /// An own sequence for every seed.
    pub fn seeded(seed: u64) -> Self {
        Random(seed.wrapping_mul(0xd134_2543_de82_ef95) ^ 0x5e11_4ca4_a121_0c0d)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// In 0..1.
    pub fn uniform(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Standard normal, by Box and Muller.
    pub fn normal(&mut self) -> f64 {
        let radius = (-2.0 * (1.0 - self.uniform()).ln()).sqrt();
        radius * (std::f64::consts::TAU * self.uniform()).cos()
    }

    /// By inversion; a rounded normal for large means.
    pub fn poisson(&mut self, mean: f64) -> u64 {
        if mean > 40.0 {
            return (mean + mean.sqrt() * self.normal()).round().max(0.0) as u64;
        }
        let (mut at, mut term, mut count) = (self.uniform(), (-mean).exp(), 0);
        while at > term && count < 200 {
            at -= term;
            count += 1;
            term *= mean / count as f64;
        }
        count
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn poisson_counts_have_their_mean_and_variance() {
        let mut random = Random::seeded(0);
        for mean in [0.0, 0.02, 1.3, 39.0, 47.0, 4750.0] {
            let runs = 40_000;
            let draws: Vec<f64> = (0..runs).map(|_| random.poisson(mean) as f64).collect();
            let average = draws.iter().sum::<f64>() / f64::from(runs);
            let variance = draws.iter().map(|draw| (draw - average).powi(2)).sum::<f64>() / f64::from(runs);
            let error = 5.0 * (mean / f64::from(runs)).sqrt();
            assert!((average - mean).abs() <= error, "mean {average} is not {mean}");
            assert!(
                (variance - mean).abs() <= 0.04 * mean + error + 0.1,
                "variance {variance} is not {mean}"
            );
        }
    }
}
