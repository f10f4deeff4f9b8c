//! When releases may move: windows that allow, and windows that freeze.
//!
//! A window opens at the wall-clock times its five-field cron expression names,
//! in its own time zone, and stays open for its duration in elapsed time. On the
//! two days of the year when clocks change:
//!
//! - **A gap** (clocks go forward, 02:30 never comes): the window opens at the
//!   end of the gap.
//! - **An overlap** (clocks go back, 02:30 comes twice): it opens at the first
//!   02:30, once.
//!
//! Releases may move when no freeze is open and, where allow windows exist, at
//! least one of them is. Everything else about cron follows the five-field
//! tradition: Sunday is 0 or 7, and when both day fields are restricted either
//! suffices.

use std::{collections::BTreeSet, str::FromStr, time::Duration};

use chrono::{DateTime, NaiveDateTime, Offset, TimeDelta, TimeZone, Utc};
use chrono_tz::Tz;
use cron::Schedule;
use jiff::Timestamp;

/// The release windows of one plan.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Windows(Vec<Window>);

/// One recurring window.
#[derive(Clone, Debug, PartialEq)]
pub struct Window {
    effect: Effect,
    /// Wall-clock openings; two when both day fields are restricted.
    openings: Vec<Schedule>,
    zone: Tz,
    length: TimeDelta,
}

/// Effect of a window while it is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Releases may move inside.
    Allow,
    /// Nothing starts, advances or promotes inside.
    Freeze,
}

/// Why nothing may move now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Closed {
    /// A freeze is open, as opposed to no allow window being open.
    pub frozen: bool,
    /// The earliest time to check again; none when no window will ever open.
    pub until: Option<Timestamp>,
}

/// Why a window is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WindowError {
    #[error(
        "schedule {0:?} must have five fields (minute, hour, day of month, month, day of week), such as \"0 9 * * 1-5\""
    )]
    Fields(String),
    #[error("schedule {schedule:?} is not a cron expression ({why}); write one such as \"0 9 * * 1-5\"")]
    Schedule { schedule: String, why: String },
    #[error("schedule {0:?} never comes; name a day that exists")]
    Never(String),
    #[error("time zone {0:?} is unknown; write an IANA name such as \"Europe/Berlin\" or \"UTC\"")]
    Zone(String),
    #[error("duration must be between 1m and 8760h; write one such as \"8h\"")]
    Length,
}

impl Windows {
    /// Windows in any order; none at all means releases may always move.
    pub fn new(windows: Vec<Window>) -> Self {
        Self(windows)
    }

    /// May a release move at this moment?
    pub fn check(&self, now: Timestamp) -> Result<(), Closed> {
        let Some(frozen) = self.closed(now) else {
            return Ok(());
        };
        Err(Closed { frozen, until: self.reopens(now) })
    }

    /// `Some(frozen)` when nothing may move.
    fn closed(&self, now: Timestamp) -> Option<bool> {
        let open = |effect| self.of(effect).any(|window| window.closes(now).is_some());
        if open(Effect::Freeze) {
            return Some(true);
        }
        let restricted = self.of(Effect::Allow).next().is_some();
        (restricted && !open(Effect::Allow)).then_some(false)
    }

    /// Walks from boundary to boundary. A schedule too tangled to resolve in a
    /// few of them yields the last one reached: checking again then is harmless.
    fn reopens(&self, now: Timestamp) -> Option<Timestamp> {
        let mut at = now;
        for _ in 0..64 {
            at = self.0.iter().filter_map(|window| window.closes(at).or_else(|| window.opens(at))).min()?;
            if self.closed(at).is_none() {
                break;
            }
        }
        Some(at)
    }

    fn of(&self, effect: Effect) -> impl Iterator<Item = &Window> {
        self.0.iter().filter(move |window| window.effect == effect)
    }
}

impl Window {
    /// From the fields of the spec.
    pub fn parse(effect: Effect, schedule: &str, zone: &str, length: Duration) -> Result<Self, WindowError> {
        const MAX_DURATION: Duration = Duration::from_secs(8760 * 3600);
        if length < Duration::from_secs(60) || length > MAX_DURATION {
            return Err(WindowError::Length);
        }
        Ok(Self {
            effect,
            openings: openings(schedule)?,
            zone: Tz::from_str(zone).map_err(|_| WindowError::Zone(zone.to_owned()))?,
            length: TimeDelta::from_std(length).map_err(|_| WindowError::Length)?,
        })
    }

    /// When the window that is open now closes.
    fn closes(&self, now: Timestamp) -> Option<Timestamp> {
        let now = to_chrono(now)?;
        // In a repeated hour the local time has already been further than it is
        // now; yesterday's offset gives how far.
        let local = local_time(self.zone, now);
        let furthest = now.naive_utc() + offset(self.zone, (now - TimeDelta::days(1)).naive_utc());
        let from = local.max(furthest).and_utc() + TimeDelta::seconds(1);
        let opened = self
            .openings
            .iter()
            .filter_map(|times| {
                times.after(&from).rev().map(|at| instant(self.zone, at.naive_utc())).find(|at| *at <= now)
            })
            .max()?;
        let closes = opened + self.length;
        (now < closes).then(|| to_jiff(closes)).flatten()
    }

    /// When it opens next, strictly after now.
    fn opens(&self, now: Timestamp) -> Option<Timestamp> {
        let now = to_chrono(now)?;
        let from = local_time(self.zone, now).and_utc();
        self.openings
            .iter()
            .filter_map(|times| {
                times.after(&from).map(|at| instant(self.zone, at.naive_utc())).find(|at| *at > now)
            })
            .min()
            .and_then(to_jiff)
    }
}

/// The `cron` crate wants a seconds field, counts weekdays from Sunday = 1 and
/// demands both day fields at once; the five-field tradition does none of that.
fn openings(text: &str) -> Result<Vec<Schedule>, WindowError> {
    let fields: Vec<&str> = text.split_whitespace().collect();
    let [minute, hour, day, month, weekday] = fields[..] else {
        return Err(WindowError::Fields(text.to_owned()));
    };
    let bad = |why: String| WindowError::Schedule { schedule: text.to_owned(), why };
    let weekdays = weekdays(weekday).map_err(bad)?;
    let times = |day: &str, weekdays: &str| {
        Schedule::from_str(&format!("0 {minute} {hour} {day} {month} {weekdays}"))
            .map_err(|e| bad(e.to_string()))
    };
    let free = |field: &str| field.starts_with(['*', '?']);
    let schedules = if free(day) || free(weekday) {
        vec![times(day, &weekdays)?]
    } else {
        vec![times(day, "*")?, times("*", &weekdays)?]
    };
    if schedules.iter().all(|times| times.after(&DateTime::<Utc>::UNIX_EPOCH).next().is_none()) {
        return Err(WindowError::Never(text.to_owned()));
    }
    Ok(schedules)
}

/// The weekday field, spelled out as the `cron` crate counts.
fn weekdays(field: &str) -> Result<String, String> {
    if matches!(field, "*" | "?") {
        return Ok("*".to_owned());
    }
    let mut days = BTreeSet::new();
    for part in field.split(',') {
        let (range, step) = part.split_once('/').map_or((part, None), |(range, step)| (range, Some(step)));
        let (first, last) = match range.split_once('-') {
            Some((first, last)) => (weekday(first)?, weekday(last)?),
            None if range == "*" => (0, 6),
            None if step.is_some() => (weekday(range)?, 6),
            None => (weekday(range)?, weekday(range)?),
        };
        if first > last {
            return Err(format!("days {range} run backwards"));
        }
        let step = match step.map(str::parse) {
            None => 1,
            Some(Ok(step @ 1..=7)) => step,
            Some(_) => return Err(format!("step in {part} must be 1 to 7")),
        };
        days.extend((first..=last).step_by(step).map(|day| day % 7 + 1));
    }
    Ok(days.iter().map(u8::to_string).collect::<Vec<_>>().join(","))
}

/// Sunday is 0, and 7 so that ranges may end with it.
fn weekday(text: &str) -> Result<u8, String> {
    const NAMES: [&str; 7] = ["sun", "mon", "tue", "wed", "thu", "fri", "sat"];
    if let Some(day) = NAMES.iter().position(|name| name.eq_ignore_ascii_case(text)) {
        return Ok(day as u8);
    }
    text.parse().ok().filter(|day| *day <= 7).ok_or_else(|| format!("{text:?} is not a day of the week"))
}

/// Wall-clock time.
fn local_time(zone: Tz, at: DateTime<Utc>) -> NaiveDateTime {
    at.naive_utc() + offset(zone, at.naive_utc())
}

fn offset(zone: Tz, utc: NaiveDateTime) -> TimeDelta {
    TimeDelta::seconds(i64::from(zone.offset_from_utc_datetime(&utc).fix().local_minus_utc()))
}

/// The moment a wall clock first shows `local_time`, or jumps past it. Never
/// decreases as `local_time` grows, which the searches above rely on.
fn instant(zone: Tz, local_time: NaiveDateTime) -> DateTime<Utc> {
    zone.from_local_datetime(&local_time)
        .earliest()
        .map_or_else(|| gap_end(zone, local_time), |at| at.to_utc())
}

/// Halves the day around the gap until the jump itself is found.
fn gap_end(zone: Tz, local_time: NaiveDateTime) -> DateTime<Utc> {
    let shows_less = |at: DateTime<Utc>| self::local_time(zone, at) < local_time;
    let (mut before, mut after) =
        (local_time.and_utc() - TimeDelta::days(2), local_time.and_utc() + TimeDelta::days(2));
    while after - before > TimeDelta::seconds(1) {
        let middle = before + TimeDelta::seconds((after - before).num_seconds() / 2);
        if shows_less(middle) { before = middle } else { after = middle }
    }
    after
}

fn to_chrono(at: Timestamp) -> Option<DateTime<Utc>> {
    DateTime::from_timestamp(at.as_second(), 0)
}

fn to_jiff(at: DateTime<Utc>) -> Option<Timestamp> {
    Timestamp::from_second(at.timestamp()).ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    fn window(effect: Effect, schedule: &str, zone: &str, minutes: u64) -> Window {
        Window::parse(effect, schedule, zone, Duration::from_secs(minutes * 60)).unwrap()
    }

    fn only(window: Window) -> Windows {
        Windows::new(vec![window])
    }

    #[track_caller]
    fn opens(schedule: &str, zone: &str, after: &str, expected: &str) {
        let window = window(Effect::Allow, schedule, zone, 60);
        assert_eq!(window.opens(at(after)), Some(at(expected)), "{schedule} in {zone} after {after}");
    }

    #[test]
    fn without_windows_a_release_may_always_move() {
        assert_eq!(Windows::default().check(at("2025-06-01T00:00:00Z")), Ok(()));
    }

    #[test]
    fn weekdays_count_from_sunday_as_zero_or_seven() {
        let friday_noon = "2025-11-14T12:00:00Z";
        opens("0 9 * * 1-5", "UTC", friday_noon, "2025-11-17T09:00:00Z");
        opens("0 9 * * mon-FRI", "UTC", friday_noon, "2025-11-17T09:00:00Z");
        opens("0 9 * * 0", "UTC", friday_noon, "2025-11-16T09:00:00Z");
        opens("0 9 * * 7", "UTC", friday_noon, "2025-11-16T09:00:00Z");
        opens("0 9 * * 6-7", "UTC", "2025-11-15T12:00:00Z", "2025-11-16T09:00:00Z");
        opens("0 9 * * */3", "UTC", friday_noon, "2025-11-15T09:00:00Z");
        opens("0 9 * * 2/2", "UTC", friday_noon, "2025-11-15T09:00:00Z");
    }

    #[test]
    fn either_restricted_day_field_suffices() {
        opens("0 9 20 * 1", "UTC", "2025-11-14T12:00:00Z", "2025-11-17T09:00:00Z");
        opens("0 9 20 * 1", "UTC", "2025-11-17T12:00:00Z", "2025-11-20T09:00:00Z");
    }

    #[test]
    fn a_window_follows_its_own_zone() {
        opens("0 9 * * *", "Asia/Tokyo", "2025-06-01T12:00:00Z", "2025-06-02T00:00:00Z");
        opens("0 9 * * *", "America/New_York", "2025-01-10T15:00:00Z", "2025-01-11T14:00:00Z");
        opens("0 9 * * *", "America/New_York", "2025-07-10T15:00:00Z", "2025-07-11T13:00:00Z");
    }

    #[test]
    fn an_opening_inside_a_gap_comes_at_its_end() {
        // Berlin, 30 March 2025: 02:00 became 03:00 at 01:00 UTC.
        opens("30 2 * * *", "Europe/Berlin", "2025-03-29T12:00:00Z", "2025-03-30T01:00:00Z");
        let night = only(window(Effect::Allow, "30 2 * * *", "Europe/Berlin", 60));
        assert!(night.check(at("2025-03-30T00:59:59Z")).is_err());
        assert!(night.check(at("2025-03-30T01:00:00Z")).is_ok());
        assert!(night.check(at("2025-03-30T01:59:59Z")).is_ok());
        assert!(night.check(at("2025-03-30T02:00:00Z")).is_err());
    }

    #[test]
    fn an_opening_in_an_hour_that_comes_twice_comes_once() {
        // Berlin, 26 October 2025: 03:00 became 02:00 at 01:00 UTC.
        opens("30 2 * * *", "Europe/Berlin", "2025-10-25T12:00:00Z", "2025-10-26T00:30:00Z");
        opens("30 2 * * *", "Europe/Berlin", "2025-10-26T00:30:00Z", "2025-10-27T01:30:00Z");
        let night = only(window(Effect::Allow, "30 2 * * *", "Europe/Berlin", 50));
        // 02:10 for the second time: the first 02:30 was forty minutes ago.
        assert!(night.check(at("2025-10-26T01:10:00Z")).is_ok());
        // 02:30 for the second time opens nothing.
        assert!(night.check(at("2025-10-26T01:30:00Z")).is_err());
    }

    #[test]
    fn a_day_that_was_skipped_opens_at_its_end() {
        // Samoa had no 30 December 2011.
        opens("0 12 30 * *", "Pacific/Apia", "2011-12-29T12:00:00Z", "2011-12-30T10:00:00Z");
    }

    #[test]
    fn a_duration_is_elapsed_time_across_a_change_of_clocks() {
        let night = only(window(Effect::Freeze, "0 0 * * 0", "Europe/Berlin", 6 * 60));
        assert!(night.check(at("2025-10-26T03:59:59Z")).is_err());
        assert!(night.check(at("2025-10-26T04:00:00Z")).is_ok());
    }

    #[test]
    fn a_freeze_wins_over_an_allow() {
        let windows = Windows::new(vec![
            window(Effect::Allow, "0 9 * * *", "UTC", 8 * 60),
            window(Effect::Freeze, "0 12 * * *", "UTC", 60),
        ]);
        assert_eq!(windows.check(at("2025-06-02T11:59:59Z")), Ok(()));
        let lunch = Closed { frozen: true, until: Some(at("2025-06-02T13:00:00Z")) };
        assert_eq!(windows.check(at("2025-06-02T12:30:00Z")), Err(lunch));
        let night = Closed { frozen: false, until: Some(at("2025-06-03T09:00:00Z")) };
        assert_eq!(windows.check(at("2025-06-02T17:00:00Z")), Err(night));
    }

    #[test]
    fn reopening_skips_a_freeze_that_covers_the_next_opening() {
        let windows = Windows::new(vec![
            window(Effect::Allow, "0 9 * * *", "UTC", 60),
            window(Effect::Freeze, "0 0 24 12 *", "UTC", 3 * 24 * 60),
        ]);
        let closed = windows.check(at("2025-12-24T09:30:00Z")).unwrap_err();
        assert_eq!(closed, Closed { frozen: true, until: Some(at("2025-12-27T09:00:00Z")) });
    }

    #[test]
    fn a_window_error_names_the_remedy() {
        let error = |schedule, zone, minutes: u64| {
            Window::parse(Effect::Allow, schedule, zone, Duration::from_secs(60 * minutes))
                .unwrap_err()
                .to_string()
        };
        assert!(error("0 0 9 * * 1", "UTC", 5).contains("five fields"));
        assert!(error("", "UTC", 5).contains("five fields"));
        assert!(error("61 9 * * *", "UTC", 5).contains("such as"));
        assert!(error("0 9 * * 8", "UTC", 5).contains("day of the week"));
        assert!(error("0 9 * * 5-1", "UTC", 5).contains("backwards"));
        assert!(error("0 9 * * */0", "UTC", 5).contains("step"));
        assert!(error("0 9 30 2 *", "UTC", 5).contains("never comes"));
        assert!(error("0 9 * * *", "Berlin", 5).contains("Europe/Berlin"));
        assert!(error("0 9 * * *", "UTC", 0).contains("8h"));
    }

    /// Open at `now` by the definition itself: some minute of the past, whose
    /// wall clock the expression names, opened a window that still lasts.
    fn open_by_definition(hour: u32, minute: u32, zone: Tz, minutes: i64, now: DateTime<Utc>) -> bool {
        (0..=3).any(|days| {
            let day = local_time(zone, now).date() + TimeDelta::days(1 - days);
            let named = day.and_hms_opt(hour, minute, 0).unwrap();
            let mut opened = now - TimeDelta::days(4);
            while local_time(zone, opened) < named {
                opened += TimeDelta::minutes(1);
            }
            opened <= now && now < opened + TimeDelta::minutes(minutes)
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(256))]

        #[test]
        fn a_window_is_open_as_written_around_clock_changes(
            zone in prop::sample::select(vec![chrono_tz::Europe::Berlin, chrono_tz::America::New_York, chrono_tz::Australia::Lord_Howe]),
            change in prop::sample::select(vec!["2025-03-30T01:00:00Z", "2025-10-26T01:00:00Z", "2025-03-09T07:00:00Z", "2025-11-02T06:00:00Z", "2025-04-05T15:00:00Z", "2025-10-04T15:30:00Z"]),
            hour in 0..5u32, minute in 0..60u32, length in 1..600i64, near in -300..300i64,
        ) {
            let now = to_chrono(at(change)).unwrap() + TimeDelta::minutes(near);
            let window = window(Effect::Allow, &format!("{minute} {hour} * * *"), zone.name(), length as u64);
            let open = window.closes(to_jiff(now).unwrap()).is_some();
            prop_assert_eq!(open, open_by_definition(hour, minute, zone, length, now));
        }

        #[test]
        fn the_promised_reopening_is_the_first(minute in 0..60u32, hour in 0..24u32, length in 1..2000u64, now in 0..500_000i64) {
            let windows = only(window(Effect::Freeze, &format!("{minute} {hour} * * 1,3"), "Europe/Berlin", length));
            let now = Timestamp::from_second(1_760_000_000 + now).unwrap();
            if let Err(closed) = windows.check(now) {
                let until = closed.until.unwrap();
                prop_assert!(windows.check(until).is_ok());
                let just_before = Timestamp::from_second(until.as_second() - 1).unwrap();
                prop_assert!(windows.check(just_before).is_err());
            }
        }
    }
}
