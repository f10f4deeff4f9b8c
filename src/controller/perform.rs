//! Acting: what was decided, in its order, each as often as it is asked for.
//! Stops at the first failure.

use std::sync::Arc;

use kube::{
    Api, ResourceExt as _,
    api::Patch,
    core::{ApiResource, DynamicObject},
};
use serde_json::json;

use super::{
    Context, NamespacedName,
    caches::Caches,
    fence::Fenced,
    gate_call::call_gate,
    measure::start_measurement,
    observe::{Observation, observe_route},
    resolve::ResolvedCanary,
    state::CanaryState,
};
use crate::{
    api::{Canary, canary::Phase},
    engine::{Action, Decision},
    object_cache::ObjectCache,
    patch::merge_params,
    routing::{self, RouteContext},
    workload::{self, FromCache},
};

/// Keeps a Canary there until everything is put back.
pub const FINALIZER: &str = "serin.dev/revert";

/// What could not be done.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Fenced(#[from] Fenced),
    #[error(transparent)]
    Workload(#[from] workload::Error),
    #[error(transparent)]
    Routing(#[from] routing::Error),
    #[error("traffic cannot be divided: nobody has seen the target since this controller began")]
    TargetUnknown,
    #[error("cannot write the finalizer: {0}")]
    Finalizer(Box<kube::Error>),
}

impl Error {
    /// Trying again cannot help until somebody changes something.
    pub fn is_final(&self) -> bool {
        match self {
            Self::Workload(workload::Error::UnsupportedTarget(_) | workload::Error::BackupMissing { .. }) => {
                true
            }
            Self::Routing(error) => error.is_final(),
            Self::Fenced(_) | Self::Workload(_) | Self::TargetUnknown | Self::Finalizer(_) => false,
        }
    }
}

/// Performs what follows from a decision.
pub async fn perform(
    ctx: &Arc<Context>,
    state: &Arc<CanaryState>,
    resolved: &Arc<ResolvedCanary>,
    observation: &Observation,
    decision: &Decision,
) -> Result<(), Error> {
    let (name, workload) = (NamespacedName::of(&*resolved.canary), &resolved.workload);
    let client = &ctx.fence.fenced_client(&ctx.client, &name);
    let caches = &WriteThroughCache { caches: &ctx.caches, state };
    for upkeep in &observation.companion_changes {
        ctx.fence.check(&name)?;
        workload.apply_companion_change(client, upkeep).await?;
    }
    for action in &decision.actions {
        ctx.fence.check(&name)?;
        match action {
            Action::CreatePrimary { revision } => workload.create_primary(client, revision).await?,
            Action::ScaleCanary { replicas } => {
                workload.scale_canary(client, caches, *replicas).await?;
            }
            Action::ScaleDownCanary { after } => workload.scale_down_canary(client, caches, *after).await?,
            Action::PinPrimary => workload.pin_primary(client).await?,
            Action::UnpinPrimary => workload.unpin_primary(client).await?,
            Action::KeepPrevious { revision } => workload.keep_previous(client, revision).await?,
            Action::DropPrevious => workload.drop_previous(client).await?,
            Action::Promote { revision } => {
                let known = FromCache {
                    target: observation.target.as_deref(),
                    primary: observation.primary.as_deref(),
                };
                workload.promote(client, caches, revision, known).await?;
            }
            Action::RestorePrimary { revision } => workload.restore_primary(client, caches, revision).await?,
            Action::Route(split) => {
                let arms = observation.selectors.as_ref().ok_or(Error::TargetUnknown)?;
                let on = RouteContext {
                    canary: &resolved.canary,
                    pod_selectors: arms,
                    services_memo: Some(&state.services),
                };
                resolved.router.apply_split(client, &on, caches, split).await?;
            }
            Action::RestoreRouting => {
                resolved.router.restore(client, &resolved.canary, caches).await?;
            }
            Action::Measure(check) => start_measurement(ctx, state, resolved, observation, check),
            Action::CallGate(question) => call_gate(ctx, state, resolved, decision, question),
            Action::RemoveFinalizer => remove_finalizer(ctx, &resolved.canary).await?,
        }
    }
    Ok(())
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
        self.state.remember_own_write(self.caches.apply_response(kind, written));
    }
}

/// May what took effect be followed up before it is on record? A rollback is
/// recorded before anything else is done.
pub fn may_follow_up(phase: Phase) -> bool {
    matches!(phase, Phase::Initializing | Phase::Progressing | Phase::Finalising | Phase::Succeeded)
}

/// Has something taken effect as it was written?
pub fn has_taken_effect(
    ctx: &Context,
    state: &CanaryState,
    resolved: &ResolvedCanary,
    observation: &Observation,
    decision: &Decision,
) -> bool {
    let workload = &resolved.workload;
    decision.actions.iter().any(|action| match action {
        Action::Route(split) => {
            let route = observation.selectors.as_ref().map(|arms| observe_route(ctx, resolved, arms, state));
            route.and_then(|(effective_split, _)| effective_split).as_ref() == Some(split)
        }
        Action::ScaleCanary { replicas: 0 } | Action::ScaleDownCanary { .. } => {
            let target = ctx.caches.workload(workload.kind(), workload.namespace(), workload.target_name());
            target.is_some_and(|target| workload.is_scaled_down(&target))
        }
        _ => false,
    })
}

/// A Canary has the finalizer exactly as long as its deletion is to revert.
pub async fn sync_finalizer(ctx: &Context, canary: &Canary) -> Result<(), Error> {
    let deleting = canary.metadata.deletion_timestamp.is_some();
    let has = canary.finalizers().iter().any(|finalizer| finalizer == FINALIZER);
    match (canary.spec.revert_on_deletion, has) {
        _ if deleting => Ok(()),
        (true, false) => {
            let all = canary.finalizers().iter().cloned().chain([FINALIZER.to_owned()]).collect();
            write_finalizers(ctx, canary, all).await
        }
        (false, true) => remove_finalizer(ctx, canary).await,
        (true, true) | (false, false) => Ok(()),
    }
}

pub async fn remove_finalizer(ctx: &Context, canary: &Canary) -> Result<(), Error> {
    let others: Vec<String> =
        canary.finalizers().iter().filter(|finalizer| *finalizer != FINALIZER).cloned().collect();
    if others.len() == canary.finalizers().len() {
        return Ok(());
    }
    write_finalizers(ctx, canary, others).await
}

/// The version makes sure that nobody else's finalizer is lost.
async fn write_finalizers(ctx: &Context, canary: &Canary, finalizers: Vec<String>) -> Result<(), Error> {
    ctx.fence.check(&NamespacedName::of(canary))?;
    let api: Api<Canary> = Api::namespaced(ctx.client.clone(), &canary.namespace().unwrap_or_default());
    let patch = json!({ "metadata": {
        "finalizers": finalizers, "resourceVersion": canary.resource_version(),
    }});
    match api.patch(&canary.name_any(), &merge_params(), &Patch::Merge(&patch)).await {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        Err(error) => Err(Error::Finalizer(Box::new(error))),
    }
}
