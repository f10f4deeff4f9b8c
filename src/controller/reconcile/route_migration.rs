//! Removes the objects of a route that the Canary no longer uses: its provider
//! or its apex Service has changed, and the new route is in force.

use super::resolve::{ResolvedCanary, select_router, with_route};
use crate::{
    api::canary::status::RouteStatus,
    controller::{
        cache::reflector::NotSynced, context::Context, queue::trigger::NamespacedName, shard::fence::Fenced,
    },
    routing,
};

/// Why objects of the previous route remain.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    NotSynced(#[from] NotSynced),
    #[error(transparent)]
    Fenced(#[from] Fenced),
    #[error(transparent)]
    Routing(#[from] routing::Error),
}

pub async fn migrate_route(
    ctx: &Context,
    resolved: &ResolvedCanary,
    from: &RouteStatus,
) -> Result<(), Error> {
    let (canary, router) = (&*resolved.canary, &resolved.router);
    let before = with_route(canary, from);
    // A kind that is not served any more has no objects left.
    let Ok(previous) = select_router(ctx, &before).await else { return Ok(()) };
    let orphaned = routing::orphaned_objects((&*previous.router, &before), (&**router, canary));
    for object in &orphaned {
        ctx.caches.ensure_synced(&object.kind).await?;
    }
    ctx.fence.check(&NamespacedName::of(canary))?;
    routing::remove_objects(&ctx.client, canary, &ctx.caches, &orphaned).await?;
    let next = (Some(from.provider) == canary.spec.provider).then_some(canary);
    Ok(previous.router.cleanup_external(&before, next).await?)
}
