//! Manifests of workload copies. Pure.
//!
//! Objects are copied as JSON and changed only where they must be; unknown fields
//! stay.

use std::collections::BTreeMap;

use kube::core::{DynamicObject, ObjectMeta};
use serde_json::{Map, Value, json};

use super::{
    CachedWorkload, Kind, REVISION, UnsupportedTarget, Workload, configs, endpoint_group,
    labels::match_labels,
};
use crate::{api::canary::TargetKind, engine::revision::ConfigRef};

/// In a DaemonSet's node selector: no node has this label, so no pod is
/// scheduled.
pub(super) const SCALE_TO_ZERO: &str = "serin.dev/scale-to-zero";

/// A container port of the target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Port {
    pub container: String,
    pub name: Option<String>,
    pub number: u16,
}

pub(super) fn replicas(spec: &Value) -> Option<u32> {
    spec["replicas"].as_u64().and_then(|replicas| u32::try_from(replicas).ok())
}

/// The revision in the annotation of a copy's pods.
pub(super) fn template_revision(spec: &Value) -> Option<&str> {
    spec["template"]["metadata"]["annotations"][REVISION].as_str()
}

/// The revision of the target that a workload is a copy of.
pub(super) fn copied_revision(object: &DynamicObject) -> Option<&str> {
    let annotations = object.metadata.annotations.as_ref();
    template_revision(&object.data["spec"]).or_else(|| annotations?.get(REVISION).map(String::as_str))
}

impl Workload {
    /// The part of a target's spec that its revision is computed from.
    pub(super) fn template(&self, spec: &Value) -> Value {
        match self.kind {
            TargetKind::Deployment => spec["template"].clone(),
            TargetKind::DaemonSet => {
                let mut template = spec["template"].clone();
                clear_scale_to_zero(&mut template);
                template
            }
            TargetKind::Service => json!({ "spec": service_spec(spec) }),
            TargetKind::EndpointGroup => Value::Null,
        }
    }

    /// The primary for a target at this revision: new, or merged into the present
    /// one.
    pub(super) fn primary_manifest(
        &self,
        target: &DynamicObject,
        revision: &str,
        copies: &BTreeMap<ConfigRef, String>,
        present: Option<&DynamicObject>,
    ) -> Result<DynamicObject, UnsupportedTarget> {
        let spec = &target.data["spec"];
        let empty = BTreeMap::new();
        let labels = target.metadata.labels.as_ref().unwrap_or(&empty);
        let annotations = target.metadata.annotations.as_ref().unwrap_or(&empty);
        let mut meta = self.copy_metadata(&self.primary_name(), labels, annotations);
        let spec = match self.kind {
            TargetKind::Service | TargetKind::EndpointGroup => {
                meta.annotations.get_or_insert_default().insert(REVISION.to_owned(), revision.to_owned());
                service_spec(spec)
            }
            TargetKind::Deployment | TargetKind::DaemonSet => {
                let identity = self.identity_label(&match_labels(spec), &self.target)?;
                let own = self.primary_identity(&identity, present.map(|present| &present.data["spec"]));
                meta.labels.get_or_insert_default().extend([own.label()]);
                let mut spec = spec.clone();
                identity.relabel_selector(&mut spec["selector"], &own);
                let mut template = self.template(&spec);
                identity.relabel_template(&mut template, &own);
                configs::point_to_copies(&mut template, copies);
                template["metadata"]["annotations"][REVISION] = revision.into();
                spec["template"] = template;
                spec
            }
        };
        Ok(self.merge_into(present, meta, spec))
    }

    /// The previous version: a copy of the primary with its own identity label.
    pub(super) fn previous_manifest(
        &self,
        primary: &DynamicObject,
        present: Option<&DynamicObject>,
    ) -> Result<DynamicObject, UnsupportedTarget> {
        let empty = BTreeMap::new();
        let mut meta = self.copy_metadata(
            &self.previous_name(),
            primary.metadata.labels.as_ref().unwrap_or(&empty),
            &empty,
        );
        let mut spec = primary.data["spec"].clone();
        let size = spec["replicas"].clone();
        match self.kind {
            TargetKind::Service | TargetKind::EndpointGroup => {
                let revision = copied_revision(primary).unwrap_or_default().to_owned();
                meta.annotations.get_or_insert_default().insert(REVISION.to_owned(), revision);
                spec = service_spec(&spec);
            }
            TargetKind::Deployment | TargetKind::DaemonSet => {
                let identity = self.identity_label(&match_labels(&spec), &self.primary_name())?;
                let own = identity.of_previous();
                meta.labels.get_or_insert_default().extend([own.label()]);
                identity.relabel_selector(&mut spec["selector"], &own);
                identity.relabel_template(&mut spec["template"], &own);
            }
        }
        let mut previous = self.merge_into(present, meta, spec);
        if !size.is_null() {
            previous.data["spec"]["replicas"] = size;
        }
        Ok(previous)
    }

    /// Merges a spec into an existing workload, which keeps its selector, its size
    /// (see [`primary_size`](Self::primary_size)) and metadata of others; or
    /// creates a new one.
    fn merge_into(
        &self,
        present: Option<&DynamicObject>,
        meta: ObjectMeta,
        mut spec: Value,
    ) -> DynamicObject {
        let types = Some(self.kind().type_meta());
        if let Some(spec) = spec.as_object_mut() {
            spec.remove("paused");
        }
        let Some(present) = present else {
            if self.kind == TargetKind::Deployment {
                spec["replicas"] = replicas(&spec).unwrap_or(1).max(1).into();
            }
            return DynamicObject { types, metadata: meta, data: json!({ "spec": spec }) };
        };
        let mut merged_object = present.clone();
        merged_object.types = types;
        self.merge_metadata(&mut merged_object.metadata, meta);
        let before = &present.data["spec"];
        match self.kind {
            TargetKind::Service | TargetKind::EndpointGroup => spec = merge_service_spec(before, &spec),
            TargetKind::Deployment | TargetKind::DaemonSet => {
                if self.kind == TargetKind::Deployment {
                    spec["replicas"] = self.primary_size(replicas(before), replicas(&spec)).into();
                }
                keep_selector(&mut spec, before);
            }
        }
        merged_object.data["spec"] = spec;
        merged_object
    }

    /// The primary's replicas after a promotion. The target's are the user's only
    /// if neither an autoscaler nor the steps set them.
    fn primary_size(&self, primary: Option<u32>, target: Option<u32>) -> u32 {
        let users = target.filter(|size| *size > 0);
        match primary {
            Some(size) if self.autoscaler.is_some() || self.sized_by_steps => size,
            size => users.or(size).unwrap_or(1),
        }
    }

    /// The primary with the spec of a backup, if that is of this revision.
    pub(super) fn restore_from_backup(
        &self,
        mut spec: Value,
        revision: &str,
        present: &DynamicObject,
    ) -> Option<DynamicObject> {
        spec["replicas"] = present.data["spec"]["replicas"].clone();
        let mut restored = present.clone();
        match self.kind {
            TargetKind::Service | TargetKind::EndpointGroup => {
                let annotations = restored.metadata.annotations.get_or_insert_default();
                annotations.insert(REVISION.to_owned(), revision.to_owned());
                spec = merge_service_spec(&present.data["spec"], &service_spec(&spec));
            }
            TargetKind::Deployment | TargetKind::DaemonSet => keep_selector(&mut spec, &present.data["spec"]),
        }
        if spec["replicas"].is_null() {
            spec.as_object_mut()?.remove("replicas");
        }
        restored.data["spec"] = spec;
        Some(restored)
    }

    /// A primary that does not exist any more, with this spec of a backup.
    pub(super) fn recreate_from_backup(
        &self,
        mut spec: Value,
        revision: &str,
        size: Option<u32>,
    ) -> Option<DynamicObject> {
        let empty = BTreeMap::new();
        let mut metadata = self.copy_metadata(&self.primary_name(), &empty, &empty);
        match self.kind {
            TargetKind::Service | TargetKind::EndpointGroup => {
                metadata.annotations.get_or_insert_default().insert(REVISION.to_owned(), revision.to_owned());
                spec = service_spec(&spec);
            }
            TargetKind::Deployment | TargetKind::DaemonSet => {
                let identity = self.identity_label(&match_labels(&spec), &self.primary_name()).ok()?;
                metadata.labels.get_or_insert_default().extend([identity.label()]);
            }
        }
        if self.kind == TargetKind::Deployment {
            spec["replicas"] = size.or(replicas(&spec)).unwrap_or(1).max(1).into();
        }
        Some(DynamicObject { types: Some(self.kind().type_meta()), metadata, data: json!({ "spec": spec }) })
    }

    /// The Service that selects the canary, for a target of kind Service.
    pub(super) fn canary_service(&self, target: &CachedWorkload) -> DynamicObject {
        let empty = BTreeMap::new();
        let labels = target.metadata.labels.as_ref().unwrap_or(&empty);
        let annotations = target.metadata.annotations.as_ref().unwrap_or(&empty);
        let mut metadata = self.copy_metadata(&self.canary_service_name(), labels, annotations);
        self.mark_copy(&mut metadata, Kind::Service, &self.target);
        DynamicObject {
            types: Some(Kind::Service.type_meta()),
            metadata,
            data: json!({ "spec": service_spec(&target.spec()) }),
        }
    }

    pub fn ports(&self, target: &CachedWorkload) -> Vec<Port> {
        let spec = target.spec();
        if self.kind == TargetKind::EndpointGroup {
            return endpoint_group::ports(&spec);
        }
        let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
        let text = |value: &Value| value.as_str().map(str::to_owned);
        let of_container = |container: Value| {
            let name = text(&container["name"]).unwrap_or_default();
            list(&container["ports"]).into_iter().filter_map(move |port| {
                let number = u16::try_from(port["containerPort"].as_u64()?).ok()?;
                Some(Port { container: name.clone(), name: text(&port["name"]), number })
            })
        };
        list(&spec["template"]["spec"]["containers"]).into_iter().flat_map(of_container).collect()
    }
}

/// A selector is immutable, and the pods must have its labels.
fn keep_selector(spec: &mut Value, before: &Value) {
    spec["selector"] = before["selector"].clone();
    for (key, value) in before["selector"]["matchLabels"].as_object().into_iter().flatten() {
        spec["template"]["metadata"]["labels"][key] = value.clone();
    }
}

fn clear_scale_to_zero(template: &mut Value) {
    let Some(spec) = template.pointer_mut("/spec").and_then(Value::as_object_mut) else { return };
    if let Some(nodes) = spec.get_mut("nodeSelector").and_then(Value::as_object_mut) {
        nodes.remove(SCALE_TO_ZERO);
        if nodes.is_empty() {
            spec.remove("nodeSelector");
        }
    }
}

/// Fields of a Service that are copied: selection and ports, not its addresses,
/// except for a headless one.
const SERVICE_FIELDS: [&str; 8] = [
    "selector",
    "ports",
    "externalName",
    "publishNotReadyAddresses",
    "sessionAffinity",
    "sessionAffinityConfig",
    "trafficDistribution",
    "clusterIP",
];

/// The present spec of a Service with the copied fields of another.
fn merge_service_spec(present: &Value, copied: &Value) -> Value {
    let mut merged = present.as_object().cloned().unwrap_or_default();
    merged.retain(|field, _| !SERVICE_FIELDS.contains(&field.as_str()) || field == "clusterIP");
    merged.extend(copied.as_object().cloned().unwrap_or_default());
    merged.into()
}

fn service_spec(spec: &Value) -> Value {
    let mut fields = spec.as_object().cloned().unwrap_or_default();
    let external = fields.get("type").is_some_and(|kind| kind == "ExternalName");
    fields.retain(|field, value| {
        SERVICE_FIELDS.contains(&field.as_str()) && (field != "clusterIP" || value == "None")
    });
    if external {
        fields.insert("type".to_owned(), "ExternalName".into());
    }
    for port in fields.get_mut("ports").and_then(Value::as_array_mut).into_iter().flatten() {
        port.as_object_mut().map(|port: &mut Map<_, _>| port.remove("nodePort"));
    }
    fields.into()
}
