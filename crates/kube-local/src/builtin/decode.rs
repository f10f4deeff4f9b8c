//! Decoding errors of built-in kinds, with the messages of Go's decoder.
//!
//! The real server decodes built-in kinds into Go structs before validation, and
//! a mismatch is a bad request. Called only if the schema has found one.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;

use super::component;
use crate::kinds::Resource;
use crate::schema::{go_quote, is_quantity, kubernetes};

/// `None` if the object can be decoded.
pub(super) fn type_mismatch(kind: &Resource, object: &Value) -> Option<String> {
    let component = component(&kind.group, &kind.version, &kind.kind);
    let schema = kubernetes::components().get(&component)?;
    fields(schema, object, short(&component), "")
}

fn fields(schema: &Value, object: &Value, owner: &str, path: &str) -> Option<String> {
    let properties = schema.get("properties")?.as_object()?;
    object.as_object()?.iter().find_map(|(name, value)| {
        let embedded = match owner {
            "Probe" if matches!(name.as_str(), "exec" | "grpc" | "httpGet" | "tcpSocket") => "ProbeHandler.",
            "Volume" if name != "name" => "VolumeSource.",
            _ => "",
        };
        let path = if path.is_empty() { name.clone() } else { format!("{path}.{embedded}{name}") };
        field(properties.get(name)?, value, owner, &path)
    })
}

fn field(schema: &Value, value: &Value, owner: &str, path: &str) -> Option<String> {
    if value.is_null() {
        return None;
    }
    let wrong = |go_type: &str| {
        let numeric = go_type.starts_with("int") || go_type.starts_with("float");
        let found = match value {
            Value::Number(number) if numeric => format!("number {number}"),
            Value::Number(_) => "number".to_owned(),
            Value::Null => "null".to_owned(),
            Value::Bool(_) => "bool".to_owned(),
            Value::String(_) => "string".to_owned(),
            Value::Array(_) => "array".to_owned(),
            Value::Object(_) => "object".to_owned(),
        };
        Some(format!("json: cannot unmarshal {found} into Go struct field {owner}.{path} of type {go_type}"))
    };
    if let Some(component) = kubernetes::referenced(schema) {
        return match short(component) {
            "Quantity" => quantity(value),
            "IntOrString" => match value {
                Value::String(_) => None,
                Value::Number(number) if is_int32(number) => None,
                _ => wrong("int32"),
            },
            name @ ("Time" | "MicroTime") => match value {
                Value::String(text) => time(text, name),
                _ => wrong("string"),
            },
            name => {
                let schema = kubernetes::components().get(component)?;
                match value {
                    Value::Object(_) => fields(schema, value, name, path),
                    _ if schema.get("properties").is_some() => wrong(&format!("v1.{name}")),
                    _ => None,
                }
            }
        };
    }
    match schema.get("type").and_then(Value::as_str) {
        Some("string") if schema.get("format").and_then(Value::as_str) == Some("byte") => match value {
            Value::String(text) => base64(text),
            _ => wrong("[]uint8"),
        },
        Some("string") if !value.is_string() => wrong("string"),
        Some("boolean") if !value.is_boolean() => wrong("bool"),
        Some("integer") => match (schema.get("format").and_then(Value::as_str), value) {
            (Some("int32"), Value::Number(number)) if is_int32(number) => None,
            (Some("int32"), _) => wrong("int32"),
            (_, Value::Number(number)) if number.is_i64() => None,
            _ => wrong("int64"),
        },
        Some("number") if !value.is_number() => wrong("float64"),
        Some("array") => match value {
            Value::Array(items) => {
                let item = schema.get("items")?;
                items.iter().find_map(|value| field(item, value, owner, path))
            }
            _ => wrong(&format!("[]{}", go_type(schema.get("items")))),
        },
        Some("object") => match (schema.get("additionalProperties"), value) {
            (Some(entry), Value::Object(entries)) => {
                entries.values().find_map(|value| field(entry, value, owner, path))
            }
            (Some(entry), _) => wrong(&format!("map[string]{}", go_type(Some(entry)))),
            (None, _) => None,
        },
        _ => None,
    }
}

fn go_type(schema: Option<&Value>) -> String {
    let Some(schema) = schema else { return "interface {}".to_owned() };
    match (kubernetes::referenced(schema).map(short), schema.get("type").and_then(Value::as_str)) {
        (Some(name), _) => format!("v1.{name}"),
        (None, Some("boolean")) => "bool".to_owned(),
        (None, Some("integer")) => schema.get("format").and_then(Value::as_str).unwrap_or("int64").to_owned(),
        (None, Some("array")) => format!("[]{}", go_type(schema.get("items"))),
        (None, _) if schema.get("format").and_then(Value::as_str) == Some("byte") => "[]uint8".to_owned(),
        (None, _) => "string".to_owned(),
    }
}

fn short(component: &str) -> &str {
    component.rsplit('.').next().unwrap_or(component)
}

fn is_int32(number: &serde_json::Number) -> bool {
    number.as_i64().is_some_and(|integer| i32::try_from(integer).is_ok())
}

fn base64(text: &str) -> Option<String> {
    let offset = match STANDARD.decode(text).err()? {
        base64::DecodeError::InvalidByte(offset, _) | base64::DecodeError::InvalidLastSymbol(offset, _) => {
            offset
        }
        base64::DecodeError::InvalidLength(length) => length / 4 * 4,
        base64::DecodeError::InvalidPadding => text.len() / 4 * 4,
    };
    Some(format!("illegal base64 data at input byte {offset}"))
}

fn time(text: &str, kind: &str) -> Option<String> {
    if text.is_empty() || text.parse::<jiff::Timestamp>().is_ok() {
        return None;
    }
    let layout =
        if kind == "Time" { "2006-01-02T15:04:05Z07:00" } else { "2006-01-02T15:04:05.000000Z07:00" };
    let quoted = go_quote(text);
    Some(format!("parsing time {quoted} as \"{layout}\": cannot parse {quoted} as \"2006\""))
}

fn quantity(value: &Value) -> Option<String> {
    let fits = match value {
        Value::String(text) => is_quantity(text),
        Value::Number(_) => true,
        Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_) => false,
    };
    let wanted =
        "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'";
    (!fits).then(|| wanted.to_owned())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::{all, decode_error};

    fn mismatch_of(kind: &str, rest: Value) -> Option<String> {
        let kinds = all();
        let kind = kinds.iter().find(|resource| resource.kind == kind).expect("a built-in kind");
        decode_error(kind, &rest)
    }

    /// Messages of kube-apiserver 1.36.1 for the same objects.
    #[test]
    fn mismatches_are_reported_as_by_gos_decoder() {
        let container = |fields: Value| {
            let mut container = json!({"name": "c", "image": "x"});
            container
                .as_object_mut()
                .expect("an object")
                .extend(fields.as_object().expect("an object").clone());
            json!({"spec": {"containers": [container]}})
        };
        for (kind, object, expected) in [
            (
                "Secret",
                json!({"data": {"a": 5}}),
                "json: cannot unmarshal number into Go struct field Secret.data of type []uint8",
            ),
            ("Secret", json!({"data": {"a": "a!b="}}), "illegal base64 data at input byte 1"),
            (
                "Pod",
                container(json!({"resources": {"limits": {"cpu": "1x"}}})),
                "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'",
            ),
            (
                "Pod",
                json!({"metadata": {"creationTimestamp": "x"}}),
                "parsing time \"x\" as \"2006-01-02T15:04:05Z07:00\": cannot parse \"x\" as \"2006\"",
            ),
            (
                "Pod",
                container(json!({"readinessProbe": {"httpGet": {"port": 1.5}}})),
                "json: cannot unmarshal number 1.5 into Go struct field HTTPGetAction.spec.containers.readinessProbe.ProbeHandler.httpGet.port of type int32",
            ),
            (
                "Pod",
                container(json!({"env": {}})),
                "json: cannot unmarshal object into Go struct field Container.spec.containers.env of type []v1.EnvVar",
            ),
            (
                "Pod",
                json!({"spec": []}),
                "json: cannot unmarshal array into Go struct field Pod.spec of type v1.PodSpec",
            ),
            (
                "Pod",
                json!({"spec": {"containers": ["a"]}}),
                "json: cannot unmarshal string into Go struct field PodSpec.spec.containers of type v1.Container",
            ),
            (
                "Service",
                json!({"spec": {"selector": {"a": true}}}),
                "json: cannot unmarshal bool into Go struct field ServiceSpec.spec.selector of type string",
            ),
            (
                "Deployment",
                json!({"spec": {"replicas": 30_000_000_000_i64}}),
                "json: cannot unmarshal number 30000000000 into Go struct field DeploymentSpec.spec.replicas of type int32",
            ),
            (
                "Deployment",
                json!({"spec": {"selector": "x"}}),
                "json: cannot unmarshal string into Go struct field DeploymentSpec.spec.selector of type v1.LabelSelector",
            ),
            (
                "ConfigMap",
                json!({"data": "a"}),
                "json: cannot unmarshal string into Go struct field ConfigMap.data of type map[string]string",
            ),
            (
                "ConfigMap",
                json!({"metadata": {"finalizers": "a"}}),
                "json: cannot unmarshal string into Go struct field ObjectMeta.metadata.finalizers of type []string",
            ),
        ] {
            assert_eq!(mismatch_of(kind, object.clone()).as_deref(), Some(expected), "{object}");
        }
    }

    #[test]
    fn matching_objects_are_accepted() {
        let objects: Vec<(Value, Value)> =
            serde_json::from_str(include_str!("defaults.fixture.json")).expect("the fixture is JSON");
        for (given, stored) in objects {
            for object in [given, stored] {
                let kind = object["kind"].as_str().expect("a kind").to_owned();
                assert_eq!(mismatch_of(&kind, object), None);
            }
        }
        assert_eq!(mismatch_of("Secret", json!({"data": {"empty": ""}})), None);
    }
}
