//! A broken pod of the canary is replaced, once in a release, if the spec asks for it.
//!
//! The pod is recorded in the status before it is deleted, so no restart of the controller
//! deletes a second one. Its requests are forgotten, and the pod that takes its place is
//! warmed up: the canary is judged anew, and the next finding rolls back.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::{
    WakeReason,
    action::Action,
    decider::{Decider, REQUEUE_DELAY, after},
    report::Reason,
};
use crate::api::canary::{CanaryStatus, OnBrokenPod, status::Verdict};

/// The pod that the status records, for [`Observed::persisted_replacement`].
///
/// [`Observed::persisted_replacement`]: super::Observed::persisted_replacement
pub fn replaced_pod(status: &CanaryStatus) -> Option<&str> {
    status.release.as_ref()?.state.replaced_pod.as_deref()
}

impl Decider<'_> {
    pub fn may_replace_pod(&self) -> bool {
        self.plan.on_broken_pod == OnBrokenPod::Replace && replaced_pod(&self.status).is_none()
    }

    /// Records the pod to be deleted, and forgets the evidence that it has a part in.
    pub fn replace_pod(&mut self, pod: String, why: String) {
        let (plan, now) = (self.plan, self.now);
        for status in &mut self.status.metrics {
            let metric = plan.metrics.iter().find(|metric| metric.name == status.name);
            let Some(judge) = metric.map(|metric| &metric.policy.judge).filter(|judge| judge.is_stateful())
            else {
                continue;
            };
            status.analysis_state = judge.restart(status.analysis_state.as_ref());
            (status.failures, status.inconclusives) = (0, 0);
            (status.evidence, status.times_worse) = (None, None);
            status.verdict = Verdict::Inconclusive;
            status.reason = format!("pod {pod} is replaced, and the canary is judged anew");
        }
        let state = &mut self.release().state;
        state.replaced_pod = Some(pod.clone());
        state.young_since = Some(Time(now));
        self.status.iterations = 0;
        self.abort_check_window();
        self.note_progress();
        self.emit(Reason::PodReplaced { pod, why });
        self.wake_at(after(now, REQUEUE_DELAY), WakeReason::Requeue);
    }

    /// Requests the deletion of the recorded pod until it is done.
    pub fn delete_replaced_pod(&mut self) {
        let Some(pod) = replaced_pod(&self.status).map(str::to_owned) else { return };
        if self.observed.deleted_pod.as_ref() == Some(&pod) {
            return;
        }
        match self.observed.persisted_replacement.as_ref() == Some(&pod) {
            true => self.request(Action::ReplacePod { pod }),
            false => self.wake_at(after(self.now, REQUEUE_DELAY), WakeReason::Requeue),
        }
    }
}
