//! No mesh: the apex Service leads to the primary, or to the canary, and
//! switches from one to the other at once.
//!
//! A switch is in force when it is written; the endpoints of the Service follow
//! within moments, and nothing in the API says when the last node has them.

use async_trait::async_trait;
use kube::Client;

use super::{
    Capabilities, Error, Lookup, ObjectName, Router, Subject, Unsupported, check_capabilities,
    services::{self, Apex},
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
        check_capabilities(self, canary, plan)
    }

    fn objects(&self, canary: &Canary) -> Vec<ObjectName> {
        services::objects(canary)
    }

    fn split(&self, on: &Subject<'_>, seen: &dyn Lookup) -> Option<Split> {
        let ways = [
            (Apex::Stable, Stable::Primary),
            (Apex::Canary, Stable::Primary),
            (Apex::Stable, Stable::Previous),
            (Apex::Canary, Stable::Previous),
        ];
        let (apex, stable) =
            ways.into_iter().find(|(apex, stable)| services::stand(on, seen, *apex, *stable))?;
        let canary = match apex {
            Apex::Stable => Weight::ZERO,
            Apex::Canary => Weight::FULL,
        };
        Some(Split { stable, ..Split::weight(canary) })
    }

    async fn set(
        &self,
        client: &Client,
        on: &Subject<'_>,
        seen: &dyn Lookup,
        split: &Split,
    ) -> Result<(), Error> {
        self.capabilities(on.canary).allow(split, || self.name())?;
        let apex = if split.canary == Weight::FULL { Apex::Canary } else { Apex::Stable };
        services::ensure(client, on, seen, apex, split.stable).await
    }

    fn restored(&self, canary: &Canary, seen: &dyn Lookup) -> bool {
        services::restored(canary, seen)
    }

    async fn restore(&self, client: &Client, canary: &Canary, seen: &dyn Lookup) -> Result<(), Error> {
        services::restore(client, canary, seen).await
    }
}
