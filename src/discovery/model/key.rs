//! Kinds and keys of objects.

use std::fmt;

use serde::{Serialize, Serializer};

/// How much of an object is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Detail {
    Whole,
    /// Labels, annotations and owners.
    Metadata,
}

macro_rules! kinds {
    ($($variant:ident $name:literal $plural:literal $group:literal [$($version:literal)*] $detail:ident;)*) => {
        /// A kind that the model reads.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Kind { $($variant,)* }

        impl Kind {
            pub const ALL: &[Kind] = &[$(Kind::$variant,)*];

            pub fn name(self) -> &'static str {
                match self { $(Kind::$variant => $name,)* }
            }

            pub fn plural(self) -> &'static str {
                match self { $(Kind::$variant => $plural,)* }
            }

            pub fn group(self) -> &'static str {
                match self { $(Kind::$variant => $group,)* }
            }

            /// The versions that the model can read, the preferred one first.
            pub fn versions(self) -> &'static [&'static str] {
                match self { $(Kind::$variant => &[$($version,)*],)* }
            }

            pub fn detail(self) -> Detail {
                match self { $(Kind::$variant => Detail::$detail,)* }
            }
        }
    };
}

kinds! {
    ServedResource   "ServedResource"   ""                 "" [] Whole;
    Namespace        "Namespace"        "namespaces"       "" ["v1"] Metadata;
    Deployment       "Deployment"       "deployments"      "apps" ["v1"] Whole;
    DaemonSet        "DaemonSet"        "daemonsets"       "apps" ["v1"] Whole;
    StatefulSet      "StatefulSet"      "statefulsets"     "apps" ["v1"] Whole;
    Rollout          "Rollout"          "rollouts"         "argoproj.io" ["v1alpha1"] Whole;
    KnativeService   "Service"          "services"         "serving.knative.dev" ["v1"] Whole;
    Pod              "Pod"              "pods"             "" ["v1"] Whole;
    Service          "Service"          "services"         "" ["v1"] Whole;
    ConfigMap        "ConfigMap"        "configmaps"       "" ["v1"] Whole;
    HttpRoute        "HTTPRoute"        "httproutes"       "gateway.networking.k8s.io" ["v1" "v1beta1"] Whole;
    GrpcRoute        "GRPCRoute"        "grpcroutes"       "gateway.networking.k8s.io" ["v1"] Whole;
    Gateway          "Gateway"          "gateways"         "gateway.networking.k8s.io" ["v1" "v1beta1"] Whole;
    GatewayClass     "GatewayClass"     "gatewayclasses"   "gateway.networking.k8s.io" ["v1" "v1beta1"] Whole;
    VirtualService   "VirtualService"   "virtualservices"  "networking.istio.io" ["v1" "v1beta1" "v1alpha3"] Whole;
    PeerAuthentication "PeerAuthentication" "peerauthentications" "security.istio.io" ["v1" "v1beta1"] Whole;
    WebhookConfiguration "MutatingWebhookConfiguration" "mutatingwebhookconfigurations" "admissionregistration.k8s.io" ["v1"] Metadata;
    TrafficSplit     "TrafficSplit"     "trafficsplits"    "split.smi-spec.io" ["v1alpha4" "v1alpha3" "v1alpha2" "v1alpha1"] Whole;
    ServiceProfile   "ServiceProfile"   "serviceprofiles"  "linkerd.io" ["v1alpha2"] Metadata;
    Ingress          "Ingress"          "ingresses"        "networking.k8s.io" ["v1"] Whole;
    KumaMesh         "Mesh"             "meshes"           "kuma.io" ["v1alpha1"] Whole;
    VirtualNode      "VirtualNode"      "virtualnodes"     "appmesh.k8s.aws" ["v1beta2"] Whole;
    AppMeshMesh      "AppMesh"          ""                 "" [] Whole;
    AppMeshVirtualNode "AppMeshVirtualNode" ""             "" [] Whole;
    AppMeshVirtualService "AppMeshVirtualService" ""       "" [] Whole;
    AppMeshVirtualRouter "AppMeshVirtualRouter" ""         "" [] Whole;
    AppMeshVirtualGateway "AppMeshVirtualGateway" ""       "" [] Whole;
    AppMeshRoute     "AppMeshRoute"     ""                 "" [] Whole;
    CloudMapInstance "CloudMapInstance" ""                 "" [] Whole;
    ConsulDatacenter "ConsulDatacenter" ""                 "" [] Whole;
    ConsulService    "ConsulService"    ""                 "" [] Whole;
    Canary           "Canary"           "canaries"         "serin.dev" ["v1alpha1"] Whole;
}

impl Kind {
    /// The kind of a resource that the model reads in this version.
    pub fn of(group: &str, version: &str, name: &str) -> Option<Self> {
        let mut kinds = Self::ALL.iter().copied();
        kinds.find(|kind| kind.group() == group && kind.name() == name && kind.versions().contains(&version))
    }

    pub fn is_workload(self) -> bool {
        matches!(
            self,
            Kind::Deployment | Kind::DaemonSet | Kind::StatefulSet | Kind::Rollout | Kind::KnativeService
        )
    }

    pub fn is_route(self) -> bool {
        matches!(
            self,
            Kind::HttpRoute
                | Kind::GrpcRoute
                | Kind::VirtualService
                | Kind::TrafficSplit
                | Kind::ServiceProfile
                | Kind::Ingress
        )
    }

    /// Has no namespace.
    pub fn is_cluster_scoped(self) -> bool {
        matches!(
            self,
            Kind::ServedResource
                | Kind::Namespace
                | Kind::GatewayClass
                | Kind::WebhookConfiguration
                | Kind::KumaMesh
        )
    }
}

impl Serialize for Kind {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

/// Identity of an object in all clusters.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct Key {
    pub cluster: String,
    /// Empty for objects without one.
    pub namespace: String,
    pub kind: Kind,
    pub name: String,
}

impl Key {
    pub fn new(cluster: &str, namespace: &str, kind: Kind, name: &str) -> Self {
        Self { cluster: cluster.to_owned(), namespace: namespace.to_owned(), kind, name: name.to_owned() }
    }

    /// A key beside this one.
    pub fn sibling(&self, kind: Kind, name: &str) -> Self {
        Self::new(&self.cluster, &self.namespace, kind, name)
    }
}

/// `Deployment shop/web`, without the cluster.
impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.kind {
            Kind::KnativeService => "Knative Service",
            kind => kind.name(),
        })?;
        match self.namespace.is_empty() {
            true => write!(f, " {}", self.name),
            false => write!(f, " {}/{}", self.namespace, self.name),
        }
    }
}
