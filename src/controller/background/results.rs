//! Gate calls and checks in progress, and their results until the next
//! reconcile reads them.

use std::sync::Arc;

use jiff::Timestamp;
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use crate::{
    api::{
        CanaryStatus,
        canary::{HookType, Phase},
    },
    engine::{
        action::{Check, GateCall},
        observed::{CheckMeasurements, GateReply, GateResult, Respondent},
    },
};

/// Shared by the reconcile that starts work and the tasks that finish it.
pub type SharedResults = Arc<Mutex<PendingResults>>;

#[derive(Default)]
pub struct PendingResults {
    gate_results: Vec<GateResult>,
    gate_calls: Vec<InProgress<GateCall>>,
    measurements: Option<CheckMeasurements>,
    check: Option<InProgress<Check>>,
    /// Release and step whose first window was opened.
    opened_window: Option<(u64, u32)>,
    /// Of all background tasks of the Canary.
    cancellation: CancellationToken,
}

/// A request to a task that has not finished.
struct InProgress<T> {
    request: T,
    cancellation: CancellationToken,
}

impl<T> Drop for InProgress<T> {
    /// The task has finished, or nobody waits for its result.
    fn drop(&mut self) {
        self.cancellation.cancel();
    }
}

impl PendingResults {
    /// Cancelled when the Canary is deleted or belongs to another replica.
    pub fn cancellation(&self) -> CancellationToken {
        self.cancellation.clone()
    }

    /// None if this call is in progress already, else what cancels it.
    pub fn start_gate_call(&mut self, call: &GateCall) -> Option<CancellationToken> {
        if self.gate_calls.iter().any(|pending| pending.request == *call) {
            return None;
        }
        let cancellation = self.cancellation.child_token();
        self.gate_calls.push(InProgress { request: call.clone(), cancellation: cancellation.clone() });
        Some(cancellation)
    }

    pub fn finish_gate_call(&mut self, call: GateCall, reply: GateReply, at: Timestamp) {
        self.gate_calls.retain(|pending| pending.request != call);
        self.gate_results.retain(|result| result.call != call);
        self.gate_results.push(GateResult { call, reply, from: Respondent::Webhook, at });
    }

    /// None if this check is in progress already, else what cancels it. A
    /// different check replaces it: the result of the replaced one is then of no
    /// use.
    pub fn start_check(&mut self, check: &Check) -> Option<CancellationToken> {
        if self.check.as_ref().is_some_and(|pending| pending.request == *check) {
            return None;
        }
        let cancellation = self.cancellation.child_token();
        self.check = Some(InProgress { request: check.clone(), cancellation: cancellation.clone() });
        Some(cancellation)
    }

    pub fn finish_check(&mut self, measurements: CheckMeasurements) {
        self.check.take_if(|check| check.request == measurements.check);
        self.measurements = Some(measurements);
    }

    /// True the first time that a step is seen with an open check window. The
    /// step is none while no window is open.
    pub fn is_first_window(&mut self, step: Option<(u64, u32)>) -> bool {
        let is_first = step.is_some() && self.opened_window != step;
        self.opened_window = step;
        is_first
    }

    /// The results so far, without those of earlier releases.
    pub fn current(&mut self, release: u64) -> (Vec<GateResult>, Option<CheckMeasurements>) {
        self.gate_results.retain(|result| result.call.release >= release);
        self.measurements.take_if(|measurements| measurements.check.release < release);
        (self.gate_results.clone(), self.measurements.clone())
    }

    /// Cancels calls and checks of releases that this status knows to be over.
    /// Hooks of the type post-rollout are called after the end.
    pub fn cancel_ended(&mut self, status: &CanaryStatus) {
        let is_over = !matches!(
            status.phase,
            Phase::Waiting
                | Phase::Progressing
                | Phase::WaitingPromotion
                | Phase::Promoting
                | Phase::Finalising
        );
        let releases = status.releases;
        self.gate_calls.retain(|pending| {
            let GateCall { release, kind, .. } = pending.request;
            release >= releases && (!is_over || kind == Some(HookType::PostRollout))
        });
        self.check.take_if(|check| is_over || check.request.release < releases);
    }
}
