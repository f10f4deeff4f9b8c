//! Workloads and Services, as the cluster's controllers treat them.
//!
//! No node runs here: each law is the kubelet of its own pods.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::crds::condition;
use crate::session::*;
use crate::support::{NODE, User};

const SLICES: &str = "/apis/discovery.k8s.io/v1/namespaces/{ns}/endpointslices";

pub async fn a_deployment_makes_a_replica_set_and_its_pods(t: Session) {
    let deployment = deploy(&t, 2, json!({})).await;
    pods_until(&t, "two", |pods| pods.len() == 2).await;
    let sets = t.get(&format!("{APPS}/replicasets")).await.ok();
    assert_eq!(sets["items"].as_array().map(Vec::len), Some(1));
    let set = &sets["items"][0];
    let hash = set["metadata"]["labels"]["pod-template-hash"].as_str().expect("a hash");
    assert_eq!(name(set), format!("d-{hash}"));
    assert_eq!(set["metadata"]["labels"]["app"], "d");
    assert_eq!(set["spec"]["selector"]["matchLabels"], json!({"app": "d", "pod-template-hash": hash}));
    assert_eq!(set["spec"]["template"]["metadata"]["labels"]["pod-template-hash"], hash);
    assert_eq!(set["metadata"]["annotations"]["deployment.kubernetes.io/revision"], "1");
    assert_eq!(set["metadata"]["ownerReferences"], json!([owner("Deployment", &deployment)]));
    for pod in pods(&t).await {
        assert!(name(&pod).starts_with(&format!("d-{hash}-")), "{}", name(&pod));
        assert_eq!(pod["metadata"]["generateName"], format!("d-{hash}-"));
        assert_eq!(pod["metadata"]["labels"], json!({"app": "d", "pod-template-hash": hash}));
        assert_eq!(pod["metadata"]["ownerReferences"], json!([owner("ReplicaSet", set)]));
        assert_eq!(pod["spec"]["containers"][0]["image"], "app:1");
    }
    let deployment = t.get(D).await.ok();
    assert_eq!(deployment["metadata"]["annotations"]["deployment.kubernetes.io/revision"], "1");
    assert_eq!(deployment["metadata"]["generation"], 1, "the controller's notes are no new generation");
}

pub async fn a_deployment_reports_its_pods(t: Session) {
    deploy(&t, 2, json!({})).await;
    let started = |d: &Value| d["status"]["replicas"] == 2 && d["status"]["unavailableReplicas"] == 2;
    let waiting = t.eventually(D, "started", started).await;
    assert_eq!(waiting["status"]["updatedReplicas"], 2);
    assert_eq!(waiting["status"]["readyReplicas"], Value::Null, "nothing is ready yet");
    assert_eq!(waiting["status"]["observedGeneration"], 1);
    assert_eq!(condition(&waiting, "Available"), "False");
    assert_eq!(condition(&waiting, "Progressing"), "True");

    let two = pods_until(&t, "two", |pods| pods.len() == 2).await;
    make_ready(&t, &two[0]).await;
    let half = t.eventually(D, "half ready", |d| d["status"]["readyReplicas"] == 1).await;
    assert_eq!(half["status"]["unavailableReplicas"], 1);
    make_ready(&t, &two[1]).await;
    let complete = |d: &Value| {
        d["status"]["availableReplicas"] == 2 && reason(d, "Progressing") == "NewReplicaSetAvailable"
    };
    let ready = t.eventually(D, "complete", complete).await;
    assert_eq!(ready["status"]["readyReplicas"], 2);
    assert_eq!(ready["status"]["unavailableReplicas"], Value::Null);
    assert_eq!(condition(&ready, "Available"), "True");
    assert_eq!(reason(&ready, "Available"), "MinimumReplicasAvailable");
}

pub async fn a_new_template_rolls_over_step_by_step(t: Session) {
    let _kubelet = kubelet(&t).await;
    deploy(&t, 4, json!({})).await;
    t.eventually(D, "complete", is_complete).await;
    t.patch(Patch::Strategic, D, image("app:2")).await.ok();
    let began = Instant::now();
    loop {
        let deployment = t.get(D).await.ok();
        let sets = t.get(&format!("{APPS}/replicasets")).await.ok();
        let wanted: u64 = sets["items"]
            .as_array()
            .expect("items")
            .iter()
            .filter_map(|set| set["spec"]["replicas"].as_u64())
            .sum();
        assert!(wanted <= 5, "a quarter more at most: {wanted}");
        let is_ready = |pod: &&Value| {
            pod["metadata"]["deletionTimestamp"].is_null() && condition(pod, "Ready") == "True"
        };
        let ready = pods(&t).await.iter().filter(is_ready).count();
        assert!(ready >= 3, "a quarter fewer at most: {ready}");
        if is_complete(&deployment) {
            break;
        }
        assert!(began.elapsed() < Duration::from_secs(60), "not rolled over: {}", deployment["status"]);
    }
    let live = |set: &Value| set["spec"]["replicas"] != 0;
    let sets = t.get(&format!("{APPS}/replicasets")).await.ok();
    let sets = sets["items"].as_array().expect("items");
    assert_eq!(sets.len(), 2, "the old one is kept for a way back");
    let current = sets.iter().find(|set| live(set)).expect("a live one");
    assert_eq!(current["metadata"]["annotations"]["deployment.kubernetes.io/revision"], "2");
    let pods = pods_until(&t, "four", |pods| pods.len() == 4).await;
    assert!(pods.iter().all(|pod| pod["spec"]["containers"][0]["image"] == "app:2"));
}

pub async fn an_old_template_reuses_its_replica_set(t: Session) {
    let _kubelet = kubelet(&t).await;
    deploy(&t, 1, json!({})).await;
    t.eventually(D, "complete", is_complete).await;
    let first = t.get(&format!("{APPS}/replicasets")).await.ok()["items"][0].clone();
    for tag in ["app:2", "app:1"] {
        t.patch(Patch::Strategic, D, image(tag)).await.ok();
        t.eventually(D, "complete", is_complete).await;
    }
    let again = t.get(&format!("{APPS}/replicasets/{}", name(&first))).await.ok();
    assert_eq!(uid(&again), uid(&first));
    assert_eq!(again["spec"]["replicas"], 1);
    assert_eq!(again["metadata"]["annotations"]["deployment.kubernetes.io/revision"], "3");
    assert_eq!(t.get(&format!("{APPS}/replicasets")).await.ok()["items"].as_array().map(Vec::len), Some(2));
}

pub async fn a_change_of_scale_is_no_new_revision(t: Session) {
    deploy(&t, 1, json!({})).await;
    pods_until(&t, "one", |pods| pods.len() == 1).await;
    t.patch(Patch::Merge, &format!("{D}/scale"), json!({"spec": {"replicas": 3}})).await.ok();
    pods_until(&t, "three", |pods| pods.len() == 3).await;
    let scaled = t.eventually(D, "observed", |d| d["status"]["replicas"] == 3).await;
    assert_eq!(scaled["metadata"]["annotations"]["deployment.kubernetes.io/revision"], "1");
    assert_eq!(t.get(&format!("{APPS}/replicasets")).await.ok()["items"].as_array().map(Vec::len), Some(1));
}

pub async fn scaling_to_zero_ends_all_pods(t: Session) {
    let _kubelet = kubelet(&t).await;
    deploy(&t, 2, json!({})).await;
    t.eventually(D, "complete", is_complete).await;
    t.patch(Patch::Merge, D, json!({"spec": {"replicas": 0}})).await.ok();
    pods_until(&t, "none", |pods| pods.is_empty()).await;
    let none = |d: &Value| d["status"]["observedGeneration"] == 2 && d["status"]["replicas"].is_null();
    let empty = t.eventually(D, "empty", none).await;
    assert_eq!(empty["status"]["readyReplicas"], Value::Null);
    assert_eq!(condition(&empty, "Available"), "True", "none of none is available");
}

pub async fn a_lost_pod_is_replaced(t: Session) {
    deploy(&t, 1, json!({})).await;
    let first = pods_until(&t, "one", |pods| pods.len() == 1).await.remove(0);
    t.delete(&format!("pods/{}?gracePeriodSeconds=0", name(&first))).await.ok();
    let next =
        pods_until(&t, "another", |pods| pods.len() == 1 && uid(&pods[0]) != uid(&first)).await.remove(0);
    assert_ne!(name(&next), name(&first));
}

pub async fn a_failed_pod_is_replaced(t: Session) {
    deploy(&t, 1, json!({})).await;
    let first = pods_until(&t, "one", |pods| pods.len() == 1).await.remove(0);
    let failed = json!({"status": {"phase": "Failed", "reason": "Evicted"}});
    t.patch(Patch::Merge, &format!("pods/{}/status", name(&first)), failed).await.ok();
    pods_until(&t, "joined by another", |pods| pods.iter().any(|pod| uid(pod) != uid(&first))).await;
}

pub async fn recreate_ends_the_old_before_the_new(t: Session) {
    deploy(&t, 2, json!({"strategy": {"type": "Recreate"}})).await;
    let old = pods_until(&t, "two", |pods| pods.len() == 2).await;
    for pod in &old {
        make_ready(&t, pod).await;
    }
    t.eventually(D, "complete", is_complete).await;
    t.patch(Patch::Strategic, D, image("app:2")).await.ok();
    let leaving = |pods: &[Value]| pods.iter().all(|pod| pod["metadata"]["deletionTimestamp"].is_string());
    let ending = pods_until(&t, "ending", |pods| pods.len() == 2 && leaving(pods)).await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(pods(&t).await.len(), 2, "nothing new while the old are ending");
    for pod in &ending {
        t.delete(&format!("pods/{}?gracePeriodSeconds=0", name(pod))).await.ok();
    }
    let new = pods_until(&t, "new", |pods| pods.len() == 2 && !leaving(pods)).await;
    assert!(new.iter().all(|pod| pod["spec"]["containers"][0]["image"] == "app:2"));
}

pub async fn a_paused_deployment_waits(t: Session) {
    deploy(&t, 1, json!({})).await;
    pods_until(&t, "one", |pods| pods.len() == 1).await;
    t.patch(Patch::Merge, D, json!({"spec": {"paused": true}})).await.ok();
    t.patch(Patch::Strategic, D, image("app:2")).await.ok();
    let paused = |d: &Value| d["status"]["observedGeneration"] == 3;
    let waiting = t.eventually(D, "observed", paused).await;
    assert_eq!(reason(&waiting, "Progressing"), "DeploymentPaused");
    assert_eq!(t.get(&format!("{APPS}/replicasets")).await.ok()["items"].as_array().map(Vec::len), Some(1));
    t.patch(Patch::Merge, D, json!({"spec": {"paused": false}})).await.ok();
    pods_until(&t, "two", |pods| pods.iter().any(|pod| pod["spec"]["containers"][0]["image"] == "app:2"))
        .await;
}

pub async fn a_deployment_without_progress_reports_it(t: Session) {
    deploy(&t, 1, json!({"progressDeadlineSeconds": 1})).await;
    let late = t.eventually(D, "late", |d| reason(d, "Progressing") == "ProgressDeadlineExceeded").await;
    assert_eq!(condition(&late, "Progressing"), "False");
    let set = t.get(&format!("{APPS}/replicasets")).await.ok();
    let message = message(&late, "Progressing").to_owned();
    assert_eq!(message, format!("ReplicaSet \"{}\" has timed out progressing.", name(&set["items"][0])));
    let pod = pods(&t).await.remove(0);
    make_ready(&t, &pod).await;
    t.eventually(D, "complete after all", |d| reason(d, "Progressing") == "NewReplicaSetAvailable").await;
}

pub async fn a_pod_counts_only_after_its_ready_seconds(t: Session) {
    deploy(&t, 1, json!({"minReadySeconds": 3})).await;
    let pod = pods_until(&t, "one", |pods| pods.len() == 1).await.remove(0);
    make_ready(&t, &pod).await;
    let ready = t.eventually(D, "ready", |d| d["status"]["readyReplicas"] == 1).await;
    assert_eq!(ready["status"]["availableReplicas"], Value::Null, "ready, and not yet available");
    t.eventually(D, "available", |d| d["status"]["availableReplicas"] == 1).await;
}

pub async fn deleting_a_deployment_reaches_its_pods(t: Session) {
    deploy(&t, 2, json!({})).await;
    pods_until(&t, "two", |pods| pods.len() == 2).await;
    t.delete(D).await.ok();
    let _kubelet = kubelet(&t).await;
    pods_until(&t, "none", |pods| pods.is_empty()).await;
    assert_eq!(t.get(&format!("{APPS}/replicasets")).await.ok()["items"], json!([]));
}

pub async fn a_replica_set_adopts_pods_it_selects(t: Session) {
    let mut body = crate::deletes::pod("stray", Some(NODE));
    body["metadata"]["labels"] = json!({"app": "r"});
    let stray = t.post("pods", body).await.created();
    let spec = json!({
        "replicas": 1,
        "selector": {"matchLabels": {"app": "r"}},
        "template": {"metadata": {"labels": {"app": "r"}}, "spec": {
            "nodeName": NODE, "containers": [{"name": "main", "image": "app:1"}],
        }},
    });
    let body =
        json!({"apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": {"name": "r"}, "spec": spec});
    let set = t.post(&format!("{APPS}/replicasets"), body).await.created();
    let path = format!("{APPS}/replicasets/r");
    t.eventually(&path, "satisfied", |set| set["status"]["replicas"] == 1).await;
    let adopted = t.get("pods/stray").await.ok();
    assert_eq!(uid(&adopted), uid(&stray));
    assert_eq!(adopted["metadata"]["ownerReferences"], json!([owner("ReplicaSet", &set)]));
    assert_eq!(pods(&t).await.len(), 1);

    let patch = json!({"metadata": {"labels": {"app": "other"}}});
    t.patch(Patch::Merge, "pods/stray", patch).await.ok();
    pods_until(&t, "replaced", |pods| pods.len() == 2).await;
    let released = t.get("pods/stray").await.ok();
    assert_eq!(released["metadata"]["ownerReferences"], Value::Null, "let go when it no longer fits");
}

pub async fn a_service_lists_its_pods_with_their_readiness(t: Session) {
    deploy(&t, 2, json!({})).await;
    let ports = json!([{"name": "web", "port": 80, "targetPort": "http"}]);
    let body = json!({"metadata": {"name": "s"}, "spec": {"selector": {"app": "d"}, "ports": ports}});
    let service = t.post("services", body).await.created();
    let two = pods_until(&t, "two", |pods| pods.len() == 2).await;
    make_ready(&t, &two[0]).await;
    let of_service = format!("{SLICES}?labelSelector=kubernetes.io/service-name=s");
    let has_ready =
        |list: &Value| endpoints(list).iter().any(|endpoint| endpoint["conditions"]["ready"] == true);
    let list = t.eventually(&of_service, "ready", has_ready).await;
    let slice = &list["items"][0];
    assert_eq!(slice["addressType"], "IPv4");
    assert_eq!(
        slice["metadata"]["labels"]["endpointslice.kubernetes.io/managed-by"],
        "endpointslice-controller.k8s.io"
    );
    assert_eq!(slice["metadata"]["ownerReferences"], json!([owner("Service", &service)]));
    assert_eq!(slice["ports"], json!([{"name": "web", "port": 8080, "protocol": "TCP"}]));
    let endpoint = &endpoints(&list)[0];
    assert_eq!(endpoint["addresses"], json!([address(&two[0])]));
    assert_eq!(endpoint["targetRef"]["kind"], "Pod");
    assert_eq!(endpoint["targetRef"]["name"], two[0]["metadata"]["name"]);
    assert_eq!(endpoint["targetRef"]["uid"], two[0]["metadata"]["uid"]);
    assert_eq!(endpoint["nodeName"], NODE);
    let conditions = json!({"ready": true, "serving": true, "terminating": false});
    assert_eq!(endpoint["conditions"], conditions);

    let unready = json!({"status": {"conditions": [{"type": "Ready", "status": "False"}]}});
    t.patch(Patch::Merge, &format!("pods/{}/status", name(&two[0])), unready).await.ok();
    let list = t.eventually(&of_service, "unready", |list| !has_ready(list)).await;
    assert_eq!(endpoints(&list)[0]["conditions"]["serving"], false);
    make_ready(&t, &two[1]).await;
    t.eventually(&of_service, "ready again", has_ready).await;
    t.delete(&format!("pods/{}", name(&two[1]))).await.ok();
    let terminating = |list: &Value| {
        endpoints(list).iter().any(|endpoint| {
            let conditions = &endpoint["conditions"];
            conditions["terminating"] == true && conditions["ready"] == false && conditions["serving"] == true
        })
    };
    t.eventually(&of_service, "terminating", terminating).await;
    t.delete("services/s").await.ok();
    t.eventually(&of_service, "gone", |list| list["items"] == json!([])).await;
}

pub async fn a_daemon_set_has_a_pod_on_every_node(t: Session) {
    let body = json!({
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"name": "d"},
        "spec": {
            "selector": {"matchLabels": {"app": "d"}},
            "template": {
                "metadata": {"labels": {"app": "d"}},
                "spec": {
                    "nodeSelector": {"kubernetes.io/hostname": NODE},
                    "containers": [{"name": "main", "image": "app:1"}],
                },
            },
        },
    });
    let set = t.post(&format!("{APPS}/daemonsets"), body).await.created();
    let path = format!("{APPS}/daemonsets/d");
    let pod = pods_until(&t, "one", |pods| pods.len() == 1).await.remove(0);
    assert_eq!(pod["metadata"]["ownerReferences"], json!([owner("DaemonSet", &set)]));
    assert!(pod["metadata"]["labels"]["controller-revision-hash"].is_string());
    let counted = |set: &Value| set["status"]["currentNumberScheduled"] == 1;
    let counts = t.eventually(&path, "counted", counted).await;
    assert_eq!(counts["status"]["desiredNumberScheduled"], 1);
    assert_eq!(counts["status"]["numberReady"], 0);
    make_ready(&t, &pod).await;
    let ready = t.eventually(&path, "ready", |set| set["status"]["numberReady"] == 1).await;
    assert_eq!(ready["status"]["numberAvailable"], 1);
    assert_eq!(ready["status"]["updatedNumberScheduled"], 1);

    let nowhere =
        json!({"spec": {"template": {"spec": {"nodeSelector": {"kubernetes.io/hostname": "nowhere"}}}}});
    t.patch(Patch::Strategic, &path, nowhere).await.ok();
    let _kubelet = kubelet(&t).await;
    pods_until(&t, "none", |pods| pods.is_empty()).await;
    t.eventually(&path, "empty", |set| set["status"]["desiredNumberScheduled"] == 0).await;
}

pub async fn controllers_write_events(t: Session) {
    let deployment = deploy(&t, 1, json!({})).await;
    pods_until(&t, "one", |pods| pods.len() == 1).await;
    let of_deployment = "events?fieldSelector=involvedObject.kind=Deployment,involvedObject.name=d";
    let list = t.eventually(of_deployment, "there", |list| list["items"] != json!([])).await;
    let event = &list["items"][0];
    assert_eq!(event["reason"], "ScalingReplicaSet");
    assert_eq!(event["type"], "Normal");
    assert_eq!(event["involvedObject"]["uid"], deployment["metadata"]["uid"]);
    let set = t.get(&format!("{APPS}/replicasets")).await.ok();
    let expected = format!("Scaled up replica set {} from 0 to 1", name(&set["items"][0]));
    assert_eq!(event["message"], expected);
}

const D: &str = "/apis/apps/v1/namespaces/{ns}/deployments/d";

/// A Deployment named d, with further fields of its spec.
async fn deploy(t: &Session, replicas: u32, more: Value) -> Value {
    let container = json!({
        "name": "main", "image": "app:1", "ports": [{"name": "http", "containerPort": 8080}],
    });
    let mut spec = json!({
        "replicas": replicas,
        "selector": {"matchLabels": {"app": "d"}},
        "template": {
            "metadata": {"labels": {"app": "d"}},
            "spec": {"nodeName": NODE, "containers": [container]},
        },
    });
    spec.as_object_mut().expect("an object").extend(more.as_object().expect("fields of a spec").clone());
    let body =
        json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d"}, "spec": spec});
    t.post(&format!("{APPS}/deployments"), body).await.created()
}

fn image(image: &str) -> Value {
    json!({"spec": {"template": {"spec": {"containers": [{"name": "main", "image": image}]}}}})
}

async fn pods(t: &Session) -> Vec<Value> {
    t.get("pods").await.ok()["items"].as_array().expect("items").clone()
}

async fn pods_until(t: &Session, wanted: &str, test: impl Fn(&[Value]) -> bool) -> Vec<Value> {
    let items = |list: &Value| list["items"].as_array().expect("items").clone();
    items(&t.eventually("pods", wanted, |list| test(&items(list))).await)
}

/// What a kubelet writes once a pod's container has started.
async fn make_ready(t: &Session, pod: &Value) {
    let now = jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    let address = address(pod);
    let status = json!({"status": {
        "phase": "Running",
        "podIP": address,
        "podIPs": [{"ip": address}],
        "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": now}],
    }});
    let answer = t.patch(Patch::Merge, &format!("pods/{}/status", name(pod)), status).await;
    assert!(matches!(answer.code, 200 | 404), "{}", answer.text);
}

/// An address that is the pod's alone.
fn address(pod: &Value) -> String {
    let uid = u32::from_str_radix(&uid(pod)[..6], 16).expect("a UUID begins with hexadecimal digits");
    let [_, a, b, c] = uid.to_be_bytes();
    format!("10.{a}.{b}.{c}")
}

/// Starts the session's pods and ends those to be deleted, until dropped.
async fn kubelet(t: &Session) -> tokio_util::task::AbortOnDropHandle<()> {
    let t = t.as_user(User::Admin).await;
    tokio_util::task::AbortOnDropHandle::new(tokio::spawn(async move {
        loop {
            for pod in pods(&t).await {
                if pod["metadata"]["deletionTimestamp"].is_string() {
                    t.delete(&format!("pods/{}?gracePeriodSeconds=0", name(&pod))).await;
                } else if condition(&pod, "Ready") != "True" {
                    make_ready(&t, &pod).await;
                }
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }))
}

/// As `kubectl rollout status` sees it.
fn is_complete(deployment: &Value) -> bool {
    let (spec, status) = (&deployment["spec"], &deployment["status"]);
    status["observedGeneration"] == deployment["metadata"]["generation"]
        && status["updatedReplicas"] == spec["replicas"]
        && status["replicas"] == spec["replicas"]
        && status["availableReplicas"] == spec["replicas"]
}

fn owner(kind: &str, object: &Value) -> Value {
    let api_version = if kind == "Service" { "v1" } else { "apps/v1" };
    json!({
        "apiVersion": api_version,
        "kind": kind,
        "name": object["metadata"]["name"],
        "uid": object["metadata"]["uid"],
        "controller": true,
        "blockOwnerDeletion": true,
    })
}

fn reason<'a>(object: &'a Value, kind: &str) -> &'a str {
    field(object, kind, "reason")
}

fn message<'a>(object: &'a Value, kind: &str) -> &'a str {
    field(object, kind, "message")
}

fn field<'a>(object: &'a Value, kind: &str, field: &str) -> &'a str {
    let conditions = object["status"]["conditions"].as_array().map(Vec::as_slice).unwrap_or_default();
    conditions.iter().find(|c| c["type"] == kind).and_then(|c| c[field].as_str()).unwrap_or_default()
}

/// The endpoints of all slices in a list.
fn endpoints(list: &Value) -> Vec<Value> {
    let slices = list["items"].as_array().expect("items").iter();
    slices.flat_map(|slice| slice["endpoints"].as_array().cloned().unwrap_or_default()).collect()
}
