//! One Canary, once: observe, decide, perform, record.

use std::sync::Arc;

use jiff::Timestamp;

use super::{
    Context, NamespacedName, invalid, measure, observe, perform,
    raw_canary::CachedCanary,
    resolve::{self, InvalidCanary, ResolvedCanary, resolve},
    route_migration,
    state::CanaryState,
    status,
};
use crate::{
    api::{Canary, CanaryStatus},
    engine::{self, Decision, Observed},
    routing,
};

/// At which step it failed; the Canary is tried again.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("a Canary that cannot be read: {0}")]
    Invalid(#[from] invalid::Error),
    #[error("understand: {0}")]
    Resolve(resolve::Error),
    #[error("look at the mesh: {0}")]
    RefreshMesh(routing::Error),
    #[error("observe: {0}")]
    Observe(#[from] observe::Error),
    #[error("act: {0}")]
    Perform(#[from] perform::Error),
    #[error("leave the old route: {0}")]
    MigrateRoute(#[from] route_migration::Error),
    #[error("record: {0}")]
    WriteStatus(#[from] status::Error),
}

/// The traffic is home, the canary is empty, all is at rest.
const MAX_FOLLOW_UPS: usize = 2;

/// A Canary that is refused is looked at again when it changes, and seldom
/// besides: what it lacks may have been installed.
const INVALID_RECHECK: std::time::Duration = std::time::Duration::from_secs(300);

/// Takes a Canary one step further; says when to be called again at the latest.
pub async fn reconcile(ctx: &Arc<Context>, name: &NamespacedName) -> Result<Option<Timestamp>, Error> {
    let Some(cached) = ctx.caches.canaries.get(&name.namespace, &name.name) else {
        ctx.forget(name);
        return Ok(None);
    };
    let canary = match &*cached {
        CachedCanary::Valid(canary) => canary,
        CachedCanary::Invalid(metadata) => {
            invalid::mark_stalled(ctx, name, metadata).await?;
            return Ok(None);
        }
    };
    let state = ctx.state_of(name, canary.metadata.uid.clone());
    let status = state.exact_status(canary.status.as_ref());
    let resolved = match resolve(ctx, &state, canary).await {
        Ok(resolved) => Arc::new(resolved),
        Err(resolve::Error::Invalid(refused)) => {
            return reject(ctx, &state, canary, &status, refused).await;
        }
        Err(error) => return Err(Error::Resolve(error)),
    };
    perform::sync_finalizer(ctx, canary).await?;
    if let Err(error) = resolved.router.refresh(&resolved.canary).await {
        if error.is_final() {
            let seen = Observed { generation: canary.metadata.generation, ..Observed::default() };
            let refused = engine::reject(&error, &status, &seen, ctx.clock.now());
            status::write_and_publish(ctx, &state, canary, &status, refused).await?;
        }
        return Err(Error::RefreshMesh(error));
    }
    let done = decide_and_act(ctx, name, &state, canary, &status, &resolved).await;
    if done.is_err() {
        // What was decided may not have come to be.
        ctx.caches.count_release(name);
    }
    done
}

/// What was seen to take effect as it was written is followed at once by what
/// follows from it, and one write records it all.
async fn decide_and_act(
    ctx: &Arc<Context>,
    name: &NamespacedName,
    state: &Arc<CanaryState>,
    canary: &Canary,
    status: &CanaryStatus,
    resolved: &Arc<ResolvedCanary>,
) -> Result<Option<Timestamp>, Error> {
    let (mut done, mut rounds) = (None::<Decision>, MAX_FOLLOW_UPS);
    loop {
        let present = done.as_ref().map_or(status, |done| &done.status);
        let mut observation = match observe::observe(ctx, name, resolved, present, state).await {
            Ok(observation) => observation,
            Err(observe::Error::UnsupportedTarget(refusal)) if done.is_none() => {
                return reject(ctx, state, canary, status, InvalidCanary::from(refusal)).await;
            }
            Err(error) => return record_then_fail(ctx, state, canary, status, done, error.into()).await,
        };
        observation.observed.persisted_releases = engine::started_releases(status);
        let mut decision = ctx.limiter.decide(name, &mut observation.observed, |observed| {
            engine::decide(&resolved.plan, present, observed, ctx.clock.now())
        });
        if let Err(error) = perform::perform(ctx, state, resolved, &observation, &decision).await {
            if error.is_final() && done.is_none() {
                let refused = engine::reject(&error, status, &observation.observed, ctx.clock.now());
                status::write_and_publish(ctx, state, canary, status, refused).await?;
            }
            return record_then_fail(ctx, state, canary, status, done, error.into()).await;
        }
        let effective = perform::has_taken_effect(ctx, state, resolved, &observation, &decision);
        let may_follow_up = effective && rounds > 0 && perform::may_follow_up(decision.status.phase);
        rounds -= usize::from(may_follow_up);
        if let Some(done) = done.take() {
            decision.absorb_earlier(done);
        }
        if may_follow_up {
            done = Some(decision);
            continue;
        }
        decision.status.route =
            route_migration::migrate(ctx, resolved, &observation, status.route.as_ref()).await?;
        let alarm = decision.wake.as_ref().map(|(at, _)| *at);
        let recorded = status::write_and_publish(ctx, state, canary, status, decision).await?;
        measure::open_window(ctx, state, resolved, &observation, &recorded);
        // What an answer has told, no watch will tell again.
        let burst = effective.then(|| ctx.clock.now());
        return Ok(burst.or(alarm));
    }
}

/// What failed is tried again; what was done before is recorded.
async fn record_then_fail(
    ctx: &Arc<Context>,
    state: &CanaryState,
    canary: &Canary,
    status: &CanaryStatus,
    done: Option<Decision>,
    error: Error,
) -> Result<Option<Timestamp>, Error> {
    if let Some(done) = done {
        status::write_and_publish(ctx, state, canary, status, done).await?;
    }
    Err(error)
}

/// Says why nothing is done. A Canary that goes is let go.
async fn reject(
    ctx: &Arc<Context>,
    state: &CanaryState,
    canary: &Canary,
    status: &CanaryStatus,
    invalid: InvalidCanary,
) -> Result<Option<Timestamp>, Error> {
    let now = ctx.clock.now();
    if canary.metadata.deletion_timestamp.is_some() {
        perform::remove_finalizer(ctx, canary).await?;
        return Ok(None);
    }
    let seen = Observed { generation: canary.metadata.generation, ..Observed::default() };
    let decision = engine::reject(&invalid, status, &seen, now);
    status::write_and_publish(ctx, state, canary, status, decision).await?;
    Ok(now.checked_add(INVALID_RECHECK).ok())
}
