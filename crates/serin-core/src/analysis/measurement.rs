//! The measurement of one metric at one look.
//!
//! A measurement covers the time since the look before it and nothing else:
//! counts are *increases*, so looks never count a request twice. Raw counters
//! become such counts through [`increase`] and [`Readings`], which treat a
//! counter that fell as reset.
//!
//! A missing measurement is [`Measurement::NoData`] or
//! [`Measurement::Unavailable`], and never evidence against the canary.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use thiserror::Error;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Measurement {
    /// One number about the canary, as a query returns it.
    Scalar(f64),
    /// Requests of both arms and how many of them went wrong.
    Counts(Arms<Counts>),
    /// The same by pod, where the source can tell; see [`Measurement::by_pod`].
    PodCounts(Arms<PodCounts>),
    /// Request durations of both arms.
    Histogram(Arms<Histogram>),
    /// The same by pod, where the source can tell; see [`Measurement::histograms_by_pod`].
    PodHistograms(Arms<PodHistograms>),
    /// Values of requests of both arms, such as the size of an order.
    Values(Arms<Values>),
    /// Points of both arms, without the counts behind them.
    Samples(Arms<Vec<f64>>),
    /// The provider has no data.
    NoData,
    /// The provider could not be reached.
    Unavailable { why: String },
}

/// Counts of each pod of an arm, by its name.
pub type PodCounts = BTreeMap<String, Counts>;

/// Durations of each pod of an arm, by its name.
pub type PodHistograms = BTreeMap<String, Histogram>;

impl Measurement {
    /// Counts by pod. A pod that is in both arms counts requests for both, as a gateway
    /// does, and one without a name is none: then only the sums are known.
    pub fn by_pod(arms: Arms<PodCounts>) -> Self {
        let shared = arms.canary.keys().any(|pod| pod.is_empty() || arms.primary.contains_key(pod))
            || arms.primary.contains_key("");
        let measurement = Measurement::PodCounts(arms);
        if shared { measurement.summed() } else { measurement }
    }

    /// Durations by pod, with the rules of [`Measurement::by_pod`].
    pub fn histograms_by_pod(arms: Arms<PodHistograms>) -> Self {
        let shared = arms.canary.keys().any(|pod| pod.is_empty() || arms.primary.contains_key(pod))
            || arms.primary.contains_key("");
        let measurement = Measurement::PodHistograms(arms);
        if shared { measurement.summed() } else { measurement }
    }

    /// The measurement without its pods.
    pub fn summed(self) -> Self {
        match self {
            Measurement::PodHistograms(arms) => Measurement::Histogram(arms.map(sum_of_histograms)),
            Measurement::PodCounts(arms) => Measurement::Counts(arms.map(sum_of_pods)),
            other => other,
        }
    }
}

/// The counts of all pods together.
pub(crate) fn sum_of_pods(pods: &PodCounts) -> Counts {
    pods.values().fold(Counts::default(), |mut sum, pod| {
        sum.add(*pod);
        sum
    })
}

/// The durations of all pods together.
pub(crate) fn sum_of_histograms(pods: &PodHistograms) -> Histogram {
    pods.values().fold(Histogram::default(), |mut sum, pod| {
        // A pod without requests has no bounds to agree on.
        if pod.total > 0 {
            sum.add(pod);
        }
        sum
    })
}

/// A value of each arm.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Arms<T> {
    pub canary: T,
    pub primary: T,
}

impl<T> Arms<T> {
    pub fn map<U>(&self, f: impl Fn(&T) -> U) -> Arms<U> {
        Arms { canary: f(&self.canary), primary: f(&self.primary) }
    }
}

/// Requests, and how many of them were bad: failed, or slower than some bound.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "RawCounts")]
pub struct Counts {
    bad: u64,
    total: u64,
}

impl Counts {
    /// Good and total requests are often read a moment apart; a good request
    /// that the total does not include yet is no negative bad one.
    pub fn of_good(good: u64, total: u64) -> Self {
        Counts { bad: total.saturating_sub(good), total }
    }

    /// As [`Counts::of_good`], from the other side.
    pub fn of_bad(bad: u64, total: u64) -> Self {
        Counts { bad: bad.min(total), total }
    }

    pub fn bad(&self) -> u64 {
        self.bad
    }

    pub fn total(&self) -> u64 {
        self.total
    }

    /// The share of bad requests; nothing without requests.
    pub fn rate(&self) -> Option<f64> {
        (self.total > 0).then(|| self.bad as f64 / self.total as f64)
    }

    pub(crate) fn add(&mut self, more: Counts) {
        self.bad = self.bad.saturating_add(more.bad);
        self.total = self.total.saturating_add(more.total);
    }
}

#[derive(Deserialize)]
struct RawCounts {
    bad: u64,
    total: u64,
}

#[derive(Debug, Error)]
#[error("{bad} bad requests among {total}")]
struct InvalidCounts {
    bad: u64,
    total: u64,
}

impl TryFrom<RawCounts> for Counts {
    type Error = InvalidCounts;

    fn try_from(RawCounts { bad, total }: RawCounts) -> Result<Self, InvalidCounts> {
        if bad <= total { Ok(Counts { bad, total }) } else { Err(InvalidCounts { bad, total }) }
    }
}

/// Durations as cumulative buckets. Bounds are whole microseconds: exact to
/// compare, to sort and to store.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "RawHistogram")]
pub struct Histogram {
    /// Upper bound in microseconds, and the requests at most that slow.
    buckets: BTreeMap<u64, u64>,
    total: u64,
}

#[derive(Deserialize)]
struct RawHistogram {
    buckets: BTreeMap<u64, u64>,
    total: u64,
}

#[derive(Debug, Error)]
#[error("buckets that are not cumulative, or hold more than all requests")]
struct InvalidBuckets;

impl TryFrom<RawHistogram> for Histogram {
    type Error = InvalidBuckets;

    fn try_from(RawHistogram { buckets, total }: RawHistogram) -> Result<Self, InvalidBuckets> {
        let cumulative = buckets.values().chain([&total]).is_sorted();
        if cumulative { Ok(Histogram { buckets, total }) } else { Err(InvalidBuckets) }
    }
}

/// Values of requests, in any unit: the bounds of their histogram are in millionths of it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Values {
    pub histogram: Histogram,
    /// All requests, where some have no value; those count as zero.
    pub requests: Option<u64>,
}

impl Values {
    /// The distribution over all requests.
    pub fn with_zeros(&self) -> Histogram {
        let mut all = self.histogram.clone();
        let Some(requests) = self.requests else { return all };
        let zeros = requests.saturating_sub(all.total);
        all.buckets.entry(0).or_insert(0);
        all.buckets.values_mut().for_each(|within| *within = within.saturating_add(zeros));
        all.total = all.total.saturating_add(zeros);
        all
    }

    /// One number to show: the share of requests with a value in percent, or, where all
    /// have one, the median.
    pub fn summary(&self) -> Option<f64> {
        match self.requests {
            Some(0) => None,
            Some(requests) => Some(100.0 * self.histogram.total.min(requests) as f64 / requests as f64),
            None => self.histogram.quantile(0.5).map(|thousandths| thousandths / 1e3),
        }
    }

    /// Requests, with and without a value.
    pub fn requests(&self) -> u64 {
        self.requests.map_or(self.histogram.total, |requests| requests.max(self.histogram.total))
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Error)]
pub enum HistogramError {
    #[error("reading a histogram: {0} is no upper bound; a bound is 0 or more")]
    Bound(f64),
    #[error("reading a histogram: there is no +Inf bucket, so the number of requests is unknown")]
    NoTotal,
}

impl Histogram {
    /// From Prometheus' cumulative `le` buckets, bounds in seconds, +Inf among them.
    ///
    /// Buckets are read a moment apart, so a wider one may lag behind a
    /// narrower one by a request or two; it is taken to hold as many.
    pub fn cumulative(buckets: impl IntoIterator<Item = (f64, u64)>) -> Result<Self, HistogramError> {
        let mut histogram = Histogram::default();
        let mut all = None;
        for (seconds, count) in buckets {
            if seconds == f64::INFINITY {
                all = Some(count);
            } else if seconds >= 0.0 {
                histogram.buckets.insert((seconds * 1e6).round() as u64, count);
            } else {
                return Err(HistogramError::Bound(seconds));
            }
        }
        let mut most = 0;
        for count in histogram.buckets.values_mut() {
            most = most.max(*count);
            *count = most;
        }
        histogram.total = all.ok_or(HistogramError::NoTotal)?.max(most);
        Ok(histogram)
    }

    /// From bounds in microseconds and the requests within each.
    pub(crate) fn of_buckets(buckets: BTreeMap<u64, u64>, total: u64) -> Self {
        let most = buckets.values().copied().max().unwrap_or(0);
        Histogram { buckets, total: total.max(most) }
    }

    /// Adds another one, at the bounds that both have.
    pub(crate) fn add(&mut self, more: &Histogram) {
        if self.total == 0 {
            self.clone_from(more);
            return;
        }
        self.buckets.retain(|bound, _| more.buckets.contains_key(bound));
        for (bound, within) in &mut self.buckets {
            *within = within.saturating_add(more.buckets.get(bound).copied().unwrap_or(0));
        }
        self.total = self.total.saturating_add(more.total);
    }

    pub fn total(&self) -> u64 {
        self.total
    }

    /// The bounds, in microseconds, rising.
    pub fn bounds(&self) -> impl Iterator<Item = u64> {
        self.buckets.keys().copied()
    }

    /// Requests slower than a bound this histogram has.
    pub fn slower_than(&self, bound: u64) -> Option<Counts> {
        self.buckets.get(&bound).map(|&within| Counts::of_good(within, self.total))
    }

    /// A quantile in milliseconds, as Prometheus computes it: linear between
    /// bounds, and the last bound for requests beyond it. None without requests.
    pub fn quantile(&self, share: f64) -> Option<f64> {
        let rank = share * self.total as f64;
        let (mut from, mut before) = (0.0, 0);
        for (&bound, &within) in self.buckets.iter().filter(|_| self.total > 0) {
            if within > before && within as f64 >= rank {
                let part = (rank - before as f64) / (within - before) as f64;
                return Some((from + (bound as f64 - from) * part) / 1e3);
            }
            (from, before) = (bound as f64, within);
        }
        (self.total > 0 && !self.buckets.is_empty()).then_some(from / 1e3)
    }
}

/// The quantile that latency is reported at.
pub const SLOW_QUANTILE: f64 = 0.99;

/// Increase of a counter over its successive raw values. A value below the one
/// before it is a reset: all of it is increase.
pub fn increase(raw: impl IntoIterator<Item = f64>) -> f64 {
    let mut raw = raw.into_iter().filter(|value| value.is_finite());
    let Some(mut before) = raw.next() else { return 0.0 };
    raw.fold(0.0, |sum, value| {
        let step = if value < before { value } else { value - before };
        before = value;
        sum + step
    })
}

/// The raw counters of one arm at one look, by series: a pod, a status code.
///
/// Series are compared one by one: in their sum a deleted pod would look like a
/// reset of all the others.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Readings(BTreeMap<String, f64>);

impl Readings {
    /// Increase of all series since an earlier look. A new series counts from
    /// zero; a removed one adds nothing.
    pub fn increase_since(&self, earlier: &Readings) -> u64 {
        let increases = self.0.iter().map(|(series, &now)| {
            let then = earlier.0.get(series).copied().unwrap_or(0.0);
            increase([then, now])
        });
        increases.sum::<f64>().round() as u64
    }
}

impl<S: Into<String>> FromIterator<(S, f64)> for Readings {
    fn from_iter<I: IntoIterator<Item = (S, f64)>>(series: I) -> Self {
        Readings(series.into_iter().map(|(name, value)| (name.into(), value)).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_counter_reset_counts_from_zero() {
        assert_eq!(increase([100.0, 130.0, 4.0, 9.0]), 30.0 + 4.0 + 5.0);
        assert_eq!(increase([7.0]), 0.0);
        assert_eq!(increase([]), 0.0);
        assert_eq!(increase([1.0, f64::NAN, 3.0]), 2.0);
    }

    #[test]
    fn a_deleted_pod_adds_nothing_and_a_new_one_counts_from_zero() {
        let before: Readings = [("a", 100.0), ("b", 5000.0)].into_iter().collect();
        let after: Readings = [("a", 110.0), ("c", 3.0)].into_iter().collect();
        assert_eq!(after.increase_since(&before), 13);
    }

    #[test]
    fn a_good_request_read_before_its_total_is_not_a_negative_bad_one() {
        assert_eq!(Counts::of_good(12, 10), Counts::of_bad(0, 10));
    }

    #[test]
    fn impossible_counts_do_not_deserialize() {
        assert!(serde_json::from_str::<Counts>(r#"{"bad":3,"total":2}"#).is_err());
        for buckets in [r#"{"buckets":{"1":3,"2":2},"total":9}"#, r#"{"buckets":{"1":3},"total":2}"#] {
            assert!(serde_json::from_str::<Histogram>(buckets).is_err(), "{buckets}");
        }
    }

    #[test]
    fn buckets_count_slower_requests() {
        let le = [(f64::INFINITY, 100), (0.1, 60), (0.25, 90), (0.5, 89)];
        let histogram = Histogram::cumulative(le).unwrap();
        assert_eq!(histogram.bounds().collect::<Vec<_>>(), [100_000, 250_000, 500_000]);
        assert_eq!(histogram.slower_than(250_000), Some(Counts::of_bad(10, 100)));
        assert_eq!(histogram.slower_than(500_000), Some(Counts::of_bad(10, 100)));
        assert_eq!(histogram.slower_than(300_000), None);
    }

    #[test]
    fn requests_without_a_value_count_as_zero() {
        let histogram = Histogram::cumulative([(10.0, 2), (50.0, 3), (f64::INFINITY, 4)]).unwrap();
        let values = Values { histogram, requests: Some(100) };
        let all = values.with_zeros();
        assert_eq!(all.slower_than(0), Some(Counts::of_bad(4, 100)));
        assert_eq!(all.slower_than(10_000_000), Some(Counts::of_bad(2, 100)));
        assert_eq!((all.total(), values.summary()), (100, Some(4.0)));
        let orders = Values { requests: None, ..values };
        assert_eq!((orders.with_zeros().total(), orders.summary()), (4, Some(10.0)));
    }

    #[test]
    fn a_histogram_without_a_total_is_refused() {
        assert_eq!(Histogram::cumulative([(0.1, 1)]), Err(HistogramError::NoTotal));
        assert_eq!(Histogram::cumulative([(-0.1, 1)]), Err(HistogramError::Bound(-0.1)));
        assert!(Histogram::cumulative([(f64::NAN, 1)]).is_err());
    }

    #[track_caller]
    fn check_quantile(buckets: &[(f64, u64)], total: u64, share: f64, milliseconds: Option<f64>) {
        let buckets = buckets.iter().copied().chain([(f64::INFINITY, total)]);
        let actual = Histogram::cumulative(buckets).unwrap().quantile(share);
        let near = actual.zip(milliseconds).is_none_or(|(actual, expected)| (actual - expected).abs() < 1e-9);
        assert!(actual.is_some() == milliseconds.is_some() && near, "{actual:?} is not {milliseconds:?}");
    }

    #[test]
    fn a_quantile_is_interpolated_between_two_bounds() {
        check_quantile(&[(0.1, 50), (0.2, 100)], 100, 0.99, Some(198.0));
        check_quantile(&[(0.1, 50), (0.2, 100)], 100, 0.25, Some(50.0));
        check_quantile(&[(0.1, 0), (0.2, 0), (0.4, 10)], 10, 0.5, Some(300.0));
    }

    #[test]
    fn beyond_the_last_bound_a_quantile_is_the_last_bound() {
        check_quantile(&[(0.1, 50), (0.2, 60)], 100, 0.99, Some(200.0));
    }

    #[test]
    fn no_requests_have_no_quantile() {
        check_quantile(&[(0.1, 0)], 0, 0.99, None);
        check_quantile(&[], 10, 0.99, None);
    }

    proptest! {
        #[test]
        fn an_increase_does_not_depend_on_how_often_it_was_read(
            steps in prop::collection::vec(0..1000u32, 1..50),
            skip in 1..5usize,
        ) {
            let raw: Vec<f64> = steps.iter().scan(0.0, |sum, &step| { *sum += f64::from(step); Some(*sum) }).collect();
            let last = raw[raw.len() - 1];
            let sparse = raw.iter().copied().step_by(skip).chain([last]);
            prop_assert_eq!(increase(raw.iter().copied()), increase(sparse));
        }
    }
}
