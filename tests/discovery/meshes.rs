//! Linkerd, Kuma, Cilium and Envoy Gateway as their own charts install them, rendered by
//! the real Helm and applied to a real API server of their own; the workloads are made by
//! the real Deployment controller. Istio is in `charts.rs`.
//!
//! Cilium is without its agent: the API server allows no privileged pods.
//!
//! Not carried: no module that downloads has Consul's chart (the one of consul-k8s has no
//! charts), and the module of Kuma (v1.8.1) is old. No chart
//! carries a workload with a proxy, since injectors add those at run time: the pods here
//! have the annotations that the injectors write.

use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::Client;
use kube::api::{Api, ListParams};
use serde_json::{Value, json};
use serin::cli::inventory::report::Selection;
use serin::discovery::kubernetes::Listing;
use serin::discovery::model::{Mesh, MeshKind, Mode};

use super::cluster::{create, listing, text, why};
use super::support::chart::{Helm, Kubectl};
use super::support::{self, Cluster, Part};

/// Kinds and versions of the charts that servers no longer have.
const GONE: [&str; 3] = ["policy/v1beta1", "batch/v1beta1", "apiextensions.k8s.io/v1beta1"];

/// A Deployment whose pods have these annotations.
fn workload(name: &str, annotations: &str) -> String {
    format!(
        "
apiVersion: apps/v1
kind: Deployment
metadata: {{name: {name}, namespace: shop}}
spec:
  selector: {{matchLabels: {{app: {name}}}}}
  template:
    metadata: {{labels: {{app: {name}}}, annotations: {{{annotations}}}}}
    spec: {{containers: [{{name: web, image: 'shop/web:1'}}]}}
"
    )
}

struct Stage {
    cluster: Cluster,
    client: Client,
    helm: Helm,
}

impl Stage {
    /// The manifests of a chart, without what the server cannot store. Webhooks are left
    /// out: nothing answers them, and they would refuse every pod.
    async fn render(&self, part: Part, chart: &str, namespace: &str, set: &[&str]) -> Vec<Value> {
        let folder = part.folder().join(chart);
        assert!(folder.exists(), "{} does not exist: run `testbed/setup {part}`", folder.display());
        let mut arguments = vec![
            "template",
            namespace,
            folder.to_str().expect("a path"),
            "--namespace",
            namespace,
            "--include-crds",
            "--no-hooks",
        ];
        arguments.extend(set.iter().flat_map(|set| ["--set", set]));
        let rendered = self.helm.run(&arguments).await.ok();
        let objects: Vec<Value> = serde_saphyr::from_multiple(&rendered).expect("YAML");
        let is_stored = |object: &&Value| {
            let version = object["apiVersion"].as_str().unwrap_or_default();
            let kind = object["kind"].as_str().unwrap_or_default();
            object.is_object() && !GONE.contains(&version) && !kind.ends_with("WebhookConfiguration")
        };
        objects.iter().filter(is_stored).cloned().collect()
    }

    /// Definitions and namespaces first: other objects need them.
    async fn apply(&self, manifests: &[Value]) {
        let kubectl = Kubectl::admin(&self.cluster);
        let is_first =
            |object: &&Value| object["kind"] == "CustomResourceDefinition" || object["kind"] == "Namespace";
        let (first, rest): (Vec<&Value>, Vec<&Value>) = manifests.iter().partition(is_first);
        for objects in [first, rest] {
            let text: String = objects.iter().map(|object| format!("---\n{object}\n")).collect();
            if !text.is_empty() {
                kubectl.run(&["apply", "--server-side", "--force-conflicts", "-f", "-"], &text).await.ok();
            }
        }
    }

    async fn pods(&self, count: usize) {
        let pods = Api::<Pod>::namespaced(self.client.clone(), "shop");
        let exist =
            async || pods.list(&ListParams::default()).await.is_ok_and(|pods| pods.items.len() == count);
        support::eventually("every Deployment has its pod", Duration::from_secs(120), exist).await;
    }
}

fn mesh(listing: &Listing, kind: MeshKind) -> Mesh {
    let meshes = listing.inventory.meshes();
    let found = meshes.iter().find(|mesh| mesh.kind == kind && mesh.control_plane.is_some());
    found.unwrap_or_else(|| panic!("no control plane of {kind:?} in {meshes:#?}")).clone()
}

fn version(mesh: &Mesh) -> &str {
    mesh.control_plane.as_ref().and_then(|plane| plane.version.as_deref()).expect("a version")
}

#[tokio::test]
async fn charts_of_other_meshes_are_found_conflict_and_are_pruned() {
    let cluster = support::real_with(support::Extras::default()).await;
    let client = cluster.client().await;
    let stage = Stage { cluster, client: client.clone(), helm: Helm::new() };
    for namespace in ["shop", "linkerd", "kuma-system", "cilium", "envoy-gateway-system"] {
        create(
            &client,
            &json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}).to_string(),
        )
        .await;
    }
    let bare = listing(&client).await;
    assert_eq!(text(&bare, Selection::Meshes), "No mesh or gateway was found.\n");

    let definitions = stage.render(Part::LinkerdCharts, "linkerd-crds", "linkerd", &[]).await;
    stage.apply(&definitions).await;
    let linkerd = [
        "linkerdVersion=stable-2.14.10",
        // Its control plane has a proxy too, as the first container.
        "proxy.image.version=v2.210.4",
        "identityTrustAnchorsPEM=anchors",
        "identity.issuer.tls.crtPEM=certificate",
        "identity.issuer.tls.keyPEM=key",
        "identityTrustDomain=shop.example",
    ];
    let linkerd = stage.render(Part::LinkerdCharts, "linkerd-control-plane", "linkerd", &linkerd).await;
    stage.apply(&linkerd).await;
    let kuma = stage.render(Part::KumaCharts, "kuma", "kuma-system", &[]).await;
    stage.apply(&kuma).await;
    let cilium = stage.render(Part::CiliumCharts, "cilium", "cilium", &["agent=false"]).await;
    stage.apply(&cilium).await;
    let gateway = stage.render(Part::EnvoyGatewayCharts, "gateway-helm", "envoy-gateway-system", &[]).await;
    stage.apply(&gateway).await;
    let class = json!({"apiVersion": "gateway.networking.k8s.io/v1", "kind": "GatewayClass",
        "metadata": {"name": "eg"}, "spec": {"controllerName": "gateway.envoyproxy.io/gatewayclass-controller"}});
    stage.apply(&[class]).await;
    create(&client, &workload("link", "linkerd.io/proxy-version: stable-2.14.10")).await;
    create(&client, &workload("kum", "kuma.io/sidecar-injected: 'true'")).await;
    create(
        &client,
        &workload("both", "linkerd.io/proxy-version: stable-2.14.10, kuma.io/sidecar-injected: 'true'"),
    )
    .await;
    create(&client, &workload("plain", "")).await;
    stage.pods(4).await;

    let found = listing(&client).await;
    assert!(found.unread.is_empty(), "{:?}", found.unread);
    let linkerd_mesh = mesh(&found, MeshKind::Linkerd);
    assert_eq!(version(&linkerd_mesh), "stable-2.14.10");
    assert_eq!(linkerd_mesh.trust_domain.as_deref(), Some("shop.example"));
    assert_eq!(
        (&linkerd_mesh.modes[..], linkerd_mesh.mtls.as_deref()),
        (&[Mode::Sidecar][..], Some("automatic"))
    );
    let kuma_mesh = mesh(&found, MeshKind::Kuma);
    assert_eq!((version(&kuma_mesh), kuma_mesh.mtls.as_deref()), ("1.8.0", Some("disabled")));
    assert_eq!(version(&mesh(&found, MeshKind::Cilium)), "v1.20.2");
    let gateway_mesh = mesh(&found, MeshKind::Gateway);
    assert_eq!(gateway_mesh.name, "gateway.envoyproxy.io/gatewayclass-controller");
    assert_eq!(version(&gateway_mesh), "v1.9.1");
    let fields: Vec<&str> = gateway_mesh.facts.iter().map(|fact| fact.evidence.field.as_str()).collect();
    assert!(fields.contains(&"metadata.labels[control-plane]=envoy-gateway"), "{fields:?}");

    let evidence = why(&found, "workload/shop/link");
    assert!(
        evidence.contains("participating linkerd, sidecar: metadata.annotations[linkerd.io/proxy-version]"),
        "{evidence}"
    );
    let evidence = why(&found, "workload/shop/kum");
    assert!(
        evidence.contains("participating kuma, sidecar: metadata.annotations[kuma.io/sidecar-injected]=true"),
        "{evidence}"
    );
    let evidence = why(&found, "workload/shop/both");
    assert!(evidence.contains("two meshes claim it: linkerd and kuma"), "{evidence}");

    Kubectl::admin(&stage.cluster)
        .run(&["delete", "deployment", "--namespace", "kuma-system", "--all"], "")
        .await
        .ok();
    Kubectl::admin(&stage.cluster)
        .run(&["delete", "deployment", "both", "--namespace", "shop"], "")
        .await
        .ok();
    let left = listing(&client).await;
    let planes: Vec<MeshKind> =
        left.inventory.meshes().iter().filter(|m| m.control_plane.is_some()).map(|m| m.kind).collect();
    assert!(!planes.contains(&MeshKind::Kuma), "{planes:?}");
    assert!(planes.contains(&MeshKind::Linkerd), "{planes:?}");
    assert!(!text(&left, Selection::Workloads).contains("deployment/both"));
}
