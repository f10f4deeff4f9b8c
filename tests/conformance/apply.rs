//! Server-side apply: who owns which field.

use serde_json::{Value, json};

use crate::session::*;

pub async fn applying_creates(t: Session) {
    let answer = t.apply("one", "configmaps/a", config_map(json!({"k": "1"}))).await;
    let made = answer.created();
    assert_eq!(made["data"], json!({"k": "1"}));
    assert_eq!(managers(&made), [("one".into(), "Apply".into())]);
    let entry = &made["metadata"]["managedFields"][0];
    assert_eq!(entry["apiVersion"], "v1");
    assert_eq!(entry["fieldsType"], "FieldsV1");
    assert_eq!(entry["fieldsV1"], json!({"f:data": {"f:k": {}}}));
    assert!(entry["time"].is_string());
}

pub async fn applying_the_same_changes_nothing(t: Session) {
    let made = t.apply("one", "configmaps/a", config_map(json!({"k": "1"}))).await.created();
    let same = t.apply("one", "configmaps/a", config_map(json!({"k": "1"}))).await.ok();
    assert_eq!(same, made);
}

pub async fn a_dropped_field_disappears(t: Session) {
    t.apply("one", "configmaps/a", config_map(json!({"k": "1", "l": "1"}))).await.created();
    let applied = t.apply("one", "configmaps/a", config_map(json!({"l": "1"}))).await.ok();
    assert_eq!(applied["data"], json!({"l": "1"}));
    assert_eq!(fields(&applied, "one"), json!({"f:data": {"f:l": {}}}));
}

pub async fn a_field_of_another_manager_is_kept(t: Session) {
    t.apply("one", "configmaps/a", config_map(json!({"k": "1"}))).await.created();
    t.apply("two", "configmaps/a", config_map(json!({"l": "2"}))).await.ok();
    let applied = t.apply("one", "configmaps/a", config_map(json!({"m": "1"}))).await.ok();
    assert_eq!(applied["data"], json!({"l": "2", "m": "1"}));
    assert_eq!(fields(&applied, "two"), json!({"f:data": {"f:l": {}}}));
}

pub async fn a_field_that_two_own_stays_until_both_drop_it(t: Session) {
    t.apply("one", "configmaps/a", config_map(json!({"k": "1"}))).await.created();
    t.apply("two", "configmaps/a", config_map(json!({"k": "1"}))).await.ok();
    let applied = t.apply("one", "configmaps/a", config_map(json!({}))).await.ok();
    assert_eq!(applied["data"], json!({"k": "1"}));
    let applied = t.apply("two", "configmaps/a", config_map(json!({}))).await.ok();
    assert!(applied["data"].as_object().is_none_or(|data| data.is_empty()), "{}", applied["data"]);
}

pub async fn a_contested_field_is_a_conflict(t: Session) {
    t.apply("one", "configmaps/a", config_map(json!({"k": "1", "l": "1"}))).await.created();
    let answer = t.apply("two", "configmaps/a", config_map(json!({"k": "2"}))).await;
    let expected = r#"Apply failed with 1 conflict: conflict with "one": .data.k"#;
    assert_eq!(answer.refused(409, "Conflict"), expected);
    let cause =
        json!({"reason": "FieldManagerConflict", "message": r#"conflict with "one""#, "field": ".data.k"});
    assert_eq!(answer.body["details"]["causes"], json!([cause]));
    let answer = t.apply("two", "configmaps/a", config_map(json!({"k": "2", "l": "2"}))).await;
    let expected = "Apply failed with 2 conflicts: conflicts with \"one\":\n- .data.k\n- .data.l";
    assert_eq!(answer.refused(409, "Conflict"), expected);
    assert_eq!(t.get("configmaps/a").await.ok()["data"], json!({"k": "1", "l": "1"}));
}

pub async fn force_takes_the_field(t: Session) {
    t.apply("one", "configmaps/a", config_map(json!({"k": "1", "l": "1"}))).await.created();
    let taken = t.force_apply("two", "configmaps/a", config_map(json!({"k": "2"}))).await.ok();
    assert_eq!(taken["data"], json!({"k": "2", "l": "1"}));
    assert_eq!(fields(&taken, "one"), json!({"f:data": {"f:l": {}}}));
    assert_eq!(fields(&taken, "two"), json!({"f:data": {"f:k": {}}}));
    let applied = t.apply("one", "configmaps/a", config_map(json!({"l": "1"}))).await.ok();
    assert_eq!(applied["data"]["k"], "2", "no longer one's to drop");
}

pub async fn an_update_owns_the_fields_it_changes(t: Session) {
    t.apply("one", "configmaps/a", config_map(json!({"k": "1", "l": "1"}))).await.created();
    let patched =
        t.patch(Patch::Merge, "configmaps/a?fieldManager=editor", json!({"data": {"k": "2"}})).await.ok();
    assert_eq!(managers(&patched), [("editor".into(), "Update".into()), ("one".into(), "Apply".into())]);
    assert_eq!(fields(&patched, "one"), json!({"f:data": {"f:l": {}}}));
    assert_eq!(fields(&patched, "editor"), json!({"f:data": {"f:k": {}}}));
    let answer = t.apply("one", "configmaps/a", config_map(json!({"k": "1", "l": "1"}))).await;
    let expected = r#"Apply failed with 1 conflict: conflict with "editor" using v1: .data.k"#;
    assert_eq!(answer.refused(409, "Conflict"), expected);
}

pub async fn an_update_without_changes_owns_nothing(t: Session) {
    let made = t.apply("one", "configmaps/a", config_map(json!({"k": "1"}))).await.created();
    let same = t.put("configmaps/a?fieldManager=editor", made.clone()).await.ok();
    assert_eq!(same["metadata"]["managedFields"], made["metadata"]["managedFields"]);
}

pub async fn a_create_owns_the_fields_it_sets(t: Session) {
    let body = json!({"metadata": {"name": "a", "labels": {"x": "y"}}, "data": {"k": "1"}});
    let made = t.post("configmaps?fieldManager=maker", body).await.created();
    assert_eq!(managers(&made), [("maker".into(), "Update".into())]);
    let expected = json!({
        "f:data": {".": {}, "f:k": {}},
        "f:metadata": {"f:labels": {".": {}, "f:x": {}}},
    });
    assert_eq!(fields(&made, "maker"), expected);
}

pub async fn one_manager_may_apply_and_update(t: Session) {
    t.apply("one", "configmaps/a", config_map(json!({"k": "1"}))).await.created();
    let patched =
        t.patch(Patch::Merge, "configmaps/a?fieldManager=one", json!({"data": {"l": "1"}})).await.ok();
    assert_eq!(managers(&patched), [("one".into(), "Apply".into()), ("one".into(), "Update".into())]);
    let applied = t.apply("one", "configmaps/a", config_map(json!({"k": "2"}))).await.ok();
    assert_eq!(applied["data"], json!({"k": "2", "l": "1"}), "what it wrote by update is not dropped");
}

pub async fn applying_needs_a_manager(t: Session) {
    let answer = t.patch(Patch::Apply, "configmaps/a", config_map(json!({}))).await;
    let expected = r#"PatchOptions.meta.k8s.io "" is invalid: fieldManager: Required value: is required for apply patch"#;
    assert_eq!(answer.refused(422, "Invalid"), expected);
}

pub async fn force_is_for_applying_only(t: Session) {
    t.config_map("a", json!({})).await;
    let answer = t.patch(Patch::Merge, "configmaps/a?force=true", json!({})).await;
    let expected = r#"PatchOptions.meta.k8s.io "" is invalid: force: Forbidden: may not be specified for non-apply patch"#;
    assert_eq!(answer.refused(422, "Invalid"), expected);
}

pub async fn an_applied_object_brings_no_managed_fields(t: Session) {
    t.config_map("a", json!({})).await;
    let mut body = config_map(json!({}));
    body["metadata"]["managedFields"] = json!([{"manager": "x"}]);
    let answer = t.apply("one", "configmaps/a", body).await;
    assert_eq!(answer.refused(400, "BadRequest"), "metadata.managedFields must be nil");
}

pub async fn applying_an_old_version_is_a_conflict(t: Session) {
    let made = t.config_map("a", json!({})).await;
    t.patch(Patch::Merge, "configmaps/a", json!({"data": {"k": "1"}})).await.ok();
    let mut body = config_map(json!({}));
    body["metadata"]["resourceVersion"] = version(&made).into();
    let answer = t.apply("one", "configmaps/a", body).await;
    let expected = r#"Operation cannot be fulfilled on configmaps "a": the object has been modified; please apply your changes to the latest version and try again"#;
    assert_eq!(answer.refused(409, "Conflict"), expected);
}

pub async fn applying_with_the_uid_of_a_deleted_object_is_a_conflict(t: Session) {
    let mut body = config_map(json!({}));
    body["metadata"]["uid"] = "made-up".into();
    let answer = t.apply("one", "configmaps/a", body).await;
    let expected = r#"Operation cannot be fulfilled on configmaps "a": uid mismatch: the provided object specified uid made-up, and no existing object was found"#;
    assert_eq!(answer.refused(409, "Conflict"), expected);
}

pub async fn a_body_may_be_yaml(t: Session) {
    let path = format!("/api/v1/namespaces/{}/configmaps/a?fieldManager=one", t.ns);
    let body = "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: a\ndata:\n  k: \"1\" # a comment\n";
    let request = http::Request::patch(path).header("content-type", "application/apply-patch+yaml");
    assert_eq!(t.send(request, body.into()).await.created()["data"], json!({"k": "1"}));
}

pub async fn list_items_are_owned_by_key(t: Session) {
    let path = format!("{APPS}/deployments/d");
    let main = json!({
        "name": "main", "image": "app:1", "env": [{"name": "A", "value": "1"}], "ports": [{"containerPort": 80}],
    });
    let made = t.apply("one", &path, deployment(json!([main]))).await.created();
    let owned =
        &fields(&made, "one")["f:spec"]["f:template"]["f:spec"]["f:containers"]["k:{\"name\":\"main\"}"];
    let expected = json!({
        ".": {},
        "f:name": {},
        "f:image": {},
        "f:env": {"k:{\"name\":\"A\"}": {".": {}, "f:name": {}, "f:value": {}}},
        "f:ports": {"k:{\"containerPort\":80,\"protocol\":\"TCP\"}": {".": {}, "f:containerPort": {}}},
    });
    assert_eq!(owned, &expected, "the protocol is a key by its default");

    let more = json!([
        {"name": "main", "env": [{"name": "B", "value": "2"}]},
        {"name": "side", "image": "side:1"},
    ]);
    let mut body = deployment(more);
    body["spec"].as_object_mut().expect("an object").retain(|key, _| key == "template");
    body["spec"]["template"].as_object_mut().expect("an object").remove("metadata");
    let both = t.apply("two", &path, body.clone()).await.ok();
    assert_eq!(variables(&both), ["A", "B"]);
    assert_eq!(both["spec"]["template"]["spec"]["containers"][1]["name"], "side", "new items come last");

    body["spec"]["template"]["spec"]["containers"] = json!([{"name": "main", "image": "app:2"}]);
    let answer = t.apply("two", &path, body.clone()).await;
    let expected = r#"Apply failed with 1 conflict: conflict with "one": .spec.template.spec.containers[name="main"].image"#;
    assert_eq!(answer.refused(409, "Conflict"), expected);

    body["spec"] = json!({});
    let back = t.apply("two", &path, body).await.ok();
    assert_eq!(variables(&back), ["A"]);
    assert_eq!(back["spec"]["template"]["spec"]["containers"].as_array().map(Vec::len), Some(1));
}

pub async fn a_dropped_field_with_a_default_gets_the_default(t: Session) {
    let path = format!("{APPS}/deployments/d");
    let mut body = deployment(json!([{"name": "main", "image": "app:1"}]));
    body["spec"]["replicas"] = 0.into();
    body["spec"]["revisionHistoryLimit"] = 3.into();
    t.apply("one", &path, body.clone()).await.created();
    body["spec"].as_object_mut().expect("an object").remove("revisionHistoryLimit");
    let applied = t.apply("one", &path, body).await.ok();
    assert_eq!(applied["spec"]["revisionHistoryLimit"], 10);
}

pub async fn finalizers_are_owned_one_by_one(t: Session) {
    let with = |finalizers: Value| json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a", "finalizers": finalizers}});
    t.apply("one", "configmaps/a", with(json!(["example.dev/one"]))).await.created();
    let both = t.apply("two", "configmaps/a", with(json!(["example.dev/two"]))).await.ok();
    assert_eq!(both["metadata"]["finalizers"], json!(["example.dev/one", "example.dev/two"]));
    let expected = json!({"f:metadata": {"f:finalizers": {"v:\"example.dev/two\"": {}}}});
    assert_eq!(fields(&both, "two"), expected);
    let left = t.apply("one", "configmaps/a", with(json!([]))).await.ok();
    assert_eq!(left["metadata"]["finalizers"], json!(["example.dev/two"]));
}

pub async fn status_has_owners_of_its_own(t: Session) {
    let path = format!("{APPS}/deployments/d");
    let mut body = deployment(json!([{"name": "main", "image": "app:1"}]));
    body["spec"]["replicas"] = 0.into();
    t.apply("one", &path, body.clone()).await.created();
    let status = json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d"}, "status": {"collisionCount": 3},
    });
    let applied = t.apply("reporter", &format!("{path}/status"), status).await.ok();
    assert_eq!(applied["status"]["collisionCount"], 3);
    let entry = entry(&applied, "reporter");
    assert_eq!(entry["subresource"], "status");
    assert_eq!(entry["fieldsV1"], json!({"f:status": {"f:collisionCount": {}}}));
    let again = t.apply("one", &path, body).await.ok();
    assert_eq!(again["status"]["collisionCount"], 3);
}

pub async fn a_duplicate_key_is_refused(t: Session) {
    let twice = json!([{"name": "main", "image": "app:1"}, {"name": "main", "image": "app:2"}]);
    let answer = t.apply("one", &format!("{APPS}/deployments/d"), deployment(twice)).await;
    assert_eq!(answer.code, 500, "{}", answer.text);
    let message = answer.body["message"].as_str().expect("a message");
    let expected = r#".spec.template.spec.containers: duplicate entries for key [name="main"]"#;
    assert!(message.ends_with(expected), "{message}");
}

pub async fn an_unknown_field_cannot_be_applied(t: Session) {
    let mut body = config_map(json!({}));
    body["bogus"] = 1.into();
    let answer = t.apply("one", "configmaps/a", body).await;
    assert_eq!(answer.code, 500, "{}", answer.text);
    let message = answer.body["message"].as_str().expect("a message");
    assert!(message.ends_with(".bogus: field not declared in schema"), "{message}");
}

fn config_map(data: Value) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "data": data})
}

fn deployment(containers: Value) -> Value {
    json!({
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "d"},
        "spec": {
            "replicas": 0,
            "selector": {"matchLabels": {"app": "d"}},
            "template": {"metadata": {"labels": {"app": "d"}}, "spec": {"containers": containers}},
        },
    })
}

/// Who manages the object and how, without its controllers, by name.
fn managers(object: &Value) -> Vec<(String, String)> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let entries = object["metadata"]["managedFields"].as_array().expect("managed fields");
    let mut managers: Vec<_> =
        entries.iter().map(|entry| (text(&entry["manager"]), text(&entry["operation"]))).collect();
    managers.sort();
    managers
}

fn entry<'a>(object: &'a Value, manager: &str) -> &'a Value {
    let entries = object["metadata"]["managedFields"].as_array().expect("managed fields");
    entries
        .iter()
        .find(|entry| entry["manager"] == manager)
        .unwrap_or_else(|| panic!("{manager} manages nothing"))
}

fn fields(object: &Value, manager: &str) -> Value {
    entry(object, manager)["fieldsV1"].clone()
}

/// The names of the first container's environment variables.
fn variables(deployment: &Value) -> Vec<&str> {
    let list = deployment["spec"]["template"]["spec"]["containers"][0]["env"].as_array().expect("variables");
    list.iter().filter_map(|variable| variable["name"].as_str()).collect()
}
