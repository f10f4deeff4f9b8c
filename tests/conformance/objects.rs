//! Create, get and update.

use serde_json::{Value, json};

use crate::session::*;

pub async fn creating_fills_in_the_identity(t: Session) {
    let made = t.config_map("a", json!({"k": "v"})).await;
    assert_eq!(made["apiVersion"], "v1");
    assert_eq!(made["kind"], "ConfigMap");
    assert_eq!(made["metadata"]["namespace"], t.ns.as_str());
    assert_eq!(uid(&made).len(), 36, "a UUID");
    assert!(version(&made).parse::<u64>().expect("versions are numbers here") > 0);
    let created: jiff::Timestamp =
        made["metadata"]["creationTimestamp"].as_str().expect("a creation time").parse().expect("RFC 3339");
    assert_eq!(created.subsec_nanosecond(), 0, "to the second");
    assert_eq!(t.get("configmaps/a").await.ok(), made, "what was answered is what is stored");
}

pub async fn creating_the_same_name_twice_is_refused(t: Session) {
    t.config_map("a", json!({})).await;
    let again = t.post("configmaps", json!({"metadata": {"name": "a"}})).await;
    assert_eq!(again.refused(409, "AlreadyExists"), r#"configmaps "a" already exists"#);
    assert_eq!(again.body["details"], json!({"name": "a", "kind": "configmaps"}));

    let deployment = deployment("d", json!({"app": "d"}));
    t.post(&format!("{APPS}/deployments"), deployment.clone()).await.created();
    let again = t.post(&format!("{APPS}/deployments"), deployment).await;
    assert_eq!(again.refused(409, "AlreadyExists"), r#"deployments.apps "d" already exists"#);
    assert_eq!(again.body["details"], json!({"name": "d", "group": "apps", "kind": "deployments"}));
}

pub async fn creating_in_a_missing_namespace_is_refused(t: Session) {
    let answer = t.post("/api/v1/namespaces/nowhere/configmaps", json!({"metadata": {"name": "a"}})).await;
    assert_eq!(answer.refused(404, "NotFound"), r#"namespaces "nowhere" not found"#);
    assert_eq!(answer.body["details"], json!({"name": "nowhere", "kind": "namespaces"}));
}

pub async fn creating_with_a_resource_version_is_refused(t: Session) {
    let answer = t.post("configmaps", json!({"metadata": {"name": "a", "resourceVersion": "1"}})).await;
    assert_eq!(answer.code, 500, "{}", answer.text);
    assert_eq!(answer.body["message"], "resourceVersion should not be set on objects to be created");
}

pub async fn creating_without_a_name_is_refused(t: Session) {
    let answer = t.post("configmaps", json!({"metadata": {}})).await;
    let message = answer.refused(422, "Invalid");
    assert_eq!(
        message,
        r#"ConfigMap "" is invalid: metadata.name: Required value: name or generateName is required"#
    );
    let cause = json!({
        "reason": "FieldValueRequired",
        "message": "Required value: name or generateName is required",
        "field": "metadata.name",
    });
    assert_eq!(answer.body["details"]["causes"], json!([cause]));
}

pub async fn creating_with_an_unfit_name_is_refused(t: Session) {
    let answer = t.post("configmaps", json!({"metadata": {"name": "A_b"}})).await;
    let message = answer.refused(422, "Invalid");
    let expected = r#"ConfigMap "A_b" is invalid: metadata.name: Invalid value: "A_b": a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character"#;
    assert!(message.starts_with(expected), "{message}");
    assert_eq!(answer.body["details"]["causes"][0]["field"], "metadata.name");
    assert_eq!(answer.body["details"]["causes"][0]["reason"], "FieldValueInvalid");
}

pub async fn creating_with_an_unfit_label_is_refused(t: Session) {
    let answer = t.post("configmaps", json!({"metadata": {"name": "a", "labels": {"a b": "c"}}})).await;
    let message = answer.refused(422, "Invalid");
    assert!(
        message.starts_with(r#"ConfigMap "a" is invalid: metadata.labels: Invalid value: "a b": "#),
        "{message}"
    );
}

pub async fn creating_in_another_namespace_than_the_path_is_refused(t: Session) {
    let answer = t.post("configmaps", json!({"metadata": {"name": "a", "namespace": "other"}})).await;
    let expected = "the namespace of the provided object does not match the namespace sent on the request";
    assert_eq!(answer.refused(400, "BadRequest"), expected);
}

pub async fn generate_name_appends_a_suffix(t: Session) {
    let post = || t.post("configmaps", json!({"metadata": {"generateName": "gen-"}}));
    let (one, two) = (post().await.created(), post().await.created());
    for made in [&one, &two] {
        let suffix = name(made).strip_prefix("gen-").expect("the prefix as given");
        assert_eq!(suffix.len(), 5, "{suffix}");
        assert_eq!(made["metadata"]["generateName"], "gen-");
    }
    assert_ne!(name(&one), name(&two));
}

pub async fn a_body_of_another_kind_is_refused(t: Session) {
    let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "a"}});
    let answer = t.post("configmaps", secret).await;
    let message = answer.refused(400, "BadRequest");
    assert!(message.starts_with(r#"Secret in version "v1" cannot be handled as a ConfigMap"#), "{message}");

    let versioned = json!({"apiVersion": "v2", "kind": "ConfigMap", "metadata": {"name": "a"}});
    let answer = t.post("configmaps", versioned).await;
    let message = answer.refused(400, "BadRequest");
    assert!(
        message.starts_with(r#"ConfigMap in version "v2" cannot be handled as a ConfigMap"#),
        "{message}"
    );
}

pub async fn getting_a_missing_object_is_not_found(t: Session) {
    let answer = t.get("configmaps/a").await;
    assert_eq!(answer.refused(404, "NotFound"), r#"configmaps "a" not found"#);
    assert_eq!(answer.body["details"], json!({"name": "a", "kind": "configmaps"}));
    let answer = t.get(&format!("{APPS}/deployments/a")).await;
    assert_eq!(answer.refused(404, "NotFound"), r#"deployments.apps "a" not found"#);
    assert_eq!(answer.body["details"], json!({"name": "a", "group": "apps", "kind": "deployments"}));
}

pub async fn an_update_with_an_old_version_is_a_conflict(t: Session) {
    let first = t.config_map("a", json!({"k": "1"})).await;
    let mut second = first.clone();
    second["data"]["k"] = "2".into();
    let second = t.put("configmaps/a", second).await.ok();
    assert_ne!(version(&first), version(&second));

    let mut stale = first;
    stale["data"]["k"] = "3".into();
    let answer = t.put("configmaps/a", stale).await;
    let expected = r#"Operation cannot be fulfilled on configmaps "a": the object has been modified; please apply your changes to the latest version and try again"#;
    assert_eq!(answer.refused(409, "Conflict"), expected);
    assert_eq!(answer.body["details"], json!({"name": "a", "kind": "configmaps"}));
    assert_eq!(t.get("configmaps/a").await.ok()["data"]["k"], "2");
}

pub async fn an_update_without_a_version_wins(t: Session) {
    let made = t.config_map("a", json!({"k": "1"})).await;
    let updated = t.put("configmaps/a", json!({"metadata": {"name": "a"}, "data": {"k": "2"}})).await.ok();
    assert_eq!(updated["data"], json!({"k": "2"}));
    assert_eq!(uid(&updated), uid(&made));
    assert_eq!(updated["metadata"]["creationTimestamp"], made["metadata"]["creationTimestamp"]);
}

pub async fn an_update_that_changes_nothing_keeps_the_version(t: Session) {
    let made = t.config_map("a", json!({"k": "1"})).await;
    let same = t.put("configmaps/a", made.clone()).await.ok();
    assert_eq!(version(&same), version(&made));
    let same = t.patch(Patch::Merge, "configmaps/a", json!({"data": {"k": "1"}})).await.ok();
    assert_eq!(version(&same), version(&made));
}

pub async fn updating_a_missing_object_is_not_found(t: Session) {
    let answer = t.put("configmaps/a", json!({"metadata": {"name": "a"}})).await;
    assert_eq!(answer.refused(404, "NotFound"), r#"configmaps "a" not found"#);
}

pub async fn an_update_under_another_name_is_refused(t: Session) {
    t.config_map("a", json!({})).await;
    let answer = t.put("configmaps/a", json!({"metadata": {"name": "b"}})).await;
    let expected = "the name of the object (b) does not match the name on the URL (a)";
    assert_eq!(answer.refused(400, "BadRequest"), expected);
}

pub async fn an_update_of_another_incarnation_is_a_conflict(t: Session) {
    let made = t.config_map("a", json!({})).await;
    let other = "11111111-2222-3333-4444-555555555555";
    let answer = t.put("configmaps/a", json!({"metadata": {"name": "a", "uid": other}})).await;
    let message = answer.refused(409, "Conflict");
    assert!(message.starts_with(r#"Operation cannot be fulfilled on configmaps "a": "#), "{message}");
    let difference = format!("UID in precondition: {other}, UID in object meta: {}", uid(&made));
    assert!(message.contains(&difference), "{message}");
}

pub async fn an_update_cannot_change_server_owned_fields(t: Session) {
    // A kind that no controller of either cluster touches.
    let path = "/apis/networking.k8s.io/v1/namespaces/{ns}/ingresses";
    let spec = json!({"defaultBackend": {"service": {"name": "a", "port": {"number": 80}}}});
    let made = t.post(path, json!({"metadata": {"name": "a"}, "spec": spec})).await.created();
    assert_eq!(made["metadata"]["generation"], 1);
    let mut changed = made.clone();
    changed["metadata"]["creationTimestamp"] = "2001-01-01T00:00:00Z".into();
    changed["metadata"]["generation"] = 99.into();
    changed["metadata"]["labels"] = json!({"touched": "yes"});
    let metadata = changed["metadata"].as_object_mut().expect("an object");
    metadata.remove("uid");
    let updated = t.put(&format!("{path}/a"), changed).await.ok();
    assert_eq!(updated["metadata"]["creationTimestamp"], made["metadata"]["creationTimestamp"]);
    assert_eq!(uid(&updated), uid(&made));
    assert_eq!(updated["metadata"]["generation"], 1, "labels are not the spec");
    assert_eq!(updated["metadata"]["labels"]["touched"], "yes");
}

pub async fn versions_rise_across_kinds(t: Session) {
    let mut last = 0;
    for i in 0..6 {
        let (path, kind) = if i % 2 == 0 { ("configmaps", "a") } else { ("secrets", "b") };
        let made = t.post(path, json!({"metadata": {"name": format!("{kind}-{i}")}})).await.created();
        let version: u64 = version(&made).parse().expect("a number");
        assert!(version > last, "{version} after {last}");
        last = version;
    }
}

pub async fn generation_counts_changes_of_the_spec(t: Session) {
    let path = format!("{APPS}/deployments");
    let made = t.post(&path, deployment("d", json!({"app": "d"}))).await.created();
    assert_eq!(made["metadata"]["generation"], 1);
    let path = format!("{path}/d");
    let labelled = t.patch(Patch::Merge, &path, json!({"metadata": {"labels": {"a": "b"}}})).await.ok();
    assert_eq!(labelled["metadata"]["generation"], 1, "labels are not the spec");
    let scaled = t.patch(Patch::Merge, &path, json!({"spec": {"paused": true}})).await.ok();
    assert_eq!(scaled["metadata"]["generation"], 2);
    let again = t.patch(Patch::Merge, &path, json!({"spec": {"paused": true}})).await.ok();
    assert_eq!(again["metadata"]["generation"], 2, "nothing changed");
    let status =
        t.patch(Patch::Merge, &format!("{path}/status"), json!({"status": {"collisionCount": 1}})).await;
    assert_eq!(status.ok()["metadata"]["generation"], 2, "status is not the spec");
    let annotated = t.patch(Patch::Merge, &path, json!({"metadata": {"annotations": {"a": "b"}}})).await.ok();
    assert_eq!(annotated["metadata"]["generation"], 3, "of a Deployment, annotations count");
}

pub async fn a_config_map_has_no_generation(t: Session) {
    let made = t.config_map("a", json!({"k": "1"})).await;
    assert_eq!(made["metadata"]["generation"], Value::Null);
    let updated = t.patch(Patch::Merge, "configmaps/a", json!({"data": {"k": "2"}})).await.ok();
    assert_eq!(updated["metadata"]["generation"], Value::Null);
}

pub async fn a_new_namespace_is_active_and_labelled(t: Session) {
    let namespace = t.get("/api/v1/namespaces/{ns}").await.ok();
    assert_eq!(namespace["status"]["phase"], "Active");
    assert_eq!(namespace["spec"]["finalizers"], json!(["kubernetes"]));
    assert_eq!(namespace["metadata"]["labels"]["kubernetes.io/metadata.name"], t.ns.as_str());
}

pub async fn a_service_gets_its_defaults(t: Session) {
    let spec = json!({"selector": {"app": "a"}, "ports": [{"port": 80}]});
    let service = t.post("services", json!({"metadata": {"name": "a"}, "spec": spec})).await.created();
    assert_eq!(service["spec"]["type"], "ClusterIP");
    assert_eq!(service["spec"]["sessionAffinity"], "None");
    assert_eq!(service["spec"]["ports"], json!([{"port": 80, "targetPort": 80, "protocol": "TCP"}]));
    let address = service["spec"]["clusterIP"].as_str().expect("an address");
    assert!(address.parse::<std::net::Ipv4Addr>().is_ok(), "{address}");
    assert_eq!(service["spec"]["clusterIPs"], json!([address]));

    let headless = json!({"clusterIP": "None", "selector": {"app": "a"}, "ports": [{"port": 80}]});
    let service = t.post("services", json!({"metadata": {"name": "b"}, "spec": headless})).await.created();
    assert_eq!(service["spec"]["clusterIP"], "None");
}

pub async fn a_deployment_gets_its_defaults(t: Session) {
    let made = t.post(&format!("{APPS}/deployments"), deployment("d", json!({"app": "d"}))).await.created();
    let spec = &made["spec"];
    assert_eq!(spec["revisionHistoryLimit"], 10);
    assert_eq!(spec["progressDeadlineSeconds"], 600);
    let rolling =
        json!({"type": "RollingUpdate", "rollingUpdate": {"maxSurge": "25%", "maxUnavailable": "25%"}});
    assert_eq!(spec["strategy"], rolling);
    let pod = &spec["template"]["spec"];
    assert_eq!(pod["restartPolicy"], "Always");
    assert_eq!(pod["terminationGracePeriodSeconds"], 30);
    assert_eq!(pod["dnsPolicy"], "ClusterFirst");
    assert_eq!(pod["containers"][0]["imagePullPolicy"], "IfNotPresent", "the image has a tag");

    let mut bare = deployment("e", json!({"app": "e"}));
    bare["spec"].as_object_mut().expect("an object").remove("replicas");
    let made = t.post(&format!("{APPS}/deployments"), bare).await.created();
    assert_eq!(made["spec"]["replicas"], 1);
}

pub async fn string_data_of_a_secret_becomes_data(t: Session) {
    let secret = json!({"metadata": {"name": "a"}, "stringData": {"k": "hello"}, "data": {"b": "Ynll"}});
    let made = t.post("secrets", secret).await.created();
    assert_eq!(made["data"], json!({"k": "aGVsbG8=", "b": "Ynll"}));
    assert_eq!(made["stringData"], Value::Null);
    assert_eq!(made["type"], "Opaque");
}

pub async fn an_immutable_config_map_cannot_change(t: Session) {
    let frozen = json!({"metadata": {"name": "a"}, "immutable": true, "data": {"k": "v"}});
    t.post("configmaps", frozen).await.created();
    let answer = t.patch(Patch::Merge, "configmaps/a", json!({"data": {"k": "w"}})).await;
    let expected = r#"ConfigMap "a" is invalid: data: Forbidden: field is immutable when `immutable` is set"#;
    assert_eq!(answer.refused(422, "Invalid"), expected);
    assert_eq!(answer.body["details"]["causes"][0]["reason"], "FieldValueForbidden");
}

pub async fn selectors_of_a_deployment_cannot_change(t: Session) {
    let path = format!("{APPS}/deployments");
    t.post(&path, deployment("d", json!({"app": "d"}))).await.created();
    let labels = json!({"app": "other"});
    let patch =
        json!({"spec": {"selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels}}}});
    let answer = t.patch(Patch::Merge, &format!("{path}/d"), patch).await;
    let message = answer.refused(422, "Invalid");
    assert!(
        message.starts_with(r#"Deployment.apps "d" is invalid: spec.selector: Invalid value: "#),
        "{message}"
    );
    assert!(message.ends_with("field is immutable"), "{message}");
    assert_eq!(answer.body["details"]["group"], "apps");
    assert_eq!(answer.body["details"]["kind"], "Deployment");
}

/// A Deployment without replicas: no controller makes anything of it.
pub fn deployment(name: &str, labels: Value) -> Value {
    json!({
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name},
        "spec": {
            "replicas": 0,
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {"containers": [{"name": "main", "image": "app:1"}]},
            },
        },
    })
}
