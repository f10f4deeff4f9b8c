//! Labels and annotations: the identity label of primary and target, copied
//! metadata, and annotations that exclude objects from GitOps tools.

use std::collections::BTreeMap;

use kube::core::ObjectMeta;
use serde_json::Value;

use super::{COPY_OF, CachedWorkload, Kind, UnsupportedTarget, Workload};
use crate::api::canary::TargetKind;

/// The longest label value that leaves room for `-previous`.
pub(super) const MAX_LABEL: usize = 63 - "-previous".len();

/// On every object that Serin creates, so that Flux and Argo CD neither prune nor
/// reset it.
const GITOPS_IGNORE: [(&str, &str); 4] = [
    ("kustomize.toolkit.fluxcd.io/reconcile", "disabled"),
    HELM_IGNORE_DRIFT,
    ("argocd.argoproj.io/compare-options", "IgnoreExtraneous"),
    ("argocd.argoproj.io/sync-options", "Prune=false"),
];
/// On a target of a Flux HelmRelease, so that its size is not reverted as drift.
/// A new chart or new values are still applied.
pub(super) const HELM_IGNORE_DRIFT: (&str, &str) = ("helm.toolkit.fluxcd.io/driftDetection", "disabled");
/// The label of objects of a Flux HelmRelease.
pub(super) const HELM_RELEASE: &str = "helm.toolkit.fluxcd.io/name";

/// Metadata by which other tools claim an object: never copied.
const TOOL_MARKERS: [&str; 9] = [
    "serin.dev/",
    "flagger.app/",
    "toolkit.fluxcd.io",
    "argocd.argoproj.io/",
    "meta.helm.sh/",
    "app.kubernetes.io/managed-by",
    "kubectl.kubernetes.io/last-applied-configuration",
    "deployment.kubernetes.io/",
    "deprecated.daemonset.template.generation",
];

/// Labels that select the pods of each workload.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selectors {
    pub canary: BTreeMap<String, String>,
    pub primary: BTreeMap<String, String>,
    pub previous: BTreeMap<String, String>,
}

/// The label whose value differs between target, primary and previous version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct IdentityLabel {
    key: String,
    value: String,
}

impl IdentityLabel {
    pub fn with_suffix(&self, suffix: &str) -> Self {
        let base = self.value.strip_suffix("-primary").unwrap_or(&self.value);
        Self { key: self.key.clone(), value: format!("{base}-{suffix}") }
    }

    /// Gives the pods of a template the identity `to`, also in affinities and
    /// topology spread constraints.
    pub fn relabel_template(&self, template: &mut Value, to: &IdentityLabel) {
        template["metadata"]["labels"][&self.key] = to.value.as_str().into();
        let spec = &mut template["spec"];
        for constraint in list(spec, "/topologySpreadConstraints") {
            self.relabel_at(constraint, "/labelSelector", to);
        }
        for affinity in ["podAffinity", "podAntiAffinity"] {
            let required = format!("/affinity/{affinity}/requiredDuringSchedulingIgnoredDuringExecution");
            for term in list(spec, &required) {
                self.relabel_at(term, "/labelSelector", to);
            }
            let preferred = format!("/affinity/{affinity}/preferredDuringSchedulingIgnoredDuringExecution");
            for term in list(spec, &preferred) {
                self.relabel_at(term, "/podAffinityTerm/labelSelector", to);
            }
        }
    }

    fn relabel_at(&self, value: &mut Value, pointer: &str, to: &IdentityLabel) {
        if let Some(selector) = value.pointer_mut(pointer) {
            self.relabel_selector(selector, to);
        }
    }

    /// Makes a selector of this identity select `to` instead.
    pub fn relabel_selector(&self, selector: &mut Value, to: &IdentityLabel) {
        if let Some(value) = selector.pointer_mut("/matchLabels").and_then(|labels| labels.get_mut(&self.key))
            && *value == self.value
        {
            *value = to.value.as_str().into();
        }
        for expression in list(selector, "/matchExpressions") {
            if expression["key"] == self.key {
                for value in list(expression, "/values").filter(|value| **value == self.value) {
                    *value = to.value.as_str().into();
                }
            }
        }
    }

    pub fn label(&self) -> (String, String) {
        (self.key.clone(), self.value.clone())
    }
}

fn list<'v>(value: &'v mut Value, pointer: &str) -> impl Iterator<Item = &'v mut Value> {
    value.pointer_mut(pointer).and_then(Value::as_array_mut).into_iter().flatten()
}

impl Workload {
    /// Labels by which Services select the pods of each workload. Empty for a
    /// target of kind Service: its copies have selectors of their own.
    pub fn selectors(&self, target: &CachedWorkload) -> Result<Selectors, UnsupportedTarget> {
        if self.kind == TargetKind::Service {
            return Ok(Selectors::default());
        }
        let spec = target.spec();
        let identity = self.identity_label(&spec, &self.target)?;
        let canary: BTreeMap<String, String> =
            serde_json::from_value(spec["selector"]["matchLabels"].clone()).unwrap_or_default();
        let relabelled = |suffix| {
            let mut labels = canary.clone();
            labels.extend([identity.with_suffix(suffix).label()]);
            labels
        };
        Ok(Selectors { primary: relabelled("primary"), previous: relabelled("previous"), canary })
    }

    /// The label that identifies a workload: a well-known one, else one with the
    /// workload's name as value, else any.
    pub(super) fn identity_label(
        &self,
        spec: &Value,
        name: &str,
    ) -> Result<IdentityLabel, UnsupportedTarget> {
        let none = Value::default();
        let labels = spec.pointer("/selector/matchLabels").unwrap_or(&none);
        let all = || labels.as_object().into_iter().flatten();
        let well_known = self.options.identity_labels.iter().find_map(|key| Some((key, labels.get(key)?)));
        let (key, value) = well_known
            .or_else(|| all().find(|(_, value)| *value == name))
            .or_else(|| all().next())
            .and_then(|(key, value)| Some((key, value.as_str()?)))
            .ok_or_else(|| UnsupportedTarget::NoIdentityLabel {
                kind: self.kind().name(),
                name: name.to_owned(),
            })?;
        if value.len() > MAX_LABEL + if name == self.target { 0 } else { "-previous".len() } {
            return Err(UnsupportedTarget::LabelTooLong { key: key.clone(), name: name.to_owned() });
        }
        Ok(IdentityLabel { key: key.clone(), value: value.to_owned() })
    }

    /// Metadata of a copy of an object with these labels and annotations.
    pub(super) fn copy_metadata(
        &self,
        name: &str,
        labels: &BTreeMap<String, String>,
        annotations: &BTreeMap<String, String>,
    ) -> ObjectMeta {
        let mut annotations = self.copied(annotations);
        annotations.extend(GITOPS_IGNORE.map(|(key, value)| (key.to_owned(), value.to_owned())));
        ObjectMeta {
            name: Some(name.to_owned()),
            namespace: Some(self.namespace.clone()),
            labels: Some(self.copied(labels)),
            annotations: Some(annotations),
            owner_references: Some(vec![self.owner.clone()]),
            ..Default::default()
        }
    }

    /// Merges it into existing metadata: copied keys that the original lost are
    /// removed, keys of others stay.
    pub(super) fn merge_metadata(&self, meta: &mut ObjectMeta, fresh: ObjectMeta) {
        for (old, new) in [(&mut meta.labels, fresh.labels), (&mut meta.annotations, fresh.annotations)] {
            let old = old.get_or_insert_default();
            old.retain(|key, _| !self.is_copied(key));
            old.extend(new.unwrap_or_default());
        }
        if !self.is_owner(meta) {
            meta.owner_references.get_or_insert_default().push(self.owner.clone());
        }
    }

    pub(super) fn mark_copy(&self, meta: &mut ObjectMeta, kind: Kind, of: &str) {
        let annotations = meta.annotations.get_or_insert_default();
        annotations.insert(COPY_OF.to_owned(), format!("{}/{of}", kind.name()));
    }

    fn copied(&self, map: &BTreeMap<String, String>) -> BTreeMap<String, String> {
        map.iter()
            .filter(|(key, _)| self.is_copied(key))
            .map(|(key, value)| (key.clone(), value.clone()))
            .collect()
    }

    fn is_copied(&self, key: &str) -> bool {
        let matches =
            |prefix: &String| prefix == "*" || (!prefix.is_empty() && key.starts_with(prefix.as_str()));
        self.options.prefixes.iter().any(matches) && !TOOL_MARKERS.iter().any(|marker| key.contains(marker))
    }
}
