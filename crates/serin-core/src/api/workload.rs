//! Workload: a workload that discovery found. Written by Serin.

use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::inventory::{BoundedList, InventoryRef};

/// A workload of a cluster: its mesh, and by which provider it can be released.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, CustomResource, JsonSchema)]
#[kube(
    group = "serin.dev",
    version = "v1alpha1",
    kind = "Workload",
    plural = "workloads",
    namespaced,
    derive = "PartialEq",
    category = "serin-inventory",
    doc = "A workload that Serin found: its mesh, its identity, and by which provider it can be released. Written by Serin; edits are refused or overwritten.",
    printcolumn(name = "Kind", type_ = "string", json_path = ".spec.ref.kind"),
    printcolumn(name = "Workload", type_ = "string", json_path = ".spec.ref.name"),
    printcolumn(name = "Mesh", type_ = "string", json_path = ".spec.meshes.items"),
    printcolumn(name = "Strength", type_ = "string", json_path = ".spec.strength"),
    printcolumn(name = "Release By", type_ = "string", json_path = ".spec.releasableBy.items"),
    printcolumn(name = "Cluster", type_ = "string", json_path = ".spec.cluster", priority = "1")
)]
#[serde(rename_all = "camelCase")]
#[schemars(transform = super::schema::tidy)]
pub struct WorkloadSpec {
    /// The cluster that it is in.
    pub cluster: String,

    /// The workload.
    #[serde(rename = "ref")]
    pub reference: InventoryRef,

    /// `app`, `gateway`, `waypoint` or `control-plane`.
    pub role: String,

    /// The meshes that it is in, each with its mode; more than one is a conflict.
    #[serde(default, skip_serializing_if = "BoundedList::is_empty")]
    pub meshes: BoundedList,

    /// `participating` if a pod proves the mesh, `enabled` if it is only opted in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub strength: Option<String>,

    /// Its SPIFFE id, or its ServiceAccount.
    pub identity: String,

    /// The version label of its pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,

    /// Images of its containers.
    #[serde(default, skip_serializing_if = "BoundedList::is_empty")]
    pub images: BoundedList,

    /// Services that select its pods.
    #[serde(default, skip_serializing_if = "BoundedList::is_empty")]
    pub services: BoundedList,

    /// Providers that can release it.
    #[serde(default, skip_serializing_if = "BoundedList::is_empty")]
    pub releasable_by: BoundedList,

    /// Why each other provider cannot, as `provider: sentence`.
    #[serde(default, skip_serializing_if = "BoundedList::is_empty")]
    pub not_releasable_by: BoundedList,

    /// How the mesh is known.
    #[serde(default, skip_serializing_if = "BoundedList::is_empty")]
    pub evidence: BoundedList,
}
