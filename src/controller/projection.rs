//! What the caches keep of an object, and which changes of it are news.

use kube::core::{ApiResource, DynamicObject, ObjectMeta, PartialObjectMeta};
use serde_json::{Value, json};

use super::table::differ;
use crate::{
    lean::{Lean, forget_last_applied},
    workload::{COMPANIONS, Kind},
};

/// What is kept of an object that a watch told of, and when two of its versions
/// say the same.
pub type Reading<T, K> = (fn(T) -> K, fn(&K, &K) -> bool);

/// The status of a companion changes with every pod, and that of a disruption
/// budget would wake the Canaries of a whole namespace each time.
pub fn reading(kind: &ApiResource) -> Reading<Lean, DynamicObject> {
    if *kind == pods() {
        (trim_pod, differ)
    } else if COMPANIONS.iter().any(|companion| companion.resource() == kind) {
        (trim_companion, says_the_same)
    } else {
        (|object| object.0, differ)
    }
}

pub fn pods() -> ApiResource {
    ApiResource::erase::<k8s_openapi::api::core::v1::Pod>(&())
}

/// Is it of a kind whose data is not kept?
pub fn has_data(kind: &ApiResource) -> bool {
    kind == Kind::ConfigMap.resource() || kind == Kind::Secret.resource()
}

pub fn without_data(partial: PartialObjectMeta<DynamicObject>) -> DynamicObject {
    let mut metadata = partial.metadata;
    metadata.managed_fields = None;
    forget_last_applied(&mut metadata.annotations);
    DynamicObject { types: partial.types, metadata, data: Value::Null }
}

/// Of a pod only its labels and its address are asked for.
fn trim_pod(Lean(mut pod): Lean) -> DynamicObject {
    let address = pod.data.pointer("/status/podIP").cloned();
    pod.data = json!({ "status": { "podIP": address } });
    pod
}

fn trim_companion(Lean(mut companion): Lean) -> DynamicObject {
    if let Some(data) = companion.data.as_object_mut() {
        data.remove("status");
    }
    companion
}

fn says_the_same(a: &DynamicObject, b: &DynamicObject) -> bool {
    let meta = |of: &DynamicObject| ObjectMeta { resource_version: None, ..of.metadata.clone() };
    a.data == b.data && meta(a) == meta(b)
}
