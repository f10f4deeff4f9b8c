//! The objects of a cluster as a source of the catalog: of endpoints (EndpointSlices,
//! EndpointGroups with the instances of Consul and Cloud Map in their status), and of services, routes and policies (Services, EndpointGroups,
//! MeshRoutes, and SMI's TrafficSplits and TrafficTargets).
//!
//! ```text
//!   reflector ─ Tap ─▶ Model ─▶ EndpointsSink, TopologySink
//! ```
//!
//! Nothing is watched here: the reflectors of the controller deliver each event before it
//! is projected. A version is applied under one lock, in time that depends on its own
//! Service only.

mod group;
mod model;
mod objects;
mod smi;
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use async_trait::async_trait;
use parking_lot::Mutex;
use serde_json::Value;
use tokio::sync::watch;

pub use self::objects::Kind;
use self::{
    model::Model,
    objects::{Name, Object},
};
use super::{EndpointsProvider, EndpointsSink, MeshTopology, ServiceKey, TopologySink};
use crate::api::endpoint_group::{GroupEndpoint, RegistryService};

/// The objects of one cluster.
pub struct ClusterObjects {
    /// `kubernetes/east`
    id: String,
    state: Mutex<State>,
    registered: watch::Sender<RegisteredGroups>,
}

/// EndpointGroups with a registry, by namespace and name.
pub type RegisteredGroups = BTreeMap<(Arc<str>, Arc<str>), RegisteredGroup>;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegisteredGroup {
    pub registry: RegistryService,
    /// In its status.
    pub endpoints: Vec<GroupEndpoint>,
}

struct State {
    model: Model,
    endpoints: Option<EndpointsSink>,
    topology: Option<TopologySink>,
    /// Every kind was listed once, or cannot be.
    listed: bool,
}

impl State {
    fn deliver(&mut self) {
        let Self { model, endpoints, topology, .. } = self;
        model.deliver_changes(endpoints.as_ref(), topology.as_ref());
    }

    fn deliver_listed(&self) {
        if self.listed {
            self.endpoints.iter().for_each(|sink| sink.retain(|_| true));
            self.topology.iter().for_each(TopologySink::synced);
        }
    }
}

impl ClusterObjects {
    /// `cluster` is its name in the keys of services.
    pub fn new(cluster: &str) -> Arc<Self> {
        let state = State { model: Model::new(cluster), endpoints: None, topology: None, listed: false };
        let (id, state) = (format!("kubernetes/{cluster}"), Mutex::new(state));
        Arc::new(Self { id, state, registered: watch::Sender::default() })
    }

    /// Every kind was listed once, or cannot be: the catalog may be used.
    pub fn set_listed(&self) {
        let mut state = self.state.lock();
        state.listed = true;
        state.deliver_listed();
    }

    /// Namespace and name of the MeshRoute that a service is routed by.
    pub fn mesh_route(&self, service: &ServiceKey) -> Option<(String, String)> {
        let (namespace, name) = self.state.lock().model.mesh_route(service)?;
        Some((namespace.to_string(), name.to_string()))
    }

    /// The service that a MeshRoute routes.
    pub fn routed_service(&self, namespace: &str, name: &str) -> Option<ServiceKey> {
        self.state.lock().model.routed_service(&(namespace.into(), name.into()))
    }

    /// EndpointGroups whose endpoints are instances of a registry.
    pub fn registered_groups(&self) -> watch::Receiver<RegisteredGroups> {
        self.registered.subscribe()
    }

    /// The tap of a reflector in this namespace, or in all.
    pub fn tap(self: &Arc<Self>, kind: Kind, namespace: Option<&str>) -> Tap {
        Tap {
            objects: Arc::clone(self),
            kind,
            namespace: namespace.map(str::to_owned),
            shown: BTreeSet::new(),
        }
    }

    fn attach(&self, attach: impl FnOnce(&mut State)) {
        let mut state = self.state.lock();
        attach(&mut state);
        state.model.touch_all();
        state.deliver();
        state.deliver_listed();
    }

    fn change(&self, kind: Kind, change: impl FnOnce(&mut Model)) {
        let mut state = self.state.lock();
        change(&mut state.model);
        state.deliver();
        if kind == Kind::EndpointGroup {
            let registered = state.model.registered_groups();
            self.registered.send_if_modified(|before| {
                let is_changed = *before != registered;
                *before = registered;
                is_changed
            });
        }
    }
}

#[async_trait]
impl EndpointsProvider for ClusterObjects {
    fn id(&self) -> &str {
        &self.id
    }

    async fn run(&self, sink: EndpointsSink) {
        let _attached = Attached(self, |state| state.endpoints = None);
        self.attach(|state| state.endpoints = Some(sink));
        std::future::pending().await
    }
}

#[async_trait]
impl MeshTopology for ClusterObjects {
    async fn run(&self, sink: TopologySink) {
        let _attached = Attached(self, |state| state.topology = None);
        self.attach(|state| state.topology = Some(sink));
        std::future::pending().await
    }
}

/// A sink; dropped, nothing is delivered to it any more.
struct Attached<'a>(&'a ClusterObjects, fn(&mut State));

impl Drop for Attached<'_> {
    fn drop(&mut self) {
        self.1(&mut self.0.state.lock());
    }
}

/// Copies what one reflector receives.
pub struct Tap {
    objects: Arc<ClusterObjects>,
    kind: Kind,
    namespace: Option<String>,
    /// By the list under way.
    shown: BTreeSet<Name>,
}

impl Tap {
    /// A list starts, from the beginning.
    pub fn list_started(&mut self) {
        self.shown.clear();
    }

    pub fn listed(&mut self, manifest: &Value) {
        self.shown.extend(objects::name_of(manifest));
        self.applied(manifest);
    }

    /// The list is complete: what it did not show is gone.
    pub fn list_completed(&mut self) {
        let shown = std::mem::take(&mut self.shown);
        self.objects.change(self.kind, |model| {
            for gone in model.names(self.kind, self.namespace.as_deref()) {
                if !shown.contains(&gone) {
                    model.remove(self.kind, &gone);
                }
            }
        });
    }

    /// An object that cannot be read counts as none.
    pub fn applied(&mut self, manifest: &Value) {
        let Some(name) = objects::name_of(manifest) else { return };
        self.objects.change(self.kind, |model| match Object::parse(self.kind, manifest) {
            Some(object) => model.apply(name, object),
            None => model.remove(self.kind, &name),
        });
    }

    pub fn deleted(&mut self, manifest: &Value) {
        if let Some(name) = objects::name_of(manifest) {
            self.objects.change(self.kind, |model| model.remove(self.kind, &name));
        }
    }
}
