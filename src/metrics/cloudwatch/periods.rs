//! The part of a window for which CloudWatch has complete data.

use std::time::Duration;

use jiff::Timestamp;

use crate::metrics::Window;

/// After its end a period counts as complete. AWS services and the CloudWatch
/// agent publish within one to two minutes.
pub const DEFAULT_DELAY: Duration = Duration::from_secs(120);

/// CloudWatch's periods begin at whole multiples of their length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Periods {
    /// In seconds.
    pub length: u32,
    /// How long after its end a period may still change.
    pub delay: Duration,
}

impl Periods {
    /// The whole and complete periods of a window. Without one, an empty window at
    /// its start.
    pub fn complete(self, window: Window) -> Window {
        let length = i128::from(self.length.max(1)) * 1_000_000_000;
        let delay = i128::try_from(self.delay.as_nanos()).unwrap_or(i128::MAX / 2);
        let nanoseconds = Timestamp::as_nanosecond;
        let since = -(-nanoseconds(window.since)).div_euclid(length) * length;
        let until = (nanoseconds(window.until) - delay).div_euclid(length) * length;
        let timestamp = |at| Timestamp::from_nanosecond(at).unwrap_or(window.since);
        if until > since {
            Window { since: timestamp(since), until: timestamp(until) }
        } else {
            Window { since: window.since, until: window.since }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn window(since: &str, until: &str) -> Window {
        let at = |time: &str| format!("2026-11-16T{time}Z").parse().expect("a time");
        Window { since: at(since), until: at(until) }
    }

    const MINUTES: Periods = Periods { length: 60, delay: DEFAULT_DELAY };

    #[test]
    fn only_whole_and_complete_periods_count() {
        // Excluded: the minute that the window begins in, and those that ended
        // less than the delay ago.
        let complete = MINUTES.complete(window("12:00:30", "12:05:59.999"));
        assert_eq!(complete, window("12:01:00", "12:03:00"));
        assert_eq!(MINUTES.complete(window("12:00:30", "12:06:00")), window("12:01:00", "12:04:00"));
        assert_eq!(MINUTES.complete(window("12:01:00", "12:04:00")), window("12:01:00", "12:02:00"));
    }

    #[test]
    fn without_a_complete_period_the_window_is_empty() {
        let early = window("12:00:30", "12:03:59");
        assert_eq!(MINUTES.complete(early), window("12:00:30", "12:00:30"));
        let backwards = window("12:00:30", "12:00:00");
        assert_eq!(MINUTES.complete(backwards), window("12:00:30", "12:00:30"));
    }

    proptest! {
        /// At any check times, each period after the start is counted once, in
        /// order, none left out and none before it is complete.
        #[test]
        fn adjacent_windows_count_every_period_once(
            length in prop::sample::select(vec![1u32, 5, 10, 30, 60, 300]),
            delay in 0u64..400,
            began in 0i64..1_000_000,
            pauses in prop::collection::vec(1i64..400_000, 1..40),
        ) {
            let periods = Periods { length, delay: Duration::from_secs(delay) };
            let at = |ms| Timestamp::from_millisecond(ms).expect("a time");
            let (mut now, mut since, mut counted) = (began, at(began), None::<Timestamp>);
            for pause in pauses {
                now += pause;
                let complete = periods.complete(Window { since, until: at(now) });
                if complete.since == complete.until {
                    prop_assert_eq!(complete.since, since);
                    continue;
                }
                prop_assert!(complete.since >= at(began));
                prop_assert!(complete.until.as_second() + delay as i64 <= now / 1000);
                match counted {
                    Some(until) => prop_assert_eq!(complete.since, until),
                    None => prop_assert!(complete.since.as_millisecond() - began < i64::from(length) * 1000),
                }
                counted = Some(complete.until);
                since = complete.until;
            }
            let due = (now / 1000 - delay as i64).div_euclid(i64::from(length)) * i64::from(length);
            if let Some(until) = counted {
                prop_assert_eq!(until.as_second(), due);
            }
        }
    }
}
