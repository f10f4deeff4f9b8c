//! Clusters: a service as an upstream, and the workload behind an inbound port.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::time::Duration;

use envoy_types::pb::envoy::config::cluster::v3::{
    Cluster, OutlierDetection,
    cluster::{ClusterDiscoveryType, CommonLbConfig, DiscoveryType, EdsClusterConfig, TransportSocketMatch},
};
use envoy_types::pb::envoy::config::core::v3::{
    HealthCheck, Http2ProtocolOptions, TransportSocket,
    health_check::{HealthChecker, HttpHealthCheck, TcpHealthCheck},
    transport_socket::ConfigType,
};
use envoy_types::pb::envoy::config::endpoint::v3::{
    ClusterLoadAssignment, Endpoint, LbEndpoint, LocalityLbEndpoints, lb_endpoint::HostIdentifier,
};
use envoy_types::pb::envoy::extensions::transport_sockets::raw_buffer::v3::RawBuffer;
use envoy_types::pb::envoy::extensions::upstreams::http::v3::{
    HttpProtocolOptions,
    http_protocol_options::{
        ExplicitHttpConfig, UpstreamProtocolOptions, explicit_http_config::ProtocolConfig,
    },
};
use envoy_types::pb::envoy::r#type::v3::Percent;
use envoy_types::pb::google::protobuf::{Any, Struct};

use super::{ads, duration, endpoints, pack, socket_address, stat_name, tls_context, uint};
use crate::api::{self, endpoint_group};
use crate::catalog::{HealthPolicy, Protocol};
use crate::xds::node::{ServiceRef, TlsFiles};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
const HTTP_OPTIONS: &str = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions";

/// What is known of a service as an upstream.
pub(super) struct Upstream<'a> {
    pub protocol: Protocol,
    /// Of its workloads, where they are known.
    pub identities: Vec<String>,
    pub health: &'a HealthPolicy,
}

pub(super) fn cluster(service: &ServiceRef, upstream: Upstream<'_>, tls: Option<&TlsFiles>) -> Cluster {
    let Upstream { protocol, identities, health } = upstream;
    let transport_socket_matches = tls.map(|files| {
        let plain = TransportSocket {
            name: "envoy.transport_sockets.raw_buffer".to_owned(),
            config_type: Some(ConfigType::TypedConfig(pack(&RawBuffer {}))),
        };
        let socket = |name: &str, on: Struct, socket| TransportSocketMatch {
            name: name.to_owned(),
            r#match: Some(on),
            transport_socket: Some(socket),
        };
        let mtls = tls_context::upstream(files, protocol, identities);
        vec![socket("mtls", endpoints::mtls_label(), mtls), socket("plain", Struct::default(), plain)]
    });
    Cluster {
        name: service.to_string(),
        alt_stat_name: stat_name(service),
        cluster_discovery_type: Some(ClusterDiscoveryType::Type(DiscoveryType::Eds as i32)),
        eds_cluster_config: Some(EdsClusterConfig { eds_config: Some(ads()), service_name: String::new() }),
        connect_timeout: duration(CONNECT_TIMEOUT),
        typed_extension_protocol_options: protocol_options(protocol),
        transport_socket_matches: transport_socket_matches.unwrap_or_default(),
        common_lb_config: Some(CommonLbConfig {
            // Draining endpoints get requests only when no other is left.
            healthy_panic_threshold: Some(Percent { value: 1.0 }),
            ..CommonLbConfig::default()
        }),
        outlier_detection: Some(outlier_detection(&health.outliers)),
        health_checks: health.check.iter().map(|check| health_check(service, check)).collect(),
        // An endpoint that is no longer listed gets no requests, however healthy it is.
        ignore_health_on_host_removal: health.check.is_some(),
        ..Cluster::default()
    }
}

fn health_check(service: &ServiceRef, check: &endpoint_group::HealthCheck) -> HealthCheck {
    let seconds = |given: Option<api::Duration>, default| {
        duration(given.map_or(Duration::from_secs(default), Into::into))
    };
    let interval = seconds(check.interval, 5);
    let checker = match &check.path {
        Some(path) => HealthChecker::HttpHealthCheck(HttpHealthCheck {
            host: format!("{}.{}", service.name, service.namespace),
            path: path.clone(),
            ..HttpHealthCheck::default()
        }),
        None => HealthChecker::TcpHealthCheck(TcpHealthCheck::default()),
    };
    HealthCheck {
        timeout: seconds(check.timeout, 1),
        interval,
        // Envoy's default is a minute, in which a version without requests is not known.
        no_traffic_interval: interval,
        unhealthy_threshold: uint(check.unhealthy_threshold.unwrap_or(3)),
        healthy_threshold: uint(check.healthy_threshold.unwrap_or(2)),
        health_checker: Some(checker),
        ..HealthCheck::default()
    }
}

pub(super) fn application(name: String, address: SocketAddr, protocol: Protocol) -> Cluster {
    let endpoint = Endpoint { address: Some(socket_address(address)), ..Endpoint::default() };
    let endpoint =
        LbEndpoint { host_identifier: Some(HostIdentifier::Endpoint(endpoint)), ..LbEndpoint::default() };
    let locality = LocalityLbEndpoints { lb_endpoints: vec![endpoint], ..LocalityLbEndpoints::default() };
    Cluster {
        load_assignment: Some(ClusterLoadAssignment {
            cluster_name: name.clone(),
            endpoints: vec![locality],
            ..ClusterLoadAssignment::default()
        }),
        alt_stat_name: name.replace(['/', ':'], "_"),
        name,
        cluster_discovery_type: Some(ClusterDiscoveryType::Type(DiscoveryType::Static as i32)),
        connect_timeout: duration(CONNECT_TIMEOUT),
        typed_extension_protocol_options: protocol_options(protocol),
        ..Cluster::default()
    }
}

fn protocol_options(protocol: Protocol) -> HashMap<String, Any> {
    if protocol != Protocol::Http2 {
        return HashMap::new();
    }
    let explicit = ExplicitHttpConfig {
        protocol_config: Some(ProtocolConfig::Http2ProtocolOptions(Http2ProtocolOptions::default())),
    };
    let options = HttpProtocolOptions {
        upstream_protocol_options: Some(UpstreamProtocolOptions::ExplicitHttpConfig(explicit)),
        ..HttpProtocolOptions::default()
    };
    HashMap::from([(HTTP_OPTIONS.to_owned(), pack(&options))])
}

/// Ejects endpoints that cannot be reached. Their responses are left to the judge: an
/// ejected canary would hide its errors from it.
fn outlier_detection(outliers: &endpoint_group::OutlierDetection) -> OutlierDetection {
    OutlierDetection {
        split_external_local_origin_errors: true,
        consecutive_local_origin_failure: uint(outliers.connect_failures.unwrap_or(5)),
        enforcing_consecutive_local_origin_failure: uint(100),
        enforcing_consecutive_5xx: uint(0),
        enforcing_consecutive_gateway_failure: uint(0),
        enforcing_success_rate: uint(0),
        enforcing_local_origin_success_rate: uint(0),
        interval: duration(Duration::from_secs(1)),
        base_ejection_time: duration(outliers.ejection_time.map_or(Duration::from_secs(10), Into::into)),
        max_ejection_percent: uint(50),
        ..OutlierDetection::default()
    }
}
