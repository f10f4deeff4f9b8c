//! The primary's autoscaler: a copy of the target's that scales the primary, and
//! does not scale it down while a release is running.

use std::collections::BTreeMap;

use kube::core::DynamicObject;
use serde_json::{Value, json};

use super::{Kind, PINNED, Workload};
use crate::api::canary::{AutoscalerKind, AutoscalerRef};

/// KEDA keeps the target at this size and does not scale it.
pub(super) const KEDA_PAUSED: &str = "autoscaling.keda.sh/paused-replicas";
/// On a ScaledObject that Serin paused, not another client.
pub(super) const PAUSED_BY_US: &str = "serin.dev/paused";

impl Workload {
    /// The copy of an autoscaler, with `pin` as the primary's minimum size.
    pub(super) fn scaler_copy(
        &self,
        scaler: &AutoscalerRef,
        source: &DynamicObject,
        pin: Option<u32>,
    ) -> DynamicObject {
        let kind = Kind::from(scaler.kind);
        let mut spec = source.data["spec"].clone();
        spec["scaleTargetRef"]["name"] = self.primary_name().into();
        if scaler.kind == AutoscalerKind::ScaledObject {
            self.retarget_queries(scaler, &mut spec);
        }
        let (least, most) = bounds_fields(scaler.kind);
        let bounds = scaler.primary_scaler_replicas.clone().unwrap_or_default();
        for (field, bound) in [(least, bounds.min_replicas), (most, bounds.max_replicas)] {
            if let Some(bound) = bound {
                spec[field] = bound.into();
            }
        }
        let mut annotations = source.metadata.annotations.clone().unwrap_or_default();
        let settings = keda_settings(&annotations);
        annotations.retain(|key, _| key != KEDA_PAUSED && key != PAUSED_BY_US);
        let labels = source.metadata.labels.clone().unwrap_or_default();
        let mut metadata = self.copy_metadata(&format!("{}-primary", scaler.name), &labels, &annotations);
        metadata.annotations.get_or_insert_default().extend(settings);
        self.mark_copy(&mut metadata, kind, &scaler.name);
        if let Some(pin) = pin {
            metadata.annotations.get_or_insert_default().insert(PINNED.to_owned(), pin.to_string());
            let most = spec[most].as_u64().unwrap_or(u64::from(u32::MAX));
            let least_now = spec[least].as_u64().unwrap_or_default();
            spec[least] = least_now.max(u64::from(pin).min(most)).into();
        }
        DynamicObject { types: Some(kind.type_meta()), metadata, data: json!({ "spec": spec }) }
    }

    /// The upper bound of the primary's autoscaler.
    pub(super) fn max_replicas(&self, primary_scaler: &DynamicObject) -> Option<u32> {
        let (_, most) = bounds_fields(self.autoscaler.as_ref()?.kind);
        primary_scaler.data["spec"][most].as_u64().and_then(|most| u32::try_from(most).ok())
    }

    /// Makes the queries of a ScaledObject select the primary instead of the
    /// target, and gives the HPA that KEDA creates its own name.
    fn retarget_queries(&self, scaler: &AutoscalerRef, spec: &mut Value) {
        if let Some(Value::String(name)) = spec.pointer_mut("/advanced/horizontalPodAutoscalerConfig/name") {
            name.push_str("-primary");
        }
        for trigger in spec["triggers"].as_array_mut().into_iter().flatten() {
            let name = trigger["name"].as_str().unwrap_or_default().to_owned();
            let Some(Value::String(query)) = trigger.pointer_mut("/metadata/query") else { continue };
            if let Some(written) = scaler.primary_scaler_queries.get(&name) {
                query.clone_from(written);
            } else if scaler.primary_scaler_queries.is_empty() {
                *query = retarget_query(query, &self.target);
            }
        }
    }
}

/// The fields of the lower and the upper bound.
fn bounds_fields(kind: AutoscalerKind) -> (&'static str, &'static str) {
    match kind {
        AutoscalerKind::HorizontalPodAutoscaler => ("minReplicas", "maxReplicas"),
        AutoscalerKind::ScaledObject => ("minReplicaCount", "maxReplicaCount"),
    }
}

pub(super) fn pin_of(scaler: &DynamicObject) -> Option<u32> {
    scaler.metadata.annotations.as_ref()?.get(PINNED)?.parse().ok()
}

/// KEDA's annotations, except those that pause.
fn keda_settings(annotations: &BTreeMap<String, String>) -> BTreeMap<String, String> {
    let setting = |key: &String| key.contains("keda.sh/") && !key.contains("keda.sh/paused");
    annotations.iter().filter(|(key, _)| setting(key)).map(|(k, v)| (k.clone(), v.clone())).collect()
}

/// A query with the name of the target or canary replaced by the primary's,
/// where it is a word of its own or the prefix of a pod name.
fn retarget_query(query: &str, target: &str) -> String {
    let part_of_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let mut text = String::with_capacity(query.len() + 16);
    let mut rest = query;
    while let Some(at) = rest.find(target) {
        let (before, matched) = rest.split_at(at);
        let after = &matched[target.len()..];
        text.push_str(before);
        text.push_str(target);
        let begins = !text[..text.len() - target.len()].ends_with(|c| part_of_word(c) || c == '-');
        let after = match after.strip_prefix("-canary") {
            Some(after) if begins && !after.starts_with(part_of_word) => after,
            _ => after,
        };
        if begins && !after.starts_with(part_of_word) && !after.starts_with("-primary") {
            text.push_str("-primary");
        }
        rest = after;
    }
    text.push_str(rest);
    text
}

#[cfg(test)]
mod tests {
    use super::retarget_query;

    #[test]
    fn a_query_about_the_target_becomes_one_about_the_primary() {
        for (query, expected) in [
            (r#"sum(rate(x{app="podinfo"}[1m]))"#, r#"sum(rate(x{app="podinfo-primary"}[1m]))"#),
            (r#"x{app="podinfo-canary"}"#, r#"x{app="podinfo-primary"}"#),
            (r#"x{app="podinfo-primary"}"#, r#"x{app="podinfo-primary"}"#),
            (r#"x{pod=~"podinfo-[0-9a-z]+"}"#, r#"x{pod=~"podinfo-primary-[0-9a-z]+"}"#),
            (r#"podinfo_requests{app="my-podinfo"}"#, r#"podinfo_requests{app="my-podinfo"}"#),
            ("podinfo", "podinfo-primary"),
        ] {
            assert_eq!(retarget_query(query, "podinfo"), expected);
        }
    }
}
