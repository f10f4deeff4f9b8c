//! Watches.

use serde_json::{Value, json};

use crate::session::*;

pub async fn a_watch_from_a_version_begins_after_it(t: Session) {
    let a = t.config_map("a", json!({})).await;
    t.config_map("b", json!({})).await;
    let mut watch = t.watch(&format!("configmaps?resourceVersion={}", version(&a))).await;
    assert_eq!(watch.next_summary().await, "ADDED b");
    t.config_map("c", json!({})).await;
    assert_eq!(watch.next_summary().await, "ADDED c");
}

pub async fn a_watch_without_a_version_begins_with_existing_objects(t: Session) {
    t.config_map("b", json!({})).await;
    t.config_map("a", json!({})).await;
    let mut watch = t.watch("configmaps").await;
    let mut first = [watch.next_summary().await, watch.next_summary().await];
    first.sort();
    assert_eq!(first, ["ADDED a", "ADDED b"]);
    t.delete("configmaps/a").await.ok();
    assert_eq!(watch.next_summary().await, "DELETED a");
}

pub async fn a_watch_from_zero_begins_with_existing_objects(t: Session) {
    t.config_map("a", json!({})).await;
    let mut watch = t.watch("configmaps?resourceVersion=0").await;
    assert_eq!(watch.next_summary().await, "ADDED a");
}

pub async fn a_watch_delivers_every_change_once(t: Session) {
    let from = version(&t.get("configmaps").await.ok());
    let mut expected = vec![version(&t.config_map("a", json!({"k": "0"})).await)];
    for k in ["1", "2", "3"] {
        let patched = t.patch(Patch::Merge, "configmaps/a", json!({"data": {"k": k}})).await.ok();
        expected.push(version(&patched));
    }
    t.patch(Patch::Merge, "configmaps/a", json!({"data": {"k": "3"}})).await.ok();
    t.delete("configmaps/a").await.ok();

    let mut watch = t.watch(&format!("configmaps?resourceVersion={from}&timeoutSeconds=2")).await;
    let mut seen = Vec::new();
    let mut kinds = Vec::new();
    while let Some((kind, object)) = watch.next_or_end().await {
        kinds.push(kind);
        seen.push(version(&object));
        assert_eq!(object["apiVersion"], "v1");
        assert_eq!(object["kind"], "ConfigMap");
    }
    assert_eq!(kinds, ["ADDED", "MODIFIED", "MODIFIED", "MODIFIED", "DELETED"]);
    assert_eq!(seen[..4], expected);
}

pub async fn a_watch_sees_only_its_namespace(t: Session) {
    let from = version(&t.get("configmaps").await.ok());
    let mut watch = t.watch(&format!("configmaps?resourceVersion={from}")).await;
    let other = format!("{}-b", t.ns);
    t.post("/api/v1/namespaces", json!({"metadata": {"name": other}})).await.created();
    t.post(&format!("/api/v1/namespaces/{other}/configmaps"), json!({"metadata": {"name": "a"}}))
        .await
        .created();
    t.config_map("b", json!({})).await;
    assert_eq!(watch.next_summary().await, "ADDED b");
}

pub async fn a_watch_across_namespaces_sees_all(t: Session) {
    let from = version(&t.get("configmaps").await.ok());
    let mut watch =
        t.watch(&format!("/api/v1/configmaps?labelSelector=law={}&resourceVersion={from}", t.ns)).await;
    let other = format!("{}-b", t.ns);
    t.post("/api/v1/namespaces", json!({"metadata": {"name": other}})).await.created();
    for namespace in [&t.ns, &other] {
        let body = json!({"metadata": {"name": format!("in-{namespace}"), "labels": {"law": t.ns}}});
        t.post(&format!("/api/v1/namespaces/{namespace}/configmaps"), body).await.created();
    }
    assert_eq!(watch.next_summary().await, format!("ADDED in-{}", t.ns));
    assert_eq!(watch.next_summary().await, format!("ADDED in-{other}"));
}

pub async fn a_watch_of_one_name_sees_one_object(t: Session) {
    let from = version(&t.config_map("a", json!({})).await);
    t.config_map("b", json!({})).await;
    t.patch(Patch::Merge, "configmaps/a", json!({"data": {"k": "1"}})).await.ok();
    t.delete("configmaps/a").await.ok();
    let query = format!("configmaps?fieldSelector=metadata.name=a&resourceVersion={from}&timeoutSeconds=2");
    assert_eq!(t.watch(&query).await.rest().await, ["MODIFIED a", "DELETED a"]);
}

pub async fn leaving_a_selector_is_a_deletion_and_entering_an_addition(t: Session) {
    let from = version(&t.config_map("a", json!({})).await);
    let mut watch = t.watch(&format!("configmaps?labelSelector=on=yes&resourceVersion={from}")).await;
    let label =
        |on: Value| t.patch(Patch::Merge, "configmaps/a", json!({"metadata": {"labels": {"on": on}}}));
    label("yes".into()).await.ok();
    assert_eq!(watch.next_summary().await, "ADDED a");
    let left = label("no".into()).await.ok();
    let (kind, object) = watch.next().await;
    assert_eq!(kind, "DELETED");
    assert_eq!(object["metadata"]["labels"]["on"], "yes", "as it last matched");
    assert_eq!(version(&object), version(&left), "at the version it left");
    label(Value::Null).await.ok();
    label("yes".into()).await.ok();
    assert_eq!(watch.next_summary().await, "ADDED a");
    t.delete("configmaps/a").await.ok();
    assert_eq!(watch.next_summary().await, "DELETED a");
}

pub async fn a_deletion_carries_the_last_state_and_a_new_version(t: Session) {
    let made = t.config_map("a", json!({"k": "v"})).await;
    let mut watch = t.watch(&format!("configmaps?resourceVersion={}", version(&made))).await;
    t.delete("configmaps/a").await.ok();
    let (kind, object) = watch.next().await;
    assert_eq!(kind, "DELETED");
    assert_eq!(object["data"], json!({"k": "v"}));
    assert_eq!(uid(&object), uid(&made));
    let (then, now): (u64, u64) = (version(&made).parse().unwrap(), version(&object).parse().unwrap());
    assert!(now > then, "{now} after {then}");
}

pub async fn a_watch_ends_after_its_timeout(t: Session) {
    let from = version(&t.get("configmaps").await.ok());
    let began = std::time::Instant::now();
    let mut watch = t.watch(&format!("configmaps?resourceVersion={from}&timeoutSeconds=1")).await;
    assert!(watch.next_or_end().await.is_none());
    let took = began.elapsed().as_secs_f64();
    assert!((0.9..20.0).contains(&took), "{took}");
}

pub async fn initial_events_end_with_a_marked_bookmark(t: Session) {
    t.config_map("a", json!({})).await;
    let b = t.config_map("b", json!({})).await;
    let query = "sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true";
    let mut watch = t.watch(&format!("configmaps?{query}")).await;
    assert_eq!(watch.next_summary().await, "ADDED a");
    assert_eq!(watch.next_summary().await, "ADDED b");
    let (kind, object) = watch.next().await;
    assert_eq!(kind, "BOOKMARK");
    assert_eq!(object["kind"], "ConfigMap");
    assert_eq!(object["metadata"]["annotations"], json!({"k8s.io/initial-events-end": "true"}));
    let (at, last): (u64, u64) = (version(&object).parse().unwrap(), version(&b).parse().unwrap());
    assert!(at >= last, "{at} is not before {last}");
    t.config_map("c", json!({})).await;
    assert_eq!(watch.next_summary().await, "ADDED c");
}

pub async fn initial_events_need_a_version_match(t: Session) {
    let answer = t.get("configmaps?watch=true&sendInitialEvents=true").await;
    let expected = r#"ListOptions.meta.k8s.io "" is invalid: resourceVersionMatch: Forbidden: sendInitialEvents requires setting resourceVersionMatch to NotOlderThan"#;
    assert_eq!(answer.refused(422, "Invalid"), expected);
    let answer = t.get("configmaps?watch=true&resourceVersionMatch=NotOlderThan&resourceVersion=1").await;
    let expected = r#"ListOptions.meta.k8s.io "" is invalid: resourceVersionMatch: Forbidden: resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided"#;
    assert_eq!(answer.refused(422, "Invalid"), expected);
    let answer = t.get("configmaps?sendInitialEvents=true").await;
    let expected = r#"ListOptions.meta.k8s.io "" is invalid: sendInitialEvents: Forbidden: sendInitialEvents is forbidden for list"#;
    assert_eq!(answer.refused(422, "Invalid"), expected);
}

pub async fn bookmarks_are_sent_only_on_request(t: Session) {
    t.config_map("a", json!({})).await;
    let query = "configmaps?sendInitialEvents=true&resourceVersionMatch=NotOlderThan&timeoutSeconds=2";
    assert_eq!(t.watch(query).await.rest().await, ["ADDED a"]);
}

pub async fn a_last_bookmark_comes_before_the_timeout(t: Session) {
    let from = version(&t.get("configmaps").await.ok());
    let query = format!("configmaps?resourceVersion={from}&allowWatchBookmarks=true&timeoutSeconds=5");
    let mut watch = t.watch(&query).await;
    let made = t.config_map("a", json!({})).await;
    let mut last = None;
    let mut seen = Vec::new();
    while let Some((kind, object)) = watch.next_or_end().await {
        match kind.as_str() {
            "BOOKMARK" => {
                assert_eq!(object["kind"], "ConfigMap");
                assert_eq!(name(&object), "", "a bookmark is a version and nothing else");
                last = Some(version(&object).parse::<u64>().expect("a number"));
            }
            _ => seen.push(version(&object)),
        }
    }
    assert_eq!(seen, [version(&made)]);
    let last = last.expect("a bookmark");
    assert!(last >= version(&made).parse().expect("a number"), "{last} is the version to resume from");
}

pub async fn watch_from_old_version_gets_410(t: Session) {
    let plural = crate::crds::plain(&t).await;
    t.post(
        &plural,
        json!({"apiVersion": crate::crds::api_version(&t), "kind": "Thing", "metadata": {"name": "a"}}),
    )
    .await
    .created();
    let mut watch = t.watch(&format!("{plural}?resourceVersion=1")).await;
    let (kind, status) = watch.next().await;
    assert_eq!(kind, "ERROR");
    assert_eq!(status["kind"], "Status");
    assert_eq!(status["code"], 410);
    assert_eq!(status["reason"], "Expired");
    let message = status["message"].as_str().expect("a message");
    assert!(message.starts_with("too old resource version: 1 ("), "{message}");
    assert!(watch.next_or_end().await.is_none(), "and ends");
}

pub async fn events_of_all_watchers_come_in_the_same_order(t: Session) {
    let from = version(&t.get("configmaps").await.ok());
    let mut watches = Vec::new();
    for _ in 0..5 {
        watches.push(t.watch(&format!("configmaps?resourceVersion={from}")).await);
    }
    let writes = (0..20).map(|i| {
        let t = &t;
        async move { t.config_map(&format!("c{i}"), json!({})).await }
    });
    futures::future::join_all(writes).await;
    let mut orders = Vec::new();
    for watch in &mut watches {
        let mut order = Vec::new();
        for _ in 0..20 {
            let (_, object) = watch.next().await;
            order.push(version(&object).parse::<u64>().expect("a number"));
        }
        assert!(order.is_sorted(), "{order:?}");
        orders.push(order);
    }
    orders.dedup();
    assert_eq!(orders.len(), 1);
}
