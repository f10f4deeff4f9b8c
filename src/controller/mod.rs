//! The controller: observe → decide → act → record, on kube.
//!
//! ```text
//!   watches ──▶ caches ──▶ index: whom does it concern? ──▶ agenda ──▶ reconcile
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

mod act;
mod ask;
mod beside;
mod caches;
mod desk;
mod index;
mod kept;
mod labelled;
pub mod lease;
mod measure;
mod observe;
mod reconcile;
mod record;
pub mod replica;
mod reroute;
mod round;
mod shards;
mod table;
mod tell;
mod told;
mod turns;
mod understand;
mod unreadable;
pub mod vitals;
mod wake;

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
    routing::{self, AppMeshOptions, Router, Served},
    workload,
};
use beside::Beside;
use caches::Caches;
use desk::Desk;
use index::Index;
use lease::Fence;
use replica::Claim;
use round::Round;
pub use table::Held;
pub use told::Row;
use turns::Turns;
use vitals::Vitals;
use wake::{CanaryName, Version, Waker, Woken};

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
    pub home: String,
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
    pub vitals: Arc<Vitals>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            namespaces: Vec::new(),
            provider: None,
            metrics_server: None,
            home: "default".to_owned(),
            concurrency: 128,
            max_releases: None,
            workload: workload::Options::default(),
            app_mesh: AppMeshOptions::default(),
            webhooks: None,
            vitals: Arc::default(),
        }
    }
}

/// What cannot be done without.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error("cannot ask the API server which kinds it serves: {0}")]
    Discovery(#[from] kube::Error),
    #[error(transparent)]
    Webhooks(#[from] gates::webhook::SetupError),
    #[error(transparent)]
    Notifications(#[from] notify::SetupError),
    #[error(transparent)]
    Replicas(#[from] shards::Disagreement),
}

/// How many questions are asked and measurements made at a time.
const AT_A_TIME: usize = 64;

/// How many Events are written at a time. What moves traffic goes first: when
/// many releases move at once, it is the API server that they wait for.
const EVENTS_AT_A_TIME: usize = 8;

/// How long those under way may take when the controller ends.
const LAST_WORDS: Duration = Duration::from_secs(10);

/// A wake-up in the past is one that comes at once, but not faster than this.
const SOONEST: Duration = Duration::from_millis(20);

pub struct Controller {
    shared: Arc<Shared>,
    woken: mpsc::UnboundedReceiver<Woken>,
}

struct Shared {
    client: Client,
    clock: Clock,
    options: Options,
    workload_options: Arc<workload::Options>,
    served: RwLock<Served>,
    /// None if this build cannot call it.
    app_mesh: Option<Arc<dyn Router>>,
    sources: Sources,
    webhooks: Webhooks,
    outbox: Outbox,
    index: Arc<Index>,
    caches: Caches,
    turns: Arc<Turns>,
    desks: Mutex<HashMap<CanaryName, Arc<Desk>>>,
    waker: Waker,
    fence: Fence,
    /// One for each shard.
    beside: Vec<Beside>,
    permits: Arc<Semaphore>,
    events: Arc<Semaphore>,
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
        let served = RwLock::new(Served::discover(&client).await?);
        let (waker, woken) = Waker::new();
        let index = Arc::<Index>::default();
        let webhooks = match &options.webhooks {
            Some(webhooks) => webhooks.clone(),
            None => Webhooks::new()?,
        };
        let vitals = Arc::clone(&options.vitals);
        let outbox =
            notify::Options { tally: Arc::clone(&vitals.notifications), ..notify::Options::default() };
        let turns = Arc::new(Turns::new(options.max_releases, waker.clone()));
        let caches = Caches::new(
            client.clone(),
            &options.namespaces,
            Arc::clone(&index),
            waker.clone(),
            Arc::clone(&turns),
            vitals,
        );
        let may_write = {
            let fence = fence.clone();
            move |namespace: &str, name: &str| {
                fence.check(&CanaryName { namespace: namespace.to_owned(), name: name.to_owned() }).is_ok()
            }
        };
        let shared = Shared {
            app_mesh: routing::app_mesh(&options.app_mesh, Arc::new(may_write)),
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
            turns,
            desks: Mutex::default(),
            waker,
            beside: fence.holds().iter().map(|_| Beside::default()).collect(),
            fence,
            permits: Arc::new(Semaphore::new(AT_A_TIME)),
            events: Arc::new(Semaphore::new(EVENTS_AT_A_TIME)),
        };
        Ok(Self { shared: Arc::new(shared), woken })
    }

    /// Works until `stop` is done; what is under way then may come to its end.
    pub async fn run(mut self, stop: impl Future<Output = ()>) {
        let _watches = self.shared.caches.follow_canaries();
        let mut round = Round::new(Arc::clone(&self.shared));
        let mut work = JoinSet::new();
        let mut stop = pin!(stop);
        let vitals = Arc::clone(&self.shared.options.vitals);
        let mut asked = vitals.begin(&self.shared);
        loop {
            while round.agenda.running().len() < self.shared.options.concurrency
                && let Some(canary) = round.agenda.start()
            {
                work.spawn(attempt(Arc::clone(&self.shared), canary));
            }
            vitals.turned(round.agenda.waiting(), round.agenda.running().len());
            let alarm = round.agenda.next_alarm();
            tokio::select! {
                // In this order, so that simulations replay.
                biased;
                () = &mut stop => break,
                Ok(()) = asked.changed() => vitals.answer(*asked.borrow_and_update()),
                change = round.changed() => round.apply(change),
                Some(done) = work.join_next() => match done {
                    Ok((canary, outcome)) => round.conclude(canary, outcome),
                    // Only when the runtime ends.
                    Err(_) => break,
                },
                Some(woken) = self.woken.recv() => round.wake(woken),
                () = sleep_until(alarm.unwrap_or_else(Instant::now)), if alarm.is_some() => {
                    round.agenda.ring(Instant::now());
                }
            }
        }
        vitals.end();
        let rest = async {
            while work.join_next().await.is_some() {}
            join_all(self.shared.beside.iter().map(Beside::end)).await;
            self.shared.outbox.flush(LAST_WORDS).await;
        };
        if timeout(LAST_WORDS, rest).await.is_err() {
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
    claim: Claim,
    stop: CancellationToken,
) -> Result<(), StartError> {
    let (fence, keeper) = Fence::kept(claim.shards);
    let controller = Controller::new(client.clone(), clock, fetch, fence, options).await?;
    let over = CancellationToken::new();
    let mut holding = pin!(replica::hold(client, clock, claim, keeper, stop.clone(), over.clone()));
    tokio::select! {
        // In this order, so that simulations replay.
        biased;
        refused = &mut holding => return Ok(refused?),
        () = controller.run(stop.cancelled_owned()) => over.cancel(),
    }
    Ok(holding.await?)
}

enum Outcome {
    Done(Option<Timestamp>),
    Failed(String),
}

/// A mistake in the work on one Canary must not end the work on all others.
async fn attempt(shared: Arc<Shared>, canary: CanaryName) -> (CanaryName, Outcome) {
    let began = Instant::now();
    // It is large, and a task's future is moved about when it starts and ends.
    let work = Box::pin(reconcile::reconcile(&shared, &canary));
    let (outcome, result) = match AssertUnwindSafe(work).catch_unwind().await {
        Ok(Ok(alarm)) => (Outcome::Done(alarm), "ok"),
        Ok(Err(error)) => (Outcome::Failed(error.to_string()), "failed"),
        Err(_) => (Outcome::Failed("a mistake of our own".to_owned()), "panicked"),
    };
    shared.options.vitals.reconciled(result, began.elapsed());
    (canary, outcome)
}

impl Shared {
    fn desk(&self, name: &CanaryName, uid: Option<String>) -> Arc<Desk> {
        let mut desks = self.desks.lock();
        if let Some(desk) = desks.get(name).filter(|desk| desk.uid == uid) {
            return Arc::clone(desk);
        }
        self.sources.forget(&name.namespace, &name.name);
        let desk = Arc::new(Desk::of(uid));
        desks.insert(name.clone(), Arc::clone(&desk));
        desk
    }

    /// The Canary is gone, and what was remembered of it.
    fn forget(&self, canary: &CanaryName) {
        self.desks.lock().remove(canary);
        self.index.forget(canary);
        self.options.vitals.forget(canary);
        self.sources.forget(&canary.namespace, &canary.name);
    }

    /// Is it news to a Canary, and not what a write of its own made?
    fn is_news(&self, canary: &CanaryName, version: &Version) -> bool {
        !self.desks.lock().get(canary).is_some_and(|desk| desk.is_own(version))
    }

    fn instant(&self, at: Timestamp) -> Instant {
        let wait = Duration::try_from(at.duration_since(self.clock.now())).unwrap_or_default();
        Instant::now() + wait.max(SOONEST)
    }

    fn beside(&self, canary: &CanaryName) -> &Beside {
        &self.beside[self.fence.shard_of(canary)]
    }

    /// Works beside the reconcile that wants it: so many at a time, over all
    /// Canaries, and not beyond the controller's end or the shard's.
    fn in_background<W>(
        self: &Arc<Self>,
        canary: &CanaryName,
        work: impl FnOnce(Arc<Self>) -> W + Send + 'static,
    ) where
        W: Future<Output = ()> + Send + 'static,
    {
        let shared = Arc::clone(self);
        self.beside(canary).spawn_until_end(async move {
            let permits = Arc::clone(&shared.permits);
            if let Ok(_permit) = permits.acquire().await {
                work(shared).await;
            }
        });
    }
}
