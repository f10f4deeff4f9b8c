//! Pods, and the templates they are made from.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::{Errors, FieldValue, metadata, names};
use crate::schema::{FieldError, Reason, go_quote};

pub(super) fn pod(pod: &FieldValue<'_>, old: Option<&FieldValue<'_>>, errors: &mut Errors) {
    spec(&pod.at("spec"), errors);
    if let Some(old) = old {
        update(&pod.at("spec"), &old.at("spec"), errors);
    }
}

pub(super) fn spec(spec: &FieldValue<'_>, errors: &mut Errors) {
    let volumes = volumes(&spec.at("volumes"), errors);
    let containers = spec.at("containers");
    if containers.is_empty() {
        errors.push(containers.required(""));
    }
    let mut taken = BTreeSet::new();
    for container in containers.items().chain(spec.at("initContainers").items()) {
        let name = container.at("name");
        if !name.is_empty() && !taken.insert(name.text()) {
            errors.push(name.duplicate());
        }
        check_container(&container, &volumes, errors);
    }
    spec.at("restartPolicy").one_of(&["Always", "OnFailure", "Never"], errors);
    spec.at("dnsPolicy").one_of(&["ClusterFirstWithHostNet", "ClusterFirst", "Default", "None"], errors);
    metadata::labels(&spec.at("nodeSelector"), errors);
    for (field, rule) in [
        ("serviceAccountName", names::subdomain as fn(&str) -> Vec<String>),
        ("nodeName", names::subdomain),
        ("hostname", names::label),
        ("subdomain", names::label),
    ] {
        let name = spec.at(field);
        if !name.is_empty() {
            name.name(rule, errors);
        }
    }
    let deadline = spec.at("activeDeadlineSeconds");
    if deadline.value.as_i64().is_some_and(|seconds| !(1..=i64::from(i32::MAX)).contains(&seconds)) {
        errors.push(deadline.invalid("must be between 1 and 2147483647, inclusive"));
    }
    for toleration in spec.at("tolerations").items() {
        check_toleration(&toleration, errors);
    }
}

fn check_container(container: &FieldValue<'_>, volumes: &BTreeSet<&str>, errors: &mut Errors) {
    container.at("name").required_name(names::label, errors);
    if container.at("image").is_empty() {
        errors.push(container.at("image").required(""));
    }
    container.at("imagePullPolicy").one_of(&["Always", "IfNotPresent", "Never"], errors);
    container.at("terminationMessagePolicy").one_of(&["File", "FallbackToLogsOnError"], errors);
    check_ports(&container.at("ports"), errors);
    for variable in container.at("env").items() {
        check_variable(&variable, errors);
    }
    let mut mounted = BTreeSet::new();
    for mount in container.at("volumeMounts").items() {
        let (name, path) = (mount.at("name"), mount.at("mountPath"));
        if name.is_empty() {
            errors.push(name.required(""));
        }
        if !volumes.contains(name.text()) {
            errors.push(not_found(&name));
        }
        if path.is_empty() {
            errors.push(path.required(""));
        }
        if !mounted.insert(path.text()) {
            errors.push(path.invalid("must be unique"));
        }
    }
    check_resources(&container.at("resources"), errors);
    for name in ["livenessProbe", "readinessProbe", "startupProbe"] {
        let probe = container.at(name);
        if probe.is_set() {
            check_probe(&probe, name, errors);
        }
    }
    for hook in ["postStart", "preStop"] {
        let hook = container.at(&format!("lifecycle.{hook}"));
        if hook.is_set() {
            check_handler(&hook, &["exec", "httpGet", "tcpSocket", "sleep"], errors);
        }
    }
}

fn not_found(name: &FieldValue<'_>) -> FieldError {
    FieldError::with_text(
        name.path.clone(),
        Reason::NotFound,
        &format!("Not found: {}", go_quote(name.text())),
        "",
    )
}

fn check_ports(ports: &FieldValue<'_>, errors: &mut Errors) {
    let mut taken = BTreeSet::new();
    for port in ports.items() {
        let name = port.at("name");
        if !name.is_empty() {
            let before = errors.len();
            name.name(names::port_name, errors);
            if errors.len() == before && !taken.insert(name.text()) {
                errors.push(name.duplicate());
            }
        }
        let number = port.at("containerPort");
        if !number.is_set() || *number.value == 0 {
            errors.push(number.required(""));
        } else {
            number.port_number(errors);
        }
        if port.at("hostPort").value.as_i64().is_some_and(|port| port != 0) {
            port.at("hostPort").port_number(errors);
        }
        port.at("protocol").one_of(&["SCTP", "TCP", "UDP"], errors);
    }
}

fn check_variable(variable: &FieldValue<'_>, errors: &mut Errors) {
    variable.at("name").required_name(names::variable, errors);
    let source = variable.at("valueFrom");
    if !source.is_set() {
        return;
    }
    let none = |detail: &str| FieldError::invalid(source.path.clone(), &"".into(), detail);
    let sources: Vec<_> = ["fieldRef", "resourceFieldRef", "configMapKeyRef", "secretKeyRef", "fileKeyRef"]
        .into_iter()
        .map(|name| source.at(name))
        .filter(FieldValue::is_set)
        .collect();
    match sources.len() {
        0 => errors.push(none(
            "must specify one of: `fieldRef`, `resourceFieldRef`, `configMapKeyRef`, `secretKeyRef` or `fileKeyRef`",
        )),
        _ if !variable.at("value").is_empty() => {
            errors.push(none("may not be specified when `value` is not empty"));
        }
        1 => {}
        _ => errors.push(none("may not have more than one field specified at a time")),
    }
    for key in [source.at("configMapKeyRef"), source.at("secretKeyRef")] {
        if key.is_set() {
            key.at("key").required_name(names::config_key, errors);
        }
    }
    let field = source.at("fieldRef.fieldPath");
    if source.at("fieldRef").is_set() {
        if field.is_empty() {
            errors.push(field.required(""));
        } else if !is_downward_field(field.text()) {
            errors.push(field.invalid(&format!(
                "error converting fieldPath: field label not supported: {}",
                field.text()
            )));
        }
    }
}

/// The pod fields of the downward API.
fn is_downward_field(path: &str) -> bool {
    let name = path.split_once('[').map_or(path, |(name, _)| name);
    matches!(
        name,
        "metadata.annotations"
            | "metadata.labels"
            | "metadata.name"
            | "metadata.namespace"
            | "metadata.uid"
            | "spec.nodeName"
            | "spec.serviceAccountName"
            | "status.hostIP"
            | "status.hostIPs"
            | "status.podIP"
            | "status.podIPs"
    )
}

fn check_resources(resources: &FieldValue<'_>, errors: &mut Errors) {
    let (limits, requests) = (resources.at("limits"), resources.at("requests"));
    for (name, quantity) in limits.entries().chain(requests.entries()) {
        let invalid = |detail: &str| FieldError::invalid(quantity.path.clone(), &name.into(), detail);
        let standard =
            matches!(name, "cpu" | "memory" | "ephemeral-storage") || name.starts_with("hugepages-");
        if !standard && !name.contains('/') {
            errors.push(invalid("must be a standard resource type or fully qualified"));
            errors.push(invalid("must be a standard resource for containers"));
        }
        if quantity.text().starts_with('-') {
            errors.push(quantity.invalid("must be greater than or equal to 0"));
        }
    }
    for (name, request) in requests.entries() {
        let Some(limit) = limits.value.get(name).and_then(Value::as_str) else { continue };
        if let (Some(requested), Some(allowed)) = (amount(request.text()), amount(limit))
            && requested > allowed
        {
            let detail = format!("must be less than or equal to {name} limit of {limit}");
            errors.push(FieldError::invalid(requests.path.clone(), request.value, &detail));
        }
    }
}

/// A canonical quantity as a number, precise enough for comparison.
fn amount(quantity: &str) -> Option<f64> {
    let end = quantity.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(quantity.len());
    let (number, suffix) = quantity.split_at(end);
    let factor = match suffix {
        "" => 1.0,
        "n" => 1e-9,
        "u" => 1e-6,
        "m" => 1e-3,
        "k" => 1e3,
        "M" => 1e6,
        "G" => 1e9,
        "T" => 1e12,
        "P" => 1e15,
        "E" => 1e18,
        "Ki" => 1024.0,
        "Mi" => 1024_f64.powi(2),
        "Gi" => 1024_f64.powi(3),
        "Ti" => 1024_f64.powi(4),
        "Pi" => 1024_f64.powi(5),
        "Ei" => 1024_f64.powi(6),
        _ => return None,
    };
    Some(number.parse::<f64>().ok()? * factor)
}

fn check_probe(probe: &FieldValue<'_>, name: &str, errors: &mut Errors) {
    check_handler(probe, &["exec", "httpGet", "tcpSocket", "grpc"], errors);
    for count in
        ["initialDelaySeconds", "timeoutSeconds", "periodSeconds", "successThreshold", "failureThreshold"]
    {
        probe.at(count).at_least_zero(errors);
    }
    let successes = probe.at("successThreshold");
    if name != "readinessProbe" && successes.value.as_i64().is_some_and(|count| count != 1) {
        errors.push(successes.invalid("must be 1"));
    }
}

fn check_handler(handler: &FieldValue<'_>, kinds: &[&str], errors: &mut Errors) {
    let given: Vec<_> = kinds.iter().map(|kind| handler.at(kind)).filter(FieldValue::is_set).collect();
    if given.is_empty() {
        errors.push(handler.required("must specify a handler type"));
    }
    for (i, action) in given.iter().enumerate() {
        if i > 0 {
            errors.push(action.forbidden("may not specify more than 1 handler type"));
            continue;
        }
        if action.path.ends_with("exec") && action.at("command").is_empty() {
            errors.push(action.at("command").required(""));
        }
        if action.path.ends_with("httpGet") {
            action.at("scheme").one_of(&["HTTP", "HTTPS"], errors);
        }
        if ["httpGet", "tcpSocket", "grpc"].iter().any(|kind| action.path.ends_with(kind)) {
            action.at("port").port(errors);
        }
    }
}

fn check_toleration(toleration: &FieldValue<'_>, errors: &mut Errors) {
    let (key, operator, value) = (toleration.at("key"), toleration.at("operator"), toleration.at("value"));
    if !key.is_empty() {
        key.name(names::qualified, errors);
    } else if operator.text() != "Exists" {
        errors.push(operator.invalid(
            "operator must be Exists when `key` is empty, which means \"match all values and all keys\"",
        ));
    }
    match operator.text() {
        "Equal" | "" => value.name(names::label_value, errors),
        "Exists" if !value.is_empty() => {
            let detail = "value must be empty when `operator` is 'Exists'";
            errors.push(FieldError::invalid(operator.path.clone(), value.value, detail));
        }
        "Exists" => {}
        _ => operator.one_of(&["Equal", "Exists"], errors),
    }
    let effect = toleration.at("effect");
    if !effect.is_empty() {
        effect.one_of(&["NoSchedule", "PreferNoSchedule", "NoExecute"], errors);
    }
}

/// Checks the volumes and returns the names that can be mounted.
fn volumes<'a>(volumes: &FieldValue<'a>, errors: &mut Errors) -> BTreeSet<&'a str> {
    let mut names = BTreeSet::new();
    for volume in volumes.items() {
        let name = volume.at("name");
        name.required_name(names::label, errors);
        if !name.is_empty() && !names.insert(name.text()) {
            errors.push(name.duplicate());
        }
        let sources: Vec<_> =
            volume.value.as_object().into_iter().flatten().map(|(source, _)| source).collect();
        for source in sources.into_iter().filter(|source| *source != "name").skip(1) {
            errors.push(volume.at(source).forbidden("may not specify more than 1 volume type"));
        }
        for (source, name) in
            [("configMap", "name"), ("secret", "secretName"), ("persistentVolumeClaim", "claimName")]
        {
            if volume.at(source).is_set() && volume.at(source).at(name).is_empty() {
                errors.push(volume.at(source).at(name).required(""));
            }
        }
        if volume.at("hostPath").is_set() && volume.at("hostPath.path").is_empty() {
            errors.push(volume.at("hostPath.path").required(""));
        }
    }
    names
}

/// An existing pod is immutable, except for images, deadlines and added tolerations.
fn update(spec: &FieldValue<'_>, old: &FieldValue<'_>, errors: &mut Errors) {
    for list in ["containers", "initContainers"] {
        let (new, old) = (spec.at(list), old.at(list));
        if new.items().count() != old.items().count() {
            errors.push(new.forbidden("pod updates may not add or remove containers"));
            return;
        }
    }
    let (deadline, before) = (spec.at("activeDeadlineSeconds"), old.at("activeDeadlineSeconds"));
    match (deadline.value.as_i64(), before.value.as_i64()) {
        (Some(now), Some(before)) if now > before => {
            errors.push(deadline.invalid("must be less than or equal to previous value"));
            return;
        }
        (None, Some(_)) => {
            errors.push(FieldError::invalid(
                deadline.path,
                &Value::Null,
                "must not update from a positive integer to nil value",
            ));
            return;
        }
        _ => {}
    }
    if fixed_part(spec.value, old.value) != fixed_part(old.value, old.value) {
        errors.push(spec.forbidden(
            "pod updates may not change fields other than `spec.containers[*].image`,\
             `spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to \
             existing tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was \
             previously negative)",
        ));
    }
}

/// The spec without its mutable fields.
fn fixed_part(spec: &Value, old: &Value) -> Value {
    let mut fixed = spec.clone();
    for list in ["containers", "initContainers"] {
        for container in fixed.get_mut(list).and_then(Value::as_array_mut).into_iter().flatten() {
            container["image"] = Value::Null;
        }
    }
    if let Some(fields) = fixed.as_object_mut() {
        fields.remove("activeDeadlineSeconds");
        // The node is set once, by a binding.
        if old.get("nodeName").and_then(Value::as_str).is_none_or(str::is_empty) {
            fields.remove("nodeName");
        }
        // Tolerations may be added.
        let before = old.get("tolerations").and_then(Value::as_array).cloned().unwrap_or_default();
        let now = fields.remove("tolerations");
        let now = now.as_ref().and_then(Value::as_array).cloned().unwrap_or_default();
        let missing: Vec<_> = before.into_iter().filter(|toleration| !now.contains(toleration)).collect();
        fields.insert("tolerations".to_owned(), json!(missing));
        if old.get("terminationGracePeriodSeconds").and_then(Value::as_i64).is_some_and(|seconds| seconds < 0)
        {
            fields.remove("terminationGracePeriodSeconds");
        }
    }
    fixed
}
