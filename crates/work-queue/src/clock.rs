//! Wall time that advances with tokio's clock.
//!
//! Under tokio's paused time (tests, simulation) timestamps follow the virtual
//! time; otherwise this is the wall clock.

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

    /// A clock that reads `epoch` now.
    pub fn starting_at(epoch: Timestamp) -> Clock {
        Clock { epoch, start: Instant::now() }
    }

    pub fn now(&self) -> Timestamp {
        self.epoch.saturating_add(self.start.elapsed()).unwrap_or(Timestamp::MAX)
    }

    /// `now` in the format of object metadata: whole seconds.
    pub fn now_rfc3339(&self) -> String {
        seconds(self.now())
    }
}

/// `2026-11-16T06:04:00Z`
pub fn seconds(at: Timestamp) -> String {
    at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}
