//! Gates and hooks: calls, their results, and expiry.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::{
    WakeReason,
    action::{Action, GateCall, GateScope},
    clock_step::is_ahead,
    decider::{Decider, ProgressDeadline, after},
    observed::{GateReply, GateResult, Respondent},
    report::{Reason, RollbackCause},
};
use crate::api::canary::{
    HookType,
    status::{GateState, GateStatus},
};

impl<'a> Decider<'a> {
    /// The latest answer of a person, else the latest result of a call, which is
    /// requested if there is none. Gates are called until they open, rollback gates
    /// until the release ends, hooks once.
    pub fn call_gate(
        &mut self,
        gate: &str,
        kind: Option<HookType>,
        scope: GateScope,
    ) -> Option<&'a GateResult> {
        let call = GateCall { release: self.status.releases, gate: gate.to_owned(), kind, scope };
        let results = self.observed.gate_results.iter().filter(|result| result.call == call);
        let by_person = results.clone().rfind(|result| result.from == Respondent::Person);
        let Some(result) = by_person.or_else(|| results.max_by_key(|result| result.at)) else {
            self.request(Action::CallGate(call));
            return None;
        };
        let is_final = match (kind, scope) {
            _ if by_person.is_some() => true,
            (Some(HookType::PostRollout), _) | (_, GateScope::Check { .. }) => true,
            (Some(HookType::Rollback), _) => false,
            _ => matches!(result.reply, GateReply::Yes { .. }),
        };
        let retry_at = after(result.at, self.plan.interval);
        if !is_final && (retry_at <= self.now || is_ahead(result.at, self.now)) {
            self.request(Action::CallGate(call));
        } else if !is_final {
            self.wake_at(retry_at, WakeReason::GateRetry);
        }
        Some(result)
    }

    /// Are all gates of this kind open? If not, blocks, or rolls back for one
    /// that expired.
    pub fn gates_open(&mut self, kind: HookType, step: Option<u32>) -> bool {
        let plan = self.plan;
        let mut closed = None;
        for gate in plan.gates(kind) {
            match self.gate_open(&gate.name, Some(kind), gate.expires, step) {
                Ok(()) => {}
                Err(Some(cause)) => {
                    self.fail(cause);
                    return false;
                }
                Err(None) if closed.is_none() => closed = Some(gate),
                Err(None) => {}
            }
        }
        let Some(gate) = closed else { return true };
        let why = self.gate_status(&gate.name, Some(kind), step).message.clone();
        self.block(Reason::GateClosed { gate: gate.name.clone(), why }, ProgressDeadline::Paused);
        false
    }

    /// Is this gate, or approval, open? If not, returns the cause of a rollback,
    /// if there is one.
    pub fn gate_open(
        &mut self,
        name: &str,
        kind: Option<HookType>,
        expires: Option<Duration>,
        step: Option<u32>,
    ) -> Result<(), Option<RollbackCause>> {
        if self.gate_status(name, kind, step).state == GateState::Open {
            return Ok(());
        }
        let result = self.call_gate(name, kind, step.map_or(GateScope::Release, GateScope::Step));
        let now = self.now;
        let status = self.gate_status(name, kind, step);
        match result.map(|result| &result.reply) {
            Some(GateReply::Yes { by }) => {
                status.state = GateState::Open;
                status.since = Some(Time(now));
                status.by.clone_from(by);
                status.message.clear();
                self.note_progress();
                return Ok(());
            }
            // A refused approval is final; a closed gate may open later.
            Some(GateReply::No { by, why }) if kind.is_none() => {
                status.state = GateState::Refused;
                status.by.clone_from(by);
                return Err(Some(RollbackCause::ApprovalRefused { gate: name.to_owned(), why: why.clone() }));
            }
            Some(GateReply::No { why, .. } | GateReply::Unreachable { why }) => {
                status.message.clone_from(why)
            }
            None => {}
        }
        let since = status.since.as_ref().map(|since| since.0);
        let expires = expires.zip(since).map(|(length, since)| after(since, length));
        status.expires_at = expires.map(Time);
        Err(self.expire_gate(expires, name, kind, step))
    }

    /// Marks a gate that did not open in time.
    fn expire_gate(
        &mut self,
        expires: Option<Timestamp>,
        gate: &str,
        kind: Option<HookType>,
        step: Option<u32>,
    ) -> Option<RollbackCause> {
        let at = expires?;
        if at > self.now {
            self.wake_at(at, WakeReason::GateExpires);
            return None;
        }
        self.gate_status(gate, kind, step).state = GateState::Expired;
        Some(RollbackCause::GateExpired { gate: gate.to_owned() })
    }

    /// Status of a gate, added when the release first reaches it.
    pub fn gate_status(&mut self, name: &str, kind: Option<HookType>, step: Option<u32>) -> &mut GateStatus {
        let gates = &mut self.status.gates;
        let at = gates.iter().position(|gate| gate.name == name && gate.type_ == kind && gate.step == step);
        let at = at.unwrap_or_else(|| {
            gates.push(GateStatus {
                name: name.to_owned(),
                type_: kind,
                step,
                state: GateState::Waiting,
                since: Some(Time(self.now)),
                expires_at: None,
                by: None,
                message: String::new(),
            });
            gates.len() - 1
        });
        &mut gates[at]
    }

    /// A rollback gate that requests a rollback.
    pub fn rollback_gate(&mut self) -> Option<RollbackCause> {
        let plan = self.plan;
        plan.gates(HookType::Rollback).find_map(|gate| {
            let result = self.call_gate(&gate.name, Some(HookType::Rollback), GateScope::Release)?;
            matches!(result.reply, GateReply::Yes { .. })
                .then(|| RollbackCause::RollbackGate { gate: gate.name.clone() })
        })
    }
}
