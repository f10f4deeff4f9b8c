//! A mesh of one process: sends each request to where the TrafficSplit of its
//! Service says, to a pod that is ready.
//!
//! It learns from watches alone: splits, and the EndpointSlices of Services. A
//! Service without a split is its own only backend. Which backend and which of
//! its pods a request gets is drawn from a seed, so a run can be replayed.

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
    node: Node,
    chance: Chance,
    table: RwLock<Table>,
}

/// What the watches told.
#[derive(Default)]
struct Table {
    /// By namespace and name of the split: its Service and its backends.
    splits: HashMap<Name, (String, Vec<Backend>)>,
    /// By namespace and Service, by slice.
    endpoints: HashMap<Name, BTreeMap<String, Vec<SocketAddr>>>,
}

type Name = (String, String);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Backend {
    service: String,
    weight: u64,
}

impl Mesh {
    /// `splits` is the version of TrafficSplit that is served.
    pub fn new(client: Client, splits: ApiResource, node: Node, seed: u64) -> Mesh {
        Mesh(Arc::new(Shared {
            client,
            splits,
            node,
            chance: Chance::seeded(seed),
            table: RwLock::default(),
        }))
    }

    /// Follows splits and endpoints until dropped.
    pub async fn run(&self) {
        futures::join!(self.follow_splits(), self.follow_endpoints());
    }

    /// Sends a request to a Service, as its clients in the mesh would.
    pub async fn send(
        &self,
        namespace: &str,
        service: &str,
        request: Request<Body>,
    ) -> Result<Answer, Unreachable> {
        let (backend, address) = self.choose(namespace, service)?;
        let response = self.0.node.call(address, request).await?;
        Ok(Answer { backend, response })
    }

    fn choose(&self, namespace: &str, service: &str) -> Result<(String, SocketAddr), Unreachable> {
        let table = self.0.table.read();
        let backends = table
            .splits
            .iter()
            .find(|((held, _), (apex, _))| held == namespace && apex == service)
            .map(|(_, (_, backends))| backends.as_slice());
        let backend = backends
            .and_then(|backends| draw(backends, self.0.chance.next()))
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

fn read_split(split: &Value) -> (String, Vec<Backend>) {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let spec = &split["spec"];
    let backends = spec["backends"].as_array().into_iter().flatten();
    let read = |backend: &Value| Backend {
        service: text(&backend["service"]),
        weight: backend["weight"].as_u64().unwrap_or_default(),
    };
    (text(&spec["service"]), backends.map(read).collect())
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
        let (apex, backends) = read_split(&split);
        assert_eq!(apex, "web");
        let chance = Chance::seeded(1);
        let canary = (0..10_000)
            .filter(|_| draw(&backends, chance.next()).is_some_and(|backend| backend.service == "web-canary"))
            .count();
        assert!((900..1_100).contains(&canary), "{canary}");
    }

    #[test]
    fn a_backend_of_no_weight_gets_nothing() {
        let backend = |service: &str, weight| Backend { service: service.into(), weight };
        let backends = [backend("a", 0), backend("b", 7), backend("c", 0)];
        assert!((0..100).all(|number| draw(&backends, number).is_some_and(|chosen| chosen.service == "b")));
        assert_eq!(draw(&[backend("a", 0)], 3), None);
    }
}
