//! Asks a webhook over HTTP.
//!
//! The request is Flagger's: a POST of `{name, namespace, phase, checksum,
//! metadata}`. Promises:
//!
//! - a status up to 202 is a yes, any other a no that names the status and the
//!   first line of the answer; no answer in time is silence, which is neither;
//! - a question ends: each try has the webhook's timeout, tries are bounded, and
//!   of an answer only its beginning is read;
//! - no URL, body or key is ever logged or repeated in a reply: they may hold
//!   secrets.
//!
//! Only silence is tried again. Redirects are not followed: a signed question
//! is for one receiver.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use hmac::{Hmac, KeyInit as _, Mac as _};
use jiff::Timestamp;
use serde::Serialize;
use sha2::Sha256;

use crate::api::{
    Canary, CanaryStatus,
    canary::{Phase, Severity, Webhook},
};
use crate::engine::observed::GateReply;

/// Carries `sha256=` and the HMAC of the body, in hexadecimal digits.
pub const SIGNATURE_HEADER: &str = "X-Serin-Signature";

const DEFAULT_TIMEOUT: Duration = Duration::from_secs(10);
const INITIAL_BACKOFF: Duration = Duration::from_millis(250);
const MAX_BACKOFF: Duration = Duration::from_secs(5);
/// A no needs one line, and nobody may fill our memory with more.
const MAX_RESPONSE_BYTES: usize = 4096;
const MAX_REASON_CHARS: usize = 200;

/// Which release a webhook is asked about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HookContext {
    pub name: String,
    pub namespace: String,
    pub phase: Phase,
    /// The revision: a receiver tells by it one release from another.
    pub checksum: String,
}

impl HookContext {
    /// The release that a status speaks of.
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

/// Something that happened, for webhooks of the type `event`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event<'a> {
    pub message: &'a str,
    pub severity: Severity,
    pub at: Timestamp,
}

/// One try of one question.
#[derive(Clone, Debug)]
pub struct HookRequest {
    pub url: String,
    /// For webhooks with `disableTLS`.
    pub skip_tls_verify: bool,
    pub signature: Option<String>,
    pub body: Vec<u8>,
    pub timeout: Duration,
}

/// What came back: the status, and the beginning of the text unless it is a yes.
#[derive(Clone, Debug)]
pub struct HookResponse {
    pub status: http::StatusCode,
    pub text: Vec<u8>,
}

/// Why nothing came back.
#[derive(Clone, Debug)]
pub enum HookError {
    /// What cannot be sent will not be answered, however often.
    InvalidRequest(String),
    TimedOut,
    Connection(String),
}

/// Carries questions: over the network, or to receivers that have no sockets.
#[async_trait]
pub trait HookTransport: Send + Sync {
    async fn send(&self, question: &HookRequest) -> Result<HookResponse, HookError>;
}

/// Asks webhooks. One is enough: clones share its connections.
#[derive(Clone)]
pub struct Webhooks(Arc<dyn HookTransport>);

impl std::fmt::Debug for Webhooks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Webhooks")
    }
}

/// Over the network.
struct HttpHookTransport {
    verifying_client: reqwest::Client,
    insecure_client: reqwest::Client,
}

/// The HTTP client could not be set up.
#[derive(Debug, thiserror::Error)]
#[error("cannot set up the HTTP client for webhooks")]
pub struct WebhookSetupError(#[from] reqwest::Error);

impl Webhooks {
    pub fn new() -> Result<Self, WebhookSetupError> {
        crate::tls::install_crypto_provider();
        let builder = || {
            reqwest::Client::builder()
                .user_agent(concat!("serin/", env!("CARGO_PKG_VERSION")))
                .redirect(reqwest::redirect::Policy::none())
                .pool_idle_timeout(Duration::from_secs(30))
        };
        Ok(Self::with_transport(Arc::new(HttpHookTransport {
            verifying_client: builder().build()?,
            insecure_client: builder().tls_danger_accept_invalid_certs(true).build()?,
        })))
    }

    pub fn with_transport(post: Arc<dyn HookTransport>) -> Self {
        Self(post)
    }

    /// Asks, and waits for the answer; `key` signs the question.
    pub async fn call_gate(&self, hook: &Webhook, about: &HookContext, key: Option<&[u8]>) -> GateReply {
        self.call(hook, body(about, &hook.metadata), key).await
    }

    /// Tells of an event. The answer is for the log only.
    pub async fn send_event(
        &self,
        hook: &Webhook,
        about: &HookContext,
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
        self.call(hook, body(about, &metadata), key).await
    }

    async fn call(&self, hook: &Webhook, body: Vec<u8>, key: Option<&[u8]>) -> GateReply {
        let timeout = hook.timeout.map_or(DEFAULT_TIMEOUT, |timeout| timeout.get());
        let signature = key.map(|key| signature(key, &body));
        let question = HookRequest {
            url: hook.url.clone(),
            skip_tls_verify: hook.disable_tls,
            signature,
            body,
            timeout,
        };
        let mut pause = INITIAL_BACKOFF;
        let mut left = hook.retries.unwrap_or(0);
        loop {
            let why = match self.0.send(&question).await {
                Ok(said) => return to_gate_reply(&said),
                Err(HookError::InvalidRequest(why)) => {
                    return GateReply::Unreachable { why: format!("cannot ask: {why}") };
                }
                Err(HookError::TimedOut) => format!("no answer within {timeout:?}"),
                Err(HookError::Connection(why)) => format!("no answer: {why}"),
            };
            if left == 0 {
                return GateReply::Unreachable { why };
            }
            left -= 1;
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(MAX_BACKOFF);
        }
    }
}

#[async_trait]
impl HookTransport for HttpHookTransport {
    async fn send(&self, question: &HookRequest) -> Result<HookResponse, HookError> {
        let client = if question.skip_tls_verify { &self.insecure_client } else { &self.verifying_client };
        let mut request = client
            .post(&question.url)
            .header(reqwest::header::CONTENT_TYPE, "application/json")
            .timeout(question.timeout);
        if let Some(signature) = &question.signature {
            request = request.header(SIGNATURE_HEADER, signature);
        }
        let request = request.body(question.body.clone()).build();
        let request = request.map_err(|error| HookError::InvalidRequest(error_chain(error)))?;
        match client.execute(request).await {
            Ok(response) => Ok(read_response(response).await),
            Err(error) if error.is_timeout() => Err(HookError::TimedOut),
            Err(error) => Err(HookError::Connection(error_chain(error))),
        }
    }
}

/// A no is a no, also when the rest of it got lost.
async fn read_response(mut response: reqwest::Response) -> HookResponse {
    let (status, mut text) = (response.status(), Vec::new());
    while !is_success(status) && text.len() < MAX_RESPONSE_BYTES {
        let Ok(Some(chunk)) = response.chunk().await else { break };
        let room = MAX_RESPONSE_BYTES - text.len();
        text.extend_from_slice(&chunk[..chunk.len().min(room)]);
    }
    HookResponse { status, text }
}

/// `sha256=` and the HMAC of the body, in hexadecimal digits.
pub fn signature(key: &[u8], body: &[u8]) -> String {
    let mut text = "sha256=".to_owned();
    // An HMAC takes keys of any length, so there is always one.
    if let Ok(mut hmac) = Hmac::<Sha256>::new_from_slice(key) {
        hmac.update(body);
        text.extend(hmac.finalize().into_bytes().iter().map(|byte| format!("{byte:02x}")));
    }
    text
}

fn body(about: &HookContext, metadata: &BTreeMap<String, String>) -> Vec<u8> {
    #[derive(Serialize)]
    struct Payload<'a> {
        name: &'a str,
        namespace: &'a str,
        phase: Phase,
        checksum: &'a str,
        #[serde(skip_serializing_if = "BTreeMap::is_empty")]
        metadata: &'a BTreeMap<String, String>,
    }
    let HookContext { name, namespace, phase, checksum } = about;
    // Texts and a map of texts: there is nothing that JSON could not say.
    serde_json::to_vec(&Payload { name, namespace, phase: *phase, checksum, metadata }).unwrap_or_default()
}

fn is_success(status: http::StatusCode) -> bool {
    status.as_u16() <= 202
}

fn to_gate_reply(HookResponse { status, text }: &HookResponse) -> GateReply {
    if is_success(*status) {
        return GateReply::Yes { by: None };
    }
    let text = String::from_utf8_lossy(text);
    let line = text.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or_default();
    let line: String = line.chars().filter(|c| !c.is_control()).take(MAX_REASON_CHARS).collect();
    let line = line.trim_end_matches('.');
    let why = if line.is_empty() { status.to_string() } else { format!("{status}: {line}") };
    GateReply::No { by: None, why }
}

/// The error and its causes, without the URL.
fn error_chain(error: reqwest::Error) -> String {
    let error = error.without_url();
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(&error);
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}
