//! A Service of the inventory.

use std::collections::BTreeMap;

use serde::Serialize;

use super::inventory::Inventory;
use super::key::Key;
use super::object::{Object, Reach, ServiceSpec};
use super::route::{self, RouteStanding};

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Service {
    pub key: Key,
    pub ports: Vec<Port>,
    /// Clients get the addresses of pods, so no route can split its traffic.
    pub headless: bool,
    /// A name outside of the cluster.
    pub external: bool,
    pub workloads: Vec<Key>,
    pub subsets: Vec<Subset>,
    /// Every route object that touches it, in order of precedence.
    pub routes: Vec<RouteStanding>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Port {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    pub port: u32,
    pub protocol: String,
}

/// The backing workloads with one version label.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Subset {
    pub version: String,
    pub workloads: Vec<Key>,
}

impl Service {
    /// The object that decides where mesh callers go.
    pub fn winner(&self) -> Option<&RouteStanding> {
        self.routes.iter().find(|route| route.outcome.wins() && route.scope == route::Scope::Mesh)
    }
}

pub(super) fn service(inventory: &Inventory, object: &Object, spec: &ServiceSpec) -> Service {
    let key = &object.key;
    let workloads = inventory.workloads_of(key, &spec.selector);
    let mut subsets: BTreeMap<String, Vec<Key>> = BTreeMap::new();
    for workload in workloads.iter().filter_map(|key| inventory.workload(key)) {
        if let Some(version) = &workload.version {
            subsets.entry(version.clone()).or_default().push(workload.key.clone());
        }
    }
    let subsets = subsets.into_iter().map(|(version, workloads)| Subset { version, workloads }).collect();
    Service {
        key: key.clone(),
        ports: spec.ports.clone(),
        headless: spec.reach == Reach::Headless,
        external: spec.reach == Reach::External,
        routes: route::standings(inventory, key, &workloads),
        workloads,
        subsets,
    }
}
