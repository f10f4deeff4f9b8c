//! Performs the actions of a decision: first what protects users, then what
//! advances the release, then maintenance. Every action is idempotent, and the next
//! reconcile repeats those that failed.
//!
//! A failure of a later purpose never blocks an earlier one. Actions that protect or
//! maintain do not depend on each other, so each is attempted; one that advances is
//! attempted only if nothing before it failed.

use std::sync::Arc;

use kube::core::{ApiResource, DynamicObject};

use super::{
    Reconcile,
    failures::FailedAttempt,
    finalizer,
    observe::Observation,
    resolve::ResolvedCanary,
    route_migration::{self, migrate_route, withdraw_previous},
    state::CanaryState,
};
use crate::{
    api::canary::Phase,
    controller::{
        background::{gate_call::call_gate, measure::start_measurement},
        cache::Caches,
        shard::fence::Fenced,
    },
    engine::{
        Action, Decision,
        action::{Purpose, Split},
    },
    error_chain::error_chain,
    object_cache::ObjectCache,
    routing::{self, RouteContext},
    workload::{self, FromCache, LostPrimary},
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
    #[error(transparent)]
    Finalizer(#[from] finalizer::Error),
    #[error("remove the previous route: {0}")]
    MigrateRoute(#[from] route_migration::Error),
}

impl Error {
    /// A retry cannot succeed until an object, a policy or a right changes.
    fn is_final(&self) -> bool {
        match self {
            Self::Workload(error) => error.is_final(),
            Self::Routing(error) | Self::MigrateRoute(route_migration::Error::Routing(error)) => {
                error.is_final()
            }
            Self::MigrateRoute(route_migration::Error::NotSynced(error)) => error.is_refused(),
            Self::Finalizer(error) => error.is_refused(),
            Self::Fenced(_) | Self::TargetUnknown | Self::MigrateRoute(_) => false,
        }
    }
}

impl Reconcile<'_> {
    /// Adds failed attempts to `self.failed`. An error means that this replica lost
    /// the Canary, and nothing more may be written for it.
    pub(super) async fn perform(
        &mut self,
        resolved: &ResolvedCanary,
        observation: &Observation,
        decision: &Decision,
    ) -> Result<(), Fenced> {
        for purpose in [Purpose::Protect, Purpose::Advance] {
            for action in decision.actions.iter().filter(|action| action.purpose() == purpose) {
                let unrecorded = !self.recordable && raises_traffic(action, observation);
                if unrecorded || purpose == Purpose::Advance && self.is_blocked() {
                    self.skipped.push(action.name());
                    continue;
                }
                self.attempt_action(resolved, observation, decision, action).await?;
            }
        }
        self.maintain_companions(resolved, observation).await?;
        for action in decision.actions.iter().filter(|action| action.purpose() == Purpose::Maintain) {
            self.attempt_action(resolved, observation, decision, action).await?;
        }
        Ok(())
    }

    /// Did an attempt fail that is more than maintenance?
    pub(super) fn is_blocked(&self) -> bool {
        self.failed.iter().any(|failed| failed.failure.purpose != Purpose::Maintain)
    }

    async fn attempt_action(
        &mut self,
        resolved: &ResolvedCanary,
        observation: &Observation,
        decision: &Decision,
        action: &Action,
    ) -> Result<(), Fenced> {
        self.ctx.fence.check(self.key)?;
        let began = self.ctx.clock.now();
        let result = self.perform_action(resolved, observation, decision, action).await;
        if let Some(traces) = self.ctx.telemetry.traces.get() {
            let span = (began, self.ctx.clock.now());
            traces.observe_action(self.canary, action.name(), span, result.is_ok());
        }
        match result {
            Ok(()) => Ok(()),
            Err(Error::Fenced(fenced)) => Err(fenced),
            Err(error) => {
                self.note_failure(action.purpose(), action.name(), &error, error.is_final());
                Ok(())
            }
        }
    }

    pub(super) fn note_failure(
        &mut self,
        purpose: Purpose,
        attempt: &str,
        error: &dyn std::error::Error,
        refused: bool,
    ) {
        let message = error_chain(error);
        tracing::debug!(canary = %self.key, attempt, refused, "{message}");
        self.ctx.telemetry.observe_failure(purpose);
        self.failed.retain(|failed| failed.attempt != attempt);
        self.failed.push(FailedAttempt::new(purpose, attempt, message, refused));
    }

    async fn maintain_companions(
        &mut self,
        resolved: &ResolvedCanary,
        observation: &Observation,
    ) -> Result<(), Fenced> {
        let client = &self.ctx.fence.fenced_client(&self.ctx.client, self.key);
        for change in &observation.companion_changes {
            self.ctx.fence.check(self.key)?;
            if let Err(error) = resolved.workload.apply_companion_change(client, change).await {
                self.note_failure(Purpose::Maintain, &change.name(), &error, error.is_final());
            }
        }
        Ok(())
    }

    async fn perform_action(
        &mut self,
        resolved: &ResolvedCanary,
        observation: &Observation,
        decision: &Decision,
        action: &Action,
    ) -> Result<(), Error> {
        let (ctx, workload, results) = (self.ctx, &resolved.workload, &self.state.results);
        let client = &ctx.fence.fenced_client(&ctx.client, self.key);
        let cache = &WriteThroughCache { caches: &ctx.caches, state: self.state };
        match action {
            Action::CreatePrimary { revision } => workload.create_primary(client, revision).await?,
            Action::ScaleCanary { replicas } => workload.scale_canary(client, cache, *replicas).await?,
            Action::ScaleDownCanary { after } => workload.scale_down_canary(client, cache, *after).await?,
            Action::ReplacePod { pod } => {
                let selectors = observation.selectors.as_ref().ok_or(Error::TargetUnknown)?;
                workload.delete_canary_pod(client, pod, &selectors.canary).await?;
                self.memory.deleted_pod = Some(pod.clone());
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
            Action::ScalePrimary { replicas } => workload.scale_primary(client, cache, *replicas).await?,
            Action::RestorePrimary { revision, replicas } => {
                let backup_digests = decision.status.backup_digests.as_deref();
                let lost = LostPrimary { replicas: *replicas, backup_digests };
                workload.restore_primary(client, cache, revision, &lost).await?;
            }
            Action::Route(split) => {
                let on = RouteContext {
                    canary: &resolved.canary,
                    pod_selectors: observation.selectors.as_ref().ok_or(Error::TargetUnknown)?,
                    services_memo: Some(&self.memory.services),
                };
                resolved.router.apply_split(client, &on, cache, split).await?;
                let observed = &observation.observed;
                let from = decision.status.route.as_ref().filter(|from| {
                    Some(*from) != observed.route.as_ref() && Some(*from) != observed.migrated_from.as_ref()
                });
                if let Some(from) = from.filter(|_| !split.reaches_canary()) {
                    withdraw_previous(ctx, from, &on, split).await?;
                }
            }
            Action::MigrateRoute { from } => {
                migrate_route(ctx, resolved, from).await?;
                self.memory.migrated_from = Some(from.clone());
            }
            Action::RestoreRouting => resolved.router.restore(client, &resolved.canary, cache).await?,
            Action::Measure(check) => start_measurement(ctx, results, resolved.measured(observation), check),
            Action::CallGate(call) => call_gate(ctx, results, &resolved.canary, &decision.status, call),
            Action::RemoveFinalizer => self.remove_finalizer().await?,
        }
        Ok(())
    }
}

/// Does an action give the canary more traffic than it has?
fn raises_traffic(action: &Action, observation: &Observation) -> bool {
    let present = observation.observed.split.as_ref();
    let gets_less = |split: &Split| present.is_some_and(|present| split.canary <= present.canary);
    matches!(action, Action::Route(split) if split.reaches_canary() && !gets_less(split))
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
