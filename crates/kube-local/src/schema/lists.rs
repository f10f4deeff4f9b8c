//! Duplicate items in lists that are sets or maps.

use std::collections::HashMap;

use serde_json::{Map, Value};

use super::path::Path;
use super::{FieldError, ListType, Schema};

pub(super) fn duplicates(schema: &Schema, object: &Value) -> Vec<FieldError> {
    let mut errors = Vec::new();
    walk(schema, object, &Path::ROOT, &mut errors);
    errors
}

fn walk(schema: &Schema, value: &Value, path: &Path<'_>, errors: &mut Vec<FieldError>) {
    if !schema.has_keyed_lists {
        return;
    }
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                let Some(field) = schema.field(name) else { continue };
                let declared = schema.properties.contains_key(name);
                walk(field, value, &if declared { path.field(name) } else { path.key(name) }, errors);
            }
        }
        Value::Array(items) => {
            check(&schema.list, items, path, errors);
            if let Some(schema) = schema.items() {
                for (i, item) in items.iter().enumerate() {
                    walk(schema, item, &path.index(i), errors);
                }
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

fn check(list: &ListType, items: &[Value], path: &Path<'_>, errors: &mut Vec<FieldError>) {
    match list {
        ListType::Atomic => {}
        ListType::Set => report(items.iter().cloned(), path, errors),
        ListType::Map(keys) => {
            if let Some((i, item)) = items.iter().enumerate().find(|(_, i)| !i.is_object() && !i.is_null()) {
                let detail = "must be an object for an array of list-type map";
                errors.push(FieldError::invalid(path.index(i).bracketed(), item, detail));
                return;
            }
            report(items.iter().map(|item| identity(item, keys)), path, errors);
        }
    }
}

fn identity(item: &Value, keys: &[String]) -> Value {
    let present = keys.iter().filter_map(|key| Some((key.clone(), item.get(key)?.clone())));
    Value::Object(present.collect::<Map<_, _>>())
}

/// Reports each duplicated item once, at its second occurrence.
fn report(identities: impl Iterator<Item = Value>, path: &Path<'_>, errors: &mut Vec<FieldError>) {
    let mut seen: HashMap<String, usize> = HashMap::new();
    for (i, identity) in identities.enumerate() {
        let times = seen.entry(identity.to_string()).or_default();
        *times += 1;
        if *times == 2 {
            errors.push(FieldError::duplicate(path.index(i).bracketed(), &identity));
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::Schema;

    fn messages(list: Value, items: Value) -> Vec<String> {
        let schema = json!({"type": "object", "properties": {"spec": list}});
        let schema = Schema::parse(&schema).expect("a structural schema");
        schema.validate(&json!({"spec": items}), None).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_set_names_its_duplicate() {
        let set = json!({"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "string"}});
        assert_eq!(messages(set, json!(["a", "b", "a", "a"])), ["spec[2]: Duplicate value: \"a\""]);
    }

    #[test]
    fn a_map_names_its_duplicate_key() {
        let map = json!({"type": "array", "x-kubernetes-list-type": "map",
            "x-kubernetes-list-map-keys": ["port", "name"],
            "items": {"type": "object", "required": ["port", "name"], "properties": {
                "name": {"type": "string"}, "port": {"type": "integer"}}}});
        assert_eq!(
            messages(
                map,
                json!([{"name": "a", "port": 1}, {"name": "b", "port": 1}, {"name": "a", "port": 1}])
            ),
            [r#"spec[2]: Duplicate value: {"name":"a","port":1}"#]
        );
    }
}
