//! Which meshes a workload is in: the facts of its pods, of its template and of its
//! namespace.

use std::collections::{BTreeMap, BTreeSet};

use super::external;
use super::fact::{Evidence, Fact, MeshKind, Mode, Source, Strength};
use super::inventory::Inventory;
use super::key::{Key, Kind};
use super::mesh::is_control_plane;
use super::object::{Body, Labels, Marks, Object, Pod, PodProof, WorkloadSpec};
use super::rules::{
    Field, GATEWAY_ANNOTATIONS, GATEWAY_CLASS_LABEL, GATEWAY_NAME_LABEL, RULES, USE_WAYPOINT_LABEL,
    USE_WAYPOINT_NAMESPACE_LABEL, WAYPOINT_CLASSES,
};
use super::workload::{Image, Membership, Role, Workload};

/// Without `releasable`, which depends on the routes of its Services.
pub(super) fn workload(inventory: &Inventory, object: &Object, spec: &WorkloadSpec) -> Workload {
    let key = &object.key;
    let pods = inventory.pods_of(key);
    let mut facts = Vec::new();
    for (pod, Pod { generation, proofs, .. }) in inventory.keyed_pods_of(key) {
        proofs.iter().for_each(|proof| add_proof(&mut facts, key, (pod, *generation), proof));
    }
    opt_ins(inventory, object, spec).into_iter().for_each(|fact| add(&mut facts, fact));
    let bindings = external::bindings(inventory, object, spec);
    bindings.facts.into_iter().for_each(|fact| add(&mut facts, fact));
    facts.sort_by(|a, b| b.strength.cmp(&a.strength).then_with(|| a.cmp(b)));

    let services = inventory.services_of(key, &spec.template.labels);
    let strongest = facts.first().map(|fact| fact.strength);
    let kinds: BTreeSet<MeshKind> =
        facts.iter().filter(|fact| Some(fact.strength) == strongest).map(|fact| fact.mesh).collect();
    let membership = |mesh: MeshKind| {
        let of_mesh = || facts.iter().filter(|fact| fact.mesh == mesh && Some(fact.strength) == strongest);
        // A native sidecar is also proven by the injector's annotation, which does not
        // distinguish it.
        let mode = of_mesh().filter_map(|fact| fact.mode).max();
        let named = of_mesh().find_map(|fact| fact.revision.clone());
        let versions: BTreeSet<String> = pods
            .iter()
            .flat_map(|pod| &pod.proxies)
            .filter(|(kind, _)| *kind == mesh)
            .map(|(_, version)| version.clone())
            .collect();
        Membership {
            mesh,
            mode,
            strength: strongest.unwrap_or(Strength::Installed),
            revision: named.map(|name| inventory.revision_of_tag(&key.cluster, &name)),
            waypoint: (mode == Some(Mode::Ambient))
                .then(|| waypoint(inventory, key, spec, &services))
                .flatten(),
            proxy_versions: versions.into_iter().collect(),
        }
    };
    let meshes: Vec<Membership> = kinds.into_iter().map(membership).collect();
    // Istio: pkg/spiffe/spiffe.go; the other meshes have other formats.
    let spiffe = meshes.iter().find(|membership| membership.mesh == MeshKind::Istio).map(|membership| {
        let domain = inventory.trust_domain(&key.cluster, membership);
        format!("spiffe://{domain}/ns/{}/sa/{}", key.namespace, spec.service_account)
    });
    Workload {
        key: key.clone(),
        meshes,
        role: role(key, spec),
        service_account: spec.service_account.clone(),
        spiffe,
        version: version_label(&spec.template.labels),
        images: images(spec, &pods),
        desired: spec.desired,
        ready: match key.kind {
            // Its own status counts no pods.
            Kind::KnativeService => {
                pods.iter().filter(|pod| pod.ready).count().try_into().unwrap_or(u32::MAX)
            }
            _ => spec.ready,
        },
        services,
        releasable: Vec::new(),
        obstacles: Vec::new(),
        virtual_nodes: bindings.nodes,
        disagreements: bindings.disagreements,
        facts,
    }
}

/// Facts that differ only in their object are one fact with a count.
fn add(facts: &mut Vec<Fact>, fact: Fact) {
    let same = |known: &&mut Fact| {
        known.mesh == fact.mesh
            && known.strength == fact.strength
            && known.mode == fact.mode
            && known.revision == fact.revision
            && known.evidence.field == fact.evidence.field
            && known.evidence.object.kind == fact.evidence.object.kind
    };
    match facts.iter_mut().find(same) {
        Some(known) => known.count += fact.count,
        None => facts.push(fact),
    }
}

/// As [`add`] does, without a copy for each pod.
fn add_proof(
    facts: &mut Vec<Fact>,
    workload: &Key,
    (pod, generation): (&Key, Option<i64>),
    proof: &PodProof,
) {
    let same = |known: &&mut Fact| {
        known.mesh == proof.mesh
            && known.mode == Some(proof.mode)
            && known.revision == proof.revision
            && known.evidence.field == proof.field
    };
    match facts.iter_mut().find(same) {
        Some(known) => known.count += 1,
        None => facts.push(Fact {
            source: Source::Kubernetes { cluster: workload.cluster.clone() },
            subject: workload.clone(),
            strength: Strength::Participating,
            mesh: proof.mesh,
            mode: Some(proof.mode),
            revision: proof.revision.clone(),
            evidence: Evidence { object: pod.clone(), field: proof.field.clone(), generation },
            count: 1,
        }),
    }
}

/// A refusal by a workload covers its own and its namespace's consent to that mode.
fn opt_ins(inventory: &Inventory, object: &Object, spec: &WorkloadSpec) -> Vec<Fact> {
    let namespace = inventory.namespace(&object.key);
    let mut facts = Vec::new();
    for rule in RULES {
        let own = answers(rule.opt_ins.iter().filter(|opt_in| opt_in.on_workload), &spec.template);
        let of_namespace = namespace.map(|(namespace, marks)| {
            (namespace, answers(rule.opt_ins.iter().filter(|opt_in| opt_in.on_namespace), marks))
        });
        let refused: Vec<Mode> = own.iter().filter(|answer| !answer.yes).map(|answer| answer.mode).collect();
        let own = own.into_iter().map(|answer| (object, "spec.template.", answer));
        let inherited = of_namespace.into_iter().flat_map(|(namespace, answers)| {
            let refused: Vec<Mode> = answers.iter().filter(|a| !a.yes).map(|a| a.mode).collect();
            let kept = answers.into_iter().filter(move |answer| !refused.contains(&answer.mode));
            kept.map(move |answer| (namespace, "", answer))
        });
        let consents = own.chain(inherited).filter(|(_, _, a)| a.yes && !refused.contains(&a.mode));
        facts.extend(consents.map(|(from, path, answer)| Fact {
            source: Source::Kubernetes { cluster: object.key.cluster.clone() },
            subject: object.key.clone(),
            strength: Strength::Enabled,
            mesh: rule.mesh,
            mode: Some(answer.mode),
            revision: answer.revision,
            evidence: Evidence {
                object: from.key.clone(),
                field: format!("{path}{}", answer.field),
                generation: from.generation,
            },
            count: 1,
        }));
    }
    facts
}

struct Answer {
    yes: bool,
    mode: Mode,
    revision: Option<String>,
    field: String,
}

fn answers<'r>(rules: impl Iterator<Item = &'r super::rules::OptIn>, marks: &Marks) -> Vec<Answer> {
    let answer = |rule: &super::rules::OptIn| {
        let (map, place) = match rule.field {
            Field::Label => (&marks.labels, "labels"),
            Field::Annotation => (&marks.annotations, "annotations"),
        };
        let value = map.get(rule.key)?;
        let any = rule.on.is_empty();
        let yes = any || rule.on.contains(&value.as_str());
        (yes || rule.off.contains(&value.as_str())).then(|| Answer {
            yes,
            mode: rule.mode,
            revision: any.then(|| value.clone()),
            field: format!("metadata.{place}[{}]={value}", rule.key),
        })
    };
    rules.filter_map(answer).collect()
}

fn role(key: &Key, spec: &WorkloadSpec) -> Role {
    let class = spec.labels.get(GATEWAY_CLASS_LABEL).or(spec.template.labels.get(GATEWAY_CLASS_LABEL));
    if is_control_plane(key, spec).is_some() {
        Role::ControlPlane
    } else if class.is_some_and(|class| WAYPOINT_CLASSES.contains(&class.as_str())) {
        Role::Waypoint
    } else if class.is_some()
        || spec.template.labels.contains_key(GATEWAY_NAME_LABEL)
        || GATEWAY_ANNOTATIONS.iter().any(|annotation| spec.template.annotations.contains_key(*annotation))
    {
        Role::Gateway
    } else {
        Role::App
    }
}

/// The label of a Service comes before the one of the pods, and both before the
/// namespace's; `none` is no waypoint. Istio: istio.io/api label/labels.gen.go,
/// istio.io/use-waypoint.
fn waypoint(inventory: &Inventory, key: &Key, spec: &WorkloadSpec, services: &[Key]) -> Option<String> {
    let of_services = services.iter().filter_map(|service| match &inventory.object(service)?.body {
        Body::Service(service) => Some(&service.labels),
        _ => None,
    });
    let of_namespace = inventory.namespace(key).map(|(_, marks)| &marks.labels);
    let mut labels = of_services.chain([&spec.template.labels]).chain(of_namespace);
    let labels = labels.find(|labels| labels.contains_key(USE_WAYPOINT_LABEL))?;
    let name = labels.get(USE_WAYPOINT_LABEL).filter(|name| *name != "none")?;
    let namespace = labels.get(USE_WAYPOINT_NAMESPACE_LABEL).unwrap_or(&key.namespace);
    Some(format!("{namespace}/{name}"))
}

/// `version` is Istio's label for subsets, the other Kubernetes' recommended one.
fn version_label(labels: &Labels) -> Option<String> {
    labels.get("version").or(labels.get("app.kubernetes.io/version")).cloned()
}

fn images(spec: &WorkloadSpec, pods: &[&Pod]) -> Vec<Image> {
    let mut digests: BTreeMap<&String, BTreeSet<String>> = BTreeMap::new();
    for (container, digest) in pods.iter().flat_map(|pod| &pod.digests) {
        digests.entry(container).or_default().insert(digest.clone());
    }
    let image = |(container, image): &(String, String)| Image {
        container: container.clone(),
        image: image.clone(),
        digests: digests.remove(container).unwrap_or_default().into_iter().collect(),
    };
    spec.images.iter().map(image).collect()
}
