//! Our routes of a VirtualService. The first that matches applies, and each has
//! both Services as destinations, which marks it as managed.

use serde_json::{Map, Value, json};

use super::RouteKind;
use crate::{
    api::{
        Canary, Weight,
        canary::{HttpMatch, service::Service},
    },
    engine::action::Split,
    routing::{
        services::ServiceNames,
        traffic_rule::{RequestMatcher, TrafficRule, merge_conditions, traffic_rules},
        weight_ratio,
    },
};

/// The destinations of a route. A host may be written with its namespace.
pub fn backends(route: &Value, namespace: &str) -> Vec<String> {
    let name = |destination: &Value| {
        let host = destination["destination"]["host"].as_str().unwrap_or_default();
        let endings = ["svc.cluster.local", "svc"].map(|ending| format!(".{namespace}.{ending}"));
        let own = endings.iter().find_map(|ending| host.strip_suffix(ending.as_str()));
        own.or_else(|| host.strip_suffix(&format!(".{namespace}"))).unwrap_or(host).to_owned()
    };
    route["route"].as_array().into_iter().flatten().map(name).collect()
}

/// True if a route matches every request.
pub fn is_catch_all(route: &Value) -> bool {
    let everything = [json!({}), json!({"uri": {"prefix": "/"}})];
    let matches = route["match"].as_array().map(Vec::as_slice).unwrap_or_default();
    matches.is_empty() || matches.iter().any(|condition| everything.contains(condition))
}

/// Our routes for a split, with fields copied from the route they replace.
pub fn routes(canary: &Canary, split: &Split, kind: RouteKind, original: Option<&Value>) -> Vec<Value> {
    let Some(spec) = &canary.spec.service else { return Vec::new() };
    let routes = RouteBuilder::new(canary, spec, kind, original);
    let mut all: Vec<Value> =
        traffic_rules(canary, split).iter().map(|traffic_rule| routes.route(traffic_rule)).collect();
    let name = original.and_then(|original| original.get("name"));
    if let (Some(last), Some(name)) = (all.last_mut(), name) {
        last["name"] = name.clone();
    }
    all
}

/// The common part of all our routes.
struct RouteBuilder<'a> {
    spec: &'a Service,
    names: ServiceNames,
    /// Conditions of every route; empty for none.
    matches: Vec<Value>,
    /// Fields other than `match`, `route` and `name`.
    other_fields: Map<String, Value>,
    /// Fields of the destination that ours replace, such as `headers`.
    destination_fields: Map<String, Value>,
}

impl<'a> RouteBuilder<'a> {
    fn new(canary: &Canary, spec: &'a Service, kind: RouteKind, original: Option<&Value>) -> Self {
        let mut rest = original.and_then(Value::as_object).cloned().unwrap_or_default();
        let names = ServiceNames::of(canary);
        let namespace = canary.metadata.namespace.as_deref().unwrap_or_default();
        let to_apex = original.filter(|original| backends(original, namespace) == [names.apex.as_str()]);
        let destination = to_apex.and_then(|original| original["route"][0].as_object());
        let mut destination_fields = destination.cloned().unwrap_or_default();
        destination_fields.retain(|field, _| field != "destination" && field != "weight");
        rest.remove("route");
        rest.remove("name");
        let theirs = rest.remove("match");
        let own = match kind {
            RouteKind::Http => spec.match_.iter().map(|one| json!(one)).collect(),
            RouteKind::Tcp => spec.match_.iter().map(tcp_condition).collect(),
            RouteKind::Tls => vec![json!({"sniHosts": spec.hosts})],
        };
        let matches = match theirs {
            Some(Value::Array(theirs)) if spec.match_.is_empty() => theirs,
            _ => own,
        };
        if kind == RouteKind::Http {
            rest.extend(route_options(spec));
        }
        Self { spec, names, matches, other_fields: rest, destination_fields }
    }

    fn route(&self, traffic_rule: &TrafficRule) -> Value {
        let mut route = json!(self.other_fields);
        let matches = match &traffic_rule.matcher {
            RequestMatcher::Conditions(conditions) => {
                self.with_conditions(conditions.iter().map(|one| json!(one)).collect())
            }
            RequestMatcher::Cookie(regex) => {
                self.with_conditions(vec![json!({"headers": {"cookie": {"regex": regex}}})])
            }
            RequestMatcher::CatchAll => self.matches.clone(),
        };
        if !matches.is_empty() {
            route["match"] = json!(matches);
        }
        let ServiceNames { primary, canary, apex: _ } = &self.names;
        let [candidate, stable] = weight_ratio(traffic_rule.share);
        route["route"] = json!([
            self.weighted(primary, stable, traffic_rule.primary_set_cookie.as_deref()),
            self.weighted(canary, candidate, traffic_rule.canary_set_cookie.as_deref()),
        ]);
        if traffic_rule.mirror > Weight::ZERO {
            route["mirror"] = self.destination(canary);
            route["mirrorPercentage"] = json!({"value": traffic_rule.mirror.percent()});
        }
        route
    }

    /// Each of these conditions combined with each common one.
    fn with_conditions(&self, conditions: Vec<Value>) -> Vec<Value> {
        if self.matches.is_empty() {
            return conditions;
        }
        let pairs = conditions.iter().flat_map(|narrow| self.matches.iter().map(move |wide| (narrow, wide)));
        pairs.map(|(narrow, wide)| merge_conditions(narrow, wide)).collect()
    }

    fn weighted(&self, host: &str, weight: u16, set_cookie: Option<&str>) -> Value {
        let mut weighted = json!(self.destination_fields);
        weighted["destination"] = self.destination(host);
        weighted["weight"] = json!(weight);
        if let Some(cookie) = set_cookie {
            weighted["headers"]["response"]["add"]["Set-Cookie"] = json!(cookie);
        }
        weighted
    }

    /// With several ports in the Service, a gateway needs the port number.
    fn destination(&self, host: &str) -> Value {
        let at_gateway = self.spec.gateways.first().is_some_and(|gateway| gateway != "mesh");
        if self.spec.port_discovery && (at_gateway || self.spec.delegation) {
            json!({"host": host, "port": {"number": self.spec.port}})
        } else {
            json!({"host": host})
        }
    }
}

/// Options of `spec.service` for requests: timeout, retries, CORS, headers,
/// rewrite.
fn route_options(spec: &Service) -> Map<String, Value> {
    let mut options = Map::new();
    let mut set =
        |field: &str, value: Option<Value>| options.extend(value.map(|value| (field.to_owned(), value)));
    set("timeout", spec.timeout.map(|timeout| json!(format!("{}s", timeout.get().as_secs_f64()))));
    set("retries", spec.retries.as_ref().map(|retries| json!(retries)));
    set("corsPolicy", spec.cors_policy.as_ref().map(|policy| json!(policy)));
    set("headers", spec.headers.as_ref().map(|headers| json!(headers)));
    set(
        "rewrite",
        spec.rewrite.as_ref().map(|rewrite| {
            let parts = [("uri", &rewrite.uri), ("authority", &rewrite.authority)];
            let options = parts.into_iter().filter_map(|(field, value)| Some((field, value.as_ref()?)));
            options.map(|(field, value)| (field.to_owned(), json!(value))).collect()
        }),
    );
    options
}

/// The part of a condition that a TCP route supports.
pub fn tcp_condition(condition: &HttpMatch) -> Value {
    let HttpMatch { port, source_labels, source_namespace, gateways, other, .. } = condition.clone();
    json!(HttpMatch { port, source_labels, source_namespace, gateways, other, ..Default::default() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_may_be_written_in_full() {
        let hosts = ["web", "web.shop", "web.shop.svc", "web.shop.svc.cluster.local"];
        for host in hosts {
            let route = json!({"route": [{"destination": {"host": host}}]});
            assert_eq!(backends(&route, "shop"), ["web"], "{host}");
        }
        let elsewhere = json!({"route": [{"destination": {"host": "web.other"}}]});
        assert_eq!(backends(&elsewhere, "shop"), ["web.other"]);
    }
}
