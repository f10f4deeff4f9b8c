//! How much counters grew within a window: the PromQL, and what follows from its
//! answer.
//!
//! `increase()` will not do: it guesses what happened beyond the first and the
//! last sample, which makes counts of requests broken and twice counted, and
//! it misses whatever a series was born with. Instead, of every series:
//!
//! - its last value before the window's end, less its last value before the
//!   window's beginning. A failed scrape in between does no harm: it is the
//!   last value *there is*, for as long as [`LOOKBACK_MS`];
//! - all of its value, if it fell: it began anew;
//! - all of its value, if it is new, as a pod or a status code can be. Unless
//!   the server knew nothing at all before the window, of either arm: then it
//!   was not looking, and nobody can tell what grew. That is no data.
//!
//! Windows that touch share a moment, so nothing is counted twice.
//!
//! The server adds up, so that the answer is small: all values at the end, all
//! values at the beginning, and those values at the beginning whose series fell
//! since. The first less the second plus the third is the increase, for every
//! series known at the beginning is still known at the end.
//!
//! A sum over a selector is taken apart first and put together again after: in
//! a sum, a pod that went away looks like a reset of all the others. Any other
//! expression is taken as it is, and where it falls, as no increase.

use std::collections::BTreeMap;

use prometheus_http_query::response::InstantVector;

use crate::analysis::measurement::Arms;
use crate::metrics::{CountQueries, Window, selector};

/// The labels and values that tell the parts of an answer from each other.
const ARM: &str = "serin_arm";
pub const CANARY: &str = "canary";
pub const PRIMARY: &str = "primary";
const COUNTED: &str = "serin_counted";
pub const PART: &str = "part";
pub const TOTAL: &str = "total";
const SUM_OF: &str = "serin_sum_of";
const NOW: &str = "now";
const THEN: &str = "then";
const RESET: &str = "fell";

/// For how many milliseconds a series may be silent and still be known.
const LOOKBACK_MS: i64 = 600_000;

/// How closely an expression that is no selector is followed.
const RESOLUTION: &str = "5s";

/// Counted requests of both arms; nothing if the window is empty.
pub fn counts_query(arms: &Arms<CountQueries>, window: Window) -> Option<String> {
    let length = length_ms(window)?;
    let arm = |arm: &str, asked: &CountQueries| {
        let counted = |what: &str, query: &str| labelled(sums(query, "sum", length), COUNTED, what);
        let both = [counted(PART, asked.part.query()), counted(TOTAL, &asked.total)];
        labelled(both.into_iter().flatten().collect(), ARM, arm)
    };
    let all = [arm(CANARY, &arms.canary), arm(PRIMARY, &arms.primary)];
    Some(all.into_iter().flatten().collect::<Vec<_>>().join("\nor\n"))
}

/// Buckets of both arms; nothing if the window is empty.
pub fn buckets_query(arms: &Arms<String>, window: Window) -> Option<String> {
    let length = length_ms(window)?;
    let arm = |arm: &str, query: &str| labelled(sums(query, "sum by (le)", length), ARM, arm);
    let all = [arm(CANARY, &arms.canary), arm(PRIMARY, &arms.primary)];
    Some(all.into_iter().flatten().collect::<Vec<_>>().join("\nor\n"))
}

/// What grew, by arm and by what was counted.
#[derive(Debug, Default, PartialEq)]
pub struct CounterIncreases(BTreeMap<(String, String), f64>);

impl CounterIncreases {
    /// From the answer to [`counts_query`].
    pub fn from_counts(answer: &[InstantVector]) -> Option<Self> {
        Self::from_response(COUNTED, answer)
    }

    /// From the answer to [`buckets_query`]: what was counted is named by its
    /// bound.
    pub fn from_buckets(answer: &[InstantVector]) -> Option<Self> {
        Self::from_response("le", answer)
    }

    /// Requests are whole. What is not a number, or less than none, is none.
    pub fn count(&self, arm: &str, counted: &str) -> u64 {
        self.of_arm(arm).find(|(what, _)| *what == counted).map_or(0, |(_, count)| count)
    }

    /// Everything that was counted of one arm.
    pub fn of_arm<'s>(&'s self, arm: &'s str) -> impl Iterator<Item = (&'s str, u64)> {
        let of_arm = self.0.iter().filter(move |((of, _), _)| of == arm);
        of_arm.map(|((_, what), grown)| (what.as_str(), grown.round() as u64))
    }

    fn from_response(label: &str, answer: &[InstantVector]) -> Option<Self> {
        let mut increase = Self::default();
        let mut known = false;
        for series in answer {
            let of = |name: &str| series.metric().get(name).map(String::as_str).unwrap_or_default();
            let grown = increase.0.entry((of(ARM).to_owned(), of(label).to_owned())).or_default();
            let value = series.sample().value();
            if of(SUM_OF) == THEN {
                known = true;
                *grown -= value;
            } else {
                *grown += value;
            }
        }
        known.then_some(increase)
    }
}

/// The sums that increase is worked out from, each with a label that says which
/// it is.
fn sums(expression: &str, sum: &str, length: i64) -> Vec<String> {
    let (range, raw) = match selector::inner_of_sum(expression) {
        Some(selector) => (format!("{selector}["), true),
        None => (format!("({})[", expression.trim()), false),
    };
    let end = if raw { "ms]".to_owned() } else { format!("ms:{RESOLUTION}]") };
    // As far back as the memory of the window's beginning reaches.
    let now = format!("last_over_time({range}{}{end})", LOOKBACK_MS + length);
    let then = format!("last_over_time({range}{LOOKBACK_MS}{end} offset {length}ms)");
    let one = |of: &str, values: &str| labelled(vec![format!("{sum} ({values})")], SUM_OF, of);
    let mut sums = [one(NOW, &now), one(THEN, &then)].concat();
    if raw {
        sums.extend(one(RESET, &format!("{then} > {now}")));
    }
    sums
}

fn labelled(expressions: Vec<String>, label: &str, value: &str) -> Vec<String> {
    let labelled = |expression| format!(r#"label_replace({expression}, "{label}", "{value}", "", "")"#);
    expressions.into_iter().map(labelled).collect()
}

fn length_ms(window: Window) -> Option<i64> {
    let length = window.until.as_millisecond() - window.since.as_millisecond();
    (length > 0).then_some(length)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_window_sends_no_query() {
        let arms = Arms { canary: "a".to_owned(), primary: "b".to_owned() };
        let at = jiff::Timestamp::UNIX_EPOCH;
        assert_eq!(buckets_query(&arms, Window { since: at, until: at }), None);
    }
}
