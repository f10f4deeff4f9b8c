//! The inventory: objects, the indexes between them, and views that are recomputed
//! when an object they depend on changed.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use super::external::{self, External};
use super::key::{Key, Kind};
use super::label_index::{LabelIndex, selects};
use super::mesh::{self, Mesh};
use super::object::{Body, Labels, Marks, Object, Pod, RouteSpec, ServiceRef};
use super::releasable;
use super::route;
use super::service::{self, Service};
use super::workload::{Membership, Workload};
use super::{membership, parse};

/// The objects that a complete listing shows: one kind in one cluster, in one
/// namespace or in all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListScope {
    pub cluster: String,
    pub kind: Kind,
    pub namespace: Option<String>,
}

#[derive(Default)]
pub struct Inventory {
    objects: BTreeMap<Key, Object>,
    pods: BTreeMap<Key, BTreeSet<Key>>,
    templates: LabelIndex,
    selectors: LabelIndex,
    routes: BTreeMap<Key, BTreeSet<Key>>,
    canaries: BTreeMap<Key, BTreeSet<Key>>,
    /// VirtualNodes by cluster and namespace.
    virtual_nodes: BTreeMap<(String, String), BTreeSet<Key>>,
    /// Cloud Map instances by namespace and name of their pod.
    instances: BTreeMap<(String, String), BTreeSet<Key>>,
    /// App Mesh's virtual services by the namespace and name of the Service that they are
    /// called like.
    virtual_services: BTreeMap<ServiceRef, BTreeSet<Key>>,
    /// Objects with settings of a mesh: few, and read for every workload.
    settings: BTreeSet<Key>,
    workloads: BTreeMap<Key, Workload>,
    services: BTreeMap<Key, Service>,
    stale: Stale,
}

/// Views to recompute.
#[derive(Default)]
struct Stale {
    workloads: BTreeSet<Key>,
    services: BTreeSet<Key>,
    /// A mesh-wide setting changed, which is rare.
    all: bool,
}

impl Inventory {
    /// Older versions than the stored one are dropped: events may come late and twice.
    pub fn apply(&mut self, object: Object) {
        let is_old = |stored: &Object| stored.version > object.version || *stored == object;
        if self.objects.get(&object.key).is_some_and(is_old) {
            return;
        }
        self.take(&object.key);
        self.index(&object);
        self.mark(&object);
        self.objects.insert(object.key.clone(), object);
    }

    /// `version` is the resourceVersion of the deletion, if known.
    pub fn remove(&mut self, key: &Key, version: Option<u64>) {
        let newer = |stored: &Object| version.is_some_and(|version| stored.version > version);
        if !self.objects.get(key).is_some_and(newer) {
            self.take(key);
        }
    }

    /// Removes the objects of the scope that a complete listing did not show.
    pub fn list_complete(&mut self, scope: &ListScope, shown: &BTreeSet<Key>) {
        let in_scope = |key: &&Key| {
            key.kind == scope.kind
                && key.cluster == scope.cluster
                && scope.namespace.as_ref().is_none_or(|namespace| key.namespace == *namespace)
        };
        let gone: Vec<Key> =
            self.objects.keys().filter(in_scope).filter(|key| !shown.contains(*key)).cloned().collect();
        gone.iter().for_each(|key| _ = self.take(key));
    }

    /// Recomputes the stale views. Returns the keys of workloads and Services whose view
    /// changed, appeared or went.
    pub fn refresh(&mut self) -> BTreeSet<Key> {
        let mut stale = std::mem::take(&mut self.stale);
        if stale.all {
            stale.workloads.extend(self.objects.keys().filter(|key| key.kind.is_workload()).cloned());
            stale.services.extend(self.objects.keys().filter(|key| key.kind == Kind::Service).cloned());
        }
        let mut changed = BTreeSet::new();
        let mut unsettled = BTreeSet::new();
        for key in stale.workloads {
            let new = self.objects.get(&key).and_then(|object| match &object.body {
                Body::Workload(spec) => Some(membership::workload(self, object, spec)),
                _ => None,
            });
            let old = self.workloads.get(&key);
            // Services depend on the meshes, the version and the existence of a workload.
            let seen = |workload: &Workload| {
                let names: Vec<String> =
                    workload.virtual_nodes.iter().map(|node| node.mesh.clone()).collect();
                (workload.meshes.clone(), workload.version.clone(), names)
            };
            if old.map(seen) != new.as_ref().map(seen) {
                stale
                    .services
                    .extend(old.into_iter().chain(&new).flat_map(|workload| &workload.services).cloned());
            }
            unsettled.insert(key.clone());
            if self.set_workload(key.clone(), new) {
                changed.insert(key);
            }
        }
        for key in stale.services {
            let new = self.objects.get(&key).and_then(|object| match &object.body {
                Body::Service(spec) => Some(service::service(self, object, spec)),
                _ => None,
            });
            let old = self.services.get(&key);
            unsettled.extend(old.into_iter().chain(&new).flat_map(|service| &service.workloads).cloned());
            if old != new.as_ref() {
                changed.insert(key.clone());
            }
            match new {
                Some(new) => self.services.insert(key, new),
                None => self.services.remove(&key),
            };
        }
        for key in unsettled {
            let Some(workload) = self.workloads.get(&key) else { continue };
            let answers = self.objects.get(&key).and_then(|object| match &object.body {
                Body::Workload(spec) => Some(releasable::releasable(self, workload, spec)),
                _ => None,
            });
            if let (Some(answers), Some(workload)) = (answers, self.workloads.get_mut(&key))
                && (workload.releasable != answers.releasable || workload.obstacles != answers.obstacles)
            {
                workload.releasable = answers.releasable;
                workload.obstacles = answers.obstacles;
                changed.insert(key);
            }
        }
        changed
    }

    /// Keeps the answers of the old view until they are recomputed. Whether it differs.
    fn set_workload(&mut self, key: Key, new: Option<Workload>) -> bool {
        let old = self.workloads.remove(&key);
        let Some(mut new) = new else { return old.is_some() };
        if let Some(old) = &old {
            new.releasable = old.releasable.clone();
            new.obstacles = old.obstacles.clone();
        }
        let differs = old.as_ref() != Some(&new);
        self.workloads.insert(key, new);
        differs
    }

    pub fn workloads(&self) -> impl Iterator<Item = &Workload> {
        self.workloads.values()
    }

    pub fn services(&self) -> impl Iterator<Item = &Service> {
        self.services.values()
    }

    /// Computed on each call, from the views.
    pub fn meshes(&self) -> Vec<Mesh> {
        mesh::meshes(self)
    }

    pub fn workload(&self, key: &Key) -> Option<&Workload> {
        self.workloads.get(key)
    }

    /// Of one view, until it is recomputed: metrics are read when somebody asks.
    pub fn set_without_requests(&mut self, key: &Key) {
        self.workloads.get_mut(key).into_iter().for_each(Workload::set_without_requests);
    }

    pub fn service(&self, key: &Key) -> Option<&Service> {
        self.services.get(key)
    }

    /// Of all objects.
    pub fn keys(&self) -> impl Iterator<Item = &Key> {
        self.objects.keys()
    }

    /// Number of objects, of all kinds.
    pub fn len(&self) -> usize {
        self.objects.len()
    }

    pub fn is_empty(&self) -> bool {
        self.objects.is_empty()
    }

    fn take(&mut self, key: &Key) -> Option<Object> {
        let object = self.objects.remove(key)?;
        self.mark(&object);
        self.unindex(&object);
        Some(object)
    }

    fn index(&mut self, object: &Object) {
        let key = &object.key;
        match &object.body {
            Body::Pod(pod) => _ = self.pods.entry(pod.owner.clone()).or_default().insert(key.clone()),
            Body::Workload(spec) => self.templates.insert(key, &spec.template.labels),
            Body::Service(spec) => self.selectors.insert(key, spec.selector.iter().take(1)),
            Body::Route(_) => {
                for service in route::touched(object) {
                    self.routes.entry(service).or_default().insert(key.clone());
                }
            }
            Body::Canary { target: Some(target) } => {
                self.canaries.entry(target.clone()).or_default().insert(key.clone());
            }
            Body::ConfigMap { .. }
            | Body::PeerAuthentication { .. }
            | Body::RevisionTag { .. }
            | Body::GatewayClass { .. }
            | Body::KumaMesh { .. } => _ = self.settings.insert(key.clone()),
            Body::VirtualNode { .. } => {
                let place = (key.cluster.clone(), key.namespace.clone());
                self.virtual_nodes.entry(place).or_default().insert(key.clone());
            }
            Body::External(External::Instance { pod: Some(pod), .. }) => {
                self.instances.entry(pod.clone()).or_default().insert(key.clone());
            }
            Body::External(External::VirtualService { .. }) => {
                if let Some(service) = external::named_service(object) {
                    self.virtual_services.entry(service).or_default().insert(key.clone());
                }
            }
            Body::Namespace(_)
            | Body::Gateway { .. }
            | Body::Canary { target: None }
            | Body::External(_)
            | Body::Presence => {}
        }
    }

    fn unindex(&mut self, object: &Object) {
        let key = &object.key;
        match &object.body {
            Body::Pod(pod) => drop_entry(&mut self.pods, &pod.owner, key),
            Body::Workload(spec) => self.templates.remove(key, &spec.template.labels),
            Body::Service(spec) => self.selectors.remove(key, spec.selector.iter().take(1)),
            Body::Route(_) => {
                route::touched(object).iter().for_each(|service| drop_entry(&mut self.routes, service, key));
            }
            Body::Canary { target: Some(target) } => drop_entry(&mut self.canaries, target, key),
            Body::VirtualNode { .. } => {
                drop_entry(&mut self.virtual_nodes, &(key.cluster.clone(), key.namespace.clone()), key);
            }
            Body::External(External::Instance { pod: Some(pod), .. }) => {
                drop_entry(&mut self.instances, pod, key);
            }
            Body::External(External::VirtualService { .. }) => {
                if let Some(service) = external::named_service(object) {
                    drop_entry(&mut self.virtual_services, &service, key);
                }
            }
            _ => _ = self.settings.remove(key),
        }
    }

    /// Marks the views that depend on an object.
    fn mark(&mut self, object: &Object) {
        let key = &object.key;
        match &object.body {
            Body::Pod(pod) => _ = self.stale.workloads.insert(pod.owner.clone()),
            Body::Workload(spec) => {
                self.stale.services.extend(self.services_of(key, &spec.template.labels));
                self.stale.workloads.insert(key.clone());
            }
            Body::Service(spec) => {
                self.stale.workloads.extend(self.workloads_of(key, &spec.selector));
                self.stale.services.insert(key.clone());
            }
            Body::Route(_) => self.stale.services.extend(route::touched(object)),
            Body::Canary { target } => self.stale.workloads.extend(target.clone()),
            Body::VirtualNode { .. } => {
                let inside: Vec<Key> = self
                    .in_namespace(&key.cluster, &key.namespace)
                    .map(|object| object.key.clone())
                    .collect();
                self.stale.workloads.extend(inside.into_iter().filter(|key| key.kind.is_workload()));
            }
            // The attributes do not name the cluster of the pod.
            Body::External(External::Instance { pod: Some((namespace, name)), .. }) => {
                for cluster in self.clusters() {
                    let pod = self.objects.get(&Key::new(&cluster, namespace, Kind::Pod, name));
                    if let Some(Body::Pod(pod)) = pod.map(|object| &object.body) {
                        self.stale.workloads.insert(pod.owner.clone());
                    }
                }
            }
            // Environments name them, in any cluster; they change with people's edits.
            Body::External(External::AppMesh { .. } | External::VirtualNode { .. }) => self.stale.all = true,
            Body::External(External::VirtualService { .. }) => {
                external::named_service(object).iter().for_each(|service| self.mark_services(service));
            }
            Body::External(External::Route { .. }) => {
                let beside = self.in_namespace(&key.cluster, &key.namespace);
                let routed = beside.filter(|other| external::is_route_of(other, key));
                let services: Vec<ServiceRef> = routed.filter_map(external::named_service).collect();
                services.iter().for_each(|service| self.mark_services(service));
            }
            Body::External(_) => {}
            Body::Namespace(_) => {
                let inside: Vec<Key> =
                    self.in_namespace(&key.cluster, &key.name).map(|object| object.key.clone()).collect();
                self.stale.workloads.extend(inside.into_iter().filter(|key| key.kind.is_workload()));
            }
            Body::Gateway { .. }
            | Body::GatewayClass { .. }
            | Body::ConfigMap { .. }
            | Body::RevisionTag { .. }
            | Body::Presence => self.stale.all = true,
            // Only meshes depend on them, and meshes are computed when they are read.
            Body::PeerAuthentication { .. } | Body::KumaMesh { .. } => {}
        }
    }

    /// Of this name, in every cluster.
    fn mark_services(&mut self, service: &ServiceRef) {
        let key = |cluster: String| Key::new(&cluster, &service.namespace, Kind::Service, &service.name);
        self.stale.services.extend(self.clusters().into_iter().map(key));
    }

    fn in_namespace(&self, cluster: &str, namespace: &str) -> impl Iterator<Item = &Object> {
        let first = Key::new(cluster, namespace, Kind::ServedResource, "");
        let range = self.objects.range((Bound::Included(first), Bound::Unbounded));
        let (cluster, namespace) = (cluster.to_owned(), namespace.to_owned());
        let inside = move |key: &Key| key.cluster == cluster && key.namespace == namespace;
        range.take_while(move |(key, _)| inside(key)).map(|(_, object)| object)
    }

    pub(super) fn clusters(&self) -> Vec<String> {
        let mut clusters: Vec<String> = Vec::new();
        let mut next = self.objects.keys().next();
        while let Some(key) = next {
            clusters.push(key.cluster.clone());
            let after = Key::new(&format!("{}\0", key.cluster), "", Kind::ServedResource, "");
            next = self.objects.range(after..).next().map(|(key, _)| key);
        }
        clusters
    }

    /// The VirtualNodes beside a workload.
    pub(super) fn virtual_nodes_of(&self, workload: &Key) -> impl Iterator<Item = &Object> {
        let keys = self.virtual_nodes.get(&(workload.cluster.clone(), workload.namespace.clone()));
        keys.into_iter().flatten().filter_map(|key| self.objects.get(key))
    }

    pub(super) fn instances_of(&self, namespace: &str, pod: &str) -> impl Iterator<Item = &Object> {
        let keys = self.instances.get(&(namespace.to_owned(), pod.to_owned()));
        keys.into_iter().flatten().filter_map(|key| self.objects.get(key))
    }

    /// App Mesh's virtual services that are called like a Service.
    pub(super) fn virtual_services_of(&self, service: &Key) -> impl Iterator<Item = &Object> {
        let named = ServiceRef { namespace: service.namespace.clone(), name: service.name.clone() };
        let keys = self.virtual_services.get(&named);
        keys.into_iter().flatten().filter_map(|key| self.objects.get(key))
    }

    /// The routes of the virtual router that provides a virtual service.
    pub(super) fn app_mesh_routes_of(&self, virtual_service: &Object) -> impl Iterator<Item = &Object> {
        let Key { cluster, namespace, .. } = &virtual_service.key;
        let routes = self.in_namespace(cluster, namespace).filter(|o| o.key.kind == Kind::AppMeshRoute);
        routes.filter(move |route| external::is_route_of(virtual_service, &route.key))
    }

    pub(super) fn object(&self, key: &Key) -> Option<&Object> {
        self.objects.get(key)
    }

    pub(super) fn objects(&self) -> impl Iterator<Item = &Object> {
        self.objects.values()
    }

    /// Of a kind with settings of a mesh.
    pub(super) fn settings_of(&self, cluster: &str, kind: Kind) -> impl Iterator<Item = &Object> {
        let keys = self.settings.iter().filter(move |key| key.kind == kind && key.cluster == cluster);
        keys.filter_map(|key| self.objects.get(key))
    }

    pub(super) fn pods_of(&self, workload: &Key) -> Vec<&Pod> {
        self.keyed_pods_of(workload).map(|(_, pod)| pod).collect()
    }

    pub(super) fn keyed_pods_of(&self, workload: &Key) -> impl Iterator<Item = (&Key, &Pod)> {
        let keys = self.pods.get(workload).into_iter().flatten();
        keys.filter_map(|key| match &self.objects.get(key)?.body {
            Body::Pod(pod) => Some((key, &**pod)),
            _ => None,
        })
    }

    /// Services whose selector matches these labels.
    pub(super) fn services_of(&self, at: &Key, labels: &Labels) -> Vec<Key> {
        let matches = |key: &Key| match self.objects.get(key).map(|object| &object.body) {
            Some(Body::Service(service)) => selects(&service.selector, labels),
            _ => false,
        };
        self.selectors.any(at, labels).into_iter().filter(matches).collect()
    }

    /// Workloads whose template matches this selector.
    pub(super) fn workloads_of(&self, at: &Key, selector: &Labels) -> Vec<Key> {
        let matches = |key: &Key| match self.objects.get(key).map(|object| &object.body) {
            Some(Body::Workload(workload)) => selects(selector, &workload.template.labels),
            _ => false,
        };
        self.templates.any(at, selector.iter().take(1)).into_iter().filter(matches).collect()
    }

    pub(super) fn routes_of(&self, service: &Key) -> impl Iterator<Item = (&Object, &RouteSpec)> {
        let keys = self.routes.get(service).into_iter().flatten();
        keys.filter_map(|key| match &self.objects.get(key)?.body {
            Body::Route(route) => Some((&self.objects[key], route)),
            _ => None,
        })
    }

    pub(super) fn namespace(&self, of: &Key) -> Option<(&Object, &Marks)> {
        let object = self.objects.get(&Key::new(&of.cluster, "", Kind::Namespace, &of.namespace))?;
        match &object.body {
            Body::Namespace(marks) => Some((object, marks)),
            _ => None,
        }
    }

    /// The Canary that releases a workload.
    pub(super) fn canary_of(&self, workload: &Key) -> Option<&Key> {
        self.canaries.get(workload)?.first()
    }

    pub(super) fn serves(&self, cluster: &str, resource: &str) -> bool {
        self.objects.contains_key(&Key::new(cluster, "", Kind::ServedResource, resource))
    }

    /// An accepted GatewayClass, of this controller or of any.
    pub(super) fn has_gateway_class(&self, cluster: &str, wanted: Option<&str>) -> bool {
        let accepted = |object: &Object| match &object.body {
            Body::GatewayClass { controller, accepted: true } => wanted.is_none_or(|of| controller == of),
            _ => false,
        };
        self.settings_of(cluster, Kind::GatewayClass).any(accepted)
    }

    /// A tag is another name of a revision.
    pub(super) fn revision_of_tag(&self, cluster: &str, name: &str) -> String {
        let tagged =
            self.settings_of(cluster, Kind::WebhookConfiguration).find_map(|object| match &object.body {
                Body::RevisionTag { tag, revision } if tag == name => Some(revision.clone()),
                _ => None,
            });
        tagged.unwrap_or_else(|| name.to_owned())
    }

    /// Istio's default is `cluster.local`: istio-discovery/templates/configmap.yaml.
    pub(super) fn trust_domain(&self, cluster: &str, member: &Membership) -> String {
        let wanted = member.revision.as_deref().unwrap_or("default");
        let found = self.settings_of(cluster, Kind::ConfigMap).find_map(|object| match &object.body {
            Body::ConfigMap { trust_domain } => {
                let (mesh, revision) = parse::config_map_mesh(&object.key.name)?;
                trust_domain.clone().filter(|_| mesh == member.mesh && revision == wanted)
            }
            _ => None,
        });
        found.unwrap_or_else(|| "cluster.local".to_owned())
    }
}

fn drop_entry<E: Ord>(index: &mut BTreeMap<E, BTreeSet<Key>>, entry: &E, key: &Key) {
    if let Some(keys) = index.get_mut(entry) {
        keys.remove(key);
        if keys.is_empty() {
            index.remove(entry);
        }
    }
}
