//! An absolute limit beside a comparison: `thresholdRange` of a metric whose judge is
//! `sequential`, as a share of requests.

use serde::{Deserialize, Serialize};

use super::measurement::{Arms, Counts, Histogram, Measurement, SLOW_QUANTILE, sum_of_pods};
use super::threshold::Threshold;

/// The largest share of bad requests that passes.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub enum Floor {
    /// Share of failed requests, from a smallest success rate.
    Failed(f64),
    /// Milliseconds that the 99th percentile may take.
    Slower(f64),
}

impl Floor {
    /// Of a range: the smallest success rate in percent, or the largest 99th
    /// percentile in milliseconds. None for a range with neither.
    pub fn new(range: &Threshold, latency: bool) -> Option<Self> {
        match latency {
            false => range.min().map(|percent| Floor::Failed(1.0 - percent / 100.0)),
            true => range.max().map(Floor::Slower),
        }
    }

    pub fn limit(&self) -> f64 {
        match self {
            Floor::Failed(share) => *share,
            Floor::Slower(_) => 1.0 - SLOW_QUANTILE,
        }
    }

    /// Requests of a measurement, and how many of them count against the limit.
    pub(crate) fn counts(&self, measurement: &Measurement) -> Arms<Counts> {
        match (self, measurement) {
            (Floor::Failed(_), Measurement::Counts(arms)) => *arms,
            (Floor::Failed(_), Measurement::PodCounts(arms)) => arms.map(sum_of_pods),
            (Floor::Slower(_), Measurement::PodHistograms(_)) => self.counts(&measurement.clone().summed()),
            (Floor::Slower(milliseconds), Measurement::Histogram(arms)) => {
                arms.map(|histogram| slower_than(histogram, *milliseconds))
            }
            _ => Arms::default(),
        }
    }
}

/// Linear between bounds, as quantiles are.
fn slower_than(histogram: &Histogram, milliseconds: f64) -> Counts {
    let at = milliseconds * 1e3;
    let (mut from, mut before) = (0.0, 0.0);
    let total = histogram.total();
    for bound in histogram.bounds() {
        let slower = histogram.slower_than(bound).map_or(0, |counts| counts.bad());
        let within = (total - slower) as f64;
        if bound as f64 >= at {
            let part = if bound as f64 > from { (at - from) / (bound as f64 - from) } else { 1.0 };
            return Counts::of_good((before + (within - before) * part).round() as u64, total);
        }
        (from, before) = (bound as f64, within);
    }
    Counts::of_good(before as u64, total)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_becomes_a_share_of_requests() {
        let range = Threshold::new(Some(99.0), None).unwrap();
        let floor = Floor::new(&range, false).unwrap();
        assert!((floor.limit() - 0.01).abs() < 1e-12);
        assert_eq!(Floor::new(&range, true), None, "a least duration limits nothing");
    }

    #[test]
    fn requests_slower_than_a_limit_between_bounds_are_interpolated() {
        let histogram = Histogram::cumulative([(0.1, 60), (0.2, 100), (f64::INFINITY, 110)]).unwrap();
        assert_eq!(slower_than(&histogram, 150.0), Counts::of_good(80, 110));
        assert_eq!(slower_than(&histogram, 200.0), Counts::of_good(100, 110));
        assert_eq!(slower_than(&histogram, 900.0), Counts::of_good(100, 110));
        assert_eq!(slower_than(&histogram, 50.0), Counts::of_good(30, 110));
    }
}
