//! Objects decoded without managedFields and kubectl's last-applied annotation.
//! managedFields are half of an object's size and are skipped while decoding.

use std::{borrow::Cow, collections::BTreeMap, fmt};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{OwnerReference, Time};
use kube::{
    Resource,
    core::{ApiResource, DynamicObject, DynamicResourceScope, ObjectMeta, TypeMeta},
};
use serde::{
    Deserialize, Deserializer,
    de::{MapAccess, Visitor},
};
use serde_json::{Map, Value};

/// An object of any kind. Its data is deserialized once, where a
/// [`DynamicObject`] buffers it first.
#[derive(Clone, Debug)]
pub struct StrippedObject(pub DynamicObject);

impl<'de> Deserialize<'de> for StrippedObject {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(ObjectVisitor)
    }
}

struct ObjectVisitor;

impl<'de> Visitor<'de> for ObjectVisitor {
    type Value = StrippedObject;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<StrippedObject, A::Error> {
        let (mut kind, mut api_version, mut metadata) = (None, None, ObjectMeta::default());
        let mut rest = Map::new();
        while let Some(field) = fields.next_key::<String>()? {
            match field.as_str() {
                "kind" => kind = Some(fields.next_value()?),
                "apiVersion" => api_version = Some(fields.next_value()?),
                "metadata" => metadata = fields.next_value::<StrippedObjectMeta>()?.0,
                _ => _ = rest.insert(field, fields.next_value()?),
            }
        }
        let types = kind.zip(api_version).map(|(kind, api_version)| TypeMeta { api_version, kind });
        Ok(StrippedObject(DynamicObject { types, metadata, data: Value::Object(rest) }))
    }
}

#[derive(Deserialize)]
struct StrippedObjectMeta(#[serde(deserialize_with = "strip_metadata")] ObjectMeta);

/// Decodes only the metadata fields that Serin uses.
pub fn strip_metadata<'de, D: Deserializer<'de>>(deserializer: D) -> Result<ObjectMeta, D::Error> {
    let StrippedMeta {
        name,
        namespace,
        uid,
        resource_version,
        generation,
        creation_timestamp,
        deletion_timestamp,
        labels,
        mut annotations,
        owner_references,
        finalizers,
    } = StrippedMeta::deserialize(deserializer)?;
    strip_last_applied(&mut annotations);
    Ok(ObjectMeta {
        name,
        namespace,
        uid,
        resource_version,
        generation,
        creation_timestamp,
        deletion_timestamp,
        labels,
        annotations,
        owner_references,
        finalizers,
        ..ObjectMeta::default()
    })
}

/// Removes kubectl's copy of the object, which is as large as the object.
pub fn strip_last_applied(annotations: &mut Option<BTreeMap<String, String>>) {
    if let Some(annotations) = annotations {
        annotations.remove("kubectl.kubernetes.io/last-applied-configuration");
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct StrippedMeta {
    name: Option<String>,
    namespace: Option<String>,
    uid: Option<String>,
    resource_version: Option<String>,
    generation: Option<i64>,
    creation_timestamp: Option<Time>,
    deletion_timestamp: Option<Time>,
    labels: Option<BTreeMap<String, String>>,
    annotations: Option<BTreeMap<String, String>>,
    owner_references: Option<Vec<OwnerReference>>,
    finalizers: Option<Vec<String>>,
}

impl Resource for StrippedObject {
    type DynamicType = ApiResource;
    type Scope = DynamicResourceScope;

    fn kind(resource: &ApiResource) -> Cow<'_, str> {
        DynamicObject::kind(resource)
    }

    fn group(resource: &ApiResource) -> Cow<'_, str> {
        DynamicObject::group(resource)
    }

    fn version(resource: &ApiResource) -> Cow<'_, str> {
        DynamicObject::version(resource)
    }

    fn api_version(resource: &ApiResource) -> Cow<'_, str> {
        DynamicObject::api_version(resource)
    }

    fn plural(resource: &ApiResource) -> Cow<'_, str> {
        DynamicObject::plural(resource)
    }

    fn meta(&self) -> &ObjectMeta {
        &self.0.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.0.metadata
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_stripped_object_lacks_only_managed_fields_and_last_applied() {
        let text = json!({
            "apiVersion": "v1", "kind": "Service", "spec": {"ports": [{"port": 80}]}, "status": {},
            "metadata": {
                "name": "web", "namespace": "shop", "uid": "1", "resourceVersion": "2", "generation": 3,
                "labels": {"a": "b"}, "finalizers": ["c"], "creationTimestamp": "2026-01-01T00:00:00Z", "deletionTimestamp": "2026-01-02T03:04:05Z",
                "ownerReferences": [{"apiVersion": "v1", "kind": "D", "name": "e", "uid": "4"}],
                "annotations": {"f": "\"g\"", "kubectl.kubernetes.io/last-applied-configuration": "{}"},
                "managedFields": [{"manager": "h", "operation": "Apply"}],
            },
        })
        .to_string();
        let StrippedObject(stripped) = serde_json::from_str(&text).unwrap();
        let mut whole: DynamicObject = serde_json::from_str(&text).unwrap();
        assert!(whole.metadata.managed_fields.take().is_some());
        whole.metadata.annotations.as_mut().unwrap().retain(|key, _| key == "f");
        assert_eq!(stripped, whole);
    }
}
