//! EndpointGroup: a service on machines that no Kubernetes runs, and the version that it is
//! to serve. What a Deployment is to pods, it is to addresses that somebody else deploys to.

use std::net::{IpAddr, SocketAddr};

use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Duration;

/// A service on machines, for Envoys that Serin configures over xDS. A change of
/// `spec.version` is a release of the Canary that targets it; without a Canary all requests
/// follow at once.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, CustomResource, KubeSchema)]
#[kube(
    group = "serin.dev",
    version = "v1alpha1",
    kind = "EndpointGroup",
    plural = "endpointgroups",
    namespaced,
    status = "EndpointGroupStatus",
    derive = "PartialEq",
    doc = "A service on machines, for Envoys that Serin configures over xDS. A change of spec.version is a release of the Canary that targets it.",
    printcolumn(name = "Port", type_ = "integer", json_path = ".spec.port"),
    printcolumn(name = "Version", type_ = "string", json_path = ".spec.version"),
    printcolumn(
        name = "Primary",
        type_ = "string",
        json_path = ".status.primary",
        description = "The version that a Canary promoted last."
    ),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
#[schemars(transform = super::schema::tidy)]
pub struct EndpointGroupSpec {
    /// Port that callers name the service by. It need not be a port of an endpoint.
    #[schemars(range(min = 1, max = 65535))]
    pub port: u16,

    /// What proxies understand of the requests. Default: http.
    #[serde(default, skip_serializing_if = "super::is_default")]
    pub protocol: GroupProtocol,

    /// The version to serve: one of those of the endpoints. Another one than
    /// `status.primary` is released by the Canary.
    #[schemars(length(min = 1, max = 63), regex(pattern = VERSION_PATTERN))]
    pub version: String,

    /// Where the service is served, in any versions.
    #[schemars(length(max = 1000))]
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub endpoints: Vec<GroupEndpoint>,

    /// A service of Consul or AWS Cloud Map whose instances are endpoints as well. They are
    /// in `status.endpoints`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub registry: Option<RegistryService>,

    /// Requests by which proxies find out which endpoints serve. Default: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub health_check: Option<HealthCheck>,

    /// When proxies stop sending requests to an endpoint that they cannot connect to.
    /// Default: after 5 failures, for 10s.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub outlier_detection: Option<OutlierDetection>,
}

/// Key of the version among what selects the endpoints of an arm.
pub const VERSION_LABEL: &str = "version";

/// As the value of a label.
const VERSION_PATTERN: &str = "^[A-Za-z0-9]([-_.A-Za-z0-9]*[A-Za-z0-9])?$";

/// Protocols of a group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum GroupProtocol {
    /// HTTP/1.1.
    #[default]
    Http,
    /// HTTP/2 without TLS, and gRPC.
    Http2,
    /// anything else: connections are forwarded unread.
    Tcp,
}

/// A service of a registry that a MeshApi names.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct RegistryService {
    /// Name of a MeshApi in the controller's namespace: of Consul, or of App Mesh, for Cloud
    /// Map in its regions.
    #[schemars(length(min = 1, max = 253))]
    pub mesh_api: String,

    /// Namespace of the service in Cloud Map; none in Consul.
    #[schemars(length(min = 1, max = 253))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,

    /// Name of the service.
    #[schemars(length(min = 1, max = 253))]
    pub service: String,

    /// Key of an instance's version in its metadata (Consul) or attributes (Cloud Map). An
    /// instance without a version is no endpoint. Default: version.
    #[schemars(length(min = 1, max = 128))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version_key: Option<String>,
}

/// An address of a service.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct GroupEndpoint {
    /// IP address; names are not resolved.
    #[schemars(with = "String", length(max = 45), regex(pattern = "^[0-9A-Fa-f:.]+$"))]
    pub address: IpAddr,

    /// Default: the group's.
    #[schemars(range(min = 1, max = 65535))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,

    /// The version that runs there.
    #[schemars(length(min = 1, max = 63), regex(pattern = VERSION_PATTERN))]
    pub version: String,

    /// Availability zone: proxies of a zone prefer its endpoints.
    #[schemars(length(max = 63))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub zone: Option<String>,

    /// In proportion to other endpoints of the version; 0 gets no new requests. Default: 1.
    #[schemars(range(max = 1000))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub weight: Option<u32>,

    /// As the writer of the group knows it. Default: healthy.
    #[serde(default, skip_serializing_if = "super::is_default")]
    pub health: EndpointHealth,
}

/// Health of an endpoint.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum EndpointHealth {
    /// gets requests.
    #[default]
    Healthy,
    /// finishes its requests, and gets new ones only if no other endpoint is left.
    Draining,
    /// gets none.
    Unhealthy,
}

/// Active health checks by each proxy.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct HealthCheck {
    /// Path of a GET request whose answer must be 200. Default: a connection suffices.
    #[schemars(length(min = 1, max = 1024), regex(pattern = "^/"))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,

    /// Between two requests. Default: 5s.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub interval: Option<Duration>,

    /// Of one request. Default: 1s.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout: Option<Duration>,

    /// Failures in a row until the endpoint gets no more requests. Default: 3.
    #[schemars(range(min = 1, max = 100))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unhealthy_threshold: Option<u32>,

    /// Successes in a row until it gets requests again. Default: 2.
    #[schemars(range(min = 1, max = 100))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub healthy_threshold: Option<u32>,
}

/// Failures to connect only: what an endpoint answers is left to the judge.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct OutlierDetection {
    /// Failed connections in a row. Default: 5.
    #[schemars(range(min = 1, max = 1000))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub connect_failures: Option<u32>,

    /// How long the endpoint gets no requests, the first time. Default: 10s.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ejection_time: Option<Duration>,
}

/// Written by Serin when a Canary initialises and promotes, and when a registry changes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct EndpointGroupStatus {
    /// The version that a Canary promoted last, which serves what is not released.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub primary: Option<String>,
    /// The one before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub previous: Option<String>,
    /// Instances of `spec.registry` as it listed them last.
    #[schemars(length(max = 1000))]
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub endpoints: Vec<GroupEndpoint>,
}

impl EndpointGroupSpec {
    /// With the endpoints of its registry, those of the status.
    pub fn with_registered(mut self, registered: &[GroupEndpoint]) -> Self {
        if self.registry.is_some() {
            self.endpoints.extend_from_slice(registered);
        }
        self
    }

    /// Endpoints that run a version.
    pub fn of_version<'a>(&'a self, version: &'a str) -> impl Iterator<Item = &'a GroupEndpoint> {
        self.endpoints.iter().filter(move |endpoint| endpoint.version == version)
    }

    pub fn address(&self, endpoint: &GroupEndpoint) -> SocketAddr {
        SocketAddr::new(endpoint.address, endpoint.port.unwrap_or(self.port))
    }
}
