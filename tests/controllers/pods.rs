//! What the node does with a pod.

use std::net::SocketAddrV4;

use http_body_util::{BodyExt, Empty};
use hyper_util::rt::TokioIo;
use kube_local::node::address::loopback_address;
use serde_json::{Value, json};
use tokio::net::TcpStream;

use crate::deployments::{condition, is_ready};
use crate::session::*;
use crate::support::NODE;

pub async fn a_pod_serves_on_its_own_address(t: Session) {
    for name in ["one", "two"] {
        t.post("pods", pod(name, "team/web:v2")).await.created();
    }
    let mut addresses = Vec::new();
    for name in ["one", "two"] {
        let path = format!("pods/{name}");
        let pod = t.eventually(&path, "ready", is_ready).await;
        assert_eq!(pod["spec"]["nodeName"], NODE);
        let status = &pod["status"];
        assert_eq!((&status["phase"], &status["hostIP"]), (&json!("Running"), &json!("127.0.0.1")));
        for kind in ["PodScheduled", "Initialized", "ContainersReady", "Ready"] {
            assert_eq!(condition(&pod, kind)["status"], "True", "{kind}");
            assert!(condition(&pod, kind)["lastTransitionTime"].is_string(), "{kind}");
        }
        let container = &status["containerStatuses"][0];
        assert_eq!(
            (&container["ready"], &container["started"], &container["restartCount"]),
            (&json!(true), &json!(true), &json!(0))
        );
        assert!(container["state"]["running"]["startedAt"].is_string());
        let address = format!("{}:8080", status["podIP"].as_str().expect("an address"));
        let answer = get(&address, "/").await.expect("an answer");
        assert_eq!(answer, json!({"name": "web", "version": "v2", "namespace": t.ns, "pod": name}));
        addresses.push(address);
    }
    assert_ne!(addresses[0], addresses[1]);
    let metrics = get(&addresses[0], "/metrics").await.expect("metrics");
    let counted = r#"http_request_duration_seconds_count{method="GET",path="/",status="200"} 1"#;
    assert!(metrics.as_str().expect("text").contains(counted), "{metrics}");
}

pub async fn a_crashing_pod_reports_its_crash_loop(t: Session) {
    t.post("pods", pod("one", "app:v5-crash")).await.created();
    let crashed = |pod: &Value| {
        pod["status"]["containerStatuses"][0]["state"]["waiting"]["reason"] == "CrashLoopBackOff"
    };
    let pod = t.eventually("pods/one", "crashing", crashed).await;
    let container = &pod["status"]["containerStatuses"][0];
    assert_eq!(container["lastState"]["terminated"]["exitCode"], 1);
    assert_eq!(container["lastState"]["terminated"]["reason"], "Error");
    assert_eq!((&pod["status"]["phase"], &container["ready"]), (&json!("Running"), &json!(false)));
    assert_eq!(condition(&pod, "Ready")["reason"], "ContainersNotReady");
    t.eventually("pods/one", "started again", |pod| {
        pod["status"]["containerStatuses"][0]["restartCount"] == 1
    })
    .await;
}

pub async fn a_pod_that_is_never_ready_runs(t: Session) {
    t.post("pods", pod("one", "app:v6-never-ready")).await.created();
    let runs = |pod: &Value| pod["status"]["containerStatuses"][0]["state"]["running"].is_object();
    let pod = t.eventually("pods/one", "running", runs).await;
    assert!(!is_ready(&pod));
    let address = format!("{}:8080", pod["status"]["podIP"].as_str().expect("an address"));
    assert_eq!(get(&address, "/").await.expect("an answer")["version"], "v6");
}

pub async fn readiness_follows_the_readiness_probe(t: Session) {
    let mut pod = pod("one", "app:v1-delay-1s");
    let probe = json!({"httpGet": {"path": "/healthz", "port": 8080}, "periodSeconds": 1});
    pod["spec"]["containers"][0]["readinessProbe"] = probe;
    t.post("pods", pod).await.created();
    let runs = |pod: &Value| pod["status"]["phase"] == "Running";
    assert!(!is_ready(&t.eventually("pods/one", "running", runs).await));
    t.eventually("pods/one", "ready", is_ready).await;
}

pub async fn a_pod_waits_for_its_configuration(t: Session) {
    let mut pod = pod("one", "app:v1");
    pod["spec"]["containers"][0]["env"] = json!([{"name": "LATENCY", "valueFrom": {"configMapKeyRef": {"name": "settings", "key": "latency"}}}]);
    t.post("pods", pod).await.created();
    let waits = |pod: &Value| {
        pod["status"]["containerStatuses"][0]["state"]["waiting"]["reason"] == "CreateContainerConfigError"
    };
    let pod = t.eventually("pods/one", "waiting", waits).await;
    let message = &pod["status"]["containerStatuses"][0]["state"]["waiting"]["message"];
    assert_eq!(message, "configmap \"settings\" not found");
    assert_eq!(pod["status"]["phase"], "Pending");
    t.config_map("settings", json!({"latency": "1ms"})).await;
    t.eventually("pods/one", "ready", is_ready).await;
}

pub async fn a_pod_that_is_deleted_stops_serving(t: Session) {
    t.post("pods", pod("one", "app:v1")).await.created();
    let pod = t.eventually("pods/one", "ready", is_ready).await;
    let address = format!("{}:8080", pod["status"]["podIP"].as_str().expect("an address"));
    let slow = tokio::spawn({
        let address = address.clone();
        async move { get(&address, "/delay/700ms").await }
    });
    while get(&address, "/").await.is_err() {}
    t.delete("pods/one").await.ok();
    t.eventually_gone("pods/one").await;
    assert!(slow.await.expect("a task").is_ok(), "a request under way may finish");
    assert!(get(&address, "/").await.is_err(), "nobody listens any more");
}

pub async fn a_finalizer_keeps_a_stopped_pod(t: Session) {
    let mut held = pod("one", "app:v1");
    held["metadata"]["finalizers"] = json!(["example.dev/hold"]);
    t.post("pods", held).await.created();
    t.eventually("pods/one", "ready", is_ready).await;
    t.delete("pods/one").await.ok();
    let stopped = |pod: &Value| pod["status"]["containerStatuses"][0]["state"]["terminated"].is_object();
    let pod = t.eventually("pods/one", "stopped", stopped).await;
    assert!(!is_ready(&pod));
    t.patch(Patch::Merge, "pods/one", json!({"metadata": {"finalizers": null}})).await.ok();
    t.eventually_gone("pods/one").await;
}

pub async fn a_namespace_with_pods_can_be_deleted(t: Session) {
    t.post("pods", pod("one", "app:v1")).await.created();
    t.eventually("pods/one", "ready", is_ready).await;
    t.config_map("settings", json!({})).await;
    t.delete("/api/v1/namespaces/{ns}").await.ok();
    t.eventually_gone("/api/v1/namespaces/{ns}").await;
    for kind in ["pods", "configmaps", "events"] {
        assert_eq!(t.get(kind).await.ok()["items"], json!([]), "{kind}");
    }
}

pub fn pod(name: &str, image: &str) -> Value {
    json!({"metadata": {"name": name}, "spec": {"containers": [{"name": "app", "image": image}]}})
}

/// The body, parsed if it is JSON; an error if nobody listens. `address` is as
/// the pod shows it.
pub async fn get(address: &str, path: &str) -> Result<Value, String> {
    let address: SocketAddrV4 = address.parse().expect("an address and a port");
    let stream = TcpStream::connect((loopback_address(*address.ip()), address.port()))
        .await
        .map_err(|error| error.to_string())?;
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
        .await
        .map_err(|error| error.to_string())?;
    tokio::spawn(connection);
    let request = http::Request::get(path)
        .header("host", address.to_string())
        .body(Empty::<bytes::Bytes>::new())
        .expect("a request");
    let response = sender.send_request(request).await.map_err(|error| error.to_string())?;
    let body = response.into_body().collect().await.map_err(|error| error.to_string())?.to_bytes();
    let text = String::from_utf8_lossy(&body).into_owned();
    Ok(serde_json::from_str(&text).unwrap_or(Value::String(text)))
}
