//! `status` and `scale`.

use serde_json::{Value, json};

use crate::crds;
use crate::objects::deployment;
use crate::session::*;

pub async fn status_cannot_be_written_with_the_object(t: Session) {
    let mut body = deployment("d", json!({"app": "d"}));
    body["status"] = json!({"collisionCount": 7});
    let made = t.post(&format!("{APPS}/deployments"), body).await.created();
    assert_eq!(made["status"]["collisionCount"], Value::Null);
    let patch = json!({"status": {"collisionCount": 7}});
    let patched = t.patch(Patch::Merge, &format!("{APPS}/deployments/d"), patch).await.ok();
    assert_eq!(patched["status"]["collisionCount"], Value::Null);
}

pub async fn the_object_cannot_be_written_with_its_status(t: Session) {
    t.post(&format!("{APPS}/deployments"), deployment("d", json!({"app": "d"}))).await.created();
    let patch = json!({"spec": {"paused": true}, "status": {"collisionCount": 7}});
    let patched = t.patch(Patch::Merge, &format!("{APPS}/deployments/d/status"), patch).await.ok();
    assert_eq!(patched["status"]["collisionCount"], 7);
    assert_eq!(patched["spec"]["paused"], Value::Null);
    assert_eq!(patched["metadata"]["generation"], 1);
}

pub async fn an_update_of_status_checks_the_version(t: Session) {
    let made = t.post("pods", crate::deletes::pod("a", Some("n1"))).await.created();
    let mut running = made.clone();
    running["status"]["phase"] = "Running".into();
    let updated = t.put("pods/a/status", running.clone()).await.ok();
    assert_eq!(updated["status"]["phase"], "Running");
    running["status"]["phase"] = "Failed".into();
    t.put("pods/a/status", running).await.refused(409, "Conflict");
}

pub async fn a_kind_without_status_has_no_status_path(t: Session) {
    t.config_map("a", json!({})).await;
    let answer = t.get("configmaps/a/status").await;
    let expected = "the server could not find the requested resource";
    assert_eq!(answer.refused(404, "NotFound"), expected);
}

pub async fn scale_shows_the_replicas(t: Session) {
    let mut body = deployment("d", json!({"app": "d", "tier": "web"}));
    body["spec"]["paused"] = true.into();
    body["spec"]["replicas"] = 3.into();
    let made = t.post(&format!("{APPS}/deployments"), body).await.created();
    let scale = t.get(&format!("{APPS}/deployments/d/scale")).await.ok();
    assert_eq!(scale["kind"], "Scale");
    assert_eq!(scale["apiVersion"], "autoscaling/v1");
    assert_eq!(scale["spec"], json!({"replicas": 3}));
    assert_eq!(scale["status"]["selector"], "app=d,tier=web");
    assert_eq!(name(&scale), "d");
    assert_eq!(scale["metadata"]["namespace"], t.ns.as_str());
    assert_eq!(uid(&scale), uid(&made));
}

pub async fn scale_changes_the_replicas(t: Session) {
    t.post(&format!("{APPS}/deployments"), deployment("d", json!({"app": "d"}))).await.created();
    let path = format!("{APPS}/deployments/d/scale");
    let patched = t.patch(Patch::Merge, &path, json!({"spec": {"replicas": 2}})).await.ok();
    assert_eq!(patched["spec"], json!({"replicas": 2}));
    let scaled = t.get(&format!("{APPS}/deployments/d")).await.ok();
    assert_eq!(scaled["spec"]["replicas"], 2);
    assert_eq!(scaled["metadata"]["generation"], 2);
    let body = json!({
        "apiVersion": "autoscaling/v1",
        "kind": "Scale",
        "metadata": {"name": "d", "namespace": t.ns},
        "spec": {"replicas": 1},
    });
    let put = t.put(&path, body).await.ok();
    assert_eq!(put["spec"], json!({"replicas": 1}));
    assert_eq!(t.get(&format!("{APPS}/deployments/d")).await.ok()["spec"]["replicas"], 1);
}

pub async fn a_negative_scale_is_refused(t: Session) {
    t.post(&format!("{APPS}/deployments"), deployment("d", json!({"app": "d"}))).await.created();
    let patch = json!({"spec": {"replicas": -1}});
    let answer = t.patch(Patch::Merge, &format!("{APPS}/deployments/d/scale"), patch).await;
    let expected = r#"Scale.autoscaling "d" is invalid: spec.replicas: Invalid value: -1: must be greater than or equal to 0"#;
    assert_eq!(answer.refused(422, "Invalid"), expected);
}

pub async fn scale_with_an_old_version_is_a_conflict(t: Session) {
    t.post(&format!("{APPS}/deployments"), deployment("d", json!({"app": "d"}))).await.created();
    let path = format!("{APPS}/deployments/d/scale");
    let body = json!({"metadata": {"name": "d", "resourceVersion": "1"}, "spec": {"replicas": 1}});
    let answer = t.put(&path, body).await;
    let expected = r#"Operation cannot be fulfilled on deployments.apps "d": the object has been modified; please apply your changes to the latest version and try again"#;
    assert_eq!(answer.refused(409, "Conflict"), expected);
    let answer = t.get(&format!("{APPS}/deployments/nope/scale")).await;
    assert_eq!(answer.refused(404, "NotFound"), r#"deployments.apps "nope" not found"#);
}

pub async fn a_custom_kind_scales_by_its_paths(t: Session) {
    let path = crds::things(&t).await;
    t.post(&path, crds::thing(&t, "a", json!({"colour": "red"}))).await.created();
    let status = json!({"status": {"replicas": 1, "selector": "a=b"}});
    t.patch(Patch::Merge, &format!("{path}/a/status"), status).await.ok();
    let scale = t.get(&format!("{path}/a/scale")).await.ok();
    assert_eq!(scale["spec"], json!({"replicas": 2}), "by default");
    assert_eq!(scale["status"], json!({"replicas": 1, "selector": "a=b"}));
    let patch = json!({"spec": {"replicas": 3}});
    t.patch(Patch::Merge, &format!("{path}/a/scale"), patch).await.ok();
    assert_eq!(t.get(&format!("{path}/a")).await.ok()["spec"]["replicas"], 3);
    let patch = json!({"spec": {"replicas": 30}});
    let answer = t.patch(Patch::Merge, &format!("{path}/a/scale"), patch).await;
    let message = answer.refused(422, "Invalid");
    assert!(message.contains("spec.replicas in body should be less than or equal to 10"), "{message}");
}

pub async fn the_status_of_a_custom_object_is_a_subresource(t: Session) {
    let path = crds::things(&t).await;
    let mut body = crds::thing(&t, "a", json!({"colour": "red"}));
    body["status"] = json!({"phase": "Ready"});
    let made = t.post(&path, body).await.created();
    assert_eq!(made["status"], Value::Null);
    assert_eq!(made["metadata"]["generation"], 1);
    let patch = json!({"spec": {"colour": "blue"}, "status": {"phase": "Ready"}});
    let patched = t.patch(Patch::Merge, &format!("{path}/a/status"), patch).await.ok();
    assert_eq!(patched["spec"]["colour"], "red");
    assert_eq!(patched["status"], json!({"phase": "Ready"}));
    assert_eq!(patched["metadata"]["generation"], 1);
    let patch = json!({"spec": {"colour": "blue"}, "status": {"phase": "Gone"}});
    let patched = t.patch(Patch::Merge, &format!("{path}/a"), patch).await.ok();
    assert_eq!(patched["spec"]["colour"], "blue");
    assert_eq!(patched["status"], json!({"phase": "Ready"}));
    assert_eq!(patched["metadata"]["generation"], 2);
}
