//! Amazon CloudWatch.
//!
//! Every query is a list of MetricDataQueries ([`query`]); templates without JSON
//! are compiled to such a list ([`template_compiler`]). One request serves all
//! Canaries with the same window ([`batch`]).
//!
//! # Periods
//!
//! CloudWatch aggregates by period and receives data late. A measurement therefore
//! covers whole periods that began within the window and ended long enough ago to
//! be complete ([`Periods`]). The rest of the window belongs to the next one:
//! adjacent windows count every period exactly once.
//!
//! # Missing datapoints
//!
//! Metrics are not published for periods without events. No datapoint at all is [`NoData`](crate::analysis::Measurement::NoData). An arm without
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

/// In seconds; one query counts the requests within each bound.
pub const HISTOGRAM_BOUNDS: [f64; 16] =
    [0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.25, 0.35, 0.5, 0.75, 1.0, 1.5, 2.5, 5.0, 10.0];

/// The periods of a query, if it is valid for its form; else the field with the
/// error.
pub fn periods(query: &Query, spec: Option<&Spec>) -> Result<Periods, (&'static str, QuerySetError)> {
    let parse = |field, text: &str| QuerySet::parse(text).map_err(|why| (field, why));
    let parse_counts = |field, text: &str| -> Result<QuerySet, _> {
        let query_set = parse(field, text)?;
        query_set.check_counts().map_err(|why| (field, why))?;
        Ok(query_set)
    };
    let all = match query {
        Query::Scalar(text) => vec![parse("query", text)?],
        // Not supported, and refused before.
        Query::Values(_) => Vec::new(),
        Query::Samples(arms) => vec![parse("query", &arms.canary)?, parse("query", &arms.primary)?],
        Query::Histogram(arms) => {
            let both = vec![parse("histogram", &arms.canary)?, parse("histogram", &arms.primary)?];
            for query_set in &both {
                query_set.durations().map_err(|why| ("histogram", why))?;
            }
            both
        }
        Query::Counts(arms) => {
            let mut all = Vec::new();
            for arm in [&arms.canary, &arms.primary] {
                all.extend([
                    parse_counts("counts", arm.part.query())?,
                    parse_counts("counts.total", &arm.total)?,
                ]);
            }
            all
        }
    };
    let length = all.iter().map(QuerySet::period).reduce(query::least_common_multiple);
    let delay = spec.and_then(|spec| spec.delay).map_or(periods::DEFAULT_DELAY, |delay| delay.get());
    Ok(Periods { length: length.unwrap_or(query::DEFAULT_PERIOD), delay })
}
