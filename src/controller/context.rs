//! The context of every reconcile and background task: clients, caches, limits,
//! and the state of each Canary.

use std::{collections::HashMap, sync::Arc, time::Duration};

use jiff::Timestamp;
use kube::Client;
use parking_lot::{Mutex, RwLock};
use tokio::{
    sync::{Semaphore, mpsc},
    time::{Instant, sleep},
};

use super::{
    Environment, Options, StartError,
    background::{
        TaskGroup,
        inventory::InventoryWatch,
        pools::{Pools, TaskKind},
        publish::thread_recorder,
        served_kinds_watch::ServedKindsWatch,
        xds::XdsServer,
    },
    cache::{Caches, ChangeHandlers, raw_canary::CachedCanary, references::ReferenceIndex},
    queue::trigger::{NamespacedName, ObjectVersion, ReconcileRequest, RequestSender},
    reconcile::state::CanaryState,
    release_limiter::ReleaseLimiter,
    shard::fence::{Fence, ShardOwnership},
};
use crate::{
    clock::{Clock, StepDetector},
    discovery::live::LiveInventory,
    gates::webhook::Webhooks,
    metrics::Sources,
    notify::{self, Outbox},
    routing::{self, Router, ServedKinds},
    telemetry::{ControllerView, Telemetry},
    workload,
};

/// Events that are written at a time. Writes that move traffic go first: when
/// many releases move at once, the API server is what they wait for.
const MAX_EVENT_WRITES: usize = 8;

/// How long the events of a deleted Canary may still be published.
const PUBLISHING_GRACE: Duration = Duration::from_secs(10);

/// A requeue time in the past means now, but not sooner than this.
const MIN_REQUEUE_DELAY: Duration = Duration::from_millis(20);

pub struct Context {
    pub client: Client,
    pub clock: Clock,
    pub clock_steps: StepDetector,
    pub options: Options,
    pub telemetry: Arc<Telemetry>,
    pub workload_options: Arc<workload::Options>,
    pub served: RwLock<ServedKinds>,
    pub served_kinds_watch: ServedKindsWatch,
    pub inventory: Arc<LiveInventory>,
    pub inventory_watch: InventoryWatch,
    /// None if the controller configures no Envoys.
    pub xds: Option<XdsServer>,
    /// None if this build has no AWS client.
    pub app_mesh: Option<Arc<dyn Router>>,
    pub sources: Sources,
    pub webhooks: Webhooks,
    pub outbox: Outbox,
    pub references: Arc<ReferenceIndex>,
    pub caches: Caches,
    pub limiter: Arc<ReleaseLimiter>,
    pub states: Mutex<HashMap<NamespacedName, Arc<CanaryState>>>,
    pub requests: RequestSender,
    pub fence: Fence,
    /// One per shard.
    pub task_groups: Vec<TaskGroup>,
    pub pools: Pools,
    pub event_permits: Arc<Semaphore>,
}

impl Context {
    pub async fn new(
        Environment { client, clock, fetch, telemetry, inventory, xds }: Environment,
        mut fence: Fence,
        options: Options,
    ) -> Result<(Self, mpsc::UnboundedReceiver<ReconcileRequest>), StartError> {
        let served = RwLock::new(ServedKinds::discover(&client).await?);
        let (requests, incoming) = RequestSender::new();
        let webhooks = match &options.webhooks {
            Some(webhooks) => webhooks.clone(),
            None => Webhooks::new(&options.tenancy.addresses)?,
        };
        let outbox = notify::Options {
            counters: Arc::clone(&telemetry.notifications),
            addresses: options.tenancy.addresses.clone(),
            recorder: Some(thread_recorder(client.clone(), fence.clone())),
            ..notify::Options::default()
        };
        let sources = Sources::new(fetch).with_addresses(options.tenancy.addresses.clone());
        let limiter = Arc::new(ReleaseLimiter::new(options.max_releases, requests.clone()));
        let references = Arc::<ReferenceIndex>::default();
        let handlers = ChangeHandlers {
            references: Arc::clone(&references),
            requests: requests.clone(),
            clock,
            observe_canary: {
                let limiter = Arc::clone(&limiter);
                Arc::new(move |canary, status| limiter.observe(canary, status))
            },
            inventory: Arc::clone(&inventory),
            catalog: xds.as_ref().map(|server| Arc::clone(&server.objects)),
        };
        let caches = Caches::new(client.clone(), &options.namespaces, handlers, Arc::clone(&telemetry));
        let may_write = {
            let fence = fence.clone();
            move |namespace: &str, name: &str| {
                let canary = NamespacedName { namespace: namespace.to_owned(), name: name.to_owned() };
                fence.check(&canary).is_ok()
            }
        };
        let ctx = Self {
            app_mesh: routing::app_mesh(&options.app_mesh, Arc::new(may_write)),
            client,
            clock_steps: StepDetector::new(clock),
            clock,
            telemetry,
            workload_options: Arc::new(options.workload.clone()),
            options,
            served,
            served_kinds_watch: ServedKindsWatch::default(),
            inventory,
            inventory_watch: InventoryWatch::default(),
            xds,
            sources,
            webhooks,
            outbox: Outbox::new(outbox)?,
            references,
            caches,
            limiter,
            states: Mutex::default(),
            requests,
            task_groups: fence.owned_shards().iter().map(|_| TaskGroup::default()).collect(),
            fence,
            pools: Pools::default(),
            event_permits: Arc::new(Semaphore::new(MAX_EVENT_WRITES)),
        };
        Ok((ctx, incoming))
    }

    /// The state of a Canary; a new one if the Canary was recreated.
    pub fn state_of(&self, canary: &NamespacedName, uid: Option<String>) -> Arc<CanaryState> {
        let mut states = self.states.lock();
        if let Some(state) = states.get(canary).filter(|state| state.uid == uid) {
            return Arc::clone(state);
        }
        self.sources.forget(&canary.namespace, &canary.name);
        let state = Arc::new(CanaryState::new(uid));
        if let Some(replaced) = states.insert(canary.clone(), Arc::clone(&state)) {
            replaced.results.lock().cancellation().cancel();
        }
        state
    }

    /// Drops everything that is kept for a Canary, and cancels its background
    /// tasks.
    pub fn forget(&self, canary: &NamespacedName) {
        if let Some(state) = self.states.lock().remove(canary) {
            state.results.lock().cancellation().cancel();
        }
        self.references.remove(canary);
        self.served_kinds_watch.remove(canary);
        self.inventory_watch.followers.remove(canary);
        self.telemetry.forget(canary);
        self.sources.forget(&canary.namespace, &canary.name);
    }

    /// Passes the cached status of a Canary to the release limiter.
    pub fn observe_release(&self, canary: &NamespacedName) {
        if self.limiter.is_enabled() {
            self.caches.observe_status(canary);
        }
    }

    /// False for the version that the Canary's own write made.
    pub fn is_foreign_change(&self, canary: &NamespacedName, version: &ObjectVersion) -> bool {
        let state = self.states.lock().get(canary).cloned();
        !state.is_some_and(|state| state.own_writes.lock().contains(version))
    }

    pub fn requeue_instant(&self, at: Timestamp) -> Instant {
        let wait = Duration::try_from(at.duration_since(self.clock.now())).unwrap_or_default();
        Instant::now() + wait.max(MIN_REQUEUE_DELAY)
    }

    /// The background tasks of a Canary's shard.
    pub fn tasks_of(&self, canary: &NamespacedName) -> &TaskGroup {
        &self.task_groups[self.fence.shard_of(canary)]
    }

    /// Runs `work` in the background, when it is the Canary's turn, until `cancelled`
    /// completes, the shard is released or the controller stops. False, and counted
    /// as dropped, if too much of this kind waits for the Canary already.
    #[must_use]
    pub fn in_background<W>(
        self: &Arc<Self>,
        kind: TaskKind,
        canary: &NamespacedName,
        cancelled: impl Future<Output = ()> + Send + 'static,
        work: impl FnOnce(Arc<Self>) -> W + Send + 'static,
    ) -> bool
    where
        W: Future<Output = ()> + Send + 'static,
    {
        let Some(place) = self.pools.of(kind).enter(&canary.namespace, &canary.name) else {
            self.telemetry.dropped_tasks.inc([kind.name().into()]);
            return false;
        };
        let ctx = Arc::clone(self);
        self.tasks_of(canary).spawn_cancellable(async move {
            let work = async {
                if let Ok(_turn) = place.turn().await {
                    work(ctx).await;
                }
            };
            tokio::select! {
                // In this order, so that simulations replay.
                biased;
                () = cancelled => {}
                () = work => {}
            }
        });
        true
    }

    /// Completes some time after the Canary is deleted, so that the last events are
    /// still published.
    pub fn end_of_publishing(&self, canary: &NamespacedName) -> impl Future<Output = ()> + Send + use<> {
        let cancellation = self.states.lock().get(canary).map(|state| state.results.lock().cancellation());
        async move {
            cancellation.unwrap_or_default().cancelled().await;
            sleep(PUBLISHING_GRACE).await;
        }
    }
}

impl ControllerView for Context {
    fn canaries(&self) -> Vec<(NamespacedName, Arc<CachedCanary>)> {
        let held = |canary: Arc<CachedCanary>| {
            let name = NamespacedName::of(&*canary);
            self.fence.check(&name).is_ok().then_some((name, canary))
        };
        self.caches.canaries.list_all().into_iter().filter_map(held).collect()
    }

    fn held_shards(&self) -> usize {
        let shards = self.fence.clone().owned_shards();
        shards.into_iter().filter(|shard| *shard != ShardOwnership::NotHeld).count()
    }

    fn pending_syncs(&self) -> Vec<String> {
        self.caches.pending_syncs()
    }
}
