//! What a copy of a workload looks like. Pure.
//!
//! Objects are taken as the API server gave them and changed where they must
//! be; whatever else is in them stays.

use std::collections::BTreeMap;

use kube::core::{DynamicObject, ObjectMeta};
use serde_json::{Map, Value, json};

use super::{CachedWorkload, Kind, REVISION, UnsupportedTarget, Workload, configs};
use crate::{api::canary::TargetKind, engine::revision::ConfigRef};

/// On a DaemonSet's node selector: no node has it, so no pod is started.
pub(super) const SCALE_TO_ZERO: &str = "serin.dev/scale-to-zero";

/// A port that a container of the target listens at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Port {
    pub container: String,
    pub name: Option<String>,
    pub number: u16,
}

pub(super) fn replicas(spec: &Value) -> Option<u32> {
    spec["replicas"].as_u64().and_then(|replicas| u32::try_from(replicas).ok())
}

/// The revision that a copy's pods carry.
pub(super) fn template_revision(spec: &Value) -> Option<&str> {
    spec["template"]["metadata"]["annotations"][REVISION].as_str()
}

/// The revision that a workload was made of.
pub(super) fn copied_revision(object: &DynamicObject) -> Option<&str> {
    let annotations = object.metadata.annotations.as_ref();
    template_revision(&object.data["spec"]).or_else(|| annotations?.get(REVISION).map(String::as_str))
}

impl Workload {
    /// What of a target's spec makes its revision.
    pub(super) fn template(&self, spec: &Value) -> Value {
        match self.kind {
            TargetKind::Deployment => spec["template"].clone(),
            TargetKind::DaemonSet => {
                let mut template = spec["template"].clone();
                clear_scale_to_zero(&mut template);
                template
            }
            TargetKind::Service => json!({ "spec": service_spec(spec) }),
        }
    }

    /// The primary, of a target at this revision: a new one, or the present one
    /// changed.
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
            TargetKind::Service => {
                meta.annotations.get_or_insert_default().insert(REVISION.to_owned(), revision.to_owned());
                service_spec(spec)
            }
            TargetKind::Deployment | TargetKind::DaemonSet => {
                let identity = self.identity_label(spec, &self.target)?;
                let own = identity.with_suffix("primary");
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

    /// The previous one: a copy of the primary as it is, of its own identity.
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
            TargetKind::Service => {
                let revision = copied_revision(primary).unwrap_or_default().to_owned();
                meta.annotations.get_or_insert_default().insert(REVISION.to_owned(), revision);
                spec = service_spec(&spec);
            }
            TargetKind::Deployment | TargetKind::DaemonSet => {
                let identity = self.identity_label(&spec, &self.primary_name())?;
                let own = identity.with_suffix("previous");
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

    /// Puts a spec into a workload that exists, which keeps its selector, its
    /// size unless the spec says more, and what others wrote to its metadata;
    /// or makes a new one of it.
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
        let mut renewed = present.clone();
        renewed.types = types;
        self.merge_metadata(&mut renewed.metadata, meta);
        let before = &present.data["spec"];
        match self.kind {
            TargetKind::Service => {
                let mut merged = before.as_object().cloned().unwrap_or_default();
                merged.retain(|field, _| !SERVICE_FIELDS.contains(&field.as_str()) || field == "clusterIP");
                merged.extend(spec.as_object().cloned().unwrap_or_default());
                spec = merged.into();
            }
            TargetKind::Deployment | TargetKind::DaemonSet => {
                if self.kind == TargetKind::Deployment {
                    spec["replicas"] = self.primary_size(replicas(before), replicas(&spec)).into();
                }
                keep_selector(&mut spec, before);
            }
        }
        renewed.data["spec"] = spec;
        renewed
    }

    /// How large the primary is to be after a promotion. An autoscaler or the
    /// steps, where there are any, say how large the canary is; only without
    /// them its size is what people wrote.
    fn primary_size(&self, primary: Option<u32>, target: Option<u32>) -> u32 {
        let written = target.filter(|size| *size > 0);
        match primary {
            Some(size) if self.autoscaler.is_some() || self.sized_by_steps => size,
            size => written.or(size).unwrap_or(1),
        }
    }

    /// What the primary is, to give it back later.
    pub(super) fn backup_of(&self, primary: &DynamicObject) -> DynamicObject {
        let revision = copied_revision(primary).unwrap_or_default();
        let empty = BTreeMap::new();
        DynamicObject {
            types: Some(Kind::ConfigMap.type_meta()),
            metadata: self.copy_metadata(&self.backup_name(), &empty, &empty),
            data: json!({ "data": { "revision": revision, "spec": primary.data["spec"].to_string() } }),
        }
    }

    pub(super) fn backup_name(&self) -> String {
        format!("{}-primary-before", self.target)
    }

    /// The primary with what a record holds, if that is this revision.
    pub(super) fn restore_from_backup(
        &self,
        record: &DynamicObject,
        revision: &str,
        present: &DynamicObject,
    ) -> Option<DynamicObject> {
        let data = &record.data["data"];
        let mut spec: Value = serde_json::from_str(data["spec"].as_str()?).ok()?;
        if data["revision"] != revision {
            return None;
        }
        spec["replicas"] = present.data["spec"]["replicas"].clone();
        let mut restored = present.clone();
        match self.kind {
            TargetKind::Service => {
                let annotations = restored.metadata.annotations.get_or_insert_default();
                annotations.insert(REVISION.to_owned(), revision.to_owned());
            }
            TargetKind::Deployment | TargetKind::DaemonSet => keep_selector(&mut spec, &present.data["spec"]),
        }
        if spec["replicas"].is_null() {
            spec.as_object_mut()?.remove("replicas");
        }
        restored.data["spec"] = spec;
        Some(restored)
    }

    /// The Service that leads to the canary of a target that is a Service.
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

    /// The ports that containers of the target listen at.
    pub fn ports(&self, target: &CachedWorkload) -> Vec<Port> {
        let spec = target.spec();
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

/// A selector cannot change, and the pods must carry what it selects by.
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

/// What of a Service says where it leads; not where it is reached, which each
/// Service has for itself.
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
