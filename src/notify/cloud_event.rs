//! Any program: a CloudEvent 1.0 in structured mode, whose data is the notice.

use std::hash::{BuildHasher as _, RandomState};

use serde_json::{Value, json};

use super::Notice;
use crate::api;

pub const CONTENT_TYPE: &str = "application/cloudevents+json";

pub fn message(notice: &Notice) -> Value {
    let Notice { name, namespace, at, .. } = notice;
    let (group, version) = (api::GROUP, api::VERSION);
    json!({
        "specversion": "1.0",
        "id": format!("{}-{:016x}", at.as_millisecond(), RandomState::new().hash_one(name)),
        "source": format!("/apis/{group}/{version}/namespaces/{namespace}/canaries/{name}"),
        "type": format!("dev.serin.canary.{}", notice.reason),
        "subject": format!("{namespace}/{name}"),
        "time": at.to_string(),
        "datacontenttype": "application/json",
        "data": notice,
    })
}
