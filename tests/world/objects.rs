//! Any object of a world, and what those that people write look like.

use kube::api::{Api, ApiResource, DeleteParams, DynamicObject, Patch, PatchParams};
use serde_json::{Value, json};
use serin::api::{self, AlertProvider, AnalysisTemplate, Canary};

use super::World;

impl World {
    pub fn objects(&self, kind: &str) -> Api<DynamicObject> {
        Api::namespaced_with(self.client.clone(), &self.namespace, &resource(kind))
    }

    pub async fn find(&self, kind: &str, name: &str) -> Option<Value> {
        let found = self.objects(kind).get_opt(name).await;
        let found = found.unwrap_or_else(|error| panic!("{kind} {name}: {error}"))?;
        Some(serde_json::to_value(found).expect("an object is JSON"))
    }

    pub async fn get(&self, kind: &str, name: &str) -> Value {
        self.find(kind, name).await.unwrap_or_else(|| panic!("{kind} {name} is not there"))
    }

    /// As a person applies a manifest.
    pub async fn apply(&self, manifest: Value) {
        self.try_apply(&manifest).await.unwrap_or_else(|error| panic!("{manifest:#}: {error}"));
    }

    pub async fn try_apply(&self, manifest: &Value) -> kube::Result<DynamicObject> {
        let text = |value: &Value| value.as_str().expect("a manifest names itself").to_owned();
        let (kind, name) = (text(&manifest["kind"]), text(&manifest["metadata"]["name"]));
        self.objects(&kind).patch(&name, &PatchParams::apply("people").force(), &Patch::Apply(manifest)).await
    }

    pub async fn patch(&self, kind: &str, name: &str, patch: Value) {
        let patched = self.objects(kind).patch(name, &PatchParams::default(), &Patch::Merge(patch)).await;
        patched.unwrap_or_else(|error| panic!("{kind} {name}: {error}"));
    }

    pub async fn delete(&self, kind: &str, name: &str) {
        self.objects(kind).delete(name, &DeleteParams::background()).await.expect("a deletion");
    }

    /// Waits until it is not there any more.
    pub async fn is_gone(&self, kind: &str, name: &str) {
        let what = format!("{kind} {name} is gone");
        self.eventually(&what, async || self.find(kind, name).await.is_none()).await;
    }
}

/// Two pods of an image, behind labels of its own; of a Service, none at all.
pub fn workload(kind: &str, name: &str, image: &str) -> Value {
    if kind == "Service" {
        let ports = json!([{"name": "http", "port": 80, "targetPort": 8080}]);
        let spec = json!({"selector": {"app": name}, "ports": ports});
        return json!({"apiVersion": "v1", "kind": kind, "metadata": {"name": name}, "spec": spec});
    }
    // As people write it who lose no request: an endpoint that is being taken
    // away is still called for a moment.
    let container = json!({
        "name": "web", "image": image, "ports": [{"name": "http", "containerPort": 8080}],
        "lifecycle": {"preStop": {"sleep": {"seconds": 2}}},
    });
    let mut spec = json!({
        "selector": {"matchLabels": {"app": name}},
        "template": {"metadata": {"labels": {"app": name}}, "spec": {"containers": [container]}},
    });
    // Of one node, another pod must come before the old one goes.
    match kind {
        "DaemonSet" => {
            spec["updateStrategy"] = json!({"rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}})
        }
        _ => spec["replicas"] = json!(2),
    }
    json!({"apiVersion": "apps/v1", "kind": kind, "metadata": {"name": name}, "spec": spec})
}

/// What a TrafficSplit gives a backend.
pub fn weight(split: &Value, service: &str) -> Option<u64> {
    let backends = split["spec"]["backends"].as_array()?;
    backends.iter().find(|backend| backend["service"] == *service)?["weight"].as_u64()
}

pub fn resource(kind: &str) -> ApiResource {
    let made = |group: &str, version: &str| {
        let api_version = format!("{group}/{version}").trim_start_matches('/').to_owned();
        let (group, version, plural) = (group.to_owned(), version.to_owned(), kind.to_lowercase() + "s");
        ApiResource { group, version, api_version, kind: kind.to_owned(), plural }
    };
    match kind {
        "Canary" => ApiResource::erase::<Canary>(&()),
        "AlertProvider" => ApiResource::erase::<AlertProvider>(&()),
        "AnalysisTemplate" => ApiResource::erase::<AnalysisTemplate>(&()),
        "Workload" => ApiResource::erase::<api::Workload>(&()),
        "MeshService" => ApiResource::erase::<api::MeshService>(&()),
        "TrafficSplit" => made("split.smi-spec.io", "v1alpha4"),
        "HTTPRoute" => made("gateway.networking.k8s.io", "v1"),
        "VirtualService" => made("networking.istio.io", "v1"),
        "VirtualRouter" => made("appmesh.k8s.aws", "v1beta2"),
        "HTTPRouteGroup" => made("specs.smi-spec.io", "v1alpha4"),
        "ScaledObject" => made("keda.sh", "v1alpha1"),
        "HorizontalPodAutoscaler" => made("autoscaling", "v2"),
        "PodDisruptionBudget" => made("policy", "v1"),
        "Lease" => made("coordination.k8s.io", "v1"),
        "Deployment" | "DaemonSet" | "StatefulSet" => made("apps", "v1"),
        _ => made("", "v1"),
    }
}
