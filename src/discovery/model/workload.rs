//! A workload of the inventory.

use serde::Serialize;

use super::external::VirtualNodeBinding;
use super::fact::{Fact, MeshKind, Mode, Strength};
use super::key::Key;
use super::releasable::Releasable;

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Workload {
    pub key: Key,
    /// The meshes with the strongest facts; more than one is a conflict.
    pub meshes: Vec<Membership>,
    pub role: Role,
    pub service_account: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub spiffe: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    pub images: Vec<Image>,
    pub desired: u32,
    pub ready: u32,
    /// Services that select its pods.
    pub services: Vec<Key>,
    pub releasable: Vec<Releasable>,
    /// Of each provider, even where another reason comes first in `releasable`: a changed
    /// one may change the choice of a Canary's provider.
    #[serde(skip)]
    pub(super) obstacles: Vec<Option<String>>,
    /// The virtual nodes of App Mesh that its pods are.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub virtual_nodes: Vec<VirtualNodeBinding>,
    /// Signs of its virtual node that contradict each other, one sentence each.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub disagreements: Vec<String>,
    pub facts: Vec<Fact>,
}

/// Of a workload in a mesh.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Membership {
    pub mesh: MeshKind,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode: Option<Mode>,
    pub strength: Strength,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub revision: Option<String>,
    /// `namespace/name`, in ambient mode.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waypoint: Option<String>,
    pub proxy_versions: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Role {
    App,
    Gateway,
    Waypoint,
    ControlPlane,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Image {
    pub container: String,
    pub image: String,
    /// Of the running pods; several during a rollout.
    pub digests: Vec<String>,
}

impl Workload {
    /// The one mesh that claims it.
    pub fn mesh(&self) -> Option<&Membership> {
        match &self.meshes[..] {
            [mesh] => Some(mesh),
            _ => None,
        }
    }
}
