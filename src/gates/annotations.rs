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
    action::{Moment, Question},
    command::{Command, Verb},
    observed::{Answer, Reply},
};

/// Answers of people to gates and approval steps.
pub const APPROVALS: &str = "serin.dev/approvals";
/// Commands of people, in the order they came.
pub const COMMANDS: &str = "serin.dev/commands";

/// What people answered, old answers among them.
pub fn answers(canary: &Canary) -> Vec<Answer> {
    read::<Approval>(canary).entries.into_iter().map(Answer::from).collect()
}

/// What people commanded, in the order it came, answered commands among them.
pub fn commands(canary: &Canary) -> Vec<Command> {
    read::<Order>(canary).entries.into_iter().map(Command::from).collect()
}

/// What of both could not be read, to be told to people.
pub fn malformed(canary: &Canary) -> Vec<Malformed> {
    let mut malformed = read::<Approval>(canary).malformed;
    malformed.extend(read::<Order>(canary).malformed);
    malformed
}

/// The gates and approval steps that wait for a yes and that a person may give
/// it to.
pub fn waiting(canary: &Canary) -> Vec<Question> {
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
    let question = |gate: &GateStatus| Question {
        release: status.releases,
        gate: gate.name.clone(),
        kind: gate.type_,
        moment: moment(gate.step),
    };
    status.gates.iter().filter(waits).map(question).collect()
}

/// An annotation, or an entry of one, that could not be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{place} of the annotation {annotation} is ignored: {why}")]
pub struct Malformed {
    pub annotation: &'static str,
    /// `entry 2`, or `the whole`.
    pub place: String,
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
    pub answer: Said,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub why: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
    pub at: Timestamp,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Said {
    Yes,
    No,
}

/// One command of a person.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Order {
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
pub(super) trait Entry: Serialize + DeserializeOwned {
    const ANNOTATION: &'static str;

    /// The Canary that it was said to.
    fn uid(&self) -> Option<&str>;

    /// Drops what can matter no more, so that the list does not grow for ever.
    fn tidy(entries: &mut Vec<Self>, canary: &Canary);
}

impl Entry for Approval {
    const ANNOTATION: &'static str = APPROVALS;

    fn uid(&self) -> Option<&str> {
        self.uid.as_deref()
    }

    fn tidy(entries: &mut Vec<Self>, canary: &Canary) {
        let release = canary.status.as_ref().map_or(0, |status| status.releases);
        entries.retain(|entry| entry.release >= release);
    }
}

impl Entry for Order {
    const ANNOTATION: &'static str = COMMANDS;

    fn uid(&self) -> Option<&str> {
        self.uid.as_deref()
    }

    /// The last one answered stays: the engine finds by it which are new.
    fn tidy(entries: &mut Vec<Self>, canary: &Canary) {
        let last = canary.status.as_ref().and_then(|status| status.last_command.as_ref());
        let answered = last.and_then(|last| entries.iter().position(|entry| entry.id == last.id));
        entries.drain(..answered.unwrap_or(0));
    }
}

pub(super) struct Read<T> {
    pub entries: Vec<T>,
    pub malformed: Vec<Malformed>,
}

pub(super) fn read<T: Entry>(canary: &Canary) -> Read<T> {
    let mut read = Read { entries: Vec::new(), malformed: Vec::new() };
    let annotation = T::ANNOTATION;
    let Some(text) = canary.annotations().get(annotation) else { return read };
    let list: Vec<Value> = match serde_json::from_str(text) {
        Ok(list) => list,
        Err(error) => {
            let why = format!("it must be a JSON list ({error})");
            read.malformed.push(Malformed { annotation, place: "the whole".to_owned(), why });
            return read;
        }
    };
    for (at, entry) in list.into_iter().enumerate() {
        match serde_json::from_value::<T>(entry) {
            Ok(entry) if entry.uid().is_some() && entry.uid() != canary.metadata.uid.as_deref() => {}
            Ok(entry) => read.entries.push(entry),
            Err(error) => {
                let place = format!("entry {}", at + 1);
                read.malformed.push(Malformed { annotation, place, why: error.to_string() });
            }
        }
    }
    read
}

fn moment(step: Option<u32>) -> Moment {
    step.map_or(Moment::Release, Moment::Step)
}

impl From<Approval> for Answer {
    fn from(approval: Approval) -> Self {
        let Approval { uid: _, release, gate, kind, step, answer, why, by, at } = approval;
        let reply = match answer {
            Said::Yes => Reply::Yes { by },
            Said::No => Reply::No { by, why },
        };
        Answer { question: Question { release, gate, kind, moment: moment(step) }, reply, at }
    }
}

impl From<Order> for Command {
    fn from(order: Order) -> Self {
        let Order { uid: _, id, verb, revision, by, at: _ } = order;
        Command { id, verb, revision, by }
    }
}
