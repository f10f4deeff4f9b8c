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
const WAKEUP_INTERVAL: Duration = Duration::from_millis(30);
/// So many in a row need not be.
const WAKEUP_BURST: u32 = 20;

pub(super) struct WakeupThrottle {
    /// Until when the wake-ups so far last, if they are [`APART`].
    spent_until: Mutex<Instant>,
}

impl WakeupThrottle {
    pub fn new(now: Instant) -> Self {
        Self { spent_until: Mutex::new(now) }
    }

    /// How long to rest before something may wake it again.
    pub fn delay(&self, now: Instant) -> Duration {
        let mut spent = self.spent_until.lock();
        *spent = now.max(*spent) + WAKEUP_INTERVAL;
        spent.saturating_duration_since(now + WAKEUP_INTERVAL * WAKEUP_BURST)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_few_wake_ups_come_at_once_and_many_come_apart() {
        let began = Instant::now();
        let pace = WakeupThrottle::new(began);
        let run = |from: Instant, wake_ups: u32| {
            (0..wake_ups).fold(from, |now, _| now + pace.delay(now) + Duration::from_millis(1))
        };
        let after_few = run(began, WAKEUP_BURST);
        assert_eq!(after_few - began, Duration::from_millis(20), "none waited");
        let after_many = run(after_few, 1_000);
        let apart = (after_many - after_few) / 1_000;
        assert!(apart > WAKEUP_INTERVAL.mul_f64(0.97) && apart <= WAKEUP_INTERVAL, "{apart:?}");
        let rested = after_many + WAKEUP_INTERVAL * WAKEUP_BURST;
        assert_eq!(run(rested, WAKEUP_BURST) - rested, Duration::from_millis(20), "nor after a rest");
    }
}
