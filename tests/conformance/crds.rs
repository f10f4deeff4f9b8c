//! CustomResourceDefinitions and what they govern.

use serde_json::{Value, json};

use crate::session::*;

/// A group of the law's own.
pub fn group(t: &Session) -> String {
    format!("{}.example.dev", t.ns)
}

pub fn api_version(t: &Session) -> String {
    format!("{}/v1", group(t))
}

/// Kind Thing with this schema, served; returns the path of its instances.
pub async fn define(t: &Session, schema: Value, more: Value) -> String {
    let mut version =
        json!({"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema}});
    let extra = more.as_object().expect("an object of version fields").clone();
    version.as_object_mut().expect("an object").extend(extra);
    let crd = json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("things.{}", group(t))},
        "spec": {
            "group": group(t),
            "scope": "Namespaced",
            "names": {"plural": "things", "singular": "thing", "kind": "Thing", "shortNames": ["th"], "categories": ["all"]},
            "versions": [version],
        },
    });
    t.post(CRDS, crd).await.created();
    let path = format!("{CRDS}/things.{}", group(t));
    t.eventually(&path, "established", |crd| condition(crd, "Established") == "True").await;
    let path = format!("/apis/{}/namespaces/{{ns}}/things", api_version(t));
    t.eventually(&path, "served", |list| list["kind"] == "ThingList").await;
    path
}

/// Kind Thing that takes anything below `spec`.
pub async fn plain(t: &Session) -> String {
    let schema = json!({
        "type": "object",
        "properties": {"spec": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}},
    });
    define(t, schema, json!({})).await
}

pub const CRDS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";

pub fn condition<'a>(object: &'a Value, kind: &str) -> &'a str {
    let conditions = object["status"]["conditions"].as_array().map(Vec::as_slice).unwrap_or_default();
    conditions.iter().find(|c| c["type"] == kind).and_then(|c| c["status"].as_str()).unwrap_or_default()
}
