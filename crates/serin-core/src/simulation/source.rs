//! Models of metric sources: what each knows of the counters at a time.

use super::random::Random;
use super::traffic::{BOUNDS, ORDER_BOUNDS, Pod, Traffic};
use crate::analysis::measurement::{Arms, Counts, Histogram, Measurement, Values};

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Source {
    /// All pods are read at the moment of the check.
    Scrape,
    /// Each pod is read every `every` seconds at a moment of its own, which varies by
    /// up to `jitter`; what is read of the primary arrives `lag` seconds late.
    Prometheus { every: f64, jitter: f64, lag: f64 },
    /// Whole minutes, two minutes later.
    CloudWatch,
}

/// The times at which the pods of one release are read.
pub struct Reader {
    source: Source,
    seed: u64,
}

/// The second up to which each pod is known, and the measured window's end.
impl Reader {
    pub fn new(source: Source, run: u64) -> Self {
        Reader { source, seed: run }
    }

    /// A number in 0..1, the same for the same pod and occasion.
    fn fixed(&self, pod: u64, occasion: u64) -> f64 {
        let mut random = Random::seeded(self.seed ^ (pod << 40) ^ (occasion << 20) ^ 0x5eed);
        random.uniform()
    }

    /// The second of the last reading of a pod that is known at a time.
    fn known(&self, at: f64, primary: bool, pod: usize) -> f64 {
        match self.source {
            Source::Scrape => at,
            Source::CloudWatch => at,
            Source::Prometheus { every, jitter, lag } => {
                let id = pod as u64 * 2 + u64::from(primary);
                let at = at - if primary { lag } else { 0.0 };
                let phase = every * self.fixed(id, 0);
                let mut turn = ((at - phase) / every).floor();
                let moment =
                    |turn: f64| phase + turn * every + jitter * self.fixed(id, (turn + 1000.0) as u64);
                while moment(turn) > at {
                    turn -= 1.0;
                }
                moment(turn).max(0.0)
            }
        }
    }

    /// The window that the source can answer for.
    pub fn available(&self, since: f64, until: f64) -> (f64, f64) {
        match self.source {
            Source::Scrape | Source::Prometheus { .. } => (since, until),
            Source::CloudWatch => {
                let (from, to) = ((since / 60.0).ceil() * 60.0, ((until - 120.0) / 60.0).floor() * 60.0);
                if to > from { (from, to) } else { (since, since) }
            }
        }
    }

    /// The oldest of the last readings of all pods; none if the source cannot tell.
    pub fn known_until(&self, until: f64, pods: usize) -> f64 {
        let all = (0..pods).flat_map(|pod| [self.known(until, false, pod), self.known(until, true, pod)]);
        all.fold(until, f64::min)
    }

    pub fn errors(&self, traffic: &Traffic<'_>, (since, until): (f64, f64)) -> Measurement {
        let arm = |pods: &[Pod], primary: bool| {
            let name = if primary { "primary" } else { "canary" };
            let count = |(index, pod): (usize, &Pod)| {
                let [then, now] =
                    [since, until].map(|at| pod.counts[self.known(at, primary, index) as usize]);
                (format!("{name}-{index}"), Counts::of_bad(now.0 - then.0, now.1 - then.1))
            };
            pods.iter().enumerate().map(count).collect()
        };
        let pods =
            Arms { canary: arm(&traffic.pods.canary, false), primary: arm(&traffic.pods.primary, true) };
        match self.source {
            Source::Scrape | Source::Prometheus { .. } => Measurement::by_pod(pods),
            Source::CloudWatch => Measurement::by_pod(pods).summed(),
        }
    }

    pub fn durations(&self, traffic: &Traffic<'_>, (since, until): (f64, f64)) -> Measurement {
        let arm = |pods: &[Pod], primary: bool| {
            let name = if primary { "primary" } else { "canary" };
            let histogram = |(index, pod): (usize, &Pod)| {
                let [then, now] =
                    [since, until].map(|at| pod.buckets[self.known(at, primary, index) as usize]);
                let counts: Vec<u64> = now.iter().zip(then).map(|(now, then)| now - then).collect();
                let bounds = BOUNDS.into_iter().chain([f64::INFINITY]);
                (format!("{name}-{index}"), Histogram::cumulative(bounds.zip(counts)).unwrap_or_default())
            };
            pods.iter().enumerate().map(histogram).collect()
        };
        let by_pod = Measurement::histograms_by_pod(Arms {
            canary: arm(&traffic.pods.canary, false),
            primary: arm(&traffic.pods.primary, true),
        });
        // The others have too many series to read them by pod.
        match self.source {
            Source::Scrape => by_pod,
            Source::Prometheus { .. } | Source::CloudWatch => by_pod.summed(),
        }
    }

    /// What requests ordered, and all requests.
    pub fn orders(&self, traffic: &Traffic<'_>, (since, until): (f64, f64)) -> Measurement {
        let arm = |pods: &[Pod], primary: bool| {
            let (mut sum, mut requests) = ([0; ORDER_BOUNDS.len() + 1], 0);
            for (index, pod) in pods.iter().enumerate() {
                let [then, now] = [since, until].map(|at| self.known(at, primary, index) as usize);
                (0..sum.len()).for_each(|i| sum[i] += pod.orders[now][i] - pod.orders[then][i]);
                requests += pod.counts[now].1 - pod.counts[then].1;
            }
            let bounds = ORDER_BOUNDS.into_iter().chain([f64::INFINITY]);
            let histogram = Histogram::cumulative(bounds.zip(sum)).unwrap_or_default();
            Values { histogram, requests: Some(requests) }
        };
        Measurement::Values(Arms {
            canary: arm(&traffic.pods.canary, false),
            primary: arm(&traffic.pods.primary, true),
        })
    }
}
