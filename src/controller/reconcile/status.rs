//! Records a decision: one status update per reconcile, last, and only if it is
//! worth one; then publishes the report.
//!
//! A status that the server refuses can show no condition, so that gets an Event. As
//! long as that lasts, users are protected, and nothing advances: a step that is not
//! recorded would be entered anew at each retry.

use std::{borrow::Cow, sync::Arc};

use jiff::SignedDuration;
use kube::{Api, Resource as _, ResourceExt as _, api::PostParams, core::ObjectMeta};
use serde::Serialize;

use super::Reconcile;
use crate::{
    api::{Canary, CanaryStatus, canary::status::MetricStatus},
    api_error::{api_message, is_refused},
    controller::{
        background::publish::{publish, write_event},
        cache::raw_canary::RawCanary,
        queue::trigger::{HasMeta as _, ObjectVersion},
        shard::fence::Fenced,
    },
    engine::{Decision, NO_PROGRESS, Reason, Report, action::Purpose},
    patch::FIELD_MANAGER,
};

/// Why the status was not written.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Fenced(#[from] Fenced),
    #[error("cannot write the status: {}", api_message(.0))]
    Status(Box<kube::Error>),
}

/// The attempt, as part of a sentence.
const WRITE_STATUS: &str = "write the status";

impl Reconcile<'_> {
    /// Records a decision that was made on `self.status`; returns its status.
    pub(super) async fn record(&mut self, decision: Decision) -> Result<Arc<CanaryStatus>, Error> {
        let (before, served) = (Arc::clone(&self.status), self.canary.status.as_ref());
        let status = Arc::new(decision.status);
        if needs_write(served, &before, &status) {
            self.ctx.fence.check(self.key)?;
            self.write_status(&status).await?;
            self.ctx.telemetry.observe_releases(self.canary, &before.history, &status.history);
        } else if *before != *status {
            self.memory.status_writes.confirm(Arc::clone(&status), served.cloned().unwrap_or_default());
        }
        if let Some(traces) = self.ctx.telemetry.traces.get().filter(|_| *before != *status) {
            traces.observe(self.canary, &before, &status, self.ctx.clock.now());
        }
        publish(self.ctx, self.canary, &status, &decision.report);
        Ok(status)
    }

    /// Can this decision be recorded? Asked of the server, by a dry run, only if the
    /// last status write was refused.
    pub(super) async fn can_be_recorded(&mut self, decision: &Decision) -> bool {
        if !self.memory.status_refused {
            return true;
        }
        match self.put_status(&decision.status, true).await {
            Ok(_) => true,
            Err(error) => {
                let refused = is_refused(&error);
                self.note_failure(Purpose::Protect, WRITE_STATUS, &Error::Status(Box::new(error)), refused);
                false
            }
        }
    }

    /// resourceVersion makes sure that the status was decided on what is there.
    async fn put_status(&self, status: &CanaryStatus, dry_run: bool) -> kube::Result<RawCanary> {
        let metadata = &self.canary.metadata;
        let update = StatusUpdate {
            api_version: Canary::api_version(&()),
            kind: Canary::kind(&()),
            metadata: ObjectMeta {
                name: metadata.name.clone(),
                uid: metadata.uid.clone(),
                resource_version: metadata.resource_version.clone(),
                ..ObjectMeta::default()
            },
            status,
        };
        let api: Api<RawCanary> = Api::namespaced(self.ctx.client.clone(), &self.key.namespace);
        let params = PostParams { field_manager: Some(FIELD_MANAGER.to_owned()), dry_run };
        api.replace_subresource("status", &self.canary.name_any(), &params, &update).await
    }

    async fn write_status(&mut self, status: &Arc<CanaryStatus>) -> Result<(), Error> {
        self.memory.status_writes.begin(Arc::clone(status));
        match self.put_status(status, false).await {
            Ok(written) => {
                self.memory.status_refused = false;
                let canaries = &self.ctx.caches.canaries;
                if let Some(cached) = canaries.apply_write_response(written, RawCanary::decode) {
                    self.ctx.telemetry.live.apply(&cached, self.ctx.clock.now());
                    self.state.own_writes.lock().remember(Some(ObjectVersion::of(cached.metadata())));
                    if let Some(written) = cached.canary() {
                        let served = written.status.clone().unwrap_or_default();
                        self.memory.status_writes.confirm(Arc::clone(status), served);
                    }
                }
                self.ctx.observe_release(self.key);
                Ok(())
            }
            // Deleted, and its status with it.
            Err(kube::Error::Api(response)) if response.code == 404 => Ok(()),
            Err(error) => {
                let refused = is_refused(&error);
                let error = Error::Status(Box::new(error));
                if refused && !std::mem::replace(&mut self.memory.status_refused, true) {
                    let reason = Reason::Failing { why: error.to_string(), refused };
                    write_event(self.ctx, self.canary, &Report::from(reason));
                }
                Err(error)
            }
        }
    }
}

/// The numbers of metrics that users read in the status are at most this old.
const MAX_METRIC_STALENESS: SignedDuration = SignedDuration::from_mins(1);

/// Skips writes that only clear a passed deadline, set or restart that of the progress,
/// refine numbers without a new verdict, or touch `allPrimarySince` or `backupDigests`. They
/// stay in memory; if lost, they are measured or read again.
fn needs_write(served: Option<&CanaryStatus>, before: &CanaryStatus, after: &CanaryStatus) -> bool {
    if before == after {
        return false;
    }
    // The common case, without a copy.
    let heading = |status: &CanaryStatus| (status.phase, status.canary_weight, status.failed_checks);
    if heading(before) != heading(after) || before.message != after.message {
        return true;
    }
    let mut after = after.clone();
    let reason =
        |status: &CanaryStatus| status.next_deadline.as_ref().map(|deadline| deadline.reason.clone());
    let runs_on = after.next_deadline.as_ref().is_none_or(|deadline| deadline.reason == NO_PROGRESS);
    if runs_on || reason(&after) == reason(before) {
        after.next_deadline.clone_from(&before.next_deadline);
    }
    after.all_primary_since.clone_from(&before.all_primary_since);
    after.backup_digests.clone_from(&before.backup_digests);
    if let (Some(after), Some(before)) = (&mut after.step, &before.step) {
        after.checks = before.checks;
    }
    if let (Some(after), Some(before)) = (&mut after.release, &before.release) {
        after.state.sample_ratio.clone_from(&before.state.sample_ratio);
        // A restart that lost these would only give the deadline its whole length again.
        if after.state.stalled_on.is_empty() == before.state.stalled_on.is_empty() {
            after.state.stalled_on.clone_from(&before.state.stalled_on);
            after.state.stalled_since.clone_from(&before.state.stalled_since);
            after.state.stalled_ready_pods = before.state.stalled_ready_pods;
        }
    }
    for metric in &mut after.metrics {
        let same = |other: &&MetricStatus| other.name == metric.name;
        let served_at =
            served.and_then(|served| served.metrics.iter().find(same)).and_then(|served| served.at.as_ref());
        let is_old = served_at
            .zip(metric.at.as_ref())
            .is_some_and(|(served, at)| at.0.duration_since(served.0) > MAX_METRIC_STALENESS);
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

/// An update of the status subresource: the API server ignores the rest.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct StatusUpdate<'a> {
    api_version: Cow<'static, str>,
    kind: Cow<'static, str>,
    metadata: ObjectMeta,
    status: &'a CanaryStatus,
}
