//! The status of route objects, for tests that play the controllers of meshes: the
//! conditions as each implementation writes them, read from its source.
//!
//! GKE is left out: its controller is not public, and no published status of a route
//! was found.

use serde_json::{Value, json};

/// An implementation of the Gateway API, and its report on a route that it serves.
#[derive(Clone, Copy, Debug)]
pub struct Implementation {
    pub name: &'static str,
    /// Repository and files that the conditions were read from.
    pub source: &'static str,
    pub controller: &'static str,
    /// Type, reason and message of each condition, in the order written.
    conditions: &'static [[&'static str; 3]],
    writes_generation: bool,
    parent: ReportedParent,
}

/// The `parentRef` of a report.
#[derive(Clone, Copy, Debug)]
enum ReportedParent {
    /// As the route has it.
    Copied,
    /// Kind, namespace and name written out, and the listener if the route names one;
    /// without the port.
    InFull,
    /// A Service, with the group `core` and its namespace written out.
    CoreService,
}

pub const LINKERD: Implementation = Implementation {
    name: "Linkerd",
    source: "linkerd/linkerd2 policy-controller/k8s/status/src/index.rs",
    controller: "linkerd.io/policy-controller",
    conditions: &[["Accepted", "Accepted", ""], ["ResolvedRefs", "ResolvedRefs", ""]],
    writes_generation: false,
    parent: ReportedParent::CoreService,
};

pub const ENVOY_GATEWAY: Implementation = Implementation {
    name: "Envoy Gateway",
    source: "envoyproxy/gateway internal/gatewayapi/status/route.go and internal/gatewayapi/testdata",
    controller: "gateway.envoyproxy.io/gatewayclass-controller",
    conditions: &[
        ["Accepted", "Accepted", "Route is accepted"],
        ["ResolvedRefs", "ResolvedRefs", "Resolved all the Object references for the Route"],
    ],
    writes_generation: true,
    parent: ReportedParent::Copied,
};

const ISTIO: Implementation = Implementation {
    name: "Istio",
    source: "istio/istio pilot/pkg/config/kube/gateway/conditions.go and pilot/pkg/config/kube/gatewaycommon/conversion.go",
    controller: "istio.io/gateway-controller",
    conditions: &[
        ["Accepted", "Accepted", "Route was valid"],
        ["ResolvedRefs", "ResolvedRefs", "All references resolved"],
        ["ResolvedWaypoints", "ResolvedWaypoints", "All waypoints resolved"],
    ],
    writes_generation: true,
    parent: ReportedParent::Copied,
};

const CILIUM: Implementation = Implementation {
    name: "Cilium",
    source: "cilium/cilium operator/pkg/gateway-api/gamma_reconcile.go and operator/pkg/gateway-api/routechecks/httproute.go",
    controller: "io.cilium/gateway-controller",
    conditions: &[
        ["Accepted", "Accepted", "Accepted HTTPRoute"],
        ["ResolvedRefs", "ResolvedRefs", "Service reference is valid"],
    ],
    writes_generation: true,
    parent: ReportedParent::Copied,
};

const CONTOUR: Implementation = Implementation {
    name: "Contour",
    source: "projectcontour/contour internal/dag/gatewayapi_processor.go and internal/status/routeconditions.go",
    controller: "projectcontour.io/gateway-controller",
    conditions: &[
        ["ResolvedRefs", "ResolvedRefs", "References resolved"],
        ["Accepted", "Accepted", "Accepted HTTPRoute"],
    ],
    writes_generation: true,
    parent: ReportedParent::Copied,
};

const KONG: Implementation = Implementation {
    name: "Kong",
    source: "Kong/kubernetes-ingress-controller internal/controllers/gateway/route_utils.go and httproute_controller.go",
    controller: "konghq.com/kic-gateway-controller",
    conditions: &[
        ["Accepted", "Accepted", ""],
        ["ResolvedRefs", "ResolvedRefs", ""],
        ["Programmed", "ConfiguredInGateway", ""],
    ],
    writes_generation: true,
    parent: ReportedParent::InFull,
};

const TRAEFIK: Implementation = Implementation {
    name: "Traefik",
    source: "traefik/traefik pkg/provider/kubernetes/gateway/httproute.go",
    controller: "traefik.io/gateway-controller",
    conditions: &[["Accepted", "Accepted", ""], ["ResolvedRefs", "ResolvedRefs", ""]],
    writes_generation: true,
    parent: ReportedParent::Copied,
};

const NGINX_GATEWAY_FABRIC: Implementation = Implementation {
    name: "NGINX Gateway Fabric",
    source: "nginx/nginx-gateway-fabric internal/controller/state/conditions/conditions.go and internal/controller/status/prepare_requests.go",
    controller: "gateway.nginx.org/nginx-gateway-controller",
    conditions: &[
        ["Accepted", "Accepted", "The Route is accepted"],
        ["ResolvedRefs", "ResolvedRefs", "All references are resolved"],
    ],
    writes_generation: true,
    parent: ReportedParent::InFull,
};

const KGATEWAY: Implementation = Implementation {
    name: "kgateway",
    source: "kgateway-dev/kgateway internal/kgateway/reports/status.go",
    controller: "kgateway.dev/kgateway",
    conditions: &[["Accepted", "Accepted", ""], ["ResolvedRefs", "ResolvedRefs", ""]],
    writes_generation: true,
    parent: ReportedParent::Copied,
};

const AWS_LOAD_BALANCER: Implementation = Implementation {
    name: "AWS Load Balancer Controller",
    source: "kubernetes-sigs/aws-load-balancer-controller controllers/gateway/route_reconciler.go",
    controller: "gateway.k8s.aws/alb",
    conditions: &[["ResolvedRefs", "ResolvedRefs", ""], ["Accepted", "Accepted", ""]],
    writes_generation: true,
    parent: ReportedParent::Copied,
};

pub const VPC_LATTICE: Implementation = Implementation {
    name: "VPC Lattice",
    source: "aws/aws-application-networking-k8s pkg/controllers/route_controller.go",
    controller: "application-networking.k8s.aws/gateway-api-controller",
    conditions: &[["Accepted", "Accepted", ""], ["ResolvedRefs", "ResolvedRefs", ""]],
    writes_generation: true,
    parent: ReportedParent::Copied,
};

/// Those that serve Gateways.
pub const GATEWAYS: [Implementation; 10] = [
    ENVOY_GATEWAY,
    ISTIO,
    CILIUM,
    CONTOUR,
    KONG,
    TRAEFIK,
    NGINX_GATEWAY_FABRIC,
    KGATEWAY,
    AWS_LOAD_BALANCER,
    VPC_LATTICE,
];

/// Those that serve Services within a mesh.
pub const MESHES: [Implementation; 3] = [LINKERD, ISTIO, CILIUM];

impl Implementation {
    /// The status of a route that all its parents serve; with a backend that does not
    /// exist, `ResolvedRefs` is false.
    pub fn status(&self, route: &Value, backends_exist: bool) -> Value {
        let condition = |[kind, reason, message]: &[&str; 3]| {
            let missing = *kind == "ResolvedRefs" && !backends_exist;
            let (status, reason) = if missing { ("False", "BackendNotFound") } else { ("True", *reason) };
            let mut condition = json!({"type": kind, "status": status, "reason": reason, "message": message,
                "lastTransitionTime": "2026-01-01T00:00:00Z"});
            if missing {
                // The words differ, and nothing depends on them.
                condition["message"] = json!("");
            }
            if self.writes_generation {
                condition["observedGeneration"] = route["metadata"]["generation"].clone();
            }
            condition
        };
        let conditions: Vec<Value> = self.conditions.iter().map(condition).collect();
        let report = |parent: &Value| {
            json!({"parentRef": self.parent.of(parent, route), "controllerName": self.controller,
                "conditions": conditions})
        };
        let parents = route["spec"]["parentRefs"].as_array().into_iter().flatten();
        json!({"parents": parents.map(report).collect::<Vec<_>>()})
    }
}

impl ReportedParent {
    fn of(self, parent: &Value, route: &Value) -> Value {
        let mut reported = parent.clone();
        let namespace = parent.get("namespace").unwrap_or(&route["metadata"]["namespace"]);
        match self {
            Self::Copied => {}
            Self::InFull => {
                reported["kind"] = json!("Gateway");
                reported["namespace"] = namespace.clone();
                reported.as_object_mut().expect("an object").remove("port");
            }
            Self::CoreService => {
                reported["group"] = json!("core");
                reported["namespace"] = namespace.clone();
            }
        }
        reported
    }
}

/// The status by the first implementation that serves such parents.
pub fn parent_status(route: &Value) -> Value {
    let within_mesh = route["spec"]["parentRefs"][0]["kind"] == "Service";
    let implementation = if within_mesh { LINKERD } else { ENVOY_GATEWAY };
    implementation.status(route, true)
}

/// Whether App Mesh has the virtual router as it is.
pub fn app_mesh_status(router: &Value, active: &str) -> Value {
    let condition = json!({"type": "VirtualRouterActive", "status": active, "message": "the test says so"});
    json!({"observedGeneration": router["metadata"]["generation"], "conditions": [condition]})
}
