//! `dryRun=All`: everything but the writing.

use serde_json::{Value, json};

use crate::session::*;

pub async fn a_dry_creation_leaves_nothing(t: Session) {
    let made = t
        .post("configmaps?dryRun=All", json!({"metadata": {"name": "a"}, "data": {"k": "1"}}))
        .await
        .created();
    assert_eq!(made["data"], json!({"k": "1"}));
    assert_eq!(uid(&made).len(), 36);
    assert_eq!(made["metadata"]["resourceVersion"], Value::Null);
    t.get("configmaps/a").await.refused(404, "NotFound");
    t.apply(
        "one",
        "configmaps/a?dryRun=All",
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}}),
    )
    .await
    .created();
    t.get("configmaps/a").await.refused(404, "NotFound");
}

pub async fn a_dry_creation_is_checked(t: Session) {
    t.config_map("a", json!({})).await;
    t.post("configmaps?dryRun=All", json!({"metadata": {"name": "a"}})).await.refused(409, "AlreadyExists");
    t.post("configmaps?dryRun=All", json!({"metadata": {"name": "A"}})).await.refused(422, "Invalid");
}

pub async fn a_dry_change_changes_nothing(t: Session) {
    let made = t.config_map("a", json!({"k": "1"})).await;
    let patched = t.patch(Patch::Merge, "configmaps/a?dryRun=All", json!({"data": {"k": "2"}})).await.ok();
    assert_eq!(patched["data"], json!({"k": "2"}));
    let mut changed = made.clone();
    changed["data"]["k"] = "3".into();
    assert_eq!(t.put("configmaps/a?dryRun=All", changed).await.ok()["data"], json!({"k": "3"}));
    assert_eq!(t.get("configmaps/a").await.ok(), made);
}

pub async fn a_dry_deletion_deletes_nothing(t: Session) {
    let made = t.config_map("a", json!({})).await;
    assert_eq!(t.delete("configmaps/a?dryRun=All").await.ok()["status"], "Success");
    t.delete_with("configmaps/a", json!({"dryRun": ["All"]})).await.ok();
    t.delete("configmaps?dryRun=All").await.ok();
    assert_eq!(t.get("configmaps/a").await.ok(), made);
}

pub async fn a_dry_run_sends_no_watch_event(t: Session) {
    let from = version(&t.config_map("a", json!({})).await);
    t.patch(Patch::Merge, "configmaps/a?dryRun=All", json!({"data": {"k": "2"}})).await.ok();
    t.delete("configmaps/a?dryRun=All").await.ok();
    let mut watch = t.watch(&format!("configmaps?resourceVersion={from}&timeoutSeconds=1")).await;
    assert!(watch.rest().await.is_empty());
}

pub async fn an_unknown_dry_run_is_refused(t: Session) {
    let answer = t.post("configmaps?dryRun=Sure", json!({"metadata": {"name": "a"}})).await;
    let expected = r#"CreateOptions.meta.k8s.io "" is invalid: dryRun: Unsupported value: ["Sure"]: supported values: "All""#;
    assert_eq!(answer.refused(422, "Invalid"), expected);
}
