//! MeshApi: a mesh, a catalogue or a cluster that is known only through an API.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::{CustomResource, KubeSchema};
use serde::{Deserialize, Serialize};

use super::{Duration, condition::Condition, reference::SecretRef};

/// The label of a Secret that a MeshApi may name; other Secrets are never read.
pub const CREDENTIALS_LABEL: &str = "serin.dev/credentials";
/// Value of [`CREDENTIALS_LABEL`] for a kubeconfig.
pub const KUBERNETES_CREDENTIALS: &str = "kubernetes";
/// Value of [`CREDENTIALS_LABEL`] for keys and tokens of other APIs.
pub const REST_API_CREDENTIALS: &str = "rest-api";

/// Between two listings of App Mesh, if the spec names no interval.
pub const DEFAULT_POLL_INTERVAL: Duration = Duration::from_secs(60);
/// The shortest interval, whatever the spec says.
pub const MIN_POLL_INTERVAL: Duration = Duration::from_secs(30);

/// A mesh that the inventory reads through an API: AWS App Mesh, Consul, or another
/// Kubernetes cluster. It is read from the controller's own namespace only.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, CustomResource, KubeSchema)]
#[kube(
    group = "serin.dev",
    version = "v1alpha1",
    kind = "MeshApi",
    plural = "meshapis",
    namespaced,
    status = "MeshApiStatus",
    derive = "PartialEq",
    category = "serin",
    doc = "A mesh that the inventory reads through an API: AWS App Mesh, Consul, or another Kubernetes cluster. It is read from the controller's own namespace only.",
    printcolumn(
        name = "Ready",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Ready\")].status"
    ),
    printcolumn(name = "Objects", type_ = "integer", json_path = ".status.objects"),
    printcolumn(name = "Listed", type_ = "date", json_path = ".status.lastCompleteListing"),
    printcolumn(
        name = "Message",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Ready\")].message",
        priority = "1"
    ),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
#[schemars(transform = super::schema::tidy)]
#[x_kube(
    validation = ("[has(self.appMesh), has(self.consul), has(self.kubernetes)].filter(set, set).size() == 1",
        "a MeshApi needs exactly one of spec.appMesh, spec.consul and spec.kubernetes"),
    validation = ("!has(self.kubernetes) || has(self.secretRef)",
        "spec.kubernetes needs spec.secretRef: a Secret with the key 'kubeconfig'"),
    validation = ("!has(self.appMesh) || !has(self.appMesh.endpoint) || has(self.secretRef)",
        "spec.appMesh.endpoint needs spec.secretRef: the controller's own credentials are sent to AWS only"),
    validation = ("!has(self.consul) || !has(self.secretRef) || self.consul.address.matches('^(https://|http://(127[.]0[.]0[.]1|localhost)(:|/|$))')",
        "spec.consul.address must begin with https:// where spec.secretRef is set: a token is not sent unencrypted"),
)]
pub struct MeshApiSpec {
    /// AWS App Mesh, and the Cloud Map instances behind its virtual nodes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub app_mesh: Option<AppMeshApi>,

    /// The catalogue of a Consul datacenter.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub consul: Option<ConsulApi>,

    /// Another Kubernetes cluster.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kubernetes: Option<KubernetesApi>,

    /// A Secret in the same namespace with the label `serin.dev/credentials`. For
    /// appMesh its value is rest-api, with the keys `accessKeyId`, `secretAccessKey` and
    /// optionally `sessionToken`, or with `roleArn` and optionally `externalId`; for
    /// consul rest-api, with the key `token`; for kubernetes it is kubernetes, with the
    /// key `kubeconfig`. Default: the controller's own AWS credentials, or no token.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub secret_ref: Option<SecretRef>,
}

/// An account of App Mesh.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct AppMeshApi {
    /// AWS regions to list, such as eu-west-1.
    #[schemars(
        length(min = 1, max = 32),
        inner(length(max = 32), regex(pattern = r"^[a-z]{2}(-[a-z]+)+-[0-9]+$"))
    )]
    pub regions: Vec<String>,

    /// The only account whose meshes are listed. Default: every mesh that the
    /// credentials see, those that other accounts share included.
    #[schemars(regex(pattern = r"^[0-9]{12}$"))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,

    /// URL of App Mesh and Cloud Map, if not the public ones. It needs a secretRef.
    #[schemars(
        length(max = 2048),
        regex(pattern = r"^(https://|http://(127[.]0[.]0[.]1|localhost)(:|/|$))")
    )]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub endpoint: Option<String>,

    /// Time between two listings; each is delayed by up to a tenth of it. Default: 1m.
    #[x_kube(validation = Duration::at_least("30s", "appMesh.pollInterval"))]
    #[x_kube(validation = Duration::at_most("1h", "appMesh.pollInterval", "an older inventory is no inventory"))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub poll_interval: Option<Duration>,
}

/// A datacenter of Consul.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct ConsulApi {
    /// URL of a Consul server or agent, such as https://consul.example.com:8501.
    #[schemars(length(max = 2048), regex(pattern = r"^https?://"))]
    pub address: String,

    /// Name of the datacenter. Default: the datacenter of the server at the address.
    #[schemars(length(min = 1, max = 63))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub datacenter: Option<String>,
}

/// Another cluster. Its objects have the name of the MeshApi as their cluster.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct KubernetesApi {
    /// A context of the kubeconfig. Default: its current context.
    #[schemars(length(min = 1, max = 253))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub context: Option<String>,
}

/// How reading the API goes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(transform = super::schema::tidy)]
pub struct MeshApiStatus {
    /// The generation of the spec that this status is about.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,

    /// When everything was last listed completely. Written when something else changes
    /// and every ten minutes, so it may be ten minutes older than the listing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_complete_listing: Option<Time>,

    /// Meshes in the last complete listing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub meshes: Option<u32>,

    /// Objects of all kinds in the last complete listing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub objects: Option<u32>,

    /// Ready: the last listing was complete. Its message is the error otherwise.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
}
