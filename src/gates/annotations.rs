//! Approvals and commands, as annotations of the Canary. Pure: no client, no clock.
//!
//! ```text
//! serin.dev/approvals: [{"uid": "…", "release": 3, "gate": "go-live", "step": 2,
//!                        "answer": "yes", "by": "alice", "at": "2025-03-01T09:00:00Z"}]
//! serin.dev/commands:  [{"uid": "…", "id": "…", "verb": "promote",
//!                        "revision": "…", "by": "alice", "at": "2025-03-01T09:00:00Z"}]
//! ```
//!
//! Each is a JSON list, oldest first: the order counts, and `at`, which is of the
//! author's clock, does not. `uid` is the Canary's: an entry copied to
//! another Canary is ignored there; without `uid` an entry counts on any Canary.
//! `type` is the type of the webhook that an approval opens; an approval step has
//! none. `answer` is `yes` or `no`, with `why` as free text.
//!
//! Entries that do not parse are skipped and reported by [`malformed`]; the
//! others count.

use jiff::Timestamp;
use kube::ResourceExt as _;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::api::{
    Canary,
    canary::{
        HookType,
        status::{GateState, GateStatus},
    },
};
use crate::engine::{
    action::{GateCall, GateScope},
    command::{Command, Verb},
    observed::{GateReply, GateResult, Respondent},
};

/// Approvals and rejections of gates and approval steps.
pub const APPROVALS: &str = "serin.dev/approvals";
/// Commands, oldest first.
pub const COMMANDS: &str = "serin.dev/commands";

/// All approvals and rejections, those of earlier releases included.
pub fn answers(canary: &Canary) -> Vec<GateResult> {
    parse::<Approval>(canary).entries.into_iter().map(GateResult::from).collect()
}

/// All commands, oldest first, processed ones included.
pub fn commands(canary: &Canary) -> Vec<Command> {
    parse::<CommandEntry>(canary).entries.into_iter().map(Command::from).collect()
}

/// Entries of both annotations that do not parse.
pub fn malformed(canary: &Canary) -> Vec<Malformed> {
    let mut malformed = parse::<Approval>(canary).malformed;
    malformed.extend(parse::<CommandEntry>(canary).malformed);
    malformed
}

/// Waiting gates and approval steps that a user may approve.
pub fn pending_approvals(canary: &Canary) -> Vec<GateCall> {
    let Some(status) = &canary.status else { return Vec::new() };
    let is_pending = |gate: &&GateStatus| {
        let is_approvable = match gate.type_ {
            None
            | Some(
                HookType::ConfirmRollout | HookType::ConfirmTrafficIncrease | HookType::ConfirmPromotion,
            ) => true,
            Some(
                HookType::Rollout
                | HookType::PreRollout
                | HookType::PostRollout
                | HookType::Rollback
                | HookType::TargetRejected
                | HookType::Event,
            ) => false,
        };
        gate.state == GateState::Waiting && is_approvable
    };
    let call = |gate: &GateStatus| GateCall {
        release: status.releases,
        gate: gate.name.clone(),
        kind: gate.type_,
        scope: scope(gate.step),
    };
    status.gates.iter().filter(is_pending).map(call).collect()
}

/// An annotation, or an entry of one, that does not parse.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{position} of the annotation {annotation} is ignored: {why}")]
pub struct Malformed {
    pub annotation: &'static str,
    /// `entry 2`, or `the whole`.
    pub position: String,
    pub why: String,
}

/// An approval or rejection.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Approval {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uid: Option<String>,
    pub release: u64,
    pub gate: String,
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    pub kind: Option<HookType>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub step: Option<u32>,
    pub answer: ApprovalAnswer,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub why: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
    pub at: Timestamp,
    /// Of the link that was used: it works once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nonce: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum ApprovalAnswer {
    Yes,
    No,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct CommandEntry {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uid: Option<String>,
    pub id: String,
    pub verb: Verb,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub revision: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub at: Option<Timestamp>,
}

/// An entry of one of the two annotations.
pub(super) trait AnnotationEntry: Serialize + DeserializeOwned {
    const ANNOTATION: &'static str;

    /// Of the Canary that it was written for.
    fn uid(&self) -> Option<&str>;

    /// Drops entries without effect, which bounds the list.
    fn prune(entries: &mut Vec<Self>, canary: &Canary);
}

impl AnnotationEntry for Approval {
    const ANNOTATION: &'static str = APPROVALS;

    fn uid(&self) -> Option<&str> {
        self.uid.as_deref()
    }

    fn prune(entries: &mut Vec<Self>, canary: &Canary) {
        let release = canary.status.as_ref().map_or(0, |status| status.releases);
        entries.retain(|entry| entry.release >= release);
    }
}

impl AnnotationEntry for CommandEntry {
    const ANNOTATION: &'static str = COMMANDS;

    fn uid(&self) -> Option<&str> {
        self.uid.as_deref()
    }

    /// Keeps the last processed command: those after it are new to the engine.
    fn prune(entries: &mut Vec<Self>, canary: &Canary) {
        let last = canary.status.as_ref().and_then(|status| status.last_command.as_ref());
        let processed = last.and_then(|last| entries.iter().position(|entry| entry.id == last.id));
        entries.drain(..processed.unwrap_or(0));
    }
}

pub(super) struct ParsedAnnotation<T> {
    pub entries: Vec<T>,
    pub malformed: Vec<Malformed>,
}

pub(super) fn parse<T: AnnotationEntry>(canary: &Canary) -> ParsedAnnotation<T> {
    let mut parsed = ParsedAnnotation { entries: Vec::new(), malformed: Vec::new() };
    let annotation = T::ANNOTATION;
    let Some(text) = canary.annotations().get(annotation) else { return parsed };
    let list: Vec<Value> = match serde_json::from_str(text) {
        Ok(list) => list,
        Err(error) => {
            let why = format!("it must be a JSON list ({error})");
            parsed.malformed.push(Malformed { annotation, position: "the whole".to_owned(), why });
            return parsed;
        }
    };
    for (at, entry) in list.into_iter().enumerate() {
        match serde_json::from_value::<T>(entry) {
            Ok(entry) if entry.uid().is_some() && entry.uid() != canary.metadata.uid.as_deref() => {}
            Ok(entry) => parsed.entries.push(entry),
            Err(error) => {
                let position = format!("entry {}", at + 1);
                parsed.malformed.push(Malformed { annotation, position, why: error.to_string() });
            }
        }
    }
    parsed
}

fn scope(step: Option<u32>) -> GateScope {
    step.map_or(GateScope::Release, GateScope::Step)
}

impl From<Approval> for GateResult {
    fn from(approval: Approval) -> Self {
        let Approval { uid: _, release, gate, kind, step, answer, why, by, at, nonce: _ } = approval;
        let reply = match answer {
            ApprovalAnswer::Yes => GateReply::Yes { by },
            ApprovalAnswer::No => GateReply::No { by, why },
        };
        GateResult {
            call: GateCall { release, gate, kind, scope: scope(step) },
            reply,
            from: Respondent::Person,
            at,
        }
    }
}

impl From<CommandEntry> for Command {
    fn from(entry: CommandEntry) -> Self {
        let CommandEntry { uid: _, id, verb, revision, by, at: _ } = entry;
        Command { id, verb, revision, by }
    }
}
