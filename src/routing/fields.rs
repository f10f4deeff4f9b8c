//! The fields of an object as values: which were applied, whether a live object
//! has them, and what turns one that was changed back. No object is known here,
//! but for two names in a Service that the API server treats in a way of its own.

use std::fmt::Write as _;

use serde_json::Value;

/// A keyed list.
const PORTS: &str = "ports";
/// A map that is applied as a whole.
const SELECTOR: &str = "selector";

/// One map with all that the other says; where both say something, the other is right.
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

/// Does the live value have all that was applied? Maps may have more, and so
/// may the ports of a Service, which are told apart by number.
pub fn covers(live: &Value, applied: &Value) -> bool {
    match (live, applied) {
        (Value::Object(live), Value::Object(applied)) => {
            applied.iter().all(|(key, wanted)| match (live.get(key), wanted) {
                (Some(Value::Array(live)), Value::Array(wanted)) if key == PORTS => {
                    wanted.iter().all(|wanted| live.iter().any(|live| covers(live, wanted)))
                }
                (Some(Value::Object(live)), Value::Object(wanted)) if key == SELECTOR => live == wanted,
                (Some(live), wanted) => covers(live, wanted),
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

/// The keys of maps and the places of lists; of the ports of a Service, which
/// are told apart by what they say, all of it.
pub fn write_field_paths(value: &Value, to: &mut String) {
    match value {
        Value::Object(fields) => {
            to.push('{');
            for (key, value) in fields {
                // A String takes everything.
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
    fn ports_of_others_do_not_matter_but_backends_do() {
        let port = json!({"ports": [{"port": 80}]});
        assert!(covers(&json!({"ports": [{"port": 443}, {"port": 80, "protocol": "TCP"}]}), &port));
        assert!(!covers(&json!({"ports": [{"port": 443}]}), &port));
        let backends = json!({"backends": [{"weight": 1}]});
        assert!(!covers(&json!({"backends": [{"weight": 1}, {"weight": 2}]}), &backends));
        assert!(covers(&json!({"backends": [{"weight": 1.0}]}), &backends));
    }

    #[test]
    fn a_selector_counts_as_a_whole() {
        let wanted = json!({"selector": {"app": "web"}});
        assert!(!covers(&json!({"selector": {"app": "web", "tier": "front"}}), &wanted));
    }
}
