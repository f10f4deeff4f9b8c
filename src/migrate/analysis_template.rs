//! An AnalysisTemplate of Argo Rollouts: one of ours for each of its metrics.

use regex::Regex;
use serde_json::{Map, Value, json};

use super::Converted;

/// Nothing passes by accident: what could not be carried over fails until it is written.
const PLACEHOLDER_QUERY: &str = "vector(-1)";
const IMPOSSIBLE_MAX: f64 = -1e15;

/// Argo's name of a metric in ours.
pub fn name_of(template: &str, metric: &str, alone: bool) -> String {
    match alone || template == metric {
        true => template.to_owned(),
        false => format!("{template}-{metric}"),
    }
}

pub fn convert(original: &Value) -> Vec<Converted> {
    let template = original["metadata"]["name"].as_str().unwrap_or_default();
    let metrics = original["spec"]["metrics"].as_array().map(Vec::as_slice).unwrap_or_default();
    metrics.iter().map(|metric| convert_metric(original, template, metric, metrics.len() == 1)).collect()
}

fn convert_metric(original: &Value, template: &str, metric: &Value, alone: bool) -> Converted {
    let mut notes = Vec::new();
    let metric_name = metric["name"].as_str().unwrap_or_default();
    let mut spec = Map::new();
    match provider(&metric["provider"], &mut notes) {
        Some((provider, query)) => {
            spec.insert("provider".to_owned(), provider);
            spec.insert("query".to_owned(), json!(query));
        }
        None => {
            let kinds: Vec<&str> =
                metric["provider"].as_object().into_iter().flatten().map(|(kind, _)| kind.as_str()).collect();
            notes.push(format!(
                "provider {} of metric {metric_name} is not supported; the query below is a placeholder that fails every check: write one, or use a webhook of type rollout as a gate",
                kinds.join(", ")
            ));
            spec.insert("provider".to_owned(), json!({ "type": "prometheus" }));
            spec.insert("query".to_owned(), json!(PLACEHOLDER_QUERY));
        }
    }
    let success = metric["successCondition"].as_str().map(|text| (text, false));
    let failure = metric["failureCondition"].as_str().map(|text| (text, true));
    let range = success.into_iter().chain(failure).find_map(|(text, negate)| range(text, negate));
    match range {
        Some(range) => {
            spec.insert("thresholdRange".to_owned(), range);
        }
        None => {
            let condition = success.or(failure).map_or("it has no condition", |(text, _)| text);
            notes.push(format!(
                "the condition of metric {metric_name} is no range ({condition}); set thresholdRange, the one below fails every check"
            ));
            spec.insert("thresholdRange".to_owned(), json!({ "max": IMPOSSIBLE_MAX }));
        }
    }
    if success.is_some() && failure.is_some() {
        notes.push(
            "successCondition was used, and failureCondition has no equal: between them Argo is inconclusive"
                .to_owned(),
        );
    }
    for (theirs, ours) in [("failureLimit", "failureLimit"), ("inconclusiveLimit", "inconclusiveLimit")] {
        // Theirs may be reached, ours is the check that rolls back.
        let limit = metric[theirs].as_u64().or_else(|| metric[theirs].as_str()?.parse().ok());
        if let Some(limit) = limit {
            spec.insert(ours.to_owned(), json!(limit + 1));
        }
    }
    for (field, way) in [
        ("count", "a step has iterations, or its interval"),
        ("initialDelay", "write a step with a pause before"),
        ("consecutiveErrorLimit", "see onUnavailable"),
    ] {
        if !metric[field].is_null() {
            notes.push(format!("{field} of metric {metric_name} has no equal: {way}"));
        }
    }
    let variables: Map<String, Value> = original["spec"]["args"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|arg| Some((arg["name"].as_str()?.to_owned(), json!(arg["value"].as_str()?))))
        .collect();
    for arg in original["spec"]["args"].as_array().into_iter().flatten() {
        if !arg["valueFrom"].is_null() {
            let name = arg["name"].as_str().unwrap_or_default();
            notes.push(format!("args.{name} is read from a Secret: use provider.secretRef for credentials"));
        }
    }
    if !variables.is_empty() {
        spec.insert("variables".to_owned(), Value::Object(variables));
    }
    let mut object = json!({
        "apiVersion": "serin.dev/v1alpha1",
        "kind": original["kind"],
        "metadata": { "name": name_of(template, metric_name, alone) },
        "spec": spec,
    });
    if let Some(namespace) = original["metadata"]["namespace"].as_str() {
        object["metadata"]["namespace"] = json!(namespace);
    }
    Converted { object, notes }
}

/// Our provider and query.
fn provider(provider: &Value, notes: &mut Vec<String>) -> Option<(Value, String)> {
    let fill = |text: &str| arguments(text);
    if let Some(prometheus) = provider.get("prometheus") {
        let mut ours = json!({ "type": "prometheus" });
        match prometheus["address"].as_str().filter(|address| !address.contains("{{")) {
            Some(address) => ours["address"] = json!(address),
            None => notes.push("the address of Prometheus is an argument or none; set provider.address, or the controller's --metrics-server".to_owned()),
        }
        if !prometheus["authentication"].is_null() || !prometheus["headers"].is_null() {
            notes.push("authentication and headers of Prometheus: set provider.secretRef".to_owned());
        }
        if prometheus["insecure"] == true {
            ours["insecureSkipVerify"] = json!(true);
        }
        return Some((ours, fill(prometheus["query"].as_str()?)));
    }
    if let Some(web) = provider.get("web") {
        let url = web["url"].as_str().filter(|url| !url.contains("{{"))?;
        let path = web["jsonPath"].as_str().unwrap_or("{$}").trim_matches(['{', '}']).to_owned();
        let method = web["method"].as_str().unwrap_or("GET");
        let ours = json!({ "type": "web", "address": url, "web": { "method": method, "valueAt": path } });
        if !web["headers"].is_null() {
            notes.push(
                "headers of the web provider: set provider.headers, or provider.secretRef for credentials"
                    .to_owned(),
            );
        }
        return Some((ours, fill(web["body"].as_str().unwrap_or(url))));
    }
    None
}

/// `{{args.name}}` is `{{ variables.name }}` here; names with a dash are looked up.
fn arguments(text: &str) -> String {
    let pattern = Regex::new(r"\{\{\s*args\.([A-Za-z0-9_-]+)\s*\}\}");
    let Ok(pattern) = pattern else { return text.to_owned() };
    let replace = |found: &regex::Captures<'_>| match found[1].contains('-') {
        true => format!("{{{{ index variables \"{}\" }}}}", &found[1]),
        false => format!("{{{{ variables.{} }}}}", &found[1]),
    };
    pattern.replace_all(text, replace).into_owned()
}

/// The range of `result` that succeeds, if the condition is one: `result[0] >= 0.95`,
/// `result > 1 && result < 5`. A failure condition is the opposite: `result < 1 || result > 5`.
fn range(condition: &str, negate: bool) -> Option<Value> {
    let parts = condition.split(if negate { "||" } else { "&&" });
    let mut range = Map::new();
    for part in parts {
        for (side, bound) in bounds(part, negate)? {
            if range.insert(side.to_owned(), json!(bound)).is_some() {
                return None;
            }
        }
    }
    Some(Value::Object(range))
}

/// Bounds of one comparison. A strict one becomes one that includes its bound.
fn bounds(condition: &str, negate: bool) -> Option<Vec<(&'static str, f64)>> {
    let pattern = Regex::new(
        r"^\s*(?:len\(result\)\s*==\s*0\s*\|\||isNaN\(result(?:\[0\])?\)\s*\|\|)?\s*(?:default\()?\s*(?:asFloat\(|asInt\()?result(?:\[0\])?\)?(?:\s*,\s*[0-9.]+\s*\))?\s*(>=|<=|==|>|<)\s*(-?[0-9.]+)\s*$",
    );
    let found = pattern.ok()?.captures(condition)?;
    let bound: f64 = found[2].parse().ok()?;
    match (&found[1], negate) {
        ("==", false) => Some(vec![("min", bound), ("max", bound)]),
        ("==", true) => None,
        (sign, _) if sign.starts_with('>') != negate => Some(vec![("min", bound)]),
        _ => Some(vec![("max", bound)]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_condition_of_bounds_is_a_range() {
        for (condition, negate, expected) in [
            ("result[0] >= 0.95", false, Some(json!({ "min": 0.95 }))),
            ("result < 500", false, Some(json!({ "max": 500.0 }))),
            ("result[0] > 5", true, Some(json!({ "max": 5.0 }))),
            ("default(result, 0) < 0.05", false, Some(json!({ "max": 0.05 }))),
            ("isNaN(result[0]) || result[0] >= 0.95", false, Some(json!({ "min": 0.95 }))),
            ("result[0] >= 0.9 && result[0] < 1", false, Some(json!({ "min": 0.9, "max": 1.0 }))),
            ("result < 0.9 || result > 5", true, Some(json!({ "min": 0.9, "max": 5.0 }))),
            ("result == 1", false, Some(json!({ "min": 1.0, "max": 1.0 }))),
            ("result == 1", true, None),
            ("result > 1 && result > 2", false, None),
            ("result[0] >= 0.9 || result[1] < 1", false, None),
            ("result == true", false, None),
        ] {
            assert_eq!(range(condition, negate), expected, "{condition}");
        }
    }

    #[test]
    fn arguments_are_variables() {
        assert_eq!(
            arguments(r#"x{service="{{args.service-name}}",n="{{ args.n }}"}"#),
            r#"x{service="{{ index variables "service-name" }}",n="{{ variables.n }}"}"#
        );
    }
}
