//! The workload of a pod, from the pod alone.

use serde_json::Value;

use super::key::{Key, Kind};
use super::parse::{label, text};

/// A ReplicaSet is named after its Deployment and the hash of the pod template, which
/// is a label of the pod: k8s.io/kubernetes pkg/controller/deployment/sync.go,
/// getNewReplicaSet. Argo Rollouts names its ReplicaSets the same way:
/// argoproj/argo-rollouts rollout/sync.go. A pod without a controller owns itself.
pub fn workload_of(pod: &Key, value: &Value) -> Key {
    if let Some(service) = label(value, "serving.knative.dev/service") {
        return pod.sibling(Kind::KnativeService, service);
    }
    let owners = value.pointer("/metadata/ownerReferences").and_then(Value::as_array);
    let controller = owners.into_iter().flatten().find(|owner| owner["controller"] == true);
    let Some(owner) = controller else { return pod.clone() };
    let name = text(owner, "/name").unwrap_or_default();
    let without = |hash: &str| {
        let hash = label(value, hash)?;
        name.strip_suffix(hash)?.strip_suffix('-')
    };
    match text(owner, "/kind") {
        Some("ReplicaSet") => match (without("rollouts-pod-template-hash"), without("pod-template-hash")) {
            (Some(rollout), _) => pod.sibling(Kind::Rollout, rollout),
            (None, Some(deployment)) => pod.sibling(Kind::Deployment, deployment),
            (None, None) => pod.clone(),
        },
        Some("DaemonSet") => pod.sibling(Kind::DaemonSet, name),
        Some("StatefulSet") => pod.sibling(Kind::StatefulSet, name),
        _ => pod.clone(),
    }
}
