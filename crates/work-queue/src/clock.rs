//! The clock of everything that acts: wall time that moves with tokio's.
//!
//! Under tokio's paused time (tests, simulation) an hour passes in no time and
//! timestamps follow; otherwise it is the wall clock.

use jiff::Timestamp;
use tokio::time::Instant;

#[derive(Clone, Copy, Debug)]
pub struct Clock {
    epoch: Timestamp,
    start: Instant,
}

impl Clock {
    pub fn system() -> Clock {
        Clock::starting_at(Timestamp::now())
    }

    /// A clock that shows `epoch` now and runs on from there.
    pub fn starting_at(epoch: Timestamp) -> Clock {
        Clock { epoch, start: Instant::now() }
    }

    pub fn now(&self) -> Timestamp {
        self.epoch.saturating_add(self.start.elapsed()).unwrap_or(Timestamp::MAX)
    }

    /// `now`, as object metadata carries it: whole seconds.
    pub fn now_rfc3339(&self) -> String {
        seconds(self.now())
    }
}

/// `2026-11-16T06:04:00Z`
pub fn seconds(at: Timestamp) -> String {
    at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}
