//! Where measurements come from.
//!
//! A metric of a Canary becomes an [`MetricQuery`]: who is asked, and a [`Query`] in
//! that source's own language, rendered and complete. [`MetricQuery::new`] is pure, and
//! refuses what could never be answered before anything is touched. At a look
//! [`Sources::measure`] puts the ask to its [`MetricSource`]:
//!
//! ```text
//! Canary metric ─┐
//! template ──────┼─ MetricQuery::new ─ MetricQuery ─┐
//! judge ─────────┘                  ├─ Sources::measure ─ Measurement ─ judge
//!            window, pods, Secret ──┘
//! ```
//!
//! # What a source promises
//!
//! - It never fails and never guesses. An answer without data is
//!   [`Measurement::NoData`]; no answer is [`Measurement::Unavailable`] with the
//!   reason. Neither is ever a zero.
//! - Counts and histograms are what was *added* within the [`Window`], read from
//!   raw counters, series by series: a counter that fell began anew, a pod that
//!   went away takes nothing with it, a new one counts from zero. Windows that
//!   touch count no request twice.
//! - It ends in bounded time, reads a bounded answer, and tells nobody the
//!   credentials it was given.
//!
//! # What a caller owes
//!
//! - [`Sources::open_window`] when a window opens. Prometheus remembers what was; a
//!   source that reads the pods itself does not, and takes note then. Without
//!   it the first window of a release has no data.
//! - To begin the next window where [`MetricQuery::available_window`] ended this one. A source that
//!   hears of requests late speaks of a part of it only.
//! - The pods of both arms at each call, for sources that read them
//!   ([`MetricQuery::reads_pods`]).

mod builtin;
pub mod cloudwatch;
mod credentials;
mod http;
mod metric_query;
pub mod prometheus;
pub mod scrape;
mod selector;
mod single_flight;
mod sources;
mod template;
pub mod web;

use async_trait::async_trait;
use jiff::Timestamp;

use crate::analysis::measurement::{Arms, Measurement};

pub use credentials::Credentials;
pub use metric_query::{MetricKey, MetricQuery, QueryContext, QueryError, Reduce, SecretName, Template};
pub use sources::Sources;
pub use template::TemplateError;

/// One system that can be asked.
#[async_trait]
pub trait MetricSource: Send + Sync {
    /// The forms of measurement it can give.
    fn supported_forms(&self) -> SupportedForms;

    /// What the query says about the window.
    async fn measure(&self, ask: &MetricQuery, context: &MeasureContext<'_>) -> Measurement;

    /// A window opens at `context.window.until`. For sources with a memory of
    /// their own there is nothing to do.
    async fn open_window(&self, _ask: &MetricQuery, _view: &MeasureContext<'_>) {}
}

/// What is looked at.
#[derive(Clone, Copy, Debug)]
pub struct MeasureContext<'a> {
    pub window: Window,
    pub pods: &'a Arms<Vec<Endpoint>>,
}

/// The time a measurement is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Window {
    pub since: Timestamp,
    pub until: Timestamp,
}

/// Where one pod shows its metrics.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// Tells it from every other pod, also from one of the same name before
    /// it: its uid.
    pub pod: String,
    pub url: String,
}

/// A form of measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MeasurementKind {
    /// One number about the canary.
    Scalar,
    /// Bad requests of all, of both arms.
    Counts,
    /// Durations of requests of both arms.
    Histogram,
    /// Points over time of both arms.
    Samples,
}

/// The forms a source can give.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SupportedForms(&'static [MeasurementKind]);

impl SupportedForms {
    pub const fn of(forms: &'static [MeasurementKind]) -> Self {
        Self(forms)
    }

    pub fn include(self, form: MeasurementKind) -> bool {
        self.0.contains(&form)
    }
}

/// A question in the language of its source, nothing left to fill in.
#[derive(Clone, Debug, PartialEq)]
pub enum Query {
    /// Answered by one number about the canary.
    Scalar(String),
    /// Answered by cumulative counters.
    Counts(Arms<CountQueries>),
    /// Answered by cumulative counters, one for each upper bound `le`.
    Histogram(Arms<String>),
    /// Answered by one number for each moment.
    Samples(Arms<String>),
}

impl Query {
    pub fn form(&self) -> MeasurementKind {
        match self {
            Self::Scalar(_) => MeasurementKind::Scalar,
            Self::Counts(_) => MeasurementKind::Counts,
            Self::Histogram(_) => MeasurementKind::Histogram,
            Self::Samples(_) => MeasurementKind::Samples,
        }
    }
}

/// How requests are counted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CountQueries {
    pub part: CountedPart,
    pub total: String,
}

/// Which part of all requests a query counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CountedPart {
    Good(String),
    Bad(String),
}

impl CountedPart {
    pub fn query(&self) -> &str {
        match self {
            Self::Good(query) | Self::Bad(query) => query,
        }
    }
}

/// What the bounds of a histogram are written in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    Seconds,
    Milliseconds,
}

impl Unit {
    pub fn to_seconds(self, value: f64) -> f64 {
        match self {
            Self::Seconds => value,
            Self::Milliseconds => value / 1000.0,
        }
    }

    /// Series have their unit in their name; those that have none and yet
    /// count milliseconds are Envoy's and APISIX's.
    fn of_series(query: &str) -> Self {
        let milliseconds =
            ["_milliseconds_bucket", "_ms_bucket", "_rq_time_bucket", "apisix_http_latency_bucket"];
        if milliseconds.iter().any(|unit| query.contains(unit)) { Self::Milliseconds } else { Self::Seconds }
    }
}

impl std::fmt::Display for MeasurementKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Scalar => "a single value",
            Self::Counts => "counts of requests",
            Self::Histogram => "a histogram",
            Self::Samples => "points over time",
        })
    }
}
