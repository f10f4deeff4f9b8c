//! A Canary that was given another name for its Services, or another router:
//! what it leaves behind.

use kube::Client;

use super::{
    Error, ObjectCache, ObjectKey, Router,
    object::{self, ObjectOwnership},
    services::ServiceNames,
};
use crate::api::Canary;

/// What everybody calls a Canary's workload by.
pub fn apex_name(canary: &Canary) -> String {
    ServiceNames::of(canary).apex
}

/// The objects of one route that another does without. A route of another
/// version is the same object.
pub fn orphaned_objects(
    (router, canary): (&dyn Router, &Canary),
    (next, renamed): (&dyn Router, &Canary),
) -> Vec<ObjectKey> {
    let kept = next.objects(renamed);
    let is_held = |object: &ObjectKey| {
        kept.iter().any(|kept| {
            (&kept.kind.group, &kept.kind.kind, &kept.namespace, &kept.name)
                == (&object.kind.group, &object.kind.kind, &object.namespace, &object.name)
        })
    };
    let mut left = router.objects(canary);
    left.retain(|object| !is_held(object));
    left
}

/// Takes such objects away: routes first, since they lead to Services. A
/// Service that was there before the Canary stays as it is, with the primary
/// behind it: what it led to before is empty.
pub async fn remove_objects(
    client: &Client,
    canary: &Canary,
    cache: &dyn ObjectCache,
    objects: &[ObjectKey],
) -> Result<(), Error> {
    for object in objects.iter().rev() {
        let live = object.find(cache);
        let adopted = live
            .is_some_and(|live| matches!(ObjectOwnership::of(&live, canary), ObjectOwnership::Adopted(_)));
        let stays = adopted && object.kind.kind == "Service";
        if !stays {
            object::delete_or_restore(client, canary, cache, object).await?;
        }
    }
    Ok(())
}
