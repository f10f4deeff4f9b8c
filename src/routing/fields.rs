//! Fields of an object as JSON values: merge, compare, list paths. Knows no
//! object, except for two fields of a Service that server-side apply treats in
//! its own way.

use std::fmt::Write as _;

use serde_json::Value;

/// A list keyed by port number.
const PORTS: &str = "ports";
/// An atomic map.
const SELECTOR: &str = "selector";

/// One map merged with another, whose values win.
pub fn merged(mut base: Value, patch: &Value) -> Value {
    if let (Value::Object(base), Value::Object(patch)) = (&mut base, patch) {
        for (key, value) in patch {
            let slot = base.entry(key.clone()).or_insert(Value::Null);
            *slot = if slot.is_object() && value.is_object() {
                merged(slot.take(), value)
            } else {
                value.clone()
            };
        }
    }
    base
}

/// True if the live value has every applied field. Maps may have more, and so
/// may the ports of a Service, which are a keyed list.
pub fn covers(live: &Value, applied: &Value) -> bool {
    match (live, applied) {
        (Value::Object(live), Value::Object(applied)) => {
            applied.iter().all(|(key, applied)| match (live.get(key), applied) {
                (Some(Value::Array(live)), Value::Array(applied)) if key == PORTS => {
                    applied.iter().all(|applied| live.iter().any(|live| covers(live, applied)))
                }
                (Some(Value::Object(live)), Value::Object(applied)) if key == SELECTOR => live == applied,
                (Some(live), applied) => covers(live, applied),
                (None, _) => false,
            })
        }
        (Value::Array(live), Value::Array(applied)) => {
            live.len() == applied.len()
                && live.iter().zip(applied).all(|(live, applied)| covers(live, applied))
        }
        (Value::Number(live), Value::Number(applied)) => live.as_f64() == applied.as_f64(),
        (live, applied) => live == applied,
    }
}

/// Writes the keys of maps and the lengths of lists; of the ports of a Service,
/// whose entries have no fixed index, the values too.
pub fn write_field_paths(value: &Value, to: &mut String) {
    match value {
        Value::Object(fields) => {
            to.push('{');
            for (key, value) in fields {
                // Writing to a String cannot fail.
                let _ = write!(to, "{key:?}:");
                match key == PORTS {
                    true => drop(write!(to, "{value}")),
                    false => write_field_paths(value, to),
                }
            }
            to.push('}');
        }
        Value::Array(items) => {
            to.push('[');
            items.iter().for_each(|item| write_field_paths(item, to));
            to.push(']');
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => to.push('.'),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn additional_ports_are_ignored_but_additional_backends_are_not() {
        let port = json!({"ports": [{"port": 80}]});
        assert!(covers(&json!({"ports": [{"port": 443}, {"port": 80, "protocol": "TCP"}]}), &port));
        assert!(!covers(&json!({"ports": [{"port": 443}]}), &port));
        let backends = json!({"backends": [{"weight": 1}]});
        assert!(!covers(&json!({"backends": [{"weight": 1}, {"weight": 2}]}), &backends));
        assert!(covers(&json!({"backends": [{"weight": 1.0}]}), &backends));
    }

    #[test]
    fn a_selector_is_compared_as_a_whole() {
        let applied = json!({"selector": {"app": "web"}});
        assert!(!covers(&json!({"selector": {"app": "web", "tier": "front"}}), &applied));
    }
}
