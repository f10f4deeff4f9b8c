//! Conditions on requests, for routes and for access.

use envoy_types::pb::envoy::config::route::v3::{
    HeaderMatcher, QueryParameterMatcher, RouteMatch, header_matcher::HeaderMatchSpecifier,
    query_parameter_matcher::QueryParameterMatchSpecifier, route_match::PathSpecifier,
};
use envoy_types::pb::envoy::r#type::matcher::v3::{
    RegexMatcher, StringMatcher, string_matcher::MatchPattern,
};
use envoy_types::pb::google::protobuf::BoolValue;

use crate::api::canary::{HttpMatch, StringMatch};

/// A condition that a proxy cannot check. A match that has one matches nothing.
pub fn unsupported_condition(on: &HttpMatch) -> Option<&str> {
    let fields = [
        ("sourceLabels", !on.source_labels.is_empty()),
        ("sourceNamespace", on.source_namespace.is_some()),
        ("gateways", !on.gateways.is_empty()),
    ];
    let known = fields.into_iter().find(|(_, is_set)| *is_set).map(|(name, _)| name);
    known.or_else(|| on.other.keys().next().map(String::as_str))
}

/// None if no request to this port can match.
pub(super) fn route_match(on: &HttpMatch, port: u16) -> Option<RouteMatch> {
    if unsupported_condition(on).is_some() || on.port.is_some_and(|wanted| wanted != port) {
        return None;
    }
    let query = on.query_params.iter().map(|(name, value)| {
        let specifier = match string_matcher(value) {
            Some(matcher) => QueryParameterMatchSpecifier::StringMatch(matcher),
            None => QueryParameterMatchSpecifier::PresentMatch(true),
        };
        QueryParameterMatcher { name: name.clone(), query_parameter_match_specifier: Some(specifier) }
    });
    Some(RouteMatch {
        path_specifier: Some(path(on)),
        case_sensitive: on.ignore_uri_case.then_some(BoolValue { value: false }),
        headers: headers(on),
        query_parameters: query.collect(),
        ..RouteMatch::default()
    })
}

/// Any request.
pub(super) fn everything() -> RouteMatch {
    RouteMatch { path_specifier: Some(PathSpecifier::Prefix("/".to_owned())), ..RouteMatch::default() }
}

/// All conditions but those on path and query.
pub(super) fn headers(on: &HttpMatch) -> Vec<HeaderMatcher> {
    let pseudo = [(":scheme", &on.scheme), (":method", &on.method), (":authority", &on.authority)];
    let pseudo = pseudo.into_iter().filter_map(|(name, value)| Some(header(name, value.as_ref()?)));
    let present = on.headers.iter().map(|(name, value)| header(name, value));
    let absent = on.without_headers.iter().map(|(name, value)| {
        let matcher = header(name, value);
        // A missing header differs from every value.
        let has_value = string_matcher(value).is_some();
        HeaderMatcher { invert_match: true, treat_missing_header_as_empty: has_value, ..matcher }
    });
    pseudo.chain(present).chain(absent).collect()
}

pub(super) fn header(name: &str, value: &StringMatch) -> HeaderMatcher {
    let specifier = match string_matcher(value) {
        Some(matcher) => HeaderMatchSpecifier::StringMatch(matcher),
        None => HeaderMatchSpecifier::PresentMatch(true),
    };
    HeaderMatcher {
        name: name.to_owned(),
        header_match_specifier: Some(specifier),
        ..HeaderMatcher::default()
    }
}

/// None: it only has to be present.
pub(super) fn string_matcher(value: &StringMatch) -> Option<StringMatcher> {
    let StringMatch { exact, prefix, suffix, regex } = value;
    let pattern = exact.clone().map(MatchPattern::Exact);
    let pattern = pattern.or_else(|| prefix.clone().map(MatchPattern::Prefix));
    let pattern = pattern.or_else(|| suffix.clone().map(MatchPattern::Suffix));
    let pattern =
        pattern.or_else(|| regex.clone().map(|regex| MatchPattern::SafeRegex(regex_matcher(regex))));
    pattern.map(|pattern| StringMatcher { match_pattern: Some(pattern), ..StringMatcher::default() })
}

pub(super) fn regex_matcher(regex: String) -> RegexMatcher {
    RegexMatcher { regex, ..RegexMatcher::default() }
}

fn path(on: &HttpMatch) -> PathSpecifier {
    let StringMatch { exact, prefix, suffix, regex } = on.uri.clone().unwrap_or_default();
    if let Some(exact) = exact {
        return PathSpecifier::Path(exact);
    }
    let regex = suffix.map(|suffix| format!(".*{}", regex::escape(&suffix))).or(regex);
    match regex {
        // Envoy applies `case_sensitive` to literals only.
        Some(regex) if on.ignore_uri_case => PathSpecifier::SafeRegex(regex_matcher(format!("(?i){regex}"))),
        Some(regex) => PathSpecifier::SafeRegex(regex_matcher(regex)),
        None => PathSpecifier::Prefix(prefix.unwrap_or_else(|| "/".to_owned())),
    }
}
