//! Prometheus, and servers with a compatible API.
//!
//! A single value is an instant query at the current time, as in Flagger. Counts
//! and histograms are the increase of raw counters over the window, by one query
//! for both arms at one time ([`increase`]): the response has a few numbers for each
//! pod, however many series there are, and the same window gives the same result after
//! a restart. Points over time are a range query for each arm.

mod client;
pub mod edges;
mod increase;
pub mod traffic;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;
use prometheus_http_query::response::{Data, InstantVector, RangeVector};

use crate::{
    analysis::measurement::{Arms, Counts, Histogram, Measurement, Values},
    api::analysis_template::{MetricProvider, MetricProviderType},
    tenancy::TenantAddresses,
};

use super::{
    CountQueries, CountedPart, Credentials, MAX_BOUNDS, MeasureContext, MeasurementKind, MetricQuery,
    MetricSource, Query, SupportedForms, Unit, ValueQueries, Window, http::ClientConfigError, metric_query,
};
use client::{EvalTime, PrometheusClient, PrometheusQueryError};
use increase::CounterIncreases;

pub const SUPPORTED_FORMS: SupportedForms = SupportedForms::of(&[
    MeasurementKind::Scalar,
    MeasurementKind::Counts,
    MeasurementKind::Histogram,
    MeasurementKind::Values,
    MeasurementKind::Samples,
]);

/// Per arm.
const MAX_POINTS: i32 = 60;

/// Between points.
const MIN_STEP: Duration = Duration::from_secs(1);

pub struct Prometheus {
    client: PrometheusClient,
}

impl Prometheus {
    /// The server at this URL, without credentials other than those in it.
    pub fn at(url: &str) -> Result<Self, ClientConfigError> {
        let provider = metric_query::provider(MetricProviderType::Prometheus, Some(url.to_owned()));
        Self::new(&provider, &Credentials::default(), &TenantAddresses::default())
    }

    pub fn new(
        provider: &MetricProvider,
        credentials: &Credentials,
        addresses: &TenantAddresses,
    ) -> Result<Self, ClientConfigError> {
        Ok(Self { client: PrometheusClient::new(provider, credentials, addresses)? })
    }

    async fn try_measure(&self, query: &Query, window: Window) -> Result<Measurement, PrometheusQueryError> {
        match query {
            Query::Scalar(query) => number(&*self.client.query(query.clone(), EvalTime::Now).await?),
            Query::Counts(arms) => {
                let Some(query) = increase::counts_query(arms, window) else {
                    return Ok(Measurement::NoData);
                };
                counts(&*self.client.query(query, EvalTime::At(window.until)).await?, arms)
            }
            Query::Histogram(arms) => {
                let Some(query) = increase::buckets_query(arms, window) else {
                    return Ok(Measurement::NoData);
                };
                histograms(
                    &*self.client.query(query, EvalTime::At(window.until)).await?,
                    Unit::of_series(&arms.canary),
                )
            }
            Query::Values(arms) => {
                let Some(query) = increase::values_query(arms, window) else {
                    return Ok(Measurement::NoData);
                };
                values(&*self.client.query(query, EvalTime::At(window.until)).await?, arms)
            }
            Query::Samples(arms) => {
                let length = window.until.duration_since(window.since);
                let step = Duration::try_from(length / MAX_POINTS).unwrap_or_default().max(MIN_STEP);
                let range = EvalTime::Range { window, step };
                let (canary, primary) = futures::try_join!(
                    self.client.query(arms.canary.clone(), range),
                    self.client.query(arms.primary.clone(), range)
                )?;
                samples(&canary, &primary)
            }
        }
    }
}

#[async_trait]
impl MetricSource for Prometheus {
    fn supported_forms(&self) -> SupportedForms {
        SUPPORTED_FORMS
    }

    async fn measure(&self, metric_query: &MetricQuery, context: &MeasureContext<'_>) -> Measurement {
        self.try_measure(&metric_query.query, context.window)
            .await
            .unwrap_or_else(|error| Measurement::Unavailable { why: self.client.describe_failure(&error) })
    }

    /// The oldest of the last samples of all series: each pod is scraped at a moment
    /// of its own.
    async fn known_until(
        &self,
        metric_query: &MetricQuery,
        context: &MeasureContext<'_>,
    ) -> Option<Timestamp> {
        let until = context.window.until;
        let Some(query) = increase::oldest_sample_query(&metric_query.query)? else { return Some(until) };
        let response = self.client.query(query, EvalTime::At(until)).await.ok()?;
        match number(&response).ok()? {
            Measurement::Scalar(seconds) => Timestamp::from_millisecond((seconds * 1e3) as i64).ok(),
            _ => None,
        }
    }
}

/// NaN is no data: the result of a division by zero requests.
fn number(data: &Data) -> Result<Measurement, PrometheusQueryError> {
    let value = match data {
        Data::Scalar(sample) => sample.value(),
        Data::Vector(series) => match series.as_slice() {
            [] => return Ok(Measurement::NoData),
            [one] => one.sample().value(),
            [_, ..] => return Err(multiple_values(series.iter().map(InstantVector::metric))),
        },
        Data::Matrix(_) => {
            return Err(PrometheusQueryError::UnexpectedType("a range of values where one was expected"));
        }
    };
    Ok(if value.is_nan() { Measurement::NoData } else { Measurement::Scalar(value) })
}

/// Of a message, each way.
const MAX_SHOWN_LABELS: usize = 8;

/// Names the labels by which the series differ.
fn multiple_values<'d>(series: impl Iterator<Item = &'d HashMap<String, String>>) -> PrometheusQueryError {
    let series: Vec<_> = series.collect();
    let (count, mut values) = (series.len(), BTreeMap::<&str, BTreeSet<Option<&str>>>::new());
    let names: BTreeSet<&str> = series.iter().flat_map(|labels| labels.keys().map(String::as_str)).collect();
    for labels in series {
        for &name in &names {
            values.entry(name).or_default().insert(labels.get(name).map(String::as_str));
        }
    }
    values.retain(|_, values| values.len() > 1);
    let labels: Vec<&str> = values.into_keys().take(MAX_SHOWN_LABELS).collect();
    PrometheusQueryError::MultipleValues { count, labels: labels.join(", ") }
}

fn vector(data: &Data) -> Result<&[InstantVector], PrometheusQueryError> {
    match data {
        Data::Vector(series) => Ok(series),
        Data::Matrix(_) | Data::Scalar(_) => {
            Err(PrometheusQueryError::UnexpectedType("no series where counters were expected"))
        }
    }
}

fn counts(data: &Data, queries: &Arms<CountQueries>) -> Result<Measurement, PrometheusQueryError> {
    let Some(increase) = CounterIncreases::from_counts(vector(data)?)? else {
        return Ok(Measurement::NoData);
    };
    let arm = |arm: &str, queries: &CountQueries| {
        let counts = |(part, total)| match queries.part {
            CountedPart::Good(_) => Counts::of_good(part, total),
            CountedPart::Bad(_) => Counts::of_bad(part, total),
        };
        increase.by_pod(arm).into_iter().map(|(pod, sums)| (pod.to_owned(), counts(sums))).collect()
    };
    Ok(Measurement::by_pod(Arms {
        canary: arm(increase::CANARY, &queries.canary),
        primary: arm(increase::PRIMARY, &queries.primary),
    }))
}

fn histograms(data: &Data, unit: Unit) -> Result<Measurement, PrometheusQueryError> {
    let Some(increase) = CounterIncreases::from_buckets(vector(data)?)? else {
        return Ok(Measurement::NoData);
    };
    let arm = |arm: &str| histogram(increase.of_arm(arm), |bound| unit.to_seconds(bound));
    Ok(Measurement::Histogram(Arms { canary: arm(increase::CANARY)?, primary: arm(increase::PRIMARY)? }))
}

fn values(data: &Data, queries: &Arms<ValueQueries>) -> Result<Measurement, PrometheusQueryError> {
    let Some(increase) = CounterIncreases::from_buckets(vector(data)?)? else {
        return Ok(Measurement::NoData);
    };
    let arm = |arm: &str, queries: &ValueQueries| -> Result<Values, PrometheusQueryError> {
        let buckets = increase.of_arm(arm).filter(|(le, _)| *le != increase::TOTAL);
        let total = increase.of_arm(arm).find(|(le, _)| *le == increase::TOTAL);
        let requests = queries.total.is_some().then(|| total.map_or(0, |(_, count)| count));
        Ok(Values { histogram: histogram(buckets, |bound| bound)?, requests })
    };
    Ok(Measurement::Values(Arms {
        canary: arm(increase::CANARY, &queries.canary)?,
        primary: arm(increase::PRIMARY, &queries.primary)?,
    }))
}

fn histogram<'a>(
    buckets: impl Iterator<Item = (&'a str, u64)>,
    in_unit: impl Fn(f64) -> f64,
) -> Result<Histogram, PrometheusQueryError> {
    let buckets: Vec<(f64, u64)> = buckets
        .map(|(le, count)| le.parse().ok().map(|bound| (in_unit(bound), count)))
        .collect::<Option<_>>()
        .ok_or(PrometheusQueryError::UnexpectedType(
            "series without a bound le where a histogram was expected",
        ))?;
    match buckets.as_slice() {
        [] => Ok(Histogram::default()),
        many if many.len() > MAX_BOUNDS => Err(PrometheusQueryError::TooManyBounds(many.len())),
        _ => Histogram::cumulative(buckets)
            .map_err(|error| PrometheusQueryError::InvalidHistogram(error.to_string())),
    }
}

fn samples(canary: &Data, primary: &Data) -> Result<Measurement, PrometheusQueryError> {
    let arm = |data: &Data| match data {
        Data::Matrix(series) => match series.as_slice() {
            [] => Ok(Vec::new()),
            [one] => Ok(one.samples().iter().map(|sample| sample.value()).collect()),
            [_, ..] => Err(multiple_values(series.iter().map(RangeVector::metric))),
        },
        Data::Vector(_) | Data::Scalar(_) => {
            Err(PrometheusQueryError::UnexpectedType("one value where a range was expected"))
        }
    };
    let arms: Arms<Vec<f64>> = Arms { canary: arm(canary)?, primary: arm(primary)? };
    if arms.canary.is_empty() && arms.primary.is_empty() {
        return Ok(Measurement::NoData);
    }
    Ok(Measurement::Samples(arms))
}
