//! The projection of a workload that the cache keeps.

use std::{
    borrow::Cow,
    collections::BTreeMap,
    hash::{BuildHasher as _, BuildHasherDefault, DefaultHasher},
};

use kube::{
    Resource,
    core::{ApiResource, DynamicObject, DynamicResourceScope, ObjectMeta},
};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Value, json, value::RawValue};

use super::{Kind, manifests};
use crate::{
    api::{canary::TargetKind, endpoint_group::GroupEndpoint},
    engine::{names::template_name, observed::Pods},
    stripped,
};

/// A Deployment, DaemonSet or Service, small enough to cache thousands, and
/// complete enough to hash: its spec is kept as JSON text.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct CachedWorkload {
    #[serde(default, deserialize_with = "metadata")]
    pub metadata: ObjectMeta,
    #[serde(default)]
    spec: CachedSpec,
    #[serde(default)]
    status: StatusCounts,
}

/// Without the annotations of the Deployment controller.
fn metadata<'de, D: Deserializer<'de>>(deserializer: D) -> Result<ObjectMeta, D::Error> {
    let mut metadata = stripped::strip_metadata(deserializer)?;
    if let Some(annotations) = &mut metadata.annotations {
        annotations.retain(|key, _| !key.starts_with("deployment.kubernetes.io/"));
    }
    Ok(metadata)
}

/// From a write response.
impl TryFrom<DynamicObject> for CachedWorkload {
    type Error = serde_json::Error;

    fn try_from(written: DynamicObject) -> Result<Self, Self::Error> {
        serde_json::from_value(serde_json::to_value(written)?)
    }
}

impl CachedWorkload {
    pub fn spec(&self) -> Value {
        serde_json::from_str(self.spec.text.get()).unwrap_or_default()
    }

    /// True if the engine would observe the same: most status updates of a
    /// rollout change nothing that it can see.
    pub fn same_for_engine(&self, other: &Self, kind: TargetKind) -> bool {
        let of = |meta: &'_ ObjectMeta| (meta.generation, meta.deletion_timestamp.is_some());
        let (a, b) = (&self.metadata, &other.metadata);
        self.pods(kind) == other.pods(kind)
            && of(a) == of(b)
            && a.owner_references == b.owner_references
            && self.same_manifest(other)
    }

    /// The same but for status and resourceVersion.
    ///
    /// One generation has one spec. Its text need not be the same: keys of a
    /// cached write response are sorted, those of a watch event are not.
    pub fn same_manifest(&self, other: &Self) -> bool {
        let (a, b) = (&self.metadata, &other.metadata);
        let same_generation = a.generation.is_some() && a.generation == b.generation;
        a.uid == b.uid
            && a.labels == b.labels
            && a.annotations == b.annotations
            && (same_generation || self.spec.text.get() == other.spec.text.get())
    }

    /// A status of an older generation does not count the pods of the present
    /// spec.
    pub(super) fn pods(&self, kind: TargetKind) -> Pods {
        let status = &self.status;
        let current = status.observed_generation >= self.metadata.generation.unwrap_or_default();
        let if_current = |count: u32| if current { count } else { 0 };
        let older = |all: u32, updated: u32| all.saturating_sub(if_current(updated));
        let older_replicas = older(status.replicas, status.updated_replicas);
        let desired = self.replicas().unwrap_or(1);
        match kind {
            TargetKind::Deployment => Pods {
                desired,
                exist: status.replicas > 0,
                // Each remaining pod of an older revision counts as not replaced:
                // its readiness must not pass for that of an updated one.
                updated: if_current(status.updated_replicas.min(desired).saturating_sub(older_replicas)),
                ready: status.available_replicas,
                older: older_replicas,
            },
            TargetKind::DaemonSet => Pods {
                desired: match (self.is_scaled_to_zero(), current) {
                    (true, _) => 0,
                    (false, true) => status.desired_number_scheduled,
                    (false, false) => status.desired_number_scheduled.max(1),
                },
                exist: status.current_number_scheduled + status.number_misscheduled > 0,
                updated: if_current(status.updated_number_scheduled),
                ready: status.number_available,
                older: older(status.current_number_scheduled, status.updated_number_scheduled),
            },
            // The pods of a Service are not ours to observe.
            TargetKind::Service | TargetKind::EndpointGroup => {
                Pods { desired: 1, exist: true, updated: 1, ready: 1, older: 0 }
            }
        }
    }

    pub(super) fn to_dynamic_object(&self, kind: Kind) -> DynamicObject {
        DynamicObject {
            types: Some(kind.type_meta()),
            metadata: self.metadata.clone(),
            data: json!({ "spec": self.spec() }),
        }
    }

    pub(super) fn replicas(&self) -> Option<u32> {
        self.spec.replicas
    }

    /// A DaemonSet with our node selector that no node matches.
    pub(super) fn is_scaled_to_zero(&self) -> bool {
        self.spec.is_scaled_to_zero
    }

    /// The version of an EndpointGroup that a Canary promoted.
    pub(super) fn primary_version(&self) -> Option<&str> {
        self.status.primary.as_deref()
    }

    /// Endpoints of an EndpointGroup that are instances of its registry.
    pub(super) fn registered(&self) -> &[GroupEndpoint] {
        &self.status.endpoints
    }

    pub(super) fn annotation(&self, key: &str) -> Option<&str> {
        self.metadata.annotations.as_ref()?.get(key).map(String::as_str)
    }

    /// Of a primary: for the status, which outlives it.
    pub fn backup_digests(&self) -> Option<&str> {
        self.annotation(super::BACKUP_DIGESTS)
    }

    /// The revision of the target that it is a copy of.
    pub(super) fn copied_revision(&self) -> Option<&str> {
        self.spec.revision.as_deref().or_else(|| self.annotation(super::REVISION))
    }

    /// What people call its pod template; none without containers.
    pub(super) fn name(&self) -> Option<&str> {
        self.spec.name.as_deref()
    }

    /// Identifies a spec: uid and generation; resourceVersion for kinds without
    /// generation.
    pub fn spec_version(&self) -> (Option<&str>, String) {
        let meta = &self.metadata;
        let version = match meta.generation {
            Some(generation) => generation.to_string(),
            None => meta.resource_version.clone().unwrap_or_default(),
        };
        // What is released follows from the version in the status as well.
        let version = match self.primary_version() {
            Some(primary) => format!("{version} {primary}"),
            None => version,
        };
        let version = match self.registered() {
            [] => version,
            registered => {
                format!("{version} {:x}", BuildHasherDefault::<DefaultHasher>::default().hash_one(registered))
            }
        };
        (meta.uid.as_deref(), version)
    }
}

/// The spec's text, and fields that are read too often to parse it each time.
#[derive(Clone, Debug)]
struct CachedSpec {
    text: Box<RawValue>,
    replicas: Option<u32>,
    is_scaled_to_zero: bool,
    revision: Option<String>,
    name: Option<Box<str>>,
}

impl Default for CachedSpec {
    fn default() -> Self {
        Self {
            text: RawValue::NULL.to_owned(),
            replicas: None,
            is_scaled_to_zero: false,
            revision: None,
            name: None,
        }
    }
}

impl<'de> Deserialize<'de> for CachedSpec {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = Box::<RawValue>::deserialize(deserializer)?;
        // A spec of another shape has none of these.
        let SpecSummary { replicas, template } = serde_json::from_str(text.get()).unwrap_or_default();
        Ok(Self {
            replicas,
            name: template.name(),
            is_scaled_to_zero: template
                .spec
                .node_selector
                .is_some_and(|nodes| nodes.contains_key(manifests::SCALE_TO_ZERO)),
            revision: template.metadata.annotations.and_then(|mut all| all.remove(super::REVISION)),
            text,
        })
    }
}

impl Serialize for CachedSpec {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.text.serialize(serializer)
    }
}

/// The parsed fields of a spec; the rest is skipped.
#[derive(Default, Deserialize)]
#[serde(default)]
struct SpecSummary {
    replicas: Option<u32>,
    template: TemplateSummary,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct TemplateSummary {
    metadata: TemplateMeta,
    spec: TemplateSpec,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct TemplateMeta {
    annotations: Option<BTreeMap<String, String>>,
    labels: Option<BTreeMap<String, String>>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct ContainerSummary {
    name: String,
    image: Option<String>,
}

/// Names the container that matters to users, if it is not the first.
const DEFAULT_CONTAINER: &str = "kubectl.kubernetes.io/default-container";

impl TemplateSummary {
    fn name(&self) -> Option<Box<str>> {
        let named = self.metadata.annotations.as_ref().and_then(|all| all.get(DEFAULT_CONTAINER));
        let containers = self.spec.containers.as_deref().unwrap_or_default();
        let main = containers.iter().find(|container| Some(&container.name) == named);
        let image = main.or(containers.first())?.image.as_ref()?;
        let none = BTreeMap::new();
        Some(template_name(image, self.metadata.labels.as_ref().unwrap_or(&none)).into())
    }
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct TemplateSpec {
    node_selector: Option<BTreeMap<String, String>>,
    containers: Option<Vec<ContainerSummary>>,
}

/// The counts of a Deployment's or DaemonSet's status, and the version and endpoints in that
/// of an EndpointGroup.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct StatusCounts {
    observed_generation: i64,
    replicas: u32,
    updated_replicas: u32,
    available_replicas: u32,
    ready_replicas: u32,
    desired_number_scheduled: u32,
    current_number_scheduled: u32,
    number_misscheduled: u32,
    updated_number_scheduled: u32,
    number_available: u32,
    number_ready: u32,
    primary: Option<String>,
    endpoints: Vec<GroupEndpoint>,
}

impl Resource for CachedWorkload {
    type DynamicType = ApiResource;
    type Scope = DynamicResourceScope;

    fn kind(resource: &ApiResource) -> Cow<'_, str> {
        resource.kind.as_str().into()
    }

    fn group(resource: &ApiResource) -> Cow<'_, str> {
        resource.group.as_str().into()
    }

    fn version(resource: &ApiResource) -> Cow<'_, str> {
        resource.version.as_str().into()
    }

    fn api_version(resource: &ApiResource) -> Cow<'_, str> {
        resource.api_version.as_str().into()
    }

    fn plural(resource: &ApiResource) -> Cow<'_, str> {
        resource.plural.as_str().into()
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn deployment(generation: i64, rollout: &str, status: Value) -> CachedWorkload {
        let object = json!({
            "metadata": {
                "name": "web", "generation": generation,
                "annotations": {"deployment.kubernetes.io/revision": rollout, "team": "shop"},
            },
            "spec": {"replicas": 1}, "status": status,
        });
        serde_json::from_str(&object.to_string()).unwrap()
    }

    #[test]
    fn a_write_response_equals_its_watch_event() {
        let text = r#"{"metadata":{"name":"web","generation":2},"spec":{"selector":{},"replicas":1}}"#;
        let event: CachedWorkload = serde_json::from_str(text).unwrap();
        let response: DynamicObject = serde_json::from_str(text).unwrap();
        let response = CachedWorkload::try_from(response).unwrap();
        assert_ne!(response.spec.text.get(), event.spec.text.get(), "one is sorted, the other is not");
        assert!(response.same_for_engine(&event, TargetKind::Deployment));
        let edited = text.replace(":2}", ":3}").replace(":1}", ":5}");
        let edited: CachedWorkload = serde_json::from_str(&edited).unwrap();
        assert!(!response.same_manifest(&edited));
    }

    #[test]
    fn rollout_progress_is_a_change_only_if_it_can_affect_a_decision() {
        let status = |observed: i64, all: u32, updated: u32, ready: u32| {
            json!({
                "observedGeneration": observed, "replicas": all, "updatedReplicas": updated,
                "availableReplicas": ready,
            })
        };
        let states = [
            (deployment(2, "1", status(1, 1, 1, 1)), "its template was written"),
            (deployment(2, "2", status(1, 1, 1, 1)), ""),
            (deployment(2, "2", status(2, 1, 0, 1)), ""),
            (deployment(2, "2", status(2, 2, 1, 1)), ""),
            (deployment(2, "2", status(2, 2, 1, 2)), "one more is ready"),
            (deployment(2, "2", status(2, 1, 1, 1)), "the old one is gone"),
            (deployment(3, "2", status(2, 1, 1, 1)), "it was written again"),
        ];
        for [(before, _), (after, change)] in states.array_windows() {
            assert_eq!(
                before.same_for_engine(after, TargetKind::Deployment),
                change.is_empty(),
                "{change}: {before:?}, {after:?}"
            );
        }
    }
}
