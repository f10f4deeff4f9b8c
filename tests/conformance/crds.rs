//! CustomResourceDefinitions and what they govern.

use serde_json::{Value, json};

use crate::session::*;

pub const CRDS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";

pub async fn a_definition_is_established_and_names_accepted(t: Session) {
    let made = t.post(CRDS, definition(&t, json!({"type": "object"}), json!({}))).await.created();
    assert_eq!(made["spec"]["conversion"], json!({"strategy": "None"}));
    assert_eq!(made["spec"]["names"]["listKind"], "ThingList");
    let path = format!("{CRDS}/things.{}", group(&t));
    let crd = t.eventually(&path, "established", |crd| condition(crd, "Established") == "True").await;
    assert_eq!(condition(&crd, "NamesAccepted"), "True");
    assert_eq!(crd["status"]["acceptedNames"]["plural"], "things");
    assert_eq!(crd["status"]["storedVersions"], json!(["v1"]));
}

pub async fn a_definition_is_named_after_its_plural_and_group(t: Session) {
    let mut crd = definition(&t, json!({"type": "object"}), json!({}));
    crd["metadata"]["name"] = "other.example.dev".into();
    let answer = t.post(CRDS, crd).await;
    let expected = r#"CustomResourceDefinition.apiextensions.k8s.io "other.example.dev" is invalid: metadata.name: Invalid value: "other.example.dev": must be spec.names.plural+"."+spec.group"#;
    assert_eq!(answer.refused(422, "Invalid"), expected);
}

pub async fn a_definition_needs_a_structural_schema(t: Session) {
    let schema = json!({"type": "object", "properties": {"spec": {"properties": {"a": {"type": "string"}}}}});
    let answer = t.post(CRDS, definition(&t, schema, json!({}))).await;
    let message = answer.refused(422, "Invalid");
    let expected = ".openAPIV3Schema.properties[spec].type: Required value: must not be empty for specified object fields";
    assert!(message.contains(expected), "{message}");
}

pub async fn a_rule_that_does_not_compile_is_refused(t: Session) {
    let schema = json!({"type": "object", "properties": {"spec": {
        "type": "object",
        "properties": {"a": {"type": "integer"}},
        "x-kubernetes-validations": [{"rule": "self.b > 1", "message": "no b"}],
    }}});
    let answer = t.post(CRDS, definition(&t, schema, json!({}))).await;
    let message = answer.refused(422, "Invalid");
    assert!(message.contains("x-kubernetes-validations[0].rule: Invalid value: "), "{message}");
    assert!(message.contains("compilation failed"), "{message}");
    assert!(message.contains("undefined field 'b'"), "{message}");
}

pub async fn unknown_fields_are_pruned(t: Session) {
    let path = things(&t).await;
    let spec = json!({"colour": "red", "bogus": {"x": 1}, "list": [{"a": "1", "z": 2}], "free": {"any": {"at": "all"}}});
    let made = t.post(&path, thing(&t, "a", spec)).await.created();
    assert_eq!(made["spec"]["bogus"], Value::Null);
    assert_eq!(made["spec"]["list"], json!([{"a": "1", "b": 7}]));
    assert_eq!(made["spec"]["free"], json!({"any": {"at": "all"}}), "asked to be preserved");
}

pub async fn unknown_fields_are_reported(t: Session) {
    let path = things(&t).await;
    let spec = json!({"colour": "red", "bogus": 1, "list": [{"a": "1", "z": 2}]});
    let answer = t.post(&format!("{path}?fieldValidation=Strict"), thing(&t, "a", spec.clone())).await;
    let expected = r#"Thing in version "v1" cannot be handled as a Thing: strict decoding error: unknown field "spec.bogus", unknown field "spec.list[0].z""#;
    assert_eq!(answer.refused(400, "BadRequest"), expected);
    let expected = [r#"unknown field "spec.bogus""#, r#"unknown field "spec.list[0].z""#];
    for (name, query) in [("a", "?fieldValidation=Warn"), ("b", "")] {
        let answer = t.post(&format!("{path}{query}"), thing(&t, name, spec.clone())).await;
        assert_eq!(answer.warnings(), expected, "{query}");
        answer.created();
    }
    let answer = t.post(&format!("{path}?fieldValidation=Ignore"), thing(&t, "c", spec)).await;
    assert!(answer.warnings().is_empty());
    answer.created();
}

pub async fn defaults_are_filled_in(t: Session) {
    let path = things(&t).await;
    let made = t.post(&path, thing(&t, "a", json!({"colour": "red", "list": [{"a": "1"}]}))).await.created();
    assert_eq!(made["spec"]["replicas"], 2);
    assert_eq!(made["spec"]["list"][0]["b"], 7);
    let made = t.post(&path, thing(&t, "b", json!({"colour": "red", "replicas": null}))).await.created();
    assert_eq!(made["spec"]["replicas"], 2, "null is absent where it is not allowed");
    let made = t.post(&path, thing(&t, "c", json!({"colour": "red", "maybe": null}))).await.created();
    assert!(made["spec"].as_object().expect("a spec").contains_key("maybe"), "and kept where it is");
}

pub async fn each_violation_has_the_message_of_the_real_server(t: Session) {
    let path = things(&t).await;
    for (spec, field, reason, message) in [
        (
            json!({"colour": "green"}),
            "spec.colour",
            "FieldValueNotSupported",
            r#"Unsupported value: "green": supported values: "red", "blue""#,
        ),
        (json!({}), "spec.colour", "FieldValueRequired", "Required value"),
        (json!({"colour": null}), "spec.colour", "FieldValueRequired", "Required value"),
        (
            json!({"colour": "red", "replicas": 11}),
            "spec.replicas",
            "FieldValueInvalid",
            "Invalid value: 11: spec.replicas in body should be less than or equal to 10",
        ),
        (
            json!({"colour": "red", "replicas": -1}),
            "spec.replicas",
            "FieldValueInvalid",
            "Invalid value: -1: spec.replicas in body should be greater than or equal to 0",
        ),
        (
            json!({"colour": "red", "replicas": "x"}),
            "spec.replicas",
            "FieldValueTypeInvalid",
            r#"Invalid value: "string": spec.replicas in body must be of type integer: "string""#,
        ),
        (
            json!({"colour": "red", "name": "ABC"}),
            "spec.name",
            "FieldValueInvalid",
            r#"Invalid value: "ABC": spec.name in body should match '^[a-z]+$'"#,
        ),
        (
            json!({"colour": "red", "name": "toolong"}),
            "spec.name",
            "FieldValueTooLong",
            "Too long: may not be more than 5 bytes",
        ),
        (
            json!({"colour": "red", "name": ""}),
            "spec.name",
            "FieldValueInvalid",
            r#"Invalid value: "": spec.name in body should be at least 1 chars long"#,
        ),
        (
            json!({"colour": "red", "list": [{"b": 1}]}),
            "spec.list[0].a",
            "FieldValueRequired",
            "Required value",
        ),
        (
            json!({"colour": "red", "list": [{"a": "1"}, {"a": "2"}, {"a": "3"}]}),
            "spec.list",
            "FieldValueTooMany",
            "Too many: 3: must have at most 2 items",
        ),
        (
            json!({"colour": "red", "list": []}),
            "spec.list",
            "FieldValueInvalid",
            "Invalid value: 0: spec.list in body should have at least 1 items",
        ),
        (
            json!({"colour": "red", "either": 1.5}),
            "spec.either",
            "FieldValueTypeInvalid",
            r#"Invalid value: "number": spec.either in body must be of type integer,string: "number""#,
        ),
        (
            json!({"colour": "red", "tags": ["a", "a"]}),
            "spec.tags[1]",
            "FieldValueDuplicate",
            r#"Duplicate value: "a""#,
        ),
        (
            json!({"colour": "red", "map": [{"k": "a"}, {"k": "a"}]}),
            "spec.map[1]",
            "FieldValueDuplicate",
            r#"Duplicate value: {"k":"a"}"#,
        ),
    ] {
        let answer = t.post(&path, thing(&t, "a", spec.clone())).await;
        let text = answer.refused(422, "Invalid");
        assert!(text.starts_with(&format!(r#"Thing.{} "a" is invalid: "#, group(&t))), "{text}");
        assert!(text.contains(&format!("{field}: {message}")), "{spec}: {text}");
        let causes = answer.body["details"]["causes"].as_array().expect("causes");
        let expected = json!({"reason": reason, "message": message, "field": field});
        assert!(causes.contains(&expected), "{spec}: {causes:?}");
        assert_eq!(answer.body["details"]["group"], group(&t));
        assert_eq!(answer.body["details"]["kind"], "Thing");
    }
}

pub async fn a_missing_spec_is_reported(t: Session) {
    let path = things(&t).await;
    let body = json!({"apiVersion": api_version(&t), "kind": "Thing", "metadata": {"name": "a"}});
    let answer = t.post(&path, body).await;
    let message = answer.refused(422, "Invalid");
    assert!(message.contains("spec: Required value"), "{message}");
    let mut wrong = thing(&t, "a", json!({}));
    wrong["spec"] = "text".into();
    let answer = t.post(&path, wrong).await;
    let message = answer.refused(422, "Invalid");
    let expected = r#"spec: Invalid value: "string": spec in body must be of type object: "string""#;
    assert!(message.contains(expected), "{message}");
}

pub async fn rules_refuse_with_their_message(t: Session) {
    let path = things(&t).await;
    let answer = t.post(&path, thing(&t, "a", json!({"colour": "red", "min": 3, "max": 2}))).await;
    let expected =
        format!(r#"Thing.{} "a" is invalid: spec.min: Invalid value: min is at most max"#, group(&t));
    assert_eq!(answer.refused(422, "Invalid"), expected, "at the rule's field path");
    let answer = t.post(&path, thing(&t, "a", json!({"colour": "blue", "replicas": 6}))).await;
    let expected = format!(r#"Thing.{} "a" is invalid: spec: Invalid value: too many for blue"#, group(&t));
    assert_eq!(answer.refused(422, "Invalid"), expected, "with the message its expression makes");
    t.post(&path, thing(&t, "a", json!({"colour": "blue", "replicas": 4, "min": 2, "max": 2})))
        .await
        .created();
}

pub async fn rules_see_the_old_value(t: Session) {
    let path = things(&t).await;
    t.post(&path, thing(&t, "a", json!({"colour": "red", "fixed": "1"}))).await.created();
    let answer = t.patch(Patch::Merge, &format!("{path}/a"), json!({"spec": {"fixed": "2"}})).await;
    let expected =
        format!(r#"Thing.{} "a" is invalid: spec.fixed: Invalid value: "2": fixed cannot change"#, group(&t));
    assert_eq!(answer.refused(422, "Invalid"), expected);
    t.patch(Patch::Merge, &format!("{path}/a"), json!({"spec": {"replicas": 3}})).await.ok();
}

pub async fn an_update_of_a_custom_object_names_its_version(t: Session) {
    let path = things(&t).await;
    let made = t.post(&path, thing(&t, "a", json!({"colour": "red"}))).await.created();
    let answer = t.put(&format!("{path}/a"), thing(&t, "a", json!({"colour": "blue"}))).await;
    let expected = format!(
        r#"things.{} "a" is invalid: metadata.resourceVersion: Invalid value: 0: must be specified for an update"#,
        group(&t)
    );
    assert_eq!(answer.refused(422, "Invalid"), expected);
    let mut body = thing(&t, "a", json!({"colour": "blue"}));
    body["metadata"]["resourceVersion"] = version(&made).into();
    let updated = t.put(&format!("{path}/a"), body).await.ok();
    assert_eq!(updated["metadata"]["generation"], 2);
}

pub async fn a_custom_object_has_no_strategic_patch(t: Session) {
    let path = things(&t).await;
    t.post(&path, thing(&t, "a", json!({"colour": "red"}))).await.created();
    let answer = t.patch(Patch::Strategic, &format!("{path}/a"), json!({"spec": {"colour": "blue"}})).await;
    let expected = "the body of the request was in an unknown format - accepted media types include: application/json-patch+json, application/merge-patch+json, application/apply-patch+yaml";
    assert_eq!(answer.refused(415, "UnsupportedMediaType"), expected);
}

pub async fn a_custom_object_names_its_kind(t: Session) {
    let path = things(&t).await;
    let answer = t.post(&path, json!({"metadata": {"name": "a"}, "spec": {"colour": "red"}})).await;
    let message = answer.refused(400, "BadRequest");
    let expected =
        "the object provided is unrecognized (must be of type Thing): Object 'Kind' is missing in ";
    assert!(message.starts_with(expected), "{message}");
}

pub async fn apply_knows_the_lists_of_a_custom_object(t: Session) {
    let path = format!("{}/a", things(&t).await);
    let one = json!({"colour": "red", "map": [{"k": "1", "v": "one"}], "tags": ["a"]});
    t.apply("one", &path, thing(&t, "a", one.clone())).await.created();
    let two = json!({"map": [{"k": "2", "v": "two"}], "tags": ["b"]});
    let both = t.apply("two", &path, thing(&t, "a", two)).await.ok();
    assert_eq!(both["spec"]["map"], json!([{"k": "1", "v": "one"}, {"k": "2", "v": "two"}]));
    assert_eq!(both["spec"]["tags"], json!(["a", "b"]));
    let two = json!({"map": [{"k": "1", "v": "two"}]});
    let answer = t.apply("two", &path, thing(&t, "a", two)).await;
    let expected = r#"Apply failed with 1 conflict: conflict with "one": .spec.map[k="1"].v"#;
    assert_eq!(answer.refused(409, "Conflict"), expected);
    let two = json!({"list": [{"a": "x"}]});
    let less = t.apply("two", &path, thing(&t, "a", two)).await.ok();
    assert_eq!(less["spec"]["map"], one["map"]);
    assert_eq!(less["spec"]["tags"], one["tags"]);
    let answer = t.apply("one", &path, thing(&t, "a", json!({"colour": "red", "list": [{"a": "y"}]}))).await;
    let expected = r#"Apply failed with 1 conflict: conflict with "two": .spec.list"#;
    assert_eq!(
        answer.refused(409, "Conflict"),
        expected,
        "a list is owned whole unless the schema says otherwise"
    );
}

pub async fn only_served_versions_are_served(t: Session) {
    let schema = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    let mut crd = definition(&t, schema.clone(), json!({}));
    let version = |name: &str, served: bool| json!({"name": name, "served": served, "storage": false, "schema": {"openAPIV3Schema": schema}});
    let versions = crd["spec"]["versions"].as_array_mut().expect("versions");
    versions.push(version("v2", true));
    versions.push(version("v3", false));
    let v1 = establish(&t, crd).await;
    let made = t.post(&v1, thing(&t, "a", json!({"k": 1}))).await.created();
    let v2 = v1.replace("/v1/", "/v2/");
    let same = t.eventually(&format!("{v2}/a"), "served", |_| true).await;
    assert_eq!(same["apiVersion"], format!("{}/v2", group(&t)));
    assert_eq!(uid(&same), uid(&made));
    assert_eq!(t.get(&v1.replace("/v1/", "/v3/")).await.code, 404);
}

pub async fn a_cluster_scoped_kind_has_no_namespace(t: Session) {
    let mut crd = definition(&t, json!({"type": "object"}), json!({}));
    crd["spec"]["scope"] = "Cluster".into();
    t.post(CRDS, crd).await.created();
    let path = format!("/apis/{}/things", api_version(&t));
    t.eventually(&path, "served", |list| list["kind"] == "ThingList").await;
    let body = json!({"apiVersion": api_version(&t), "kind": "Thing", "metadata": {"name": "a"}});
    let made = t.post(&path, body).await.created();
    assert_eq!(made["metadata"]["namespace"], Value::Null);
    t.get(&format!("{path}/a")).await.ok();
    assert_eq!(t.get(&format!("/apis/{}/namespaces/{{ns}}/things", api_version(&t))).await.code, 404);
}

pub async fn deleting_a_definition_deletes_its_objects(t: Session) {
    let path = plain(&t).await;
    let made = t.post(&path, thing(&t, "a", json!({}))).await.created();
    let mut watch = t.watch(&format!("{path}?resourceVersion={}", version(&made))).await;
    t.delete(&format!("{CRDS}/things.{}", group(&t))).await.ok();
    assert_eq!(watch.next_summary().await, "DELETED a");
    t.eventually_gone(&format!("{CRDS}/things.{}", group(&t))).await;
    t.eventually_gone(&path).await;
    establish(&t, definition(&t, json!({"type": "object"}), json!({}))).await;
    assert_eq!(t.get(&path).await.ok()["items"], json!([]), "a definition of the same name starts empty");
}

pub async fn a_changed_definition_applies_at_once(t: Session) {
    let path = plain(&t).await;
    t.post(&path, thing(&t, "a", json!({"size": 1}))).await.created();
    let schema = json!({"type": "object", "properties": {"spec": {
        "type": "object", "properties": {"size": {"type": "integer", "minimum": 5}},
    }}});
    let patch = json!([
        {"op": "replace", "path": "/spec/versions/0/schema/openAPIV3Schema", "value": schema},
    ]);
    t.patch(Patch::Json, &format!("{CRDS}/things.{}", group(&t)), patch).await.ok();
    let mut refused = false;
    for i in 0..100 {
        let answer =
            t.post(&format!("{path}?dryRun=All"), thing(&t, &format!("b{i}"), json!({"size": 1}))).await;
        if answer.code == 422 {
            refused = true;
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    }
    assert!(refused, "the new bound never came into force");
    assert_eq!(t.get(&format!("{path}/a")).await.ok()["spec"]["size"], 1, "what is stored stays readable");
}

/// A group of the law's own.
pub fn group(t: &Session) -> String {
    format!("{}.example.dev", t.ns)
}

pub fn api_version(t: &Session) -> String {
    format!("{}/v1", group(t))
}

pub fn thing(t: &Session, name: &str, spec: Value) -> Value {
    json!({"apiVersion": api_version(t), "kind": "Thing", "metadata": {"name": name}, "spec": spec})
}

/// Kind Thing that takes anything below `spec`; the path of its instances.
pub async fn plain(t: &Session) -> String {
    let schema = json!({
        "type": "object",
        "properties": {"spec": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}},
    });
    establish(t, definition(t, schema, json!({}))).await
}

/// Kind Thing with a bit of everything a schema can express; the path of its
/// instances.
pub async fn things(t: &Session) -> String {
    let spec = json!({
        "type": "object",
        "required": ["colour"],
        "properties": {
            "colour": {"type": "string", "maxLength": 10, "enum": ["red", "blue"]},
            "replicas": {"type": "integer", "minimum": 0, "maximum": 10, "default": 2},
            "name": {"type": "string", "pattern": "^[a-z]+$", "minLength": 1, "maxLength": 5},
            "list": {"type": "array", "minItems": 1, "maxItems": 2, "items": {
                "type": "object",
                "required": ["a"],
                "properties": {"a": {"type": "string"}, "b": {"type": "integer", "default": 7}},
            }},
            "fixed": {"type": "string", "maxLength": 10, "x-kubernetes-validations": [
                {"rule": "self == oldSelf", "message": "fixed cannot change"},
            ]},
            "min": {"type": "integer"},
            "max": {"type": "integer"},
            "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
            "either": {"x-kubernetes-int-or-string": true},
            "maybe": {"type": "string", "nullable": true},
            "tags": {"type": "array", "items": {"type": "string"}, "x-kubernetes-list-type": "set"},
            "map": {
                "type": "array",
                "maxItems": 10,
                "x-kubernetes-list-type": "map",
                "x-kubernetes-list-map-keys": ["k"],
                "items": {
                    "type": "object",
                    "required": ["k"],
                    "properties": {"k": {"type": "string"}, "v": {"type": "string"}},
                },
            },
        },
        "x-kubernetes-validations": [
            {
                "rule": "!has(self.min) || !has(self.max) || self.min <= self.max",
                "message": "min is at most max",
                "fieldPath": ".min",
            },
            {
                "rule": "self.colour != 'blue' || self.replicas < 5",
                "messageExpression": "'too many for ' + self.colour",
            },
        ],
    });
    let status = json!({
        "type": "object",
        "properties": {
            "replicas": {"type": "integer"}, "selector": {"type": "string"}, "phase": {"type": "string"},
        },
    });
    let schema =
        json!({"type": "object", "required": ["spec"], "properties": {"spec": spec, "status": status}});
    let more = json!({
        "subresources": {
            "status": {},
            "scale": {
                "specReplicasPath": ".spec.replicas",
                "statusReplicasPath": ".status.replicas",
                "labelSelectorPath": ".status.selector",
            },
        },
        "additionalPrinterColumns": [
            {"name": "Colour", "type": "string", "jsonPath": ".spec.colour"},
            {"name": "Many", "type": "integer", "jsonPath": ".spec.replicas", "priority": 1},
            {"name": "Phase", "type": "string", "jsonPath": ".status.phase", "description": "How it is."},
            {"name": "First", "type": "string", "jsonPath": ".spec.map[?(@.k==\"first\")].v"},
            {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"},
        ],
    });
    establish(t, definition(t, schema, more)).await
}

pub fn condition<'a>(object: &'a Value, kind: &str) -> &'a str {
    let conditions = object["status"]["conditions"].as_array().map(Vec::as_slice).unwrap_or_default();
    conditions.iter().find(|c| c["type"] == kind).and_then(|c| c["status"].as_str()).unwrap_or_default()
}

/// Kind Thing in one version, with this schema and these further fields.
fn definition(t: &Session, schema: Value, more: Value) -> Value {
    let mut version =
        json!({"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema}});
    let more = more.as_object().expect("fields of a version").clone();
    version.as_object_mut().expect("an object").extend(more);
    let names = json!({
        "plural": "things", "singular": "thing", "kind": "Thing", "shortNames": ["th"], "categories": ["all"],
    });
    json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("things.{}", group(t))},
        "spec": {"group": group(t), "scope": "Namespaced", "names": names, "versions": [version]},
    })
}

async fn establish(t: &Session, definition: Value) -> String {
    t.post(CRDS, definition).await.created();
    let path = format!("{CRDS}/things.{}", group(t));
    t.eventually(&path, "established", |crd| condition(crd, "Established") == "True").await;
    let path = format!("/apis/{}/namespaces/{{ns}}/things", api_version(t));
    t.eventually(&path, "served", |list| list["kind"] == "ThingList").await;
    path
}
