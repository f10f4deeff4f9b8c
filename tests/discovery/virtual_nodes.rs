//! Pods and virtual nodes: selector, Cloud Map attributes and environment.

use serin::discovery::model::{External, Inventory, Key, Kind, MeshKind, Object, Strength, aws_scope};

use super::{inventory, web, workload};

const ARN: &str = "arn:aws:appmesh:eu-west-1:123456789012:mesh/shop/virtualNode/web_shop";

fn envoy(arn: &str) -> String {
    format!(
        "containers: [{{name: web}}, {{name: envoy, env: [{{name: APPMESH_RESOURCE_ARN, value: '{arn}'}}]}}]"
    )
}

const VIRTUAL_NODE: &str = "
apiVersion: appmesh.k8s.aws/v1beta2
kind: VirtualNode
metadata: {name: web, namespace: shop}
spec: {meshRef: {name: shop}, podSelector: {matchLabels: {app: web}}}
";

fn scope() -> String {
    aws_scope("123456789012", "eu-west-1")
}

fn listed(inventory: &mut Inventory, nodes: &[&str]) {
    let tags = Default::default();
    let mesh = Key::new(&scope(), "", Kind::AppMeshMesh, "shop");
    inventory.apply(Object::external(mesh, Some(1), External::AppMesh { tags }));
    for node in nodes {
        let key = Key::new(&scope(), "shop", Kind::AppMeshVirtualNode, node);
        inventory.apply(Object::external(key, Some(1), External::VirtualNode { tags: Default::default() }));
    }
    inventory.refresh();
}

fn instance(inventory: &mut Inventory, node: &str) {
    let key = Key::new(&scope(), "shop.local", Kind::CloudMapInstance, "web/10.0.0.1");
    let pod = Some(("shop".to_owned(), "web-abc-1".to_owned()));
    let content = External::Instance { pod, node: Some(("shop".to_owned(), node.to_owned())) };
    inventory.apply(Object::external(key, None, content));
    inventory.refresh();
}

#[test]
fn three_signs_that_agree_are_one_binding() {
    let mut inventory = inventory(&format!("{}{VIRTUAL_NODE}", web("", "", &envoy(ARN))));
    listed(&mut inventory, &["web_shop"]);
    instance(&mut inventory, "web_shop");
    let web = workload(&inventory, "web");
    let [binding] = &web.virtual_nodes[..] else { panic!("{:#?}", web.virtual_nodes) };
    assert_eq!((binding.mesh.as_str(), binding.virtual_node.as_str()), ("shop", "web_shop"));
    assert_eq!(binding.signs.len(), 3, "{binding:#?}");
    assert_eq!(web.disagreements, [] as [String; 0]);
    let meshes = inventory.meshes();
    let mesh = meshes.iter().find(|mesh| mesh.cluster == scope()).expect("the mesh of the account");
    assert_eq!(
        (mesh.kind, mesh.workloads, &mesh.namespaces[..]),
        (MeshKind::AppMesh, 1, &["shop".to_owned()][..])
    );
}

#[test]
fn signs_that_contradict_each_other_are_shown() {
    let other = ARN.replace("web_shop", "old");
    let mut inventory = inventory(&format!("{}{VIRTUAL_NODE}", web("", "", &envoy(&other))));
    instance(&mut inventory, "web_shop");
    assert_eq!(
        workload(&inventory, "web").disagreements,
        [
            "its Cloud Map says virtual node web_shop of mesh shop, its environment says old of mesh shop",
            "its environment says virtual node old of mesh shop, its selector says web_shop of mesh shop",
        ]
    );
    listed(&mut inventory, &["web_shop"]);
    let unlisted = "its environment says virtual node old of mesh shop, which App Mesh does not list";
    assert!(workload(&inventory, "web").disagreements.iter().any(|text| text == unlisted));
    listed(&mut inventory, &["old"]);
    assert!(!workload(&inventory, "web").disagreements.iter().any(|text| text == unlisted));
}

#[test]
fn a_selector_alone_enables_and_proves_no_proxy() {
    let inventory = inventory(&format!("{}{VIRTUAL_NODE}", web("", "", "containers: [{name: web}]")));
    let web = workload(&inventory, "web");
    assert_eq!(
        web.mesh().map(|mesh| (mesh.mesh, mesh.strength)),
        Some((MeshKind::AppMesh, Strength::Enabled))
    );
    assert_eq!(web.virtual_nodes.len(), 1);
}

#[test]
fn a_mesh_of_another_account_with_the_same_name_has_no_part_in_it() {
    let mut inventory = inventory(&web("", "", &envoy(ARN)));
    listed(&mut inventory, &["web_shop"]);
    let other = Key::new(&aws_scope("999999999999", "eu-west-1"), "", Kind::AppMeshMesh, "shop");
    inventory.apply(Object::external(other, Some(1), External::AppMesh { tags: Default::default() }));
    inventory.refresh();
    let meshes = inventory.meshes();
    let counts: Vec<(&str, usize)> = meshes
        .iter()
        .filter(|m| m.cluster.starts_with("aws:"))
        .map(|m| (m.cluster.as_str(), m.workloads))
        .collect();
    assert_eq!(counts, [("aws:123456789012:eu-west-1", 1), ("aws:999999999999:eu-west-1", 0)]);
}
