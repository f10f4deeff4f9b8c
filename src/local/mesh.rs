//! A mesh of one process: sends each request to where the TrafficSplit of its
//! Service says, to a pod that is ready.
//!
//! It learns from watches alone: splits, the HTTPRouteGroups they name, and the
//! EndpointSlices of Services. A Service without a split is its own only
//! backend, and so it is for requests that its split does not match. Which
//! backend and which of its pods a request gets is drawn from a seed, so a run
//! can be replayed.

use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;
use std::sync::Arc;

use axum::body::Body;
use futures::StreamExt;
use http::{Request, Response};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::api::{ApiResource, DynamicObject};
use kube::runtime::watcher::Event;
use kube::{Api, Client, ResourceExt};
use parking_lot::RwLock;
use regex::Regex;
use serde_json::Value;

use super::chance::Chance;
use super::controllers::work::watch;
use super::node::{Node, Refused};

const SERVICE_NAME: &str = "kubernetes.io/service-name";

/// Why a request reached nobody.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unreachable {
    #[error("no pod of the Service {0} is ready")]
    NoEndpoints(String),
    #[error(transparent)]
    Refused(#[from] Refused),
}

/// An answer, and the Service whose pod gave it.
pub struct Answer {
    pub backend: String,
    pub response: Response<Body>,
}

/// Clones are the same mesh.
#[derive(Clone)]
pub struct Mesh(Arc<Shared>);

struct Shared {
    client: Client,
    splits: ApiResource,
    groups: Option<ApiResource>,
    node: Node,
    chance: Chance,
    table: RwLock<Table>,
}

/// What the watches told.
#[derive(Default)]
struct Table {
    /// By namespace and name.
    splits: HashMap<Name, Split>,
    /// By namespace and name: any of the conditions is enough.
    groups: HashMap<Name, Vec<Condition>>,
    /// By namespace and Service, by slice.
    endpoints: HashMap<Name, BTreeMap<String, Vec<SocketAddr>>>,
}

type Name = (String, String);

#[derive(Debug, Default)]
struct Split {
    service: String,
    backends: Vec<Backend>,
    /// The HTTPRouteGroups that say which requests are split; all, if none.
    groups: Vec<String>,
}

/// What a request must have, all of it.
#[derive(Debug, Default)]
struct Condition {
    path: Option<Pattern>,
    methods: Vec<String>,
    headers: Vec<(String, Pattern)>,
}

/// Describes a text as a whole, as in Envoy; one that cannot be read describes
/// nothing.
#[derive(Debug)]
struct Pattern(Option<Regex>);

impl Pattern {
    fn read(expression: &str) -> Pattern {
        Pattern(Regex::new(&format!("^(?:{expression})$")).ok())
    }

    fn describes(&self, text: &str) -> bool {
        self.0.as_ref().is_some_and(|expression| expression.is_match(text))
    }
}

impl Condition {
    fn holds(&self, request: &Request<Body>) -> bool {
        let header = |(name, pattern): &(String, Pattern)| {
            let values = request.headers().get_all(name).iter();
            values.filter_map(|value| value.to_str().ok()).any(|value| pattern.describes(value))
        };
        let method = |method: &String| method == "*" || request.method() == method.as_str();
        self.path.as_ref().is_none_or(|path| path.describes(request.uri().path()))
            && (self.methods.is_empty() || self.methods.iter().any(method))
            && self.headers.iter().all(header)
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Backend {
    service: String,
    weight: u64,
}

impl Mesh {
    /// `splits` is the version of TrafficSplit that is served, and `groups`
    /// that of HTTPRouteGroup, if any is.
    pub fn new(
        client: Client,
        splits: ApiResource,
        groups: Option<ApiResource>,
        node: Node,
        seed: u64,
    ) -> Mesh {
        Mesh(Arc::new(Shared {
            client,
            splits,
            groups,
            node,
            chance: Chance::seeded(seed),
            table: RwLock::default(),
        }))
    }

    /// Follows splits, groups and endpoints until dropped.
    pub async fn run(&self) {
        futures::join!(self.follow_splits(), self.follow_groups(), self.follow_endpoints());
    }

    /// Sends a request to a Service, as its clients in the mesh would.
    pub async fn send(
        &self,
        namespace: &str,
        service: &str,
        request: Request<Body>,
    ) -> Result<Answer, Unreachable> {
        let (backend, address) = self.choose(namespace, service, &request)?;
        let response = self.0.node.call(address, request).await?;
        Ok(Answer { backend, response })
    }

    fn choose(
        &self,
        namespace: &str,
        service: &str,
        request: &Request<Body>,
    ) -> Result<(String, SocketAddr), Unreachable> {
        let table = self.0.table.read();
        let split = table
            .splits
            .iter()
            .find(|((held, _), split)| held == namespace && split.service == service)
            .map(|(_, split)| split)
            .filter(|split| table.is_split(namespace, split, request));
        let backend = split
            .and_then(|split| draw(&split.backends, self.0.chance.next()))
            .map_or(service, |backend| &backend.service);
        let ready: Vec<SocketAddr> = table
            .endpoints
            .get(&(namespace.to_owned(), backend.to_owned()))
            .into_iter()
            .flat_map(|slices| slices.values().flatten().copied())
            .collect();
        if ready.is_empty() {
            return Err(Unreachable::NoEndpoints(backend.to_owned()));
        }
        let at = self.0.chance.next() as usize % ready.len();
        Ok((backend.to_owned(), ready[at]))
    }

    async fn follow_splits(&self) {
        let api = Api::<DynamicObject>::all_with(self.0.client.clone(), &self.0.splits);
        let mut changes = std::pin::pin!(watch(api));
        while let Some(event) = changes.next().await {
            let splits = &mut self.0.table.write().splits;
            match event {
                Event::Init => splits.clear(),
                Event::InitApply(split) | Event::Apply(split) => {
                    splits.insert(name_of(&split), read_split(&split.data));
                }
                Event::Delete(split) => _ = splits.remove(&name_of(&split)),
                Event::InitDone => {}
            }
        }
    }

    async fn follow_groups(&self) {
        let Some(groups) = &self.0.groups else { return };
        let api = Api::<DynamicObject>::all_with(self.0.client.clone(), groups);
        let mut changes = std::pin::pin!(watch(api));
        while let Some(event) = changes.next().await {
            let groups = &mut self.0.table.write().groups;
            match event {
                Event::Init => groups.clear(),
                Event::InitApply(group) | Event::Apply(group) => {
                    groups.insert(name_of(&group), read_group(&group.data));
                }
                Event::Delete(group) => _ = groups.remove(&name_of(&group)),
                Event::InitDone => {}
            }
        }
    }

    async fn follow_endpoints(&self) {
        let mut changes = std::pin::pin!(watch(Api::<EndpointSlice>::all(self.0.client.clone())));
        while let Some(event) = changes.next().await {
            let endpoints = &mut self.0.table.write().endpoints;
            let service_of =
                |slice: &EndpointSlice| Some((slice.namespace()?, slice.labels().get(SERVICE_NAME)?.clone()));
            match event {
                Event::Init => endpoints.clear(),
                Event::InitApply(slice) | Event::Apply(slice) => {
                    if let Some(service) = service_of(&slice) {
                        endpoints.entry(service).or_default().insert(slice.name_any(), ready(&slice));
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

fn name_of(object: &DynamicObject) -> Name {
    (object.namespace().unwrap_or_default(), object.name_any())
}

impl Table {
    /// A split that names groups is for the requests that one of them matches.
    fn is_split(&self, namespace: &str, split: &Split, request: &Request<Body>) -> bool {
        let group = |name: &String| self.groups.get(&(namespace.to_owned(), name.clone()));
        let mut conditions = split.groups.iter().filter_map(group).flatten();
        split.groups.is_empty() || conditions.any(|condition| condition.holds(request))
    }
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn read_split(split: &Value) -> Split {
    let spec = &split["spec"];
    let backend = |backend: &Value| Backend {
        service: text(&backend["service"]),
        weight: backend["weight"].as_u64().unwrap_or_default(),
    };
    Split {
        service: text(&spec["service"]),
        backends: list(&spec["backends"]).map(backend).collect(),
        groups: list(&spec["matches"]).map(|group| text(&group["name"])).collect(),
    }
}

fn read_group(group: &Value) -> Vec<Condition> {
    let condition = |written: &Value| {
        let headers = list(&written["headers"]).flat_map(|header| header.as_object().into_iter().flatten());
        Condition {
            path: written["pathRegex"].as_str().map(Pattern::read),
            methods: list(&written["methods"]).map(text).collect(),
            headers: headers.map(|(name, value)| (name.clone(), Pattern::read(&text(value)))).collect(),
        }
    };
    list(&group["spec"]["matches"]).map(condition).collect()
}

/// The backend that `number`, drawn evenly, falls to; none if all weigh nothing.
fn draw(backends: &[Backend], number: u64) -> Option<&Backend> {
    let total: u64 = backends.iter().map(|backend| backend.weight).sum();
    let mut left = number.checked_rem(total)?;
    backends.iter().find(|backend| {
        let falls_here = left < backend.weight;
        left = left.saturating_sub(backend.weight);
        falls_here
    })
}

/// The addresses of a slice's ready endpoints, on its first port.
fn ready(slice: &EndpointSlice) -> Vec<SocketAddr> {
    let port = slice.ports.iter().flatten().find_map(|port| u16::try_from(port.port?).ok());
    let Some(port) = port else { return Vec::new() };
    slice
        .endpoints
        .iter()
        .filter(|endpoint| endpoint.conditions.as_ref().and_then(|c| c.ready).unwrap_or(true))
        .flat_map(|endpoint| &endpoint.addresses)
        .filter_map(|address| Some(SocketAddr::new(address.parse().ok()?, port)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn requests_fall_to_backends_by_weight() {
        let split = json!({"spec": {"service": "web", "backends": [
            {"service": "web-primary", "weight": 90}, {"service": "web-canary", "weight": 10},
        ]}});
        let Split { service, backends, .. } = read_split(&split);
        assert_eq!(service, "web");
        let chance = Chance::seeded(1);
        let canary = (0..10_000)
            .filter(|_| draw(&backends, chance.next()).is_some_and(|backend| backend.service == "web-canary"))
            .count();
        assert!((900..1_100).contains(&canary), "{canary}");
    }

    #[test]
    fn a_split_with_groups_is_for_the_requests_they_match() {
        let split = read_split(&json!({"spec": {"service": "web", "matches": [{"name": "insiders"}]}}));
        let group = json!({"spec": {"matches": [
            {"name": "team", "headers": [{"x-team": "ours|theirs"}], "methods": ["GET"]},
            {"name": "cookie", "headers": [{"cookie": "^(.*?;)?(canary=always)(;.*)?$"}]},
            {"name": "path", "pathRegex": "/beta/.*"},
            {"name": "unreadable", "pathRegex": "("},
        ]}});
        let table = Table {
            groups: HashMap::from([(("shop".to_owned(), "insiders".to_owned()), read_group(&group))]),
            ..Table::default()
        };
        let matches = |method: &str, path: &str, headers: &[(&str, &str)]| {
            let request = Request::builder().method(method).uri(path);
            let request =
                headers.iter().fold(request, |request, (name, value)| request.header(*name, *value));
            table.is_split("shop", &split, &request.body(Body::empty()).unwrap())
        };
        assert!(matches("GET", "/", &[("x-team", "ours")]));
        assert!(!matches("GET", "/", &[("x-team", "yours")]) && !matches("POST", "/", &[("x-team", "ours")]));
        assert!(matches("POST", "/", &[("cookie", "a=b;canary=always;c=d")]));
        assert!(!matches("GET", "/", &[("cookie", "canary=never")]));
        assert!(matches("GET", "/beta/x", &[]) && !matches("GET", "/", &[]));
    }

    #[test]
    fn a_backend_of_no_weight_gets_nothing() {
        let backend = |service: &str, weight| Backend { service: service.into(), weight };
        let backends = [backend("a", 0), backend("b", 7), backend("c", 0)];
        assert!((0..100).all(|number| draw(&backends, number).is_some_and(|chosen| chosen.service == "b")));
        assert_eq!(draw(&[backend("a", 0)], 3), None);
    }
}
