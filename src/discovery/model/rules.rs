//! What proves a mesh: one row per mesh, each naming the upstream files that it was
//! read from.
//!
//! A container called `envoy` proves nothing by itself, since App Mesh and OSM both
//! inject one: those rows ask for a second sign.

use super::fact::{MeshKind, Mode};
use super::key::Kind;

pub struct MeshRule {
    pub mesh: MeshKind,
    /// Upstream files and pages.
    pub sources: &'static [&'static str],
    /// `plural.group` of resources that are served once the mesh is installed.
    pub served: &'static [&'static str],
    pub control_plane: &'static [ControlPlaneSign],
    pub opt_ins: &'static [OptIn],
    pub proofs: &'static [Proof],
    /// Containers whose image tag is the version of the proxy.
    pub proxies: &'static [&'static str],
}

/// A workload that is the control plane.
pub struct ControlPlaneSign {
    pub kind: Kind,
    /// Empty if the labels suffice.
    pub name: &'static str,
    pub labels: &'static [(&'static str, &'static str)],
    /// The mode that only this component brings.
    pub mode: Option<Mode>,
    /// Of an implementation of the Gateway API: the controller name of its classes.
    pub controller: Option<&'static str>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Field {
    Label,
    Annotation,
}

/// A label or annotation by which a namespace or a pod template opts in or out.
pub struct OptIn {
    pub on_namespace: bool,
    pub on_workload: bool,
    pub field: Field,
    pub key: &'static str,
    /// Empty: every value opts in, and the value is a revision.
    pub on: &'static [&'static str],
    pub off: &'static [&'static str],
    pub mode: Mode,
}

/// A sign on a pod that its traffic goes through the mesh.
pub enum Proof {
    Container(&'static str),
    /// A container of this name with one of these variables.
    ContainerWithEnv(&'static str, &'static [&'static str]),
    ContainerWithLabel(&'static str, &'static str),
    /// With this value, or with any.
    Annotation(&'static str, Option<&'static str>, Mode),
}

const fn control_plane(
    kind: Kind,
    name: &'static str,
    labels: &'static [(&'static str, &'static str)],
) -> ControlPlaneSign {
    ControlPlaneSign { kind, name, labels, mode: None, controller: None }
}

pub const RULES: &[MeshRule] = &[
    MeshRule {
        mesh: MeshKind::Istio,
        sources: &[
            "istio.io/istio manifests/charts/istio-control/istio-discovery/templates/deployment.yaml",
            "istio.io/istio manifests/charts/istio-control/istio-discovery/templates/mutatingwebhook.yaml",
            "istio.io/istio manifests/charts/ztunnel/templates/daemonset.yaml",
            "istio.io/istio pkg/kube/inject/inject.go, SidecarInjectionStatus",
            "istio.io/istio pkg/config/constants/constants.go, DataplaneModeAmbient and DataplaneModeNone",
            "istio.io/api annotation/annotations.gen.go, ambient.istio.io/redirection",
        ],
        served: &["virtualservices.networking.istio.io"],
        control_plane: &[
            control_plane(Kind::Deployment, "", &[("app", "istiod")]),
            ControlPlaneSign {
                kind: Kind::DaemonSet,
                name: "",
                labels: &[("app.kubernetes.io/name", "ztunnel")],
                mode: Some(Mode::Ambient),
                controller: None,
            },
        ],
        opt_ins: &[
            OptIn {
                on_namespace: true,
                on_workload: false,
                field: Field::Label,
                key: "istio-injection",
                on: &["enabled"],
                off: &["disabled"],
                mode: Mode::Sidecar,
            },
            OptIn {
                on_namespace: false,
                on_workload: true,
                field: Field::Label,
                key: "sidecar.istio.io/inject",
                on: &["true"],
                off: &["false"],
                mode: Mode::Sidecar,
            },
            OptIn {
                on_namespace: true,
                on_workload: true,
                field: Field::Label,
                key: "istio.io/rev",
                on: &[],
                off: &[],
                mode: Mode::Sidecar,
            },
            OptIn {
                on_namespace: true,
                on_workload: true,
                field: Field::Label,
                key: "istio.io/dataplane-mode",
                on: &["ambient"],
                off: &["none"],
                mode: Mode::Ambient,
            },
        ],
        proofs: &[
            Proof::Annotation("ambient.istio.io/redirection", Some("enabled"), Mode::Ambient),
            Proof::Annotation("sidecar.istio.io/status", None, Mode::Sidecar),
            Proof::Container("istio-proxy"),
        ],
        proxies: &["istio-proxy"],
    },
    MeshRule {
        mesh: MeshKind::Linkerd,
        sources: &["linkerd/linkerd2 pkg/k8s/labels.go"],
        served: &["serviceprofiles.linkerd.io"],
        control_plane: &[control_plane(
            Kind::Deployment,
            "",
            &[("linkerd.io/control-plane-component", "destination")],
        )],
        opt_ins: &[OptIn {
            on_namespace: true,
            on_workload: true,
            field: Field::Annotation,
            key: "linkerd.io/inject",
            on: &["enabled"],
            off: &["disabled"],
            mode: Mode::Sidecar,
        }],
        proofs: &[
            Proof::Annotation("linkerd.io/proxy-version", None, Mode::Sidecar),
            Proof::Container("linkerd-proxy"),
        ],
        proxies: &["linkerd-proxy"],
    },
    MeshRule {
        mesh: MeshKind::Kuma,
        sources: &[
            "kumahq/kuma pkg/plugins/runtime/k8s/metadata/annotations.go",
            "kumahq/kuma deployments/charts/kuma/templates/cp-deployment.yaml",
        ],
        served: &["meshes.kuma.io"],
        control_plane: &[control_plane(Kind::Deployment, "", &[("app", "kuma-control-plane")])],
        opt_ins: &[OptIn {
            on_namespace: true,
            on_workload: true,
            field: Field::Label,
            key: "kuma.io/sidecar-injection",
            on: &["enabled", "true", "yes"],
            off: &["disabled", "false", "no"],
            mode: Mode::Sidecar,
        }],
        proofs: &[
            Proof::Annotation("kuma.io/sidecar-injected", Some("true"), Mode::Sidecar),
            Proof::Container("kuma-sidecar"),
        ],
        proxies: &["kuma-sidecar"],
    },
    MeshRule {
        mesh: MeshKind::Consul,
        sources: &[
            "hashicorp/consul-k8s control-plane/connect-inject/constants/annotations_and_labels.go",
            "hashicorp/consul-k8s charts/consul/templates/server-statefulset.yaml",
        ],
        served: &["meshes.consul.hashicorp.com"],
        control_plane: &[control_plane(Kind::StatefulSet, "", &[("app", "consul"), ("component", "server")])],
        opt_ins: &[OptIn {
            on_namespace: false,
            on_workload: true,
            field: Field::Annotation,
            key: "consul.hashicorp.com/connect-inject",
            on: &["true"],
            off: &["false"],
            mode: Mode::Sidecar,
        }],
        proofs: &[
            Proof::Annotation("consul.hashicorp.com/connect-inject-status", Some("injected"), Mode::Sidecar),
            Proof::Container("envoy-sidecar"),
        ],
        proxies: &["envoy-sidecar"],
    },
    // Cilium marks no pod: it serves all pods of its nodes, so it never claims a workload.
    MeshRule {
        mesh: MeshKind::Cilium,
        sources: &["cilium/cilium install/kubernetes/cilium/templates/cilium-operator/deployment.yaml"],
        served: &[],
        control_plane: &[control_plane(
            Kind::Deployment,
            "",
            &[("io.cilium/app", "operator"), ("name", "cilium-operator")],
        )],
        opt_ins: &[],
        proofs: &[],
        proxies: &[],
    },
    MeshRule {
        mesh: MeshKind::AppMesh,
        sources: &[
            "aws/aws-app-mesh-controller-for-k8s config/controller/controller.yaml, config/default",
            "aws/aws-app-mesh-controller-for-k8s config/webhook/pod_mutator_patch.yaml",
            "aws/aws-app-mesh-controller-for-k8s pkg/inject/envoy.go",
        ],
        served: &["meshes.appmesh.k8s.aws"],
        control_plane: &[control_plane(Kind::Deployment, "appmesh-controller", &[])],
        opt_ins: &[OptIn {
            on_namespace: true,
            on_workload: false,
            field: Field::Label,
            key: "appmesh.k8s.aws/sidecarInjectorWebhook",
            on: &["enabled"],
            off: &["disabled"],
            mode: Mode::Sidecar,
        }],
        proofs: &[Proof::ContainerWithEnv("envoy", &["APPMESH_RESOURCE_ARN", "APPMESH_VIRTUAL_NODE_NAME"])],
        proxies: &["envoy"],
    },
    MeshRule {
        mesh: MeshKind::Osm,
        sources: &[
            "openservicemesh/osm pkg/constants/constants.go",
            "openservicemesh/osm charts/osm/templates/osm-deployment.yaml",
        ],
        served: &["meshconfigs.config.openservicemesh.io"],
        control_plane: &[control_plane(Kind::Deployment, "", &[("app", "osm-controller")])],
        opt_ins: &[
            OptIn {
                on_namespace: true,
                on_workload: false,
                field: Field::Label,
                key: "openservicemesh.io/monitored-by",
                on: &[],
                off: &[],
                mode: Mode::Sidecar,
            },
            OptIn {
                on_namespace: true,
                on_workload: true,
                field: Field::Annotation,
                key: "openservicemesh.io/sidecar-injection",
                on: &["enabled"],
                off: &["disabled"],
                mode: Mode::Sidecar,
            },
        ],
        proofs: &[Proof::ContainerWithLabel("envoy", "osm-proxy-uuid")],
        proxies: &["envoy"],
    },
    MeshRule {
        mesh: MeshKind::Smi,
        sources: &["servicemeshinterface/smi-sdk-go crds/split.yaml"],
        served: &["trafficsplits.split.smi-spec.io"],
        control_plane: &[],
        opt_ins: &[],
        proofs: &[],
        proxies: &[],
    },
    MeshRule {
        mesh: MeshKind::Gateway,
        sources: &[
            "envoyproxy/gateway charts/gateway-helm/templates/envoy-gateway-deployment.yaml",
            "envoyproxy/gateway examples/kubernetes/quickstart.yaml",
        ],
        served: &[],
        control_plane: &[ControlPlaneSign {
            kind: Kind::Deployment,
            name: "",
            labels: &[("control-plane", "envoy-gateway")],
            mode: None,
            controller: Some("gateway.envoyproxy.io/gatewayclass-controller"),
        }],
        opt_ins: &[],
        proofs: &[],
        proxies: &[],
    },
];

/// The ConfigMap beside a control plane that has its trust domain.
pub struct ConfigMapRule {
    pub mesh: MeshKind,
    /// With the suffix `-REVISION` for every revision but `default`.
    pub name: &'static str,
    /// A key of `data`, whose value is YAML.
    pub entry: &'static str,
    pub trust_domain: &'static str,
}

/// Istio: manifests/charts/istio-control/istio-discovery/templates/configmap.yaml.
/// Linkerd: pkg/k8s/labels.go, ConfigConfigMapName; `identityTrustDomain` of
/// `data.values` as in linkerd/linkerd2 pkg/healthcheck's tests.
const CONFIG_MAPS: &[ConfigMapRule] = &[
    ConfigMapRule { mesh: MeshKind::Istio, name: "istio", entry: "mesh", trust_domain: "trustDomain" },
    ConfigMapRule {
        mesh: MeshKind::Linkerd,
        name: "linkerd-config",
        entry: "values",
        trust_domain: "identityTrustDomain",
    },
];

pub fn config_maps() -> &'static [ConfigMapRule] {
    CONFIG_MAPS
}

/// Istio: pkg/config/constants/constants.go, WaypointGatewayClassName and
/// AgentgatewayWaypointClassName.
pub const WAYPOINT_CLASSES: [&str; 2] = ["istio-waypoint", "istio-agentgateway-waypoint"];

/// Istio: manifests/charts/istio-control/istio-discovery/files/waypoint.yaml and
/// kube-gateway.yaml.
pub const GATEWAY_CLASS_LABEL: &str = "gateway.networking.k8s.io/gateway-class-name";
pub const GATEWAY_NAME_LABEL: &str = "gateway.networking.k8s.io/gateway-name";

/// Annotations of pods that are gateways. Consul: annotations_and_labels.go,
/// AnnotationGatewayKind; Kuma: annotations.go, KumaGatewayAnnotation; Istio:
/// manifests/charts/gateway/values.yaml, with the value `gateway`.
pub const GATEWAY_ANNOTATIONS: [&str; 3] =
    ["consul.hashicorp.com/gateway-kind", "kuma.io/gateway", "inject.istio.io/templates"];

/// Istio: istio.io/api label/labels.gen.go.
pub const USE_WAYPOINT_LABEL: &str = "istio.io/use-waypoint";
pub const USE_WAYPOINT_NAMESPACE_LABEL: &str = "istio.io/use-waypoint-namespace";
