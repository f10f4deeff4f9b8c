//! Manifests that are accepted, and the messages for those that are refused.

use std::collections::BTreeMap;

use kube::core::cel::Validator;
use serde_json::{Value, json};

use crate::definitions::schema_of;
use crate::{Server, normal, through_our_types};

/// A manifest that is refused, and the message.
#[derive(serde::Deserialize)]
struct RefusedManifest {
    write: Value,
    says: String,
}

pub async fn invalid_manifests_are_refused_with_a_message(server: &Server) {
    let mut wrong = Vec::new();
    for (kind, RefusedManifest { write, says }) in refusals() {
        match server.try_create(&manifest(&kind, &write)).await {
            Ok(_) => wrong.push(format!("{write}\n  was accepted, should say: {says}")),
            Err(message) if message.contains(&says) => {}
            Err(message) => wrong.push(format!("{write}\n  should say: {says}\n  says: {message}")),
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

pub async fn valid_manifests_are_kept_as_written(server: &Server) {
    let mut wrong = Vec::new();
    for (kind, write) in accepted() {
        let manifest = manifest(&kind, &write);
        match server.try_create(&manifest).await {
            Err(message) => wrong.push(format!("{write}\n  was refused: {message}")),
            Ok(stored) => {
                let (written, read) = (normal(&manifest["spec"]), normal(&stored["spec"]));
                let typed = normal(&through_our_types(&stored)["spec"]);
                if read != written || typed != written {
                    wrong.push(format!("written: {written}\n stored: {read}\n  typed: {typed}"));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

pub async fn an_explicit_null_equals_an_absent_field(server: &Server) {
    let mut manifest = manifest("Canary", &json!({"analysis": {"judge": {"type": "sequential"}}}));
    let analysis = &mut manifest["spec"]["analysis"];
    for field in ["interval", "maxWeight", "steps", "stepWeights", "iterations", "match", "onNoData"] {
        analysis[field] = Value::Null;
    }
    analysis["judge"]["falseRollback"] = Value::Null;
    analysis["metrics"][0]["thresholdRange"]["max"] = Value::Null;
    manifest["spec"]["service"]["targetPort"] = Value::Null;
    let stored = server.try_create(&manifest).await.expect("nulls are dropped");
    through_our_types(&stored);
}

/// One meaning written in two ways is one value to us.
pub async fn alternative_notations_are_equivalent(server: &Server) {
    let hook = |hook_type| json!({"webhooks": [{"name": "a", "url": "http://a", "type": hook_type}]});
    let alert =
        |severity| json!({"alerts": [{"name": "a", "severity": severity, "providerRef": {"name": "b"}}]});
    let judge = |share: Value| json!({"judge": {"type": "sequential", "falseRollback": share}});
    for (written, meant) in [
        (json!({"interval": "1.5h"}), json!({"interval": "1h30m"})),
        (json!({"stepWeight": 10.0}), json!({"stepWeight": 10})),
        (judge(json!(1)), judge(json!("1%"))),
        (hook(""), hook("rollout")),
        (alert(""), alert("info")),
    ] {
        let [written, meant] =
            [written, meant].map(|analysis| manifest("Canary", &json!({"analysis": analysis})));
        let stored =
            server.try_create(&written).await.unwrap_or_else(|message| panic!("{message}\n{written}"));
        assert_eq!(through_our_types(&stored)["spec"], through_our_types(&meant)["spec"]);
    }
}

/// The messages of the CEL rules, without an API server, are the same.
#[test]
fn the_cel_rules_hold_offline() {
    let mut wrong = Vec::new();
    let rules = serde_json::to_string(&serin::api::crds()).expect("definitions are JSON");
    for (kind, RefusedManifest { write, says }) in refusals() {
        let said_by_a_rule = rules.contains(json!(says).to_string().trim_matches('"'));
        let messages = offline(&manifest(&kind, &write));
        if said_by_a_rule && !messages.iter().any(|message| message.contains(&says)) {
            wrong.push(format!("{write}\n  should say: {says}\n  says: {messages:?}"));
        }
    }
    for (kind, write) in accepted() {
        let messages = offline(&manifest(&kind, &write));
        if !messages.is_empty() {
            wrong.push(format!("{write}\n  should pass, says: {messages:?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The violations of the CEL rules of a manifest's kind.
fn offline(manifest: &Value) -> Vec<String> {
    let crd = serin::api::crds()
        .into_iter()
        .find(|crd| manifest["kind"] == crd.spec.names.kind.as_str())
        .expect("one of our kinds");
    let schema = serde_json::to_value(schema_of(&crd)).expect("a schema is JSON");
    match Validator::new().validate(&schema, manifest, None) {
        Ok(()) => Vec::new(),
        Err(errors) => errors.iter().map(|error| error.message.clone()).collect(),
    }
}

fn refusals() -> impl Iterator<Item = (String, RefusedManifest)> {
    cases(include_str!("refused.yaml"))
}

fn accepted() -> impl Iterator<Item = (String, Value)> {
    cases(include_str!("accepted.yaml"))
}

/// Each case with the kind that it is about.
fn cases<T: serde::de::DeserializeOwned>(text: &str) -> impl Iterator<Item = (String, T)> {
    let cases: BTreeMap<String, Vec<T>> = serde_saphyr::from_str(text).expect("cases in YAML");
    cases.into_iter().flat_map(|(kind, cases)| cases.into_iter().map(move |case| (kind.clone(), case)))
}

/// The good manifest of a kind with something merged into its spec.
fn manifest(kind: &str, write: &Value) -> Value {
    let good: Vec<Value> = serde_saphyr::from_multiple(include_str!("good.yaml")).expect("good.yaml is YAML");
    let mut manifest =
        good.into_iter().find(|good| good["kind"] == kind).expect("a good manifest of each kind");
    json_patch::merge(&mut manifest["spec"], write);
    manifest
}
