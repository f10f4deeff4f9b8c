//! GetMetricData requests, with all pages of the result.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use aws_sdk_cloudwatch::Client;
use aws_sdk_cloudwatch::error::{ProvideErrorMetadata, SdkError};
use aws_sdk_cloudwatch::operation::get_metric_data::{GetMetricDataError, GetMetricDataOutput};
use aws_sdk_cloudwatch::primitives::DateTime;
use aws_sdk_cloudwatch::types::{self, MessageData, StatusCode};
use jiff::Timestamp;
use tokio::time::timeout;

use super::query::{Dimension, Metric, MetricDataQuery, MetricStat};
use crate::aws::NoRegion;
use crate::error_chain::root_cause;
use crate::metrics::Window;

/// For all pages.
const QUERY_TIMEOUT: Duration = Duration::from_secs(30);

/// Five hundred queries of a thousand periods need five.
const MAX_PAGES: usize = 20;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CloudWatchError {
    #[error("cannot be queried: {0}")]
    NoRegion(#[from] NoRegion),
    #[error("cannot be reached: {0}")]
    Unreachable(String),
    #[error("did not respond in time")]
    Timeout,
    #[error("throttles requests: {0}")]
    Throttled(String),
    #[error("refused the query: {0}")]
    Rejected(String),
    #[error("responded {0}")]
    Service(String),
    #[error("has only part of the data yet{0}")]
    PartialData(String),
    #[error("returned more than {MAX_PAGES} pages; query fewer metrics, or longer periods")]
    TooManyPages,
    #[error("returned {0} series where one was expected; sum them in the query")]
    MultipleSeries(usize),
    #[error("returned no result for a query")]
    MissingResult,
}

/// By start of the period.
pub type Points = BTreeMap<Timestamp, f64>;

/// By query Id.
#[derive(Default)]
pub struct QueryResults(HashMap<String, QueryResult>);

#[derive(Default)]
struct QueryResult {
    points: Points,
    status: Option<StatusCode>,
    labels: BTreeSet<String>,
    messages: Vec<String>,
}

impl QueryResults {
    /// A search without matches has no result at all.
    pub fn take(&mut self, id: &str, may_be_missing: bool) -> Result<Points, CloudWatchError> {
        let Some(QueryResult { points, status, labels, messages }) = self.0.remove(id) else {
            return if may_be_missing { Ok(Points::new()) } else { Err(CloudWatchError::MissingResult) };
        };
        let why = || messages.iter().map(|message| format!(": {message}")).collect::<String>();
        match status {
            Some(StatusCode::Complete) if labels.len() > 1 => {
                Err(CloudWatchError::MultipleSeries(labels.len()))
            }
            Some(StatusCode::Complete) => Ok(points),
            Some(StatusCode::PartialData) | None => Err(CloudWatchError::PartialData(why())),
            Some(other) => Err(CloudWatchError::Service(format!("{}{}", other.as_str(), why()))),
        }
    }

    fn add_page(&mut self, page: GetMetricDataOutput) {
        for result in page.metric_data_results.unwrap_or_default() {
            let merged = self.0.entry(result.id.unwrap_or_default()).or_default();
            let timestamps = result.timestamps.unwrap_or_default();
            let values = result.values.unwrap_or_default();
            for (at, value) in timestamps.iter().zip(values) {
                if let Ok(at) = Timestamp::from_second(at.secs()) {
                    merged.points.insert(at, value);
                }
            }
            // The next page may complete a partial result.
            merged.status = result.status_code;
            merged.labels.extend(result.label);
            merged.messages.extend(result.messages.unwrap_or_default().into_iter().filter_map(message_text));
        }
    }
}

fn message_text(message: MessageData) -> Option<String> {
    message.value.or(message.code)
}

/// Retries are made by the SDK's client.
pub async fn get_metric_data(
    client: &Client,
    window: Window,
    queries: Vec<MetricDataQuery>,
) -> Result<QueryResults, CloudWatchError> {
    let queries: Vec<types::MetricDataQuery> = queries.into_iter().map(Into::into).collect();
    let all = async {
        let mut results = QueryResults::default();
        let mut token = None;
        for _ in 0..MAX_PAGES {
            let page = client
                .get_metric_data()
                .start_time(DateTime::from_secs(window.since.as_second()))
                .end_time(DateTime::from_secs(window.until.as_second()))
                .set_metric_data_queries(Some(queries.clone()))
                .set_next_token(token.take())
                .send()
                .await
                .map_err(|error| classify_error(&error))?;
            token = page.next_token.clone().filter(|token| !token.is_empty());
            results.add_page(page);
            if token.is_none() {
                return Ok(results);
            }
        }
        Err(CloudWatchError::TooManyPages)
    };
    timeout(QUERY_TIMEOUT, all).await.unwrap_or(Err(CloudWatchError::Timeout))
}

fn classify_error<R: std::fmt::Debug + 'static>(error: &SdkError<GetMetricDataError, R>) -> CloudWatchError {
    match error {
        SdkError::ServiceError(error) => {
            let (code, message) = (error.err().code(), error.err().message());
            let code = code.unwrap_or("an error without a code");
            let text = message.map_or_else(|| code.to_owned(), |message| format!("{code}: {message}"));
            match code {
                _ if ["Throttl", "RequestLimit", "TooManyRequests", "LimitExceeded"]
                    .iter()
                    .any(|prefix| code.starts_with(prefix)) =>
                {
                    CloudWatchError::Throttled(text)
                }
                _ if ["Validation", "InvalidParameter", "MissingParameter", "MissingRequired"]
                    .iter()
                    .any(|prefix| code.starts_with(prefix)) =>
                {
                    CloudWatchError::Rejected(message.unwrap_or(code).to_owned())
                }
                _ => CloudWatchError::Service(text),
            }
        }
        SdkError::TimeoutError(_) => CloudWatchError::Timeout,
        other => CloudWatchError::Unreachable(root_cause(other).to_string()),
    }
}

impl From<MetricDataQuery> for types::MetricDataQuery {
    fn from(query: MetricDataQuery) -> Self {
        let MetricDataQuery { id, metric_stat, expression, label, return_data, period, account_id } = query;
        types::MetricDataQuery::builder()
            .id(id)
            .set_metric_stat(metric_stat.map(Into::into))
            .set_expression(expression)
            .set_label(label)
            .set_return_data(return_data)
            .set_period(period.map(seconds))
            .set_account_id(account_id)
            .build()
    }
}

impl From<MetricStat> for types::MetricStat {
    fn from(MetricStat { metric, period, stat, unit }: MetricStat) -> Self {
        let Metric { namespace, metric_name, dimensions } = metric;
        let dimensions = dimensions
            .into_iter()
            .map(|Dimension { name, value }| types::Dimension::builder().name(name).value(value).build());
        let metric = types::Metric::builder()
            .namespace(namespace)
            .metric_name(metric_name)
            .set_dimensions(Some(dimensions.collect()));
        types::MetricStat::builder()
            .metric(metric.build())
            .period(seconds(period))
            .stat(stat)
            .set_unit(unit.map(|unit| unit.as_str().into()))
            .build()
    }
}

fn seconds(period: u32) -> i32 {
    i32::try_from(period).unwrap_or(i32::MAX)
}
