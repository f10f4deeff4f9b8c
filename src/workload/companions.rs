//! Companions of a target, which are copied at once, not with its next release:
//! the primary's autoscaler and disruption budget, and the canary's Service where
//! the target is a Service. Pure.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::core::{DynamicObject, ObjectMeta, Selector, SelectorExt};
use serde_json::{Value, json};

use super::{
    COPY_OF, CachedWorkload, Kind, UnsupportedTarget, Workload,
    labels::{self, pod_labels},
    scaler,
};
use crate::{api::canary::TargetKind, object_cache::ObjectCache};

/// Kinds of companions. Their status is not read.
pub const COMPANION_KINDS: [Kind; 3] =
    [Kind::HorizontalPodAutoscaler, Kind::ScaledObject, Kind::PodDisruptionBudget];

/// One write, see [`Workload::apply_companion_change`].
#[derive(Clone, Debug, PartialEq)]
pub enum CompanionChange {
    Apply(Kind, Box<DynamicObject>),
    Delete(Kind, String),
    /// Annotate the target, so that Flux does not revert its size as drift.
    DisableDriftDetection,
}

impl CompanionChange {
    /// The attempt, for reports.
    pub fn name(&self) -> String {
        match self {
            Self::Apply(kind, object) => {
                format!("apply {} {}", kind.name(), object.metadata.name.as_deref().unwrap_or_default())
            }
            Self::Delete(kind, name) => format!("delete {} {name}", kind.name()),
            Self::DisableDriftDetection => "disable drift detection".to_owned(),
        }
    }
}

impl Workload {
    /// The writes that bring companions in sync with the target, and the objects
    /// that are in their way. Only once the primary exists.
    ///
    /// `canary_service` is the Service with the target's name and `-canary`, used
    /// only where the target is a Service.
    pub fn companion_changes(
        &self,
        target: &CachedWorkload,
        primary: &CachedWorkload,
        canary_service: Option<&CachedWorkload>,
        cache: &dyn ObjectCache,
    ) -> Vec<Result<CompanionChange, UnsupportedTarget>> {
        let mut writes = Vec::new();
        if self.kind == TargetKind::EndpointGroup {
            return writes;
        }
        if self.helm_would_resize(&target.metadata) {
            writes.push(Ok(CompanionChange::DisableDriftDetection));
        }
        if self.kind == TargetKind::Service {
            let desired = self.canary_service(target);
            let in_sync = canary_service.is_some_and(|present| self.service_matches(&desired, present));
            if !in_sync {
                let present = canary_service.map(|present| &present.metadata);
                writes.push(self.apply_change(Kind::Service, desired, present));
            }
            return writes;
        }
        let mut desired: BTreeMap<(Kind, String), DynamicObject> = BTreeMap::new();
        for (kind, copy) in self.scaler(cache).into_iter().chain(self.budget(target, primary, cache)) {
            desired.insert((kind, copy.metadata.name.clone().unwrap_or_default()), copy);
        }
        for kind in COMPANION_KINDS {
            writes.extend(self.orphaned_copies(kind, &desired, cache).into_iter().map(Ok));
        }
        for ((kind, name), copy) in desired {
            let present = cache.get(kind.resource(), &self.namespace, &name);
            if !present.as_ref().is_some_and(|present| self.is_in_sync(&copy, present)) {
                writes.push(self.apply_change(kind, copy, present.as_ref().map(|present| &present.metadata)));
            }
        }
        writes
    }

    fn apply_change(
        &self,
        kind: Kind,
        desired: DynamicObject,
        present: Option<&ObjectMeta>,
    ) -> Result<CompanionChange, UnsupportedTarget> {
        present.map_or(Ok(()), |present| self.check_companion(kind, present))?;
        Ok(CompanionChange::Apply(kind, Box::new(desired)))
    }

    fn scaler(&self, cache: &dyn ObjectCache) -> Option<(Kind, DynamicObject)> {
        let reference = self.autoscaler.as_ref()?;
        let kind = Kind::from(reference.kind);
        let get = |name: &str| cache.get(kind.resource(), &self.namespace, name);
        let source = get(&reference.name)?;
        let present = get(&format!("{}-primary", reference.name));
        let pin = present.as_deref().and_then(scaler::pin_of);
        Some((kind, self.scaler_copy(reference, &source, pin)))
    }

    /// A copy, for the pods of the primary, of the budget that covers the target's;
    /// none if another budget covers the primary's. A pod with two budgets cannot be
    /// evicted.
    fn budget(
        &self,
        target: &CachedWorkload,
        primary: &CachedWorkload,
        cache: &dyn ObjectCache,
    ) -> Option<(Kind, DynamicObject)> {
        let kind = Kind::PodDisruptionBudget;
        let mut budgets = cache.list(kind.resource(), &self.namespace);
        budgets.retain(|budget| !(self.is_copy(&budget.metadata) && self.is_owner(&budget.metadata)));
        let primary = primary.spec();
        let (pods, primary_pods) = (pod_labels(&target.spec()), pod_labels(&primary));
        let covers = |budget: &DynamicObject, pods| selects(&budget.data["spec"]["selector"], pods);
        if budgets.iter().any(|budget| covers(budget, &primary_pods)) {
            return None;
        }
        let covering = budgets.iter().filter(|budget| covers(budget, &pods));
        let source = covering.min_by_key(|budget| budget.metadata.name.clone())?;
        let mut spec = source.data["spec"].clone();
        spec["selector"] = primary["selector"].clone();
        let name = source.metadata.name.clone().unwrap_or_default();
        let empty = BTreeMap::new();
        let labels = source.metadata.labels.as_ref().unwrap_or(&empty);
        let annotations = source.metadata.annotations.as_ref().unwrap_or(&empty);
        let mut metadata = self.copy_metadata(&format!("{name}-primary"), labels, annotations);
        self.mark_copy(&mut metadata, kind, &name);
        let types = Some(kind.type_meta());
        Some((kind, DynamicObject { types, metadata, data: json!({ "spec": spec }) }))
    }

    /// Copies that are not needed any more.
    fn orphaned_copies(
        &self,
        kind: Kind,
        desired: &BTreeMap<(Kind, String), DynamicObject>,
        cache: &dyn ObjectCache,
    ) -> Vec<CompanionChange> {
        let ours = cache.list(kind.resource(), &self.namespace).into_iter().filter(|object| {
            self.is_owner(&object.metadata)
                && self.is_copy(&object.metadata)
                && object.metadata.deletion_timestamp.is_none()
        });
        ours.filter_map(|object| object.metadata.name.clone())
            .filter(|name| !desired.contains_key(&(kind, name.clone())))
            .map(|name| CompanionChange::Delete(kind, name))
            .collect()
    }

    /// Originals have the defaults of the API server, so specs must be equal.
    fn is_in_sync(&self, desired: &DynamicObject, present: &DynamicObject) -> bool {
        desired.data["spec"] == present.data["spec"] && self.metadata_matches(desired, &present.metadata)
    }

    /// A Service has further fields of its own, such as addresses.
    fn service_matches(&self, desired: &DynamicObject, present: &CachedWorkload) -> bool {
        let spec = present.spec();
        let same = |(field, value): (&String, &Value)| spec.get(field) == Some(value);
        desired.data["spec"].as_object().into_iter().flatten().all(same)
            && self.metadata_matches(desired, &present.metadata)
    }

    fn metadata_matches(&self, desired: &DynamicObject, present: &ObjectMeta) -> bool {
        let contains =
            |present: &Option<BTreeMap<String, String>>, desired: &Option<BTreeMap<String, String>>| {
                desired.iter().flatten().all(|(key, value)| {
                    present.as_ref().is_some_and(|present| present.get(key) == Some(value))
                })
            };
        contains(&present.labels, &desired.metadata.labels)
            && contains(&present.annotations, &desired.metadata.annotations)
            && self.is_owner(present)
    }

    pub(super) fn is_copy(&self, meta: &ObjectMeta) -> bool {
        meta.annotations.as_ref().is_some_and(|annotations| annotations.contains_key(COPY_OF))
    }

    fn helm_would_resize(&self, target: &ObjectMeta) -> bool {
        let (key, value) = labels::HELM_IGNORE_DRIFT;
        let by_helm = target.labels.as_ref().is_some_and(|labels| labels.contains_key(labels::HELM_RELEASE));
        let disabled =
            target.annotations.as_ref().and_then(|a| a.get(key)).is_some_and(|disabled| disabled == value);
        by_helm && !disabled
    }
}

/// True if a budget's selector matches these labels. An empty selector matches
/// all pods, a missing one none.
fn selects(selector: &Value, labels: &BTreeMap<String, String>) -> bool {
    serde_json::from_value::<Option<LabelSelector>>(selector.clone())
        .ok()
        .flatten()
        .and_then(|selector| Selector::try_from(selector).ok())
        .is_some_and(|selector| selector.matches(labels))
}
