//! Owners and what becomes of the owned.

use serde_json::{Value, json};

use crate::session::*;

pub async fn dependents_are_deleted_with_their_owner(t: Session) {
    let owner = t.config_map("owner", json!({})).await;
    let child = owned(&t, "child", &[&owner]).await;
    owned(&t, "grandchild", &[&child]).await;
    t.delete_with("configmaps/owner", json!({"propagationPolicy": "Background"})).await.ok();
    t.get("configmaps/owner").await.refused(404, "NotFound");
    t.eventually_gone("configmaps/child").await;
    t.eventually_gone("configmaps/grandchild").await;
}

pub async fn foreground_deletion_removes_the_owner_last(t: Session) {
    let owner = t.config_map("owner", json!({})).await;
    let reference = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": uid(&owner), "blockOwnerDeletion": true,
    });
    let metadata =
        json!({"name": "child", "ownerReferences": [reference], "finalizers": ["example.dev/hold"]});
    t.post("configmaps", json!({"metadata": metadata})).await.created();
    let marked = t.delete_with("configmaps/owner", json!({"propagationPolicy": "Foreground"})).await.ok();
    assert_eq!(marked["metadata"]["finalizers"], json!(["foregroundDeletion"]));
    let being_deleted = |object: &Value| object["metadata"]["deletionTimestamp"].is_string();
    t.eventually("configmaps/child", "being deleted", being_deleted).await;
    assert!(being_deleted(&t.get("configmaps/owner").await.ok()), "the owner waits for its child");
    t.patch(Patch::Merge, "configmaps/child", json!({"metadata": {"finalizers": null}})).await.ok();
    t.eventually_gone("configmaps/child").await;
    t.eventually_gone("configmaps/owner").await;
}

pub async fn orphaned_dependents_stay_without_owner_reference(t: Session) {
    let owner = t.config_map("owner", json!({})).await;
    owned(&t, "child", &[&owner]).await;
    t.delete_with("configmaps/owner", json!({"propagationPolicy": "Orphan"})).await.ok();
    t.eventually_gone("configmaps/owner").await;
    let child = t.get("configmaps/child").await.ok();
    assert_eq!(child["metadata"]["ownerReferences"], Value::Null);
    assert_eq!(child["metadata"]["deletionTimestamp"], Value::Null);
}

pub async fn one_existing_owner_keeps_a_dependent(t: Session) {
    let one = t.config_map("one", json!({})).await;
    let two = t.config_map("two", json!({})).await;
    owned(&t, "child", &[&one, &two]).await;
    t.delete("configmaps/one").await.ok();
    let only_two = |object: &Value| {
        let owners = object["metadata"]["ownerReferences"].as_array().map(Vec::as_slice).unwrap_or_default();
        owners.len() == 1 && owners[0]["name"] == "two"
    };
    t.eventually("configmaps/child", "owned by two alone", only_two).await;
    t.delete("configmaps/two").await.ok();
    t.eventually_gone("configmaps/child").await;
}

pub async fn a_dependent_of_a_nonexistent_owner_is_deleted(t: Session) {
    let ghost = json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": "ghost", "uid": "11111111-2222-3333-4444-555555555555"},
    });
    owned(&t, "child", &[&ghost]).await;
    t.eventually_gone("configmaps/child").await;
}

pub async fn an_owner_is_known_by_its_uid(t: Session) {
    let first = t.config_map("owner", json!({})).await;
    t.delete("configmaps/owner").await.ok();
    t.config_map("owner", json!({})).await;
    owned(&t, "child", &[&first]).await;
    t.eventually_gone("configmaps/child").await;
    t.get("configmaps/owner").await.ok();
}

pub async fn an_object_has_at_most_one_controller(t: Session) {
    let one = t.config_map("one", json!({})).await;
    let two = t.config_map("two", json!({})).await;
    let reference = |owner: &Value| json!({"apiVersion": "v1", "kind": "ConfigMap", "name": name(owner), "uid": uid(owner), "controller": true});
    let metadata = json!({"name": "child", "ownerReferences": [reference(&one), reference(&two)]});
    let answer = t.post("configmaps", json!({"metadata": metadata})).await;
    let message = answer.refused(422, "Invalid");
    assert!(message.contains("metadata.ownerReferences: Invalid value: "), "{message}");
    assert!(message.contains("Only one reference can have Controller set to true"), "{message}");
}

pub async fn a_custom_object_can_be_an_owner(t: Session) {
    let path = crate::crds::plain(&t).await;
    let owner = t.post(&path, crate::crds::thing(&t, "owner", json!({}))).await.created();
    owned(&t, "child", &[&owner]).await;
    t.delete(&format!("{path}/owner")).await.ok();
    t.eventually_gone("configmaps/child").await;
}

async fn owned(t: &Session, name: &str, owners: &[&Value]) -> Value {
    let reference = |owner: &&Value| {
        json!({
            "apiVersion": owner["apiVersion"],
            "kind": owner["kind"],
            "name": owner["metadata"]["name"],
            "uid": owner["metadata"]["uid"],
        })
    };
    let references: Vec<Value> = owners.iter().map(reference).collect();
    t.post("configmaps", json!({"metadata": {"name": name, "ownerReferences": references}})).await.created()
}
