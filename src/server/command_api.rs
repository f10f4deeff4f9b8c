//! The commands `serin approve`, `promote`, `abort` and so on as a JSON API.
//!
//! ```text
//!   POST /api/v1/namespaces/NAMESPACE/canaries/NAME/approve   {"gate": "qa"}
//!                                              …/reject       {"gate": "qa", "reason": "too slow"}
//!                                              …/promote      {"revision": "1-5f3a"}
//!                                              …/abort, pause, resume, retry, rollback
//! ```
//!
//! Every field is optional, and so is the body. 202: the annotation of the Canary
//! is written; the controller processes it. Errors are `{"error": "one sentence"}`.
//!
//! Guarantees:
//!
//! - every request is authenticated by a TokenReview, and authorized (`update
//!   canaries/approve`) before its body, or the Canary, is read;
//! - a token is neither stored nor logged, and sent to the API server only;
//! - the size, number and duration of requests are bounded; while a body is
//!   received, others have their turn.

use std::{sync::Arc, time::Duration};

use axum::{
    Json, Router,
    body::Bytes,
    extract::{FromRequest as _, Path, Request, State, rejection::BytesRejection},
    response::{IntoResponse, Response},
    routing::post,
};
use http::{StatusCode, header};
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::{Value, json};
use tokio::{sync::Semaphore, time::timeout};

use super::{
    access::{Access, User},
    oidc::session::SessionError,
};
use crate::{
    engine::command::Verb,
    error_chain::error_chain,
    gates::commands::{self, CanaryRef, CommandError},
};

/// Others wait.
const MAX_CONCURRENT_REQUESTS: usize = 8;
/// Of a whole request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);
const MAX_BODY_BYTES: usize = 16 * 1024;
/// Of receiving a body.
const BODY_TIMEOUT: Duration = Duration::from_secs(5);

#[derive(Clone)]
struct ApiState {
    access: Arc<Access>,
    /// Empty: all.
    namespaces: Arc<[String]>,
    permits: Arc<Semaphore>,
}

/// For Canaries in these namespaces; empty: in all.
pub fn command_router(access: Arc<Access>, namespaces: &[String]) -> Router {
    let state = ApiState {
        access,
        namespaces: namespaces.into(),
        permits: Arc::new(Semaphore::new(MAX_CONCURRENT_REQUESTS)),
    };
    Router::new()
        .route("/api/v1/namespaces/{namespace}/canaries/{name}/{verb}", post(handle))
        .fallback(async || CommandApiError::NoSuchRoute)
        .method_not_allowed_fallback(async || CommandApiError::MethodNotAllowed)
        .layer(axum::extract::DefaultBodyLimit::max(MAX_BODY_BYTES))
        .with_state(state)
}

#[derive(Debug, thiserror::Error)]
pub(super) enum CommandApiError {
    #[error("not found; POST to /api/v1/namespaces/NAMESPACE/canaries/NAME/VERB")]
    NoSuchRoute,
    #[error("only POST is supported")]
    MethodNotAllowed,
    #[error("{0} is not a command; use one of approve, reject, {verbs}", verbs = verbs())]
    NoSuchVerb(String),
    #[error(
        "not authenticated: send a token of this cluster as `Authorization: Bearer TOKEN`, for example one of `kubectl create token`"
    )]
    Unauthenticated,
    #[error("this address is of another session of `serin dashboard`; open the one that it printed")]
    NotOfSession,
    #[error("you are not signed in any more; sign in again")]
    SessionEnded,
    #[error(
        "a request by cookie needs the header X-Serin-Session, which the page sends; programs send a token"
    )]
    CookieWithoutHeader,
    #[error("sessions cannot be read here at the moment")]
    Session(#[from] SessionError),
    #[error("namespace {namespace} is not served here; these are: {served}")]
    NamespaceNotServed { namespace: String, served: String },
    #[error("{0:?} cannot be the name of {1}; names have lower-case letters, digits, - and .")]
    InvalidName(String, &'static str),
    #[error("the body was not received within {BODY_TIMEOUT:?}; send it at once")]
    BodyTimeout,
    #[error("the body: {0}")]
    BodyRejected(#[from] BytesRejection),
    #[error("the body must be a JSON object: {0}")]
    InvalidBody(#[from] serde_json::Error),
    #[error("the token could not be reviewed by the API server; try again")]
    TokenReviewFailed(#[source] Box<kube::Error>),
    #[error(transparent)]
    Command(#[from] CommandError),
    #[error("not done within {REQUEST_TIMEOUT:?}; try again")]
    Timeout,
}

impl CommandApiError {
    pub(super) fn status_code(&self) -> StatusCode {
        match self {
            Self::NoSuchRoute | Self::NoSuchVerb(_) | Self::NamespaceNotServed { .. } => {
                StatusCode::NOT_FOUND
            }
            Self::MethodNotAllowed => StatusCode::METHOD_NOT_ALLOWED,
            Self::Unauthenticated | Self::NotOfSession | Self::SessionEnded => StatusCode::UNAUTHORIZED,
            Self::CookieWithoutHeader => StatusCode::FORBIDDEN,
            Self::Session(_) => StatusCode::INTERNAL_SERVER_ERROR,
            Self::BodyRejected(rejection) => rejection.status(),
            Self::InvalidBody(_) | Self::InvalidName(..) => StatusCode::BAD_REQUEST,
            Self::BodyTimeout => StatusCode::REQUEST_TIMEOUT,
            Self::TokenReviewFailed(_) => StatusCode::BAD_GATEWAY,
            Self::Timeout => StatusCode::GATEWAY_TIMEOUT,
            Self::Command(error) => match error {
                CommandError::NoSuchCanary { .. } => StatusCode::NOT_FOUND,
                CommandError::NotAllowed { .. } => StatusCode::FORBIDDEN,
                CommandError::NothingPending(_)
                | CommandError::NoSuchGate { .. }
                | CommandError::AmbiguousGate { .. }
                | CommandError::NotRejectable(_)
                | CommandError::Outdated
                | CommandError::LinkUsed { .. }
                | CommandError::Conflict => StatusCode::CONFLICT,
                CommandError::TooManyPending(_) => StatusCode::TOO_MANY_REQUESTS,
                CommandError::Api { .. } => StatusCode::BAD_GATEWAY,
            },
        }
    }
}

impl IntoResponse for CommandApiError {
    fn into_response(self) -> Response {
        let code = self.status_code();
        // Errors of the API server are logged, not sent to the client.
        if let Self::TokenReviewFailed(source) | Self::Command(CommandError::Api { source, .. }) = &self {
            tracing::warn!(error = %source, "{self}");
        }
        if let Self::Session(source) = &self {
            tracing::warn!(error = error_chain(source), "{self}");
        }
        let mut response = (code, Json(json!({ "error": self.to_string() }))).into_response();
        if code == StatusCode::UNAUTHORIZED {
            response
                .headers_mut()
                .insert(header::WWW_AUTHENTICATE, header::HeaderValue::from_static("Bearer"));
        }
        response
    }
}

async fn handle(
    State(state): State<ApiState>,
    Path((namespace, name, verb)): Path<(String, String, String)>,
    request: Request,
) -> Result<Response, CommandApiError> {
    // Decoded names become a part of the URL of a request with the controller's rights.
    check_name(&namespace, "a namespace")?;
    check_name(&name, "a Canary")?;
    let canary = CanaryRef { namespace: &namespace, name: &name };
    let work = async {
        let permit = state.permits.acquire().await;
        let user = state.access.authenticate(request.headers()).await?;
        state.check_namespace(&namespace)?;
        commands::authorize(state.access.client(), &state.access.caller(&user), canary).await?;
        drop(permit);
        let body = timeout(BODY_TIMEOUT, Bytes::from_request(request, &()));
        let body = body.await.map_err(|_| CommandApiError::BodyTimeout)??;
        let _permit = state.permits.acquire().await;
        let accepted = state.dispatch(&user, canary, &verb, &body).await?;
        Ok::<_, CommandApiError>((user.name().to_owned(), accepted))
    };
    let (by, accepted) = timeout(REQUEST_TIMEOUT, work).await.map_err(|_| CommandApiError::Timeout)??;
    tracing::info!(canary = name, namespace, by, "accepted command {verb}");
    Ok((StatusCode::ACCEPTED, Json(accepted)).into_response())
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct ApproveBody {
    gate: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct RejectBody {
    gate: Option<String>,
    #[serde(default)]
    reason: String,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct CommandBody {
    revision: Option<String>,
}

impl ApiState {
    fn check_namespace(&self, namespace: &str) -> Result<(), CommandApiError> {
        if self.namespaces.is_empty() || self.namespaces.iter().any(|served| served == namespace) {
            return Ok(());
        }
        Err(CommandApiError::NamespaceNotServed {
            namespace: namespace.to_owned(),
            served: self.namespaces.join(", "),
        })
    }

    async fn dispatch(
        &self,
        user: &User,
        canary: CanaryRef<'_>,
        verb: &str,
        body: &[u8],
    ) -> Result<Value, CommandApiError> {
        let (client, by, caller) = (self.access.client(), user.name(), self.access.caller(user));
        let call = match verb {
            "approve" => {
                let ApproveBody { gate } = parse_body(body)?;
                commands::approve(client, &caller, canary, gate.as_deref()).await?
            }
            "reject" => {
                let RejectBody { gate, reason } = parse_body(body)?;
                commands::reject(client, &caller, canary, gate.as_deref(), &reason).await?
            }
            other => {
                let verb = Verb::ALL.into_iter().find(|verb| verb.name() == other);
                let verb = verb.ok_or_else(|| CommandApiError::NoSuchVerb(other.to_owned()))?;
                let CommandBody { revision } = parse_body(body)?;
                let command = commands::command(client, &caller, canary, verb, revision.as_deref()).await?;
                // `status.lastCommand` has the result, under this id.
                return Ok(json!({ "id": command.id, "verb": verb, "revision": command.revision, "by": by }));
            }
        };
        Ok(json!({ "gate": call.gate, "release": call.release, "by": by }))
    }
}

/// A DNS-1123 subdomain, as the API server requires of both.
pub(super) fn check_name(name: &str, of: &'static str) -> Result<(), CommandApiError> {
    let is_alphanumeric = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    let is_label = |label: &str| {
        label.starts_with(is_alphanumeric)
            && label.ends_with(is_alphanumeric)
            && label.chars().all(|c| is_alphanumeric(c) || c == '-')
    };
    match name.len() <= 253 && name.split('.').all(is_label) {
        true => Ok(()),
        false => Err(CommandApiError::InvalidName(name.chars().take(253).collect(), of)),
    }
}

/// By a TokenReview.
/// An empty body sets no field.
fn parse_body<T: Default + DeserializeOwned>(body: &[u8]) -> Result<T, serde_json::Error> {
    if body.trim_ascii().is_empty() { Ok(T::default()) } else { serde_json::from_slice(body) }
}

fn verbs() -> String {
    Verb::ALL.map(Verb::name).join(", ")
}
