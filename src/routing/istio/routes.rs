//! Our routes of a VirtualService. The first that fits counts, and every one
//! names both Services, so that it is known for ours.

use serde_json::{Map, Value, json};

use crate::{
    api::{
        Canary, Weight,
        canary::{HttpMatch, service::Service},
    },
    engine::action::Split,
    routing::{
        services::ServiceNames,
        traffic_rule::{RequestMatcher, TrafficRule, traffic_rules},
        weight_ratio,
    },
};

/// Whom a route leads to. A host may be written with its namespace.
pub fn backends(route: &Value, namespace: &str) -> Vec<String> {
    let name = |destination: &Value| {
        let host = destination["destination"]["host"].as_str().unwrap_or_default();
        let endings = ["svc.cluster.local", "svc"].map(|ending| format!(".{namespace}.{ending}"));
        let own = endings.iter().find_map(|ending| host.strip_suffix(ending.as_str()));
        own.or_else(|| host.strip_suffix(&format!(".{namespace}"))).unwrap_or(host).to_owned()
    };
    route["route"].as_array().into_iter().flatten().map(name).collect()
}

/// Is a route for every request?
pub fn is_catch_all(route: &Value) -> bool {
    let everything = [json!({}), json!({"uri": {"prefix": "/"}})];
    let matches = route["match"].as_array().map(Vec::as_slice).unwrap_or_default();
    matches.is_empty() || matches.iter().any(|condition| everything.contains(condition))
}

/// Our routes for a split, in place of the route that people had.
pub fn routes(canary: &Canary, split: &Split, tcp: bool, original: Option<&Value>) -> Vec<Value> {
    let Some(spec) = &canary.spec.service else { return Vec::new() };
    let routes = RouteBuilder::new(canary, spec, tcp, original);
    let mut all: Vec<Value> =
        traffic_rules(canary, split).iter().map(|traffic_rule| routes.route(traffic_rule)).collect();
    let name = original.and_then(|original| original.get("name"));
    if let (Some(last), Some(name)) = (all.last_mut(), name) {
        last["name"] = name.clone();
    }
    all
}

/// What all our routes have in common.
struct RouteBuilder<'a> {
    spec: &'a Service,
    names: ServiceNames,
    /// What every one of them asks of a request; nothing if there is none.
    matches: Vec<Value>,
    /// What else they say.
    other_fields: Map<String, Value>,
}

impl<'a> RouteBuilder<'a> {
    fn new(canary: &Canary, spec: &'a Service, tcp: bool, original: Option<&Value>) -> Self {
        let mut rest = original.and_then(Value::as_object).cloned().unwrap_or_default();
        rest.remove("route");
        rest.remove("name");
        let theirs = rest.remove("match");
        let own = spec.match_.iter().map(|one| if tcp { tcp_condition(one) } else { json!(one) }).collect();
        let matches = match theirs {
            Some(Value::Array(theirs)) if spec.match_.is_empty() => theirs,
            _ => own,
        };
        if !tcp {
            rest.extend(route_options(spec));
        }
        Self { spec, names: ServiceNames::of(canary), matches, other_fields: rest }
    }

    fn route(&self, traffic_rule: &TrafficRule) -> Value {
        let mut route = json!(self.other_fields);
        let matches = match &traffic_rule.matcher {
            RequestMatcher::Conditions(chosen) => {
                self.with_conditions(chosen.iter().map(|one| json!(one)).collect())
            }
            RequestMatcher::Cookie(held) => {
                self.with_conditions(vec![json!({"headers": {"cookie": {"regex": held}}})])
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

    /// Each of these conditions together with each that all routes have.
    fn with_conditions(&self, conditions: Vec<Value>) -> Vec<Value> {
        if self.matches.is_empty() {
            return conditions;
        }
        let pairs = conditions.iter().flat_map(|narrow| self.matches.iter().map(move |wide| (narrow, wide)));
        pairs.map(|(narrow, wide)| merge_match(narrow, wide)).collect()
    }

    fn weighted(&self, host: &str, weight: u16, set_cookie: Option<&str>) -> Value {
        let mut weighted = json!({"destination": self.destination(host), "weight": weight});
        if let Some(cookie) = set_cookie {
            weighted["headers"] = json!({"response": {"add": {"Set-Cookie": cookie}}});
        }
        weighted
    }

    /// A Service of several ports must be told which one a gateway means.
    fn destination(&self, host: &str) -> Value {
        let at_gateway = self.spec.gateways.first().is_some_and(|gateway| gateway != "mesh");
        if self.spec.port_discovery && (at_gateway || self.spec.delegation) {
            json!({"host": host, "port": {"number": self.spec.port}})
        } else {
            json!({"host": host})
        }
    }
}

/// What the Canary says of requests on the way.
fn route_options(spec: &Service) -> Map<String, Value> {
    let mut options = Map::new();
    let mut say =
        |field: &str, value: Option<Value>| options.extend(value.map(|value| (field.to_owned(), value)));
    say("timeout", spec.timeout.map(|timeout| json!(format!("{}s", timeout.get().as_secs_f64()))));
    say("retries", spec.retries.as_ref().map(|retries| json!(retries)));
    say("corsPolicy", spec.cors_policy.as_ref().map(|policy| json!(policy)));
    say("headers", spec.headers.as_ref().map(|headers| json!(headers)));
    say(
        "rewrite",
        spec.rewrite.as_ref().map(|rewrite| {
            let parts = [("uri", &rewrite.uri), ("authority", &rewrite.authority)];
            let options = parts.into_iter().filter_map(|(field, value)| Some((field, value.as_ref()?)));
            options.map(|(field, value)| (field.to_owned(), json!(value))).collect()
        }),
    );
    options
}

/// What a TCP route can ask of a connection.
pub fn tcp_condition(condition: &HttpMatch) -> Value {
    let HttpMatch { port, source_labels, source_namespace, gateways, other, .. } = condition.clone();
    json!(HttpMatch { port, source_labels, source_namespace, gateways, other, ..Default::default() })
}

/// Both conditions at once. Where they speak of the same thing the narrow one
/// counts.
fn merge_match(narrow: &Value, wide: &Value) -> Value {
    let mut both = wide.clone();
    for (field, value) in narrow.as_object().into_iter().flatten() {
        let by_name = ["headers", "withoutHeaders", "queryParams", "sourceLabels"].contains(&field.as_str());
        match (both.get_mut(field), value) {
            (Some(Value::Object(wide)), Value::Object(narrow)) if by_name => wide.extend(narrow.clone()),
            _ => both[field] = value.clone(),
        }
    }
    both
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

    #[test]
    fn two_conditions_become_one() {
        let wide = json!({"uri": {"prefix": "/shop"}, "headers": {"x-zone": {"exact": "eu"}}});
        let narrow = json!({"uri": {"exact": "/shop/new"}, "headers": {"x-team": {"exact": "ours"}}});
        assert_eq!(
            merge_match(&narrow, &wide),
            json!({"uri": {"exact": "/shop/new"},
                "headers": {"x-zone": {"exact": "eu"}, "x-team": {"exact": "ours"}}})
        );
    }
}
