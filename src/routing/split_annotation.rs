//! The split that a routing object was written for, noted in the object.
//!
//! A route can be checked against a split but not always read back into one:
//! conditions lose their words in the mesh's. So the split is noted beside the
//! route in the same write, and counts as long as the route is what the note
//! says.

use std::sync::Arc;

use kube::{ResourceExt as _, api::DynamicObject};
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::{
    Lookup, ObjectName, Subject,
    object::Wanted,
    services::{self, Apex},
};
use crate::{
    api::{
        Weight,
        canary::{HttpMatch, service::Metadata},
    },
    engine::action::{Split, Stable},
};

const SPLIT: &str = "serin.dev/split";

#[derive(Serialize, Deserialize)]
struct Note {
    canary: Weight,
    #[serde(default)]
    mirror: Weight,
    #[serde(default, rename = "match", skip_serializing_if = "Vec::is_empty")]
    matches: Vec<HttpMatch>,
}

/// The metadata that notes a split.
pub fn of(split: &Split) -> Metadata {
    let note = Note { canary: split.canary, mirror: split.mirror, matches: split.matches.to_vec() };
    Metadata { annotations: [(SPLIT.to_owned(), json!(note).to_string())].into(), ..Default::default() }
}

/// The split that is noted on the route, if everything is as it should be for
/// it.
pub fn in_force(
    on: &Subject<'_>,
    seen: &dyn Lookup,
    route: &ObjectName,
    wanted: impl Fn(&Split) -> Vec<Wanted>,
) -> Option<Split> {
    let stable = [Stable::Primary, Stable::Previous]
        .into_iter()
        .find(|stable| services::stand(on, seen, Apex::Stable, *stable))?;
    let split = read(&*route.find(seen)?, stable)?;
    wanted(&split).iter().all(|object| object.stands(on.canary, seen)).then_some(split)
}

/// The split that is noted. Who is stable is a matter of the Services.
pub fn read(live: &DynamicObject, stable: Stable) -> Option<Split> {
    let Note { canary, mirror, matches } = serde_json::from_str(live.annotations().get(SPLIT)?).ok()?;
    Some(Split { canary, mirror, matches: Arc::from(matches), stable })
}
