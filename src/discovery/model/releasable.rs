//! Whether Serin can release a workload through a provider: yes, or why not.

use serde::{Serialize, Serializer};

use super::fact::{MeshKind, Mode, Strength};
use super::inventory::Inventory;
use super::key::{Key, Kind};
use super::object::WorkloadSpec;
use super::route::{Outcome, RouteStanding, Scope};
use super::service::Service;
use super::workload::{Membership, Role, Workload};

/// A value of `spec.provider`, without its version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Provider {
    Kubernetes,
    Istio,
    GatewayApi,
    Linkerd,
    Smi,
    Osm,
    /// By the custom resources of Amazon's controller.
    AppMesh,
    /// By App Mesh's own API.
    AppMeshApi,
}

/// istio.io/docs/ambient/migrate/migrate-policies.
const ALPHA_IN_AMBIENT: &str =
    "in ambient mode Istio's support of VirtualService is alpha; set spec.provider to gatewayapi:v1";

impl Provider {
    pub const ALL: [Provider; 8] = [
        Self::Kubernetes,
        Self::Istio,
        Self::GatewayApi,
        Self::Linkerd,
        Self::Smi,
        Self::Osm,
        Self::AppMesh,
        Self::AppMeshApi,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Self::Kubernetes => "kubernetes",
            Self::Istio => "istio",
            Self::GatewayApi => "gatewayapi",
            Self::Linkerd => "linkerd",
            Self::Smi => "smi",
            Self::Osm => "osm",
            Self::AppMesh => "appmesh",
            Self::AppMeshApi => "appmesh:aws",
        }
    }

    /// `plural.group` of the kind that it writes; Linkerd's is either of two.
    fn needs(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Self::Kubernetes | Self::AppMeshApi => &[],
            Self::Istio => &[("VirtualService", "virtualservices.networking.istio.io")],
            Self::GatewayApi => &[("HTTPRoute", "httproutes.gateway.networking.k8s.io")],
            Self::Linkerd => &[
                ("HTTPRoute", "httproutes.gateway.networking.k8s.io"),
                ("TrafficSplit", "trafficsplits.split.smi-spec.io"),
            ],
            Self::Smi | Self::Osm => &[("TrafficSplit", "trafficsplits.split.smi-spec.io")],
            Self::AppMesh => &[("VirtualRouter", "virtualrouters.appmesh.k8s.aws")],
        }
    }
}

impl Serialize for Provider {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Releasable {
    pub provider: Provider,
    pub yes: bool,
    /// One sentence.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

/// Of a workload whose mesh counts no requests to it.
const WITHOUT_REQUESTS: &str = "no request series for five minutes, so no metric of the mesh can judge a release; send it requests, or let Prometheus scrape its proxies";

impl Workload {
    /// No metric source shows requests to it: no provider of a mesh can be judged.
    pub fn set_without_requests(&mut self) {
        let judged = self.releasable.iter_mut().filter(|answer| answer.provider != Provider::Kubernetes);
        for answer in judged.filter(|answer| answer.yes) {
            answer.yes = false;
            answer.why = Some(WITHOUT_REQUESTS.to_owned());
        }
    }
}

/// The answers for every provider, and what speaks against each whatever else does.
pub(super) struct Answers {
    pub releasable: Vec<Releasable>,
    pub obstacles: Vec<Option<String>>,
}

pub(super) fn releasable(inventory: &Inventory, workload: &Workload, spec: &WorkloadSpec) -> Answers {
    let general = obstacle(inventory, workload, spec);
    let obstacles = Provider::ALL.map(|provider| provider_obstacle(inventory, workload, provider)).to_vec();
    let answer = |(provider, obstacle): (Provider, &Option<String>)| {
        let why = general.clone().or_else(|| obstacle.clone());
        Releasable { provider, yes: why.is_none(), why }
    };
    let releasable = Provider::ALL.into_iter().zip(&obstacles).map(answer).collect();
    Answers { releasable, obstacles }
}

/// Whatever the provider.
fn obstacle(inventory: &Inventory, workload: &Workload, spec: &WorkloadSpec) -> Option<String> {
    let key = &workload.key;
    match workload.role {
        Role::App => {}
        Role::Gateway => return Some("it is a gateway; release the workloads behind it".to_owned()),
        Role::Waypoint => return Some("it is a waypoint; release the workloads behind it".to_owned()),
        Role::ControlPlane => return Some("it is the control plane of a mesh".to_owned()),
    }
    match key.kind {
        Kind::Deployment | Kind::DaemonSet => {}
        Kind::Rollout => {
            return Some("Argo Rollouts releases it; replace the Rollout by a Deployment".to_owned());
        }
        kind => return Some(format!("Serin releases Deployments and DaemonSets, not a {}", kind.name())),
    }
    if let Some(canary) = &spec.canary {
        return Some(format!("it is the primary of Canary {}/{canary}", key.namespace));
    }
    if let Some(canary) = inventory.canary_of(key) {
        return Some(format!("already released by {canary}"));
    }
    let services: Vec<&Service> = workload.services.iter().filter_map(|key| inventory.service(key)).collect();
    if !services.is_empty() && services.iter().all(|service| service.headless) {
        let name = &services[0].key;
        return Some(format!("{name} is headless: clients connect to pods, and no route can split that"));
    }
    None
}

pub(super) fn provider_obstacle(
    inventory: &Inventory,
    workload: &Workload,
    provider: Provider,
) -> Option<String> {
    let needs = provider.needs();
    let served = |resource: &str| inventory.serves(&workload.key.cluster, resource);
    if let Some((kind, resource)) = needs.first().filter(|_| !needs.iter().any(|(_, r)| served(r))) {
        let group = resource.split_once('.').map_or("", |(_, group)| group);
        return Some(format!("the cluster does not serve {kind} ({group})"));
    }
    if provider == Provider::Kubernetes {
        return None;
    }
    if let [first, second, ..] = &workload.meshes[..] {
        return Some(format!("two meshes claim it: {} and {}", first.mesh.name(), second.mesh.name()));
    }
    let mesh = workload.mesh();
    let member = mesh.filter(|mesh| mesh.strength == Strength::Participating);
    let kind = member.map(|member| member.mesh);
    let ambient = member.filter(|member| member.mode == Some(Mode::Ambient));
    let absent = |wanted: MeshKind| match mesh {
        Some(mesh) if mesh.mesh == wanted => {
            format!("{} is enabled for it, but no pod has its proxy; restart the workload", wanted.name())
        }
        _ => format!("no pod is in {}", wanted.name()),
    };
    let route_kinds: &[Kind] = match provider {
        Provider::Istio => &[Kind::VirtualService],
        // Without the Gateway API, Linkerd is released by TrafficSplits.
        Provider::Linkerd if !served("httproutes.gateway.networking.k8s.io") => &[Kind::TrafficSplit],
        Provider::GatewayApi | Provider::Linkerd => &[Kind::HttpRoute, Kind::GrpcRoute],
        Provider::Smi | Provider::Osm => &[Kind::TrafficSplit],
        Provider::Kubernetes | Provider::AppMesh | Provider::AppMeshApi => &[],
    };
    let unreachable = match provider {
        Provider::Istio if ambient.is_some() => Some(ALPHA_IN_AMBIENT.to_owned()),
        Provider::Istio if kind != Some(MeshKind::Istio) => Some(absent(MeshKind::Istio)),
        Provider::GatewayApi => match (ambient, kind) {
            (Some(member), _) => no_waypoint(inventory, &workload.key, member.waypoint.as_deref()),
            (None, Some(MeshKind::Istio | MeshKind::Linkerd)) => None,
            _ if inventory.has_gateway_class(&workload.key.cluster, None) => None,
            _ => Some(
                "no pod is in a mesh that reads HTTPRoute, and the cluster has no accepted GatewayClass"
                    .to_owned(),
            ),
        },
        Provider::Linkerd if kind != Some(MeshKind::Linkerd) => Some(absent(MeshKind::Linkerd)),
        Provider::Osm if kind != Some(MeshKind::Osm) => Some(absent(MeshKind::Osm)),
        Provider::AppMesh | Provider::AppMeshApi if kind != Some(MeshKind::AppMesh) => {
            Some(absent(MeshKind::AppMesh))
        }
        Provider::Smi if !matches!(kind, Some(MeshKind::Osm | MeshKind::Linkerd)) => {
            Some("no pod is in a mesh that reads TrafficSplit (osm, or linkerd with linkerd-smi)".to_owned())
        }
        _ => None,
    };
    let in_mesh = unreachable.or_else(|| contested(inventory, workload, route_kinds));
    match (provider, kind) {
        (Provider::GatewayApi, None) => {
            in_mesh.or_else(|| owned_at_gateway(inventory, workload, route_kinds))
        }
        _ => in_mesh,
    }
}

/// Why VirtualServices do not move the traffic of a workload in ambient mode; none if it
/// is not in it.
pub fn ambient_obstacle(inventory: &Inventory, workload: &Workload) -> Option<String> {
    let ambient = |member: &&Membership| member.mesh == MeshKind::Istio && member.mode == Some(Mode::Ambient);
    let member = workload.meshes.iter().find(ambient)?;
    Some(match no_waypoint(inventory, &workload.key, member.waypoint.as_deref()) {
        Some(why) => format!("{why}, and set spec.provider to gatewayapi:v1"),
        None => ALPHA_IN_AMBIENT.to_owned(),
    })
}

fn no_waypoint(inventory: &Inventory, key: &Key, waypoint: Option<&str>) -> Option<String> {
    let Some(waypoint) = waypoint else {
        return Some(
            "no waypoint: ztunnel forwards connections and reads no HTTPRoute; label the namespace or the Service with istio.io/use-waypoint"
                .to_owned(),
        );
    };
    let (namespace, name) = waypoint.split_once('/')?;
    let gateway = Key::new(&key.cluster, namespace, Kind::Gateway, name);
    inventory.object(&gateway).is_none().then(|| format!("its waypoint {waypoint} does not exist"))
}

fn routes_of<'i>(
    inventory: &'i Inventory,
    workload: &'i Workload,
) -> impl Iterator<Item = &'i RouteStanding> {
    let services = workload.services.iter().filter_map(|key| inventory.service(key));
    services.flat_map(|service| &service.routes)
}

fn owned_by(route: &RouteStanding, application: &str) -> String {
    format!("{} is owned by Argo CD application {application}, which would revert the weights", route.route)
}

/// Routes that would override ours, or that somebody else keeps writing.
fn contested(inventory: &Inventory, workload: &Workload, ours: &[Kind]) -> Option<String> {
    let mut routes = routes_of(inventory, workload).filter(|route| route.scope == Scope::Mesh);
    routes.find_map(|route| {
        let is_ours = ours.contains(&route.route.kind);
        match (&route.outcome, &route.application) {
            (Outcome::Undefined(why), _) => Some(why.clone()),
            (Outcome::Wins, _) if !is_ours && !ours.is_empty() => {
                Some(format!("{} overrides {}", route.route, ours[0].name()))
            }
            (Outcome::Wins, Some(application)) => Some(owned_by(route, application)),
            _ => None,
        }
    })
}

/// A route that Argo CD keeps writing at the Gateway where a release would move weights.
fn owned_at_gateway(inventory: &Inventory, workload: &Workload, ours: &[Kind]) -> Option<String> {
    let mut routes = routes_of(inventory, workload).filter(|route| ours.contains(&route.route.kind));
    routes.find_map(|route| match (&route.scope, &route.application) {
        (Scope::Gateway(_), Some(application)) => Some(owned_by(route, application)),
        _ => None,
    })
}
