//! No mesh: the selector of the apex Service switches between primary and
//! canary.
//!
//! A switch is in force when it is written; the endpoints of the Service follow
//! within moments, and no API reports when the last node has them.

use async_trait::async_trait;
use kube::Client;

use super::{
    Capabilities, Error, ObjectCache, ObjectKey, RouteContext, Router, Unsupported, check_capabilities,
    services::{self, ApexTarget},
};
use crate::{
    api::{Canary, Weight, canary::TargetKind},
    engine::{
        Plan,
        action::{Split, Stable},
    },
};

/// Switches the apex Service.
#[derive(Clone, Copy, Debug)]
pub struct Kubernetes;

#[async_trait]
impl Router for Kubernetes {
    fn name(&self) -> String {
        "kubernetes".to_owned()
    }

    fn capabilities(&self, _: &Canary) -> Capabilities {
        Capabilities::SWITCH
    }

    fn check(&self, canary: &Canary, plan: &Plan) -> Result<(), Unsupported> {
        if canary.spec.target_ref.kind == TargetKind::Service {
            return Err(Unsupported::TargetService { router: self.name() });
        }
        // The plan of a router that only switches has no conditions.
        if !canary.spec.analysis.match_.is_empty() {
            return Err(Unsupported::Match { router: self.name() });
        }
        check_capabilities(self, canary, plan)
    }

    fn objects(&self, canary: &Canary) -> Vec<ObjectKey> {
        services::objects(canary)
    }

    fn effective_split(&self, on: &RouteContext<'_>, cache: &dyn ObjectCache) -> Option<Split> {
        let variants = [
            (ApexTarget::Stable, Stable::Primary),
            (ApexTarget::Canary, Stable::Primary),
            (ApexTarget::Stable, Stable::Previous),
            (ApexTarget::Canary, Stable::Previous),
        ];
        let (apex, stable) =
            variants.into_iter().find(|(apex, stable)| services::is_in_sync(on, cache, *apex, *stable))?;
        let canary = match apex {
            ApexTarget::Stable => Weight::ZERO,
            ApexTarget::Canary => Weight::FULL,
        };
        Some(Split { stable, ..Split::weight(canary) })
    }

    fn split_object(&self, canary: &Canary) -> Option<ObjectKey> {
        Some(services::apex(canary))
    }

    async fn apply_split(
        &self,
        client: &Client,
        on: &RouteContext<'_>,
        cache: &dyn ObjectCache,
        split: &Split,
    ) -> Result<(), Error> {
        self.capabilities(on.canary).check_split(split, || self.name())?;
        let apex = if split.canary == Weight::FULL { ApexTarget::Canary } else { ApexTarget::Stable };
        services::ensure(client, on, cache, apex, split.stable).await
    }

    fn is_restored(&self, canary: &Canary, cache: &dyn ObjectCache) -> bool {
        services::is_restored(canary, cache)
    }

    async fn restore(&self, client: &Client, canary: &Canary, cache: &dyn ObjectCache) -> Result<(), Error> {
        services::restore(client, canary, cache).await
    }
}
