//! The wall clock, and its steps.
//!
//! [`Clock::system`] reads the machine's clock each time: after a suspend, or a
//! correction by NTP, it is right at once. [`Clock::starting_at`] advances with
//! tokio's time, so that under paused time timestamps follow the virtual time.

use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use tokio::time::Instant;

#[derive(Clone, Copy, Debug)]
pub struct Clock(Source);

#[derive(Clone, Copy, Debug)]
enum Source {
    System,
    Simulated {
        epoch: Timestamp,
        start: Instant,
        /// Nanoseconds, of all copies. Leaked, so that a clock is `Copy`.
        stepped: &'static AtomicI64,
    },
}

impl Clock {
    pub fn system() -> Clock {
        Clock(Source::System)
    }

    /// A clock that reads `epoch` now and advances with tokio's time.
    pub fn starting_at(epoch: Timestamp) -> Clock {
        let stepped = Box::leak(Box::new(AtomicI64::new(0)));
        Clock(Source::Simulated { epoch, start: Instant::now(), stepped })
    }

    pub fn now(&self) -> Timestamp {
        match self.0 {
            Source::System => Timestamp::now(),
            Source::Simulated { epoch, start, stepped } => {
                let stepped = SignedDuration::from_nanos(stepped.load(Ordering::Relaxed));
                let now = epoch.saturating_add(start.elapsed());
                now.and_then(|now| now.saturating_add(stepped)).unwrap_or(Timestamp::MAX)
            }
        }
    }

    /// `now` in the format of object metadata: whole seconds.
    pub fn now_rfc3339(&self) -> String {
        seconds(self.now())
    }

    /// Steps a simulated clock and all its copies, as NTP or a suspend steps the
    /// machine's; tokio's time does not change. The system's clock cannot be stepped.
    pub fn step_by(&self, by: SignedDuration) {
        if let Source::Simulated { stepped, .. } = self.0 {
            let nanos = i64::try_from(by.as_nanos()).unwrap_or(0);
            stepped.fetch_add(nanos, Ordering::Relaxed);
        }
    }
}

/// `2026-11-16T06:04:00Z`
pub fn seconds(at: Timestamp) -> String {
    at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// Finds steps of the wall clock by comparing its progress with the monotonic
/// clock's. An instant that was computed from a wall time before a step is wrong
/// after it; the monotonic clock also stands still while a machine is suspended.
#[derive(Debug)]
pub struct StepDetector {
    clock: Clock,
    compared: Mutex<Compared>,
}

/// A step that was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    pub by: SignedDuration,
    /// When it was found, by the new clock.
    pub at: Timestamp,
}

#[derive(Clone, Copy, Debug)]
struct Compared {
    wall: Timestamp,
    monotonic: Instant,
    step: Option<Step>,
}

impl StepDetector {
    /// Within this time a step should be found.
    pub const INTERVAL: Duration = Duration::from_secs(10);
    /// Smaller steps are not worth a reconcile.
    const MIN_STEP: SignedDuration = SignedDuration::from_secs(1);

    pub fn new(clock: Clock) -> StepDetector {
        let compared = Compared { wall: clock.now(), monotonic: Instant::now(), step: None };
        StepDetector { clock, compared: Mutex::new(compared) }
    }

    pub fn next_check(&self) -> Instant {
        self.compared().monotonic + Self::INTERVAL
    }

    /// Compares the clocks; returns the last step, if there was any.
    pub fn last(&self) -> Option<Step> {
        let mut compared = self.compared();
        let (wall, monotonic) = (self.clock.now(), Instant::now());
        let elapsed = monotonic.saturating_duration_since(compared.monotonic);
        let elapsed = SignedDuration::try_from(elapsed).unwrap_or(SignedDuration::MAX);
        let by = wall.duration_since(compared.wall).saturating_sub(elapsed);
        let step = (by.abs() > Self::MIN_STEP).then_some(Step { by, at: wall }).or(compared.step);
        *compared = Compared { wall, monotonic, step };
        step
    }

    fn compared(&self) -> MutexGuard<'_, Compared> {
        self.compared.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::time::advance;

    const HOUR: SignedDuration = SignedDuration::from_hours(1);

    #[tokio::test(start_paused = true)]
    async fn a_simulated_clock_follows_virtual_time_and_steps_with_all_its_copies() {
        let clock = Clock::starting_at(Timestamp::UNIX_EPOCH);
        let copy = clock;
        advance(Duration::from_secs(60)).await;
        clock.step_by(HOUR);
        assert_eq!(copy.now(), Timestamp::from_second(3660).unwrap());
        clock.step_by(-HOUR * 2);
        assert_eq!(copy.now(), Timestamp::from_second(-3540).unwrap());
    }

    #[tokio::test(start_paused = true)]
    async fn a_step_is_found_once_and_passing_time_is_none() {
        let clock = Clock::starting_at(Timestamp::UNIX_EPOCH);
        let detector = StepDetector::new(clock);
        advance(Duration::from_secs(86_400)).await;
        assert_eq!(detector.last(), None);
        for by in [HOUR, -HOUR] {
            clock.step_by(by);
            advance(StepDetector::INTERVAL).await;
            let step = Some(Step { by, at: clock.now() });
            assert_eq!(detector.last(), step);
            advance(StepDetector::INTERVAL).await;
            assert_eq!(detector.last(), step);
        }
        let last = detector.last();
        clock.step_by(SignedDuration::from_millis(-900));
        assert_eq!(detector.last(), last);
    }

    #[tokio::test(start_paused = true)]
    async fn the_system_clock_is_the_wall_clock_whatever_tokio_does() {
        let clock = Clock::system();
        advance(Duration::from_secs(3600)).await;
        assert!(clock.now().duration_since(Timestamp::now()).abs() < SignedDuration::from_mins(1));
    }
}
