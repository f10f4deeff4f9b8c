//! What all requests of ours have in common: who we are to a server, how long
//! we wait, how much we read, how often we try.

use std::time::Duration;

use reqwest::header::{AUTHORIZATION, HeaderMap, HeaderName, HeaderValue};
use reqwest::redirect::Policy;
use reqwest::{Certificate, ClientBuilder, Error, Response, StatusCode, Url};

use super::Credentials;
use crate::api::analysis_template::MetricProvider;

/// One try.
pub const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(5);

/// All tries together, and the pauses between them.
const TOTAL_TIMEOUT: Duration = Duration::from_secs(12);

/// Pauses between tries; one more try than pauses.
const RETRY_DELAYS: [Duration; 2] = [Duration::from_millis(200), Duration::from_millis(800)];

/// An answer larger than this is not read.
const MAX_BODY: usize = 8 << 20;

/// Why a server gave no answer that could be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HttpError {
    #[error("cannot be reached: {0}")]
    Unreachable(String),
    #[error("did not answer within {0:?}")]
    Timeout(Duration),
    #[error("answered {status}{}", .why.as_ref().map(|why| format!(": {why}")).unwrap_or_default())]
    Status { status: u16, why: Option<String> },
    #[error("answered more than {} MiB", MAX_BODY >> 20)]
    TooLarge,
}

impl HttpError {
    pub fn status(status: StatusCode, why: Option<String>) -> Self {
        Self::Status { status: status.as_u16(), why }
    }

    /// Is it worth another try?
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Unreachable(_) | Self::Timeout(_) => true,
            Self::Status { status, .. } => *status >= 500 || *status == 429,
            Self::TooLarge => false,
        }
    }
}

impl From<&Error> for HttpError {
    fn from(error: &Error) -> Self {
        if error.is_timeout() { Self::Timeout(ATTEMPT_TIMEOUT) } else { Self::Unreachable(cause(error)) }
    }
}

/// Why a server cannot be asked at all.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ClientConfigError {
    #[error("reading provider.address: {0}")]
    Address(String),
    #[error("reading provider.headers: {0:?} is no header, or its value is none")]
    Header(String),
    #[error("reading the credentials in provider.secretRef: the Secret holds {0}")]
    Credentials(&'static str),
    #[error("preparing requests to provider.address: {0}")]
    Client(String),
}

/// Follows nobody elsewhere: credentials are meant for one server.
pub fn client() -> ClientBuilder {
    crate::tls::install_crypto_provider();
    ClientBuilder::new().redirect(Policy::none())
}

/// A client for the server that a provider names. The credentials may hold
/// `token`, or `username` and `password`, and `ca.crt`.
pub fn client_of(
    provider: &MetricProvider,
    credentials: &Credentials,
) -> Result<reqwest::Client, ClientConfigError> {
    // Without TLS there is nothing to verify, and an image without
    // certificates must not fail for want of them.
    let plain = address_of(provider)?.scheme() == "http";
    let mut builder = client()
        .timeout(ATTEMPT_TIMEOUT)
        .default_headers(headers(provider, credentials)?)
        .tls_danger_accept_invalid_certs(provider.insecure_skip_verify || plain);
    if let Some(authority) = credentials.bytes("ca.crt").or_else(|| credentials.bytes("caFile")) {
        let bad = ClientConfigError::Credentials("a ca.crt that is no certificate");
        let certificates = Certificate::from_pem_bundle(authority).map_err(|_| bad.clone())?;
        if certificates.is_empty() {
            return Err(bad);
        }
        builder = builder.tls_certs_only(certificates);
    }
    builder.build().map_err(|error| ClientConfigError::Client(cause(&error)))
}

fn address_of(provider: &MetricProvider) -> Result<Url, ClientConfigError> {
    let address = provider.address.as_deref().unwrap_or_default();
    Url::parse(address).map_err(|error| ClientConfigError::Address(error.to_string()))
}

/// The server's address as it may be shown: without user and password.
pub fn redacted_url(provider: &MetricProvider) -> Result<String, ClientConfigError> {
    let mut url = address_of(provider)?;
    // Both fail only for addresses that can have neither.
    let _ = url.set_username("");
    let _ = url.set_password(None);
    Ok(url.to_string())
}

fn headers(provider: &MetricProvider, credentials: &Credentials) -> Result<HeaderMap, ClientConfigError> {
    let mut headers = HeaderMap::new();
    for (name, values) in &provider.headers {
        let bad = || ClientConfigError::Header(name.clone());
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
fn authorization(credentials: &Credentials) -> Result<Option<HeaderValue>, ClientConfigError> {
    use base64::{Engine, engine::general_purpose::STANDARD};
    let user = (credentials.text("username"), credentials.text("password"));
    let value = match (credentials.text("token"), user) {
        (Some(token), _) => format!("Bearer {token}"),
        (None, (Some(name), Some(password))) => {
            format!("Basic {}", STANDARD.encode(format!("{name}:{password}")))
        }
        (None, (None, None)) => return Ok(None),
        (None, (Some(_), None)) => return Err(ClientConfigError::Credentials("a username and no password")),
        (None, (None, Some(_))) => return Err(ClientConfigError::Credentials("a password and no username")),
    };
    let bad = ClientConfigError::Credentials("a token with characters that a header cannot have");
    sensitive(&value).map(Some).ok_or(bad)
}

/// A value that is not shown in logs.
fn sensitive(value: &str) -> Option<HeaderValue> {
    let mut value = HeaderValue::from_str(value).ok()?;
    value.set_sensitive(true);
    Some(value)
}

/// Tries again what may pass, a few times.
pub async fn with_retries<T, E: From<HttpError>, A: Future<Output = Result<T, E>>>(
    attempt: impl Fn() -> A,
    is_transient: impl Fn(&E) -> bool,
) -> Result<T, E> {
    let tries = async {
        let mut pauses = RETRY_DELAYS.into_iter();
        loop {
            let answer = attempt().await;
            match (&answer, pauses.next()) {
                (Err(failure), Some(pause)) if is_transient(failure) => tokio::time::sleep(pause).await,
                _ => return answer,
            }
        }
    };
    tokio::time::timeout(TOTAL_TIMEOUT, tries)
        .await
        .unwrap_or_else(|_| Err(HttpError::Timeout(TOTAL_TIMEOUT).into()))
}

/// The body, unless it is longer than answers are.
pub async fn read_all(response: Response) -> Result<Vec<u8>, HttpError> {
    body(response, MAX_BODY).await.map_err(|unread| match unread {
        BodyError::TooLarge => HttpError::TooLarge,
        BodyError::Connection(error) => HttpError::from(&error),
    })
}

/// Why a body was not read.
pub enum BodyError {
    TooLarge,
    Connection(Error),
}

/// The body, unless it is longer than `limit`.
pub async fn body(mut response: Response, limit: usize) -> Result<Vec<u8>, BodyError> {
    let mut body = Vec::new();
    while let Some(chunk) = response.chunk().await.map_err(BodyError::Connection)? {
        if body.len() + chunk.len() > limit {
            return Err(BodyError::TooLarge);
        }
        body.extend_from_slice(&chunk);
    }
    Ok(body)
}

/// The cause of all causes. Those around it name the address, which people know
/// and which may hold a password.
pub fn cause(error: &Error) -> String {
    let mut cause: &dyn std::error::Error = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    match cause.downcast_ref::<Error>() {
        Some(_) => "the request failed".to_owned(),
        None => cause.to_string(),
    }
}
