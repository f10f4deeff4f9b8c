//! Reading the pods themselves: no Prometheus needed.
//!
//! At each look every pod of both arms is read, in Prometheus' text format, and
//! what its counters grew by since it was last read is added to its arm
//! ([`history`]). Queries are selectors of series, such as
//! `http_requests_total{status=~"5.."}`; of several joined by `or`, the first
//! whose name a pod shows is meant.
//!
//! As a single value a selector means, of counters, how fast the canary's grow,
//! per second; of anything else the mean over the canary's pods.
//!
//! Pods that do not answer are left out, and what they grew by meanwhile counts
//! when they answer again. Only if none of an arm answers is the arm
//! unavailable.

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
use tokio::sync::Semaphore;

use crate::analysis::measurement::{Arms, Counts, Histogram, Measurement};

use super::{
    CountedPart, Endpoint, MeasureContext, MeasurementKind, MetricQuery, MetricSource, Query, SupportedForms,
    Window, metric_query::MetricKey, selector::SelectorError, single_flight::SingleFlight,
};
use history::{CounterHistory, Increase, Sums};
use pod_sample::{CounterKey, Counters, PodSample, SeriesSelectors};

pub use fetch::{Fetch, HttpFetch, endpoint};

pub const SUPPORTED_FORMS: SupportedForms =
    SupportedForms::of(&[MeasurementKind::Scalar, MeasurementKind::Counts, MeasurementKind::Histogram]);

/// A pod that has not answered by then is left out.
const POD_TIMEOUT: Duration = Duration::from_secs(5);

/// So is one whose turn has not come and gone by then.
const POD_DEADLINE: Duration = Duration::from_secs(15);

/// No more of a pod's answer is read.
const MAX_POD_BODY: usize = 8 << 20;

/// As many pods are read at a time, over all Canaries.
const MAX_CONCURRENT_PODS: usize = 32;

/// A memory that nobody asked for so long is dropped.
const HISTORY_TTL: jiff::SignedDuration = jiff::SignedDuration::from_hours(2);

pub struct Scrape {
    fetch: Arc<dyn Fetch>,
    permits: Arc<Semaphore>,
    single_flight: SingleFlight<String, Result<Bytes, String>>,
    metric_states: Mutex<BTreeMap<MetricKey, MetricState>>,
}

/// What is remembered of one metric of one Canary.
struct MetricState {
    query: Query,
    /// What the query means.
    selectors: Arc<Arms<SeriesSelectors>>,
    history: CounterHistory,
}

/// What the pods of one arm said.
struct ArmSamples {
    samples: Vec<(String, PodSample)>,
    failures: Vec<String>,
}

impl Scrape {
    pub fn new(fetch: Arc<dyn Fetch>) -> Self {
        Self {
            fetch,
            permits: Arc::new(Semaphore::new(MAX_CONCURRENT_PODS)),
            single_flight: SingleFlight::default(),
            metric_states: Mutex::default(),
        }
    }

    /// The Canary is gone.
    pub fn forget(&self, namespace: &str, canary: &str) {
        self.metric_states.lock().retain(|of, _| of.namespace != namespace || of.canary != canary);
    }

    /// Reads the pods and enters what they said.
    async fn scrape_all(
        &self,
        metric_query: &MetricQuery,
        context: &MeasureContext<'_>,
    ) -> Result<Arms<ArmSamples>, String> {
        let now = context.window.until;
        let wanted = self.selectors(metric_query, now).map_err(|error| error.to_string())?;
        let (canary, primary) = futures::join!(
            self.read_pods(&context.pods.canary, &wanted.canary),
            self.read_pods(&context.pods.primary, &wanted.primary)
        );
        let answers = Arms { canary, primary };
        // Unless the Canary has gone meanwhile, or asks for something else.
        if let Some(known) = self
            .metric_states
            .lock()
            .get_mut(&metric_query.key)
            .filter(|known| known.query == metric_query.query)
        {
            let said = Arms { canary: answers.canary.counters(), primary: answers.primary.counters() };
            known.history.record(now, context.pods, said);
        }
        Ok(answers)
    }

    /// What a query means, found out once. Another query counts other things,
    /// from nothing on.
    fn selectors(
        &self,
        metric_query: &MetricQuery,
        now: Timestamp,
    ) -> Result<Arc<Arms<SeriesSelectors>>, SelectorError> {
        let mut all = self.metric_states.lock();
        if let Some(known) = all.get(&metric_query.key).filter(|known| known.query == metric_query.query) {
            return Ok(Arc::clone(&known.selectors));
        }
        all.retain(|_, known| now.duration_since(known.history.last_used()) < HISTORY_TTL);
        let wanted = Arc::new(SeriesSelectors::of(&metric_query.query)?);
        let known = MetricState {
            query: metric_query.query.clone(),
            selectors: Arc::clone(&wanted),
            history: CounterHistory::new(now),
        };
        all.insert(metric_query.key.clone(), known);
        Ok(wanted)
    }

    /// What was added in the window.
    fn increase(&self, of: &MetricKey, window: Window) -> Option<Increase> {
        self.metric_states.lock().get_mut(of)?.history.increase(window)
    }

    async fn try_measure(
        &self,
        metric_query: &MetricQuery,
        context: &MeasureContext<'_>,
    ) -> Result<Measurement, String> {
        let answers = self.scrape_all(metric_query, context).await?;
        let increase = self.increase(&metric_query.key, context.window);
        answers.canary.check_any_read("canary")?;
        if let Query::Scalar(_) = metric_query.query {
            return Ok(scalar(&answers.canary, increase));
        }
        answers.primary.check_any_read("primary")?;
        let Some(increase) = increase.filter(|_| answers.canary.has_series() || answers.primary.has_series())
        else {
            return Ok(Measurement::NoData);
        };
        match &metric_query.query {
            Query::Counts(asked) => {
                let arm = |sums: &Sums, part: &CountedPart| {
                    let count = |key| sums.get(&key).copied().unwrap_or(0);
                    match part {
                        CountedPart::Good(_) => {
                            Counts::of_good(count(CounterKey::Part), count(CounterKey::Total))
                        }
                        CountedPart::Bad(_) => {
                            Counts::of_bad(count(CounterKey::Part), count(CounterKey::Total))
                        }
                    }
                };
                Ok(Measurement::Counts(Arms {
                    canary: arm(&increase.arms.canary, &asked.canary.part),
                    primary: arm(&increase.arms.primary, &asked.primary.part),
                }))
            }
            Query::Histogram(_) => {
                let arm = |sums: &Sums| {
                    let buckets = sums.iter().filter_map(|(key, count)| Some((key.bound()?, *count)));
                    match sums.is_empty() {
                        true => Ok(Histogram::default()),
                        false => Histogram::cumulative(buckets).map_err(|error| error.to_string()),
                    }
                };
                Ok(Measurement::Histogram(Arms {
                    canary: arm(&increase.arms.canary)?,
                    primary: arm(&increase.arms.primary)?,
                }))
            }
            Query::Scalar(_) | Query::Samples(_) => {
                Err("the pods themselves cannot tell points over time".to_owned())
            }
        }
    }

    async fn read_pods(&self, pods: &[Endpoint], wanted: &SeriesSelectors) -> ArmSamples {
        let read = join_all(pods.iter().map(|endpoint| self.read_pod(endpoint, wanted))).await;
        let mut answers = ArmSamples { samples: Vec::new(), failures: Vec::new() };
        for (endpoint, read) in pods.iter().zip(read) {
            match read {
                Ok(reading) => answers.samples.push((endpoint.pod.clone(), reading)),
                Err(why) => answers.failures.push(why),
            }
        }
        answers
    }

    async fn read_pod(
        &self,
        Endpoint { url, .. }: &Endpoint,
        wanted: &SeriesSelectors,
    ) -> Result<PodSample, String> {
        let fetching = {
            let (fetch, permits, url) = (self.fetch.clone(), self.permits.clone(), url.clone());
            async move {
                let turn = async {
                    let _permit = permits.acquire_owned().await;
                    tokio::time::timeout(POD_TIMEOUT, fetch.fetch(&url, MAX_POD_BODY)).await
                };
                match tokio::time::timeout(POD_DEADLINE, turn).await {
                    Ok(Ok(fetched)) => fetched,
                    Ok(Err(_)) => Err(format!("no answer within {POD_TIMEOUT:?}")),
                    Err(_) => Err(format!(
                        "not read within {POD_DEADLINE:?}: there are too many pods that do not answer"
                    )),
                }
            }
        };
        let text = self.single_flight.run(url.clone(), fetching).await;
        let read = text.and_then(|render_metrics| wanted.read(&render_metrics));
        read.map_err(|why| format!("{url}: {why}"))
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
                "nothing to open_window a window with"
            );
        }
    }
}

impl ArmSamples {
    /// Fails if there were pods to read and none could be.
    fn check_any_read(&self, arm: &str) -> Result<(), String> {
        match self.failures.first() {
            Some(why) if self.samples.is_empty() => Err(format!("no pod of the {arm} can be read: {why}")),
            _ => Ok(()),
        }
    }

    /// Did any pod show what was wanted?
    fn has_series(&self) -> bool {
        self.samples.iter().any(|(_, reading)| !reading.is_empty())
    }

    fn counters(&self) -> Vec<(&str, &Counters)> {
        self.samples.iter().map(|(pod, reading)| (pod.as_str(), &reading.counters)).collect()
    }
}

fn scalar(canary: &ArmSamples, increase: Option<Increase>) -> Measurement {
    let gauges: Vec<f64> = canary.samples.iter().filter_map(|(_, reading)| reading.gauge).collect();
    if !gauges.is_empty() {
        return Measurement::Scalar(gauges.iter().sum::<f64>() / gauges.len() as f64);
    }
    match increase.filter(|_| canary.has_series()) {
        Some(Increase { arms, seconds }) if seconds > 0.0 => {
            let total = arms.canary.get(&CounterKey::Total).copied().unwrap_or(0);
            Measurement::Scalar(total as f64 / seconds)
        }
        _ => Measurement::NoData,
    }
}
