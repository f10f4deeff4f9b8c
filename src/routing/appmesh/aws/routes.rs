//! The routes of a split, as types of the App Mesh API.
//!
//! Of an existing route only the targets are ours. A route of our own has the
//! options of the Canary, and keeps fields that others add. Matched requests have
//! routes of their own, with a priority before the route for all others.

use std::collections::BTreeMap;

use aws_sdk_appmesh::{
    error::BuildError,
    types::{
        Duration as Time, DurationUnit, GrpcRetryPolicy, GrpcRoute, GrpcRouteAction, GrpcRouteMatch,
        GrpcRouteMetadata, GrpcRouteMetadataMatchMethod, GrpcTimeout, HeaderMatchMethod, HttpMethod,
        HttpRetryPolicy, HttpRoute, HttpRouteAction, HttpRouteHeader, HttpRouteMatch, HttpScheme,
        HttpTimeout, RouteSpec, TcpRoute, TcpRouteAction, WeightedTarget,
    },
};
use serde_json::Value;

use super::{
    super::Protocol,
    api::{ManagedField, MeshRoute},
    error::Error,
    state::{MeshNames, MeshOwnership, ObservedResource, managed_fields},
};
use crate::{
    api::{
        Canary, Duration, Weight,
        canary::{HttpMatch, StringMatch, service::Service},
    },
    engine::action::Split,
    routing::Unsupported,
};

/// The priority of the first route for matched requests, if the route for all
/// others has none.
const FIRST_MATCH_PRIORITY: i32 = 10;

#[derive(Clone, Debug, PartialEq)]
pub struct DesiredRoute {
    pub name: String,
    pub spec: RouteSpec,
}

/// All our routes for a split, given the existing ones.
pub fn desired_routes(
    canary: &Canary,
    names: &MeshNames,
    existing: &BTreeMap<String, ObservedResource<RouteSpec>>,
    split: &Split,
    protocol: Protocol,
) -> Result<Vec<DesiredRoute>, Error> {
    let Some(service) = &canary.spec.service else { return Ok(Vec::new()) };
    let targets = |share: Weight| targets(names, share);
    let mut mains = Vec::new();
    for name in replaced_routes(canary, names, existing) {
        if let Some(observed) = existing.get(&name) {
            let spec = with_targets(&observed.live.spec, targets(split.canary)?)?;
            mains.push(DesiredRoute { name, spec });
        }
    }
    if mains.is_empty() {
        let everything = [HttpMatch::default()];
        let wide = if service.match_.is_empty() { &everything[..] } else { &service.match_[..] };
        for (at, condition) in wide.iter().enumerate() {
            let name = if at == 0 { names.route.clone() } else { format!("{}-{at}", names.route) };
            let live = existing.get(&name).map(|observed| without_unset(canary, observed));
            let spec = owned_route_spec(live.as_ref(), service, protocol, condition, targets(split.canary)?)?;
            mains.push(DesiredRoute { name, spec });
        }
    }
    let mut matched = Vec::new();
    for DesiredRoute { name, spec } in &mains {
        let many = i32::try_from(split.matches.len()).unwrap_or(i32::MAX);
        let first = match spec.priority {
            None => FIRST_MATCH_PRIORITY,
            Some(priority) if priority >= many => priority - many,
            Some(priority) => {
                return Err(Error::Unsupported(Unsupported::Field {
                    router: super::NAME.to_owned(),
                    field: "spec.analysis.match",
                    what: format!("{many} routes before the route {name}, whose priority is {priority}"),
                    way_out: "give that route a greater number as its priority",
                }));
            }
        };
        for (at, condition) in split.matches.iter().enumerate() {
            let name = format!("{name}-match-{at}");
            let mut spec = with_condition(&with_targets(spec, targets(Weight::FULL)?)?, condition)?;
            spec.priority = i32::try_from(at).ok().map(|at| first + at);
            matched.push(DesiredRoute { name, spec });
        }
    }
    mains.extend(matched);
    // The order of targets does not matter, nor do ports that others set.
    for desired_route in &mut mains {
        if let Some(live) = existing.get(&desired_route.name).map(|observed| &observed.live.spec)
            && has_same_weights(targets_of(live), targets_of(&desired_route.spec))
        {
            desired_route.spec = with_targets(&desired_route.spec, targets_of(live).to_vec())?;
        }
    }
    Ok(mains)
}

/// The existing routes that ours replace: all with the apex node as target, else
/// the first catch-all, else the one with the name of ours.
fn replaced_routes(
    canary: &Canary,
    names: &MeshNames,
    existing: &BTreeMap<String, ObservedResource<RouteSpec>>,
) -> Vec<String> {
    let is_foreign = |observed: &ObservedResource<RouteSpec>| {
        matches!(observed.ownership, MeshOwnership::Adopted(_) | MeshOwnership::Unmanaged)
    };
    let adopted =
        |observed: &ObservedResource<RouteSpec>| matches!(observed.ownership, MeshOwnership::Adopted(_));
    let to_apex = |observed: &ObservedResource<RouteSpec>| {
        targets_of(&observed.live.spec).iter().any(|target| names.apex_nodes.contains(&target.virtual_node))
    };
    let replaced: Vec<_> = existing
        .iter()
        .filter(|(_, observed)| is_foreign(observed) && (adopted(observed) || to_apex(observed)))
        .map(|(name, _)| name.clone())
        .collect();
    let own = existing
        .get(&names.route)
        .is_some_and(|observed| matches!(observed.ownership, MeshOwnership::Owned(_)));
    if !replaced.is_empty() || own {
        return replaced;
    }
    let ours_is_catch_all = canary.spec.service.as_ref().is_some_and(|service| service.match_.is_empty());
    let catch_all =
        existing.iter().find(|(_, observed)| is_foreign(observed) && is_catch_all(&observed.live.spec));
    let catch_all = catch_all.filter(|_| ours_is_catch_all).map(|(name, _)| name.clone());
    let by_name =
        || existing.get(&names.route).filter(|observed| is_foreign(observed)).map(|_| names.route.clone());
    catch_all.or_else(by_name).into_iter().collect()
}

/// The canary's weight in the live routes.
pub fn canary_share(
    names: &MeshNames,
    desired_routes: &[DesiredRoute],
    existing: &BTreeMap<String, ObservedResource<RouteSpec>>,
) -> Option<Weight> {
    let live = &existing.get(&desired_routes.first()?.name)?.live.spec;
    let targets = targets_of(live);
    let weight = |node: &String| targets.iter().find(|target| target.virtual_node == *node).map(|t| t.weight);
    let (canary, primary) = (weight(&names.canary)?, weight(&names.primary)?);
    let percent = u16::try_from(canary).ok().filter(|_| canary + primary == 100)?;
    Weight::from_hundredths(percent * 100)
}

fn targets(names: &MeshNames, share: Weight) -> Result<Vec<WeightedTarget>, BuildError> {
    let target = |node: &str, weight: Weight| {
        WeightedTarget::builder().virtual_node(node).weight(i32::from(weight.hundredths() / 100)).build()
    };
    Ok(vec![target(&names.canary, share)?, target(&names.primary, share.complement())?])
}

pub fn targets_of(spec: &RouteSpec) -> &[WeightedTarget] {
    let RouteSpec { http_route, http2_route, grpc_route, tcp_route, .. } = spec;
    match (http_route, http2_route, grpc_route, tcp_route) {
        (Some(route), ..) | (_, Some(route), ..) => route.action.as_ref().map(|a| &a.weighted_targets[..]),
        (.., Some(route), _) => route.action.as_ref().map(|action| &action.weighted_targets[..]),
        (.., Some(route)) => route.action.as_ref().map(|action| &action.weighted_targets[..]),
        (None, None, None, None) => None,
    }
    .unwrap_or_default()
}

/// The same route with other targets.
pub fn with_targets(spec: &RouteSpec, targets: Vec<WeightedTarget>) -> Result<RouteSpec, BuildError> {
    let mut spec = spec.clone();
    let http = HttpRouteAction::builder().set_weighted_targets(Some(targets.clone())).build()?;
    for route in [&mut spec.http_route, &mut spec.http2_route].into_iter().flatten() {
        route.action = Some(http.clone());
    }
    if let Some(route) = &mut spec.grpc_route {
        route.action = Some(GrpcRouteAction::builder().set_weighted_targets(Some(targets.clone())).build()?);
    }
    if let Some(route) = &mut spec.tcp_route {
        route.action = Some(TcpRouteAction::builder().set_weighted_targets(Some(targets)).build()?);
    }
    Ok(spec)
}

fn has_same_weights(one: &[WeightedTarget], other: &[WeightedTarget]) -> bool {
    let shares = |targets: &[WeightedTarget]| -> BTreeMap<String, i32> {
        targets.iter().map(|target| (target.virtual_node.clone(), target.weight)).collect()
    };
    one.len() == other.len() && shares(one) == shares(other)
}

fn is_catch_all(spec: &RouteSpec) -> bool {
    let http = |route: &HttpRoute| {
        route.r#match.as_ref().is_none_or(|condition| {
            *condition == HttpRouteMatch::builder().set_prefix(condition.prefix.clone()).build()
                && condition.prefix.as_deref().is_none_or(|prefix| prefix == "/")
        })
    };
    let grpc = |route: &GrpcRoute| {
        route.r#match.as_ref().is_none_or(|condition| *condition == GrpcRouteMatch::builder().build())
    };
    let tcp = |route: &TcpRoute| route.r#match.as_ref().is_none_or(|condition| condition.port.is_none());
    spec.http_route.as_ref().is_some_and(http)
        || spec.http2_route.as_ref().is_some_and(http)
        || spec.grpc_route.as_ref().is_some_and(grpc)
        || spec.tcp_route.as_ref().is_some_and(tcp)
}

/// A route of ours without fields that the Canary does not set any more.
fn without_unset(canary: &Canary, observed: &ObservedResource<RouteSpec>) -> RouteSpec {
    let mut spec = observed.live.spec.clone();
    let MeshOwnership::Owned(fields) = &observed.ownership else { return spec };
    for field in fields.difference(&managed_fields::<MeshRoute>(canary)) {
        let RouteSpec { http_route, http2_route, grpc_route, .. } = &mut spec;
        for route in [http_route, http2_route].into_iter().flatten() {
            match field {
                ManagedField::Retries => route.retry_policy = None,
                ManagedField::Timeout => route.timeout = None,
                ManagedField::Backends => {}
            }
        }
        match (field, grpc_route) {
            (ManagedField::Retries, Some(route)) => route.retry_policy = None,
            (ManagedField::Timeout, Some(route)) => route.timeout = None,
            (ManagedField::Backends, _) | (_, None) => {}
        }
    }
    spec
}

/// A route of our own, with fields that others added.
fn owned_route_spec(
    live: Option<&RouteSpec>,
    service: &Service,
    protocol: Protocol,
    condition: &HttpMatch,
    targets: Vec<WeightedTarget>,
) -> Result<RouteSpec, BuildError> {
    let mut spec = RouteSpec::builder().set_priority(live.and_then(|live| live.priority)).build();
    match protocol {
        Protocol::Http | Protocol::Http2 => {
            let theirs = live.and_then(|live| live.http_route.as_ref().or(live.http2_route.as_ref()));
            let mut route = theirs.cloned().unwrap_or_else(|| HttpRoute::builder().build());
            let everything = HttpRouteMatch::builder().prefix("/").build();
            route.r#match = Some(http_match_with(&everything, condition)?);
            if let Some(timeout) = service.timeout {
                route.timeout = Some(HttpTimeout::builder().per_request(to_sdk_duration(timeout)).build());
            }
            if let Some(Retries { attempts, wait, on }) = Retries::of(service) {
                let policy =
                    HttpRetryPolicy::builder().max_retries(attempts).per_retry_timeout(to_sdk_duration(wait));
                route.retry_policy = Some(policy.set_http_retry_events(Some(on)).build()?);
            }
            let slot = if protocol == Protocol::Http { &mut spec.http_route } else { &mut spec.http2_route };
            *slot = Some(route);
        }
        Protocol::Grpc => {
            let theirs = live.and_then(|live| live.grpc_route.as_ref());
            let mut route = theirs.cloned().unwrap_or_else(|| GrpcRoute::builder().build());
            route.r#match = Some(grpc_match_with(&GrpcRouteMatch::builder().build(), condition)?);
            if let Some(timeout) = service.timeout {
                route.timeout = Some(GrpcTimeout::builder().per_request(to_sdk_duration(timeout)).build());
            }
            if let Some(Retries { attempts, wait, on }) = Retries::of(service) {
                let policy =
                    GrpcRetryPolicy::builder().max_retries(attempts).per_retry_timeout(to_sdk_duration(wait));
                route.retry_policy = Some(policy.set_http_retry_events(Some(on)).build()?);
            }
            spec.grpc_route = Some(route);
        }
        Protocol::Tcp => {
            let theirs = live.and_then(|live| live.tcp_route.as_ref());
            spec.tcp_route = Some(theirs.cloned().unwrap_or_else(|| TcpRoute::builder().build()));
        }
    }
    with_targets(&spec, targets)
}

/// The same route, narrowed to requests that meet a condition.
fn with_condition(spec: &RouteSpec, condition: &HttpMatch) -> Result<RouteSpec, BuildError> {
    let mut spec = spec.clone();
    for route in [&mut spec.http_route, &mut spec.http2_route].into_iter().flatten() {
        let wide = route.r#match.clone().unwrap_or_else(|| HttpRouteMatch::builder().prefix("/").build());
        route.r#match = Some(http_match_with(&wide, condition)?);
    }
    if let Some(route) = &mut spec.grpc_route {
        let wide = route.r#match.clone().unwrap_or_else(|| GrpcRouteMatch::builder().build());
        route.r#match = Some(grpc_match_with(&wide, condition)?);
    }
    Ok(spec)
}

/// For the same field the condition wins.
fn http_match_with(wide: &HttpRouteMatch, condition: &HttpMatch) -> Result<HttpRouteMatch, BuildError> {
    let mut narrow = wide.clone();
    if let Some(prefix) = condition.uri.as_ref().and_then(|uri| uri.prefix.clone()) {
        (narrow.prefix, narrow.path) = (Some(prefix), None);
    }
    let exact = |text: &Option<StringMatch>| text.as_ref().and_then(|text| text.exact.clone());
    if let Some(method) = exact(&condition.method) {
        narrow.method = Some(HttpMethod::from(method.as_str()));
    }
    if let Some(scheme) = exact(&condition.scheme) {
        narrow.scheme = Some(HttpScheme::from(scheme.as_str()));
    }
    let mut headers = narrow.headers.take().unwrap_or_default();
    headers.retain(|header| !matches_on_header(condition, &header.name));
    for (name, value, invert) in headers_of(condition) {
        let header = HttpRouteHeader::builder().name(name).invert(invert);
        headers.push(header.set_match(comparison(value).map(Comparison::http)).build()?);
    }
    narrow.headers = Some(headers).filter(|headers| !headers.is_empty());
    Ok(narrow)
}

fn grpc_match_with(wide: &GrpcRouteMatch, condition: &HttpMatch) -> Result<GrpcRouteMatch, BuildError> {
    let mut narrow = wide.clone();
    let mut metadata = narrow.metadata.take().unwrap_or_default();
    metadata.retain(|one| !matches_on_header(condition, &one.name));
    for (name, value, invert) in headers_of(condition) {
        let one = GrpcRouteMetadata::builder().name(name).invert(invert);
        metadata.push(one.set_match(comparison(value).map(Comparison::grpc)).build()?);
    }
    narrow.metadata = Some(metadata).filter(|metadata| !metadata.is_empty());
    Ok(narrow)
}

fn headers_of(condition: &HttpMatch) -> impl Iterator<Item = (&String, &StringMatch, bool)> {
    let with = condition.headers.iter().map(|(name, value)| (name, value, false));
    with.chain(condition.without_headers.iter().map(|(name, value)| (name, value, true)))
}

fn matches_on_header(condition: &HttpMatch, header: &str) -> bool {
    headers_of(condition).any(|(name, ..)| name == header)
}

/// How the value of a header is compared.
enum Comparison {
    Exact(String),
    Prefix(String),
    Suffix(String),
    Regex(String),
}

/// None if the header only has to be present.
fn comparison(text: &StringMatch) -> Option<Comparison> {
    let StringMatch { exact, prefix, suffix, regex } = text.clone();
    let exact = exact.map(Comparison::Exact);
    exact
        .or(prefix.map(Comparison::Prefix))
        .or(suffix.map(Comparison::Suffix))
        .or(regex.map(Comparison::Regex))
}

impl Comparison {
    fn http(self) -> HeaderMatchMethod {
        match self {
            Self::Exact(text) => HeaderMatchMethod::Exact(text),
            Self::Prefix(text) => HeaderMatchMethod::Prefix(text),
            Self::Suffix(text) => HeaderMatchMethod::Suffix(text),
            Self::Regex(text) => HeaderMatchMethod::Regex(text),
        }
    }

    fn grpc(self) -> GrpcRouteMetadataMatchMethod {
        match self {
            Self::Exact(text) => GrpcRouteMetadataMatchMethod::Exact(text),
            Self::Prefix(text) => GrpcRouteMetadataMatchMethod::Prefix(text),
            Self::Suffix(text) => GrpcRouteMetadataMatchMethod::Suffix(text),
            Self::Regex(text) => GrpcRouteMetadataMatchMethod::Regex(text),
        }
    }
}

struct Retries {
    attempts: i64,
    wait: Duration,
    on: Vec<String>,
}

impl Retries {
    fn of(service: &Service) -> Option<Self> {
        let retries = &service.retries.as_ref()?.0;
        let text = |field: &str| retries.get(field).and_then(Value::as_str).filter(|text| !text.is_empty());
        let wait = text("perTryTimeout").and_then(|wait| wait.parse().ok());
        let attempts = retries.get("attempts").and_then(Value::as_i64).filter(|attempts| *attempts > 0);
        let on = text("retryOn").unwrap_or("gateway-error").split(',').map(|on| on.trim().to_owned());
        Some(Self {
            attempts: attempts.unwrap_or(1),
            wait: wait.unwrap_or(Duration::from_millis(250)),
            on: on.collect(),
        })
    }
}

pub fn to_sdk_duration(duration: Duration) -> Time {
    let value = i64::try_from(duration.get().as_millis()).unwrap_or(i64::MAX);
    Time::builder().unit(DurationUnit::Ms).value(value).build()
}
