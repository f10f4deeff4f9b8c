//! Our routes of a VirtualRouter. A route has one condition, so a split may need
//! several; each has both virtual nodes as targets, which marks it as managed.

use serde_json::{Map, Value, json};

use super::Protocol;
use crate::{
    api::{
        Canary, Duration,
        canary::{HttpMatch, StringMatch, service::Service},
    },
    engine::action::Split,
    routing::{
        services::ServiceNames,
        traffic_rule::{RequestMatcher, traffic_rules},
        weight_ratio,
    },
};

const ROUTE_FIELDS: [&str; 4] = ["httpRoute", "http2Route", "grpcRoute", "tcpRoute"];

/// The field of a route for its protocol.
fn protocol_route(route: &Value) -> Option<&Value> {
    ROUTE_FIELDS.iter().find_map(|kind| route.get(*kind))
}

/// The targets of a route.
pub fn backends(route: &Value, namespace: &str) -> Vec<String> {
    let targets = protocol_route(route).and_then(|inner| inner["action"]["weightedTargets"].as_array());
    let name = |target: &Value| {
        let reference = &target["virtualNodeRef"];
        let name = reference["name"].as_str().unwrap_or_default();
        match (target["virtualNodeARN"].as_str(), reference["namespace"].as_str()) {
            (Some(elsewhere), _) => elsewhere.to_owned(),
            (None, Some(other)) if other != namespace => format!("{other}/{name}"),
            _ => name.to_owned(),
        }
    };
    targets.into_iter().flatten().map(name).collect()
}

/// True if a route matches every request.
pub fn is_catch_all(route: &Value) -> bool {
    let everything = [Value::Null, json!({}), json!({"prefix": "/"})];
    protocol_route(route).is_some_and(|inner| everything.contains(&inner["match"]))
}

/// The error names a condition that a route cannot express.
pub fn supports_match(condition: &HttpMatch) -> Result<(), &'static str> {
    let HttpMatch {
        name: _,
        uri,
        scheme,
        method,
        authority,
        headers: _,
        without_headers: _,
        query_params,
        ignore_uri_case,
        port,
        source_labels,
        source_namespace,
        gateways,
        other,
    } = condition;
    let inexact = |text: &Option<StringMatch>| text.as_ref().is_some_and(|text| text.exact.is_none());
    let unknown = [
        ("a uri other than by its prefix", uri.as_ref().is_some_and(|uri| uri.prefix.is_none())),
        ("a uri in any case", *ignore_uri_case),
        ("a scheme other than an exact one", inexact(scheme)),
        ("a method other than an exact one", inexact(method)),
        ("authority", authority.is_some()),
        ("queryParams", !query_params.is_empty()),
        ("port", port.is_some()),
        ("sourceLabels", !source_labels.is_empty()),
        ("sourceNamespace", source_namespace.is_some()),
        ("gateways", !gateways.is_empty()),
        ("a field of another mesh", !other.is_empty()),
    ];
    unknown.into_iter().find(|(_, present)| *present).map_or(Ok(()), |(condition, _)| Err(condition))
}

/// Our routes for a split, with fields copied from the route they replace.
pub fn routes(canary: &Canary, split: &Split, protocol: Protocol, original: Option<&Value>) -> Vec<Value> {
    let Some(spec) = &canary.spec.service else { return Vec::new() };
    let kind = format!("{}Route", protocol.name());
    let theirs = original.and_then(|original| original.get(&kind)).and_then(Value::as_object);
    let mut rest = theirs.cloned().unwrap_or_default();
    rest.remove("action");
    let everything = match protocol {
        Protocol::Http | Protocol::Http2 => json!({"prefix": "/"}),
        Protocol::Grpc => json!({}),
        Protocol::Tcp => Value::Null,
    };
    let wide: Vec<Value> = match (rest.remove("match"), &spec.match_[..]) {
        (Some(theirs), []) => vec![theirs],
        (None, []) => vec![everything],
        (_, own) if protocol != Protocol::Tcp => {
            own.iter().map(|one| merge_match(&condition(one, protocol), &everything)).collect()
        }
        _ => vec![everything],
    };
    rest.extend(route_options(spec, protocol));

    let ServiceNames { apex, primary, canary: candidate } = ServiceNames::of(canary);
    let their = |field: &str| original.and_then(|original| original.get(field)).cloned();
    let base = their("name").and_then(|name| Some(name.as_str()?.to_owned())).unwrap_or(apex);
    let mut all = Vec::new();
    for traffic_rule in traffic_rules(canary, split) {
        let (narrow, is_matched): (Vec<Value>, bool) = match traffic_rule.matcher {
            RequestMatcher::Conditions(conditions) => {
                (conditions.iter().map(|one| condition(one, protocol)).collect(), true)
            }
            // App Mesh cannot set cookies.
            RequestMatcher::Cookie(_) => continue,
            RequestMatcher::CatchAll => (vec![json!({})], false),
        };
        let [share, others] = weight_ratio(traffic_rule.share);
        let targets = json!([
            {"virtualNodeRef": {"name": candidate}, "weight": share},
            {"virtualNodeRef": {"name": primary}, "weight": others},
        ]);
        let many = (narrow.len() * wide.len()) as u64;
        for (at, (narrow, wide)) in
            narrow.iter().flat_map(|narrow| wide.iter().map(move |wide| (narrow, wide))).enumerate()
        {
            let mut inner = json!(rest);
            if !wide.is_null() {
                inner["match"] = merge_match(narrow, wide);
            }
            inner["action"] = json!({"weightedTargets": targets});
            let mut route = json!({kind.as_str(): inner});
            route["name"] = match (is_matched, at) {
                (true, at) => json!(format!("{base}-match-{at}")),
                (false, 0) => json!(base),
                (false, at) => json!(format!("{base}-{at}")),
            };
            // Routes without a priority come after all that have one, the most
            // specific first.
            let priority = match (is_matched, their("priority").and_then(|theirs| theirs.as_u64())) {
                // Before the route that they are derived from.
                (true, Some(theirs)) => Some(json!(theirs.saturating_sub(many) + at as u64)),
                (true, None) => Some(json!(10 + at)),
                (false, _) => their("priority"),
            };
            if let Some(priority) = priority {
                route["priority"] = priority;
            }
            all.push(route);
        }
    }
    all
}

/// Both conditions in one. For the same field the narrow one wins.
fn merge_match(narrow: &Value, wide: &Value) -> Value {
    let mut both = wide.clone();
    for (field, value) in narrow.as_object().into_iter().flatten() {
        match (both.get_mut(field), value) {
            (Some(Value::Array(wide)), Value::Array(narrow)) => {
                wide.retain(|item| !narrow.iter().any(|other| other["name"] == item["name"]));
                wide.extend(narrow.iter().cloned());
            }
            _ => both[field] = value.clone(),
        }
    }
    both
}

/// A condition in the form of App Mesh.
fn condition(condition: &HttpMatch, protocol: Protocol) -> Value {
    let mut written = json!({});
    if let Some(prefix) = condition.uri.as_ref().and_then(|uri| uri.prefix.as_ref()) {
        written["prefix"] = json!(prefix);
    }
    for (field, text) in [("method", &condition.method), ("scheme", &condition.scheme)] {
        if let Some(exact) = text.as_ref().and_then(|text| text.exact.as_ref()) {
            written[field] = json!(exact);
        }
    }
    let with = condition.headers.iter().map(|(name, value)| header(name, value, false));
    let without = condition.without_headers.iter().map(|(name, value)| header(name, value, true));
    let headers: Vec<Value> = with.chain(without).collect();
    if !headers.is_empty() {
        written[if protocol == Protocol::Grpc { "metadata" } else { "headers" }] = json!(headers);
    }
    written
}

fn header(name: &str, value: &StringMatch, invert: bool) -> Value {
    let mut header = json!({"name": name, "invert": invert});
    // Without a value the header only has to be present.
    if *value != StringMatch::default() {
        header["match"] = json!(value);
    }
    header
}

/// Timeout and retries of `spec.service`.
fn route_options(spec: &Service, protocol: Protocol) -> Map<String, Value> {
    let mut options = Map::new();
    if protocol == Protocol::Tcp {
        return options;
    }
    if let Some(timeout) = spec.timeout {
        options.insert("timeout".to_owned(), json!({"perRequest": duration(timeout)}));
    }
    if let Some(retries) = &spec.retries {
        let text = |field: &str| retries.0.get(field).and_then(Value::as_str);
        let wait = text("perTryTimeout").and_then(|wait| wait.parse().ok());
        let on = text("retryOn").filter(|on| !on.is_empty()).unwrap_or("gateway-error");
        let events: Vec<_> = on.split(',').map(str::trim).collect();
        let attempts = retries.0.get("attempts").and_then(Value::as_u64).filter(|attempts| *attempts > 0);
        let policy = json!({
            "maxRetries": attempts.unwrap_or(1),
            "perRetryTimeout": duration(wait.unwrap_or(Duration::from_millis(250))),
            "httpRetryEvents": events,
        });
        options.insert("retryPolicy".to_owned(), policy);
    }
    options
}

pub fn duration(duration: Duration) -> Value {
    json!({"unit": "ms", "value": u64::try_from(duration.get().as_millis()).unwrap_or(u64::MAX)})
}
