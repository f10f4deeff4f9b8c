//! Istio: a VirtualService over the primary and the canary Service, and a
//! DestinationRule for each of the two.
//!
//! Two Services rather than subsets of one: a subset is a selection of pods in
//! one object and a weight in another, which reach the proxies at different
//! times; a Service exists before it gets a weight.
//!
//! A port that speaks no HTTP (`tcp`, `tls`, `mongo`, `mysql`, `redis`, by
//! `appProtocol` or the name of the port) has a TCP route, which knows weights
//! and nothing else.
//!
//! Istio reports no status of its own accord: a split is in force when it is
//! written, and the proxies follow within moments.

mod routes;

use async_trait::async_trait;
use kube::{Client, ResourceExt, api::ApiResource};
use serde_json::{Value, json};

use super::{
    Capabilities, Error, ObjectCache, ObjectKey, RouteContext, Router, Unsupported, check_capabilities,
    object::{self, DesiredObject},
    services::{self, ApexTarget, ServiceNames},
    shared_list::{ManagedEntries, SharedList},
    split_annotation,
};
use crate::{
    api::{
        Canary, Weight,
        canary::{HttpMatch, service},
    },
    engine::{Plan, action::Split},
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

    fn route_key(&self, canary: &Canary) -> ObjectKey {
        let namespace = canary.namespace().unwrap_or_default();
        ObjectKey { kind: self.virtual_services.clone(), namespace, name: ServiceNames::of(canary).apex }
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

    /// In the order to write them.
    fn desired(&self, canary: &Canary, split: &Split) -> Vec<DesiredObject> {
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
        let (canary_, split, tcp) = (canary.clone(), split.clone(), is_tcp(canary));
        let routes = move |original: Option<&Value>| routes::routes(&canary_, &split, tcp, original);
        let name = self.route_key(canary);
        let [http_list, tcp_list] = shared_lists(&name);
        let list = if tcp { tcp_list } else { http_list };
        let route = DesiredObject::new(canary, name, metadata, written)
            .with_owned_defaults(default)
            .with_entries(ManagedEntries::new(list, routes));
        rules.into_iter().chain([route]).collect()
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

/// Of HTTP routes and of TCP routes.
pub fn shared_lists(route: &ObjectKey) -> [SharedList; 2] {
    ["http", "tcp"]
        .map(|field| SharedList::new(route, ["spec", field], routes::backends, routes::is_catch_all))
}

/// For whom the VirtualService is: as the Canary says, and what holds in one
/// of our own where it says nothing.
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

fn is_tcp(canary: &Canary) -> bool {
    let speaks = canary.spec.service.as_ref().map(services::protocol).unwrap_or_default();
    ["tcp", "tls", "mongo", "mysql", "redis"].contains(&speaks.as_str())
}

#[async_trait]
impl Router for Istio {
    fn name(&self) -> String {
        format!("istio ({})", self.virtual_services.version)
    }

    fn capabilities(&self, canary: &Canary) -> Capabilities {
        let http = !is_tcp(canary);
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

    fn check(&self, canary: &Canary, plan: &Plan) -> Result<(), Unsupported> {
        check_capabilities(self, canary, plan)?;
        let Some(spec) = &canary.spec.service else { return Ok(()) };
        if spec.delegation && !(spec.hosts.is_empty() && spec.gateways.is_empty()) {
            let way_out = "remove hosts and gateways, which the VirtualService that delegates has";
            return self.unsupported_field(
                "spec.service.delegation",
                "a route without hosts and gateways",
                way_out,
            );
        }
        let by_http = |condition: &HttpMatch| routes::tcp_condition(condition) != json!(condition);
        if is_tcp(canary) && spec.match_.iter().any(by_http) {
            let way_out = "match by port, sourceLabels, sourceNamespace or gateways";
            return self.unsupported_field(
                "spec.service.match",
                "HTTP conditions on a port that speaks TCP",
                way_out,
            );
        }
        Ok(())
    }

    fn objects(&self, canary: &Canary) -> Vec<ObjectKey> {
        let route = [self.route_key(canary)];
        services::objects(canary).into_iter().chain(route).chain(self.destination_rule_keys(canary)).collect()
    }

    fn effective_split(&self, on: &RouteContext<'_>, cache: &dyn ObjectCache) -> Option<Split> {
        split_annotation::effective_split(on, cache, &self.route_key(on.canary), |effective_split| {
            self.desired(on.canary, effective_split)
        })
    }

    async fn apply_split(
        &self,
        client: &Client,
        on: &RouteContext<'_>,
        cache: &dyn ObjectCache,
        split: &Split,
    ) -> Result<(), Error> {
        self.capabilities(on.canary).check_split(split, || self.name())?;
        services::ensure(client, on, cache, ApexTarget::Stable, split.stable).await?;
        for object in self.desired(on.canary, split) {
            object.ensure(client, on.canary, cache).await?;
        }
        Ok(())
    }

    fn is_restored(&self, canary: &Canary, cache: &dyn ObjectCache) -> bool {
        let [primary, candidate] = self.destination_rule_keys(canary);
        let objects = [self.route_key(canary), primary, candidate];
        services::is_restored(canary, cache) && !object::any_managed(&objects, canary, cache)
    }

    async fn restore(&self, client: &Client, canary: &Canary, cache: &dyn ObjectCache) -> Result<(), Error> {
        // The apex leads to the target before the route lets go of it.
        services::restore(client, canary, cache).await?;
        object::delete_or_restore(client, canary, cache, &self.route_key(canary)).await?;
        for rule in self.destination_rule_keys(canary) {
            object::delete_or_restore(client, canary, cache, &rule).await?;
        }
        Ok(())
    }
}
