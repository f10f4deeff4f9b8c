//! One reflector per kind and scope: a watch that keeps a store current and
//! requests a reconcile for each change.

use std::{
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
use tokio::sync::SetOnce;
use tokio_util::task::AbortOnDropHandle;

use super::{
    projection::Projection,
    store::{Key, Store},
};
use crate::{
    controller::queue::trigger::{HasMeta, ObjectVersion},
    telemetry::Telemetry,
    workload::CachedWorkload,
};

/// A reconcile waits this long for a first list; then it fails and is requeued.
const SYNC_TIMEOUT: Duration = Duration::from_secs(5);

/// Objects per page of a list.
const PAGE_LIMIT: u32 = 500;

/// A kind whose first list is not complete.
#[derive(Debug, thiserror::Error)]
#[error("the list of {kind} has not come yet{}", .last_error.as_ref().map(|why| format!(": {why}")).unwrap_or_default())]
pub struct NotSynced {
    kind: String,
    last_error: Option<String>,
}

/// The watches of one kind, and their store.
pub struct Reflector {
    pub store: StoreKind,
    pub sync: SyncState,
    pub _tasks: Vec<AbortOnDropHandle<()>>,
}

pub enum StoreKind {
    Objects(Arc<Store<DynamicObject>>),
    Workloads(Arc<Store<CachedWorkload>>),
}

/// Progress of the first lists of a kind, one per scope.
#[derive(Clone)]
pub struct SyncState {
    lists_pending: Arc<AtomicUsize>,
    /// Wakes waiters in the order they came, so that simulations replay.
    synced: Arc<SetOnce<()>>,
    last_error: Arc<Mutex<Option<String>>>,
    telemetry: Arc<Telemetry>,
}

impl SyncState {
    pub fn new(lists: usize, telemetry: &Arc<Telemetry>) -> Self {
        Self {
            lists_pending: Arc::new(AtomicUsize::new(lists)),
            synced: Arc::default(),
            last_error: Arc::default(),
            telemetry: Arc::clone(telemetry),
        }
    }

    fn list_done(&self) {
        if self.lists_pending.fetch_sub(1, Ordering::AcqRel) == 1 {
            // Only the last list gets here, so it is not set yet.
            let _ = self.synced.set(());
        }
    }

    pub fn is_synced(&self) -> bool {
        self.synced.initialized()
    }

    pub fn has_error(&self) -> bool {
        self.last_error.lock().is_some()
    }

    pub async fn wait(&self, kind: &str) -> Result<(), NotSynced> {
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
}

/// Runs one reflector: applies events to the store and calls `on_change` for each
/// change that the projection does not filter. Events older than the store, which
/// a write response has overtaken, are not decoded.
pub fn spawn_reflector<T: Resource + Debug + Send + 'static, K: HasMeta + Send + Sync + 'static>(
    events: impl Stream<Item = watcher::Result<Event<T>>> + Send + 'static,
    target: ReflectorTarget<T, K>,
    on_change: impl Fn(Key, Option<ObjectVersion>) + Send + 'static,
) -> AbortOnDropHandle<()> {
    let ReflectorTarget { projection: Projection { transform, same }, scope, store, sync } = target;
    AbortOnDropHandle::new(tokio::spawn(async move {
        let mut events = pin!(events.default_backoff());
        let (mut listed, mut is_first) = (Vec::new(), true);
        while let Some(event) = events.next().await {
            match event {
                Err(error) => {
                    tracing::debug!(%error, "a watch broke; it starts again");
                    *sync.last_error.lock() = Some(error.to_string());
                    sync.telemetry.watch_restarts.inc([]);
                }
                Ok(Event::Init) => listed.clear(),
                Ok(Event::InitApply(object)) => listed.push(transform(object)),
                Ok(Event::InitDone) => {
                    let changed = store.replace(scope.as_deref(), std::mem::take(&mut listed));
                    changed.into_iter().for_each(|key| on_change(key, None));
                    if std::mem::take(&mut is_first) {
                        sync.list_done();
                    }
                }
                Ok(Event::Apply(object)) => {
                    if store.is_outdated_by(object.meta()) {
                        let version = ObjectVersion::of(object.meta());
                        if let Some(key) = store.apply(transform(object), same) {
                            on_change(key, Some(version));
                        }
                    }
                }
                Ok(Event::Delete(object)) => on_change(store.remove(object.meta()), None),
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
