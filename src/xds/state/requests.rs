//! Requests of proxies: subscriptions, acknowledgements and refusals.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::State;
use super::lane::{ABSENT, Held, UNKNOWN};
use super::stream::{Node, Request, StreamId, Variant};
use crate::catalog::{Access, Endpoint, Identity};
use crate::xds::config::{ResourceKey, ResourceType};
use crate::xds::node::{NodeConfig, ServiceRef};

const WILDCARD: &str = "*";
const MAX_NAME_LENGTH: usize = 512;
const MAX_NODE_ID_LENGTH: usize = 256;
/// Of the reason of a proxy for a refusal.
const MAX_ERROR_LENGTH: usize = 1024;

/// A stream that is ended.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    #[error("{identity} has {limit} streams already")]
    TooManyStreams { identity: Identity, limit: usize },
    #[error("the first request of a stream names its node")]
    NoNode,
    #[error("the id of a node has 1 to {MAX_NODE_ID_LENGTH} characters")]
    NodeId,
    #[error("a name of a resource has 1 to {MAX_NAME_LENGTH} characters")]
    Name,
    #[error("more than {limit} {} subscriptions", .kind.abbreviation())]
    TooManySubscriptions { kind: ResourceType, limit: usize },
    #[error("the stream has ended")]
    Ended,
}

impl State {
    pub fn receive(&mut self, id: StreamId, kind: ResourceType, request: Request) -> Result<(), Refused> {
        let Request { node, subscribe, unsubscribe, initial, version, nonce, error } = request;
        self.identify(id, node)?;
        let limit = self.limits.subscriptions;
        let stream = self.streams.get_mut(&id).ok_or(Refused::Ended)?;
        let lane = stream.lane_mut(kind);
        let too_many = Refused::TooManySubscriptions { kind, limit };
        if subscribe.len().max(initial.len()) > limit {
            return Err(too_many);
        }
        if subscribe.iter().chain(initial.keys()).any(|name| name.is_empty() || name.len() > MAX_NAME_LENGTH)
        {
            return Err(Refused::Name);
        }
        let first = !lane.subscribed;
        lane.subscribed = true;
        let outstanding = lane.outstanding.take_if(|outstanding| outstanding.nonce.to_string() == nonce);

        let mut changed = first;
        if first && subscribe.is_empty() && kind != ResourceType::Endpoints && kind != ResourceType::Route {
            lane.wildcard = true;
        }
        for name in subscribe {
            if name == WILDCARD {
                changed |= !lane.wildcard;
                lane.wildcard = true;
                continue;
            }
            let name: Arc<str> = name.into();
            // Subscribed again, it is sent again.
            if let Some(held) = lane.held.get_mut(&name) {
                held.acked = UNKNOWN;
                lane.dirty.insert(Arc::clone(&name));
            }
            changed |= lane.names.insert(name);
        }
        if lane.names.len() > limit {
            return Err(too_many);
        }
        for name in unsubscribe {
            if name == WILDCARD {
                changed |= lane.wildcard;
                lane.wildcard = false;
            }
            changed |= lane.names.remove(&*name);
        }
        if changed {
            self.refresh(id, kind);
        }
        if first {
            self.adopt(id, kind, initial);
            if let Some(version) = version {
                self.adopt_version(id, kind, version);
            }
        }
        if let Some(outstanding) = outstanding {
            match error {
                None => self.acknowledged(id, kind, outstanding.sent),
                Some(error) => self.rejected(id, kind, outstanding.sent, error),
            }
        }
        if changed && let Some(stream) = self.streams.get(&id) {
            let keys: Vec<_> = stream.lane(kind).held.values().filter_map(|held| held.key.clone()).collect();
            self.routes_changed(&keys);
        }
        Ok(())
    }

    /// By the node of the first request.
    fn identify(&mut self, id: StreamId, node: Option<(String, NodeConfig)>) -> Result<(), Refused> {
        let stream = self.streams.get_mut(&id).ok_or(Refused::Ended)?;
        if stream.node.is_some() {
            return Ok(());
        }
        let (node, config) = node.ok_or(Refused::NoNode)?;
        if node.is_empty() || node.len() > MAX_NODE_ID_LENGTH {
            return Err(Refused::NodeId);
        }
        let announced: Vec<_> = if config.announce { config.inbound.clone() } else { Vec::new() };
        let called: Vec<_> = config.upstreams.iter().map(|upstream| upstream.service.clone()).collect();
        let (identity, peer, mtls) = (stream.identity.clone(), stream.peer, config.tls.is_some());
        let name: Arc<str> = node.as_str().into();
        stream.node = Some(Node { id: Arc::clone(&name), config });
        *self.of_proxy.entry((identity.clone(), name)).or_default() += 1;
        let mut registrations = Vec::new();
        for inbound in announced {
            let Some(key) = self.builder.resolve(&inbound.service) else { continue };
            if !self.may_announce(&identity, &inbound.service) {
                tracing::warn!(
                    proxy = %node, %identity, service = %inbound.service,
                    "a proxy announces an endpoint of a service that is not of its ServiceAccount; ignored"
                );
                continue;
            }
            // Not one that the proxy chooses: it could be somebody else's.
            let address = (peer, inbound.listen.port()).into();
            let endpoint = Endpoint { mtls, ..Endpoint::at(address) };
            registrations.push(self.builder.catalog.register(key, endpoint));
        }
        for service in &called {
            self.add_caller(id, service);
        }
        if let Some(stream) = self.streams.get_mut(&id) {
            stream.registrations = registrations;
        }
        let returned: BTreeSet<ServiceRef> = self
            .gone
            .extract_if(.., |gone| *gone.node == *node && gone.identity == identity)
            .flat_map(|gone| gone.routes)
            .collect();
        for service in returned {
            self.route_changed(&service);
        }
        Ok(())
    }

    /// Where accounts are known, only the service's own; else every one, unless access is
    /// closed by default.
    fn may_announce(&self, identity: &Identity, service: &ServiceRef) -> bool {
        let Some(key) = self.builder.resolve(service) else { return false };
        let accounts =
            self.builder.catalog.service(&key).map(|service| service.accounts.clone()).unwrap_or_default();
        if accounts.is_empty() {
            return self.builder.catalog.access(&key) == Access::Everybody;
        }
        identity
            .service_account()
            .is_some_and(|(namespace, name)| accounts.iter().any(|a| *a.0 == *namespace && *a.1 == *name))
    }

    /// What the proxy has from an earlier connection.
    fn adopt(&mut self, id: StreamId, kind: ResourceType, initial: BTreeMap<String, u64>) {
        let Some(stream) = self.streams.get_mut(&id) else { return };
        let lane = stream.lane_mut(kind);
        for (name, version) in initial {
            let name: Arc<str> = name.into();
            match lane.held.get_mut(&name) {
                Some(held) => {
                    held.acked = version;
                    held.earlier = true;
                }
                None if lane.wildcard => {
                    let held = Held { acked: version, ..Held::new(None) };
                    lane.held.insert(Arc::clone(&name), held);
                }
                None => continue,
            }
            lane.dirty.insert(name);
        }
    }

    /// Likewise, of the state of the world: it has either all that it should, or less.
    fn adopt_version(&mut self, id: StreamId, kind: ResourceType, version: u64) {
        let Some(stream) = self.streams.get(&id) else { return };
        let is_current = self.version_of(stream, kind) == version;
        let versions = stream.lane(kind).held.iter().map(|(name, held)| {
            let encoded = held.key.as_ref().and_then(|key| self.encoded(key));
            (Arc::clone(name), encoded.map_or(ABSENT, |encoded| encoded.version))
        });
        let versions: Vec<_> = versions.collect();
        let Some(stream) = self.streams.get_mut(&id) else { return };
        let lane = stream.lane_mut(kind);
        for (name, version) in versions {
            let Some(held) = lane.held.get_mut(&name) else { continue };
            held.earlier = true;
            if is_current {
                held.acked = version;
            }
        }
    }

    pub(super) fn acknowledged(&mut self, id: StreamId, kind: ResourceType, sent: Vec<(Arc<str>, u64)>) {
        let Some(stream) = self.streams.get_mut(&id) else { return };
        let lane = stream.lane_mut(kind);
        let (mut dropped, mut concerned) = (Vec::new(), Vec::new());
        for (name, version) in sent {
            let Some(held) = lane.held.get_mut(&name) else { continue };
            (held.acked, held.rejected, held.alone) = (version, UNKNOWN, false);
            held.serves = held.offers;
            concerned.extend(held.key.clone());
            lane.errors.remove(&name);
            if version == ABSENT && !held.wanted {
                lane.dirty.remove(&name);
                dropped.extend(lane.held.remove(&name).and_then(|held| held.key));
            }
        }
        self.routes_changed(&concerned);
        for key in dropped {
            self.unsubscribe(id, &key);
        }
    }

    fn rejected(&mut self, id: StreamId, kind: ResourceType, sent: Vec<(Arc<str>, u64)>, error: String) {
        let Some(stream) = self.streams.get_mut(&id) else { return };
        let full = stream.variant == Variant::StateOfTheWorld && kind.is_sent_in_full();
        let error: Arc<str> = error.chars().take(MAX_ERROR_LENGTH).collect::<String>().into();
        let node = stream.node.as_ref().map(|node| Arc::clone(&node.id));
        let lane = stream.lane_mut(kind);
        let (removed, sent): (Vec<_>, Vec<_>) = sent.into_iter().partition(|(_, version)| *version == ABSENT);
        let mut concerned = Vec::new();
        if sent.len() > 1 && !full {
            for (name, _) in sent {
                if let Some(held) = lane.held.get_mut(&name) {
                    held.alone = true;
                    lane.dirty.insert(name);
                }
            }
        } else {
            let mut refused = Vec::new();
            for (name, version) in sent {
                let Some(held) = lane.held.get_mut(&name).filter(|held| held.acked != version) else {
                    continue;
                };
                (held.rejected, held.alone) = (version, false);
                concerned.extend(held.key.clone());
                lane.errors.insert(Arc::clone(&name), Arc::clone(&error));
                refused.push(name);
            }
            tracing::warn!(
                proxy = node.as_deref(), kind = kind.abbreviation(), resources = ?refused, %error,
                "a proxy refuses its configuration and stays with what it has"
            );
        }
        self.routes_changed(&concerned);
        // A removal is done whatever else the response had.
        self.acknowledged(id, kind, removed);
    }

    fn routes_changed(&mut self, keys: &[Arc<ResourceKey>]) {
        let services: BTreeSet<_> =
            keys.iter().filter(|key| self.carries_route(key)).map(|key| key.service().clone()).collect();
        for service in services {
            self.route_changed(&service);
        }
    }
}

impl ResourceType {
    /// State of the world: what a response lacks is removed.
    pub(super) fn is_sent_in_full(self) -> bool {
        matches!(self, Self::Cluster | Self::Listener)
    }
}
