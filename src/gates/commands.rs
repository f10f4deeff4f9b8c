//! Writes approvals, rejections and commands to annotations of the Canary.
//!
//! Guarantees: nothing is written for a caller who may not `update
//! canaries/approve`; concurrent writes are kept; an approval is written only for
//! a gate that waits.
//!
//! Caveat: authorization is checked here, before the write. A user who may patch
//! Canaries can write these annotations with kubectl as well; the admission
//! policy of `charts/serin` requires the same permission there.

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
use super::question::Question;
use crate::api::{self, Canary, CanaryStatus};
use crate::engine::{
    action::{GateCall, GateScope},
    command::{Command, Verb},
};

#[derive(Clone, Debug, PartialEq)]
pub enum Caller {
    /// The user of the client's credentials: for the CLI.
    Current,
    /// A user authenticated by a TokenReview: for the command API.
    User(UserInfo),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CanaryRef<'a> {
    pub namespace: &'a str,
    pub name: &'a str,
}

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
    #[error("{0} commands are pending already: is the controller running?")]
    TooManyPending(usize),
    #[error("this question is answered, or of an earlier release or step: nothing is changed")]
    Outdated,
    #[error("this link was used already{by}")]
    LinkUsed { by: String },
    #[error("repeated write conflicts on the Canary; try again")]
    Conflict,
    #[error("cannot {doing}")]
    Api { doing: &'static str, source: Box<kube::Error> },
}

/// Approves the gate or approval step that waits; with several of them `gate`
/// must name one.
pub async fn approve(
    client: &Client,
    caller: &Caller,
    canary: CanaryRef<'_>,
    gate: Option<&str>,
) -> Result<GateCall, CommandError> {
    let approval = NewApproval { gate, answer: ApprovalAnswer::Yes, why: "", asked: None, nonce: None };
    write_approval(client, caller, canary, approval).await
}

/// Rejects the approval step that waits, which rolls the release back.
pub async fn reject(
    client: &Client,
    caller: &Caller,
    canary: CanaryRef<'_>,
    gate: Option<&str>,
    why: &str,
) -> Result<GateCall, CommandError> {
    let approval = NewApproval { gate, answer: ApprovalAnswer::No, why, asked: None, nonce: None };
    write_approval(client, caller, canary, approval).await
}

/// Answers this question, if the release still waits for it. A nonce is used at most once.
pub async fn answer(
    client: &Client,
    caller: &Caller,
    question: &Question,
    approve: bool,
    nonce: Option<&str>,
) -> Result<GateCall, CommandError> {
    let canary = CanaryRef { namespace: &question.namespace, name: &question.name };
    let answer = if approve { ApprovalAnswer::Yes } else { ApprovalAnswer::No };
    let approval = NewApproval { gate: Some(&question.gate), answer, why: "", asked: Some(question), nonce };
    write_approval(client, caller, canary, approval).await
}

/// Writes a command for `revision`, by default the current one: the controller
/// refuses it if another revision has taken its place by then.
///
/// The result is in `status.lastCommand`, under the returned id.
pub async fn command(
    client: &Client,
    caller: &Caller,
    canary: CanaryRef<'_>,
    verb: Verb,
    revision: Option<&str>,
) -> Result<Command, CommandError> {
    let by = authorize(client, caller, canary).await?;
    let id = new_command_id();
    let entry = update_annotation(client, canary, |found, entries: &mut Vec<CommandEntry>| {
        let last = found.status.as_ref().and_then(|status| status.last_command.as_ref());
        let pending = entries.iter().filter(|entry| last.is_none_or(|last| last.id != entry.id)).count();
        if pending >= MAX_PENDING_COMMANDS {
            return Err(CommandError::TooManyPending(pending));
        }
        let revision = revision.map(str::to_owned);
        let revision = revision.or_else(|| current_revision(found.status.as_ref()?, verb));
        let entry = CommandEntry {
            uid: found.metadata.uid.clone(),
            id: id.clone(),
            verb,
            revision,
            by: by.clone(),
            at: Some(Timestamp::now()),
        };
        entries.push(entry.clone());
        Ok(entry)
    })
    .await?;
    Ok(entry.into())
}

const MAX_PENDING_COMMANDS: usize = 16;

const MAX_REASON_CHARS: usize = 1000;

/// An approval or rejection, to be written.
struct NewApproval<'a> {
    gate: Option<&'a str>,
    answer: ApprovalAnswer,
    why: &'a str,
    /// The gate must be that of this question.
    asked: Option<&'a Question>,
    nonce: Option<&'a str>,
}

async fn write_approval(
    client: &Client,
    caller: &Caller,
    canary: CanaryRef<'_>,
    NewApproval { gate, answer, why, asked, nonce }: NewApproval<'_>,
) -> Result<GateCall, CommandError> {
    let by = authorize(client, caller, canary).await?;
    let why: String = why.trim().trim_end_matches('.').chars().take(MAX_REASON_CHARS).collect();
    update_annotation(client, canary, |found, approvals: &mut Vec<Approval>| {
        if let Some(used) = approvals.iter().find(|old| nonce.is_some() && old.nonce.as_deref() == nonce) {
            let by = used.by.as_ref().map(|by| format!(" by {by}")).unwrap_or_default();
            return Err(CommandError::LinkUsed { by });
        }
        let call = match (select_gate(found, gate), asked) {
            (Ok(call), Some(asked)) if !is_asked(found, &call, asked) => return Err(CommandError::Outdated),
            (Err(CommandError::NothingPending(_) | CommandError::NoSuchGate { .. }), Some(_)) => {
                return Err(CommandError::Outdated);
            }
            (call, _) => call?,
        };
        if answer == ApprovalAnswer::No && call.kind.is_some() {
            return Err(CommandError::NotRejectable(call.gate));
        }
        let step = match call.scope {
            GateScope::Step(step) => Some(step),
            GateScope::Release | GateScope::Check { .. } => None,
        };
        let approval = Approval {
            uid: found.metadata.uid.clone(),
            release: call.release,
            gate: call.gate.clone(),
            kind: call.kind,
            step,
            answer,
            why: why.clone(),
            by: by.clone(),
            at: Timestamp::now(),
            nonce: nonce.map(str::to_owned),
        };
        // A user's later answer replaces the earlier one.
        approvals.retain(|old| {
            (&old.gate, old.kind, old.step, &old.by)
                != (&approval.gate, approval.kind, approval.step, &approval.by)
        });
        approvals.push(approval);
        Ok(call)
    })
    .await
}

fn is_asked(canary: &Canary, call: &GateCall, asked: &Question) -> bool {
    let step = match call.scope {
        GateScope::Step(step) => Some(step),
        GateScope::Release | GateScope::Check { .. } => None,
    };
    canary.metadata.uid == asked.uid && call.release == asked.release && step == asked.step
}

/// The waiting gate with this name, or the only one.
fn select_gate(canary: &Canary, gate: Option<&str>) -> Result<GateCall, CommandError> {
    let mut waiting = pending_approvals(canary);
    if waiting.is_empty() {
        let message = canary.status.as_ref().and_then(|status| status.message.as_deref());
        let message = message.unwrap_or("the controller has not seen this Canary yet");
        return Err(CommandError::NothingPending(message.to_owned()));
    }
    let names = waiting.iter().map(|call| call.gate.as_str()).collect::<Vec<_>>().join(", ");
    if let Some(gate) = gate {
        waiting.retain(|question| question.gate == gate);
    }
    match (waiting.pop(), gate) {
        (Some(question), _) if waiting.is_empty() => Ok(question),
        (None, Some(gate)) => Err(CommandError::NoSuchGate { gate: gate.to_owned(), waiting: names }),
        _ => Err(CommandError::AmbiguousGate { waiting: names }),
    }
}

/// The revision that a command without one applies to.
fn current_revision(status: &CanaryStatus, verb: Verb) -> Option<String> {
    match verb {
        Verb::Abort | Verb::Promote | Verb::Pause | Verb::Resume => {
            status.release.as_ref().map(|release| release.revision.clone())
        }
        Verb::Retry => status.revisions.as_ref()?.rejected.clone(),
        Verb::Rollback => status.revisions.as_ref()?.primary.clone(),
    }
}

/// Read-modify-write of one annotation, guarded by resourceVersion and retried
/// on conflict (409).
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

/// Returns the caller's user name, if the API server reports it.
pub(crate) async fn authorize(
    client: &Client,
    caller: &Caller,
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
    let doing = "review access";
    let (name, status) = match caller {
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

/// By a SelfSubjectReview; none before Kubernetes 1.28.
async fn current_username(client: &Client) -> Result<Option<String>, CommandError> {
    let reviews = Api::<SelfSubjectReview>::all(client.clone());
    match reviews.create(&PostParams::default(), &SelfSubjectReview::default()).await {
        Ok(review) => Ok(review.status.and_then(|status| status.user_info).and_then(|user| user.username)),
        Err(kube::Error::Api(status)) if status.code == 404 || status.code == 403 => Ok(None),
        Err(error) => Err(api_error("review the current user")(error)),
    }
}

fn api_error(doing: &'static str) -> impl Fn(kube::Error) -> CommandError {
    move |error| CommandError::Api { doing, source: Box::new(error) }
}

/// Milliseconds first, so that ids sort by time; 64 random bits make it unique.
fn new_command_id() -> String {
    let now = Timestamp::now();
    format!("{}-{:016x}", now.as_millisecond(), RandomState::new().hash_one(now.as_nanosecond()))
}
