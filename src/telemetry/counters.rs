//! Counters and histograms with labels, as the metrics page reads them.

use std::{borrow::Cow, collections::BTreeMap};

use parking_lot::Mutex;
use serde::Serialize;

/// Values of a series' labels; few distinct ones.
pub type LabelValues<const N: usize> = [Cow<'static, str>; N];

/// The serialized form of an enum value.
pub fn label_value(value: &impl Serialize) -> Cow<'static, str> {
    match serde_json::to_value(value) {
        Ok(serde_json::Value::String(word)) => Cow::Owned(word),
        _ => Cow::Borrowed("unknown"),
    }
}

/// A counter per label values.
#[derive(Debug)]
pub struct CounterVec<const N: usize>(Mutex<BTreeMap<LabelValues<N>, u64>>);

impl<const N: usize> CounterVec<N> {
    /// Known label values start at zero, so that the first count is an increase.
    pub fn with_labels(known: impl IntoIterator<Item = LabelValues<N>>) -> Self {
        Self(Mutex::new(known.into_iter().map(|labels| (labels, 0)).collect()))
    }

    pub fn inc(&self, labels: LabelValues<N>) {
        *self.0.lock().entry(labels).or_default() += 1;
    }

    pub fn snapshot(&self) -> BTreeMap<LabelValues<N>, u64> {
        self.0.lock().clone()
    }
}

/// A histogram per label values.
#[derive(Debug)]
pub struct DurationHistogramVec<const N: usize> {
    bounds: &'static [f64],
    series: Mutex<BTreeMap<LabelValues<N>, DurationHistogram>>,
}

impl<const N: usize> DurationHistogramVec<N> {
    /// `bounds` are the upper bounds of the buckets, ascending.
    pub fn with_buckets(bounds: &'static [f64], known: impl IntoIterator<Item = LabelValues<N>>) -> Self {
        let rows =
            known.into_iter().map(|labels| (labels, DurationHistogram::with_buckets(bounds))).collect();
        Self { bounds, series: Mutex::new(rows) }
    }

    pub fn observe(&self, labels: LabelValues<N>, value: f64) {
        self.series
            .lock()
            .entry(labels)
            .or_insert_with(|| DurationHistogram::with_buckets(self.bounds))
            .observe(value);
    }

    pub fn snapshot(&self) -> BTreeMap<LabelValues<N>, DurationHistogram> {
        self.series.lock().clone()
    }
}

/// Counts values in buckets.
#[derive(Clone, Debug, PartialEq)]
pub struct DurationHistogram {
    bounds: &'static [f64],
    /// One per bound, and one beyond the last.
    counts: Vec<u64>,
    pub sum: f64,
}

impl DurationHistogram {
    pub fn with_buckets(bounds: &'static [f64]) -> Self {
        Self { bounds, counts: vec![0; bounds.len() + 1], sum: 0.0 }
    }

    pub fn observe(&mut self, value: f64) {
        let bucket = self.bounds.partition_point(|bound| *bound < value);
        self.counts[bucket] += 1;
        self.sum += value;
    }

    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Each bound with its cumulative count; the last bound is infinite.
    pub fn cumulative(&self) -> impl Iterator<Item = (f64, u64)> {
        let bounds = self.bounds.iter().copied().chain([f64::INFINITY]);
        let mut within = 0;
        bounds.zip(&self.counts).map(move |(bound, count)| {
            within += count;
            (bound, within)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_within_every_bound_that_is_not_below_it() {
        let mut seen = DurationHistogram::with_buckets(&[1.0, 5.0]);
        for value in [0.5, 1.0, 1.5, 70.0] {
            seen.observe(value);
        }
        assert_eq!(seen.cumulative().collect::<Vec<_>>(), [(1.0, 2), (5.0, 3), (f64::INFINITY, 4)]);
        assert_eq!((seen.count(), seen.sum), (4, 73.0));
    }
}
