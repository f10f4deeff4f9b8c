//! How the workload is reached: the Services and their route.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::KubeSchema;
use kube::core::{Message, Rule};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::api::{Duration, Object};

/// How the workload is reached.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Service {
    /// Name of the apex Service; `-primary` and `-canary` are added for the
    /// two others. Default: the name of the target.
    #[schemars(length(max = 63))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,

    /// Port of the Services.
    #[schemars(range(min = 1, max = 65535))]
    pub port: u16,

    /// Name of the port. Default: http. Istio reads the protocol from it
    /// (`grpc`, `http2`).
    #[schemars(length(max = 63))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub port_name: Option<String>,

    /// Port of the container, by number or name. Default: `port`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target_port: Option<IntOrString>,

    /// Application protocol of the port, such as `kubernetes.io/h2c`.
    #[schemars(length(max = 253))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub app_protocol: Option<String>,

    /// Which endpoints the Services prefer. Default: no preference.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub traffic_distribution: Option<TrafficDistribution>,

    /// Add every port of the containers to the Services. Default: false.
    #[serde(default, skip_serializing_if = "crate::api::is_default")]
    pub port_discovery: bool,

    /// Make the Services headless. Default: false.
    #[serde(default, skip_serializing_if = "crate::api::is_default")]
    pub headless: bool,

    /// How long a request may take. Default: that of the router.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout: Option<Duration>,

    /// How long one attempt at a backend may take, for `gatewayapi`. Default:
    /// that of the router.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backend_timeout: Option<Duration>,

    /// Istio gateways that the VirtualService is bound to. Default: `mesh`.
    #[schemars(length(max = 64))]
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gateways: Vec<String>,

    /// Parents of the HTTPRoute, for `gatewayapi`: Gateways, or Services within
    /// a mesh. Default: the apex Service, within a mesh.
    #[schemars(length(max = 32))]
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gateway_refs: Vec<GatewayRef>,

    /// Host names of the route. Default: the name of the apex Service.
    #[schemars(length(max = 64))]
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hosts: Vec<String>,

    /// Write the VirtualService without hosts and gateways, for another one to
    /// delegate to. Default: false.
    #[serde(default, skip_serializing_if = "crate::api::is_default")]
    pub delegation: bool,

    /// Istio traffic policy of both DestinationRules: load balancer,
    /// connection pool, outlier detection, TLS.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub traffic_policy: Option<Object>,

    /// Requests that the route is for. Default: all.
    #[schemars(length(max = 32))]
    #[serde(default, rename = "match", skip_serializing_if = "Vec::is_empty")]
    pub match_: Vec<HttpMatch>,

    /// Changes to the path or host of the request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rewrite: Option<Rewrite>,

    /// Istio retry policy: `attempts`, `perTryTimeout`, `retryOn`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retries: Option<Object>,

    /// Headers to add, set or remove.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub headers: Option<HeaderOperations>,

    /// Backends that get a copy of every request, for `gatewayapi`. Their
    /// responses are dropped.
    #[schemars(length(max = 16))]
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mirror: Vec<MirrorFilter>,

    /// Istio policy for requests from other origins (CORS).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cors_policy: Option<Object>,

    /// Name of the App Mesh mesh. Default: the one of the namespace; with
    /// `appmesh:aws`, the one that the controller was started with.
    #[schemars(length(max = 255))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mesh_name: Option<String>,

    /// App Mesh services that the workload calls.
    #[schemars(length(max = 256))]
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub backends: Vec<String>,

    /// Labels and annotations of the apex Service.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub apex: Option<Metadata>,

    /// Labels and annotations of the primary Service.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub primary: Option<Metadata>,

    /// Labels and annotations of the canary Service.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub canary: Option<Metadata>,

    /// Labels and annotations on generated objects that belong to another
    /// controller: Serin neither adds, changes nor removes them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unmanaged_metadata: Option<UnmanagedMetadata>,
}

/// Which endpoints a Service prefers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum TrafficDistribution {
    /// those in the same zone; the older name.
    PreferClose,
    /// those in the same zone.
    PreferSameZone,
    /// those on the same node.
    PreferSameNode,
}

/// Conditions on a request, as in Istio. All conditions of one entry must hold;
/// any one entry of a list is enough.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct HttpMatch {
    /// Name of the condition, for logs.
    #[schemars(length(max = 253))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,

    /// Path of the request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uri: Option<StringMatch>,

    /// Scheme of the request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scheme: Option<StringMatch>,

    /// Method of the request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub method: Option<StringMatch>,

    /// Host of the request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub authority: Option<StringMatch>,

    /// Headers of the request, by name in lower case. A cookie is a header:
    ///
    /// ```yaml
    /// cookie:
    ///   regex: "^(.*?;)?(type=insider)(;.*)?$"
    /// ```
    #[schemars(extend("maxProperties" = 16))]
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub headers: BTreeMap<String, StringMatch>,

    /// Headers that the request must not have.
    #[schemars(extend("maxProperties" = 16))]
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub without_headers: BTreeMap<String, StringMatch>,

    /// Query parameters of the request.
    #[schemars(extend("maxProperties" = 16))]
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub query_params: BTreeMap<String, StringMatch>,

    /// Compare the path without regard to case. Default: false.
    #[serde(default, skip_serializing_if = "crate::api::is_default")]
    pub ignore_uri_case: bool,

    /// Port of the request.
    #[schemars(range(min = 1, max = 65535))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,

    /// Labels of the workload that sent the request.
    #[schemars(extend("maxProperties" = 64))]
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub source_labels: BTreeMap<String, String>,

    /// Namespace of the workload that sent the request.
    #[schemars(length(max = 63))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source_namespace: Option<String>,

    /// Istio gateways that the condition is for.
    #[schemars(length(max = 64))]
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gateways: Vec<String>,

    /// Other conditions of the mesh, copied unchanged.
    #[serde(flatten)]
    pub other: BTreeMap<String, Value>,
}

impl HttpMatch {
    /// The rule for a list where an entry without a condition would match every
    /// request.
    pub(super) fn each_has_condition(field: &str) -> Rule {
        let conditions = [
            "uri",
            "scheme",
            "method",
            "authority",
            "headers",
            "withoutHeaders",
            "queryParams",
            "port",
            "sourceLabels",
            "sourceNamespace",
        ];
        let any = conditions.map(|name| format!("has(m.{name})")).join(" || ");
        Rule::new(format!("self.all(m, {any})")).message(Message::Message(format!(
            "an entry of {field} has no condition: it would send all traffic to the canary; add one, such as headers"
        )))
    }
}

/// How a value is compared. Empty: it only has to be present.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[x_kube(
    validation = ("[has(self.exact), has(self.prefix), has(self.suffix), has(self.regex)].filter(x, x).size() <= 1",
        "compare in one way: keep one of exact, prefix, suffix and regex"),
)]
pub struct StringMatch {
    /// Equal to this.
    #[schemars(length(max = 1024))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exact: Option<String>,

    /// Begins with this.
    #[schemars(length(max = 1024))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prefix: Option<String>,

    /// Ends with this.
    #[schemars(length(max = 1024))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub suffix: Option<String>,

    /// Matches this regular expression (RE2) as a whole.
    #[schemars(length(max = 1024))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub regex: Option<String>,
}

/// A Gateway, or another parent of an HTTPRoute.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct GatewayRef {
    /// API group of the parent. Default: gateway.networking.k8s.io.
    #[schemars(length(max = 253))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,

    /// Kind of the parent. Default: Gateway.
    #[schemars(length(min = 1, max = 63))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,

    /// Namespace of the parent. Default: the namespace of the Canary.
    #[schemars(length(min = 1, max = 63))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,

    /// Name of the parent.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,

    /// Listener of the Gateway. Default: every one that matches.
    #[schemars(length(min = 1, max = 253))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub section_name: Option<String>,

    /// Port of the listener. Default: every one that matches.
    #[schemars(range(min = 1, max = 65535))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
}

/// Changes to the path or host of the request.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
pub struct Rewrite {
    /// The new path, or the new beginning of it where the route matched a
    /// prefix.
    #[schemars(length(max = 2048))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uri: Option<String>,

    /// The new host.
    #[schemars(length(max = 253))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub authority: Option<String>,

    /// `ReplacePrefixMatch` or `ReplaceFullPath`, for `gatewayapi`. Default:
    /// ReplaceFullPath.
    #[schemars(length(max = 63))]
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    pub type_: Option<String>,
}

/// Headers to change in the request and the response.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
pub struct HeaderOperations {
    /// Of the request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub request: Option<HeaderChange>,

    /// Of the response.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub response: Option<HeaderChange>,
}

/// Headers to change.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
pub struct HeaderChange {
    /// Headers to add to existing ones.
    #[schemars(extend("maxProperties" = 64))]
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub add: BTreeMap<String, String>,

    /// Headers to set, replacing existing ones.
    #[schemars(extend("maxProperties" = 64))]
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub set: BTreeMap<String, String>,

    /// Headers to remove.
    #[schemars(length(max = 64))]
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub remove: Vec<String>,
}

/// A backend that gets a copy of every request.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct MirrorFilter {
    /// The backend.
    pub backend_ref: BackendRef,

    /// Other fields of the filter, copied unchanged.
    #[serde(flatten)]
    pub other: BTreeMap<String, Value>,
}

/// A backend, as in the Gateway API.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[x_kube(
    validation = ("has(self.port) || (has(self.kind) && self.kind != 'Service') || (has(self.group) && self.group != '')",
        "backendRef.port is missing: a Service needs the port to mirror to"),
)]
pub struct BackendRef {
    /// API group of the backend. Default: the core group.
    #[schemars(length(max = 253))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,

    /// Kind of the backend. Default: Service.
    #[schemars(length(min = 1, max = 63))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,

    /// Name of the backend.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,

    /// Namespace of the backend. Default: the namespace of the Canary.
    #[schemars(length(min = 1, max = 63))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,

    /// Port of the backend.
    #[schemars(range(min = 1, max = 65535))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
}

/// Labels and annotations for a generated object.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
pub struct Metadata {
    /// Labels to add.
    #[schemars(extend("maxProperties" = 256))]
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,

    /// Annotations to add.
    #[schemars(extend("maxProperties" = 256))]
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
}

/// Labels and annotations that belong to another controller.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
pub struct UnmanagedMetadata {
    /// Keys of annotations.
    #[schemars(length(max = 256))]
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub annotations: Vec<String>,

    /// Keys of labels.
    #[schemars(length(max = 256))]
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub labels: Vec<String>,
}
