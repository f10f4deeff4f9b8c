//! Defaults by kind.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use super::pod_defaults as pod;

pub(super) fn apply(kind: &str, object: &mut Value) {
    match kind {
        "Namespace" => namespace(object),
        "Pod" => pod::pod(object),
        "Service" => service(object),
        "Secret" => secret(object),
        "Event" => event(object),
        "Endpoints" => each(object, "subsets", |subset| {
            each(subset, "ports", |port| fill(port, "protocol", "TCP"));
        }),
        "EndpointSlice" => endpoint_slice(object),
        "Deployment" => deployment(object),
        "ReplicaSet" => {
            fill(object, "spec.replicas", 1);
            template(object);
            fill(object, "status.replicas", 0);
        }
        "DaemonSet" => daemon_set(object),
        "StatefulSet" => stateful_set(object),
        "HorizontalPodAutoscaler" => autoscaler(object),
        "Ingress" => fill(object, "status.loadBalancer", json!({})),
        "PodDisruptionBudget" => {
            for count in ["currentHealthy", "desiredHealthy", "disruptionsAllowed", "expectedPods"] {
                fill(object, &format!("status.{count}"), 0);
            }
        }
        "CustomResourceDefinition" => definition(object),
        _ => {}
    }
}

/// Sets a dotted path unless it has a value; empty text counts as none.
pub(super) fn fill(object: &mut Value, path: &str, default: impl Into<Value>) {
    let mut place = object;
    for name in path.split('.') {
        if place.is_null() {
            *place = json!({});
        }
        let Some(fields) = place.as_object_mut() else { return };
        place = fields.entry(name).or_insert(Value::Null);
    }
    if place.is_null() || *place == "" {
        *place = default.into();
    }
}

pub(super) fn each(object: &mut Value, list: &str, complete: impl FnMut(&mut Value)) {
    if let Some(items) = object.get_mut(list).and_then(Value::as_array_mut) {
        items.iter_mut().filter(|item| item.is_object()).for_each(complete);
    }
}

fn text<'a>(object: &'a Value, path: &str) -> &'a str {
    object.pointer(path).and_then(Value::as_str).unwrap_or_default()
}

fn namespace(namespace: &mut Value) {
    let name = text(namespace, "/metadata/name").to_owned();
    if !name.is_empty() {
        fill(namespace, "metadata.labels", json!({}));
        namespace["metadata"]["labels"]["kubernetes.io/metadata.name"] = name.into();
    }
    // A terminating namespace keeps only its remaining finalizers.
    if namespace.pointer("/metadata/deletionTimestamp").is_none() {
        fill(namespace, "spec.finalizers", json!(["kubernetes"]));
    }
    fill(namespace, "status.phase", "Active");
}

fn service(service: &mut Value) {
    fill(service, "spec.type", "ClusterIP");
    fill(service, "spec.sessionAffinity", "None");
    let kind = text(service, "/spec/type").to_owned();
    let Some(spec) = service.get_mut("spec").filter(|spec| spec.is_object()) else { return };
    match text(spec, "/sessionAffinity") {
        "ClientIP" => fill(spec, "sessionAffinityConfig.clientIP.timeoutSeconds", 10800),
        "None" => {
            spec.as_object_mut().and_then(|spec| spec.remove("sessionAffinityConfig"));
        }
        _ => {}
    }
    each(spec, "ports", |port| {
        fill(port, "protocol", "TCP");
        if port.get("targetPort").is_none_or(|target| *target == 0 || *target == "") {
            port["targetPort"] = port.get("port").cloned().unwrap_or_default();
        }
    });
    let external_addresses =
        spec.get("externalIPs").and_then(Value::as_array).is_some_and(|ips| !ips.is_empty());
    if matches!(kind.as_str(), "LoadBalancer" | "NodePort") || (kind == "ClusterIP" && external_addresses) {
        fill(spec, "externalTrafficPolicy", "Cluster");
    }
    if kind == "LoadBalancer" {
        fill(spec, "allocateLoadBalancerNodePorts", true);
    }
    if kind != "ExternalName" {
        fill(spec, "internalTrafficPolicy", "Cluster");
        let selects =
            spec.get("selector").and_then(Value::as_object).is_some_and(|labels| !labels.is_empty());
        let (policy, families) = match text(spec, "/clusterIP") {
            "None" if !selects => ("RequireDualStack", json!(["IPv4", "IPv6"])),
            _ => ("SingleStack", json!(["IPv4"])),
        };
        fill(spec, "ipFamilies", families);
        fill(spec, "ipFamilyPolicy", policy);
        if let Some(address) = spec.get("clusterIP").filter(|address| **address != "").cloned() {
            fill(spec, "clusterIPs", json!([address]));
        }
    }
    fill(service, "status.loadBalancer", json!({}));
}

fn secret(secret: &mut Value) {
    fill(secret, "type", "Opaque");
    let Some(Value::Object(plain)) = secret.as_object_mut().and_then(|secret| secret.remove("stringData"))
    else {
        return;
    };
    for (name, value) in plain {
        let encoded = STANDARD.encode(value.as_str().unwrap_or_default());
        secret["data"][name] = encoded.into();
    }
}

fn event(event: &mut Value) {
    let core = event.get("apiVersion") == Some(&json!("v1"));
    fill(event, if core { "source" } else { "deprecatedSource" }, json!({}));
    for name in if core { ["reportingComponent", "reportingInstance"].as_slice() } else { &[] } {
        if event.get(name).is_none() {
            event[*name] = "".into();
        }
    }
}

fn endpoint_slice(slice: &mut Value) {
    each(slice, "endpoints", |endpoint| fill(endpoint, "conditions", json!({})));
    each(slice, "ports", |port| {
        if port.get("name").is_none() {
            port["name"] = "".into();
        }
        fill(port, "protocol", "TCP");
    });
}

fn template(object: &mut Value) {
    if let Some(spec) = object.pointer_mut("/spec/template/spec") {
        pod::spec(spec);
    }
}

fn deployment(deployment: &mut Value) {
    fill(deployment, "spec.replicas", 1);
    fill(deployment, "spec.revisionHistoryLimit", 10);
    fill(deployment, "spec.progressDeadlineSeconds", 600);
    fill(deployment, "spec.strategy.type", "RollingUpdate");
    if text(deployment, "/spec/strategy/type") == "RollingUpdate" {
        fill(deployment, "spec.strategy.rollingUpdate.maxUnavailable", "25%");
        fill(deployment, "spec.strategy.rollingUpdate.maxSurge", "25%");
    }
    template(deployment);
    fill(deployment, "status", json!({}));
}

fn daemon_set(set: &mut Value) {
    fill(set, "spec.revisionHistoryLimit", 10);
    fill(set, "spec.updateStrategy.type", "RollingUpdate");
    if text(set, "/spec/updateStrategy/type") == "RollingUpdate" {
        fill(set, "spec.updateStrategy.rollingUpdate.maxUnavailable", 1);
        fill(set, "spec.updateStrategy.rollingUpdate.maxSurge", 0);
    }
    template(set);
    for count in ["currentNumberScheduled", "desiredNumberScheduled", "numberMisscheduled", "numberReady"] {
        fill(set, &format!("status.{count}"), 0);
    }
}

fn stateful_set(set: &mut Value) {
    fill(set, "spec.replicas", 1);
    fill(set, "spec.revisionHistoryLimit", 10);
    fill(set, "spec.podManagementPolicy", "OrderedReady");
    fill(set, "spec.updateStrategy.type", "RollingUpdate");
    if text(set, "/spec/updateStrategy/type") == "RollingUpdate" {
        fill(set, "spec.updateStrategy.rollingUpdate.partition", 0);
    }
    for when in ["whenDeleted", "whenScaled"] {
        fill(set, &format!("spec.persistentVolumeClaimRetentionPolicy.{when}"), "Retain");
    }
    template(set);
    if let Some(spec) = set.get_mut("spec") {
        each(spec, "volumeClaimTemplates", |claim| {
            fill(claim, "spec.volumeMode", "Filesystem");
            fill(claim, "status.phase", "Pending");
        });
    }
    fill(set, "status.replicas", 0);
    fill(set, "status.availableReplicas", 0);
}

fn autoscaler(autoscaler: &mut Value) {
    fill(autoscaler, "spec.minReplicas", 1);
    let cpu = json!([{"type": "Resource", "resource": {"name": "cpu",
        "target": {"type": "Utilization", "averageUtilization": 80}}}]);
    if autoscaler.pointer("/spec/metrics").and_then(Value::as_array).is_none_or(Vec::is_empty) {
        autoscaler["spec"]["metrics"] = cpu;
    }
    if let Some(behavior) = autoscaler.pointer_mut("/spec/behavior").filter(|behavior| behavior.is_object()) {
        let percent = json!({"type": "Percent", "value": 100, "periodSeconds": 15});
        fill(behavior, "scaleUp.stabilizationWindowSeconds", 0);
        fill(behavior, "scaleUp.selectPolicy", "Max");
        let pods = json!({"type": "Pods", "value": 4, "periodSeconds": 15});
        fill(behavior, "scaleUp.policies", json!([pods, percent]));
        fill(behavior, "scaleDown.selectPolicy", "Max");
        fill(behavior, "scaleDown.policies", json!([percent]));
    }
    fill(autoscaler, "status.desiredReplicas", 0);
}

fn definition(definition: &mut Value) {
    fill(definition, "spec.conversion.strategy", "None");
    let kind = text(definition, "/spec/names/kind").to_owned();
    if !kind.is_empty() {
        fill(definition, "spec.names.singular", kind.to_lowercase());
        fill(definition, "spec.names.listKind", format!("{kind}List"));
    }
    if let Some(service) = definition.pointer_mut("/spec/conversion/webhook/clientConfig/service") {
        fill(service, "port", 443);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::super::{all, default};

    /// Each pair is an object sent to kube-apiserver 1.36.1 and the stored
    /// result, without fields that are not defaults: identity, addresses, node
    /// ports, and nulls.
    #[test]
    fn objects_are_completed_as_by_the_real_server() {
        let kinds = all();
        let fixture: Vec<(Value, Value)> =
            serde_json::from_str(include_str!("defaults.fixture.json")).expect("the fixture is JSON");
        assert!(fixture.len() > 20);
        for (mut given, stored) in fixture {
            let kind = kinds
                .iter()
                .find(|kind| given["kind"] == *kind.kind && given["apiVersion"] == *kind.api_version())
                .unwrap_or_else(|| panic!("{} is served", given["kind"]));
            default(kind, &mut given);
            assert_eq!(given, stored, "{} {}", kind.kind, stored["metadata"]["name"]);
            let once = given.clone();
            default(kind, &mut given);
            assert_eq!(given, once, "{} is defaulted once and for all", kind.kind);
        }
    }
}
