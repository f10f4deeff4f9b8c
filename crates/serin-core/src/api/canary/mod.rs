//! Canary: how the revisions of one workload are released.
//!
//! Every field of Flagger's Canary, with the same name and meaning, and Serin's
//! own: [`step::Step`], judges, [`release::ReleaseWindow`],
//! [`release::Rollback`], weights below one percent.

pub mod analysis;
pub mod hook;
pub mod metric;
pub mod release;
pub mod service;
pub mod status;
pub mod step;

use std::collections::BTreeMap;

use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use analysis::{Analysis, OnBrokenPod, SessionAffinity};
pub use hook::{Alert, HookType, Severity, Webhook};
pub use metric::Metric;
pub use release::{ReleaseWindow, Rollback, WindowKind};
pub use service::{HttpMatch, Service, StringMatch};
pub use status::{CanaryStatus, Phase};
pub use step::Step;

use super::reference::ObjectRef;

/// How the revisions of one workload are released: the workload, how traffic
/// reaches it, how traffic moves to a new revision, and the conditions for its
/// promotion.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, CustomResource, KubeSchema)]
#[kube(
    group = "serin.dev",
    version = "v1alpha1",
    kind = "Canary",
    namespaced,
    status = "CanaryStatus",
    derive = "PartialEq",
    category = "all",
    category = "serin",
    shortname = "can",
    doc = "Releases every new revision of a workload step by step: traffic moves to it in small weights, metrics judge each step, and it is promoted or rolled back automatically.",
    printcolumn(name = "Status", type_ = "string", json_path = ".status.state"),
    printcolumn(name = "Weight", type_ = "string", json_path = ".status.canaryWeight"),
    printcolumn(name = "Step", type_ = "string", json_path = ".status.step.progress"),
    printcolumn(name = "Image", type_ = "string", json_path = ".status.image"),
    printcolumn(name = "Phase", type_ = "string", json_path = ".status.phase", priority = "1"),
    printcolumn(name = "Suspended", type_ = "boolean", json_path = ".spec.suspend", priority = "1"),
    printcolumn(name = "FailedChecks", type_ = "string", json_path = ".status.failedChecks", priority = "1"),
    printcolumn(name = "Interval", type_ = "string", json_path = ".spec.analysis.interval", priority = "1"),
    printcolumn(name = "Mirror", type_ = "boolean", json_path = ".spec.analysis.mirror", priority = "1"),
    printcolumn(
        name = "StepWeight",
        type_ = "string",
        json_path = ".spec.analysis.stepWeight",
        priority = "1"
    ),
    printcolumn(
        name = "StepWeights",
        type_ = "string",
        json_path = ".spec.analysis.stepWeights",
        priority = "1"
    ),
    printcolumn(
        name = "MaxWeight",
        type_ = "string",
        json_path = ".spec.analysis.maxWeight",
        priority = "1"
    ),
    printcolumn(
        name = "LastTransitionTime",
        type_ = "string",
        json_path = ".status.lastTransitionTime",
        priority = "1"
    ),
    printcolumn(name = "Message", type_ = "string", json_path = ".status.message")
)]
#[serde(rename_all = "camelCase")]
#[schemars(transform = crate::api::schema::tidy)]
#[x_kube(
    validation = ("has(self.service) || self.targetRef.kind == 'Service'",
        "spec.service is missing: set spec.service.port to the port that the workload is reached at"),
)]
pub struct CanarySpec {
    /// The router that applies the traffic weights. Default: the mesh detected
    /// for the target, else the one that the controller was started with.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub provider: Option<Provider>,

    /// URL of the Prometheus that built-in metrics are read from. Default: the
    /// one that the controller was started with.
    #[schemars(length(max = 2048))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub metrics_server: Option<String>,

    /// The workload to release. Each change of its pod template, or of a
    /// ConfigMap or Secret it uses, is a new revision. It cannot be changed: the
    /// primary of one workload is no primary of another.
    #[x_kube(validation = ("self == oldSelf",
        "spec.targetRef cannot be changed: delete this Canary and create one for the other workload"))]
    pub target_ref: TargetRef,

    /// The autoscaler of the target. It is copied for the primary, so that both
    /// scale independently.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub autoscaler_ref: Option<AutoscalerRef>,

    /// The Ingress that routes to the target, for `nginx` and `skipper`.
    #[x_kube(validation = ("self.kind == 'Ingress'", "ingressRef.kind must be Ingress"))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ingress_ref: Option<ObjectRef>,

    /// The ApisixRoute that routes to the target, for `apisix`.
    #[x_kube(validation = ("self.kind == 'ApisixRoute'", "routeRef.kind must be ApisixRoute"))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub route_ref: Option<ObjectRef>,

    /// The Gloo Upstream whose settings are copied to the generated upstreams,
    /// for `gloo`.
    #[x_kube(validation = ("self.kind == 'Upstream'", "upstreamRef.kind must be Upstream"))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub upstream_ref: Option<ObjectRef>,

    /// How the workload is reached: Services for the apex, the primary and the
    /// canary, and their route object, are generated from this. Required except
    /// for a Knative Service.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub service: Option<Service>,

    /// How a new revision is released.
    ///
    /// Exactly one of four fields defines how traffic moves. `stepWeight` and
    /// `stepWeights` raise the canary's share from step to step. `iterations`
    /// keeps the share and counts checks: with `match` that is A/B testing,
    /// without it Blue/Green. `steps` lists explicit steps.
    ///
    /// `metrics` and `webhooks` define the conditions. At every `interval` the
    /// metrics are measured and judged. A check that passes advances the
    /// release; one that fails counts towards `threshold`, and at `threshold` the
    /// release is rolled back; one that is inconclusive does neither. For
    /// example:
    ///
    /// ```yaml
    /// analysis:
    ///   interval: 1m
    ///   threshold: 5
    ///   stepWeights: [1, 5, 20, 50]
    ///   metrics:
    ///   - name: request-success-rate
    ///   - name: request-duration
    ///     thresholdRange: {max: 500}
    /// ```
    pub analysis: Analysis,

    /// Seconds that a release may make no progress before it is rolled back: no
    /// further pod becomes ready, a route is not in force, a write is refused. It
    /// starts again with every pod that becomes ready, and stands still while the
    /// release is suspended, paused, or outside its release windows. For metrics
    /// without data see `analysis.noDataDeadlineSeconds`. Default: 600.
    #[schemars(range(min = 1, max = 31_536_000))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub progress_deadline_seconds: Option<u32>,

    /// Promote every new revision as soon as it is ready, with no analysis.
    /// Default: false.
    #[serde(default, skip_serializing_if = "crate::api::is_default")]
    pub skip_analysis: bool,

    /// When this Canary is deleted, restore the state from before it: the
    /// replicas of the target, the Service, the routes. A target at a revision that
    /// was not promoted gets the traffic only after `progressDeadlineSeconds`. With
    /// false the primary is deleted at once, the target stays as it is, usually
    /// without pods, and routes stay as they are: clients are not served until you
    /// change both. Default: true.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub revert_on_deletion: Option<bool>,

    /// Do nothing until this is false again. A running release stays at its
    /// step. Default: false.
    #[serde(default, skip_serializing_if = "crate::api::is_default")]
    pub suspend: bool,

    /// When releases may move, and when not. Inside a freeze, or outside every
    /// allow window, nothing starts, advances or promotes; a rollback always
    /// may. Default: any time. For example, working hours in Berlin:
    ///
    /// ```yaml
    /// - kind: allow
    ///   cron: "0 9 * * 1-5"
    ///   timeZone: Europe/Berlin
    ///   duration: 8h
    /// ```
    #[schemars(length(max = 32))]
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub release_windows: Vec<ReleaseWindow>,

    /// Settings of the rollback after a promotion.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rollback: Option<Rollback>,
}

impl CanarySpec {
    /// Whether the deletion of the Canary restores the state from before it.
    pub fn reverts_on_deletion(&self) -> bool {
        self.revert_on_deletion.unwrap_or(true)
    }
}

/// The workload to release.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct TargetRef {
    /// API group and version of the workload: `apps/v1`, `serin.dev/v1alpha1` for an
    /// EndpointGroup, or `serving.knative.dev/v1` for a Knative Service.
    #[schemars(length(min = 1, max = 253))]
    pub api_version: String,

    /// Kind of the workload.
    pub kind: TargetKind,

    /// Name of the workload.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
}

/// Kinds of workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum TargetKind {
    /// the primary is a copy of it; the target itself becomes the canary.
    Deployment,
    /// the same for a workload with one pod on each node.
    DaemonSet,
    /// a Knative Service, or a plain Service in front of a workload that another
    /// controller manages.
    Service,
    /// addresses of machines, in versions: nothing is copied, and requests move from one
    /// version to the other.
    EndpointGroup,
}

impl TargetKind {
    /// Serin gives the canary its size.
    pub fn is_scalable(self) -> bool {
        match self {
            Self::Deployment | Self::DaemonSet => true,
            Self::Service | Self::EndpointGroup => false,
        }
    }
}

/// The autoscaler of the target.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct AutoscalerRef {
    /// API group and version of the autoscaler: `autoscaling/v2` or
    /// `keda.sh/v1alpha1`.
    #[schemars(length(min = 1, max = 253))]
    pub api_version: String,

    /// Kind of the autoscaler.
    pub kind: AutoscalerKind,

    /// Name of the autoscaler.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,

    /// Queries for the primary's ScaledObject by trigger name, where the query
    /// of the canary names the canary itself.
    #[schemars(extend("maxProperties" = 64))]
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub primary_scaler_queries: BTreeMap<String, String>,

    /// Bounds for the primary's autoscaler. Default: those of the autoscaler
    /// itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub primary_scaler_replicas: Option<ScalerReplicas>,
}

/// Kinds of autoscaler.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum AutoscalerKind {
    /// of Kubernetes itself.
    HorizontalPodAutoscaler,
    /// of KEDA.
    ScaledObject,
}

/// Bounds for an autoscaler.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = ("!has(self.minReplicas) || !has(self.maxReplicas) || self.minReplicas <= self.maxReplicas",
        "primaryScalerReplicas.minReplicas is above maxReplicas: swap them"),
)]
pub struct ScalerReplicas {
    /// Fewest replicas.
    #[schemars(range(min = 1))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_replicas: Option<i32>,

    /// Most replicas.
    #[schemars(range(min = 1))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_replicas: Option<i32>,
}

/// Routers that apply the traffic weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Provider {
    /// no router: Blue/Green by switching the Service.
    Kubernetes,
    /// a VirtualService and two DestinationRules.
    Istio,
    /// an HTTPRoute, or a TrafficSplit of SMI where HTTPRoutes are not served.
    Linkerd,
    /// a TrafficSplit of SMI, for Open Service Mesh.
    Osm,
    /// a TrafficSplit of this version.
    #[serde(rename = "smi:v1alpha1")]
    SmiV1Alpha1,
    /// a TrafficSplit of this version.
    #[serde(rename = "smi:v1alpha2")]
    SmiV1Alpha2,
    /// a TrafficSplit of this version.
    #[serde(rename = "smi:v1alpha3")]
    SmiV1Alpha3,
    /// a TrafficSplit of this version.
    #[serde(rename = "smi:v1alpha4")]
    SmiV1Alpha4,
    /// an HTTPRoute of the Gateway API.
    #[serde(rename = "gatewayapi:v1")]
    GatewayApiV1,
    /// an HTTPRoute of this older version.
    #[serde(rename = "gatewayapi:v1beta1")]
    GatewayApiV1Beta1,
    /// AWS App Mesh: VirtualNodes, VirtualServices and VirtualRouters.
    #[serde(rename = "appmesh")]
    AppMesh,
    /// AWS App Mesh with its current custom resources.
    #[serde(rename = "appmesh:v1beta2")]
    AppMeshV1Beta2,
    /// AWS App Mesh by its own API, without its controller.
    #[serde(rename = "appmesh:aws")]
    AppMeshAws,
    /// Serin's own xDS server for Envoys without a mesh.
    Xds,
    /// a second Ingress with canary annotations.
    Nginx,
    /// a second Ingress for Skipper.
    Skipper,
    /// an HTTPProxy.
    Contour,
    /// a RouteTable and Upstreams.
    Gloo,
    /// a TraefikService.
    Traefik,
    /// an ApisixRoute.
    Apisix,
    /// a TrafficRoute.
    Kuma,
    /// the traffic block of a Knative Service.
    Knative,
}
