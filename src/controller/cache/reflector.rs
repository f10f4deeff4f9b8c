//! One reflector per kind and scope: a watch that keeps a store current and
//! requests a reconcile for each change; the inventory and the service catalog get a copy
//! of every event where they are wanted.

use std::{collections::BTreeSet, fmt::Debug, pin::pin, sync::Arc, time::Duration};

use futures::{Stream, StreamExt as _};
use kube::{
    Api, Resource,
    api::ListParams,
    core::DynamicObject,
    runtime::{
        WatchStreamExt as _,
        watcher::{self, Event},
    },
};
use parking_lot::Mutex;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::sync::SetOnce;
use tokio_util::task::AbortOnDropHandle;

use super::{
    projection::Projection,
    store::{Key, Store},
};
use crate::{
    api_error::watch_error,
    catalog::kubernetes,
    controller::queue::trigger::{HasMeta, ObjectVersion},
    discovery::live,
    telemetry::Telemetry,
    workload::CachedWorkload,
};

/// A reconcile waits this long for a first list; then it fails and is requeued.
const SYNC_TIMEOUT: Duration = Duration::from_secs(5);

/// Objects per page of a list.
const PAGE_LIMIT: u32 = 500;

/// A kind whose first list is not complete.
#[derive(Debug, thiserror::Error)]
#[error("{}", .last_error.as_ref().map_or_else(
    || format!("the list of {kind} has not come yet"),
    |why| format!("cannot watch {kind}: {}", why.message),
))]
pub struct NotSynced {
    pub kind: String,
    last_error: Option<WatchError>,
}

impl NotSynced {
    /// A list or a watch was answered with an error.
    pub fn has_failed(&self) -> bool {
        self.last_error.is_some()
    }

    /// The API server refuses the watch.
    pub fn is_refused(&self) -> bool {
        self.last_error.as_ref().is_some_and(|why| why.refused)
    }
}

/// Why a watch broke.
#[derive(Clone, Debug)]
struct WatchError {
    message: String,
    refused: bool,
}

/// The watches of one kind, and their store.
pub struct Reflector {
    pub store: StoreKind,
    pub sync: SyncState,
    /// Dropped, they end.
    pub tasks: Mutex<Vec<AbortOnDropHandle<()>>>,
}

pub enum StoreKind {
    Objects(Arc<Store<DynamicObject>>),
    Workloads(Arc<Store<CachedWorkload>>),
}

/// Progress of the first lists of a kind, one per scope.
#[derive(Clone)]
pub struct SyncState {
    /// A namespace, or none for all of them.
    scopes_pending: Arc<Mutex<BTreeSet<Option<String>>>>,
    /// Wakes waiters in the order they came, so that simulations replay.
    synced: Arc<SetOnce<()>>,
    last_error: Arc<Mutex<Option<WatchError>>>,
    telemetry: Arc<Telemetry>,
}

impl SyncState {
    pub fn new(scopes: Vec<Option<String>>, telemetry: &Arc<Telemetry>) -> Self {
        Self {
            scopes_pending: Arc::new(Mutex::new(scopes.into_iter().collect())),
            synced: Arc::default(),
            last_error: Arc::default(),
            telemetry: Arc::clone(telemetry),
        }
    }

    fn list_done(&self, scope: &Option<String>) {
        let mut pending = self.scopes_pending.lock();
        pending.remove(scope);
        if pending.is_empty() {
            // A list that is repeated sets it again.
            let _ = self.synced.set(());
        }
    }

    /// Completes after the first lists.
    pub async fn synced(&self) {
        self.synced.wait().await;
    }

    pub fn is_synced(&self) -> bool {
        self.synced.initialized()
    }

    pub fn has_error(&self) -> bool {
        self.last_error.lock().is_some()
    }

    /// Returns at once if the API server refuses the watch.
    pub async fn wait(&self, kind: &str) -> Result<(), NotSynced> {
        if !self.is_synced() {
            let pending = self.not_synced(kind);
            if pending.is_refused() {
                return Err(pending);
            }
        }
        tokio::time::timeout(SYNC_TIMEOUT, self.synced.wait())
            .await
            .map_err(|_| self.not_synced(kind))
            .map(drop)
    }

    pub fn not_synced(&self, kind: &str) -> NotSynced {
        NotSynced { kind: kind.to_owned(), last_error: self.last_error.lock().clone() }
    }
}

/// What a reflector keeps current, and how.
pub struct ReflectorTarget<T, K> {
    pub projection: Projection<T, K>,
    /// A namespace, or none for all of them.
    pub scope: Option<String>,
    pub store: Arc<Store<K>>,
    pub sync: SyncState,
    pub taps: ObjectTaps<T>,
}

/// Shows the manifest of an object to a reader; the object is the same afterwards.
pub type ShowManifest<T> = fn(&mut T, &mut dyn FnMut(&Value));

/// A reader of every event of a reflector, before it is projected.
pub enum Tap {
    Inventory(live::Tap),
    Catalog(kubernetes::Tap),
}

impl Tap {
    fn list_started(&mut self) {
        match self {
            Self::Inventory(tap) => tap.list_started(),
            Self::Catalog(tap) => tap.list_started(),
        }
    }

    fn listed(&mut self, manifest: &Value) {
        match self {
            Self::Inventory(tap) => tap.listed(manifest),
            Self::Catalog(tap) => tap.listed(manifest),
        }
    }

    fn list_completed(&mut self) {
        match self {
            Self::Inventory(tap) => tap.list_completed(),
            Self::Catalog(tap) => tap.list_completed(),
        }
    }

    fn applied(&mut self, manifest: &Value) {
        match self {
            Self::Inventory(tap) => tap.applied(manifest),
            Self::Catalog(tap) => tap.applied(manifest),
        }
    }

    fn deleted(&mut self, manifest: &Value) {
        match self {
            Self::Inventory(tap) => tap.deleted(manifest),
            Self::Catalog(tap) => tap.deleted(manifest),
        }
    }
}

/// The taps of a reflector, and how they read an object of this type.
pub struct ObjectTaps<T> {
    pub taps: Vec<Tap>,
    pub manifest: ShowManifest<T>,
}

impl<T> ObjectTaps<T> {
    fn read(&mut self, object: &mut T, read: fn(&mut Tap, &Value)) {
        let Self { taps, manifest } = self;
        if !taps.is_empty() {
            manifest(object, &mut |manifest| taps.iter_mut().for_each(|tap| read(tap, manifest)));
        }
    }
}

/// Runs one reflector: applies events to the store and calls `on_change` for each
/// change that the projection does not filter. Events older than the store, which
/// a write response has overtaken, are not decoded.
pub fn spawn_reflector<T: Resource + Debug + Send + 'static, K: HasMeta + Send + Sync + 'static>(
    events: impl Stream<Item = watcher::Result<Event<T>>> + Send + 'static,
    target: ReflectorTarget<T, K>,
    on_change: impl Fn(Key, Option<ObjectVersion>) + Send + 'static,
) -> AbortOnDropHandle<()> {
    let ReflectorTarget { projection: Projection { transform, same }, scope, store, sync, mut taps } = target;
    AbortOnDropHandle::new(tokio::spawn(async move {
        let mut events = pin!(events.default_backoff());
        let mut listed = Vec::new();
        while let Some(event) = events.next().await {
            match event {
                Err(error) => {
                    tracing::debug!(%error, "a watch broke; it starts again");
                    let (message, refused) = watch_error(&error);
                    *sync.last_error.lock() = Some(WatchError { message, refused });
                    sync.telemetry.watch_restarts.inc([]);
                }
                Ok(Event::Init) => {
                    listed.clear();
                    taps.taps.iter_mut().for_each(Tap::list_started);
                }
                Ok(Event::InitApply(mut object)) => {
                    taps.read(&mut object, Tap::listed);
                    listed.push(transform(object));
                }
                Ok(Event::InitDone) => {
                    let changed = store.replace(scope.as_deref(), std::mem::take(&mut listed));
                    changed.into_iter().for_each(|key| on_change(key, None));
                    taps.taps.iter_mut().for_each(Tap::list_completed);
                    sync.list_done(&scope);
                }
                Ok(Event::Apply(mut object)) => {
                    taps.read(&mut object, Tap::applied);
                    if store.is_outdated_by(object.meta()) {
                        let version = ObjectVersion::of(object.meta());
                        if let Some(key) = store.apply(transform(object), same) {
                            on_change(key, Some(version));
                        }
                    }
                }
                Ok(Event::Delete(mut object)) => {
                    taps.read(&mut object, Tap::deleted);
                    on_change(store.remove(object.meta()), None);
                }
            }
        }
    }))
}

/// Lists all objects, page by page.
pub async fn for_each_page<K>(api: &Api<K>, mut apply: impl FnMut(K)) -> kube::Result<()>
where
    K: Clone + Debug + DeserializeOwned,
{
    let mut params = ListParams::default().limit(PAGE_LIMIT);
    loop {
        let page = api.list(&params).await?;
        page.items.into_iter().for_each(&mut apply);
        match page.metadata.continue_ {
            Some(token) if !token.is_empty() => params = params.continue_token(&token),
            _ => return Ok(()),
        }
    }
}
