//! Seeded random numbers, fast also without optimisation.

/// SplitMix64: small, and good enough to draw traffic from.
pub struct Random(u64);

impl Random {
    /// An own sequence for every run.
    pub fn seeded(run: u64) -> Self {
        Random(run.wrapping_mul(0xd134_2543_de82_ef95) ^ 0x5e11_4ca4_a121_0c0d)
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

/// Poisson counts by inversion of a table made once.
pub struct Poisson {
    first: u64,
    /// P(count ≤ first + i), scaled to 64 bits.
    cumulative: Vec<u64>,
}

impl Poisson {
    pub fn new(mean: f64) -> Self {
        let reach = 9.0 * mean.sqrt() + 20.0;
        let first = (mean - reach).max(0.0).floor() as u64;
        let last = (mean + reach).ceil() as u64;
        let log_first: f64 = (1..=first).map(|k| (mean / k as f64).ln()).sum::<f64>() - mean;
        let mut log_p = if mean > 0.0 { log_first } else { 0.0 };
        let mut below = 0.0;
        let cumulative = (first..=last)
            .map(|k| {
                below += log_p.exp();
                log_p += (mean / (k + 1) as f64).ln();
                (below * u64::MAX as f64) as u64
            })
            .collect();
        Poisson { first, cumulative }
    }

    pub fn draw(&self, random: &mut Random) -> u64 {
        let at = random.next();
        self.first + self.cumulative.partition_point(|&below| below < at) as u64
    }
}

#[test]
fn poisson_counts_have_their_mean_and_variance() {
    let mut random = Random::seeded(0);
    for mean in [0.0, 0.02, 1.3, 47.0, 4750.0] {
        let poisson = Poisson::new(mean);
        let runs = 40_000;
        let draws: Vec<f64> = (0..runs).map(|_| poisson.draw(&mut random) as f64).collect();
        let average = draws.iter().sum::<f64>() / f64::from(runs);
        let variance = draws.iter().map(|draw| (draw - average).powi(2)).sum::<f64>() / f64::from(runs);
        let error = 5.0 * (mean / f64::from(runs)).sqrt();
        assert!((average - mean).abs() <= error, "mean {average} is not {mean}");
        assert!((variance - mean).abs() <= 0.04 * mean + error, "variance {variance} is not {mean}");
    }
}
