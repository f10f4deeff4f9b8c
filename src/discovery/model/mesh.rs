//! The meshes of the inventory: control planes, their settings and their members.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use super::external;
use super::fact::{Evidence, Fact, MeshKind, Mode, Source, Strength};
use super::inventory::Inventory;
use super::key::{Key, Kind};
use super::object::{Body, Object, WorkloadSpec};
use super::parse::{config_map_mesh, image_tag};
use super::rules::{ControlPlaneSign, MeshRule, RULES};

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Mesh {
    pub cluster: String,
    pub kind: MeshKind,
    /// `istio-1-29`, `linkerd`; of a gateway its controller name.
    pub name: String,
    /// None if only its kinds are served.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub control_plane: Option<ControlPlane>,
    pub modes: Vec<Mode>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mtls: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trust_domain: Option<String>,
    pub namespaces: Vec<String>,
    pub workloads: usize,
    /// Proxies of another version than the control plane's.
    pub skew: Vec<Skew>,
    pub facts: Vec<Fact>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ControlPlane {
    pub workload: Key,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub revision: Option<String>,
    pub tags: Vec<String>,
    pub ready: u32,
    pub desired: u32,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Skew {
    pub version: String,
    pub workloads: usize,
}

pub(super) fn is_control_plane(
    key: &Key,
    spec: &WorkloadSpec,
) -> Option<(&'static MeshRule, &'static ControlPlaneSign)> {
    let matches = |sign: &&ControlPlaneSign| {
        sign.kind == key.kind
            && (sign.name.is_empty() || sign.name == key.name)
            && sign.labels.iter().all(|(label, value)| spec.labels.get(*label).is_some_and(|v| v == value))
    };
    RULES.iter().find_map(|rule| rule.control_plane.iter().find(matches).map(|sign| (rule, sign)))
}

pub(super) fn meshes(inventory: &Inventory) -> Vec<Mesh> {
    let clusters: BTreeSet<&str> = inventory.objects().map(|object| object.key.cluster.as_str()).collect();
    let mut meshes =
        clusters.into_iter().flat_map(|cluster| of_cluster(inventory, cluster)).collect::<Vec<_>>();
    external::join_virtual_nodes(inventory, &mut meshes);
    meshes
}

fn of_cluster(inventory: &Inventory, cluster: &str) -> Vec<Mesh> {
    let objects = || inventory.objects().filter(move |object| object.key.cluster == cluster);
    let mut meshes: Vec<Mesh> = Vec::new();
    let mut node_proxies: BTreeMap<MeshKind, Vec<(Mode, Fact)>> = BTreeMap::new();
    for object in objects() {
        match &object.body {
            Body::Workload(spec) => match is_control_plane(&object.key, spec) {
                Some((rule, ControlPlaneSign { mode: Some(mode), labels, .. })) => {
                    let fact = installed(rule.mesh, object, field(labels, &object.key));
                    node_proxies.entry(rule.mesh).or_default().push((*mode, fact));
                }
                Some((rule, sign)) => {
                    let mut mesh = with_control_plane(inventory, rule, sign, object, spec);
                    // Its classes may have been found before.
                    let classes = sign.controller.and_then(|controller| {
                        meshes.iter().position(|m| m.kind == MeshKind::Gateway && m.name == controller)
                    });
                    mesh.facts.extend(classes.into_iter().flat_map(|at| meshes.remove(at).facts));
                    meshes.push(mesh);
                }
                None => {}
            },
            Body::GatewayClass { controller, accepted } => {
                let field = format!("spec.controllerName={controller}");
                let fact = installed(MeshKind::Gateway, object, field);
                match meshes.iter_mut().find(|m| m.kind == MeshKind::Gateway && m.name == *controller) {
                    Some(mesh) => mesh.facts.push(fact),
                    None if *accepted => meshes.push(bare(cluster, MeshKind::Gateway, controller, fact)),
                    None => {}
                }
            }
            Body::External(_) => {
                if let Some((kind, fact)) = external::mesh_of(object) {
                    meshes.push(bare(cluster, kind, &object.key.name, fact));
                }
            }
            _ => {}
        }
    }
    for rule in RULES {
        for resource in rule.served {
            let key = Key::new(cluster, "", Kind::ServedResource, resource);
            let Some(object) = inventory.object(&key) else { continue };
            let fact = installed(rule.mesh, object, format!("the API server serves {resource}"));
            match meshes.iter().any(|mesh| mesh.kind == rule.mesh) {
                true => {
                    meshes.iter_mut().filter(|m| m.kind == rule.mesh).for_each(|m| m.facts.push(fact.clone()))
                }
                false => meshes.push(bare(cluster, rule.mesh, rule.mesh.name(), fact)),
            }
        }
    }
    for mesh in &mut meshes {
        for (mode, fact) in node_proxies.get(&mesh.kind).into_iter().flatten() {
            mesh.modes.push(*mode);
            mesh.facts.push(fact.clone());
        }
    }
    join_members(inventory, &mut meshes);
    meshes.sort_by(|a, b| (a.kind, &a.name).cmp(&(b.kind, &b.name)));
    meshes
}

fn field(labels: &[(&str, &str)], key: &Key) -> String {
    match labels.is_empty() {
        true => format!("metadata.name={}", key.name),
        false => {
            let labels: Vec<String> =
                labels.iter().map(|(k, v)| format!("metadata.labels[{k}]={v}")).collect();
            labels.join(" and ")
        }
    }
}

fn installed(mesh: MeshKind, object: &Object, field: String) -> Fact {
    Fact {
        source: Source::Kubernetes { cluster: object.key.cluster.clone() },
        subject: object.key.clone(),
        strength: Strength::Installed,
        mesh,
        mode: None,
        revision: None,
        evidence: Evidence { object: object.key.clone(), field, generation: object.generation },
        count: 1,
    }
}

fn bare(cluster: &str, kind: MeshKind, name: &str, fact: Fact) -> Mesh {
    Mesh {
        cluster: cluster.to_owned(),
        kind,
        name: name.to_owned(),
        control_plane: None,
        modes: Vec::new(),
        mtls: None,
        trust_domain: None,
        namespaces: Vec::new(),
        workloads: 0,
        skew: Vec::new(),
        facts: vec![fact],
    }
}

fn with_control_plane(
    inventory: &Inventory,
    rule: &MeshRule,
    sign: &ControlPlaneSign,
    object: &Object,
    spec: &WorkloadSpec,
) -> Mesh {
    let key = &object.key;
    let revision = match rule.mesh {
        MeshKind::Istio => Some(spec.labels.get("istio.io/rev").map_or("default", String::as_str).to_owned()),
        _ => None,
    };
    let name = match (sign.controller, revision.as_deref()) {
        (Some(controller), _) => controller.to_owned(),
        (None, None | Some("default")) => rule.mesh.name().to_owned(),
        (None, Some(revision)) => format!("{}-{revision}", rule.mesh.name()),
    };
    let of_kind = |kind: Kind| inventory.settings_of(&key.cluster, kind);
    let tags: BTreeSet<String> = of_kind(Kind::WebhookConfiguration)
        .filter_map(|object| match &object.body {
            Body::RevisionTag { tag, revision: of } if Some(of) == revision.as_ref() => Some(tag.clone()),
            _ => None,
        })
        .collect();
    let trust_domain = of_kind(Kind::ConfigMap)
        .filter(|object| object.key.namespace == key.namespace)
        .find_map(|object| match (&object.body, config_map_mesh(&object.key.name)?) {
            (Body::ConfigMap { trust_domain }, (mesh, of)) if mesh == rule.mesh => {
                let same = revision.as_ref().is_none_or(|revision| *revision == of);
                trust_domain.clone().filter(|_| same)
            }
            _ => None,
        });
    let mtls = match rule.mesh {
        // A PeerAuthentication without selector in the root namespace is mesh-wide, and
        // UNSET there is PERMISSIVE: istio.io/api security/v1beta1/peer_authentication.proto.
        MeshKind::Istio => {
            let mut modes = of_kind(Kind::PeerAuthentication).filter_map(|object| match &object.body {
                Body::PeerAuthentication { mode, selects_pods: false }
                    if object.key.namespace == key.namespace =>
                {
                    Some(mode.to_lowercase())
                }
                _ => None,
            });
            Some(modes.find(|mode| mode != "unset").unwrap_or_else(|| "permissive".to_owned()))
        }
        // linkerd.io/2/features/automatic-mtls.
        MeshKind::Linkerd => Some("automatic".to_owned()),
        // mTLS is off until spec.mtls.enabledBackend is set: developer.konghq.com/mesh/mesh,
        // kumahq/kuma#694.
        MeshKind::Kuma => {
            let enabled: Vec<bool> = of_kind(Kind::KumaMesh)
                .filter_map(|object| match object.body {
                    Body::KumaMesh { mtls } => Some(mtls),
                    _ => None,
                })
                .collect();
            match (enabled.iter().any(|on| *on), enabled.iter().all(|on| *on)) {
                (true, true) => Some("enabled".to_owned()),
                (true, false) => Some("in some meshes".to_owned()),
                (false, _) => Some("disabled".to_owned()),
            }
        }
        _ => None,
    };
    let mut mesh =
        bare(&key.cluster, rule.mesh, &name, installed(rule.mesh, object, field(sign.labels, key)));
    mesh.control_plane = Some(ControlPlane {
        workload: key.clone(),
        // Linkerd's control plane has the proxy as its first container.
        version: spec
            .images
            .iter()
            .find(|(container, _)| !rule.proxies.contains(&container.as_str()))
            .and_then(|(_, image)| image_tag(image)),
        revision,
        tags: tags.into_iter().collect(),
        ready: spec.ready,
        desired: spec.desired,
    });
    mesh.trust_domain = trust_domain;
    mesh.mtls = mtls;
    mesh
}

/// A workload belongs to the mesh of its kind with its revision, or to the only one.
fn join_members(inventory: &Inventory, meshes: &mut [Mesh]) {
    let mut namespaces: BTreeMap<usize, BTreeSet<String>> = BTreeMap::new();
    let mut skews: BTreeMap<usize, BTreeMap<String, usize>> = BTreeMap::new();
    for workload in inventory.workloads() {
        for member in &workload.meshes {
            let of_kind: Vec<usize> = (0..meshes.len())
                .filter(|at| meshes[*at].kind == member.mesh && meshes[*at].cluster == workload.key.cluster)
                .collect();
            let of_revision = |at: &&usize| {
                let plane = meshes[**at].control_plane.as_ref();
                plane.is_some_and(|plane| {
                    plane.revision.as_deref() == member.revision.as_deref().or(Some("default"))
                })
            };
            let at = match &of_kind[..] {
                [only] => Some(*only),
                several => several.iter().find(of_revision).copied(),
            };
            let Some(at) = at else { continue };
            let mesh = &mut meshes[at];
            mesh.workloads += 1;
            mesh.modes.extend(member.mode);
            namespaces.entry(at).or_default().insert(workload.key.namespace.clone());
            let current = mesh.control_plane.as_ref().and_then(|plane| plane.version.as_ref());
            for version in
                member.proxy_versions.iter().filter(|version| current.is_some_and(|c| c != *version))
            {
                *skews.entry(at).or_default().entry(version.clone()).or_default() += 1;
            }
        }
    }
    for (at, mesh) in meshes.iter_mut().enumerate() {
        mesh.modes.sort();
        mesh.modes.dedup();
        mesh.namespaces = namespaces.remove(&at).unwrap_or_default().into_iter().collect();
        let skew = skews.remove(&at).unwrap_or_default().into_iter();
        // Istio's proxies are tagged as its control plane is; of other meshes that was not
        // read from a source.
        if mesh.kind == MeshKind::Istio {
            mesh.skew = skew.map(|(version, workloads)| Skew { version, workloads }).collect();
        }
    }
}
