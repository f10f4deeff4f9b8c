//! Facts and their evidence.

use std::fmt;

use serde::Serialize;

use super::key::Key;

/// The listing that a fact came from. Pruning never crosses a source.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Source {
    /// The API server of this cluster.
    Kubernetes { cluster: String },
    /// App Mesh and Cloud Map in a region of an account.
    AppMesh { account: String, region: String },
    /// The catalogue of a datacenter.
    Consul { datacenter: String },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Strength {
    /// The cluster serves its kinds, or a control plane exists.
    Installed,
    /// A namespace or a workload opted in.
    Enabled,
    /// A pod proves it.
    Participating,
}

/// The part of an object that a fact was read from.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Evidence {
    pub object: Key,
    /// Path of the field, with its value where the value matters.
    pub field: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub generation: Option<i64>,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Fact {
    pub source: Source,
    pub subject: Key,
    pub strength: Strength,
    pub mesh: MeshKind,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode: Option<Mode>,
    /// Istio's revision or tag, as the evidence has it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub revision: Option<String>,
    pub evidence: Evidence,
    /// Objects that show the same, for example the pods of a workload.
    pub count: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum MeshKind {
    Istio,
    Linkerd,
    Kuma,
    Consul,
    Cilium,
    AppMesh,
    Osm,
    /// SMI's kinds, whichever mesh reads them.
    Smi,
    /// An implementation of the Gateway API.
    Gateway,
}

impl MeshKind {
    pub fn name(self) -> &'static str {
        match self {
            Self::Istio => "istio",
            Self::Linkerd => "linkerd",
            Self::Kuma => "kuma",
            Self::Consul => "consul",
            Self::Cilium => "cilium",
            Self::AppMesh => "app-mesh",
            Self::Osm => "osm",
            Self::Smi => "smi",
            Self::Gateway => "gateway",
        }
    }
}

/// How a mesh reaches the traffic of a workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    Sidecar,
    /// A sidecar that is an init container with `restartPolicy: Always`.
    NativeSidecar,
    /// Istio's ztunnel, with a waypoint or without.
    Ambient,
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Sidecar => "sidecar",
            Self::NativeSidecar => "native sidecar",
            Self::Ambient => "ambient",
        })
    }
}

impl fmt::Display for Strength {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Installed => "installed",
            Self::Enabled => "enabled",
            Self::Participating => "participating",
        })
    }
}
