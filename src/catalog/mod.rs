//! The service catalog: endpoints and topology joined, for the control planes of proxies.
//! It knows nothing of Envoy.
//!
//! ```text
//!   EndpointsProvider ─ EndpointsSink ─┐
//!   (EndpointSlices, Cloud Map,        ├─▶ Catalog ─▶ list_endpoints(identity, service)
//!    Consul, files, proxies)           │          ├─▶ subscribe(..): only own changes
//!   MeshTopology ─ TopologySink ───────┘          └─▶ watch(): every change, coalesced
//!   (Services, MeshRoutes, TrafficSplits, TrafficTargets, or files)
//! ```
//!
//! Guarantees:
//!
//! - The index is synchronous: a change is applied under one lock, in time that does not
//!   depend on the number of services. Only providers are async.
//! - A subscriber is notified only when its own answer changed; a repeated or lost and
//!   repeated update is no change.
//! - An identity is answered only for services that it may reach ([`Policy`]).
//! - What one provider lists is removed only by that provider: providers of the same
//!   service are merged.
//! - A catalog that was just started is not used before every source has delivered
//!   everything once ([`Catalog::ready`]): endpoints that are not known yet are not gone.

mod endpoint;
mod identity;
mod index;
mod key;
pub mod kubernetes;
mod mailbox;
mod provider;
mod subscription;
mod topology;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::ops::{BitOr, BitOrAssign};
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::watch;

pub use endpoint::{Endpoint, Endpoints, Health};
pub use identity::Identity;
pub use key::{Protocol, ServiceKey};
pub use mailbox::Mailbox;
pub(crate) use mailbox::{MailboxSender, mailbox};
pub use provider::{EndpointsProvider, EndpointsSink};
pub use subscription::{Answer, Subscription};
pub use topology::{
    AccessRule, Account, HealthPolicy, HttpAccess, MeshTopology, Policy, Service, ServiceRoute, TopologySink,
};

use index::Index;
use subscription::Subscribers;

/// Source of the endpoints that proxies announce themselves.
const SELF_ANNOUNCED: &str = "self-announced";

/// Who may reach a service that no [`Policy`] names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DefaultAccess {
    #[default]
    Open,
    Closed,
}

/// Who may reach a service.
#[derive(Clone, Debug, PartialEq)]
pub enum Access {
    Everybody,
    Nobody,
    /// The sources of any of these.
    Policies(Vec<Arc<Policy>>),
}

/// An unknown service is refused like one that may not be reached.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{service} is not visible to {identity}: no policy admits it")]
pub struct NotVisible {
    pub identity: Identity,
    pub service: ServiceKey,
}

/// Which statements on a service changed.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct Aspects(u8);

/// Of all services since they were last read.
pub type Changes = BTreeMap<ServiceKey, Aspects>;

pub struct Catalog {
    state: Mutex<State>,
    /// Ids of the sources that have not delivered everything once.
    unsynced: watch::Sender<BTreeSet<String>>,
}

#[derive(Default)]
struct State {
    index: Index,
    subscribers: Subscribers,
    watches: Vec<MailboxSender<Changes>>,
    registrations: BTreeMap<ServiceKey, BTreeMap<u64, Endpoint>>,
    last_registration: u64,
    topologies: usize,
}

/// An endpoint that a proxy announced. It is removed when this is dropped.
pub struct Registration {
    catalog: Arc<Catalog>,
    service: ServiceKey,
    id: u64,
}

impl Catalog {
    #[allow(clippy::new_without_default, reason = "its sinks hold it")]
    pub fn new() -> Arc<Self> {
        Arc::new(Self { state: Mutex::default(), unsynced: watch::Sender::default() })
    }

    /// For the provider of this id, once.
    pub fn endpoints_sink(self: &Arc<Self>, provider: &str) -> EndpointsSink {
        self.unsynced.send_modify(|unsynced| {
            unsynced.insert(provider.to_owned());
        });
        EndpointsSink { catalog: Arc::clone(self), provider: provider.into() }
    }

    pub fn topology_sink(self: &Arc<Self>) -> TopologySink {
        let number = {
            let mut state = self.state.lock();
            state.topologies += 1;
            state.topologies
        };
        let id = format!("topology {number}");
        self.unsynced.send_modify(|unsynced| {
            unsynced.insert(id.clone());
        });
        TopologySink { catalog: Arc::clone(self), id: id.into() }
    }

    /// Sources that have not delivered everything once.
    pub fn unsynced(&self) -> BTreeSet<String> {
        self.unsynced.borrow().clone()
    }

    /// Waits until each source has delivered everything once.
    pub async fn ready(&self) {
        let mut unsynced = self.unsynced.subscribe();
        // The sender lives as long as `self`.
        let _ = unsynced.wait_for(BTreeSet::is_empty).await;
    }

    pub fn list_endpoints(&self, identity: &Identity, service: &ServiceKey) -> Result<Endpoints, NotVisible> {
        let state = self.state.lock();
        subscription::answer(&state.index, identity, service)
    }

    /// Delivers the answers for these services, now and whenever one changes.
    pub fn subscribe(
        self: &Arc<Self>,
        identity: Identity,
        services: impl IntoIterator<Item = ServiceKey>,
    ) -> Subscription {
        let (id, arrived) = self.state.lock().subscribers.add(identity, services.into_iter().collect());
        Subscription { catalog: Arc::clone(self), id, arrived }
    }

    /// Every change from now on.
    pub fn watch(&self) -> Mailbox<Changes> {
        let (sender, mailbox) = mailbox();
        self.state.lock().watches.push(sender);
        mailbox
    }

    /// Adds an endpoint that a proxy announces, until the result is dropped.
    pub fn register(self: &Arc<Self>, service: ServiceKey, endpoint: Endpoint) -> Registration {
        let mut id = 0;
        self.update(|state| {
            state.last_registration += 1;
            id = state.last_registration;
            state.registrations.entry(service.clone()).or_default().insert(id, endpoint);
            state.apply_registrations(&service)
        });
        Registration { catalog: Arc::clone(self), service, id }
    }

    pub fn set_default_access(&self, access: DefaultAccess) {
        self.update(|state| {
            if !state.index.set_default_access(access) {
                return Changes::new();
            }
            // Subscribers may wait for services that are not known yet.
            let all = state.index.keys().chain(state.subscribers.services());
            all.map(|key| (key.clone(), Aspects::ACCESS)).collect()
        });
    }

    /// The service of this name and port, with its protocol.
    pub fn resolve(
        &self,
        cluster: &Arc<str>,
        namespace: &Arc<str>,
        name: &Arc<str>,
        port: u16,
    ) -> Option<ServiceKey> {
        self.state.lock().index.resolve(cluster, namespace, name, port).cloned()
    }

    /// None if only endpoints or a route are known of it.
    pub fn service(&self, key: &ServiceKey) -> Option<Arc<Service>> {
        self.state.lock().index.service(key)
    }

    pub fn route(&self, key: &ServiceKey) -> Option<ServiceRoute> {
        self.state.lock().index.route(key)
    }

    /// All of them, whatever identity asks.
    pub fn endpoints(&self, key: &ServiceKey) -> Endpoints {
        self.state.lock().index.endpoints(key)
    }

    /// Whether proxies announce endpoints of it.
    pub fn has_announced(&self, key: &ServiceKey) -> bool {
        self.state.lock().registrations.contains_key(key)
    }

    pub fn access(&self, key: &ServiceKey) -> Access {
        self.state.lock().index.access(key)
    }

    pub fn may_reach(&self, identity: &Identity, key: &ServiceKey) -> bool {
        self.state.lock().index.may_reach(identity, key)
    }

    pub fn services(&self) -> Vec<ServiceKey> {
        self.state.lock().index.keys().cloned().collect()
    }

    fn update(&self, change: impl FnOnce(&mut State) -> Changes) {
        let mut state = self.state.lock();
        let changes = change(&mut state);
        if changes.is_empty() {
            return;
        }
        let State { index, subscribers, watches, .. } = &mut *state;
        subscribers.notify(index, changes.keys());
        watches.retain(|watch| {
            watch.send(|pending| {
                for (key, aspects) in &changes {
                    *pending.entry(key.clone()).or_default() |= *aspects;
                }
            })
        });
    }

    fn synced(&self, source: &str) {
        self.unsynced.send_if_modified(|unsynced| unsynced.remove(source));
    }
}

impl State {
    fn apply_registrations(&mut self, service: &ServiceKey) -> Changes {
        let registered = self.registrations.get(service).into_iter().flat_map(BTreeMap::values);
        let endpoints = registered.cloned().collect();
        self.index.set_endpoints(&Arc::from(SELF_ANNOUNCED), service.clone(), endpoints)
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        self.catalog.update(|state| {
            if let Some(registered) = state.registrations.get_mut(&self.service) {
                registered.remove(&self.id);
                if registered.is_empty() {
                    state.registrations.remove(&self.service);
                }
            }
            state.apply_registrations(&self.service)
        });
    }
}

impl Aspects {
    pub(crate) const NONE: Self = Self(0);
    pub const ENDPOINTS: Self = Self(1);
    pub const ROUTE: Self = Self(2);
    /// Names and accounts.
    pub const SERVICE: Self = Self(4);
    /// Who may reach it.
    pub const ACCESS: Self = Self(8);

    pub fn intersects(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }
}

impl BitOr for Aspects {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl BitOrAssign for Aspects {
    fn bitor_assign(&mut self, other: Self) {
        self.0 |= other.0;
    }
}

impl fmt::Debug for Aspects {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = [
            (Self::ENDPOINTS, "endpoints"),
            (Self::ROUTE, "route"),
            (Self::SERVICE, "service"),
            (Self::ACCESS, "access"),
        ];
        f.debug_set()
            .entries(names.iter().filter(|(aspect, _)| self.intersects(*aspect)).map(|(_, n)| n))
            .finish()
    }
}
