//! Control planes as their own charts install them, rendered by the real Helm and
//! applied to the real API server.

use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, ListParams};
use serin::cli::inventory::report::Selection;
use serin::discovery::model::{MeshKind, Mode};

use super::cluster::{create, listing, text, why};
use super::support::chart::{Helm, Kubectl};
use super::support::{self, Part};

const WEB: &str = r#"
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: shop}
spec:
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}, annotations: {sidecar.istio.io/status: '{"revision":"canary"}'}}
    spec: {containers: [{name: web, image: 'shop/web:1'}]}
"#;

/// The injector is not running, so its webhooks would refuse pods that come later.
#[tokio::test]
async fn real_istio_charts_are_found_with_version_revision_tag_and_ambient_mode() {
    let cluster = support::real().await;
    let client = cluster.client().await;
    create(&client, "{apiVersion: v1, kind: Namespace, metadata: {name: istio-system}}").await;
    let labelled =
        "{apiVersion: v1, kind: Namespace, metadata: {name: shop, labels: {istio.io/rev: stable}}}";
    create(&client, labelled).await;
    // Its pod is made by the real Deployment controller, with the injector's annotation.
    create(&client, WEB).await;
    let pods = Api::<Pod>::namespaced(client.clone(), "shop");
    let exists = async || pods.list(&ListParams::default()).await.is_ok_and(|pods| !pods.items.is_empty());
    support::eventually("the Deployment has a pod", Duration::from_secs(60), exists).await;
    let before = listing(&client).await;
    assert_eq!(text(&before, Selection::Meshes), "No mesh or gateway was found.\n", "a bare cluster");

    support::definitions::install(&client, support::definitions::istio()).await;
    let helm = Helm::new();
    let charts = Part::IstioCharts.folder();
    for (chart, set) in [
        ("istio-discovery", &["revision=canary", "revisionTags[0]=stable", "global.tag=1.31.0"][..]),
        ("ztunnel", &[][..]),
    ] {
        let folder = charts.join(chart);
        let manifests = helm.template_of(folder.to_str().expect("a path"), "istio-system", set).await;
        Kubectl::admin(cluster).apply(&manifests.text).await;
    }
    let listing = listing(&client).await;
    assert!(listing.unread.is_empty(), "{:?}", listing.unread);
    let meshes = listing.inventory.meshes();
    let [istio] = &meshes[..] else { panic!("{meshes:#?}") };
    let plane = istio.control_plane.as_ref().expect("a control plane");
    assert_eq!((istio.kind, istio.name.as_str()), (MeshKind::Istio, "istio-canary"));
    assert_eq!((plane.version.as_deref(), &plane.tags[..]), (Some("1.31.0"), &["stable".to_owned()][..]));
    assert_eq!(istio.modes, [Mode::Sidecar, Mode::Ambient]);
    assert_eq!(istio.trust_domain.as_deref(), Some("cluster.local"));
    assert_eq!((istio.mtls.as_deref(), istio.workloads), (Some("permissive"), 1));
    let evidence = why(&listing, "workload/shop/web");
    assert!(evidence.contains("enabled       istio, sidecar, revision stable: metadata.labels[istio.io/rev]=stable of Namespace shop"), "{evidence}");
    assert!(evidence.contains("participating istio, sidecar, revision canary"), "{evidence}");
}
