//! Questions and their answers: gates that must open, hooks that must be told.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::{
    WakeReason,
    action::{Action, GateCall, GateScope},
    decider::{Decider, ProgressDeadline, after},
    observed::{GateReply, GateResult},
    report::{Reason, RollbackCause},
};
use crate::api::canary::{
    HookType,
    status::{GateState, GateStatus},
};

impl<'a> Decider<'a> {
    /// Puts a call, or finds its latest answer. Gates are asked until they
    /// say yes, rollback gates for ever, hooks once.
    pub fn call_gate(
        &mut self,
        gate: &str,
        kind: Option<HookType>,
        moment: GateScope,
    ) -> Option<&'a GateResult> {
        let call = GateCall { release: self.status.releases, gate: gate.to_owned(), kind, scope: moment };
        let latest =
            self.observed.gate_results.iter().filter(|answer| answer.call == call).max_by_key(|a| a.at);
        let Some(answer) = latest else {
            self.request(Action::CallGate(call));
            return None;
        };
        let settled = match (kind, moment) {
            (Some(HookType::PostRollout), _) | (_, GateScope::Check { .. }) => true,
            (Some(HookType::Rollback), _) => false,
            _ => matches!(answer.reply, GateReply::Yes { .. }),
        };
        let again = after(answer.at, self.plan.interval);
        if !settled && again <= self.now {
            self.request(Action::CallGate(call));
        } else if !settled {
            self.wake_at(again, WakeReason::GateRetry);
        }
        Some(answer)
    }

    /// Are all gates of this kind open? If not, holds, or gives up on one that
    /// expired.
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

    /// Is this gate, or approval, open? If not, says what ends the release, if
    /// anything does.
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
        let answer = self.call_gate(name, kind, step.map_or(GateScope::Release, GateScope::Step));
        let status = self.gate_status(name, kind, step);
        match answer.map(|answer| (&answer.reply, answer.at)) {
            Some((GateReply::Yes { by }, at)) => {
                status.state = GateState::Open;
                status.since = Some(Time(at));
                status.by.clone_from(by);
                status.message.clear();
                self.note_progress();
                return Ok(());
            }
            // A person who is asked for approval and says no means it; a gate
            // that is closed may open yet.
            Some((GateReply::No { by, why }, _)) if kind.is_none() => {
                status.state = GateState::Refused;
                status.by.clone_from(by);
                return Err(Some(RollbackCause::ApprovalRefused { gate: name.to_owned(), why: why.clone() }));
            }
            Some((GateReply::No { why, .. } | GateReply::Unreachable { why }, _)) => {
                status.message.clone_from(why)
            }
            None => {}
        }
        let since = status.since.as_ref().map(|since| since.0);
        let expires = expires.zip(since).map(|(length, since)| after(since, length));
        status.expires_at = expires.map(Time);
        Err(self.expire_gate(expires, name, kind, step))
    }

    /// Marks a gate that nobody opened in time.
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

    /// What is recorded of a gate, from the moment it was first met.
    pub fn gate_status(&mut self, name: &str, kind: Option<HookType>, step: Option<u32>) -> &mut GateStatus {
        let gates = &mut self.status.gates;
        let found =
            gates.iter().position(|gate| gate.name == name && gate.type_ == kind && gate.step == step);
        let at = found.unwrap_or_else(|| {
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

    /// Does a rollback gate want the release to end?
    pub fn rollback_gate(&mut self) -> Option<RollbackCause> {
        let plan = self.plan;
        plan.gates(HookType::Rollback).find_map(|gate| {
            let answer = self.call_gate(&gate.name, Some(HookType::Rollback), GateScope::Release)?;
            matches!(answer.reply, GateReply::Yes { .. })
                .then(|| RollbackCause::RollbackGate { gate: gate.name.clone() })
        })
    }
}
