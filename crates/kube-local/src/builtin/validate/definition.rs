//! CustomResourceDefinitions.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::{Errors, FieldValue, names};
use crate::schema::{FieldError, Schema};

pub(super) fn definition(definition: &FieldValue<'_>, errors: &mut Errors) {
    let spec = definition.at("spec");
    let (name, group, plural) = (definition.at("metadata.name"), spec.at("group"), spec.at("names.plural"));
    if name.text() != format!("{}.{}", plural.text(), group.text()) {
        errors.push(name.invalid("must be spec.names.plural+\".\"+spec.group"));
    }
    if group.is_empty() {
        errors.push(group.required(""));
    } else {
        let before = errors.len();
        group.name(names::subdomain, errors);
        if errors.len() == before && !group.text().contains('.') {
            errors.push(group.invalid("should be a domain with at least one dot"));
        }
    }
    spec.at("scope").one_of(&["Cluster", "Namespaced"], errors);
    check_names(&spec.at("names"), errors);
    check_conversion(&spec.at("conversion"), errors);
    if spec.at("preserveUnknownFields").value == &json!(true) {
        errors.push(spec.at("preserveUnknownFields").invalid(
            "cannot set to true, set x-kubernetes-preserve-unknown-fields to true in spec.versions[*].schema instead",
        ));
    }
    check_versions(&spec, errors);
}

fn check_names(all: &FieldValue<'_>, errors: &mut Errors) {
    for field in ["plural", "singular"] {
        all.at(field).required_name(names::dns1035, errors);
    }
    for field in ["kind", "listKind"] {
        let kind = all.at(field);
        if kind.is_empty() {
            errors.push(kind.required(""));
        }
        for breach in names::dns1035(&kind.text().to_lowercase()).iter().filter(|_| !kind.is_empty()) {
            errors.push(kind.invalid(&format!("may have mixed case, but should otherwise match: {breach}")));
        }
    }
    if !all.at("kind").is_empty() && all.at("kind").value == all.at("listKind").value {
        errors.push(all.at("listKind").invalid("kind and listKind may not be the same"));
    }
    for name in all.at("shortNames").items().chain(all.at("categories").items()) {
        name.name(names::dns1035, errors);
    }
}

fn check_conversion(conversion: &FieldValue<'_>, errors: &mut Errors) {
    match conversion.at("strategy").text() {
        "None" => {}
        "Webhook" => {
            if !conversion.at("webhook.clientConfig").is_set() {
                let client = conversion.at("webhookClientConfig");
                errors.push(client.required("required when strategy is set to Webhook"));
            }
            if conversion.at("webhook.conversionReviewVersions").is_empty() {
                errors.push(conversion.at("conversionReviewVersions").required(""));
            }
        }
        _ => conversion.at("strategy").one_of(&["None", "Webhook"], errors),
    }
}

fn check_versions(spec: &FieldValue<'_>, errors: &mut Errors) {
    let all = spec.at("versions");
    let versions: Vec<_> = all.items().collect();
    let mut taken = BTreeSet::new();
    for (i, version) in versions.iter().enumerate() {
        let name = version.at("name");
        let before = errors.len();
        name.name(names::dns1035, errors);
        if i == 0 && errors.len() > before {
            // The first version is also checked as `spec.version`, its former field.
            FieldValue { value: name.value, path: "spec.version".to_owned() }.name(names::dns1035, errors);
        }
        taken.insert(name.text());
    }
    if taken.len() != versions.len() {
        errors.push(all.invalid("must contain unique version names"));
    }
    if versions.iter().filter(|version| version.value["storage"] == true).count() != 1 {
        errors.push(all.invalid("must have exactly one version marked as storage version"));
    }
    // Fields that all versions share are checked once, under their former path.
    let shared =
        |field: &str| versions.windows(2).all(|pair| pair[0].at(field).value == pair[1].at(field).value);
    for (field, hoisted, check) in [
        ("schema", "validation", check_schema as fn(&FieldValue<'_>, &mut Errors)),
        ("subresources", "subresources", check_subresources),
        ("additionalPrinterColumns", "additionalPrinterColumns", check_columns),
    ] {
        let is_shared = shared(field);
        for version in versions.iter().take(if is_shared { 1 } else { usize::MAX }) {
            let mut spot = version.at(field);
            if is_shared && spot.is_set() {
                spot.path = format!("spec.{hoisted}");
            }
            check(&spot, errors);
        }
    }
}

fn check_schema(schema: &FieldValue<'_>, errors: &mut Errors) {
    let schema = schema.at("openAPIV3Schema");
    if !schema.is_set() {
        errors.push(schema.required(""));
    } else if let Err(refusals) = Schema::parse(schema.value) {
        errors.extend(refusals.into_iter().map(|mut error| {
            error.field = format!("{}.{}", schema.path, error.field);
            error
        }));
    }
}

fn check_subresources(subresources: &FieldValue<'_>, errors: &mut Errors) {
    let scale = subresources.at("scale");
    if !scale.is_set() {
        return;
    }
    for (field, below) in [("specReplicasPath", ".spec."), ("statusReplicasPath", ".status.")] {
        let path = scale.at(field);
        if path.is_empty() {
            errors.push(path.required(""));
        } else if !path.text().starts_with('.') {
            errors.push(path.invalid("must be a simple json path starting with ."));
        } else if !path.text().starts_with(below) {
            let parent = below.trim_end_matches('.');
            errors.push(path.invalid(&format!("should be a json path under {parent}")));
        }
    }
}

fn check_columns(columns: &FieldValue<'_>, errors: &mut Errors) {
    const TYPES: [&str; 5] = ["boolean", "date", "integer", "number", "string"];
    for column in columns.items() {
        let (name, kind, path) = (column.at("name"), column.at("type"), column.at("jsonPath"));
        let path = FieldValue { value: path.value, path: format!("{}.JSONPath", column.path) };
        if name.is_empty() {
            errors.push(name.required(""));
        }
        let known = format!("must be one of {}", TYPES.join(","));
        if kind.is_empty() {
            errors.push(kind.required(&known));
        } else if !TYPES.contains(&kind.text()) {
            errors.push(kind.invalid(&known));
        }
        if path.is_empty() {
            errors.push(path.required(""));
        } else if !path.text().starts_with('.') {
            let value = Value::from(path.text());
            let detail = "must be a simple json path starting with .";
            errors.push(FieldError::invalid(path.path, &value, detail));
        }
    }
}
