//! Draws from a seed.

use std::time::Duration;

use kube_local::seeded_rng::SeededRng;

pub struct Dice(SeededRng);

impl Dice {
    pub fn of(seed: u64) -> Self {
        Self(SeededRng::seeded(seed.wrapping_mul(0x2545_F491_4F6C_DD1D) ^ 0x5EED))
    }

    /// Draws of their own: a letter that is switched off changes no other.
    pub fn of_letter(seed: u64, letter: u64) -> Self {
        Self::of(seed.wrapping_mul(64).wrapping_add(letter) ^ 0x71A0_B1E5)
    }

    pub fn below(&self, limit: u64) -> u64 {
        self.0.next_u64() % limit.max(1)
    }

    pub fn happens(&self, p: f64) -> bool {
        self.0.random_bool(p)
    }

    pub fn pick<T: Clone>(&self, from: &[T]) -> T {
        from[self.below(from.len() as u64) as usize].clone()
    }

    /// Whole milliseconds between the two.
    pub fn time(&self, from: f64, to: f64) -> Duration {
        let (from, to) = ((from * 1e3) as u64, (to * 1e3) as u64);
        Duration::from_millis(from + self.below(to - from))
    }
}
