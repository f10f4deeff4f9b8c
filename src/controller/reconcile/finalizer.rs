//! The finalizer keeps a deleted Canary until its originals are restored.

use kube::{
    Api, ResourceExt as _,
    api::{Patch, PatchParams},
};
use serde_json::json;

use super::Reconcile;
use crate::{
    api::Canary,
    api_error::{api_message, is_refused},
    controller::{context::Context, queue::trigger::NamespacedName, shard::fence::Fenced},
    patch::FIELD_MANAGER,
};

pub const FINALIZER: &str = "serin.dev/revert";

/// Why the finalizer was not written.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Fenced(#[from] Fenced),
    #[error("cannot write the finalizer: {}", api_message(.0))]
    Write(Box<kube::Error>),
}

impl Error {
    pub fn is_refused(&self) -> bool {
        matches!(self, Self::Write(error) if is_refused(error))
    }
}

impl Reconcile<'_> {
    /// A Canary has the finalizer while its deletion is to restore originals.
    pub(super) async fn sync_finalizer(&self) -> Result<(), Error> {
        let canary = &**self.canary;
        let is_deleting = canary.metadata.deletion_timestamp.is_some();
        let has_it = canary.finalizers().iter().any(|finalizer| finalizer == FINALIZER);
        match (canary.spec.reverts_on_deletion(), has_it) {
            _ if is_deleting => Ok(()),
            (true, false) => {
                let all = canary.finalizers().iter().cloned().chain([FINALIZER.to_owned()]).collect();
                write_finalizers(self.ctx, canary, all).await
            }
            (false, true) => self.remove_finalizer().await,
            (true, true) | (false, false) => Ok(()),
        }
    }

    pub(super) async fn remove_finalizer(&self) -> Result<(), Error> {
        let canary = &**self.canary;
        let others: Vec<String> =
            canary.finalizers().iter().filter(|finalizer| *finalizer != FINALIZER).cloned().collect();
        if others.len() == canary.finalizers().len() {
            return Ok(());
        }
        write_finalizers(self.ctx, canary, others).await
    }
}

/// The list is replaced as a whole; resourceVersion makes sure that no finalizer
/// of others is lost.
async fn write_finalizers(ctx: &Context, canary: &Canary, finalizers: Vec<String>) -> Result<(), Error> {
    ctx.fence.check(&NamespacedName::of(canary))?;
    let api: Api<Canary> = Api::namespaced(ctx.client.clone(), &canary.namespace().unwrap_or_default());
    let patch = json!({ "metadata": {
        "finalizers": finalizers, "resourceVersion": canary.resource_version(),
    }});
    let params = PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..Default::default() };
    match api.patch(&canary.name_any(), &params, &Patch::Merge(&patch)).await {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        Err(error) => Err(Error::Write(Box::new(error))),
    }
}
