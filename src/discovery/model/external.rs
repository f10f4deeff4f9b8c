//! Objects outside Kubernetes: App Mesh, Cloud Map and Consul, and how pods are bound to
//! virtual nodes.
//!
//! Keys: the cluster is `aws:ACCOUNT:REGION` or `consul:DATACENTER`, the namespace is the
//! mesh or the Cloud Map namespace. A pod is bound to a virtual node by the selector of
//! the VirtualNode, by the attributes of its Cloud Map instance and by the environment of
//! its proxy. They should agree; where they do not, the workload shows it.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use super::fact::{Evidence, Fact, MeshKind, Mode, Source, Strength};
use super::inventory::Inventory;
use super::key::{Key, Kind};
use super::label_index::selects;
use super::mesh::Mesh;
use super::object::{Body, Labels, Object, ServiceRef, WorkloadSpec};

/// The content of an object outside Kubernetes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum External {
    AppMesh {
        tags: Labels,
    },
    VirtualNode {
        tags: Labels,
    },
    /// The provider of a virtual service: `virtualRouter/web` or `virtualNode/web`.
    VirtualService {
        provider: Option<String>,
    },
    Route {
        /// `virtualNode/web-canary=10`.
        targets: Vec<String>,
        /// 0 is matched first; none after all others.
        priority: Option<i32>,
    },
    /// Nothing beyond its name is read: a virtual router or gateway.
    Listed,
    /// A Cloud Map instance.
    Instance {
        /// Namespace and name.
        pod: Option<(String, String)>,
        /// Mesh and virtual node.
        node: Option<(String, String)>,
    },
    ConsulDatacenter {
        proxied_services: usize,
    },
    ConsulService {
        instances: usize,
        /// Of them, instances with a sidecar.
        proxied: usize,
    },
}

/// Account and region that a key outside Kubernetes belongs to.
pub fn aws_scope(account: &str, region: &str) -> String {
    format!("aws:{account}:{region}")
}

pub fn consul_scope(datacenter: &str) -> String {
    format!("consul:{datacenter}")
}

impl Object {
    /// `version` is the API's, for evidence only: a resource that is created again starts
    /// at 1, so versions do not order the objects of one key.
    pub fn external(key: Key, version: Option<i64>, content: External) -> Self {
        Self {
            key,
            version: 0,
            generation: version,
            created: String::new(),
            application: None,
            body: Body::External(content),
        }
    }
}

/// The Service whose host name a virtual service of App Mesh has, in any cluster. Clients
/// call a virtual service by its name: docs.aws.amazon.com
/// app-mesh/latest/userguide/virtual_services.html.
pub(super) fn named_service(object: &Object) -> Option<ServiceRef> {
    let Body::External(External::VirtualService { .. }) = &object.body else { return None };
    let mut parts = object.key.name.split('.');
    let (name, namespace) = (parts.next()?, parts.next()?);
    match parts.next() {
        None | Some("svc") => Some(ServiceRef { namespace: namespace.to_owned(), name: name.to_owned() }),
        Some(_) => None,
    }
}

/// Whether a virtual service is provided by the router of this route.
pub(super) fn is_route_of(virtual_service: &Object, route: &Key) -> bool {
    let Body::External(External::VirtualService { provider: Some(provider) }) = &virtual_service.body else {
        return false;
    };
    let router = route.name.split('/').next();
    provider.strip_prefix("virtualRouter/") == router
}

/// The virtual node that the pods of a workload are, and the signs of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct VirtualNodeBinding {
    pub mesh: String,
    pub virtual_node: String,
    pub signs: Vec<Evidence>,
}

/// As a proxy's environment names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct NodeName {
    /// `aws:ACCOUNT:REGION`, if it was an ARN.
    pub scope: Option<String>,
    pub mesh: String,
    pub node: String,
}

impl NodeName {
    /// `arn:aws:appmesh:REGION:ACCOUNT:mesh/MESH/virtualNode/NODE`, or from `mesh/` on; the
    /// account may follow the mesh as `MESH@ACCOUNT`. docs.aws.amazon.com
    /// app-mesh/latest/userguide/envoy-config.html.
    pub fn parse(text: &str) -> Option<Self> {
        let (scope, path) = match text.strip_prefix("arn:") {
            None => (None, text),
            Some(arn) => {
                let mut parts = arn.splitn(5, ':');
                let (_, _) = (parts.next()?, parts.next()?);
                let (region, account) = (parts.next()?, parts.next()?);
                (Some(aws_scope(account, region)), parts.next()?)
            }
        };
        let [_, mesh, "virtualNode", node] = path.split('/').collect::<Vec<_>>()[..] else { return None };
        let mesh = mesh.split('@').next()?;
        Some(Self { scope, mesh: mesh.to_owned(), node: node.to_owned() })
    }
}

/// Facts, bindings and disagreements about the virtual nodes of a workload.
#[derive(Default)]
pub(super) struct Bindings {
    pub facts: Vec<Fact>,
    pub nodes: Vec<VirtualNodeBinding>,
    pub disagreements: Vec<String>,
}

pub(super) fn bindings(inventory: &Inventory, object: &Object, spec: &WorkloadSpec) -> Bindings {
    let mut found: BTreeMap<(String, String), Vec<Evidence>> = BTreeMap::new();
    let (mut by_sign, mut facts) = (BTreeMap::<&str, BTreeSet<(String, String)>>::new(), Vec::new());
    let mut disagreements = BTreeSet::new();
    let mut add = |sign: &'static str, node: (String, String), evidence: Evidence| {
        by_sign.entry(sign).or_default().insert(node.clone());
        let signs = found.entry(node).or_default();
        if !signs.iter().any(|known| known.field == evidence.field) {
            signs.push(evidence);
        }
    };
    let fact = |source: Source, evidence: &Evidence| Fact {
        source,
        subject: object.key.clone(),
        strength: Strength::Enabled,
        mesh: MeshKind::AppMesh,
        mode: Some(Mode::Sidecar),
        revision: None,
        evidence: evidence.clone(),
        count: 1,
    };
    for node in inventory.virtual_nodes_of(&object.key) {
        let Body::VirtualNode { mesh, aws_name, selector: Some(selector) } = &node.body else { continue };
        if selects(selector, &spec.template.labels) {
            let field = format!("spec.podSelector selects the pods as virtual node {aws_name}");
            let evidence = Evidence { object: node.key.clone(), field, generation: node.generation };
            facts.push(fact(Source::Kubernetes { cluster: node.key.cluster.clone() }, &evidence));
            add("selector", (mesh.clone(), aws_name.clone()), evidence);
        }
    }
    for (key, pod) in inventory.keyed_pods_of(&object.key) {
        if let Some((name, field)) = &pod.virtual_node {
            let evidence = Evidence { object: key.clone(), field: field.clone(), generation: None };
            add("environment", (name.mesh.clone(), name.node.clone()), evidence);
            disagreements.extend(unlisted(inventory, name));
        }
        for instance in inventory.instances_of(&key.namespace, &key.name) {
            let Body::External(External::Instance { node: Some((mesh, node)), .. }) = &instance.body else {
                continue;
            };
            let field =
                format!("attributes[appmesh.k8s.aws/mesh]={mesh} and [appmesh.k8s.aws/virtualNode]={node}");
            let evidence = Evidence { object: instance.key.clone(), field, generation: None };
            facts.push(fact(source_of(&instance.key), &evidence));
            add("Cloud Map", (mesh.clone(), node.clone()), evidence);
        }
    }
    let signs: Vec<(&str, &BTreeSet<(String, String)>)> = by_sign.iter().map(|(s, n)| (*s, n)).collect();
    for (at, (first, nodes)) in signs.iter().enumerate() {
        for (second, others) in signs.iter().skip(at + 1).filter(|(_, others)| others != nodes) {
            disagreements.insert(format!(
                "its {first} says virtual node {}, its {second} says {}",
                names(nodes),
                names(others)
            ));
        }
    }
    let binding = |((mesh, virtual_node), signs)| VirtualNodeBinding { mesh, virtual_node, signs };
    Bindings {
        facts,
        nodes: found.into_iter().map(binding).collect(),
        disagreements: disagreements.into_iter().collect(),
    }
}

fn names(nodes: &BTreeSet<(String, String)>) -> String {
    nodes.iter().map(|(mesh, node)| format!("{node} of mesh {mesh}")).collect::<Vec<_>>().join(" and ")
}

/// A virtual node that its account does not list, although it lists its mesh.
fn unlisted(inventory: &Inventory, name: &NodeName) -> Option<String> {
    let scopes = match &name.scope {
        Some(scope) => vec![scope.clone()],
        None => inventory.clusters(),
    };
    let has = |scope: &String, namespace: &str, kind: Kind, of: &str| {
        inventory.object(&Key::new(scope, namespace, kind, of)).is_some()
    };
    let of_mesh: Vec<&String> =
        scopes.iter().filter(|scope| has(scope, "", Kind::AppMeshMesh, &name.mesh)).collect();
    let listed = of_mesh.iter().any(|scope| has(scope, &name.mesh, Kind::AppMeshVirtualNode, &name.node));
    (!of_mesh.is_empty() && !listed).then(|| {
        format!(
            "its environment says virtual node {} of mesh {}, which App Mesh does not list",
            name.node, name.mesh
        )
    })
}

/// From the key of an object outside Kubernetes.
fn source_of(key: &Key) -> Source {
    let mut parts = key.cluster.splitn(3, ':');
    match (parts.next(), parts.next(), parts.next()) {
        (Some("aws"), Some(account), Some(region)) => {
            Source::AppMesh { account: account.to_owned(), region: region.to_owned() }
        }
        (Some("consul"), Some(datacenter), None) => Source::Consul { datacenter: datacenter.to_owned() },
        _ => Source::Kubernetes { cluster: key.cluster.clone() },
    }
}

/// The mesh that an object outside Kubernetes is, with the fact that shows it.
pub(super) fn mesh_of(object: &Object) -> Option<(MeshKind, Fact)> {
    let (kind, field) = match &object.body {
        Body::External(External::AppMesh { tags }) => {
            let tags: Vec<String> = tags.iter().map(|(key, value)| format!("{key}={value}")).collect();
            let tagged = if tags.is_empty() { String::new() } else { format!(", tags {}", tags.join(", ")) };
            (MeshKind::AppMesh, format!("App Mesh lists it{tagged}"))
        }
        Body::External(External::ConsulDatacenter { proxied_services }) if *proxied_services > 0 => {
            (MeshKind::Consul, format!("{proxied_services} services have ServiceKind=connect-proxy"))
        }
        _ => return None,
    };
    let fact = Fact {
        source: source_of(&object.key),
        subject: object.key.clone(),
        strength: Strength::Installed,
        mesh: kind,
        mode: None,
        revision: None,
        evidence: Evidence { object: object.key.clone(), field, generation: object.generation },
        count: 1,
    };
    Some((kind, fact))
}

/// Counts the workloads of all clusters that are virtual nodes of each mesh. Where an
/// environment names an account, only the mesh of that account is meant.
pub(super) fn join_virtual_nodes(inventory: &Inventory, meshes: &mut [Mesh]) {
    let mut namespaces: BTreeMap<usize, BTreeSet<String>> = BTreeMap::new();
    for workload in inventory.workloads().filter(|workload| !workload.virtual_nodes.is_empty()) {
        let pods = inventory.keyed_pods_of(&workload.key);
        let scopes: BTreeSet<String> =
            pods.filter_map(|(_, pod)| pod.virtual_node.as_ref()?.0.scope.clone()).collect();
        for (at, mesh) in meshes.iter_mut().enumerate() {
            let meant = scopes.is_empty() || scopes.contains(&mesh.cluster);
            let named = workload.virtual_nodes.iter().any(|binding| binding.mesh == mesh.name);
            if mesh.kind == MeshKind::AppMesh && mesh.cluster.starts_with("aws:") && meant && named {
                mesh.workloads += 1;
                mesh.modes = vec![Mode::Sidecar];
                namespaces.entry(at).or_default().insert(workload.key.namespace.clone());
            }
        }
    }
    for (at, found) in namespaces {
        meshes[at].namespaces = found.into_iter().collect();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_virtual_node_is_named_by_arn_or_by_path() {
        let arn = NodeName::parse("arn:aws:appmesh:eu-west-1:123456789012:mesh/shop/virtualNode/web_shop");
        let scope = Some("aws:123456789012:eu-west-1".to_owned());
        let expected = NodeName { scope, mesh: "shop".to_owned(), node: "web_shop".to_owned() };
        assert_eq!(arn, Some(expected.clone()));
        assert_eq!(
            NodeName::parse("mesh/shop@123456789012/virtualNode/web_shop"),
            Some(NodeName { scope: None, ..expected })
        );
        for wrong in
            ["", "web", "mesh/shop/virtualGateway/in", "arn:aws:appmesh:eu-west-1", "mesh/a/virtualNode/b/c"]
        {
            assert_eq!(NodeName::parse(wrong), None, "{wrong}");
        }
    }
}
