//! Projections: the part of an object that a store keeps, and the changes of it
//! that request a reconcile.

use kube::core::{ApiResource, DynamicObject, ObjectMeta, PartialObjectMeta};
use serde_json::{Map, Value, json};

use super::store::always_differs;
use crate::{
    catalog::kubernetes,
    discovery::model::{self, Detail},
    stripped::{StrippedObject, strip_last_applied},
    workload::{COMPANION_KINDS, CachedWorkload, Kind},
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
    } else if is_tapped_only(kind) {
        Projection::of(|object| identity_only(object.0.metadata))
    } else {
        Projection::of(|object| object.0)
    }
}

/// The kind of the inventory that this resource is; none for kinds that are not read
/// from reflectors.
pub fn inventory_kind(kind: &ApiResource) -> Option<model::Kind> {
    let known = model::Kind::of(&kind.group, &kind.version, &kind.kind);
    known.filter(|kind| !matches!(kind, model::Kind::ConfigMap | model::Kind::Canary))
}

/// The kind of the service catalog that this resource is.
pub fn catalog_kind(kind: &ApiResource) -> Option<kubernetes::Kind> {
    kubernetes::Kind::of(&kind.group, &kind.kind)
}

/// No release reads these: the inventory and the catalog keep what they need of them.
pub fn is_tapped_only(kind: &ApiResource) -> bool {
    is_inventory_only(kind) || catalog_kind(kind).is_some_and(kubernetes::Kind::is_catalog_only)
}

fn is_inventory_only(kind: &ApiResource) -> bool {
    use model::Kind as Of;
    match inventory_kind(kind) {
        Some(
            Of::Namespace
            | Of::StatefulSet
            | Of::Rollout
            | Of::KnativeService
            | Of::Gateway
            | Of::GatewayClass
            | Of::PeerAuthentication
            | Of::WebhookConfiguration
            | Of::ServiceProfile
            | Of::Ingress
            | Of::KumaMesh,
        ) => true,
        Some(
            Of::ServedResource
            | Of::Deployment
            | Of::DaemonSet
            | Of::Pod
            | Of::Service
            | Of::ConfigMap
            | Of::HttpRoute
            | Of::GrpcRoute
            | Of::VirtualService
            | Of::TrafficSplit
            | Of::VirtualNode
            | Of::Canary,
        )
        | None => false,
        // Of other sources than the cluster.
        Some(
            Of::AppMeshMesh
            | Of::AppMeshVirtualNode
            | Of::AppMeshVirtualService
            | Of::AppMeshVirtualRouter
            | Of::AppMeshVirtualGateway
            | Of::AppMeshRoute
            | Of::CloudMapInstance
            | Of::ConsulDatacenter
            | Of::ConsulService,
        ) => false,
    }
}

fn identity_only(metadata: ObjectMeta) -> DynamicObject {
    let ObjectMeta { name, namespace, uid, resource_version, .. } = metadata;
    let metadata = ObjectMeta { name, namespace, uid, resource_version, ..ObjectMeta::default() };
    DynamicObject { types: None, metadata, data: Value::Null }
}

/// The manifest of a watched object, for the inventory: nothing is copied but metadata.
pub fn object_manifest(StrippedObject(object): &mut StrippedObject, read: &mut dyn FnMut(&Value)) {
    let Ok(metadata) = serde_json::to_value(&object.metadata) else { return };
    if !object.data.is_object() {
        object.data = Value::Object(Map::new());
    }
    object.data["metadata"] = metadata;
    read(&object.data);
    if let Some(data) = object.data.as_object_mut() {
        data.remove("metadata");
    }
}

pub fn metadata_manifest(partial: &mut PartialObjectMeta<DynamicObject>, read: &mut dyn FnMut(&Value)) {
    partial.metadata.managed_fields = None;
    if let Ok(metadata) = serde_json::to_value(&partial.metadata) {
        read(&json!({ "metadata": metadata }));
    }
}

pub fn workload_manifest(workload: &mut CachedWorkload, read: &mut dyn FnMut(&Value)) {
    if let Ok(manifest) = serde_json::to_value(&*workload) {
        read(&manifest);
    }
}

pub fn pod_resource() -> ApiResource {
    ApiResource::erase::<k8s_openapi::api::core::v1::Pod>(&())
}

/// ConfigMaps and Secrets: their data is read when it is needed. Of some kinds the
/// inventory reads no more.
pub fn is_metadata_only(kind: &ApiResource) -> bool {
    kind == Kind::ConfigMap.resource()
        || kind == Kind::Secret.resource()
        || inventory_kind(kind).is_some_and(|kind| kind.detail() == Detail::Metadata)
}

pub fn metadata_only(partial: PartialObjectMeta<DynamicObject>) -> DynamicObject {
    let mut metadata = partial.metadata;
    metadata.managed_fields = None;
    strip_last_applied(&mut metadata.annotations);
    DynamicObject { types: partial.types, metadata, data: Value::Null }
}

/// The same of a kind that only the inventory reads.
pub fn metadata_identity(partial: PartialObjectMeta<DynamicObject>) -> DynamicObject {
    identity_only(partial.metadata)
}

/// Labels select a pod, its address is scraped as its `prometheus.io` annotations have
/// it, until it is deleted; nothing else is needed.
fn project_pod(StrippedObject(mut pod): StrippedObject) -> DynamicObject {
    let ObjectMeta {
        name, namespace, uid, resource_version, deletion_timestamp, labels, annotations, ..
    } = pod.metadata;
    let annotations = annotations.map(|mut all| {
        all.retain(|key, _| key.starts_with("prometheus.io/"));
        all
    });
    let annotations = annotations.filter(|all| !all.is_empty());
    pod.metadata = ObjectMeta {
        name,
        namespace,
        uid,
        resource_version,
        deletion_timestamp,
        labels,
        annotations,
        ..ObjectMeta::default()
    };
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

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Pod;

    use super::*;
    use crate::metrics::scrape::endpoint;

    #[test]
    fn a_terminating_pod_is_not_scraped() {
        let scraped = |metadata: Value| {
            let pod = json!({
                "apiVersion": "v1", "kind": "Pod", "metadata": metadata, "status": { "podIP": "10.0.0.1" },
            });
            let stored = project_pod(StrippedObject(serde_json::from_value(pod).expect("a pod")));
            let pod: Pod = stored.try_parse().expect("a pod");
            endpoint(&pod, None, 8080).map(|endpoint| endpoint.url.expect("a URL"))
        };
        let running = json!({ "name": "web-1", "uid": "1" });
        assert_eq!(scraped(running).as_deref(), Some("http://10.0.0.1:8080/metrics"));
        let deleted = json!({ "name": "web-1", "uid": "1", "deletionTimestamp": "2026-01-01T00:00:00Z" });
        assert_eq!(scraped(deleted), None);
    }

    #[test]
    fn a_pod_keeps_where_it_is_scraped_and_nothing_else() {
        let pod = json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": "web-1",
                "uid": "1",
                "labels": { "app": "web" },
                "annotations": { "prometheus.io/port": "9797", "example.com/long": "text" },
            },
            "spec": { "containers": [] },
            "status": { "podIP": "10.0.0.1", "phase": "Running" },
        });
        let stored = project_pod(StrippedObject(serde_json::from_value(pod).expect("a pod")));
        assert_eq!(stored.data, json!({ "status": { "podIP": "10.0.0.1" } }));
        let annotations = stored.metadata.annotations.expect("annotations");
        assert_eq!(annotations, [("prometheus.io/port".to_owned(), "9797".to_owned())].into());
    }
}
