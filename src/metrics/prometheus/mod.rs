//! Prometheus, and whatever else speaks its API.
//!
//! A single value is what an instant query answers, now, as Flagger asks it.
//! Counts and histograms are growth of raw counters over the window, asked for in
//! one query for both arms, at one moment ([`growth`]): the answer is small
//! however many series there are, and the same question about the same window
//! has the same answer after a restart of ours. Points over time are a
//! range query for each arm.

mod growth;
mod server;

use std::time::Duration;

use async_trait::async_trait;
use prometheus_http_query::response::{Data, InstantVector};

use crate::{
    analysis::measurement::{Arms, Counts, Histogram, Measurement},
    api::analysis_template::MetricProvider,
};

use super::{
    Abilities, Ask, CountQueries, Credentials, Form, MetricSource, Part, Query, Unit, View, Window,
    http::BadServer,
};
use growth::Growth;
use server::{Failure, Moment, Server};

pub const ABILITIES: Abilities = Abilities::of(&[Form::Scalar, Form::Counts, Form::Histogram, Form::Samples]);

/// As many points of each arm are asked for.
const POINTS: i32 = 60;

/// And no closer to each other than this.
const FINEST: Duration = Duration::from_secs(1);

pub struct Prometheus {
    server: Server,
}

impl Prometheus {
    /// The server that a provider names.
    pub fn new(provider: &MetricProvider, credentials: &Credentials) -> Result<Self, BadServer> {
        Ok(Self { server: Server::new(provider, credentials)? })
    }

    async fn answer(&self, query: &Query, window: Window) -> Result<Measurement, Failure> {
        match query {
            Query::Scalar(query) => number(&*self.server.ask(query.clone(), Moment::Now).await?),
            Query::Counts(arms) => {
                let Some(query) = growth::of_counts(arms, window) else { return Ok(Measurement::NoData) };
                counts(&*self.server.ask(query, Moment::At(window.until)).await?, arms)
            }
            Query::Histogram(of) => {
                let Some(query) = growth::of_buckets(of, window) else { return Ok(Measurement::NoData) };
                histograms(
                    &*self.server.ask(query, Moment::At(window.until)).await?,
                    Unit::of_series(&of.canary),
                )
            }
            Query::Samples(of) => {
                let length = window.until.duration_since(window.since);
                let step = Duration::try_from(length / POINTS).unwrap_or_default().max(FINEST);
                let moment = Moment::Over { window, step };
                let (canary, primary) = futures::try_join!(
                    self.server.ask(of.canary.clone(), moment),
                    self.server.ask(of.primary.clone(), moment)
                )?;
                samples(&canary, &primary)
            }
        }
    }
}

#[async_trait]
impl MetricSource for Prometheus {
    fn abilities(&self) -> Abilities {
        ABILITIES
    }

    async fn measure(&self, ask: &Ask, view: &View<'_>) -> Measurement {
        self.answer(&ask.query, view.window)
            .await
            .unwrap_or_else(|failure| Measurement::Unavailable { why: self.server.blame(&failure) })
    }
}

/// What is not a number is how a division by no requests looks.
fn number(data: &Data) -> Result<Measurement, Failure> {
    let value = match data {
        Data::Scalar(sample) => sample.value(),
        Data::Vector(series) => match series.as_slice() {
            [] => return Ok(Measurement::NoData),
            [one] => one.sample().value(),
            [_, ..] => return Err(Failure::Several(series.len())),
        },
        Data::Matrix(_) => return Err(Failure::Unfit("a range of values where one was asked for")),
    };
    Ok(if value.is_nan() { Measurement::NoData } else { Measurement::Scalar(value) })
}

fn vector(data: &Data) -> Result<&[InstantVector], Failure> {
    match data {
        Data::Vector(series) => Ok(series),
        Data::Matrix(_) | Data::Scalar(_) => Err(Failure::Unfit("no series where counters were asked for")),
    }
}

fn counts(data: &Data, asked: &Arms<CountQueries>) -> Result<Measurement, Failure> {
    let Some(growth) = Growth::in_counts(vector(data)?) else { return Ok(Measurement::NoData) };
    let arm = |arm: &str, asked: &CountQueries| {
        let (part, total) = (growth.count(arm, growth::PART), growth.count(arm, growth::TOTAL));
        match asked.part {
            Part::Good(_) => Counts::of_good(part, total),
            Part::Bad(_) => Counts::of_bad(part, total),
        }
    };
    Ok(Measurement::Counts(Arms {
        canary: arm(growth::CANARY, &asked.canary),
        primary: arm(growth::PRIMARY, &asked.primary),
    }))
}

fn histograms(data: &Data, unit: Unit) -> Result<Measurement, Failure> {
    let Some(growth) = Growth::in_buckets(vector(data)?) else { return Ok(Measurement::NoData) };
    let arm = |arm: &str| {
        let buckets: Vec<(f64, u64)> = growth
            .of(arm)
            .map(|(le, count)| le.parse().ok().map(|bound| (unit.to_seconds(bound), count)))
            .collect::<Option<_>>()
            .ok_or(Failure::Unfit("series without a bound le where a histogram was asked for"))?;
        match buckets.as_slice() {
            [] => Ok(Histogram::default()),
            _ => Histogram::cumulative(buckets).map_err(|error| Failure::Histogram(error.to_string())),
        }
    };
    Ok(Measurement::Histogram(Arms { canary: arm(growth::CANARY)?, primary: arm(growth::PRIMARY)? }))
}

fn samples(canary: &Data, primary: &Data) -> Result<Measurement, Failure> {
    let arm = |data: &Data| match data {
        Data::Matrix(series) => match series.as_slice() {
            [] => Ok(Vec::new()),
            [one] => Ok(one.samples().iter().map(|sample| sample.value()).collect()),
            [_, ..] => Err(Failure::Several(series.len())),
        },
        Data::Vector(_) | Data::Scalar(_) => Err(Failure::Unfit("one value where a range was asked for")),
    };
    let arms: Arms<Vec<f64>> = Arms { canary: arm(canary)?, primary: arm(primary)? };
    if arms.canary.is_empty() && arms.primary.is_empty() {
        return Ok(Measurement::NoData);
    }
    Ok(Measurement::Samples(arms))
}
