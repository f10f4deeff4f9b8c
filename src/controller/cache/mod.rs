//! The caches: one store per kind, kept current by reflectors. A kind is watched
//! from when the first Canary needs it, so an idle controller has no watch and
//! needs no right that no Canary uses.

mod label_index;
pub mod projection;
pub mod raw_canary;
pub mod references;
pub mod reflector;
pub mod store;

use std::{
    collections::{BTreeMap, HashMap},
    convert,
    sync::Arc,
};

use kube::{
    Api, Client, Resource,
    core::{ApiResource, DynamicObject, DynamicResourceScope, PartialObjectMeta},
    runtime::watcher::{self, watcher},
};
use parking_lot::Mutex;
use tokio_util::task::AbortOnDropHandle;

use self::{
    projection::{Projection, is_metadata_only, metadata_only, pod_resource, projection_for},
    raw_canary::{CachedCanary, RawCanary},
    references::ReferenceIndex,
    reflector::{
        NotSynced, Reflector, ReflectorTarget, StoreKind, SyncState, for_each_page, spawn_reflector,
    },
    store::{Key, Store},
};
use super::queue::trigger::{NamespacedName, ObjectVersion, RequestSender};
use crate::{
    api::{CanaryStatus, ClusterAnalysisTemplate, canary::TargetKind},
    object_cache::ObjectCache,
    telemetry::Telemetry,
    workload::{CachedWorkload, Kind},
};

/// Called for each change of a Canary, before its reconcile is requested; the
/// status is none if the Canary is deleted or invalid.
pub type CanaryObserver = Arc<dyn Fn(&NamespacedName, Option<&CanaryStatus>) + Send + Sync>;

/// Where changes of cached objects go.
pub struct ChangeHandlers {
    pub references: Arc<ReferenceIndex>,
    pub requests: RequestSender,
    pub observe_canary: CanaryObserver,
}

pub struct Caches {
    client: Client,
    /// Namespaces, or none for all of them.
    scopes: Vec<Option<String>>,
    pub canaries: Arc<Store<CachedCanary>>,
    canaries_sync: SyncState,
    reflectors: Mutex<HashMap<ApiResource, Arc<Reflector>>>,
    handlers: ChangeHandlers,
    telemetry: Arc<Telemetry>,
}

impl Caches {
    pub fn new(
        client: Client,
        namespaces: &[String],
        handlers: ChangeHandlers,
        telemetry: Arc<Telemetry>,
    ) -> Self {
        let scopes = match namespaces {
            [] => vec![None],
            some => some.iter().cloned().map(Some).collect(),
        };
        let canaries_sync = SyncState::new(scopes.len(), &telemetry);
        Self {
            client,
            scopes,
            canaries: Arc::default(),
            canaries_sync,
            reflectors: Mutex::default(),
            handlers,
            telemetry,
        }
    }

    /// Watches the Canaries, until dropped.
    pub fn watch_canaries(&self) -> Vec<AbortOnDropHandle<()>> {
        let watch = |scope: &Option<String>| {
            let ChangeHandlers { requests, observe_canary, .. } = &self.handlers;
            let (canaries, requests, observe) =
                (Arc::clone(&self.canaries), requests.clone(), Arc::clone(observe_canary));
            let on_change = move |(namespace, name): Key, changed| {
                let canary = NamespacedName { namespace, name };
                observe_status(&canaries, &canary, &*observe);
                requests.request_for_change(canary, changed);
            };
            let target = ReflectorTarget {
                projection: Projection::of(RawCanary::decode),
                scope: scope.clone(),
                store: Arc::clone(&self.canaries),
                sync: self.canaries_sync.clone(),
            };
            spawn_reflector(watcher(self.canary_api(scope), watcher::Config::default()), target, on_change)
        };
        self.scopes.iter().map(watch).collect()
    }

    /// Returns when the first lists of Canaries are complete.
    pub async fn wait_for_canaries(&self) -> Result<(), NotSynced> {
        self.canaries_sync.wait("canaries").await
    }

    /// Passes the cached status of a Canary to the observer.
    pub fn observe_status(&self, canary: &NamespacedName) {
        observe_status(&self.canaries, canary, &*self.handlers.observe_canary);
    }

    /// Lists everything that is cached: the watches may be behind, and then
    /// deliver nothing yet. A Canary must not be decided on a target that is
    /// older than its status.
    pub async fn relist(&self) -> kube::Result<()> {
        for scope in &self.scopes {
            let apply = |canary: RawCanary| {
                if let Some((namespace, name)) = self.canaries.apply_existing(canary.decode()) {
                    let name = NamespacedName { namespace, name };
                    self.observe_status(&name);
                    self.handlers.requests.request(name);
                }
            };
            for_each_page(&self.canary_api(scope), apply).await?;
        }
        let watched = self.reflectors.lock().clone();
        // In an order, so that simulations replay.
        let watched: BTreeMap<_, _> = watched
            .into_iter()
            .filter(|(kind, watched)| *kind != pod_resource() && watched.sync.is_synced())
            .map(|(kind, watched)| ((kind.api_version.clone(), kind.kind.clone()), (kind, watched)))
            .collect();
        for (kind, watched) in watched.values() {
            match self.relist_kind(kind, &watched.store).await {
                // Uninstalled, or no longer permitted: fails the Canaries that
                // need it, not all others.
                Err(kube::Error::Api(status)) if matches!(status.code, 403 | 404) => {
                    tracing::warn!(kind = kind.plural, "cannot be listed any more: {}", status.message);
                }
                listed => listed?,
            }
        }
        Ok(())
    }

    async fn relist_kind(&self, kind: &ApiResource, store: &StoreKind) -> kube::Result<()> {
        let on_change = self.request_for(kind);
        let on_change = |key| on_change(key, None);
        for scope in self.scopes_of(kind) {
            let scope = scope.as_deref();
            match store {
                StoreKind::Workloads(store) => {
                    let apply = |object| store.apply_existing(object).into_iter().for_each(&on_change);
                    for_each_page(&self.api::<CachedWorkload>(kind, scope), apply).await?;
                }
                StoreKind::Objects(store) if is_metadata_only(kind) => {
                    let apply =
                        |object| store.apply_existing(metadata_only(object)).into_iter().for_each(&on_change);
                    for_each_page(&self.api(kind, scope), apply).await?;
                }
                StoreKind::Objects(store) => {
                    let transform = projection_for(kind).transform;
                    let apply =
                        |object| store.apply_existing(transform(object)).into_iter().for_each(&on_change);
                    for_each_page(&self.api(kind, scope), apply).await?;
                }
            }
        }
        Ok(())
    }

    fn canary_api(&self, scope: &Option<String>) -> Api<RawCanary> {
        match scope {
            Some(namespace) => Api::namespaced(self.client.clone(), namespace),
            None => Api::all(self.client.clone()),
        }
    }

    /// Watches a kind, and returns when its first list is complete.
    pub async fn ensure_synced(&self, kind: &ApiResource) -> Result<(), NotSynced> {
        let sync = self.reflector_for(kind).sync.clone();
        sync.wait(&kind.plural).await
    }

    /// First lists that are not complete yet. A kind that cannot be listed fails
    /// only the Canaries that need it; without the list of Canaries nothing runs.
    pub fn pending_syncs(&self) -> Vec<String> {
        let canaries = (!self.canaries_sync.is_synced()).then(|| self.canaries_sync.not_synced("canaries"));
        let reflectors = self.reflectors.lock();
        let pending = reflectors.iter().filter(|(_, of)| !of.sync.is_synced() && !of.sync.has_error());
        let mut others: Vec<_> =
            pending.map(|(kind, of)| of.sync.not_synced(&kind.plural).to_string()).collect();
        others.sort();
        canaries.map(|late| late.to_string()).into_iter().chain(others).collect()
    }

    pub fn workload(&self, kind: Kind, namespace: &str, name: &str) -> Option<Arc<CachedWorkload>> {
        let watched = self.reflectors.lock().get(kind.resource()).cloned()?;
        match &watched.store {
            StoreKind::Workloads(store) => store.get(namespace, name),
            // Services are cached whole, since routers compare and write any of
            // their fields. The JSON round trip on each lookup is paid only for
            // targets of kind Service: a second store of the same kind would
            // cost all others a second watch.
            StoreKind::Objects(store) => {
                let object = store.get(namespace, name)?;
                serde_json::to_value(&*object).and_then(serde_json::from_value).ok().map(Arc::new)
            }
        }
    }

    /// Stores a write response; returns its version if the store holds it now.
    pub fn apply_response(&self, kind: &ApiResource, written: DynamicObject) -> Option<ObjectVersion> {
        let watched = self.reflectors.lock().get(kind).cloned()?;
        match &watched.store {
            StoreKind::Workloads(store) => {
                let written = CachedWorkload::try_from(written).ok()?;
                Some(ObjectVersion::of(store.apply_write_response(written, convert::identity)?.meta()))
            }
            StoreKind::Objects(store) => {
                Some(ObjectVersion::of(store.apply_write_response(written, convert::identity)?.meta()))
            }
        }
    }

    pub fn object(&self, kind: &ApiResource, namespace: &str, name: &str) -> Option<Arc<DynamicObject>> {
        self.objects(kind)?.get(namespace, name)
    }

    /// Unchanged as long as all objects of a kind in a namespace are.
    pub fn namespace_revision(&self, kind: &ApiResource, namespace: &str) -> u64 {
        self.objects(kind).map(|store| store.revision(namespace)).unwrap_or_default()
    }

    pub fn list(&self, kind: &ApiResource, namespace: &str) -> Vec<Arc<DynamicObject>> {
        self.objects(kind).map(|store| store.list(namespace)).unwrap_or_default()
    }

    /// The pods that have all of these labels; `labels` must not be empty.
    pub fn pods(&self, namespace: &str, labels: &BTreeMap<String, String>) -> Vec<Arc<DynamicObject>> {
        self.objects(&pod_resource()).map(|store| store.list_matching(namespace, labels)).unwrap_or_default()
    }

    fn objects(&self, kind: &ApiResource) -> Option<Arc<Store<DynamicObject>>> {
        match &self.reflectors.lock().get(kind)?.store {
            StoreKind::Objects(store) => Some(Arc::clone(store)),
            StoreKind::Workloads(_) => None,
        }
    }

    fn reflector_for(&self, kind: &ApiResource) -> Arc<Reflector> {
        let mut reflectors = self.reflectors.lock();
        if let Some(known) = reflectors.get(kind) {
            return Arc::clone(known);
        }
        let sync = SyncState::new(self.scopes_of(kind).len(), &self.telemetry);
        let (store, tasks) = if kind == Kind::Deployment.resource() {
            self.reflect_workloads(kind, &sync, |a, b| a.same_for_engine(b, TargetKind::Deployment))
        } else if kind == Kind::DaemonSet.resource() {
            self.reflect_workloads(kind, &sync, |a, b| a.same_for_engine(b, TargetKind::DaemonSet))
        } else {
            self.reflect_objects(kind, &sync)
        };
        let reflector = Arc::new(Reflector { store, sync, _tasks: tasks });
        reflectors.insert(kind.clone(), Arc::clone(&reflector));
        reflector
    }

    fn reflect_workloads(
        &self,
        kind: &ApiResource,
        sync: &SyncState,
        same: fn(&CachedWorkload, &CachedWorkload) -> bool,
    ) -> (StoreKind, Vec<AbortOnDropHandle<()>>) {
        let store = Arc::<Store<CachedWorkload>>::default();
        let watch = |scope: Option<String>| {
            let events = watcher(self.api(kind, scope.as_deref()), watcher::Config::default());
            let projection = Projection { transform: convert::identity, same };
            let target = ReflectorTarget { projection, scope, store: Arc::clone(&store), sync: sync.clone() };
            spawn_reflector(events, target, self.request_for(kind))
        };
        let tasks = self.scopes_of(kind).into_iter().map(watch).collect();
        (StoreKind::Workloads(store), tasks)
    }

    fn reflect_objects(
        &self,
        kind: &ApiResource,
        sync: &SyncState,
    ) -> (StoreKind, Vec<AbortOnDropHandle<()>>) {
        let is_pods = *kind == pod_resource();
        let store = Arc::new(if is_pods { Store::with_label_index() } else { Store::default() });
        let watch = |scope: Option<String>| {
            let (store, sync, config) = (Arc::clone(&store), sync.clone(), watcher::Config::default());
            if is_metadata_only(kind) {
                let api: Api<PartialObjectMeta<DynamicObject>> = self.api(kind, scope.as_deref());
                let target =
                    ReflectorTarget { projection: Projection::of(metadata_only), scope, store, sync };
                return spawn_reflector(watcher(api, config), target, self.request_for(kind));
            }
            let events = watcher(self.api(kind, scope.as_deref()), config);
            let target = ReflectorTarget { projection: projection_for(kind), scope, store, sync };
            match is_pods {
                // Pods are read by checks; their changes decide nothing.
                true => spawn_reflector(events, target, |_, _| {}),
                false => spawn_reflector(events, target, self.request_for(kind)),
            }
        };
        let tasks = self.scopes_of(kind).into_iter().map(watch).collect();
        (StoreKind::Objects(store), tasks)
    }

    fn scopes_of(&self, kind: &ApiResource) -> Vec<Option<String>> {
        let is_cluster_wide = *kind == ApiResource::erase::<ClusterAnalysisTemplate>(&());
        if is_cluster_wide { vec![None] } else { self.scopes.clone() }
    }

    fn api<K>(&self, kind: &ApiResource, scope: Option<&str>) -> Api<K>
    where
        K: Resource<DynamicType = ApiResource, Scope = DynamicResourceScope>,
    {
        match scope {
            Some(namespace) => Api::namespaced_with(self.client.clone(), namespace, kind),
            None => Api::all_with(self.client.clone(), kind),
        }
    }

    fn request_for(&self, kind: &ApiResource) -> impl Fn(Key, Option<ObjectVersion>) + Send + 'static {
        let (index, requests, kind) =
            (Arc::clone(&self.handlers.references), self.handlers.requests.clone(), kind.clone());
        move |(namespace, name), changed| {
            let concerned = index.referrers(&kind, &namespace, &name);
            concerned.into_iter().for_each(|canary| requests.request_for_change(canary, changed.clone()));
        }
    }
}

impl ObjectCache for Caches {
    fn get(&self, kind: &ApiResource, namespace: &str, name: &str) -> Option<Arc<DynamicObject>> {
        self.object(kind, namespace, name)
    }

    fn list(&self, kind: &ApiResource, namespace: &str) -> Vec<Arc<DynamicObject>> {
        self.list(kind, namespace)
    }

    fn apply_write_response(&self, kind: &ApiResource, written: DynamicObject) {
        self.apply_response(kind, written);
    }
}

fn observe_status(
    canaries: &Store<CachedCanary>,
    canary: &NamespacedName,
    observe: &(dyn Fn(&NamespacedName, Option<&CanaryStatus>) + Send + Sync),
) {
    let cached = canaries.get(&canary.namespace, &canary.name);
    let valid = cached.as_ref().and_then(|cached| cached.canary());
    observe(canary, valid.and_then(|canary| canary.status.as_ref()));
}
