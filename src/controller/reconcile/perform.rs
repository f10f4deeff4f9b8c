//! Performs the actions of a decision, in order. Every action is idempotent; the
//! first failure ends the list, and the next reconcile continues.

use std::sync::Arc;

use kube::core::{ApiResource, DynamicObject};

use super::{
    Reconcile, finalizer,
    observe::Observation,
    resolve::ResolvedCanary,
    route_migration::{self, migrate_route},
    state::CanaryState,
};
use crate::{
    api::canary::Phase,
    controller::{
        background::{gate_call::call_gate, measure::start_measurement},
        cache::Caches,
        shard::fence::Fenced,
    },
    engine::{Action, Decision},
    object_cache::ObjectCache,
    routing::{self, RouteContext},
    workload::{self, FromCache},
};

/// Why an action failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Fenced(#[from] Fenced),
    #[error(transparent)]
    Workload(#[from] workload::Error),
    #[error(transparent)]
    Routing(#[from] routing::Error),
    #[error("cannot route: the target is not in the cache yet, so pod selectors are unknown")]
    TargetUnknown,
    #[error("cannot write the finalizer: {0}")]
    Finalizer(#[from] finalizer::Error),
    #[error("remove the previous route: {0}")]
    MigrateRoute(#[from] route_migration::Error),
}

impl Error {
    /// A retry cannot succeed until an object or a right changes.
    pub fn is_final(&self) -> bool {
        match self {
            Self::Workload(workload::Error::UnsupportedTarget(_) | workload::Error::BackupMissing { .. }) => {
                true
            }
            Self::Routing(error) => error.is_final(),
            Self::Fenced(_)
            | Self::Workload(_)
            | Self::TargetUnknown
            | Self::Finalizer(_)
            | Self::MigrateRoute(_) => false,
        }
    }
}

impl Reconcile<'_> {
    pub(super) async fn perform(
        &mut self,
        resolved: &ResolvedCanary,
        observation: &Observation,
        decision: &Decision,
    ) -> Result<(), Error> {
        let (ctx, workload, results) = (self.ctx, &resolved.workload, &self.state.results);
        let client = &ctx.fence.fenced_client(&ctx.client, self.key);
        let cache = &WriteThroughCache { caches: &ctx.caches, state: self.state };
        for change in &observation.companion_changes {
            ctx.fence.check(self.key)?;
            workload.apply_companion_change(client, change).await?;
        }
        for action in &decision.actions {
            ctx.fence.check(self.key)?;
            match action {
                Action::CreatePrimary { revision } => workload.create_primary(client, revision).await?,
                Action::ScaleCanary { replicas } => workload.scale_canary(client, cache, *replicas).await?,
                Action::ScaleDownCanary { after } => {
                    workload.scale_down_canary(client, cache, *after).await?;
                }
                Action::PinPrimary => workload.pin_primary(client).await?,
                Action::UnpinPrimary => workload.unpin_primary(client).await?,
                Action::KeepPrevious { revision } => workload.keep_previous(client, revision).await?,
                Action::DropPrevious => workload.drop_previous(client).await?,
                Action::Promote { revision } => {
                    let cached = FromCache {
                        target: observation.target.as_deref(),
                        primary: observation.primary.as_deref(),
                    };
                    workload.promote(client, cache, revision, cached).await?;
                }
                Action::RestorePrimary { revision } => {
                    workload.restore_primary(client, cache, revision).await?;
                }
                Action::Route(split) => {
                    let on = RouteContext {
                        canary: &resolved.canary,
                        pod_selectors: observation.selectors.as_ref().ok_or(Error::TargetUnknown)?,
                        services_memo: Some(&self.memory.services),
                    };
                    resolved.router.apply_split(client, &on, cache, split).await?;
                }
                Action::MigrateRoute { from } => migrate_route(ctx, resolved, from).await?,
                Action::RestoreRouting => resolved.router.restore(client, &resolved.canary, cache).await?,
                Action::Measure(check) => {
                    start_measurement(ctx, results, resolved.measured(observation), check);
                }
                Action::CallGate(call) => call_gate(ctx, results, &resolved.canary, &decision.status, call),
                Action::RemoveFinalizer => self.remove_finalizer().await?,
            }
        }
        Ok(())
    }
}

/// The caches for writes: the version of each stored write response is
/// remembered as an own write, so that its watch event triggers no reconcile.
struct WriteThroughCache<'a> {
    caches: &'a Caches,
    state: &'a CanaryState,
}

impl ObjectCache for WriteThroughCache<'_> {
    fn get(&self, kind: &ApiResource, namespace: &str, name: &str) -> Option<Arc<DynamicObject>> {
        self.caches.object(kind, namespace, name)
    }

    fn list(&self, kind: &ApiResource, namespace: &str) -> Vec<Arc<DynamicObject>> {
        self.caches.list(kind, namespace)
    }

    fn apply_write_response(&self, kind: &ApiResource, written: DynamicObject) {
        self.state.own_writes.lock().remember(self.caches.apply_response(kind, written));
    }
}

/// May a decision follow before this one is recorded? Not in a rollback: its
/// cause is recorded before anything else is done.
pub fn may_follow_up(phase: Phase) -> bool {
    matches!(phase, Phase::Initializing | Phase::Progressing | Phase::Finalising | Phase::Succeeded)
}
