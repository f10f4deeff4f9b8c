//! What the caches keep of an object, and which changes of it are news.

use kube::core::{ApiResource, DynamicObject, ObjectMeta, PartialObjectMeta};
use serde_json::{Value, json};

use super::store::always_differs;
use crate::{
    stripped::{StrippedObject, strip_last_applied},
    workload::{COMPANION_KINDS, Kind},
};

/// What is kept of an object that a watch told of, and when two of its versions
/// say the same.
pub type Projection<T, K> = (fn(T) -> K, fn(&K, &K) -> bool);

/// The status of a companion changes with every pod, and that of a disruption
/// budget would wake the Canaries of a whole namespace each time.
pub fn projection_for(kind: &ApiResource) -> Projection<StrippedObject, DynamicObject> {
    if *kind == pod_resource() {
        (project_pod, always_differs)
    } else if COMPANION_KINDS.iter().any(|companion| companion.resource() == kind) {
        (project_companion, equal_ignoring_version)
    } else {
        (|object| object.0, always_differs)
    }
}

pub fn pod_resource() -> ApiResource {
    ApiResource::erase::<k8s_openapi::api::core::v1::Pod>(&())
}

/// Is it of a kind whose data is not kept?
pub fn is_metadata_only(kind: &ApiResource) -> bool {
    kind == Kind::ConfigMap.resource() || kind == Kind::Secret.resource()
}

pub fn metadata_only(partial: PartialObjectMeta<DynamicObject>) -> DynamicObject {
    let mut metadata = partial.metadata;
    metadata.managed_fields = None;
    strip_last_applied(&mut metadata.annotations);
    DynamicObject { types: partial.types, metadata, data: Value::Null }
}

/// Of a pod only its labels and its address are asked for.
fn project_pod(StrippedObject(mut pod): StrippedObject) -> DynamicObject {
    let address = pod.data.pointer("/status/podIP").cloned();
    pod.data = json!({ "status": { "podIP": address } });
    pod
}

fn project_companion(StrippedObject(mut companion): StrippedObject) -> DynamicObject {
    if let Some(data) = companion.data.as_object_mut() {
        data.remove("status");
    }
    companion
}

fn equal_ignoring_version(a: &DynamicObject, b: &DynamicObject) -> bool {
    let meta = |of: &DynamicObject| ObjectMeta { resource_version: None, ..of.metadata.clone() };
    a.data == b.data && meta(a) == meta(b)
}
