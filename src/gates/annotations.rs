//! What people said, as annotations on the Canary. Pure: no client, no clock.
//!
//! ```text
//! serin.dev/approvals: [{"uid": "…", "release": 3, "gate": "go-live", "step": 2,
//!                        "answer": "yes", "by": "alice", "at": "2025-03-01T09:00:00Z"}]
//! serin.dev/commands:  [{"uid": "…", "id": "…", "verb": "promote",
//!                        "revision": "…", "by": "alice", "at": "2025-03-01T09:00:00Z"}]
//! ```
//!
//! Each is a JSON list, oldest first. `uid` is the Canary's own: what was
//! copied along to another Canary does not count there; left out, it counts
//! wherever it stands. `type` names the kind of webhook that an answer opens;
//! an approval step has none. `answer` is `yes` or `no`, with `why` for people.
//!
//! An entry that cannot be read is skipped and told of ([`malformed`]); the
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
    observed::{GateReply, GateResult},
};

/// Answers of people to gates and approval steps.
pub const APPROVALS: &str = "serin.dev/approvals";
/// Commands of people, in the order they came.
pub const COMMANDS: &str = "serin.dev/commands";

/// What people answered, old answers among them.
pub fn answers(canary: &Canary) -> Vec<GateResult> {
    parse::<Approval>(canary).entries.into_iter().map(GateResult::from).collect()
}

/// What people commanded, in the order it came, answered commands among them.
pub fn commands(canary: &Canary) -> Vec<Command> {
    parse::<CommandEntry>(canary).entries.into_iter().map(Command::from).collect()
}

/// What of both could not be read, to be told to people.
pub fn malformed(canary: &Canary) -> Vec<Malformed> {
    let mut malformed = parse::<Approval>(canary).malformed;
    malformed.extend(parse::<CommandEntry>(canary).malformed);
    malformed
}

/// The gates and approval steps that wait for a yes and that a person may give
/// it to.
pub fn pending_approvals(canary: &Canary) -> Vec<GateCall> {
    let Some(status) = &canary.status else { return Vec::new() };
    let waits = |gate: &&GateStatus| {
        let open_to_people = match gate.type_ {
            None
            | Some(
                HookType::ConfirmRollout | HookType::ConfirmTrafficIncrease | HookType::ConfirmPromotion,
            ) => true,
            Some(
                HookType::Rollout
                | HookType::PreRollout
                | HookType::PostRollout
                | HookType::Rollback
                | HookType::Event,
            ) => false,
        };
        gate.state == GateState::Waiting && open_to_people
    };
    let question = |gate: &GateStatus| GateCall {
        release: status.releases,
        gate: gate.name.clone(),
        kind: gate.type_,
        scope: scope(gate.step),
    };
    status.gates.iter().filter(waits).map(question).collect()
}

/// An annotation, or an entry of one, that could not be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{position} of the annotation {annotation} is ignored: {why}")]
pub struct Malformed {
    pub annotation: &'static str,
    /// `entry 2`, or `the whole`.
    pub position: String,
    pub why: String,
}

/// One answer of a person.
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
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum ApprovalAnswer {
    Yes,
    No,
}

/// One command of a person.
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

/// What one of the two annotations lists.
pub(super) trait AnnotationEntry: Serialize + DeserializeOwned {
    const ANNOTATION: &'static str;

    /// The Canary that it was said to.
    fn uid(&self) -> Option<&str>;

    /// Drops what can matter no more, so that the list does not grow for ever.
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

    /// The last one answered stays: the engine finds by it which are new.
    fn prune(entries: &mut Vec<Self>, canary: &Canary) {
        let last = canary.status.as_ref().and_then(|status| status.last_command.as_ref());
        let answered = last.and_then(|last| entries.iter().position(|entry| entry.id == last.id));
        entries.drain(..answered.unwrap_or(0));
    }
}

pub(super) struct ParsedAnnotation<T> {
    pub entries: Vec<T>,
    pub malformed: Vec<Malformed>,
}

pub(super) fn parse<T: AnnotationEntry>(canary: &Canary) -> ParsedAnnotation<T> {
    let mut read = ParsedAnnotation { entries: Vec::new(), malformed: Vec::new() };
    let annotation = T::ANNOTATION;
    let Some(text) = canary.annotations().get(annotation) else { return read };
    let list: Vec<Value> = match serde_json::from_str(text) {
        Ok(list) => list,
        Err(error) => {
            let why = format!("it must be a JSON list ({error})");
            read.malformed.push(Malformed { annotation, position: "the whole".to_owned(), why });
            return read;
        }
    };
    for (at, entry) in list.into_iter().enumerate() {
        match serde_json::from_value::<T>(entry) {
            Ok(entry) if entry.uid().is_some() && entry.uid() != canary.metadata.uid.as_deref() => {}
            Ok(entry) => read.entries.push(entry),
            Err(error) => {
                let place = format!("entry {}", at + 1);
                read.malformed.push(Malformed { annotation, position: place, why: error.to_string() });
            }
        }
    }
    read
}

fn scope(step: Option<u32>) -> GateScope {
    step.map_or(GateScope::Release, GateScope::Step)
}

impl From<Approval> for GateResult {
    fn from(approval: Approval) -> Self {
        let Approval { uid: _, release, gate, kind, step, answer, why, by, at } = approval;
        let reply = match answer {
            ApprovalAnswer::Yes => GateReply::Yes { by },
            ApprovalAnswer::No => GateReply::No { by, why },
        };
        GateResult { call: GateCall { release, gate, kind, scope: scope(step) }, reply, at }
    }
}

impl From<CommandEntry> for Command {
    fn from(order: CommandEntry) -> Self {
        let CommandEntry { uid: _, id, verb, revision, by, at: _ } = order;
        Command { id, verb, revision, by }
    }
}
