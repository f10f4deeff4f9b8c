//! ClusterLoadAssignments: zones are localities.

use std::collections::{BTreeMap, HashMap};

use envoy_types::pb::envoy::config::core::v3::{HealthStatus, Locality, Metadata};
use envoy_types::pb::envoy::config::endpoint::v3::{
    ClusterLoadAssignment, Endpoint as EnvoyEndpoint, LbEndpoint, LocalityLbEndpoints,
    lb_endpoint::HostIdentifier,
};
use envoy_types::pb::google::protobuf::{Struct, Value, value::Kind};

use super::{socket_address, uint};
use crate::catalog::{Endpoint, Health};
use crate::xds::node::ServiceRef;

/// By `Cluster.transport_socket_matches`.
const TRANSPORT_SOCKET_METADATA: &str = "envoy.transport_socket_match";

pub(super) fn assignment(service: &ServiceRef, endpoints: &[Endpoint]) -> ClusterLoadAssignment {
    let mut zones: BTreeMap<Option<&str>, Vec<LbEndpoint>> = BTreeMap::new();
    for endpoint in endpoints {
        zones.entry(endpoint.zone.as_deref()).or_default().push(lb_endpoint(endpoint));
    }
    let localities = zones.into_iter().map(|(zone, lb_endpoints)| LocalityLbEndpoints {
        locality: zone.map(|zone| Locality { zone: zone.to_owned(), ..Locality::default() }),
        lb_endpoints,
        ..LocalityLbEndpoints::default()
    });
    ClusterLoadAssignment {
        cluster_name: service.to_string(),
        endpoints: localities.collect(),
        ..ClusterLoadAssignment::default()
    }
}

/// Marks endpoints that require a certificate.
pub(super) fn mtls_label() -> Struct {
    Struct {
        fields: [("mtls".to_owned(), Value { kind: Some(Kind::BoolValue(true)) })].into_iter().collect(),
    }
}

fn lb_endpoint(endpoint: &Endpoint) -> LbEndpoint {
    let health = match endpoint.health {
        // Envoy has no weight 0.
        Health::Healthy if endpoint.weight == 0 => HealthStatus::Draining,
        Health::Healthy => HealthStatus::Healthy,
        Health::Draining => HealthStatus::Draining,
        Health::Unhealthy => HealthStatus::Unhealthy,
    };
    let address =
        EnvoyEndpoint { address: Some(socket_address(endpoint.address)), ..EnvoyEndpoint::default() };
    let metadata = endpoint.mtls.then(|| Metadata {
        filter_metadata: HashMap::from([(TRANSPORT_SOCKET_METADATA.to_owned(), mtls_label())]),
        ..Metadata::default()
    });
    LbEndpoint {
        health_status: health as i32,
        metadata,
        load_balancing_weight: uint(endpoint.weight.max(1)),
        host_identifier: Some(HostIdentifier::Endpoint(address)),
    }
}
