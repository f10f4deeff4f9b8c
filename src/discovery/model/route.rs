//! The route objects that touch a Service, and which one wins.

use std::cmp::Ordering;
use std::collections::BTreeSet;

use serde::Serialize;

use super::fact::{MeshKind, Mode};
use super::inventory::Inventory;
use super::key::{Key, Kind};
use super::object::{Body, Object, RouteSpec, ServiceRef};

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
    let meshes: BTreeSet<(MeshKind, Option<Mode>)> = workloads
        .iter()
        .filter_map(|workload| inventory.workload(workload))
        .flat_map(|workload| &workload.meshes)
        .map(|membership| (membership.mesh, membership.mode))
        .collect();
    let reader = Reader::of(&meshes);
    candidates.sort_by(|a, b| a.scope.cmp(&b.scope).then_with(|| reader.order(service, a, b)));
    let mut standings: Vec<RouteStanding> = Vec::new();
    for candidate in &candidates {
        let leader = standings
            .iter()
            .find(|s| s.scope == candidate.scope && s.outcome.wins())
            .map(|s| s.route.clone());
        let outcome = match &candidate.scope {
            Scope::Mesh => reader.outcome(candidate.object.key.kind, leader.as_ref(), &candidates),
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
    Osm,
    /// Precedence of its routes was not read from any source.
    Unknown(MeshKind),
    Several,
}

impl Reader {
    fn of(meshes: &BTreeSet<(MeshKind, Option<Mode>)>) -> Self {
        let kinds: BTreeSet<MeshKind> = meshes.iter().map(|(kind, _)| *kind).collect();
        let mut kinds = kinds.into_iter();
        match (kinds.next(), kinds.next()) {
            (None, _) => Self::Nobody,
            (Some(_), Some(_)) => Self::Several,
            (Some(MeshKind::Istio), None) => {
                Self::Istio { ambient: meshes.iter().any(|(_, mode)| *mode == Some(Mode::Ambient)) }
            }
            (Some(MeshKind::Linkerd), None) => Self::Linkerd,
            (Some(MeshKind::Osm), None) => Self::Osm,
            (Some(kind), None) => Self::Unknown(kind),
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
            (Self::Unknown(_) | Self::Several, _) => Some(0),
            _ => None,
        }
    }

    fn order(&self, service: &Key, a: &Candidate<'_>, b: &Candidate<'_>) -> Ordering {
        let rank = |c: &Candidate<'_>| self.rank(c.object.key.kind).unwrap_or(u8::MAX);
        // Istio prefers Gateway API routes of the client's namespace:
        // pilot/pkg/model/virtualservice.go, SelectVirtualServices. The Service's own
        // namespace stands in for the clients'.
        let gateway_first = |c: &Candidate<'_>| match self {
            Self::Istio { .. } if a.scope == Scope::Mesh => {
                c.object.key.kind == Kind::VirtualService || c.object.key.namespace != service.namespace
            }
            _ => false,
        };
        // The oldest first, then by name: Gateway API, AllowedRoutes (namespace/name);
        // Istio, pilot/pkg/model/config.go, configCompareByCreationTime (name, namespace).
        let by_name = |c: &Candidate<'_>| match c.object.key.kind {
            Kind::VirtualService => (c.object.key.name.clone(), c.object.key.namespace.clone()),
            _ => (c.object.key.namespace.clone(), c.object.key.name.clone()),
        };
        rank(a)
            .cmp(&rank(b))
            .then_with(|| gateway_first(a).cmp(&gateway_first(b)))
            .then_with(|| a.object.created.cmp(&b.object.created))
            .then_with(|| by_name(a).cmp(&by_name(b)))
            .then_with(|| a.object.key.cmp(&b.object.key))
    }

    fn outcome(&self, kind: Kind, leader: Option<&Key>, all: &[Candidate<'_>]) -> Outcome {
        if self.rank(kind).is_none() {
            return Outcome::Ignored(match self {
                Self::Nobody => "no pod behind the Service is in a mesh, so nothing reads it".to_owned(),
                _ => format!("the mesh does not read {} objects", kind.name()),
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
            _ => match leader {
                None => Outcome::Wins,
                Some(leader) => Outcome::Loses(lost_to(kind, leader)),
            },
        }
    }
}

fn lost_to(kind: Kind, leader: &Key) -> String {
    match (leader.kind, kind) {
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
