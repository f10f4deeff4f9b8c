//! Cleanup after a Canary got another service name or another router.

use kube::Client;

use super::{
    Error, ObjectCache, ObjectKey, Router,
    object::{self, ObjectOwnership},
    services::ServiceNames,
};
use crate::api::{Canary, canary::status::RouteObject};

/// The name of the apex Service.
pub fn apex_name(canary: &Canary) -> String {
    ServiceNames::of(canary).apex
}

/// The objects of a route for the status: all but the Services, which every route
/// has.
pub fn recorded_objects(objects: &[ObjectKey]) -> Vec<RouteObject> {
    let others = objects.iter().filter(|object| !object.kind.group.is_empty());
    others
        .map(|ObjectKey { kind, name, .. }| RouteObject {
            api_version: kind.api_version.clone(),
            kind: kind.kind.clone(),
            name: name.clone(),
        })
        .collect()
}

/// The objects of one route that another does not use. The API version of a
/// kind does not matter.
pub fn orphaned_objects(
    (router, canary): (&dyn Router, &Canary),
    (next, renamed): (&dyn Router, &Canary),
) -> Vec<ObjectKey> {
    let kept = next.objects(renamed);
    let is_kept = |object: &ObjectKey| {
        kept.iter().any(|kept| {
            (&kept.kind.group, &kept.kind.kind, &kept.namespace, &kept.name)
                == (&object.kind.group, &object.kind.kind, &object.namespace, &object.name)
        })
    };
    let mut orphaned = router.objects(canary);
    orphaned.retain(|object| !is_kept(object));
    orphaned
}

/// Deletes or restores such objects: routes first, since they refer to
/// Services. An adopted Service keeps selecting the primary: the pods that it
/// selected before are scaled down.
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
        let is_kept = adopted && object.kind.kind == "Service";
        if !is_kept {
            object::delete_or_restore(client, canary, cache, object).await?;
        }
    }
    Ok(())
}
