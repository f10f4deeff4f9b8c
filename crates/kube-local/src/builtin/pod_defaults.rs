//! Defaults of pods and of the templates that become pods.

use serde_json::{Value, json};

use super::defaults::{each, fill};
use super::quantity;

/// Defaults of every pod spec, in a pod or in a template.
pub(super) fn spec(spec: &mut Value) {
    fill(spec, "dnsPolicy", "ClusterFirst");
    fill(spec, "restartPolicy", "Always");
    fill(spec, "securityContext", json!({}));
    fill(spec, "terminationGracePeriodSeconds", 30);
    fill(spec, "schedulerName", "default-scheduler");
    // The deprecated name of the field, kept in sync.
    match (spec.get("serviceAccountName").cloned(), spec.get("serviceAccount").cloned()) {
        (Some(name), _) => spec["serviceAccount"] = name,
        (None, Some(name)) => spec["serviceAccountName"] = name,
        (None, None) => {}
    }
    for list in ["initContainers", "containers", "ephemeralContainers"] {
        each(spec, list, container);
    }
    each(spec, "volumes", volume);
    each(spec, "topologySpreadConstraints", |constraint| {
        fill(constraint, "nodeAffinityPolicy", "Honor");
        fill(constraint, "nodeTaintsPolicy", "Ignore");
    });
}

/// Defaults of pods only.
pub(super) fn pod(pod: &mut Value) {
    let Some(spec) = pod.get_mut("spec") else { return };
    self::spec(spec);
    for list in ["initContainers", "containers"] {
        each(spec, list, |container| {
            let Some(limits) = container.pointer("/resources/limits").and_then(Value::as_object).cloned()
            else {
                return;
            };
            for (resource, limit) in limits {
                let requests = &mut container["resources"]["requests"];
                if requests.get(&resource).is_none() {
                    requests[resource] = limit;
                }
            }
        });
        if spec.get("hostNetwork") == Some(&json!(true)) {
            each(spec, list, |container| {
                each(container, "ports", |port| {
                    let number = port.get("containerPort").cloned().unwrap_or_default();
                    fill(port, "hostPort", number);
                });
            });
        }
    }
    fill(spec, "enableServiceLinks", true);
    fill(spec, "preemptionPolicy", "PreemptLowerPriority");
    fill(spec, "priority", 0);
    for key in ["node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"] {
        tolerate(spec, key);
    }
    fill(pod, "status.phase", "Pending");
    let class = quality_of_service(&pod["spec"]);
    fill(pod, "status.qosClass", class);
}

/// Pods stay on an unreachable node for five minutes.
fn tolerate(spec: &mut Value, key: &str) {
    let tolerations = spec.get("tolerations").and_then(Value::as_array).into_iter().flatten();
    let covers = |toleration: &Value| {
        let field = |name: &str| toleration.get(name).and_then(Value::as_str).unwrap_or_default();
        matches!(field("key"), "" | "node.kubernetes.io/not-ready" | "node.kubernetes.io/unreachable")
            && (field("key").is_empty() || field("key") == key)
            && matches!(field("effect"), "" | "NoExecute")
    };
    if !tolerations.into_iter().any(covers) {
        let toleration =
            json!({"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300});
        match spec.get_mut("tolerations").and_then(Value::as_array_mut) {
            Some(tolerations) => tolerations.push(toleration),
            None => spec["tolerations"] = json!([toleration]),
        }
    }
}

/// Guaranteed if the CPU and memory limits of every container equal its requests.
fn quality_of_service(spec: &Value) -> &'static str {
    let mut guaranteed = true;
    let mut asks_for_anything = false;
    let lists = ["initContainers", "containers"].map(|list| spec.get(list).and_then(Value::as_array));
    for container in lists.into_iter().flatten().flatten() {
        for resource in ["cpu", "memory"] {
            let of = |side: &str| container.pointer(&format!("/resources/{side}/{resource}"));
            asks_for_anything |= of("limits").is_some() || of("requests").is_some();
            guaranteed &= of("limits").is_some() && of("limits") == of("requests");
        }
    }
    match (asks_for_anything, guaranteed) {
        (false, _) => "BestEffort",
        (true, true) => "Guaranteed",
        (true, false) => "Burstable",
    }
}

fn container(container: &mut Value) {
    let image = container.get("image").and_then(Value::as_str).unwrap_or_default();
    let policy = if is_latest(image) { "Always" } else { "IfNotPresent" };
    fill(container, "imagePullPolicy", policy);
    fill(container, "terminationMessagePath", "/dev/termination-log");
    fill(container, "terminationMessagePolicy", "File");
    fill(container, "resources", json!({}));
    each(container, "ports", |port| fill(port, "protocol", "TCP"));
    each(container, "env", |variable| {
        if let Some(field) = variable.pointer_mut("/valueFrom/fieldRef") {
            fill(field, "apiVersion", "v1");
        }
    });
    for probe in ["livenessProbe", "readinessProbe", "startupProbe"] {
        if let Some(probe) = container.get_mut(probe).filter(|probe| probe.is_object()) {
            for (field, default) in [
                ("timeoutSeconds", 1),
                ("periodSeconds", 10),
                ("successThreshold", 1),
                ("failureThreshold", 3),
            ] {
                if probe.get(field).is_none_or(|value| *value == 0) {
                    probe[field] = default.into();
                }
            }
            http_get(probe);
            if let Some(grpc) = probe.get_mut("grpc")
                && grpc.get("service").is_none()
            {
                grpc["service"] = "".into();
            }
        }
    }
    for hook in ["postStart", "preStop"] {
        if let Some(hook) = container.pointer_mut(&format!("/lifecycle/{hook}")) {
            http_get(hook);
        }
    }
    for side in ["limits", "requests"] {
        if let Some(resources) =
            container.pointer_mut(&format!("/resources/{side}")).and_then(Value::as_object_mut)
        {
            resources.values_mut().for_each(quantity::canonicalize);
        }
    }
}

fn http_get(action: &mut Value) {
    if let Some(get) = action.get_mut("httpGet") {
        fill(get, "path", "/");
        fill(get, "scheme", "HTTP");
    }
}

/// Whether an image is mutable: tagged `latest`, or neither tagged nor pinned.
fn is_latest(image: &str) -> bool {
    let name = image.rsplit('/').next().unwrap_or(image);
    match (name.contains('@'), name.rsplit_once(':')) {
        (true, _) => false,
        (false, Some((_, tag))) => tag == "latest",
        (false, None) => !name.is_empty(),
    }
}

fn volume(volume: &mut Value) {
    let Some(fields) = volume.as_object() else { return };
    if fields.keys().all(|name| name == "name") {
        volume["emptyDir"] = json!({});
    }
    for source in ["configMap", "secret", "projected", "downwardAPI"] {
        if let Some(source) = volume.get_mut(source) {
            fill(source, "defaultMode", 0o644);
        }
    }
    if let Some(host) = volume.get_mut("hostPath")
        && host.get("type").is_none()
    {
        host["type"] = "".into();
    }
    let field_reference = |item: &mut Value| {
        if let Some(field) = item.get_mut("fieldRef") {
            fill(field, "apiVersion", "v1");
        }
    };
    if let Some(downward) = volume.get_mut("downwardAPI") {
        each(downward, "items", field_reference);
    }
    if let Some(projected) = volume.get_mut("projected") {
        each(projected, "sources", |source| {
            if let Some(token) = source.get_mut("serviceAccountToken") {
                fill(token, "expirationSeconds", 3600);
            }
            if let Some(downward) = source.get_mut("downwardAPI") {
                each(downward, "items", field_reference);
            }
        });
    }
    if let Some(claim) = volume.pointer_mut("/ephemeral/volumeClaimTemplate/spec") {
        fill(claim, "volumeMode", "Filesystem");
    }
}
