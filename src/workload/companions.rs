//! What accompanies a target and must follow it at once, not at its next
//! release: the primary's autoscaler and disruption budgets, and the canary's
//! Service where the target is a Service itself. Pure.

use std::{collections::BTreeMap, sync::Arc};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::core::{DynamicObject, ObjectMeta, Selector, SelectorExt};
use serde_json::{Value, json};

use super::{COPY_OF, CachedWorkload, Kind, UnsupportedTarget, Workload, labels, scaler};
use crate::{api::canary::TargetKind, object_cache::ObjectCache};

/// Those that accompany a target. Their status is nobody's affair here.
pub const COMPANION_KINDS: [Kind; 3] =
    [Kind::HorizontalPodAutoscaler, Kind::ScaledObject, Kind::PodDisruptionBudget];

/// One thing to write, see [`Workload::apply_companion_change`].
#[derive(Clone, Debug, PartialEq)]
pub enum CompanionChange {
    Apply(Kind, Box<DynamicObject>),
    Delete(Kind, String),
    /// Keep Flux from taking the target's size for drift.
    DisableDriftDetection,
}

impl Workload {
    /// What to write so that everything that accompanies the target follows it;
    /// nothing while it does. Only for once the primary exists.
    ///
    /// `canary_service` is the Service named after the target with `-canary`
    /// behind, and matters only where the target is a Service.
    pub fn companion_changes(
        &self,
        target: &CachedWorkload,
        canary_service: Option<&CachedWorkload>,
        cache: &dyn ObjectCache,
    ) -> Result<Vec<CompanionChange>, UnsupportedTarget> {
        let mut writes = Vec::new();
        if self.helm_would_resize(&target.metadata) {
            writes.push(CompanionChange::DisableDriftDetection);
        }
        if self.kind == TargetKind::Service {
            let wanted = self.canary_service(target);
            if let Some(present) = canary_service {
                self.check_owner(Kind::Service, &present.metadata)?;
            }
            let follows = canary_service.is_some_and(|present| self.service_matches(&wanted, present));
            if !follows {
                writes.push(CompanionChange::Apply(Kind::Service, Box::new(wanted)));
            }
            return Ok(writes);
        }
        let mut wanted: BTreeMap<(Kind, String), DynamicObject> = BTreeMap::new();
        for (kind, copy) in self.scaler(cache).into_iter().chain(self.budgets(target, cache)?) {
            wanted.insert((kind, copy.metadata.name.clone().unwrap_or_default()), copy);
        }
        for kind in COMPANION_KINDS {
            writes.extend(self.orphaned_copies(kind, &wanted, cache));
        }
        for ((kind, name), copy) in wanted {
            let present = cache.get(kind.resource(), &self.namespace, &name);
            if let Some(present) = &present {
                self.check_owner(kind, &present.metadata)?;
            }
            if !present.is_some_and(|present| self.is_in_sync(&copy, &present)) {
                writes.push(CompanionChange::Apply(kind, Box::new(copy)));
            }
        }
        Ok(writes)
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

    /// A copy of every budget that covers pods of the target and would not
    /// cover those of the primary. Two budgets over one pod would keep it from
    /// ever being evicted.
    fn budgets(
        &self,
        target: &CachedWorkload,
        cache: &dyn ObjectCache,
    ) -> Result<Vec<(Kind, DynamicObject)>, UnsupportedTarget> {
        let sources = cache.list(Kind::PodDisruptionBudget.resource(), &self.namespace);
        if sources.is_empty() {
            return Ok(Vec::new());
        }
        let spec = target.spec();
        let identity = self.identity_label(&spec, &self.target)?;
        let own = identity.with_suffix("primary");
        let labels: BTreeMap<String, String> =
            serde_json::from_value(spec["template"]["metadata"]["labels"].clone()).unwrap_or_default();
        let mut primary_labels = labels.clone();
        primary_labels.extend([own.label()]);
        let covers = |budget: &DynamicObject, labels| selects(&budget.data["spec"]["selector"], labels);
        let copy = |budget: &Arc<DynamicObject>| {
            let mut spec = budget.data["spec"].clone();
            identity.relabel_selector(&mut spec["selector"], &own);
            let name = budget.metadata.name.clone().unwrap_or_default();
            let empty = BTreeMap::new();
            let labels = budget.metadata.labels.as_ref().unwrap_or(&empty);
            let annotations = budget.metadata.annotations.as_ref().unwrap_or(&empty);
            let mut metadata = self.copy_metadata(&format!("{name}-primary"), labels, annotations);
            self.mark_copy(&mut metadata, Kind::PodDisruptionBudget, &name);
            let types = Some(Kind::PodDisruptionBudget.type_meta());
            (Kind::PodDisruptionBudget, DynamicObject { types, metadata, data: json!({ "spec": spec }) })
        };
        let needed = |budget: &&Arc<DynamicObject>| {
            !self.is_copy(&budget.metadata) && covers(budget, &labels) && !covers(budget, &primary_labels)
        };
        Ok(sources.iter().filter(needed).map(copy).collect())
    }

    /// Copies whose original is gone.
    fn orphaned_copies(
        &self,
        kind: Kind,
        wanted: &BTreeMap<(Kind, String), DynamicObject>,
        cache: &dyn ObjectCache,
    ) -> Vec<CompanionChange> {
        let ours = cache.list(kind.resource(), &self.namespace).into_iter().filter(|object| {
            self.is_owner(&object.metadata)
                && self.is_copy(&object.metadata)
                && object.metadata.deletion_timestamp.is_none()
        });
        ours.filter_map(|object| object.metadata.name.clone())
            .filter(|name| !wanted.contains_key(&(kind, name.clone())))
            .map(|name| CompanionChange::Delete(kind, name))
            .collect()
    }

    /// Originals come from the API server, so a copy that follows its original
    /// has exactly its spec.
    fn is_in_sync(&self, wanted: &DynamicObject, present: &DynamicObject) -> bool {
        wanted.data["spec"] == present.data["spec"] && self.metadata_matches(wanted, &present.metadata)
    }

    /// A Service has addresses of its own beside what it was applied with.
    fn service_matches(&self, wanted: &DynamicObject, present: &CachedWorkload) -> bool {
        let spec = present.spec();
        let same = |(field, value): (&String, &Value)| spec.get(field) == Some(value);
        wanted.data["spec"].as_object().into_iter().flatten().all(same)
            && self.metadata_matches(wanted, &present.metadata)
    }

    fn metadata_matches(&self, wanted: &DynamicObject, present: &ObjectMeta) -> bool {
        let contains =
            |present: &Option<BTreeMap<String, String>>, wanted: &Option<BTreeMap<String, String>>| {
                wanted.iter().flatten().all(|(key, value)| {
                    present.as_ref().is_some_and(|present| present.get(key) == Some(value))
                })
            };
        contains(&present.labels, &wanted.metadata.labels)
            && contains(&present.annotations, &wanted.metadata.annotations)
            && self.is_owner(present)
    }

    fn is_copy(&self, meta: &ObjectMeta) -> bool {
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

/// Does a budget's selector select pods of these labels? An empty one selects
/// all; none at all selects none.
fn selects(selector: &Value, labels: &BTreeMap<String, String>) -> bool {
    serde_json::from_value::<Option<LabelSelector>>(selector.clone())
        .ok()
        .flatten()
        .and_then(|selector| Selector::try_from(selector).ok())
        .is_some_and(|selector| selector.matches(labels))
}
