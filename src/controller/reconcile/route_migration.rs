//! Leaves a route that the Canary no longer uses: its provider or its apex Service
//! has changed, or the provider selects another kind of route, since the kinds that
//! the cluster serves have.

use super::resolve::{ResolvedCanary, select_recorded, with_route};
use crate::{
    api::canary::status::RouteStatus,
    controller::{
        cache::reflector::NotSynced, context::Context, queue::trigger::NamespacedName, shard::fence::Fenced,
    },
    engine::action::Split,
    routing::{self, ObjectKey, RouteContext, SelectedRouter},
};

/// Why the previous route remains.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    NotSynced(#[from] NotSynced),
    #[error(transparent)]
    Fenced(#[from] Fenced),
    #[error(transparent)]
    Routing(#[from] routing::Error),
}

/// Removes the objects of the previous route, once the new one is in force.
pub async fn migrate_route(
    ctx: &Context,
    resolved: &ResolvedCanary,
    from: &RouteStatus,
) -> Result<(), Error> {
    let (canary, router) = (&*resolved.canary, &resolved.router);
    let before = with_route(canary, from);
    // A kind that is not served any more has no objects left.
    let Ok(previous) = select_recorded(ctx, from) else { return Ok(()) };
    let orphaned = routing::orphaned_objects((&*previous.router, &before), (&**router, canary));
    sync(ctx, &orphaned).await?;
    ctx.fence.check(&NamespacedName::of(canary))?;
    routing::remove_objects(&ctx.client, canary, &ctx.caches, &orphaned).await?;
    let next = (Some(from.provider) == canary.spec.provider).then_some(canary);
    Ok(previous.router.cleanup_external(&before, next).await?)
}

/// Gives the previous route a split without the canary while the new one is not in
/// force: until then the previous one may still be obeyed.
pub async fn withdraw_previous(
    ctx: &Context,
    from: &RouteStatus,
    on: &RouteContext<'_>,
    split: &Split,
) -> Result<(), Error> {
    let before = with_route(on.canary, from);
    let Ok(SelectedRouter { router, .. }) = select_recorded(ctx, from) else { return Ok(()) };
    // The state of another mesh would have to be fetched.
    let Some(route) = router.split_object(&before).filter(|_| router.is_watchable()) else { return Ok(()) };
    sync(ctx, &router.objects(&before)).await?;
    let exists = ctx.caches.object(&route.kind, &route.namespace, &route.name).is_some();
    let on = RouteContext { canary: &before, services_memo: None, ..*on };
    let in_force = router.effective_split(&on, &ctx.caches);
    if exists && in_force.is_none_or(|in_force| in_force.reaches_canary()) {
        ctx.fence.check(&NamespacedName::of(on.canary))?;
        router.apply_split(&ctx.client, &on, &ctx.caches, split).await?;
    }
    Ok(())
}

async fn sync(ctx: &Context, objects: &[ObjectKey]) -> Result<(), NotSynced> {
    for object in objects {
        ctx.caches.ensure_synced(&object.kind).await?;
    }
    Ok(())
}
