//! How often the one thread of `serin run` wakes up.
//!
//! Between two wake-ups others have the processor, and each wake-up probably
//! finds its caches cold: what a release costs was measured to depend on how
//! often the thread is woken for it. So a few wake-ups come at once, and a
//! single release never waits; when many releases move at a time the thread
//! rests in between, and does together what has come meanwhile.

use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// In the long run.
const APART: Duration = Duration::from_millis(30);
/// So many in a row need not be.
const AT_ONCE: u32 = 20;

pub(super) struct Pace {
    /// Until when the wake-ups so far last, if they are [`APART`].
    spent: Mutex<Instant>,
}

impl Pace {
    pub fn new(now: Instant) -> Self {
        Self { spent: Mutex::new(now) }
    }

    /// How long to rest before something may wake it again.
    pub fn rest(&self, now: Instant) -> Duration {
        let mut spent = self.spent.lock();
        *spent = now.max(*spent) + APART;
        spent.saturating_duration_since(now + APART * AT_ONCE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_few_wake_ups_come_at_once_and_many_come_apart() {
        let began = Instant::now();
        let pace = Pace::new(began);
        let run = |from: Instant, wake_ups: u32| {
            (0..wake_ups).fold(from, |now, _| now + pace.rest(now) + Duration::from_millis(1))
        };
        let after_few = run(began, AT_ONCE);
        assert_eq!(after_few - began, Duration::from_millis(20), "none waited");
        let after_many = run(after_few, 1_000);
        let apart = (after_many - after_few) / 1_000;
        assert!(apart > APART.mul_f64(0.97) && apart <= APART, "{apart:?}");
        let rested = after_many + APART * AT_ONCE;
        assert_eq!(run(rested, AT_ONCE) - rested, Duration::from_millis(20), "nor after a rest");
    }
}
