//! Projections: the part of an object that a store keeps, and the changes of it
//! that request a reconcile.

use kube::core::{ApiResource, DynamicObject, ObjectMeta, PartialObjectMeta};
use serde_json::{Value, json};

use super::store::always_differs;
use crate::{
    stripped::{StrippedObject, strip_last_applied},
    workload::{COMPANION_KINDS, Kind},
};

/// How a watch event becomes a stored object.
pub struct Projection<T, K> {
    pub transform: fn(T) -> K,
    /// A change between two objects for which this holds requests no reconcile.
    pub same: fn(&K, &K) -> bool,
}

impl<T, K> Projection<T, K> {
    /// Every new version requests a reconcile.
    pub fn of(transform: fn(T) -> K) -> Self {
        Self { transform, same: always_differs }
    }
}

/// Of companions the status is dropped: it changes with every pod, and that of a
/// disruption budget would request a reconcile of a whole namespace each time.
pub fn projection_for(kind: &ApiResource) -> Projection<StrippedObject, DynamicObject> {
    if *kind == pod_resource() {
        Projection::of(project_pod)
    } else if COMPANION_KINDS.iter().any(|companion| companion.resource() == kind) {
        Projection { transform: project_companion, same: equal_ignoring_version }
    } else {
        Projection::of(|object| object.0)
    }
}

pub fn pod_resource() -> ApiResource {
    ApiResource::erase::<k8s_openapi::api::core::v1::Pod>(&())
}

/// ConfigMaps and Secrets: their data is read when it is needed.
pub fn is_metadata_only(kind: &ApiResource) -> bool {
    kind == Kind::ConfigMap.resource() || kind == Kind::Secret.resource()
}

pub fn metadata_only(partial: PartialObjectMeta<DynamicObject>) -> DynamicObject {
    let mut metadata = partial.metadata;
    metadata.managed_fields = None;
    strip_last_applied(&mut metadata.annotations);
    DynamicObject { types: partial.types, metadata, data: Value::Null }
}

/// Labels select a pod, its address is scraped; nothing else is needed.
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
