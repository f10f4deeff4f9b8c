//! Mesh: a mesh or gateway that discovery found. Written by Serin.

use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::inventory::BoundedList;

/// A mesh or gateway of a cluster, as Serin found it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, CustomResource, JsonSchema)]
#[kube(
    group = "serin.dev",
    version = "v1alpha1",
    kind = "Mesh",
    plural = "meshes",
    derive = "PartialEq",
    category = "serin-inventory",
    doc = "A mesh or gateway that Serin found. Written by Serin; edits are refused or overwritten.",
    printcolumn(name = "Cluster", type_ = "string", json_path = ".spec.cluster"),
    printcolumn(name = "Kind", type_ = "string", json_path = ".spec.kind"),
    printcolumn(name = "Version", type_ = "string", json_path = ".spec.version"),
    printcolumn(name = "Control Plane", type_ = "string", json_path = ".spec.controlPlane"),
    printcolumn(name = "Healthy", type_ = "boolean", json_path = ".spec.healthy"),
    printcolumn(name = "mTLS", type_ = "string", json_path = ".spec.mtls"),
    printcolumn(
        name = "Namespaces",
        type_ = "integer",
        json_path = ".spec.namespaces.count",
        priority = "1"
    )
)]
#[serde(rename_all = "camelCase")]
#[schemars(transform = super::schema::tidy)]
pub struct MeshSpec {
    /// The cluster that it is in.
    pub cluster: String,

    /// `istio`, `linkerd`, `gateway` and so on.
    pub kind: String,

    /// Its name in the inventory: the kind, with the revision of a control plane that
    /// has one; the controller name of a gateway.
    pub name: String,

    /// Version of the control plane.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,

    /// Revision of the control plane.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revision: Option<String>,

    /// Other names of that revision.
    #[serde(default, skip_serializing_if = "BoundedList::is_empty")]
    pub tags: BoundedList,

    /// Namespace and name of the control plane.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub control_plane: Option<String>,

    /// Are all replicas of the control plane ready?
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub healthy: Option<bool>,

    /// How workloads take part: sidecar, native sidecar, ambient.
    #[serde(default, skip_serializing_if = "BoundedList::is_empty")]
    pub modes: BoundedList,

    /// The mode of mutual TLS of the whole mesh.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mtls: Option<String>,

    /// The trust domain of identities.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trust_domain: Option<String>,

    /// Namespaces with workloads in it.
    #[serde(default, skip_serializing_if = "BoundedList::is_empty")]
    pub namespaces: BoundedList,

    /// Versions of proxies that differ from the control plane's.
    #[serde(default, skip_serializing_if = "BoundedList::is_empty")]
    pub skew: BoundedList,

    /// How it is known.
    #[serde(default, skip_serializing_if = "BoundedList::is_empty")]
    pub evidence: BoundedList,
}
