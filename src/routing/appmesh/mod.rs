//! AWS App Mesh by the custom resources of its controller
//! (`appmesh.k8s.aws/v1beta2`): a VirtualNode for the primary and one for the
//! canary, a VirtualRouter that splits between them, and a VirtualService with
//! that router as provider. A second VirtualService reaches the canary alone, for
//! tests.
//!
//! `meshRef` and `awsName` are left to the controller's webhook. A split is in
//! force once the controller reports, for the current generation, that the
//! router is active, that is stored in the mesh; no API reports when the last
//! proxy has it.
//!
//! [`aws`] does the same without that controller, by the App Mesh API.

#[cfg(feature = "aws")]
pub mod aws;
mod routes;

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::{
    ResourceExt,
    api::{ApiResource, DynamicObject},
};
use serde_json::{Value, json};

use super::{
    Capabilities, ObjectKey, PodSelectors, RouteContext, Unsupported, check_service_match,
    object::DesiredObject,
    object_router::ObjectRouter,
    services::{self, ServiceNames},
    shared_list::{ManagedEntries, SharedList},
    split_annotation,
};
use crate::{
    api::{
        Canary, Weight,
        canary::{HttpMatch, service::Service},
    },
    engine::action::Split,
    object_cache::ObjectCache,
};

/// The remedy for conditions that a route cannot express.
const MATCH_WAY_OUT: &str = "match by headers, method, scheme or the prefix of the uri";

/// Options of the router that calls the App Mesh API.
#[derive(Clone, Debug)]
pub struct AppMeshOptions {
    /// For Canaries without `spec.service.meshName`.
    pub mesh: Option<String>,
    /// The account that shares the mesh with ours.
    pub mesh_owner: Option<String>,
    /// Service discovery by Cloud Map; by DNS if none.
    pub cloud_map_namespace: Option<String>,
    /// How long fetched state of a mesh is used.
    pub cache_ttl: Duration,
    /// Credentials and region.
    #[cfg(feature = "aws")]
    pub account: crate::aws::Account,
}

impl Default for AppMeshOptions {
    fn default() -> Self {
        Self {
            mesh: None,
            mesh_owner: None,
            cloud_map_namespace: None,
            cache_ttl: Duration::from_secs(5),
            #[cfg(feature = "aws")]
            account: Default::default(),
        }
    }
}

/// Writes App Mesh's custom resources.
#[derive(Clone, Debug)]
pub struct AppMeshResources {
    pub virtual_routers: ApiResource,
    pub virtual_nodes: ApiResource,
    pub virtual_services: ApiResource,
}

/// The protocol of a listener and of its routes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Protocol {
    Http,
    Http2,
    Grpc,
    Tcp,
}

impl Protocol {
    /// A GRPC route cannot match paths: with conditions on them gRPC is HTTP/2.
    fn of(canary: &Canary) -> Self {
        let Some(spec) = &canary.spec.service else { return Self::Http };
        let analysis = &canary.spec.analysis;
        let matched = analysis.match_.iter().chain(analysis.steps.iter().flat_map(|step| &step.match_));
        let by_path = |one: &HttpMatch| one.uri.is_some() || one.method.is_some() || one.scheme.is_some();
        match services::protocol(spec).as_str() {
            grpc if grpc.starts_with("grpc") => {
                if spec.match_.iter().chain(matched).any(by_path) {
                    Self::Http2
                } else {
                    Self::Grpc
                }
            }
            "http2" => Self::Http2,
            "tcp" | "tls" | "mongo" | "mysql" | "redis" => Self::Tcp,
            _ => Self::Http,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Http2 => "http2",
            Self::Grpc => "grpc",
            Self::Tcp => "tcp",
        }
    }
}

impl AppMeshResources {
    fn object_key(&self, canary: &Canary, kind: &ApiResource, name: String) -> ObjectKey {
        ObjectKey { kind: kind.clone(), namespace: canary.namespace().unwrap_or_default(), name }
    }

    /// All objects except Services, the router first.
    fn own_objects(&self, canary: &Canary) -> [ObjectKey; 5] {
        let ServiceNames { apex, primary, canary: candidate } = ServiceNames::of(canary);
        [
            self.route_object(canary),
            self.object_key(canary, &self.virtual_services, apex),
            self.object_key(canary, &self.virtual_services, candidate.clone()),
            self.object_key(canary, &self.virtual_nodes, primary),
            self.object_key(canary, &self.virtual_nodes, candidate),
        ]
    }
}

fn capabilities(canary: &Canary) -> Capabilities {
    let matches = Protocol::of(canary) != Protocol::Tcp;
    let finest_weight = Weight::from_hundredths(100).unwrap_or(Weight::FULL);
    Capabilities { finest_weight, matches, match_with_weight: matches, ..Capabilities::SWITCH }
}

pub fn shared_list(router: &ObjectKey) -> SharedList {
    SharedList::new(router, ["spec", "routes"], routes::backends, routes::is_catch_all)
}

/// Selects pods of either set of labels.
fn selector(pods: [&BTreeMap<String, String>; 2]) -> Value {
    let [one, other] = pods;
    let expression = |(key, value): (&String, &String)| {
        let values: BTreeSet<_> = [Some(value), other.get(key)].into_iter().flatten().collect();
        json!({"key": key, "operator": "In", "values": values})
    };
    if one == other {
        json!({"matchLabels": one})
    } else {
        json!({"matchExpressions": one.iter().map(expression).collect::<Vec<_>>()})
    }
}

/// The port of the pods: a virtual node has pods as endpoints, not Services.
fn container_port(spec: &Service, pod_selectors: &PodSelectors) -> u16 {
    match &spec.target_port {
        Some(IntOrString::Int(port)) => u16::try_from(*port).ok().filter(|port| *port > 0),
        Some(IntOrString::String(name)) => pod_selectors.ports.get(name).copied(),
        None => None,
    }
    .unwrap_or(spec.port)
}

fn backend(name: &str) -> Value {
    let reference = if name.starts_with("arn:aws") {
        json!({"virtualServiceARN": name})
    } else {
        json!({"virtualServiceRef": {"name": name}})
    };
    json!({"virtualService": reference})
}

impl ObjectRouter for AppMeshResources {
    fn name(&self) -> String {
        format!("appmesh ({})", self.virtual_routers.version)
    }

    fn capabilities(&self, canary: &Canary) -> Capabilities {
        capabilities(canary)
    }

    fn supports_match(&self, condition: &HttpMatch) -> Result<(), &'static str> {
        routes::supports_match(condition)
    }

    fn route_fields(&self, canary: &Canary) -> &'static [&'static str] {
        match Protocol::of(canary) {
            Protocol::Tcp => &["backends"],
            Protocol::Http | Protocol::Http2 | Protocol::Grpc => &["match", "timeout", "retries", "backends"],
        }
    }

    fn check_spec(&self, canary: &Canary) -> Result<(), Unsupported> {
        check_service_match(self, canary, MATCH_WAY_OUT)
    }

    fn route_object(&self, canary: &Canary) -> ObjectKey {
        self.object_key(canary, &self.virtual_routers, ServiceNames::of(canary).apex)
    }

    fn other_objects(&self, canary: &Canary) -> Vec<ObjectKey> {
        let [_, others @ ..] = self.own_objects(canary);
        others.into()
    }

    fn desired(&self, on: &RouteContext<'_>, split: &Split) -> Vec<DesiredObject> {
        let RouteContext { canary, pod_selectors, .. } = on;
        let spec = canary.spec.service.clone().unwrap_or_default();
        let protocol = Protocol::of(canary);
        let [router, service, canary_service, primary, candidate] = self.own_objects(canary);
        let port = json!({"port": container_port(&spec, pod_selectors), "protocol": protocol.name()});
        let selectors = [
            selector([&pod_selectors.primary, &pod_selectors.previous]),
            selector([&pod_selectors.canary, &pod_selectors.canary]),
        ];
        let nodes = [primary, candidate].into_iter().zip(selectors).map(|(name, pods)| {
            let mut listener = json!({"portMapping": port});
            if let (Some(timeout), false) = (spec.timeout, protocol == Protocol::Tcp) {
                listener["timeout"] = json!({protocol.name(): {"perRequest": routes::duration(timeout)}});
            }
            let host = format!("{}.{}.svc.cluster.local", name.name, name.namespace);
            let mut body = json!({"spec": {
                "podSelector": pods, "listeners": [listener], "serviceDiscovery": {"dns": {"hostname": host}},
            }});
            if !spec.backends.is_empty() {
                body["spec"]["backends"] = spec.backends.iter().map(|name| backend(name)).collect();
            }
            DesiredObject::new(canary, name, Default::default(), body)
        });

        let canary_provider = json!({"virtualNode": {"virtualNodeRef": {"name": canary_service.name}}});
        let provider = json!({"virtualRouter": {"virtualRouterRef": {"name": router.name}}});
        let [service, canary_service] =
            [(service, provider), (canary_service, canary_provider)].map(|(name, by)| {
                DesiredObject::new(canary, name, Default::default(), json!({"spec": {"provider": by}}))
            });

        let (canary_, split_) = ((*canary).clone(), split.clone());
        let routes = move |original: Option<&Value>| routes::routes(&canary_, &split_, protocol, original);
        let entries = ManagedEntries::new(shared_list(&router), routes);
        let router = DesiredObject::new(canary, router, split_annotation::annotation(split), json!({}))
            .with_owned_defaults(json!({"spec": {"listeners": [{"portMapping": port}]}}))
            .with_entries(entries);
        nodes.chain([canary_service, router, service]).collect()
    }

    fn removal_order(&self, canary: &Canary) -> Vec<ObjectKey> {
        let [router, service, canary_service, primary, candidate] = self.own_objects(canary);
        vec![service, canary_service, router, primary, candidate]
    }

    /// A VirtualService has one provider: a user's that names a virtual node
    /// cannot name a virtual router as well.
    fn check_live(&self, canary: &Canary, cache: &dyn ObjectCache, _: &Split) -> Result<(), Unsupported> {
        let [_, service, ..] = self.own_objects(canary);
        let live = service.find(cache);
        if live.is_some_and(|live| live.data["spec"]["provider"]["virtualNode"].is_object()) {
            return Err(Unsupported::Field {
                router: self.name(),
                field: "spec.service.name",
                what: format!("{service}, whose provider is a virtual node"),
                way_out: "set the provider of that VirtualService to a virtual router, or delete it",
            });
        }
        Ok(())
    }

    fn inactive_reason(&self, router: &DynamicObject) -> Option<String> {
        let name =
            format!("the VirtualRouter {}/{}", router.namespace().unwrap_or_default(), router.name_any());
        let status = &router.data["status"];
        let conditions = status["conditions"].as_array().into_iter().flatten();
        let active = conditions.into_iter().find(|condition| condition["type"] == "VirtualRouterActive");
        match active {
            _ if status["observedGeneration"].as_i64() != router.metadata.generation => Some(format!(
                "the App Mesh controller has not processed {name} since it was changed; check that it runs"
            )),
            Some(active) if active["status"] == "True" => None,
            Some(active) => {
                Some(format!("{name} is not active: {}", active["message"].as_str().unwrap_or_default()))
            }
            None => Some(format!("the App Mesh controller has not reported whether {name} is active")),
        }
    }
}
