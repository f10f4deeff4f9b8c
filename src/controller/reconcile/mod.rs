//! One reconcile of one Canary: resolve, observe, decide, perform, record.
//!
//! ```text
//!   cache ─▶ resolve ─▶ observe ─▶ engine::decide ─▶ perform ─▶ record
//!                          ▲                            │
//!                          └── effect already visible ──┘   at most twice
//! ```
//!
//! A Canary that cannot be carried out leaves by [`Reconcile::reject`], whatever
//! step finds it out: the reason goes into the status and nothing else changes.

mod finalizer;
mod invalid;
mod observe;
mod perform;
mod resolve;
mod route_migration;
pub mod state;
mod status;

use std::{fmt::Display, sync::Arc, time::Duration};

use jiff::Timestamp;

use self::{
    observe::Observation,
    resolve::{InvalidCanary, ResolvedCanary},
    state::{CanaryState, ReconcileMemory},
};
use super::{
    background::measure, cache::raw_canary::CachedCanary, context::Context, queue::trigger::NamespacedName,
};
use crate::{
    api::{Canary, CanaryStatus},
    engine::{self, Decision, Observed},
    routing,
};

/// The step that failed; the Canary is requeued with backoff.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("mark an invalid Canary: {0}")]
    MarkInvalid(#[from] invalid::Error),
    #[error("resolve: {0}")]
    Resolve(resolve::Error),
    #[error("refresh the mesh: {0}")]
    RefreshMesh(routing::Error),
    #[error("observe: {0}")]
    Observe(#[from] observe::Error),
    #[error("perform: {0}")]
    Perform(#[from] perform::Error),
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
    let mut this = Reconcile { ctx, key, canary, status, state: &state, memory: &mut memory };
    let resolved = match this.resolve().await {
        Ok(resolved) => Arc::new(resolved),
        Err(resolve::Error::Invalid(why)) => return this.reject_spec(why).await,
        Err(error) => return Err(Error::Resolve(error)),
    };
    this.sync_finalizer().await?;
    if let Err(error) = resolved.router.refresh(&resolved.canary).await {
        if error.is_final() {
            let observed = this.generation_only();
            this.reject(&error, &observed).await?;
        }
        return Err(Error::RefreshMesh(error));
    }
    let result = this.decide_and_perform(&resolved).await;
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
}

impl Reconcile<'_> {
    /// Decides and performs again while the previous actions have already taken
    /// effect, then writes the status once.
    async fn decide_and_perform(&mut self, resolved: &Arc<ResolvedCanary>) -> Result<Requeue, Error> {
        let (mut earlier, mut follow_ups) = (None::<Decision>, 0);
        loop {
            let observation = match self.observe(resolved, earlier.as_ref()).await {
                Ok(observation) => observation,
                Err(observe::Error::UnsupportedTarget(why)) if earlier.is_none() => {
                    return self.reject_spec(why.into()).await;
                }
                Err(error) => return self.record_then_fail(earlier, error.into()).await,
            };
            let Some(mut decision) = self.decide(resolved, &observation, earlier.as_ref()) else { continue };
            if let Err(error) = self.perform(resolved, &observation, &decision).await {
                if error.is_final() && earlier.is_none() {
                    self.reject(&error, &observation.observed).await?;
                }
                return self.record_then_fail(earlier, error.into()).await;
            }
            let effective = self.has_taken_effect(resolved, &observation, &decision);
            if let Some(earlier) = earlier.take() {
                decision.absorb_earlier(earlier);
            }
            if effective && follow_ups < MAX_FOLLOW_UPS && perform::may_follow_up(decision.status.phase) {
                follow_ups += 1;
                earlier = Some(decision);
                continue;
            }
            let wake = decision.wake.as_ref().map(|(at, _)| *at);
            let recorded = self.record(decision).await?;
            measure::open_window(self.ctx, &self.state.results, resolved.measured(&observation), &recorded);
            // No watch event announces an effect that the write response has shown.
            let now = effective.then(|| self.ctx.clock.now());
            return Ok(Requeue::at(now.or(wake)));
        }
    }

    /// None if another release took a slot since the observation: observe again.
    fn decide(
        &self,
        resolved: &ResolvedCanary,
        observation: &Observation,
        earlier: Option<&Decision>,
    ) -> Option<Decision> {
        let status = earlier.map_or(&*self.status, |earlier| &earlier.status);
        let decision = engine::decide(&resolved.plan, status, &observation.observed, self.ctx.clock.now());
        let slot_is_free = self.ctx.limiter.update(self.key, &observation.observed, &decision.status);
        slot_is_free.then_some(decision)
    }

    /// Records the decisions that were performed before a failure.
    async fn record_then_fail(&mut self, earlier: Option<Decision>, error: Error) -> Result<Requeue, Error> {
        if let Some(earlier) = earlier {
            self.record(earlier).await?;
        }
        Err(error)
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
