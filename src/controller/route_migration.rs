//! A Canary that is reached in another way than before: once the new way is in
//! force, what is left of the old one is taken away.

use super::{
    CanaryName, Shared, act,
    caches::Unsynced,
    observe::Seen,
    understand::{Understood, router_for},
};
use crate::{
    api::{Canary, canary::status::RouteStatus},
    routing,
};

/// Why something is left.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Unsynced(#[from] Unsynced),
    #[error(transparent)]
    Act(#[from] act::Error),
}

/// Says what to record as the way that the Canary is reached by.
pub async fn settle(
    shared: &Shared,
    understood: &Understood,
    seen: &Seen,
    recorded: Option<&RouteStatus>,
) -> Result<Option<RouteStatus>, Error> {
    let (canary, router) = (&*understood.canary, &understood.router);
    if seen.observed.deleting || seen.observed.split.is_none() {
        return Ok(recorded.cloned());
    }
    let Some(provider) = canary.spec.provider else { return Ok(recorded.cloned()) };
    let present = RouteStatus { provider, service: routing::apex_name(canary) };
    let Some(recorded) = recorded.filter(|recorded| **recorded != present) else { return Ok(Some(present)) };
    let before = reached_by(canary, recorded);
    // What is not served any more has left nothing behind.
    if let Ok(old) = router_for(shared, &before).await {
        let left = routing::left_behind((&*old.router, &before), (&**router, canary));
        for object in &left {
            shared.caches.need(&object.kind).await?;
        }
        shared.fence.check(&CanaryName::of(canary)).map_err(act::Error::from)?;
        let taken = routing::take_away(&shared.client, canary, &shared.caches, &left).await;
        taken.map_err(act::Error::from)?;
        let next = (recorded.provider == provider).then_some(canary);
        old.router.leave(&before, next).await.map_err(act::Error::from)?;
    }
    Ok(Some(present))
}

fn reached_by(canary: &Canary, route: &RouteStatus) -> Canary {
    let mut before = canary.clone();
    before.spec.provider = Some(route.provider);
    before.spec.service.get_or_insert_default().name = Some(route.service.clone());
    before
}
