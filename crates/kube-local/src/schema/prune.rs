//! Pruning of unknown fields, which are returned by path.

use serde_json::{Map, Value};

use super::{AdditionalProperties, Schema};

pub(super) fn prune(schema: &Schema, object: &mut Value) -> Vec<String> {
    let mut dropped = Vec::new();
    walk(Some(schema), object, &mut String::new(), &mut dropped);
    dropped.sort();
    dropped
}

fn walk(schema: Option<&Schema>, value: &mut Value, path: &mut String, dropped: &mut Vec<String>) {
    match value {
        Value::Object(fields) => walk_object(schema, fields, path, dropped),
        Value::Array(items) => {
            let schema = match schema {
                // A list without declared items in a free-form node is kept as it is.
                Some(schema) if schema.preserve_unknown && schema.items.is_none() => return,
                Some(schema) => schema.items(),
                None => None,
            };
            for (i, item) in items.iter_mut().enumerate() {
                let length = path.len();
                path.push_str(&format!("[{i}]"));
                walk(schema, item, path, dropped);
                path.truncate(length);
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

fn walk_object(
    schema: Option<&Schema>,
    fields: &mut Map<String, Value>,
    path: &mut String,
    dropped: &mut Vec<String>,
) {
    let Some(schema) = schema else {
        dropped.extend(fields.keys().map(|name| join(path, name)));
        fields.clear();
        return;
    };
    fields.retain(|name, value| {
        let child = match (schema.properties.get(name), &schema.additional_properties) {
            (Some(property), _) => Some(Some(&**property)),
            (None, AdditionalProperties::Of(entry)) => Some(Some(&**entry)),
            (None, AdditionalProperties::Any) => Some(None),
            (None, AdditionalProperties::Unspecified | AdditionalProperties::Forbidden) => None,
        };
        match child {
            Some(child) => {
                let length = path.len();
                if length > 0 {
                    path.push('.');
                }
                path.push_str(name);
                walk(child, value, path, dropped);
                path.truncate(length);
                true
            }
            None if schema.preserve_unknown || (schema.embedded && is_type_or_metadata(name)) => true,
            None => {
                dropped.push(join(path, name));
                false
            }
        }
    });
}

fn is_type_or_metadata(name: &str) -> bool {
    matches!(name, "apiVersion" | "kind" | "metadata")
}

fn join(path: &str, name: &str) -> String {
    if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::Schema;

    #[test]
    fn an_unknown_field_is_pruned_and_named() {
        let schema = Schema::parse(&json!({"type": "object", "properties": {"spec": {"type": "object", "properties": {
            "known": {"type": "string"},
            "list": {"type": "array", "items": {"type": "object", "properties": {"a": {"type": "string"}}}},
            "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": true,
                     "properties": {"strict": {"type": "object"}}},
            "map": {"type": "object", "additionalProperties": {"type": "integer"}},
            "template": {"type": "object", "x-kubernetes-embedded-resource": true,
                         "x-kubernetes-preserve-unknown-fields": true},
        }}}}))
        .expect("a structural schema");
        let mut object = json!({
            "apiVersion": "a/v1", "kind": "A", "metadata": {"name": "x", "color": "red"},
            "extra": 1,
            "spec": {
                "known": "x", "foo": 1,
                "list": [{"a": "x", "bar": 1}],
                "free": {"anything": {"goes": 1}, "strict": {"no": 1}},
                "map": {"x": 1},
                "template": {"kind": "Pod", "apiVersion": "v1", "metadata": {}, "spec": {"more": 1}},
            },
        });
        assert_eq!(
            schema.prune(&mut object),
            ["extra", "metadata.color", "spec.foo", "spec.free.strict.no", "spec.list[0].bar"]
        );
        assert_eq!(
            object,
            json!({
                "apiVersion": "a/v1", "kind": "A", "metadata": {"name": "x"},
                "spec": {
                    "known": "x",
                    "list": [{"a": "x"}],
                    "free": {"anything": {"goes": 1}, "strict": {}},
                    "map": {"x": 1},
                    "template": {"kind": "Pod", "apiVersion": "v1", "metadata": {}, "spec": {"more": 1}},
                },
            })
        );
    }
}
