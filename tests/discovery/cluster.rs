//! Listings of a cluster, up to the printed text.

use kube::Client;
use kube::api::{Api, DynamicObject, PostParams};
use kube::core::{ApiResource, GroupVersionKind};
use kube_local::access::{Grant, Identity};
use kube_local::{ApiServer, Options};
use serde_json::Value;
use serin::cli::inventory::report::{Selection, Subject, View, report};
use serin::cli::inventory::table::Style;
use serin::discovery::kubernetes::{ListRequest, Listing, list};

use super::{CLUSTER, documents, support};

pub async fn create(client: &Client, yaml: &str) {
    for document in documents(yaml) {
        let (group, version) = match document["apiVersion"].as_str().expect("an apiVersion").split_once('/') {
            Some((group, version)) => (group, version),
            None => ("", document["apiVersion"].as_str().expect("an apiVersion")),
        };
        let kind = document["kind"].as_str().expect("a kind");
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
        let object: DynamicObject = serde_json::from_value::<Value>(document.clone())
            .and_then(serde_json::from_value)
            .expect("an object");
        let api: Api<DynamicObject> = match &object.metadata.namespace {
            Some(namespace) => Api::namespaced_with(client.clone(), namespace, &resource),
            None => Api::all_with(client.clone(), &resource),
        };
        let created = api.create(&PostParams::default(), &object).await;
        created.unwrap_or_else(|error| panic!("create {document}: {error}"));
    }
}

pub async fn listing(client: &Client) -> Listing {
    let request = ListRequest { cluster: CLUSTER, namespace: Some("shop"), all_pods: false };
    list(client, request).await.unwrap_or_else(|error| panic!("{error}"))
}

pub fn text(listing: &Listing, selection: Selection) -> String {
    let view = View::Table(selection, None);
    report(listing, &view, Some("shop"), None, Style::default()).expect("a report").text
}

pub fn why(listing: &Listing, subject: &str) -> String {
    let view = View::Why(Subject::parse(subject, Some("shop")).expect("a subject"));
    report(listing, &view, Some("shop"), None, Style::default()).expect("a report").text
}

pub fn workload(name: &str, annotations: &str) -> String {
    format!(
        "
apiVersion: apps/v1
kind: Deployment
metadata: {{name: {name}, namespace: shop}}
spec:
  selector: {{matchLabels: {{app: {name}}}}}
  template: {{metadata: {{labels: {{app: {name}}}}}, spec: {{containers: [{{name: web, image: 'shop/web:1'}}]}}}}
---
apiVersion: v1
kind: Pod
metadata:
  name: {name}-abc-1
  namespace: shop
  annotations: {{{annotations}}}
  labels: {{app: {name}, pod-template-hash: abc}}
  ownerReferences: [{{apiVersion: apps/v1, kind: ReplicaSet, name: {name}-abc, uid: '1', controller: true}}]
spec: {{containers: [{{name: web, image: 'shop/web:1'}}]}}
---
apiVersion: v1
kind: Service
metadata: {{name: {name}, namespace: shop}}
spec: {{selector: {{app: {name}}}, ports: [{{name: http, port: 80}}]}}
"
    )
}

const SHOP: &str = "{apiVersion: v1, kind: Namespace, metadata: {name: shop}}";

#[tokio::test]
async fn a_bare_cluster_yields_nothing() {
    let api = ApiServer::new(Options::default());
    let listing = listing(&api.client()).await;
    assert!(listing.unread.is_empty(), "{:?}", listing.unread);
    assert_eq!(text(&listing, Selection::Meshes), "No mesh or gateway was found.\n");
    assert_eq!(text(&listing, Selection::Workloads), "No workloads in namespace shop; -A searches all.\n");
}

#[tokio::test]
async fn a_cluster_of_several_meshes_is_a_table() {
    let api = ApiServer::new(Options::default());
    let client = api.client();
    support::definitions::install(&client, support::definitions::istio()).await;
    support::definitions::install(&client, support::definitions::gateway()).await;
    create(&client, SHOP).await;
    let istio = "sidecar.istio.io/status: '{}'";
    let linkerd = "linkerd.io/proxy-version: v2";
    let ambient = "ambient.istio.io/redirection: enabled";
    for (name, annotations) in [
        ("plain", ""),
        ("side", istio),
        ("amb", ambient),
        ("link", linkerd),
        ("both", &format!("{istio}, {linkerd}")),
    ] {
        create(&client, &workload(name, annotations)).await;
    }
    let listing = listing(&client).await;
    let table = text(&listing, Selection::Workloads);
    let expected = "\
NAMESPACE   WORKLOAD           READY   MESH                STRENGTH        VERSION   RELEASE
shop        deployment/amb     0/1     istio, ambient      participating   -         kubernetes
shop        deployment/both    0/1     istio, sidecar and linkerd, sidecar   participating   -         kubernetes
shop        deployment/link    0/1     linkerd, sidecar    participating   -         kubernetes, gatewayapi, linkerd
shop        deployment/plain   0/1     -                   -               -         kubernetes
shop        deployment/side    0/1     istio, sidecar      participating   -         kubernetes, istio, gatewayapi
";
    let words = |text: &str| {
        text.lines().map(|l| l.split_whitespace().collect::<Vec<_>>().join(" ")).collect::<Vec<_>>()
    };
    assert_eq!(words(&table), words(expected), "{table}");
    let starts: Vec<Option<usize>> = table
        .lines()
        .map(|line| ["participating", "STRENGTH", "- "].iter().find_map(|w| line.find(w)))
        .collect();
    assert_eq!(starts[0], starts[1], "columns are aligned:\n{table}");

    let evidence = why(&listing, "workload/shop/amb");
    assert!(evidence.contains("participating istio, ambient: metadata.annotations[ambient.istio.io/redirection]=enabled of Pod shop/amb-abc-1"), "{evidence}");
    assert!(evidence.contains("release by gatewayapi  no   no waypoint"), "{evidence}");
}

#[tokio::test]
async fn a_kind_that_may_not_be_listed_is_named_with_the_rule_to_add() {
    let grant = |resource: &str, group: &str| Grant {
        subject: "dev".to_owned(),
        verb: "list".to_owned(),
        group: group.to_owned(),
        resource: resource.to_owned(),
        namespace: "shop".to_owned(),
    };
    let identity = Identity { user: "dev".to_owned(), groups: Vec::new() };
    let api = ApiServer::new(Options {
        users: vec![("dev-token".to_owned(), identity)],
        grants: vec![grant("deployments", "apps"), grant("services", "")],
        ..Options::default()
    });
    create(&api.client(), SHOP).await;
    create(&api.client(), &workload("web", "")).await;
    let serving = api.serve(([127, 0, 0, 1], 0).into()).await.expect("a served API");
    let mut kubeconfig: Value = serde_saphyr::from_str(&serving.kubeconfig()).expect("a kubeconfig");
    kubeconfig["users"][0]["user"]["token"] = "dev-token".into();
    let client = support::client(&kubeconfig.to_string()).await;
    let listing = listing(&client).await;
    let view = View::Table(Selection::Workloads, None);
    let report = report(&listing, &view, Some("shop"), None, Style::default()).expect("a report");
    assert!(report.text.contains("deployment/web"), "{}", report.text);
    let rule = r#"add to its role: apiGroups: [""], resources: ["pods"], verbs: ["list"]"#;
    assert!(
        report.notes.lines().any(|line| line.starts_with("Not read: pods in shop") && line.ends_with(rule)),
        "{}",
        report.notes
    );
}
