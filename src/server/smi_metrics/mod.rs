//! SMI's TrafficMetrics as an aggregated API: an APIService names Serin for
//! `metrics.smi-spec.io/v1alpha1`, and the API server forwards requests.
//!
//! ```text
//!   GET /apis/metrics.smi-spec.io/v1alpha1                            the resources
//!       …/namespaces/shop/deployments?labelSelector=app=web           a list
//!       …/namespaces/shop/deployments/web                             what it received
//!       …/namespaces/shop/deployments/web/edges                       from whom, and to whom
//!       …/namespaces, …/namespaces/shop, …/pods                       in all namespaces
//! ```
//!
//! Guarantees:
//!
//! - only the API server is served ([`FrontProxy`]), and the user whom it names needs the
//!   right to `get` or `list` the resource in the group metrics.smi-spec.io, as reviewed at
//!   each request;
//! - an object that does not exist has no metrics (404), and of one that nothing is known
//!   about `metrics` is empty: neither is a zero;
//! - number, duration and answers of requests are bounded; nothing is polled.

mod documents;
mod front_proxy;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use axum::{
    Json, Router,
    extract::{Path, Query, State},
    response::{IntoResponse, Response},
    routing::get,
};
use http::{HeaderMap, StatusCode};
use jiff::Timestamp;
use kube::api::{DynamicObject, ListParams};
use kube::{Api, Client, ResourceExt as _};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::{sync::Semaphore, time::timeout};

use super::access::{Right, is_allowed};
use super::command_api::{CommandApiError, check_name};
use crate::api_error::api_message;
use crate::metrics::OwnMetricsServer;
use crate::metrics::prometheus::traffic::{ObjectName, Traffic, TrafficOf};
use documents::{GROUP, GROUP_VERSION, Measured, Resource};

pub use front_proxy::FrontProxy;

/// Others wait.
const MAX_CONCURRENT_REQUESTS: usize = 4;
/// Of a whole request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);
/// Objects of one page.
const MAX_ITEMS: u32 = 500;

/// Where the metrics are from.
pub struct SmiMetrics {
    /// Reads the objects that metrics are about, and reviews rights.
    pub client: Client,
    pub metrics_server: OwnMetricsServer,
    /// That requests are counted in.
    pub window: Duration,
    pub front_proxy: FrontProxy,
}

struct ApiState {
    source: SmiMetrics,
    permits: Semaphore,
}

type Shared = Arc<ApiState>;

pub fn smi_metrics_router(source: SmiMetrics) -> Router {
    let state = Arc::new(ApiState { source, permits: Semaphore::new(MAX_CONCURRENT_REQUESTS) });
    let version = Router::new()
        .route("/", get(async || Json(documents::api_resources())))
        .route("/{resource}", get(list_all))
        .route("/namespaces/{namespace}", get(get_namespace))
        .route("/namespaces/{namespace}/{resource}", get(list_in))
        .route("/namespaces/{namespace}/{resource}/{name}", get(get_one))
        .route("/namespaces/{namespace}/{resource}/{name}/edges", get(get_edges));
    Router::new()
        .route(&format!("/apis/{GROUP}"), get(async || Json(documents::api_group())))
        .route(&format!("/apis/{GROUP_VERSION}/"), get(async || Json(documents::api_resources())))
        .nest(&format!("/apis/{GROUP_VERSION}"), version)
        .fallback(async || Failure::NoSuchPath)
        .method_not_allowed_fallback(async || Failure::ReadOnly)
        .with_state(state)
}

#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error(
        "there is no such resource in {GROUP_VERSION}; `kubectl get --raw /apis/{GROUP_VERSION}` lists them"
    )]
    NoSuchPath,
    #[error("TrafficMetrics are measured: they can be read only, and not watched")]
    ReadOnly,
    #[error("the front proxy names no user")]
    NoUser,
    #[error("{who} may not {verb} {what} in the group {GROUP}{place}")]
    Forbidden { who: String, verb: &'static str, what: String, place: String },
    #[error("access could not be reviewed by the API server; try again")]
    ReviewFailed(#[source] Box<kube::Error>),
    #[error(transparent)]
    InvalidName(#[from] CommandApiError),
    #[error("{}", api_message(.0))]
    Objects(Box<kube::Error>),
    #[error("{0}")]
    Metrics(String),
    #[error("not done within {REQUEST_TIMEOUT:?}; try again")]
    Timeout,
}

impl Failure {
    fn code(&self) -> (StatusCode, &'static str) {
        match self {
            Self::NoSuchPath => (StatusCode::NOT_FOUND, "NotFound"),
            Self::ReadOnly => (StatusCode::METHOD_NOT_ALLOWED, "MethodNotAllowed"),
            Self::NoUser => (StatusCode::UNAUTHORIZED, "Unauthorized"),
            Self::Forbidden { .. } => (StatusCode::FORBIDDEN, "Forbidden"),
            Self::InvalidName(_) => (StatusCode::BAD_REQUEST, "BadRequest"),
            Self::Objects(error) => match &**error {
                kube::Error::Api(status) if status.code == 404 => (StatusCode::NOT_FOUND, "NotFound"),
                kube::Error::Api(status) if status.code == 400 => (StatusCode::BAD_REQUEST, "BadRequest"),
                kube::Error::Api(status) if status.code == 410 => (StatusCode::GONE, "Expired"),
                _ => (StatusCode::SERVICE_UNAVAILABLE, "ServiceUnavailable"),
            },
            Self::ReviewFailed(_) | Self::Metrics(_) => {
                (StatusCode::SERVICE_UNAVAILABLE, "ServiceUnavailable")
            }
            Self::Timeout => (StatusCode::GATEWAY_TIMEOUT, "Timeout"),
        }
    }
}

/// As the API server itself refuses.
impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        let (code, reason) = self.code();
        if let Self::ReviewFailed(source) = &self {
            tracing::warn!(error = %source, "{self}");
        }
        let status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": self.to_string(), "reason": reason, "code": code.as_u16()});
        (code, Json(status)).into_response()
    }
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct ListOptions {
    label_selector: Option<String>,
    limit: Option<u32>,
    #[serde(rename = "continue")]
    after: Option<String>,
    #[serde(default)]
    watch: Option<String>,
}

async fn list_all(
    State(state): State<Shared>,
    Path(resource): Path<String>,
    Query(options): Query<ListOptions>,
    headers: HeaderMap,
) -> Result<Json<Value>, Failure> {
    state.list(&headers, &resource, None, options).await
}

async fn list_in(
    State(state): State<Shared>,
    Path((namespace, resource)): Path<(String, String)>,
    Query(options): Query<ListOptions>,
    headers: HeaderMap,
) -> Result<Json<Value>, Failure> {
    if resource == "namespaces" {
        return Err(Failure::NoSuchPath);
    }
    state.list(&headers, &resource, Some(&namespace), options).await
}

async fn get_namespace(
    State(state): State<Shared>,
    Path(name): Path<String>,
    headers: HeaderMap,
) -> Result<Json<Value>, Failure> {
    let asked = Asked { resource: "namespaces", namespace: &name, name: &name, edges: false };
    state.get(&headers, asked).await
}

async fn get_one(
    State(state): State<Shared>,
    Path((namespace, resource, name)): Path<(String, String, String)>,
    headers: HeaderMap,
) -> Result<Json<Value>, Failure> {
    if resource == "namespaces" {
        return Err(Failure::NoSuchPath);
    }
    let asked = Asked { resource: &resource, namespace: &namespace, name: &name, edges: false };
    state.get(&headers, asked).await
}

async fn get_edges(
    State(state): State<Shared>,
    Path((namespace, resource, name)): Path<(String, String, String)>,
    headers: HeaderMap,
) -> Result<Json<Value>, Failure> {
    let asked = Asked { resource: &resource, namespace: &namespace, name: &name, edges: true };
    state.get(&headers, asked).await
}

/// One object.
#[derive(Clone, Copy)]
struct Asked<'a> {
    resource: &'a str,
    namespace: &'a str,
    name: &'a str,
    edges: bool,
}

impl ApiState {
    async fn get(&self, headers: &HeaderMap, asked: Asked<'_>) -> Result<Json<Value>, Failure> {
        let answer = async {
            let _permit = self.permits.acquire().await;
            self.answer(headers, asked).await
        };
        timeout(REQUEST_TIMEOUT, answer).await.map_err(|_| Failure::Timeout)?.map(Json)
    }

    async fn answer(&self, headers: &HeaderMap, asked: Asked<'_>) -> Result<Value, Failure> {
        let Asked { namespace, name, edges, .. } = asked;
        let resource = Resource::of(asked.resource).filter(|found| found.has_edges || !edges);
        let resource = resource.ok_or(Failure::NoSuchPath)?;
        check_name(namespace, "a namespace")?;
        check_name(name, "an object")?;
        let right = Right {
            group: GROUP,
            verb: "get",
            resource: resource.plural,
            subresource: edges.then_some("edges"),
            namespace: Some(namespace),
            name: Some(name),
        };
        self.admit(headers, right).await?;
        let objects = self.objects(resource, Some(namespace));
        let found = objects.get_metadata(name).await;
        found.map_err(|error| Failure::Objects(Box::new(error)))?;
        let namespace = if resource.is_namespaced() { namespace } else { "" };
        let (measured, of) = self.query(resource, Some(namespace), Some(name));
        let prometheus = self.source.metrics_server.connect().await.map_err(Failure::Metrics)?;
        if edges {
            let edges = prometheus.traffic_edges(of).await.map_err(Failure::Metrics)?;
            let items = edges.iter().map(|edge| documents::edge(resource, namespace, name, edge, measured));
            return Ok(json!({"kind": "TrafficMetricsList", "apiVersion": GROUP_VERSION, "metadata": {},
                "resource": {"kind": resource.kind, "namespace": namespace, "name": name},
                "items": items.collect::<Vec<_>>()}));
        }
        let traffic = prometheus.traffic(of).await.map_err(Failure::Metrics)?;
        let key = ObjectName { namespace: namespace.to_owned(), name: name.to_owned() };
        Ok(documents::traffic_metrics(resource, (namespace, name), traffic.get(&key), measured))
    }

    async fn list(
        &self,
        headers: &HeaderMap,
        resource: &str,
        namespace: Option<&str>,
        options: ListOptions,
    ) -> Result<Json<Value>, Failure> {
        let resource = Resource::of(resource).ok_or(Failure::NoSuchPath)?;
        if options.watch.is_some_and(|watch| watch != "false" && watch != "0") {
            return Err(Failure::ReadOnly);
        }
        if let Some(namespace) = namespace {
            check_name(namespace, "a namespace")?;
        }
        let work = async {
            let _permit = self.permits.acquire().await;
            let right = Right {
                group: GROUP,
                verb: "list",
                resource: resource.plural,
                subresource: None,
                namespace,
                name: None,
            };
            self.admit(headers, right).await?;
            let params = ListParams {
                label_selector: options.label_selector.clone(),
                limit: Some(options.limit.filter(|limit| *limit > 0).unwrap_or(MAX_ITEMS).min(MAX_ITEMS)),
                continue_token: options.after,
                ..ListParams::default()
            };
            let found = self.objects(resource, namespace).list_metadata(&params).await;
            let found = found.map_err(|error| Failure::Objects(Box::new(error)))?;
            let (measured, of) = self.query(resource, namespace, None);
            let traffic: BTreeMap<ObjectName, Traffic> = if found.items.is_empty() {
                BTreeMap::new()
            } else {
                let prometheus = self.source.metrics_server.connect().await.map_err(Failure::Metrics)?;
                prometheus.traffic(of).await.map_err(Failure::Metrics)?
            };
            let items = found.items.iter().map(|object| {
                let key =
                    ObjectName { namespace: object.namespace().unwrap_or_default(), name: object.name_any() };
                documents::traffic_metrics(resource, (&key.namespace, &key.name), traffic.get(&key), measured)
            });
            let mut list = json!({
                "kind": "TrafficMetricsList", "apiVersion": GROUP_VERSION,
                "metadata": {"continue": found.metadata.continue_, "remainingItemCount": found.metadata.remaining_item_count},
                "resource": {"kind": resource.kind},
                "items": items.collect::<Vec<_>>(),
            });
            if let Some(namespace) = namespace {
                list["resource"]["namespace"] = namespace.into();
            }
            if let Some(labels) = options.label_selector.as_deref().and_then(match_labels) {
                list["selector"] = json!({"matchLabels": labels});
            }
            Ok(Json(list))
        };
        timeout(REQUEST_TIMEOUT, work).await.map_err(|_| Failure::Timeout)?
    }

    /// Authenticates, and reviews the right.
    async fn admit(&self, headers: &HeaderMap, right: Right<'_>) -> Result<(), Failure> {
        let user = self.source.front_proxy.user(headers).ok_or(Failure::NoUser)?;
        let who = user.username.clone().unwrap_or_default();
        let allowed = is_allowed(&self.source.client, user, right).await;
        if allowed.map_err(|error| Failure::ReviewFailed(Box::new(error)))? {
            return Ok(());
        }
        let sub = right.subresource.map(|sub| format!("/{sub}")).unwrap_or_default();
        let place =
            right.namespace.map(|namespace| format!(" in the namespace {namespace}")).unwrap_or_default();
        Err(Failure::Forbidden { who, verb: right.verb, what: format!("{}{sub}", right.resource), place })
    }

    fn objects(&self, resource: Resource, namespace: Option<&str>) -> Api<DynamicObject> {
        let (client, kind) = (self.source.client.clone(), resource.api_resource());
        match namespace.filter(|_| resource.is_namespaced()) {
            Some(namespace) => Api::namespaced_with(client, namespace, &kind),
            None => Api::all_with(client, &kind),
        }
    }

    /// To the second, so that requests at the same time share the answer of the server.
    fn query<'a>(
        &self,
        resource: Resource,
        namespace: Option<&'a str>,
        name: Option<&'a str>,
    ) -> (Measured, TrafficOf<'a>) {
        let now = Timestamp::now();
        let (until, window) = (Timestamp::from_second(now.as_second()).unwrap_or(now), self.source.window);
        let of = TrafficOf { level: resource.level, namespace, name, until, window };
        (Measured { at: until, window }, of)
    }
}

/// None if a requirement is of another form than `key=value`.
fn match_labels(selector: &str) -> Option<BTreeMap<&str, &str>> {
    let requirement = |text| {
        let (key, value): (&str, &str) = str::split_once(text, '=')?;
        let (key, value) = (key.trim(), value.trim_start_matches('=').trim());
        (!key.ends_with('!') && !key.contains([' ', '('])).then_some((key, value))
    };
    selector.split(',').map(requirement).collect()
}

#[cfg(test)]
mod tests {
    use super::match_labels;

    #[test]
    fn labels_of_a_selector_of_equalities_are_shown() {
        assert_eq!(match_labels("app=web,tier==front"), Some([("app", "web"), ("tier", "front")].into()));
        for other in ["app!=web", "app in (a,b)", "app", "!app"] {
            assert_eq!(match_labels(other), None, "{other}");
        }
    }
}
