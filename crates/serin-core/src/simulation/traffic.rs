//! Requests of both arms, second by second and pod by pod, as the counters of the
//! pods record them.

use super::random::Random;
use super::source::Source;
use crate::analysis::measurement::Arms;

/// Bounds of the duration histogram, in seconds; +Inf follows.
pub const BOUNDS: [f64; 10] = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0];

/// Bounds of the histogram of the values of orders; +Inf follows.
pub const ORDER_BOUNDS: [f64; 12] =
    [5.0, 10.0, 20.0, 30.0, 50.0, 75.0, 100.0, 150.0, 200.0, 300.0, 500.0, 1000.0];

/// A kind of release.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// Requests a second, both arms together, in the mean.
    pub rps: f64,
    /// Of each arm.
    pub pods: usize,
    /// Share of failed requests of a healthy arm.
    pub errors: f64,
    /// What both arms share.
    pub shared: Shared,
    /// How the canary differs, in all of these ways.
    pub canary: Vec<Difference>,
    /// When the canary begins to differ, in seconds since it has traffic.
    pub onset: f64,
    /// Coefficient of variation of the error rates of pods.
    pub pod_cv: f64,
    /// Failures that come together, and from when on.
    pub clump: (u64, f64),
    /// Whether durations are measured too.
    pub latency: bool,
    /// The median of durations, in seconds.
    pub median: f64,
    /// Standard deviation of the log of a pod's durations over time, as an AR(1)
    /// process with a memory of a minute.
    pub latency_wander: f64,
    /// What requests order, where that is measured.
    pub orders: Option<Orders>,
    pub source: Source,
}

/// The share of requests that order, and the standard deviation of the log of what they
/// order: 40 in the median.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Orders {
    pub share: f64,
    pub sigma: f64,
}

/// Changes that both arms go through.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Shared {
    Nothing,
    /// Errors are this many times as frequent, once, for a time in seconds.
    Incident(f64, f64),
    /// All requests fail for this many seconds.
    Failover(f64),
    /// Errors are this many times as frequent from minute five of the release on.
    Broken(f64),
    /// Rate and errors swing by half, over an hour.
    Diurnal,
}

/// How the canary differs from the primary.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Difference {
    /// Its share of failed requests.
    Errors(f64),
    /// One pod's.
    OnePod(f64),
    /// Errors times this for 30 s.
    ColdErrors(f64),
    /// Durations times this for 30 s.
    ColdLatency(f64),
    /// Durations times this.
    Slower(f64),
    /// Durations of one pod, times this.
    SlowPod(f64),
    /// A share of the requests takes longer by so many seconds.
    Delayed(f64, f64),
    /// The median stays, and the 99th percentile is so many seconds.
    Tail(f64),
    /// The share of its requests that order, times this.
    Orders(f64),
    /// The value of its orders, times this.
    OrderValue(f64),
    /// It serves its requests and counts none.
    Silent,
}

impl Scenario {
    pub fn healthy(rps: f64, errors: f64) -> Self {
        Scenario {
            rps,
            pods: 3,
            errors,
            shared: Shared::Nothing,
            canary: Vec::new(),
            onset: 0.0,
            pod_cv: 0.0,
            clump: (1, 0.0),
            latency: false,
            median: 0.05,
            latency_wander: 0.0,
            orders: None,
            source: Source::Scrape,
        }
    }
}

/// Cumulative counters of one pod, by second.
#[derive(Default)]
pub struct Pod {
    /// Errors of this pod, relative to the mean.
    factor: f64,
    wander: f64,
    pub counts: Vec<(u64, u64)>,
    pub buckets: Vec<[u64; BOUNDS.len() + 1]>,
    pub orders: Vec<[u64; ORDER_BOUNDS.len() + 1]>,
    /// Failed and all requests, counted or not.
    pub served: (u64, u64),
}

/// The traffic of one release.
pub struct Traffic<'s> {
    scenario: &'s Scenario,
    random: Random,
    pub pods: Arms<Vec<Pod>>,
    /// When a shared change begins.
    shared_at: f64,
    /// Seconds simulated so far.
    pub second: usize,
    /// When the canary first had traffic.
    pub first_traffic: Option<usize>,
}

impl<'s> Traffic<'s> {
    pub fn new(scenario: &'s Scenario, run: u64) -> Self {
        let mut random = Random::seeded(run);
        let sigma = (1.0 + scenario.pod_cv.powi(2)).ln().sqrt();
        let pods = |random: &mut Random| {
            let pod = |random: &mut Random| {
                let start = Pod {
                    factor: (sigma * random.normal() - sigma * sigma / 2.0).exp(),
                    wander: random.normal(),
                    ..Pod::default()
                };
                let orders = vec![Default::default()];
                Pod { counts: vec![(0, 0)], buckets: vec![Default::default()], orders, ..start }
            };
            (0..scenario.pods).map(|_| pod(random)).collect()
        };
        let (canary, primary) = (pods(&mut random), pods(&mut random));
        // In the course of the first four steps, at any part of a scrape.
        let shared_at = match scenario.shared {
            Shared::Broken(_) => 600.0,
            _ => 150.0 + 900.0 * random.uniform(),
        };
        Traffic {
            scenario,
            random,
            pods: Arms { canary, primary },
            shared_at,
            second: 0,
            first_traffic: None,
        }
    }

    /// The shares of both arms at a weight of the canary.
    pub fn split(weight: f64) -> Arms<f64> {
        Arms { canary: weight, primary: 1.0 - weight }
    }

    /// Lets the traffic flow up to this second, with these shares of the requests.
    pub fn run_until(&mut self, second: usize, shares: Arms<f64>) {
        while self.second < second {
            if shares.canary > 0.0 {
                self.first_traffic.get_or_insert(self.second);
            }
            self.one_second(shares);
        }
    }

    fn one_second(&mut self, shares: Arms<f64>) {
        let scenario = self.scenario;
        let at = self.second as f64;
        let swing = (at / 3600.0 * std::f64::consts::TAU).sin() / 2.0;
        let since = at - self.shared_at;
        let (mut rps, mut errors) = (scenario.rps, scenario.errors);
        match scenario.shared {
            Shared::Incident(times, lasts) if (0.0..lasts).contains(&since) => errors *= times,
            Shared::Failover(lasts) if (0.0..lasts).contains(&since) => errors = 1.0,
            Shared::Broken(times) if since >= 0.0 => errors *= times,
            Shared::Diurnal => (rps, errors) = (rps * (1.0 + swing), errors * (1.0 - swing)),
            _ => {}
        }
        let errors = errors.min(1.0);
        let age = self.first_traffic.map(|first| at - first as f64);
        let differs = age.is_some_and(|age| age >= scenario.onset);
        let clump = if at >= scenario.clump.1 { scenario.clump.0 } else { 1 };
        let each = scenario.pods as f64;
        for (arm, share) in [(true, shares.canary), (false, shares.primary)] {
            let pods = if arm { &mut self.pods.canary } else { &mut self.pods.primary };
            for (index, pod) in pods.iter_mut().enumerate() {
                let (mut failing, mut slower) = ((errors * pod.factor).min(1.0), 1.0);
                let (mut delayed, mut spread, mut counted) = ((0.0, 0.0), SPREAD, 1);
                let (mut ordering, mut worth) = (1.0, 1.0);
                let cold = age.is_some_and(|age| age < 30.0);
                for difference in scenario.canary.iter().filter(|_| arm) {
                    match *difference {
                        Difference::Errors(own) if differs => failing = own,
                        Difference::OnePod(own) if differs && index == 0 => failing = own,
                        Difference::ColdErrors(times) if cold => failing = (failing * times).min(1.0),
                        Difference::ColdLatency(times) if cold => slower *= times,
                        Difference::Slower(times) if differs => slower *= times,
                        Difference::Delayed(share, by) if differs => delayed = (share, by),
                        Difference::Tail(p99) if differs => {
                            spread = ((p99 / scenario.median).ln() / Z99).max(SPREAD_MIN);
                        }
                        Difference::SlowPod(times) if differs && index == 0 => slower *= times,
                        Difference::Orders(times) if differs => ordering = times,
                        Difference::OrderValue(times) if differs => worth = times,
                        Difference::Silent => counted = 0,
                        _ => {}
                    }
                }
                let requests = rps * share / each;
                let bad = clump * self.random.poisson(requests * failing / clump as f64);
                let good = self.random.poisson(requests * (1.0 - failing));
                pod.served = (pod.served.0 + bad, pod.served.1 + bad + good);
                let (before, total) = pod.counts.last().copied().unwrap_or_default();
                pod.counts.push((before + counted * bad, total + counted * (bad + good)));
                if let Some(Orders { share, sigma }) = scenario.orders {
                    let ordered = (bad + good) as f64 * share * ordering;
                    let within = |bound: f64| normal_cdf((bound / (MEDIAN_ORDER * worth)).ln() / sigma);
                    let drawn = draw_buckets(&mut self.random, ordered, &ORDER_BOUNDS, within);
                    add(&mut pod.orders, drawn);
                }
                if scenario.latency {
                    let keep: f64 = 1.0 - 1.0 / 60.0;
                    pod.wander = keep * pod.wander + (1.0 - keep * keep).sqrt() * self.random.normal();
                    let scale = slower * (scenario.latency_wander * pod.wander).exp();
                    let durations = Durations { median: scenario.median * scale, spread, delayed };
                    let within = |bound| durations.within(bound);
                    add(&mut pod.buckets, draw_buckets(&mut self.random, requests, &BOUNDS, within));
                }
            }
        }
        self.second += 1;
    }

    /// Failed and all requests that the canary served.
    pub fn canary_served(&self) -> (u64, u64) {
        let served = self.pods.canary.iter().map(|pod| pod.served);
        served.fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1))
    }
}

/// Standard deviation of the logarithm of durations: a 99th percentile of four medians.
const SPREAD: f64 = 0.6;
/// Durations are never all the same.
const SPREAD_MIN: f64 = 0.01;
/// The 99th percentile of the standard normal distribution.
const Z99: f64 = 2.326_347_874;

/// Log-normal durations, of which a share takes longer by so many seconds.
#[derive(Clone, Copy)]
struct Durations {
    median: f64,
    spread: f64,
    delayed: (f64, f64),
}

impl Durations {
    /// The share of requests that take at most this many seconds.
    fn within(&self, bound: f64) -> f64 {
        let (share, by) = self.delayed;
        let prompt = |bound: f64| match bound > 0.0 {
            true => normal_cdf((bound / self.median).ln() / self.spread),
            false => 0.0,
        };
        (1.0 - share) * prompt(bound) + share * prompt(bound - by)
    }
}

/// The median value of an order.
const MEDIAN_ORDER: f64 = 40.0;

/// Appends the sums of a counter after a second that adds this much.
fn add<const N: usize>(counter: &mut Vec<[u64; N]>, more: [u64; N]) {
    let mut sums = counter.last().copied().unwrap_or([0; N]);
    sums.iter_mut().zip(more).for_each(|(sum, more)| *sum += more);
    counter.push(sums);
}

/// Cumulative counts by bucket, of which `within` gives the share up to a bound.
fn draw_buckets<const N: usize>(
    random: &mut Random,
    events: f64,
    bounds: &[f64],
    within: impl Fn(f64) -> f64,
) -> [u64; N] {
    let (mut below, mut count) = (0.0, 0);
    std::array::from_fn(|i| {
        let part = bounds.get(i).map_or(1.0, |bound| within(*bound));
        count += random.poisson(events * (part - below).max(0.0));
        below = part;
        count
    })
}

/// To four digits (Abramowitz and Stegun 26.2.17).
fn normal_cdf(z: f64) -> f64 {
    let t = 1.0 / (1.0 + 0.2316419 * z.abs());
    let poly =
        t * (0.319381530 + t * (-0.356563782 + t * (1.781477937 + t * (-1.821255978 + t * 1.330274429))));
    let tail = (-z * z / 2.0).exp() / std::f64::consts::TAU.sqrt() * poly;
    if z > 0.0 { 1.0 - tail } else { tail }
}
