//! What people say, written on the Canary: approvals, refusals, commands.
//!
//! Guarantees: nothing is written for somebody who may not `update
//! canaries/approve` there; what others wrote at the same moment is kept; an
//! answer is written only for a question that waits.
//!
//! Caveat: the right is checked here, before the write. Whoever may patch a
//! Canary can write its annotations with kubectl as well; the admission policy
//! of `charts/serin` asks for the same right there.

use std::collections::BTreeMap;
use std::hash::{BuildHasher as _, RandomState};
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::authentication::v1::{SelfSubjectReview, UserInfo};
use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec, SubjectAccessReview,
    SubjectAccessReviewSpec,
};
use kube::api::{Api, Patch, PatchParams, PostParams};
use kube::{Client, ResourceExt as _};
use serde_json::json;

use super::annotations::{AnnotationEntry, Approval, ApprovalAnswer, CommandEntry, parse, pending_approvals};
use crate::api::{self, Canary, CanaryStatus};
use crate::engine::{
    action::{GateCall, GateScope},
    command::{Command, Verb},
};

/// Who speaks.
#[derive(Clone, Debug, PartialEq)]
pub enum Caller {
    /// Whoever the client's credentials name: for a command line.
    Current,
    /// Somebody whom the API server has named to the caller: for a server.
    User(UserInfo),
}

/// The Canary that is spoken to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CanaryRef<'a> {
    pub namespace: &'a str,
    pub name: &'a str,
}

/// Why nothing was written.
#[derive(Debug, thiserror::Error)]
pub enum CommandError {
    #[error("there is no Canary {name} in the namespace {namespace}")]
    NoSuchCanary { namespace: String, name: String },
    #[error(
        "{who} may not do that to {name} in the namespace {namespace}: it takes the right to update canaries/approve{why}"
    )]
    NotAllowed { who: String, namespace: String, name: String, why: String },
    #[error("nothing waits for approval: {0}")]
    NothingPending(String),
    #[error("no gate named {gate} waits for approval; these do: {waiting}")]
    NoSuchGate { gate: String, waiting: String },
    #[error("several gates wait for approval: name one of {waiting}")]
    AmbiguousGate { waiting: String },
    #[error("the gate {0} is a webhook, whose no only keeps it closed: abort ends the release")]
    NotRejectable(String),
    #[error("{0} commands wait to be answered already: is the controller running?")]
    TooManyPending(usize),
    #[error("others kept writing to the Canary at the same moment; try again")]
    Conflict,
    #[error("cannot {doing}")]
    Api { doing: &'static str, source: Box<kube::Error> },
}

/// Opens the gate, or gives the approval, that waits; with several of them
/// `gate` must name one.
pub async fn approve(
    client: &Client,
    who: &Caller,
    canary: CanaryRef<'_>,
    gate: Option<&str>,
) -> Result<GateCall, CommandError> {
    write_approval(client, who, canary, gate, ApprovalAnswer::Yes, "").await
}

/// Refuses the approval that waits, which rolls the release back.
pub async fn reject(
    client: &Client,
    who: &Caller,
    canary: CanaryRef<'_>,
    gate: Option<&str>,
    why: &str,
) -> Result<GateCall, CommandError> {
    write_approval(client, who, canary, gate, ApprovalAnswer::No, why).await
}

/// Gives a command. Without a revision it is meant for the one that the Canary
/// is at now: should another take its place first, the command is refused.
///
/// What became of it is in `status.lastCommand`, under the id that is returned.
pub async fn command(
    client: &Client,
    who: &Caller,
    canary: CanaryRef<'_>,
    verb: Verb,
    revision: Option<&str>,
) -> Result<Command, CommandError> {
    let by = authorize(client, who, canary).await?;
    let id = new_command_id();
    let order = update_annotation(client, canary, |found, orders: &mut Vec<CommandEntry>| {
        let last = found.status.as_ref().and_then(|status| status.last_command.as_ref());
        let pending = orders.iter().filter(|order| last.is_none_or(|last| last.id != order.id)).count();
        if pending >= MAX_PENDING_COMMANDS {
            return Err(CommandError::TooManyPending(pending));
        }
        let meant = revision.map(str::to_owned).or_else(|| current_revision(found.status.as_ref()?, verb));
        let order = CommandEntry {
            uid: found.metadata.uid.clone(),
            id: id.clone(),
            verb,
            revision: meant,
            by: by.clone(),
            at: Some(Timestamp::now()),
        };
        orders.push(order.clone());
        Ok(order)
    })
    .await?;
    Ok(order.into())
}

const MAX_PENDING_COMMANDS: usize = 16;

/// A reason is for people: longer than this it is a document.
const MAX_REASON_CHARS: usize = 1000;

async fn write_approval(
    client: &Client,
    who: &Caller,
    canary: CanaryRef<'_>,
    gate: Option<&str>,
    said: ApprovalAnswer,
    why: &str,
) -> Result<GateCall, CommandError> {
    let by = authorize(client, who, canary).await?;
    let why: String = why.trim().trim_end_matches('.').chars().take(MAX_REASON_CHARS).collect();
    update_annotation(client, canary, |found, approvals: &mut Vec<Approval>| {
        let question = select_gate(found, gate)?;
        if said == ApprovalAnswer::No && question.kind.is_some() {
            return Err(CommandError::NotRejectable(question.gate));
        }
        let step = match question.scope {
            GateScope::Step(step) => Some(step),
            GateScope::Release | GateScope::Check { .. } => None,
        };
        let approval = Approval {
            uid: found.metadata.uid.clone(),
            release: question.release,
            gate: question.gate.clone(),
            kind: question.kind,
            step,
            answer: said,
            why: why.clone(),
            by: by.clone(),
            at: Timestamp::now(),
        };
        // Who answers again has changed their mind.
        approvals.retain(|old| {
            (&old.gate, old.kind, old.step, &old.by)
                != (&approval.gate, approval.kind, approval.step, &approval.by)
        });
        approvals.push(approval);
        Ok(question)
    })
    .await
}

/// The question that is meant, if there is exactly one.
fn select_gate(canary: &Canary, gate: Option<&str>) -> Result<GateCall, CommandError> {
    let mut waiting = pending_approvals(canary);
    if waiting.is_empty() {
        let message = canary.status.as_ref().and_then(|status| status.message.as_deref());
        let message = message.unwrap_or("the controller has not seen this Canary yet");
        return Err(CommandError::NothingPending(message.to_owned()));
    }
    let names = waiting.iter().map(|question| question.gate.as_str()).collect::<Vec<_>>().join(", ");
    if let Some(gate) = gate {
        waiting.retain(|question| question.gate == gate);
    }
    match (waiting.pop(), gate) {
        (Some(question), _) if waiting.is_empty() => Ok(question),
        (None, Some(gate)) => Err(CommandError::NoSuchGate { gate: gate.to_owned(), waiting: names }),
        _ => Err(CommandError::AmbiguousGate { waiting: names }),
    }
}

/// The revision that a command is about as things stand.
fn current_revision(status: &CanaryStatus, verb: Verb) -> Option<String> {
    match verb {
        Verb::Abort | Verb::Promote | Verb::Pause | Verb::Resume => {
            status.release.as_ref().map(|release| release.revision.clone())
        }
        Verb::Retry => status.revisions.as_ref()?.rejected.clone(),
        Verb::Rollback => status.revisions.as_ref()?.primary.clone(),
    }
}

/// Changes one annotation, from what is there at that very moment: the API
/// server refuses the patch if somebody wrote since, and it is done again.
async fn update_annotation<T: AnnotationEntry, R>(
    client: &Client,
    canary: CanaryRef<'_>,
    change: impl Fn(&Canary, &mut Vec<T>) -> Result<R, CommandError>,
) -> Result<R, CommandError> {
    const MAX_ATTEMPTS: u32 = 20;
    let canaries = Api::<Canary>::namespaced(client.clone(), canary.namespace);
    for attempt in 0..MAX_ATTEMPTS {
        let found = canaries.get_opt(canary.name).await.map_err(api_error("read the Canary"))?;
        let found = found.ok_or_else(|| CommandError::NoSuchCanary {
            namespace: canary.namespace.to_owned(),
            name: canary.name.to_owned(),
        })?;
        let mut entries = parse::<T>(&found).entries;
        T::prune(&mut entries, &found);
        let result = change(&found, &mut entries)?;
        let annotations = BTreeMap::from([(T::ANNOTATION, json!(entries).to_string())]);
        let patch = json!({"metadata": {
            "resourceVersion": found.resource_version(),
            "annotations": annotations,
        }});
        let params = PatchParams { field_manager: Some("serin-people".to_owned()), ..Default::default() };
        match canaries.patch_metadata(canary.name, &params, &Patch::Merge(patch)).await {
            Ok(_) => return Ok(result),
            Err(kube::Error::Api(status)) if status.code == 409 => {
                let pause = 5 + RandomState::new().hash_one(attempt) % (20 * (u64::from(attempt) + 1));
                tokio::time::sleep(Duration::from_millis(pause)).await;
            }
            Err(error) => return Err(api_error("write to the Canary")(error)),
        }
    }
    Err(CommandError::Conflict)
}

/// May they? Returns their name, as far as the API server tells it.
async fn authorize(
    client: &Client,
    who: &Caller,
    canary: CanaryRef<'_>,
) -> Result<Option<String>, CommandError> {
    let attributes = ResourceAttributes {
        group: Some(api::GROUP.to_owned()),
        resource: Some("canaries".to_owned()),
        subresource: Some("approve".to_owned()),
        verb: Some("update".to_owned()),
        namespace: Some(canary.namespace.to_owned()),
        name: Some(canary.name.to_owned()),
        ..Default::default()
    };
    let doing = "ask whether that is allowed";
    let (name, status) = match who {
        Caller::Current => {
            let spec =
                SelfSubjectAccessReviewSpec { resource_attributes: Some(attributes), ..Default::default() };
            let review = SelfSubjectAccessReview { spec, ..Default::default() };
            let reviewed = Api::all(client.clone()).create(&PostParams::default(), &review).await;
            (current_username(client).await?, reviewed.map_err(api_error(doing))?.status)
        }
        Caller::User(UserInfo { username, uid, groups, extra }) => {
            let spec = SubjectAccessReviewSpec {
                user: username.clone(),
                uid: uid.clone(),
                groups: groups.clone(),
                extra: extra.clone(),
                resource_attributes: Some(attributes),
                ..Default::default()
            };
            let review = SubjectAccessReview { spec, ..Default::default() };
            let reviewed = Api::all(client.clone()).create(&PostParams::default(), &review).await;
            (username.clone(), reviewed.map_err(api_error(doing))?.status)
        }
    };
    match status {
        Some(status) if status.allowed && status.denied != Some(true) => Ok(name),
        status => Err(CommandError::NotAllowed {
            who: name.unwrap_or_else(|| "you".to_owned()),
            namespace: canary.namespace.to_owned(),
            name: canary.name.to_owned(),
            why: status
                .and_then(|status| status.reason)
                .filter(|why| !why.is_empty())
                .map(|why| format!(" ({why})"))
                .unwrap_or_default(),
        }),
    }
}

/// What the API server calls us; servers before 1.28 do not say.
async fn current_username(client: &Client) -> Result<Option<String>, CommandError> {
    let reviews = Api::<SelfSubjectReview>::all(client.clone());
    match reviews.create(&PostParams::default(), &SelfSubjectReview::default()).await {
        Ok(review) => Ok(review.status.and_then(|status| status.user_info).and_then(|user| user.username)),
        Err(kube::Error::Api(status)) if status.code == 404 || status.code == 403 => Ok(None),
        Err(error) => Err(api_error("ask who we are")(error)),
    }
}

fn api_error(doing: &'static str) -> impl Fn(kube::Error) -> CommandError {
    move |error| CommandError::Api { doing, source: Box::new(error) }
}

/// Sorts by time for people who look at it; 64 random bits keep it unique.
fn new_command_id() -> String {
    let now = Timestamp::now();
    format!("{}-{:016x}", now.as_millisecond(), RandomState::new().hash_one(now.as_nanosecond()))
}
