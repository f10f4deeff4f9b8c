//! One Canary, once: observe, decide, act, record.

use std::sync::Arc;

use jiff::Timestamp;

use super::{
    CanaryName, Shared, act,
    desk::Desk,
    measure, observe, record, reroute,
    told::Row,
    understand::{self, Refused, Understood, understand},
    unreadable,
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
    Unreadable(#[from] unreadable::Error),
    #[error("understand: {0}")]
    Understand(understand::Error),
    #[error("look at the mesh: {0}")]
    Look(routing::Error),
    #[error("observe: {0}")]
    Observe(#[from] observe::Error),
    #[error("act: {0}")]
    Act(#[from] act::Error),
    #[error("leave the old route: {0}")]
    Reroute(#[from] reroute::Error),
    #[error("record: {0}")]
    Record(#[from] record::Error),
}

/// The traffic is home, the canary is empty, all is at rest.
const MORE_ROUNDS: usize = 2;

/// A Canary that is refused is looked at again when it changes, and seldom
/// besides: what it lacks may have been installed.
const REFUSED_AGAIN: std::time::Duration = std::time::Duration::from_secs(300);

/// Takes a Canary one step further; says when to be called again at the latest.
pub async fn reconcile(shared: &Arc<Shared>, name: &CanaryName) -> Result<Option<Timestamp>, Error> {
    let Some(row) = shared.caches.canaries.get(&name.namespace, &name.name) else {
        shared.forget(name);
        return Ok(None);
    };
    let canary = match &*row {
        Row::Read(canary) => canary,
        Row::Unreadable(metadata) => {
            unreadable::stall(shared, name, metadata).await?;
            return Ok(None);
        }
    };
    let desk = shared.desk(name, canary.metadata.uid.clone());
    let status = desk.exact_status(canary.status.as_ref());
    let understood = match understand(shared, &desk, canary).await {
        Ok(understood) => Arc::new(understood),
        Err(understand::Error::Refused(refused)) => {
            return refuse(shared, &desk, canary, &status, refused).await;
        }
        Err(error) => return Err(Error::Understand(error)),
    };
    act::keep_finalizer(shared, canary).await?;
    if let Err(error) = understood.router.look(&understood.canary).await {
        if error.is_final() {
            let seen = Observed { generation: canary.metadata.generation, ..Observed::default() };
            let refused = engine::refuse(&error, &status, &seen, shared.clock.now());
            record::record(shared, &desk, canary, &status, refused).await?;
        }
        return Err(Error::Look(error));
    }
    let done = carry_on(shared, name, &desk, canary, &status, &understood).await;
    if done.is_err() {
        // What was decided may not have come to be.
        shared.caches.count_release(name);
    }
    done
}

/// What was seen to take effect as it was written is followed at once by what
/// follows from it, and one write records it all.
async fn carry_on(
    shared: &Arc<Shared>,
    name: &CanaryName,
    desk: &Arc<Desk>,
    canary: &Canary,
    status: &CanaryStatus,
    understood: &Arc<Understood>,
) -> Result<Option<Timestamp>, Error> {
    let (mut done, mut rounds) = (None::<Decision>, MORE_ROUNDS);
    loop {
        let present = done.as_ref().map_or(status, |done| &done.status);
        let mut seen = match observe::observe(shared, name, understood, present, desk).await {
            Ok(seen) => seen,
            Err(observe::Error::Refused(refusal)) if done.is_none() => {
                return refuse(shared, desk, canary, status, Refused::from(refusal)).await;
            }
            Err(error) => return give_up(shared, desk, canary, status, done, error.into()).await,
        };
        seen.observed.recorded = engine::begun(status);
        let mut decision = shared.turns.decide(name, &mut seen.observed, |observed| {
            engine::decide(&understood.plan, present, observed, shared.clock.now())
        });
        if let Err(error) = act::act(shared, desk, understood, &seen, &decision).await {
            if error.is_final() && done.is_none() {
                let refused = engine::refuse(&error, status, &seen.observed, shared.clock.now());
                record::record(shared, desk, canary, status, refused).await?;
            }
            return give_up(shared, desk, canary, status, done, error.into()).await;
        }
        let effective = act::took_effect(shared, desk, understood, &seen, &decision);
        let goes_on = effective && rounds > 0 && act::goes_on(decision.status.phase);
        rounds -= usize::from(goes_on);
        if let Some(done) = done.take() {
            decision.follow(done);
        }
        if goes_on {
            done = Some(decision);
            continue;
        }
        decision.status.route = reroute::settle(shared, understood, &seen, status.route.as_ref()).await?;
        let alarm = decision.wake.as_ref().map(|(at, _)| *at);
        let recorded = record::record(shared, desk, canary, status, decision).await?;
        measure::begin(shared, desk, understood, &seen, &recorded);
        // What an answer has told, no watch will tell again.
        let at_once = effective.then(|| shared.clock.now());
        return Ok(at_once.or(alarm));
    }
}

/// What failed is tried again; what was done before is recorded.
async fn give_up(
    shared: &Arc<Shared>,
    desk: &Desk,
    canary: &Canary,
    status: &CanaryStatus,
    done: Option<Decision>,
    error: Error,
) -> Result<Option<Timestamp>, Error> {
    if let Some(done) = done {
        record::record(shared, desk, canary, status, done).await?;
    }
    Err(error)
}

/// Says why nothing is done. A Canary that goes is let go.
async fn refuse(
    shared: &Arc<Shared>,
    desk: &Desk,
    canary: &Canary,
    status: &CanaryStatus,
    refused: Refused,
) -> Result<Option<Timestamp>, Error> {
    let now = shared.clock.now();
    if canary.metadata.deletion_timestamp.is_some() {
        act::remove_finalizer(shared, canary).await?;
        return Ok(None);
    }
    let seen = Observed { generation: canary.metadata.generation, ..Observed::default() };
    let decision = engine::refuse(&refused, status, &seen, now);
    record::record(shared, desk, canary, status, decision).await?;
    Ok(now.checked_add(REFUSED_AGAIN).ok())
}
