//! Times in the status that a wall clock wrote which was ahead, before it was
//! stepped back. Intervals, pauses and deadlines that count from them would wait
//! until the clock is there again.

use jiff::{SignedDuration, Timestamp};

use crate::api::canary::CanaryStatus;

/// Clocks of two replicas may differ by this much: such a time is simply awaited.
const MAX_SKEW: SignedDuration = SignedDuration::from_mins(1);

/// Replaces by `now` the times that something counts from and that are in the
/// future. Times that are to come, such as `expiresAt`, are kept, and those of
/// gates, which identify a reply.
pub(super) fn pull_back_future_times(status: &mut CanaryStatus, now: Timestamp) {
    let step = status.step.iter_mut().flat_map(|step| [&mut step.started_at, &mut step.check_started_at]);
    let metrics = status.metrics.iter_mut().flat_map(|metric| [&mut metric.at, &mut metric.measured_until]);
    let times = step.chain(metrics).chain([&mut status.all_primary_since]).flatten();
    let release = status.release.iter_mut().flat_map(|release| {
        let (stalled, young) = (release.state.stalled_since.as_mut(), release.state.young_since.as_mut());
        [&mut release.started_at, &mut release.last_progress_at].into_iter().chain(stalled).chain(young)
    });
    for time in times.chain(release).filter(|time| is_ahead(time.0, now)) {
        time.0 = now;
    }
}

/// Was this time of the past written by a clock that was ahead?
pub(super) fn is_ahead(past: Timestamp, now: Timestamp) -> bool {
    past.duration_since(now) > MAX_SKEW
}
