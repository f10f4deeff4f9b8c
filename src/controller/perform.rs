//! Acting: what was decided, in its order, each as often as it is asked for.
//! Stops at the first failure.

use std::sync::Arc;

use kube::{
    Api, ResourceExt as _,
    api::{Patch, PatchParams},
    core::{ApiResource, DynamicObject},
};
use serde_json::json;

use super::{
    CanaryName, Shared,
    ask::ask,
    caches::Caches,
    desk::Desk,
    lease::Fenced,
    measure::measure,
    observe::{Seen, see_route},
    understand::Understood,
};
use crate::{
    api::{Canary, canary::Phase},
    engine::{Action, Decision},
    routing::{self, Subject},
    workload::{self, Known, Snapshot},
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
            Self::Workload(workload::Error::Refused(_) | workload::Error::Lost { .. }) => true,
            Self::Routing(error) => error.is_final(),
            Self::Fenced(_) | Self::Workload(_) | Self::TargetUnknown | Self::Finalizer(_) => false,
        }
    }
}

/// Performs what follows from a decision.
pub async fn act(
    shared: &Arc<Shared>,
    desk: &Arc<Desk>,
    understood: &Arc<Understood>,
    seen: &Seen,
    decision: &Decision,
) -> Result<(), Error> {
    let (name, workload) = (CanaryName::of(&*understood.canary), &understood.workload);
    let client = &shared.fence.guard(&shared.client, &name);
    // Until a watch tells of it the next decision would ask for it again.
    let learn = |written: Option<Snapshot>| {
        desk.knows(written.and_then(|written| shared.caches.learn_workload(workload.kind(), written)));
    };
    let caches = &Learning { caches: &shared.caches, desk };
    for upkeep in &seen.upkeep {
        shared.fence.check(&name)?;
        workload.keep_up(client, upkeep).await?;
    }
    for action in &decision.actions {
        shared.fence.check(&name)?;
        match action {
            Action::CreatePrimary { revision } => workload.create_primary(client, revision).await?,
            Action::ScaleCanary { replicas } => {
                learn(workload.scale_canary(client, *replicas).await?);
            }
            Action::EmptyCanary { after } => learn(workload.empty_canary(client, *after).await?),
            Action::PinPrimary => workload.pin_primary(client).await?,
            Action::UnpinPrimary => workload.unpin_primary(client).await?,
            Action::KeepPrevious { revision } => workload.keep_previous(client, revision).await?,
            Action::DropPrevious => workload.drop_previous(client).await?,
            Action::Promote { revision } => {
                let known = Known { target: seen.target.as_deref(), primary: seen.primary.as_deref() };
                learn(workload.promote(client, revision, known).await?);
            }
            Action::RestorePrimary { revision } => learn(workload.restore_primary(client, revision).await?),
            Action::Route(split) => {
                let arms = seen.arms.as_ref().ok_or(Error::TargetUnknown)?;
                let on = Subject { canary: &understood.canary, arms, stood: Some(&desk.stood) };
                understood.router.set(client, &on, caches, split).await?;
            }
            Action::RestoreRouting => {
                understood.router.restore(client, &understood.canary, caches).await?;
            }
            Action::Measure(look) => measure(shared, desk, understood, seen, look),
            Action::Ask(question) => ask(shared, desk, understood, decision, question),
            Action::RemoveFinalizer => remove_finalizer(shared, &understood.canary).await?,
        }
    }
    Ok(())
}

/// The caches, for one who writes.
struct Learning<'a> {
    caches: &'a Caches,
    desk: &'a Desk,
}

impl routing::Lookup for Learning<'_> {
    fn get(&self, kind: &ApiResource, namespace: &str, name: &str) -> Option<Arc<DynamicObject>> {
        self.caches.object(kind, namespace, name)
    }

    fn learn(&self, kind: &ApiResource, written: DynamicObject) {
        self.desk.knows(self.caches.learn_object(kind, written));
    }
}

/// May what took effect be followed up before it is on record? A rollback is
/// recorded before anything else is done.
pub fn goes_on(phase: Phase) -> bool {
    matches!(phase, Phase::Initializing | Phase::Progressing | Phase::Finalising | Phase::Succeeded)
}

/// Has something taken effect as it was written?
pub fn took_effect(
    shared: &Shared,
    desk: &Desk,
    understood: &Understood,
    seen: &Seen,
    decision: &Decision,
) -> bool {
    let workload = &understood.workload;
    decision.actions.iter().any(|action| match action {
        Action::Route(split) => {
            let route = seen.arms.as_ref().map(|arms| see_route(shared, understood, arms, desk));
            route.and_then(|(in_force, _)| in_force).as_ref() == Some(split)
        }
        Action::ScaleCanary { replicas: 0 } | Action::EmptyCanary { .. } => {
            let target =
                shared.caches.workload(workload.kind(), workload.namespace(), workload.target_name());
            target.is_some_and(|target| workload.is_empty(&target))
        }
        _ => false,
    })
}

/// A Canary has the finalizer exactly as long as its deletion is to revert.
pub async fn keep_finalizer(shared: &Shared, canary: &Canary) -> Result<(), Error> {
    let deleting = canary.metadata.deletion_timestamp.is_some();
    let has = canary.finalizers().iter().any(|finalizer| finalizer == FINALIZER);
    match (canary.spec.revert_on_deletion, has) {
        _ if deleting => Ok(()),
        (true, false) => {
            let all = canary.finalizers().iter().cloned().chain([FINALIZER.to_owned()]).collect();
            write_finalizers(shared, canary, all).await
        }
        (false, true) => remove_finalizer(shared, canary).await,
        (true, true) | (false, false) => Ok(()),
    }
}

pub async fn remove_finalizer(shared: &Shared, canary: &Canary) -> Result<(), Error> {
    let others: Vec<String> =
        canary.finalizers().iter().filter(|finalizer| *finalizer != FINALIZER).cloned().collect();
    if others.len() == canary.finalizers().len() {
        return Ok(());
    }
    write_finalizers(shared, canary, others).await
}

/// The version makes sure that nobody else's finalizer is lost.
async fn write_finalizers(shared: &Shared, canary: &Canary, finalizers: Vec<String>) -> Result<(), Error> {
    shared.fence.check(&CanaryName::of(canary))?;
    let api: Api<Canary> = Api::namespaced(shared.client.clone(), &canary.namespace().unwrap_or_default());
    let patch = json!({ "metadata": {
        "finalizers": finalizers, "resourceVersion": canary.resource_version(),
    }});
    let params =
        PatchParams { field_manager: Some(workload::FIELD_MANAGER.to_owned()), ..Default::default() };
    match api.patch(&canary.name_any(), &params, &Patch::Merge(&patch)).await {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        Err(error) => Err(Error::Finalizer(Box::new(error))),
    }
}
