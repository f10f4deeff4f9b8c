//! Delete: preconditions, finalizers, grace, collections.

use serde_json::{Value, json};

use crate::objects::deployment;
use crate::session::*;

pub async fn deleting_answers_with_a_status(t: Session) {
    let made = t.config_map("a", json!({})).await;
    let status = t.delete("configmaps/a").await.ok();
    assert_eq!(status["kind"], "Status");
    assert_eq!(status["status"], "Success");
    assert_eq!(status["details"], json!({"name": "a", "kind": "configmaps", "uid": uid(&made)}));
    t.get("configmaps/a").await.refused(404, "NotFound");

    let made = t.post(&format!("{APPS}/deployments"), deployment("d", json!({"app": "d"}))).await.created();
    let status = t.delete(&format!("{APPS}/deployments/d")).await.ok();
    let details = json!({"name": "d", "group": "apps", "kind": "deployments", "uid": uid(&made)});
    assert_eq!(status["details"], details);
}

pub async fn deleting_a_missing_object_is_not_found(t: Session) {
    let answer = t.delete("configmaps/a").await;
    assert_eq!(answer.refused(404, "NotFound"), r#"configmaps "a" not found"#);
}

pub async fn a_precondition_on_the_uid_guards(t: Session) {
    let made = t.config_map("a", json!({})).await;
    let answer = t.delete_with("configmaps/a", json!({"preconditions": {"uid": "other"}})).await;
    let expected = format!(
        r#"Operation cannot be fulfilled on ConfigMap "a": the UID in the precondition (other) does not match the UID in record ({}). The object might have been deleted and then recreated"#,
        uid(&made)
    );
    assert_eq!(answer.refused(409, "Conflict"), expected);
    t.get("configmaps/a").await.ok();
    t.delete_with("configmaps/a", json!({"preconditions": {"uid": uid(&made)}})).await.ok();
    t.get("configmaps/a").await.refused(404, "NotFound");
}

pub async fn a_precondition_on_the_version_guards(t: Session) {
    let made = t.config_map("a", json!({})).await;
    let touched = t.patch(Patch::Merge, "configmaps/a", json!({"data": {"k": "1"}})).await.ok();
    let answer =
        t.delete_with("configmaps/a", json!({"preconditions": {"resourceVersion": version(&made)}})).await;
    let expected = format!(
        r#"Operation cannot be fulfilled on ConfigMap "a": the ResourceVersion in the precondition ({}) does not match the ResourceVersion in record ({}). The object might have been modified"#,
        version(&made),
        version(&touched)
    );
    assert_eq!(answer.refused(409, "Conflict"), expected);
    t.delete_with("configmaps/a", json!({"preconditions": {"resourceVersion": version(&touched)}}))
        .await
        .ok();
}

pub async fn an_unknown_propagation_is_refused(t: Session) {
    t.config_map("a", json!({})).await;
    let answer = t.delete_with("configmaps/a", json!({"propagationPolicy": "Sideways"})).await;
    let expected = r#"DeleteOptions.meta.k8s.io "" is invalid: propagationPolicy: Unsupported value: "Sideways": supported values: "Foreground", "Background", "Orphan", "nil""#;
    assert_eq!(answer.refused(422, "Invalid"), expected);
    t.get("configmaps/a").await.ok();
}

pub async fn a_finalizer_holds_the_object(t: Session) {
    let made = with_finalizers(&t, "a", &["example.dev/one", "example.dev/two"]).await;
    let marked = t.delete("configmaps/a").await.ok();
    assert_eq!(marked["kind"], "ConfigMap", "the object itself, for it is still there");
    assert!(marked["metadata"]["deletionTimestamp"].is_string());
    assert_eq!(marked["metadata"]["deletionGracePeriodSeconds"], 0);
    assert_ne!(version(&marked), version(&made));
    let again = t.delete("configmaps/a").await.ok();
    assert_eq!(version(&again), version(&marked), "a second deletion changes nothing");

    let one = t.patch(Patch::Merge, "configmaps/a", finalizers(&["example.dev/one"])).await.ok();
    assert_eq!(one["metadata"]["deletionTimestamp"], marked["metadata"]["deletionTimestamp"]);
    let mut watch = t.watch(&format!("configmaps?resourceVersion={}", version(&one))).await;
    t.patch(Patch::Merge, "configmaps/a", json!({"metadata": {"finalizers": null}})).await.ok();
    t.get("configmaps/a").await.refused(404, "NotFound");
    assert_eq!(watch.next_summary().await, "DELETED a", "with no change before");
}

pub async fn an_object_being_deleted_takes_no_new_finalizers(t: Session) {
    with_finalizers(&t, "a", &["example.dev/one"]).await;
    t.delete("configmaps/a").await.ok();
    let answer =
        t.patch(Patch::Merge, "configmaps/a", finalizers(&["example.dev/one", "example.dev/new"])).await;
    let expected = r#"ConfigMap "a" is invalid: metadata.finalizers: Forbidden: no new finalizers can be added if the object is being deleted, found new finalizers []string{"example.dev/new"}"#;
    assert_eq!(answer.refused(422, "Invalid"), expected);
}

pub async fn an_object_being_deleted_cannot_be_revived(t: Session) {
    with_finalizers(&t, "a", &["example.dev/one"]).await;
    let marked = t.delete("configmaps/a").await.ok();
    let patch = json!({"metadata": {"deletionTimestamp": null, "labels": {"a": "b"}}});
    let patched = t.patch(Patch::Merge, "configmaps/a", patch).await.ok();
    assert_eq!(patched["metadata"]["deletionTimestamp"], marked["metadata"]["deletionTimestamp"]);
    assert_eq!(patched["metadata"]["labels"]["a"], "b", "but it can be changed");
    let answer = t.post("configmaps", json!({"metadata": {"name": "a"}})).await;
    let expected = r#"object is being deleted: configmaps "a" already exists"#;
    assert_eq!(answer.refused(409, "AlreadyExists"), expected);
}

pub async fn a_finalizer_is_a_qualified_name(t: Session) {
    let answer = t.post("configmaps", json!({"metadata": {"name": "a", "finalizers": ["plain"]}})).await;
    let expected = r#"ConfigMap "a" is invalid: metadata.finalizers[0]: Invalid value: "plain": name is neither a standard finalizer name nor is it fully qualified"#;
    assert_eq!(answer.refused(422, "Invalid"), expected);
}

pub async fn a_new_object_has_a_new_uid(t: Session) {
    let one = t.config_map("a", json!({})).await;
    t.delete("configmaps/a").await.ok();
    let two = t.config_map("a", json!({})).await;
    assert_ne!(uid(&one), uid(&two));
}

pub async fn a_collection_is_deleted_by_selector(t: Session) {
    for (name, colour) in [("a", "red"), ("b", "blue"), ("c", "red")] {
        let labels = json!({"colour": colour});
        t.post("configmaps", json!({"metadata": {"name": name, "labels": labels}})).await.created();
    }
    let gone = t.delete("configmaps?labelSelector=colour=red").await.ok();
    assert_eq!(gone["kind"], "ConfigMapList");
    assert_eq!(names(&gone), ["a", "c"]);
    assert_eq!(names(&t.get("configmaps").await.ok()), ["b"]);
    t.delete("configmaps").await.ok();
    assert_eq!(t.get("configmaps").await.ok()["items"], json!([]));
}

pub async fn a_pod_on_a_node_has_time_to_end(t: Session) {
    t.post("pods", pod("a", Some("n1"))).await.created();
    let marked = t.delete("pods/a").await.ok();
    assert_eq!(marked["kind"], "Pod");
    assert_eq!(marked["metadata"]["deletionGracePeriodSeconds"], 30);
    let ends = |pod: &Value| -> jiff::Timestamp {
        pod["metadata"]["deletionTimestamp"].as_str().expect("a deletion time").parse().expect("RFC 3339")
    };
    assert!(ends(&marked) > jiff::Timestamp::now(), "the time it must be gone by");
    let sooner = t.delete("pods/a?gracePeriodSeconds=5").await.ok();
    assert_eq!(sooner["metadata"]["deletionGracePeriodSeconds"], 5);
    assert!(ends(&sooner) < ends(&marked));
    let later = t.delete("pods/a?gracePeriodSeconds=20").await.ok();
    assert_eq!(later["metadata"]["deletionGracePeriodSeconds"], 5, "never later");
    t.delete("pods/a?gracePeriodSeconds=0").await.ok();
    t.get("pods/a").await.refused(404, "NotFound");
}

pub async fn a_pod_on_no_node_is_gone_at_once(t: Session) {
    t.post("pods", pod("a", None)).await.created();
    t.delete("pods/a").await.ok();
    t.get("pods/a").await.refused(404, "NotFound");
}

pub async fn a_namespace_is_deleted_with_its_content(t: Session) {
    t.config_map("a", json!({})).await;
    with_finalizers(&t, "held", &["example.dev/hold"]).await;
    let marked = t.delete("/api/v1/namespaces/{ns}").await.ok();
    assert_eq!(marked["status"]["phase"], "Terminating");
    assert!(marked["metadata"]["deletionTimestamp"].is_string());
    let answer = t.post("configmaps", json!({"metadata": {"name": "late"}})).await;
    let expected = format!(
        r#"configmaps "late" is forbidden: unable to create new content in namespace {} because it is being terminated"#,
        t.ns
    );
    assert_eq!(answer.refused(403, "Forbidden"), expected);
    assert_eq!(answer.body["details"]["causes"][0]["reason"], "NamespaceTerminating");
    t.eventually_gone("configmaps/a").await;
    let held = t.get("configmaps/held").await.ok();
    assert!(held["metadata"]["deletionTimestamp"].is_string());
    t.patch(Patch::Merge, "configmaps/held", json!({"metadata": {"finalizers": null}})).await.ok();
    t.eventually_gone("/api/v1/namespaces/{ns}").await;
}

pub fn pod(name: &str, node: Option<&str>) -> Value {
    let spec = json!({"nodeName": node, "containers": [{"name": "main", "image": "app:1"}]});
    json!({"metadata": {"name": name}, "spec": spec})
}

fn finalizers(names: &[&str]) -> Value {
    json!({"metadata": {"finalizers": names}})
}

async fn with_finalizers(t: &Session, name: &str, names: &[&str]) -> Value {
    t.post("configmaps", json!({"metadata": {"name": name, "finalizers": names}})).await.created()
}
