//! Checks before anything is written: whose an object is, and whether the target's
//! pods can be reached. Pure.

use k8s_openapi::apimachinery::pkg::{apis::meta::v1::OwnerReference, util::intstr::IntOrString};
use kube::core::ObjectMeta;
use serde_json::Value;

use super::{CachedWorkload, Kind, UnsupportedTarget, Workload};
use crate::api::{Canary, canary::TargetKind};

/// On a primary that nobody's Canary made: `"true"` lets Serin overwrite it.
const ADOPT: &str = "serin.dev/adopt";

/// The port of the pods, as far as it can be checked before they run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum TargetPort {
    /// A number that the user wrote, which containers need not declare; or the port
    /// of a Service of the user's.
    Unchecked,
    Named(String),
    /// The default: the port of the Service.
    Implied(u16),
    /// The port of an EndpointGroup, which has no other.
    OfGroup(u16),
}

impl TargetPort {
    pub fn of(canary: &Canary) -> Self {
        let service = canary.spec.service.as_ref();
        if canary.spec.target_ref.kind == TargetKind::EndpointGroup {
            return service.map_or(Self::Unchecked, |service| Self::OfGroup(service.port));
        }
        match service.filter(|_| canary.spec.target_ref.kind != TargetKind::Service) {
            None => Self::Unchecked,
            Some(service) => match &service.target_port {
                Some(IntOrString::String(name)) => Self::Named(name.clone()),
                None | Some(IntOrString::Int(0)) => Self::Implied(service.port),
                Some(IntOrString::Int(_)) => Self::Unchecked,
            },
        }
    }
}

impl Workload {
    /// Rejects a target that is the primary of a Canary.
    pub fn check_target_owner(&self, target: &CachedWorkload) -> Result<(), UnsupportedTarget> {
        match controller_of(&target.metadata).filter(|owner| owner.kind == "Canary") {
            None => Ok(()),
            Some(owner) => Err(UnsupportedTarget::TargetIsPrimary {
                kind: self.kind().name(),
                name: self.target.clone(),
                canary: owner.name.clone(),
            }),
        }
    }

    /// Rejects a target whose pods cannot be distinguished from the primary's.
    pub fn check_target_labels(
        &self,
        target: &CachedWorkload,
        primary: Option<&CachedWorkload>,
    ) -> Result<(), UnsupportedTarget> {
        match (self.kind, primary) {
            (TargetKind::Service | TargetKind::EndpointGroup, _) => Ok(()),
            (_, None) => self.selectors(Some(target), None, None).map(|_| ()),
            (_, Some(primary)) => self.check_overlap(&target.spec(), &primary.spec()),
        }
    }

    /// Rejects a target without the port that the Services would send requests to.
    pub fn check_target_port(&self, target: &CachedWorkload) -> Result<(), UnsupportedTarget> {
        if let TargetPort::OfGroup(port) = self.target_port {
            return self.check_group_port(target, port);
        }
        let declared = declared_ports(&target.spec());
        let is_unknown = match &self.target_port {
            TargetPort::Unchecked | TargetPort::OfGroup(_) => false,
            TargetPort::Named(name) => {
                !declared.iter().any(|(declared, _)| declared.as_deref() == Some(name))
            }
            TargetPort::Implied(port) => {
                !declared.is_empty() && !declared.iter().any(|(_, declared)| declared == port)
            }
        };
        if !is_unknown {
            return Ok(());
        }
        let (kind, target) = (self.kind().name(), self.target.clone());
        let list = |(name, number): &(Option<String>, u16)| match name {
            Some(name) => format!("{name} ({number})"),
            None => number.to_string(),
        };
        let declared = match declared.is_empty() {
            true => "none".to_owned(),
            false => declared.iter().map(list).collect::<Vec<_>>().join(", "),
        };
        Err(match &self.target_port {
            TargetPort::Implied(port) => {
                UnsupportedTarget::ImpliedPort { kind, target, port: *port, declared }
            }
            TargetPort::Named(name) => {
                UnsupportedTarget::NamedPort { kind, target, name: name.clone(), declared }
            }
            TargetPort::Unchecked | TargetPort::OfGroup(_) => return Ok(()),
        })
    }

    /// Rejects objects with another controller.
    pub(super) fn check_owner(&self, kind: Kind, meta: &ObjectMeta) -> Result<(), UnsupportedTarget> {
        match controller_of(meta) {
            Some(other) if other.uid != self.owner.uid => Err(UnsupportedTarget::OwnedByOther {
                kind: kind.name(),
                name: meta.name.clone().unwrap_or_default(),
                owner: format!("{} {}", other.kind, other.name),
            }),
            _ => Ok(()),
        }
    }

    /// Rejects a primary or previous version that is not ours to overwrite: it has
    /// another controller, or no Canary made it and nobody lets Serin adopt it.
    /// `revision` is the one that it is a copy of.
    pub(super) fn check_copy(
        &self,
        meta: &ObjectMeta,
        revision: Option<&str>,
    ) -> Result<(), UnsupportedTarget> {
        self.check_owner(self.kind(), meta)?;
        let annotations = meta.annotations.as_ref();
        let adopted = annotations.and_then(|all| all.get(ADOPT)).is_some_and(|adopt| adopt == "true");
        if self.is_owner(meta) || revision.is_some() || adopted {
            return Ok(());
        }
        let name = meta.name.clone().unwrap_or_default();
        Err(UnsupportedTarget::NotAdopted { kind: self.kind().name(), name })
    }

    /// Rejects a companion that is no copy of ours.
    pub(super) fn check_companion(&self, kind: Kind, meta: &ObjectMeta) -> Result<(), UnsupportedTarget> {
        self.check_owner(kind, meta)?;
        if self.is_owner(meta) || self.is_copy(meta) {
            return Ok(());
        }
        let name = meta.name.clone().unwrap_or_default();
        Err(UnsupportedTarget::ForeignCompanion { kind: kind.name(), name })
    }

    pub(super) fn is_owner(&self, meta: &ObjectMeta) -> bool {
        controller_of(meta).is_some_and(|owner| owner.uid == self.owner.uid)
    }
}

fn controller_of(meta: &ObjectMeta) -> Option<&OwnerReference> {
    meta.owner_references.iter().flatten().find(|owner| owner.controller == Some(true))
}

/// Name and number of each port of a pod template's containers, sidecars included.
fn declared_ports(spec: &Value) -> Vec<(Option<String>, u16)> {
    let pods = &spec["template"]["spec"];
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let sidecars = list(&pods["initContainers"]).into_iter().filter(|init| init["restartPolicy"] == "Always");
    let containers = list(&pods["containers"]).into_iter().chain(sidecars);
    let port = |port: Value| {
        let number = u16::try_from(port["containerPort"].as_u64()?).ok()?;
        Some((port["name"].as_str().map(str::to_owned), number))
    };
    containers.flat_map(|container| list(&container["ports"])).filter_map(port).collect()
}
