//! One reconcile of one Canary: resolve, observe, decide, perform, record.
//!
//! ```text
//!   cache ─▶ resolve ─▶ observe ─▶ engine::decide ─▶ perform ─▶ record
//!                          ▲                            │
//!                          └── effect already visible ──┘   at most twice
//! ```
//!
//! A Canary that cannot be carried out leaves by [`Reconcile::reject`], whatever
//! step finds it out: the reason goes into the status and nothing else changes. If
//! its routes were written before it became invalid, it is resolved as far as its
//! users can be protected ([`engine::protect`]).
//!
//! An attempt that fails does not end the reconcile: the decision is recorded, and
//! the attempt is repeated with backoff. Failures that last ([`FailureLog`]) are
//! part of the next observation.
//!
//! [`FailureLog`]: failures::FailureLog

mod failures;
mod finalizer;
mod invalid;
mod observe;
mod perform;
mod pod_looks;
mod resolve;
mod route_migration;
pub mod state;
mod status;

use std::{
    fmt::Display,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use jiff::Timestamp;

use self::{
    failures::{FailedAttempt, Unattempted},
    observe::Observation,
    pod_looks::PodLooks,
    resolve::{InvalidCanary, ResolvedCanary},
    state::{CanaryState, ReconcileMemory},
};
use super::{
    background::measure, cache::raw_canary::CachedCanary, context::Context, queue::trigger::NamespacedName,
    shard::fence::Fenced,
};
use crate::{
    api::{Canary, CanaryStatus},
    engine::{self, Decision, Observed, action::Purpose, observed::Failure},
    workload::Workload,
};

/// Once: two of them undo each other's work as long as both run.
fn warn_of_another_controller(canary: &NamespacedName) {
    static WARNED: AtomicBool = AtomicBool::new(false);
    if !WARNED.swap(true, Ordering::Relaxed) {
        tracing::warn!(
            %canary,
            "something else wrote the status of this Canary: if another `serin run` serves the same namespaces, end one of them, or start both with --replicated"
        );
    }
}

/// The step that failed; the Canary is requeued with backoff.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("mark an invalid Canary: {0}")]
    MarkInvalid(#[from] invalid::Error),
    #[error(transparent)]
    Fenced(#[from] Fenced),
    #[error("write the finalizer: {0}")]
    Finalizer(#[from] finalizer::Error),
    #[error("record: {0}")]
    Record(#[from] status::Error),
}

/// When to reconcile again, unless something changes before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Requeue {
    At(Timestamp),
    OnChange,
    /// Something failed: with backoff, and no later than then.
    Retry(Option<Timestamp>),
}

impl Requeue {
    fn at(time: Option<Timestamp>) -> Self {
        time.map_or(Self::OnChange, Self::At)
    }
}

/// Follow-up decisions per reconcile: route in force → canary scaled down → idle.
const MAX_FOLLOW_UPS: usize = 2;

/// An invalid Canary is reconciled when it changes, and this often besides: a
/// missing definition may have been installed.
const INVALID_RECHECK: Duration = Duration::from_secs(300);

/// The attempt to read a mesh outside of the cluster.
const READ_MESH: &str = "read the mesh";

/// Reconciles the Canary of this name once.
pub async fn reconcile(ctx: &Arc<Context>, key: &NamespacedName) -> Result<Requeue, Error> {
    let Some(cached) = ctx.caches.canaries.get(&key.namespace, &key.name) else {
        ctx.forget(key);
        return Ok(Requeue::OnChange);
    };
    let canary = match &*cached {
        CachedCanary::Valid(canary) => canary,
        CachedCanary::Invalid(metadata) => {
            invalid::mark_stalled(ctx, key, metadata).await?;
            return Ok(Requeue::OnChange);
        }
    };
    let state = ctx.state_of(key, canary.metadata.uid.clone());
    let mut memory = state.memory.lock().await;
    let status = memory.status_writes.exact(canary.status.as_ref());
    if ctx.fence.is_unsharded() && memory.status_writes.is_foreign(canary.status.as_ref()) {
        warn_of_another_controller(key);
    }
    let mut this = Reconcile {
        ctx,
        key,
        canary,
        status,
        state: &state,
        memory: &mut memory,
        failed: Vec::new(),
        skipped: Vec::new(),
        recordable: true,
    };
    let resolved = match this.resolve().await {
        Ok(resolved) => Arc::new(resolved),
        Err(resolve::Error::Invalid(why)) => match this.resolve_recorded_route(&why).await {
            Some(resolved) => Arc::new(resolved),
            None => return this.reject_spec(why).await,
        },
        Err(resolve::Error::NotSynced(error)) => return this.fail_observation(None, error.into()).await,
        Err(error @ resolve::Error::Undecided(_)) => {
            let error = observe::Error::Undecided(error.to_string());
            return this.fail_observation(None, error).await;
        }
    };
    this.sync_finalizer_best_effort().await?;
    if let Some(requeue) = this.refresh_mesh(&resolved).await? {
        return Ok(requeue);
    }
    let result = this.decide_and_perform(resolved).await;
    if result.is_err() {
        // The decision may not have been recorded, and with it a release slot.
        ctx.observe_release(key);
    }
    result
}

/// One reconcile: its Canary as the cache has it, and what may be changed for it.
struct Reconcile<'a> {
    ctx: &'a Arc<Context>,
    key: &'a NamespacedName,
    canary: &'a Arc<Canary>,
    /// As persisted, with exact times.
    status: Arc<CanaryStatus>,
    state: &'a Arc<CanaryState>,
    memory: &'a mut ReconcileMemory,
    /// Attempts of this reconcile that failed.
    failed: Vec<FailedAttempt>,
    /// Attempts that were not made, since one before them failed.
    skipped: Vec<&'static str>,
    /// The server accepts the status of the decision, as far as is known.
    recordable: bool,
}

impl Reconcile<'_> {
    /// Decides and performs again while the previous actions have already taken
    /// effect, then writes the status once.
    async fn decide_and_perform(&mut self, mut resolved: Arc<ResolvedCanary>) -> Result<Requeue, Error> {
        let (mut earlier, mut follow_ups) = (None::<Decision>, 0);
        loop {
            let observation = match self.observe(&resolved, earlier.as_ref()).await {
                Ok(observation) => observation,
                Err(observe::Error::UnsupportedTarget(why)) if earlier.is_none() => {
                    let why = InvalidCanary::from(why);
                    let recorded = match resolved.invalid {
                        None => self.resolve_recorded_route(&why).await,
                        Some(_) => None,
                    };
                    let Some(recorded) = recorded else { return self.reject_spec(why).await };
                    resolved = Arc::new(recorded);
                    continue;
                }
                Err(error) => return self.fail_observation(earlier, error).await,
            };
            let Some(mut decision) = self.decide(&resolved, &observation, earlier.as_ref()) else { continue };
            self.copy_backup_digests(&resolved.workload, &mut decision.status);
            self.recordable = self.can_be_recorded(&decision).await;
            self.perform(&resolved, &observation, &decision).await?;
            // A promotion has recorded others.
            self.copy_backup_digests(&resolved.workload, &mut decision.status);
            let effective = self.has_taken_effect(&resolved, &observation, &decision);
            if let Some(earlier) = earlier.take() {
                decision.absorb_earlier(earlier);
            }
            let may_follow_up = perform::may_follow_up(decision.status.phase) && self.failed.is_empty();
            if effective && follow_ups < MAX_FOLLOW_UPS && may_follow_up {
                follow_ups += 1;
                earlier = Some(decision);
                continue;
            }
            let looks = self.memory.pod_looks.iter().filter_map(PodLooks::due_at);
            let wake = decision.wake.as_ref().map(|(at, _)| *at).into_iter().chain(looks).min();
            let recorded = self.record(decision).await?;
            self.state.results.lock().cancel_ended(&recorded);
            measure::open_window(self.ctx, &self.state.results, resolved.measured(&observation), &recorded);
            // No watch event announces an effect that the write response has shown,
            // or the end of a failure.
            let unattempted = Unattempted::Named(std::mem::take(&mut self.skipped));
            let follow_up = self.settle_failures(&unattempted) != observation.observed.failures || effective;
            let wake = if follow_up { Some(self.ctx.clock.now()) } else { wake };
            return Ok(if self.failed.is_empty() { Requeue::at(wake) } else { Requeue::Retry(wake) });
        }
    }

    /// The status outlives the primary.
    fn copy_backup_digests(&self, workload: &Workload, status: &mut CanaryStatus) {
        let (namespace, name) = (&self.key.namespace, workload.primary_name());
        let primary = self.ctx.caches.workload(workload.kind(), namespace, &name);
        if let Some(digests) = primary.as_ref().and_then(|primary| primary.backup_digests()) {
            status.backup_digests = Some(digests.to_owned());
        }
    }

    /// Records the failed attempts of this reconcile; returns the lasting failures.
    fn settle_failures(&mut self, unattempted: &Unattempted) -> Vec<Failure> {
        let now = self.ctx.clock.now();
        let failed = self.failed.iter().map(FailedAttempt::clone).collect();
        self.memory.failures.record(failed, unattempted, now);
        self.memory.failures.lasting(now)
    }

    /// None if another release took a slot since the observation: observe again.
    fn decide(
        &self,
        resolved: &ResolvedCanary,
        observation: &Observation,
        earlier: Option<&Decision>,
    ) -> Option<Decision> {
        let status = earlier.map_or(&*self.status, |earlier| &earlier.status);
        let (observed, now) = (&observation.observed, self.ctx.clock.now());
        let decision = match &resolved.invalid {
            None => engine::decide(&resolved.plan, status, observed, now),
            Some(why) => engine::protect(&resolved.plan, status, observed, why, now),
        };
        let slot_is_free = self.ctx.limiter.update(self.key, &observation.observed, &decision.status);
        slot_is_free.then_some(decision)
    }

    /// There is nothing to decide on. Records the decision that was performed before,
    /// and reports a failure that lasts.
    async fn fail_observation(
        &mut self,
        earlier: Option<Decision>,
        error: observe::Error,
    ) -> Result<Requeue, Error> {
        if let Some(earlier) = earlier {
            self.record(earlier).await?;
            return Ok(Requeue::Retry(None));
        }
        self.note_failure(Purpose::Protect, "observe", &error, error.is_refused());
        let observed =
            Observed { failures: self.settle_failures(&Unattempted::All), ..self.generation_only() };
        if !observed.failures.is_empty() {
            let report = engine::report_failures(&self.status, &observed, self.ctx.clock.now());
            self.record(report).await?;
        }
        Ok(Requeue::Retry(None))
    }

    /// Only an error that means that this replica lost the Canary ends the reconcile.
    async fn sync_finalizer_best_effort(&mut self) -> Result<(), Fenced> {
        match self.sync_finalizer().await {
            Ok(()) => Ok(()),
            Err(finalizer::Error::Fenced(fenced)) => Err(fenced),
            Err(error) => {
                self.note_failure(Purpose::Maintain, "write the finalizer", &error, error.is_refused());
                Ok(())
            }
        }
    }

    /// A mesh outside of the cluster that does not respond: the first failures end
    /// the reconcile, since the route is unknown; once they last, users are protected
    /// without it.
    async fn refresh_mesh(&mut self, resolved: &ResolvedCanary) -> Result<Option<Requeue>, Error> {
        let Err(error) = resolved.router.refresh(&resolved.canary).await else { return Ok(None) };
        self.note_failure(Purpose::Protect, READ_MESH, &error, error.is_final());
        if self.memory.failures.is_lasting(READ_MESH, self.ctx.clock.now()) {
            return Ok(None);
        }
        self.settle_failures(&Unattempted::All);
        Ok(Some(Requeue::Retry(None)))
    }

    /// Rejects a Canary until its spec, or what it refers to, changes. One that
    /// is being deleted is let go.
    async fn reject_spec(&mut self, why: InvalidCanary) -> Result<Requeue, Error> {
        if self.canary.metadata.deletion_timestamp.is_some() {
            self.remove_finalizer().await?;
            return Ok(Requeue::OnChange);
        }
        let observed = self.generation_only();
        self.reject(&why, &observed).await?;
        Ok(Requeue::at(self.ctx.clock.now().checked_add(INVALID_RECHECK).ok()))
    }

    /// Records why nothing is done.
    async fn reject(&mut self, why: &impl Display, observed: &Observed) -> Result<(), Error> {
        let rejection = engine::reject(why, &self.status, observed, self.ctx.clock.now());
        self.record(rejection).await?;
        Ok(())
    }

    fn generation_only(&self) -> Observed {
        Observed { generation: self.canary.metadata.generation, ..Observed::default() }
    }
}
