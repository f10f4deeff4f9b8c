//! Error messages compared with those of kube-apiserver 1.36.1.

use std::collections::BTreeSet;

use serde::Deserialize;
use serde_json::{Value, json};

use super::Schema;

#[derive(Deserialize)]
struct Case {
    schema: Value,
    old: Option<Value>,
    given: Value,
    refusals: BTreeSet<String>,
}

/// Each value was sent as `spec.p` of an object whose definition also has CEL rules elsewhere.
#[test]
fn values_are_refused_as_by_the_real_server() {
    let cases: Vec<Case> =
        serde_json::from_str(include_str!("objects.fixture.json")).expect("the fixture is JSON");
    assert!(cases.len() > 150);
    let mut wrong = Vec::new();
    for Case { schema, old, given, refusals } in cases {
        let elsewhere = json!({"type": "integer", "x-kubernetes-validations": [{"rule": "self > 0"}]});
        let spec = json!({"type": "object", "properties": {"p": schema, "elsewhere": elsewhere}});
        let parsed = Schema::parse(&json!({"type": "object", "properties": {"spec": spec}}))
            .unwrap_or_else(|errors| panic!("{schema} is refused: {errors:?}"));
        let updated_and_ready = |value: Value| {
            let mut object = json!({"spec": {"p": value}});
            parsed.apply_defaults(&mut object);
            object
        };
        let old = old.map(updated_and_ready);
        let shown = given.clone();
        let ours = parsed.validate(&updated_and_ready(given), old.as_ref());
        let ours: BTreeSet<String> = ours.iter().map(ToString::to_string).collect();
        if ours != refusals {
            wrong.push(format!("{schema} {shown}\n  wanted {refusals:#?}\n  got {ours:#?}"));
        }
    }
    assert!(wrong.is_empty(), "{} differ:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn an_unchanged_invalid_value_is_accepted() {
    let spec = json!({"type": "object", "properties": {
        "a": {"type": "integer", "minimum": 0},
        "b": {"type": "integer", "x-kubernetes-validations": [{"rule": "self > 0", "message": "b must be positive"}]},
    }});
    let schema = Schema::parse(&json!({"type": "object", "properties": {"spec": spec}})).expect("structural");
    let update = |new: Value| {
        let old = json!({"spec": {"a": -1, "b": 0}});
        let errors = schema.validate(&json!({"spec": new}), Some(&old));
        errors.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    assert!(update(json!({"a": -1, "b": 0})).is_empty());
    assert_eq!(
        update(json!({"a": -2, "b": -1})),
        [
            "spec.a: Invalid value: -2: spec.a in body should be greater than or equal to 0",
            "spec.b: Invalid value: -1: b must be positive",
        ]
    );
}

#[derive(Deserialize)]
struct Definition {
    schema: Value,
    refusals: Vec<String>,
}

/// Each schema was sent to kube-apiserver 1.36.1; messages that come from a Go
/// library are truncated.
#[test]
fn schemas_are_refused_as_by_the_real_server() {
    let definitions: Vec<Definition> =
        serde_json::from_str(include_str!("definitions.fixture.json")).expect("the fixture is JSON");
    assert!(definitions.len() > 30);
    let mut wrong = Vec::new();
    for Definition { schema, refusals } in definitions {
        let ours: Vec<String> = match Schema::parse(&schema) {
            Ok(_) => Vec::new(),
            Err(errors) => errors.iter().map(ToString::to_string).collect(),
        };
        let same = |(ours, theirs): (&String, &String)| match theirs.strip_suffix('…') {
            Some(beginning) => ours.starts_with(beginning),
            None => ours == theirs,
        };
        if ours.len() != refusals.len() || !ours.iter().zip(&refusals).all(same) {
            wrong.push(format!("{schema}\n  wanted {refusals:#?}\n  got {ours:#?}"));
        }
    }
    assert!(wrong.is_empty(), "{} differ:\n{}", wrong.len(), wrong.join("\n"));
}
