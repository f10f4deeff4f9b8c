//! Random numbers from a seed, so that a run can be replayed.

use std::sync::atomic::{AtomicU64, Ordering};

/// SplitMix64 on an atomic counter: no lock, any number of threads, and the
/// same sequence from the same seed.
pub struct SeededRng(AtomicU64);

impl SeededRng {
    pub fn seeded(seed: u64) -> SeededRng {
        SeededRng(AtomicU64::new(seed))
    }

    pub fn next_u64(&self) -> u64 {
        const STEP: u64 = 0x9E37_79B9_7F4A_7C15;
        let mut z = self.0.fetch_add(STEP, Ordering::Relaxed).wrapping_add(STEP);
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// True with probability `p`.
    pub fn random_bool(&self, p: f64) -> bool {
        p > 0.0 && ((self.next_u64() >> 11) as f64) < p * (1u64 << 53) as f64
    }

    /// A version 4 UUID.
    pub fn uid(&self) -> String {
        let (hi, lo) = (self.next_u64(), self.next_u64());
        format!(
            "{:08x}-{:04x}-4{:03x}-{:04x}-{:012x}",
            hi >> 32,
            (hi >> 16) & 0xffff,
            hi & 0xfff,
            (lo >> 48) & 0x3fff | 0x8000,
            lo & 0xffff_ffff_ffff
        )
    }

    /// The suffix for `generateName`: no vowels, so no words.
    pub fn suffix(&self) -> String {
        const LETTERS: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
        let mut bits = self.next_u64();
        (0..5)
            .map(|_| {
                let letter = LETTERS[(bits % LETTERS.len() as u64) as usize];
                bits /= LETTERS.len() as u64;
                letter as char
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_gives_the_same_sequence() {
        let (a, b) = (SeededRng::seeded(7), SeededRng::seeded(7));
        assert_eq!((a.uid(), a.suffix(), a.next_u64()), (b.uid(), b.suffix(), b.next_u64()));
        assert_ne!(SeededRng::seeded(7).next_u64(), SeededRng::seeded(8).next_u64());
    }

    #[test]
    fn random_bool_is_true_about_as_often_as_its_probability() {
        let chance = SeededRng::seeded(1);
        let hits = (0..10_000).filter(|_| chance.random_bool(0.2)).count();
        assert!((1_900..2_100).contains(&hits), "{hits}");
        assert!(!(0..100).any(|_| chance.random_bool(0.0)));
        assert!((0..100).all(|_| chance.random_bool(1.0)));
    }
}
