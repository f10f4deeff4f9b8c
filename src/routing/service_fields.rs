//! Refuses fields of `spec.service` that a router does not carry: nothing that is
//! written in a Canary is ignored.

use super::Unsupported;
use crate::api::Canary;

/// Fields of the Services, which are the same for every router.
const OF_THE_SERVICES: [&str; 12] = [
    "name",
    "port",
    "portName",
    "targetPort",
    "appProtocol",
    "trafficDistribution",
    "portDiscovery",
    "headless",
    "apex",
    "primary",
    "canary",
    "unmanagedMetadata",
];

/// The first field of `spec.service` that is none of the route's is refused.
/// `delegation` is a capability.
pub fn check(canary: &Canary, route_fields: &[&str], router: impl Fn() -> String) -> Result<(), Unsupported> {
    let written = serde_json::to_value(&canary.spec.service).unwrap_or_default();
    let mut written = written.as_object().into_iter().flatten().map(|(field, _)| field.as_str());
    let is_carried = |field: &str| {
        OF_THE_SERVICES.contains(&field) || field == "delegation" || route_fields.contains(&field)
    };
    match written.find(|field| !is_carried(field)) {
        None => Ok(()),
        Some(field) => Err(Unsupported::ServiceField {
            router: router(),
            field: field.to_owned(),
            providers: providers(field),
        }),
    }
}

/// Providers whose routes carry a field.
fn providers(field: &str) -> &'static str {
    match field {
        "gateways" | "trafficPolicy" => "istio",
        "retries" => "istio, appmesh:v1beta2 or xds",
        "backendTimeout" | "mirror" => "gatewayapi:v1",
        "gatewayRefs" => "gatewayapi:v1 or linkerd",
        "rewrite" => "istio, gatewayapi:v1 or xds",
        "corsPolicy" => "istio or gatewayapi:v1",
        "meshName" => "appmesh:aws",
        "backends" => "appmesh:v1beta2 or appmesh:aws",
        _ => "istio, gatewayapi:v1, linkerd or xds",
    }
}
