//! What the watches saw. A kind is watched from when the first Canary needs it,
//! so an idle controller has no watch that nobody asked for, and needs no
//! permission that nobody uses.

use std::{
    collections::{BTreeMap, HashMap},
    convert,
    fmt::Debug,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use futures::{Stream, StreamExt as _};
use kube::{
    Api, Client, Resource,
    api::ListParams,
    core::{ApiResource, DynamicObject, DynamicResourceScope, PartialObjectMeta},
    runtime::{
        WatchStreamExt as _,
        watcher::{self, Event, watcher},
    },
};
use parking_lot::Mutex;
use serde::de::DeserializeOwned;
use tokio::sync::SetOnce;
use tokio_util::task::AbortOnDropHandle;

use super::{
    NamespacedName,
    projection::{Projection, is_metadata_only, metadata_only, pod_resource, projection_for},
    raw_canary::{CachedCanary, RawCanary},
    references::ReferenceIndex,
    release_limiter::ReleaseLimiter,
    store::{HasMeta, Key, Store, always_differs},
    trigger::{ObjectVersion, RequestSender},
    vitals::Telemetry,
};
use crate::{
    api::{ClusterAnalysisTemplate, canary::TargetKind},
    object_cache::ObjectCache,
    workload::{CachedWorkload, Kind},
};

/// A list that takes longer is not waited for; whoever needs it tries again.
const SYNC_TIMEOUT: Duration = Duration::from_secs(5);

/// A kind that cannot be watched.
#[derive(Debug, thiserror::Error)]
#[error("the list of {kind} has not come yet{}", .last_error.as_ref().map(|why| format!(": {why}")).unwrap_or_default())]
pub struct NotSynced {
    kind: String,
    last_error: Option<String>,
}

pub struct Caches {
    client: Client,
    /// Namespaces, or none for all of them.
    scopes: Vec<Option<String>>,
    pub canaries: Arc<Store<CachedCanary>>,
    canaries_sync: SyncState,
    reflectors: Mutex<HashMap<ApiResource, Arc<Reflector>>>,
    index: Arc<ReferenceIndex>,
    requests: RequestSender,
    limiter: Arc<ReleaseLimiter>,
    telemetry: Arc<Telemetry>,
}

struct Reflector {
    store: StoreKind,
    sync: SyncState,
    _tasks: Vec<AbortOnDropHandle<()>>,
}

enum StoreKind {
    Objects(Arc<Store<DynamicObject>>),
    Workloads(Arc<Store<CachedWorkload>>),
}

/// How far the first lists have come.
#[derive(Clone)]
struct SyncState {
    lists_pending: Arc<AtomicUsize>,
    /// Wakes who waits in the order they came: simulations replay.
    synced: Arc<SetOnce<()>>,
    last_error: Arc<Mutex<Option<String>>>,
    telemetry: Arc<Telemetry>,
}

impl Caches {
    pub fn new(
        client: Client,
        namespaces: &[String],
        index: Arc<ReferenceIndex>,
        requests: RequestSender,
        limiter: Arc<ReleaseLimiter>,
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
            index,
            requests,
            limiter,
            telemetry,
        }
    }

    /// Follows the Canaries themselves, until dropped.
    pub fn watch_canaries(&self) -> Vec<AbortOnDropHandle<()>> {
        let sync = &self.canaries_sync;
        let follow = |scope: &Option<String>| {
            let (canaries, limiter, requests) =
                (Arc::clone(&self.canaries), Arc::clone(&self.limiter), self.requests.clone());
            let on_change = move |(namespace, name): Key, changed| {
                let canary = NamespacedName { namespace, name };
                count_release(&canaries, &limiter, &canary);
                requests.request_for_change(canary, changed);
            };
            let stream = watcher(self.canary_api(scope), watcher::Config::default());
            let (store, sync) = (Arc::clone(&self.canaries), sync.clone());
            spawn_reflector(
                stream,
                (RawCanary::decode, always_differs),
                scope.clone(),
                store,
                sync,
                on_change,
            )
        };
        self.scopes.iter().map(follow).collect()
    }

    /// Until the first lists of Canaries have come.
    pub async fn wait_for_canaries(&self) -> Result<(), NotSynced> {
        self.canaries_sync.wait("canaries").await
    }

    /// A Canary that was written may be under way by now, or not any more.
    pub fn count_release(&self, canary: &NamespacedName) {
        count_release(&self.canaries, &self.limiter, canary);
    }

    /// Takes in every known object as it is now: the watches may be behind, and
    /// will tell nothing new then. A Canary must not be decided on a target that
    /// is older than its status.
    pub async fn relist(&self) -> kube::Result<()> {
        for scope in &self.scopes {
            let apply = |canary: RawCanary| {
                if let Some((namespace, name)) = self.canaries.apply_existing(canary.decode()) {
                    let name = NamespacedName { namespace, name };
                    self.count_release(&name);
                    self.requests.request(name);
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
                // Uninstalled, or no longer allowed: the trouble of those who
                // need it, not of all others.
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
                    let (read, _) = projection_for(kind);
                    let apply = |object| store.apply_existing(read(object)).into_iter().for_each(&on_change);
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

    /// Makes sure that a kind is watched, and that its first list has come.
    pub async fn ensure_synced(&self, kind: &ApiResource) -> Result<(), NotSynced> {
        let sync = self.reflector_for(kind).sync.clone();
        sync.wait(&kind.plural).await
    }

    /// First lists that have not come yet. A kind that cannot be listed is the
    /// trouble of those who need it; without the Canaries nothing can be done.
    pub fn pending_syncs(&self) -> Vec<String> {
        let late = |kind: &str, sync: &SyncState| {
            let last_error = sync.last_error.lock().clone();
            NotSynced { kind: kind.to_owned(), last_error }.to_string()
        };
        let canaries = (!self.canaries_sync.is_synced()).then(|| late("canaries", &self.canaries_sync));
        let watched = self.reflectors.lock();
        let others = watched
            .iter()
            .filter(|(_, watched)| !watched.sync.is_synced() && watched.sync.last_error.lock().is_none());
        let mut others: Vec<_> = others.map(|(kind, watched)| late(&kind.plural, &watched.sync)).collect();
        others.sort();
        canaries.into_iter().chain(others).collect()
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

    /// Stays the same for as long as all objects of a kind in a namespace do.
    pub fn namespace_revision(&self, kind: &ApiResource, namespace: &str) -> u64 {
        self.objects(kind).map(|store| store.revision(namespace)).unwrap_or_default()
    }

    pub fn list(&self, kind: &ApiResource, namespace: &str) -> Vec<Arc<DynamicObject>> {
        self.objects(kind).map(|store| store.list(namespace)).unwrap_or_default()
    }

    /// The pods that have all of these labels, of which there must be some.
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
        let mut watched = self.reflectors.lock();
        if let Some(known) = watched.get(kind) {
            return Arc::clone(known);
        }
        let scopes = self.scopes_of(kind);
        let sync = SyncState::new(scopes.len(), &self.telemetry);
        let new = if kind == Kind::Deployment.resource() || kind == Kind::DaemonSet.resource() {
            let store = Arc::<Store<CachedWorkload>>::default();
            let is_same: fn(&CachedWorkload, &CachedWorkload) -> bool =
                match kind == Kind::Deployment.resource() {
                    true => |a, b| a.same_for_engine(b, TargetKind::Deployment),
                    false => |a, b| a.same_for_engine(b, TargetKind::DaemonSet),
                };
            let follow = |scope: Option<String>| {
                let stream = watcher(self.api(kind, scope.as_deref()), watcher::Config::default());
                spawn_reflector(
                    stream,
                    (convert::identity, is_same),
                    scope,
                    Arc::clone(&store),
                    sync.clone(),
                    self.request_for(kind),
                )
            };
            let tasks = scopes.into_iter().map(follow).collect();
            Reflector { store: StoreKind::Workloads(store), sync, _tasks: tasks }
        } else {
            let store =
                Arc::new(if *kind == pod_resource() { Store::with_label_index() } else { Store::default() });
            let follow = |scope: Option<String>| {
                let (store, sync, on_change) = (Arc::clone(&store), sync.clone(), self.request_for(kind));
                let config = watcher::Config::default();
                if is_metadata_only(kind) {
                    let api: Api<PartialObjectMeta<DynamicObject>> = self.api(kind, scope.as_deref());
                    return spawn_reflector(
                        watcher(api, config),
                        (metadata_only, always_differs),
                        scope,
                        store,
                        sync,
                        on_change,
                    );
                }
                let objects = watcher(self.api(kind, scope.as_deref()), config);
                match *kind == pod_resource() {
                    true => spawn_reflector(objects, projection_for(kind), scope, store, sync, |_, _| {}),
                    false => spawn_reflector(objects, projection_for(kind), scope, store, sync, on_change),
                }
            };
            let tasks = scopes.into_iter().map(follow).collect();
            Reflector { store: StoreKind::Objects(store), sync, _tasks: tasks }
        };
        let new = Arc::new(new);
        watched.insert(kind.clone(), Arc::clone(&new));
        new
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
        let (index, requests, kind) = (Arc::clone(&self.index), self.requests.clone(), kind.clone());
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

impl SyncState {
    fn new(lists: usize, telemetry: &Arc<Telemetry>) -> Self {
        let lists_pending = Arc::new(AtomicUsize::new(lists));
        Self {
            lists_pending,
            synced: Arc::default(),
            last_error: Arc::default(),
            telemetry: Arc::clone(telemetry),
        }
    }

    /// One more list has come.
    fn list_done(&self) {
        if self.lists_pending.fetch_sub(1, Ordering::AcqRel) == 1 {
            // Nobody else sees the last one come.
            let _ = self.synced.set(());
        }
    }

    fn is_synced(&self) -> bool {
        self.synced.initialized()
    }

    async fn wait(&self, kind: &str) -> Result<(), NotSynced> {
        match tokio::time::timeout(SYNC_TIMEOUT, self.synced.wait()).await {
            Ok(()) => Ok(()),
            Err(_) => Err(NotSynced { kind: kind.to_owned(), last_error: self.last_error.lock().clone() }),
        }
    }
}

fn count_release(canaries: &Store<CachedCanary>, limiter: &ReleaseLimiter, canary: &NamespacedName) {
    if limiter.is_enabled() {
        let cached = canaries.get(&canary.namespace, &canary.name);
        let readable = cached.as_ref().and_then(|cached| cached.canary());
        limiter.observe(canary, readable.and_then(|canary| canary.status.as_ref()));
    }
}

/// Goes through a list, page by page.
async fn for_each_page<K>(api: &Api<K>, mut apply: impl FnMut(K)) -> kube::Result<()>
where
    K: Clone + Debug + DeserializeOwned,
{
    let mut params = ListParams::default().limit(500);
    loop {
        let page = api.list(&params).await?;
        page.items.into_iter().for_each(&mut apply);
        match page.metadata.continue_ {
            Some(token) if !token.is_empty() => params = params.continue_token(&token),
            _ => return Ok(()),
        }
    }
}

/// Keeps a store as a watch says, and tells of every change that `is_same` does
/// not find to be none. What a write's answer has told already is not read.
fn spawn_reflector<T: Resource + Debug + Send + 'static, K: HasMeta + Send + Sync + 'static>(
    events: impl Stream<Item = watcher::Result<Event<T>>> + Send + 'static,
    (read, is_same): Projection<T, K>,
    scope: Option<String>,
    store: Arc<Store<K>>,
    sync: SyncState,
    on_change: impl Fn(Key, Option<ObjectVersion>) + Send + 'static,
) -> AbortOnDropHandle<()> {
    AbortOnDropHandle::new(tokio::spawn(async move {
        let mut events = pin!(events.default_backoff());
        let (mut listed, mut first) = (Vec::new(), true);
        while let Some(event) = events.next().await {
            match event {
                Err(error) => {
                    tracing::debug!(%error, "a watch broke; it starts again");
                    *sync.last_error.lock() = Some(error.to_string());
                    sync.telemetry.watch_restarts.inc([]);
                }
                Ok(Event::Init) => listed.clear(),
                Ok(Event::InitApply(object)) => listed.push(read(object)),
                Ok(Event::InitDone) => {
                    let changed = store.replace(scope.as_deref(), std::mem::take(&mut listed));
                    changed.into_iter().for_each(|key| on_change(key, None));
                    if std::mem::take(&mut first) {
                        sync.list_done();
                    }
                }
                Ok(Event::Apply(object)) => {
                    if store.is_outdated_by(object.meta()) {
                        let version = ObjectVersion::of(object.meta());
                        if let Some(key) = store.apply(read(object), is_same) {
                            on_change(key, Some(version));
                        }
                    }
                }
                Ok(Event::Delete(object)) => on_change(store.remove(object.meta()), None),
            }
        }
    }))
}
