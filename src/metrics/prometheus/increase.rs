//! The increase of counters within a window: the PromQL, and the evaluation of
//! its result.
//!
//! PromQL's `increase()` is unsuitable: it extrapolates beyond the first and the
//! last sample, which yields fractional and doubly counted requests, and it
//! misses the initial value of a new series. Instead, for every series:
//!
//! - its last value before the window's end minus its last value before the
//!   window's start. A failed scrape in between does no harm: the last *known*
//!   value counts, for up to [`LOOKBACK_MS`];
//! - all of its value, if it decreased: the counter was reset;
//! - all of its value, if it is new, as a pod or a status code can be. But if the
//!   server has no series at all from before the window, of either arm, it was
//!   not scraping, and the increase is unknown: no data.
//!
//! Adjacent windows share their boundary, so nothing is counted twice.
//!
//! The server sums, so that the result is small: all values at the end, all
//! values at the start, and those values at the start whose series have since
//! decreased. The first minus the second plus the third is the increase, since
//! every series known at the start is still known at the end.
//!
//! Requests are summed by the pod that exported them, if their series have a label for
//! it: the judge compares pods too.
//!
//! A sum over a selector is unwrapped first and summed again afterwards: in a
//! sum, a deleted pod looks like a reset of all others. Any other expression is
//! evaluated as it is; a decrease counts as no increase.

use std::collections::BTreeMap;

use prometheus_http_query::response::InstantVector;

use crate::analysis::measurement::Arms;
use crate::metrics::{CountQueries, Query, ValueQueries, Window, selector};

use super::client::PrometheusQueryError;

/// Labels and values that identify the parts of the result.
const ARM: &str = "serin_arm";
pub const CANARY: &str = "canary";
pub const PRIMARY: &str = "primary";
const COUNTED: &str = "serin_counted";
const PART: &str = "part";
pub const TOTAL: &str = "total";
pub const SUM_OF: &str = "serin_sum_of";
const NOW: &str = "now";
pub const THEN: &str = "then";
const RESET: &str = "fell";

/// Names of the label with the pod that exported a series: that of Prometheus' operator,
/// and that of its example configuration for Kubernetes. The sum of series with neither
/// has an empty one.
const POD_LABELS: [&str; 2] = ["pod", "kubernetes_pod_name"];
const SUM_BY_POD: &str = "sum by (pod, kubernetes_pod_name)";

/// How long a series without samples counts as known, in milliseconds.
const LOOKBACK_MS: i64 = 600_000;

/// Subquery step of expressions other than selectors.
const RESOLUTION: &str = "5s";

/// Requests of both arms; none if the window is empty.
pub fn counts_query(arms: &Arms<CountQueries>, window: Window) -> Option<String> {
    let length = length_ms(window)?;
    let arm = |arm: &str, queries: &CountQueries| {
        let counted = |what: &str, query: &str| labelled(sums(query, SUM_BY_POD, length), COUNTED, what);
        let both = [counted(PART, queries.part.query()), counted(TOTAL, &queries.total)];
        labelled(both.into_iter().flatten().collect(), ARM, arm)
    };
    let all = [arm(CANARY, &arms.canary), arm(PRIMARY, &arms.primary)];
    Some(all.into_iter().flatten().collect::<Vec<_>>().join("\nor\n"))
}

/// Buckets of both arms; none if the window is empty.
pub fn buckets_query(arms: &Arms<String>, window: Window) -> Option<String> {
    let length = length_ms(window)?;
    let arm = |arm: &str, query: &str| labelled(sums(query, "sum by (le)", length), ARM, arm);
    let all = [arm(CANARY, &arms.canary), arm(PRIMARY, &arms.primary)];
    Some(all.into_iter().flatten().collect::<Vec<_>>().join("\nor\n"))
}

/// Buckets of both arms and all their requests, the latter as the bucket [`TOTAL`]; none if
/// the window is empty.
pub fn values_query(arms: &Arms<ValueQueries>, window: Window) -> Option<String> {
    let length = length_ms(window)?;
    let arm = |arm: &str, queries: &ValueQueries| {
        let total = queries.total.as_ref().map(|total| labelled(sums(total, "sum", length), "le", TOTAL));
        let all = [sums(&queries.histogram, "sum by (le)", length), total.unwrap_or_default()];
        labelled(all.concat(), ARM, arm)
    };
    let all = [arm(CANARY, &arms.canary), arm(PRIMARY, &arms.primary)];
    Some(all.into_iter().flatten().collect::<Vec<_>>().join("\nor\n"))
}

/// The time of the oldest of the last samples of both arms, in seconds. None if that
/// cannot be asked; an inner none if the query counts nothing.
pub fn oldest_sample_query(query: &Query) -> Option<Option<String>> {
    let arms = match query {
        Query::Counts(arms) => arms.map(|arm| selector::inner_of_sum(&arm.total).map(str::to_owned)),
        Query::Histogram(arms) => arms.map(|arm| selector::inner_of_sum(arm).map(str::to_owned)),
        Query::Values(arms) => arms.map(|arm| selector::inner_of_sum(&arm.histogram).map(str::to_owned)),
        Query::Scalar(_) | Query::Samples(_) => return Some(None),
    };
    let Arms { canary: Some(canary), primary: Some(primary) } = arms else { return None };
    Some(Some(format!("min(timestamp({canary}) or timestamp({primary}))")))
}

/// By arm, by `part`, `total` or bucket bound, and by pod where the query can tell.
#[derive(Debug, Default, PartialEq)]
pub struct CounterIncreases(BTreeMap<CounterId, f64>);

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct CounterId {
    arm: String,
    counted: String,
    pod: String,
}

impl CounterIncreases {
    /// From the result of [`counts_query`].
    pub fn from_counts(result: &[InstantVector]) -> Result<Option<Self>, PrometheusQueryError> {
        Self::from_response(COUNTED, result)
    }

    /// From the result of [`buckets_query`] or [`values_query`].
    pub fn from_buckets(result: &[InstantVector]) -> Result<Option<Self>, PrometheusQueryError> {
        Self::from_response("le", result)
    }

    /// Each pod of an arm with its `part` and its `total`.
    pub fn by_pod(&self, arm: &str) -> BTreeMap<&str, (u64, u64)> {
        let mut pods = BTreeMap::<&str, (u64, u64)>::new();
        for (id, increase) in self.0.iter().filter(|(id, _)| id.arm == arm) {
            let (part, total) = pods.entry(&id.pod).or_default();
            *(if id.counted == PART { part } else { total }) = rounded(*increase);
        }
        pods
    }

    /// Each bound of an arm with its increase.
    pub fn of_arm<'s>(&'s self, arm: &'s str) -> impl Iterator<Item = (&'s str, u64)> {
        let of_arm = self.0.iter().filter(move |(id, _)| id.arm == arm);
        of_arm.map(|(id, increase)| (id.counted.as_str(), rounded(*increase)))
    }

    fn from_response(label: &str, result: &[InstantVector]) -> Result<Option<Self>, PrometheusQueryError> {
        let mut increases = Self::default();
        let mut has_start = false;
        for series in result {
            let value_of = |name: &str| series.metric().get(name).map(String::as_str).unwrap_or_default();
            let pod = POD_LABELS.into_iter().map(value_of).find(|pod| !pod.is_empty());
            let id = CounterId {
                arm: value_of(ARM).to_owned(),
                counted: value_of(label).to_owned(),
                pod: pod.unwrap_or_default().to_owned(),
            };
            let increase = increases.0.entry(id).or_default();
            let value = series.sample().value();
            if !value.is_finite() {
                return Err(PrometheusQueryError::NotACount(value.to_string()));
            }
            if value_of(SUM_OF) == THEN {
                has_start = true;
                *increase -= value;
            } else {
                *increase += value;
            }
        }
        Ok(has_start.then_some(increases))
    }
}

/// 0 for negative values.
fn rounded(increase: f64) -> u64 {
    increase.round() as u64
}

/// The sums that the increase is computed from, each labelled with `SUM_OF`.
pub fn sums(expression: &str, sum: &str, length: i64) -> Vec<String> {
    let (range, raw) = match selector::inner_of_sum(expression) {
        Some(selector) => (format!("{selector}["), true),
        None => (format!("({})[", expression.trim()), false),
    };
    let end = if raw { "ms]".to_owned() } else { format!("ms:{RESOLUTION}]") };
    // The lookback of the window's start reaches equally far back.
    let now = format!("last_over_time({range}{}{end})", LOOKBACK_MS + length);
    let then = format!("last_over_time({range}{LOOKBACK_MS}{end} offset {length}ms)");
    let one = |of: &str, values: &str| labelled(vec![format!("{sum} ({values})")], SUM_OF, of);
    let mut sums = [one(NOW, &now), one(THEN, &then)].concat();
    if raw {
        sums.extend(one(RESET, &format!("{then} > {now}")));
    }
    sums
}

pub fn labelled(expressions: Vec<String>, label: &str, value: &str) -> Vec<String> {
    let labelled = |expression| format!(r#"label_replace({expression}, "{label}", "{value}", "", "")"#);
    expressions.into_iter().map(labelled).collect()
}

pub fn length_ms(window: Window) -> Option<i64> {
    let length = window.until.as_millisecond() - window.since.as_millisecond();
    (length > 0).then_some(length)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_that_is_no_count_is_refused() {
        for value in ["+Inf", "NaN", "-Inf"] {
            let response = serde_json::json!([{
                "metric": {"serin_arm": "canary", "serin_counted": "total", "serin_sum_of": "then"},
                "value": [0, value],
            }]);
            let series: Vec<InstantVector> = serde_json::from_value(response).expect("a vector");
            assert!(CounterIncreases::from_counts(&series).is_err(), "{value}");
        }
    }

    #[test]
    fn an_empty_window_sends_no_query() {
        let arms = Arms { canary: "a".to_owned(), primary: "b".to_owned() };
        let at = jiff::Timestamp::UNIX_EPOCH;
        assert_eq!(buckets_query(&arms, Window { since: at, until: at }), None);
    }
}
