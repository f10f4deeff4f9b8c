//! Requests of both arms, second by second and pod by pod, as the counters of the
//! pods record them.

use serin::analysis::measurement::Arms;

use crate::random::Random;

/// Bounds of the duration histogram, in seconds; +Inf follows.
pub const BOUNDS: [f64; 10] = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0];

/// A kind of release.
#[derive(Clone)]
pub struct Scenario {
    /// Requests a second, both arms together, in the mean.
    pub rps: f64,
    /// Of each arm.
    pub pods: usize,
    /// Share of failed requests of a healthy arm.
    pub errors: f64,
    /// What both arms share.
    pub shared: Shared,
    /// How the canary differs.
    pub canary: Difference,
    /// When the canary begins to differ, in seconds since it has traffic.
    pub onset: f64,
    /// Coefficient of variation of the error rates of pods.
    pub pod_cv: f64,
    /// Failures that come together, and from when on.
    pub clump: (u64, f64),
    /// Whether durations are measured too.
    pub latency: bool,
    /// Standard deviation of the log of a pod's durations over time, as an AR(1)
    /// process with a memory of a minute.
    pub latency_wander: f64,
    pub source: crate::source::Source,
    pub warmup: &'static str,
    /// Fields of `spec.analysis` besides the metrics.
    pub analysis: &'static str,
}

/// Changes that both arms go through.
#[derive(Clone, Copy, PartialEq)]
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
#[derive(Clone, Copy, PartialEq)]
pub enum Difference {
    None,
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
            canary: Difference::None,
            onset: 0.0,
            pod_cv: 0.0,
            clump: (1, 0.0),
            latency: false,
            latency_wander: 0.0,
            source: crate::source::Source::Scrape,
            warmup: "30s",
            analysis: "interval: 1m, steps: [5, 10, 20, 50, 80]",
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
                Pod { counts: vec![(0, 0)], buckets: vec![Default::default()], ..start }
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

    /// Lets the traffic flow up to this second, with this weight of the canary.
    pub fn run_until(&mut self, second: usize, weight: f64) {
        while self.second < second {
            if weight > 0.0 {
                self.first_traffic.get_or_insert(self.second);
            }
            self.one_second(weight);
        }
    }

    fn one_second(&mut self, weight: f64) {
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
        for (arm, share) in [(true, weight), (false, 1.0 - weight)] {
            let pods = if arm { &mut self.pods.canary } else { &mut self.pods.primary };
            for (index, pod) in pods.iter_mut().enumerate() {
                let (mut failing, mut slower) = ((errors * pod.factor).min(1.0), 1.0);
                let cold = age.is_some_and(|age| age < 30.0);
                if arm {
                    match scenario.canary {
                        Difference::Errors(own) if differs => failing = own,
                        Difference::OnePod(own) if differs && index == 0 => failing = own,
                        Difference::ColdErrors(times) if cold => failing = (failing * times).min(1.0),
                        Difference::ColdLatency(times) if cold => slower = times,
                        Difference::Slower(times) if differs => slower = times,
                        _ => {}
                    }
                }
                let requests = rps * share / each;
                let bad = clump * self.random.poisson(requests * failing / clump as f64);
                let good = self.random.poisson(requests * (1.0 - failing));
                pod.served = (pod.served.0 + bad, pod.served.1 + bad + good);
                let counted = if arm && scenario.canary == Difference::Silent { 0 } else { 1 };
                let (before, total) = *pod.counts.last().expect("a start");
                pod.counts.push((before + counted * bad, total + counted * (bad + good)));
                if scenario.latency {
                    let keep: f64 = 1.0 - 1.0 / 60.0;
                    pod.wander = keep * pod.wander + (1.0 - keep * keep).sqrt() * self.random.normal();
                    let scale = slower * (scenario.latency_wander * pod.wander).exp();
                    let drawn = draw_buckets(&mut self.random, requests, scale);
                    let mut buckets = *pod.buckets.last().expect("a start");
                    buckets.iter_mut().zip(drawn).for_each(|(sum, more)| *sum += more);
                    pod.buckets.push(buckets);
                }
            }
        }
        self.second += 1;
    }

    /// Failed requests that the canary served.
    pub fn bad_served(&self) -> u64 {
        self.pods.canary.iter().map(|pod| pod.served.0).sum()
    }
}

/// Cumulative counts of log-normal durations with a median of 50 ms.
fn draw_buckets(random: &mut Random, requests: f64, scale: f64) -> [u64; BOUNDS.len() + 1] {
    let within = |bound: f64| normal_cdf((bound / (0.05 * scale)).ln() / 0.6);
    let (mut below, mut count) = (0.0, 0);
    std::array::from_fn(|i| {
        let share = BOUNDS.get(i).map_or(1.0, |bound| within(*bound));
        count += random.poisson(requests * (share - below));
        below = share;
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
