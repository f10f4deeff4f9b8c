//! Recording: the status, once, last, and only if it changed; then
//! the news.

use std::{borrow::Cow, sync::Arc};

use jiff::SignedDuration;
use kube::{Api, Resource as _, ResourceExt as _, api::PostParams, core::ObjectMeta};
use serde::Serialize;

use super::{
    Context, NamespacedName, ObjectVersion, fence::Fenced, publish::publish, raw_canary::RawCanary,
    state::CanaryState, store::HasMeta as _,
};
use crate::{
    api::{Canary, CanaryStatus, canary::status::MetricStatus},
    engine::Decision,
    patch::FIELD_MANAGER,
};

/// Why the status was not written.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Fenced(#[from] Fenced),
    #[error("cannot write the status: {0}")]
    Status(Box<kube::Error>),
}

/// Records what was decided on `before`, which is what `canary` carried. Returns
/// the status that it came to.
pub async fn write_and_publish(
    ctx: &Arc<Context>,
    state: &CanaryState,
    canary: &Canary,
    before: &CanaryStatus,
    decision: Decision,
) -> Result<Arc<CanaryStatus>, Error> {
    let (status, served) = (Arc::new(decision.status), canary.status.as_ref());
    if needs_write(served, before, &status) {
        ctx.fence.check(&NamespacedName::of(canary))?;
        write_status(ctx, state, canary, &status).await?;
        ctx.options.telemetry.observe_releases(canary, &before.history, &status.history);
    } else if *before != *status {
        state.confirm_status_write(Arc::clone(&status), served.cloned().unwrap_or_default());
    }
    publish(ctx, canary, &status, &decision.report);
    Ok(status)
}

/// People read the numbers of metrics too; they get none older than this.
const MAX_METRIC_STALENESS: SignedDuration = SignedDuration::from_mins(1);

/// That a deadline has come, and nothing followed yet, is said together with
/// what follows. And what a glance at the metrics adds, or how long traffic has
/// been home, stays on the state for a while if no verdict changes: should it get
/// lost, it is measured again.
fn needs_write(served: Option<&CanaryStatus>, before: &CanaryStatus, after: &CanaryStatus) -> bool {
    if before == after {
        return false;
    }
    // Most that is worth it shows here, without a copy.
    let heading = |status: &CanaryStatus| (status.phase, status.canary_weight, status.failed_checks);
    if heading(before) != heading(after) || before.message != after.message {
        return true;
    }
    let mut after = after.clone();
    let why = |status: &CanaryStatus| status.next_deadline.as_ref().map(|deadline| deadline.reason.clone());
    if after.next_deadline.is_none() || why(&after) == why(before) {
        after.next_deadline.clone_from(&before.next_deadline);
    }
    after.all_primary_since.clone_from(&before.all_primary_since);
    if let (Some(after), Some(before)) = (&mut after.step, &before.step) {
        after.checks = before.checks;
    }
    if let (Some(after), Some(before)) = (&mut after.release, &before.release) {
        after.state.sample_ratio.clone_from(&before.state.sample_ratio);
    }
    for metric in &mut after.metrics {
        let same = |held: &&MetricStatus| held.name == metric.name;
        let served_at =
            served.and_then(|told| told.metrics.iter().find(same)).and_then(|told| told.at.as_ref());
        let is_old = served_at
            .zip(metric.at.as_ref())
            .is_some_and(|(told, at)| at.0.duration_since(told.0) > MAX_METRIC_STALENESS);
        if let Some(before) = before.metrics.iter().find(same)
            && before.verdict == metric.verdict
            && (before.failures, before.inconclusives) == (metric.failures, metric.inconclusives)
            && !is_old
        {
            metric.clone_from(before);
        }
    }
    after != *before
}

/// The version makes sure that nothing was decided on what has changed since.
async fn write_status(
    ctx: &Context,
    state: &CanaryState,
    canary: &Canary,
    status: &Arc<CanaryStatus>,
) -> Result<(), Error> {
    let object = StatusUpdate {
        api_version: Canary::api_version(&()),
        kind: Canary::kind(&()),
        metadata: ObjectMeta {
            name: canary.metadata.name.clone(),
            uid: canary.metadata.uid.clone(),
            resource_version: canary.metadata.resource_version.clone(),
            ..ObjectMeta::default()
        },
        status,
    };
    let api: Api<RawCanary> = Api::namespaced(ctx.client.clone(), &canary.namespace().unwrap_or_default());
    let params = PostParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..Default::default() };
    state.begin_status_write(Arc::clone(status));
    match api.replace_subresource("status", &canary.name_any(), &params, &object).await {
        Ok(written) => {
            if let Some(known) = ctx.caches.canaries.apply_write_response(written, RawCanary::decode) {
                state.remember_own_write(Some(ObjectVersion::of(known.metadata())));
                if let Some(written) = known.canary() {
                    state
                        .confirm_status_write(Arc::clone(status), written.status.clone().unwrap_or_default());
                }
            }
            ctx.caches.count_release(&NamespacedName::of(canary));
            Ok(())
        }
        // Gone, and its status with it.
        Err(kube::Error::Api(answer)) if answer.code == 404 => Ok(()),
        Err(error) => Err(Error::Status(Box::new(error))),
    }
}

/// The rest of a Canary the API server leaves as it is.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct StatusUpdate<'a> {
    api_version: Cow<'static, str>,
    kind: Cow<'static, str>,
    metadata: ObjectMeta,
    status: &'a CanaryStatus,
}
