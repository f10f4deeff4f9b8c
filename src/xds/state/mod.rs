//! What every proxy should have, has, and refused. Pure but for the catalog that it
//! reads: requests, changes and the time are arguments, responses are values.
//!
//! - A resource is built when a stream first wants it, once, and dropped with the last.
//! - A change reaches exactly the streams that subscribe to what it changed.
//! - Clusters are sent before routes and listeners that name them, a share of the requests
//!   after the endpoints that are to get it, and clusters are taken away when
//!   the routes that named them are no longer in use.
//! - A stream has at most one response of each type outstanding; what changes meanwhile
//!   is sent once, in its newest version.

mod backoff;
mod lane;
mod requests;
mod responses;
mod status;
mod stream;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use super::Options;
use super::config::{Builder, Encoded, ResourceKey, ResourceType};
use super::node::ServiceRef;
use crate::catalog::{Aspects, Catalog, Changes, Identity, MailboxSender, Registration, ServiceKey};
use backoff::Backoff;
use lane::Held;
use stream::{Stream, StreamId};

pub use requests::Refused;
pub use status::{ProxyState, Refusal, RouteState, TypeState, TypeStatus};
pub use stream::{Request, Response, Variant};

/// Proxies that are remembered after their stream ended.
const MAX_GONE: usize = 10_000;

pub struct State {
    builder: Builder,
    limits: Limits,
    resources: HashMap<Arc<ResourceKey>, Resource>,
    of_service: BTreeMap<ServiceRef, BTreeSet<Arc<ResourceKey>>>,
    callers_of: BTreeMap<ServiceRef, Callers>,
    streams: BTreeMap<StreamId, Stream>,
    of_identity: BTreeMap<Identity, usize>,
    /// Number of streams; one that is followed by another of its proxy is not missed.
    of_proxy: BTreeMap<(Identity, Arc<str>), usize>,
    last_stream: StreamId,
    /// Changes that wait for their back-off.
    due: BTreeSet<(Instant, Arc<ResourceKey>)>,
    gone: Vec<Gone>,
    /// Endpoints that proxies have from before the start are not replaced by a list that may
    /// be incomplete earlier: those that proxies announce are not known yet.
    settled: Option<Instant>,
    route_watches: Vec<MailboxSender<BTreeSet<ServiceKey>>>,
}

struct Limits {
    streams_per_identity: usize,
    subscriptions: usize,
    patience: Duration,
}

struct Resource {
    name: Arc<str>,
    /// None: it does not exist.
    encoded: Option<Arc<Encoded>>,
    subscribers: BTreeSet<StreamId>,
    backoff: Backoff,
}

/// The streams whose node names a service as an upstream.
struct Callers {
    streams: BTreeSet<StreamId>,
    /// That each of them has for it.
    clusters: BTreeSet<ServiceRef>,
}

/// A proxy whose stream ended a moment ago.
struct Gone {
    node: Arc<str>,
    identity: Identity,
    until: Instant,
    routes: BTreeSet<ServiceRef>,
    /// Its endpoints stay that long, too.
    _registrations: Vec<Registration>,
}

impl State {
    pub fn new(catalog: Arc<Catalog>, options: &Options, now: Instant) -> Self {
        let builder = Builder {
            catalog,
            cluster: Arc::clone(&options.cluster),
            trust_domain: Arc::clone(&options.trust_domain),
        };
        let limits = Limits {
            streams_per_identity: options.max_streams_per_identity,
            subscriptions: options.max_subscriptions,
            patience: options.patience,
        };
        Self {
            builder,
            limits,
            resources: HashMap::new(),
            of_service: BTreeMap::new(),
            callers_of: BTreeMap::new(),
            streams: BTreeMap::new(),
            of_identity: BTreeMap::new(),
            of_proxy: BTreeMap::new(),
            last_stream: 0,
            due: BTreeSet::new(),
            gone: Vec::new(),
            settled: Some(now + options.settle),
            route_watches: Vec::new(),
        }
    }

    /// The result is notified when there may be a response.
    pub fn connect(
        &mut self,
        variant: Variant,
        identity: Identity,
        peer: IpAddr,
    ) -> Result<(StreamId, Arc<Notify>), Refused> {
        let streams = self.of_identity.entry(identity.clone()).or_default();
        if *streams >= self.limits.streams_per_identity {
            return Err(Refused::TooManyStreams { identity, limit: *streams });
        }
        *streams += 1;
        self.last_stream += 1;
        let wake = Arc::new(Notify::new());
        let stream = Stream {
            variant,
            identity,
            peer,
            connected: jiff::Timestamp::now(),
            node: None,
            lanes: Default::default(),
            wake: Arc::clone(&wake),
            nonce: 0,
            bytes_sent: 0,
            registrations: Vec::new(),
        };
        self.streams.insert(self.last_stream, stream);
        Ok((self.last_stream, wake))
    }

    pub fn disconnect(&mut self, id: StreamId, now: Instant) {
        let Some(stream) = self.streams.remove(&id) else { return };
        if let Some(streams) = self.of_identity.get_mut(&stream.identity) {
            *streams -= 1;
            if *streams == 0 {
                self.of_identity.remove(&stream.identity);
            }
        }
        let mut routes = BTreeSet::new();
        for held in stream.lanes.iter().flat_map(|lane| lane.held.values()) {
            let Some(key) = &held.key else { continue };
            if self.carries_route(key) {
                routes.insert(key.service().clone());
            }
            self.unsubscribe(id, key);
        }
        for upstream in stream.upstreams() {
            self.remove_caller(id, &upstream.service);
        }
        for service in &routes {
            self.route_changed(service);
        }
        let Some(node) = stream.node else { return };
        let proxy = (stream.identity, node.id);
        if let Some(streams) = self.of_proxy.get_mut(&proxy) {
            *streams -= 1;
            if *streams == 0 {
                self.of_proxy.remove(&proxy);
            }
        }
        let is_relevant = !routes.is_empty() || !stream.registrations.is_empty();
        if is_relevant && !self.of_proxy.contains_key(&proxy) && self.gone.len() < MAX_GONE {
            let until = now + self.limits.patience;
            let ((identity, node), _registrations) = (proxy, stream.registrations);
            self.gone.push(Gone { node, identity, until, routes, _registrations });
        }
    }

    /// After changes of the catalog.
    pub fn apply(&mut self, changes: &Changes, now: Instant) {
        for (key, aspects) in changes {
            let service = ServiceRef::of(key, &self.builder.cluster);
            // A name is resolved to a service that the topology declares, whatever its route is.
            let is_route = *aspects == Aspects::ROUTE && self.builder.catalog.service(key).is_some();
            if !is_route {
                self.review_visibility(&service);
            }
            // Its clusters are known before its route is sent.
            self.refresh_callers(&service);
            for key in self.of_service.get(&service).cloned().unwrap_or_default() {
                if !is_route || self.carries_route(&key) {
                    self.change(key, now);
                }
            }
        }
    }

    /// A weight changes no cluster, so it costs nothing here for what else the callers call.
    fn refresh_callers(&mut self, service: &ServiceRef) {
        let Some(callers) = self.callers_of.get_mut(service) else { return };
        let clusters = self.builder.clusters_of(service);
        if callers.clusters == clusters {
            return;
        }
        callers.clusters = clusters;
        for id in callers.streams.clone() {
            self.refresh(id, ResourceType::Cluster);
        }
    }

    /// Publishes what is due; returns when something will be.
    pub fn tick(&mut self, now: Instant) -> Option<Instant> {
        while let Some((due, _)) = self.due.first()
            && *due <= now
            && let Some((_, key)) = self.due.pop_first()
        {
            self.publish(&key, now);
        }
        if self.settled.is_some_and(|settled| settled <= now) {
            self.settled = None;
            for stream in self.streams.values() {
                stream.wake.notify_one();
            }
        }
        let over: Vec<Gone> = self.gone.extract_if(.., |gone| gone.until <= now).collect();
        for service in over.iter().flat_map(|gone| &gone.routes) {
            self.route_changed(service);
        }
        let due = self.due.first().map(|(due, _)| *due);
        let forgotten = self.gone.iter().map(|gone| gone.until).min();
        [due, self.settled, forgotten].into_iter().flatten().min()
    }

    /// Services whose [`RouteState`] may have changed are sent to it.
    pub fn watch_routes(&mut self, watch: MailboxSender<BTreeSet<ServiceKey>>) {
        self.route_watches.push(watch);
    }

    fn change(&mut self, key: Arc<ResourceKey>, now: Instant) {
        let Some(resource) = self.resources.get(&key) else { return };
        let due = match &*key {
            // A decision on weights waits for nothing.
            ResourceKey::Route { .. } | ResourceKey::Egress { .. } => now,
            _ => resource.backoff.due(now),
        };
        if due > now {
            self.due.insert((due, key));
        } else {
            self.publish(&key, now);
        }
    }

    fn publish(&mut self, key: &Arc<ResourceKey>, now: Instant) {
        let Some(resource) = self.resources.get_mut(key) else { return };
        let encoded = self.builder.build(key).map(Arc::new);
        let version = |encoded: &Option<Arc<Encoded>>| encoded.as_ref().map(|encoded| encoded.version);
        let changed = version(&resource.encoded) != version(&encoded);
        let of_route = |encoded: &Option<Arc<Encoded>>| {
            encoded.as_ref().filter(|encoded| encoded.carries_route).map(|encoded| encoded.generation)
        };
        let route_changed =
            changed && of_route(&encoded).is_some() || of_route(&resource.encoded) != of_route(&encoded);
        resource.encoded = encoded;
        if changed {
            resource.backoff.publish(now);
            for id in &resource.subscribers {
                let Some(stream) = self.streams.get_mut(id) else { continue };
                stream.lane_mut(key.kind()).dirty.insert(Arc::clone(&resource.name));
                stream.wake.notify_one();
            }
        }
        if route_changed {
            self.route_changed(key.service());
        }
    }

    fn subscribe(&mut self, id: StreamId, key: ResourceKey) -> (Arc<ResourceKey>, Arc<str>) {
        let existing = self.resources.get_key_value(&key).map(|(key, _)| Arc::clone(key));
        let key = existing.unwrap_or_else(|| Arc::new(key));
        let resource = self.resources.entry(Arc::clone(&key)).or_insert_with(|| Resource {
            name: key.name().into(),
            encoded: self.builder.build(&key).map(Arc::new),
            subscribers: BTreeSet::new(),
            backoff: Backoff::default(),
        });
        resource.subscribers.insert(id);
        self.of_service.entry(key.service().clone()).or_default().insert(Arc::clone(&key));
        (key, Arc::clone(&resource.name))
    }

    fn unsubscribe(&mut self, id: StreamId, key: &Arc<ResourceKey>) {
        let Some(resource) = self.resources.get_mut(key) else { return };
        resource.subscribers.remove(&id);
        if !resource.subscribers.is_empty() {
            return;
        }
        self.resources.remove(key);
        if let Some(keys) = self.of_service.get_mut(key.service()) {
            keys.remove(key);
            if keys.is_empty() {
                self.of_service.remove(key.service());
            }
        }
    }

    /// By name, what a stream should have of a type.
    fn wanted(&self, stream: &Stream, kind: ResourceType) -> BTreeMap<Arc<str>, ResourceKey> {
        let lane = stream.lane(kind);
        let mut wanted = BTreeMap::new();
        let tls = stream.node.as_ref().and_then(|node| node.config.tls.clone());
        let of_node: Vec<ResourceKey> = match kind {
            ResourceType::Cluster => {
                let callers = stream.upstreams().iter().filter_map(|u| self.callers_of.get(&u.service));
                let services = callers.flat_map(|callers| callers.clusters.iter().cloned());
                let clusters = services.map(|service| ResourceKey::Cluster { service, tls: tls.clone() });
                clusters.chain(stream.inbound().iter().cloned().map(ResourceKey::Application)).collect()
            }
            ResourceType::Listener => stream.listeners().collect(),
            ResourceType::Endpoints | ResourceType::Route => Vec::new(),
        };
        for key in of_node {
            let name = key.name();
            if lane.wildcard || lane.names.contains(&*name) {
                wanted.insert(name.into(), key);
            }
        }
        for name in &lane.names {
            let Ok(service) = name.parse::<ServiceRef>() else { continue };
            let key = match kind {
                ResourceType::Cluster => ResourceKey::Cluster { service, tls: tls.clone() },
                ResourceType::Endpoints => self.endpoints_key(&stream.identity, service),
                ResourceType::Route => ResourceKey::Route { service },
                ResourceType::Listener => continue,
            };
            wanted.entry(Arc::clone(name)).or_insert(key);
        }
        wanted
    }

    /// Brings what a stream holds of a type in line with what it should.
    fn refresh(&mut self, id: StreamId, kind: ResourceType) {
        let Some(stream) = self.streams.get(&id) else { return };
        if !stream.lane(kind).subscribed {
            return;
        }
        let wanted = self.wanted(stream, kind);
        let mut stale = Vec::new();
        let mut missing = Vec::new();
        for (name, held) in &stream.lane(kind).held {
            if held.wanted && !wanted.contains_key(name) {
                stale.push(Arc::clone(name));
            }
        }
        for (name, key) in wanted {
            let held = stream.lane(kind).held.get(&name);
            if held.is_none_or(|held| !held.wanted || held.key.as_deref() != Some(&key)) {
                missing.push((name, key));
            }
        }
        let mut dropped = Vec::new();
        for (_, key) in missing {
            let (key, name) = self.subscribe(id, key);
            let Some(stream) = self.streams.get_mut(&id) else { return };
            let lane = stream.lane_mut(kind);
            let held = lane.held.entry(Arc::clone(&name)).or_insert_with(|| Held::new(None));
            held.wanted = true;
            if let Some(other) = held.key.replace(Arc::clone(&key)).filter(|other| *other != key) {
                dropped.push(other);
            }
            lane.dirty.insert(name);
        }
        if let Some(stream) = self.streams.get_mut(&id) {
            let lane = stream.lane_mut(kind);
            for name in stale {
                let Some(held) = lane.held.get_mut(&name) else { continue };
                if lane.wildcard {
                    // Until the proxy has removed it.
                    held.wanted = false;
                    lane.dirty.insert(name);
                } else {
                    lane.dirty.remove(&name);
                    lane.count(&name, None);
                    dropped.extend(lane.held.remove(&name).and_then(|held| held.key));
                }
            }
            stream.wake.notify_one();
        }
        let routes: Vec<_> = dropped.iter().filter(|key| self.carries_route(key)).cloned().collect();
        for key in dropped {
            self.unsubscribe(id, &key);
        }
        for key in routes {
            self.route_changed(key.service());
        }
    }

    fn endpoints_key(&self, identity: &Identity, service: ServiceRef) -> ResourceKey {
        let resolved = self.builder.resolve(&service);
        let visible = resolved.is_some_and(|key| self.builder.catalog.may_reach(identity, &key));
        ResourceKey::Endpoints { service, visible }
    }

    /// Its endpoints may have become visible to a proxy, or invisible.
    fn review_visibility(&mut self, service: &ServiceRef) {
        let keys = self.of_service.get(service).into_iter().flatten();
        let keys: Vec<_> = keys.filter(|key| key.kind() == ResourceType::Endpoints).cloned().collect();
        for before in keys {
            let Some(resource) = self.resources.get(&before) else { continue };
            for id in resource.subscribers.clone() {
                let Some(stream) = self.streams.get(&id) else { continue };
                let after = self.endpoints_key(&stream.identity, service.clone());
                if after == *before {
                    continue;
                }
                let (after, name) = self.subscribe(id, after);
                self.unsubscribe(id, &before);
                let Some(stream) = self.streams.get_mut(&id) else { continue };
                let lane = stream.lane_mut(ResourceType::Endpoints);
                if let Some(held) = lane.held.get_mut(&name) {
                    held.key = Some(after);
                    lane.dirty.insert(name);
                    stream.wake.notify_one();
                }
            }
        }
    }

    fn add_caller(&mut self, id: StreamId, service: &ServiceRef) {
        let callers = self.callers_of.entry(service.clone()).or_insert_with(|| Callers {
            streams: BTreeSet::new(),
            clusters: self.builder.clusters_of(service),
        });
        callers.streams.insert(id);
    }

    fn remove_caller(&mut self, id: StreamId, service: &ServiceRef) {
        let Some(callers) = self.callers_of.get_mut(service) else { return };
        callers.streams.remove(&id);
        if callers.streams.is_empty() {
            self.callers_of.remove(service);
        }
    }

    fn carries_route(&self, key: &Arc<ResourceKey>) -> bool {
        let encoded = self.resources.get(key).and_then(|resource| resource.encoded.as_ref());
        encoded.is_some_and(|encoded| encoded.carries_route)
    }

    fn route_changed(&mut self, service: &ServiceRef) {
        let Some(key) = self.builder.resolve(service) else { return };
        self.route_watches.retain(|watch| {
            watch.send(|changed| {
                changed.insert(key.clone());
            })
        });
    }
}
