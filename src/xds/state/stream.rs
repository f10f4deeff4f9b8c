//! One stream of a proxy: its requests in, the next response out.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use tokio::sync::Notify;

use super::lane::{ABSENT, Lane, UNKNOWN};
use crate::catalog::{Identity, Registration};
use crate::xds::config::{Encoded, ResourceKey, ResourceType};
use crate::xds::node::{Inbound, NodeConfig, ServiceRef, Upstream};

pub(super) type StreamId = u64;

/// The variant of the protocol that a stream speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Variant {
    Delta,
    StateOfTheWorld,
}

pub(super) struct Stream {
    pub variant: Variant,
    pub identity: Identity,
    pub peer: IpAddr,
    pub connected: jiff::Timestamp,
    /// Of the first request.
    pub node: Option<Node>,
    pub lanes: [Lane; 4],
    pub wake: Arc<Notify>,
    pub nonce: u64,
    pub bytes_sent: u64,
    /// Of its inbound ports.
    pub registrations: Vec<Registration>,
}

pub(super) struct Node {
    pub id: Arc<str>,
    pub config: NodeConfig,
}

/// A request of either variant.
#[derive(Debug, Default)]
pub struct Request {
    pub node: Option<(String, NodeConfig)>,
    pub subscribe: Vec<String>,
    pub unsubscribe: Vec<String>,
    /// Names and versions that the proxy has from an earlier connection.
    pub initial: BTreeMap<String, u64>,
    /// State of the world: the version of all resources of the type.
    pub version: Option<u64>,
    pub nonce: String,
    pub error: Option<String>,
}

/// A response of either variant.
#[derive(Debug)]
pub struct Response {
    pub kind: ResourceType,
    pub nonce: u64,
    /// Of all resources of the type that the proxy should have.
    pub version: u64,
    pub resources: Vec<(Arc<str>, Arc<Encoded>)>,
    pub removed: Vec<Arc<str>>,
}

impl Stream {
    pub fn lane(&self, kind: ResourceType) -> &Lane {
        &self.lanes[kind as usize]
    }

    pub fn lane_mut(&mut self, kind: ResourceType) -> &mut Lane {
        &mut self.lanes[kind as usize]
    }

    pub fn upstreams(&self) -> &[Upstream] {
        self.node.as_ref().map(|node| &*node.config.upstreams).unwrap_or_default()
    }

    pub fn inbound(&self) -> &[Inbound] {
        self.node.as_ref().map(|node| &*node.config.inbound).unwrap_or_default()
    }

    /// The listeners of its node.
    pub fn listeners(&self) -> impl Iterator<Item = ResourceKey> {
        let tls = self.node.as_ref().and_then(|node| node.config.tls.clone());
        let egress = self.upstreams().iter().map(|upstream| ResourceKey::Egress {
            service: upstream.service.clone(),
            listen: upstream.listen,
        });
        let inbound = self.inbound().iter();
        egress.chain(
            inbound.map(move |inbound| ResourceKey::Ingress { inbound: inbound.clone(), tls: tls.clone() }),
        )
    }

    /// A route of this service may name these clusters. One that the proxy refused does not
    /// hold routes up: the route is refused as well, and that is reported.
    pub fn has_clusters(&self, service: Option<&ServiceRef>, clusters: &[String]) -> bool {
        let lane = self.lane(ResourceType::Cluster);
        let is_upstream = || self.upstreams().iter().any(|upstream| Some(&upstream.service) == service);
        let has = |name: &String| match lane.held.get(&**name) {
            Some(held) => (held.acked != UNKNOWN && held.acked != ABSENT) || held.rejected != UNKNOWN,
            // The route is newer than the clusters, which follow.
            None => !(lane.wildcard && is_upstream()),
        };
        !lane.subscribed || clusters.iter().all(has)
    }
}
