//! Small kinds that mostly hold data: ConfigMap, Secret, Lease, Event.

use serde_json::{Value, json};

use super::{Errors, FieldValue, names};
use crate::schema::FieldError;

/// The limit of the data of one object.
const MAX_DATA_BYTES: usize = 1024 * 1024;

pub(super) fn config_map(map: &FieldValue<'_>, old: Option<&FieldValue<'_>>, errors: &mut Errors) {
    let (data, binary) = (map.at("data"), map.at("binaryData"));
    for (key, value) in data.entries().chain(binary.entries()) {
        let invalid = |breach: &str| FieldError::invalid(value.path.clone(), &key.into(), breach);
        errors.extend(names::config_key(key).iter().map(|breach| invalid(breach)));
        if value.path.starts_with("data") && binary.value.get(key).is_some() {
            errors.push(invalid("duplicate of key present in binaryData"));
        }
    }
    check_size(&data, data.entries().chain(binary.entries()).map(|(_, value)| value.text().len()), errors);
    if let Some(old) = old {
        check_immutable(map, old, &["data", "binaryData"], errors);
    }
}

pub(super) fn secret(secret: &FieldValue<'_>, old: Option<&FieldValue<'_>>, errors: &mut Errors) {
    let data = secret.at("data");
    for (key, value) in data.entries() {
        let breaches = names::config_key(key);
        errors.extend(
            breaches.iter().map(|breach| FieldError::invalid(value.path.clone(), &key.into(), breach)),
        );
    }
    check_size(&data, data.entries().map(|(_, value)| value.text().len() / 4 * 3), errors);
    let mut needs = |keys: &[&str]| {
        for key in keys.iter().filter(|key| data.value.get(**key).is_none()) {
            errors.push(FieldError::required(format!("data[{key}]"), ""));
        }
    };
    match secret.at("type").text() {
        "kubernetes.io/tls" => needs(&["tls.crt", "tls.key"]),
        "kubernetes.io/dockerconfigjson" => needs(&[".dockerconfigjson"]),
        "kubernetes.io/dockercfg" => needs(&[".dockercfg"]),
        "kubernetes.io/ssh-auth" => needs(&["ssh-privatekey"]),
        // One of the two keys is enough.
        "kubernetes.io/basic-auth"
            if ["username", "password"].iter().all(|key| data.value.get(key).is_none()) =>
        {
            needs(&["username", "password"]);
        }
        _ => {}
    }
    if let Some(old) = old {
        secret.at("type").immutable(&old.at("type"), errors);
        check_immutable(secret, old, &["data"], errors);
    }
}

fn check_size(data: &FieldValue<'_>, sizes: impl Iterator<Item = usize>, errors: &mut Errors) {
    if sizes.sum::<usize>() > MAX_DATA_BYTES {
        errors.push(FieldError::too_long(data.path.clone(), MAX_DATA_BYTES as i64));
    }
}

fn check_immutable(object: &FieldValue<'_>, old: &FieldValue<'_>, fields: &[&str], errors: &mut Errors) {
    const DETAIL: &str = "field is immutable when `immutable` is set";
    if old.at("immutable").value != &json!(true) {
        return;
    }
    if object.at("immutable").value != &json!(true) {
        errors.push(object.at("immutable").forbidden(DETAIL));
    }
    for field in fields {
        let (new, old) = (object.at(field), old.at(field));
        if new.value != old.value && !(new.is_empty() && old.is_empty()) {
            errors.push(new.forbidden(DETAIL));
        }
    }
}

pub(super) fn lease(lease: &FieldValue<'_>, errors: &mut Errors) {
    let duration = lease.at("spec.leaseDurationSeconds");
    if duration.value.as_i64().is_some_and(|seconds| seconds <= 0) {
        errors.push(duration.invalid("must be greater than 0"));
    }
    lease.at("spec.leaseTransitions").at_least_zero(errors);
}

pub(super) fn event(event: &FieldValue<'_>, old: Option<&FieldValue<'_>>, errors: &mut Errors) {
    let core = event.at("apiVersion").text() == "v1";
    let about = event.at(if core { "involvedObject" } else { "regarding" });
    let namespace = about.at("namespace");
    if !namespace.is_empty() && namespace.value != event.at("metadata.namespace").value {
        let detail = "does not match event.namespace";
        errors.push(FieldError::invalid("involvedObject.namespace", namespace.value, detail));
    }
    if core || old.is_some() {
        return;
    }
    if event.at("eventTime").is_empty() {
        errors.push(event.at("eventTime").required(""));
    }
    if event.at("eventTime").is_set() {
        let controller = event.at("reportingController");
        controller.required_name(names::qualified, errors);
        for field in ["reportingInstance", "action", "reason"] {
            if event.at(field).is_empty() {
                errors.push(event.at(field).required(""));
            }
        }
    }
    let kind = event.at("type");
    if !matches!(kind.text(), "Normal" | "Warning") {
        let detail = format!("has invalid value: {}", kind.text());
        errors.push(FieldError::invalid(kind.path, &Value::from(""), &detail));
    }
}
