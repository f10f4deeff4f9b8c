//! Scrapes the pods directly: no Prometheus needed.
//!
//! At each check every pod of both arms is scraped, in Prometheus' text format,
//! and the increase of its counters since the last scrape is added to its arm
//! ([`history`]). Queries are series selectors, such as
//! `http_requests_total{status=~"5.."}`; of several joined by `or`, the first
//! whose name a pod exports is used.
//!
//! The single value of a selector is, for counters, the canary's rate per second;
//! for other types the mean over the canary's pods.
//!
//! Unreachable pods are skipped; their increase counts when they can be scraped
//! again. An arm is unavailable only if none of its pods can be scraped.

mod exposition;
mod fetch;
mod history;
mod pod_sample;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures::future::join_all;
use jiff::Timestamp;
use parking_lot::Mutex;

use crate::analysis::measurement::{Arms, Counts, Histogram, Measurement, PodHistograms, Values};
use crate::fair_pool::{FairPool, Limits};

use super::{
    CountedPart, Endpoint, MeasureContext, MeasurementKind, MetricQuery, MetricSource, Query, SupportedForms,
    UnsupportedScheme, ValueQueries, Window, metric_query::MetricKey, off_loop, selector::SelectorError,
    single_flight::SingleFlight,
};
use history::{CounterHistory, Increase, PodSums, Sums, sum_of_pods};
use pod_sample::{CounterKey, Counters, PodSample, SeriesSelectors};

pub use fetch::{Fetch, HttpFetch, endpoint};

pub const SUPPORTED_FORMS: SupportedForms = SupportedForms::of(&[
    MeasurementKind::Scalar,
    MeasurementKind::Counts,
    MeasurementKind::Histogram,
    MeasurementKind::Values,
]);

/// Of one request.
const POD_TIMEOUT: Duration = Duration::from_secs(5);

/// Of one request, with the wait for a turn.
const POD_DEADLINE: Duration = Duration::from_secs(15);

/// In bytes.
const MAX_POD_BODY: usize = 8 << 20;

/// Pods that are scraped at a time. All pods of a Canary may wait: the deadline
/// ends that.
const POD_LIMITS: Limits =
    Limits { total: 128, per_namespace: 64, per_canary: 16, waiting_per_canary: usize::MAX >> 1 };

/// History that is not used for this long is dropped.
const HISTORY_TTL: jiff::SignedDuration = jiff::SignedDuration::from_hours(2);

pub struct Scrape {
    fetch: Arc<dyn Fetch>,
    pool: Arc<FairPool>,
    single_flight: SingleFlight<String, Result<Bytes, String>>,
    metric_states: Mutex<BTreeMap<MetricKey, MetricState>>,
}

/// Of one metric of one Canary.
struct MetricState {
    query: Query,
    /// Parsed from `query`.
    selectors: Arms<Arc<SeriesSelectors>>,
    history: CounterHistory,
}

struct ArmSamples {
    samples: Vec<(String, PodSample)>,
    failures: Vec<String>,
}

impl Scrape {
    pub fn new(fetch: Arc<dyn Fetch>) -> Self {
        Self {
            fetch,
            pool: FairPool::new(POD_LIMITS),
            single_flight: SingleFlight::default(),
            metric_states: Mutex::default(),
        }
    }

    /// Drops the state of a deleted Canary.
    pub fn forget(&self, namespace: &str, canary: &str) {
        self.metric_states.lock().retain(|key, _| key.namespace != namespace || key.canary != canary);
    }

    /// Scrapes the pods and records their counters.
    async fn scrape_all(
        &self,
        metric_query: &MetricQuery,
        context: &MeasureContext<'_>,
    ) -> Result<Arms<ArmSamples>, String> {
        let now = context.window.until;
        let selectors = self.selectors(metric_query, now).map_err(|error| error.to_string())?;
        let (canary, primary) = futures::join!(
            self.read_pods(&metric_query.key, &context.pods.canary, &selectors.canary),
            self.read_pods(&metric_query.key, &context.pods.primary, &selectors.primary)
        );
        let samples = Arms { canary, primary };
        // Unless the Canary was deleted or its query changed meanwhile.
        if let Some(state) = self
            .metric_states
            .lock()
            .get_mut(&metric_query.key)
            .filter(|state| state.query == metric_query.query)
        {
            let scraped = Arms { canary: samples.canary.counters(), primary: samples.primary.counters() };
            state.history.record(now, context.pods, scraped);
        }
        Ok(samples)
    }

    /// Parsed once per query. A changed query starts a new history.
    fn selectors(
        &self,
        metric_query: &MetricQuery,
        now: Timestamp,
    ) -> Result<Arms<Arc<SeriesSelectors>>, SelectorError> {
        let mut states = self.metric_states.lock();
        if let Some(state) = states.get(&metric_query.key).filter(|state| state.query == metric_query.query) {
            return Ok(state.selectors.clone());
        }
        states.retain(|_, state| now.duration_since(state.history.last_used()) < HISTORY_TTL);
        let Arms { canary, primary } = SeriesSelectors::of(&metric_query.query)?;
        let selectors = Arms { canary: Arc::new(canary), primary: Arc::new(primary) };
        let state = MetricState {
            query: metric_query.query.clone(),
            selectors: selectors.clone(),
            history: CounterHistory::new(now),
        };
        states.insert(metric_query.key.clone(), state);
        Ok(selectors)
    }

    fn increase(&self, key: &MetricKey, window: Window) -> Option<Increase> {
        self.metric_states.lock().get_mut(key)?.history.increase(window)
    }

    async fn try_measure(
        &self,
        metric_query: &MetricQuery,
        context: &MeasureContext<'_>,
    ) -> Result<Measurement, String> {
        let samples = self.scrape_all(metric_query, context).await?;
        let increase = self.increase(&metric_query.key, context.window);
        samples.canary.check_any_read("canary")?;
        if let Query::Scalar(_) = metric_query.query {
            return Ok(scalar(&samples.canary, increase));
        }
        samples.primary.check_any_read("primary")?;
        let Some(increase) = increase.filter(|_| samples.canary.has_series() || samples.primary.has_series())
        else {
            return Ok(Measurement::NoData);
        };
        match &metric_query.query {
            Query::Counts(queries) => {
                let arm = |pods: &PodSums, part: &CountedPart| {
                    let counts = |sums: &Sums| {
                        let count = |key| whole(sums.get(&key).copied().unwrap_or(0.0));
                        let (counted, total) = (count(CounterKey::Part), count(CounterKey::Total));
                        match part {
                            CountedPart::Good(_) => Counts::of_good(counted, total),
                            CountedPart::Bad(_) => Counts::of_bad(counted, total),
                        }
                    };
                    pods.iter().map(|(pod, sums)| (pod.clone(), counts(sums))).collect()
                };
                Ok(Measurement::by_pod(Arms {
                    canary: arm(&increase.arms.canary, &queries.canary.part),
                    primary: arm(&increase.arms.primary, &queries.primary.part),
                }))
            }
            Query::Histogram(_) => {
                let arm = |pods: &PodSums| -> Result<PodHistograms, String> {
                    pods.iter().map(|(pod, sums)| Ok((pod.clone(), histogram(sums)?))).collect()
                };
                Ok(Measurement::histograms_by_pod(Arms {
                    canary: arm(&increase.arms.canary)?,
                    primary: arm(&increase.arms.primary)?,
                }))
            }
            Query::Values(queries) => {
                let arm = |pods: &PodSums, queries: &ValueQueries| -> Result<Values, String> {
                    let sums = sum_of_pods(pods);
                    let total = sums.get(&CounterKey::Total).copied().unwrap_or(0.0);
                    let requests = queries.total.as_ref().map(|_| whole(total));
                    Ok(Values { histogram: histogram(&sums)?, requests })
                };
                Ok(Measurement::Values(Arms {
                    canary: arm(&increase.arms.canary, &queries.canary)?,
                    primary: arm(&increase.arms.primary, &queries.primary)?,
                }))
            }
            Query::Scalar(_) | Query::Samples(_) => {
                Err("scraped pods provide no points over time".to_owned())
            }
        }
    }

    async fn read_pods(
        &self,
        key: &MetricKey,
        pods: &[Endpoint],
        selectors: &Arc<SeriesSelectors>,
    ) -> ArmSamples {
        let results = join_all(pods.iter().map(|endpoint| self.read_pod(key, endpoint, selectors))).await;
        let mut arm = ArmSamples { samples: Vec::new(), failures: Vec::new() };
        for (endpoint, result) in pods.iter().zip(results) {
            match result {
                Ok(sample) => arm.samples.push((endpoint.pod.clone(), sample)),
                Err(why) => arm.failures.push(why),
            }
        }
        arm
    }

    async fn read_pod(
        &self,
        key: &MetricKey,
        Endpoint { url, .. }: &Endpoint,
        selectors: &Arc<SeriesSelectors>,
    ) -> Result<PodSample, String> {
        let url = url.as_ref().map_err(UnsupportedScheme::to_string)?;
        let request = {
            let (fetch, url) = (self.fetch.clone(), url.clone());
            let place = self.pool.enter(&key.namespace, &key.canary);
            async move {
                let in_turn = async {
                    let _turn = match &place {
                        Some(place) => place.turn().await.ok(),
                        None => None,
                    };
                    tokio::time::timeout(POD_TIMEOUT, fetch.fetch(&url, MAX_POD_BODY)).await
                };
                match tokio::time::timeout(POD_DEADLINE, in_turn).await {
                    Ok(Ok(fetched)) => fetched,
                    Ok(Err(_)) => Err(format!("no response within {POD_TIMEOUT:?}")),
                    Err(_) => {
                        Err(format!("not scraped within {POD_DEADLINE:?}: too many pods do not respond"))
                    }
                }
            }
        };
        let text = self.single_flight.run(url.clone(), request).await;
        let sample = match text {
            Ok(text) => {
                let selectors = Arc::clone(selectors);
                let read = off_loop::read(text.len(), move || selectors.read(&text)).await;
                read.map_err(|over| format!("it {over}")).and_then(|sample| sample)
            }
            Err(why) => Err(why),
        };
        sample.map_err(|why| format!("{url}: {why}"))
    }
}

#[async_trait]
impl MetricSource for Scrape {
    fn supported_forms(&self) -> SupportedForms {
        SUPPORTED_FORMS
    }

    async fn measure(&self, metric_query: &MetricQuery, context: &MeasureContext<'_>) -> Measurement {
        self.try_measure(metric_query, context).await.unwrap_or_else(|why| Measurement::Unavailable { why })
    }

    async fn open_window(&self, metric_query: &MetricQuery, context: &MeasureContext<'_>) {
        if let Err(why) = self.scrape_all(metric_query, context).await {
            tracing::debug!(
                metric = metric_query.key.metric,
                canary = metric_query.key.canary,
                why,
                "no samples at the start of the window"
            );
        }
    }
}

impl ArmSamples {
    /// Fails if there are pods and none could be scraped.
    fn check_any_read(&self, arm: &str) -> Result<(), String> {
        match self.failures.first() {
            Some(why) if self.samples.is_empty() => Err(format!("no pod of the {arm} can be scraped: {why}")),
            _ => Ok(()),
        }
    }

    fn has_series(&self) -> bool {
        self.samples.iter().any(|(_, sample)| !sample.is_empty())
    }

    fn counters(&self) -> Vec<(&str, &Counters)> {
        self.samples.iter().map(|(pod, sample)| (pod.as_str(), &sample.counters)).collect()
    }
}

fn histogram(sums: &Sums) -> Result<Histogram, String> {
    let buckets: Vec<(f64, u64)> =
        sums.iter().filter_map(|(key, count)| Some((key.bound()?, whole(*count)))).collect();
    match buckets.is_empty() {
        true => Ok(Histogram::default()),
        false => Histogram::cumulative(buckets).map_err(|error| error.to_string()),
    }
}

/// Requests are whole numbers.
fn whole(count: f64) -> u64 {
    count.round() as u64
}

fn scalar(canary: &ArmSamples, increase: Option<Increase>) -> Measurement {
    let gauges: Vec<f64> = canary.samples.iter().filter_map(|(_, sample)| sample.gauge).collect();
    if !gauges.is_empty() {
        return Measurement::Scalar(gauges.iter().sum::<f64>() / gauges.len() as f64);
    }
    match increase.filter(|_| canary.has_series()) {
        Some(Increase { arms, seconds }) if seconds > 0.0 => {
            let total = sum_of_pods(&arms.canary).get(&CounterKey::Total).copied().unwrap_or(0.0);
            Measurement::Scalar(total / seconds)
        }
        _ => Measurement::NoData,
    }
}
