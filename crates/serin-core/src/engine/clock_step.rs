//! Times in the status that were written before the wall clock was stepped.
//!
//! After a step back they are in the future: intervals, pauses and deadlines that count
//! from them would wait until the clock is there again. After a step forward checks and
//! deadlines would end that have hardly begun. Pauses and expiries that people wrote
//! follow the new clock.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

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

/// Begins the check and the deadlines anew that count from before `stepped_at`, when the
/// clock was found to be stepped: how long they have lasted is not known.
pub(super) fn restart_at_step(status: &mut CanaryStatus, stepped_at: Timestamp) {
    let is_before = |time: &Option<Time>| time.as_ref().is_some_and(|time| time.0 < stepped_at);
    if let Some(step) = &mut status.step
        && is_before(&step.check_started_at)
    {
        step.check_started_at = None;
        step.checks = step.checks.saturating_add(1);
    }
    if let Some(release) = &mut status.release {
        for since in [&mut release.state.stalled_since, &mut release.state.reverted_since] {
            if is_before(since) {
                *since = Some(Time(stepped_at));
            }
        }
    }
}

/// Was this time of the past written by a clock that was ahead?
pub(super) fn is_ahead(past: Timestamp, now: Timestamp) -> bool {
    past.duration_since(now) > MAX_SKEW
}
