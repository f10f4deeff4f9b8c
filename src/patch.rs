//! Parameters and bodies of the patches that Serin sends.

use kube::api::PatchParams;
use serde_json::{Map, Value, json};

/// The field manager of every write.
pub const FIELD_MANAGER: &str = "serin";

/// For server-side apply. With `force`, only a stale uid or resourceVersion is
/// a conflict.
pub fn apply_params() -> PatchParams {
    PatchParams::apply(FIELD_MANAGER).force()
}

/// For a merge patch.
pub fn merge_params() -> PatchParams {
    PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..Default::default() }
}

/// The merge patch that turns one map into the other.
pub fn merge_diff(from: &Value, to: &Value) -> Value {
    restore_patch(from, to, &Value::Null).unwrap_or_else(|| json!({}))
}

/// The merge patch that turns `after` back into `before`. It includes every
/// field of `touched`, even where both are equal: that field may change later.
pub fn restore_patch(after: &Value, before: &Value, touched: &Value) -> Option<Value> {
    let (Value::Object(now), Value::Object(then)) = (after, before) else {
        return (after != before || !touched.is_null()).then(|| before.clone());
    };
    let mut patch = Map::new();
    for key in now.keys().chain(then.keys().filter(|key| !now.contains_key(*key))) {
        let undone = match (now.get(key), then.get(key)) {
            (Some(now), Some(then)) => restore_patch(now, then, touched.get(key).unwrap_or(&Value::Null)),
            (_, then) => Some(then.cloned().unwrap_or(Value::Null)),
        };
        if let Some(undone) = undone {
            patch.insert(key.clone(), undone);
        }
    }
    (!patch.is_empty()).then_some(Value::Object(patch))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_restore_patch_restores_old_values_and_keeps_other_fields() {
        let before = json!({"spec": {"selector": {"app": "web", "tier": "front"}, "type": "ClusterIP"}});
        let mut after = json!({"spec": {"selector": {"app": "web-primary"}, "type": "ClusterIP", "new": 1}});
        let patch = restore_patch(&after, &before, &Value::Null).unwrap();
        assert_eq!(patch, json!({"spec": {"selector": {"app": "web", "tier": "front"}, "new": null}}));
        after["spec"]["theirs"] = json!(true);
        json_patch::merge(&mut after, &patch);
        let mut restored = before;
        restored["spec"]["theirs"] = json!(true);
        assert_eq!(after, restored);
    }

    #[test]
    fn written_fields_are_recorded_even_if_equal() {
        let same = json!({"spec": {"weight": 100, "other": 1}});
        let patch = restore_patch(&same, &same, &json!({"spec": {"weight": 100}})).unwrap();
        assert_eq!(patch, json!({"spec": {"weight": 100}}));
    }

    #[test]
    fn a_merge_diff_removes_absent_fields() {
        let (from, to) = (json!({"a": 1, "b": {"c": 2, "d": null}}), json!({"b": {"c": 3}, "e": [4]}));
        let patch = merge_diff(&from, &to);
        assert_eq!(patch, json!({"a": null, "b": {"c": 3, "d": null}, "e": [4]}));
        assert_eq!(merge_diff(&to, &to), json!({}));
    }
}
