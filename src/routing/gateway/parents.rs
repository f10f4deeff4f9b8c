//! The status that the parents of a route report.
//!
//! Linkerd writes its conditions without `observedGeneration`. Such a condition counts
//! as one on the current generation, since nothing else is ever reported.

use kube::{ResourceExt as _, api::DynamicObject};
use serde_json::Value;

const REQUIRED_CONDITIONS: [&str; 2] = ["Accepted", "ResolvedRefs"];

/// A parentRef with defaults filled in.
struct Parent {
    group: String,
    kind: String,
    namespace: String,
    name: String,
    section: Option<String>,
    port: Option<u64>,
}

impl Parent {
    fn of(reference: &Value, route: &DynamicObject) -> Self {
        let text = |field: &str| reference[field].as_str().map(str::to_owned);
        let group = text("group").unwrap_or_else(|| "gateway.networking.k8s.io".to_owned());
        Self {
            // Some controllers write the core group by this name.
            group: if group == "core" { String::new() } else { group },
            kind: text("kind").unwrap_or_else(|| "Gateway".to_owned()),
            namespace: text("namespace").unwrap_or_else(|| route.namespace().unwrap_or_default()),
            name: text("name").unwrap_or_default(),
            section: text("sectionName"),
            port: reference["port"].as_u64(),
        }
    }

    /// Some controllers, such as Kong's, leave the port out of their reports.
    fn is_reported_as(&self, reported: &Self) -> bool {
        let Self { group, kind, namespace, name, section, port } = reported;
        (&self.group, &self.kind, &self.namespace, &self.name, &self.section)
            == (group, kind, namespace, name, section)
            && (port.is_none() || self.port == *port)
    }
}

/// The first parent that does not serve the route yet, and why; none once all
/// serve its current generation.
pub fn pending(route: &DynamicObject) -> Option<String> {
    let kind = route.types.as_ref().map_or("route", |types| &types.kind);
    let route_key = format!("the {kind} {}/{}", route.namespace().unwrap_or_default(), route.name_any());
    let references = route.data["spec"]["parentRefs"].as_array().map(Vec::as_slice).unwrap_or_default();
    if references.is_empty() {
        return Some(format!("{route_key} has no parent; set spec.service.gatewayRefs"));
    }
    let reports = route.data["status"]["parents"].as_array().map(Vec::as_slice).unwrap_or_default();
    references.iter().find_map(|reference| {
        let parent = Parent::of(reference, route);
        let who = format!("the {} {}/{}", parent.kind, parent.namespace, parent.name);
        let own: Vec<_> = reports
            .iter()
            .filter(|report| parent.is_reported_as(&Parent::of(&report["parentRef"], route)))
            .collect();
        if own.is_empty() {
            return Some(format!(
                "{who} has not reported on {route_key}; check that it exists and that its controller runs"
            ));
        }
        // A removed controller leaves its last status behind.
        let fresh: Vec<_> = own.iter().filter(|report| is_fresh(report, route)).collect();
        let failed = if fresh.is_empty() {
            let undated = |one: &&Value| is_undated(one) && !is_true(one);
            let Some(failed) = own.iter().flat_map(|report| conditions(report)).find(undated) else {
                return Some(format!("{who} has not processed {route_key} since it was changed"));
            };
            failed
        } else {
            fresh.into_iter().flat_map(|report| conditions(report)).find(|one| !is_true(one))?
        };
        let text = |field: &str| failed[field].as_str().unwrap_or_default();
        let message = text("message").trim_end_matches('.');
        let why = if message.is_empty() {
            text("reason").to_owned()
        } else {
            format!("{}: {message}", text("reason"))
        };
        Some(format!("{who} does not serve {route_key}: {} is {} ({why})", text("type"), text("status")))
    })
}

/// The controllers that report on a route.
pub fn controllers(route: &DynamicObject) -> impl Iterator<Item = &str> {
    let reports = route.data["status"]["parents"].as_array().into_iter().flatten();
    reports.filter_map(|report| report["controllerName"].as_str())
}

/// True if it has both conditions for the current generation, or both true and
/// for no generation. One that is false and for no generation may be of a removed
/// controller.
fn is_fresh(report: &Value, route: &DynamicObject) -> bool {
    let now = route.metadata.generation.unwrap_or_default();
    let is_current = |condition: &Value| {
        condition["observedGeneration"] == now || (is_undated(condition) && is_true(condition))
    };
    REQUIRED_CONDITIONS
        .iter()
        .all(|required| conditions(report).any(|one| one["type"] == *required && is_current(one)))
}

fn is_undated(condition: &Value) -> bool {
    condition["observedGeneration"].is_null()
}

fn is_true(condition: &Value) -> bool {
    condition["status"] == "True"
}

fn conditions(report: &Value) -> impl Iterator<Item = &Value> {
    let all = report["conditions"].as_array().into_iter().flatten();
    all.filter(|condition| REQUIRED_CONDITIONS.iter().any(|required| condition["type"] == *required))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn route(parents: Value) -> DynamicObject {
        serde_json::from_value(json!({
            "apiVersion": "gateway.networking.k8s.io/v1",
            "kind": "HTTPRoute",
            "metadata": {"name": "web", "namespace": "shop", "generation": 3},
            "spec": {"parentRefs": [{"name": "public"}, {"group": "", "kind": "Service", "name": "web", "port": 80}]},
            "status": {"parents": parents},
        }))
        .unwrap()
    }

    fn report(parent: Value, generation: i64, resolved: &str) -> Value {
        let condition = |kind: &str, status: &str| {
            json!({"type": kind, "status": status,
            "observedGeneration": generation, "reason": "Why", "message": "because."})
        };
        json!({"parentRef": parent, "controllerName": "example.com/gw",
            "conditions": [condition("Accepted", "True"), condition("ResolvedRefs", resolved)]})
    }

    fn public() -> Value {
        json!({"group": "gateway.networking.k8s.io", "kind": "Gateway", "namespace": "shop", "name": "public"})
    }

    fn service() -> Value {
        json!({"group": "core", "kind": "Service", "name": "web", "port": 80})
    }

    #[test]
    fn every_parent_must_report_the_current_generation() {
        let reason = |parents| pending(&route(parents)).unwrap_or_default();
        assert!(
            reason(json!([])).contains("the Gateway shop/public has not reported on the HTTPRoute shop/web")
        );
        assert!(
            reason(json!([report(public(), 3, "True")])).contains("the Service shop/web has not reported")
        );
        let old = json!([report(public(), 2, "True"), report(service(), 3, "True")]);
        assert!(reason(old).contains("has not processed"));
        let all = json!([report(public(), 3, "True"), report(service(), 3, "True")]);
        assert_eq!(reason(all), "");
    }

    #[test]
    fn a_failed_condition_is_reported() {
        let refused = json!([report(public(), 3, "True"), report(service(), 3, "False")]);
        let reason = pending(&route(refused)).unwrap();
        assert_eq!(
            reason,
            "the Service shop/web does not serve the HTTPRoute shop/web: ResolvedRefs is False (Why: because)"
        );
    }

    #[test]
    fn the_status_of_a_removed_controller_does_not_count() {
        let moved =
            json!([report(public(), 1, "False"), report(public(), 3, "True"), report(service(), 3, "True")]);
        assert_eq!(pending(&route(moved)), None);
    }

    #[test]
    fn a_condition_without_a_generation_counts_for_every_one() {
        let accepted = report(public(), 3, "True");
        let undated = |resolved: &str| {
            let mut report = report(service(), 3, resolved);
            for condition in report["conditions"].as_array_mut().unwrap() {
                condition.as_object_mut().unwrap().remove("observedGeneration");
            }
            report["conditions"][1]["message"] = json!("");
            json!([accepted.clone(), report])
        };
        assert_eq!(pending(&route(undated("True"))), None);
        let reason = pending(&route(undated("False"))).unwrap();
        assert!(
            reason.ends_with("does not serve the HTTPRoute shop/web: ResolvedRefs is False (Why)"),
            "{reason}"
        );
        let mut replaced = undated("False");
        replaced.as_array_mut().unwrap().push(report(service(), 3, "True"));
        assert_eq!(pending(&route(replaced)), None, "a removed controller leaves its status behind");
    }

    #[test]
    fn another_listener_is_another_parent() {
        let mut listener = public();
        listener["sectionName"] = json!("https");
        let other = json!([report(listener, 3, "True"), report(service(), 3, "True")]);
        assert!(pending(&route(other)).is_some());
    }
}
