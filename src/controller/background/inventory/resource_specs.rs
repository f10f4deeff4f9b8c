//! Views of the inventory as specs of custom resources: what a person reads, bounded.
//! Counts of pods, addresses, times and copied specs are left out, since they change
//! all the time.

use serde::Serialize;
use serde_json::Value;

use crate::{
    api::{
        MeshServiceSpec, MeshSpec, WorkloadSpec,
        inventory::{BoundedList, InventoryRef, bounded_text},
    },
    discovery::model::{Fact, Key, Membership, Mesh, Outcome, RouteStanding, Service, Workload},
};

/// Of a spec in JSON; with metadata the object stays under 4 kB.
const MAX_SPEC_BYTES: usize = 3_400;

pub fn mesh(mesh: &Mesh) -> Value {
    let plane = mesh.control_plane.as_ref();
    bounded(&MeshSpec {
        cluster: mesh.cluster.clone(),
        kind: mesh.kind.name().to_owned(),
        name: bounded_text(&mesh.name),
        version: plane.and_then(|plane| plane.version.clone()),
        revision: plane.and_then(|plane| plane.revision.clone()),
        tags: BoundedList::new(plane.into_iter().flat_map(|plane| plane.tags.clone())),
        control_plane: plane.map(|plane| format!("{}/{}", plane.workload.namespace, plane.workload.name)),
        healthy: plane.map(|plane| plane.ready > 0 && plane.ready >= plane.desired),
        modes: BoundedList::new(mesh.modes.iter().map(ToString::to_string)),
        mtls: mesh.mtls.clone(),
        trust_domain: mesh.trust_domain.clone(),
        namespaces: BoundedList::new(mesh.namespaces.iter().cloned()),
        skew: BoundedList::new(mesh.skew.iter().map(|skew| skew.version.clone())),
        evidence: evidence(&mesh.facts),
    })
}

pub fn workload(workload: &Workload) -> Value {
    let member = |member: &Membership| {
        let mode = member.mode.map(|mode| format!(", {mode}")).unwrap_or_default();
        let waypoint = member.waypoint.as_ref().map(|name| format!(" by {name}")).unwrap_or_default();
        format!("{}{mode}{waypoint}", member.mesh.name())
    };
    let (yes, no): (Vec<_>, Vec<_>) = workload.releasable.iter().partition(|answer| answer.yes);
    let sentence = |why: &Option<String>| why.clone().unwrap_or_default();
    bounded(&WorkloadSpec {
        cluster: workload.key.cluster.clone(),
        reference: reference(&workload.key),
        role: serde_json::to_value(workload.role)
            .ok()
            .and_then(|role| role.as_str().map(str::to_owned))
            .unwrap_or_default(),
        meshes: BoundedList::new(workload.meshes.iter().map(member)),
        strength: workload.meshes.first().map(|member| member.strength.to_string()),
        identity: workload.spiffe.clone().unwrap_or_else(|| workload.service_account.clone()),
        version: workload.version.clone(),
        images: BoundedList::new(workload.images.iter().map(|image| image.image.clone())),
        services: BoundedList::new(workload.services.iter().map(|key| key.name.clone())),
        releasable_by: BoundedList::new(yes.iter().map(|answer| answer.provider.name().to_owned())),
        not_releasable_by: BoundedList::new(
            no.iter().map(|answer| format!("{}: {}", answer.provider.name(), sentence(&answer.why))),
        ),
        evidence: evidence(&workload.facts),
    })
}

pub fn service(service: &Service) -> Value {
    bounded(&MeshServiceSpec {
        cluster: service.key.cluster.clone(),
        reference: reference(&service.key),
        ports: BoundedList::new(service.ports.iter().map(|port| format!("{}/{}", port.port, port.protocol))),
        headless: service.headless,
        external: service.external,
        workloads: BoundedList::new(service.workloads.iter().map(ToString::to_string)),
        versions: BoundedList::new(service.subsets.iter().map(|subset| subset.version.clone())),
        winner: service.winner().map(|route| route.route.to_string()),
        routes: BoundedList::new(service.routes.iter().map(route)),
    })
}

fn reference(key: &Key) -> InventoryRef {
    InventoryRef {
        kind: key.kind.name().to_owned(),
        namespace: key.namespace.clone(),
        name: key.name.clone(),
    }
}

fn route(standing: &RouteStanding) -> String {
    let outcome = match &standing.outcome {
        Outcome::Wins => "wins".to_owned(),
        Outcome::Merged => "is merged".to_owned(),
        Outcome::Elsewhere => "sends requests here".to_owned(),
        Outcome::Loses(why) => format!("loses: {why}"),
        Outcome::Ignored(why) => format!("has no effect: {why}"),
        Outcome::Undefined(why) => format!("is undefined: {why}"),
    };
    format!("{} {outcome}", standing.route)
}

/// Without names of pods, which change with every restart.
fn evidence(facts: &[Fact]) -> BoundedList {
    let text = |fact: &Fact| {
        let object = &fact.evidence.object;
        let of = match object.kind {
            crate::discovery::model::Kind::Pod => "its pods".to_owned(),
            _ => object.to_string(),
        };
        format!("{} {}: {} of {of}", fact.strength, fact.mesh.name(), fact.evidence.field)
    };
    BoundedList::new(facts.iter().map(text))
}

/// The longest lists lose entries until it fits; counts stay.
fn bounded(spec: &impl Serialize) -> Value {
    let mut spec = serde_json::to_value(spec).unwrap_or_default();
    while spec.to_string().len() > MAX_SPEC_BYTES {
        let lists = spec.as_object_mut().into_iter().flat_map(|spec| spec.values_mut());
        let items = lists.filter_map(|list| list.get_mut("items")?.as_array_mut());
        let longest =
            items.max_by_key(|items| items.iter().map(|item| item.to_string().len()).sum::<usize>());
        if longest.and_then(Vec::pop).is_none() {
            break;
        }
    }
    spec
}
