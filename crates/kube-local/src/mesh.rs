//! A service mesh in one process. A request goes to a backend of its Service's
//! TrafficSplit, and there to a ready pod or, if none is ready, to a terminating
//! pod that still serves, as with kube-proxy.
//!
//! All state comes from watches: TrafficSplits, the HTTPRouteGroups they
//! reference, and EndpointSlices. A Service without a split is its own only
//! backend, also for requests that its split does not match. Backend and pod are
//! drawn from a seed, so that a run can be replayed.

use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;
use std::sync::Arc;

use axum::body::Body;
use futures::StreamExt;
use http::{Request, Response};
use k8s_openapi::api::discovery::v1::{EndpointConditions, EndpointSlice};
use kube::api::{ApiResource, DynamicObject};
use kube::runtime::watcher::Event;
use kube::{Api, Client, ResourceExt};
use parking_lot::RwLock;
use regex::Regex;
use serde_json::Value;

use super::controllers::runtime::watch;
use super::node::{ConnectionRefused, Node};
use super::seeded_rng::SeededRng;

const SERVICE_NAME: &str = "kubernetes.io/service-name";

/// The reason why a request reached no pod.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum SendError {
    #[error("no pod of the Service {0} is ready")]
    NoEndpoints(String),
    #[error(transparent)]
    Refused(#[from] ConnectionRefused),
}

/// A response, and the Service of the pod that sent it.
pub struct MeshResponse {
    pub backend: String,
    pub response: Response<Body>,
}

/// The mesh; clones share it.
#[derive(Clone)]
pub struct Mesh(Arc<MeshInner>);

struct MeshInner {
    client: Client,
    splits: ApiResource,
    groups: Option<ApiResource>,
    node: Node,
    rng: SeededRng,
    routing_table: RwLock<RoutingTable>,
}

/// The state of all watches.
#[derive(Default)]
struct RoutingTable {
    /// By namespace and name.
    splits: HashMap<QualifiedName, MeshSplit>,
    /// By namespace and name; a request must match one of the conditions.
    groups: HashMap<QualifiedName, Vec<MatchCondition>>,
    /// By namespace and Service, then by slice.
    endpoints: HashMap<QualifiedName, BTreeMap<String, Vec<MeshEndpoint>>>,
}

type QualifiedName = (String, String);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct MeshEndpoint {
    address: SocketAddr,
    ready: bool,
}

#[derive(Debug, Default)]
struct MeshSplit {
    service: String,
    backends: Vec<WeightedBackend>,
    /// The HTTPRouteGroups of the requests to split; empty for all requests.
    groups: Vec<String>,
}

/// Properties that a request must have, all of them.
#[derive(Debug, Default)]
struct MatchCondition {
    path: Option<AnchoredRegex>,
    methods: Vec<String>,
    headers: Vec<(String, AnchoredRegex)>,
}

/// A pattern for the whole text, as in Envoy; an invalid one matches nothing.
#[derive(Debug)]
struct AnchoredRegex(Option<Regex>);

impl AnchoredRegex {
    fn parse(expression: &str) -> AnchoredRegex {
        AnchoredRegex(Regex::new(&format!("^(?:{expression})$")).ok())
    }

    fn is_match(&self, text: &str) -> bool {
        self.0.as_ref().is_some_and(|expression| expression.is_match(text))
    }
}

impl MatchCondition {
    fn matches(&self, request: &Request<Body>) -> bool {
        let header = |(name, pattern): &(String, AnchoredRegex)| {
            let values = request.headers().get_all(name).iter();
            values.filter_map(|value| value.to_str().ok()).any(|value| pattern.is_match(value))
        };
        let method = |method: &String| method == "*" || request.method() == method.as_str();
        self.path.as_ref().is_none_or(|path| path.is_match(request.uri().path()))
            && (self.methods.is_empty() || self.methods.iter().any(method))
            && self.headers.iter().all(header)
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct WeightedBackend {
    service: String,
    weight: u64,
}

impl Mesh {
    /// `splits` is the served version of TrafficSplit, `groups` that of HTTPRouteGroup, if served.
    pub fn new(
        client: Client,
        splits: ApiResource,
        groups: Option<ApiResource>,
        node: Node,
        seed: u64,
    ) -> Mesh {
        Mesh(Arc::new(MeshInner {
            client,
            splits,
            groups,
            node,
            rng: SeededRng::seeded(seed),
            routing_table: RwLock::default(),
        }))
    }

    /// Watches splits, groups and endpoints until dropped.
    pub async fn run(&self) {
        futures::join!(self.watch_splits(), self.watch_groups(), self.watch_endpoints());
    }

    /// Sends a request to a Service, as a client in the mesh would.
    pub async fn send(
        &self,
        namespace: &str,
        service: &str,
        request: Request<Body>,
    ) -> Result<MeshResponse, SendError> {
        let (backend, address) = self.pick_endpoint(namespace, service, &request)?;
        let response = self.0.node.call(address, request).await?;
        Ok(MeshResponse { backend, response })
    }

    fn pick_endpoint(
        &self,
        namespace: &str,
        service: &str,
        request: &Request<Body>,
    ) -> Result<(String, SocketAddr), SendError> {
        let table = self.0.routing_table.read();
        let split = table
            .splits
            .iter()
            .find(|((held, _), split)| held == namespace && split.service == service)
            .map(|(_, split)| split)
            .filter(|split| table.split_applies(namespace, split, request));
        let backend = split
            .and_then(|split| pick_weighted(&split.backends, self.0.rng.next_u64()))
            .map_or(service, |backend| &backend.service);
        let all = || {
            let slices = table.endpoints.get(&(namespace.to_owned(), backend.to_owned()));
            slices.into_iter().flat_map(|slices| slices.values().flatten())
        };
        let any_ready = all().any(|endpoint| endpoint.ready);
        let candidates: Vec<SocketAddr> =
            all().filter(|endpoint| endpoint.ready == any_ready).map(|endpoint| endpoint.address).collect();
        if candidates.is_empty() {
            return Err(SendError::NoEndpoints(backend.to_owned()));
        }
        let at = self.0.rng.next_u64() as usize % candidates.len();
        Ok((backend.to_owned(), candidates[at]))
    }

    async fn watch_splits(&self) {
        let api = Api::<DynamicObject>::all_with(self.0.client.clone(), &self.0.splits);
        let mut changes = std::pin::pin!(watch(api));
        while let Some(event) = changes.next().await {
            let splits = &mut self.0.routing_table.write().splits;
            match event {
                Event::Init => splits.clear(),
                Event::InitApply(split) | Event::Apply(split) => {
                    splits.insert(name_of(&split), parse_split(&split.data));
                }
                Event::Delete(split) => _ = splits.remove(&name_of(&split)),
                Event::InitDone => {}
            }
        }
    }

    async fn watch_groups(&self) {
        let Some(groups) = &self.0.groups else { return };
        let api = Api::<DynamicObject>::all_with(self.0.client.clone(), groups);
        let mut changes = std::pin::pin!(watch(api));
        while let Some(event) = changes.next().await {
            let groups = &mut self.0.routing_table.write().groups;
            match event {
                Event::Init => groups.clear(),
                Event::InitApply(group) | Event::Apply(group) => {
                    groups.insert(name_of(&group), parse_group(&group.data));
                }
                Event::Delete(group) => _ = groups.remove(&name_of(&group)),
                Event::InitDone => {}
            }
        }
    }

    async fn watch_endpoints(&self) {
        let mut changes = std::pin::pin!(watch(Api::<EndpointSlice>::all(self.0.client.clone())));
        while let Some(event) = changes.next().await {
            let endpoints = &mut self.0.routing_table.write().endpoints;
            let service_of =
                |slice: &EndpointSlice| Some((slice.namespace()?, slice.labels().get(SERVICE_NAME)?.clone()));
            match event {
                Event::Init => endpoints.clear(),
                Event::InitApply(slice) | Event::Apply(slice) => {
                    if let Some(service) = service_of(&slice) {
                        endpoints
                            .entry(service)
                            .or_default()
                            .insert(slice.name_any(), serving_endpoints(&slice));
                    }
                }
                Event::Delete(slice) => {
                    if let Some(slices) = service_of(&slice).and_then(|service| endpoints.get_mut(&service)) {
                        slices.remove(&slice.name_any());
                    }
                }
                Event::InitDone => {}
            }
        }
    }
}

fn name_of(object: &DynamicObject) -> QualifiedName {
    (object.namespace().unwrap_or_default(), object.name_any())
}

impl RoutingTable {
    /// Whether the split is for this request: it has no groups, or one of them matches.
    fn split_applies(&self, namespace: &str, split: &MeshSplit, request: &Request<Body>) -> bool {
        let group = |name: &String| self.groups.get(&(namespace.to_owned(), name.clone()));
        let mut conditions = split.groups.iter().filter_map(group).flatten();
        split.groups.is_empty() || conditions.any(|condition| condition.matches(request))
    }
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn parse_split(split: &Value) -> MeshSplit {
    let spec = &split["spec"];
    let backend = |backend: &Value| WeightedBackend {
        service: text(&backend["service"]),
        weight: backend["weight"].as_u64().unwrap_or_default(),
    };
    MeshSplit {
        service: text(&spec["service"]),
        backends: list(&spec["backends"]).map(backend).collect(),
        groups: list(&spec["matches"]).map(|group| text(&group["name"])).collect(),
    }
}

fn parse_group(group: &Value) -> Vec<MatchCondition> {
    let condition = |written: &Value| {
        let headers = list(&written["headers"]).flat_map(|header| header.as_object().into_iter().flatten());
        MatchCondition {
            path: written["pathRegex"].as_str().map(AnchoredRegex::parse),
            methods: list(&written["methods"]).map(text).collect(),
            headers: headers
                .map(|(name, value)| (name.clone(), AnchoredRegex::parse(&text(value))))
                .collect(),
        }
    };
    list(&group["spec"]["matches"]).map(condition).collect()
}

/// The backend for `number`, drawn uniformly; `None` if all weights are zero.
fn pick_weighted(backends: &[WeightedBackend], number: u64) -> Option<&WeightedBackend> {
    let total: u64 = backends.iter().map(|backend| backend.weight).sum();
    let mut remaining = number.checked_rem(total)?;
    backends.iter().find(|backend| {
        let falls_here = remaining < backend.weight;
        remaining = remaining.saturating_sub(backend.weight);
        falls_here
    })
}

/// The serving endpoints of a slice, on its first port.
fn serving_endpoints(slice: &EndpointSlice) -> Vec<MeshEndpoint> {
    let port = slice.ports.iter().flatten().find_map(|port| u16::try_from(port.port?).ok());
    let Some(port) = port else { return Vec::new() };
    let mut endpoints = Vec::new();
    for endpoint in &slice.endpoints {
        let defaults = EndpointConditions::default();
        let conditions = endpoint.conditions.as_ref().unwrap_or(&defaults);
        let ready = conditions.ready.unwrap_or(true);
        if ready || conditions.serving.unwrap_or(false) {
            let addresses = endpoint.addresses.iter().filter_map(|address| address.parse().ok());
            endpoints.extend(addresses.map(|ip| MeshEndpoint { address: SocketAddr::new(ip, port), ready }));
        }
    }
    endpoints
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn requests_are_divided_among_backends_by_weight() {
        let split = json!({"spec": {"service": "web", "backends": [
            {"service": "web-primary", "weight": 90}, {"service": "web-canary", "weight": 10},
        ]}});
        let MeshSplit { service, backends, .. } = parse_split(&split);
        assert_eq!(service, "web");
        let chance = SeededRng::seeded(1);
        let canary = (0..10_000)
            .filter(|_| {
                pick_weighted(&backends, chance.next_u64())
                    .is_some_and(|backend| backend.service == "web-canary")
            })
            .count();
        assert!((900..1_100).contains(&canary), "{canary}");
    }

    #[test]
    fn a_split_with_groups_is_for_the_requests_they_match() {
        let split = parse_split(&json!({"spec": {"service": "web", "matches": [{"name": "insiders"}]}}));
        let group = json!({"spec": {"matches": [
            {"name": "team", "headers": [{"x-team": "ours|theirs"}], "methods": ["GET"]},
            {"name": "cookie", "headers": [{"cookie": "^(.*?;)?(canary=always)(;.*)?$"}]},
            {"name": "path", "pathRegex": "/beta/.*"},
            {"name": "unreadable", "pathRegex": "("},
        ]}});
        let table = RoutingTable {
            groups: HashMap::from([(("shop".to_owned(), "insiders".to_owned()), parse_group(&group))]),
            ..RoutingTable::default()
        };
        let matches = |method: &str, path: &str, headers: &[(&str, &str)]| {
            let request = Request::builder().method(method).uri(path);
            let request =
                headers.iter().fold(request, |request, (name, value)| request.header(*name, *value));
            table.split_applies("shop", &split, &request.body(Body::empty()).unwrap())
        };
        assert!(matches("GET", "/", &[("x-team", "ours")]));
        assert!(!matches("GET", "/", &[("x-team", "yours")]) && !matches("POST", "/", &[("x-team", "ours")]));
        assert!(matches("POST", "/", &[("cookie", "a=b;canary=always;c=d")]));
        assert!(!matches("GET", "/", &[("cookie", "canary=never")]));
        assert!(matches("GET", "/beta/x", &[]) && !matches("GET", "/", &[]));
    }

    #[test]
    fn a_backend_without_weight_gets_no_requests() {
        let backend = |service: &str, weight| WeightedBackend { service: service.into(), weight };
        let backends = [backend("a", 0), backend("b", 7), backend("c", 0)];
        assert!(
            (0..100)
                .all(|number| pick_weighted(&backends, number).is_some_and(|chosen| chosen.service == "b"))
        );
        assert_eq!(pick_weighted(&[backend("a", 0)], 3), None);
    }
}
