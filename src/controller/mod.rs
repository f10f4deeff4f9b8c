//! The controller: observe → decide → act → record, on kube.
//!
//! ```text
//!   watches ──▶ caches ──▶ index: whom does it concern? ──▶ work_queue ──▶ reconcile
//!                                                            ▲  ▲         │
//!                                  alarms (one per Canary) ──┘  │         ▼
//!                                  answers, from the background ─┘◀─ understand, observe,
//!                                                                   decide, act, record
//! ```
//!
//! What it promises:
//!
//! - **Idle costs nothing.** Everything is observed from caches that watches
//!   keep; a Canary at rest has no alarm and sends no request.
//! - **One event, one lookup.** A changed object wakes the Canaries it concerns
//!   and looks at no other.
//! - **One Canary's trouble is its own.** Each is reconciled by itself, never
//!   twice at a time; failures wait longer each time; a source or server that
//!   hangs holds up nobody else.
//! - **Nothing is remembered that matters.** All memory is in the status; what
//!   is lost with the process is asked for again.
//! - **One writer.** Of several replicas only the one that holds a Canary's
//!   shard writes for it, and every status is written against the version it
//!   was decided on.

mod assignment;
mod caches;
mod dispatcher;
pub mod fence;
mod gate_call;
mod invalid;
mod label_index;
mod measure;
pub mod membership;
mod observe;
mod perform;
mod projection;
mod publish;
mod raw_canary;
mod reconcile;
mod references;
mod release_limiter;
mod resolve;
mod route_migration;
mod shard_tasks;
mod state;
mod status;
mod store;
mod trigger;
pub mod vitals;

use std::{collections::HashMap, panic::AssertUnwindSafe, pin::pin, sync::Arc, time::Duration};

use futures::{FutureExt as _, future::join_all};
use jiff::Timestamp;
use kube::Client;
use parking_lot::{Mutex, RwLock};
use tokio::{
    sync::{Semaphore, mpsc},
    task::JoinSet,
    time::{Instant, sleep_until, timeout},
};
use tokio_util::sync::CancellationToken;

use crate::{
    api::canary::Provider,
    clock::Clock,
    gates::{self, webhook::Webhooks},
    metrics::{Sources, scrape::Fetch},
    notify::{self, Outbox},
    routing::{self, AppMeshOptions, Router, ServedKinds},
    workload,
};
use caches::Caches;
use dispatcher::Dispatcher;
use fence::Fence;
use membership::ReplicaConfig;
pub use raw_canary::CachedCanary;
use references::ReferenceIndex;
use release_limiter::ReleaseLimiter;
use shard_tasks::TaskGroup;
use state::CanaryState;
pub use store::HasMeta;
use trigger::{NamespacedName, ObjectVersion, ReconcileRequest, RequestSender};
use vitals::Telemetry;

/// What holds for every Canary of one controller.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where Canaries are looked for; everywhere if there are none.
    pub namespaces: Vec<String>,
    /// For Canaries that name no provider.
    pub provider: Option<Provider>,
    /// The Prometheus for Canaries that name none.
    pub metrics_server: Option<String>,
    /// Where Secrets of templates of the whole cluster are.
    pub controller_namespace: String,
    /// How many Canaries are worked on at a time.
    pub concurrency: usize,
    /// How many releases may be under way at a time; any number if none.
    pub max_releases: Option<u32>,
    pub workload: workload::Options,
    /// For Canaries of the provider `appmesh:aws`.
    pub app_mesh: AppMeshOptions,
    /// Who carries questions to webhooks; the network if nobody is named.
    pub webhooks: Option<Webhooks>,
    /// Where it counts what it does and shows that it does.
    pub telemetry: Arc<Telemetry>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            namespaces: Vec::new(),
            provider: None,
            metrics_server: None,
            controller_namespace: "default".to_owned(),
            concurrency: 128,
            max_releases: None,
            workload: workload::Options::default(),
            app_mesh: AppMeshOptions::default(),
            webhooks: None,
            telemetry: Arc::default(),
        }
    }
}

/// What cannot be done without.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error("cannot ask the API server which kinds it serves: {0}")]
    Discovery(#[from] kube::Error),
    #[error(transparent)]
    Webhooks(#[from] gates::webhook::WebhookSetupError),
    #[error(transparent)]
    Notifications(#[from] notify::OutboxSetupError),
    #[error(transparent)]
    Replicas(#[from] assignment::ShardCountMismatch),
}

/// How many questions are asked and measurements made at a time.
const MAX_BACKGROUND_TASKS: usize = 64;

/// How many Events are written at a time. What moves traffic goes first: when
/// many releases move at once, it is the API server that they wait for.
const MAX_EVENT_WRITES: usize = 8;

/// How long those under way may take when the controller ends.
const SHUTDOWN_GRACE: Duration = Duration::from_secs(10);

/// A wake-up in the past is one that comes at once, but not faster than this.
const MIN_REQUEUE_DELAY: Duration = Duration::from_millis(20);

pub struct Controller {
    ctx: Arc<Context>,
    incoming: mpsc::UnboundedReceiver<ReconcileRequest>,
}

struct Context {
    client: Client,
    clock: Clock,
    options: Options,
    workload_options: Arc<workload::Options>,
    served: RwLock<ServedKinds>,
    /// None if this build cannot call it.
    app_mesh: Option<Arc<dyn Router>>,
    sources: Sources,
    webhooks: Webhooks,
    outbox: Outbox,
    index: Arc<ReferenceIndex>,
    caches: Caches,
    limiter: Arc<ReleaseLimiter>,
    states: Mutex<HashMap<NamespacedName, Arc<CanaryState>>>,
    requests: RequestSender,
    fence: Fence,
    /// One for each shard.
    task_groups: Vec<TaskGroup>,
    background_permits: Arc<Semaphore>,
    event_permits: Arc<Semaphore>,
}

impl Controller {
    /// Pods are read through `fetch`, and `fence` says whether it may write.
    pub async fn new(
        client: Client,
        clock: Clock,
        fetch: Arc<dyn Fetch>,
        mut fence: Fence,
        options: Options,
    ) -> Result<Self, StartError> {
        let served = RwLock::new(ServedKinds::discover(&client).await?);
        let (requests, incoming) = RequestSender::new();
        let index = Arc::<ReferenceIndex>::default();
        let webhooks = match &options.webhooks {
            Some(webhooks) => webhooks.clone(),
            None => Webhooks::new()?,
        };
        let telemetry = Arc::clone(&options.telemetry);
        let outbox =
            notify::Options { counters: Arc::clone(&telemetry.notifications), ..notify::Options::default() };
        let limiter = Arc::new(ReleaseLimiter::new(options.max_releases, requests.clone()));
        let caches = Caches::new(
            client.clone(),
            &options.namespaces,
            Arc::clone(&index),
            requests.clone(),
            Arc::clone(&limiter),
            telemetry,
        );
        let check_fence = {
            let fence = fence.clone();
            move |namespace: &str, name: &str| {
                fence
                    .check(&NamespacedName { namespace: namespace.to_owned(), name: name.to_owned() })
                    .is_ok()
            }
        };
        let ctx = Context {
            app_mesh: routing::app_mesh(&options.app_mesh, Arc::new(check_fence)),
            client,
            clock,
            workload_options: Arc::new(options.workload.clone()),
            options,
            served,
            sources: Sources::new(fetch),
            webhooks,
            outbox: Outbox::new(outbox)?,
            index,
            caches,
            limiter,
            states: Mutex::default(),
            requests,
            task_groups: fence.owned_shards().iter().map(|_| TaskGroup::default()).collect(),
            fence,
            background_permits: Arc::new(Semaphore::new(MAX_BACKGROUND_TASKS)),
            event_permits: Arc::new(Semaphore::new(MAX_EVENT_WRITES)),
        };
        Ok(Self { ctx: Arc::new(ctx), incoming })
    }

    /// Works until `stop` is done; what is under way then may come to its end.
    pub async fn run(mut self, stop: impl Future<Output = ()>) {
        let _watches = self.ctx.caches.watch_canaries();
        let mut dispatcher = Dispatcher::new(Arc::clone(&self.ctx));
        let mut work = JoinSet::new();
        let mut stop = pin!(stop);
        let telemetry = Arc::clone(&self.ctx.options.telemetry);
        let mut asked = telemetry.started(&self.ctx);
        loop {
            while dispatcher.queue.processing().len() < self.ctx.options.concurrency
                && let Some(canary) = dispatcher.queue.start_next()
            {
                work.spawn(reconcile_catching_panics(Arc::clone(&self.ctx), canary));
            }
            telemetry.set_queue_depth(dispatcher.queue.queued(), dispatcher.queue.processing().len());
            let alarm = dispatcher.queue.next_due();
            tokio::select! {
                // In this order, so that simulations replay.
                biased;
                () = &mut stop => break,
                Ok(()) = asked.changed() => telemetry.heartbeat(*asked.borrow_and_update()),
                change = dispatcher.next_shard_change() => dispatcher.apply(change),
                Some(done) = work.join_next() => match done {
                    Ok((canary, outcome)) => dispatcher.finish(canary, outcome),
                    // Only when the runtime ends.
                    Err(_) => break,
                },
                Some(incoming) = self.incoming.recv() => dispatcher.dispatch(incoming),
                () = sleep_until(alarm.unwrap_or_else(Instant::now)), if alarm.is_some() => {
                    dispatcher.queue.enqueue_due(Instant::now());
                }
            }
        }
        telemetry.stopping();
        let rest = async {
            while work.join_next().await.is_some() {}
            join_all(self.ctx.task_groups.iter().map(TaskGroup::shutdown)).await;
            self.ctx.outbox.flush(SHUTDOWN_GRACE).await;
        };
        if timeout(SHUTDOWN_GRACE, rest).await.is_err() {
            tracing::warn!("ended with work still under way");
        }
    }
}

/// Works on the shards that it holds, until it is told to stop; then it gives
/// them back.
pub async fn run_replicated(
    client: Client,
    clock: Clock,
    fetch: Arc<dyn Fetch>,
    options: Options,
    config: ReplicaConfig,
    stop: CancellationToken,
) -> Result<(), StartError> {
    let (fence, handle) = Fence::sharded(config.shards);
    let controller = Controller::new(client.clone(), clock, fetch, fence, options).await?;
    let over = CancellationToken::new();
    let mut holding =
        pin!(membership::run_membership(client, clock, config, handle, stop.clone(), over.clone()));
    tokio::select! {
        // In this order, so that simulations replay.
        biased;
        refused = &mut holding => return Ok(refused?),
        () = controller.run(stop.cancelled_owned()) => over.cancel(),
    }
    Ok(holding.await?)
}

enum ReconcileResult {
    Done(Option<Timestamp>),
    Failed(String),
}

/// A mistake in the work on one Canary must not end the work on all others.
async fn reconcile_catching_panics(
    ctx: Arc<Context>,
    canary: NamespacedName,
) -> (NamespacedName, ReconcileResult) {
    let began = Instant::now();
    // It is large, and a task's future is moved about when it starts and ends.
    let work = Box::pin(reconcile::reconcile(&ctx, &canary));
    let (outcome, result) = match AssertUnwindSafe(work).catch_unwind().await {
        Ok(Ok(alarm)) => (ReconcileResult::Done(alarm), "ok"),
        Ok(Err(error)) => (ReconcileResult::Failed(error.to_string()), "failed"),
        Err(_) => (ReconcileResult::Failed("a mistake of our own".to_owned()), "panicked"),
    };
    ctx.options.telemetry.observe_reconcile(result, began.elapsed());
    (canary, outcome)
}

impl Context {
    fn state_of(&self, name: &NamespacedName, uid: Option<String>) -> Arc<CanaryState> {
        let mut states = self.states.lock();
        if let Some(state) = states.get(name).filter(|state| state.uid == uid) {
            return Arc::clone(state);
        }
        self.sources.forget(&name.namespace, &name.name);
        let state = Arc::new(CanaryState::new(uid));
        states.insert(name.clone(), Arc::clone(&state));
        state
    }

    /// The Canary is gone, and what was remembered of it.
    fn forget(&self, canary: &NamespacedName) {
        self.states.lock().remove(canary);
        self.index.remove(canary);
        self.options.telemetry.forget(canary);
        self.sources.forget(&canary.namespace, &canary.name);
    }

    /// Is it news to a Canary, and not what a write of its own made?
    fn is_foreign_change(&self, canary: &NamespacedName, version: &ObjectVersion) -> bool {
        !self.states.lock().get(canary).is_some_and(|state| state.is_own_write(version))
    }

    fn requeue_instant(&self, at: Timestamp) -> Instant {
        let wait = Duration::try_from(at.duration_since(self.clock.now())).unwrap_or_default();
        Instant::now() + wait.max(MIN_REQUEUE_DELAY)
    }

    fn tasks_of(&self, canary: &NamespacedName) -> &TaskGroup {
        &self.task_groups[self.fence.shard_of(canary)]
    }

    /// Works beside the reconcile that wants it: so many at a time, over all
    /// Canaries, and not beyond the controller's end or the shard's.
    fn in_background<W>(
        self: &Arc<Self>,
        canary: &NamespacedName,
        work: impl FnOnce(Arc<Self>) -> W + Send + 'static,
    ) where
        W: Future<Output = ()> + Send + 'static,
    {
        let ctx = Arc::clone(self);
        self.tasks_of(canary).spawn_cancellable(async move {
            let permits = Arc::clone(&ctx.background_permits);
            if let Ok(_permit) = permits.acquire().await {
                work(ctx).await;
            }
        });
    }
}
