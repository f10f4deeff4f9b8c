//! Objects as the model keeps them: the fields that a rule reads, and no others.

use std::collections::BTreeMap;

use super::fact::{MeshKind, Mode};
use super::key::{Key, Kind};

pub type Labels = BTreeMap<String, String>;

/// One version of one object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Object {
    pub key: Key,
    /// From `resourceVersion`; 0 if it is no number.
    pub version: u64,
    pub generation: Option<i64>,
    /// Of routes only, whose precedence depends on it: RFC 3339 in UTC, which sorts as text.
    pub created: String,
    /// The Argo CD application that owns it.
    pub application: Option<String>,
    pub(super) body: Body,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Body {
    Namespace(Marks),
    Pod(Box<Pod>),
    Workload(Box<WorkloadSpec>),
    Service(ServiceSpec),
    Route(RouteSpec),
    Gateway {
        class: String,
    },
    GatewayClass {
        controller: String,
        accepted: bool,
    },
    /// By `entry/path` of [`super::rules::ConfigMapRule`].
    ConfigMap {
        trust_domain: Option<String>,
    },
    PeerAuthentication {
        mode: String,
        selects_pods: bool,
    },
    RevisionTag {
        tag: String,
        revision: String,
    },
    KumaMesh {
        mtls: bool,
    },
    /// Of Amazon's controller in the cluster.
    VirtualNode {
        mesh: String,
        aws_name: String,
        /// None if it selects no pods, or by expressions.
        selector: Option<Labels>,
    },
    External(super::external::External),
    Canary {
        target: Option<Key>,
    },
    /// Nothing beyond its name is read.
    Presence,
}

/// Labels and annotations.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Marks {
    pub labels: Labels,
    pub annotations: Labels,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Pod {
    pub owner: Key,
    pub generation: Option<i64>,
    pub ready: bool,
    pub proofs: Vec<PodProof>,
    /// From the environment of its proxy, with the field.
    pub virtual_node: Option<(super::external::NodeName, String)>,
    /// Proxy versions by mesh.
    pub proxies: Vec<(MeshKind, String)>,
    /// Container, digest.
    pub digests: Vec<(String, String)>,
}

/// A sign of a mesh on a pod. Its fact names the pod and the workload, which are kept once:
/// pods are most of a cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PodProof {
    pub mesh: MeshKind,
    pub mode: Mode,
    pub revision: Option<String>,
    pub field: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct WorkloadSpec {
    pub labels: Labels,
    pub template: Marks,
    pub service_account: String,
    /// Container, image.
    pub images: Vec<(String, String)>,
    pub desired: u32,
    pub ready: u32,
    /// The Canary that created it.
    pub canary: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ServiceSpec {
    pub ports: Vec<super::service::Port>,
    pub selector: Labels,
    pub reach: Reach,
    pub labels: Labels,
}

/// How clients reach a Service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reach {
    ClusterIp,
    /// By the addresses of its pods.
    Headless,
    /// A name outside of the cluster.
    External,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct RouteSpec {
    /// Services whose callers it routes.
    pub attached: Vec<ServiceRef>,
    /// Services that it sends requests to.
    pub backends: Vec<ServiceRef>,
    /// Gateways and ingress classes that read it.
    pub gateways: Vec<String>,
    pub hostnames: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ServiceRef {
    pub namespace: String,
    pub name: String,
}

impl Object {
    /// A resource that the API server serves, as `plural.group`.
    pub fn served(cluster: &str, resource: &str) -> Self {
        Self {
            key: Key::new(cluster, "", Kind::ServedResource, resource),
            version: 0,
            generation: None,
            created: String::new(),
            application: None,
            body: Body::Presence,
        }
    }

    /// A Canary and the workload that it releases.
    pub fn canary(key: Key, version: u64, target: Option<Key>) -> Self {
        Self {
            key,
            version,
            generation: None,
            created: String::new(),
            application: None,
            body: Body::Canary { target },
        }
    }
}
