//! MeshRoute: where the requests for a Service go, for proxies that Serin configures
//! over xDS. The provider `xds` writes one per Canary; people may write others.

use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{
    Duration, Percent,
    canary::{
        HttpMatch,
        service::{HeaderOperations, Rewrite},
    },
};

/// Where the requests for a Service go. The first rule that matches a request applies;
/// a request that none matches goes to the Service itself.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, CustomResource, KubeSchema)]
#[kube(
    group = "serin.dev",
    version = "v1alpha1",
    kind = "MeshRoute",
    plural = "meshroutes",
    namespaced,
    status = "MeshRouteStatus",
    derive = "PartialEq",
    doc = "Where the requests for a Service go, for Envoys that Serin configures over xDS. The provider xds writes one for each Canary.",
    printcolumn(name = "Service", type_ = "string", json_path = ".spec.service"),
    printcolumn(name = "Port", type_ = "integer", json_path = ".spec.port"),
    printcolumn(
        name = "Refused",
        type_ = "integer",
        json_path = ".status.refused",
        description = "Proxies that refused it."
    ),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
#[schemars(transform = super::schema::tidy)]
pub struct MeshRouteSpec {
    /// The Service that clients call, in the same namespace.
    #[schemars(length(min = 1, max = 63))]
    pub service: String,

    /// Port of the Service.
    #[schemars(range(min = 1, max = 65535))]
    pub port: u16,

    /// Further host names that clients call it by.
    #[schemars(length(max = 64))]
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hosts: Vec<String>,

    /// In order of precedence.
    #[schemars(length(max = 64))]
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rules: Vec<MeshRouteRule>,
}

/// Requests, and where they go.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = ("self.backends.exists(b, b.weight > 0)",
        "the weights of backends add up to 0: no request could be answered"),
)]
pub struct MeshRouteRule {
    /// Requests that match any of these. Default: all.
    #[schemars(length(max = 32))]
    #[serde(default, rename = "match", skip_serializing_if = "Vec::is_empty")]
    pub match_: Vec<HttpMatch>,

    /// Where they go, by weight.
    #[schemars(length(min = 1, max = 16))]
    pub backends: Vec<MeshRouteBackend>,

    /// A Service that gets a copy of them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mirror: Option<MeshRouteMirror>,

    /// How long a request may take. Default: no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout: Option<Duration>,

    /// Repeats failed requests. Default: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retries: Option<MeshRouteRetries>,

    /// Headers to add, set or remove.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub headers: Option<HeaderOperations>,

    /// Changes to the path or host of the request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rewrite: Option<Rewrite>,
}

/// A share of the requests.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct MeshRouteBackend {
    /// A Service in the same namespace.
    #[schemars(length(min = 1, max = 63))]
    pub service: String,

    /// Its port. Default: `spec.port`.
    #[schemars(range(min = 1, max = 65535))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,

    /// Only its endpoints of this version, if the service is an EndpointGroup.
    #[schemars(length(min = 1, max = 63))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,

    /// In proportion to the other weights of the rule.
    #[schemars(range(max = 10000))]
    pub weight: u16,

    /// `Set-Cookie` of its responses.
    #[schemars(length(max = 4096))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub set_cookie: Option<String>,
}

/// A Service that gets a copy of requests. Its responses are dropped.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct MeshRouteMirror {
    /// A Service in the same namespace.
    #[schemars(length(min = 1, max = 63))]
    pub service: String,

    /// Its port. Default: `spec.port`.
    #[schemars(range(min = 1, max = 65535))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,

    /// Only its endpoints of this version, if the service is an EndpointGroup.
    #[schemars(length(min = 1, max = 63))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,

    /// How many of the requests. Default: all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub percent: Option<Percent>,
}

/// How failed requests are repeated.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct MeshRouteRetries {
    /// How often, beside the first attempt.
    #[schemars(range(min = 1, max = 10))]
    pub attempts: u8,

    /// How long one attempt may take. Default: the rest of `timeout`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub per_try_timeout: Option<Duration>,

    /// Envoy's conditions, separated by commas. Default: connect-failure,refused-stream.
    #[schemars(length(max = 253))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry_on: Option<String>,
}

/// What the proxies of a MeshRoute made of it. Written by Serin when it changes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct MeshRouteStatus {
    /// Proxies of all replicas that refused the newest generation.
    #[serde(default, skip_serializing_if = "super::is_default")]
    pub refused: u32,

    /// By replica of the controller: a proxy is connected to one of them.
    #[schemars(length(max = 16), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub replicas: Vec<MeshRouteReplica>,
}

/// The proxies that are connected to a replica of the controller.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct MeshRouteReplica {
    /// Name of the replica.
    pub name: String,
    /// The generation of the MeshRoute that the numbers are of.
    #[serde(default, skip_serializing_if = "super::is_default")]
    pub generation: i64,
    /// Proxies that subscribe to the route.
    #[serde(default, skip_serializing_if = "super::is_default")]
    pub proxies: u32,
    /// Those that use this generation.
    #[serde(default, skip_serializing_if = "super::is_default")]
    pub acknowledged: u32,
    /// Those that refused this generation.
    #[serde(default, skip_serializing_if = "super::is_default")]
    pub refused: u32,
    /// Name of a proxy that refused it, and its reason.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refusal: Option<String>,
}
