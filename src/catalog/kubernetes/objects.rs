//! The kinds that the catalog reads, and what it reads of them.

use std::{
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use jiff::Timestamp;
use serde::Deserialize;
use serde_json::Value;

use super::smi::{HttpRouteGroup, TcpRoute, TrafficSplit, TrafficTarget};
use crate::{
    api::{EndpointGroupSpec, EndpointGroupStatus, MeshRouteSpec, endpoint_group::GroupEndpoint},
    catalog::{Endpoint, Health, Protocol},
    routing::port_protocol,
};

/// Namespace and name.
pub type Name = (Arc<str>, Arc<str>);

/// Label of an EndpointSlice.
const SERVICE_NAME: &str = "kubernetes.io/service-name";

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    Service,
    EndpointSlice,
    /// Read for its ServiceAccount, which policies name.
    Pod,
    EndpointGroup,
    MeshRoute,
    TrafficSplit,
    TrafficTarget,
    HttpRouteGroup,
    TcpRoute,
}

impl Kind {
    pub const ALL: [Self; 9] = [
        Self::Service,
        Self::EndpointSlice,
        Self::Pod,
        Self::EndpointGroup,
        Self::MeshRoute,
        Self::TrafficSplit,
        Self::TrafficTarget,
        Self::HttpRouteGroup,
        Self::TcpRoute,
    ];

    /// Group, kind, and the versions that can be read, the preferred one first.
    pub fn resource(self) -> (&'static str, &'static str, &'static [&'static str]) {
        const SPECS: &[&str] = &["v1alpha4", "v1alpha3", "v1alpha2", "v1alpha1"];
        match self {
            Self::Service => ("", "Service", &["v1"]),
            Self::EndpointSlice => ("discovery.k8s.io", "EndpointSlice", &["v1"]),
            Self::Pod => ("", "Pod", &["v1"]),
            Self::EndpointGroup => ("serin.dev", "EndpointGroup", &["v1alpha1"]),
            Self::MeshRoute => ("serin.dev", "MeshRoute", &["v1alpha1"]),
            Self::TrafficSplit => ("split.smi-spec.io", "TrafficSplit", SPECS),
            Self::TrafficTarget => {
                ("access.smi-spec.io", "TrafficTarget", &["v1alpha3", "v1alpha2", "v1alpha1"])
            }
            Self::HttpRouteGroup => ("specs.smi-spec.io", "HTTPRouteGroup", SPECS),
            Self::TcpRoute => ("specs.smi-spec.io", "TCPRoute", SPECS),
        }
    }

    pub fn of(group: &str, kind: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|known| {
            let (of, name, _) = known.resource();
            (of, name) == (group, kind)
        })
    }

    /// Only the catalog reads it; no release does.
    pub fn is_catalog_only(self) -> bool {
        match self {
            Self::EndpointSlice | Self::TrafficTarget | Self::TcpRoute => true,
            Self::Service
            | Self::Pod
            | Self::EndpointGroup
            | Self::MeshRoute
            | Self::TrafficSplit
            | Self::HttpRouteGroup => false,
        }
    }
}

pub enum Object {
    Service(Service),
    EndpointSlice(EndpointSlice),
    /// Its ServiceAccount.
    Pod(Arc<str>),
    EndpointGroup(Box<EndpointGroup>),
    MeshRoute(Box<MeshRoute>),
    TrafficSplit(TrafficSplit),
    TrafficTarget(TrafficTarget),
    HttpRouteGroup(HttpRouteGroup),
    TcpRoute(TcpRoute),
}

impl Object {
    pub fn parse(kind: Kind, manifest: &Value) -> Option<Self> {
        Some(match kind {
            Kind::Service => Self::Service(Service::parse(manifest)?),
            Kind::EndpointSlice => Self::EndpointSlice(EndpointSlice::parse(manifest)?),
            Kind::Pod => Self::Pod(manifest["spec"]["serviceAccountName"].as_str()?.into()),
            Kind::EndpointGroup => {
                let spec = EndpointGroupSpec::deserialize(&manifest["spec"]).ok()?;
                let status: Option<_> = Deserialize::deserialize(&manifest["status"]).ok()?;
                let EndpointGroupStatus { primary, endpoints, .. } = status.unwrap_or_default();
                let spec = spec.with_registered(&endpoints);
                Self::EndpointGroup(Box::new(EndpointGroup { spec, primary, registered: endpoints }))
            }
            Kind::MeshRoute => Self::MeshRoute(Box::new(MeshRoute::parse(manifest)?)),
            Kind::TrafficSplit => Self::TrafficSplit(TrafficSplit::parse(manifest)?),
            Kind::TrafficTarget => Self::TrafficTarget(TrafficTarget::parse(manifest)?),
            Kind::HttpRouteGroup => Self::HttpRouteGroup(HttpRouteGroup::parse(manifest)),
            Kind::TcpRoute => Self::TcpRoute(TcpRoute::parse(manifest)),
        })
    }
}

pub fn name_of(manifest: &Value) -> Option<Name> {
    let metadata = &manifest["metadata"];
    Some((metadata["namespace"].as_str()?.into(), metadata["name"].as_str()?.into()))
}

pub struct Service {
    pub ports: Vec<ServicePort>,
    /// Of the addresses that clients prefer; none for any.
    pub ipv6: Option<bool>,
}

pub struct ServicePort {
    pub name: String,
    pub port: u16,
    pub protocol: Protocol,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[derive(Default)]
struct RawPort {
    name: Option<String>,
    port: u16,
    protocol: Option<String>,
    app_protocol: Option<String>,
}

impl RawPort {
    fn is_tcp(&self) -> bool {
        self.protocol.as_deref().unwrap_or("TCP") == "TCP"
    }
}

fn ports(value: &Value) -> Vec<RawPort> {
    let all = value.as_array().into_iter().flatten();
    all.filter_map(|port| RawPort::deserialize(port).ok()).filter(RawPort::is_tcp).collect()
}

impl Service {
    fn parse(manifest: &Value) -> Option<Self> {
        let spec = &manifest["spec"];
        // A name of DNS without endpoints.
        if spec["type"] == "ExternalName" {
            return None;
        }
        let port = |RawPort { name, port, app_protocol, protocol: _ }: RawPort| {
            let name = name.unwrap_or_default();
            ServicePort { protocol: port_protocol(app_protocol.as_deref(), &name), name, port }
        };
        let ipv6 = spec["ipFamilies"][0].as_str().map(|family| family == "IPv6");
        Some(Self { ports: ports(&spec["ports"]).into_iter().map(port).collect(), ipv6 })
    }
}

pub struct EndpointSlice {
    pub service: Name,
    pub ipv6: bool,
    /// Port by its name.
    pub ports: Vec<(String, u16)>,
    pub endpoints: Vec<SliceEndpoint>,
}

pub struct SliceEndpoint {
    address: IpAddr,
    zone: Option<Arc<str>>,
    health: Health,
    pub pod: Option<Name>,
}

impl SliceEndpoint {
    pub fn at_port(&self, port: u16) -> Endpoint {
        Endpoint {
            zone: self.zone.clone(),
            health: self.health,
            ..Endpoint::at(SocketAddr::new(self.address, port))
        }
    }
}

impl EndpointSlice {
    fn parse(manifest: &Value) -> Option<Self> {
        let namespace: Arc<str> = manifest["metadata"]["namespace"].as_str()?.into();
        let service = manifest["metadata"]["labels"][SERVICE_NAME].as_str()?;
        let ipv6 = match manifest["addressType"].as_str()? {
            "IPv4" => false,
            "IPv6" => true,
            // Names of DNS.
            _ => return None,
        };
        let endpoint = |endpoint: &Value| {
            let condition = |name: &str| endpoint["conditions"][name].as_bool();
            let health =
                match (condition("ready").unwrap_or(true), condition("serving"), condition("terminating")) {
                    (true, ..) => Health::Healthy,
                    (false, Some(true), Some(true)) => Health::Draining,
                    (false, ..) => Health::Unhealthy,
                };
            let target = &endpoint["targetRef"];
            let pod = target["name"].as_str().filter(|_| target["kind"] == "Pod");
            Some(SliceEndpoint {
                // All addresses of one entry are equivalent.
                address: endpoint["addresses"][0].as_str()?.parse().ok()?,
                zone: endpoint["zone"].as_str().map(Arc::from),
                health,
                pod: pod.map(|pod| (Arc::clone(&namespace), pod.into())),
            })
        };
        let endpoints = manifest["endpoints"].as_array().into_iter().flatten().filter_map(endpoint).collect();
        let ports =
            ports(&manifest["ports"]).into_iter().map(|port| (port.name.unwrap_or_default(), port.port));
        let ports = ports.collect();
        Some(Self { service: (namespace, service.into()), ipv6, ports, endpoints })
    }
}

pub struct EndpointGroup {
    /// With the endpoints of its registry.
    pub spec: EndpointGroupSpec,
    /// The version that a Canary promoted.
    pub primary: Option<String>,
    /// The endpoints that are instances of its registry.
    pub registered: Vec<GroupEndpoint>,
}

pub struct MeshRoute {
    pub generation: i64,
    pub created: Option<Timestamp>,
    pub spec: MeshRouteSpec,
}

impl MeshRoute {
    fn parse(manifest: &Value) -> Option<Self> {
        let metadata = &manifest["metadata"];
        Some(Self {
            generation: metadata["generation"].as_i64().unwrap_or_default(),
            created: metadata["creationTimestamp"].as_str().and_then(|time| time.parse().ok()),
            spec: MeshRouteSpec::deserialize(&manifest["spec"]).ok()?,
        })
    }
}
