//! The join of providers and topology. Pure: an update returns the services that it
//! changed, found through indexes and not by a search.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::Arc;

use super::{
    Access, Account, Aspects, Changes, DefaultAccess, Endpoint, Endpoints, Identity, Policy, Protocol,
    Service, ServiceKey, ServiceRoute,
};

#[derive(Default)]
pub(super) struct Index {
    services: BTreeMap<ServiceKey, Entry>,
    /// Services that a provider has endpoints for.
    provided: BTreeMap<Arc<str>, BTreeSet<ServiceKey>>,
    of_account: BTreeMap<Account, BTreeSet<ServiceKey>>,
    policies: BTreeMap<String, Arc<Policy>>,
    policies_of: BTreeMap<Account, BTreeSet<String>>,
    default_access: DefaultAccess,
}

#[derive(Default)]
struct Entry {
    service: Option<Arc<Service>>,
    route: Option<ServiceRoute>,
    /// By provider.
    sources: BTreeMap<Arc<str>, Vec<Endpoint>>,
    merged: Endpoints,
}

impl Entry {
    fn is_empty(&self) -> bool {
        self.service.is_none() && self.route.is_none() && self.sources.is_empty()
    }
}

impl Index {
    /// None removes what the provider had.
    pub fn set_endpoints(
        &mut self,
        provider: &Arc<str>,
        key: ServiceKey,
        mut endpoints: Vec<Endpoint>,
    ) -> Changes {
        endpoints.sort();
        endpoints.dedup_by(|b, a| b.address == a.address);
        let mut changes = Changes::new();
        if endpoints.is_empty() {
            if let Some(provided) = self.provided.get_mut(provider) {
                provided.remove(&key);
            }
            let Some(entry) = self.services.get_mut(&key) else { return changes };
            if entry.sources.remove(provider).is_none() {
                return changes;
            }
        } else {
            self.provided.entry(Arc::clone(provider)).or_default().insert(key.clone());
            let entry = self.services.entry(key.clone()).or_default();
            if entry.sources.get(provider) == Some(&endpoints) {
                return changes;
            }
            entry.sources.insert(Arc::clone(provider), endpoints);
        }
        let Some(entry) = self.services.get_mut(&key) else { return changes };
        let merged = merge(entry.sources.values());
        if merged != entry.merged {
            entry.merged = merged;
            changes.insert(key.clone(), Aspects::ENDPOINTS);
        }
        self.forget_if_empty(&key);
        changes
    }

    pub fn retain_endpoints(&mut self, provider: &Arc<str>, listed: impl Fn(&ServiceKey) -> bool) -> Changes {
        let provided = self.provided.get(provider);
        let gone: Vec<ServiceKey> =
            provided.into_iter().flatten().filter(|key| !listed(key)).cloned().collect();
        let mut changes = Changes::new();
        for key in gone {
            changes.append(&mut self.set_endpoints(provider, key, Vec::new()));
        }
        changes
    }

    pub fn set_service(&mut self, key: ServiceKey, service: Option<Service>) -> Changes {
        let entry = self.services.entry(key.clone()).or_default();
        let before = entry.service.take();
        entry.service = service.map(Arc::new);
        let after = entry.service.clone();
        let mut changes = Changes::new();
        if before != after {
            let accounts = |service: &Option<Arc<Service>>| -> BTreeSet<Account> {
                service.iter().flat_map(|service| service.accounts.iter().cloned()).collect()
            };
            let (old, new) = (accounts(&before), accounts(&after));
            for account in old.difference(&new) {
                remove(&mut self.of_account, account, &key);
            }
            for account in new.difference(&old) {
                self.of_account.entry(account.clone()).or_default().insert(key.clone());
            }
            let access = if old == new { Aspects::NONE } else { Aspects::ACCESS };
            changes.insert(key.clone(), Aspects::SERVICE | access);
        }
        self.forget_if_empty(&key);
        changes
    }

    pub fn set_route(&mut self, key: ServiceKey, route: Option<ServiceRoute>) -> Changes {
        let entry = self.services.entry(key.clone()).or_default();
        let changed = entry.route != route;
        entry.route = route;
        self.forget_if_empty(&key);
        if changed { Changes::from([(key, Aspects::ROUTE)]) } else { Changes::new() }
    }

    pub fn set_policy(&mut self, id: String, policy: Option<Policy>) -> Changes {
        let policy = policy.map(Arc::new);
        let before = self.policies.remove(&id);
        if let Some(policy) = &policy {
            self.policies.insert(id.clone(), Arc::clone(policy));
        }
        if before == policy {
            return Changes::new();
        }
        if let Some(before) = &before {
            remove(&mut self.policies_of, &before.destination, &id);
        }
        if let Some(policy) = &policy {
            self.policies_of.entry(policy.destination.clone()).or_default().insert(id);
        }
        let concerned =
            before.iter().chain(&policy).filter_map(|policy| self.of_account.get(&policy.destination));
        concerned.flatten().map(|key| (key.clone(), Aspects::ACCESS)).collect()
    }

    /// False if it was so before.
    pub fn set_default_access(&mut self, access: DefaultAccess) -> bool {
        std::mem::replace(&mut self.default_access, access) != access
    }

    /// The service of this name and port, whatever its protocol.
    pub fn resolve(
        &self,
        cluster: &Arc<str>,
        namespace: &Arc<str>,
        name: &Arc<str>,
        port: u16,
    ) -> Option<&ServiceKey> {
        let key = |protocol| ServiceKey {
            cluster: Arc::clone(cluster),
            namespace: Arc::clone(namespace),
            name: Arc::clone(name),
            port,
            protocol,
        };
        let mut found = self.services.range(key(Protocol::Http1)..=key(Protocol::Tcp));
        // The topology knows the protocol better than a provider.
        let declared = found.clone().find(|(_, entry)| entry.service.is_some());
        declared.or_else(|| found.next()).map(|(key, _)| key)
    }

    pub fn service(&self, key: &ServiceKey) -> Option<Arc<Service>> {
        self.services.get(key)?.service.clone()
    }

    pub fn route(&self, key: &ServiceKey) -> Option<ServiceRoute> {
        self.services.get(key)?.route.clone()
    }

    pub fn endpoints(&self, key: &ServiceKey) -> Endpoints {
        self.services.get(key).map(|entry| entry.merged.clone()).unwrap_or_default()
    }

    pub fn keys(&self) -> impl Iterator<Item = &ServiceKey> {
        self.services.keys()
    }

    pub fn access(&self, key: &ServiceKey) -> Access {
        let entry = self.services.get(key);
        let service = entry.and_then(|entry| entry.service.as_ref());
        let accounts = service.into_iter().flat_map(|service| &service.accounts);
        let ids: BTreeSet<&String> =
            accounts.filter_map(|account| self.policies_of.get(account)).flatten().collect();
        let policies: Vec<_> = ids.into_iter().filter_map(|id| self.policies.get(id)).cloned().collect();
        match (policies.is_empty(), self.default_access) {
            (true, DefaultAccess::Open) => Access::Everybody,
            (true, DefaultAccess::Closed) => Access::Nobody,
            (false, _) => Access::Policies(policies),
        }
    }

    pub fn may_reach(&self, identity: &Identity, key: &ServiceKey) -> bool {
        match self.access(key) {
            Access::Everybody => true,
            Access::Nobody => false,
            Access::Policies(policies) => {
                let Some((namespace, name)) = identity.service_account() else { return false };
                let served = |port: u16| {
                    let endpoints = self.services.get(key).map(|entry| &entry.merged.endpoints);
                    port == key.port
                        || endpoints.iter().any(|all| all.iter().any(|e| e.address.port() == port))
                };
                policies.iter().any(|policy| {
                    policy.port.is_none_or(served)
                        && policy.sources.iter().any(|source| *source.0 == *namespace && *source.1 == *name)
                })
            }
        }
    }

    fn forget_if_empty(&mut self, key: &ServiceKey) {
        if self.services.get(key).is_some_and(Entry::is_empty) {
            self.services.remove(key);
        }
    }
}

fn remove<K: Ord + Clone, V: Ord>(index: &mut BTreeMap<K, BTreeSet<V>>, key: &K, value: &V) {
    if let Some(values) = index.get_mut(key) {
        values.remove(value);
        if values.is_empty() {
            index.remove(key);
        }
    }
}

/// Of an address that several providers list, the first one by name describes it.
fn merge<'a>(sources: impl Iterator<Item = &'a Vec<Endpoint>>) -> Endpoints {
    let mut by_address = BTreeMap::new();
    for endpoint in sources.flatten() {
        by_address.entry(endpoint.address).or_insert(endpoint);
    }
    let endpoints: Arc<[Endpoint]> = by_address.into_values().cloned().collect();
    let mut hasher = DefaultHasher::new();
    endpoints.hash(&mut hasher);
    Endpoints { version: if endpoints.is_empty() { 0 } else { hasher.finish() }, endpoints }
}
