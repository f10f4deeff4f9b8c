//! What people say, over HTTP: `serin approve`, `promote`, `abort` and the like
//! as a JSON API, for programs and pages.
//!
//! ```text
//!   POST /api/v1/namespaces/NAMESPACE/canaries/NAME/approve   {"gate": "qa"}
//!                                              …/reject       {"gate": "qa", "reason": "too slow"}
//!                                              …/promote      {"revision": "1-5f3a"}
//!                                              …/abort, pause, resume, retry, rollback
//! ```
//!
//! Every field may be left out, and the body with them. 202 means that it is
//! written on the Canary, where `kubectl` and the controller see it; a mistake
//! is answered with `{"error": "one sentence"}`.
//!
//! Promises:
//!
//! - who speaks is known: the API server is asked about their token each time, and
//!   whether they may `update canaries/approve` before a Canary is told or told of;
//! - a token is neither kept nor logged, and never sent anywhere else;
//! - nobody can hold it up: requests are small, few at a time, and end in time.

use std::{sync::Arc, time::Duration};

use axum::{
    Json, Router,
    body::Bytes,
    extract::{FromRequest as _, Path, Request, State, rejection::BytesRejection},
    response::{IntoResponse, Response},
    routing::post,
};
use http::{HeaderMap, StatusCode, header};
use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec, UserInfo};
use kube::{Api, Client, api::PostParams};
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::{Value, json};
use tokio::{sync::Semaphore, time::timeout};

use crate::{
    engine::command::Verb,
    gates::people::{self, Name, Refused, Who},
};

/// Requests that are worked on at a time; others wait.
const AT_A_TIME: usize = 8;
/// From the first byte to the answer.
const LONGEST: Duration = Duration::from_secs(30);
/// What a body may have, in bytes: a reason is its longest part.
const LARGEST: usize = 16 * 1024;

#[derive(Clone)]
struct Listens {
    client: Client,
    /// Empty if it serves all.
    namespaces: Arc<[String]>,
    turns: Arc<Semaphore>,
}

/// Takes what people say of Canaries in these namespaces, or in all.
pub fn people(client: Client, namespaces: &[String]) -> Router {
    let listens =
        Listens { client, namespaces: namespaces.into(), turns: Arc::new(Semaphore::new(AT_A_TIME)) };
    Router::new()
        .route("/api/v1/namespaces/{namespace}/canaries/{name}/{verb}", post(hear))
        .fallback(async || Failure::NoSuchPage)
        .method_not_allowed_fallback(async || Failure::OnlyPost)
        .layer(axum::extract::DefaultBodyLimit::max(LARGEST))
        .with_state(listens)
}

/// Why it was not done.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error("there is no such page; POST to /api/v1/namespaces/NAMESPACE/canaries/NAME/VERB")]
    NoSuchPage,
    #[error("only POST says something to a Canary")]
    OnlyPost,
    #[error("{0} is nothing to say to a Canary; say one of approve, reject, {verbs}", verbs = verbs())]
    NoSuchVerb(String),
    #[error(
        "nobody knows who you are: send a token of this cluster as `Authorization: Bearer TOKEN`, such as `kubectl create token` makes"
    )]
    Unknown,
    #[error("namespace {namespace} is not served here; these are: {served}")]
    NotServed { namespace: String, served: String },
    #[error("the body: {0}")]
    Unreadable(#[from] BytesRejection),
    #[error("the body must be a JSON object: {0}")]
    Misspelt(#[from] serde_json::Error),
    #[error("the API server could not be asked who you are; try again")]
    NotReviewed(#[source] Box<kube::Error>),
    #[error(transparent)]
    Refused(#[from] Refused),
    #[error("it took longer than {LONGEST:?}; try again")]
    TooLate,
}

impl Failure {
    fn code(&self) -> StatusCode {
        match self {
            Self::NoSuchPage | Self::NoSuchVerb(_) | Self::NotServed { .. } => StatusCode::NOT_FOUND,
            Self::OnlyPost => StatusCode::METHOD_NOT_ALLOWED,
            Self::Unknown => StatusCode::UNAUTHORIZED,
            Self::Unreadable(rejection) => rejection.status(),
            Self::Misspelt(_) => StatusCode::BAD_REQUEST,
            Self::NotReviewed(_) => StatusCode::BAD_GATEWAY,
            Self::TooLate => StatusCode::GATEWAY_TIMEOUT,
            Self::Refused(refused) => match refused {
                Refused::NoSuchCanary { .. } => StatusCode::NOT_FOUND,
                Refused::NotAllowed { .. } => StatusCode::FORBIDDEN,
                Refused::NothingWaits(_)
                | Refused::NoSuchGate { .. }
                | Refused::WhichGate { .. }
                | Refused::NotForPeople(_)
                | Refused::Contended => StatusCode::CONFLICT,
                Refused::TooMany(_) => StatusCode::TOO_MANY_REQUESTS,
                Refused::Api { .. } => StatusCode::BAD_GATEWAY,
            },
        }
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        let code = self.code();
        // What the API server said is for whoever runs the controller.
        if let Self::NotReviewed(source) | Self::Refused(Refused::Api { source, .. }) = &self {
            tracing::warn!(error = %source, "{self}");
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

async fn hear(
    State(listens): State<Listens>,
    Path((namespace, name, verb)): Path<(String, String, String)>,
    request: Request,
) -> Result<Response, Failure> {
    let heard = async {
        let _turn = listens.turns.acquire().await;
        let who = listens.identify(request.headers()).await?;
        listens.check_served(&namespace)?;
        let body = Bytes::from_request(request, &()).await?;
        let said = listens.say(&who, Name { namespace: &namespace, name: &name }, &verb, &body).await?;
        Ok::<_, Failure>((who.username, said))
    };
    let (by, said) = timeout(LONGEST, heard).await.map_err(|_| Failure::TooLate)??;
    tracing::info!(canary = name, namespace, by, "told to {verb}");
    Ok((StatusCode::ACCEPTED, Json(said)).into_response())
}

/// What is said to a gate or an approval step.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Approval {
    gate: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Rejection {
    gate: Option<String>,
    #[serde(default)]
    reason: String,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Order {
    revision: Option<String>,
}

impl Listens {
    async fn identify(&self, headers: &HeaderMap) -> Result<UserInfo, Failure> {
        let token = bearer(headers).ok_or(Failure::Unknown)?;
        let spec = TokenReviewSpec { token: Some(token.to_owned()), ..TokenReviewSpec::default() };
        let review = TokenReview { spec, ..TokenReview::default() };
        let reviews = Api::<TokenReview>::all(self.client.clone());
        let reviewed = reviews.create(&PostParams::default(), &review).await;
        let status = reviewed.map_err(|error| Failure::NotReviewed(Box::new(error)))?.status;
        let known = status.filter(|status| status.authenticated == Some(true)).and_then(|status| status.user);
        known
            .filter(|user| user.username.as_ref().is_some_and(|name| !name.is_empty()))
            .ok_or(Failure::Unknown)
    }

    fn check_served(&self, namespace: &str) -> Result<(), Failure> {
        if self.namespaces.is_empty() || self.namespaces.iter().any(|served| served == namespace) {
            return Ok(());
        }
        Err(Failure::NotServed { namespace: namespace.to_owned(), served: self.namespaces.join(", ") })
    }

    async fn say(&self, who: &UserInfo, canary: Name<'_>, verb: &str, body: &[u8]) -> Result<Value, Failure> {
        let (client, by, who) = (&self.client, &who.username, Who::Person(who.clone()));
        let question = match verb {
            "approve" => {
                let Approval { gate } = read(body)?;
                people::approve(client, &who, canary, gate.as_deref()).await?
            }
            "reject" => {
                let Rejection { gate, reason } = read(body)?;
                people::deny(client, &who, canary, gate.as_deref(), &reason).await?
            }
            other => {
                let verb = Verb::ALL.into_iter().find(|verb| verb.name() == other);
                let verb = verb.ok_or_else(|| Failure::NoSuchVerb(other.to_owned()))?;
                let Order { revision } = read(body)?;
                let command = people::command(client, &who, canary, verb, revision.as_deref()).await?;
                // What became of it is in the status, under this id.
                return Ok(json!({ "id": command.id, "verb": verb, "revision": command.revision, "by": by }));
            }
        };
        Ok(json!({ "gate": question.gate, "release": question.release, "by": by }))
    }
}

fn bearer(headers: &HeaderMap) -> Option<&str> {
    let (scheme, token) = headers.get(header::AUTHORIZATION)?.to_str().ok()?.split_once(' ')?;
    let token = token.trim();
    (scheme.eq_ignore_ascii_case("bearer") && !token.is_empty()).then_some(token)
}

/// No body says nothing beside the verb.
fn read<T: Default + DeserializeOwned>(body: &[u8]) -> Result<T, serde_json::Error> {
    if body.trim_ascii().is_empty() { Ok(T::default()) } else { serde_json::from_slice(body) }
}

fn verbs() -> String {
    Verb::ALL.map(Verb::name).join(", ")
}
