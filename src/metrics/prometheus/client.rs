//! The way to one Prometheus.

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
    Credentials, Window,
    http::{self, BadServer, TRY, Unanswered},
    in_flight::InFlight,
};

/// Longer queries go into the body: the address has no room for them.
const LONGEST_ADDRESS: usize = 2000;

pub struct Server {
    client: Client,
    /// As it may be shown: without user and password.
    shown: String,
    in_flight: InFlight<Request, Result<Arc<Data>, Failure>>,
}

/// When a query is asked about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Moment {
    Now,
    At(Timestamp),
    /// At every step of the window, to the second.
    Over {
        window: Window,
        step: Duration,
    },
}

/// Why there is no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    #[error("{0}")]
    Unanswered(#[from] Unanswered),
    #[error("refused the query: {0}")]
    Refused(String),
    #[error("gave no answer of Prometheus: {0}")]
    Garbled(String),
    #[error("answered {0} values where one was asked for; sum them up in the query")]
    Several(usize),
    #[error("answered {0}")]
    Unfit(&'static str),
    #[error("{0}")]
    Histogram(String),
}

/// What makes one request another.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Request {
    query: String,
    moment: Moment,
}

impl Server {
    pub fn new(provider: &MetricProvider, credentials: &Credentials) -> Result<Self, BadServer> {
        let client = http::client_of(provider, credentials)?;
        let address = provider.address.as_deref().unwrap_or_default();
        let client = Client::from(client, address).map_err(|error| BadServer::Address(error.to_string()))?;
        Ok(Self { client, shown: http::shown(provider)?, in_flight: InFlight::default() })
    }

    /// The answer to a query. One that is being asked is not asked again.
    pub async fn ask(&self, query: String, moment: Moment) -> Result<Arc<Data>, Failure> {
        let request = Request { query, moment };
        let asking = ask(self.client.clone(), request.clone());
        self.in_flight.ask(request, asking).await
    }

    /// A failure in words for people.
    pub fn blame(&self, failure: &Failure) -> String {
        format!("Prometheus at {} {failure}", self.shown)
    }
}

async fn ask(client: Client, request: Request) -> Result<Arc<Data>, Failure> {
    http::patiently(|| try_once(&client, &request), Failure::may_pass).await.map(Arc::new)
}

async fn try_once(client: &Client, Request { query, moment }: &Request) -> Result<Data, Failure> {
    let in_body = query.len() > LONGEST_ADDRESS;
    let patience = i64::try_from(TRY.as_millis()).unwrap_or(i64::MAX);
    let sent = match moment {
        Moment::Now | Moment::At(_) => {
            let mut builder = client.query(query).timeout(patience);
            if let Moment::At(at) = moment {
                builder = builder.query("time", format!("{:.3}", at.as_millisecond() as f64 / 1000.0));
            }
            if in_body { builder.post_raw().await } else { builder.get_raw().await }
        }
        Moment::Over { window, step } => {
            let (start, end) = (window.since.as_second(), window.until.as_second());
            let builder = client.query_range(query, start, end, step.as_secs_f64()).timeout(patience);
            if in_body { builder.post_raw().await } else { builder.get_raw().await }
        }
    };
    read(sent.map_err(unsent)?).await
}

/// What Prometheus wraps every answer in.
#[derive(Deserialize)]
#[serde(tag = "status", rename_all = "lowercase")]
enum Envelope {
    Success { data: PromqlResult },
    Error(PrometheusError),
}

async fn read(response: Response) -> Result<Data, Failure> {
    let status = response.status();
    match serde_json::from_slice(&http::whole(response).await?) {
        Ok(Envelope::Success { data }) if status.is_success() => Ok(data.into_inner().0),
        Ok(Envelope::Error(error)) if error.is_bad_data() || error.is_execution() => {
            Err(Failure::Refused(error.message().to_owned()))
        }
        Ok(Envelope::Error(error)) => Err(Unanswered::status(status, Some(error.message().to_owned())))?,
        Err(error) if status.is_success() => Err(Failure::Garbled(error.to_string())),
        Ok(Envelope::Success { .. }) | Err(_) => Err(Unanswered::status(status, None))?,
    }
}

fn unsent(error: Error) -> Unanswered {
    match error {
        Error::Client(error) => match error.inner() {
            Some(inner) => inner.into(),
            None => Unanswered::Unreachable(error.to_string()),
        },
        other => Unanswered::Unreachable(other.to_string()),
    }
}

impl Failure {
    fn may_pass(&self) -> bool {
        matches!(self, Self::Unanswered(unanswered) if unanswered.may_pass())
    }
}
