//! Delete: immediately, after a grace period, or with the last finalizer.

use std::sync::Arc;

use serde_json::{Value, json};

use super::kinds::Resource;
use super::request::Params;
use super::selector::Selector;
use super::server::{Call, Server, success};
use super::status_error::StatusError;
use super::store::{Key, Object, Precondition};
use super::write::{MAX_CONFLICT_RETRIES, can_be_removed};
use super::{crd, read};
use work_queue::clock;

/// Options of a delete request.
#[derive(Default)]
pub struct DeleteOptions {
    pub grace: Option<u64>,
    pub propagation: Propagation,
    pub uid: Option<String>,
    pub version: Option<String>,
    pub dry_run: bool,
}

/// `propagationPolicy`: the treatment of dependents.
#[derive(Default, Clone, Copy, PartialEq, Eq)]
pub enum Propagation {
    #[default]
    Background,
    Foreground,
    Orphan,
}

impl DeleteOptions {
    /// From the query parameters and the request body.
    pub fn of(call: &Call, body: &Value) -> Result<DeleteOptions, StatusError> {
        let params = &call.params;
        let text = |value: &Value| value.as_str().map(str::to_owned);
        let policy = match params.propagation_policy.as_str() {
            "" => text(&body["propagationPolicy"]).unwrap_or_default(),
            stated => stated.to_owned(),
        };
        let propagation = match policy.as_str() {
            "" if body["orphanDependents"] == true => Propagation::Orphan,
            "" | "Background" => Propagation::Background,
            "Foreground" => Propagation::Foreground,
            "Orphan" => Propagation::Orphan,
            other => {
                return Err(StatusError::invalid_delete_options(&format!(
                    "propagationPolicy: Unsupported value: {other:?}: supported values: \"Foreground\", \"Background\", \"Orphan\", \"nil\""
                )));
            }
        };
        Ok(DeleteOptions {
            grace: params.grace_period_seconds.or(body["gracePeriodSeconds"].as_u64()),
            propagation,
            uid: text(&body["preconditions"]["uid"]),
            version: text(&body["preconditions"]["resourceVersion"]),
            dry_run: params.is_dry_run(call.verb)?
                || body["dryRun"].as_array().is_some_and(|all| !all.is_empty()),
        })
    }
}

/// Deletes an object, or sets its `deletionTimestamp` if a grace period or a
/// finalizer holds it back. Returns the object or, once removed, a `Status` (for
/// pods and namespaces the last state).
pub fn delete(
    server: &Server,
    resource: &Resource,
    key: &Key,
    options: &DeleteOptions,
) -> Result<Value, StatusError> {
    let collection = resource.collection();
    for _ in 0..MAX_CONFLICT_RETRIES {
        let live =
            server.store.get(&collection, key).ok_or_else(|| StatusError::not_found(resource, &key.name))?;
        check_preconditions(resource, &live, options)?;
        let mut object = live.value.clone();
        mark_deleted(server, resource, &mut object, options);
        let finished = can_be_removed(resource, &object);
        if options.dry_run {
            return Ok(if finished { success(resource, &object) } else { object });
        }
        if !finished && object == live.value {
            return Ok(object);
        }
        let committed = if finished {
            server.store.remove(&collection, key, live.version, object)
        } else {
            server.store.put(&collection, key, Precondition::Version(live.version), object)
        };
        if let Ok(stored) = committed {
            crd::update_served_kinds(server, resource, &stored);
            let answers_with_object = !finished || resource.kind == "Pod" || resource.kind == "Namespace";
            return Ok(if answers_with_object {
                stored.value.clone()
            } else {
                success(resource, &stored.value)
            });
        }
    }
    Err(StatusError::modified(resource, &key.name))
}

/// Deletes the objects that match the selectors of `params`.
pub fn delete_collection(
    server: &Server,
    resource: &Resource,
    namespace: Option<&str>,
    params: &Params,
    options: &DeleteOptions,
) -> Result<Value, StatusError> {
    let selector = Selector::parse(&params.label_selector, &params.field_selector, resource)?;
    let snapshot = server.store.list(&resource.collection(), namespace);
    let chosen: Vec<Arc<Object>> =
        snapshot.objects.into_iter().filter(|object| selector.matches(&object.value)).collect();
    for object in &chosen {
        match delete(server, resource, &object.key, options) {
            Err(error) if error.code != http::StatusCode::NOT_FOUND => return Err(error),
            _ => {}
        }
    }
    Ok(json!({
        "kind": format!("{}List", resource.kind),
        "apiVersion": resource.api_version(),
        "metadata": { "resourceVersion": server.store.version().to_string() },
        "items": chosen.iter().map(|object| read::in_version(&object.value, resource)).collect::<Vec<_>>(),
    }))
}

fn mark_deleted(server: &Server, resource: &Resource, object: &mut Value, options: &DeleteOptions) {
    // Only a bound pod has a kubelet that stops it gracefully.
    let is_running_pod = resource.kind == "Pod"
        && object["spec"]["nodeName"].as_str().is_some_and(|node| !node.is_empty())
        && !matches!(object["status"]["phase"].as_str(), Some("Succeeded" | "Failed"));
    let usual = object["spec"]["terminationGracePeriodSeconds"].as_u64().unwrap_or(30);
    let grace = if is_running_pod { options.grace.unwrap_or(usual) } else { 0 };
    let has_status_phase = resource.kind == "Namespace";

    let is_marked = object["metadata"]["deletionTimestamp"].is_string();
    let Some(metadata) = object["metadata"].as_object_mut() else { return };
    if !is_marked {
        let at = server.clock.now() + std::time::Duration::from_secs(grace);
        metadata.insert("deletionTimestamp".into(), json!(clock::seconds(at)));
        metadata.insert("deletionGracePeriodSeconds".into(), json!(grace));
        if let Some(generation) = metadata.get("generation").and_then(Value::as_i64) {
            metadata.insert("generation".into(), json!(generation + 1));
        }
    } else if options
        .grace
        .is_some_and(|requested| Some(requested) < metadata["deletionGracePeriodSeconds"].as_u64())
    {
        // A later delete can only shorten the grace period; the deletion time
        // moves by the difference.
        let shrunk =
            metadata["deletionGracePeriodSeconds"].as_u64().unwrap_or_default().saturating_sub(grace);
        let ends =
            metadata["deletionTimestamp"].as_str().and_then(|text| text.parse::<jiff::Timestamp>().ok());
        if let Some(ends) =
            ends.and_then(|ends| ends.checked_sub(std::time::Duration::from_secs(shrunk)).ok())
        {
            metadata.insert("deletionTimestamp".into(), json!(clock::seconds(ends.max(server.clock.now()))));
        }
        metadata.insert("deletionGracePeriodSeconds".into(), json!(grace));
    }
    let waits_for_dependents = match options.propagation {
        Propagation::Background => None,
        Propagation::Foreground => Some("foregroundDeletion"),
        Propagation::Orphan => Some("orphan"),
    };
    if let Some(finalizer) = waits_for_dependents
        && !is_marked
        && let Some(finalizers) = metadata.entry("finalizers").or_insert_with(|| json!([])).as_array_mut()
        && !finalizers.iter().any(|held| held == finalizer)
    {
        finalizers.push(json!(finalizer));
    }
    if resource.kind == "CustomResourceDefinition" && !is_marked {
        crd::add_cleanup_finalizer(object);
    }
    if has_status_phase {
        object["status"]["phase"] = json!("Terminating");
    }
}

fn check_preconditions(
    resource: &Resource,
    live: &Object,
    options: &DeleteOptions,
) -> Result<(), StatusError> {
    let checks = [
        (
            &options.uid,
            live.value["metadata"]["uid"].as_str().unwrap_or_default().to_owned(),
            "UID",
            "deleted and then recreated",
        ),
        (&options.version, live.version.to_string(), "ResourceVersion", "modified"),
    ];
    for (stated, held, what, how) in checks {
        if let Some(stated) = stated
            && *stated != held
        {
            let why = format!(
                "the {what} in the precondition ({stated}) does not match the {what} in record ({held}). The object might have been {how}"
            );
            return Err(StatusError::conflict_on_kind(resource, &live.key.name, &why));
        }
    }
    Ok(())
}
