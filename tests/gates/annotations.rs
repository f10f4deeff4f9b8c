//! Approvals and commands, read from annotations.

use serde_json::{Value, json};
use serin::api::Canary;
use serin::engine::action::{GateCall, GateScope};
use serin::engine::command::Verb;
use serin::engine::observed::{GateReply, Respondent};
use serin::gates::annotations::{APPROVALS, COMMANDS, answers, commands, malformed};

#[test]
fn malformed_entries_are_reported_and_the_others_count() {
    let canary = canary_with_annotations(&[
        (
            APPROVALS,
            r#"[{"release": "three"}, {"release": 3, "gate": "go", "answer": "yes", "at": "1970-01-01T00:00:00Z"}, 7]"#,
        ),
        (COMMANDS, "promote!"),
    ]);
    let approvals = answers(&canary);
    assert_eq!(approvals.len(), 1);
    let question = GateCall { release: 3, gate: "go".to_owned(), kind: None, scope: GateScope::Release };
    assert_eq!((&approvals[0].call, &approvals[0].reply), (&question, &GateReply::Yes { by: None }));
    assert!(commands(&canary).is_empty());
    let errors: Vec<String> = malformed(&canary).iter().map(ToString::to_string).collect();
    assert_eq!(errors.len(), 3, "{errors:?}");
    assert!(
        errors[0].starts_with("entry 1 of the annotation serin.dev/approvals is ignored: "),
        "{}",
        errors[0]
    );
    assert!(errors[1].starts_with("entry 3 of"), "{}", errors[1]);
    assert!(
        errors[2].starts_with("the whole of the annotation serin.dev/commands is ignored: "),
        "{}",
        errors[2]
    );
}

#[test]
fn answers_are_of_people_and_keep_the_order_of_their_entries() {
    let entry = |by: &str, at: &str| {
        format!(r#"{{"release": 1, "gate": "go", "answer": "yes", "by": "{by}", "at": "{at}"}}"#)
    };
    let list =
        format!("[{}, {}]", entry("ann", "2030-01-01T00:00:00Z"), entry("bob", "1970-01-01T00:00:00Z"));
    let answers = answers(&canary_with_annotations(&[(APPROVALS, &list)]));
    assert!(answers.iter().all(|answer| answer.from == Respondent::Person));
    let by = |at: usize| GateReply::Yes { by: Some(["ann", "bob"][at].to_owned()) };
    assert_eq!((&answers[0].reply, &answers[1].reply), (&by(0), &by(1)));
}

#[test]
fn entries_for_another_canary_do_not_count() {
    let yes = |uid: &str| {
        format!(
            r#"{{"uid": "{uid}", "release": 1, "gate": "go", "answer": "yes", "at": "1970-01-01T00:00:00Z"}}"#
        )
    };
    let order = |uid: &str| format!(r#"{{"uid": "{uid}", "id": "{uid}", "verb": "abort"}}"#);
    let canary = canary_with_annotations(&[
        (APPROVALS, &format!("[{}, {}]", yes("mine"), yes("another"))),
        (COMMANDS, &format!("[{}, {}]", order("another"), order("mine"))),
    ]);
    assert_eq!(answers(&canary).len(), 1);
    let orders = commands(&canary);
    assert_eq!((orders.len(), orders[0].id.as_str(), orders[0].verb), (1, "mine", Verb::Abort));
    assert!(malformed(&canary).is_empty());
}

fn canary_with_annotations(annotations: &[(&str, &str)]) -> Canary {
    let annotations: serde_json::Map<String, Value> =
        annotations.iter().map(|(key, value)| ((*key).to_owned(), json!(value))).collect();
    serde_json::from_value(json!({
        "apiVersion": "serin.dev/v1alpha1", "kind": "Canary",
        "metadata": {"name": "web", "uid": "mine", "annotations": annotations},
        "spec": {"targetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"}, "analysis": {}},
    }))
    .expect("a Canary")
}
