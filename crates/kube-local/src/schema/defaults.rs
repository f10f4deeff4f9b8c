//! Fills in schema defaults.

use serde_json::Value;

use super::{AdditionalProperties, Schema};

pub(super) fn apply(schema: &Schema, value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.retain(|name, value| {
                !value.is_null() || schema.field(name).is_none_or(|f| f.nullable || f.default.is_some())
            });
            for (name, property) in &schema.properties {
                let Some(default) = &property.default else { continue };
                let missing = match fields.get(name) {
                    None => true,
                    Some(value) => value.is_null() && !property.nullable,
                };
                if missing {
                    fields.insert(name.clone(), default.clone());
                }
            }
            if schema.properties.is_empty()
                && !matches!(schema.additional_properties, AdditionalProperties::Of(_))
            {
                return;
            }
            for (name, value) in fields {
                if let Some(field) = schema.field(name) {
                    replace_null(field, value);
                    apply(field, value);
                }
            }
        }
        Value::Array(items) => {
            if let Some(schema) = schema.items() {
                for item in items {
                    replace_null(schema, item);
                    apply(schema, item);
                }
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

fn replace_null(schema: &Schema, value: &mut Value) {
    if let (true, false, Some(default)) = (value.is_null(), schema.nullable, &schema.default) {
        *value = default.clone();
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::Schema;

    fn defaulted(schema: Value, mut object: Value) -> Value {
        Schema::parse(&schema).expect("a structural schema").apply_defaults(&mut object);
        object
    }

    #[test]
    fn a_default_fills_its_field_and_the_defaults_below_it() {
        let schema = json!({"type": "object", "properties": {"spec": {
            "type": "object",
            "default": {},
            "properties": {
                "interval": {"type": "string", "default": "1m"},
                "ports": {"type": "array", "items": {"type": "object", "properties": {
                    "protocol": {"type": "string", "default": "TCP"}}}},
                "free": {"type": "object", "additionalProperties": {"type": "object", "properties": {
                    "on": {"type": "boolean", "default": true}}}},
            },
        }}});
        assert_eq!(defaulted(schema.clone(), json!({})), json!({"spec": {"interval": "1m"}}));
        assert_eq!(
            defaulted(schema, json!({"spec": {"interval": "5s", "ports": [{}], "free": {"a": {}}}})),
            json!({"spec": {"interval": "5s", "ports": [{"protocol": "TCP"}], "free": {"a": {"on": true}}}})
        );
    }

    #[test]
    fn a_null_is_dropped_unless_the_field_is_nullable() {
        let schema = json!({"type": "object", "properties": {
            "a": {"type": "string", "default": "x"},
            "b": {"type": "string", "nullable": true, "default": "x"},
            "c": {"type": "string"},
        }});
        assert_eq!(defaulted(schema, json!({"a": null, "b": null, "c": null})), json!({"a": "x", "b": null}));
    }
}
