//! Routers whose route is one or more objects of the cluster. They describe
//! the objects; writing, comparing, deleting and restoring them is the same
//! for all.

use std::fmt;

use async_trait::async_trait;
use kube::{Client, api::DynamicObject};

use super::{
    Capabilities, Error, ObjectKey, RouteContext, Router, Unsupported, check_capabilities,
    object::{self, DesiredObject},
    services::{self, ApexTarget},
    split_annotation,
};
use crate::{
    api::{Canary, canary::HttpMatch},
    engine::{
        Plan,
        action::{Split, Stable},
    },
    object_cache::ObjectCache,
};

/// A router that writes objects besides the three Services. It is a [`Router`]
/// by the blanket implementation below.
#[async_trait]
pub trait ObjectRouter: Send + Sync + fmt::Debug {
    /// See [`Router::name`].
    fn name(&self) -> String;

    /// See [`Router::capabilities`].
    fn capabilities(&self, canary: &Canary) -> Capabilities;

    /// See [`Router::supports_match`].
    fn supports_match(&self, _condition: &HttpMatch) -> Result<(), &'static str> {
        Ok(())
    }

    /// See [`Router::route_fields`].
    fn route_fields(&self, _canary: &Canary) -> &'static [&'static str] {
        &[]
    }

    /// Rejects values of the Canary, beyond the fields that
    /// [`capabilities`](Self::capabilities) and [`route_fields`](Self::route_fields)
    /// cover.
    fn check_spec(&self, _canary: &Canary) -> Result<(), Unsupported> {
        Ok(())
    }

    /// See [`Router::check_implementation`].
    async fn check_implementation(
        &self,
        _client: &Client,
        _canary: &Canary,
        _plan: &Plan,
    ) -> Result<(), Unsupported> {
        Ok(())
    }

    /// The object that carries the weights. Its split annotation records the
    /// split in force.
    fn route_object(&self, canary: &Canary) -> ObjectKey;

    /// Every other object that it writes or may have written, except Services.
    fn other_objects(&self, _canary: &Canary) -> Vec<ObjectKey> {
        Vec::new()
    }

    /// Those of the [other objects](Self::other_objects) that the Canary as it
    /// is now has no use for. A split is in force only once they are gone.
    fn obsolete_objects(&self, _canary: &Canary) -> Vec<ObjectKey> {
        Vec::new()
    }

    /// The objects of a split in the order to write them: an object comes after
    /// those that it refers to.
    fn desired(&self, on: &RouteContext<'_>, split: &Split) -> Vec<DesiredObject>;

    /// The order to delete or restore objects in: an object comes before those
    /// that it refers to.
    fn removal_order(&self, canary: &Canary) -> Vec<ObjectKey> {
        route_and_other_objects(self, canary)
    }

    /// Rejects objects that exist already and cannot be adopted.
    /// Rejects splits that their controllers cannot apply.
    fn check_live(
        &self,
        _canary: &Canary,
        _cache: &dyn ObjectCache,
        _split: &Split,
    ) -> Result<(), Unsupported> {
        Ok(())
    }

    /// Why the mesh does not use the live route object yet, by its status.
    fn inactive_reason(&self, _route: &DynamicObject) -> Option<String> {
        None
    }

    /// Why the mesh will not use the live route object, by its status.
    fn refusal(&self, _route: &DynamicObject) -> Option<String> {
        None
    }

    /// See [`Router::pending_reason`].
    fn pending_reason(&self, canary: &Canary, cache: &dyn ObjectCache) -> Option<String> {
        let route = self.route_object(canary).find(cache)?;
        split_annotation::parse(&route, Stable::Primary)?;
        self.inactive_reason(&route)
    }
}

fn route_and_other_objects<R: ObjectRouter + ?Sized>(router: &R, canary: &Canary) -> Vec<ObjectKey> {
    [router.route_object(canary)].into_iter().chain(router.other_objects(canary)).collect()
}

#[async_trait]
impl<R: ObjectRouter> Router for R {
    fn name(&self) -> String {
        ObjectRouter::name(self)
    }

    fn capabilities(&self, canary: &Canary) -> Capabilities {
        ObjectRouter::capabilities(self, canary)
    }

    fn supports_match(&self, condition: &HttpMatch) -> Result<(), &'static str> {
        ObjectRouter::supports_match(self, condition)
    }

    fn route_fields(&self, canary: &Canary) -> &'static [&'static str] {
        ObjectRouter::route_fields(self, canary)
    }

    fn check(&self, canary: &Canary, plan: &Plan) -> Result<(), Unsupported> {
        check_capabilities(self, canary, plan)?;
        self.check_spec(canary)
    }

    async fn check_implementation(
        &self,
        client: &Client,
        canary: &Canary,
        plan: &Plan,
    ) -> Result<(), Unsupported> {
        ObjectRouter::check_implementation(self, client, canary, plan).await
    }

    fn objects(&self, canary: &Canary) -> Vec<ObjectKey> {
        services::objects(canary).into_iter().chain(route_and_other_objects(self, canary)).collect()
    }

    fn effective_split(&self, on: &RouteContext<'_>, cache: &dyn ObjectCache) -> Option<Split> {
        if object::any_managed(&self.obsolete_objects(on.canary), on.canary, cache) {
            return None;
        }
        let stable = services::stable_side(on, cache)?;
        let key = self.route_object(on.canary);
        let route = key.find(cache)?;
        let recorded = split_annotation::parse(&route, stable);
        let at_rest = recorded.is_none();
        let split = recorded.unwrap_or(Split { stable, ..Split::all_primary() });
        let in_sync = self.desired(on, &split).iter().all(|object| match at_rest && object.object == key {
            true => object.is_left_to_owner(on.canary, &route),
            false => object.is_in_sync(on.canary, cache),
        });
        (in_sync && self.inactive_reason(&route).is_none()).then_some(split)
    }

    fn split_object(&self, canary: &Canary) -> Option<ObjectKey> {
        Some(self.route_object(canary))
    }

    fn pending_reason(&self, canary: &Canary, cache: &dyn ObjectCache) -> Option<String> {
        ObjectRouter::pending_reason(self, canary, cache)
    }

    fn refusal(&self, canary: &Canary, cache: &dyn ObjectCache) -> Option<String> {
        let route = self.route_object(canary).find(cache)?;
        ObjectRouter::refusal(self, &route)
    }

    async fn apply_split(
        &self,
        client: &Client,
        on: &RouteContext<'_>,
        cache: &dyn ObjectCache,
        split: &Split,
    ) -> Result<(), Error> {
        let name = || ObjectRouter::name(self);
        ObjectRouter::capabilities(self, on.canary).check_split(split, name)?;
        self.check_live(on.canary, cache, split)?;
        let desired = self.desired(on, split);
        for object in &desired {
            object.check_adoptable(cache)?;
        }
        services::ensure(client, on, cache, ApexTarget::Stable, split.stable).await?;
        let route = self.route_object(on.canary);
        for object in desired {
            // At rest the apex Service leads to the stable side, and a route of others that
            // leads to it is left to them.
            let at_rest = *split == Split { stable: split.stable, ..Split::all_primary() };
            if !(at_rest && object.object == route && object.give_back(client, on.canary, cache).await?) {
                object.ensure(client, on.canary, cache).await?;
            }
        }
        for object in self.obsolete_objects(on.canary) {
            object::delete_or_restore(client, on.canary, cache, &object).await?;
        }
        Ok(())
    }

    fn is_restored(&self, canary: &Canary, cache: &dyn ObjectCache) -> bool {
        services::is_restored(canary, cache)
            && !object::any_managed(&route_and_other_objects(self, canary), canary, cache)
    }

    async fn restore(&self, client: &Client, canary: &Canary, cache: &dyn ObjectCache) -> Result<(), Error> {
        // The apex selects the target's pods before the route is removed.
        services::restore(client, canary, cache).await?;
        for object in self.removal_order(canary) {
            object::delete_or_restore(client, canary, cache, &object).await?;
        }
        Ok(())
    }
}
