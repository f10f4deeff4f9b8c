//! The annotation on a route object that records the split it was written for.
//!
//! A route can be compared with a split but not always parsed into one: the
//! conversion of conditions to the mesh's form loses information. So the split
//! is recorded in the same write, and holds for as long as the route has the
//! fields of that split.

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

pub const SPLIT_ANNOTATION: &str = "serin.dev/split";

#[derive(Serialize, Deserialize)]
struct SplitAnnotation {
    canary: Weight,
    #[serde(default)]
    mirror: Weight,
    #[serde(default, rename = "match", skip_serializing_if = "Vec::is_empty")]
    matches: Vec<HttpMatch>,
}

pub fn annotation(split: &Split) -> Metadata {
    let value =
        SplitAnnotation { canary: split.canary, mirror: split.mirror, matches: split.matches.to_vec() };
    Metadata {
        annotations: [(SPLIT_ANNOTATION.to_owned(), json!(value).to_string())].into(),
        ..Default::default()
    }
}

/// The recorded split. The stable side is not in it: it follows from the
/// Services.
pub fn parse(live: &DynamicObject, stable: Stable) -> Option<Split> {
    let SplitAnnotation { canary, mirror, matches } =
        serde_json::from_str(live.annotations().get(SPLIT_ANNOTATION)?).ok()?;
    Some(Split { canary, mirror, matches: Arc::from(matches), stable })
}
