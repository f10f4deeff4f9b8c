//! From a Service to EndpointSlices.

use serde_json::{Value, json};

use crate::deployments::{is_ready, items};
use crate::pods::{get, pod};
use crate::session::*;
use crate::support::NODE;

const SLICES: &str = "/apis/discovery.k8s.io/v1/namespaces/{ns}/endpointslices?labelSelector=kubernetes.io%2Fservice-name%3Dweb";

pub async fn a_slice_follows_the_readiness_of_its_pods(t: Session) {
    t.post("services", service()).await.created();
    t.post("pods", named_pod("one", "app:v1")).await.created();
    t.post("pods", named_pod("two", "app:v1-delay-2s")).await.created();
    t.post("pods", named_pod("three", "app:v1-never-ready")).await.created();
    let slow = t
        .eventually(SLICES, "one ready of three", |list| {
            readiness(list) == [("one", true), ("three", false), ("two", false)].map(owned)
        })
        .await;
    let slice = &items(&slow)[0];
    assert!(name(slice).starts_with("web-"), "{}", name(slice));
    assert_eq!(slice["addressType"], "IPv4");
    assert_eq!(slice["ports"], json!([{"name": "http", "port": 9898, "protocol": "TCP"}]));
    let endpoint = &slice["endpoints"]
        .as_array()
        .expect("endpoints")
        .iter()
        .find(|endpoint| endpoint["targetRef"]["name"] == "one")
        .expect("the first pod")
        .clone();
    assert_eq!(endpoint["nodeName"], NODE);
    assert_eq!(endpoint["targetRef"]["kind"], "Pod");
    assert_eq!(endpoint["conditions"], json!({"ready": true, "serving": true, "terminating": false}));
    let address = endpoint["addresses"][0].as_str().expect("an address");
    assert_eq!(get(&format!("{address}:9898"), "/").await.expect("an answer")["pod"], "one");

    t.eventually(SLICES, "two ready", |list| {
        readiness(list) == [("one", true), ("three", false), ("two", true)].map(owned)
    })
    .await;
    t.delete("pods/one").await.ok();
    t.eventually(SLICES, "without the first", |list| {
        readiness(list) == [("three", false), ("two", true)].map(owned)
    })
    .await;
    t.patch(Patch::Merge, "pods/two", json!({"metadata": {"labels": {"app": "other"}}})).await.ok();
    t.eventually(SLICES, "without the second", |list| readiness(list) == [("three", false)].map(owned)).await;
}

pub async fn a_service_without_pods_has_an_empty_slice(t: Session) {
    t.post("services", service()).await.created();
    let slices = t.eventually(SLICES, "there", |list| items(list).len() == 1).await;
    assert!(readiness(&slices).is_empty());
}

pub async fn a_slice_is_deleted_with_its_service(t: Session) {
    t.post("services", service()).await.created();
    t.post("pods", named_pod("one", "app:v1")).await.created();
    t.eventually("pods/one", "ready", is_ready).await;
    t.eventually(SLICES, "ready", |list| readiness(list) == [("one", true)].map(owned)).await;
    t.delete("services/web").await.ok();
    t.eventually(SLICES, "gone", |list| items(list).is_empty()).await;
    assert!(is_ready(&t.get("pods/one").await.ok()));
}

pub async fn a_terminating_pod_serves_while_it_leaves_the_endpoints(t: Session) {
    t.post("services", service()).await.created();
    let mut leaving = named_pod("one", "app:v1");
    leaving["spec"]["containers"][0]["lifecycle"] = json!({"preStop": {"sleep": {"seconds": 3}}});
    t.post("pods", leaving).await.created();
    let pod = t.eventually("pods/one", "ready", is_ready).await;
    t.eventually(SLICES, "ready", |list| readiness(list) == [("one", true)].map(owned)).await;
    t.delete("pods/one").await.ok();
    let leaving = json!({"ready": false, "serving": true, "terminating": true});
    t.eventually(SLICES, "leaving", |list| items(list)[0]["endpoints"][0]["conditions"] == leaving).await;
    let address = format!("{}:9898", pod["status"]["podIP"].as_str().expect("an address"));
    get(&address, "/").await.expect("an answer");
    t.eventually_gone("pods/one").await;
    assert!(get(&address, "/").await.is_err(), "nobody listens any more");
}

fn service() -> Value {
    let port = json!({"name": "http", "port": 80, "targetPort": "web"});
    json!({"metadata": {"name": "web"}, "spec": {"selector": {"app": "web"}, "ports": [port]}})
}

fn named_pod(name: &str, image: &str) -> Value {
    let mut pod = pod(name, image);
    pod["metadata"]["labels"] = json!({"app": "web"});
    pod["spec"]["containers"][0]["ports"] = json!([{"name": "web", "containerPort": 9898}]);
    pod
}

/// Which pods the slices list, and whether each is ready.
fn readiness(slices: &Value) -> Vec<(String, bool)> {
    let endpoints =
        items(slices).iter().flat_map(|slice| slice["endpoints"].as_array().into_iter().flatten());
    let mut listed: Vec<_> = endpoints
        .filter(|endpoint| endpoint["conditions"]["terminating"] != true)
        .map(|endpoint| {
            let pod = endpoint["targetRef"]["name"].as_str().unwrap_or_default().to_owned();
            (pod, endpoint["conditions"]["ready"] == true)
        })
        .collect();
    listed.sort();
    listed
}

fn owned((name, ready): (&str, bool)) -> (String, bool) {
    (name.to_owned(), ready)
}
