//! When a changed resource is published. The first change after quiet goes at once.

use std::time::Duration;

use tokio::time::Instant;

const FIRST_DELAY: Duration = Duration::from_millis(100);
const MAX_DELAY: Duration = Duration::from_secs(1);

#[derive(Default)]
pub(super) struct Backoff {
    published: Option<Instant>,
    /// After the latest publication.
    delay: Duration,
}

impl Backoff {
    /// When a change of now may be published.
    pub fn due(&self, now: Instant) -> Instant {
        self.published.map_or(now, |published| (published + self.delay).max(now))
    }

    /// 100 ms after the first publication, then 200, 400, 800 ms and 1 s; after twice the
    /// delay without a change it is the first one again.
    pub fn publish(&mut self, now: Instant) {
        let quiet = self.published.is_none_or(|published| now >= published + self.delay * 2);
        self.delay = if quiet { FIRST_DELAY } else { (self.delay * 2).min(MAX_DELAY) };
        self.published = Some(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// When changes at these times, in milliseconds, are published.
    fn published(changes: &[u64]) -> Vec<u64> {
        let start = Instant::now();
        let mut backoff = Backoff::default();
        let mut published: Vec<u64> = Vec::new();
        for change in changes {
            let now = start + Duration::from_millis(*change);
            let due = backoff.due(now);
            let at = (due - start).as_millis() as u64;
            // One that waits already takes this change along.
            if published.last().is_none_or(|last| *last <= *change) {
                published.push(at);
                backoff.publish(due);
            }
        }
        published
    }

    #[test]
    fn the_first_change_after_quiet_goes_at_once() {
        assert_eq!(published(&[0]), [0]);
        assert_eq!(published(&[0, 1000, 2000]), [0, 1000, 2000]);
    }

    #[test]
    fn under_churn_changes_are_published_in_growing_intervals() {
        let churn: Vec<u64> = (0..6000).step_by(10).collect();
        assert_eq!(published(&churn)[..7], [0, 100, 300, 700, 1500, 2500, 3500]);
    }

    #[test]
    fn after_churn_quiet_brings_the_first_delay_back() {
        let churn: Vec<u64> = (0..2000).step_by(10).chain([10_000, 10_050]).collect();
        assert_eq!(published(&churn)[5..], [2500, 10_000, 10_100]);
    }
}
