//! The inventory: rules and precedence on minimal manifests, any order of events, and
//! listings of a cluster up to the printed table.

#[path = "../support/mod.rs"]
mod support;

#[path = "../world/mod.rs"]
mod world;

mod api;
mod charts;
mod choice;
mod cluster;
mod consul;
mod edges;
mod live;
mod meshes;
mod moto;
mod order;
mod precedence;
mod register;
mod releases;
mod replicas;
mod resources;
mod rest;
mod rules;
mod virtual_nodes;

use serde_json::Value;
use serin::discovery::model::{Inventory, Key, Kind, Object, Releasable, Workload};

pub const CLUSTER: &str = "east";

/// An inventory of YAML documents.
pub fn inventory(yaml: &str) -> Inventory {
    let mut inventory = Inventory::default();
    for document in documents(yaml) {
        inventory.apply(object(&document));
    }
    inventory.refresh();
    inventory
}

pub fn documents(yaml: &str) -> Vec<Value> {
    serde_saphyr::from_multiple(yaml).expect("YAML")
}

/// A document of kind `Served` is a resource that the API server serves.
pub fn object(document: &Value) -> Object {
    let kind = document["kind"].as_str().expect("a kind");
    if kind == "Served" {
        return Object::served(CLUSTER, document["metadata"]["name"].as_str().expect("a name"));
    }
    let group =
        document["apiVersion"].as_str().and_then(|v| v.split_once('/')).map_or("", |(group, _)| group);
    let kinds = || Kind::ALL.iter().copied().filter(|known| known.name() == kind);
    let known = kinds().find(|known| known.group() == group).or(kinds().next()).expect("a known kind");
    Object::parse(CLUSTER, known, document).expect("an object with a name")
}

pub fn workload<'i>(inventory: &'i Inventory, name: &str) -> &'i Workload {
    inventory.workload(&Key::new(CLUSTER, "shop", Kind::Deployment, name)).expect("a workload")
}

pub fn answer<'w>(workload: &'w Workload, provider: &str) -> &'w Releasable {
    workload.releasable.iter().find(|answer| answer.provider.name() == provider).expect("a provider")
}

/// A Deployment `web` in `shop` with one pod; `pod` is merged into the pod as flow YAML
/// of `metadata.annotations`, `metadata.labels` and `spec`.
pub fn web(annotations: &str, labels: &str, spec: &str) -> String {
    format!(
        "
kind: Deployment
metadata: {{name: web, namespace: shop, generation: 4}}
spec: {{replicas: 1, template: {{metadata: {{labels: {{app: web, version: v1}}}}, spec: {{serviceAccountName: web, containers: [{{name: web, image: 'shop/web:1'}}]}}}}}}
status: {{readyReplicas: 1}}
---
kind: Pod
metadata:
  name: web-abc-1
  namespace: shop
  annotations: {{{annotations}}}
  labels: {{app: web, pod-template-hash: abc, {labels}}}
  ownerReferences: [{{kind: ReplicaSet, name: web-abc, controller: true}}]
spec: {{{spec}}}
status: {{conditions: [{{type: Ready, status: 'True'}}], containerStatuses: [{{name: web, imageID: 'shop/web@sha256:11'}}]}}
---
kind: Service
metadata: {{name: web, namespace: shop}}
spec: {{clusterIP: 10.0.0.1, selector: {{app: web}}, ports: [{{name: http, port: 80}}]}}
---
"
    )
}
