//! Other receivers: a CloudEvent 1.0 in structured mode with the notification as data.

use std::hash::{BuildHasher as _, RandomState};

use serde_json::{Value, json};

use super::Notification;
use crate::api;

pub const CONTENT_TYPE: &str = "application/cloudevents+json";

pub fn message(notification: &Notification) -> Value {
    let Notification { name, namespace, at, .. } = notification;
    let (group, version) = (api::GROUP, api::VERSION);
    json!({
        "specversion": "1.0",
        "id": format!("{}-{:016x}", at.as_millisecond(), RandomState::new().hash_one(name)),
        "source": format!("/apis/{group}/{version}/namespaces/{namespace}/canaries/{name}"),
        "type": format!("dev.serin.canary.{}", notification.reason),
        "subject": format!("{namespace}/{name}"),
        "time": at.to_string(),
        "datacontenttype": "application/json",
        "data": notification,
    })
}
