//! Metadata, the same for every kind except for the naming rule.

use serde_json::{Value, json};

use super::{Errors, FieldValue, names};
use crate::kinds::{Origin, Resource};
use crate::schema::{FieldError, Reason};

pub(super) fn check(kind: &Resource, object: &Value, old: Option<&Value>) -> Errors {
    let mut errors = Vec::new();
    let metadata = FieldValue { value: object, path: String::new() }.at("metadata");
    if kind.is_review() {
        return errors;
    }
    // A stored name cannot change, and may predate the rule.
    if old.is_none() {
        check_name(kind, &metadata, &mut errors);
    }
    labels(&metadata.at("labels"), &mut errors);
    annotations(&metadata.at("annotations"), &mut errors);
    owners(&metadata.at("ownerReferences"), &mut errors);
    finalizers(kind, &metadata.at("finalizers"), &mut errors);
    errors
}

pub(super) fn labels(labels: &FieldValue<'_>, errors: &mut Errors) {
    for (key, value) in labels.entries() {
        let at = |text: &str, breach: &str| FieldError::invalid(labels.path.clone(), &text.into(), breach);
        errors.extend(names::qualified(key).iter().map(|breach| at(key, breach)));
        errors.extend(names::label_value(value.text()).iter().map(|breach| at(value.text(), breach)));
    }
}

pub(super) fn annotations(annotations: &FieldValue<'_>, errors: &mut Errors) {
    const MAX_ANNOTATION_BYTES: usize = 256 * 1024;
    let mut size = 0;
    for (key, value) in annotations.entries() {
        size += key.len() + value.text().len();
        // Keys are checked in lower case, as in the API server.
        let breaches = names::qualified(&key.to_lowercase());
        let invalid = |breach: &String| FieldError::invalid(annotations.path.clone(), &key.into(), breach);
        errors.extend(breaches.iter().map(invalid));
    }
    if size > MAX_ANNOTATION_BYTES {
        errors.push(FieldError::too_long(annotations.path.clone(), MAX_ANNOTATION_BYTES as i64));
    }
}

fn check_name(kind: &Resource, metadata: &FieldValue<'_>, errors: &mut Errors) {
    let rule = match (kind.origin, kind.kind.as_str()) {
        (Origin::Builtin, "Namespace" | "Service") => names::label,
        // Any name that is a valid path segment.
        (Origin::Builtin, "PodDisruptionBudget") => path_segment,
        (Origin::Builtin | Origin::Custom, _) => names::subdomain,
    };
    let prefix = metadata.at("generateName");
    if !prefix.is_empty() {
        // The generated part follows a trailing dash.
        let breaches = rule(&mask_trailing_dash(prefix.text()));
        errors.extend(breaches.iter().map(|breach| prefix.invalid(breach)));
    }
    let name = metadata.at("name");
    if name.is_empty() {
        errors.push(name.required("name or generateName is required"));
    } else {
        name.name(rule, errors);
    }
    if kind.namespaced && metadata.at("namespace").is_empty() {
        errors.push(metadata.at("namespace").required(""));
    }
}

fn mask_trailing_dash(prefix: &str) -> String {
    match prefix.strip_suffix('-') {
        Some(rest) if !rest.is_empty() => format!("{rest}a"),
        _ => prefix.to_owned(),
    }
}

fn path_segment(name: &str) -> Vec<String> {
    if matches!(name, "." | "..") {
        return vec![format!("may not be '{name}'")];
    }
    ["/", "%"]
        .iter()
        .filter(|part| name.contains(**part))
        .map(|part| format!("may not contain '{part}'"))
        .collect()
}

fn owners(owners: &FieldValue<'_>, errors: &mut Errors) {
    let mut controller: Option<String> = None;
    for owner in owners.items() {
        // The API server reports the path of the list, not of the item.
        let owner = FieldValue { value: owner.value, path: owners.path.clone() };
        let version = owner.at("apiVersion");
        let parts: Vec<_> = version.text().split('/').collect();
        match parts[..] {
            [version] | [_, version] if !version.is_empty() => {}
            _ => errors.push(FieldError::invalid(
                version.path.clone(),
                &version.text().into(),
                "version must not be empty",
            )),
        }
        for field in ["kind", "name", "uid"] {
            let field = owner.at(field);
            if field.is_empty() {
                errors.push(FieldError::invalid(field.path.clone(), &"".into(), "must not be empty"));
            }
        }
        if version.text() == "v1" && owner.at("kind").text() == "Event" {
            let shown = format!("Invalid value: {}", in_go_order(owner.value));
            let detail = "/v1, Kind=Event is disallowed from being an owner";
            errors.push(FieldError::with_text(owner.path.clone(), Reason::Invalid, &shown, detail));
        }
        if owner.value.get("controller") == Some(&json!(true)) {
            let name = format!("{}/{}", owner.at("kind").text(), owner.at("name").text());
            match &controller {
                None => controller = Some(name),
                Some(first) => {
                    let detail = format!(
                        "Only one reference can have Controller set to true. \
                         Found \"true\" in references for {first} and {name}"
                    );
                    let all: Vec<_> = owners.items().map(|owner| in_go_order(owner.value)).collect();
                    let shown = format!("Invalid value: [{}]", all.join(","));
                    errors.push(FieldError::with_text(owners.path.clone(), Reason::Invalid, &shown, &detail));
                }
            }
        }
    }
}

/// An owner reference with its fields in the order in which Go prints them.
fn in_go_order(owner: &Value) -> String {
    let fields = ["apiVersion", "kind", "name", "uid", "controller", "blockOwnerDeletion"];
    let shown: Vec<_> =
        fields.iter().filter_map(|name| Some(format!("{name:?}:{}", owner.get(name)?))).collect();
    format!("{{{}}}", shown.join(","))
}

fn finalizers(kind: &Resource, finalizers: &FieldValue<'_>, errors: &mut Errors) {
    const STANDARD: [&str; 3] = ["foregroundDeletion", "orphan", "kubernetes"];
    let all: Vec<_> = finalizers.items().collect();
    for finalizer in &all {
        let at_list = |breach: &String| FieldError::invalid(finalizers.path.clone(), finalizer.value, breach);
        errors.extend(names::qualified(finalizer.text()).iter().map(at_list));
        let name = finalizer.text();
        if kind.origin == Origin::Builtin && !name.contains('/') && !STANDARD.contains(&name) {
            errors.push(
                finalizer.invalid("name is neither a standard finalizer name nor is it fully qualified"),
            );
        }
    }
    let has = |name: &str| all.iter().any(|finalizer| finalizer.text() == name);
    if has("orphan") && has("foregroundDeletion") {
        errors.push(finalizers.invalid("finalizer orphan and foregroundDeletion cannot be both set"));
    }
}
