//! Listeners: one for each upstream and each inbound port of a proxy.

use std::net::SocketAddr;
use std::time::Duration;

use envoy_types::pb::envoy::config::core::v3::TrafficDirection;
use envoy_types::pb::envoy::config::listener::v3::{Filter, FilterChain, Listener, filter};
use envoy_types::pb::envoy::config::route::v3::{
    Route, RouteAction, RouteConfiguration, VirtualHost, route::Action, route_action::ClusterSpecifier,
};
use envoy_types::pb::envoy::extensions::filters::http::rbac::v3::Rbac as HttpRbac;
use envoy_types::pb::envoy::extensions::filters::http::router::v3::Router;
use envoy_types::pb::envoy::extensions::filters::network::http_connection_manager::v3::{
    HttpConnectionManager, HttpFilter, Rds,
    http_connection_manager::{PathWithEscapedSlashesAction, RouteSpecifier, UpgradeConfig},
    http_filter::ConfigType as HttpFilterConfig,
};
use envoy_types::pb::envoy::extensions::filters::network::rbac::v3::Rbac as NetworkRbac;
use envoy_types::pb::envoy::extensions::filters::network::tcp_proxy::v3::{
    TcpProxy,
    tcp_proxy::{self, WeightedCluster, weighted_cluster::ClusterWeight},
};
use envoy_types::pb::google::protobuf::Any;

use super::{
    access, ads, duration, pack, request_match::everything, socket_address, stat_name, tls_context, yes,
};
use crate::api::mesh_route::MeshRouteRule;
use crate::catalog::{Access, Protocol, ServiceKey, ServiceRoute};
use crate::xds::node::{Inbound, ServiceRef, TlsFiles};

/// The inbound port of a proxy.
pub(super) struct Ingress<'a> {
    pub name: String,
    pub inbound: &'a Inbound,
    /// Name of the cluster of the workload.
    pub application: &'a str,
    pub tls: Option<&'a TlsFiles>,
    pub trust_domain: &'a str,
}

pub(super) fn http_egress(name: String, service: &ServiceRef, listen: SocketAddr) -> Listener {
    let route = Rds { config_source: Some(ads()), route_config_name: service.to_string() };
    let manager = http_manager(stat_name(service), RouteSpecifier::Rds(route), Vec::new());
    let chain = FilterChain {
        filters: vec![network_filter("http_connection_manager", pack(&manager))],
        ..FilterChain::default()
    };
    listener(name, listen, TrafficDirection::Outbound, chain)
}

/// And the clusters that it sends connections to: those of the first rule for all of
/// them, since bytes match no condition on requests.
pub(super) fn tcp_egress(
    name: String,
    service: &ServiceRef,
    listen: SocketAddr,
    route: Option<&ServiceRoute>,
) -> (Listener, Vec<String>) {
    let mut rules = route.into_iter().flat_map(|route| &route.spec.rules);
    let rule: Option<&MeshRouteRule> = rules.find(|rule| rule.match_.is_empty());
    let weighted = rule.into_iter().flat_map(|rule| &rule.backends).filter(|backend| backend.weight > 0);
    let weighted: Vec<_> = weighted
        .map(|backend| ClusterWeight {
            name: service.sibling(&backend.service, backend.port, backend.version.as_deref()).to_string(),
            weight: backend.weight.into(),
            ..ClusterWeight::default()
        })
        .collect();
    let clusters = match weighted.is_empty() {
        true => vec![service.to_string()],
        false => weighted.iter().map(|cluster| cluster.name.clone()).collect(),
    };
    let specifier = match rule {
        None => tcp_proxy::ClusterSpecifier::Cluster(service.to_string()),
        Some(_) => tcp_proxy::ClusterSpecifier::WeightedClusters(WeightedCluster { clusters: weighted }),
    };
    let chain = FilterChain {
        filters: vec![network_filter("tcp_proxy", pack(&tcp_proxy(stat_name(service), specifier)))],
        ..FilterChain::default()
    };
    (listener(name, listen, TrafficDirection::Outbound, chain), clusters)
}

impl Ingress<'_> {
    pub fn listener(self, service: &ServiceKey, access: &Access) -> Listener {
        let stat = format!("inbound_{}", stat_name(&self.inbound.service));
        let filters =
            if service.protocol == Protocol::Tcp { self.tcp(stat, access) } else { self.http(stat, access) };
        let chain = FilterChain {
            filters,
            transport_socket: self.tls.map(|files| tls_context::downstream(files, service.protocol)),
            ..FilterChain::default()
        };
        listener(self.name, self.inbound.listen, TrafficDirection::Inbound, chain)
    }

    fn http(&self, stat: String, access: &Access) -> Vec<Filter> {
        let to_workload = RouteAction {
            cluster_specifier: Some(ClusterSpecifier::Cluster(self.application.to_owned())),
            // Limits are the caller's to set.
            timeout: duration(Duration::ZERO),
            ..RouteAction::default()
        };
        let route = Route {
            r#match: Some(everything()),
            action: Some(Action::Route(to_workload)),
            ..Route::default()
        };
        let host = VirtualHost {
            name: self.application.to_owned(),
            domains: vec!["*".to_owned()],
            routes: vec![route],
            ..VirtualHost::default()
        };
        let routes = RouteConfiguration { virtual_hosts: vec![host], ..RouteConfiguration::default() };
        let rules = access::http_rules(access, self.trust_domain, self.inbound.service.port);
        let limited = rules.is_some();
        let rbac = rules.map(|rules| HttpRbac { rules: Some(rules), ..HttpRbac::default() });
        let filters = rbac.iter().map(|rbac| http_filter("rbac", pack(rbac))).collect();
        let mut manager = http_manager(stat, RouteSpecifier::RouteConfig(routes), filters);
        if limited {
            // A path is judged as the workload will read it.
            manager.normalize_path = yes();
            manager.merge_slashes = true;
            manager.path_with_escaped_slashes_action = PathWithEscapedSlashesAction::RejectRequest as i32;
        }
        vec![network_filter("http_connection_manager", pack(&manager))]
    }

    fn tcp(&self, stat: String, access: &Access) -> Vec<Filter> {
        let rbac = access::tcp_rules(access, self.trust_domain).map(|rules| NetworkRbac {
            rules: Some(rules),
            stat_prefix: stat.clone(),
            ..NetworkRbac::default()
        });
        let rbac = rbac.iter().map(|rbac| network_filter("rbac", pack(rbac)));
        let specifier = tcp_proxy::ClusterSpecifier::Cluster(self.application.to_owned());
        let proxy = network_filter("tcp_proxy", pack(&tcp_proxy(stat.clone(), specifier)));
        rbac.chain([proxy]).collect()
    }
}

fn listener(name: String, address: SocketAddr, direction: TrafficDirection, chain: FilterChain) -> Listener {
    Listener {
        name,
        address: Some(socket_address(address)),
        traffic_direction: direction as i32,
        filter_chains: vec![chain],
        ..Listener::default()
    }
}

fn http_manager(stat: String, routes: RouteSpecifier, mut filters: Vec<HttpFilter>) -> HttpConnectionManager {
    filters.push(http_filter("router", pack(&Router::default())));
    HttpConnectionManager {
        stat_prefix: stat,
        route_specifier: Some(routes),
        http_filters: filters,
        // Envoy's own default ends a silent stream after 5 min.
        stream_idle_timeout: duration(Duration::ZERO),
        upgrade_configs: vec![UpgradeConfig {
            upgrade_type: "websocket".to_owned(),
            ..UpgradeConfig::default()
        }],
        ..HttpConnectionManager::default()
    }
}

fn tcp_proxy(stat: String, specifier: tcp_proxy::ClusterSpecifier) -> TcpProxy {
    TcpProxy { stat_prefix: stat, cluster_specifier: Some(specifier), ..TcpProxy::default() }
}

fn http_filter(name: &str, config: Any) -> HttpFilter {
    HttpFilter {
        name: format!("envoy.filters.http.{name}"),
        config_type: Some(HttpFilterConfig::TypedConfig(config)),
        ..HttpFilter::default()
    }
}

fn network_filter(name: &str, config: Any) -> Filter {
    Filter {
        name: format!("envoy.filters.network.{name}"),
        config_type: Some(filter::ConfigType::TypedConfig(config)),
    }
}
