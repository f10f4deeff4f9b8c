//! The routes of a split, in the words of App Mesh's API.
//!
//! In a route that people had only the targets are ours; all else that it says
//! goes on being said. A route of our own says what the Canary says, and keeps
//! what others add. Chosen requests have routes of their own, which come before
//! the one for all others by their priority.

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

/// The first priority of routes for chosen requests, where nobody else's says
/// which it has to be.
const FIRST_MATCH_PRIORITY: i32 = 10;

/// A route as it should be.
#[derive(Clone, Debug, PartialEq)]
pub struct DesiredRoute {
    pub name: String,
    pub spec: RouteSpec,
}

/// Every route of ours for a split, given all that are there.
pub fn desired_routes(
    canary: &Canary,
    names: &MeshNames,
    there: &BTreeMap<String, ObservedResource<RouteSpec>>,
    split: &Split,
    protocol: Protocol,
) -> Result<Vec<DesiredRoute>, Error> {
    let Some(service) = &canary.spec.service else { return Ok(Vec::new()) };
    let targets = |share: Weight| targets(names, share);
    let mut mains = Vec::new();
    for name in replaced_routes(canary, names, there) {
        if let Some(observed) = there.get(&name) {
            let spec = with_targets(&observed.live.spec, targets(split.canary)?)?;
            mains.push(DesiredRoute { name, spec });
        }
    }
    if mains.is_empty() {
        let everything = [HttpMatch::default()];
        let wide = if service.match_.is_empty() { &everything[..] } else { &service.match_[..] };
        for (at, condition) in wide.iter().enumerate() {
            let name = if at == 0 { names.route.clone() } else { format!("{}-{at}", names.route) };
            let live = there.get(&name).map(|observed| without_unset(canary, observed));
            let spec = owned_route_spec(live.as_ref(), service, protocol, condition, targets(split.canary)?)?;
            mains.push(DesiredRoute { name, spec });
        }
    }
    let mut chosen = Vec::new();
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
            chosen.push(DesiredRoute { name, spec });
        }
    }
    mains.extend(chosen);
    // The same targets in another order, or with ports, are the same.
    for desired_route in &mut mains {
        if let Some(live) = there.get(&desired_route.name).map(|observed| &observed.live.spec)
            && has_same_weights(targets_of(live), targets_of(&desired_route.spec))
        {
            desired_route.spec = with_targets(&desired_route.spec, targets_of(live).to_vec())?;
        }
    }
    Ok(mains)
}

/// The routes of people's that ours take the place of: all that lead to what
/// the target was called, else the first that is for every request, else the
/// one that is called as ours would be.
fn replaced_routes(
    canary: &Canary,
    names: &MeshNames,
    there: &BTreeMap<String, ObservedResource<RouteSpec>>,
) -> Vec<String> {
    let is_theirs = |observed: &ObservedResource<RouteSpec>| {
        matches!(observed.ownership, MeshOwnership::Adopted(_) | MeshOwnership::Unmanaged)
    };
    let adopted =
        |observed: &ObservedResource<RouteSpec>| matches!(observed.ownership, MeshOwnership::Adopted(_));
    let to_apex = |observed: &ObservedResource<RouteSpec>| {
        targets_of(&observed.live.spec).iter().any(|target| names.apex_nodes.contains(&target.virtual_node))
    };
    let chosen: Vec<_> = there
        .iter()
        .filter(|(_, observed)| is_theirs(observed) && (adopted(observed) || to_apex(observed)))
        .map(|(name, _)| name.clone())
        .collect();
    let own =
        there.get(&names.route).is_some_and(|observed| matches!(observed.ownership, MeshOwnership::Owned(_)));
    if !chosen.is_empty() || own {
        return chosen;
    }
    let ours_is_for_all = canary.spec.service.as_ref().is_some_and(|service| service.match_.is_empty());
    let for_all = there.iter().find(|(_, observed)| is_theirs(observed) && is_catch_all(&observed.live.spec));
    let for_all = for_all.filter(|_| ours_is_for_all).map(|(name, _)| name.clone());
    let by_name =
        || there.get(&names.route).filter(|observed| is_theirs(observed)).map(|_| names.route.clone());
    for_all.or_else(by_name).into_iter().collect()
}

/// The canary's share by these routes.
pub fn canary_share(
    names: &MeshNames,
    desired_routes: &[DesiredRoute],
    there: &BTreeMap<String, ObservedResource<RouteSpec>>,
) -> Option<Weight> {
    let live = &there.get(&desired_routes.first()?.name)?.live.spec;
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

/// The same route to somebody else.
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

/// A route of ours without what the Canary said once and does not say any more.
fn without_unset(canary: &Canary, observed: &ObservedResource<RouteSpec>) -> RouteSpec {
    let mut spec = observed.live.spec.clone();
    let MeshOwnership::Owned(said) = &observed.ownership else { return spec };
    for said in said.difference(&managed_fields::<MeshRoute>(canary)) {
        let RouteSpec { http_route, http2_route, grpc_route, .. } = &mut spec;
        for route in [http_route, http2_route].into_iter().flatten() {
            match said {
                ManagedField::Retries => route.retry_policy = None,
                ManagedField::Timeout => route.timeout = None,
                ManagedField::Backends => {}
            }
        }
        match (said, grpc_route) {
            (ManagedField::Retries, Some(route)) => route.retry_policy = None,
            (ManagedField::Timeout, Some(route)) => route.timeout = None,
            (ManagedField::Backends, _) | (_, None) => {}
        }
    }
    spec
}

/// A route of our own, with what others added to it.
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

/// The same route for those requests alone that meet a condition.
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

/// Where both speak of the same thing, the condition counts.
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

/// How a header is compared; with nothing to compare with it only has to be
/// there.
enum Comparison {
    Exact(String),
    Prefix(String),
    Suffix(String),
    Regex(String),
}

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
        let said = &service.retries.as_ref()?.0;
        let text = |field: &str| said.get(field).and_then(Value::as_str).filter(|text| !text.is_empty());
        let wait = text("perTryTimeout").and_then(|wait| wait.parse().ok());
        let attempts = said.get("attempts").and_then(Value::as_i64).filter(|attempts| *attempts > 0);
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
