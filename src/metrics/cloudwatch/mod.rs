//! Amazon CloudWatch.
//!
//! All that it is asked is a list of MetricDataQueries ([`query`]); what people
//! write without JSON becomes such a list ([`template_compiler`]). One request serves all
//! Canaries that ask about the same time ([`batch`]).
//!
//! # Periods
//!
//! CloudWatch adds up what happened within a period, and hears of it late. So
//! a measurement is about whole periods, each of which began after the window
//! did and ended long enough ago to be complete ([`Periods`]). What is left of
//! the window belongs to the next one: windows that touch count nothing twice
//! and nothing less.
//!
//! # What is missing
//!
//! A metric is not sent for periods in which nothing happened. No datapoint at
//! all is [`NoData`](crate::analysis::Measurement::NoData). An arm without
//! datapoints beside one that has some had no requests; requests without
//! a datapoint of bad ones were all good.

#[cfg(feature = "aws")]
mod batch;
mod builtin;
#[cfg(feature = "aws")]
mod client;
pub mod periods;
pub mod query;
#[cfg(feature = "aws")]
mod source;
mod template_compiler;

use super::{MeasurementKind, Query, SupportedForms};
use crate::api::cloudwatch::CloudWatch as Spec;

pub use periods::Periods;
use query::{QuerySet, QuerySetError};
#[cfg(feature = "aws")]
pub use source::CloudWatch;
pub use template_compiler::TemplateCompiler;

pub const SUPPORTED_FORMS: SupportedForms = SupportedForms::of(&[
    MeasurementKind::Scalar,
    MeasurementKind::Counts,
    MeasurementKind::Histogram,
    MeasurementKind::Samples,
]);

/// Bounds of histograms in seconds: requests within each are asked for.
pub const HISTOGRAM_BOUNDS: [f64; 16] =
    [0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.25, 0.35, 0.5, 0.75, 1.0, 1.5, 2.5, 5.0, 10.0];

/// The periods that a query is about, if it can be answered in its form;
/// else which field is to blame.
pub fn periods(query: &Query, spec: Option<&Spec>) -> Result<Periods, (&'static str, QuerySetError)> {
    let read = |field, text: &str| QuerySet::parse(text).map_err(|why| (field, why));
    let counted = |field, text: &str| -> Result<QuerySet, _> {
        let query_set = read(field, text)?;
        query_set.check_counts().map_err(|why| (field, why))?;
        Ok(query_set)
    };
    let all = match query {
        Query::Scalar(text) => vec![read("query", text)?],
        Query::Samples(of) => vec![read("query", &of.canary)?, read("query", &of.primary)?],
        Query::Histogram(of) => {
            let both = vec![read("histogram", &of.canary)?, read("histogram", &of.primary)?];
            for query_set in &both {
                query_set.durations().map_err(|why| ("histogram", why))?;
            }
            both
        }
        Query::Counts(arms) => {
            let mut all = Vec::new();
            for arm in [&arms.canary, &arms.primary] {
                all.extend([counted("counts", arm.part.query())?, counted("counts.total", &arm.total)?]);
            }
            all
        }
    };
    let length = all.iter().map(QuerySet::period).reduce(query::least_common_multiple);
    let delay = spec.and_then(|spec| spec.delay).map_or(periods::DEFAULT_DELAY, |delay| delay.get());
    Ok(Periods { length: length.unwrap_or(query::DEFAULT_PERIOD), delay })
}
