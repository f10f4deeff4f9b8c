//! From a Deployment to pods.

use std::process::Command;

use serde_json::{Value, json};

use crate::session::*;
use crate::support::{Part, program};

const WEB: &str = "/apis/apps/v1/namespaces/{ns}/deployments/web";
const DEPLOYMENTS: &str = "/apis/apps/v1/namespaces/{ns}/deployments";
const SETS: &str = "/apis/apps/v1/namespaces/{ns}/replicasets";

pub async fn a_deployment_becomes_available(t: Session) {
    t.post(DEPLOYMENTS, web(3, json!({}))).await.created();
    let done = settled(&t).await;
    assert_eq!(done["metadata"]["annotations"]["deployment.kubernetes.io/revision"], "1");
    assert_eq!(condition(&done, "Available")["reason"], "MinimumReplicasAvailable");
    assert_eq!(condition(&done, "Progressing")["reason"], "NewReplicaSetAvailable");
    assert_eq!(done["status"]["readyReplicas"], 3);
    assert_eq!(done["status"]["unavailableReplicas"], Value::Null);

    let sets = t.get(SETS).await.ok();
    let set = &sets["items"][0];
    let hash = set["metadata"]["labels"]["pod-template-hash"].as_str().expect("a hash");
    assert_eq!(set["metadata"]["name"], format!("web-{hash}"));
    assert_eq!(set["spec"]["selector"]["matchLabels"], json!({"app": "web", "pod-template-hash": hash}));
    assert_eq!(set["metadata"]["ownerReferences"][0]["uid"], done["metadata"]["uid"]);
    let pods = pods(&t).await;
    assert_eq!(pods.len(), 3);
    for pod in &pods {
        assert!(name(pod).starts_with(&format!("web-{hash}-")), "{}", name(pod));
        assert_eq!(pod["metadata"]["labels"]["pod-template-hash"], hash);
        assert_eq!(pod["metadata"]["ownerReferences"][0]["controller"], true);
    }
}

pub async fn a_rolling_update_keeps_enough_pods_available(t: Session) {
    let slack = json!({"rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}});
    t.post(DEPLOYMENTS, web(4, json!({"strategy": slack}))).await.created();
    let before = settled(&t).await;
    let mut watch = t.watch(&format!("{DEPLOYMENTS}?resourceVersion={}", version(&before))).await;
    set_image(&t, "app:v2").await;
    let done = loop {
        let (_, deployment) = watch.next().await;
        let status = &deployment["status"];
        assert!(status["availableReplicas"].as_i64().unwrap_or(0) >= 4, "too few pods: {status}");
        assert!(status["replicas"].as_i64().unwrap_or(0) <= 5, "too many pods: {status}");
        if is_settled(&deployment) {
            break deployment;
        }
    };
    assert_eq!(done["metadata"]["annotations"]["deployment.kubernetes.io/revision"], "2");
    let sets = t.get(SETS).await.ok();
    let mut sizes: Vec<_> = items(&sets).iter().map(|set| set["spec"]["replicas"].as_i64()).collect();
    sizes.sort();
    assert_eq!(sizes, [Some(0), Some(4)]);
    eventually_pods(&t, "all of the new image", |pods| {
        pods.len() == 4 && pods.iter().all(|pod| image(pod) == "app:v2")
    })
    .await;
}

pub async fn going_back_to_an_old_template_reuses_its_set(t: Session) {
    t.post(DEPLOYMENTS, web(1, json!({}))).await.created();
    settled(&t).await;
    for image in ["app:v2", "app:v1"] {
        set_image(&t, image).await;
        settled(&t).await;
    }
    let sets = t.get(SETS).await.ok();
    let sets = items(&sets);
    assert_eq!(sets.len(), 2);
    let current = sets.iter().find(|set| set["spec"]["replicas"] == 1).expect("a set in use");
    assert_eq!(current["spec"]["template"]["spec"]["containers"][0]["image"], "app:v1");
    assert_eq!(current["metadata"]["annotations"]["deployment.kubernetes.io/revision"], "3");
    assert_eq!(current["metadata"]["annotations"]["deployment.kubernetes.io/revision-history"], "1");
}

pub async fn recreating_pods_never_mixes_revisions(t: Session) {
    t.post(DEPLOYMENTS, web(2, json!({"strategy": {"type": "Recreate"}}))).await.created();
    let before = settled(&t).await;
    let mut watch = t.watch(&format!("pods?resourceVersion={}", version(&before))).await;
    set_image(&t, "app:v2").await;
    let mut old: Vec<_> =
        pods(&t).await.iter().filter(|pod| image(pod) == "app:v1").map(|pod| name(pod).to_owned()).collect();
    while !old.is_empty() {
        let (kind, pod) = watch.next().await;
        assert_eq!(image(&pod), "app:v1", "a new pod while old ones are left: {old:?}");
        if kind == "DELETED" {
            old.retain(|left| left != name(&pod));
        }
    }
    settled(&t).await;
}

pub async fn a_paused_deployment_does_not_roll(t: Session) {
    t.post(DEPLOYMENTS, web(1, json!({"paused": true}))).await.created();
    let paused = |deployment: &Value| condition(deployment, "Progressing")["reason"] == "DeploymentPaused";
    t.eventually(WEB, "paused", paused).await;
    assert!(pods(&t).await.is_empty());
    t.patch(Patch::Merge, WEB, json!({"spec": {"paused": false}})).await.ok();
    settled(&t).await;
}

pub async fn a_deployment_scales_to_zero_and_back(t: Session) {
    t.post(DEPLOYMENTS, web(2, json!({}))).await.created();
    settled(&t).await;
    let scale = format!("{WEB}/scale");
    t.patch(Patch::Merge, &scale, json!({"spec": {"replicas": 0}})).await.ok();
    let empty = |deployment: &Value| deployment["status"]["replicas"].is_null() && observed(deployment);
    let deployment = t.eventually(WEB, "empty", empty).await;
    assert_eq!(condition(&deployment, "Available")["status"], "True");
    eventually_pods(&t, "none", |pods| pods.is_empty()).await;
    t.patch(Patch::Merge, &scale, json!({"spec": {"replicas": 3}})).await.ok();
    settled(&t).await;
    assert_eq!(items(&t.get(SETS).await.ok()).len(), 1);
}

pub async fn a_deployment_that_never_gets_ready_exceeds_its_deadline(t: Session) {
    t.post(DEPLOYMENTS, web(1, json!({"progressDeadlineSeconds": 2}))).await.created();
    settled(&t).await;
    set_image(&t, "app:v2-never-ready").await;
    let late =
        |deployment: &Value| condition(deployment, "Progressing")["reason"] == "ProgressDeadlineExceeded";
    let deployment = t.eventually(WEB, "late", late).await;
    assert_eq!(condition(&deployment, "Progressing")["status"], "False");
    assert_eq!(condition(&deployment, "Available")["status"], "True", "the old pod still serves");
    set_image(&t, "app:v3").await;
    settled(&t).await;
}

pub async fn a_pod_counts_as_available_only_after_a_while(t: Session) {
    t.post(DEPLOYMENTS, web(1, json!({"minReadySeconds": 2}))).await.created();
    let ready = t.eventually(WEB, "ready", |deployment| deployment["status"]["readyReplicas"] == 1).await;
    assert_eq!(ready["status"]["availableReplicas"], Value::Null);
    assert_eq!(condition(&ready, "Available")["status"], "False");
    settled(&t).await;
}

pub async fn the_revision_history_limit_is_kept(t: Session) {
    t.post(DEPLOYMENTS, web(1, json!({"revisionHistoryLimit": 1}))).await.created();
    settled(&t).await;
    for version in 2..=4 {
        set_image(&t, &format!("app:v{version}")).await;
        settled(&t).await;
    }
    let two = |sets: &Value| items(sets).len() == 2;
    let sets = t.eventually(SETS, "two sets", two).await;
    let mut revisions: Vec<_> = items(&sets)
        .iter()
        .map(|set| set["metadata"]["annotations"]["deployment.kubernetes.io/revision"].as_str())
        .collect();
    revisions.sort();
    assert_eq!(revisions, [Some("3"), Some("4")]);
}

pub async fn the_pods_of_a_deleted_deployment_are_deleted(t: Session) {
    t.post(DEPLOYMENTS, web(2, json!({}))).await.created();
    settled(&t).await;
    t.delete_with(WEB, json!({"propagationPolicy": "Background"})).await.ok();
    t.get(WEB).await.refused(404, "NotFound");
    t.eventually(SETS, "empty", |sets| items(sets).is_empty()).await;
    eventually_pods(&t, "none", |pods| pods.is_empty()).await;
}

pub async fn foreground_deletion_removes_the_pods_first(t: Session) {
    t.post(DEPLOYMENTS, web(2, json!({}))).await.created();
    settled(&t).await;
    t.delete_with(WEB, json!({"propagationPolicy": "Foreground"})).await.ok();
    t.eventually_gone(WEB).await;
    assert!(items(&t.get(SETS).await.ok()).is_empty(), "the sets were to go before");
    assert!(pods(&t).await.is_empty(), "the pods were to go before");
}

pub async fn orphaned_sets_are_adopted_again(t: Session) {
    t.post(DEPLOYMENTS, web(1, json!({}))).await.created();
    settled(&t).await;
    let before = pods(&t).await;
    t.delete_with(WEB, json!({"propagationPolicy": "Orphan"})).await.ok();
    t.eventually_gone(WEB).await;
    let sets = t.get(SETS).await.ok();
    assert_eq!(items(&sets)[0]["metadata"]["ownerReferences"], Value::Null);
    let again = t.post(DEPLOYMENTS, web(1, json!({}))).await.created();
    settled(&t).await;
    let sets = t.get(SETS).await.ok();
    assert_eq!(items(&sets).len(), 1);
    assert_eq!(items(&sets)[0]["metadata"]["ownerReferences"][0]["uid"], again["metadata"]["uid"]);
    assert_eq!(uid(&pods(&t).await[0]), uid(&before[0]));
}

pub async fn a_pod_that_is_deleted_is_replaced(t: Session) {
    t.post(DEPLOYMENTS, web(1, json!({}))).await.created();
    settled(&t).await;
    let first = pods(&t).await.remove(0);
    t.delete(&format!("pods/{}", name(&first))).await.ok();
    eventually_pods(&t, "another one", |pods| {
        pods.len() == 1 && uid(&pods[0]) != uid(&first) && is_ready(&pods[0])
    })
    .await;
}

pub async fn a_pod_whose_labels_change_is_released_and_replaced(t: Session) {
    t.post(DEPLOYMENTS, web(1, json!({}))).await.created();
    settled(&t).await;
    let first = name(&pods(&t).await[0]).to_owned();
    let path = format!("pods/{first}");
    t.patch(Patch::Merge, &path, json!({"metadata": {"labels": {"app": "quarantine"}}})).await.ok();
    t.eventually(&path, "nobody's", |pod| pod["metadata"]["ownerReferences"].is_null()).await;
    eventually_pods(&t, "two", |pods| pods.len() == 2 && pods.iter().all(is_ready)).await;
}

pub async fn kubectl_follows_a_rollout(t: Session) {
    t.post(DEPLOYMENTS, web(2, json!({}))).await.created();
    kubectl(&t, &["rollout", "status", "deployment/web", "--timeout=30s"]).await;
    kubectl(&t, &["set", "image", "deployment/web", "app=app:v2-delay-1s"]).await;
    let followed = kubectl(&t, &["rollout", "status", "deployment/web", "--timeout=30s"]).await;
    assert!(followed.contains("successfully rolled out"), "{followed}");
    kubectl(&t, &["wait", "--for=condition=Available", "deployment/web", "--timeout=30s"]).await;
    kubectl(&t, &["rollout", "undo", "deployment/web"]).await;
    kubectl(&t, &["rollout", "status", "deployment/web", "--timeout=30s"]).await;
    assert_eq!(t.get(WEB).await.ok()["spec"]["template"]["spec"]["containers"][0]["image"], "app:v1");
    kubectl(&t, &["rollout", "restart", "deployment/web"]).await;
    kubectl(&t, &["rollout", "status", "deployment/web", "--timeout=30s"]).await;
    kubectl(&t, &["delete", "deployment/web", "--timeout=30s"]).await;
}

async fn kubectl(t: &Session, arguments: &[&str]) -> String {
    let kubectl = program(Part::Kubernetes, "kubectl").unwrap_or_else(|missing| panic!("{missing}"));
    let mut command = Command::new(kubectl);
    command.arg("--kubeconfig").arg(t.cluster.kubeconfig()).args(["--namespace", &t.ns]).args(arguments);
    let output =
        tokio::task::spawn_blocking(move || command.output()).await.expect("a thread").expect("kubectl runs");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "kubectl {arguments:?}: {text}{errors}");
    text
}

/// A Deployment `web` of `app:v1`.
fn web(replicas: i32, more: Value) -> Value {
    let mut spec = json!({
        "replicas": replicas,
        "selector": {"matchLabels": {"app": "web"}},
        "template": {
            "metadata": {"labels": {"app": "web"}},
            "spec": {"containers": [{"name": "app", "image": "app:v1"}]},
        },
    });
    json_patch::merge(&mut spec, &more);
    json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"}, "spec": spec})
}

async fn set_image(t: &Session, image: &str) {
    let containers = json!([{"name": "app", "image": image}]);
    let patch = json!({"spec": {"template": {"spec": {"containers": containers}}}});
    t.patch(Patch::Strategic, WEB, patch).await.ok();
}

async fn settled(t: &Session) -> Value {
    t.eventually(WEB, "rolled out", is_settled).await
}

fn observed(deployment: &Value) -> bool {
    deployment["status"]["observedGeneration"] == deployment["metadata"]["generation"]
}

/// As `kubectl rollout status` sees it.
fn is_settled(deployment: &Value) -> bool {
    let (wanted, status) = (&deployment["spec"]["replicas"], &deployment["status"]);
    observed(deployment)
        && ["replicas", "updatedReplicas", "availableReplicas"].iter().all(|count| status[count] == *wanted)
        && condition(deployment, "Progressing")["reason"] == "NewReplicaSetAvailable"
}

pub fn condition<'a>(object: &'a Value, kind: &str) -> &'a Value {
    let conditions = object["status"]["conditions"].as_array().map(Vec::as_slice).unwrap_or_default();
    conditions.iter().find(|condition| condition["type"] == kind).unwrap_or(&Value::Null)
}

pub fn is_ready(pod: &Value) -> bool {
    condition(pod, "Ready")["status"] == "True"
}

pub fn items(list: &Value) -> &[Value] {
    list["items"].as_array().map(Vec::as_slice).unwrap_or_default()
}

fn image(pod: &Value) -> &str {
    pod["spec"]["containers"][0]["image"].as_str().unwrap_or_default()
}

pub async fn pods(t: &Session) -> Vec<Value> {
    items(&t.get("pods").await.ok()).to_vec()
}

pub async fn eventually_pods(t: &Session, wanted: &str, test: impl Fn(&[Value]) -> bool) -> Vec<Value> {
    items(&t.eventually("pods", wanted, |list| test(items(list))).await).to_vec()
}
