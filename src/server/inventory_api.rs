//! The inventory as JSON.
//!
//! ```text
//!   GET /api/v1/inventory/meshes                     …/meshes/NAME
//!       /api/v1/inventory/workloads?namespace=shop   …/workloads/NAMESPACE/NAME
//!       /api/v1/inventory/services?limit=50          …/services/NAMESPACE/NAME
//!       /api/v1/inventory/edges?namespace=shop&name=web
//! ```
//!
//! `edges` are who calls whom, read from the controller's metrics server at the request:
//! all of which one end is in the namespace, and of that name. `?requests=true` on one
//! workload reads whether requests to it are counted, which `releasable` then says.
//!
//! A list is `{"items": […], "count": 120, "continue": "…", "unread": […]}`: at most
//! `limit` items (100 unless set, no more than 500), and the token of the next page.
//! `unread` names the kinds that the controller may not read.
//!
//! Guarantees:
//!
//! - a caller sees what they may `list` (or `get`) of `meshes`, `workloads` and
//!   `meshservices` in the group serin.dev, in that namespace or in all, as reviewed by
//!   the API server seconds ago at most; whether such resources are written does not matter;
//!   edges need the right to list `meshservices`;
//! - number, duration and answers of requests are bounded.

use std::{sync::Arc, time::Duration};

use axum::{
    Json, Router,
    extract::{Path, Query, State},
    response::{IntoResponse, Response},
    routing::get,
};
use http::{HeaderMap, StatusCode};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::{sync::Semaphore, time::timeout};

use super::{
    access::{Access, Right, User},
    command_api::CommandApiError,
};
use crate::{
    discovery::{
        live::{LiveInventory, NotReady},
        model::{Inventory, Key, Kind, Workload},
    },
    metrics::{
        OwnMetricsServer,
        prometheus::{Prometheus, edges::EdgeFilter},
    },
};

/// Others wait.
const MAX_CONCURRENT_REQUESTS: usize = 4;
/// Of a whole request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);
const DEFAULT_LIMIT: usize = 100;
const MAX_LIMIT: usize = 500;

#[derive(Clone)]
struct InventoryApiState {
    access: Arc<Access>,
    inventory: Arc<LiveInventory>,
    /// None if the controller has no metrics server.
    metrics_server: Option<OwnMetricsServer>,
    permits: Arc<Semaphore>,
}

pub fn inventory_router(
    access: Arc<Access>,
    inventory: Arc<LiveInventory>,
    metrics_server: Option<OwnMetricsServer>,
) -> Router {
    let permits = Arc::new(Semaphore::new(MAX_CONCURRENT_REQUESTS));
    Router::new()
        .route("/api/v1/inventory/edges", get(edges))
        .route("/api/v1/inventory/{what}", get(list))
        .route("/api/v1/inventory/{what}/{name}", get(get_mesh))
        .route("/api/v1/inventory/{what}/{namespace}/{name}", get(get_one))
        .with_state(InventoryApiState { access, inventory, metrics_server, permits })
}

#[derive(Debug, thiserror::Error)]
enum InventoryApiError {
    #[error("{0} is none of meshes, workloads, services and edges")]
    NoSuchList(String),
    #[error("{0} was not found")]
    NotFound(String),
    #[error("{who} may not {verb} {resource} in the group serin.dev {place}; {way_out}")]
    Forbidden {
        who: String,
        verb: &'static str,
        resource: &'static str,
        place: String,
        way_out: &'static str,
    },
    #[error("limit and continue: {0}")]
    InvalidPage(String),
    #[error(transparent)]
    NotReady(#[from] NotReady),
    #[error("access could not be reviewed by the API server; try again")]
    ReviewFailed(#[source] Box<kube::Error>),
    #[error("the controller has no metrics server; start it with --metrics-server (chart: metricsServer)")]
    NoMetrics,
    #[error("{0}")]
    Metrics(String),
    #[error("not done within {REQUEST_TIMEOUT:?}; try again")]
    Timeout,
    #[error(transparent)]
    Authentication(#[from] CommandApiError),
}

impl IntoResponse for InventoryApiError {
    fn into_response(self) -> Response {
        let code = match &self {
            Self::NoSuchList(_) | Self::NotFound(_) => StatusCode::NOT_FOUND,
            Self::Forbidden { .. } => StatusCode::FORBIDDEN,
            Self::InvalidPage(_) => StatusCode::BAD_REQUEST,
            Self::NotReady(_) => StatusCode::SERVICE_UNAVAILABLE,
            Self::ReviewFailed(source) => {
                tracing::warn!(error = %source, "{self}");
                StatusCode::BAD_GATEWAY
            }
            Self::NoMetrics => StatusCode::NOT_IMPLEMENTED,
            Self::Metrics(_) => StatusCode::BAD_GATEWAY,
            Self::Timeout => StatusCode::GATEWAY_TIMEOUT,
            Self::Authentication(_) => {
                let Self::Authentication(error) = self else {
                    return StatusCode::UNAUTHORIZED.into_response();
                };
                return error.into_response();
            }
        };
        (code, Json(json!({ "error": self.to_string() }))).into_response()
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum What {
    Meshes,
    Workloads,
    Services,
}

impl What {
    fn parse(text: &str) -> Result<Self, InventoryApiError> {
        match text {
            "meshes" => Ok(Self::Meshes),
            "workloads" => Ok(Self::Workloads),
            "services" => Ok(Self::Services),
            other => Err(InventoryApiError::NoSuchList(other.to_owned())),
        }
    }

    /// The resource whose right is required.
    fn resource(self) -> &'static str {
        match self {
            Self::Meshes => "meshes",
            Self::Workloads => "workloads",
            Self::Services => "meshservices",
        }
    }
}

#[derive(Default, Deserialize)]
struct Page {
    namespace: Option<String>,
    cluster: Option<String>,
    limit: Option<usize>,
    #[serde(rename = "continue")]
    after: Option<String>,
}

async fn list(
    State(state): State<InventoryApiState>,
    Path(what): Path<String>,
    Query(page): Query<Page>,
    headers: HeaderMap,
) -> Result<Json<Value>, InventoryApiError> {
    let what = What::parse(&what)?;
    let namespace = page.namespace.as_deref().filter(|_| what != What::Meshes);
    state.admit(&headers, "list", what, namespace).await?;
    let after = match &page.after {
        Some(token) => Some(parse_token(what, token)?),
        None => None,
    };
    let limit = page.limit.unwrap_or(DEFAULT_LIMIT).clamp(1, MAX_LIMIT);
    let is_wanted = |cluster: &str, namespace: &str| {
        page.cluster.as_deref().is_none_or(|wanted| wanted == cluster)
            && page.namespace.as_deref().is_none_or(|wanted| wanted == namespace)
    };
    let mut answer = state.inventory.read(|inventory| match what {
        // A cluster has a handful.
        What::Meshes => {
            let mut meshes = inventory.meshes();
            meshes.retain(|mesh| page.cluster.as_deref().is_none_or(|wanted| wanted == mesh.cluster));
            let count = meshes.len();
            meshes.truncate(MAX_LIMIT);
            json!({ "items": meshes, "count": count })
        }
        What::Workloads => {
            let all = inventory.workloads().map(|workload| (&workload.key, workload));
            one_page(all.filter(|(key, _)| is_wanted(&key.cluster, &key.namespace)), after.as_ref(), limit)
        }
        What::Services => {
            let all = inventory.services().map(|service| (&service.key, service));
            one_page(all.filter(|(key, _)| is_wanted(&key.cluster, &key.namespace)), after.as_ref(), limit)
        }
    });
    let unread = state.inventory.unread();
    if !unread.is_empty() {
        answer["unread"] = json!(unread);
    }
    Ok(Json(answer))
}

#[derive(Default, Deserialize)]
struct EdgesOf {
    namespace: Option<String>,
    name: Option<String>,
}

async fn edges(
    State(state): State<InventoryApiState>,
    Query(EdgesOf { namespace, name }): Query<EdgesOf>,
    headers: HeaderMap,
) -> Result<Json<Value>, InventoryApiError> {
    let read = async {
        let _permit = state.permits.acquire().await;
        state.review(&headers, "list", What::Services, namespace.as_deref()).await?;
        let prometheus = state.prometheus().await?;
        let filter = EdgeFilter { namespace: namespace.as_deref(), name: name.as_deref() };
        prometheus.edges(filter).await.map_err(InventoryApiError::Metrics)
    };
    let edges = timeout(REQUEST_TIMEOUT, read).await.map_err(|_| InventoryApiError::Timeout)??;
    Ok(Json(json!({ "count": edges.len(), "items": edges })))
}

async fn get_mesh(
    State(state): State<InventoryApiState>,
    Path((what, name)): Path<(String, String)>,
    headers: HeaderMap,
) -> Result<Json<Value>, InventoryApiError> {
    if What::parse(&what)? != What::Meshes {
        return Err(InventoryApiError::NotFound(format!(
            "{what}/{name}: write {what}/NAMESPACE/NAME, which"
        )));
    }
    state.admit(&headers, "get", What::Meshes, None).await?;
    let found = state.inventory.read(|inventory| {
        inventory
            .meshes()
            .into_iter()
            .filter(|mesh| mesh.name == name)
            .map(|mesh| json!(mesh))
            .collect::<Vec<_>>()
    });
    first(found, || format!("the mesh {name}"))
}

#[derive(Default, Deserialize)]
struct One {
    /// Read whether requests to it are counted.
    #[serde(default)]
    requests: bool,
}

async fn get_one(
    State(state): State<InventoryApiState>,
    Path((what, namespace, name)): Path<(String, String, String)>,
    Query(one): Query<One>,
    headers: HeaderMap,
) -> Result<Json<Value>, InventoryApiError> {
    let what = What::parse(&what)?;
    state.admit(&headers, "get", what, Some(&namespace)).await?;
    let is_wanted = |key: &Key| key.namespace == namespace && key.name == name;
    if what == What::Workloads && one.requests {
        let found = state.inventory.read(|inventory: &Inventory| {
            inventory.workloads().filter(|found| is_wanted(&found.key)).cloned().collect::<Vec<_>>()
        });
        let found = timeout(REQUEST_TIMEOUT, state.with_requests(found)).await;
        let found = found.map_err(|_| InventoryApiError::Timeout)??;
        return first(found.iter().map(|found| json!(found)).collect(), || format!("{namespace}/{name}"));
    }
    let found: Vec<Value> = state.inventory.read(|inventory: &Inventory| match what {
        What::Meshes => Vec::new(),
        What::Workloads => {
            inventory.workloads().filter(|found| is_wanted(&found.key)).map(|found| json!(found)).collect()
        }
        What::Services => {
            inventory.services().filter(|found| is_wanted(&found.key)).map(|found| json!(found)).collect()
        }
    });
    first(found, || format!("{namespace}/{name}"))
}

/// The only one, or all of that name: kinds and clusters may share one.
fn first(mut found: Vec<Value>, name: impl Fn() -> String) -> Result<Json<Value>, InventoryApiError> {
    found.truncate(DEFAULT_LIMIT);
    match found.len() {
        0 => Err(InventoryApiError::NotFound(name())),
        1 => Ok(Json(found.remove(0))),
        count => Ok(Json(json!({ "items": found, "count": count }))),
    }
}

fn one_page<'i, T: Serialize + 'i>(
    all: impl Iterator<Item = (&'i Key, &'i T)>,
    after: Option<&Key>,
    limit: usize,
) -> Value {
    let (mut items, mut count, mut last, mut more) = (Vec::new(), 0_usize, None, false);
    for (key, view) in all {
        count += 1;
        if after.is_some_and(|after| key <= after) {
            continue;
        }
        match items.len() < limit {
            true => {
                items.push(json!(view));
                last = Some(key);
            }
            false => more = true,
        }
    }
    let next = last.filter(|_| more);
    let next = next.map(|key| format!("{}/{}/{}/{}", key.cluster, key.namespace, key.kind.name(), key.name));
    json!({ "items": items, "count": count, "continue": next })
}

fn parse_token(what: What, token: &str) -> Result<Key, InventoryApiError> {
    let is_kind = |kind: &Kind| match what {
        What::Services => *kind == Kind::Service,
        What::Meshes | What::Workloads => kind.is_workload(),
    };
    let key = || {
        let mut parts = token.splitn(4, '/');
        let (cluster, namespace, kind, name) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
        let kind = Kind::ALL.iter().copied().filter(is_kind).find(|known| known.name() == kind)?;
        Some(Key::new(cluster, namespace, kind, name))
    };
    key().ok_or_else(|| InventoryApiError::InvalidPage(format!("{token} is no token of an earlier page")))
}

impl InventoryApiState {
    /// Authenticates and authorizes, then waits until the inventory is complete.
    async fn admit(
        &self,
        headers: &HeaderMap,
        verb: &'static str,
        what: What,
        namespace: Option<&str>,
    ) -> Result<(), InventoryApiError> {
        let work = async {
            let _permit = self.permits.acquire().await;
            self.review(headers, verb, what, namespace).await?;
            Ok(self.inventory.ready().await?)
        };
        timeout(REQUEST_TIMEOUT, work).await.map_err(|_| InventoryApiError::Timeout)?
    }

    async fn review(
        &self,
        headers: &HeaderMap,
        verb: &'static str,
        what: What,
        namespace: Option<&str>,
    ) -> Result<(), InventoryApiError> {
        let user = self.access.recognise(headers).await?;
        self.authorize(user, verb, what, namespace).await
    }

    async fn prometheus(&self) -> Result<Prometheus, InventoryApiError> {
        let server = self.metrics_server.as_ref().ok_or(InventoryApiError::NoMetrics)?;
        server.connect().await.map_err(InventoryApiError::Metrics)
    }

    async fn with_requests(&self, mut found: Vec<Workload>) -> Result<Vec<Workload>, InventoryApiError> {
        let prometheus = self.prometheus().await?;
        for workload in &mut found {
            let Some(mesh) = workload.mesh().map(|member| member.mesh.name()) else { continue };
            let counted = prometheus.has_requests(mesh, &workload.key.namespace, &workload.key.name).await;
            if counted.map_err(InventoryApiError::Metrics)? == Some(false) {
                workload.set_without_requests();
            }
        }
        Ok(found)
    }

    async fn authorize(
        &self,
        user: User,
        verb: &'static str,
        what: What,
        namespace: Option<&str>,
    ) -> Result<(), InventoryApiError> {
        let who = user.name().to_owned();
        let right = Right::on_ours(verb, what.resource(), namespace);
        let allowed = self.access.allows(&user, right).await;
        if allowed.map_err(|error| InventoryApiError::ReviewFailed(Box::new(error)))? {
            return Ok(());
        }
        let (place, way_out) = match (what, namespace) {
            (What::Meshes, _) => ("in the cluster".to_owned(), "ask for that right"),
            (_, Some(namespace)) => (format!("in the namespace {namespace}"), "ask for that right"),
            (_, None) => ("in all namespaces".to_owned(), "add ?namespace=NAME, or ask for that right"),
        };
        Err(InventoryApiError::Forbidden { who, verb, resource: what.resource(), place, way_out })
    }
}
