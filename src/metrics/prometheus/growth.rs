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
use crate::metrics::{CountQueries, Window, selector::Selector};

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
        let selector = selector(expression);
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

/// The selector that an expression is, or is the sum over.
fn selector(expression: &str) -> Option<&str> {
    let expression = expression.trim();
    let summed = match expression.strip_prefix("sum") {
        Some(rest) => inside_of_sum(rest.trim()).unwrap_or(expression),
        None => expression,
    };
    Selector::parse(summed).is_ok().then_some(summed)
}

/// What stands in `(x)`, `by (l) (x)` and `(x) by (l)`.
fn inside_of_sum(rest: &str) -> Option<&str> {
    let grouping = |text: &str| -> Option<usize> {
        let labels = text.strip_prefix("by")?.trim_start().strip_prefix('(')?;
        let end = labels.find(')')?;
        Some(text.len() - labels.len() + end + 1)
    };
    let (body, grouped) = match grouping(rest) {
        Some(end) => (rest[end..].trim(), true),
        None => (rest, false),
    };
    let close = body.rfind(')')?;
    let body = match body[close + 1..].trim() {
        "" if grouped => body,
        "" => match body.rfind(" by").or_else(|| body.rfind(")by").map(|at| at + 1)) {
            Some(by) if grouping(body[by..].trim_start()).is_some_and(|end| body[by..].trim_start()[end..].trim().is_empty()) => {
                body[..by].trim_end_matches(" by").trim()
            }
            _ => body,
        },
        _ => return None,
    };
    body.strip_prefix('(')?.strip_suffix(')').map(str::trim)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sum_over_a_selector_is_taken_apart() {
        let inner = r#"a_bucket{x="1) by (",y=~"b|c"}"#;
        for expression in [
            inner.to_owned(),
            format!("sum({inner})"),
            format!("sum ( {inner} ) "),
            format!("sum by (le) ({inner})"),
            format!("sum by(le,pod)({inner})"),
            format!("sum({inner}) by (le)"),
            format!("sum({inner})by(le)"),
        ] {
            assert_eq!(selector(&expression), Some(inner), "{expression}");
        }
    }

    #[test]
    fn anything_else_is_not() {
        for expression in [
            "sum(a) + sum(b)",
            "sum(rate(a[1m]))",
            "max(a)",
            "sum(a) by (le) * 2",
            "sum without (x) (a)",
            "a + b",
            "(a)",
            "sum(a) / sum(b)",
        ] {
            assert_eq!(selector(expression), None, "{expression}");
        }
        assert_eq!(selector("summary_total"), Some("summary_total"));
    }

    #[test]
    fn an_empty_window_asks_nothing() {
        let arms = Arms { canary: "a".to_owned(), primary: "b".to_owned() };
        let at = Timestamp::UNIX_EPOCH;
        assert_eq!(of_buckets(&arms, Window { since: at, until: at }), None);
    }
}
