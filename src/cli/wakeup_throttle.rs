//! Limits how often the single thread of `serin run` wakes up (token bucket).
//!
//! Up to `WAKEUP_BURST` wake-ups are immediate, so a single release never waits.
//! With many releases at a time the thread sleeps up to `WAKEUP_INTERVAL`
//! between wake-ups and handles the events of that time together.
//!
//! Measured: this lowers the CPU time of a release (ARCHITECTURE.md has the
//! numbers). The cause of the gain is unproven; cold processor caches after each
//! wake-up are a guess.

use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// Average under load.
const WAKEUP_INTERVAL: Duration = Duration::from_millis(30);
/// Wake-ups without a delay.
const WAKEUP_BURST: u32 = 20;

pub(super) struct WakeupThrottle {
    /// Time at which the wake-ups so far are paid for, one interval each.
    spent_until: Mutex<Instant>,
}

impl WakeupThrottle {
    pub fn new(now: Instant) -> Self {
        Self { spent_until: Mutex::new(now) }
    }

    /// How long to sleep before the next wake-up.
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
    fn few_wake_ups_are_immediate_and_many_are_spaced() {
        let start = Instant::now();
        let throttle = WakeupThrottle::new(start);
        let run = |from: Instant, wake_ups: u32| {
            (0..wake_ups).fold(from, |now, _| now + throttle.delay(now) + Duration::from_millis(1))
        };
        let after_few = run(start, WAKEUP_BURST);
        assert_eq!(after_few - start, Duration::from_millis(20), "no delay");
        let after_many = run(after_few, 1_000);
        let interval = (after_many - after_few) / 1_000;
        assert!(interval > WAKEUP_INTERVAL.mul_f64(0.97) && interval <= WAKEUP_INTERVAL, "{interval:?}");
        let refilled = after_many + WAKEUP_INTERVAL * WAKEUP_BURST;
        assert_eq!(
            run(refilled, WAKEUP_BURST) - refilled,
            Duration::from_millis(20),
            "no delay after idle time"
        );
    }
}
