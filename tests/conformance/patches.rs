//! Merge, JSON and strategic merge patches.

use serde_json::{Value, json};

use crate::objects::deployment;
use crate::session::*;

pub async fn a_merge_patch_merges_maps_and_null_removes(t: Session) {
    t.config_map("a", json!({"k": "1", "l": "2"})).await;
    let patched = t.patch(Patch::Merge, "configmaps/a", json!({"data": {"k": null, "m": "3"}})).await.ok();
    assert_eq!(patched["data"], json!({"l": "2", "m": "3"}));
}

pub async fn a_merge_patch_replaces_lists(t: Session) {
    let path = two_containers(&t).await;
    let patch = containers(json!([{"name": "only", "image": "only:1"}]));
    let patched = t.patch(Patch::Merge, &path, patch).await.ok();
    assert_eq!(images(&patched), [("only".into(), "only:1".into())]);
}

pub async fn a_patch_with_an_old_version_is_a_conflict(t: Session) {
    let made = t.config_map("a", json!({})).await;
    t.patch(Patch::Merge, "configmaps/a", json!({"data": {"k": "1"}})).await.ok();
    let patch = json!({"metadata": {"resourceVersion": version(&made)}, "data": {"k": "2"}});
    let answer = t.patch(Patch::Merge, "configmaps/a", patch).await;
    let expected = r#"Operation cannot be fulfilled on configmaps "a": the object has been modified; please apply your changes to the latest version and try again"#;
    assert_eq!(answer.refused(409, "Conflict"), expected);
}

pub async fn patching_a_missing_object_is_not_found(t: Session) {
    let answer = t.patch(Patch::Merge, "configmaps/a", json!({"data": {}})).await;
    assert_eq!(answer.refused(404, "NotFound"), r#"configmaps "a" not found"#);
}

pub async fn a_patch_cannot_rename(t: Session) {
    t.config_map("a", json!({})).await;
    let answer = t.patch(Patch::Merge, "configmaps/a", json!({"metadata": {"name": "b"}})).await;
    let expected = "the name of the object (b) does not match the name on the URL (a)";
    assert_eq!(answer.refused(400, "BadRequest"), expected);
}

pub async fn a_merge_patch_is_an_object(t: Session) {
    t.config_map("a", json!({})).await;
    let answer = t.patch(Patch::Merge, "configmaps/a", json!([1])).await;
    let message = answer.refused(400, "BadRequest");
    assert!(message.starts_with("error decoding patch: "), "{message}");
}

pub async fn a_patch_names_its_format(t: Session) {
    t.config_map("a", json!({})).await;
    let path = format!("/api/v1/namespaces/{}/configmaps/a", t.ns);
    let request = http::Request::patch(path).header("content-type", "application/json");
    let answer = t.send(request, b"{}".to_vec()).await;
    answer.refused(415, "UnsupportedMediaType");
}

pub async fn parallel_patches_all_arrive(t: Session) {
    t.config_map("a", json!({})).await;
    let patches =
        (0..10).map(|i| {
            let t = &t;
            async move {
                t.patch(Patch::Merge, "configmaps/a", json!({"data": {format!("k{i}"): "v"}})).await.ok()
            }
        });
    futures::future::join_all(patches).await;
    let data = &t.get("configmaps/a").await.ok()["data"];
    assert_eq!(data.as_object().expect("data").len(), 10, "none is lost to a race inside the server: {data}");
}

pub async fn a_json_patch_is_done_in_order(t: Session) {
    t.config_map("a", json!({"k": "1", "l": "2"})).await;
    let patch = json!([
        {"op": "test", "path": "/data/k", "value": "1"},
        {"op": "replace", "path": "/data/k", "value": "one"},
        {"op": "copy", "from": "/data/k", "path": "/data/c"},
        {"op": "move", "from": "/data/l", "path": "/data/m"},
        {"op": "add", "path": "/metadata/labels", "value": {}},
        {"op": "add", "path": "/metadata/labels/example.dev~1x", "value": "slash"},
    ]);
    let patched = t.patch(Patch::Json, "configmaps/a", patch).await.ok();
    assert_eq!(patched["data"], json!({"k": "one", "c": "one", "m": "2"}));
    assert_eq!(patched["metadata"]["labels"], json!({"example.dev/x": "slash"}));
}

pub async fn a_failed_test_refuses_the_json_patch(t: Session) {
    t.config_map("a", json!({"k": "1"})).await;
    let patch = json!([
        {"op": "add", "path": "/data/l", "value": "2"},
        {"op": "test", "path": "/data/k", "value": "other"},
    ]);
    let answer = t.patch(Patch::Json, "configmaps/a", patch).await;
    let expected = "the server rejected our request due to an error in our request";
    assert_eq!(answer.refused(422, "Invalid"), expected);
    assert_eq!(t.get("configmaps/a").await.ok()["data"], json!({"k": "1"}), "all of it or none");
}

pub async fn a_json_patch_of_a_missing_parent_is_refused(t: Session) {
    t.config_map("a", json!({"k": "1"})).await;
    let patch = json!([{"op": "add", "path": "/metadata/labels/a", "value": "b"}]);
    t.patch(Patch::Json, "configmaps/a", patch).await.refused(422, "Invalid");
}

pub async fn a_json_patch_is_a_list(t: Session) {
    t.config_map("a", json!({})).await;
    let answer = t.patch(Patch::Json, "configmaps/a", json!({"op": "remove", "path": "/data"})).await;
    let message = answer.refused(400, "BadRequest");
    assert!(message.starts_with("error decoding patch: "), "{message}");
}

pub async fn a_json_patch_indexes_lists(t: Session) {
    let path = two_containers(&t).await;
    let at = "/spec/template/spec/containers";
    let patch = json!([
        {"op": "replace", "path": format!("{at}/0/image"), "value": "main:2"},
        {"op": "add", "path": format!("{at}/-"), "value": {"name": "last", "image": "last:1"}},
        {"op": "remove", "path": format!("{at}/1")},
    ]);
    let patched = t.patch(Patch::Json, &path, patch).await.ok();
    assert_eq!(images(&patched), [("main".into(), "main:2".into()), ("last".into(), "last:1".into())]);
}

pub async fn a_strategic_patch_merges_containers_by_name(t: Session) {
    let path = two_containers(&t).await;
    let patched =
        t.patch(Patch::Strategic, &path, containers(json!([{"name": "side", "image": "side:2"}]))).await.ok();
    assert_eq!(images(&patched), [("main".into(), "app:1".into()), ("side".into(), "side:2".into())]);
    let env = json!([{"name": "main", "env": [{"name": "B", "value": "2"}]}]);
    let patched = t.patch(Patch::Strategic, &path, containers(env)).await.ok();
    let mut variables: Vec<&str> = patched["spec"]["template"]["spec"]["containers"][0]["env"]
        .as_array()
        .expect("variables")
        .iter()
        .filter_map(|variable| variable["name"].as_str())
        .collect();
    variables.sort();
    assert_eq!(variables, ["A", "B"]);
}

pub async fn a_strategic_patch_adds_missing_items(t: Session) {
    let path = two_containers(&t).await;
    let patched =
        t.patch(Patch::Strategic, &path, containers(json!([{"name": "new", "image": "new:1"}]))).await.ok();
    let mut names: Vec<String> = images(&patched).into_iter().map(|(name, _)| name).collect();
    names.sort();
    assert_eq!(names, ["main", "new", "side"]);
}

pub async fn a_strategic_patch_deletes_by_directive(t: Session) {
    let path = two_containers(&t).await;
    let patch = containers(json!([{"name": "side", "$patch": "delete"}]));
    let patched = t.patch(Patch::Strategic, &path, patch).await.ok();
    assert_eq!(images(&patched), [("main".into(), "app:1".into())]);
}

pub async fn a_strategic_patch_replaces_by_directive(t: Session) {
    let path = two_containers(&t).await;
    let patch = containers(json!([{"$patch": "replace"}, {"name": "only", "image": "only:1"}]));
    let patched = t.patch(Patch::Strategic, &path, patch).await.ok();
    assert_eq!(images(&patched), [("only".into(), "only:1".into())]);
    let patch = json!({"spec": {"strategy": {"$retainKeys": ["type"], "type": "Recreate"}}});
    let patched = t.patch(Patch::Strategic, &path, patch).await.ok();
    assert_eq!(patched["spec"]["strategy"], json!({"type": "Recreate"}));
}

pub async fn a_strategic_patch_orders_by_directive(t: Session) {
    let path = two_containers(&t).await;
    let patch = json!({"spec": {"template": {"spec": {
        "$setElementOrder/containers": [{"name": "new"}, {"name": "main"}, {"name": "side"}],
        "containers": [{"name": "new", "image": "new:1"}],
    }}}});
    let patched = t.patch(Patch::Strategic, &path, patch).await.ok();
    let names: Vec<String> = images(&patched).into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["new", "main", "side"]);
}

pub async fn a_strategic_patch_merges_finalizers(t: Session) {
    let path = two_containers(&t).await;
    let finalizers = |patched: Value| {
        let mut list: Vec<String> =
            serde_json::from_value(patched["metadata"]["finalizers"].clone()).unwrap_or_default();
        list.sort();
        list
    };
    for name in ["example.dev/a", "example.dev/b"] {
        t.patch(Patch::Strategic, &path, json!({"metadata": {"finalizers": [name]}})).await.ok();
    }
    assert_eq!(finalizers(t.get(&path).await.ok()), ["example.dev/a", "example.dev/b"]);
    let patch = json!({"metadata": {"$deleteFromPrimitiveList/finalizers": ["example.dev/a"]}});
    assert_eq!(finalizers(t.patch(Patch::Strategic, &path, patch).await.ok()), ["example.dev/b"]);
}

/// A Deployment with the containers `main` and `side`; returns its path.
async fn two_containers(t: &Session) -> String {
    let mut body = deployment("d", json!({"app": "d"}));
    body["spec"]["template"]["spec"]["containers"] = json!([
        {"name": "main", "image": "app:1", "env": [{"name": "A", "value": "1"}]},
        {"name": "side", "image": "side:1"},
    ]);
    t.post(&format!("{APPS}/deployments"), body).await.created();
    format!("{APPS}/deployments/d")
}

fn containers(list: Value) -> Value {
    json!({"spec": {"template": {"spec": {"containers": list}}}})
}

/// Each container's name and image.
fn images(deployment: &Value) -> Vec<(String, String)> {
    let containers = deployment["spec"]["template"]["spec"]["containers"].as_array().expect("containers");
    let text = |value: &Value| value.as_str().expect("text").to_owned();
    containers.iter().map(|container| (text(&container["name"]), text(&container["image"]))).collect()
}
