//! Thresholds that values are counted above.
//!
//! A mean is no statistic to bet a release on: one order out of a heavy tail moves it, and
//! a test of means rolls back 5 to 26 % of healthy releases. So the requests whose value is
//! above a threshold are counted, for a few thresholds. Each is an e-process, as each
//! latency bound is, and their evidence is averaged: exact, whatever the distribution.
//!
//! Thresholds divide the values that the primary had in its past, and are frozen for the
//! release: chosen by the requests that they judge, they would void the error bound. The
//! past is that of the release before. The first release of a Canary learns it from the
//! first requests of its primary, which are not compared.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::compact::{Reader, Writer};
use crate::analysis::measurement::Histogram;

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub(crate) struct Thresholds {
    /// In millionths, rising; empty until the past is known.
    frozen: BTreeSet<u64>,
    /// Values of the primary in the release before.
    past: Histogram,
    /// Likewise in this one.
    present: Histogram,
}

/// Values that a past needs.
pub(super) const MIN_VALUES: u64 = 100;
/// Shares of the values below a threshold.
const QUANTILES: [f64; 4] = [0.25, 0.5, 0.75, 0.9];
/// Of a stored histogram.
const MAX_BOUNDS: u64 = 1000;

impl Thresholds {
    /// Adds a look at the primary, and returns the thresholds to judge it by: those from
    /// before it. None while the past is unknown.
    pub fn update(&mut self, primary: &Histogram) -> Option<&BTreeSet<u64>> {
        if self.frozen.is_empty() {
            let known = [&self.past, &self.present].into_iter().find(|past| values(past) >= MIN_VALUES);
            self.frozen = known.map(dividing).unwrap_or_default();
        }
        self.present.add(primary);
        (!self.frozen.is_empty()).then_some(&self.frozen)
    }

    /// Values of the primary that are known.
    pub fn known(&self) -> u64 {
        values(&self.present)
    }

    pub fn next_release(&self) -> Self {
        let past = if values(&self.present) >= MIN_VALUES { &self.present } else { &self.past };
        Thresholds { past: past.clone(), ..Thresholds::default() }
    }
}

/// Values other than zero.
fn values(histogram: &Histogram) -> u64 {
    histogram.slower_than(0).map_or(histogram.total(), |above| above.bad())
}

/// The bounds nearest to the quantiles of the values other than zero, and zero itself.
fn dividing(past: &Histogram) -> BTreeSet<u64> {
    let all = values(past);
    let above = |bound: u64| past.slower_than(bound).map_or(0, |counts| counts.bad());
    let divides = |bound: &u64| above(*bound) > 0 && above(*bound) < past.total();
    let distance = |bound: u64, quantile: f64| (above(bound) as f64 / all as f64 - (1.0 - quantile)).abs();
    let nearest = QUANTILES.iter().filter_map(|&quantile| {
        let bounds = past.bounds().filter(|bound| *bound > 0 && above(*bound) < all).filter(divides);
        bounds.min_by(|a, b| distance(*a, quantile).total_cmp(&distance(*b, quantile)))
    });
    nearest.chain(past.bounds().filter(|bound| *bound == 0).filter(divides)).collect()
}

impl From<Thresholds> for String {
    fn from(Thresholds { frozen, past, present }: Thresholds) -> String {
        let mut writer = Writer::default();
        writer.count(frozen.len() as u64);
        frozen.iter().for_each(|bound| writer.count(*bound));
        for histogram in [&past, &present] {
            writer.count(histogram.bounds().count() as u64);
            let (mut last, mut before) = (0, 0);
            for bound in histogram.bounds() {
                let within = histogram.slower_than(bound).map_or(0, |counts| counts.total() - counts.bad());
                writer.count(bound - last);
                writer.count(within - before);
                (last, before) = (bound, within);
            }
            writer.count(histogram.total() - before);
        }
        writer.text()
    }
}

#[derive(Debug, Error)]
#[error("no thresholds of this judge")]
pub(crate) struct InvalidThresholds;

impl TryFrom<String> for Thresholds {
    type Error = InvalidThresholds;

    fn try_from(text: String) -> Result<Self, InvalidThresholds> {
        let mut reader = Reader::new(&text);
        let thresholds = Thresholds::read(&mut reader).ok_or(InvalidThresholds)?;
        reader.end().map(|()| thresholds).ok_or(InvalidThresholds)
    }
}

impl Thresholds {
    fn read(reader: &mut Reader<'_>) -> Option<Self> {
        let number = |reader: &mut Reader<'_>| reader.count().filter(|count| *count <= MAX_BOUNDS);
        let frozen = (0..number(reader)?).map(|_| reader.count()).collect::<Option<_>>()?;
        let histogram = |reader: &mut Reader<'_>| {
            let (mut bound, mut within, mut buckets) = (0_u64, 0_u64, BTreeMap::new());
            for _ in 0..number(reader)? {
                bound = bound.checked_add(reader.count()?)?;
                within = within.checked_add(reader.count()?)?;
                buckets.insert(bound, within);
            }
            Some(Histogram::of_buckets(buckets, within.checked_add(reader.count()?)?))
        };
        Some(Thresholds { frozen, past: histogram(reader)?, present: histogram(reader)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// So many requests without a value, and some with one, evenly from 1 to 100.
    fn requests(zeros: u64, values: u64) -> Histogram {
        let within = (0..=10).map(|tens| (tens * 10_000_000, zeros + values * tens / 10)).collect();
        Histogram::of_buckets(within, zeros + values)
    }

    #[test]
    fn thresholds_divide_the_past_and_stay() {
        let mut thresholds = Thresholds::default();
        assert_eq!(thresholds.update(&requests(900, 90)), None);
        assert_eq!(thresholds.update(&requests(900, 90)), None, "a look is not its own past");
        let frozen: Vec<u64> = thresholds.update(&requests(900, 90)).unwrap().iter().copied().collect();
        assert_eq!(frozen, [0, 20, 50, 70, 90].map(|bound| bound * 1_000_000));
        let richer = Histogram::of_buckets([(0, 100), (10_000_000, 200)].into(), 9_000);
        assert_eq!(thresholds.update(&richer).unwrap().len(), 5);
        assert_eq!(thresholds.next_release().update(&richer), Some(&BTreeSet::from([0, 10_000_000])));
    }

    #[test]
    fn values_that_all_requests_have_are_divided_without_zero() {
        let mut thresholds = Thresholds { past: requests(0, 1000), ..Thresholds::default() };
        assert_eq!(thresholds.update(&requests(0, 10)).unwrap().first(), Some(&20_000_000));
    }

    #[test]
    fn a_round_trip_changes_nothing() {
        let mut thresholds = Thresholds::default();
        (0..3).for_each(|_| drop(thresholds.update(&requests(700, 60)).cloned()));
        let text = String::from(thresholds.clone());
        assert!(text.len() < 200, "{text}");
        assert_eq!(Thresholds::try_from(text).unwrap(), thresholds);
        assert!(Thresholds::try_from("zzz".to_owned()).is_err());
    }
}
