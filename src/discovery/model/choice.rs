//! The provider of a Canary that names none, and how it is known.

use std::collections::BTreeMap;

use super::fact::{Fact, MeshKind, Mode, Strength};
use super::inventory::Inventory;
use super::key::{Key, Kind};
use super::releasable::{Provider, ambient_obstacle, provider_obstacle};
use super::route::Scope;
use super::workload::{Membership, Role, Workload};

/// Fields of a Canary that name a gateway of its own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RouteHints {
    /// `spec.service.gatewayRefs` is set.
    pub gateway_refs: bool,
    /// `spec.service.gateways` names another gateway than `mesh`.
    pub istio_gateways: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Choice {
    /// The evidence names no pod, so it stays the same when pods are replaced.
    Chosen { provider: Provider, evidence: String },
    /// Nothing can be chosen until somebody changes something: one sentence.
    Refused(String),
    /// Not known yet.
    Unknown(String),
}

impl Inventory {
    /// For a target of kind Deployment, DaemonSet or Service. A target that has no pods
    /// between releases is known by its primary.
    pub fn choose(&self, target: &Key, primary: &Key, hints: RouteHints) -> Choice {
        let views = self.members(target, primary);
        let Some(first) = views.first() else {
            return Choice::Unknown(match self.object(target) {
                None => format!("{target} does not exist"),
                Some(_) => format!("no workload is behind {target}"),
            });
        };
        match first.role {
            Role::App => {}
            Role::Gateway | Role::Waypoint | Role::ControlPlane => {
                return Choice::Refused(format!(
                    "{} is part of a mesh itself; set spec.provider to release it all the same",
                    first.key
                ));
            }
        }
        let served = |resource: &str| self.serves(&target.cluster, resource);
        if hints.gateway_refs {
            return match served("httproutes.gateway.networking.k8s.io") {
                true => chosen(Provider::GatewayApi, "spec.service.gatewayRefs names a Gateway"),
                false => Choice::Refused(
                    "spec.service.gatewayRefs needs HTTPRoute (gateway.networking.k8s.io), which the cluster does not serve; install the Gateway API, or set spec.provider"
                        .to_owned(),
                ),
            };
        }
        let has_pods = views.iter().any(|workload| !self.pods_of(&workload.key).is_empty());
        let mut meshes: BTreeMap<MeshKind, (&Membership, &Workload)> = BTreeMap::new();
        for workload in &views {
            meshes.extend(workload.meshes.iter().map(|member| (member.mesh, (member, *workload))));
        }
        let meshes: Vec<(&Membership, &Workload)> = meshes.into_values().collect();
        match &meshes[..] {
            _ if !has_pods => Choice::Unknown(format!(
                "no pod of {target} runs, so its mesh is not known; start one, or set spec.provider"
            )),
            [(one, of_one), (other, of_other), ..] => Choice::Refused(format!(
                "two meshes claim {target}: {} and {}; take it out of one, or set spec.provider",
                evidence(of_one, one),
                evidence(of_other, other)
            )),
            [(member, workload)] => self.by_mesh(member, workload),
            [] if hints.istio_gateways && served("virtualservices.networking.istio.io") => {
                chosen(Provider::Istio, "spec.service.gateways names a gateway of Istio")
            }
            [] => match self.gateway_route(&views) {
                Some(why) => Choice::Refused(why),
                None => chosen(Provider::Kubernetes, &format!("no pod of {} is in a mesh", first.key)),
            },
        }
    }

    /// Why the VirtualServices of a Canary that names `istio` would move no traffic: its
    /// target is in ambient mode. A gateway of Istio before it reads them all the same.
    pub fn istio_obstacle(&self, target: &Key, primary: &Key, hints: RouteHints) -> Option<String> {
        let views = self.members(target, primary);
        let why = views.iter().find_map(|workload| ambient_obstacle(self, workload));
        why.filter(|_| !hints.istio_gateways)
    }

    /// The workloads whose pods serve the target.
    fn members(&self, target: &Key, primary: &Key) -> Vec<&Workload> {
        if target.kind == Kind::Service {
            let services = [target, primary].into_iter().filter_map(|key| self.service(key));
            return services.flat_map(|s| &s.workloads).filter_map(|key| self.workload(key)).collect();
        }
        let Some(workload) = self.workload(target) else { return Vec::new() };
        let with_pods = [target, primary].into_iter().find(|key| !self.pods_of(key).is_empty());
        vec![with_pods.and_then(|key| self.workload(key)).unwrap_or(workload)]
    }

    fn by_mesh(&self, member: &Membership, workload: &Workload) -> Choice {
        let mesh = member.mesh.name();
        let provider = match member.mesh {
            MeshKind::Istio if member.mode == Some(Mode::Ambient) => Provider::GatewayApi,
            MeshKind::Istio => Provider::Istio,
            MeshKind::Linkerd => Provider::Linkerd,
            MeshKind::Osm => Provider::Osm,
            // Without the kinds of Amazon's controller only its API is left.
            MeshKind::AppMesh if !self.serves(&workload.key.cluster, "virtualrouters.appmesh.k8s.aws") => {
                Provider::AppMeshApi
            }
            MeshKind::AppMesh => Provider::AppMesh,
            MeshKind::Kuma | MeshKind::Consul | MeshKind::Cilium | MeshKind::Smi | MeshKind::Gateway => {
                return Choice::Refused(format!(
                    "{} is in {mesh}, which Serin cannot route through; set spec.provider, for example to kubernetes",
                    workload.key
                ));
            }
        };
        if member.strength < Strength::Participating {
            return Choice::Refused(format!(
                "{mesh} is enabled for {} ({}), but no pod has its proxy; restart the workload, or set spec.provider",
                workload.key,
                evidence(workload, member)
            ));
        }
        match provider_obstacle(self, workload, provider) {
            Some(why) => Choice::Refused(format!("{} is in {mesh}: {why}", workload.key)),
            None => Choice::Chosen { provider, evidence: evidence(workload, member) },
        }
    }

    /// A workload outside of a mesh whose Service is behind a Gateway: the Canary has to
    /// name it, since another Gateway may be meant.
    fn gateway_route(&self, views: &[&Workload]) -> Option<String> {
        let services = views.iter().flat_map(|view| &view.services).filter_map(|key| self.service(key));
        let mut routes = services.flat_map(|service| &service.routes);
        routes.find_map(|standing| match &standing.scope {
            Scope::Gateway(gateway) if standing.route.kind == Kind::HttpRoute => Some(format!(
                "{} routes requests of Gateway {gateway} to it; set spec.service.gatewayRefs to release through that Gateway, or spec.provider",
                standing.route
            )),
            Scope::Gateway(_) | Scope::Mesh | Scope::Backend => None,
        })
    }
}

fn chosen(provider: Provider, evidence: &str) -> Choice {
    Choice::Chosen { provider, evidence: evidence.to_owned() }
}

/// `istio, sidecar: metadata.annotations[sidecar.istio.io/status] of its pods`.
fn evidence(workload: &Workload, member: &Membership) -> String {
    let of_mesh = |fact: &&Fact| fact.mesh == member.mesh && fact.strength == member.strength;
    let proof = workload.facts.iter().find(of_mesh).map(|fact| {
        let object = &fact.evidence.object;
        match object.kind {
            Kind::Pod => format!(": {} of its pods", fact.evidence.field),
            _ => format!(": {} of {object}", fact.evidence.field),
        }
    });
    let mode = member.mode.map(|mode| format!(", {mode}")).unwrap_or_default();
    let waypoint = member.waypoint.as_ref().map(|name| format!(", waypoint {name}")).unwrap_or_default();
    format!("{}{mode}{waypoint}{}", member.mesh.name(), proof.unwrap_or_default())
}
