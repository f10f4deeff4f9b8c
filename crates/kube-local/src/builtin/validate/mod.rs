//! The API server's hand-written validation, beyond schemas.
//!
//! Objects are defaulted first. Messages are those of the real server, word for
//! word; `refusals.fixture.json` holds its responses.

mod config;
mod definition;
mod metadata;
mod names;
mod network;
mod pod;
mod scaling;
mod service;
mod workload;

use serde_json::Value;

use crate::kinds::{Origin, Resource};
use crate::schema::FieldError;

type Errors = Vec<FieldError>;

pub(super) fn object(kind: &Resource, object: &Value, old: Option<&Value>) -> Errors {
    let mut errors = metadata::check(kind, object, old);
    if kind.origin == Origin::Custom || kind.is_review() {
        return errors;
    }
    let root = FieldValue { value: object, path: String::new() };
    let old = old.map(|old| FieldValue { value: old, path: String::new() });
    let old = old.as_ref();
    match kind.kind.as_str() {
        "ConfigMap" => config::config_map(&root, old, &mut errors),
        "Secret" => config::secret(&root, old, &mut errors),
        "Pod" => pod::pod(&root, old, &mut errors),
        "Deployment" => workload::deployment(&root, old, &mut errors),
        "ReplicaSet" => workload::replica_set(&root, old, &mut errors),
        "DaemonSet" => workload::daemon_set(&root, old, &mut errors),
        "StatefulSet" => workload::stateful_set(&root, old, &mut errors),
        "Service" => service::service(&root, old, &mut errors),
        "EndpointSlice" => network::endpoint_slice(&root, old, &mut errors),
        "Ingress" => network::ingress(&root, &mut errors),
        "HorizontalPodAutoscaler" => scaling::autoscaler(&root, &mut errors),
        "PodDisruptionBudget" => scaling::disruption_budget(&root, &mut errors),
        "Lease" => config::lease(&root, &mut errors),
        "Event" => config::event(&root, old, &mut errors),
        "CustomResourceDefinition" => definition::definition(&root, &mut errors),
        _ => {}
    }
    errors
}

/// A value and its path.
struct FieldValue<'a> {
    value: &'a Value,
    path: String,
}

const NULL: &Value = &Value::Null;

impl<'a> FieldValue<'a> {
    /// A field, by its dotted path; null if it is missing.
    fn at(&self, path: &str) -> FieldValue<'a> {
        let value = path.split('.').try_fold(self.value, |value, name| value.get(name)).unwrap_or(NULL);
        let path = if self.path.is_empty() { path.to_owned() } else { format!("{}.{path}", self.path) };
        FieldValue { value, path }
    }

    fn items(&self) -> impl Iterator<Item = FieldValue<'a>> + use<'a> {
        let path = self.path.clone();
        let items = self.value.as_array().map(Vec::as_slice).unwrap_or_default();
        items.iter().enumerate().map(move |(i, value)| FieldValue { value, path: format!("{path}[{i}]") })
    }

    fn entries(&self) -> impl Iterator<Item = (&'a str, FieldValue<'a>)> + use<'a> {
        let path = self.path.clone();
        let entries = self.value.as_object().into_iter().flatten();
        entries.map(move |(key, value)| (key.as_str(), FieldValue { value, path: format!("{path}[{key}]") }))
    }

    fn text(&self) -> &'a str {
        self.value.as_str().unwrap_or_default()
    }

    fn is_set(&self) -> bool {
        !self.value.is_null()
    }

    /// Missing or, as in Go, the zero value.
    fn is_empty(&self) -> bool {
        match self.value {
            Value::Null => true,
            Value::String(text) => text.is_empty(),
            Value::Array(items) => items.is_empty(),
            Value::Object(fields) => fields.is_empty(),
            Value::Bool(_) | Value::Number(_) => false,
        }
    }

    fn required(&self, detail: &str) -> FieldError {
        FieldError::required(self.path.clone(), detail)
    }

    fn forbidden(&self, detail: &str) -> FieldError {
        FieldError::forbidden(self.path.clone(), detail)
    }

    fn invalid(&self, detail: &str) -> FieldError {
        FieldError::invalid(self.path.clone(), self.value, detail)
    }

    fn duplicate(&self) -> FieldError {
        FieldError::duplicate(self.path.clone(), self.value)
    }

    /// Text that must follow a naming rule; one error per violation.
    fn name(&self, rule: fn(&str) -> Vec<String>, errors: &mut Errors) {
        errors.extend(rule(self.text()).iter().map(|breach| self.invalid(breach)));
    }

    fn required_name(&self, rule: fn(&str) -> Vec<String>, errors: &mut Errors) {
        if self.is_empty() { errors.push(self.required("")) } else { self.name(rule, errors) }
    }

    fn one_of(&self, supported: &[&str], errors: &mut Errors) {
        if !supported.contains(&self.text()) {
            errors.push(FieldError::not_supported(self.path.clone(), &self.text().into(), supported));
        }
    }

    fn at_least_zero(&self, errors: &mut Errors) {
        if self.value.as_i64().is_some_and(|number| number < 0) {
            errors.push(self.invalid("must be greater than or equal to 0"));
        }
    }

    fn port_number(&self, errors: &mut Errors) {
        if !self.value.as_i64().is_some_and(|port| (1..=65535).contains(&port)) {
            errors.push(self.invalid("must be between 1 and 65535, inclusive"));
        }
    }

    /// A port by number or by name.
    fn port(&self, errors: &mut Errors) {
        if self.value.is_string() { self.name(names::port_name, errors) } else { self.port_number(errors) }
    }

    /// A count, or a percentage of at most 100 %.
    fn count_or_percent(&self, errors: &mut Errors) {
        match self.value {
            Value::String(text) => match text.strip_suffix('%').map(str::parse::<u64>) {
                Some(Ok(percent)) if percent > 100 => {
                    errors.push(self.invalid("must not be greater than 100%"))
                }
                Some(Ok(_)) => {}
                _ => errors.push(self.invalid(names::NOT_A_PERCENT)),
            },
            Value::Number(_) => self.at_least_zero(errors),
            Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_) => {}
        }
    }

    fn immutable(&self, old: &FieldValue<'_>, errors: &mut Errors) {
        if self.value != old.value {
            errors.push(self.invalid("field is immutable"));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde::Deserialize;
    use serde_json::Value;

    use super::super::{all, default, validate};

    #[derive(Deserialize)]
    struct Case {
        old: Option<Value>,
        given: Value,
        refusals: BTreeSet<String>,
    }

    /// Each case was sent to kube-apiserver 1.36.1. `…` replaces excerpts of its Go structs.
    #[test]
    fn objects_are_refused_as_by_the_real_server() {
        let kinds = all();
        let cases: Vec<Case> =
            serde_json::from_str(include_str!("refusals.fixture.json")).expect("the fixture is JSON");
        assert!(cases.len() > 200);
        let mut wrong = Vec::new();
        for Case { mut old, mut given, refusals } in cases {
            let kind = kinds
                .iter()
                .find(|kind| given["kind"] == *kind.kind && given["apiVersion"] == *kind.api_version())
                .unwrap_or_else(|| panic!("{} is served", given["kind"]));
            for object in old.iter_mut().chain([&mut given]) {
                if kind.namespaced {
                    object["metadata"]["namespace"] = "default".into();
                }
                default(kind, object);
            }
            // Assigned by the server.
            if let (Some(old), "Service") = (&mut old, kind.kind.as_str()) {
                old["spec"]["clusterIP"] = "10.0.0.7".into();
                old["spec"]["clusterIPs"] = serde_json::json!(["10.0.0.7"]);
            }
            let ours = validate(kind, &given, old.as_ref());
            let ours: BTreeSet<String> = ours.iter().map(ToString::to_string).collect();
            let same = |(ours, theirs): (&String, &String)| match theirs.split_once('…') {
                Some((beginning, end)) => ours.starts_with(beginning) && ours.ends_with(end),
                None => ours == theirs,
            };
            if ours.len() != refusals.len() || !ours.iter().zip(&refusals).all(same) {
                wrong.push(format!("{given}\n  wanted {refusals:#?}\n  got {ours:#?}"));
            }
        }
        assert!(wrong.is_empty(), "{} differ:\n{}", wrong.len(), wrong.join("\n"));
    }
}
