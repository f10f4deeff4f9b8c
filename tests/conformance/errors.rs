//! Refusals that people read.

use serde_json::json;

use crate::objects::deployment;
use crate::session::*;

pub async fn a_body_that_is_not_json_is_refused(t: Session) {
    let path = format!("/api/v1/namespaces/{}/configmaps", t.ns);
    let request = http::Request::post(&path).header("content-type", "application/json");
    let answer = t.send(request, b"{bad".to_vec()).await;
    let message = answer.refused(400, "BadRequest");
    assert!(
        message.starts_with("the object provided is unrecognized (must be of type ConfigMap): "),
        "{message}"
    );
}

pub async fn a_body_of_an_unknown_format_is_refused(t: Session) {
    let path = format!("/api/v1/namespaces/{}/configmaps", t.ns);
    let request = http::Request::post(&path).header("content-type", "text/plain");
    let answer = t.send(request, b"x".to_vec()).await;
    let message = answer.refused(415, "UnsupportedMediaType");
    let expected = "the body of the request was in an unknown format - accepted media types include: application/json, application/yaml";
    assert!(message.starts_with(expected), "{message}");
}

pub async fn a_body_may_be_yaml(t: Session) {
    let path = format!("/api/v1/namespaces/{}/configmaps", t.ns);
    let request = http::Request::post(&path).header("content-type", "application/yaml");
    let body = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\ndata:\n  k: one\n";
    assert_eq!(t.send(request, body.into()).await.created()["data"], json!({"k": "one"}));
}

pub async fn a_response_in_an_unknown_format_is_refused(t: Session) {
    t.config_map("a", json!({})).await;
    let answer = t.get_as("configmaps/a", "text/html").await;
    answer.refused(406, "NotAcceptable");
}

pub async fn an_unsupported_method_is_refused(t: Session) {
    t.config_map("a", json!({})).await;
    let expected = "the server does not allow this method on the requested resource";
    assert_eq!(t.post("configmaps/a", json!({})).await.refused(405, "MethodNotAllowed"), expected);
    assert_eq!(
        t.patch(Patch::Merge, "configmaps", json!({})).await.refused(405, "MethodNotAllowed"),
        expected
    );
    assert_eq!(t.delete("/api/v1/namespaces").await.refused(405, "MethodNotAllowed"), expected);
    let reviews = "/apis/authorization.k8s.io/v1/subjectaccessreviews";
    assert_eq!(t.get(reviews).await.refused(405, "MethodNotAllowed"), expected);
}

pub async fn an_unknown_field_of_a_built_in_kind_is_reported(t: Session) {
    let body = |name: &str| json!({"metadata": {"name": name}, "dat": {"a": "b"}});
    let answer = t.post("configmaps?fieldValidation=Strict", body("a")).await;
    let expected = r#"ConfigMap in version "v1" cannot be handled as a ConfigMap: strict decoding error: unknown field "dat""#;
    assert_eq!(answer.refused(400, "BadRequest"), expected);
    let answer = t.post("configmaps?fieldValidation=Warn", body("a")).await;
    assert_eq!(answer.warnings(), [r#"unknown field "dat""#]);
    assert_eq!(answer.created()["dat"], json!(null));
    let answer = t.post("configmaps?fieldValidation=Ignore", body("b")).await;
    assert!(answer.warnings().is_empty());
    answer.created();

    let mut deep = deployment("d", json!({"app": "d"}));
    deep["spec"]["replica"] = 1.into();
    deep["spec"]["template"]["spec"]["containers"][0]["imag"] = "x".into();
    let answer = t.post(&format!("{APPS}/deployments?fieldValidation=Strict"), deep).await;
    let expected = r#"Deployment in version "v1" cannot be handled as a Deployment: strict decoding error: unknown field "spec.replica", unknown field "spec.template.spec.containers[0].imag""#;
    assert_eq!(answer.refused(400, "BadRequest"), expected);
}

pub async fn an_unknown_field_in_a_patch_is_reported(t: Session) {
    t.config_map("a", json!({})).await;
    let answer =
        t.patch(Patch::Merge, "configmaps/a?fieldValidation=Strict", json!({"dat": {"a": "b"}})).await;
    let message = answer.refused(422, "Invalid");
    assert!(message.ends_with(r#"strict decoding error: unknown field "dat""#), "{message}");
    let answer = t.patch(Patch::Merge, "configmaps/a?fieldValidation=Warn", json!({"dat": {"a": "b"}})).await;
    assert_eq!(answer.warnings(), [r#"unknown field "dat""#]);
}

pub async fn an_unknown_field_validation_is_refused(t: Session) {
    let answer = t.post("configmaps?fieldValidation=Maybe", json!({"metadata": {"name": "a"}})).await;
    let expected = r#"CreateOptions.meta.k8s.io "" is invalid: fieldValidation: Unsupported value: "Maybe": supported values: "", "Ignore", "Strict", "Warn""#;
    assert_eq!(answer.refused(422, "Invalid"), expected);
}

pub async fn a_value_of_the_wrong_type_is_refused(t: Session) {
    let answer = t.post("configmaps", json!({"metadata": {"name": "a"}, "data": {"k": 1}})).await;
    let message = answer.refused(400, "BadRequest");
    assert!(
        message.starts_with(r#"ConfigMap in version "v1" cannot be handled as a ConfigMap: "#),
        "{message}"
    );
    let mut body = deployment("d", json!({"app": "d"}));
    body["spec"]["replicas"] = "three".into();
    let answer = t.post(&format!("{APPS}/deployments"), body).await;
    let message = answer.refused(400, "BadRequest");
    assert!(
        message.starts_with(r#"Deployment in version "v1" cannot be handled as a Deployment: "#),
        "{message}"
    );
}

pub async fn a_workload_must_select_its_own_pods(t: Session) {
    let mut body = deployment("d", json!({"app": "d"}));
    body["spec"]["template"]["metadata"]["labels"] = json!({"app": "other"});
    let answer = t.post(&format!("{APPS}/deployments"), body).await;
    let expected = r#"Deployment.apps "d" is invalid: spec.template.metadata.labels: Invalid value: {"app":"other"}: `selector` does not match template `labels`"#;
    assert_eq!(answer.refused(422, "Invalid"), expected);
}

pub async fn several_faults_are_listed(t: Session) {
    let answer =
        t.post("services", json!({"metadata": {"name": "BAD"}, "spec": {"ports": [{"port": 0}]}})).await;
    let message = answer.refused(422, "Invalid");
    assert!(message.starts_with(r#"Service "BAD" is invalid: ["#) && message.ends_with(']'), "{message}");
    assert!(
        message
            .contains(r#"metadata.name: Invalid value: "BAD": a lowercase RFC 1123 label must consist of"#),
        "{message}"
    );
    assert!(
        message.contains("spec.ports[0].port: Invalid value: 0: must be between 1 and 65535, inclusive"),
        "{message}"
    );
    let causes = answer.body["details"]["causes"].as_array().expect("causes");
    assert!(causes.len() >= 2, "{causes:?}");
}

pub async fn a_pod_needs_a_container_with_an_image(t: Session) {
    let answer = t.post("pods", json!({"metadata": {"name": "a"}, "spec": {"containers": []}})).await;
    assert_eq!(answer.refused(422, "Invalid"), r#"Pod "a" is invalid: spec.containers: Required value"#);
    let answer =
        t.post("pods", json!({"metadata": {"name": "a"}, "spec": {"containers": [{"name": "x"}]}})).await;
    assert_eq!(
        answer.refused(422, "Invalid"),
        r#"Pod "a" is invalid: spec.containers[0].image: Required value"#
    );
}

pub async fn an_unfit_key_is_refused(t: Session) {
    let answer = t.post("configmaps", json!({"metadata": {"name": "a"}, "data": {"a b": "c"}})).await;
    let message = answer.refused(422, "Invalid");
    let expected =
        r#"ConfigMap "a" is invalid: data[a b]: Invalid value: "a b": a valid config key must consist of"#;
    assert!(message.starts_with(expected), "{message}");
}
