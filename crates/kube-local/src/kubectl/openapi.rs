//! OpenAPI v3: schemas for `kubectl explain`, and operations, from which kubectl
//! learns that the server validates fields and which patch types a kind supports.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

use super::discovery::{self, subresources};
use crate::builtin;
use crate::kinds::{Origin, Resource};
use crate::schema::kubernetes;

const OBJECT_META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta";
const LIST_META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.ListMeta";
const SCALE: &str = "io.k8s.api.autoscaling.v1.Scale";

/// `/openapi/v3`: the documents, each with a hash of its content.
pub(super) fn index(all: &[Arc<Resource>]) -> Value {
    let mut hashes: BTreeMap<String, Sha256> = BTreeMap::new();
    for resource in all {
        let path = if resource.group.is_empty() { "api" } else { "apis" };
        let hash = hashes.entry(format!("{path}/{}", resource.api_version())).or_default();
        hash.update(env!("CARGO_PKG_VERSION"));
        let flags = (resource.namespaced, resource.has_status, resource.scale.is_some());
        hash.update(format!("{} {} {flags:?}", resource.kind, resource.plural));
        hash.update(resource.open_api.to_string());
    }
    let paths: Map<String, Value> = hashes
        .into_iter()
        .map(|(path, hash)| {
            let hash: String = hash.finalize().iter().map(|byte| format!("{byte:02X}")).collect();
            let url = format!("/openapi/v3/{path}?hash={hash}");
            (path, json!({"serverRelativeURL": url}))
        })
        .collect();
    json!({"paths": paths})
}

/// `/openapi/v3/apis/<group>/<version>`
pub(super) fn document(all: &[Arc<Resource>], group: &str, version: &str) -> Option<Value> {
    let mut components = Components::default();
    let mut paths = Map::new();
    for resource in all.iter().filter(|r| r.group == group && r.version == version) {
        let name = components.add(resource);
        add_paths(&mut paths, resource, &name);
        if resource.scale.is_some() {
            components.add_builtin(SCALE);
            components.mark(SCALE, "autoscaling", "v1", "Scale");
        }
    }
    if paths.is_empty() {
        return None;
    }
    Some(json!({
        "openapi": "3.0.0",
        "info": {"title": "Kubernetes", "version": "1.36"},
        "paths": paths,
        "components": {"schemas": components.schemas},
    }))
}

#[derive(Default)]
struct Components {
    schemas: Map<String, Value>,
}

impl Components {
    /// Adds a kind, its list, and all referenced components; returns the kind's name.
    fn add(&mut self, resource: &Resource) -> String {
        let Resource { group, version, kind, .. } = resource;
        let name = match resource.origin {
            Origin::Builtin => {
                let name = builtin::component(group, version, kind);
                self.add_builtin(&name);
                name
            }
            Origin::Custom => {
                let reversed: Vec<_> = group.split('.').rev().collect();
                let name = format!("{}.{version}.{kind}", reversed.join("."));
                self.schemas.insert(name.clone(), custom(&resource.open_api));
                self.add_builtin(OBJECT_META);
                name
            }
        };
        self.mark(&name, group, version, kind);
        self.add_builtin(LIST_META);
        let list = json!({
            "description": format!("{kind}List is a list of {kind}"),
            "type": "object",
            "required": ["items"],
            "properties": {
                "apiVersion": type_meta("apiVersion"),
                "kind": type_meta("kind"),
                "metadata": {"description": "Standard list metadata.", "allOf": [reference(LIST_META)]},
                "items": {"description": format!("The {}.", resource.plural), "type": "array", "items": reference(&name)},
            },
        });
        let list_name = format!("{name}List");
        self.schemas.insert(list_name.clone(), list);
        self.mark(&list_name, group, version, &format!("{kind}List"));
        name
    }

    fn add_builtin(&mut self, name: &str) {
        let mut wanted = vec![name.to_owned()];
        while let Some(name) = wanted.pop() {
            let Some(schema) = kubernetes::components().get(&name) else { continue };
            if self.schemas.insert(name, schema.clone()).is_none() {
                let mut found = BTreeSet::new();
                references(schema, &mut found);
                wanted.extend(found.into_iter().map(str::to_owned));
            }
        }
    }

    fn mark(&mut self, name: &str, group: &str, version: &str, kind: &str) {
        if let Some(schema) = self.schemas.get_mut(name) {
            schema["x-kubernetes-group-version-kind"] =
                json!([{"group": group, "version": version, "kind": kind}]);
        }
    }
}

fn references<'a>(schema: &'a Value, found: &mut BTreeSet<&'a str>) {
    match schema {
        Value::Object(fields) => {
            if let Some(name) = fields.get("$ref").and_then(|_| kubernetes::referenced(schema)) {
                found.insert(name);
            }
            fields.values().for_each(|value| references(value, found));
        }
        Value::Array(items) => items.iter().for_each(|item| references(item, found)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// A custom resource's schema, completed with the fields of every object.
fn custom(open_api: &Value) -> Value {
    let mut schema = open_api.clone();
    let fields = &mut schema["properties"];
    fields["apiVersion"] = type_meta("apiVersion");
    fields["kind"] = type_meta("kind");
    fields["metadata"] = json!({
        "description": "Standard object's metadata: its name, labels, annotations, owners and history.",
        "allOf": [reference(OBJECT_META)],
    });
    schema
}

fn type_meta(field: &str) -> Value {
    let description = match field {
        "apiVersion" => "The group and version of the schema that this object follows.",
        _ => "The kind of resource that this object is.",
    };
    json!({"type": "string", "description": description})
}

fn reference(component: &str) -> Value {
    json!({"$ref": format!("#/components/schemas/{component}")})
}

fn add_paths(paths: &mut Map<String, Value>, resource: &Resource, component: &str) {
    let root = if resource.group.is_empty() { "/api" } else { "/apis" };
    let base = format!("{root}/{}", resource.api_version());
    let everywhere = format!("{base}/{}", resource.plural);
    let collection = match resource.namespaced {
        true => format!("{base}/namespaces/{{namespace}}/{}", resource.plural),
        false => everywhere.clone(),
    };
    let endpoint = Endpoint { resource, component };
    let verbs = discovery::verbs(resource);
    let mut on_collection = path_parameters(resource, false);
    on_collection.insert("post".to_owned(), endpoint.operation("post", "create"));
    if verbs.contains(&"list") {
        on_collection.insert("get".to_owned(), endpoint.operation("list", "list"));
        let mut on_all = Map::new();
        on_all.insert("get".to_owned(), endpoint.operation("list", "list"));
        paths.insert(everywhere, Value::Object(on_all));
    }
    if verbs.contains(&"deletecollection") {
        on_collection
            .insert("delete".to_owned(), endpoint.operation("deletecollection", "delete collection of"));
    }
    paths.insert(collection.clone(), Value::Object(on_collection));
    if !verbs.contains(&"get") {
        return;
    }
    let mut on_one = path_parameters(resource, true);
    for (method, action, does) in [
        ("get", "get", "read the specified"),
        ("put", "put", "replace the specified"),
        ("patch", "patch", "partially update the specified"),
        ("delete", "delete", "delete a"),
    ] {
        on_one.insert(method.to_owned(), endpoint.operation(action, does));
    }
    paths.insert(format!("{collection}/{{name}}"), Value::Object(on_one));
    for sub in subresources(resource).iter().filter(|sub| sub.verbs.contains(&"patch")) {
        let component = if sub.name == "scale" { SCALE } else { component };
        let endpoint = Endpoint { resource, component };
        let mut on_sub = path_parameters(resource, true);
        for (method, does) in [("get", "read"), ("put", "replace"), ("patch", "partially update")] {
            let mut operation = endpoint.operation(method, &format!("{does} {} of the specified", sub.name));
            operation["x-kubernetes-group-version-kind"] =
                json!({"group": sub.group, "version": sub.version, "kind": sub.kind});
            on_sub.insert(method.to_owned(), operation);
        }
        paths.insert(format!("{collection}/{{name}}/{}", sub.name), Value::Object(on_sub));
    }
}

fn path_parameters(resource: &Resource, named: bool) -> Map<String, Value> {
    let mut parameters = Vec::new();
    let mut add = |name: &str| {
        parameters.push(json!({"name": name, "in": "path", "required": true, "schema": {"type": "string"}}));
    };
    if named {
        add("name");
    }
    if resource.namespaced {
        add("namespace");
    }
    let mut path = Map::new();
    path.insert("parameters".to_owned(), parameters.into());
    path
}

struct Endpoint<'a> {
    resource: &'a Resource,
    component: &'a str,
}

impl Endpoint<'_> {
    fn operation(&self, action: &str, does: &str) -> Value {
        let Resource { group, version, kind, .. } = self.resource;
        let parameters = match action {
            "get" => &[][..],
            "list" => &[
                "allowWatchBookmarks:boolean",
                "continue:string",
                "fieldSelector:string",
                "labelSelector:string",
                "limit:integer",
                "resourceVersion:string",
                "resourceVersionMatch:string",
                "sendInitialEvents:boolean",
                "timeoutSeconds:integer",
                "watch:boolean",
            ],
            "delete" => &[
                "dryRun:string",
                "gracePeriodSeconds:integer",
                "orphanDependents:boolean",
                "propagationPolicy:string",
            ],
            "deletecollection" => &[
                "dryRun:string",
                "fieldSelector:string",
                "gracePeriodSeconds:integer",
                "labelSelector:string",
                "propagationPolicy:string",
            ],
            "patch" => &["dryRun:string", "fieldManager:string", "fieldValidation:string", "force:boolean"],
            _ => &["dryRun:string", "fieldManager:string", "fieldValidation:string"],
        };
        let parameters: Vec<_> = parameters
            .iter()
            .filter_map(|parameter| parameter.split_once(':'))
            .map(|(name, kind)| json!({"name": name, "in": "query", "schema": {"type": kind}}))
            .collect();
        let answer = match action {
            "list" => reference(&format!("{}List", self.component)),
            _ => reference(self.component),
        };
        let mut operation = json!({
            "description": format!("{does} {kind}"),
            "operationId": self.operation_id(action),
            "parameters": parameters,
            "responses": {"200": {"description": "OK", "content": {"application/json": {"schema": answer}}}},
            "x-kubernetes-action": action,
            "x-kubernetes-group-version-kind": {"group": group, "version": version, "kind": kind},
        });
        let media: &[&str] = match (action, self.resource.origin) {
            ("post" | "put", _) => &["application/json", "application/yaml"],
            ("patch", Origin::Builtin) => &[
                "application/apply-patch+yaml",
                "application/json-patch+json",
                "application/merge-patch+json",
                "application/strategic-merge-patch+json",
            ],
            ("patch", Origin::Custom) => &[
                "application/apply-patch+yaml",
                "application/json-patch+json",
                "application/merge-patch+json",
            ],
            _ => &[],
        };
        if !media.is_empty() {
            let body = if action == "patch" { json!({"type": "object"}) } else { reference(self.component) };
            let content: Map<String, Value> =
                media.iter().map(|media| ((*media).to_owned(), json!({"schema": body}))).collect();
            operation["requestBody"] = json!({"required": true, "content": content});
        }
        operation
    }

    fn operation_id(&self, action: &str) -> String {
        let Resource { group, version, kind, .. } = self.resource;
        let words: String = group.split(['.', '-']).chain([version.as_str()]).map(capitalized).collect();
        let last = self.component.rsplit('.').next().unwrap_or_default();
        let suffix = if last == kind { "" } else { last };
        format!("{action}{words}{kind}{suffix}")
    }
}

fn capitalized(word: &str) -> String {
    let mut letters = word.chars();
    letters.next().map(|first| first.to_uppercase().chain(letters).collect()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn builtins() -> Vec<Arc<Resource>> {
        builtin::all().into_iter().map(Arc::new).collect()
    }

    #[test]
    fn every_reference_names_an_existing_component() {
        let all = builtins();
        for path in index(&all)["paths"].as_object().into_iter().flat_map(Map::keys) {
            let (group, version) = match path.split('/').collect::<Vec<_>>()[..] {
                ["api", version] => ("", version.to_owned()),
                ["apis", group, version] => (group, version.to_owned()),
                _ => panic!("an odd path: {path}"),
            };
            let document = document(&all, group, &version).expect("the index names only what is there");
            let mut found = BTreeSet::new();
            references(&document, &mut found);
            for name in found {
                assert!(document["components"]["schemas"].get(name).is_some(), "{path} refers to {name}");
            }
        }
    }

    #[test]
    fn a_patch_operation_declares_field_validation() {
        let document = document(&builtins(), "apps", "v1").expect("apps are served");
        let patch = &document["paths"]["/apis/apps/v1/namespaces/{namespace}/deployments/{name}"]["patch"];
        let parameters = patch["parameters"].as_array().expect("parameters");
        assert!(parameters.iter().any(|p| p["name"] == "fieldValidation" && p["in"] == "query"));
        assert!(patch["requestBody"]["content"].get("application/strategic-merge-patch+json").is_some());
    }

    #[test]
    fn a_hash_changes_with_its_document_only() {
        let all = builtins();
        let mut changed = all.clone();
        let mut pod = (*changed[2]).clone();
        pod.has_status = false;
        changed[2] = Arc::new(pod);
        let (before, after) = (index(&all), index(&changed));
        assert_ne!(before["paths"]["api/v1"], after["paths"]["api/v1"]);
        assert_eq!(before["paths"]["apis/apps/v1"], after["paths"]["apis/apps/v1"]);
    }
}
