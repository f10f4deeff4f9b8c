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

use crate::{
    api::{
        Weight,
        canary::{HttpMatch, service::Metadata},
    },
    engine::action::{Split, Stable},
};

const SPLIT_ANNOTATION: &str = "serin.dev/split";

#[derive(Serialize, Deserialize)]
struct SplitAnnotation {
    canary: Weight,
    #[serde(default)]
    mirror: Weight,
    #[serde(default, rename = "match", skip_serializing_if = "Vec::is_empty")]
    matches: Vec<HttpMatch>,
}

/// The metadata that notes a split.
pub fn annotation(split: &Split) -> Metadata {
    let note =
        SplitAnnotation { canary: split.canary, mirror: split.mirror, matches: split.matches.to_vec() };
    Metadata {
        annotations: [(SPLIT_ANNOTATION.to_owned(), json!(note).to_string())].into(),
        ..Default::default()
    }
}

/// The split that is noted. Who is stable is a matter of the Services.
pub fn parse(live: &DynamicObject, stable: Stable) -> Option<Split> {
    let SplitAnnotation { canary, mirror, matches } =
        serde_json::from_str(live.annotations().get(SPLIT_ANNOTATION)?).ok()?;
    Some(Split { canary, mirror, matches: Arc::from(matches), stable })
}
