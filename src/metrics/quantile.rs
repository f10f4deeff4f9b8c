//! One number from a histogram.

use crate::analysis::measurement::Histogram;

/// The duration in milliseconds that this share of requests stayed within, read
/// off as Prometheus does: straight lines between bounds, and the last bound
/// for whatever lies beyond it. Nothing without requests.
pub fn quantile(histogram: &Histogram, share: f64) -> Option<f64> {
    let rank = share * histogram.total() as f64;
    let (mut below, mut slowest) = ((0, 0), None);
    for bound in histogram.bounds() {
        let within = histogram.total() - histogram.slower_than(bound)?.bad();
        if histogram.total() > 0 && within > below.1 && within as f64 >= rank {
            let (from, before) = (below.0 as f64, below.1 as f64);
            let part = (rank - before) / (within as f64 - before);
            return Some((from + (bound as f64 - from) * part) / 1000.0);
        }
        below = (bound, within);
        slowest = Some(bound as f64 / 1000.0);
    }
    slowest.filter(|_| histogram.total() > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(buckets: &[(f64, u64)], total: u64, share: f64, milliseconds: Option<f64>) {
        let buckets = buckets.iter().copied().chain([(f64::INFINITY, total)]);
        let found = quantile(&Histogram::cumulative(buckets).unwrap(), share);
        let near = found.zip(milliseconds).is_none_or(|(found, expected)| (found - expected).abs() < 1e-9);
        assert!(found.is_some() == milliseconds.is_some() && near, "{found:?} is not {milliseconds:?}");
    }

    #[test]
    fn it_is_read_off_between_two_bounds() {
        check(&[(0.1, 50), (0.2, 100)], 100, 0.99, Some(198.0));
        check(&[(0.1, 50), (0.2, 100)], 100, 0.25, Some(50.0));
        check(&[(0.1, 0), (0.2, 0), (0.4, 10)], 10, 0.5, Some(300.0));
    }

    #[test]
    fn beyond_the_last_bound_it_is_the_last_bound() {
        check(&[(0.1, 50), (0.2, 60)], 100, 0.99, Some(200.0));
    }

    #[test]
    fn of_no_requests_there_is_none() {
        check(&[(0.1, 0)], 0, 0.99, None);
        check(&[], 10, 0.99, None);
    }
}
