//! Lists: pages, versions, selectors.

use serde_json::{Value, json};

use crate::session::*;

pub async fn a_list_names_its_kind_and_version(t: Session) {
    let made = t.config_map("a", json!({})).await;
    let list = t.get("configmaps").await.ok();
    assert_eq!(list["kind"], "ConfigMapList");
    assert_eq!(list["apiVersion"], "v1");
    let at: u64 = version(&list).parse().expect("a number");
    assert!(at >= version(&made).parse().expect("a number"));
    assert_eq!(uid(&list["items"][0]), uid(&made));
    let empty = t.get("secrets").await.ok();
    assert_eq!(empty["items"], json!([]), "present though empty");
}

pub async fn a_list_is_in_the_order_of_names(t: Session) {
    for name in ["c", "a", "b-2", "b-10"] {
        t.config_map(name, json!({})).await;
    }
    assert_eq!(names(&t.get("configmaps").await.ok()), ["a", "b-10", "b-2", "c"]);
}

pub async fn a_list_across_namespaces_has_them_all(t: Session) {
    let labels = json!({"law": t.ns});
    let other =
        t.post("/api/v1/namespaces", json!({"metadata": {"name": format!("{}-b", t.ns)}})).await.created();
    for namespace in [t.ns.as_str(), name(&other)] {
        let body = json!({"metadata": {"name": "a", "labels": labels}});
        t.post(&format!("/api/v1/namespaces/{namespace}/configmaps"), body).await.created();
    }
    let all = t.get(&format!("/api/v1/configmaps?labelSelector=law={}", t.ns)).await.ok();
    let mut places: Vec<&str> = all["items"]
        .as_array()
        .expect("items")
        .iter()
        .filter_map(|item| item["metadata"]["namespace"].as_str())
        .collect();
    places.sort();
    assert_eq!(places, [t.ns.as_str(), name(&other)]);
}

pub async fn a_limit_cuts_the_list_into_pages(t: Session) {
    five(&t).await;
    let first = t.get("configmaps?limit=2").await.ok();
    assert_eq!(names(&first), ["c1", "c2"]);
    assert_eq!(first["metadata"]["remainingItemCount"], 3);
    let second = t.get(&next_page("configmaps?limit=2", &first)).await.ok();
    assert_eq!(names(&second), ["c3", "c4"]);
    assert_eq!(second["metadata"]["remainingItemCount"], 1);
    let third = t.get(&next_page("configmaps?limit=2", &second)).await.ok();
    assert_eq!(names(&third), ["c5"]);
    assert_eq!(third["metadata"]["continue"], Value::Null);
    assert_eq!(third["metadata"]["remainingItemCount"], Value::Null);
}

pub async fn pages_show_the_version_of_the_first_page(t: Session) {
    five(&t).await;
    let first = t.get("configmaps?limit=2").await.ok();
    t.delete("configmaps/c4").await.ok();
    t.config_map("c6", json!({})).await;
    let second = t.get(&next_page("configmaps?limit=10", &first)).await.ok();
    assert_eq!(names(&second), ["c3", "c4", "c5"]);
    assert_eq!(version(&second), version(&first));
    assert_eq!(names(&t.get("configmaps").await.ok()), ["c1", "c2", "c3", "c5", "c6"]);
}

pub async fn a_page_with_a_selector_does_not_count_the_rest(t: Session) {
    five(&t).await;
    let query = "configmaps?limit=2&labelSelector=odd=yes";
    let first = t.get(query).await.ok();
    assert_eq!(names(&first), ["c1", "c3"]);
    assert_eq!(first["metadata"]["remainingItemCount"], Value::Null);
    let second = t.get(&next_page(query, &first)).await.ok();
    assert_eq!(names(&second), ["c5"]);
}

pub async fn an_unreadable_continue_token_is_refused(t: Session) {
    let answer = t.get("configmaps?limit=2&continue=zzz").await;
    let message = answer.refused(400, "BadRequest");
    assert!(message.starts_with("invalid continue token: continue key is not valid: "), "{message}");
}

pub async fn a_continue_token_with_a_version_is_refused(t: Session) {
    five(&t).await;
    let first = t.get("configmaps?limit=2").await.ok();
    let answer = t.get(&next_page(&format!("configmaps?resourceVersion={}", version(&first)), &first)).await;
    let expected = "specifying resource version is not allowed when using continue";
    assert_eq!(answer.refused(400, "BadRequest"), expected);
}

pub async fn a_version_match_needs_a_version(t: Session) {
    let answer = t.get("configmaps?resourceVersionMatch=Exact").await;
    let expected = r#"ListOptions.meta.k8s.io "" is invalid: resourceVersionMatch: Forbidden: resourceVersionMatch is forbidden unless resourceVersion is provided"#;
    assert_eq!(answer.refused(422, "Invalid"), expected);
}

pub async fn a_list_at_an_exact_version_shows_that_version(t: Session) {
    t.config_map("a", json!({})).await;
    let then = version(&t.get("configmaps").await.ok());
    t.config_map("b", json!({})).await;
    t.delete("configmaps/a").await.ok();
    let past = t.get(&format!("configmaps?resourceVersion={then}&resourceVersionMatch=Exact")).await.ok();
    assert_eq!(names(&past), ["a"]);
    assert_eq!(version(&past), then);
}

pub async fn a_list_not_older_than_a_version_is_current(t: Session) {
    let a = t.config_map("a", json!({})).await;
    let b = t.config_map("b", json!({})).await;
    let query = format!("configmaps?resourceVersion={}&resourceVersionMatch=NotOlderThan", version(&b));
    let list = t.get(&query).await.ok();
    assert_eq!(names(&list), ["a", "b"]);
    let query = format!("configmaps?resourceVersion={}", version(&a));
    let list = t.get(&query).await.ok();
    assert!(names(&list).contains(&"a"), "{list}");
    assert!(t.get("configmaps?resourceVersion=0").await.ok()["items"].is_array());
}

pub async fn an_unreadable_version_is_refused(t: Session) {
    let answer = t.get("configmaps?resourceVersion=abc").await;
    let message = answer.refused(400, "BadRequest");
    assert!(
        message.starts_with(r#"invalid resource version: resourceVersion: Invalid value: "abc": "#),
        "{message}"
    );
}

pub async fn label_selectors_choose(t: Session) {
    five(&t).await;
    let plain = t.config_map("plain", json!({})).await;
    assert_eq!(name(&plain), "plain");
    for (selector, expected) in [
        ("odd=yes", vec!["c1", "c3", "c5"]),
        ("odd%3D%3Dyes", vec!["c1", "c3", "c5"]),
        ("odd!=yes", vec!["c2", "c4", "plain"]),
        ("odd", vec!["c1", "c2", "c3", "c4", "c5"]),
        ("!odd", vec!["plain"]),
        ("i%20in%20(1,2)", vec!["c1", "c2"]),
        ("i%20notin%20(1,2)", vec!["c3", "c4", "c5", "plain"]),
        ("odd=yes,i%20in%20(1,2,3)", vec!["c1", "c3"]),
        ("i%3E3", vec!["c4", "c5"]),
        ("i%3C3", vec!["c1", "c2"]),
        ("", vec!["c1", "c2", "c3", "c4", "c5", "plain"]),
    ] {
        let list = t.get(&format!("configmaps?labelSelector={selector}")).await.ok();
        assert_eq!(names(&list), expected, "{selector}");
    }
}

pub async fn an_unreadable_label_selector_is_refused(t: Session) {
    let answer = t.get("configmaps?labelSelector=a%3D%3D%3Db").await;
    let message = answer.refused(400, "BadRequest");
    assert_eq!(message, "unable to parse requirement: found '=', expected: identifier");
}

pub async fn field_selectors_choose_by_name(t: Session) {
    five(&t).await;
    for (selector, expected) in [
        ("metadata.name=c2", vec!["c2"]),
        ("metadata.name!=c2", vec!["c1", "c3", "c4", "c5"]),
        ("metadata.name%3D%3Dc2,metadata.name=c3", vec![]),
        (&format!("metadata.namespace={}", t.ns), vec!["c1", "c2", "c3", "c4", "c5"]),
    ] {
        let list = t.get(&format!("configmaps?fieldSelector={selector}")).await.ok();
        assert_eq!(names(&list), expected, "{selector}");
    }
}

pub async fn field_selectors_choose_pods_by_phase_and_node(t: Session) {
    for (name, node) in [("a", "n1"), ("b", "n2")] {
        let spec = json!({"nodeName": node, "containers": [{"name": "main", "image": "app:1"}]});
        t.post("pods", json!({"metadata": {"name": name}, "spec": spec})).await.created();
    }
    let status = json!({"status": {"phase": "Running"}});
    t.patch(Patch::Merge, "pods/b/status", status).await.ok();
    for (selector, expected) in [
        ("spec.nodeName=n1", vec!["a"]),
        ("status.phase=Running", vec!["b"]),
        ("status.phase=Pending", vec!["a"]),
        ("status.phase!=Running,spec.nodeName=n2", vec![]),
    ] {
        let list = t.get(&format!("pods?fieldSelector={selector}")).await.ok();
        assert_eq!(names(&list), expected, "{selector}");
    }
}

pub async fn an_unknown_field_selector_is_refused(t: Session) {
    let answer = t.get("configmaps?fieldSelector=data.k=1").await;
    let expected = r#""data.k" is not a known field selector: only "metadata.name", "metadata.namespace""#;
    assert_eq!(answer.refused(400, "BadRequest"), expected);
    let answer = t.get("pods?fieldSelector=spec.bogus=1").await;
    assert_eq!(answer.refused(400, "BadRequest"), "field label not supported: spec.bogus");
}

pub async fn a_list_of_a_missing_namespace_is_empty(t: Session) {
    assert_eq!(t.get("/api/v1/namespaces/nowhere/configmaps").await.ok()["items"], json!([]));
}

/// c1 to c5, labelled `i` and `odd`.
async fn five(t: &Session) {
    for i in 1..=5 {
        let labels = json!({"i": i.to_string(), "odd": if i % 2 == 1 { "yes" } else { "no" }});
        t.post("configmaps", json!({"metadata": {"name": format!("c{i}"), "labels": labels}}))
            .await
            .created();
    }
}

fn next_page(query: &str, page: &Value) -> String {
    format!("{query}&continue={}", page["metadata"]["continue"].as_str().expect("a continue token"))
}
