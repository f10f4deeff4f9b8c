//! The objects of a cluster, joined by Service. Pure: a change marks Services and
//! TrafficTargets, which are delivered then.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use super::{
    RegisteredGroup, RegisteredGroups, group,
    objects::{EndpointGroup, EndpointSlice, Kind, MeshRoute, Name, Object, Service, ServicePort},
    smi::{HttpRouteGroup, TcpRoute, TrafficSplit, TrafficTarget},
};
use crate::{
    api::MeshRouteSpec,
    catalog::{self, Endpoint, EndpointsSink, ServiceKey, TopologySink},
};

pub struct Model {
    cluster: Arc<str>,
    services: BTreeMap<Name, Service>,
    slices: BTreeMap<Name, EndpointSlice>,
    slices_of: References,
    /// ServiceAccounts.
    pods: BTreeMap<Name, Arc<str>>,
    /// Services whose slices name a pod.
    services_of_pod: References,
    endpoint_groups: BTreeMap<Name, EndpointGroup>,
    routes: BTreeMap<Name, MeshRoute>,
    routes_of: References,
    splits: BTreeMap<Name, TrafficSplit>,
    splits_of: References,
    groups: BTreeMap<Name, HttpRouteGroup>,
    /// Services whose splits name a group.
    services_of_group: References,
    tcp_routes: BTreeMap<Name, TcpRoute>,
    targets: BTreeMap<Name, TrafficTarget>,
    /// TrafficTargets that name a group or TCPRoute.
    targets_of: References,
    delivered: BTreeMap<Name, BTreeSet<ServiceKey>>,
    delivered_policies: BTreeMap<Name, usize>,
    changed: BTreeSet<Name>,
    changed_targets: BTreeSet<Name>,
}

/// Objects by what they refer to.
#[derive(Default)]
struct References(BTreeMap<Name, BTreeSet<Name>>);

impl References {
    fn add(&mut self, to: &Name, from: &Name) {
        self.0.entry(to.clone()).or_default().insert(from.clone());
    }

    fn remove(&mut self, to: &Name, from: &Name) {
        if let Some(all) = self.0.get_mut(to) {
            all.remove(from);
            if all.is_empty() {
                self.0.remove(to);
            }
        }
    }

    fn of(&self, to: &Name) -> impl Iterator<Item = &Name> {
        self.0.get(to).into_iter().flatten()
    }
}

impl Model {
    pub fn new(cluster: &str) -> Self {
        Self {
            cluster: cluster.into(),
            services: BTreeMap::new(),
            slices: BTreeMap::new(),
            slices_of: References::default(),
            pods: BTreeMap::new(),
            services_of_pod: References::default(),
            endpoint_groups: BTreeMap::new(),
            routes: BTreeMap::new(),
            routes_of: References::default(),
            splits: BTreeMap::new(),
            splits_of: References::default(),
            groups: BTreeMap::new(),
            services_of_group: References::default(),
            tcp_routes: BTreeMap::new(),
            targets: BTreeMap::new(),
            targets_of: References::default(),
            delivered: BTreeMap::new(),
            delivered_policies: BTreeMap::new(),
            changed: BTreeSet::new(),
            changed_targets: BTreeSet::new(),
        }
    }

    pub fn apply(&mut self, name: Name, object: Object) {
        match object {
            Object::Service(service) => {
                self.changed.insert(name.clone());
                self.services.insert(name, service);
            }
            Object::EndpointSlice(slice) => {
                self.remove(Kind::EndpointSlice, &name);
                self.changed.insert(slice.service.clone());
                self.slices_of.add(&slice.service, &name);
                for pod in slice.endpoints.iter().filter_map(|endpoint| endpoint.pod.as_ref()) {
                    self.services_of_pod.add(pod, &slice.service);
                }
                self.slices.insert(name, slice);
            }
            Object::Pod(account) => {
                if self.pods.get(&name) != Some(&account) {
                    self.changed.extend(self.services_of_pod.of(&name).cloned());
                    self.pods.insert(name, account);
                }
            }
            Object::EndpointGroup(group) => {
                self.changed.insert(name.clone());
                self.endpoint_groups.insert(name, *group);
            }
            Object::MeshRoute(route) => {
                self.remove(Kind::MeshRoute, &name);
                let service = service_of(&name, &route.spec);
                self.routes_of.add(&service, &name);
                self.changed.insert(service);
                self.routes.insert(name, *route);
            }
            Object::TrafficSplit(split) => {
                self.remove(Kind::TrafficSplit, &name);
                self.splits_of.add(&split.service, &name);
                split.groups.iter().for_each(|group| self.services_of_group.add(group, &split.service));
                self.changed.insert(split.service.clone());
                self.splits.insert(name, split);
            }
            Object::HttpRouteGroup(group) => {
                self.mark_users(&name);
                self.groups.insert(name, group);
            }
            Object::TcpRoute(route) => {
                self.mark_users(&name);
                self.tcp_routes.insert(name, route);
            }
            Object::TrafficTarget(target) => {
                self.remove(Kind::TrafficTarget, &name);
                target.references().for_each(|reference| self.targets_of.add(reference, &name));
                self.changed_targets.insert(name.clone());
                self.targets.insert(name, target);
            }
        }
    }

    pub fn remove(&mut self, kind: Kind, name: &Name) {
        match kind {
            Kind::Service => {
                self.services.remove(name);
                self.changed.insert(name.clone());
            }
            Kind::EndpointSlice => {
                let Some(slice) = self.slices.remove(name) else { return };
                self.slices_of.remove(&slice.service, name);
                let left: BTreeSet<&Name> = self.slices_of(&slice.service).flat_map(pods_of).collect();
                let gone: Vec<Name> = pods_of(&slice).filter(|pod| !left.contains(pod)).cloned().collect();
                gone.iter().for_each(|pod| self.services_of_pod.remove(pod, &slice.service));
                self.changed.insert(slice.service);
            }
            Kind::Pod => {
                if self.pods.remove(name).is_some() {
                    self.changed.extend(self.services_of_pod.of(name).cloned());
                }
            }
            Kind::EndpointGroup => {
                self.endpoint_groups.remove(name);
                self.changed.insert(name.clone());
            }
            Kind::MeshRoute => {
                let Some(route) = self.routes.remove(name) else { return };
                let service = service_of(name, &route.spec);
                self.routes_of.remove(&service, name);
                self.changed.insert(service);
            }
            Kind::TrafficSplit => {
                let Some(split) = self.splits.remove(name) else { return };
                self.splits_of.remove(&split.service, name);
                for group in &split.groups {
                    let others = self.splits_of.of(&split.service).filter_map(|other| self.splits.get(other));
                    if !others.into_iter().any(|other| other.groups.contains(group)) {
                        self.services_of_group.remove(group, &split.service);
                    }
                }
                self.changed.insert(split.service);
            }
            Kind::HttpRouteGroup => {
                self.mark_users(name);
                self.groups.remove(name);
            }
            Kind::TcpRoute => {
                self.mark_users(name);
                self.tcp_routes.remove(name);
            }
            Kind::TrafficTarget => {
                let Some(target) = self.targets.remove(name) else { return };
                target.references().for_each(|reference| self.targets_of.remove(reference, name));
                self.changed_targets.insert(name.clone());
            }
        }
    }

    fn mark_users(&mut self, name: &Name) {
        self.changed.extend(self.services_of_group.of(name).cloned());
        self.changed_targets.extend(self.targets_of.of(name).cloned());
    }

    /// Those of a kind, in a namespace or in all.
    pub fn names(&self, kind: Kind, namespace: Option<&str>) -> Vec<Name> {
        fn names<T>(objects: &BTreeMap<Name, T>) -> Vec<Name> {
            objects.keys().cloned().collect()
        }
        let mut all = match kind {
            Kind::Service => names(&self.services),
            Kind::EndpointSlice => names(&self.slices),
            Kind::Pod => names(&self.pods),
            Kind::EndpointGroup => names(&self.endpoint_groups),
            Kind::MeshRoute => names(&self.routes),
            Kind::TrafficSplit => names(&self.splits),
            Kind::TrafficTarget => names(&self.targets),
            Kind::HttpRouteGroup => names(&self.groups),
            Kind::TcpRoute => names(&self.tcp_routes),
        };
        all.retain(|(own, _)| namespace.is_none_or(|namespace| **own == *namespace));
        all
    }

    pub fn registered_groups(&self) -> RegisteredGroups {
        let group = |(name, group): (&Name, &EndpointGroup)| {
            let registry = group.spec.registry.clone()?;
            Some((name.clone(), RegisteredGroup { registry, endpoints: group.registered.clone() }))
        };
        self.endpoint_groups.iter().filter_map(group).collect()
    }

    /// Everything is delivered again.
    pub fn touch_all(&mut self) {
        self.changed.extend(self.services.keys().chain(self.endpoint_groups.keys()).cloned());
        self.changed_targets.extend(self.targets.keys().cloned());
    }

    /// The MeshRoute that a service is routed by.
    pub fn mesh_route(&self, key: &ServiceKey) -> Option<Name> {
        let service = (Arc::clone(&key.namespace), Arc::clone(&key.name));
        self.chosen_route(&service, key.port).map(|(name, _)| name.clone())
    }

    /// The service that a MeshRoute routes.
    pub fn routed_service(&self, name: &Name) -> Option<ServiceKey> {
        let route = self.routes.get(name)?;
        let keys = self.delivered.get(&service_of(name, &route.spec))?;
        let key = keys.iter().find(|key| key.port == route.spec.port && *key.name == *route.spec.service)?;
        (self.mesh_route(key).as_ref() == Some(name)).then(|| key.clone())
    }

    /// Endpoints come before routes to them, and go after them.
    pub fn deliver_changes(&mut self, endpoints: Option<&EndpointsSink>, topology: Option<&TopologySink>) {
        for name in std::mem::take(&mut self.changed) {
            let now = self.service_views(&name);
            let keys: BTreeSet<ServiceKey> = now.iter().map(|view| view.key.clone()).collect();
            let before = match keys.is_empty() {
                true => self.delivered.remove(&name),
                false => self.delivered.insert(name, keys.clone()),
            };
            for ServiceView { key, service, addresses, route } in now {
                if let Some(sink) = endpoints {
                    sink.set(key.clone(), addresses);
                }
                if let Some(sink) = topology {
                    sink.set_service(key.clone(), Some(service));
                    sink.set_route(key, route);
                }
            }
            for gone in before.iter().flatten().filter(|key| !keys.contains(key)) {
                if let Some(sink) = topology {
                    sink.set_route(gone.clone(), None);
                    sink.set_service(gone.clone(), None);
                }
                if let Some(sink) = endpoints {
                    sink.set(gone.clone(), Vec::new());
                }
            }
        }
        for name in std::mem::take(&mut self.changed_targets) {
            let policies =
                self.targets.get(&name).map(|target| target.policies(&self.groups, &self.tcp_routes));
            let policies = policies.unwrap_or_default();
            let before = self.delivered_policies.insert(name.clone(), policies.len()).unwrap_or_default();
            let count = policies.len();
            let id = |at: usize| format!("{}/{}/{at}", name.0, name.1);
            let Some(sink) = topology else { continue };
            policies.into_iter().enumerate().for_each(|(at, policy)| sink.set_policy(id(at), Some(policy)));
            (count..before).for_each(|at| sink.set_policy(id(at), None));
            if count == 0 {
                self.delivered_policies.remove(&name);
            }
        }
    }

    fn slices_of(&self, service: &Name) -> impl Iterator<Item = &EndpointSlice> {
        self.slices_of.of(service).filter_map(|slice| self.slices.get(slice))
    }

    /// A Service comes before an EndpointGroup of its name.
    fn service_views(&self, name: &Name) -> Vec<ServiceView> {
        let Some(service) = self.services.get(name) else {
            let Some(group) = self.endpoint_groups.get(name) else { return Vec::new() };
            let route = self.chosen_route(name, group.spec.port);
            let route = route.map(|(_, route)| (route.generation, route.spec.clone()));
            return group::views(&self.cluster, name, group, route);
        };
        let view = |port: &ServicePort| {
            let route =
                self.chosen_route(name, port.port).map(|(_, route)| (route.generation, route.spec.clone()));
            ServiceView {
                key: ServiceKey {
                    cluster: Arc::clone(&self.cluster),
                    namespace: Arc::clone(&name.0),
                    name: Arc::clone(&name.1),
                    port: port.port,
                    protocol: port.protocol,
                },
                service: catalog::Service {
                    hosts: vec![format!("{}.{}.svc.cluster.local", name.1, name.0)],
                    accounts: self.accounts(name),
                    ..catalog::Service::default()
                },
                addresses: self.addresses(name, service, &port.name),
                route: route.or_else(|| self.split_route(name, port.port)),
            }
        };
        service.ports.iter().map(view).collect()
    }

    fn addresses(&self, name: &Name, service: &Service, port: &str) -> Vec<Endpoint> {
        let slices = self.slices_of(name).filter(|slice| service.ipv6.is_none_or(|ipv6| slice.ipv6 == ipv6));
        let mut all = BTreeMap::new();
        for slice in slices {
            for (_, number) in slice.ports.iter().filter(|(name, _)| name == port) {
                let endpoints = slice.endpoints.iter().map(|endpoint| endpoint.at_port(*number));
                // An endpoint that moves is in two slices for a moment.
                all.extend(endpoints.map(|endpoint| (endpoint.address, endpoint)));
            }
        }
        all.into_values().collect()
    }

    fn accounts(&self, name: &Name) -> Vec<catalog::Account> {
        let accounts = self.slices_of(name).flat_map(pods_of).filter_map(|pod| {
            let account = self.pods.get(pod)?;
            Some((Arc::clone(&pod.0), Arc::clone(account)))
        });
        accounts.collect::<BTreeSet<_>>().into_iter().collect()
    }

    /// The one named as the Service, which routers write, else the oldest.
    fn chosen_route(&self, service: &Name, port: u16) -> Option<(&Name, &MeshRoute)> {
        let routes = self.routes_of.of(service).filter_map(|name| Some((name, self.routes.get(name)?)));
        let of_port = routes.filter(|(_, route)| route.spec.port == port);
        of_port.min_by_key(|(name, route)| (name.1 != service.1, route.created, &name.1))
    }

    /// Of the first TrafficSplit by name.
    fn split_route(&self, service: &Name, port: u16) -> Option<(i64, MeshRouteSpec)> {
        let split = self.splits_of.of(service).find_map(|name| self.splits.get(name))?;
        Some((split.generation, split.route(port, &self.groups)?))
    }
}

fn pods_of(slice: &EndpointSlice) -> impl Iterator<Item = &Name> {
    slice.endpoints.iter().filter_map(|endpoint| endpoint.pod.as_ref())
}

fn service_of(route: &Name, spec: &MeshRouteSpec) -> Name {
    (Arc::clone(&route.0), spec.service.as_str().into())
}

/// One port of a Service.
pub struct ServiceView {
    pub key: ServiceKey,
    pub service: catalog::Service,
    pub addresses: Vec<Endpoint>,
    pub route: Option<(i64, MeshRouteSpec)>,
}
