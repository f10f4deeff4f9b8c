//! The four kinds of patch: JSON, merge, strategic merge and apply.

use http::header;
use serde_json::{Map, Value, json};

use super::apply::{self, Operation};
use super::field_set::item_path_element;
use super::kinds::{Origin, Resource};
use super::schema::{ListKind, Schema};
use super::server::{Call, Server};
use super::status_error::StatusError;
use super::store::Key;
use super::write::{self, WriteResult, Writer, parse_json};

/// A patch request, by content type.
pub enum Patch {
    Json(json_patch::Patch),
    Merge(Value),
    /// A merge patch that merges keyed lists by item; for built-in kinds only.
    Strategic(Value),
    Apply {
        config: Value,
        force: bool,
    },
}

impl Patch {
    pub fn parse(call: &Call, body: &[u8]) -> Result<Patch, StatusError> {
        let media =
            call.headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
        let media = media.split(';').next().unwrap_or_default().trim();
        let is_apply = media == "application/apply-patch+yaml";
        if call.params.force && !is_apply {
            return Err(StatusError::invalid_patch_options(
                "force: Forbidden: may not be specified for non-apply patch",
            ));
        }
        match (media, call.resource.origin) {
            ("application/json-patch+json", _) => serde_json::from_slice(body)
                .map(Patch::Json)
                .map_err(|error| StatusError::bad_request(format!("error decoding patch: {error}"))),
            ("application/merge-patch+json", _) => merge_body(body).map(Patch::Merge),
            ("application/strategic-merge-patch+json", Origin::Builtin) => {
                merge_body(body).map(Patch::Strategic)
            }
            ("application/apply-patch+yaml", _) => {
                if call.params.field_manager.is_empty() {
                    return Err(StatusError::invalid_patch_options(
                        "fieldManager: Required value: is required for apply patch",
                    ));
                }
                Ok(Patch::Apply { config: parse_json(body)?, force: call.params.force })
            }
            (_, Origin::Builtin) => Err(StatusError::unsupported_media_type(&[
                "application/json-patch+json",
                "application/merge-patch+json",
                "application/strategic-merge-patch+json",
                "application/apply-patch+yaml",
            ])),
            (_, Origin::Custom) => Err(StatusError::unsupported_media_type(&[
                "application/json-patch+json",
                "application/merge-patch+json",
                "application/apply-patch+yaml",
            ])),
        }
    }
}

/// Patches an object; an apply creates it if it does not exist.
pub fn apply_patch(
    server: &Server,
    resource: &Resource,
    key: &Key,
    patch: Patch,
    writer: &Writer,
) -> Result<WriteResult, StatusError> {
    let Patch::Apply { config, force } = patch else {
        return write::modify(server, resource, key, writer, Operation::Update, |live| {
            patched(resource, live, &patch)
        });
    };
    check_config(resource, key, &config)?;
    let manager = writer.manager(Operation::Apply);
    let apply_to =
        |live: &Value| apply::apply(resource, live, config.clone(), &manager, force, server.clock.now());
    let exists = server.store.get(&resource.collection(), key).is_some();
    if exists || writer.subresource.is_some() {
        return write::modify(server, resource, key, writer, Operation::Apply, apply_to);
    }
    if let Some(uid) = config["metadata"]["uid"].as_str().filter(|uid| !uid.is_empty()) {
        let why = format!(
            "uid mismatch: the provided object specified uid {uid}, and no existing object was found"
        );
        return Err(StatusError::conflict(resource, &key.name, &why));
    }
    let mut blank = json!({
        "apiVersion": resource.api_version(), "kind": resource.kind, "metadata": { "name": *key.name },
    });
    if resource.namespaced {
        blank["metadata"]["namespace"] = json!(*key.namespace);
    }
    let namespace = resource.namespaced.then_some(&*key.namespace);
    match write::create(server, resource, namespace, apply_to(&blank)?, writer, Operation::Apply) {
        // Another client created it meanwhile: apply to that object.
        Err(error) if error.code == http::StatusCode::CONFLICT => {
            write::modify(server, resource, key, writer, Operation::Apply, apply_to)
        }
        written => written,
    }
}

/// `live` after a JSON, merge or strategic merge patch.
pub fn patched(resource: &Resource, live: &Value, patch: &Patch) -> Result<Value, StatusError> {
    let mut object = live.clone();
    match patch {
        Patch::Json(operations) => json_patch::patch(&mut object, operations)
            .map_err(|error| StatusError::unprocessable(&error.to_string()))?,
        Patch::Merge(patch) => json_patch::merge(&mut object, patch),
        Patch::Strategic(patch) => strategic_merge(&mut object, patch, Some(&resource.schema))?,
        Patch::Apply { .. } => return Err(StatusError::internal("an apply is not a plain patch")),
    }
    if !object.is_object() {
        return Err(StatusError::unprocessable("the patch leaves no object"));
    }
    // Only a resourceVersion in the patch itself is a precondition.
    let states_version = match patch {
        Patch::Merge(patch) | Patch::Strategic(patch) => patch["metadata"].get("resourceVersion").is_some(),
        Patch::Json(operations) => {
            operations.iter().any(|op| op.path().as_str() == "/metadata/resourceVersion")
        }
        Patch::Apply { .. } => false,
    };
    if !states_version && let Some(metadata) = object["metadata"].as_object_mut() {
        metadata.remove("resourceVersion");
    }
    Ok(object)
}

fn merge_body(body: &[u8]) -> Result<Value, StatusError> {
    let patch = parse_json(body)?;
    if patch.is_object() {
        Ok(patch)
    } else {
        Err(StatusError::bad_request("error decoding patch: it is not an object"))
    }
}

fn check_config(resource: &Resource, key: &Key, config: &Value) -> Result<(), StatusError> {
    let stated = |field: &str| config[field].as_str().unwrap_or_default();
    if stated("kind") != resource.kind || stated("apiVersion") != resource.api_version() {
        return Err(StatusError::bad_request(format!(
            "the applied object must state apiVersion {:?} and kind {:?}, not {:?} and {:?}",
            resource.api_version(),
            resource.kind,
            stated("apiVersion"),
            stated("kind")
        )));
    }
    if !config["metadata"]["managedFields"].is_null() {
        return Err(StatusError::bad_request("metadata.managedFields must be nil"));
    }
    match config["metadata"]["name"].as_str() {
        Some(name) if name != &*key.name => Err(StatusError::bad_request(format!(
            "the name of the object ({name}) does not match the name on the URL ({})",
            key.name
        ))),
        _ => Ok(()),
    }
}

/// Merges `patch` into `value`: keyed lists by key, sets by value, other lists as
/// a whole, with the directives that kubectl writes.
fn strategic_merge(value: &mut Value, patch: &Value, schema: Option<&Schema>) -> Result<(), StatusError> {
    let Value::Object(patch) = patch else {
        *value = patch.clone();
        return Ok(());
    };
    if patch.get("$patch").and_then(Value::as_str) == Some("replace") {
        *value = Value::Object(
            patch
                .iter()
                .filter(|(name, _)| !name.starts_with('$'))
                .map(|(k, v)| (k.clone(), v.clone()))
                .collect(),
        );
        return Ok(());
    }
    if !value.is_object() {
        *value = Value::Object(Map::new());
    }
    let Some(map) = value.as_object_mut() else { return Ok(()) };
    if let Some(kept) = patch.get("$retainKeys").and_then(Value::as_array) {
        map.retain(|name, _| kept.iter().any(|key| key == name.as_str()));
    }
    for (name, wanted) in patch {
        let below = |field: &str| schema.and_then(|schema| schema.field(field));
        if let Some(field) = name.strip_prefix("$deleteFromPrimitiveList/") {
            if let (Some(items), Some(gone)) =
                (map.get_mut(field).and_then(Value::as_array_mut), wanted.as_array())
            {
                items.retain(|item| !gone.contains(item));
            }
        } else if name.starts_with('$') {
            // Applied below, once the list is complete.
            continue;
        } else if wanted.is_null() || wanted["$patch"] == "delete" {
            map.remove(name);
        } else if let Value::Array(items) = wanted {
            let held = map.entry(name.clone()).or_insert_with(|| json!([]));
            merge_list(held, items, below(name))?;
        } else {
            strategic_merge(map.entry(name.clone()).or_insert(Value::Null), wanted, below(name))?;
        }
    }
    for (name, order) in patch {
        if let (Some(field), Some(order)) = (name.strip_prefix("$setElementOrder/"), order.as_array())
            && let Some(items) = map.get_mut(field).and_then(Value::as_array_mut)
        {
            set_order(items, order);
        }
    }
    Ok(())
}

fn merge_list(held: &mut Value, patch: &[Value], schema: Option<&Schema>) -> Result<(), StatusError> {
    let kind = schema.map_or(ListKind::Atomic, Schema::list_kind);
    let replaces = patch.iter().any(|item| item["$patch"] == "replace");
    let wanted = patch.iter().filter(|item| item["$patch"] != "replace");
    let (ListKind::Map(_) | ListKind::Set, Value::Array(items), false) = (&kind, &mut *held, replaces) else {
        *held = wanted.cloned().collect();
        return Ok(());
    };
    let key = schema.and_then(Schema::merge_key);
    let same = |a: &Value, b: &Value| match key {
        Some(key) => a.get(key) == b.get(key),
        None => item_path_element(a, &kind, schema) == item_path_element(b, &kind, schema),
    };
    for item in wanted {
        if let Some(key) = key
            && item.get(key).is_none()
        {
            return Err(StatusError::unprocessable(&format!(
                "map: {item} does not contain declared merge key: {key}"
            )));
        }
        let at = items.iter().position(|held| same(held, item));
        match (at, item["$patch"] == "delete") {
            (Some(at), true) => _ = items.remove(at),
            (None, true) => {}
            (Some(at), false) => strategic_merge(&mut items[at], item, schema.and_then(Schema::items))?,
            (None, false) => items.push(item.clone()),
        }
    }
    Ok(())
}

/// Sorts the items by `order`; items not in it come last.
fn set_order(items: &mut [Value], order: &[Value]) {
    let place = |item: &Value| {
        order.iter().position(|wanted| match wanted {
            Value::Object(keys) => keys.iter().all(|(key, value)| item.get(key) == Some(value)),
            plain => plain == item,
        })
    };
    items.sort_by_key(|item| place(item).unwrap_or(usize::MAX));
}
