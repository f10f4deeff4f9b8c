//! Catalog → Envoy's resources. Pure functions of the catalog: the same content has the
//! same bytes, and so the same version, in every process. For that no message has a map
//! with more than one entry, since prost writes maps in no fixed order.

mod access;
mod cluster;
mod endpoints;
mod listener;
mod request_match;
mod route;
mod tls_context;

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;

use envoy_types::pb::envoy::config::core::v3::{
    Address, AggregatedConfigSource, ApiVersion, ConfigSource, SocketAddress, address, config_source,
    socket_address,
};
use envoy_types::pb::google::protobuf::{Any, BoolValue, Duration, UInt32Value};
use prost::{Message, Name};
use sha2::{Digest as _, Sha256};

use super::node::{Inbound, ServiceRef, TlsFiles};
use crate::api::mesh_route::{MeshRouteBackend, MeshRouteRule, MeshRouteSpec};
use crate::catalog::{Catalog, Protocol, ServiceKey};

pub use request_match::unsupported_condition;

/// The types of resources, in the order in which additions are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ResourceType {
    Cluster,
    Endpoints,
    Listener,
    Route,
}

impl ResourceType {
    pub const ALL: [Self; 4] = [Self::Cluster, Self::Endpoints, Self::Listener, Self::Route];

    pub fn url(self) -> &'static str {
        match self {
            Self::Cluster => "type.googleapis.com/envoy.config.cluster.v3.Cluster",
            Self::Endpoints => "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment",
            Self::Listener => "type.googleapis.com/envoy.config.listener.v3.Listener",
            Self::Route => "type.googleapis.com/envoy.config.route.v3.RouteConfiguration",
        }
    }

    pub fn of_url(url: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.url() == url)
    }

    /// The protocol's abbreviation of its discovery.
    pub fn abbreviation(self) -> &'static str {
        match self {
            Self::Cluster => "CDS",
            Self::Endpoints => "EDS",
            Self::Listener => "LDS",
            Self::Route => "RDS",
        }
    }
}

/// Names the content of a resource. Two proxies with equal keys share it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ResourceKey {
    Cluster {
        service: ServiceRef,
        /// Of the proxy, for endpoints that require a certificate.
        tls: Option<Arc<TlsFiles>>,
    },
    /// The workload behind an inbound port.
    Application(Inbound),
    Endpoints {
        service: ServiceRef,
        /// To the identity of the proxy. Otherwise it has none.
        visible: bool,
    },
    /// Where a proxy's workload reaches an upstream.
    Egress {
        service: ServiceRef,
        listen: SocketAddr,
    },
    Ingress {
        inbound: Inbound,
        tls: Option<Arc<TlsFiles>>,
    },
    Route {
        service: ServiceRef,
    },
}

impl ResourceKey {
    /// The only service that its content depends on.
    pub fn service(&self) -> &ServiceRef {
        match self {
            Self::Cluster { service, .. }
            | Self::Endpoints { service, .. }
            | Self::Egress { service, .. }
            | Self::Route { service } => service,
            Self::Application(inbound) | Self::Ingress { inbound, .. } => &inbound.service,
        }
    }

    pub fn kind(&self) -> ResourceType {
        match self {
            Self::Cluster { .. } | Self::Application(_) => ResourceType::Cluster,
            Self::Endpoints { .. } => ResourceType::Endpoints,
            Self::Egress { .. } | Self::Ingress { .. } => ResourceType::Listener,
            Self::Route { .. } => ResourceType::Route,
        }
    }

    pub fn name(&self) -> String {
        match self {
            Self::Cluster { service, .. } | Self::Endpoints { service, .. } | Self::Route { service } => {
                service.to_string()
            }
            Self::Application(inbound) => format!("inbound/{}@{}", inbound.service, inbound.application),
            Self::Egress { service, listen } => format!("egress/{service}@{listen}"),
            Self::Ingress { inbound, .. } => format!("ingress/{}@{}", inbound.service, inbound.listen),
        }
    }
}

/// A resource, encoded once for all proxies.
#[derive(Debug)]
pub struct Encoded {
    /// Hash of the bytes; never 0.
    pub version: u64,
    pub any: Any,
    /// Clusters that a proxy must have before.
    pub clusters: Vec<String>,
    /// The clusters that share the requests of a rule, of each that divides them.
    pub splits: Vec<Vec<String>>,
    /// The route that a listener takes its requests' way from.
    pub route: Option<String>,
    /// Of the MeshRoute that it carries.
    pub generation: Option<i64>,
    /// It decides where requests go.
    pub carries_route: bool,
    /// Endpoints of which there may be more, of proxies that are not back after a start.
    pub incomplete: bool,
    /// Endpoints of which there is one at least.
    pub has_endpoints: bool,
}

/// The source and the constants of what is built.
pub struct Builder {
    pub catalog: Arc<Catalog>,
    /// Of services that a proxy names without one.
    pub cluster: Arc<str>,
    /// In the SPIFFE URIs of ServiceAccounts.
    pub trust_domain: Arc<str>,
}

/// What a message needs beside itself.
#[derive(Default)]
struct Needs {
    clusters: Vec<String>,
    splits: Vec<Vec<String>>,
    route: Option<String>,
    generation: Option<i64>,
    carries_route: bool,
}

impl Builder {
    /// None if its service is unknown.
    pub fn build(&self, key: &ResourceKey) -> Option<Encoded> {
        let service = key.service().resolve(&self.catalog, &self.cluster);
        match key {
            // A route may name a backend before it is known.
            ResourceKey::Cluster { service: name, tls } => {
                let known = service.as_ref().and_then(|key| self.catalog.service(key)).unwrap_or_default();
                let upstream = cluster::Upstream {
                    protocol: service.map_or(Protocol::Http1, |key| key.protocol),
                    identities: known.accounts.iter().map(|account| self.spiffe(account)).collect(),
                    health: &known.health,
                };
                let message = cluster::cluster(name, upstream, tls.as_deref());
                Some(encode(&message, Needs::default()))
            }
            ResourceKey::Application(inbound) => {
                let message = cluster::application(key.name(), inbound.application, service?.protocol);
                Some(encode(&message, Needs::default()))
            }
            ResourceKey::Endpoints { service: name, visible } => {
                let shown = service.as_ref().filter(|_| *visible);
                let endpoints = shown.map(|key| self.catalog.endpoints(key)).unwrap_or_default().endpoints;
                let incomplete = match &service {
                    Some(key) if *visible => endpoints.is_empty() || self.catalog.has_announced(key),
                    // Withheld from this proxy.
                    Some(_) => false,
                    None => true,
                };
                let message = endpoints::assignment(name, &endpoints);
                let has_endpoints = !endpoints.is_empty();
                Some(Encoded { incomplete, has_endpoints, ..encode(&message, Needs::default()) })
            }
            ResourceKey::Egress { service: name, listen } => {
                let service = service?;
                if service.protocol == Protocol::Tcp {
                    let route = self.catalog.route(&service);
                    let (message, clusters) = listener::tcp_egress(key.name(), name, *listen, route.as_ref());
                    let splits = route.as_ref().map(|route| splits(name, &route.spec)).unwrap_or_default();
                    let generation = route.map(|route| route.generation);
                    let needs = Needs { clusters, splits, generation, carries_route: true, route: None };
                    Some(encode(&message, needs))
                } else {
                    let message = listener::http_egress(key.name(), name, *listen);
                    Some(encode(&message, Needs { route: Some(name.to_string()), ..Needs::default() }))
                }
            }
            ResourceKey::Ingress { inbound, tls } => {
                let service = service?;
                let access = self.catalog.access(&service);
                let application = ResourceKey::Application(inbound.clone()).name();
                let ingress = listener::Ingress {
                    name: key.name(),
                    inbound,
                    application: &application,
                    tls: tls.as_deref(),
                    trust_domain: &self.trust_domain,
                };
                let message = ingress.listener(&service, &access);
                Some(encode(&message, Needs { clusters: vec![application], ..Needs::default() }))
            }
            ResourceKey::Route { service: name } => {
                let key = service?;
                let route = self.catalog.route(&key);
                let hosts =
                    self.catalog.service(&key).map(|service| service.hosts.clone()).unwrap_or_default();
                let message = route::configuration(name, hosts, route.as_ref().map(|route| &*route.spec));
                let clusters = self.clusters_of(name).iter().map(ToString::to_string).collect();
                let splits = route.as_ref().map(|route| splits(name, &route.spec)).unwrap_or_default();
                let generation = route.map(|route| route.generation);
                let needs = Needs { clusters, splits, generation, carries_route: true, route: None };
                Some(encode(&message, needs))
            }
        }
    }

    /// The service, those that its route sends requests to, and one for each of its
    /// versions: a proxy has connections to the next version before a route leads there.
    pub fn clusters_of(&self, service: &ServiceRef) -> BTreeSet<ServiceRef> {
        let key = service.resolve(&self.catalog, &self.cluster);
        let known = key.as_ref().and_then(|key| self.catalog.service(key));
        let route = key.and_then(|key| self.catalog.route(&key));
        let mut clusters = BTreeSet::from([service.clone()]);
        let versions = known.iter().flat_map(|known| &known.versions);
        clusters.extend(versions.map(|version| service.sibling(&service.name, None, Some(version))));
        for rule in route.iter().flat_map(|route| &route.spec.rules) {
            let backends = rule.backends.iter();
            clusters.extend(backends.map(|to| service.sibling(&to.service, to.port, to.version.as_deref())));
            let mirror = rule.mirror.iter();
            clusters.extend(mirror.map(|to| service.sibling(&to.service, to.port, to.version.as_deref())));
        }
        clusters
    }

    pub fn resolve(&self, service: &ServiceRef) -> Option<ServiceKey> {
        service.resolve(&self.catalog, &self.cluster)
    }

    fn spiffe(&self, account: &crate::catalog::Account) -> String {
        spiffe(&self.trust_domain, account)
    }
}

/// Of each rule that divides its requests, the clusters that get some.
fn splits(service: &ServiceRef, spec: &MeshRouteSpec) -> Vec<Vec<String>> {
    let of_rule = |rule: &MeshRouteRule| -> Vec<String> {
        let weighted = rule.backends.iter().filter(|backend| backend.weight > 0);
        let name = |to: &MeshRouteBackend| service.sibling(&to.service, to.port, to.version.as_deref());
        weighted.map(|backend| name(backend).to_string()).collect()
    };
    spec.rules.iter().map(of_rule).filter(|clusters| clusters.len() > 1).collect()
}

/// The identity of a ServiceAccount.
fn spiffe(trust_domain: &str, (namespace, name): &crate::catalog::Account) -> String {
    format!("spiffe://{trust_domain}/ns/{namespace}/sa/{name}")
}

fn encode<M: Message + Name>(message: &M, needs: Needs) -> Encoded {
    let any = pack(message);
    let digest = Sha256::digest(&any.value);
    let mut head = [0; 8];
    head.copy_from_slice(&digest[..8]);
    let Needs { clusters, splits, route, generation, carries_route } = needs;
    let version = u64::from_be_bytes(head).max(1);
    let (incomplete, has_endpoints) = (false, false);
    Encoded { version, any, clusters, splits, route, generation, carries_route, incomplete, has_endpoints }
}

fn pack<M: Message + Name>(message: &M) -> Any {
    Any { type_url: M::type_url(), value: message.encode_to_vec() }
}

fn socket_address(address: SocketAddr) -> Address {
    let socket = SocketAddress {
        address: address.ip().to_string(),
        port_specifier: Some(socket_address::PortSpecifier::PortValue(address.port().into())),
        ..SocketAddress::default()
    };
    Address { address: Some(address::Address::SocketAddress(socket)) }
}

/// From the stream that the resource itself came by.
fn ads() -> ConfigSource {
    let ads = config_source::ConfigSourceSpecifier::Ads(AggregatedConfigSource::default());
    ConfigSource {
        resource_api_version: ApiVersion::V3 as i32,
        config_source_specifier: Some(ads),
        ..ConfigSource::default()
    }
}

/// Envoy replaces colons in the names of statistics, and takes a dot for the end of a name.
/// Contour's pattern: namespace, name and port.
fn stat_name(service: &ServiceRef) -> String {
    service.to_string().replace(['/', ':', '.'], "_")
}

fn duration(duration: std::time::Duration) -> Option<Duration> {
    let seconds = i64::try_from(duration.as_secs()).unwrap_or(i64::MAX);
    Some(Duration { seconds, nanos: duration.subsec_nanos().cast_signed() })
}

fn uint(value: u32) -> Option<UInt32Value> {
    Some(UInt32Value { value })
}

fn yes() -> Option<BoolValue> {
    Some(BoolValue { value: true })
}
