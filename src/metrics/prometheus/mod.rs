//! Prometheus, and whatever else speaks its API.
//!
//! A single value is what an instant query answers, now, as Flagger asks it.
//! Counts and histograms are increase of raw counters over the window, asked for in
//! one query for both arms, at one moment ([`increase`]): the answer is small
//! however many series there are, and the same question about the same window
//! has the same answer after a restart of ours. Points over time are a
//! range query for each arm.

mod client;
mod increase;

use std::time::Duration;

use async_trait::async_trait;
use prometheus_http_query::response::{Data, InstantVector};

use crate::{
    analysis::measurement::{Arms, Counts, Histogram, Measurement},
    api::analysis_template::MetricProvider,
};

use super::{
    CountQueries, CountedPart, Credentials, MeasureContext, MeasurementKind, MetricQuery, MetricSource,
    Query, SupportedForms, Unit, Window, http::ClientConfigError,
};
use client::{EvalTime, PrometheusClient, PrometheusQueryError};
use increase::CounterIncreases;

pub const SUPPORTED_FORMS: SupportedForms = SupportedForms::of(&[
    MeasurementKind::Scalar,
    MeasurementKind::Counts,
    MeasurementKind::Histogram,
    MeasurementKind::Samples,
]);

/// As many points of each arm are asked for.
const MAX_POINTS: i32 = 60;

/// And no closer to each other than this.
const MIN_STEP: Duration = Duration::from_secs(1);

pub struct Prometheus {
    client: PrometheusClient,
}

impl Prometheus {
    /// The server that a provider names.
    pub fn new(provider: &MetricProvider, credentials: &Credentials) -> Result<Self, ClientConfigError> {
        Ok(Self { client: PrometheusClient::new(provider, credentials)? })
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
            Query::Histogram(of) => {
                let Some(query) = increase::buckets_query(of, window) else { return Ok(Measurement::NoData) };
                histograms(
                    &*self.client.query(query, EvalTime::At(window.until)).await?,
                    Unit::of_series(&of.canary),
                )
            }
            Query::Samples(of) => {
                let length = window.until.duration_since(window.since);
                let step = Duration::try_from(length / MAX_POINTS).unwrap_or_default().max(MIN_STEP);
                let moment = EvalTime::Range { window, step };
                let (canary, primary) = futures::try_join!(
                    self.client.query(of.canary.clone(), moment),
                    self.client.query(of.primary.clone(), moment)
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
        self.try_measure(&metric_query.query, context.window).await.unwrap_or_else(|failure| {
            Measurement::Unavailable { why: self.client.describe_failure(&failure) }
        })
    }
}

/// What is not a number is how a division by no requests looks.
fn number(data: &Data) -> Result<Measurement, PrometheusQueryError> {
    let value = match data {
        Data::Scalar(sample) => sample.value(),
        Data::Vector(series) => match series.as_slice() {
            [] => return Ok(Measurement::NoData),
            [one] => one.sample().value(),
            [_, ..] => return Err(PrometheusQueryError::MultipleValues(series.len())),
        },
        Data::Matrix(_) => {
            return Err(PrometheusQueryError::UnexpectedType("a range of values where one was asked for"));
        }
    };
    Ok(if value.is_nan() { Measurement::NoData } else { Measurement::Scalar(value) })
}

fn vector(data: &Data) -> Result<&[InstantVector], PrometheusQueryError> {
    match data {
        Data::Vector(series) => Ok(series),
        Data::Matrix(_) | Data::Scalar(_) => {
            Err(PrometheusQueryError::UnexpectedType("no series where counters were asked for"))
        }
    }
}

fn counts(data: &Data, asked: &Arms<CountQueries>) -> Result<Measurement, PrometheusQueryError> {
    let Some(increase) = CounterIncreases::from_counts(vector(data)?) else { return Ok(Measurement::NoData) };
    let arm = |arm: &str, asked: &CountQueries| {
        let (part, total) = (increase.count(arm, increase::PART), increase.count(arm, increase::TOTAL));
        match asked.part {
            CountedPart::Good(_) => Counts::of_good(part, total),
            CountedPart::Bad(_) => Counts::of_bad(part, total),
        }
    };
    Ok(Measurement::Counts(Arms {
        canary: arm(increase::CANARY, &asked.canary),
        primary: arm(increase::PRIMARY, &asked.primary),
    }))
}

fn histograms(data: &Data, unit: Unit) -> Result<Measurement, PrometheusQueryError> {
    let Some(increase) = CounterIncreases::from_buckets(vector(data)?) else {
        return Ok(Measurement::NoData);
    };
    let arm = |arm: &str| {
        let buckets: Vec<(f64, u64)> = increase
            .of_arm(arm)
            .map(|(le, count)| le.parse().ok().map(|bound| (unit.to_seconds(bound), count)))
            .collect::<Option<_>>()
            .ok_or(PrometheusQueryError::UnexpectedType(
                "series without a bound le where a histogram was asked for",
            ))?;
        match buckets.as_slice() {
            [] => Ok(Histogram::default()),
            _ => Histogram::cumulative(buckets)
                .map_err(|error| PrometheusQueryError::InvalidHistogram(error.to_string())),
        }
    };
    Ok(Measurement::Histogram(Arms { canary: arm(increase::CANARY)?, primary: arm(increase::PRIMARY)? }))
}

fn samples(canary: &Data, primary: &Data) -> Result<Measurement, PrometheusQueryError> {
    let arm = |data: &Data| match data {
        Data::Matrix(series) => match series.as_slice() {
            [] => Ok(Vec::new()),
            [one] => Ok(one.samples().iter().map(|sample| sample.value()).collect()),
            [_, ..] => Err(PrometheusQueryError::MultipleValues(series.len())),
        },
        Data::Vector(_) | Data::Scalar(_) => {
            Err(PrometheusQueryError::UnexpectedType("one value where a range was asked for"))
        }
    };
    let arms: Arms<Vec<f64>> = Arms { canary: arm(canary)?, primary: arm(primary)? };
    if arms.canary.is_empty() && arms.primary.is_empty() {
        return Ok(Measurement::NoData);
    }
    Ok(Measurement::Samples(arms))
}
