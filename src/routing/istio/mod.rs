//! Istio: a VirtualService over the primary and the canary Service, and a
//! DestinationRule for each of the two.
//!
//! Two Services rather than subsets of one: a subset is a selection of pods in
//! one object and a weight in another, which reach the proxies at different
//! times; a Service exists before it gets a weight.
//!
//! A port that is not HTTP (`tcp`, `mongo`, `mysql`, `redis`, by `appProtocol` or the
//! name of the port) has a TCP route, which supports weights only. So has one with TLS
//! (`tls`, `https`) within the mesh, where sidecars do not decrypt and read only TLS
//! routes, which are chosen by server name (`pilot/pkg/networking/core/tls.go` of
//! istio/istio). At a gateway the protocol of its server decides.
//!
//! Istio reports no status by default: a split is in force when it is written,
//! and the proxies follow within moments.

mod routes;

use kube::{ResourceExt, api::ApiResource};
use serde_json::{Value, json};

use super::{
    Capabilities, ObjectKey, RouteContext, Unsupported,
    object::DesiredObject,
    object_router::ObjectRouter,
    services::{self, ServiceNames},
    shared_list::{ManagedEntries, SharedList},
    split_annotation,
};
use crate::{
    api::{
        Canary, Weight,
        canary::{HttpMatch, service},
    },
    engine::action::Split,
};

/// Writes a VirtualService and two DestinationRules.
#[derive(Clone, Debug)]
pub struct Istio {
    virtual_services: ApiResource,
    destination_rules: ApiResource,
}

impl Istio {
    pub fn new(virtual_services: ApiResource, destination_rules: ApiResource) -> Self {
        Self { virtual_services, destination_rules }
    }

    fn destination_rule_keys(&self, canary: &Canary) -> [ObjectKey; 2] {
        let ServiceNames { primary, canary: candidate, apex: _ } = ServiceNames::of(canary);
        let namespace = canary.namespace().unwrap_or_default();
        [primary, candidate].map(|name| ObjectKey {
            kind: self.destination_rules.clone(),
            namespace: namespace.clone(),
            name,
        })
    }

    fn unsupported_field(
        &self,
        field: &'static str,
        what: &str,
        way_out: &'static str,
    ) -> Result<(), Unsupported> {
        Err(Unsupported::Field { router: self.name(), field, what: what.to_owned(), way_out })
    }
}

/// The lists of HTTP routes, of TCP routes and of TLS routes.
pub fn shared_lists(route: &ObjectKey) -> [SharedList; 3] {
    ["http", "tcp", "tls"]
        .map(|field| SharedList::new(route, ["spec", field], routes::backends, routes::is_catch_all))
}

/// Hosts and gateways that the Canary sets, and the defaults of a VirtualService
/// of our own.
fn hosts_and_gateways(canary: &Canary, spec: &service::Service) -> (Value, Value) {
    let apex = ServiceNames::of(canary).apex;
    let (mut written, mut default) = (json!({}), json!({}));
    if spec.delegation {
        return (written, default);
    }
    if spec.hosts.is_empty() {
        default["spec"]["hosts"] = json!([apex]);
    } else {
        let has_apex = spec.hosts.iter().any(|host| *host == apex || host == "*");
        let own = (!has_apex).then_some(&apex);
        written["spec"]["hosts"] = spec.hosts.iter().chain(own).map(|host| json!(host)).collect();
    }
    if spec.gateways.is_empty() {
        default["spec"]["gateways"] = json!(["mesh"]);
    } else {
        written["spec"]["gateways"] = json!(spec.gateways);
    }
    (written, default)
}

/// The list of a VirtualService that the port of a Canary is routed by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RouteKind {
    Http,
    Tcp,
    Tls,
}

impl RouteKind {
    fn of(canary: &Canary) -> Self {
        let Some(spec) = &canary.spec.service else { return Self::Http };
        let is_mesh = |gateway: &String| gateway == "mesh";
        let within_mesh = !spec.delegation && (spec.gateways.is_empty() || spec.gateways.iter().any(is_mesh));
        match services::protocol(spec).as_str() {
            "tls" | "https" if within_mesh => Self::Tls,
            "tcp" | "tls" | "mongo" | "mysql" | "redis" => Self::Tcp,
            _ => Self::Http,
        }
    }
}

impl ObjectRouter for Istio {
    fn name(&self) -> String {
        format!("istio ({})", self.virtual_services.version)
    }

    fn capabilities(&self, canary: &Canary) -> Capabilities {
        let http = RouteKind::of(canary) == RouteKind::Http;
        Capabilities {
            finest_weight: Weight::from_hundredths(1).unwrap_or(Weight::FULL),
            matches: http,
            match_with_weight: http,
            mirror: http,
            partial_mirror: http,
            affinity: http,
            delegation: true,
        }
    }

    fn route_fields(&self, canary: &Canary) -> &'static [&'static str] {
        match RouteKind::of(canary) {
            RouteKind::Tls => &["gateways", "hosts", "trafficPolicy"],
            RouteKind::Tcp => &["gateways", "hosts", "trafficPolicy", "match"],
            RouteKind::Http => &[
                "gateways",
                "hosts",
                "trafficPolicy",
                "match",
                "timeout",
                "retries",
                "headers",
                "rewrite",
                "corsPolicy",
            ],
        }
    }

    fn check_spec(&self, canary: &Canary) -> Result<(), Unsupported> {
        let Some(spec) = &canary.spec.service else { return Ok(()) };
        if spec.rewrite.as_ref().is_some_and(|rewrite| rewrite.type_.is_some()) {
            let way_out = "remove type: Istio replaces the part of the path that matched";
            return self.unsupported_field("spec.service.rewrite.type", "a kind of rewrite", way_out);
        }
        if spec.delegation && !(spec.hosts.is_empty() && spec.gateways.is_empty()) {
            let way_out = "remove hosts and gateways, which the VirtualService that delegates has";
            return self.unsupported_field(
                "spec.service.delegation",
                "a route without hosts and gateways",
                way_out,
            );
        }
        let by_http = |condition: &HttpMatch| routes::tcp_condition(condition) != json!(condition);
        if RouteKind::of(canary) == RouteKind::Tls {
            if spec.hosts.is_empty() {
                let way_out = "write the server names that clients connect to into spec.service.hosts";
                return self.unsupported_field("spec.service.hosts", "TLS without server names", way_out);
            }
            if spec.gateways.len() > 1 {
                let way_out = "write mesh alone, or gateways alone";
                return self.unsupported_field(
                    "spec.service.gateways",
                    "a TLS port both within the mesh and at gateways",
                    way_out,
                );
            }
        }
        if RouteKind::of(canary) == RouteKind::Tcp && spec.match_.iter().any(by_http) {
            let way_out = "match by port, sourceLabels, sourceNamespace or gateways";
            return self.unsupported_field("spec.service.match", "HTTP conditions on a TCP port", way_out);
        }
        Ok(())
    }

    fn route_object(&self, canary: &Canary) -> ObjectKey {
        let namespace = canary.namespace().unwrap_or_default();
        ObjectKey { kind: self.virtual_services.clone(), namespace, name: ServiceNames::of(canary).apex }
    }

    fn other_objects(&self, canary: &Canary) -> Vec<ObjectKey> {
        self.destination_rule_keys(canary).into()
    }

    fn desired(&self, on: &RouteContext<'_>, split: &Split) -> Vec<DesiredObject> {
        let canary = on.canary;
        let spec = canary.spec.service.clone().unwrap_or_default();
        let rules = self.destination_rule_keys(canary).map(|name| {
            let mut body = json!({"spec": {"host": name.name}});
            if let Some(policy) = &spec.traffic_policy {
                body["spec"]["trafficPolicy"] = json!(policy);
            }
            DesiredObject::new(canary, name, Default::default(), body)
        });
        let mut metadata = spec.apex.clone().unwrap_or_default();
        metadata.annotations.extend(split_annotation::annotation(split).annotations);
        let (written, default) = hosts_and_gateways(canary, &spec);
        let (canary_, split, kind) = (canary.clone(), split.clone(), RouteKind::of(canary));
        let routes = move |original: Option<&Value>| routes::routes(&canary_, &split, kind, original);
        let name = self.route_object(canary);
        let [http_list, tcp_list, tls_list] = shared_lists(&name);
        let list = match kind {
            RouteKind::Http => http_list,
            RouteKind::Tcp => tcp_list,
            RouteKind::Tls => tls_list,
        };
        let route = DesiredObject::new(canary, name, metadata, written)
            .with_owned_defaults(default)
            .with_entries(ManagedEntries::new(list, routes));
        rules.into_iter().chain([route]).collect()
    }
}
