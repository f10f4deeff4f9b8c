//! Create and update: from the request to the store.
//!
//! Every write restores server-owned fields, drops unknown fields, fills in
//! defaults, validates, records field ownership, and commits on the condition
//! that no other write came between. An object marked for deletion is removed
//! with its last finalizer.

use std::borrow::Cow;

use serde_json::{Map, Value, json};

use super::apply::{self, Manager, Operation};
use super::kinds::{Origin, Resource};
use super::request::Verb;
use super::schema::FieldError;
use super::server::Server;
use super::status_error::StatusError;
use super::store::{Key, Precondition};
use super::{builtin, crd, events, read};

/// Attempts of a write without a resourceVersion against concurrent writes.
pub const MAX_CONFLICT_RETRIES: usize = 50;

/// Field manager and options of a write.
pub struct Writer {
    pub name: String,
    pub subresource: Option<String>,
    pub dry_run: bool,
    pub field_validation: FieldValidation,
    pub is_patch: bool,
}

impl Writer {
    pub fn manager(&self, operation: Operation) -> Manager {
        Manager { name: self.name.clone(), operation, subresource: self.subresource.clone() }
    }
}

/// Treatment of fields that are not in the schema (`fieldValidation`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FieldValidation {
    Ignore,
    Warn,
    Strict,
}

impl FieldValidation {
    pub fn parse(text: &str, verb: Verb) -> Result<FieldValidation, StatusError> {
        match text {
            "Ignore" => Ok(FieldValidation::Ignore),
            "" | "Warn" => Ok(FieldValidation::Warn),
            "Strict" => Ok(FieldValidation::Strict),
            other => {
                let why = format!(
                    "fieldValidation: Unsupported value: {other:?}: supported values: \"\", \"Ignore\", \"Strict\", \"Warn\""
                );
                Err(StatusError::invalid_options(verb.options(), &why))
            }
        }
    }
}

pub struct WriteResult {
    pub object: Value,
    pub created: bool,
    pub warnings: Vec<String>,
}

pub fn create(
    server: &Server,
    resource: &Resource,
    namespace: Option<&str>,
    mut object: Value,
    writer: &Writer,
    operation: Operation,
) -> Result<WriteResult, StatusError> {
    check_type(resource, &mut object)?;
    let key = assign_name(server, resource, namespace, &mut object)?;
    let metadata = metadata_mut(&mut object)?;
    if metadata
        .remove("resourceVersion")
        .is_some_and(|version| !version.as_str().unwrap_or_default().is_empty())
    {
        return Err(StatusError::server_failure(
            "resourceVersion should not be set on objects to be created",
        ));
    }
    check_namespace(server, resource, &key)?;
    if let Some(held) = server.store.get(&resource.collection(), &key) {
        let is_going = held.value["metadata"]["deletionTimestamp"].is_string();
        let refuse =
            if is_going { StatusError::exists_but_is_being_deleted } else { StatusError::already_exists };
        return Err(refuse(resource, &key.name));
    }
    let managed = metadata.remove("managedFields");
    for server_owned in ["deletionTimestamp", "deletionGracePeriodSeconds", "selfLink", "generation"] {
        metadata.remove(server_owned);
    }
    metadata.insert("uid".into(), json!(server.rng.uid()));
    metadata.insert("creationTimestamp".into(), json!(server.clock.now_rfc3339()));
    if resource.has_generation() {
        metadata.insert("generation".into(), json!(1));
    }
    if resource.has_status
        && let Some(map) = object.as_object_mut()
    {
        map.remove("status");
    }
    let warnings = admit(server, resource, &mut object, None, writer)?;
    match (operation, managed) {
        // An apply that creates an object has computed its ownership already.
        (Operation::Apply, Some(managed)) => object["metadata"]["managedFields"] = managed,
        _ => {
            let manager = writer.manager(Operation::Update);
            apply::record_update(resource, &json!({}), &mut object, &manager, server.clock.now());
        }
    }
    if writer.dry_run {
        return Ok(WriteResult { object, created: true, warnings });
    }
    events::to_stored(resource, &mut object);
    let stored = server
        .store
        .put(&resource.collection(), &key, Precondition::Absent, object)
        .map_err(|_| StatusError::already_exists(resource, &key.name))?;
    crd::update_served_kinds(server, resource, &stored);
    Ok(WriteResult { object: stored.value.clone(), created: true, warnings })
}

pub fn update(
    server: &Server,
    resource: &Resource,
    key: &Key,
    mut object: Value,
    writer: &Writer,
) -> Result<WriteResult, StatusError> {
    check_type(resource, &mut object)?;
    metadata_mut(&mut object)?;
    if resource.origin == Origin::Custom && requested_version(&object).is_none() {
        let error =
            FieldError::invalid("metadata.resourceVersion", &json!(0), "must be specified for an update");
        return Err(StatusError::invalid_kind(&resource.plural, &resource.group, &key.name, &[error]));
    }
    modify(server, resource, key, writer, Operation::Update, |_| Ok(object.clone()))
}

/// Reads an object, computes its successor with `change` and commits it. Retries
/// on a concurrent write, unless the successor names a resourceVersion.
pub fn modify(
    server: &Server,
    resource: &Resource,
    key: &Key,
    writer: &Writer,
    operation: Operation,
    change: impl Fn(&Value) -> Result<Value, StatusError>,
) -> Result<WriteResult, StatusError> {
    for _ in 0..MAX_CONFLICT_RETRIES {
        let collection = resource.collection();
        let live =
            server.store.get(&collection, key).ok_or_else(|| StatusError::not_found(resource, &key.name))?;
        let old = if events::has_new_event_shape(resource) {
            Cow::Owned(read::in_version(&live.value, resource))
        } else {
            Cow::Borrowed(&live.value)
        };
        let mut object = change(&old)?;
        if let Some(version) = requested_version(&object)
            && version != live.version.to_string()
        {
            return Err(StatusError::modified(resource, &key.name));
        }
        let warnings = prepare_update(server, resource, key, &old, &mut object, writer, operation)?;
        if writer.dry_run || !apply::differs_ignoring_times(&old, &object) {
            let object = if writer.dry_run { object } else { live.value.clone() };
            return Ok(WriteResult { object, created: false, warnings });
        }
        events::to_stored(resource, &mut object);
        let committed = if can_be_removed(resource, &object) {
            server.store.remove(&collection, key, live.version, object)
        } else {
            server.store.put(&collection, key, Precondition::Version(live.version), object)
        };
        if let Ok(stored) = committed {
            crd::update_served_kinds(server, resource, &stored);
            return Ok(WriteResult { object: stored.value.clone(), created: false, warnings });
        }
    }
    Err(StatusError::modified(resource, &key.name))
}

/// Restores the fields that an update may not change, and admits the rest.
fn prepare_update(
    server: &Server,
    resource: &Resource,
    key: &Key,
    old: &Value,
    object: &mut Value,
    writer: &Writer,
    operation: Operation,
) -> Result<Vec<String>, StatusError> {
    check_body_namespace(object, &key.namespace)?;
    let metadata = metadata_mut(object)?;
    if let Some(stated) = metadata.get("name").and_then(Value::as_str).filter(|name| **name != *key.name) {
        return Err(StatusError::bad_request(format!(
            "the name of the object ({stated}) does not match the name on the URL ({})",
            key.name
        )));
    }
    if let Some(uid) = metadata.get("uid").and_then(Value::as_str).filter(|uid| !uid.is_empty())
        && Some(uid) != old["metadata"]["uid"].as_str()
    {
        let held = old["metadata"]["uid"].as_str().unwrap_or_default();
        let why = format!("Precondition failed: UID in precondition: {uid}, UID in object meta: {held}");
        return Err(StatusError::conflict(resource, &key.name, &why));
    }
    for server_owned in [
        "name",
        "namespace",
        "uid",
        "creationTimestamp",
        "deletionTimestamp",
        "deletionGracePeriodSeconds",
        "generation",
        "generateName",
        "resourceVersion",
        "selfLink",
    ] {
        match old["metadata"].get(server_owned) {
            Some(value) => _ = metadata.insert(server_owned.into(), value.clone()),
            None => _ = metadata.remove(server_owned),
        }
    }
    refuse_new_finalizers(resource, old, object)?;
    match writer.subresource.as_deref() {
        Some("status") => {
            let written = std::mem::replace(object, old.clone());
            set_or_remove(object, "status", written.get("status").cloned());
            // Controllers of built-in kinds may annotate with a status write.
            let metadata_fields: &[&str] = match resource.origin {
                Origin::Builtin => &["managedFields", "annotations"],
                Origin::Custom => &["managedFields"],
            };
            for field in metadata_fields {
                set_or_remove(&mut object["metadata"], field, written["metadata"].get(*field).cloned());
            }
        }
        _ if resource.has_status => set_or_remove(object, "status", old.get("status").cloned()),
        _ => {}
    }
    let warnings = admit(server, resource, object, Some(old), writer)?;
    if resource.has_generation()
        && writer.subresource.as_deref() != Some("status")
        && spec_changed(resource, old, object)
    {
        let generation = old["metadata"]["generation"].as_i64().unwrap_or_default();
        object["metadata"]["generation"] = json!(generation + 1);
    }
    if operation == Operation::Update {
        let manager = writer.manager(Operation::Update);
        apply::record_update(resource, old, object, &manager, server.clock.now());
    }
    Ok(warnings)
}

/// Drops unknown fields, fills in defaults, validates.
fn admit(
    server: &Server,
    resource: &Resource,
    object: &mut Value,
    old: Option<&Value>,
    writer: &Writer,
) -> Result<Vec<String>, StatusError> {
    if resource.origin == Origin::Builtin {
        drop_nulls(object);
    }
    for emptied in ["labels", "annotations", "finalizers", "ownerReferences"] {
        let metadata = metadata_mut(object)?;
        let is_empty = |value: &Value| {
            value.as_array().is_some_and(Vec::is_empty) || value.as_object().is_some_and(Map::is_empty)
        };
        if metadata.get(emptied).is_some_and(is_empty) {
            metadata.remove(emptied);
        }
    }
    let unknown = resource.schema.prune(object);
    let mut warnings = Vec::new();
    if !unknown.is_empty() {
        let fields: Vec<String> = unknown.iter().map(|path| format!("unknown field {path:?}")).collect();
        match writer.field_validation {
            FieldValidation::Ignore => {}
            FieldValidation::Warn => warnings = fields,
            FieldValidation::Strict => {
                let wrong = format!("strict decoding error: {}", fields.join(", "));
                if writer.is_patch {
                    let error = FieldError::invalid_without_value("patch", &wrong);
                    return Err(StatusError::invalid_kind("", "", "", &[error]));
                }
                return Err(StatusError::bad_request(format!(
                    "{kind} in version {version:?} cannot be handled as a {kind}: {wrong}",
                    kind = resource.kind,
                    version = resource.version
                )));
            }
        }
    }
    let name = object["metadata"]["name"].as_str().unwrap_or_default().to_owned();
    let errors = match resource.origin {
        Origin::Custom => {
            resource.schema.apply_defaults(object);
            let mut errors = builtin::validate(resource, object, old);
            errors.extend(resource.schema.validate(object, old));
            errors
        }
        Origin::Builtin => {
            if let Some(mismatch) = builtin::decode_error(resource, object) {
                return Err(StatusError::bad_request(format!(
                    "{kind} in version {version:?} cannot be handled as a {kind}: {mismatch}",
                    kind = resource.kind,
                    version = resource.version
                )));
            }
            builtin::default(resource, object);
            if resource.kind == "Service" {
                assign_cluster_ip(server, object, old);
            }
            builtin::validate(resource, object, old)
        }
    };
    if errors.is_empty() { Ok(warnings) } else { Err(StatusError::invalid(resource, &name, &errors)) }
}

/// Marked for deletion, without finalizers or grace period.
pub fn can_be_removed(resource: &Resource, object: &Value) -> bool {
    let metadata = &object["metadata"];
    let none_left = |list: &Value| list.as_array().is_none_or(Vec::is_empty);
    metadata["deletionTimestamp"].is_string()
        && none_left(&metadata["finalizers"])
        && metadata["deletionGracePeriodSeconds"].as_u64().unwrap_or_default() == 0
        && (resource.kind != "Namespace" || none_left(&object["spec"]["finalizers"]))
}

/// `apiVersion` and `kind` must match the resource or be absent.
fn check_type(resource: &Resource, object: &mut Value) -> Result<(), StatusError> {
    let Some(map) = object.as_object_mut() else {
        return Err(StatusError::bad_request("the body of the request is not an object"));
    };
    let stated = |map: &Map<String, Value>, field: &str| {
        map.get(field).and_then(Value::as_str).unwrap_or_default().to_owned()
    };
    let (version, kind) = (stated(map, "apiVersion"), stated(map, "kind"));
    let is_other_version = !version.is_empty() && version != resource.api_version();
    let is_other_kind = !kind.is_empty() && kind != resource.kind;
    if is_other_version && resource.origin == Origin::Custom {
        return Err(StatusError::bad_request(format!(
            "the API version in the data ({version}) does not match the expected API version ({})",
            resource.api_version()
        )));
    }
    if is_other_kind || is_other_version {
        return Err(StatusError::bad_request(format!(
            "{kind} in version {:?} cannot be handled as a {}: this path takes {} of {}",
            version.rsplit('/').next().unwrap_or_default(),
            resource.kind,
            resource.kind,
            resource.api_version()
        )));
    }
    map.insert("apiVersion".into(), json!(resource.api_version()));
    map.insert("kind".into(), json!(resource.kind));
    Ok(())
}

/// The key of a new object: the namespace of the path, the name stated or generated.
fn assign_name(
    server: &Server,
    resource: &Resource,
    namespace: Option<&str>,
    object: &mut Value,
) -> Result<Key, StatusError> {
    let namespace = namespace.unwrap_or_default();
    check_body_namespace(object, namespace)?;
    let metadata = metadata_mut(object)?;
    if resource.namespaced {
        metadata.insert("namespace".into(), json!(namespace));
    } else {
        metadata.remove("namespace");
    }
    let text = |field: &str| metadata.get(field).and_then(Value::as_str).unwrap_or_default();
    let name = match (text("name"), text("generateName")) {
        ("", "") => {
            let error = FieldError::required("metadata.name", "name or generateName is required");
            return Err(StatusError::invalid(resource, "", &[error]));
        }
        ("", prefix) => format!("{prefix}{}", server.rng.suffix()),
        (name, _) => name.to_owned(),
    };
    metadata.insert("name".into(), json!(name));
    Ok(Key::new(namespace, &name))
}

fn check_body_namespace(object: &Value, namespace: &str) -> Result<(), StatusError> {
    match object["metadata"]["namespace"].as_str() {
        Some(stated) if !stated.is_empty() && stated != namespace => Err(StatusError::bad_request(
            "the namespace of the provided object does not match the namespace sent on the request",
        )),
        _ => Ok(()),
    }
}

fn check_namespace(server: &Server, resource: &Resource, key: &Key) -> Result<(), StatusError> {
    if !resource.namespaced {
        return Ok(());
    }
    let kinds = server.kinds();
    let Some(namespaces) = kinds.find("", "v1", "namespaces") else { return Ok(()) };
    let namespace = server
        .store
        .get(&namespaces.collection(), &Key::new("", &key.namespace))
        .ok_or_else(|| StatusError::not_found(namespaces, &key.namespace))?;
    if namespace.value["metadata"]["deletionTimestamp"].is_string() {
        return Err(StatusError::namespace_terminating(resource, &key.name, &key.namespace));
    }
    Ok(())
}

fn refuse_new_finalizers(resource: &Resource, old: &Value, object: &Value) -> Result<(), StatusError> {
    if !old["metadata"]["deletionTimestamp"].is_string() {
        return Ok(());
    }
    let held = |object: &Value| object["metadata"]["finalizers"].as_array().cloned().unwrap_or_default();
    let before = held(old);
    let added: Vec<String> =
        held(object).iter().filter(|finalizer| !before.contains(finalizer)).map(Value::to_string).collect();
    if added.is_empty() {
        return Ok(());
    }
    let detail = format!(
        "no new finalizers can be added if the object is being deleted, found new finalizers []string{{{}}}",
        added.join(", ")
    );
    let error = FieldError::forbidden("metadata.finalizers", &detail);
    Err(StatusError::invalid(resource, object["metadata"]["name"].as_str().unwrap_or_default(), &[error]))
}

/// Whether a change increments the generation.
fn spec_changed(resource: &Resource, old: &Value, new: &Value) -> bool {
    let desired = |object: &Value| {
        let mut map = object.as_object().cloned().unwrap_or_default();
        map.remove("metadata");
        if resource.has_status {
            map.remove("status");
        }
        for type_field in ["apiVersion", "kind"] {
            map.remove(type_field);
        }
        map
    };
    // A Deployment's annotations are copied to its ReplicaSets.
    let annotations = |object: &Value| object["metadata"]["annotations"].clone();
    desired(old) != desired(new) || (resource.kind == "Deployment" && annotations(old) != annotations(new))
}

/// Built-in kinds treat null as absent.
fn drop_nulls(value: &mut Value) {
    match value {
        Value::Object(map) => {
            map.retain(|_, child| !child.is_null());
            map.values_mut().for_each(drop_nulls);
        }
        Value::Array(items) => items.iter_mut().for_each(drop_nulls),
        _ => {}
    }
}

fn assign_cluster_ip(server: &Server, service: &mut Value, old: Option<&Value>) {
    let spec = &mut service["spec"];
    if spec["type"] == "ExternalName" || spec["clusterIP"].as_str().is_some_and(|address| !address.is_empty())
    {
        return;
    }
    let address = match old.and_then(|old| old["spec"]["clusterIP"].as_str()) {
        Some(held) => held.to_owned(),
        None => server.cluster_ip(),
    };
    spec["clusterIP"] = json!(address);
    spec["clusterIPs"] = json!([address]);
}

fn requested_version(object: &Value) -> Option<&str> {
    object["metadata"]["resourceVersion"].as_str().filter(|version| !version.is_empty())
}

fn set_or_remove(object: &mut Value, field: &str, value: Option<Value>) {
    let Some(map) = object.as_object_mut() else { return };
    match value {
        Some(value) => _ = map.insert(field.to_owned(), value),
        None => _ = map.remove(field),
    }
}

fn metadata_mut(object: &mut Value) -> Result<&mut Map<String, Value>, StatusError> {
    let map = object
        .as_object_mut()
        .ok_or_else(|| StatusError::bad_request("the body of the request is not an object"))?;
    map.entry("metadata")
        .or_insert_with(|| json!({}))
        .as_object_mut()
        .ok_or_else(|| StatusError::bad_request("metadata is not an object"))
}

/// Parses JSON or YAML.
pub fn parse_json(body: &[u8]) -> Result<Value, StatusError> {
    serde_json::from_slice(body).or_else(|error| {
        let text =
            std::str::from_utf8(body).map_err(|_| StatusError::bad_request("the body is not UTF-8"))?;
        match serde_saphyr::from_str::<Value>(text) {
            Ok(value) if value.is_object() => Ok(value),
            _ => Err(StatusError::bad_request(format!("the object provided is unrecognized: {error}"))),
        }
    })
}
