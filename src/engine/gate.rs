//! Questions and their answers: gates that must open, hooks that must be told.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::{
    WakeReason,
    action::{Action, Moment, Question},
    observed::{Answer, Reply},
    pass::{Clock, Pass, after},
    report::{Cause, Reason},
};
use crate::api::canary::{
    HookType,
    status::{GateState, GateStatus},
};

impl<'a> Pass<'a> {
    /// Puts a question, or finds its latest answer. Gates are asked until they
    /// say yes, rollback gates for ever, hooks once.
    pub fn ask(&mut self, gate: &str, kind: Option<HookType>, moment: Moment) -> Option<&'a Answer> {
        let question = Question { release: self.status.releases, gate: gate.to_owned(), kind, moment };
        let latest =
            self.seen.answers.iter().filter(|answer| answer.question == question).max_by_key(|a| a.at);
        let Some(answer) = latest else {
            self.act(Action::Ask(question));
            return None;
        };
        let settled = match (kind, moment) {
            (Some(HookType::PostRollout), _) | (_, Moment::Look { .. }) => true,
            (Some(HookType::Rollback), _) => false,
            _ => matches!(answer.reply, Reply::Yes { .. }),
        };
        let again = after(answer.at, self.plan.interval);
        if !settled && again <= self.now {
            self.act(Action::Ask(question));
        } else if !settled {
            self.wake_at(again, WakeReason::AskAgain);
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
        self.hold(Reason::GateClosed { gate: gate.name.clone(), why }, Clock::Stands);
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
    ) -> Result<(), Option<Cause>> {
        if self.gate_status(name, kind, step).state == GateState::Open {
            return Ok(());
        }
        let answer = self.ask(name, kind, step.map_or(Moment::Release, Moment::Step));
        let status = self.gate_status(name, kind, step);
        match answer.map(|answer| (&answer.reply, answer.at)) {
            Some((Reply::Yes { by }, at)) => {
                status.state = GateState::Open;
                status.since = Some(Time(at));
                status.by.clone_from(by);
                status.message.clear();
                self.progress();
                return Ok(());
            }
            // A person who is asked for approval and says no means it; a gate
            // that is closed may open yet.
            Some((Reply::No { by, why }, _)) if kind.is_none() => {
                status.state = GateState::Refused;
                status.by.clone_from(by);
                return Err(Some(Cause::ApprovalRefused { gate: name.to_owned(), why: why.clone() }));
            }
            Some((Reply::No { why, .. } | Reply::Silence { why }, _)) => status.message.clone_from(why),
            None => {}
        }
        let since = status.since.as_ref().map(|since| since.0);
        let expires = expires.zip(since).map(|(length, since)| after(since, length));
        status.expires_at = expires.map(Time);
        Err(self.expired(expires, name, kind, step))
    }

    /// Marks a gate that nobody opened in time.
    fn expired(
        &mut self,
        expires: Option<Timestamp>,
        gate: &str,
        kind: Option<HookType>,
        step: Option<u32>,
    ) -> Option<Cause> {
        let at = expires?;
        if at > self.now {
            self.wake_at(at, WakeReason::GateExpires);
            return None;
        }
        self.gate_status(gate, kind, step).state = GateState::Expired;
        Some(Cause::GateExpired { gate: gate.to_owned() })
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
    pub fn rollback_gate(&mut self) -> Option<Cause> {
        let plan = self.plan;
        plan.gates(HookType::Rollback).find_map(|gate| {
            let answer = self.ask(&gate.name, Some(HookType::Rollback), Moment::Release)?;
            matches!(answer.reply, Reply::Yes { .. }).then(|| Cause::RollbackGate { gate: gate.name.clone() })
        })
    }
}
