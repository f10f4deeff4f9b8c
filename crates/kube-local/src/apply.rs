//! Server-side apply and field ownership (`managedFields`).
//!
//! An apply request states the fields that its manager wants. Fields that the
//! manager applied before and omits now are removed, unless another manager owns
//! them. A field that another manager owns with a different value is a conflict,
//! or changes its owner if forced. Every other write makes its manager the owner
//! of the fields it changed.

use jiff::Timestamp;
use serde_json::{Map, Value, json};

use super::field_set::{FieldSet, PathElement, children, item_path_element};
use super::kinds::Resource;
use super::schema::{ListKind, Schema};
use super::status_error::StatusError;
use work_queue::clock;

/// A field manager, as a `managedFields` entry identifies it.
#[derive(Clone, Debug, PartialEq)]
pub struct Manager {
    pub name: String,
    pub operation: Operation,
    pub subresource: Option<String>,
}

/// The `operation` of a `managedFields` entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    Apply,
    Update,
}

/// The result of applying `config` to `live`, with `managedFields` updated.
pub fn apply(
    resource: &Resource,
    live: &Value,
    mut config: Value,
    manager: &Manager,
    force: bool,
    now: Timestamp,
) -> Result<Value, StatusError> {
    let schema = Some(&*resource.schema);
    if let Some(metadata) = config["metadata"].as_object_mut() {
        metadata.remove("managedFields");
    }
    check_config(resource, &config)?;
    let mut managed = ManagedFieldsList::of(live);
    let applied = writable_fields(FieldSet::of(&config, schema), resource, manager);
    let before = managed.take(manager).map(|entry| entry.fields).unwrap_or_default();

    let mut merged = merge(live, &config, schema);
    let mut kept = applied.clone();
    for entry in &managed.0 {
        kept.add(&entry.fields);
    }
    before.remove_from(&mut merged, &kept, schema);

    let changed = writable_fields(FieldSet::changed(live, &merged, schema), resource, manager);
    let mut conflicts = Vec::new();
    for entry in &mut managed.0 {
        let contested = entry.fields.intersect(&changed);
        if !contested.is_empty() {
            conflicts.extend(contested.paths().into_iter().map(|path| (entry.describe(), path)));
            entry.fields.subtract(&contested);
        }
    }
    if !force && !conflicts.is_empty() {
        return Err(conflict(conflicts));
    }
    managed.0.push(ManagedFieldsEntry {
        manager: manager.clone(),
        api_version: resource.api_version(),
        time: Some(clock::seconds(now)),
        fields: applied,
    });
    managed.write_to(&mut merged, live, schema);
    Ok(merged)
}

/// Makes `manager` the owner of the fields that an update changed.
pub fn record_update(resource: &Resource, live: &Value, new: &mut Value, manager: &Manager, now: Timestamp) {
    let schema = Some(&*resource.schema);
    let mut managed = match ManagedFieldsList::requested(new) {
        RequestedManagedFields::Absent => ManagedFieldsList::of(live),
        RequestedManagedFields::Reset => ManagedFieldsList(Vec::new()),
        RequestedManagedFields::Entries(managed) => managed,
    };
    let changed = writable_fields(FieldSet::changed(live, new, schema), resource, manager);
    if !changed.is_empty() {
        for entry in &mut managed.0 {
            if entry.manager != *manager {
                entry.fields.subtract(&changed);
            }
        }
        let api_version = resource.api_version();
        let mut own = managed.take(manager).unwrap_or_else(|| ManagedFieldsEntry {
            manager: manager.clone(),
            api_version,
            time: None,
            fields: FieldSet::default(),
        });
        own.fields.add(&changed);
        own.time = Some(clock::seconds(now));
        managed.0.push(own);
    }
    managed.write_to(new, live, schema);
}

/// Whether two states differ in more than the times of their `managedFields`.
pub fn differs_ignoring_times(old: &Value, new: &Value) -> bool {
    fn without_times(value: &Value) -> Value {
        let mut value = value.clone();
        if let Some(entries) = value["metadata"]["managedFields"].as_array_mut() {
            for entry in entries.iter_mut().filter_map(Value::as_object_mut) {
                entry.remove("time");
            }
        }
        value
    }
    old != new && without_times(old) != without_times(new)
}

/// `managedFields`, parsed.
struct ManagedFieldsList(Vec<ManagedFieldsEntry>);

struct ManagedFieldsEntry {
    manager: Manager,
    api_version: String,
    time: Option<String>,
    fields: FieldSet,
}

/// `managedFields` of an object as sent by a client.
enum RequestedManagedFields {
    Absent,
    /// A list with one empty entry: the documented way to reset ownership.
    Reset,
    Entries(ManagedFieldsList),
}

impl ManagedFieldsList {
    fn of(object: &Value) -> ManagedFieldsList {
        match ManagedFieldsList::requested(object) {
            RequestedManagedFields::Entries(managed) => managed,
            RequestedManagedFields::Absent | RequestedManagedFields::Reset => ManagedFieldsList(Vec::new()),
        }
    }

    fn requested(object: &Value) -> RequestedManagedFields {
        let Some(entries) = object["metadata"]["managedFields"].as_array() else {
            return RequestedManagedFields::Absent;
        };
        match entries.as_slice() {
            [] => RequestedManagedFields::Absent,
            [one] if one.as_object().is_some_and(Map::is_empty) => RequestedManagedFields::Reset,
            all => all
                .iter()
                .map(ManagedFieldsEntry::parse)
                .collect::<Option<_>>()
                .map_or(RequestedManagedFields::Absent, |e| {
                    RequestedManagedFields::Entries(ManagedFieldsList(e))
                }),
        }
    }

    fn take(&mut self, manager: &Manager) -> Option<ManagedFieldsEntry> {
        let at = self.0.iter().position(|entry| entry.manager == *manager)?;
        Some(self.0.remove(at))
    }

    /// Drops fields that no longer exist and writes the entries into `object`.
    fn write_to(mut self, object: &mut Value, live: &Value, schema: Option<&Schema>) {
        for entry in &mut self.0 {
            entry.fields.keep_existing(object, schema);
        }
        self.0.retain(|entry| !entry.fields.is_empty());
        // Apply entries first, then by time and manager, as the API server sorts them.
        self.0.sort_by(|a, b| {
            let rank = |e: &ManagedFieldsEntry| {
                (e.manager.operation == Operation::Update, e.time.clone(), e.manager.name.clone())
            };
            rank(a).cmp(&rank(b))
        });
        let entries: Vec<Value> = self.0.iter().map(|entry| entry.to_json(live)).collect();
        let Some(metadata) = object["metadata"].as_object_mut() else { return };
        if entries.is_empty() {
            metadata.remove("managedFields");
        } else {
            metadata.insert("managedFields".to_owned(), Value::Array(entries));
        }
    }
}

impl ManagedFieldsEntry {
    fn parse(value: &Value) -> Option<ManagedFieldsEntry> {
        Some(ManagedFieldsEntry {
            manager: Manager {
                name: value["manager"].as_str().unwrap_or_default().to_owned(),
                operation: match value["operation"].as_str()? {
                    "Apply" => Operation::Apply,
                    _ => Operation::Update,
                },
                subresource: value["subresource"].as_str().map(str::to_owned),
            },
            api_version: value["apiVersion"].as_str()?.to_owned(),
            time: value["time"].as_str().map(str::to_owned),
            fields: FieldSet::from_v1(&value["fieldsV1"]),
        })
    }

    /// The entry as JSON. An apply that changes no field keeps the old time.
    fn to_json(&self, live: &Value) -> Value {
        let fields = self.fields.to_v1();
        let mut entry = json!({
            "manager": self.manager.name,
            "operation": match self.manager.operation { Operation::Apply => "Apply", Operation::Update => "Update" },
            "apiVersion": self.api_version,
            "fieldsType": "FieldsV1",
            "fieldsV1": fields,
        });
        if let Some(subresource) = &self.manager.subresource {
            entry["subresource"] = json!(subresource);
        }
        let unchanged = live["metadata"]["managedFields"].as_array().into_iter().flatten().find(|old| {
            let mut old = (*old).clone();
            old.as_object_mut().map(|map| map.remove("time"));
            old == entry
        });
        match unchanged {
            Some(old) if self.manager.operation == Operation::Apply => entry["time"] = old["time"].clone(),
            _ => entry["time"] = json!(self.time),
        }
        entry
    }

    fn describe(&self) -> String {
        let mut text = format!("{:?}", self.manager.name);
        if let Some(subresource) = &self.manager.subresource {
            text += &format!(" with subresource {subresource:?}");
        }
        if self.manager.operation == Operation::Update {
            text += &format!(" using {}", self.api_version);
        }
        text
    }
}

/// The fields that this endpoint may own: no server-owned metadata, and only its
/// half of the object (`status` or the rest).
fn writable_fields(mut fields: FieldSet, resource: &Resource, manager: &Manager) -> FieldSet {
    if manager.subresource.as_deref() == Some("status") {
        fields.keep_only_child("status");
        return fields;
    }
    if resource.has_status {
        fields.remove_child("status");
    }
    let server_owned = json!({
        "f:apiVersion": {}, "f:kind": {},
        "f:metadata": {
            ".": {}, "f:name": {}, "f:namespace": {}, "f:creationTimestamp": {}, "f:selfLink": {}, "f:uid": {},
            "f:clusterName": {}, "f:generation": {}, "f:resourceVersion": {}, "f:deletionTimestamp": {},
            "f:deletionGracePeriodSeconds": {},
        },
    });
    fields.subtract(&FieldSet::from_v1(&server_owned));
    // `managedFields` itself has no owner.
    if let Some(metadata) = fields.child_mut("metadata") {
        metadata.remove_child("managedFields");
    }
    fields.remove_empty();
    fields
}

/// An applied object must match its schema exactly (no unknown fields, no
/// duplicate items), or its fields cannot be owned.
fn check_config(resource: &Resource, config: &Value) -> Result<(), StatusError> {
    let wrong = match resource.schema.prune(&mut config.clone()).first() {
        Some(unknown) => Some(format!(".{unknown}: field not declared in schema")),
        None => duplicate(config, Some(&resource.schema), ""),
    };
    let Some(wrong) = wrong else { return Ok(()) };
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let metadata = &config["metadata"];
    Err(StatusError::server_failure(format!(
        "failed to create typed patch object ({}/{}; {}, Kind={}): {wrong}",
        text(&metadata["namespace"]),
        text(&metadata["name"]),
        resource.api_version(),
        resource.kind
    )))
}

fn duplicate(value: &Value, schema: Option<&Schema>, path: &str) -> Option<String> {
    let mut seen: Vec<PathElement> = Vec::new();
    for (step, child, below) in children(value, schema)? {
        let here = format!("{path}{step}");
        if seen.contains(&step) {
            return Some(format!("{path}: duplicate entries for key {step}"));
        }
        if let Some(found) = duplicate(child, below, &here) {
            return Some(found);
        }
        seen.push(step);
    }
    None
}

/// `config` merged into `live`: maps by field, keyed lists by item.
fn merge(live: &Value, config: &Value, schema: Option<&Schema>) -> Value {
    match (live, config) {
        (Value::Object(old), Value::Object(new)) if !schema.is_some_and(Schema::is_atomic_map) => {
            let mut merged = old.clone();
            for (name, value) in new {
                let below = schema.and_then(|s| s.field(name));
                match merged.get_mut(name) {
                    _ if value.is_null() => _ = merged.remove(name),
                    Some(current) => *current = merge(current, value, below),
                    None => _ = merged.insert(name.clone(), value.clone()),
                }
            }
            Value::Object(merged)
        }
        (Value::Array(old), Value::Array(new)) => {
            let kind = schema.map_or(ListKind::Atomic, Schema::list_kind);
            if matches!(kind, ListKind::Atomic) {
                return config.clone();
            }
            let below = schema.and_then(Schema::items);
            let addressed = |items: &'_ [Value]| -> Vec<Option<PathElement>> {
                items.iter().map(|item| item_path_element(item, &kind, schema)).collect()
            };
            let (old_elements, new_elements) = (addressed(old), addressed(new));
            let merged_item =
                |index: usize| match old_elements.iter().position(|step| *step == new_elements[index]) {
                    Some(at) => merge(&old[at], &new[index], below),
                    None => new[index].clone(),
                };
            // Items in the applier's order; items of other managers keep their place.
            let (mut merged, mut next) = (Vec::with_capacity(old.len() + new.len()), 0);
            for (item, step) in old.iter().zip(&old_elements) {
                match new_elements.iter().position(|element| element == step) {
                    None => merged.push(item.clone()),
                    Some(at) => {
                        merged.extend((next..=at).map(merged_item));
                        next = next.max(at + 1);
                    }
                }
            }
            merged.extend((next..new.len()).map(merged_item));
            Value::Array(merged)
        }
        _ => config.clone(),
    }
}

fn conflict(conflicts: Vec<(String, String)>) -> StatusError {
    let causes: Vec<(String, String)> =
        conflicts.iter().map(|(manager, path)| (path.clone(), format!("conflict with {manager}"))).collect();
    let message = match conflicts.as_slice() {
        [(manager, path)] => format!("Apply failed with 1 conflict: conflict with {manager}: {path}"),
        many => {
            let mut lines: Vec<String> = Vec::new();
            let mut last = None;
            for (manager, path) in many {
                if last != Some(manager) {
                    lines.push(format!("conflicts with {manager}:"));
                    last = Some(manager);
                }
                lines.push(format!("- {path}"));
            }
            format!("Apply failed with {} conflicts: {}", many.len(), lines.join("\n"))
        }
    };
    StatusError::apply_conflict(message, &causes)
}
