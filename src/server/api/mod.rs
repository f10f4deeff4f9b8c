//! Canaries as JSON, and as a stream: what the page of [`super::dashboard`] reads.
//!
//! ```text
//!   GET /api/v1/me                                        who the caller is
//!       /api/v1/canaries                                  all that the caller may list
//!       /api/v1/stream                                    the same as it changes: server-sent events
//!       /api/v1/namespaces/NAMESPACE/canaries/NAME        one of them
//!                                                …/course        its release over time
//!                                                …/releases      the last ten releases
//!                                                …/surroundings  images, pods in trouble, events
//!       /api/v1/openapi.json                              this, for programs
//! ```
//!
//! Guarantees:
//!
//! - a caller sees the Canaries of the namespaces in which they may `list` them, or of all
//!   if they may there; one Canary if they may `get` it; its images, pods and events if they
//!   may read those objects. Others learn nothing, not even whether a name exists;
//! - every replica answers from its own watch of all Canaries;
//! - without a caller nothing is computed, read or sent; number, duration and size of
//!   requests and streams are bounded.

mod course;
mod openapi;
mod stream;
mod surroundings;
mod view;

use std::{sync::Arc, time::Duration};

use axum::{
    Extension, Json, Router,
    extract::{Path, State},
    response::{IntoResponse, Response},
    routing::get,
};
use http::{HeaderMap, StatusCode, header};
use jiff::Timestamp;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::json;
use tokio::{sync::Semaphore, time::timeout};

use super::{
    access::{Access, Right, User},
    command_api::{CommandApiError, check_name},
    listen::Closing,
};
use crate::{
    controller::{CachedCanary, NamespacedName},
    telemetry::LiveCanaries,
};
use course::Course;
use stream::Rows;
use surroundings::{May, Reader, Surroundings};
use view::{Detail, Release, Row};

pub use openapi::document as openapi_document;

const MAX_STREAMS: usize = 256;
/// Others wait.
const MAX_CONCURRENT_REQUESTS: usize = 16;
/// Of a whole request, except a stream.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);
/// Of which the rights of one caller are reviewed; those of further ones are not shown.
const MAX_NAMESPACES: usize = 500;

/// What the API needs of its process.
pub struct BoardSources {
    pub access: Arc<Access>,
    pub live: Arc<LiveCanaries>,
    /// For people, such as `production`.
    pub cluster: String,
    pub clock: Arc<dyn Fn() -> Timestamp + Send + Sync>,
    /// Whether the inventory is served beside it.
    pub inventory: bool,
}

#[derive(Clone)]
pub(crate) struct BoardState {
    access: Arc<Access>,
    live: Arc<LiveCanaries>,
    cluster: Arc<str>,
    clock: Arc<dyn Fn() -> Timestamp + Send + Sync>,
    inventory: bool,
    rows: Arc<Rows>,
    reader: Arc<Reader>,
    streams: Arc<Semaphore>,
    permits: Arc<Semaphore>,
}

pub fn board_router(sources: BoardSources) -> Router {
    let BoardSources { access, live, cluster, clock, inventory } = sources;
    let state = BoardState {
        access,
        live,
        cluster: cluster.into(),
        clock,
        inventory,
        rows: Arc::default(),
        reader: Arc::default(),
        streams: Arc::new(Semaphore::new(MAX_STREAMS)),
        permits: Arc::new(Semaphore::new(MAX_CONCURRENT_REQUESTS)),
    };
    Router::new()
        .route("/api/v1/me", get(me))
        .route("/api/v1/canaries", get(list))
        .route("/api/v1/stream", get(open_stream))
        .route("/api/v1/namespaces/{namespace}/canaries/{name}", get(detail))
        .route("/api/v1/namespaces/{namespace}/canaries/{name}/course", get(course_of))
        .route("/api/v1/namespaces/{namespace}/canaries/{name}/releases", get(releases))
        .route("/api/v1/namespaces/{namespace}/canaries/{name}/surroundings", get(surroundings_of))
        .route("/api/v1/openapi.json", get(async || Json(openapi_document())))
        .with_state(state)
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum ApiError {
    #[error(
        "{who} may not {verb} canaries in the group serin.dev in the namespace {namespace}; ask for that right"
    )]
    Forbidden { who: String, verb: &'static str, namespace: String },
    #[error("there is no Canary {name} in the namespace {namespace}")]
    NotFound { namespace: String, name: String },
    #[error("access could not be reviewed by the API server; try again")]
    ReviewFailed(#[source] Box<kube::Error>),
    #[error("{MAX_STREAMS} streams are open already; try again")]
    TooManyStreams,
    #[error("not done within {REQUEST_TIMEOUT:?}; try again")]
    Timeout,
    #[error(transparent)]
    Request(#[from] CommandApiError),
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let code = match self {
            Self::Forbidden { .. } => StatusCode::FORBIDDEN,
            Self::NotFound { .. } => StatusCode::NOT_FOUND,
            Self::ReviewFailed(ref source) => {
                tracing::warn!(error = %source, "{self}");
                StatusCode::BAD_GATEWAY
            }
            Self::TooManyStreams => StatusCode::SERVICE_UNAVAILABLE,
            Self::Timeout => StatusCode::GATEWAY_TIMEOUT,
            Self::Request(error) => return error.into_response(),
        };
        (code, Json(json!({ "error": self.to_string() }))).into_response()
    }
}

/// The caller, and what is behind this API.
#[derive(Serialize, JsonSchema)]
pub(crate) struct Me {
    pub user: String,
    pub cluster: String,
    pub version: String,
    /// Whether `/api/v1/inventory` is served.
    pub inventory: bool,
    #[schemars(with = "String")]
    pub now: Timestamp,
}

#[derive(Serialize, JsonSchema)]
pub(crate) struct List {
    pub items: Vec<Row>,
    #[schemars(with = "String")]
    pub now: Timestamp,
}

#[derive(Serialize, JsonSchema)]
pub(crate) struct Releases {
    pub items: Vec<Release>,
}

type Answer<T> = Result<([(header::HeaderName, &'static str); 1], Json<T>), ApiError>;

/// An answer is of this caller and this moment.
fn answer<T>(body: T) -> ([(header::HeaderName, &'static str); 1], Json<T>) {
    ([(header::CACHE_CONTROL, "no-store")], Json(body))
}

async fn me(State(state): State<BoardState>, headers: HeaderMap) -> Answer<Me> {
    let user = state.recognise(&headers).await?;
    Ok(answer(Me {
        user: user.name().to_owned(),
        cluster: state.cluster.to_string(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        inventory: state.inventory,
        now: (state.clock)(),
    }))
}

async fn list(State(state): State<BoardState>, headers: HeaderMap) -> Answer<List> {
    let work = async {
        let user = state.recognise(&headers).await?;
        state.live.complete().await;
        let visible = state.visible(&user).await?;
        let (all, _) = state.live.all();
        let seen = all.iter().filter(|change| visible.contains(&change.name.namespace));
        let items = seen.filter_map(|change| Some(Row::of(change.canary.as_ref()?))).collect();
        Ok(answer(List { items, now: (state.clock)() }))
    };
    timeout(REQUEST_TIMEOUT, work).await.map_err(|_| ApiError::Timeout)?
}

async fn open_stream(
    State(state): State<BoardState>,
    closing: Option<Extension<Closing>>,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let Extension(Closing(closing)) = closing.unwrap_or_default();
    let open = async {
        let user = state.recognise(&headers).await?;
        state.live.complete().await;
        stream::open(state.clone(), user, closing, &headers).await
    };
    timeout(REQUEST_TIMEOUT, open).await.map_err(|_| ApiError::Timeout)?
}

async fn detail(
    State(state): State<BoardState>,
    Path((namespace, name)): Path<(String, String)>,
    headers: HeaderMap,
) -> Answer<Detail> {
    let found = state.find(&headers, namespace, name).await?;
    let mut right = Right::on_ours("update", "canaries", Some(&found.key.namespace));
    (right.subresource, right.name) = (Some("approve"), Some(found.key.name.as_str()));
    let may_act = state.allows(&found.user, right).await?;
    Ok(answer(Detail::of(&found.canary, may_act, (state.clock)())))
}

async fn course_of(
    State(state): State<BoardState>,
    Path((namespace, name)): Path<(String, String)>,
    headers: HeaderMap,
) -> Answer<Course> {
    let found = state.find(&headers, namespace, name).await?;
    let timeline = state.live.timeline(&found.key).unwrap_or_default();
    Ok(answer(Course::of(&timeline, (state.clock)())))
}

async fn releases(
    State(state): State<BoardState>,
    Path((namespace, name)): Path<(String, String)>,
    headers: HeaderMap,
) -> Answer<Releases> {
    let found = state.find(&headers, namespace, name).await?;
    let items = Detail::of(&found.canary, false, (state.clock)()).history;
    Ok(answer(Releases { items }))
}

async fn surroundings_of(
    State(state): State<BoardState>,
    Path((namespace, name)): Path<(String, String)>,
    headers: HeaderMap,
) -> Answer<Surroundings> {
    let found = state.find(&headers, namespace, name).await?;
    let Some(canary) = found.canary.canary() else { return Ok(answer(Surroundings::default())) };
    let work = async {
        let namespace = Some(found.key.namespace.as_str());
        let right = |group, verb, resource| Right { group, ..Right::on_ours(verb, resource, namespace) };
        let resource = match canary.spec.target_ref.kind {
            crate::api::canary::TargetKind::DaemonSet => "daemonsets",
            _ => "deployments",
        };
        let may = May {
            workloads: state.allows(&found.user, right("apps", "get", resource)).await?,
            pods: state.allows(&found.user, right("", "list", "pods")).await?,
            events: state.allows(&found.user, right("", "list", "events")).await?,
        };
        let _permit = state.permits.acquire().await;
        Ok(answer(state.reader.read(state.access.client(), canary, may).await))
    };
    timeout(REQUEST_TIMEOUT, work).await.map_err(|_| ApiError::Timeout)?
}

/// A Canary that the caller may get.
struct Found {
    user: User,
    key: NamespacedName,
    canary: Arc<CachedCanary>,
}

impl BoardState {
    async fn recognise(&self, headers: &HeaderMap) -> Result<User, ApiError> {
        let recognised = timeout(REQUEST_TIMEOUT, self.access.recognise(headers)).await;
        Ok(recognised.map_err(|_| ApiError::Timeout)??)
    }

    async fn allows(&self, user: &User, right: Right<'_>) -> Result<bool, ApiError> {
        let allowed = timeout(REQUEST_TIMEOUT, self.access.allows(user, right)).await;
        allowed.map_err(|_| ApiError::Timeout)?.map_err(|error| ApiError::ReviewFailed(Box::new(error)))
    }

    async fn may(&self, user: &User, verb: &'static str, namespace: Option<&str>) -> Result<bool, ApiError> {
        self.allows(user, Right::on_ours(verb, "canaries", namespace)).await
    }

    async fn find(&self, headers: &HeaderMap, namespace: String, name: String) -> Result<Found, ApiError> {
        check_name(&namespace, "a namespace")?;
        check_name(&name, "a Canary")?;
        let user = self.recognise(headers).await?;
        let mut right = Right::on_ours("get", "canaries", Some(&namespace));
        right.name = Some(&name);
        if !self.allows(&user, right).await? {
            return Err(ApiError::Forbidden { who: user.name().to_owned(), verb: "get", namespace });
        }
        let complete = timeout(REQUEST_TIMEOUT, self.live.complete()).await;
        complete.map_err(|_| ApiError::Timeout)?;
        let key = NamespacedName { namespace, name };
        match self.live.get(&key) {
            Some(canary) => Ok(Found { user, key, canary }),
            None => Err(ApiError::NotFound { namespace: key.namespace, name: key.name }),
        }
    }
}
