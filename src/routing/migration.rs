//! A Canary that was given another name for its Services, or another router:
//! what it leaves behind.

use kube::Client;

use super::{
    Error, Lookup, ObjectName, Router,
    object::{self, Standing},
    services::Names,
};
use crate::api::Canary;

/// What everybody calls a Canary's workload by.
pub fn apex_name(canary: &Canary) -> String {
    Names::of(canary).apex
}

/// The objects of one route that another does without. A route of another
/// version is the same object.
pub fn left_behind(
    (router, canary): (&dyn Router, &Canary),
    (next, renamed): (&dyn Router, &Canary),
) -> Vec<ObjectName> {
    let kept = next.objects(renamed);
    let is_kept = |object: &ObjectName| {
        kept.iter().any(|kept| {
            (&kept.kind.group, &kept.kind.kind, &kept.namespace, &kept.name)
                == (&object.kind.group, &object.kind.kind, &object.namespace, &object.name)
        })
    };
    let mut left = router.objects(canary);
    left.retain(|object| !is_kept(object));
    left
}

/// Takes such objects away: routes first, since they lead to Services. A
/// Service that was there before the Canary stays as it is, with the primary
/// behind it: what it led to before is empty.
pub async fn take_away(
    client: &Client,
    canary: &Canary,
    seen: &dyn Lookup,
    objects: &[ObjectName],
) -> Result<(), Error> {
    for object in objects.iter().rev() {
        let live = object.find(seen);
        let adopted = live.is_some_and(|live| matches!(Standing::of(&live, canary), Standing::Adopted(_)));
        let stays = adopted && object.kind.kind == "Service";
        if !stays {
            object::take_back(client, canary, seen, object).await?;
        }
    }
    Ok(())
}
