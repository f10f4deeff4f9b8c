//! Recording: the status, once, last, and only if it changed; then
//! the news.

use std::{borrow::Cow, sync::Arc};

use jiff::SignedDuration;
use kube::{Api, Resource as _, ResourceExt as _, api::PostParams, core::ObjectMeta};
use serde::Serialize;

use super::{
    CanaryName, Shared, Version, desk::Desk, lease::Fenced, table::Held as _, tell::tell, told::Told,
};
use crate::{
    api::{Canary, CanaryStatus, canary::status::MetricStatus},
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

/// Records what was decided on `before`, which is what `canary` carried. Returns
/// the status that it came to.
pub async fn record(
    shared: &Arc<Shared>,
    desk: &Desk,
    canary: &Canary,
    before: &CanaryStatus,
    decision: Decision,
) -> Result<Arc<CanaryStatus>, Error> {
    let (status, told) = (Arc::new(decision.status), canary.status.as_ref());
    if is_worth_writing(told, before, &status) {
        shared.fence.check(&CanaryName::of(canary))?;
        write_status(shared, desk, canary, &status).await?;
        shared.options.vitals.released(canary, &before.history, &status.history);
    } else if *before != *status {
        desk.wrote_status(Arc::clone(&status), told.cloned().unwrap_or_default());
    }
    tell(shared, canary, &status, &decision.report);
    Ok(status)
}

/// People read the numbers of metrics too; they get none older than this.
const KEPT_BACK: SignedDuration = SignedDuration::from_mins(1);

/// That a deadline has come, and nothing followed yet, is said together with
/// what follows. And what a glance at the metrics adds, or how long traffic has
/// been home, stays on the desk for a while if no verdict changes: should it get
/// lost, it is measured again.
fn is_worth_writing(told: Option<&CanaryStatus>, before: &CanaryStatus, after: &CanaryStatus) -> bool {
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
    after.home_since.clone_from(&before.home_since);
    if let (Some(after), Some(before)) = (&mut after.step, &before.step) {
        after.looks = before.looks;
    }
    if let (Some(after), Some(before)) = (&mut after.release, &before.release) {
        after.state.split.clone_from(&before.state.split);
    }
    for metric in &mut after.metrics {
        let same = |held: &&MetricStatus| held.name == metric.name;
        let told = told.and_then(|told| told.metrics.iter().find(same)).and_then(|told| told.at.as_ref());
        let is_old =
            told.zip(metric.at.as_ref()).is_some_and(|(told, at)| at.0.duration_since(told.0) > KEPT_BACK);
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
    shared: &Shared,
    desk: &Desk,
    canary: &Canary,
    status: &Arc<CanaryStatus>,
) -> Result<(), Error> {
    let object = Written {
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
    let api: Api<Told> = Api::namespaced(shared.client.clone(), &canary.namespace().unwrap_or_default());
    let params = PostParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..Default::default() };
    desk.writes_status(Arc::clone(status));
    match api.replace_subresource("status", &canary.name_any(), &params, &object).await {
        Ok(written) => {
            if let Some(known) = shared.caches.canaries.learn(written, Told::read) {
                desk.knows(Some(Version::of(known.metadata())));
                if let Some(written) = known.canary() {
                    desk.wrote_status(Arc::clone(status), written.status.clone().unwrap_or_default());
                }
            }
            shared.caches.count_release(&CanaryName::of(canary));
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
struct Written<'a> {
    api_version: Cow<'static, str>,
    kind: Cow<'static, str>,
    metadata: ObjectMeta,
    status: &'a CanaryStatus,
}
