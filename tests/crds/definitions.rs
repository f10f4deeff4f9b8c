//! The definitions themselves.

use std::collections::BTreeMap;
use std::path::Path;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, JSONSchemaProps, JSONSchemaPropsOrArray, JSONSchemaPropsOrBool,
};

#[test]
fn the_files_are_generated_from_the_types() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("crds");
    let kept: BTreeMap<String, String> = std::fs::read_dir(&folder)
        .expect("the folder crds/")
        .map(|entry| entry.expect("an entry of crds/"))
        // The list of them for kustomize is checked in tests/chart.
        .filter(|entry| entry.path().extension().is_some_and(|extension| extension == "yaml"))
        .map(|entry| {
            let text = std::fs::read_to_string(entry.path()).expect("a file in crds/");
            (entry.file_name().to_string_lossy().into_owned(), text)
        })
        .collect();
    let made: BTreeMap<String, String> =
        serin::cli::crds::files().expect("definitions").into_iter().collect();
    let differing: Vec<&String> =
        kept.keys().chain(made.keys()).filter(|name| kept.get(*name) != made.get(*name)).collect();
    assert!(
        differing.is_empty(),
        "crds/ is not what src/api makes ({differing:?} differ): run `cargo run -- crds --dir crds`"
    );
}

#[test]
fn every_field_has_a_description() {
    let mut silent = Vec::new();
    for crd in serin::api::crds() {
        each_field(schema_of(&crd), &crd.spec.names.kind, &mut |path, field| {
            // The root's own fields are every object's.
            let depth = path.matches('.').count();
            if depth > 1 && field.description.as_deref().unwrap_or_default().len() < 5 {
                silent.push(path.to_owned());
            }
        });
    }
    assert!(silent.is_empty(), "these fields say nothing in `kubectl explain`: {silent:#?}");
}

#[test]
fn no_field_has_a_server_side_default() {
    let mut filled = Vec::new();
    for crd in serin::api::crds() {
        each_field(schema_of(&crd), &crd.spec.names.kind, &mut |path, field| {
            if field.default.is_some() {
                filled.push(path.to_owned());
            }
        });
    }
    assert!(filled.is_empty(), "these fields have a default in the schema: {filled:#?}");
}

/// `kubectl apply` keeps the whole object in an annotation, which must not
/// exceed this.
#[test]
fn the_definitions_fit_into_last_applied_annotations() {
    for (name, text) in serin::cli::crds::files().expect("definitions") {
        assert!(text.len() < 262_144, "{name} has {} bytes", text.len());
    }
}

/// The schema of the one version of a kind.
pub fn schema_of(crd: &CustomResourceDefinition) -> &JSONSchemaProps {
    let validation = crd.spec.versions[0].schema.as_ref();
    validation.and_then(|validation| validation.open_api_v3_schema.as_ref()).expect("a schema")
}

/// Visits every property below `schema` with its path.
pub fn each_field(schema: &JSONSchemaProps, path: &str, visit: &mut impl FnMut(&str, &JSONSchemaProps)) {
    for (name, field) in schema.properties.iter().flatten() {
        let path = format!("{path}.{name}");
        visit(&path, field);
        each_field(field, &path, visit);
    }
    if let Some(JSONSchemaPropsOrArray::Schema(items)) = &schema.items {
        each_field(items, &format!("{path}[]"), visit);
    }
    if let Some(JSONSchemaPropsOrBool::Schema(values)) = &schema.additional_properties {
        each_field(values, &format!("{path}{{}}"), visit);
    }
}
