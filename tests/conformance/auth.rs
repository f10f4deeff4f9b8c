//! Who is there, and what they may do.

use serde_json::{Value, json};

use crate::session::*;
use crate::support::User;

pub async fn without_a_token_nothing_is_served(t: Session) {
    for user in [User::Nobody, User::Stranger] {
        let stranger = t.as_user(user).await;
        let answer = stranger.get("configmaps").await;
        assert_eq!(answer.refused(401, "Unauthorized"), "Unauthorized", "{user:?}");
        let answer = stranger.post("configmaps", json!({"metadata": {"name": "a"}})).await;
        answer.refused(401, "Unauthorized");
    }
    assert_eq!(t.get("configmaps/a").await.code, 404, "and nothing was written");
}

pub async fn a_token_is_reviewed(t: Session) {
    let review = |token: &str| {
        let body = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {"token": token}});
        t.post("/apis/authentication.k8s.io/v1/tokenreviews", body)
    };
    let good = review(&t.token()).await.created();
    assert_eq!(good["status"]["authenticated"], true);
    assert!(good["status"]["user"]["username"].is_string());
    let groups = good["status"]["user"]["groups"].as_array().expect("groups");
    assert!(groups.contains(&json!("system:masters")) && groups.contains(&json!("system:authenticated")));
    let bad = review("made-up").await.created();
    assert_ne!(bad["status"]["authenticated"], true);
    assert_eq!(bad["status"]["user"], json!({}));
    let answer = review("").await;
    assert_eq!(answer.refused(400, "BadRequest"), "token is required for TokenReview in authentication");
}

pub async fn access_is_reviewed(t: Session) {
    let review = |spec: Value| {
        let body =
            json!({"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": spec});
        t.post("/apis/authorization.k8s.io/v1/subjectaccessreviews", body)
    };
    let what = json!({"verb": "get", "resource": "pods", "namespace": t.ns});
    let admin = json!({"user": "somebody", "groups": ["system:masters"], "resourceAttributes": what});
    assert_eq!(review(admin).await.created()["status"]["allowed"], true);
    let plain = json!({"user": "somebody", "resourceAttributes": what});
    assert_eq!(review(plain).await.created()["status"]["allowed"], false);
    let answer = review(json!({"user": "somebody"})).await;
    let message = answer.refused(422, "Invalid");
    let expected = "spec.resourceAttributes: Invalid value: null: exactly one of nonResourceAttributes or resourceAttributes must be specified";
    assert!(message.ends_with(expected), "{message}");
    let answer = review(json!({"resourceAttributes": what})).await;
    let message = answer.refused(422, "Invalid");
    let expected = r#"spec.user: Invalid value: "": at least one of user or group must be specified"#;
    assert!(message.ends_with(expected), "{message}");
}
