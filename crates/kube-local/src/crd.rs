//! CustomResourceDefinitions: adding and removing served kinds.
//!
//! A definition takes effect when it is stored: its kinds are served before the
//! response is sent. Deleting it deletes its objects first; an object with
//! finalizers keeps the definition, as on a real server.

use std::sync::Arc;

use serde_json::{Value, json};

use super::builtin;
use super::delete::{self, DeleteOptions};
use super::kinds::{Cell, Column, Kinds, Origin, Resource, ScalePaths};
use super::schema::Schema;
use super::server::Server;
use super::store::{Key, Object, Precondition};

const COLLECTION: &str = "customresourcedefinitions.apiextensions.k8s.io";
const CLEANUP_FINALIZER: &str = "customresourcecleanup.apiextensions.k8s.io";

/// Serves the built-in kinds.
pub fn serve_builtin_kinds(server: &Server) {
    server.change_kinds(|_| Kinds::new(builtin::all().into_iter().map(Arc::new).collect()));
}

/// Serves the definitions that a restored store has, and completes what a crash cut off.
pub fn serve_stored_definitions(server: &Server) {
    let definitions = server.store.list(COLLECTION, None).objects;
    let served: Vec<_> = definitions.iter().flat_map(|definition| resources(&definition.value)).collect();
    server.change_kinds(|kinds| {
        Kinds::new(kinds.all().iter().cloned().chain(served.into_iter().map(Arc::new)).collect())
    });
    for definition in definitions {
        match definition.value["metadata"]["deletionTimestamp"].is_string() {
            true => finalize_definition(server, &definition),
            false => establish(server, &definition),
        }
    }
}

/// Updates the served kinds after a write to a definition or to a custom object.
pub fn update_served_kinds(server: &Server, resource: &Resource, stored: &Arc<Object>) {
    if resource.collection() == COLLECTION {
        match server.store.get(COLLECTION, &stored.key) {
            None => stop_serving(server, &stored.value),
            Some(current) if current.value["metadata"]["deletionTimestamp"].is_string() => {
                finalize_definition(server, &current)
            }
            Some(current) => establish(server, &current),
        }
    } else if resource.origin == Origin::Custom
        && let Some(definition) = server.store.get(COLLECTION, &Key::new("", &resource.qualified_name()))
        && definition.value["metadata"]["deletionTimestamp"].is_string()
    {
        finalize_definition(server, &definition);
    }
}

/// Adds the finalizer that keeps a deleted definition until its objects are gone.
pub fn add_cleanup_finalizer(definition: &mut Value) {
    if let Some(metadata) = definition["metadata"].as_object_mut()
        && let Some(finalizers) = metadata.entry("finalizers").or_insert_with(|| json!([])).as_array_mut()
        && !finalizers.iter().any(|held| held == CLEANUP_FINALIZER)
    {
        finalizers.push(json!(CLEANUP_FINALIZER));
    }
}

/// Serves the definition's kinds and sets its status conditions.
fn establish(server: &Server, definition: &Arc<Object>) {
    let already_served =
        definition.value["status"]["conditions"].as_array().is_some_and(|all| !all.is_empty());
    let generation = &definition.value["metadata"]["generation"];
    if already_served && definition.value["status"]["observedGeneration"] == *generation {
        return;
    }
    let mut value = definition.value.clone();
    let spec = value["spec"].clone();
    let now = server.clock.now_rfc3339();
    let condition = |kind: &str, reason: &str, message: &str| {
        json!({
            "type": kind, "status": "True", "reason": reason, "message": message,
            "lastTransitionTime": now, "observedGeneration": generation,
        })
    };
    let storage =
        spec["versions"].as_array().into_iter().flatten().find(|version| version["storage"] == true);
    value["status"] = json!({
        "acceptedNames": spec["names"],
        "conditions": [
            condition("NamesAccepted", "NoConflicts", "no conflicts found"),
            condition("Established", "InitialNamesAccepted", "the initial names have been accepted"),
        ],
        "observedGeneration": generation,
        "storedVersions": storage.map(|version| vec![version["name"].clone()]).unwrap_or_default(),
    });
    let served = resources(&value).into_iter().map(Arc::new);
    server.change_kinds(|kinds| Kinds::new(kinds_except(kinds, &value).chain(served).collect()));
    // On a conflict the other write calls this function too.
    let _ = server.store.put(COLLECTION, &definition.key, Precondition::Version(definition.version), value);
}

/// Deletes the objects of a definition that is being deleted, and the definition once none is left.
fn finalize_definition(server: &Server, definition: &Arc<Object>) {
    let spec = &definition.value["spec"];
    let kinds = server.kinds();
    let served = kinds.all().iter().find(|r| r.group == spec["group"] && r.plural == spec["names"]["plural"]);
    if let Some(resource) = served {
        let collection = resource.collection();
        for object in server.store.list(&collection, None).objects {
            if !object.value["metadata"]["deletionTimestamp"].is_string() {
                // NotFound is as good: the object is gone.
                let _ = delete::delete(server, resource, &object.key, &DeleteOptions::default());
            }
        }
        if !server.store.is_empty(&collection) {
            return;
        }
    }
    let Some(current) = server.store.get(COLLECTION, &definition.key) else { return };
    let mut value = current.value.clone();
    if let Some(finalizers) = value["metadata"]["finalizers"].as_array_mut() {
        finalizers.retain(|finalizer| finalizer != CLEANUP_FINALIZER);
        if finalizers.is_empty()
            && server.store.remove(COLLECTION, &current.key, current.version, value.clone()).is_ok()
        {
            stop_serving(server, &value);
        }
    }
}

fn stop_serving(server: &Server, definition: &Value) {
    server.change_kinds(|kinds| Kinds::new(kinds_except(kinds, definition).collect()));
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let spec = &definition["spec"];
    server.store.close(&format!("{}.{}", text(&spec["names"]["plural"]), text(&spec["group"])));
}

/// The served kinds except those of this definition.
fn kinds_except(kinds: &Kinds, definition: &Value) -> impl Iterator<Item = Arc<Resource>> {
    let spec = &definition["spec"];
    let is_defined_here = |r: &Arc<Resource>| r.group == spec["group"] && r.plural == spec["names"]["plural"];
    kinds.all().iter().filter(move |r| !is_defined_here(r)).cloned()
}

/// The resources of a definition, one per served version.
fn resources(definition: &Value) -> Vec<Resource> {
    let spec = &definition["spec"];
    let names = &spec["names"];
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let texts = |value: &Value| value.as_array().into_iter().flatten().map(text).collect::<Vec<_>>();
    let served =
        spec["versions"].as_array().into_iter().flatten().filter(|version| version["served"] == true);
    served
        .filter_map(|version| {
            let open_api = version["schema"]["openAPIV3Schema"].clone();
            let scale = &version["subresources"]["scale"];
            Some(Resource {
                group: text(&spec["group"]),
                version: text(&version["name"]),
                kind: text(&names["kind"]),
                plural: text(&names["plural"]),
                singular: text(&names["singular"]),
                short_names: texts(&names["shortNames"]),
                categories: texts(&names["categories"]),
                namespaced: spec["scope"] == "Namespaced",
                has_status: version["subresources"].get("status").is_some(),
                scale: scale.is_object().then(|| ScalePaths {
                    spec_replicas: text(&scale["specReplicasPath"]),
                    status_replicas: text(&scale["statusReplicasPath"]),
                    label_selector: scale["labelSelectorPath"].as_str().map(str::to_owned),
                }),
                columns: columns(&version["additionalPrinterColumns"]),
                schema: Arc::new(Schema::parse(&open_api).ok()?),
                open_api: Arc::new(open_api),
                origin: Origin::Custom,
            })
        })
        .collect()
}

fn columns(stated: &Value) -> Vec<Column> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    stated
        .as_array()
        .into_iter()
        .flatten()
        .map(|column| Column {
            name: text(&column["name"]),
            kind: text(&column["type"]),
            format: text(&column["format"]),
            description: text(&column["description"]),
            priority: i32::try_from(column["priority"].as_i64().unwrap_or_default()).unwrap_or_default(),
            cell: Cell::Path(text(&column["jsonPath"])),
        })
        .collect()
}
