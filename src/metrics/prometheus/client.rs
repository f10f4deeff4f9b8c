//! Client of one Prometheus server.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use prometheus_http_query::error::PrometheusError;
use prometheus_http_query::response::{Data, PromqlResult};
use prometheus_http_query::{Client, Error};
use reqwest::Response;
use serde::Deserialize;

use crate::api::analysis_template::MetricProvider;
use crate::metrics::{
    Credentials, MAX_BOUNDS, Window,
    http::{self, ATTEMPT_TIMEOUT, ClientConfigError, HttpError},
    off_loop::{self, OverBudget},
    single_flight::SingleFlight,
};
use crate::tenancy::TenantAddresses;

/// Longer queries are sent by POST: URLs are limited in length.
const MAX_GET_QUERY: usize = 2000;

pub struct PrometheusClient {
    client: Client,
    /// For messages: without user and password.
    redacted_url: String,
    single_flight: SingleFlight<QueryRequest, Result<Arc<Data>, PrometheusQueryError>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EvalTime {
    Now,
    At(Timestamp),
    /// At every step of the window, to the second.
    Range {
        window: Window,
        step: Duration,
    },
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PrometheusQueryError {
    #[error("{0}")]
    Http(#[from] HttpError),
    #[error(transparent)]
    OverBudget(#[from] OverBudget),
    #[error("refused the query: {0}")]
    Rejected(String),
    #[error("returned no Prometheus response: {0}")]
    InvalidResponse(String),
    #[error(
        "returned {count} values where one was expected, which differ in {labels}; sum them in the query, or select one"
    )]
    MultipleValues { count: usize, labels: String },
    #[error("returned {0}")]
    UnexpectedType(&'static str),
    #[error("{0}")]
    InvalidHistogram(String),
    #[error("returned {0} bounds, and at most {MAX_BOUNDS} are read; aggregate or drop some")]
    TooManyBounds(usize),
    #[error("returned {0} where a count was expected; exclude the series that exports it")]
    NotACount(String),
}

#[derive(Clone, PartialEq, Eq, Hash)]
struct QueryRequest {
    query: String,
    eval_time: EvalTime,
}

impl PrometheusClient {
    pub fn new(
        provider: &MetricProvider,
        credentials: &Credentials,
        addresses: &TenantAddresses,
    ) -> Result<Self, ClientConfigError> {
        let client = http::client_of(provider, credentials, addresses)?;
        let address = base_url(provider.address.as_deref().unwrap_or_default());
        let client =
            Client::from(client, &address).map_err(|error| ClientConfigError::Address(error.to_string()))?;
        Ok(Self {
            client,
            redacted_url: http::redacted_url(provider)?,
            single_flight: SingleFlight::default(),
        })
    }

    /// Shares the response of an identical query in flight.
    pub async fn query(&self, query: String, eval_time: EvalTime) -> Result<Arc<Data>, PrometheusQueryError> {
        let request = QueryRequest { query, eval_time };
        let response = send_with_retries(self.client.clone(), request.clone());
        self.single_flight.run(request, response).await
    }

    pub fn describe_failure(&self, error: &PrometheusQueryError) -> String {
        format!("Prometheus at {} {error}", self.redacted_url)
    }
}

/// The paths of the API are appended with a slash, and servers redirect from two of them.
fn base_url(address: &str) -> String {
    let Ok(mut url) = reqwest::Url::parse(address) else { return address.to_owned() };
    let path = url.path().trim_end_matches('/').to_owned();
    url.set_path(&path);
    url.into()
}

async fn send_with_retries(client: Client, request: QueryRequest) -> Result<Arc<Data>, PrometheusQueryError> {
    http::with_retries(|| send_once(&client, &request), PrometheusQueryError::is_transient)
        .await
        .map(Arc::new)
}

async fn send_once(
    client: &Client,
    QueryRequest { query, eval_time }: &QueryRequest,
) -> Result<Data, PrometheusQueryError> {
    let in_body = query.len() > MAX_GET_QUERY;
    let timeout_ms = i64::try_from(ATTEMPT_TIMEOUT.as_millis()).unwrap_or(i64::MAX);
    let sent = match eval_time {
        EvalTime::Now | EvalTime::At(_) => {
            let mut builder = client.query(query).timeout(timeout_ms);
            if let EvalTime::At(at) = eval_time {
                builder = builder.query("time", format!("{:.3}", at.as_millisecond() as f64 / 1000.0));
            }
            if in_body { builder.post_raw().await } else { builder.get_raw().await }
        }
        EvalTime::Range { window, step } => {
            let (start, end) = (window.since.as_second(), window.until.as_second());
            let builder = client.query_range(query, start, end, step.as_secs_f64()).timeout(timeout_ms);
            if in_body { builder.post_raw().await } else { builder.get_raw().await }
        }
    };
    parse_response(sent.map_err(transport_error)?).await
}

#[derive(Deserialize)]
#[serde(tag = "status", rename_all = "lowercase")]
enum Envelope {
    Success { data: PromqlResult },
    Error(PrometheusError),
}

async fn parse_response(response: Response) -> Result<Data, PrometheusQueryError> {
    let status = response.status();
    let body = http::read_all(response).await?;
    let envelope = off_loop::read(body.len(), move || serde_json::from_slice(&body)).await?;
    match envelope {
        Ok(Envelope::Success { data }) if status.is_success() => Ok(data.into_inner().0),
        Ok(Envelope::Error(error)) if error.is_bad_data() || error.is_execution() => {
            Err(PrometheusQueryError::Rejected(error.message().to_owned()))
        }
        Ok(Envelope::Error(error)) => Err(HttpError::status(status, Some(error.message().to_owned())))?,
        Err(error) if status.is_success() => Err(PrometheusQueryError::InvalidResponse(error.to_string())),
        Ok(Envelope::Success { .. }) | Err(_) => Err(HttpError::status(status, None))?,
    }
}

fn transport_error(error: Error) -> HttpError {
    match error {
        Error::Client(error) => match error.inner() {
            Some(inner) => inner.into(),
            None => HttpError::Unreachable(error.to_string()),
        },
        other => HttpError::Unreachable(other.to_string()),
    }
}

impl PrometheusQueryError {
    fn is_transient(&self) -> bool {
        matches!(self, Self::Http(http_error) if http_error.is_transient())
    }
}
