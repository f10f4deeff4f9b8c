//! HTTP clients of metric sources: credentials, timeouts, body limit, retries.

use std::time::Duration;

use reqwest::header::{AUTHORIZATION, HeaderMap, HeaderName, HeaderValue};
use reqwest::redirect::Policy;
use reqwest::{Certificate, ClientBuilder, Error, Response, StatusCode, Url};

use super::Credentials;
use crate::api::analysis_template::MetricProvider;
use crate::error_chain::root_cause;
use crate::tenancy::{DeniedAddress, TenantAddresses};

/// Of one attempt.
pub const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(5);

/// Of all attempts and the delays between them.
const TOTAL_TIMEOUT: Duration = Duration::from_secs(12);

/// Between attempts, of which there is one more.
const RETRY_DELAYS: [Duration; 2] = [Duration::from_millis(200), Duration::from_millis(800)];

/// In bytes.
const MAX_BODY: usize = 8 << 20;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HttpError {
    #[error("cannot be reached: {0}")]
    Unreachable(String),
    #[error("did not respond within {0:?}")]
    Timeout(Duration),
    #[error("responded {status}{}", .why.as_ref().map(|why| format!(": {why}")).unwrap_or_default())]
    Status { status: u16, why: Option<String> },
    #[error("responded with more than {} MiB", MAX_BODY >> 20)]
    TooLarge,
}

impl HttpError {
    pub fn status(status: StatusCode, why: Option<String>) -> Self {
        Self::Status { status: status.as_u16(), why }
    }

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
        if error.is_timeout() { Self::Timeout(ATTEMPT_TIMEOUT) } else { Self::Unreachable(describe(error)) }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ClientConfigError {
    #[error("reading provider.address: {0}")]
    Address(String),
    #[error("reading provider.headers: {0:?} is not a valid header, or its value is not")]
    Header(String),
    #[error("reading the credentials in provider.secretRef: the Secret holds {0}")]
    Credentials(&'static str),
    #[error("preparing requests to provider.address: {0}")]
    Client(String),
    #[error("not queried: provider.address {0}")]
    Denied(#[from] DeniedAddress),
}

/// Follows no redirects: credentials are for one server.
pub fn client() -> ClientBuilder {
    crate::tls::install_crypto_provider();
    ClientBuilder::new().redirect(Policy::none())
}

/// A client for the provider's server. The credentials may have
/// `token`, or `username` and `password`, and `ca.crt`.
pub fn client_of(
    provider: &MetricProvider,
    credentials: &Credentials,
    addresses: &TenantAddresses,
) -> Result<reqwest::Client, ClientConfigError> {
    // Without TLS nothing is verified: building the client must not need root
    // certificates, which an image may lack.
    let address = address_of(provider)?;
    addresses.check(address.as_str())?;
    let plain = address.scheme() == "http";
    let mut builder = addresses
        .guard(client())
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
    builder.build().map_err(|error| ClientConfigError::Client(describe(&error)))
}

fn address_of(provider: &MetricProvider) -> Result<Url, ClientConfigError> {
    let address = provider.address.as_deref().unwrap_or_default();
    Url::parse(address).map_err(|error| ClientConfigError::Address(error.to_string()))
}

/// For messages: without user and password, and without the query, which may have a key.
pub fn redacted_url(provider: &MetricProvider) -> Result<String, ClientConfigError> {
    let mut url = address_of(provider)?;
    // Both fail only for URLs that cannot have user and password.
    let _ = url.set_username("");
    let _ = url.set_password(None);
    url.set_query(None);
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

/// A token takes precedence over a user, as in Flagger.
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

/// Marked so that logs do not show it.
fn sensitive(value: &str) -> Option<HeaderValue> {
    let mut value = HeaderValue::from_str(value).ok()?;
    value.set_sensitive(true);
    Some(value)
}

/// Retries transient failures.
pub async fn with_retries<T, E: From<HttpError>, A: Future<Output = Result<T, E>>>(
    attempt: impl Fn() -> A,
    is_transient: impl Fn(&E) -> bool,
) -> Result<T, E> {
    let attempts = async {
        let mut delays = RETRY_DELAYS.into_iter();
        loop {
            let result = attempt().await;
            match (&result, delays.next()) {
                (Err(error), Some(delay)) if is_transient(error) => tokio::time::sleep(delay).await,
                _ => return result,
            }
        }
    };
    tokio::time::timeout(TOTAL_TIMEOUT, attempts)
        .await
        .unwrap_or_else(|_| Err(HttpError::Timeout(TOTAL_TIMEOUT).into()))
}

/// The body, of at most `MAX_BODY`.
pub async fn read_all(response: Response) -> Result<Vec<u8>, HttpError> {
    body(response, MAX_BODY).await.map_err(|error| match error {
        BodyError::TooLarge => HttpError::TooLarge,
        BodyError::Connection(error) => HttpError::from(&error),
    })
}

pub enum BodyError {
    TooLarge,
    Connection(Error),
}

/// The body, of at most `limit` bytes.
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

/// The root cause only: the outer errors contain the URL, which may have a
/// password.
pub fn describe(error: &Error) -> String {
    let cause = root_cause(error);
    match cause.downcast_ref::<Error>() {
        Some(_) => "the request failed".to_owned(),
        None => cause.to_string(),
    }
}
