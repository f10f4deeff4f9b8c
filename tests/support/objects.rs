//! Objects that several test crates create.

// Every test crate that includes this module uses a part of it.
#![allow(dead_code)]

use std::fmt::Debug;

use k8s_openapi::NamespaceResourceScope;
use kube::api::{Api, PostParams};
use kube::{Client, Resource};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};

/// Creates a namespaced object; panics if it is refused.
pub async fn create<K>(client: &Client, namespace: &str, object: Value)
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
        + Clone
        + Debug
        + Serialize
        + DeserializeOwned,
{
    let object: K = serde_json::from_value(object).expect("an object of its kind");
    let created = Api::namespaced(client.clone(), namespace).create(&PostParams::default(), &object).await;
    created.unwrap_or_else(|error| panic!("create {object:?}: {error}"));
}

/// Two pods of an image, selected by the label `app`.
pub fn deployment(name: &str, image: &str) -> Value {
    let ports = json!([{"name": "http", "containerPort": 8080}]);
    let container = json!({"name": "web", "image": image, "ports": ports});
    let spec = json!({
        "replicas": 2, "selector": {"matchLabels": {"app": name}},
        "template": {"metadata": {"labels": {"app": name}}, "spec": {"containers": [container]}},
    });
    json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name}, "spec": spec})
}

/// A Canary of the Deployment `web`, routed by a TrafficSplit, with `spec` merged in.
pub fn canary(name: &str, spec: &Value) -> Value {
    let mut canary = json!({
        "apiVersion": "serin.dev/v1alpha1", "kind": "Canary", "metadata": {"name": name},
        "spec": {
            "provider": "smi:v1alpha2",
            "targetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"},
            "service": {"port": 80, "targetPort": 8080},
        },
    });
    json_patch::merge(&mut canary["spec"], spec);
    canary
}
