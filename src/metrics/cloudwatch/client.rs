//! One question to CloudWatch, all pages of its answer.

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
use crate::metrics::Window;

/// All pages together.
const QUERY_TIMEOUT: Duration = Duration::from_secs(30);

/// More pages than this are not read: five hundred queries of a thousand
/// periods are five.
const MAX_PAGES: usize = 20;

/// Why there is no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CloudWatchError {
    #[error("cannot be asked: {0}")]
    NoRegion(#[from] NoRegion),
    #[error("cannot be reached: {0}")]
    Unreachable(String),
    #[error("did not answer in time")]
    Timeout,
    #[error("wants to be asked less often: {0}")]
    Throttled(String),
    #[error("refused the query: {0}")]
    Rejected(String),
    #[error("answered {0}")]
    Service(String),
    #[error("has only a part of the data yet{0}")]
    PartialData(String),
    #[error("answered with more than {MAX_PAGES} pages; ask for fewer metrics, or longer periods")]
    TooManyPages,
    #[error("answered {0} series where one was asked for; sum them up in the query")]
    MultipleSeries(usize),
    #[error("left a query without an answer")]
    MissingResult,
}

/// One value for each period that had any.
pub type Points = BTreeMap<Timestamp, f64>;

/// Everything that was said about each Id.
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
    /// What was said about one Id. A search that finds nothing is not even
    /// mentioned.
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
            let answer = self.0.entry(result.id.unwrap_or_default()).or_default();
            let timestamps = result.timestamps.unwrap_or_default();
            let values = result.values.unwrap_or_default();
            for (at, value) in timestamps.iter().zip(values) {
                if let Ok(at) = Timestamp::from_second(at.secs()) {
                    answer.points.insert(at, value);
                }
            }
            // What is incomplete on one page may be completed by the next.
            answer.status = result.status_code;
            answer.labels.extend(result.label);
            answer.messages.extend(result.messages.unwrap_or_default().into_iter().filter_map(message_text));
        }
    }
}

fn message_text(message: MessageData) -> Option<String> {
    message.value.or(message.code)
}

/// Asks about a window. Retries are made below, by the client.
pub async fn get_metric_data(
    client: &Client,
    window: Window,
    queries: Vec<MetricDataQuery>,
) -> Result<QueryResults, CloudWatchError> {
    let queries: Vec<types::MetricDataQuery> = queries.into_iter().map(Into::into).collect();
    let all = async {
        let mut answers = QueryResults::default();
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
            answers.add_page(page);
            if token.is_none() {
                return Ok(answers);
            }
        }
        Err(CloudWatchError::TooManyPages)
    };
    timeout(QUERY_TIMEOUT, all).await.unwrap_or(Err(CloudWatchError::Timeout))
}

fn classify_error<R: std::fmt::Debug + 'static>(error: &SdkError<GetMetricDataError, R>) -> CloudWatchError {
    match error {
        SdkError::ServiceError(answer) => {
            let (code, message) = (answer.err().code(), answer.err().message());
            let code = code.unwrap_or("an error without a name");
            let said = message.map_or_else(|| code.to_owned(), |message| format!("{code}: {message}"));
            match code {
                _ if ["Throttl", "RequestLimit", "TooManyRequests", "LimitExceeded"]
                    .iter()
                    .any(|known| code.starts_with(known)) =>
                {
                    CloudWatchError::Throttled(said)
                }
                _ if ["Validation", "InvalidParameter", "MissingParameter", "MissingRequired"]
                    .iter()
                    .any(|known| code.starts_with(known)) =>
                {
                    CloudWatchError::Rejected(message.unwrap_or(code).to_owned())
                }
                _ => CloudWatchError::Service(said),
            }
        }
        SdkError::TimeoutError(_) => CloudWatchError::Timeout,
        other => {
            let mut cause: &dyn std::error::Error = other;
            while let Some(source) = cause.source() {
                cause = source;
            }
            CloudWatchError::Unreachable(cause.to_string())
        }
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
