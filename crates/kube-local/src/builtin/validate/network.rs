//! Ingresses and EndpointSlices.

use std::collections::BTreeSet;
use std::net::IpAddr;

use serde_json::Value;

use super::{Errors, FieldValue, names};
use crate::schema::FieldError;

pub(super) fn endpoint_slice(slice: &FieldValue<'_>, old: Option<&FieldValue<'_>>, errors: &mut Errors) {
    let family = slice.at("addressType");
    match family.text() {
        "" => errors.push(family.required("")),
        _ => family.one_of(&["FQDN", "IPv4", "IPv6"], errors),
    }
    for endpoint in slice.at("endpoints").items() {
        let addresses = endpoint.at("addresses");
        if addresses.is_empty() {
            errors.push(addresses.required("must contain at least 1 address"));
        }
        for address in addresses.items() {
            check_address(&addresses, &address, family.text(), errors);
        }
    }
    let mut taken = BTreeSet::new();
    for port in slice.at("ports").items() {
        let name = port.at("name");
        if !name.is_empty() {
            name.name(names::label, errors);
        }
        if !taken.insert(name.text()) {
            errors.push(name.duplicate());
        }
        port.at("protocol").one_of(&["SCTP", "TCP", "UDP"], errors);
    }
    if let Some(old) = old {
        family.immutable(&old.at("addressType"), errors);
    }
}

fn check_address(all: &FieldValue<'_>, address: &FieldValue<'_>, family: &str, errors: &mut Errors) {
    match family {
        "FQDN" => address.name(names::subdomain, errors),
        "IPv4" | "IPv6" => {
            let before = errors.len();
            address.name(names::reachable_address, errors);
            let parsed = address.text().parse::<IpAddr>();
            let fits = parsed.is_ok_and(|parsed| parsed.is_ipv4() == (family == "IPv4"));
            if errors.len() == before && !fits {
                let detail = format!("must be an {family} address");
                errors.push(FieldError::invalid(all.path.clone(), address.value, &detail));
            }
        }
        _ => {}
    }
}

pub(super) fn ingress(ingress: &FieldValue<'_>, errors: &mut Errors) {
    let spec = ingress.at("spec");
    let (rules, backend) = (spec.at("rules"), spec.at("defaultBackend"));
    if rules.is_empty() && !backend.is_set() {
        let detail = "either `defaultBackend` or `rules` must be specified";
        errors.push(FieldError::invalid(spec.path.clone(), rules.value, detail));
    }
    if backend.is_set() {
        check_backend(&backend, errors);
    }
    let class = spec.at("ingressClassName");
    if class.is_set() {
        class.name(names::subdomain, errors);
    }
    for rule in rules.items() {
        let host = rule.at("host");
        if !host.is_empty() {
            check_host(&host, errors);
        }
        if !rule.at("http").is_set() {
            continue;
        }
        let paths = rule.at("http.paths");
        if paths.is_empty() {
            errors.push(paths.required(""));
        }
        for path in paths.items() {
            check_path(&path, errors);
        }
    }
    for tls in spec.at("tls").items() {
        for host in tls.at("hosts").items() {
            let rule = if host.text().contains('*') { names::wildcard } else { names::subdomain };
            host.name(rule, errors);
        }
    }
}

fn check_host(host: &FieldValue<'_>, errors: &mut Errors) {
    if host.text().parse::<IpAddr>().is_ok() {
        errors.push(host.invalid("must be a DNS name, not an IP address"));
    } else if host.text().contains('*') {
        host.name(names::wildcard, errors);
    } else {
        host.name(names::subdomain, errors);
    }
}

fn check_path(path: &FieldValue<'_>, errors: &mut Errors) {
    let (kind, text) = (path.at("pathType"), path.at("path"));
    let invalid = |detail: String| FieldError::invalid(text.path.clone(), &text.text().into(), &detail);
    match kind.text() {
        "" => errors.push(kind.required("pathType must be specified")),
        "Exact" | "Prefix" => {
            if !text.text().starts_with('/') {
                errors.push(invalid("must be an absolute path".to_owned()));
            }
            for part in ["//", "/./", "/../", "%2f", "%2F"] {
                if text.text().contains(part) {
                    errors.push(invalid(format!("must not contain '{part}'")));
                }
            }
            for end in ["/..", "/."] {
                if text.text().ends_with(end) {
                    errors.push(invalid(format!("cannot end with '{end}'")));
                }
            }
        }
        "ImplementationSpecific" => {
            if !text.is_empty() && !text.text().starts_with('/') {
                errors.push(invalid("must be an absolute path".to_owned()));
            }
        }
        _ => kind.one_of(&["Exact", "ImplementationSpecific", "Prefix"], errors),
    }
    check_backend(&path.at("backend"), errors);
}

fn check_backend(backend: &FieldValue<'_>, errors: &mut Errors) {
    let invalid = |detail: &str| FieldError::invalid(backend.path.clone(), &Value::from(""), detail);
    let (service, resource) = (backend.at("service"), backend.at("resource"));
    match (service.is_set(), resource.is_set()) {
        (false, false) => errors.push(invalid("resource or service backend is required")),
        (true, true) => errors.push(invalid("cannot set both resource and service backends")),
        (false, true) => {}
        (true, false) => {
            service.at("name").required_name(names::label, errors);
            let (name, number) = (service.at("port.name"), service.at("port.number"));
            let numbered = number.value.as_i64().is_some_and(|number| number != 0);
            match (name.is_empty(), numbered) {
                (true, false) => errors.push(backend.required("port name or number is required")),
                (false, true) => errors.push(invalid("cannot set both port name & port number")),
                (false, false) => name.name(names::port_name, errors),
                (true, true) => number.port_number(errors),
            }
        }
    }
}
