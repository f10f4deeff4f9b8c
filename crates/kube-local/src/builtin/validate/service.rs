//! Services.

use std::collections::BTreeSet;

use serde_json::json;

use super::{Errors, FieldValue, metadata, names};
use crate::schema::{FieldError, Reason};

pub(super) fn service(service: &FieldValue<'_>, old: Option<&FieldValue<'_>>, errors: &mut Errors) {
    let spec = service.at("spec");
    let kind = spec.at("type").text();
    let headless = spec.at("clusterIP").text() == "None";
    spec.at("type").one_of(&["ClusterIP", "ExternalName", "LoadBalancer", "NodePort"], errors);
    let ports = spec.at("ports");
    if ports.is_empty() && !headless && kind != "ExternalName" {
        errors.push(ports.required(""));
    }
    check_ports(&ports, kind, errors);
    metadata::labels(&spec.at("selector"), errors);
    spec.at("sessionAffinity").one_of(&["ClientIP", "None"], errors);
    let timeout = spec.at("sessionAffinityConfig.clientIP.timeoutSeconds");
    if timeout.value.as_i64().is_some_and(|seconds| !(1..=86400).contains(&seconds)) {
        errors.push(timeout.invalid("must be greater than 0 and less than 86400"));
    }
    if kind == "ExternalName" {
        let name = spec.at("externalName");
        let bare = FieldValue { value: &json!(name.text().trim_end_matches('.')), path: name.path.clone() };
        bare.required_name(names::subdomain, errors);
    } else {
        check_addresses(&spec, kind, errors);
    }
    for address in spec.at("externalIPs").items() {
        address.name(names::reachable_address, errors);
    }
    let exposed = matches!(kind, "LoadBalancer" | "NodePort") || !spec.at("externalIPs").is_empty();
    let external = spec.at("externalTrafficPolicy");
    if !external.is_empty() {
        if exposed {
            external.one_of(&["Cluster", "Local"], errors);
        } else {
            errors.push(external.invalid("may only be set for externally-accessible services"));
        }
    }
    let internal = spec.at("internalTrafficPolicy");
    if internal.is_set() {
        internal.one_of(&["Cluster", "Local"], errors);
    }
    if let Some(old) = old {
        let (now, before) = (spec.at("clusterIP"), old.at("spec.clusterIP"));
        let had_address = old.at("spec.type").text() != "ExternalName" && kind != "ExternalName";
        if had_address && !before.is_empty() && now.value != before.value {
            let shown = json!([now.text()]);
            errors.push(FieldError::invalid(
                format!("{}.clusterIPs[0]", spec.path),
                &shown,
                "may not change once set",
            ));
        }
    }
}

fn check_ports(ports: &FieldValue<'_>, kind: &str, errors: &mut Errors) {
    let all: Vec<_> = ports.items().collect();
    let (mut names, mut served) = (BTreeSet::new(), BTreeSet::new());
    for port in &all {
        let name = port.at("name");
        if !name.is_empty() {
            let before = errors.len();
            name.name(names::label, errors);
            if errors.len() == before && !names.insert(name.text()) {
                errors.push(name.duplicate());
            }
        } else if all.len() > 1 {
            errors.push(name.required(""));
        }
        port.at("port").port_number(errors);
        port.at("targetPort").port(errors);
        port.at("protocol").one_of(&["SCTP", "TCP", "UDP"], errors);
        let node_port = port.at("nodePort");
        if kind == "ClusterIP" && node_port.value.as_i64().is_some_and(|port| port != 0) {
            errors.push(node_port.forbidden("may not be used when `type` is 'ClusterIP'"));
        }
        let (number, protocol) = (port.at("port").value.as_i64(), port.at("protocol").text());
        if !served.insert((number, protocol)) {
            // The API server prints the compared part of its Go struct.
            let shown = format!(
                "Duplicate value: {{\"Name\":\"\",\"Protocol\":\"{protocol}\",\"AppProtocol\":null,\"Port\":{},\
                 \"TargetPort\":0,\"NodePort\":0}}",
                number.unwrap_or_default()
            );
            errors.push(FieldError::with_text(port.path.clone(), Reason::Duplicate, &shown, ""));
        }
    }
}

fn check_addresses(spec: &FieldValue<'_>, kind: &str, errors: &mut Errors) {
    let address = spec.at("clusterIP");
    if address.is_empty() {
        return;
    }
    let first = FieldValue { value: address.value, path: format!("{}.clusterIPs[0]", spec.path) };
    if address.text() != "None" {
        first.name(names::address, errors);
    } else if matches!(kind, "NodePort" | "LoadBalancer") {
        errors.push(first.invalid(&format!("may not be set to 'None' for {kind} services")));
    }
}
