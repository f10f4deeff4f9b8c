//! Metric sources and measurements.
//!
//! A metric of a Canary becomes a [`MetricQuery`]: the provider, and a [`Query`] in
//! that source's own language, rendered and complete. [`MetricQuery::new`] is pure and
//! rejects invalid metrics before any request. At a check [`Sources::measure`]
//! runs the query on its [`MetricSource`]:
//!
//! ```text
//! Canary metric ─┐
//! template ──────┼─ MetricQuery::new ─ MetricQuery ─┐
//! judge ─────────┘                  ├─ Sources::measure ─ Measurement ─ judge
//!            window, pods, Secret ──┘
//! ```
//!
//! # Guarantees of a source
//!
//! - It never fails and never guesses. A response without data is
//!   [`Measurement::NoData`]; no response is [`Measurement::Unavailable`] with the
//!   reason. Neither is ever a zero.
//! - Counts and histograms are the *increase* within the [`Window`], computed from
//!   raw counters, series by series: a counter that decreased was reset, a deleted
//!   pod subtracts nothing, a new one counts from zero. Adjacent windows count no
//!   request twice.
//! - It ends in bounded time, reads a bounded response, and exposes no credentials.
//!
//! # Duties of a caller
//!
//! - [`Sources::open_window`] when a window opens. Prometheus stores the past; the
//!   scrape source does not, and records the counters then. Without it the first
//!   window of a release has no data.
//! - Begin the next window where [`MetricQuery::available_window`] ended this one. A
//!   source with delayed data covers only a part of it.
//! - Pass the pods of both arms at each call, for sources that scrape them
//!   ([`MetricQuery::reads_pods`]).

mod builtin;
pub mod cloudwatch;
mod credentials;
mod http;
mod metric_query;
mod off_loop;
mod own_server;
pub mod prometheus;
pub mod scrape;
mod selector;
mod single_flight;
mod sources;
mod template;
pub mod web;

use async_trait::async_trait;
use jiff::Timestamp;

pub use crate::analysis::measurement::Arms;
use crate::analysis::measurement::Measurement;

pub use credentials::Credentials;
pub use metric_query::{
    MetricKey, MetricQuery, QueryContext, QueryError, Reduce, SecretName, ServerAccess, Template,
    check_tenant_aws,
};
pub use own_server::OwnMetricsServer;
pub use sources::Sources;
pub use template::TemplateError;

#[async_trait]
pub trait MetricSource: Send + Sync {
    fn supported_forms(&self) -> SupportedForms;

    async fn measure(&self, metric_query: &MetricQuery, context: &MeasureContext<'_>) -> Measurement;

    /// Until when requests are counted on all pods of both arms by a measurement of
    /// this window; none if the source cannot tell. A source that reads all of them at
    /// the end of the window needs not say so.
    async fn known_until(
        &self,
        _metric_query: &MetricQuery,
        context: &MeasureContext<'_>,
    ) -> Option<Timestamp> {
        Some(context.window.until)
    }

    /// A window opens at `context.window.until`. A no-op for sources that store the
    /// past themselves.
    async fn open_window(&self, _metric_query: &MetricQuery, _context: &MeasureContext<'_>) {}
}

/// The time and the pods of a measurement.
#[derive(Clone, Copy, Debug)]
pub struct MeasureContext<'a> {
    pub window: Window,
    pub pods: &'a Arms<Vec<Endpoint>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Window {
    pub since: Timestamp,
    pub until: Timestamp,
}

/// The metrics endpoint of a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// The uid: a later pod may have the same name.
    pub pod: String,
    pub name: String,
    pub url: Result<String, UnsupportedScheme>,
}

/// A pod's annotation that would lead a request elsewhere.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the annotation prometheus.io/scheme of pod {pod} is neither http nor https")]
pub struct UnsupportedScheme {
    pod: String,
}

/// Of a histogram, +Inf among them: the judge's work grows with them.
const MAX_BOUNDS: usize = 100;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MeasurementKind {
    /// One number about the canary.
    Scalar,
    /// Bad and all requests of both arms.
    Counts,
    /// Durations of requests of both arms.
    Histogram,
    /// Values of requests of both arms.
    Values,
    /// Points over time of both arms.
    Samples,
}

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

/// A rendered query in the language of its source.
#[derive(Clone, Debug, PartialEq)]
pub enum Query {
    /// Yields one number about the canary.
    Scalar(String),
    /// Yields cumulative counters.
    Counts(Arms<CountQueries>),
    /// Yields cumulative counters, one for each upper bound `le`.
    Histogram(Arms<String>),
    /// Likewise, with a counter of all requests.
    Values(Arms<ValueQueries>),
    /// Yields one number per point in time.
    Samples(Arms<String>),
}

impl Query {
    pub fn form(&self) -> MeasurementKind {
        match self {
            Self::Scalar(_) => MeasurementKind::Scalar,
            Self::Counts(_) => MeasurementKind::Counts,
            Self::Histogram(_) => MeasurementKind::Histogram,
            Self::Values(_) => MeasurementKind::Values,
            Self::Samples(_) => MeasurementKind::Samples,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CountQueries {
    pub part: CountedPart,
    pub total: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ValueQueries {
    pub histogram: String,
    /// All requests, where some have no value.
    pub total: Option<String>,
}

/// The requests that the second query counts.
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

/// Of histogram bounds.
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

    /// By the name of the series. Envoy's and APISIX's are in milliseconds without
    /// having the unit in their names.
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
            Self::Values => "a histogram of values",
            Self::Samples => "points over time",
        })
    }
}
