//! PromQL for how much counters grew within a window.
//!
//! `increase()` will not do: it guesses what happened beyond the first and the
//! last sample, which makes counts of requests broken and twice counted, and
//! it misses whatever a series was born with. Instead, of every series:
//!
//! - its last value before the window's end, less its last value before the
//!   window's beginning. A failed scrape in between does no harm: it is the
//!   last value *there is*, for as long as [`MEMORY`];
//! - all of its value, if it fell: it began anew;
//! - all of its value, if it is new, as a pod or a status code can be. Unless
//!   the server knew nothing at all before the window, of either arm: then it
//!   was not looking, and nobody can tell what grew. That is no data.
//!
//! Windows that touch share a moment, so nothing is counted twice.
//!
//! A sum over a selector is taken apart first and put together again after: in
//! a sum, a pod that went away looks like a reset of all the others. Any other
//! expression is taken as it is, and where it falls, as no growth.

use jiff::Timestamp;

use crate::analysis::measurement::Arms;
use crate::metrics::{CountQueries, Window, selector};

/// The labels and values that tell the parts of an answer from each other.
pub const ARM: &str = "serin_arm";
pub const CANARY: &str = "canary";
pub const PRIMARY: &str = "primary";
pub const COUNTED: &str = "serin_counted";
pub const PART: &str = "part";
pub const TOTAL: &str = "total";

/// How long a series may be silent and still be known.
const MEMORY: &str = "10m";

/// How closely an expression that is no selector is followed.
const RESOLUTION: &str = "5s";

/// Counted requests of both arms; nothing if the window is empty.
pub fn of_counts(arms: &Arms<CountQueries>, window: Window) -> Option<String> {
    let back = length(window)?;
    let totals = arms.map(|arm| Counter::of(&arm.total, &back));
    let known = known(&totals);
    let one = |arm: &str, counted: &str, counter: &Counter| {
        let sum = format!("sum({})", counter.growth(&known));
        labelled(&labelled(&sum, COUNTED, counted), ARM, arm)
    };
    let part = arms.map(|arm| Counter::of(arm.part.query(), &back));
    let parts = [
        one(CANARY, PART, &part.canary),
        one(CANARY, TOTAL, &totals.canary),
        one(PRIMARY, PART, &part.primary),
        one(PRIMARY, TOTAL, &totals.primary),
    ];
    Some(parts.join("\nor\n"))
}

/// Buckets of both arms; nothing if the window is empty.
pub fn of_buckets(arms: &Arms<String>, window: Window) -> Option<String> {
    let back = length(window)?;
    let buckets = arms.map(|arm| Counter::of(arm, &back));
    let known = known(&buckets);
    let one = |arm: &str, counter: &Counter| {
        labelled(&format!("sum by (le) ({})", counter.growth(&known)), ARM, arm)
    };
    Some([one(CANARY, &buckets.canary), one(PRIMARY, &buckets.primary)].join("\nor\n"))
}

/// A counter at both ends of the window.
struct Counter {
    now: String,
    then: String,
    /// Its series are those of the counters themselves.
    raw: bool,
}

impl Counter {
    fn of(expression: &str, back: &str) -> Self {
        let selector = selector::summed(expression);
        let range = match selector {
            Some(selector) => format!("{selector}[{MEMORY}]"),
            None => format!("({})[{MEMORY}:{RESOLUTION}]", expression.trim()),
        };
        Self {
            now: format!("last_over_time({range})"),
            then: format!("last_over_time({range} offset {back})"),
            raw: selector.is_some(),
        }
    }

    fn growth(&self, known: &str) -> String {
        let Self { now, then, raw } = self;
        let before = format!("({then} or {now} * 0 and on() {known})");
        if *raw {
            format!("{now} - {before} >= 0 or {now} and {before}")
        } else {
            format!("clamp_min({now} - {before}, 0)")
        }
    }
}

/// What the server knew before the window.
fn known(arms: &Arms<Counter>) -> String {
    format!("({} or {})", arms.canary.then, arms.primary.then)
}

fn labelled(expression: &str, label: &str, value: &str) -> String {
    format!(r#"label_replace({expression}, "{label}", "{value}", "", "")"#)
}

fn length(window: Window) -> Option<String> {
    let length = milliseconds(window.until) - milliseconds(window.since);
    (length > 0).then(|| format!("{length}ms"))
}

fn milliseconds(at: Timestamp) -> i64 {
    at.as_millisecond()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_window_asks_nothing() {
        let arms = Arms { canary: "a".to_owned(), primary: "b".to_owned() };
        let at = Timestamp::UNIX_EPOCH;
        assert_eq!(of_buckets(&arms, Window { since: at, until: at }), None);
    }
}
