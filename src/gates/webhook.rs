//! Calls webhooks over HTTP.
//!
//! The request is Flagger's: a POST of `{name, namespace, phase, checksum,
//! metadata}`. Guarantees:
//!
//! - a status up to 202 is a yes, any other a no with the status; a timeout or
//!   connection error is `Unreachable`, which is neither;
//! - the body is not read: the URL may lead to a server whose answers the author of
//!   the Canary must not see;
//! - a call ends: each attempt has the webhook's timeout, and all attempts
//!   together have [`MAX_CALL_DURATION`];
//! - no URL, body or key is logged or repeated in a reply: they may contain
//!   secrets.
//!
//! `retries` repeats a call without a response, and one with a status that promises
//! another answer later: 429 and 5xx, except 501. Within a mesh an unreachable receiver
//! shows as the 503 of a proxy. The last answer counts. Redirects are not followed: a
//! signed request is for one receiver.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use hmac::{Hmac, KeyInit as _, Mac as _};
use jiff::Timestamp;
use serde::Serialize;
use sha2::Sha256;
use tokio::time::{Instant, sleep};

use crate::api::{
    Canary, CanaryStatus,
    canary::{Phase, Severity, Webhook},
};
use crate::engine::observed::GateReply;
use crate::error_chain::error_chain;
use crate::retry_after::retry_after;
use crate::tenancy::{DeniedAddress, TenantAddresses};

/// Carries `sha256=` and the HMAC of the body, in hexadecimal digits.
pub const SIGNATURE_HEADER: &str = "X-Serin-Signature";

/// Carries the time of the call, in seconds since 1970, and [`TIMED_SIGNATURE_HEADER`] the
/// HMAC of that text, a dot and the body: a receiver that checks both accepts no request that
/// somebody recorded and sends again.
pub const TIMESTAMP_HEADER: &str = "X-Serin-Timestamp";
pub const TIMED_SIGNATURE_HEADER: &str = "X-Serin-Timed-Signature";

const DEFAULT_TIMEOUT: Duration = Duration::from_secs(10);
/// Of one call, with its retries. The schema limits `timeout` to the same.
pub const MAX_CALL_DURATION: Duration = Duration::from_secs(300);
const INITIAL_BACKOFF: Duration = Duration::from_millis(250);
const MAX_BACKOFF: Duration = Duration::from_secs(5);

/// The release that a webhook is called for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HookContext {
    pub name: String,
    pub namespace: String,
    pub phase: Phase,
    /// The revision, which identifies the release.
    pub checksum: String,
}

impl HookContext {
    pub fn from_status(canary: &Canary, status: &CanaryStatus) -> Self {
        let release = status.release.as_ref().map(|release| &release.revision);
        Self {
            name: canary.metadata.name.clone().unwrap_or_default(),
            namespace: canary.metadata.namespace.clone().unwrap_or_default(),
            phase: status.phase,
            checksum: release.or(status.last_applied_spec.as_ref()).cloned().unwrap_or_default(),
        }
    }
}

/// For webhooks of the type `event`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event<'a> {
    pub message: &'a str,
    pub severity: Severity,
    pub at: Timestamp,
}

#[derive(Clone, Debug)]
pub struct HookRequest {
    pub url: String,
    /// For webhooks with `disableTLS`.
    pub skip_tls_verify: bool,
    pub signatures: Option<Signatures>,
    pub body: Vec<u8>,
    pub timeout: Duration,
}

#[derive(Clone, Debug)]
pub struct Signatures {
    pub of_body: String,
    pub timestamp: String,
    /// Of timestamp and body.
    pub timed: String,
}

impl Signatures {
    fn new(key: &[u8], body: &[u8], at: Timestamp) -> Self {
        let timestamp = at.as_second().to_string();
        let timed = signature(key, &[timestamp.as_bytes(), b".", body].concat());
        Self { of_body: signature(key, body), timestamp, timed }
    }
}

#[derive(Clone, Debug, Default)]
pub struct HookResponse {
    pub status: http::StatusCode,
    pub retry_after: Option<Duration>,
}

#[derive(Clone, Debug)]
pub enum HookError {
    /// Not retried.
    InvalidRequest(String),
    TimedOut,
    Connection(String),
}

/// HTTP, or a substitute in tests.
#[async_trait]
pub trait HookTransport: Send + Sync {
    async fn send(&self, request: &HookRequest) -> Result<HookResponse, HookError>;
}

/// Webhook client; clones share its connections.
#[derive(Clone)]
pub struct Webhooks(Arc<dyn HookTransport>);

impl std::fmt::Debug for Webhooks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Webhooks")
    }
}

struct HttpHookTransport {
    verifying_client: reqwest::Client,
    insecure_client: reqwest::Client,
    addresses: TenantAddresses,
}

/// The HTTP client could not be set up.
#[derive(Debug, thiserror::Error)]
#[error("cannot set up the HTTP client for webhooks")]
pub struct WebhookSetupError(#[from] reqwest::Error);

impl Webhooks {
    /// Webhooks at other addresses are not called.
    pub fn new(addresses: &TenantAddresses) -> Result<Self, WebhookSetupError> {
        crate::tls::install_crypto_provider();
        let builder = || {
            let builder = reqwest::Client::builder()
                .user_agent(concat!("serin/", env!("CARGO_PKG_VERSION")))
                .redirect(reqwest::redirect::Policy::none())
                .pool_idle_timeout(Duration::from_secs(30));
            addresses.guard(builder)
        };
        Ok(Self::with_transport(Arc::new(HttpHookTransport {
            verifying_client: builder().build()?,
            insecure_client: builder().tls_danger_accept_invalid_certs(true).build()?,
            addresses: addresses.clone(),
        })))
    }

    pub fn with_transport(transport: Arc<dyn HookTransport>) -> Self {
        Self(transport)
    }

    /// `key` signs the request.
    pub async fn call_gate(&self, hook: &Webhook, context: &HookContext, key: Option<&[u8]>) -> GateReply {
        self.call(hook, body(context, &hook.metadata), key).await
    }

    /// The reply is for the log only.
    pub async fn send_event(
        &self,
        hook: &Webhook,
        context: &HookContext,
        event: &Event<'_>,
        key: Option<&[u8]>,
    ) -> GateReply {
        let mut metadata = hook.metadata.clone();
        let kind = if event.severity == Severity::Info { "Normal" } else { "Warning" };
        metadata.extend([
            ("eventMessage".to_owned(), event.message.to_owned()),
            ("eventType".to_owned(), kind.to_owned()),
            ("timestamp".to_owned(), event.at.as_millisecond().to_string()),
        ]);
        self.call(hook, body(context, &metadata), key).await
    }

    async fn call(&self, hook: &Webhook, body: Vec<u8>, key: Option<&[u8]>) -> GateReply {
        let timeout = hook.timeout.map_or(DEFAULT_TIMEOUT, |timeout| timeout.get()).min(MAX_CALL_DURATION);
        let deadline = Instant::now() + MAX_CALL_DURATION;
        let signatures = key.map(|key| Signatures::new(key, &body, Timestamp::now()));
        let mut request = HookRequest {
            url: hook.url.clone(),
            skip_tls_verify: hook.disable_tls,
            signatures,
            body,
            timeout,
        };
        let mut backoff = INITIAL_BACKOFF;
        let mut retries = hook.retries.unwrap_or(0);
        loop {
            request.timeout = timeout.min(deadline - Instant::now());
            let unreachable = |why: String| (GateReply::Unreachable { why }, None);
            let (reply, requested_wait) = match self.0.send(&request).await {
                Ok(response) if is_transient(response.status) => {
                    (to_gate_reply(&response), response.retry_after)
                }
                Ok(response) => return to_gate_reply(&response),
                Err(HookError::InvalidRequest(why)) => {
                    return unreachable(format!("invalid request: {why}")).0;
                }
                Err(HookError::TimedOut) => unreachable(format!("no response within {:?}", request.timeout)),
                Err(HookError::Connection(why)) => unreachable(format!("no response: {why}")),
            };
            // As long as the receiver asks for, within the time that a response may take.
            let wait = requested_wait.unwrap_or(backoff).min(timeout);
            if retries == 0 || Instant::now() + wait >= deadline {
                return reply;
            }
            retries -= 1;
            sleep(wait).await;
            backoff = (backoff * 2).min(MAX_BACKOFF);
        }
    }
}

#[async_trait]
impl HookTransport for HttpHookTransport {
    async fn send(&self, hook: &HookRequest) -> Result<HookResponse, HookError> {
        let denied = |error: DeniedAddress| HookError::InvalidRequest(format!("the url {error}"));
        self.addresses.check(&hook.url).map_err(denied)?;
        let client = if hook.skip_tls_verify { &self.insecure_client } else { &self.verifying_client };
        let mut request = client
            .post(&hook.url)
            .header(reqwest::header::CONTENT_TYPE, "application/json")
            .timeout(hook.timeout);
        if let Some(Signatures { of_body, timestamp, timed }) = &hook.signatures {
            request = request
                .header(SIGNATURE_HEADER, of_body)
                .header(TIMESTAMP_HEADER, timestamp)
                .header(TIMED_SIGNATURE_HEADER, timed);
        }
        let request = request.body(hook.body.clone()).build();
        let request = request.map_err(|error| HookError::InvalidRequest(describe(error)))?;
        match client.execute(request).await {
            Ok(response) => {
                Ok(HookResponse { status: response.status(), retry_after: retry_after(response.headers()) })
            }
            Err(error) if error.is_timeout() => Err(HookError::TimedOut),
            Err(error) => Err(HookError::Connection(describe(error))),
        }
    }
}

/// `sha256=` and the HMAC of the body, in hexadecimal digits.
pub fn signature(key: &[u8], body: &[u8]) -> String {
    let mut text = "sha256=".to_owned();
    // HMAC accepts keys of any length: this does not fail.
    if let Ok(mut hmac) = Hmac::<Sha256>::new_from_slice(key) {
        hmac.update(body);
        text.extend(hmac.finalize().into_bytes().iter().map(|byte| format!("{byte:02x}")));
    }
    text
}

fn body(context: &HookContext, metadata: &BTreeMap<String, String>) -> Vec<u8> {
    #[derive(Serialize)]
    struct Payload<'a> {
        name: &'a str,
        namespace: &'a str,
        phase: Phase,
        checksum: &'a str,
        #[serde(skip_serializing_if = "BTreeMap::is_empty")]
        metadata: &'a BTreeMap<String, String>,
    }
    let HookContext { name, namespace, phase, checksum } = context;
    // Strings and a map of strings: this does not fail.
    serde_json::to_vec(&Payload { name, namespace, phase: *phase, checksum, metadata }).unwrap_or_default()
}

fn is_success(status: http::StatusCode) -> bool {
    status.as_u16() <= 202
}

/// The receiver, or a proxy before it, may answer otherwise a moment later.
fn is_transient(status: http::StatusCode) -> bool {
    (status.is_server_error() && status != http::StatusCode::NOT_IMPLEMENTED)
        || status == http::StatusCode::TOO_MANY_REQUESTS
}

fn to_gate_reply(HookResponse { status, .. }: &HookResponse) -> GateReply {
    match is_success(*status) {
        true => GateReply::Yes { by: None },
        false => GateReply::No { by: None, why: status.to_string() },
    }
}

/// Without the URL, which may contain a secret.
fn describe(error: reqwest::Error) -> String {
    error_chain(&error.without_url())
}
