//! One RouteConfiguration per service: a weight changes in a resource of some hundred
//! bytes, however many services there are.

use std::collections::BTreeSet;

use envoy_types::pb::envoy::config::core::v3::{
    HeaderValue, HeaderValueOption, RuntimeFractionalPercent, header_value_option::HeaderAppendAction,
};
use envoy_types::pb::envoy::config::route::v3::{
    RetryPolicy, Route, RouteAction, RouteConfiguration, RouteMatch, VirtualHost, WeightedCluster,
    route::Action,
    route_action::{ClusterSpecifier, HostRewriteSpecifier, RequestMirrorPolicy},
    route_match::PathSpecifier,
    weighted_cluster::ClusterWeight,
};
use envoy_types::pb::envoy::r#type::matcher::v3::RegexMatchAndSubstitute;
use envoy_types::pb::envoy::r#type::v3::{FractionalPercent, fractional_percent::DenominatorType};

use super::request_match::{everything, regex_matcher, route_match};
use super::{duration, uint, yes};
use crate::api::canary::service::{HeaderChange, Rewrite};
use crate::api::mesh_route::{
    MeshRouteBackend, MeshRouteMirror, MeshRouteRetries, MeshRouteRule, MeshRouteSpec,
};
use crate::xds::node::ServiceRef;

const DEFAULT_RETRY_ON: &str = "connect-failure,refused-stream";

pub(super) fn configuration(
    service: &ServiceRef,
    hosts: Vec<String>,
    spec: Option<&MeshRouteSpec>,
) -> RouteConfiguration {
    let rules = spec.into_iter().flat_map(|spec| &spec.rules);
    let mut routes: Vec<Route> = rules.flat_map(|rule| routes_of(service, rule)).collect();
    // A request that no rule matches goes to the service itself.
    let to_itself = RouteAction {
        cluster_specifier: Some(ClusterSpecifier::Cluster(service.to_string())),
        timeout: duration(std::time::Duration::ZERO),
        ..RouteAction::default()
    };
    routes.push(Route {
        r#match: Some(everything()),
        action: Some(Action::Route(to_itself)),
        ..Route::default()
    });
    let hosts = hosts.into_iter().chain(spec.into_iter().flat_map(|spec| spec.hosts.clone()));
    RouteConfiguration {
        name: service.to_string(),
        virtual_hosts: vec![VirtualHost {
            name: service.to_string(),
            domains: domains(service, hosts),
            routes,
            ..VirtualHost::default()
        }],
        validate_clusters: yes(),
        ignore_port_in_host_matching: true,
        ..RouteConfiguration::default()
    }
}

/// The names of the service, and any other: the listener is of this service only.
fn domains(service: &ServiceRef, hosts: impl Iterator<Item = String>) -> Vec<String> {
    let ServiceRef { namespace, name, .. } = service;
    let own =
        [name.to_string(), format!("{name}.{namespace}"), format!("{name}.{namespace}.svc"), "*".to_owned()];
    let all: BTreeSet<String> = own.into_iter().chain(hosts).map(|host| host.to_lowercase()).collect();
    all.into_iter().collect()
}

fn routes_of(service: &ServiceRef, rule: &MeshRouteRule) -> Vec<Route> {
    let matches = match &rule.match_[..] {
        [] => vec![everything()],
        matches => matches.iter().filter_map(|on| route_match(on, service.port)).collect(),
    };
    matches.into_iter().map(|on| route(service, rule, on)).collect()
}

fn route(service: &ServiceRef, rule: &MeshRouteRule, on: RouteMatch) -> Route {
    let headers = rule.headers.clone().unwrap_or_default();
    let (request, response) = (headers.request.unwrap_or_default(), headers.response.unwrap_or_default());
    let mut action = RouteAction {
        cluster_specifier: Some(ClusterSpecifier::WeightedClusters(WeightedCluster {
            clusters: rule.backends.iter().map(|backend| weighted(service, backend)).collect(),
            ..WeightedCluster::default()
        })),
        // Envoy's own default is 15 s.
        timeout: duration(rule.timeout.map_or(std::time::Duration::ZERO, Into::into)),
        retry_policy: rule.retries.as_ref().map(retry_policy),
        request_mirror_policies: rule.mirror.iter().map(|mirror| mirror_policy(service, mirror)).collect(),
        ..RouteAction::default()
    };
    if let Some(rewrite) = &rule.rewrite {
        apply_rewrite(&mut action, rewrite, &on);
    }
    Route {
        r#match: Some(on),
        action: Some(Action::Route(action)),
        request_headers_to_add: added(&request),
        request_headers_to_remove: request.remove,
        response_headers_to_add: added(&response),
        response_headers_to_remove: response.remove,
        ..Route::default()
    }
}

fn weighted(service: &ServiceRef, backend: &MeshRouteBackend) -> ClusterWeight {
    let cookie = backend.set_cookie.iter();
    ClusterWeight {
        name: service.sibling(&backend.service, backend.port, backend.version.as_deref()).to_string(),
        weight: uint(backend.weight.into()),
        response_headers_to_add: cookie
            .map(|cookie| header("set-cookie", cookie, HeaderAppendAction::AppendIfExistsOrAdd))
            .collect(),
        ..ClusterWeight::default()
    }
}

fn retry_policy(retries: &MeshRouteRetries) -> RetryPolicy {
    RetryPolicy {
        retry_on: retries.retry_on.clone().unwrap_or_else(|| DEFAULT_RETRY_ON.to_owned()),
        num_retries: uint(retries.attempts.into()),
        per_try_timeout: retries.per_try_timeout.and_then(|timeout| duration(timeout.into())),
        ..RetryPolicy::default()
    }
}

fn mirror_policy(service: &ServiceRef, mirror: &MeshRouteMirror) -> RequestMirrorPolicy {
    let fraction = mirror.percent.map(|percent| RuntimeFractionalPercent {
        default_value: Some(FractionalPercent {
            // Between 0 and a million.
            numerator: (percent.fraction() * 1e6).round() as u32,
            denominator: DenominatorType::Million as i32,
        }),
        ..RuntimeFractionalPercent::default()
    });
    RequestMirrorPolicy {
        cluster: service.sibling(&mirror.service, mirror.port, mirror.version.as_deref()).to_string(),
        runtime_fraction: fraction,
        // The mirrored workload sees the host that clients called.
        disable_shadow_host_suffix_append: true,
        ..RequestMirrorPolicy::default()
    }
}

fn apply_rewrite(action: &mut RouteAction, rewrite: &Rewrite, on: &RouteMatch) {
    if let Some(authority) = &rewrite.authority {
        action.host_rewrite_specifier = Some(HostRewriteSpecifier::HostRewriteLiteral(authority.clone()));
    }
    let Some(uri) = &rewrite.uri else { return };
    match &on.path_specifier {
        Some(PathSpecifier::Prefix(prefix)) if prefix != "/" => action.prefix_rewrite.clone_from(uri),
        Some(PathSpecifier::Path(_)) => action.prefix_rewrite.clone_from(uri),
        _ => {
            let whole = regex_matcher("^/.*$".to_owned());
            // A backslash begins a reference to a group.
            let substitution = uri.replace('\\', "\\\\");
            action.regex_rewrite = Some(RegexMatchAndSubstitute { pattern: Some(whole), substitution });
        }
    }
}

fn added(change: &HeaderChange) -> Vec<HeaderValueOption> {
    let set = change.set.iter().map(|(k, v)| header(k, v, HeaderAppendAction::OverwriteIfExistsOrAdd));
    let add = change.add.iter().map(|(k, v)| header(k, v, HeaderAppendAction::AppendIfExistsOrAdd));
    set.chain(add).collect()
}

fn header(key: &str, value: &str, action: HeaderAppendAction) -> HeaderValueOption {
    HeaderValueOption {
        header: Some(HeaderValue {
            key: key.to_owned(),
            // A percent sign begins one of Envoy's variables.
            value: value.replace('%', "%%"),
            ..HeaderValue::default()
        }),
        append_action: action as i32,
        ..HeaderValueOption::default()
    }
}
