//! Recording: the status, once, last, and only if it changed; then
//! the news.

use std::sync::Arc;

use kube::{
    Api, ResourceExt as _,
    api::PostParams,
    core::{DeserializeGuard, ObjectMeta},
};

use super::{CanaryName, Shared, desk::Desk, lease::Fenced, tell::tell};
use crate::{
    api::{Canary, CanaryStatus},
    engine::Decision,
    workload::FIELD_MANAGER,
};

/// Why the status was not written.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Fenced(#[from] Fenced),
    #[error("cannot write the status: {0}")]
    Status(Box<kube::Error>),
}

/// Records what was decided on `status`, which is what `canary` carried.
pub async fn record(
    shared: &Arc<Shared>,
    desk: &Desk,
    canary: &Canary,
    status: &CanaryStatus,
    decision: &Decision,
) -> Result<(), Error> {
    if is_worth_writing(status, &decision.status) {
        shared.fence.check(&CanaryName::of(canary))?;
        write_status(shared, desk, canary, &decision.status).await?;
        shared.options.vitals.released(canary, &status.history, &decision.status.history);
    }
    tell(shared, canary, &decision.status, &decision.report);
    Ok(())
}

/// That a deadline has come, and nothing followed yet, is said together with
/// what follows.
fn is_worth_writing(before: &CanaryStatus, after: &CanaryStatus) -> bool {
    if after.next_deadline.is_some() || before.next_deadline.is_none() {
        return before != after;
    }
    *before != CanaryStatus { next_deadline: before.next_deadline.clone(), ..after.clone() }
}

/// The version makes sure that nothing was decided on what has changed since.
async fn write_status(
    shared: &Shared,
    desk: &Desk,
    canary: &Canary,
    status: &CanaryStatus,
) -> Result<(), Error> {
    let mut object = Canary::new(&canary.name_any(), canary.spec.clone());
    object.metadata = ObjectMeta {
        name: canary.metadata.name.clone(),
        namespace: canary.metadata.namespace.clone(),
        uid: canary.metadata.uid.clone(),
        resource_version: canary.metadata.resource_version.clone(),
        ..ObjectMeta::default()
    };
    object.status = Some(status.clone());
    let api: Api<Canary> = Api::namespaced(shared.client.clone(), &canary.namespace().unwrap_or_default());
    let params = PostParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..Default::default() };
    match api.replace_status(&canary.name_any(), &params, &object).await {
        Ok(mut written) => {
            written.metadata.managed_fields = None;
            desk.wrote_status(status.clone(), written.status.clone().unwrap_or_default());
            shared.caches.canaries.put_answer(DeserializeGuard(Ok(written)));
            Ok(())
        }
        // Gone, and its status with it.
        Err(kube::Error::Api(answer)) if answer.code == 404 => Ok(()),
        Err(error) => Err(Error::Status(Box::new(error))),
    }
}
