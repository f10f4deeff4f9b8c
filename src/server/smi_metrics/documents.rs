//! The objects of metrics.smi-spec.io/v1alpha1, as the specification of SMI has them
//! (servicemeshinterface/smi-spec, apis/traffic-metrics/v1alpha1).

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::apps::v1::{DaemonSet, Deployment, StatefulSet};
use k8s_openapi::api::core::v1::{Namespace, Pod, Service};
use kube::api::ApiResource;
use serde_json::{Value, json};

use crate::metrics::prometheus::traffic::{Direction, Level, Side, Traffic, TrafficEdge};

pub const GROUP: &str = "metrics.smi-spec.io";
pub const VERSION: &str = "v1alpha1";
pub const GROUP_VERSION: &str = "metrics.smi-spec.io/v1alpha1";

/// A resource of the API: objects of a kind, and what they received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resource {
    pub plural: &'static str,
    pub kind: &'static str,
    pub level: Level,
    pub has_edges: bool,
}

/// Of the specification's list the meshes do not label nodes, jobs, ReplicaSets and
/// ReplicationControllers, and nothing is aggregated for TrafficSplits.
pub const RESOURCES: [Resource; 6] = [
    Resource { plural: "namespaces", kind: "Namespace", level: Level::Namespace, has_edges: false },
    Resource { plural: "deployments", kind: "Deployment", level: Level::Deployment, has_edges: true },
    Resource { plural: "daemonsets", kind: "DaemonSet", level: Level::DaemonSet, has_edges: true },
    Resource { plural: "statefulsets", kind: "StatefulSet", level: Level::StatefulSet, has_edges: true },
    Resource { plural: "pods", kind: "Pod", level: Level::Pod, has_edges: false },
    Resource { plural: "services", kind: "Service", level: Level::Service, has_edges: false },
];

impl Resource {
    pub fn of(plural: &str) -> Option<Self> {
        RESOURCES.into_iter().find(|resource| resource.plural == plural)
    }

    pub fn is_namespaced(self) -> bool {
        self.level != Level::Namespace
    }

    /// Of the objects themselves.
    pub fn api_resource(self) -> ApiResource {
        match self.level {
            Level::Namespace => ApiResource::erase::<Namespace>(&()),
            Level::Deployment => ApiResource::erase::<Deployment>(&()),
            Level::DaemonSet => ApiResource::erase::<DaemonSet>(&()),
            Level::StatefulSet => ApiResource::erase::<StatefulSet>(&()),
            Level::Pod => ApiResource::erase::<Pod>(&()),
            Level::Service => ApiResource::erase::<Service>(&()),
        }
    }
}

/// The time of an answer.
#[derive(Clone, Copy)]
pub struct Measured {
    pub at: Timestamp,
    pub window: Duration,
}

pub fn api_group() -> Value {
    let version = json!({"groupVersion": GROUP_VERSION, "version": VERSION});
    json!({"kind": "APIGroup", "apiVersion": "v1", "name": GROUP, "versions": [version],
        "preferredVersion": version})
}

pub fn api_resources() -> Value {
    let of = |resource: Resource, name: String, verbs: &[&str]| {
        json!({"name": name, "singularName": "", "namespaced": resource.is_namespaced(),
            "kind": "TrafficMetrics", "verbs": verbs})
    };
    let resources = RESOURCES.into_iter().flat_map(|resource| {
        let own = of(resource, resource.plural.to_owned(), &["get", "list"]);
        let edges = resource.has_edges.then(|| of(resource, format!("{}/edges", resource.plural), &["get"]));
        [Some(own), edges].into_iter().flatten()
    });
    json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": GROUP_VERSION,
        "resources": resources.collect::<Vec<_>>()})
}

/// What an object received; without traffic nothing was measured.
pub fn traffic_metrics(
    resource: Resource,
    (namespace, name): (&str, &str),
    traffic: Option<&Traffic>,
    measured: Measured,
) -> Value {
    let edge = json!({"direction": "from", "side": "server", "resource": {}});
    document(reference(Some(resource.kind), namespace, name), edge, traffic, measured)
}

pub fn edge(resource: Resource, namespace: &str, name: &str, of: &TrafficEdge, measured: Measured) -> Value {
    let direction = match of.direction {
        Direction::From => "from",
        Direction::To => "to",
    };
    let side = match of.side {
        Side::Client => "client",
        Side::Server => "server",
    };
    let other = reference(of.kind, &of.other.namespace, &of.other.name);
    let edge = json!({"direction": direction, "side": side, "resource": other});
    document(reference(Some(resource.kind), namespace, name), edge, Some(&of.traffic), measured)
}

fn document(resource: Value, edge: Value, traffic: Option<&Traffic>, measured: Measured) -> Value {
    let at = format!("{:.0}", measured.at);
    let mut metadata = json!({"name": resource["name"], "creationTimestamp": at});
    if let Some(namespace) = resource.get("namespace") {
        metadata["namespace"] = namespace.clone();
    }
    json!({
        "kind": "TrafficMetrics", "apiVersion": GROUP_VERSION, "metadata": metadata,
        "timestamp": at, "window": format!("{}s", measured.window.as_secs()),
        "resource": resource, "edge": edge, "metrics": traffic.map(metrics).unwrap_or_default(),
    })
}

/// In the order of the specification's examples.
fn metrics(traffic: &Traffic) -> Vec<Value> {
    let names = ["p50_response_latency", "p90_response_latency", "p99_response_latency"];
    let latencies = names.into_iter().zip(traffic.latency).rev();
    let latencies = latencies.filter_map(|(name, seconds)| {
        Some(json!({"name": name, "unit": "seconds", "value": quantity(seconds?)}))
    });
    let count = |name: &str, value: u64| json!({"name": name, "value": value.to_string()});
    let counts = [count("success_count", traffic.success), count("failure_count", traffic.failure)];
    latencies.chain(counts).collect()
}

fn reference(kind: Option<&str>, namespace: &str, name: &str) -> Value {
    let mut reference = json!({"name": name});
    if let Some(kind) = kind {
        reference["kind"] = kind.into();
    }
    if !namespace.is_empty() {
        reference["namespace"] = namespace.into();
    }
    reference
}

/// Kubernetes' form of a number, to the microsecond.
fn quantity(seconds: f64) -> String {
    let micros = (seconds * 1e6).round() as u64;
    match micros {
        whole if whole.is_multiple_of(1_000_000) => (whole / 1_000_000).to_string(),
        milli if milli.is_multiple_of(1000) => format!("{}m", milli / 1000),
        micro => format!("{micro}u"),
    }
}

#[cfg(test)]
mod tests {
    use super::quantity;

    #[test]
    fn quantities_are_in_the_largest_unit_that_is_exact() {
        let cases =
            [(0.0, "0"), (2.0, "2"), (0.01, "10m"), (1.5, "1500m"), (0.0025, "2500u"), (0.000_000_4, "0")];
        for (seconds, text) in cases {
            assert_eq!(quantity(seconds), text);
        }
    }
}
