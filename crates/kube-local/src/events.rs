//! Events have two shapes, `v1` and `events.k8s.io/v1`, and are one thing:
//! stored in the first, shown in either.

use serde_json::Value;

use super::kinds::Resource;

/// The newer name of each field that has two, beside the older.
const RENAMED: &[(&str, &str)] = &[
    ("regarding", "involvedObject"),
    ("note", "message"),
    ("reportingController", "reportingComponent"),
    ("deprecatedSource", "source"),
    ("deprecatedFirstTimestamp", "firstTimestamp"),
    ("deprecatedLastTimestamp", "lastTimestamp"),
    ("deprecatedCount", "count"),
];

/// Whether a resource shows stored objects in another shape than they have.
pub fn has_new_event_shape(resource: &Resource) -> bool {
    resource.group == "events.k8s.io"
}

/// A stored event as this resource shows it.
pub fn to_served(resource: &Resource, object: &mut Value) {
    if has_new_event_shape(resource) {
        rename(object, RENAMED.iter().map(|(newer, older)| (*older, *newer)));
    }
}

/// An event written through this resource, as it is stored.
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
