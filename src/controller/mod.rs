//! The controller: resolve, observe, decide, perform, record; on kube.
//!
//! ```text
//!   watch ─▶ cache ─▶ references: who depends on it? ─▶ queue ─▶ reconcile ─▶ writes
//!                                                        ▲  ▲        │
//!                         requeue (one time per Canary) ─┘  └────────┴─ background:
//!                                                             gate calls, checks, Events
//! ```
//!
//! Guarantees:
//!
//! - **Idle costs nothing.** Everything is observed from caches that watches keep
//!   current; an idle Canary has no requeue time and sends no request.
//! - **One event, one lookup.** A changed object requeues the Canaries that refer
//!   to it and touches no other.
//! - **Isolation.** Each Canary is reconciled by itself, never twice at a time;
//!   failures back off; a source or server that hangs delays its own Canary only.
//! - **All state is in the status.** What is lost with the process is measured or
//!   read again.
//! - **One writer.** Of several replicas only the one that holds a Canary's shard
//!   writes for it, and every status is written against the resourceVersion it was
//!   decided on.
//!
//! Which module may import which, checked by `tests/layers.rs`:
//!
//! | module                                | imports                                  |
//! |---------------------------------------|------------------------------------------|
//! | `queue::trigger`                      | nothing of the controller                |
//! | `cache`, `shard`, `release_limiter`   | `queue::trigger`                         |
//! | `context`                             | the above, `background::TaskGroup`, `reconcile::state` |
//! | `background`                          | `context`, `queue::trigger`, `cache`, `shard` |
//! | `reconcile`                           | all of the above                         |
//! | `queue::dispatcher`                   | `context`, `queue::trigger`, `shard`, `reconcile::Requeue` |

mod background;
mod cache;
mod context;
mod queue;
mod reconcile;
mod release_limiter;
mod shard;

use std::{panic::AssertUnwindSafe, pin::pin, sync::Arc, time::Duration};

use futures::{FutureExt as _, future::join_all};
use kube::Client;
use tokio::{
    sync::mpsc,
    task::JoinSet,
    time::{Instant, sleep_until, timeout},
};
use tokio_util::sync::CancellationToken;

use crate::{
    api::canary::Provider,
    clock::{Clock, Step},
    discovery::live::{DEFAULT_CLUSTER, LiveInventory},
    gates::{self, webhook::Webhooks},
    metrics::{ServerAccess, scrape::Fetch},
    notify,
    routing::AppMeshOptions,
    telemetry::Telemetry,
    tenancy::Tenancy,
    workload,
};
use background::TaskGroup;
pub use background::inventory::{InventoryMode, InventoryOptions, InventoryResources};
pub use background::publish::NotificationOptions;
#[cfg(feature = "xds")]
pub use background::xds::proxies_of;
pub use background::xds::{ProxyReports, RouteReport, XdsServer};
pub use cache::raw_canary::{CachedCanary, RawCanary};
use context::Context;
pub use queue::trigger::{HasMeta, NamespacedName};
use queue::{
    dispatcher::{Dispatcher, ReconcileResult},
    trigger::ReconcileRequest,
};
use shard::{
    assignment::ShardCountMismatch,
    fence::Fence,
    membership::{Membership, ReplicaConfig},
};
pub use shard::{fence, membership};

/// The world outside of a controller.
#[derive(Clone)]
pub struct Environment {
    pub client: Client,
    pub clock: Clock,
    /// Reads the metrics of pods.
    pub fetch: Arc<dyn Fetch>,
    pub telemetry: Arc<Telemetry>,
    /// Of this cluster; the controller feeds it once it is wanted.
    pub inventory: Arc<LiveInventory>,
    /// Configures Envoys by the objects of this cluster.
    pub xds: Option<XdsServer>,
}

impl Environment {
    pub fn new(client: Client, clock: Clock, fetch: Arc<dyn Fetch>) -> Self {
        let inventory = LiveInventory::new(DEFAULT_CLUSTER);
        Self { client, clock, fetch, telemetry: Arc::default(), inventory, xds: None }
    }
}

/// Settings for all Canaries of one controller.
#[derive(Clone, Debug)]
pub struct Options {
    /// Namespaces whose Canaries are reconciled; all if there are none.
    pub namespaces: Vec<String>,
    /// For Canaries that name no provider.
    pub provider: Option<Provider>,
    /// The Prometheus for Canaries that name none.
    pub metrics_server: ServerAccess,
    /// Namespace of the Secrets of cluster-wide templates.
    pub controller_namespace: String,
    /// Canaries that are reconciled at a time.
    pub concurrency: usize,
    /// Releases that may run at a time; none for any number.
    pub max_releases: Option<u32>,
    pub workload: workload::Options,
    /// For Canaries of the provider `appmesh:aws`.
    pub app_mesh: AppMeshOptions,
    /// Calls webhooks; none for the network.
    pub webhooks: Option<Webhooks>,
    pub inventory: InventoryOptions,
    pub tenancy: Tenancy,
    pub notifications: NotificationOptions,
    /// Serve the objects of Flagger too, as they are.
    pub adopt_flagger: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            namespaces: Vec::new(),
            provider: None,
            metrics_server: ServerAccess::default(),
            controller_namespace: "default".to_owned(),
            concurrency: 128,
            max_releases: None,
            workload: workload::Options::default(),
            app_mesh: AppMeshOptions::default(),
            webhooks: None,
            inventory: InventoryOptions::default(),
            tenancy: Tenancy::default(),
            notifications: NotificationOptions::default(),
            adopt_flagger: false,
        }
    }
}

/// Why a controller cannot start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error("cannot discover which kinds the API server serves: {0}")]
    Discovery(#[from] kube::Error),
    #[error(transparent)]
    Webhooks(#[from] gates::webhook::WebhookSetupError),
    #[error(transparent)]
    Notifications(#[from] notify::OutboxSetupError),
    #[error(transparent)]
    Replicas(#[from] ShardCountMismatch),
}

/// Reconciles and background tasks in progress may take this long at shutdown.
const SHUTDOWN_GRACE: Duration = Duration::from_secs(10);

pub struct Controller {
    ctx: Arc<Context>,
    incoming: mpsc::UnboundedReceiver<ReconcileRequest>,
}

impl Controller {
    /// `fence` permits writes per shard.
    pub async fn new(environment: Environment, fence: Fence, options: Options) -> Result<Self, StartError> {
        let (ctx, incoming) = Context::new(environment, fence, options).await?;
        Ok(Self { ctx: Arc::new(ctx), incoming })
    }

    /// Runs until `stop` completes; reconciles in progress then finish.
    pub async fn run(mut self, stop: impl Future<Output = ()>) {
        let _watches = self.ctx.caches.watch_canaries();
        let _inventory = background::inventory::spawn(&self.ctx);
        let _xds = background::xds::spawn(&self.ctx);
        let _adoption = self.ctx.options.adopt_flagger.then(|| background::adoption::spawn(&self.ctx));
        let mut dispatcher = Dispatcher::new(Arc::clone(&self.ctx));
        let mut reconciles = JoinSet::new();
        let mut clock_step = None;
        let mut stop = pin!(stop);
        let telemetry = Arc::clone(&self.ctx.telemetry);
        let mut heartbeats = telemetry.health.started(Arc::downgrade(&self.ctx) as _);
        loop {
            let last_step = self.ctx.clock_steps.last();
            if let Some(Step { by, .. }) = last_step.filter(|_| last_step != clock_step) {
                tracing::warn!("the wall clock stepped by {by:#}: all that is scheduled runs now");
                dispatcher.queue.enqueue_scheduled();
            }
            clock_step = last_step;
            while dispatcher.queue.processing().len() < self.ctx.options.concurrency
                && let Some(canary) = dispatcher.queue.start_next()
            {
                reconciles.spawn(reconcile_catching_panics(Arc::clone(&self.ctx), canary));
            }
            telemetry.health.set_queue_depth(dispatcher.queue.queued(), dispatcher.queue.processing().len());
            // Nothing is scheduled, nothing to wake up for.
            let due = dispatcher.queue.next_due().map(|due| due.min(self.ctx.clock_steps.next_check()));
            tokio::select! {
                // In this order, so that simulations replay.
                biased;
                () = &mut stop => break,
                Ok(()) = heartbeats.changed() => telemetry.health.heartbeat(*heartbeats.borrow_and_update()),
                change = dispatcher.next_shard_change() => dispatcher.apply(change),
                Some(finished) = reconciles.join_next() => match finished {
                    Ok((canary, result)) => dispatcher.finish(canary, result),
                    // Only when the runtime shuts down.
                    Err(_) => break,
                },
                Some(request) = self.incoming.recv() => dispatcher.dispatch(request),
                () = sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => {
                    dispatcher.queue.enqueue_due(Instant::now());
                }
            }
        }
        telemetry.health.stopping();
        let finish = async {
            while reconciles.join_next().await.is_some() {}
            join_all(self.ctx.task_groups.iter().map(TaskGroup::shutdown)).await;
            self.ctx.outbox.flush(SHUTDOWN_GRACE).await;
        };
        if timeout(SHUTDOWN_GRACE, finish).await.is_err() {
            tracing::warn!("stopped with work still in progress");
        }
    }
}

/// Runs one of several replicas: reconciles the shards that it holds until
/// `stop`, then releases them.
pub async fn run_replicated(
    environment: Environment,
    options: Options,
    config: ReplicaConfig,
    stop: CancellationToken,
) -> Result<(), StartError> {
    let (fence, handle) = Fence::sharded(config.shards);
    let Environment { client, clock, .. } = environment.clone();
    let controller = Controller::new(environment, fence, options).await?;
    let over = CancellationToken::new();
    let membership = Membership { client, clock, config, handle };
    let mut membership = pin!(membership.run(stop.clone(), over.clone()));
    tokio::select! {
        // In this order, so that simulations replay.
        biased;
        ended = &mut membership => return Ok(ended?),
        () = controller.run(stop.cancelled_owned()) => over.cancel(),
    }
    Ok(membership.await?)
}

/// A panic in one reconcile must not end the others.
async fn reconcile_catching_panics(
    ctx: Arc<Context>,
    canary: NamespacedName,
) -> (NamespacedName, ReconcileResult) {
    let began = Instant::now();
    // Boxed: the future is large, and a task's future is moved when it starts and ends.
    let work = Box::pin(reconcile::reconcile(&ctx, &canary));
    let (result, label) = match AssertUnwindSafe(work).catch_unwind().await {
        Ok(Ok(requeue)) => (ReconcileResult::Done(requeue), "ok"),
        Ok(Err(error)) => (ReconcileResult::Failed(error.to_string()), "failed"),
        Err(_) => {
            let why = "reconcile panicked (a bug in Serin; stack trace above)";
            (ReconcileResult::Failed(why.to_owned()), "panicked")
        }
    };
    ctx.telemetry.observe_reconcile(label, began.elapsed());
    (canary, result)
}
