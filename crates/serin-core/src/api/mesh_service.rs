//! MeshService: a Service that discovery found, and the routes that touch it. Written
//! by Serin.

use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::inventory::{BoundedList, InventoryRef};

/// A Service of a cluster, and every route object that touches it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, CustomResource, JsonSchema)]
#[kube(
    group = "serin.dev",
    version = "v1alpha1",
    kind = "MeshService",
    plural = "meshservices",
    namespaced,
    derive = "PartialEq",
    category = "serin-inventory",
    doc = "A Service that Serin found: its workloads, and every route object that touches it in order of precedence. Written by Serin; edits are refused or overwritten.",
    printcolumn(name = "Service", type_ = "string", json_path = ".spec.ref.name"),
    printcolumn(name = "Ports", type_ = "string", json_path = ".spec.ports.items"),
    printcolumn(name = "Workloads", type_ = "string", json_path = ".spec.workloads.items"),
    printcolumn(name = "Route That Wins", type_ = "string", json_path = ".spec.winner"),
    printcolumn(name = "Cluster", type_ = "string", json_path = ".spec.cluster", priority = "1")
)]
#[serde(rename_all = "camelCase")]
#[schemars(transform = super::schema::tidy)]
pub struct MeshServiceSpec {
    /// The cluster that it is in.
    pub cluster: String,

    /// The Service.
    #[serde(rename = "ref")]
    pub reference: InventoryRef,

    /// Ports, as `80/http`.
    #[serde(default, skip_serializing_if = "BoundedList::is_empty")]
    pub ports: BoundedList,

    /// Clients connect to pods, and no route can split that.
    #[serde(default, skip_serializing_if = "super::is_default")]
    pub headless: bool,

    /// A name outside of the cluster.
    #[serde(default, skip_serializing_if = "super::is_default")]
    pub external: bool,

    /// Workloads whose pods it selects.
    #[serde(default, skip_serializing_if = "BoundedList::is_empty")]
    pub workloads: BoundedList,

    /// Version labels of these workloads.
    #[serde(default, skip_serializing_if = "BoundedList::is_empty")]
    pub versions: BoundedList,

    /// The route object that decides where callers in the mesh go.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub winner: Option<String>,

    /// Every route object that touches it, in order of precedence, each with its
    /// outcome.
    #[serde(default, skip_serializing_if = "BoundedList::is_empty")]
    pub routes: BoundedList,
}
