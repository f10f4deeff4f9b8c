//! One row a router: how to get it, and what a stranger would do to its route.

use std::sync::Arc;

use kube::api::ApiResource;
use serde_json::{Value, json};
use serin::api::canary::Provider;
use serin::routing::{Router, Served, select};

pub struct Row {
    pub provider: Provider,
    pub router: Arc<dyn Router>,
    /// A merge patch by which a stranger moves traffic.
    pub meddle: Value,
    /// A route that people had before the Canary, beside `metadata`. None if
    /// the route is the apex Service.
    pub before: Option<Value>,
}

pub fn kubernetes() -> Row {
    Row {
        provider: Provider::Kubernetes,
        router: chosen(Provider::Kubernetes, Served::default()),
        meddle: json!({"spec": {"selector": {"app": "somebody-else"}}}),
        before: None,
    }
}

pub fn smi_v1alpha1() -> Row {
    smi("v1alpha1", json!("33"), json!("67"))
}

pub fn smi_v1alpha2() -> Row {
    smi("v1alpha2", json!(33), json!(67))
}

pub fn smi_v1alpha3() -> Row {
    smi("v1alpha3", json!(33), json!(67))
}

pub fn smi_v1alpha4() -> Row {
    smi("v1alpha4", json!(33), json!(67))
}

fn smi(version: &str, third: Value, rest: Value) -> Row {
    let served = [
        resource("split.smi-spec.io", version, "TrafficSplit", "trafficsplits"),
        resource("specs.smi-spec.io", "v1alpha4", "HTTPRouteGroup", "httproutegroups"),
    ];
    let backends = |one: &str, other: &str| json!({"spec": {"backends": [{"service": one, "weight": third}, {"service": other, "weight": rest}]}});
    let mut before = backends("blue", "green");
    before["spec"]["service"] = json!("web");
    Row {
        provider: Provider::Linkerd,
        router: chosen(Provider::Linkerd, served.into_iter().collect()),
        meddle: backends("web-canary", "web-primary"),
        before: Some(before),
    }
}

fn chosen(provider: Provider, served: Served) -> Arc<dyn Router> {
    select(Some(provider), None, &served).unwrap_or_else(|why| panic!("{why}")).router
}

fn resource(group: &str, version: &str, kind: &str, plural: &str) -> ApiResource {
    ApiResource {
        group: group.to_owned(),
        version: version.to_owned(),
        api_version: format!("{group}/{version}"),
        kind: kind.to_owned(),
        plural: plural.to_owned(),
    }
}
