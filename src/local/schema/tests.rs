//! Wording, held against what kube-apiserver 1.36.1 answered to the same.

use serde_json::{Value, json};

use super::Schema;

fn messages(spec: Value, value: Value) -> Vec<String> {
    update(spec, value, None)
}

fn update(spec: Value, value: Value, old: Option<Value>) -> Vec<String> {
    let schema =
        Schema::parse(&json!({"type": "object", "properties": {"spec": spec}})).unwrap_or_else(|errors| {
            panic!("not structural: {errors:?}");
        });
    let old = old.map(|old| json!({"spec": old}));
    schema.validate(&json!({"spec": value}), old.as_ref()).iter().map(ToString::to_string).collect()
}

#[test]
fn a_type_mismatch_names_both_types() {
    for (spec, value, message) in [
        (json!({"type": "string"}), json!(1), r#""integer": spec in body must be of type string: "integer""#),
        (
            json!({"type": "integer"}),
            json!("x"),
            r#""string": spec in body must be of type integer: "string""#,
        ),
        (
            json!({"type": "integer"}),
            json!(1.5),
            r#""number": spec in body must be of type integer: "number""#,
        ),
        (
            json!({"type": "integer", "format": "int32"}),
            json!(true),
            r#""": spec in body must be of type int32: """#,
        ),
        (
            json!({"x-kubernetes-int-or-string": true}),
            json!(true),
            r#""boolean": spec in body must be of type integer,string: "boolean""#,
        ),
        (
            json!({"type": "string", "format": "date-time"}),
            json!("yesterday"),
            r#""yesterday": spec in body must be of type date-time: "yesterday""#,
        ),
    ] {
        assert_eq!(messages(spec, value), [format!("spec: Invalid value: {message}")]);
    }
}

#[test]
fn a_whole_float_is_an_integer_and_an_integer_a_number() {
    assert!(messages(json!({"type": "integer"}), json!(2.0)).is_empty());
    assert!(messages(json!({"type": "number"}), json!(2)).is_empty());
}

#[test]
fn bounds_say_what_they_are() {
    for (spec, value, message) in [
        (
            json!({"type": "integer", "minimum": 0}),
            json!(-1),
            "Invalid value: -1: spec in body should be greater than or equal to 0",
        ),
        (
            json!({"type": "number", "maximum": 1.5, "exclusiveMaximum": true}),
            json!(1.5),
            "Invalid value: 1.5: spec in body should be less than 1.5",
        ),
        (
            json!({"type": "integer", "multipleOf": 5}),
            json!(7),
            "Invalid value: 7: spec in body should be a multiple of 5",
        ),
        (json!({"type": "string", "maxLength": 2}), json!("abc"), "Too long: may not be more than 2 bytes"),
        (
            json!({"type": "string", "minLength": 1}),
            json!(""),
            r#"Invalid value: "": spec in body should be at least 1 chars long"#,
        ),
        (
            json!({"type": "string", "pattern": "^a+$"}),
            json!("b"),
            r#"Invalid value: "b": spec in body should match '^a+$'"#,
        ),
        (
            json!({"type": "array", "maxItems": 1, "items": {"type": "integer"}}),
            json!([1, 2]),
            "Too many: 2: must have at most 1 item",
        ),
        (
            json!({"type": "array", "minItems": 1, "items": {"type": "integer"}}),
            json!([]),
            "Invalid value: 0: spec in body should have at least 1 items",
        ),
        (
            json!({"type": "object", "minProperties": 1}),
            json!({}),
            "Invalid value: 0: spec in body should have at least 1 properties",
        ),
        (
            json!({"type": "string", "enum": ["a", "b"]}),
            json!("x"),
            r#"Unsupported value: "x": supported values: "a", "b""#,
        ),
        (
            json!({"type": "integer", "enum": [1, 2]}),
            json!(3),
            r#"Unsupported value: 3: supported values: "1", "2""#,
        ),
    ] {
        assert_eq!(messages(spec, value), [format!("spec: {message}")]);
    }
}

#[test]
fn a_missing_field_is_required_and_rules_wait_for_it() {
    let spec = json!({"type": "object", "required": ["a"], "properties": {"a": {"type": "string"}},
        "x-kubernetes-validations": [{"rule": "self.a == 'x'"}]});
    assert_eq!(
        messages(spec, json!({})),
        [
            "spec.a: Required value",
            "<nil>: Invalid value: null: some validation rules were not checked because the object was invalid; \
             correct the existing errors to complete validation",
        ]
    );
}

#[test]
fn a_value_beyond_its_format_is_told_without_a_place() {
    assert_eq!(
        messages(json!({"type": "integer", "format": "int32"}), json!(3_000_000_000_i64)),
        [r#"<nil>: Invalid value: "": Checked value must be of type integer with format int32 in spec"#]
    );
}

#[test]
fn alternatives_explain_the_one_that_came_closest() {
    let spec = json!({"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "string"}},
        "oneOf": [{"required": ["a"]}, {"required": ["b"]}]});
    assert_eq!(
        messages(spec.clone(), json!({})),
        [
            r#"<nil>: Invalid value: "": "spec" must validate one and only one schema (oneOf). Found none valid"#,
            "spec.a: Required value",
        ]
    );
    assert_eq!(
        messages(spec, json!({"a": "", "b": ""})),
        [
            r#"<nil>: Invalid value: "": "spec" must validate one and only one schema (oneOf). Found 2 valid alternatives"#
        ]
    );
    let spec = json!({"type": "string", "allOf": [{"minLength": 2}], "not": {"enum": ["x"]}});
    assert_eq!(
        messages(spec, json!("x")),
        [
            r#"spec: Invalid value: "x": spec in body should be at least 2 chars long"#,
            r#"<nil>: Invalid value: "": "spec" must validate all the schemas (allOf). None validated"#,
            r#"<nil>: Invalid value: "": "spec" must not validate the schema (not)"#,
        ]
    );
}

#[test]
fn what_was_wrong_and_did_not_change_may_stay() {
    let spec = json!({"type": "object", "properties": {
        "a": {"type": "integer", "minimum": 0},
        "b": {"type": "integer", "x-kubernetes-validations": [{"rule": "self > 0", "message": "b must be positive"}]},
    }});
    let old = json!({"a": -1, "b": 0});
    assert!(update(spec.clone(), json!({"a": -1, "b": 0}), Some(old.clone())).is_empty());
    assert_eq!(
        update(spec, json!({"a": -2, "b": -1}), Some(old)),
        [
            "spec.a: Invalid value: -2: spec.a in body should be greater than or equal to 0",
            "spec.b: Invalid value: -1: b must be positive",
        ]
    );
}

#[test]
fn a_rule_speaks_at_its_field_with_its_reason() {
    let spec = json!({"type": "object",
    "properties": {
        "min": {"type": "integer"}, "max": {"type": "integer"},
        "steps": {"type": "object", "additionalProperties": {"type": "integer",
            "x-kubernetes-validations": [{"rule": "self < 10"}]}},
    },
    "x-kubernetes-validations": [
        {"rule": "!has(self.max) || self.min <= self.max", "messageExpression": "'min ' + string(self.min) + ' is too much'"},
        {"rule": "!has(self.max) || self.max < 100", "message": "max is at most 99", "fieldPath": ".max", "reason": "FieldValueForbidden"},
    ]});
    assert_eq!(
        messages(spec, json!({"min": 200, "max": 100, "steps": {"x": 11}})),
        [
            "spec: Invalid value: min 200 is too much",
            "spec.max: Forbidden: max is at most 99",
            "spec.steps[x]: Invalid value: 11: failed rule: self < 10",
        ]
    );
}

#[test]
fn transition_rules_follow_list_items_by_their_key() {
    let spec = json!({"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"],
    "items": {"type": "object", "required": ["name"], "properties": {
        "name": {"type": "string"},
        "port": {"type": "integer", "x-kubernetes-validations": [{"rule": "self == oldSelf", "message": "port is immutable"}]},
    }}});
    let old = json!([{"name": "a", "port": 1}, {"name": "b", "port": 2}]);
    assert!(
        update(spec.clone(), json!([{"name": "b", "port": 2}, {"name": "c", "port": 3}]), Some(old.clone()))
            .is_empty()
    );
    assert_eq!(
        update(spec.clone(), json!([{"name": "b", "port": 1}]), Some(old)),
        ["spec[0].port: Invalid value: 1: port is immutable"]
    );
    assert!(messages(spec, json!([{"name": "b", "port": 1}])).is_empty());
}

#[test]
fn an_optional_old_self_is_asked_on_creation_too() {
    let spec = json!({"type": "string", "x-kubernetes-validations": [
        {"rule": "oldSelf.hasValue() || self == 'new'", "optionalOldSelf": true, "message": "begin with new"}]});
    assert_eq!(messages(spec.clone(), json!("x")), [r#"spec: Invalid value: "x": begin with new"#]);
    assert!(update(spec, json!("x"), Some(json!("new"))).is_empty());
}

#[test]
fn rules_see_typed_values_and_escaped_names() {
    let spec = json!({"type": "object",
    "properties": {
        "at": {"type": "string", "format": "date-time"},
        "for": {"type": "string", "format": "duration"},
        "x-y": {"type": "number"},
    },
    "x-kubernetes-validations": [
        {"rule": "self.at > timestamp('2026-01-01T00:00:00Z')"},
        {"rule": "self.__for__ < duration('1h')"},
        {"rule": "self.x__dash__y > 0.5"},
    ]});
    assert!(messages(spec, json!({"at": "2026-02-01T00:00:00Z", "for": "5m", "x-y": 1})).is_empty());
}

#[derive(serde::Deserialize)]
struct Definition {
    schema: Value,
    refusals: Vec<String>,
}

/// Each schema was put to kube-apiserver 1.36.1; where its words are those of
/// a Go library, the answer is cut short.
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
