//! Labels and annotations: the identity label of primary and target, copied
//! metadata, and annotations that exclude objects from GitOps tools.

use std::collections::BTreeMap;

use kube::core::ObjectMeta;
use serde_json::Value;

use super::{COPY_OF, CachedWorkload, Kind, UnsupportedTarget, Workload, endpoint_group};
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

type Labels = BTreeMap<String, String>;

/// Labels that select the pods of each workload.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selectors {
    pub canary: Labels,
    pub primary: Labels,
    pub previous: Labels,
}

/// The label whose value differs between target, primary and previous version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct IdentityLabel {
    key: String,
    value: String,
}

impl IdentityLabel {
    /// The target's, as its primary has it.
    pub fn of_primary(&self) -> Self {
        self.with_value(format!("{}-primary", self.value))
    }

    /// The primary's, as the previous version has it.
    pub fn of_previous(&self) -> Self {
        self.with_value(format!("{}-previous", self.base()))
    }

    /// The primary's, as its target has it.
    fn of_target(&self) -> Self {
        self.with_value(self.base().to_owned())
    }

    fn base(&self) -> &str {
        self.value.strip_suffix("-primary").unwrap_or(&self.value)
    }

    fn with_value(&self, value: String) -> Self {
        Self { key: self.key.clone(), value }
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

/// `spec.selector.matchLabels` of a Deployment or DaemonSet.
pub(super) fn match_labels(spec: &Value) -> Labels {
    serde_json::from_value(spec["selector"]["matchLabels"].clone()).unwrap_or_default()
}

/// Labels of the pods of a Deployment or DaemonSet.
pub(super) fn pod_labels(spec: &Value) -> Labels {
    serde_json::from_value(spec["template"]["metadata"]["labels"].clone()).unwrap_or_default()
}

fn relabelled(labels: &Labels, identity: &IdentityLabel) -> Labels {
    let mut labels = labels.clone();
    labels.extend([identity.label()]);
    labels
}

impl Workload {
    /// Labels by which Services select the pods of each workload: its own selector,
    /// since a target may be recreated with another one; that of a missing workload
    /// is derived from another's. None if neither target nor primary exists. Empty
    /// for a target of kind Service: its copies have selectors of their own. Of an
    /// EndpointGroup they are the versions.
    pub fn selectors(
        &self,
        target: Option<&CachedWorkload>,
        primary: Option<&CachedWorkload>,
        previous: Option<&CachedWorkload>,
    ) -> Result<Option<Selectors>, UnsupportedTarget> {
        match self.kind {
            TargetKind::Service => return Ok(Some(Selectors::default())),
            TargetKind::EndpointGroup => return Ok(target.and_then(endpoint_group::selectors)),
            TargetKind::Deployment | TargetKind::DaemonSet => {}
        }
        let own = |workload: &CachedWorkload| match_labels(&workload.spec());
        let (canary, primary) = match (target.map(own), primary.map(own)) {
            (Some(canary), Some(primary)) => (canary, primary),
            (Some(canary), None) => {
                let identity = self.identity_label(&canary, &self.target)?.of_primary();
                let primary = relabelled(&canary, &identity);
                (canary, primary)
            }
            (None, Some(primary)) => {
                let identity = self.identity_label(&primary, &self.primary_name())?.of_target();
                (relabelled(&primary, &identity), primary)
            }
            (None, None) => return Ok(None),
        };
        let previous = match previous.filter(|previous| self.is_owner(&previous.metadata)) {
            Some(previous) => own(previous),
            None => {
                let identity = self.identity_label(&primary, &self.primary_name())?.of_previous();
                relabelled(&primary, &identity)
            }
        };
        Ok(Some(Selectors { canary, primary, previous }))
    }

    /// Rejects a target whose pods the primary's selector would match, or the other
    /// way round, now or after a promotion.
    pub(super) fn check_overlap(&self, target: &Value, primary: &Value) -> Result<(), UnsupportedTarget> {
        let (selector, primary_selector) = (match_labels(target), match_labels(primary));
        let identity = self.identity_label(&selector, &self.target)?;
        let mut promoted = relabelled(&pod_labels(target), &self.primary_identity(&identity, Some(primary)));
        promoted.extend(primary_selector.clone());
        let selects = |selector: &Labels, pods: &Labels| {
            selector.iter().all(|(key, value)| pods.get(key) == Some(value))
        };
        let overlap = selects(&selector, &pod_labels(primary))
            || selects(&selector, &promoted)
            || selects(&primary_selector, &pod_labels(target));
        match overlap {
            false => Ok(()),
            true => Err(UnsupportedTarget::SharedPods {
                kind: self.kind().name(),
                target: self.target.clone(),
                primary: self.primary_name(),
            }),
        }
    }

    /// The identity label of a primary: the one in the selector of an existing one,
    /// which is immutable, if it differs from the target's.
    pub(super) fn primary_identity(&self, target: &IdentityLabel, primary: Option<&Value>) -> IdentityLabel {
        let present = primary.and_then(|spec| match_labels(spec).remove(&target.key));
        match present.filter(|value| *value != target.value) {
            Some(value) => target.with_value(value),
            None => target.of_primary(),
        }
    }

    /// The label that identifies a workload: a well-known one, else one with the
    /// workload's name as value, else any.
    pub(super) fn identity_label(
        &self,
        selector: &Labels,
        name: &str,
    ) -> Result<IdentityLabel, UnsupportedTarget> {
        let well_known = self.options.identity_labels.iter().find_map(|key| selector.get_key_value(key));
        let (key, value) = well_known
            .or_else(|| selector.iter().find(|(_, value)| *value == name))
            .or_else(|| selector.iter().next())
            .ok_or_else(|| UnsupportedTarget::NoIdentityLabel {
                kind: self.kind().name(),
                name: name.to_owned(),
            })?;
        if value.len() > MAX_LABEL + if name == self.target { 0 } else { "-previous".len() } {
            return Err(UnsupportedTarget::LabelTooLong { key: key.clone(), name: name.to_owned() });
        }
        Ok(IdentityLabel { key: key.clone(), value: value.clone() })
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
