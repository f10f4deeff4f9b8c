//! SMI's kinds, in the forms of all of their versions
//! (`apis/` of servicemeshinterface/smi-spec).
//!
//! A TrafficTarget admits its sources to what its rules name. A rule that names nothing
//! that exists admits nothing.

use std::{collections::BTreeMap, sync::Arc};

use serde_json::Value;

use super::objects::Name;
use crate::{
    api::{
        MeshRouteSpec,
        canary::{HttpMatch, StringMatch},
        mesh_route::{MeshRouteBackend, MeshRouteRule},
    },
    catalog::{AccessRule, Account, HttpAccess, Policy},
};

/// The sum of weights that are no whole numbers, or too great ones.
const WEIGHT_SUM: f64 = 10_000.0;

pub struct TrafficSplit {
    pub generation: i64,
    pub service: Name,
    backends: Vec<(String, f64)>,
    /// HTTPRouteGroups of which requests are split; none for all requests.
    pub groups: Vec<Name>,
}

/// Requests by name.
pub struct HttpRouteGroup(Vec<(String, HttpAccess)>);

/// Ports; none for all.
pub struct TcpRoute(Vec<u16>);

pub struct TrafficTarget {
    destination: Account,
    port: Option<u16>,
    sources: Vec<Account>,
    rules: Vec<Rule>,
}

struct Rule {
    kind: RuleKind,
    name: Name,
    /// Of an HTTPRouteGroup; none for all of it.
    matches: Vec<String>,
}

enum RuleKind {
    HttpRouteGroup,
    TcpRoute,
}

fn array(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn texts(value: &Value) -> Vec<String> {
    array(value).filter_map(Value::as_str).map(str::to_owned).collect()
}

/// `spec` in newer versions, the object itself in older ones.
fn body(manifest: &Value) -> &Value {
    if manifest["spec"].is_object() { &manifest["spec"] } else { manifest }
}

fn namespace(manifest: &Value) -> Option<Arc<str>> {
    manifest["metadata"]["namespace"].as_str().map(Arc::from)
}

impl TrafficSplit {
    pub fn parse(manifest: &Value) -> Option<Self> {
        let (namespace, spec) = (namespace(manifest)?, &manifest["spec"]);
        // A name of DNS, maybe in full.
        let service = spec["service"].as_str()?.split('.').next()?;
        let backend = |backend: &Value| {
            let service = backend["service"].as_str()?;
            Some((service.split('.').next()?.to_owned(), weight(&backend["weight"])?))
        };
        let group = |reference: &Value| {
            let name = reference["name"].as_str().filter(|_| reference["kind"] == "HTTPRouteGroup")?;
            Some((Arc::clone(&namespace), name.into()))
        };
        Some(Self {
            generation: manifest["metadata"]["generation"].as_i64().unwrap_or_default(),
            backends: array(&spec["backends"]).filter_map(backend).collect(),
            groups: array(&spec["matches"]).filter_map(group).collect(),
            service: (Arc::clone(&namespace), service.into()),
        })
    }

    /// The same as a MeshRoute of a port; none if no backend has a weight. The ports of
    /// root and backends are the same.
    pub fn route(&self, port: u16, groups: &BTreeMap<Name, HttpRouteGroup>) -> Option<MeshRouteSpec> {
        let weights = whole_weights(&self.backends)?;
        let backends = self.backends.iter().zip(weights).map(|((service, _), weight)| MeshRouteBackend {
            version: None,
            service: service.clone(),
            weight,
            ..MeshRouteBackend::default()
        });
        let backends: Vec<_> = backends.collect();
        let matched = self.groups.iter().filter_map(|group| groups.get(group));
        let matches: Vec<_> = matched.flat_map(HttpRouteGroup::matches).collect();
        // Groups that do not exist match nothing.
        let applies = self.groups.is_empty() || !matches.is_empty();
        let rule = MeshRouteRule { match_: matches, backends, ..MeshRouteRule::default() };
        let rules = applies.then_some(rule).into_iter().collect();
        Some(MeshRouteSpec { service: self.service.1.to_string(), port, hosts: Vec::new(), rules })
    }
}

/// A number, or a quantity such as `500m`.
fn weight(value: &Value) -> Option<f64> {
    let number = match value {
        Value::Number(number) => number.as_f64()?,
        Value::String(quantity) => {
            let (number, unit) = match quantity.strip_suffix(['m', 'k', 'M']) {
                Some(number) => (number, quantity.chars().last()),
                None => (quantity.as_str(), None),
            };
            let factor = match unit {
                Some('m') => 0.001,
                Some('k') => 1e3,
                Some('M') => 1e6,
                _ => 1.0,
            };
            number.parse::<f64>().ok()? * factor
        }
        Value::Null => 0.0,
        _ => return None,
    };
    (number.is_finite() && number >= 0.0).then_some(number)
}

fn whole_weights(backends: &[(String, f64)]) -> Option<Vec<u16>> {
    let sum: f64 = backends.iter().map(|(_, weight)| weight).sum();
    let exact = backends.iter().all(|(_, weight)| weight.fract() == 0.0 && *weight <= WEIGHT_SUM);
    let scaled = |(_, weight): &(String, f64)| match exact {
        true => *weight as u16,
        false => (weight / sum * WEIGHT_SUM).round() as u16,
    };
    (sum > 0.0).then(|| backends.iter().map(scaled).collect())
}

impl HttpRouteGroup {
    pub fn parse(manifest: &Value) -> Self {
        let entry = |entry: &Value| {
            let regex = |text: &str| StringMatch { regex: Some(text.to_owned()), ..StringMatch::default() };
            // A map, or a list of maps with one header each.
            let header =
                |(name, value): (&String, &Value)| Some((name.to_ascii_lowercase(), regex(value.as_str()?)));
            let maps = array(&entry["headers"]).chain([&entry["headers"]]).filter_map(Value::as_object);
            let request = HttpMatch {
                uri: entry["pathRegex"].as_str().filter(|path| !path.is_empty()).map(regex),
                headers: maps.flatten().filter_map(header).collect(),
                ..HttpMatch::default()
            };
            let mut methods = texts(&entry["methods"]);
            if methods.iter().any(|method| method == "*") {
                methods.clear();
            }
            (entry["name"].as_str().unwrap_or_default().to_owned(), HttpAccess { methods, request })
        };
        Self(array(&body(manifest)["matches"]).map(entry).collect())
    }

    /// Conditions that any request of the group satisfies one of.
    fn matches(&self) -> Vec<HttpMatch> {
        let each = |(_, HttpAccess { methods, request }): &(String, HttpAccess)| {
            let method = (!methods.is_empty()).then(|| match &methods[..] {
                [one] => StringMatch { exact: Some(one.clone()), ..StringMatch::default() },
                some => StringMatch { regex: Some(some.join("|")), ..StringMatch::default() },
            });
            HttpMatch { method, ..request.clone() }
        };
        self.0.iter().map(each).collect()
    }
}

impl TcpRoute {
    pub fn parse(manifest: &Value) -> Self {
        let ports = array(&body(manifest)["matches"]["ports"]).filter_map(Value::as_u64);
        Self(ports.filter_map(|port| u16::try_from(port).ok()).collect())
    }
}

impl TrafficTarget {
    pub fn parse(manifest: &Value) -> Option<Self> {
        let (own, body) = (namespace(manifest)?, body(manifest));
        let account = |reference: &Value| -> Option<Account> {
            let name = reference["name"].as_str().filter(|_| reference["kind"] == "ServiceAccount")?;
            let namespace = reference["namespace"].as_str().map_or_else(|| Arc::clone(&own), Arc::from);
            Some((namespace, name.into()))
        };
        let rule = |rule: &Value| {
            let kind = match rule["kind"].as_str()? {
                "HTTPRouteGroup" => RuleKind::HttpRouteGroup,
                "TCPRoute" => RuleKind::TcpRoute,
                _ => return None,
            };
            let name = (Arc::clone(&own), rule["name"].as_str()?.into());
            Some(Rule { kind, name, matches: texts(&rule["matches"]) })
        };
        let port = match &body["destination"]["port"] {
            Value::Null => None,
            // Some other thing is no port: nobody is admitted to anything.
            port => {
                let number = port.as_u64().or_else(|| port.as_str()?.parse().ok())?;
                Some(u16::try_from(number).ok()?)
            }
        };
        // `specs` before v1alpha2.
        let rules = array(&body["rules"]).chain(array(&body["specs"])).filter_map(rule).collect();
        Some(Self {
            destination: account(&body["destination"])?,
            port,
            sources: array(&body["sources"]).filter_map(account).collect(),
            rules,
        })
    }

    /// HTTPRouteGroups and TCPRoutes.
    pub fn references(&self) -> impl Iterator<Item = &Name> {
        self.rules.iter().map(|rule| &rule.name)
    }

    /// One policy for its HTTP rules, and one for each port of its TCP rules. A target
    /// without effective rules has one that admits nothing.
    pub fn policies(
        &self,
        groups: &BTreeMap<Name, HttpRouteGroup>,
        tcp_routes: &BTreeMap<Name, TcpRoute>,
    ) -> Vec<Policy> {
        let policy = |port: Option<u16>, allow| Policy {
            destination: self.destination.clone(),
            port,
            sources: self.sources.clone(),
            allow,
        };
        let (mut http, mut tcp) = (Vec::new(), Vec::new());
        for Rule { kind, name, matches } in &self.rules {
            match kind {
                RuleKind::HttpRouteGroup => {
                    let entries = groups.get(name).into_iter().flat_map(|group| &group.0);
                    let named = entries.filter(|(name, _)| matches.is_empty() || matches.contains(name));
                    http.extend(named.map(|(_, access)| access.clone()));
                }
                RuleKind::TcpRoute => match tcp_routes.get(name).map(|route| &route.0[..]) {
                    None => {}
                    Some([]) => tcp.push(policy(self.port, AccessRule::Everything)),
                    Some(ports) => {
                        let admitted = ports.iter().filter(|port| self.port.is_none_or(|own| own == **port));
                        tcp.extend(admitted.map(|port| policy(Some(*port), AccessRule::Everything)));
                    }
                },
            }
        }
        if !http.is_empty() || tcp.is_empty() {
            tcp.insert(0, policy(self.port, AccessRule::Http(http)));
        }
        tcp
    }
}
