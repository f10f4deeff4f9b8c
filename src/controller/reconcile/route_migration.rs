//! A Canary that is reached in another way than before: once the new way is in
//! force, what is left of the old one is taken away.

use super::{
    Context, NamespacedName,
    caches::NotSynced,
    observe::Observation,
    perform,
    resolve::{ResolvedCanary, select_router},
};
use crate::{
    api::{Canary, canary::status::RouteStatus},
    routing,
};

/// Why something is left.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    NotSynced(#[from] NotSynced),
    #[error(transparent)]
    Perform(#[from] perform::Error),
}

/// Says what to record as the way that the Canary is reached by.
pub async fn migrate(
    ctx: &Context,
    resolved: &ResolvedCanary,
    observation: &Observation,
    recorded: Option<&RouteStatus>,
) -> Result<Option<RouteStatus>, Error> {
    let (canary, router) = (&*resolved.canary, &resolved.router);
    if observation.observed.deleting || observation.observed.split.is_none() {
        return Ok(recorded.cloned());
    }
    let Some(provider) = canary.spec.provider else { return Ok(recorded.cloned()) };
    let present = RouteStatus { provider, service: routing::apex_name(canary) };
    let Some(recorded) = recorded.filter(|recorded| **recorded != present) else { return Ok(Some(present)) };
    let before = with_previous_route(canary, recorded);
    // What is not served any more has left nothing behind.
    if let Ok(old) = select_router(ctx, &before).await {
        let left = routing::orphaned_objects((&*old.router, &before), (&**router, canary));
        for object in &left {
            ctx.caches.ensure_synced(&object.kind).await?;
        }
        ctx.fence.check(&NamespacedName::of(canary)).map_err(perform::Error::from)?;
        let taken = routing::remove_objects(&ctx.client, canary, &ctx.caches, &left).await;
        taken.map_err(perform::Error::from)?;
        let next = (recorded.provider == provider).then_some(canary);
        old.router.cleanup_external(&before, next).await.map_err(perform::Error::from)?;
    }
    Ok(Some(present))
}

fn with_previous_route(canary: &Canary, route: &RouteStatus) -> Canary {
    let mut before = canary.clone();
    before.spec.provider = Some(route.provider);
    before.spec.service.get_or_insert_default().name = Some(route.service.clone());
    before
}
