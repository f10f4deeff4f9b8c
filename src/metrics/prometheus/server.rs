//! The way to one Prometheus: who we are to it, how long we wait, how much we
//! read, how often we try.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use prometheus_http_query::error::PrometheusError;
use prometheus_http_query::response::{Data, PromqlResult};
use prometheus_http_query::{Client, Error};
use reqwest::header::{AUTHORIZATION, HeaderMap, HeaderName, HeaderValue};
use reqwest::{Certificate, Response, Url};
use serde::Deserialize;

use crate::api::analysis_template::MetricProvider;
use crate::metrics::{
    Credentials, Window,
    http::{self, Unread},
    in_flight::InFlight,
};

/// One try.
const TRY: Duration = Duration::from_secs(5);

/// All tries together, and the pauses between them.
const PATIENCE: Duration = Duration::from_secs(12);

/// Pauses between tries; one more try than pauses.
const PAUSES: [Duration; 2] = [Duration::from_millis(200), Duration::from_millis(800)];

/// An answer larger than this is not read.
const LARGEST: usize = 8 << 20;

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
    #[error("cannot be reached: {0}")]
    Unreachable(String),
    #[error("did not answer within {0:?}")]
    Late(Duration),
    #[error("answered {status}{}", .why.as_ref().map(|why| format!(": {why}")).unwrap_or_default())]
    Status { status: u16, why: Option<String> },
    #[error("refused the query: {0}")]
    Refused(String),
    #[error("answered more than {} MiB; sum the series up", LARGEST >> 20)]
    TooLarge,
    #[error("gave no answer of Prometheus: {0}")]
    Garbled(String),
    #[error("answered {0} values where one was asked for; sum them up in the query")]
    Several(usize),
    #[error("answered {0}")]
    Unfit(&'static str),
    #[error("{0}")]
    Histogram(String),
}

/// Why a server cannot be asked at all.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadServer {
    #[error("reading the address of a Prometheus: {0}")]
    Address(String),
    #[error("reading the headers for Prometheus: {0:?} is no header, or its value is none")]
    Header(String),
    #[error("reading the credentials of Prometheus: the Secret holds {0}")]
    Credentials(&'static str),
    #[error("preparing requests to Prometheus: {0}")]
    Client(String),
}

/// What makes one request another.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Request {
    query: String,
    moment: Moment,
}

impl Server {
    pub fn new(provider: &MetricProvider, credentials: &Credentials) -> Result<Self, BadServer> {
        let address = provider.address.as_deref().unwrap_or_default();
        let mut url = Url::parse(address).map_err(|error| BadServer::Address(error.to_string()))?;
        let plain = url.scheme() == "http";
        let client = http_client(provider, credentials, plain)?;
        let client = Client::from(client, address).map_err(|error| BadServer::Address(error.to_string()))?;
        // Both fail only for addresses that can have neither.
        let _ = url.set_username("");
        let _ = url.set_password(None);
        Ok(Self { client, shown: url.to_string(), in_flight: InFlight::default() })
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

fn http_client(
    provider: &MetricProvider,
    credentials: &Credentials,
    plain: bool,
) -> Result<reqwest::Client, BadServer> {
    let mut builder = http::client()
        .timeout(TRY)
        .default_headers(headers(provider, credentials)?)
        // Without TLS there is nothing to verify, and an image without
        // certificates must not fail for want of them.
        .tls_danger_accept_invalid_certs(provider.insecure_skip_verify || plain);
    if let Some(authority) = credentials.bytes("ca.crt").or_else(|| credentials.bytes("caFile")) {
        let bad = BadServer::Credentials("a ca.crt that is no certificate");
        let certificates = Certificate::from_pem_bundle(authority).map_err(|_| bad.clone())?;
        if certificates.is_empty() {
            return Err(bad);
        }
        builder = builder.tls_certs_only(certificates);
    }
    builder.build().map_err(|error| BadServer::Client(http::cause(&error)))
}

fn headers(provider: &MetricProvider, credentials: &Credentials) -> Result<HeaderMap, BadServer> {
    let mut headers = HeaderMap::new();
    for (name, values) in &provider.headers {
        let bad = || BadServer::Header(name.clone());
        let header: HeaderName = name.parse().map_err(|_| bad())?;
        for value in values {
            headers.append(&header, sensitive(value).ok_or_else(bad)?);
        }
    }
    if let Some(authorization) = authorization(credentials)? {
        headers.insert(AUTHORIZATION, authorization);
    }
    Ok(headers)
}

/// A token wins over a user, as in Flagger.
fn authorization(credentials: &Credentials) -> Result<Option<HeaderValue>, BadServer> {
    use base64::{Engine, engine::general_purpose::STANDARD};
    let user = (credentials.text("username"), credentials.text("password"));
    let value = match (credentials.text("token"), user) {
        (Some(token), _) => format!("Bearer {token}"),
        (None, (Some(name), Some(password))) => {
            format!("Basic {}", STANDARD.encode(format!("{name}:{password}")))
        }
        (None, (None, None)) => return Ok(None),
        (None, (Some(_), None)) => return Err(BadServer::Credentials("a username and no password")),
        (None, (None, Some(_))) => return Err(BadServer::Credentials("a password and no username")),
    };
    let bad = BadServer::Credentials("a token with characters that a header cannot have");
    sensitive(&value).map(Some).ok_or(bad)
}

/// A value that is not shown in logs.
fn sensitive(value: &str) -> Option<HeaderValue> {
    let mut value = HeaderValue::from_str(value).ok()?;
    value.set_sensitive(true);
    Some(value)
}

async fn ask(client: Client, request: Request) -> Result<Arc<Data>, Failure> {
    let tries = async {
        let mut pauses = PAUSES.into_iter();
        loop {
            let answer = try_once(&client, &request).await;
            match (&answer, pauses.next()) {
                (Err(failure), Some(pause)) if failure.may_pass() => tokio::time::sleep(pause).await,
                _ => return answer,
            }
        }
    };
    tokio::time::timeout(PATIENCE, tries).await.unwrap_or(Err(Failure::Late(PATIENCE))).map(Arc::new)
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
    let body = http::body(response, LARGEST).await.map_err(|unread| match unread {
        Unread::TooLong => Failure::TooLarge,
        Unread::Broken(error) => broken(&error),
    })?;
    match serde_json::from_slice(&body) {
        Ok(Envelope::Success { data }) if status.is_success() => Ok(data.into_inner().0),
        Ok(Envelope::Error(error)) if error.is_bad_data() || error.is_execution() => {
            Err(Failure::Refused(error.message().to_owned()))
        }
        Ok(Envelope::Error(error)) => {
            Err(Failure::Status { status: status.as_u16(), why: Some(error.message().to_owned()) })
        }
        Err(error) if status.is_success() => Err(Failure::Garbled(error.to_string())),
        Ok(Envelope::Success { .. }) | Err(_) => Err(Failure::Status { status: status.as_u16(), why: None }),
    }
}

fn unsent(error: Error) -> Failure {
    match error {
        Error::Client(error) => match error.inner() {
            Some(inner) => broken(inner),
            None => Failure::Unreachable(error.to_string()),
        },
        other => Failure::Unreachable(other.to_string()),
    }
}

fn broken(error: &reqwest::Error) -> Failure {
    if error.is_timeout() { Failure::Late(TRY) } else { Failure::Unreachable(http::cause(error)) }
}

impl Failure {
    /// Is it worth another try?
    fn may_pass(&self) -> bool {
        match self {
            Self::Unreachable(_) | Self::Late(_) => true,
            Self::Status { status, .. } => *status >= 500 || *status == 429,
            Self::Refused(_)
            | Self::TooLarge
            | Self::Garbled(_)
            | Self::Several(_)
            | Self::Unfit(_)
            | Self::Histogram(_) => false,
        }
    }
}
