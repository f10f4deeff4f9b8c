//! Serin's own control plane: a MeshRoute, which Serin serves over xDS to the Envoys that
//! are connected to it.
//!
//! **In force** is a split once every proxy that subscribes to the route has acknowledged
//! this generation of it, by the status of the MeshRoute, which each replica of the
//! controller writes for its own proxies (`controller/background/xds`). So it does not
//! matter which replica releases the Canary. A proxy that is gone counts for
//! [`PATIENCE`] after its connection ended, since it serves by its last configuration
//! meanwhile. Without proxies a route is in force once it is written.
//!
//! **Refused** is a generation that more than [`MAX_REFUSALS`] of its proxies refuse: the
//! release is rolled back. Fewer refusals hold it.

use std::{collections::BTreeMap, time::Duration};

use kube::{
    ResourceExt as _,
    api::{ApiResource, DynamicObject},
};
use serde_json::{Value, json};

use super::{
    Capabilities, ObjectKey, PodSelectors, RouteContext, Unsupported, check_service_match,
    object::DesiredObject,
    object_router::ObjectRouter,
    services::{self, ServiceNames},
    split_annotation,
    traffic_rule::{RequestMatcher, TrafficRule, merge_conditions, traffic_rules},
    weight_ratio,
};
use crate::{
    api::{
        self, Canary, MeshRoute, MeshRouteSpec, MeshRouteStatus, Percent, Weight,
        canary::{HttpMatch, StringMatch, TargetKind, service::Service},
        endpoint_group::VERSION_LABEL,
        mesh_route::{MeshRouteBackend, MeshRouteMirror, MeshRouteReplica, MeshRouteRetries, MeshRouteRule},
    },
    catalog::Protocol,
    engine::action::Split,
};

/// How long a proxy that is gone still counts.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// A greater share of refusals, in percent, rolls the release back.
pub const MAX_REFUSALS: u32 = 10;

/// Fields of Istio's retry policy that a MeshRoute has.
const RETRY_FIELDS: [&str; 3] = ["attempts", "perTryTimeout", "retryOn"];

/// Writes a MeshRoute.
#[derive(Clone, Debug)]
pub struct Xds {
    pub kind: ApiResource,
}

/// The protocol of a port by the rules of Istio, whose sidecars forward the rest
/// unread as well (`pkg/config/kube/conversion.go` of istio/istio): `appProtocol`, else
/// the port name up to a hyphen.
pub fn port_protocol(app_protocol: Option<&str>, port_name: &str) -> Protocol {
    match services::protocol_name(app_protocol, port_name).as_str() {
        "http" | "http1" => Protocol::Http1,
        "http2" | "h2c" | "grpc" | "grpc-web" => Protocol::Http2,
        _ => Protocol::Tcp,
    }
}

fn protocol(canary: &Canary) -> Protocol {
    canary
        .spec
        .service
        .as_ref()
        .map_or(Protocol::Tcp, |spec| port_protocol(spec.app_protocol.as_deref(), services::port_name(spec)))
}

impl ObjectRouter for Xds {
    fn name(&self) -> String {
        "xds".to_owned()
    }

    fn capabilities(&self, canary: &Canary) -> Capabilities {
        let http = protocol(canary) != Protocol::Tcp;
        Capabilities {
            finest_weight: Weight::from_hundredths(1).unwrap_or(Weight::FULL),
            matches: http,
            match_with_weight: http,
            mirror: http,
            partial_mirror: http,
            affinity: http,
            delegation: false,
        }
    }

    fn supports_match(&self, condition: &HttpMatch) -> Result<(), &'static str> {
        let HttpMatch {
            name: _,
            uri: _,
            scheme: _,
            method: _,
            authority: _,
            headers: _,
            without_headers: _,
            query_params: _,
            ignore_uri_case: _,
            port,
            source_labels,
            source_namespace,
            gateways,
            other,
        } = condition;
        let unknown = [
            ("port", port.is_some()),
            ("sourceLabels", !source_labels.is_empty()),
            ("sourceNamespace", source_namespace.is_some()),
            ("gateways", !gateways.is_empty()),
            ("a field of another mesh", !other.is_empty()),
        ];
        unknown.into_iter().find(|(_, present)| *present).map_or(Ok(()), |(condition, _)| Err(condition))
    }

    fn route_fields(&self, canary: &Canary) -> &'static [&'static str] {
        match protocol(canary) {
            Protocol::Http1 | Protocol::Http2 => {
                &["hosts", "match", "timeout", "retries", "headers", "rewrite"]
            }
            Protocol::Tcp => &[],
        }
    }

    fn check_spec(&self, canary: &Canary) -> Result<(), Unsupported> {
        check_service_match(self, canary, "match by headers, uri, method or queryParams")?;
        let retries = canary.spec.service.as_ref().and_then(|spec| spec.retries.as_ref());
        match retries.map(|policy| retry_policy(&policy.0)) {
            Some(Err(what)) => Err(Unsupported::Field {
                router: self.name(),
                field: "spec.service.retries",
                what,
                way_out: "write attempts from 0 to 10, perTryTimeout and retryOn, and remove the rest",
            }),
            None | Some(Ok(_)) => Ok(()),
        }
    }

    fn route_object(&self, canary: &Canary) -> ObjectKey {
        ObjectKey {
            kind: self.kind.clone(),
            namespace: canary.namespace().unwrap_or_default(),
            name: ServiceNames::of(canary).apex,
        }
    }

    fn desired(&self, on: &RouteContext<'_>, split: &Split) -> Vec<DesiredObject> {
        let canary = on.canary;
        let spec = json!({"spec": route_spec(canary, on.pod_selectors, split)});
        vec![DesiredObject::new(canary, self.route_object(canary), split_annotation::annotation(split), spec)]
    }

    fn inactive_reason(&self, route: &DynamicObject) -> Option<String> {
        let acknowledgement = Acknowledgement::of(route)?;
        acknowledgement.refusal().or_else(|| acknowledgement.pending())
    }

    fn refusal(&self, route: &DynamicObject) -> Option<String> {
        Acknowledgement::of(route).filter(Acknowledgement::is_withdrawn)?.refusal()
    }
}

/// What the proxies made of the present generation of a route.
struct Acknowledgement {
    route: String,
    generation: i64,
    /// Of replicas that have proxies.
    replicas: Vec<MeshRouteReplica>,
}

impl Acknowledgement {
    /// None if no proxy subscribes to the route.
    fn of(route: &DynamicObject) -> Option<Self> {
        let status: MeshRouteStatus = serde_json::from_value(route.data.get("status")?.clone()).ok()?;
        let replicas: Vec<_> = status.replicas.into_iter().filter(|replica| replica.proxies > 0).collect();
        (!replicas.is_empty()).then(|| Self {
            route: format!("the MeshRoute {}/{}", route.namespace().unwrap_or_default(), route.name_any()),
            generation: route.metadata.generation.unwrap_or_default(),
            replicas,
        })
    }

    fn current(&self) -> impl Iterator<Item = &MeshRouteReplica> {
        self.replicas.iter().filter(|replica| replica.generation == self.generation)
    }

    fn proxies(&self) -> u32 {
        self.replicas.iter().map(|replica| replica.proxies).sum()
    }

    fn refused(&self) -> u32 {
        self.current().map(|replica| replica.refused).sum()
    }

    fn is_withdrawn(&self) -> bool {
        self.refused() * 100 > self.proxies() * MAX_REFUSALS
    }

    /// A replica at an older generation has not counted this one yet.
    fn pending(&self) -> Option<String> {
        let (proxies, route) = (self.proxies(), &self.route);
        let acknowledged: u32 = self.current().map(|replica| replica.acknowledged).sum();
        (acknowledged < proxies).then(|| {
            format!(
                "{acknowledged} of {proxies} proxies use {route} as it was last written; serin xds status \
                 shows the others"
            )
        })
    }

    fn refusal(&self) -> Option<String> {
        let (refused, proxies, route) = (self.refused(), self.proxies(), &self.route);
        (refused > 0).then(|| {
            let why = self.current().find_map(|replica| replica.refusal.as_deref()).unwrap_or("no reason");
            format!("{refused} of {proxies} proxies refused {route}: {}", why.trim_end_matches('.'))
        })
    }
}

/// The fields of the MeshRoute for a split.
fn route_spec(canary: &Canary, pod_selectors: &PodSelectors, split: &Split) -> MeshRouteSpec {
    let spec = canary.spec.service.clone().unwrap_or_default();
    let sides = Sides::of(canary, pod_selectors);
    let rules = traffic_rules(canary, split)
        .into_iter()
        .map(|traffic_rule| rule(&spec, &sides, traffic_rule))
        .collect();
    MeshRouteSpec { service: sides.apex, port: spec.port, hosts: spec.hosts, rules }
}

/// A service, or a version of an EndpointGroup.
#[derive(Clone, PartialEq, Eq)]
struct Side {
    service: String,
    version: Option<String>,
}

/// Where the requests for a service may go.
struct Sides {
    apex: String,
    primary: Side,
    canary: Side,
}

impl Sides {
    fn of(canary: &Canary, pod_selectors: &PodSelectors) -> Self {
        if canary.spec.target_ref.kind == TargetKind::EndpointGroup {
            let apex = canary.spec.target_ref.name.clone();
            let side = |selector: &BTreeMap<String, String>| Side {
                service: apex.clone(),
                version: selector.get(VERSION_LABEL).cloned(),
            };
            let (primary, canary) = (side(&pod_selectors.primary), side(&pod_selectors.canary));
            return Self { apex, primary, canary };
        }
        let ServiceNames { apex, primary, canary } = ServiceNames::of(canary);
        let side = |service| Side { service, version: None };
        Self { apex, primary: side(primary), canary: side(canary) }
    }
}

fn rule(spec: &Service, sides: &Sides, traffic_rule: TrafficRule<'_>) -> MeshRouteRule {
    let Sides { apex: _, primary, canary } = sides;
    // Of an EndpointGroup both are one version at rest.
    let is_one = primary == canary;
    let [candidate, stable] = match is_one {
        true => weight_ratio(Weight::ZERO),
        false => weight_ratio(traffic_rule.share),
    };
    let backend = |side: &Side, weight: u16, set_cookie: Option<String>| MeshRouteBackend {
        service: side.service.clone(),
        port: None,
        version: side.version.clone(),
        weight,
        set_cookie,
    };
    let mut backends = vec![backend(primary, stable, traffic_rule.primary_set_cookie)];
    if !is_one {
        backends.push(backend(canary, candidate, traffic_rule.canary_set_cookie));
    }
    let mirror = (traffic_rule.mirror > Weight::ZERO && !is_one).then(|| MeshRouteMirror {
        service: canary.service.clone(),
        port: None,
        version: canary.version.clone(),
        percent: Percent::new(traffic_rule.mirror.percent()).ok().filter(|share| share.percent() < 100.0),
    });
    MeshRouteRule {
        match_: conditions(spec, &traffic_rule.matcher),
        backends,
        mirror,
        timeout: spec.timeout,
        retries: spec.retries.as_ref().and_then(|policy| retry_policy(&policy.0).ok().flatten()),
        headers: spec.headers.clone(),
        rewrite: spec.rewrite.clone(),
    }
}

/// Each condition of the rule combined with each of `spec.service.match`.
fn conditions(spec: &Service, matcher: &RequestMatcher<'_>) -> Vec<HttpMatch> {
    let narrow = match matcher {
        RequestMatcher::CatchAll => return spec.match_.clone(),
        RequestMatcher::Conditions(conditions) => conditions.to_vec(),
        RequestMatcher::Cookie(regex) => {
            let cookie = StringMatch { regex: Some(regex.clone()), ..StringMatch::default() };
            vec![HttpMatch { headers: [("cookie".to_owned(), cookie)].into(), ..HttpMatch::default() }]
        }
    };
    if spec.match_.is_empty() {
        return narrow;
    }
    let both = |narrow: &HttpMatch, wide: &HttpMatch| {
        serde_json::from_value(merge_conditions(&json!(narrow), &json!(wide))).ok()
    };
    narrow.iter().flat_map(|narrow| spec.match_.iter().filter_map(move |wide| both(narrow, wide))).collect()
}

/// Istio's retry policy; none if it asks for no retries. The error names a value that a
/// MeshRoute does not have.
fn retry_policy(policy: &serde_json::Map<String, Value>) -> Result<Option<MeshRouteRetries>, String> {
    if let Some(field) = policy.keys().find(|field| !RETRY_FIELDS.contains(&field.as_str())) {
        return Err(format!("the field {field}"));
    }
    let text = |field: &str| policy.get(field).and_then(Value::as_str).filter(|text| !text.is_empty());
    let attempts = policy.get("attempts").and_then(Value::as_u64).unwrap_or(2);
    let attempts = match u8::try_from(attempts) {
        Ok(0) => return Ok(None),
        Ok(attempts) if attempts <= 10 => attempts,
        _ => return Err(format!("{attempts} attempts")),
    };
    let per_try_timeout = text("perTryTimeout").map(str::parse::<api::Duration>).transpose();
    let per_try_timeout = per_try_timeout.map_err(|why| format!("the perTryTimeout ({why})"))?;
    Ok(Some(MeshRouteRetries { attempts, per_try_timeout, retry_on: text("retryOn").map(str::to_owned) }))
}

/// Its kind, for those that watch it.
pub fn mesh_routes() -> ApiResource {
    ApiResource::erase::<MeshRoute>(&())
}
