//! Events have two API versions, `v1` and `events.k8s.io/v1`, for the same
//! objects: stored as the first, served as either.

use serde_json::Value;

use super::kinds::Resource;

/// Fields with two names: (`events.k8s.io/v1`, `v1`).
const RENAMED: &[(&str, &str)] = &[
    ("regarding", "involvedObject"),
    ("note", "message"),
    ("reportingController", "reportingComponent"),
    ("deprecatedSource", "source"),
    ("deprecatedFirstTimestamp", "firstTimestamp"),
    ("deprecatedLastTimestamp", "lastTimestamp"),
    ("deprecatedCount", "count"),
];

/// Whether the resource serves events in the newer shape, not the stored one.
pub fn has_new_event_shape(resource: &Resource) -> bool {
    resource.group == "events.k8s.io"
}

/// Converts a stored event to the version of this resource.
pub fn to_served(resource: &Resource, object: &mut Value) {
    if has_new_event_shape(resource) {
        rename(object, RENAMED.iter().map(|(newer, older)| (*older, *newer)));
    }
}

/// Converts an event from the version of this resource to the stored one.
pub fn to_stored(resource: &Resource, object: &mut Value) {
    if has_new_event_shape(resource) {
        rename(object, RENAMED.iter().copied());
        object["apiVersion"] = "v1".into();
    }
}

fn rename<'a>(object: &mut Value, names: impl Iterator<Item = (&'a str, &'a str)>) {
    let Some(map) = object.as_object_mut() else { return };
    for (from, to) in names {
        if let Some(value) = map.remove(from) {
            map.insert(to.to_owned(), value);
        }
    }
}
