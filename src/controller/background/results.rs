//! Gate calls and checks in progress, and their results until the next
//! reconcile reads them.

use std::sync::Arc;

use jiff::Timestamp;
use parking_lot::Mutex;

use crate::engine::{
    action::{Check, GateCall},
    observed::{CheckMeasurements, GateReply, GateResult},
};

/// Shared by the reconcile that starts work and the tasks that finish it.
pub type SharedResults = Arc<Mutex<PendingResults>>;

#[derive(Default)]
pub struct PendingResults {
    gate_results: Vec<GateResult>,
    gate_calls: Vec<GateCall>,
    measurements: Option<CheckMeasurements>,
    check: Option<Check>,
    /// Release and step whose first window was opened.
    opened_window: Option<(u64, u32)>,
}

impl PendingResults {
    /// False if this call is in progress already.
    pub fn start_gate_call(&mut self, call: &GateCall) -> bool {
        let is_new = !self.gate_calls.contains(call);
        if is_new {
            self.gate_calls.push(call.clone());
        }
        is_new
    }

    pub fn finish_gate_call(&mut self, call: GateCall, reply: GateReply, at: Timestamp) {
        self.gate_calls.retain(|pending| *pending != call);
        self.gate_results.retain(|result| result.call != call);
        self.gate_results.push(GateResult { call, reply, at });
    }

    /// False if this check is in progress already. A different check replaces
    /// it: the result of the replaced one is then of no use.
    pub fn start_check(&mut self, check: &Check) -> bool {
        let is_new = self.check.as_ref() != Some(check);
        if is_new {
            self.check = Some(check.clone());
        }
        is_new
    }

    pub fn finish_check(&mut self, measurements: CheckMeasurements) {
        self.check.take_if(|check| *check == measurements.check);
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
}
