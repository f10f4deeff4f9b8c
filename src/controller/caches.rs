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
    CanaryName,
    index::Index,
    kept::{Reading, has_data, pods, reading, without_data},
    table::{Held, Key, Table, differ},
    told::{Row, Told},
    turns::Turns,
    vitals::Vitals,
    wake::{Version, Waker},
};
use crate::{
    api::{ClusterAnalysisTemplate, canary::TargetKind},
    routing,
    workload::{self, Kind, Snapshot},
};

/// A list that takes longer is not waited for; whoever needs it tries again.
const PATIENCE: Duration = Duration::from_secs(5);

/// A kind that cannot be watched.
#[derive(Debug, thiserror::Error)]
#[error("the list of {kind} has not come yet{}", .trouble.as_ref().map(|why| format!(": {why}")).unwrap_or_default())]
pub struct Unsynced {
    kind: String,
    trouble: Option<String>,
}

pub struct Caches {
    client: Client,
    /// Namespaces, or none for all of them.
    scopes: Vec<Option<String>>,
    pub canaries: Arc<Table<Row>>,
    canaries_sync: Sync,
    watched: Mutex<HashMap<ApiResource, Arc<Watched>>>,
    index: Arc<Index>,
    waker: Waker,
    turns: Arc<Turns>,
    vitals: Arc<Vitals>,
}

struct Watched {
    rows: Rows,
    sync: Sync,
    _tasks: Vec<AbortOnDropHandle<()>>,
}

enum Rows {
    Objects(Arc<Table<DynamicObject>>),
    Workloads(Arc<Table<Snapshot>>),
}

/// How far the first lists have come.
#[derive(Clone)]
struct Sync {
    missing: Arc<AtomicUsize>,
    /// Wakes who waits in the order they came: simulations replay.
    synced: Arc<SetOnce<()>>,
    trouble: Arc<Mutex<Option<String>>>,
    vitals: Arc<Vitals>,
}

impl Caches {
    pub fn new(
        client: Client,
        namespaces: &[String],
        index: Arc<Index>,
        waker: Waker,
        turns: Arc<Turns>,
        vitals: Arc<Vitals>,
    ) -> Self {
        let scopes = match namespaces {
            [] => vec![None],
            some => some.iter().cloned().map(Some).collect(),
        };
        let canaries_sync = Sync::of(scopes.len(), &vitals);
        Self {
            client,
            scopes,
            canaries: Arc::default(),
            canaries_sync,
            watched: Mutex::default(),
            index,
            waker,
            turns,
            vitals,
        }
    }

    /// Follows the Canaries themselves, until dropped.
    pub fn follow_canaries(&self) -> Vec<AbortOnDropHandle<()>> {
        let sync = &self.canaries_sync;
        let follow = |scope: &Option<String>| {
            let (canaries, turns, waker) =
                (Arc::clone(&self.canaries), Arc::clone(&self.turns), self.waker.clone());
            let tell = move |(namespace, name): Key, told| {
                let canary = CanaryName { namespace, name };
                count_release(&canaries, &turns, &canary);
                waker.tell(canary, told);
            };
            let stream = watcher(self.canaries_in(scope), watcher::Config::default());
            let (table, sync) = (Arc::clone(&self.canaries), sync.clone());
            spawn(stream, (Told::read, differ), scope.clone(), table, sync, tell)
        };
        self.scopes.iter().map(follow).collect()
    }

    /// Until the first lists of Canaries have come.
    pub async fn know_canaries(&self) -> Result<(), Unsynced> {
        self.canaries_sync.done("canaries").await
    }

    /// A Canary that was written may be under way by now, or not any more.
    pub fn count_release(&self, canary: &CanaryName) {
        count_release(&self.canaries, &self.turns, canary);
    }

    /// Takes in every known object as it is now: the watches may be behind, and
    /// will tell nothing new then. A Canary must not be decided on a target that
    /// is older than its status.
    pub async fn refresh(&self) -> kube::Result<()> {
        for scope in &self.scopes {
            let take_in = |canary: Told| {
                if let Some((namespace, name)) = self.canaries.put_answer(canary.read()) {
                    let name = CanaryName { namespace, name };
                    self.count_release(&name);
                    self.waker.wake(name);
                }
            };
            each(&self.canaries_in(scope), take_in).await?;
        }
        let watched = self.watched.lock().clone();
        // In an order, so that simulations replay.
        let watched: BTreeMap<_, _> = watched
            .into_iter()
            .filter(|(kind, watched)| *kind != pods() && watched.sync.is_done())
            .map(|(kind, watched)| ((kind.api_version.clone(), kind.kind.clone()), (kind, watched)))
            .collect();
        for (kind, watched) in watched.values() {
            match self.list_again(kind, &watched.rows).await {
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

    async fn list_again(&self, kind: &ApiResource, rows: &Rows) -> kube::Result<()> {
        let tell = self.tell(kind);
        let tell = |key| tell(key, None);
        for scope in self.scopes_of(kind) {
            let scope = scope.as_deref();
            match rows {
                Rows::Workloads(table) => {
                    let take_in = |object| table.put_answer(object).into_iter().for_each(&tell);
                    each(&self.api::<Snapshot>(kind, scope), take_in).await?;
                }
                Rows::Objects(table) if has_data(kind) => {
                    let take_in = |object| table.put_answer(without_data(object)).into_iter().for_each(&tell);
                    each(&self.api(kind, scope), take_in).await?;
                }
                Rows::Objects(table) => {
                    let (read, _) = reading(kind);
                    let take_in = |object| table.put_answer(read(object)).into_iter().for_each(&tell);
                    each(&self.api(kind, scope), take_in).await?;
                }
            }
        }
        Ok(())
    }

    fn canaries_in(&self, scope: &Option<String>) -> Api<Told> {
        match scope {
            Some(namespace) => Api::namespaced(self.client.clone(), namespace),
            None => Api::all(self.client.clone()),
        }
    }

    /// Makes sure that a kind is watched, and that its first list has come.
    pub async fn need(&self, kind: &ApiResource) -> Result<(), Unsynced> {
        let sync = self.watched(kind).sync.clone();
        sync.done(&kind.plural).await
    }

    /// First lists that have not come yet. A kind that cannot be listed is the
    /// trouble of those who need it; without the Canaries nothing can be done.
    pub fn on_their_way(&self) -> Vec<String> {
        let late = |kind: &str, sync: &Sync| {
            let trouble = sync.trouble.lock().clone();
            Unsynced { kind: kind.to_owned(), trouble }.to_string()
        };
        let canaries = (!self.canaries_sync.is_done()).then(|| late("canaries", &self.canaries_sync));
        let watched = self.watched.lock();
        let others = watched
            .iter()
            .filter(|(_, watched)| !watched.sync.is_done() && watched.sync.trouble.lock().is_none());
        let mut others: Vec<_> = others.map(|(kind, watched)| late(&kind.plural, &watched.sync)).collect();
        others.sort();
        canaries.into_iter().chain(others).collect()
    }

    pub fn workload(&self, kind: Kind, namespace: &str, name: &str) -> Option<Arc<Snapshot>> {
        let watched = self.watched.lock().get(kind.resource()).cloned()?;
        match &watched.rows {
            Rows::Workloads(table) => table.get(namespace, name),
            // Services are held whole, since routers write them.
            Rows::Objects(table) => {
                let object = table.get(namespace, name)?;
                serde_json::to_value(&*object).and_then(serde_json::from_value).ok().map(Arc::new)
            }
        }
    }

    /// Takes in what the API server answered to a write, and says its version
    /// if that is known now.
    pub fn learn_workload(&self, kind: Kind, written: Snapshot) -> Option<Version> {
        let watched = self.watched.lock().get(kind.resource()).cloned()?;
        match &watched.rows {
            Rows::Workloads(table) => Some(Version::of(table.learn(written, convert::identity)?.meta())),
            Rows::Objects(_) => None,
        }
    }

    /// The same for everything else.
    pub fn learn_object(&self, kind: &ApiResource, written: DynamicObject) -> Option<Version> {
        Some(Version::of(self.objects(kind)?.learn(written, convert::identity)?.meta()))
    }

    pub fn object(&self, kind: &ApiResource, namespace: &str, name: &str) -> Option<Arc<DynamicObject>> {
        self.objects(kind)?.get(namespace, name)
    }

    /// Stays the same for as long as all objects of a kind in a namespace do.
    pub fn state(&self, kind: &ApiResource, namespace: &str) -> u64 {
        self.objects(kind).map(|table| table.state(namespace)).unwrap_or_default()
    }

    pub fn all(&self, kind: &ApiResource, namespace: &str) -> Vec<Arc<DynamicObject>> {
        self.objects(kind).map(|table| table.all(namespace)).unwrap_or_default()
    }

    /// The pods that have all of these labels, of which there must be some.
    pub fn pods(&self, namespace: &str, labels: &BTreeMap<String, String>) -> Vec<Arc<DynamicObject>> {
        self.objects(&pods()).map(|table| table.selected(namespace, labels)).unwrap_or_default()
    }

    /// What a workload sees of one namespace.
    pub fn of(&self, namespace: &str) -> InNamespace<'_> {
        InNamespace { caches: self, namespace: namespace.to_owned() }
    }

    fn objects(&self, kind: &ApiResource) -> Option<Arc<Table<DynamicObject>>> {
        match &self.watched.lock().get(kind)?.rows {
            Rows::Objects(table) => Some(Arc::clone(table)),
            Rows::Workloads(_) => None,
        }
    }

    fn watched(&self, kind: &ApiResource) -> Arc<Watched> {
        let mut watched = self.watched.lock();
        if let Some(known) = watched.get(kind) {
            return Arc::clone(known);
        }
        let scopes = self.scopes_of(kind);
        let sync = Sync::of(scopes.len(), &self.vitals);
        let new = if kind == Kind::Deployment.resource() || kind == Kind::DaemonSet.resource() {
            let table = Arc::<Table<Snapshot>>::default();
            let is_same: fn(&Snapshot, &Snapshot) -> bool = match kind == Kind::Deployment.resource() {
                true => |a, b| a.is_same(b, TargetKind::Deployment),
                false => |a, b| a.is_same(b, TargetKind::DaemonSet),
            };
            let follow = |scope: Option<String>| {
                let stream = watcher(self.api(kind, scope.as_deref()), watcher::Config::default());
                spawn(
                    stream,
                    (convert::identity, is_same),
                    scope,
                    Arc::clone(&table),
                    sync.clone(),
                    self.tell(kind),
                )
            };
            let tasks = scopes.into_iter().map(follow).collect();
            Watched { rows: Rows::Workloads(table), sync, _tasks: tasks }
        } else {
            let table = Arc::new(if *kind == pods() { Table::by_label() } else { Table::default() });
            let follow = |scope: Option<String>| {
                let (table, sync, tell) = (Arc::clone(&table), sync.clone(), self.tell(kind));
                let config = watcher::Config::default();
                if has_data(kind) {
                    let api: Api<PartialObjectMeta<DynamicObject>> = self.api(kind, scope.as_deref());
                    return spawn(watcher(api, config), (without_data, differ), scope, table, sync, tell);
                }
                let objects = watcher(self.api(kind, scope.as_deref()), config);
                match *kind == pods() {
                    true => spawn(objects, reading(kind), scope, table, sync, |_, _| {}),
                    false => spawn(objects, reading(kind), scope, table, sync, tell),
                }
            };
            let tasks = scopes.into_iter().map(follow).collect();
            Watched { rows: Rows::Objects(table), sync, _tasks: tasks }
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

    fn tell(&self, kind: &ApiResource) -> impl Fn(Key, Option<Version>) + Send + 'static {
        let (index, waker, kind) = (Arc::clone(&self.index), self.waker.clone(), kind.clone());
        move |(namespace, name), told| {
            let concerned = index.concerned(&kind, &namespace, &name);
            concerned.into_iter().for_each(|canary| waker.tell(canary, told.clone()));
        }
    }
}

impl routing::Lookup for Caches {
    fn get(&self, kind: &ApiResource, namespace: &str, name: &str) -> Option<Arc<DynamicObject>> {
        self.object(kind, namespace, name)
    }
}

pub struct InNamespace<'a> {
    caches: &'a Caches,
    namespace: String,
}

impl workload::Cache for InNamespace<'_> {
    fn get(&self, kind: Kind, name: &str) -> Option<Arc<DynamicObject>> {
        self.caches.object(kind.resource(), &self.namespace, name)
    }

    fn all(&self, kind: Kind) -> Vec<Arc<DynamicObject>> {
        self.caches.all(kind.resource(), &self.namespace)
    }
}

impl Sync {
    fn of(lists: usize, vitals: &Arc<Vitals>) -> Self {
        let missing = Arc::new(AtomicUsize::new(lists));
        Self { missing, synced: Arc::default(), trouble: Arc::default(), vitals: Arc::clone(vitals) }
    }

    /// One more list has come.
    fn listed(&self) {
        if self.missing.fetch_sub(1, Ordering::AcqRel) == 1 {
            // Nobody else sees the last one come.
            let _ = self.synced.set(());
        }
    }

    fn is_done(&self) -> bool {
        self.synced.initialized()
    }

    async fn done(&self, kind: &str) -> Result<(), Unsynced> {
        match tokio::time::timeout(PATIENCE, self.synced.wait()).await {
            Ok(()) => Ok(()),
            Err(_) => Err(Unsynced { kind: kind.to_owned(), trouble: self.trouble.lock().clone() }),
        }
    }
}

fn count_release(canaries: &Table<Row>, turns: &Turns, canary: &CanaryName) {
    if turns.are_limited() {
        let row = canaries.get(&canary.namespace, &canary.name);
        let readable = row.as_ref().and_then(|row| row.canary());
        turns.see(canary, readable.and_then(|canary| canary.status.as_ref()));
    }
}

/// Goes through a list, page by page.
async fn each<K>(api: &Api<K>, mut take_in: impl FnMut(K)) -> kube::Result<()>
where
    K: Clone + Debug + DeserializeOwned,
{
    let mut params = ListParams::default().limit(500);
    loop {
        let page = api.list(&params).await?;
        page.items.into_iter().for_each(&mut take_in);
        match page.metadata.continue_ {
            Some(token) if !token.is_empty() => params = params.continue_token(&token),
            _ => return Ok(()),
        }
    }
}

/// Keeps a table as a watch says, and tells of every change that `is_same` does
/// not find to be none. What a write's answer has told already is not read.
fn spawn<T: Resource + Debug + Send + 'static, K: Held + Send + core::marker::Sync + 'static>(
    events: impl Stream<Item = watcher::Result<Event<T>>> + Send + 'static,
    (read, is_same): Reading<T, K>,
    scope: Option<String>,
    table: Arc<Table<K>>,
    sync: Sync,
    tell: impl Fn(Key, Option<Version>) + Send + 'static,
) -> AbortOnDropHandle<()> {
    AbortOnDropHandle::new(tokio::spawn(async move {
        let mut events = pin!(events.default_backoff());
        let (mut listed, mut first) = (Vec::new(), true);
        while let Some(event) = events.next().await {
            match event {
                Err(error) => {
                    tracing::debug!(%error, "a watch broke; it starts again");
                    *sync.trouble.lock() = Some(error.to_string());
                    sync.vitals.watch_restarts.add([]);
                }
                Ok(Event::Init) => listed.clear(),
                Ok(Event::InitApply(object)) => listed.push(read(object)),
                Ok(Event::InitDone) => {
                    let changed = table.replace(scope.as_deref(), std::mem::take(&mut listed));
                    changed.into_iter().for_each(|key| tell(key, None));
                    if std::mem::take(&mut first) {
                        sync.listed();
                    }
                }
                Ok(Event::Apply(object)) => {
                    if table.lacks(object.meta()) {
                        let version = Version::of(object.meta());
                        if let Some(key) = table.put(read(object), is_same) {
                            tell(key, Some(version));
                        }
                    }
                }
                Ok(Event::Delete(object)) => tell(table.remove(object.meta()), None),
            }
        }
    }))
}
