//! The objects of a seed.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use serde_json::{Value, json};

use super::scenario::{CanarySetup, ExtraLabel};

/// The target, with `label` in its selector too.
pub fn workload_of(subject: &CanarySetup, image: &str, label: Option<ExtraLabel>) -> Value {
    let mut container = container_of(image);
    container["ports"] = json!([{"containerPort": 8080}]);
    if subject.reads_config {
        container["envFrom"] = json!([{"configMapRef": {"name": format!("{}-config", subject.name)}}]);
    }
    let mut labels = json!({"app": subject.name});
    if let Some((key, value)) = label {
        labels[key] = json!(value);
    }
    let mut workload = json!({
        "apiVersion": "apps/v1", "kind": subject.kind, "metadata": {"name": subject.name},
        "spec": {
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": {"terminationGracePeriodSeconds": 1, "containers": [container]}},
        },
    });
    if subject.kind == "Deployment" {
        workload["spec"]["replicas"] = json!(subject.replicas);
    }
    if subject.rolls_one_by_one {
        let limits = json!({"maxSurge": 1, "maxUnavailable": 0});
        workload["spec"]["strategy"] = json!({"type": "RollingUpdate", "rollingUpdate": limits});
    }
    workload
}

/// With a probe if the image is not ready at once.
pub fn container_of(image: &str) -> Value {
    let probe = match image.contains("never-ready") || image.contains("delay") {
        true => {
            json!({"httpGet": {"path": "/healthz", "port": 8080}, "periodSeconds": 5, "failureThreshold": 1})
        }
        false => Value::Null,
    };
    json!({"name": "app", "image": image, "readinessProbe": probe})
}

pub fn budget(subject: &CanarySetup) -> Value {
    let selector = json!({"matchLabels": {"app": subject.name}});
    json!({"metadata": {"name": subject.name}, "spec": {"minAvailable": 1, "selector": selector}})
}

/// Its value is never negative, so that a range from zero passes.
pub fn template_spec() -> Value {
    json!({"provider": {"type": "scrape"}, "query": "http_requests_total{status=~\"5..\"}"})
}

pub fn template_name(subject: &CanarySetup) -> String {
    format!("{}-errors", subject.name)
}

pub fn autoscaler(subject: &CanarySetup) -> Value {
    json!({
        "metadata": {"name": subject.name},
        "spec": {
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": subject.name},
            "minReplicas": 1, "maxReplicas": 5,
        },
    })
}

/// TrafficSplits, and HTTPRouteGroups for those that choose requests.
pub fn smi() -> Vec<CustomResourceDefinition> {
    let definition = |group: &str, kind: &str, plural: &str, versions: &[&str]| {
        let version = |(at, version): (usize, &&str)| {
            json!({
                "name": version, "served": true, "storage": at == 0,
                "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}},
            })
        };
        let versions: Vec<_> = versions.iter().enumerate().map(version).collect();
        let names = json!({"kind": kind, "listKind": format!("{kind}List"), "plural": plural, "singular": kind.to_lowercase()});
        serde_json::from_value(json!({
            "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
            "metadata": {"name": format!("{plural}.{group}")},
            "spec": {"group": group, "scope": "Namespaced", "names": names, "versions": versions},
        }))
        .expect("a definition")
    };
    vec![
        definition("split.smi-spec.io", "TrafficSplit", "trafficsplits", &["v1alpha2", "v1alpha3"]),
        definition("specs.smi-spec.io", "HTTPRouteGroup", "httproutegroups", &["v1alpha3"]),
    ]
}
