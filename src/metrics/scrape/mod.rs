//! Reading the pods themselves: no Prometheus needed.
//!
//! At each look every pod of both arms is read, in Prometheus' text format, and
//! what its counters grew by since it was last read is added to its arm
//! ([`ledger`]). Queries are selectors of series, such as
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
mod ledger;
mod reading;

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
    Abilities, Ask, Endpoint, Form, MetricSource, Part, Query, View, Window, ask::MetricOf,
    in_flight::InFlight, selector::BadSelector,
};
use ledger::{Growth, Ledger, Sums};
use reading::{Counters, Reading, Slot, Wanted};

pub use fetch::{Fetch, HttpFetch, endpoint};

pub const ABILITIES: Abilities = Abilities::of(&[Form::Scalar, Form::Counts, Form::Histogram]);

/// A pod that has not answered by then is left out.
const PATIENCE: Duration = Duration::from_secs(5);

/// So is one whose turn has not come and gone by then.
const LATEST: Duration = Duration::from_secs(15);

/// No more of a pod's answer is read.
const LARGEST: usize = 8 << 20;

/// As many pods are read at a time, over all Canaries.
const AT_A_TIME: usize = 32;

/// A memory that nobody asked for so long is dropped.
const FORGOTTEN_AFTER: jiff::SignedDuration = jiff::SignedDuration::from_hours(2);

pub struct Scrape {
    fetch: Arc<dyn Fetch>,
    permits: Arc<Semaphore>,
    in_flight: InFlight<String, Result<Bytes, String>>,
    known: Mutex<BTreeMap<MetricOf, Known>>,
}

/// What is remembered of one metric of one Canary.
struct Known {
    query: Query,
    /// What the query means.
    wanted: Arc<Arms<Wanted>>,
    ledger: Ledger,
}

/// What the pods of one arm said.
struct Answers {
    readings: Vec<(String, Reading)>,
    failures: Vec<String>,
}

impl Scrape {
    pub fn new(fetch: Arc<dyn Fetch>) -> Self {
        Self {
            fetch,
            permits: Arc::new(Semaphore::new(AT_A_TIME)),
            in_flight: InFlight::default(),
            known: Mutex::default(),
        }
    }

    /// The Canary is gone.
    pub fn forget(&self, namespace: &str, canary: &str) {
        self.known.lock().retain(|of, _| of.namespace != namespace || of.canary != canary);
    }

    /// Reads the pods and enters what they said.
    async fn look(&self, ask: &Ask, view: &View<'_>) -> Result<Arms<Answers>, String> {
        let now = view.window.until;
        let wanted = self.wanted(ask, now).map_err(|error| error.to_string())?;
        let (canary, primary) = futures::join!(
            self.read_all(&view.pods.canary, &wanted.canary),
            self.read_all(&view.pods.primary, &wanted.primary)
        );
        let answers = Arms { canary, primary };
        // Unless the Canary has gone meanwhile, or asks for something else.
        if let Some(known) = self.known.lock().get_mut(&ask.of).filter(|known| known.query == ask.query) {
            let said = Arms { canary: answers.canary.counters(), primary: answers.primary.counters() };
            known.ledger.enter(now, view.pods, said);
        }
        Ok(answers)
    }

    /// What a query means, found out once. Another query counts other things,
    /// from nothing on.
    fn wanted(&self, ask: &Ask, now: Timestamp) -> Result<Arc<Arms<Wanted>>, BadSelector> {
        let mut all = self.known.lock();
        if let Some(known) = all.get(&ask.of).filter(|known| known.query == ask.query) {
            return Ok(Arc::clone(&known.wanted));
        }
        all.retain(|_, known| now.duration_since(known.ledger.last_used()) < FORGOTTEN_AFTER);
        let wanted = Arc::new(Wanted::of(&ask.query)?);
        let known = Known { query: ask.query.clone(), wanted: Arc::clone(&wanted), ledger: Ledger::new(now) };
        all.insert(ask.of.clone(), known);
        Ok(wanted)
    }

    /// What was added in the window.
    fn growth(&self, of: &MetricOf, window: Window) -> Option<Growth> {
        self.known.lock().get_mut(of)?.ledger.growth(window)
    }

    async fn answer(&self, ask: &Ask, view: &View<'_>) -> Result<Measurement, String> {
        let answers = self.look(ask, view).await?;
        let growth = self.growth(&ask.of, view.window);
        answers.canary.any("canary")?;
        if let Query::Scalar(_) = ask.query {
            return Ok(scalar(&answers.canary, growth));
        }
        answers.primary.any("primary")?;
        let Some(growth) = growth.filter(|_| answers.canary.told() || answers.primary.told()) else {
            return Ok(Measurement::NoData);
        };
        match &ask.query {
            Query::Counts(asked) => {
                let arm = |slots: &Sums, part: &Part| {
                    let count = |slot| slots.get(&slot).copied().unwrap_or(0);
                    match part {
                        Part::Good(_) => Counts::of_good(count(Slot::Part), count(Slot::Total)),
                        Part::Bad(_) => Counts::of_bad(count(Slot::Part), count(Slot::Total)),
                    }
                };
                Ok(Measurement::Counts(Arms {
                    canary: arm(&growth.arms.canary, &asked.canary.part),
                    primary: arm(&growth.arms.primary, &asked.primary.part),
                }))
            }
            Query::Histogram(_) => {
                let arm = |slots: &Sums| {
                    let buckets = slots.iter().filter_map(|(slot, count)| Some((slot.bound()?, *count)));
                    match slots.is_empty() {
                        true => Ok(Histogram::default()),
                        false => Histogram::cumulative(buckets).map_err(|error| error.to_string()),
                    }
                };
                Ok(Measurement::Histogram(Arms {
                    canary: arm(&growth.arms.canary)?,
                    primary: arm(&growth.arms.primary)?,
                }))
            }
            Query::Scalar(_) | Query::Samples(_) => {
                Err("the pods themselves cannot tell points over time".to_owned())
            }
        }
    }

    async fn read_all(&self, pods: &[Endpoint], wanted: &Wanted) -> Answers {
        let read = join_all(pods.iter().map(|endpoint| self.read(endpoint, wanted))).await;
        let mut answers = Answers { readings: Vec::new(), failures: Vec::new() };
        for (endpoint, read) in pods.iter().zip(read) {
            match read {
                Ok(reading) => answers.readings.push((endpoint.pod.clone(), reading)),
                Err(why) => answers.failures.push(why),
            }
        }
        answers
    }

    async fn read(&self, Endpoint { url, .. }: &Endpoint, wanted: &Wanted) -> Result<Reading, String> {
        let fetching = {
            let (fetch, permits, url) = (self.fetch.clone(), self.permits.clone(), url.clone());
            async move {
                let turn = async {
                    let _permit = permits.acquire_owned().await;
                    tokio::time::timeout(PATIENCE, fetch.fetch(&url, LARGEST)).await
                };
                match tokio::time::timeout(LATEST, turn).await {
                    Ok(Ok(fetched)) => fetched,
                    Ok(Err(_)) => Err(format!("no answer within {PATIENCE:?}")),
                    Err(_) => {
                        Err(format!("not read within {LATEST:?}: there are too many pods that do not answer"))
                    }
                }
            }
        };
        let text = self.in_flight.ask(url.clone(), fetching).await;
        let read = text.and_then(|text| wanted.read(&text));
        read.map_err(|why| format!("{url}: {why}"))
    }
}

#[async_trait]
impl MetricSource for Scrape {
    fn abilities(&self) -> Abilities {
        ABILITIES
    }

    async fn measure(&self, ask: &Ask, view: &View<'_>) -> Measurement {
        self.answer(ask, view).await.unwrap_or_else(|why| Measurement::Unavailable { why })
    }

    async fn begin(&self, ask: &Ask, view: &View<'_>) {
        if let Err(why) = self.look(ask, view).await {
            tracing::debug!(
                metric = ask.of.metric,
                canary = ask.of.canary,
                why,
                "nothing to begin a window with"
            );
        }
    }
}

impl Answers {
    /// Fails if there were pods to read and none could be.
    fn any(&self, arm: &str) -> Result<(), String> {
        match self.failures.first() {
            Some(why) if self.readings.is_empty() => Err(format!("no pod of the {arm} can be read: {why}")),
            _ => Ok(()),
        }
    }

    /// Did any pod show what was wanted?
    fn told(&self) -> bool {
        self.readings.iter().any(|(_, reading)| !reading.is_empty())
    }

    fn counters(&self) -> Vec<(&str, &Counters)> {
        self.readings.iter().map(|(pod, reading)| (pod.as_str(), &reading.counters)).collect()
    }
}

fn scalar(canary: &Answers, growth: Option<Growth>) -> Measurement {
    let gauges: Vec<f64> = canary.readings.iter().filter_map(|(_, reading)| reading.gauge).collect();
    if !gauges.is_empty() {
        return Measurement::Scalar(gauges.iter().sum::<f64>() / gauges.len() as f64);
    }
    match growth.filter(|_| canary.told()) {
        Some(Growth { arms, seconds }) if seconds > 0.0 => {
            let total = arms.canary.get(&Slot::Total).copied().unwrap_or(0);
            Measurement::Scalar(total as f64 / seconds)
        }
        _ => Measurement::NoData,
    }
}
