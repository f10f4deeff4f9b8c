//! A manifest written for Flagger works here once its `apiVersion`, and the
//! kind MetricTemplate, are changed.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceColumnDefinition, CustomResourceDefinition, JSONSchemaProps,
};
use kube::api::ApiResource;
use serde_json::{Value, json};
use serin::api::canary::Provider;
use serin::api::{AnalysisTemplateSpec, Canary};
use serin::engine::Plan;
use serin::routing::{ServedKinds, select};

use crate::definitions::{each_field, schema_of};
use crate::support::Part;
use crate::{Server, normal, through_our_types};

pub async fn every_example_is_accepted_and_kept(server: &Server) {
    let mut wrong = Vec::new();
    let mut seen = BTreeMap::new();
    for (path, manifest) in examples() {
        *seen.entry(manifest["kind"].as_str().unwrap_or_default().to_owned()).or_insert(0) += 1;
        match server.try_create(&manifest).await {
            Err(message) => wrong.push(format!("{}: {message}", path.display())),
            Ok(stored) => {
                let (written, read) = (normal(&manifest["spec"]), normal(&stored["spec"]));
                let typed = normal(&through_our_types(&stored)["spec"]);
                if read != written || typed != written {
                    wrong.push(format!(
                        "{}:\nwritten: {written}\n stored: {read}\n  typed: {typed}",
                        path.display()
                    ));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    // Flagger ships no AlertProvider among its examples and tests.
    assert_eq!(seen, BTreeMap::from([("Canary".to_owned(), 43), ("AnalysisTemplate".to_owned(), 9)]));
}

#[test]
fn every_field_of_flagger_is_a_field_here() {
    let ours = serin::api::crds();
    for theirs in definitions() {
        let kind = our_kind(&theirs.spec.names.kind);
        let ours = ours.iter().find(|crd| crd.spec.names.kind == kind).expect("a kind for each of theirs");
        let ours = paths(ours);
        let missing: Vec<String> = paths(&theirs)
            .into_keys()
            .filter(|path| !ours.contains_key(path) && !is_kept_whole(path, &ours))
            .collect();
        assert!(missing.is_empty(), "{kind} has not: {missing:#?}");
    }
}

#[test]
fn every_column_of_flagger_is_a_column_here() {
    let ours = serin::api::crds();
    for theirs in definitions() {
        let kind = our_kind(&theirs.spec.names.kind);
        let ours = ours.iter().find(|crd| crd.spec.names.kind == kind).expect("a kind for each of theirs");
        let columns = ours.spec.versions[0].additional_printer_columns.as_deref().unwrap_or_default();
        // Some of theirs are in the wide view here, and Status shows the state, which says more
        // than the phase.
        for column in theirs.spec.versions[0].additional_printer_columns.iter().flatten() {
            let is_same = |ours: &CustomResourceColumnDefinition| ours.json_path == column.json_path;
            let is_named = |ours: &CustomResourceColumnDefinition| ours.name == column.name;
            let found = columns.iter().any(is_same) && columns.iter().any(is_named);
            assert!(found, "{kind} has no column {column:?}");
        }
    }
}

/// The mesh of an example is the folder it is in, unless it names one.
#[test]
fn every_example_is_understood_by_the_router_of_its_mesh() {
    let kind = |group: &str, version: &str, kind: &str| ApiResource {
        group: group.to_owned(),
        version: version.to_owned(),
        api_version: format!("{group}/{version}"),
        kind: kind.to_owned(),
        plural: kind.to_lowercase() + "s",
    };
    let served: ServedKinds = [
        kind("networking.istio.io", "v1", "VirtualService"),
        kind("networking.istio.io", "v1", "DestinationRule"),
        kind("gateway.networking.k8s.io", "v1", "HTTPRoute"),
        kind("gateway.networking.k8s.io", "v1", "GRPCRoute"),
    ]
    .into_iter()
    .collect();
    let meshes = [
        ("istio", Provider::Istio),
        ("gatewayapi", Provider::GatewayApiV1),
        ("linkerd", Provider::Linkerd),
        ("kubernetes", Provider::Kubernetes),
    ];
    let examples = examples();
    let of_kind = |kind: &'static str| examples.iter().filter(move |(_, manifest)| manifest["kind"] == kind);
    let templates: BTreeMap<String, AnalysisTemplateSpec> = of_kind("AnalysisTemplate")
        .map(|(_, manifest)| {
            let name = manifest["metadata"]["name"].as_str().expect("a name").to_owned();
            (name, serde_json::from_value(manifest["spec"].clone()).expect("a template"))
        })
        .collect();
    let mut understood = BTreeMap::<&str, u32>::new();
    for (path, manifest) in of_kind("Canary") {
        let place = path.strip_prefix(folder()).expect("a file of Flagger's").display().to_string();
        let Some((mesh, provider)) = meshes.into_iter().find(|(mesh, _)| place.contains(mesh)) else {
            continue;
        };
        let mut canary: Canary = serde_json::from_value(manifest.clone()).expect("a Canary");
        let selected = select(canary.spec.provider, Some(provider), &served, None);
        let selected = selected.unwrap_or_else(|why| panic!("{place}: {why}"));
        canary.spec.provider = Some(selected.provider);
        let plan = Plan::new(&canary.spec, |reference| templates.get(&reference.name));
        let plan = plan.unwrap_or_else(|why| panic!("{place}: {why}"));
        selected.router.check(&canary, &plan).unwrap_or_else(|why| panic!("{place}: {why}"));
        *understood.entry(mesh).or_default() += 1;
    }
    assert_eq!(understood.len(), meshes.len(), "{understood:?}");
}

/// Flagger's definitions.
fn definitions() -> Vec<CustomResourceDefinition> {
    let text = read(&folder().join("artifacts/flagger/crd.yaml"));
    documents(&without_long_descriptions(&text))
        .map(|document| serde_json::from_value(document).expect("a CustomResourceDefinition"))
        .collect()
}

/// Their quoted descriptions go on in the next line without being indented,
/// which YAML does not allow.
fn without_long_descriptions(text: &str) -> String {
    let mut lines = text.lines();
    let mut kept = String::new();
    while let Some(line) = lines.next() {
        if line.trim_start().starts_with("description: '") && !line.ends_with('\'') {
            lines.by_ref().take_while(|line| !line.ends_with('\'')).for_each(drop);
        } else {
            kept.push_str(line);
            kept.push('\n');
        }
    }
    kept
}

/// Every manifest of a kind we have that Flagger ships as an example or writes
/// in one of its tests, with the file it is in.
fn examples() -> Vec<(PathBuf, Value)> {
    let mut files = Vec::new();
    collect_files(&folder().join("artifacts/examples"), &mut files);
    collect_files(&folder().join("test"), &mut files);
    files.sort();
    let mut manifests = Vec::new();
    for path in files {
        let text = read(&path);
        let extension = path.extension().and_then(|extension| extension.to_str());
        let texts = match extension {
            Some("yaml") => vec![text],
            Some("sh") => here_documents(&text),
            _ => Vec::new(),
        };
        for mut manifest in texts.iter().flat_map(|text| documents(text)) {
            if manifest["apiVersion"] == "flagger.app/v1beta1" {
                manifest["apiVersion"] = json!("serin.dev/v1alpha1");
                manifest["kind"] = json!(our_kind(manifest["kind"].as_str().unwrap_or_default()));
                // Namespaces are beside the point, and the server's names differ.
                manifest["metadata"]["namespace"] = json!("default");
                manifests.push((path.clone(), manifest));
            }
        }
    }
    manifests
}

fn our_kind(theirs: &str) -> &str {
    if theirs == "MetricTemplate" { "AnalysisTemplate" } else { theirs }
}

/// The text between `<<EOF` and `EOF` in a shell script.
fn here_documents(script: &str) -> Vec<String> {
    let mut documents = Vec::new();
    let mut lines = script.lines();
    while let Some(line) = lines.next() {
        if line.contains("<<EOF") {
            let body: Vec<&str> = lines.by_ref().take_while(|line| line.trim() != "EOF").collect();
            documents.push(body.join("\n"));
        }
    }
    documents
}

fn documents(text: &str) -> impl Iterator<Item = Value> {
    let documents: Vec<Value> =
        serde_saphyr::from_multiple(text).unwrap_or_else(|error| panic!("not YAML: {error}\n{text}"));
    documents.into_iter()
}

/// The path of every field, and whether what is below it is kept as written.
fn paths(crd: &CustomResourceDefinition) -> BTreeMap<String, bool> {
    let mut paths = BTreeMap::new();
    each_field(schema_of(crd), "", &mut |path: &str, field: &JSONSchemaProps| {
        // The root's own fields are every object's.
        if path.starts_with(".spec") || path.starts_with(".status") {
            paths.insert(path.to_owned(), field.x_kubernetes_preserve_unknown_fields == Some(true));
        }
    });
    paths
}

/// Whether a field lies inside an object that we pass on unchecked.
fn is_kept_whole(path: &str, ours: &BTreeMap<String, bool>) -> bool {
    let ends = path.char_indices().filter(|(_, c)| ['.', '[', '{'].contains(c)).map(|(at, _)| at);
    ends.into_iter().any(|end| ours.get(&path[..end]) == Some(&true))
}

fn folder() -> PathBuf {
    let folder = Part::Flagger.folder();
    assert!(folder.exists(), "Flagger is not at {}: run `testbed/setup flagger`", folder.display());
    folder
}

pub fn collect_files(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display())) {
        let path = entry.expect("an entry of a folder").path();
        if path.is_dir() {
            collect_files(&path, files);
        } else {
            files.push(path);
        }
    }
}

pub fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}
