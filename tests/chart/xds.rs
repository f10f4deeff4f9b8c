//! The rights of the control plane for Envoys: enough for a release, and all of them used.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use kube::api::{Api, Patch, PatchParams};
use serde_json::json;
use serin::api::MeshRoute;

use crate::install::{install, installed};
use crate::rbac::{FeatureNamespace, Stage};
use crate::rbac_rule::RbacRule;
use crate::replicas::ReplicaGroup;
use crate::support::Part;
use crate::support::definitions::{self, shipped};

const GROUPS: [&str; 4] =
    ["discovery.k8s.io", "split.smi-spec.io", "access.smi-spec.io", "specs.smi-spec.io"];

const RELEASE: &str = "
apiVersion: apps/v1
kind: Deployment
metadata: {name: edge, namespace: NAMESPACE}
spec:
  selector: {matchLabels: {app: edge}}
  template:
    metadata: {labels: {app: edge}}
    spec: {containers: [{name: app, image: 'app:v1'}]}
---
apiVersion: serin.dev/v1alpha1
kind: Canary
metadata: {name: edge, namespace: NAMESPACE}
spec:
  provider: xds
  targetRef: {apiVersion: apps/v1, kind: Deployment, name: edge}
  revertOnDeletion: true
  service: {port: 80, targetPort: 8080}
  analysis: {interval: 1s, stepWeights: [50]}
---
apiVersion: serin.dev/v1alpha1
kind: EndpointGroup
metadata: {name: vms, namespace: NAMESPACE}
spec:
  port: 80
  version: v1
  endpoints: [{address: 10.0.0.1, version: v1}, {address: 10.0.0.2, version: v2}]
---
apiVersion: serin.dev/v1alpha1
kind: Canary
metadata: {name: vms, namespace: NAMESPACE}
spec:
  targetRef: {apiVersion: serin.dev/v1alpha1, kind: EndpointGroup, name: vms}
  service: {port: 80}
  analysis: {interval: 1s, stepWeights: [50], metrics: []}
";

#[tokio::test]
async fn the_control_plane_needs_exactly_its_rbac_rules() {
    let (cluster, _) = installed().await;
    let namespace = cluster.namespace("edges").await;
    let set = [
        &format!("namespaces={{{namespace}}}"),
        "crds.install=false",
        "rbac.people=false",
        "approvals.policy=false",
        "inventory.watch=never",
        "xds.enabled=true",
        "xds.insecure=true",
    ];
    let manifests = install(cluster, "serin-edges", &set).await;
    let stage = Stage::new(cluster, "serin-edges", &manifests).await;
    let smi = ["smi_traffic_access.yaml", "smi_tcp_route.yaml"].map(|file| shipped(Part::Osm, file));
    definitions::install(&stage.client, smi).await;
    let mut crew = ReplicaGroup::start(cluster, stage.controller_namespace, &manifests, &namespace, 1).await;
    stage.kubectl.apply(&RELEASE.replace("NAMESPACE", &namespace)).await;
    let shop = FeatureNamespace { stage: &stage, namespace: &namespace, replicas: &crew };
    shop.until("it is initialized", async || shop.phase("edge").await == "Initialized").await;
    let routes: Api<MeshRoute> = Api::namespaced(stage.client.clone(), &namespace);
    let gone = json!({
        "apiVersion": "serin.dev/v1alpha1", "kind": "MeshRoute",
        "status": {"replicas": [{"name": "gone", "generation": 1, "proxies": 1, "acknowledged": 0}]},
    });
    let params = PatchParams::apply("serin-xds-gone").force();
    routes.patch_status("edge", &params, &Patch::Apply(gone)).await.expect("a status");
    shop.until("the entry of a replica that is gone is removed", async || {
        let route = routes.get_status("edge").await.expect("a MeshRoute");
        route.status.unwrap_or_default().replicas.is_empty()
    })
    .await;
    shop.kubectl(&["set", "image", "deployment/edge", "app=app:v2"]).await;
    shop.until("it is promoted", async || shop.phase("edge").await == "Succeeded").await;
    shop.until("the machines are initialized", async || shop.phase("vms").await == "Initialized").await;
    shop.kubectl(&[
        "patch",
        "endpointgroup",
        "vms",
        "--type=merge",
        "--patch={\"spec\":{\"version\":\"v2\"}}",
    ])
    .await;
    shop.until("their version is promoted", async || shop.phase("vms").await == "Succeeded").await;
    for canary in ["edge", "vms"] {
        shop.kubectl(&["delete", "canary", canary, "--wait=false"]).await;
        shop.until("it is gone", async || shop.get("Canary", canary).await.is_none()).await;
    }
    crew.assert_healthy().await;

    let began = Instant::now();
    loop {
        let used: BTreeSet<RbacRule> = crew.audited_requests().iter().flat_map(RbacRule::used).collect();
        let granted = RbacRule::granted(&manifests);
        let is_ours = |right: &&RbacRule| {
            right.is_in_groups(&GROUPS)
                || right.is_of("meshroutes")
                || right.is_of("meshroutes/status")
                || right.is_of("endpointgroups")
                || right.is_of("endpointgroups/status")
        };
        let idle: Vec<&RbacRule> =
            granted.iter().filter(is_ours).filter(|right| !right.is_covered_by(&used)).collect();
        if idle.is_empty() {
            return;
        }
        assert!(began.elapsed() < Duration::from_secs(30), "granted and never used: {idle:#?}");
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}
