//! Our rules of an HTTPRoute or a GRPCRoute.
//!
//! The rule with the more specific conditions applies whatever its index; among
//! equals the first. Each rule has both Services as backends, which marks it as
//! managed.

use std::{collections::BTreeMap, time::Duration};

use serde_json::{Map, Value, json};

use crate::{
    api::{
        Canary, Weight,
        canary::{
            HttpMatch, StringMatch,
            service::{HeaderChange, Service},
        },
    },
    engine::action::Split,
    routing::{
        services::ServiceNames,
        to_regex,
        traffic_rule::{RequestMatcher, TrafficRule, traffic_rules},
        weight_ratio,
    },
};

/// The backends of a rule.
pub fn backends(rule: &Value, namespace: &str) -> Vec<String> {
    let name = |backend: &Value| {
        let name = backend["name"].as_str().unwrap_or_default();
        let kind = backend["kind"].as_str().unwrap_or("Service");
        match backend["namespace"].as_str() {
            None if kind == "Service" => name.to_owned(),
            Some(own) if kind == "Service" && own == namespace => name.to_owned(),
            other => format!("{kind}/{}/{name}", other.unwrap_or(namespace)),
        }
    };
    rule["backendRefs"].as_array().into_iter().flatten().map(name).collect()
}

/// True if a rule matches every request.
pub fn is_catch_all(rule: &Value) -> bool {
    let everything = [json!({}), match_all()];
    let matches = rule["matches"].as_array().map(Vec::as_slice).unwrap_or_default();
    matches.is_empty() || matches.iter().any(|condition| everything.contains(condition))
}

fn match_all() -> Value {
    json!({"path": {"type": "PathPrefix", "value": "/"}})
}

/// The error names a condition that a route cannot express.
pub fn supports_match(condition: &HttpMatch) -> Result<(), &'static str> {
    let HttpMatch {
        name: _,
        uri: _,
        scheme,
        method,
        authority,
        headers: _,
        without_headers,
        query_params: _,
        ignore_uri_case: _,
        port,
        source_labels,
        source_namespace,
        gateways,
        other,
    } = condition;
    let unknown = [
        ("scheme", scheme.is_some()),
        ("a method other than an exact one", method.as_ref().is_some_and(|method| method.exact.is_none())),
        ("authority", authority.is_some()),
        ("withoutHeaders", !without_headers.is_empty()),
        ("port", port.is_some()),
        ("sourceLabels", !source_labels.is_empty()),
        ("sourceNamespace", source_namespace.is_some()),
        ("gateways", !gateways.is_empty()),
        ("a field of another mesh", !other.is_empty()),
    ];
    unknown.into_iter().find(|(_, present)| *present).map_or(Ok(()), |(condition, _)| Err(condition))
}

/// Our rules for a split, with fields copied from the rule they replace.
pub fn rules(canary: &Canary, split: &Split, grpc: bool, original: Option<&Value>) -> Vec<Value> {
    let Some(spec) = &canary.spec.service else { return Vec::new() };
    let rules = RuleBuilder::new(canary, spec, grpc, original);
    let mut all: Vec<Value> =
        traffic_rules(canary, split).iter().map(|traffic_rule| rules.rule(traffic_rule)).collect();
    let name = original.and_then(|original| original.get("name"));
    if let (Some(last), Some(name)) = (all.last_mut(), name) {
        last["name"] = name.clone();
    }
    all
}

/// The common part of all our rules.
struct RuleBuilder<'a> {
    spec: &'a Service,
    names: ServiceNames,
    /// Conditions of every rule.
    matches: Vec<Value>,
    filters: Vec<Value>,
    /// Fields other than `matches`, `filters`, `backendRefs` and `name`.
    other_fields: Map<String, Value>,
    /// The backend that ours replace, for its filters.
    replaced_backend: Value,
}

impl<'a> RuleBuilder<'a> {
    fn new(canary: &Canary, spec: &'a Service, grpc: bool, original: Option<&Value>) -> Self {
        let mut rest = original.and_then(Value::as_object).cloned().unwrap_or_default();
        let list = |value: Option<Value>| match value {
            Some(Value::Array(list)) => list,
            _ => Vec::new(),
        };
        let (theirs, their_filters) = (list(rest.remove("matches")), list(rest.remove("filters")));
        let names = ServiceNames::of(canary);
        let namespace = canary.metadata.namespace.as_deref().unwrap_or_default();
        let to_apex = original.filter(|original| backends(original, namespace) == [names.apex.as_str()]);
        let replaced_backend = to_apex.map(|original| original["backendRefs"][0].clone()).unwrap_or_default();
        rest.remove("backendRefs");
        rest.remove("name");
        let matches = match &spec.match_[..] {
            [] if !theirs.is_empty() => theirs,
            [] if grpc => vec![json!({})],
            [] => vec![match_all()],
            own => own.iter().map(condition).collect(),
        };
        let filters = filters(spec);
        if spec.timeout.is_some() || spec.backend_timeout.is_some() {
            let mut timeouts = Map::new();
            let written = |timeout: crate::api::Duration| json!(duration(timeout.get()));
            timeouts.extend(spec.timeout.map(|timeout| ("request".to_owned(), written(timeout))));
            timeouts
                .extend(spec.backend_timeout.map(|timeout| ("backendRequest".to_owned(), written(timeout))));
            rest.insert("timeouts".to_owned(), json!(timeouts));
        }
        // Ours replace those of the same type; ExtensionRefs and unknown ones stay.
        let is_replaced = |theirs: &Value| filters.iter().any(|ours| ours["type"] == theirs["type"]);
        let kept = their_filters.into_iter().filter(|theirs| !is_replaced(theirs));
        let filters = kept.chain(filters.iter().cloned()).collect();
        Self { spec, names, matches, filters, other_fields: rest, replaced_backend }
    }

    fn rule(&self, traffic_rule: &TrafficRule) -> Value {
        let mut rule = json!(self.other_fields);
        let conditions = match &traffic_rule.matcher {
            RequestMatcher::Conditions(conditions) => conditions.iter().map(condition).collect(),
            RequestMatcher::Cookie(regex) => {
                vec![json!({"headers": [{"name": "Cookie", "type": "RegularExpression", "value": regex}]})]
            }
            RequestMatcher::CatchAll => vec![json!({})],
        };
        let matches = self.with_conditions(&conditions);
        if matches != [json!({})] {
            rule["matches"] = json!(matches);
        }
        let mut filters = self.filters.clone();
        if traffic_rule.mirror > Weight::ZERO {
            filters.push(self.mirror(traffic_rule.mirror));
        }
        if !filters.is_empty() {
            rule["filters"] = json!(filters);
        }
        let ServiceNames { primary, canary, apex: _ } = &self.names;
        let [candidate, stable] = weight_ratio(traffic_rule.share);
        rule["backendRefs"] = json!([
            self.backend(primary, stable, traffic_rule.primary_set_cookie.as_deref()),
            self.backend(canary, candidate, traffic_rule.canary_set_cookie.as_deref()),
        ]);
        rule
    }

    /// Each of these conditions combined with each common one.
    fn with_conditions(&self, conditions: &[Value]) -> Vec<Value> {
        let pairs = conditions.iter().flat_map(|narrow| self.matches.iter().map(move |wide| (narrow, wide)));
        pairs.map(|(narrow, wide)| merge_match(narrow, wide)).collect()
    }

    fn backend(&self, name: &str, weight: u16, set_cookie: Option<&str>) -> Value {
        let mut backend = self.reference(name);
        backend["weight"] = json!(weight);
        let mut filters = self.replaced_backend["filters"].as_array().cloned().unwrap_or_default();
        if let Some(cookie) = set_cookie {
            add_response_header(&mut filters, json!({"name": "Set-Cookie", "value": cookie}));
        }
        if !filters.is_empty() {
            backend["filters"] = json!(filters);
        }
        backend
    }

    fn mirror(&self, share: Weight) -> Value {
        let mut mirror = json!({"backendRef": self.reference(&self.names.canary)});
        match share.hundredths() {
            all if all == Weight::FULL.hundredths() => {}
            whole if whole.is_multiple_of(100) => mirror["percent"] = json!(whole / 100),
            fine => mirror["fraction"] = json!({"numerator": fine, "denominator": Weight::FULL.hundredths()}),
        }
        json!({"type": "RequestMirror", "requestMirror": mirror})
    }

    fn reference(&self, name: &str) -> Value {
        json!({"group": "", "kind": "Service", "name": name, "port": self.spec.port})
    }
}

/// A filter of this type may occur once.
fn add_response_header(filters: &mut Vec<Value>, header: Value) {
    let kind = "ResponseHeaderModifier";
    let at = filters.iter().position(|filter| filter["type"] == kind).unwrap_or_else(|| {
        filters.push(json!({"type": kind}));
        filters.len() - 1
    });
    let added = &mut filters[at]["responseHeaderModifier"]["add"];
    match added.as_array_mut() {
        Some(added) => added.push(header),
        None => *added = json!([header]),
    }
}

/// Both conditions in one. For the same field the narrow one wins.
fn merge_match(narrow: &Value, wide: &Value) -> Value {
    let mut both = wide.clone();
    for (field, value) in narrow.as_object().into_iter().flatten() {
        let named = |item: &Value| item["name"].as_str().unwrap_or_default().to_ascii_lowercase();
        match (both.get_mut(field), value) {
            (Some(Value::Array(wide)), Value::Array(narrow)) => {
                wide.retain(|item| !narrow.iter().any(|other| named(other) == named(item)));
                wide.extend(narrow.iter().cloned());
            }
            _ => both[field] = value.clone(),
        }
    }
    both
}

/// A condition in the form of the Gateway API.
fn condition(condition: &HttpMatch) -> Value {
    let mut written = json!({});
    if let Some(uri) = &condition.uri {
        let (kind, value) = match uri {
            _ if condition.ignore_uri_case => ("RegularExpression", format!("(?i){}", to_regex(uri))),
            StringMatch { exact: Some(exact), .. } => ("Exact", exact.clone()),
            StringMatch { prefix: Some(prefix), .. } => ("PathPrefix", prefix.clone()),
            other => ("RegularExpression", to_regex(other)),
        };
        written["path"] = json!({"type": kind, "value": value});
    }
    if let Some(method) = condition.method.as_ref().and_then(|method| method.exact.as_ref()) {
        written["method"] = json!(method);
    }
    for (field, pairs) in [("headers", &condition.headers), ("queryParams", &condition.query_params)] {
        if !pairs.is_empty() {
            written[field] = pairs.iter().map(|(name, value)| pair(name, value)).collect();
        }
    }
    written
}

fn pair(name: &str, value: &StringMatch) -> Value {
    match value {
        StringMatch { exact: Some(exact), .. } => json!({"name": name, "type": "Exact", "value": exact}),
        other => json!({"name": name, "type": "RegularExpression", "value": to_regex(other)}),
    }
}

/// Filters for `spec.service`: headers, rewrite, mirror, CORS.
fn filters(spec: &Service) -> Vec<Value> {
    let mut filters = Vec::new();
    if let Some(headers) = &spec.headers {
        let sides = [
            ("RequestHeaderModifier", "requestHeaderModifier", &headers.request),
            ("ResponseHeaderModifier", "responseHeaderModifier", &headers.response),
        ];
        for (kind, field, change) in sides {
            filters.extend(change.as_ref().map(|change| json!({"type": kind, field: header_change(change)})));
        }
    }
    if let Some(rewrite) = &spec.rewrite {
        let mut written = json!({});
        if let Some(host) = &rewrite.authority {
            written["hostname"] = json!(host);
        }
        if let Some(uri) = &rewrite.uri {
            let (kind, field) = match rewrite.type_.as_deref() {
                Some("ReplacePrefixMatch") => ("ReplacePrefixMatch", "replacePrefixMatch"),
                _ => ("ReplaceFullPath", "replaceFullPath"),
            };
            written["path"] = json!({"type": kind, field: uri});
        }
        filters.push(json!({"type": "URLRewrite", "urlRewrite": written}));
    }
    filters
        .extend(spec.mirror.iter().map(|mirror| json!({"type": "RequestMirror", "requestMirror": mirror})));
    filters.extend(spec.cors_policy.as_ref().map(|policy| json!({"type": "CORS", "cors": cors(&policy.0)})));
    filters
}

fn header_change(change: &HeaderChange) -> Value {
    let pairs = |pairs: &BTreeMap<String, String>| -> Value {
        pairs.iter().map(|(name, value)| json!({"name": name, "value": value})).collect()
    };
    let mut written = json!({});
    for (field, headers) in [("add", &change.add), ("set", &change.set)] {
        if !headers.is_empty() {
            written[field] = pairs(headers);
        }
    }
    if !change.remove.is_empty() {
        written["remove"] = json!(change.remove);
    }
    written
}

/// True if an Istio CORS policy has origins other than exact ones.
pub fn has_inexact_origins(policy: &Map<String, Value>) -> bool {
    let origins = policy.get("allowOrigins").and_then(Value::as_array);
    origins.into_iter().flatten().any(|origin| origin.get("exact").is_none())
}

/// Istio's CORS policy in the form of the Gateway API.
fn cors(policy: &Map<String, Value>) -> Value {
    let mut written = json!({});
    let exact = policy.get("allowOrigins").and_then(Value::as_array).into_iter().flatten();
    let exact = exact.filter_map(|origin| origin.get("exact")).cloned();
    let plain = policy.get("allowOrigin").and_then(Value::as_array).into_iter().flatten().cloned();
    let origins: Vec<Value> = plain.chain(exact).collect();
    if !origins.is_empty() {
        written["allowOrigins"] = json!(origins);
    }
    for field in ["allowMethods", "allowHeaders", "exposeHeaders", "allowCredentials"] {
        if let Some(value) = policy.get(field) {
            written[field] = value.clone();
        }
    }
    let age = policy.get("maxAge").and_then(Value::as_str);
    if let Some(age) = age.and_then(|age| age.parse::<crate::api::Duration>().ok()) {
        written["maxAge"] = json!(age.get().as_secs());
    }
    written
}

/// A Gateway API duration: whole numbers of h, m, s and ms.
fn duration(duration: Duration) -> String {
    let (seconds, millis) = (duration.as_secs(), duration.subsec_millis());
    let parts = [(seconds / 3600, "h"), (seconds / 60 % 60, "m"), (seconds % 60, "s"), (millis.into(), "ms")];
    let text: String =
        parts.iter().filter(|(count, _)| *count > 0).map(|(count, unit)| format!("{count}{unit}")).collect();
    if text.is_empty() { "0s".to_owned() } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_whole_numbers() {
        assert_eq!(duration(Duration::from_millis(1500)), "1s500ms");
        assert_eq!(duration(Duration::from_secs(3690)), "1h1m30s");
        assert_eq!(duration(Duration::ZERO), "0s");
    }

    #[test]
    fn two_conditions_are_merged() {
        let wide = json!({"path": {"type": "PathPrefix", "value": "/shop"},
            "headers": [{"name": "X-Team", "value": "all"}, {"name": "x-zone", "value": "eu"}]});
        let narrow = json!({"headers": [{"name": "x-team", "value": "ours"}]});
        assert_eq!(
            merge_match(&narrow, &wide),
            json!({"path": {"type": "PathPrefix", "value": "/shop"},
                "headers": [{"name": "x-zone", "value": "eu"}, {"name": "x-team", "value": "ours"}]})
        );
    }

    #[test]
    fn a_backend_in_another_namespace_is_not_managed() {
        let rule =
            json!({"backendRefs": [{"name": "web-primary", "namespace": "other"}, {"name": "web-canary"}]});
        assert_eq!(backends(&rule, "shop"), ["Service/other/web-primary", "web-canary"]);
    }
}
