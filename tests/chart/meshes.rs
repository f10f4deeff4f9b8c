//! The rights for meshes that are off by default: enough for a release through
//! each, and all of them used.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use kube::Client;
use kube::api::{Api, ApiResource, DynamicObject, ListParams, Patch, PatchParams};
use kube::core::GroupVersionKind;
use serde_json::{Value, json};
use tokio_util::task::AbortOnDropHandle;

use crate::install::{install, installed};
use crate::rbac::{FeatureNamespace, Stage};
use crate::rbac_rule::RbacRule;
use crate::replicas::ReplicaGroup;
use crate::support::{definitions, route_status};

const GROUPS: [&str; 3] = ["networking.istio.io", "gateway.networking.k8s.io", "appmesh.k8s.aws"];

/// A Canary of each mesh, with the fields that differ.
const CANARIES: [(&str, &str); 4] = [
    ("istio", "provider: istio, service: {port: 80, targetPort: 8080}"),
    (
        "http",
        "provider: 'gatewayapi:v1', service: {port: 80, targetPort: 8080, gatewayRefs: [{name: public}]}",
    ),
    (
        "grpc",
        "provider: 'gatewayapi:v1', \
         service: {port: 80, targetPort: 8080, appProtocol: grpc, gatewayRefs: [{name: public}]}",
    ),
    ("nodes", "provider: 'appmesh:v1beta2', service: {port: 80, targetPort: 8080}"),
];

const MESH_MANIFESTS: &str = "
apiVersion: apps/v1
kind: Deployment
metadata: {name: NAME, namespace: NAMESPACE}
spec:
  selector: {matchLabels: {app: NAME}}
  template:
    metadata: {labels: {app: NAME}}
    spec: {containers: [{name: app, image: 'app:v1'}]}
---
apiVersion: serin.dev/v1alpha1
kind: Canary
metadata: {name: NAME, namespace: NAMESPACE}
spec: {SPEC, revertOnDeletion: true,
  targetRef: {apiVersion: apps/v1, kind: Deployment, name: NAME},
  analysis: {interval: 1s, stepWeights: [WEIGHT]}}
---
";

/// A weight of hundredths needs an implementation that has them.
const GATEWAY: &str = "
apiVersion: gateway.networking.k8s.io/v1
kind: GatewayClass
metadata: {name: public}
spec: {controllerName: example.com/gateways}
---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: public, namespace: NAMESPACE}
spec: {gatewayClassName: public}
";

#[tokio::test]
async fn each_mesh_needs_exactly_its_rbac_rules() {
    let (cluster, _) = installed().await;
    let namespace = cluster.namespace("meshes").await;
    let set = [
        &format!("namespaces={{{namespace}}}"),
        "crds.install=false",
        "rbac.people=false",
        "approvals.policy=false",
        "istio=true",
        "gatewayApi=true",
        "appMesh=true",
        "inventory.watch=never",
    ];
    let manifests = install(cluster, "serin-meshes", &set).await;
    let stage = Stage::new(cluster, "serin-meshes", &manifests).await;
    let meshes =
        definitions::istio().into_iter().chain(definitions::gateway()).chain(definitions::app_mesh());
    definitions::install(&stage.client, meshes.chain(definitions::inventory())).await;
    stage.kubectl.apply(&GATEWAY.replace("NAMESPACE", &namespace)).await;
    let mut crew = ReplicaGroup::start(cluster, stage.controller_namespace, &manifests, &namespace, 1).await;
    let _mesh = report_mesh_status(stage.client.clone(), namespace.clone());
    for (name, spec) in CANARIES {
        let weight = if spec.contains("gatewayRefs") { "50.05" } else { "50" };
        let words = [("NAMESPACE", namespace.as_str()), ("NAME", name), ("SPEC", spec), ("WEIGHT", weight)];
        let each =
            words.iter().fold(MESH_MANIFESTS.to_owned(), |text, (word, with)| text.replace(word, with));
        stage.kubectl.apply(&each).await;
    }
    let shop = FeatureNamespace { stage: &stage, namespace: &namespace, replicas: &crew };
    for (name, _) in CANARIES {
        shop.until(&format!("{name} is initialized"), async || shop.phase(name).await == "Initialized").await;
    }
    for (name, _) in CANARIES {
        shop.kubectl(&["set", "image", &format!("deployment/{name}"), "app=app:v2"]).await;
    }
    for (name, _) in CANARIES {
        shop.until(&format!("{name} is promoted"), async || shop.phase(name).await == "Succeeded").await;
    }
    shop.kubectl(&["delete", "canary", "--all", "--wait=false"]).await;
    for (name, _) in CANARIES {
        shop.until(&format!("{name} is gone"), async || shop.get("Canary", name).await.is_none()).await;
    }
    crew.assert_healthy().await;

    let began = Instant::now();
    loop {
        let used: BTreeSet<RbacRule> = crew.audited_requests().iter().flat_map(RbacRule::used).collect();
        let granted = RbacRule::granted(&manifests);
        let idle: Vec<&RbacRule> = granted
            .iter()
            .filter(|right| right.is_in_groups(&GROUPS) && !right.is_covered_by(&used))
            .collect();
        if idle.is_empty() {
            return;
        }
        assert!(began.elapsed() < Duration::from_secs(30), "granted and never used: {idle:#?}");
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}

/// Plays the controllers of the Gateway and of App Mesh: they accept every
/// route.
fn report_mesh_status(client: Client, namespace: String) -> AbortOnDropHandle<()> {
    let kinds = [
        ("gateway.networking.k8s.io", "v1", "HTTPRoute"),
        ("gateway.networking.k8s.io", "v1", "GRPCRoute"),
        ("appmesh.k8s.aws", "v1beta2", "VirtualRouter"),
    ];
    let apis = kinds.map(|(group, version, kind)| -> Api<DynamicObject> {
        let kind = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
        Api::namespaced_with(client.clone(), &namespace, &kind)
    });
    AbortOnDropHandle::new(tokio::spawn(async move {
        loop {
            for api in &apis {
                let found = api.list(&ListParams::default()).await.map(|list| list.items).unwrap_or_default();
                for object in found {
                    let (name, status) =
                        (object.metadata.name.clone().unwrap_or_default(), accepted_status(&object));
                    let patch = Patch::Merge(json!({"status": status}));
                    // It may have gone meanwhile.
                    let _ = api.patch_status(&name, &PatchParams::default(), &patch).await;
                }
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }))
}

fn accepted_status(object: &DynamicObject) -> Value {
    match object.data["spec"]["parentRefs"].is_array() {
        true => route_status::parent_status(&json!(object)),
        false => route_status::app_mesh_status(&json!(object), "True"),
    }
}
