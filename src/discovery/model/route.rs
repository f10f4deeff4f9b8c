//! The route objects that touch a Service, and which one wins.

use std::cmp::Ordering;
use std::collections::BTreeSet;

use serde::Serialize;

use super::external::External;
use super::fact::{MeshKind, Mode};
use super::inventory::Inventory;
use super::key::{Key, Kind};
use super::object::{Body, Object, RouteSpec, ServiceRef};
use super::workload::Workload;

/// The traffic that a route applies to.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Scope {
    /// Calls of pods in the mesh to the Service.
    Mesh,
    /// Requests that enter through this gateway or ingress class.
    Gateway(String),
    /// It sends requests of another Service's callers here.
    Backend,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Outcome {
    Wins,
    /// One of several whose rules are merged.
    Merged,
    /// Overridden; the sentence names the winner and the rule.
    Loses(String),
    /// Nothing reads it.
    Ignored(String),
    /// The mesh gives no answer.
    Undefined(String),
    /// A route to this Service that competes elsewhere.
    Elsewhere,
}

impl Outcome {
    pub fn wins(&self) -> bool {
        matches!(self, Self::Wins | Self::Merged)
    }

    /// The sentence, if there is one.
    pub fn why(&self) -> Option<&str> {
        match self {
            Self::Loses(why) | Self::Ignored(why) | Self::Undefined(why) => Some(why),
            Self::Wins | Self::Merged | Self::Elsewhere => None,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RouteStanding {
    pub route: Key,
    pub scope: Scope,
    pub outcome: Outcome,
    /// The Argo CD application that owns it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub application: Option<String>,
}

struct Candidate<'o> {
    object: &'o Object,
    scope: Scope,
}

pub(super) fn standings(inventory: &Inventory, service: &Key, workloads: &[Key]) -> Vec<RouteStanding> {
    let here = ServiceRef { namespace: service.namespace.clone(), name: service.name.clone() };
    let mut candidates = Vec::new();
    for (object, route) in inventory.routes_of(service) {
        candidates.extend(scopes(&here, route).into_iter().map(|scope| Candidate { object, scope }));
    }
    let workloads: Vec<&Workload> =
        workloads.iter().filter_map(|workload| inventory.workload(workload)).collect();
    let reader = Reader::of(inventory, service, &workloads);
    if let Reader::AppMesh = reader {
        candidates.extend(app_mesh_candidates(inventory, service, &workloads));
    }
    candidates.sort_by(|a, b| a.scope.cmp(&b.scope).then_with(|| reader.order(service, a, b)));
    let mut standings: Vec<RouteStanding> = Vec::new();
    for candidate in &candidates {
        let leader = standings
            .iter()
            .find(|s| s.scope == candidate.scope && s.outcome.wins())
            .map(|s| s.route.clone());
        let outcome = match &candidate.scope {
            Scope::Mesh => reader.outcome(service, candidate.object, leader.as_ref(), &candidates),
            // Rules of several routes on one Gateway are merged, the most specific match
            // first and then the oldest route: Gateway API, AllowedRoutes. VirtualServices
            // are merged on gateways too: istio.io/docs/reference/config/analysis/ist0109.
            Scope::Gateway(_) if leader.is_some() => Outcome::Merged,
            Scope::Gateway(_) => Outcome::Wins,
            Scope::Backend => Outcome::Elsewhere,
        };
        standings.push(RouteStanding {
            route: candidate.object.key.clone(),
            scope: candidate.scope.clone(),
            outcome,
            application: candidate.object.application.clone(),
        });
    }
    standings
}

/// The virtual services that callers in the mesh of these workloads know the Service by,
/// and the routes behind them. Another mesh may use the same names.
fn app_mesh_candidates<'o>(
    inventory: &'o Inventory,
    service: &Key,
    workloads: &[&Workload],
) -> Vec<Candidate<'o>> {
    let meshes: BTreeSet<&str> =
        workloads.iter().flat_map(|w| &w.virtual_nodes).map(|node| node.mesh.as_str()).collect();
    let known = inventory.virtual_services_of(service);
    let known = known.filter(|found| meshes.is_empty() || meshes.contains(found.key.namespace.as_str()));
    let with_routes =
        known.flat_map(move |found| std::iter::once(found).chain(inventory.app_mesh_routes_of(found)));
    with_routes.map(|object| Candidate { object, scope: Scope::Mesh }).collect()
}

fn scopes(service: &ServiceRef, route: &RouteSpec) -> Vec<Scope> {
    if route.attached.contains(service) {
        let gateways = route.backends.contains(service).then_some(&route.gateways).into_iter().flatten();
        return std::iter::once(Scope::Mesh).chain(gateways.cloned().map(Scope::Gateway)).collect();
    }
    match route.gateways.is_empty() {
        true => vec![Scope::Backend],
        false => route.gateways.iter().cloned().map(Scope::Gateway).collect(),
    }
}

/// The mesh that reads the routes of a Service.
enum Reader {
    /// No workload behind the Service is in a mesh.
    Nobody,
    Istio {
        ambient: bool,
    },
    Linkerd,
    Kuma,
    /// By config entries of its own.
    Consul,
    /// No pod shows it: it serves all pods of its nodes.
    Cilium,
    AppMesh,
    Osm,
    /// Precedence of its routes was not read from any source.
    Unknown(MeshKind),
    Several,
}

/// Cilium: operator/pkg/gateway-api/controller.go.
const CILIUM_GATEWAY_CONTROLLER: &str = "io.cilium/gateway-controller";

impl Reader {
    fn of(inventory: &Inventory, service: &Key, workloads: &[&Workload]) -> Self {
        let meshes: BTreeSet<(MeshKind, Option<Mode>)> = workloads
            .iter()
            .flat_map(|workload| &workload.meshes)
            .map(|membership| (membership.mesh, membership.mode))
            .collect();
        let kinds: BTreeSet<MeshKind> = meshes.iter().map(|(kind, _)| *kind).collect();
        let mut kinds = kinds.into_iter();
        match (kinds.next(), kinds.next()) {
            // With its Gateway API on, Cilium reads HTTPRoutes of Services too:
            // docs.cilium.io/en/stable/network/servicemesh/gateway-api/gamma.
            (None, _) if inventory.has_gateway_class(&service.cluster, Some(CILIUM_GATEWAY_CONTROLLER)) => {
                Self::Cilium
            }
            (None, _) => Self::Nobody,
            (Some(_), Some(_)) => Self::Several,
            (Some(kind), None) => match kind {
                MeshKind::Istio => {
                    Self::Istio { ambient: meshes.iter().any(|(_, mode)| *mode == Some(Mode::Ambient)) }
                }
                MeshKind::Linkerd => Self::Linkerd,
                MeshKind::Kuma => Self::Kuma,
                MeshKind::Consul => Self::Consul,
                MeshKind::AppMesh => Self::AppMesh,
                MeshKind::Osm => Self::Osm,
                MeshKind::Cilium | MeshKind::Smi | MeshKind::Gateway => Self::Unknown(kind),
            },
        }
    }

    /// None: the mesh does not read this kind. A lower rank comes first.
    fn rank(&self, kind: Kind) -> Option<u8> {
        match (self, kind) {
            // proxies will use the ServiceProfile rather than the HTTPRoute, as long as it
            // exists: linkerd.io/2.13/reference/httproute. TrafficSplits become
            // ServiceProfiles: release notes of linkerd-smi v0.1.0.
            (Self::Linkerd, Kind::ServiceProfile) => Some(0),
            (Self::Linkerd, Kind::TrafficSplit) => Some(1),
            // With a GRPCRoute on the same parent the HTTPRoute is ignored:
            // linkerd/linkerd2#12782, GEP-1426.
            (Self::Linkerd, Kind::GrpcRoute) => Some(2),
            (Self::Linkerd, Kind::HttpRoute) => Some(3),
            (Self::Istio { .. }, Kind::VirtualService | Kind::HttpRoute | Kind::GrpcRoute) => Some(0),
            (Self::Osm, Kind::TrafficSplit) => Some(0),
            // konghq.com/blog/engineering/gamma-and-kuma, from Kuma 2.3 on.
            (Self::Kuma, Kind::HttpRoute) => Some(0),
            (Self::Cilium, Kind::HttpRoute | Kind::GrpcRoute) => Some(0),
            (Self::AppMesh, Kind::AppMeshVirtualService) => Some(0),
            (Self::AppMesh, Kind::AppMeshRoute) => Some(1),
            (Self::Unknown(_) | Self::Several, _) => Some(0),
            _ => None,
        }
    }

    fn order(&self, service: &Key, a: &Candidate<'_>, b: &Candidate<'_>) -> Ordering {
        let rank = |c: &Candidate<'_>| self.rank(c.object.key.kind).unwrap_or(u8::MAX);
        // Istio prefers Gateway API routes of the client's namespace:
        // pilot/pkg/model/virtualservice.go, SelectVirtualServices. Linkerd prefers
        // ServiceProfiles of the client's namespace: controller/api/destination/server.go.
        // The Service's own namespace stands in for the clients'.
        let elsewhere = |c: &Candidate<'_>| match self {
            Self::Istio { .. } if a.scope == Scope::Mesh => {
                c.object.key.kind == Kind::VirtualService || c.object.key.namespace != service.namespace
            }
            Self::Linkerd if c.object.key.kind == Kind::ServiceProfile => {
                c.object.key.namespace != service.namespace
            }
            _ => false,
        };
        // 0 is the highest: docs.aws.amazon.com app-mesh/latest/APIReference/API_RouteSpec.html.
        let priority = |c: &Candidate<'_>| match &c.object.body {
            Body::External(External::Route { priority, .. }) => priority.unwrap_or(i32::MAX),
            _ => 0,
        };
        // The oldest first, then by name: Gateway API, AllowedRoutes (namespace/name);
        // Istio, pilot/pkg/model/config.go, configCompareByCreationTime (name, namespace).
        let by_name = |c: &Candidate<'_>| match c.object.key.kind {
            Kind::VirtualService => (c.object.key.name.clone(), c.object.key.namespace.clone()),
            _ => (c.object.key.namespace.clone(), c.object.key.name.clone()),
        };
        rank(a)
            .cmp(&rank(b))
            .then_with(|| elsewhere(a).cmp(&elsewhere(b)))
            .then_with(|| priority(a).cmp(&priority(b)))
            .then_with(|| a.object.created.cmp(&b.object.created))
            .then_with(|| by_name(a).cmp(&by_name(b)))
            .then_with(|| a.object.key.cmp(&b.object.key))
    }

    fn outcome(
        &self,
        service: &Key,
        object: &Object,
        leader: Option<&Key>,
        all: &[Candidate<'_>],
    ) -> Outcome {
        let key = &object.key;
        if self.rank(key.kind).is_none() {
            return Outcome::Ignored(match self {
                Self::Nobody => "no pod behind the Service is in a mesh, so nothing reads it".to_owned(),
                Self::Consul => format!(
                    "Consul does not read {} objects for calls in the mesh; it has ServiceRouter and ServiceSplitter",
                    key.kind.name()
                ),
                _ => format!("the mesh does not read {} objects", key.kind.name()),
            });
        }
        let has = |wanted: fn(Kind) -> bool| {
            all.iter().any(|c| c.scope == Scope::Mesh && wanted(c.object.key.kind))
        };
        match self {
            Self::Several => Outcome::Undefined("two meshes claim the workloads behind the Service".to_owned()),
            Self::Unknown(mesh) => {
                Outcome::Undefined(format!("the precedence of routes in {} is not known", mesh.name()))
            }
            // istio.io/docs/ambient/migrate/migrate-policies.
            Self::Istio { ambient: true }
                if has(|kind| kind == Kind::VirtualService)
                    && has(|kind| matches!(kind, Kind::HttpRoute | Kind::GrpcRoute)) =>
            {
                Outcome::Undefined(
                    "Istio does not support VirtualService and HTTPRoute together in ambient mode; remove one"
                        .to_owned(),
                )
            }
            // Consumer routes are not supported: the page of GAMMA above.
            Self::Cilium if key.namespace != service.namespace => {
                Outcome::Ignored("Cilium reads routes in the namespace of their Service only".to_owned())
            }
            Self::Cilium if key.kind == Kind::GrpcRoute => Outcome::Undefined(
                "whether Cilium reads a GRPCRoute of a Service depends on its version".to_owned(),
            ),
            _ => match leader {
                None => Outcome::Wins,
                Some(leader) if self.merges(key, leader) => Outcome::Merged,
                Some(leader) if matches!(self, Self::Kuma) => Outcome::Undefined(format!(
                    "{leader} is attached to the same Service, and which of the two Kuma matches first is not known"
                )),
                Some(leader) => Outcome::Loses(lost_to(key, leader)),
            },
        }
    }

    /// Whether the rules of both are in force, those of the leader first where they match
    /// equally.
    fn merges(&self, key: &Key, leader: &Key) -> bool {
        let of_gateway_api = |key: &Key| matches!(key.kind, Kind::HttpRoute | Kind::GrpcRoute);
        match self {
            // The routes of one namespace become one VirtualService:
            // pilot/pkg/config/kube/gateway/conversion.go, convertVirtualService.
            Self::Istio { .. } => {
                of_gateway_api(key) && of_gateway_api(leader) && key.namespace == leader.namespace
            }
            // A proxy gets all routes of one kind, the oldest first:
            // policy-controller/grpc/src/outbound.rs, timestamp_then_name.
            Self::Linkerd => of_gateway_api(key) && key.kind == leader.kind,
            // Gateway API, HTTPRouteRule.matches.
            Self::Cilium => true,
            // Each virtual service has its host name; its routes are matched in turn.
            Self::AppMesh => true,
            Self::Nobody | Self::Kuma | Self::Consul | Self::Osm | Self::Unknown(_) | Self::Several => false,
        }
    }
}

fn lost_to(key: &Key, leader: &Key) -> String {
    let kind = key.kind;
    match (leader.kind, kind) {
        (Kind::ServiceProfile, Kind::ServiceProfile) => {
            format!("{leader} comes first, except for clients in {}", key.namespace)
        }
        (Kind::ServiceProfile | Kind::TrafficSplit, Kind::HttpRoute | Kind::GrpcRoute) => {
            format!("{leader} overrides {}s in Linkerd", kind.name())
        }
        (Kind::GrpcRoute, Kind::HttpRoute) => format!("{leader} is attached to the same Service"),
        (winner, _) if winner == kind => format!("{leader} is older"),
        _ => format!("{leader} comes first"),
    }
}

/// Services that a route touches, for the index.
pub(super) fn touched(object: &Object) -> BTreeSet<Key> {
    let Body::Route(route) = &object.body else { return BTreeSet::new() };
    let services = route.attached.iter().chain(&route.backends);
    services
        .map(|service| Key::new(&object.key.cluster, &service.namespace, Kind::Service, &service.name))
        .collect()
}
