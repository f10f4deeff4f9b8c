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
    projection::{
        Projection, catalog_kind, inventory_kind, is_metadata_only, is_tapped_only, metadata_identity,
        metadata_manifest, metadata_only, object_manifest, pod_resource, projection_for, workload_manifest,
    },
    raw_canary::{CachedCanary, RawCanary},
    references::ReferenceIndex,
    reflector::{
        NotSynced, ObjectTaps, Reflector, ReflectorTarget, ShowManifest, StoreKind, SyncState, Tap,
        for_each_page, spawn_reflector,
    },
    store::{Key, Store},
};
use super::queue::trigger::{HasMeta as _, NamespacedName, ObjectVersion, RequestSender};
use crate::{
    api::{CanaryStatus, ClusterAnalysisTemplate, canary::TargetKind},
    catalog::kubernetes::ClusterObjects,
    clock::Clock,
    discovery::{live::LiveInventory, model},
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
    pub clock: Clock,
    pub observe_canary: CanaryObserver,
    /// Gets a copy of every event of the kinds that it reads, once it is wanted.
    pub inventory: Arc<LiveInventory>,
    /// The same of those that the service catalog reads, from the start.
    pub catalog: Option<Arc<ClusterObjects>>,
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
        let canaries_sync = SyncState::new(scopes.clone(), &telemetry);
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
            let ChangeHandlers { requests, observe_canary, inventory, .. } = &self.handlers;
            let (canaries, requests, observe) =
                (Arc::clone(&self.canaries), requests.clone(), Arc::clone(observe_canary));
            let inventory = Arc::clone(inventory);
            let (live, clock) = (Arc::clone(&self.telemetry.live), self.handlers.clock);
            let on_change = move |(namespace, name): Key, changed| {
                let canary = NamespacedName { namespace, name };
                observe_status(&canaries, &canary, &*observe);
                match canaries.get(&canary.namespace, &canary.name) {
                    Some(cached) => live.apply(&cached, clock.now()),
                    None => live.remove(&canary),
                }
                copy_canary(&canaries, &canary, &inventory);
                requests.request_for_change(canary, changed);
            };
            let target = ReflectorTarget {
                projection: Projection::of(RawCanary::decode),
                scope: scope.clone(),
                store: Arc::clone(&self.canaries),
                sync: self.canaries_sync.clone(),
                taps: ObjectTaps { taps: Vec::new(), manifest: |_, _| {} },
            };
            spawn_reflector(watcher(self.canary_api(scope), watcher::Config::default()), target, on_change)
        };
        let (sync, live) = (self.canaries_sync.clone(), Arc::clone(&self.telemetry.live));
        let completes = AbortOnDropHandle::new(tokio::spawn(async move {
            sync.synced().await;
            live.set_complete();
        }));
        self.scopes.iter().map(watch).chain([completes]).collect()
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
                    if let Some(cached) = self.canaries.get(&name.namespace, &name.name) {
                        self.telemetry.live.apply(&cached, self.handlers.clock.now());
                    }
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
            .filter(|(kind, watched)| {
                *kind != pod_resource() && !is_tapped_only(kind) && watched.sync.is_synced()
            })
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

    /// Copies everything that was watched before the inventory was wanted: projections
    /// lack what it reads, so these kinds are listed again.
    pub fn feed_inventory(&self) {
        for canary in self.canaries.list_all() {
            copy_canary(&self.canaries, &NamespacedName::of(&*canary), &self.handlers.inventory);
        }
        let mut known: Vec<_> = self.reflectors.lock().clone().into_iter().collect();
        // In an order, so that simulations replay.
        known.sort_by(|(a, _), (b, _)| (&a.api_version, &a.kind).cmp(&(&b.api_version, &b.kind)));
        for (kind, reflector) in known.into_iter().filter(|(kind, _)| inventory_kind(kind).is_some()) {
            let tasks = self.watch(&kind, &reflector.store, &reflector.sync);
            *reflector.tasks.lock() = tasks;
        }
    }

    /// All objects of a kind.
    pub fn list_all(&self, kind: &ApiResource) -> Vec<Arc<DynamicObject>> {
        self.objects(kind).map(|store| store.list_all()).unwrap_or_default()
    }

    /// Watches a kind for the inventory; see [`ensure_synced`](Self::ensure_synced).
    pub fn watch_for_inventory(&self, kind: &ApiResource) {
        self.reflector_for(kind);
    }

    /// Ends the watch of a kind that is not served any more, unless a Canary needs it.
    pub fn unwatch(&self, kind: &ApiResource) {
        if !self.handlers.references.names_kind(kind) {
            self.reflectors.lock().remove(kind);
        }
    }

    /// Kinds of these that cannot be listed, and why.
    pub fn unlisted(&self, kinds: &[ApiResource]) -> Vec<(ApiResource, NotSynced)> {
        let reflectors = self.reflectors.lock();
        let unlisted = |kind: &ApiResource| {
            let sync = &reflectors.get(kind)?.sync;
            (!sync.is_synced()).then(|| (kind.clone(), sync.not_synced(&kind.plural)))
        };
        kinds.iter().filter_map(unlisted).collect()
    }

    fn reflector_for(&self, kind: &ApiResource) -> Arc<Reflector> {
        let mut reflectors = self.reflectors.lock();
        if let Some(known) = reflectors.get(kind) {
            return Arc::clone(known);
        }
        let sync = SyncState::new(self.scopes_of(kind), &self.telemetry);
        let store = if kind == Kind::Deployment.resource() || kind == Kind::DaemonSet.resource() {
            StoreKind::Workloads(Arc::default())
        } else if *kind == pod_resource() {
            StoreKind::Objects(Arc::new(Store::with_label_index()))
        } else {
            StoreKind::Objects(Arc::default())
        };
        let tasks = self.watch(kind, &store, &sync).into();
        let reflector = Arc::new(Reflector { store, sync, tasks });
        reflectors.insert(kind.clone(), Arc::clone(&reflector));
        reflector
    }

    /// One watch for each scope.
    fn watch(&self, kind: &ApiResource, store: &StoreKind, sync: &SyncState) -> Vec<AbortOnDropHandle<()>> {
        let watch = |scope: Option<String>| match store {
            StoreKind::Workloads(store) => {
                let same: fn(&CachedWorkload, &CachedWorkload) -> bool =
                    match kind == Kind::DaemonSet.resource() {
                        true => |a, b| a.same_for_engine(b, TargetKind::DaemonSet),
                        false => |a, b| a.same_for_engine(b, TargetKind::Deployment),
                    };
                let events = watcher(self.api(kind, scope.as_deref()), watcher::Config::default());
                let taps = self.taps(kind, scope.as_deref(), workload_manifest);
                let projection = Projection { transform: convert::identity, same };
                let (store, sync) = (Arc::clone(store), sync.clone());
                let target = ReflectorTarget { projection, scope, store, sync, taps };
                spawn_reflector(events, target, self.request_for(kind))
            }
            StoreKind::Objects(store) => self.watch_objects(kind, scope, store, sync),
        };
        self.scopes_of(kind).into_iter().map(watch).collect()
    }

    fn watch_objects(
        &self,
        kind: &ApiResource,
        scope: Option<String>,
        store: &Arc<Store<DynamicObject>>,
        sync: &SyncState,
    ) -> AbortOnDropHandle<()> {
        let (store, sync, config) = (Arc::clone(store), sync.clone(), watcher::Config::default());
        if is_metadata_only(kind) {
            let api: Api<PartialObjectMeta<DynamicObject>> = self.api(kind, scope.as_deref());
            let taps = self.taps(kind, scope.as_deref(), metadata_manifest);
            let projection = match is_tapped_only(kind) {
                true => Projection::of(metadata_identity),
                false => Projection::of(metadata_only),
            };
            let target = ReflectorTarget { projection, scope, store, sync, taps };
            return spawn_reflector(watcher(api, config), target, self.request_for(kind));
        }
        let events = watcher(self.api(kind, scope.as_deref()), config);
        let taps = self.taps(kind, scope.as_deref(), object_manifest);
        let target = ReflectorTarget { projection: projection_for(kind), scope, store, sync, taps };
        match *kind == pod_resource() {
            // Pods are read by checks; their changes decide nothing.
            true => spawn_reflector(events, target, |_, _| {}),
            false => spawn_reflector(events, target, self.request_for(kind)),
        }
    }

    fn taps<T>(&self, kind: &ApiResource, scope: Option<&str>, manifest: ShowManifest<T>) -> ObjectTaps<T> {
        let ChangeHandlers { inventory, catalog, .. } = &self.handlers;
        let of_inventory = inventory_kind(kind).filter(|_| inventory.is_wanted());
        let of_inventory = of_inventory.map(|kind| Tap::Inventory(inventory.tap(kind, scope)));
        let of_catalog = catalog_kind(kind).zip(catalog.as_ref());
        let of_catalog = of_catalog.map(|(kind, catalog)| Tap::Catalog(catalog.tap(kind, scope)));
        ObjectTaps { taps: of_inventory.into_iter().chain(of_catalog).collect(), manifest }
    }

    fn scopes_of(&self, kind: &ApiResource) -> Vec<Option<String>> {
        let is_cluster_wide = *kind == ApiResource::erase::<ClusterAnalysisTemplate>(&())
            || inventory_kind(kind).is_some_and(model::Kind::is_cluster_scoped);
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

/// Copies a Canary, or its deletion, into the inventory.
fn copy_canary(canaries: &Store<CachedCanary>, canary: &NamespacedName, inventory: &LiveInventory) {
    let cached = canaries.get(&canary.namespace, &canary.name);
    let found = cached.as_ref().map(|cached| {
        let version = cached.metadata().resource_version.as_ref().and_then(|version| version.parse().ok());
        let target = cached.canary().map(|canary| &canary.spec.target_ref);
        (version.unwrap_or(0), target)
    });
    let kind = |kind| match kind {
        TargetKind::Deployment => Some(model::Kind::Deployment),
        TargetKind::DaemonSet => Some(model::Kind::DaemonSet),
        TargetKind::Service => Some(model::Kind::Service),
        // The inventory is of clusters.
        TargetKind::EndpointGroup => None,
    };
    let found = found.and_then(|(version, target)| {
        target.and_then(|of| Some((version, kind(of.kind)?, of.name.as_str())))
    });
    inventory.set_canary(&canary.namespace, &canary.name, found);
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
