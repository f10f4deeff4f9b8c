//! AWS App Mesh by the custom resources of its controller
//! (`appmesh.k8s.aws/v1beta2`): a VirtualNode for the primary and one for the
//! canary, a VirtualRouter that divides between them, and a VirtualService that
//! leads to it. A second VirtualService reaches the canary alone, for tests.
//!
//! `meshRef` and `awsName` are left to the controller's webhook, which fills
//! them in. A split is in force once the controller says of this very
//! generation that the router is active, which means that the mesh has it; the
//! mesh does not say when the last proxy has.
//!
//! Without that controller [`aws`] does the same by App Mesh's own API.

#[cfg(feature = "aws")]
pub mod aws;
mod routes;

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use async_trait::async_trait;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::{
    Client, ResourceExt,
    api::{ApiResource, DynamicObject},
};
use serde_json::{Value, json};

use super::{
    Arms, Capabilities, Error, Lookup, ObjectName, Router, Subject, Unsupported, check_capabilities,
    entries::{Entries, List},
    note,
    object::{self, Wanted},
    services::{self, Apex, Names},
};
use crate::{
    api::{
        Canary, Weight,
        canary::{HttpMatch, service::Service},
    },
    engine::{
        Plan,
        action::{Split, Stable},
    },
};

/// Where the mesh is that App Mesh's own API is asked for.
#[derive(Clone, Debug)]
pub struct AppMeshOptions {
    /// For Canaries that name none.
    pub mesh: Option<String>,
    /// The account that shared the mesh with ours.
    pub mesh_owner: Option<String>,
    /// Where pods are registered; they are found by DNS if there is none.
    pub cloud_map_namespace: Option<String>,
    /// How long what was seen of a mesh counts.
    pub remembered_for: Duration,
    /// As whom, and where.
    #[cfg(feature = "aws")]
    pub account: crate::aws::Account,
}

impl Default for AppMeshOptions {
    fn default() -> Self {
        Self {
            mesh: None,
            mesh_owner: None,
            cloud_map_namespace: None,
            remembered_for: Duration::from_secs(5),
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

/// What App Mesh calls the protocol of a listener; a route is of the same kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Protocol {
    Http,
    Http2,
    Grpc,
    Tcp,
}

impl Protocol {
    /// A GRPC route knows no paths: with conditions on them gRPC is HTTP/2.
    fn of(canary: &Canary) -> Self {
        let Some(spec) = &canary.spec.service else { return Self::Http };
        let analysis = &canary.spec.analysis;
        let chosen = analysis.match_.iter().chain(analysis.steps.iter().flat_map(|step| &step.match_));
        let by_path = |one: &HttpMatch| one.uri.is_some() || one.method.is_some() || one.scheme.is_some();
        match services::protocol(spec).as_str() {
            speaks if speaks.starts_with("grpc") => {
                if spec.match_.iter().chain(chosen).any(by_path) {
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
    fn named(&self, canary: &Canary, kind: &ApiResource, name: String) -> ObjectName {
        ObjectName { kind: kind.clone(), namespace: canary.namespace().unwrap_or_default(), name }
    }

    fn route_name(&self, canary: &Canary) -> ObjectName {
        self.named(canary, &self.virtual_routers, Names::of(canary).apex)
    }

    /// Everything beside the Services, the router first.
    fn own_objects(&self, canary: &Canary) -> [ObjectName; 5] {
        let Names { apex, primary, canary: candidate } = Names::of(canary);
        [
            self.route_name(canary),
            self.named(canary, &self.virtual_services, apex),
            self.named(canary, &self.virtual_services, candidate.clone()),
            self.named(canary, &self.virtual_nodes, primary),
            self.named(canary, &self.virtual_nodes, candidate),
        ]
    }

    /// In the order to write them: whoever is referred to comes first.
    fn wanted(&self, on: &Subject<'_>, split: &Split) -> Vec<Wanted> {
        let Subject { canary, arms, .. } = on;
        let spec = canary.spec.service.clone().unwrap_or_default();
        let protocol = Protocol::of(canary);
        let [router, service, canary_service, primary, candidate] = self.own_objects(canary);
        let port = json!({"port": container_port(&spec, arms), "protocol": protocol.name()});
        let selectors = [selector([&arms.primary, &arms.previous]), selector([&arms.canary, &arms.canary])];
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
            Wanted::new(canary, name, Default::default(), body)
        });

        let canary_provider = json!({"virtualNode": {"virtualNodeRef": {"name": canary_service.name}}});
        let provider = json!({"virtualRouter": {"virtualRouterRef": {"name": router.name}}});
        let [service, canary_service] =
            [(service, provider), (canary_service, canary_provider)].map(|(name, by)| {
                Wanted::new(canary, name, Default::default(), json!({"spec": {"provider": by}}))
            });

        let (canary_, split_) = ((*canary).clone(), split.clone());
        let routes = move |original: Option<&Value>| routes::routes(&canary_, &split_, protocol, original);
        let entries = Entries::new(list(&router), routes);
        let router = Wanted::new(canary, router, note::of(split), json!({}))
            .unless_adopted(json!({"spec": {"listeners": [{"portMapping": port}]}}))
            .with_entries(entries);
        nodes.chain([canary_service, router, service]).collect()
    }

    /// A VirtualService of people's that leads past a router cannot be made to
    /// lead to one as well, and what is theirs is not removed.
    fn check_service(&self, canary: &Canary, seen: &dyn Lookup) -> Result<(), Unsupported> {
        let [_, service, ..] = self.own_objects(canary);
        let live = service.find(seen);
        if live.is_some_and(|live| live.data["spec"]["provider"]["virtualNode"].is_object()) {
            return Err(Unsupported::Field {
                router: self.name(),
                field: "spec.service.name",
                what: format!("{service}, which leads to a virtual node"),
                way_out: "let that VirtualService lead to a virtual router, or delete it",
            });
        }
        Ok(())
    }
}

fn capabilities(canary: &Canary) -> Capabilities {
    let matches = Protocol::of(canary) != Protocol::Tcp;
    let finest_weight = Weight::from_hundredths(100).unwrap_or(Weight::FULL);
    Capabilities { finest_weight, matches, match_with_weight: matches, ..Capabilities::SWITCH }
}

fn check_conditions(router: &impl Router, canary: &Canary) -> Result<(), Unsupported> {
    let conditions = canary.spec.service.iter().flat_map(|spec| &spec.match_);
    match conditions.into_iter().find_map(|one| router.understands(one).err()) {
        Some(condition) => Err(Unsupported::Field {
            router: router.name(),
            field: "spec.service.match",
            what: condition.to_owned(),
            way_out: "match by headers, method, scheme or the prefix of the uri",
        }),
        None => Ok(()),
    }
}

pub fn list(router: &ObjectName) -> List {
    List::new(router, ["spec", "routes"], routes::leads_to, routes::is_for_all)
}

/// Pods of either of the two.
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

/// What the pods listen on: a virtual node knows pods, not Services.
fn container_port(spec: &Service, arms: &Arms) -> u16 {
    match &spec.target_port {
        Some(IntOrString::Int(port)) => u16::try_from(*port).ok().filter(|port| *port > 0),
        Some(IntOrString::String(name)) => arms.ports.get(name).copied(),
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

/// Why the mesh does not have the router yet.
fn not_active(router: &DynamicObject) -> Option<String> {
    let name = format!("the VirtualRouter {}/{}", router.namespace().unwrap_or_default(), router.name_any());
    let status = &router.data["status"];
    let conditions = status["conditions"].as_array().into_iter().flatten();
    let active = conditions.into_iter().find(|condition| condition["type"] == "VirtualRouterActive");
    match active {
        _ if status["observedGeneration"].as_i64() != router.metadata.generation => Some(format!(
            "the App Mesh controller has not looked at {name} since it was changed; check that it runs"
        )),
        Some(active) if active["status"] == "True" => None,
        Some(active) => {
            Some(format!("{name} is not active: {}", active["message"].as_str().unwrap_or_default()))
        }
        None => Some(format!("the App Mesh controller has not said whether {name} is active")),
    }
}

#[async_trait]
impl Router for AppMeshResources {
    fn name(&self) -> String {
        format!("appmesh ({})", self.virtual_routers.version)
    }

    fn capabilities(&self, canary: &Canary) -> Capabilities {
        capabilities(canary)
    }

    fn understands(&self, condition: &HttpMatch) -> Result<(), &'static str> {
        routes::understands(condition)
    }

    fn check(&self, canary: &Canary, plan: &Plan) -> Result<(), Unsupported> {
        check_capabilities(self, canary, plan)?;
        check_conditions(self, canary)
    }

    fn objects(&self, canary: &Canary) -> Vec<ObjectName> {
        services::objects(canary).into_iter().chain(self.own_objects(canary)).collect()
    }

    fn split(&self, on: &Subject<'_>, seen: &dyn Lookup) -> Option<Split> {
        let route = self.route_name(on.canary);
        let split = note::in_force(on, seen, &route, |split| self.wanted(on, split))?;
        not_active(&*route.find(seen)?).is_none().then_some(split)
    }

    fn pending(&self, canary: &Canary, seen: &dyn Lookup) -> Option<String> {
        let live = self.route_name(canary).find(seen)?;
        note::read(&live, Stable::Primary)?;
        not_active(&live)
    }

    async fn set(
        &self,
        client: &Client,
        on: &Subject<'_>,
        seen: &dyn Lookup,
        split: &Split,
    ) -> Result<(), Error> {
        self.capabilities(on.canary).allow(split, || self.name())?;
        self.check_service(on.canary, seen)?;
        services::ensure(client, on, seen, Apex::Stable, split.stable).await?;
        for object in self.wanted(on, split) {
            object.ensure(client, on.canary, seen).await?;
        }
        Ok(())
    }

    fn restored(&self, canary: &Canary, seen: &dyn Lookup) -> bool {
        services::restored(canary, seen) && !object::any_is_ours(&self.own_objects(canary), canary, seen)
    }

    async fn restore(&self, client: &Client, canary: &Canary, seen: &dyn Lookup) -> Result<(), Error> {
        // The apex leads to the target before the router lets go of it, and
        // whoever refers to another goes first.
        services::restore(client, canary, seen).await?;
        let [router, service, canary_service, primary, candidate] = self.own_objects(canary);
        for name in [&service, &canary_service] {
            object::take_back(client, canary, seen, name).await?;
        }
        object::take_back(client, canary, seen, &router).await?;
        for name in [&primary, &candidate] {
            object::take_back(client, canary, seen, name).await?;
        }
        Ok(())
    }
}
