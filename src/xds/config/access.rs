//! Policies as Envoy's RBAC, with the SPIFFE URI of a caller's certificate as principal.
//!
//! A whole policy is one principal (an identity and its requests) of one RBAC policy:
//! RBAC policies are a map, whose order would differ from process to process.

use std::collections::HashMap;

use envoy_types::pb::envoy::config::rbac::v3::{
    Permission, Policy as RbacPolicy, Principal, Rbac, permission,
    principal::{Authenticated, Identifier, Set},
    rbac::Action,
};
use envoy_types::pb::envoy::config::route::v3::route_match::PathSpecifier;
use envoy_types::pb::envoy::r#type::matcher::v3::{
    PathMatcher, StringMatcher, path_matcher, string_matcher::MatchPattern,
};

use super::{request_match, spiffe};
use crate::api::canary::StringMatch;
use crate::catalog::{Access, AccessRule, HttpAccess, Policy};

/// None: every request is admitted.
pub(super) fn http_rules(access: &Access, trust_domain: &str, port: u16) -> Option<Rbac> {
    rules(access, |policy| {
        let callers = callers(policy, trust_domain);
        Some(match &policy.allow {
            AccessRule::Everything => callers,
            AccessRule::Http(requests) => {
                let requests = requests.iter().filter_map(|request| request_principal(request, port));
                all_of(vec![callers, any_of(requests.collect())])
            }
        })
    })
}

/// A policy for HTTP requests admits no connection.
pub(super) fn tcp_rules(access: &Access, trust_domain: &str) -> Option<Rbac> {
    rules(access, |policy| (policy.allow == AccessRule::Everything).then(|| callers(policy, trust_domain)))
}

fn rules(access: &Access, principal: impl Fn(&Policy) -> Option<Principal>) -> Option<Rbac> {
    let principals = match access {
        Access::Everybody => return None,
        Access::Nobody => Vec::new(),
        Access::Policies(policies) => {
            policies.iter().filter_map(|policy| principal(policy.as_ref())).collect()
        }
    };
    let anything = Permission { rule: Some(permission::Rule::Any(true)) };
    let policy = RbacPolicy { permissions: vec![anything], principals, ..RbacPolicy::default() };
    let policies = match policy.principals.is_empty() {
        true => HashMap::new(),
        false => HashMap::from([("policies".to_owned(), policy)]),
    };
    Some(Rbac { action: Action::Allow as i32, policies, ..Rbac::default() })
}

fn callers(policy: &Policy, trust_domain: &str) -> Principal {
    let uris = policy.sources.iter().map(|account| {
        let pattern = Some(MatchPattern::Exact(spiffe(trust_domain, account)));
        let name = StringMatcher { match_pattern: pattern, ..StringMatcher::default() };
        of(Identifier::Authenticated(Authenticated { principal_name: Some(name) }))
    });
    any_of(uris.collect())
}

/// None if no request to this port can match.
fn request_principal(access: &HttpAccess, port: u16) -> Option<Principal> {
    let HttpAccess { methods, request } = access;
    // RBAC sees no query.
    let on = request_match::route_match(request, port).filter(|on| on.query_parameters.is_empty())?;
    let mut conditions: Vec<Principal> =
        request_match::headers(request).into_iter().map(|header| of(Identifier::Header(header))).collect();
    // `*` is SMI's word for every method.
    if !methods.is_empty() && !methods.iter().any(|method| method == "*") {
        let exact = |method: &String| StringMatch { exact: Some(method.clone()), ..StringMatch::default() };
        let methods =
            methods.iter().map(|m| of(Identifier::Header(request_match::header(":method", &exact(m)))));
        conditions.push(any_of(methods.collect()));
    }
    let pattern = match on.path_specifier? {
        PathSpecifier::Path(path) => MatchPattern::Exact(path),
        PathSpecifier::Prefix(prefix) => MatchPattern::Prefix(prefix),
        PathSpecifier::SafeRegex(regex) => MatchPattern::SafeRegex(regex),
        _ => return None,
    };
    let ignore_case = request.ignore_uri_case && !matches!(pattern, MatchPattern::SafeRegex(_));
    let path = StringMatcher { match_pattern: Some(pattern), ignore_case };
    conditions.push(of(Identifier::UrlPath(PathMatcher { rule: Some(path_matcher::Rule::Path(path)) })));
    Some(all_of(conditions))
}

fn of(identifier: Identifier) -> Principal {
    Principal { identifier: Some(identifier) }
}

fn all_of(ids: Vec<Principal>) -> Principal {
    of(Identifier::AndIds(Set { ids }))
}

/// Of none: nobody.
fn any_of(ids: Vec<Principal>) -> Principal {
    if ids.is_empty() {
        return of(Identifier::NotId(Box::new(of(Identifier::Any(true)))));
    }
    of(Identifier::OrIds(Set { ids }))
}
