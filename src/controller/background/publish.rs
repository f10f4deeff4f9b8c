//! Publishes a report: as Events, to event webhooks, and as alerts. Nothing waits
//! for any of it.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering},
    },
};

use jiff::Timestamp;
use k8s_openapi::{
    api::core::v1::{Event, EventSource, ObjectReference, Secret},
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time},
};
use kube::{
    Api, Client, Resource as _, ResourceExt as _,
    api::{Patch, PatchParams, PostParams},
    core::{ApiResource, Request},
};
use serde_json::json;

use super::{gate_call::signing_key, pools::TaskKind};
use crate::{
    api::{
        AlertProvider, AlertProviderSpec, Canary, CanaryStatus,
        canary::{Alert, HookType, Severity, Webhook},
        condition::TARGET_REJECTED,
    },
    controller::{context::Context, queue::trigger::NamespacedName, shard::fence::Fence},
    engine::{Reason, Report, names::name_of},
    gates::{
        question::{LinkSigner, Question},
        webhook::{self, HookContext},
    },
    migrate::flagger,
    notify::{self, AnswerLinks, Destination, Notification, Subject, thread::ThreadRecorder},
    patch::FIELD_MANAGER,
};

/// What notifications show besides the release.
#[derive(Clone, Debug, Default)]
pub struct NotificationOptions {
    pub site: notify::Site,
    /// Signs the links that answer an approval.
    pub links: Option<LinkSigner>,
}

/// Publishes what a report should notify of; `status` is the recorded one.
pub fn publish(ctx: &Arc<Context>, canary: &Canary, status: &CanaryStatus, report: &Report) {
    let happened = report.preceding.iter().chain([report]).filter(|report| report.should_notify);
    for report in happened {
        // A promotion has one Event, when it is done, unless it was hardly judged.
        let is_usual = matches!(&report.reason, Reason::Promoting { low_power, .. } if low_power.is_empty());
        if !is_usual {
            write_event(ctx, canary, report);
        }
        call_event_hooks(ctx, canary, status, report);
        if let Some(rejected) = target_rejected(status, report) {
            write_event(ctx, canary, &rejected);
            call_event_hooks(ctx, canary, status, &rejected);
        }
    }
    send_alerts(ctx, canary, status, report);
}

/// After a rollback that leaves the target at the revision that was rolled back.
fn target_rejected(status: &CanaryStatus, report: &Report) -> Option<Report> {
    let Reason::RolledBack { revision, .. } = &report.reason else { return None };
    status.conditions.iter().find(|condition| condition.type_ == TARGET_REJECTED)?;
    let promoted = status.revisions.as_ref().and_then(|revisions| revisions.primary.as_deref());
    let promoted = name_of(status, promoted.unwrap_or_default()).to_owned();
    Some(Report::from(Reason::TargetRejected { revision: revision.clone(), promoted }))
}

/// An Event that cannot be written is lost; the status has its message too.
pub fn write_event(ctx: &Arc<Context>, canary: &Canary, report: &Report) {
    let (name, namespace) = (canary.name_any(), canary.namespace().unwrap_or_default());
    let severe = report.severity != Severity::Info;
    match severe {
        true => tracing::warn!(canary = name, namespace, "{}", report.message),
        false => tracing::info!(canary = name, namespace, "{}", report.message),
    }
    let text = EventText { is_warning: severe, reason: report.reason.code(), message: &report.message };
    let own = ObjectReference {
        api_version: Some(Canary::api_version(&()).into_owned()),
        kind: Some(Canary::kind(&()).into_owned()),
        namespace: Some(namespace),
        name: Some(name),
        uid: canary.metadata.uid.clone(),
        ..ObjectReference::default()
    };
    let theirs = ctx.options.adopt_flagger.then(|| adopted_from(canary)).flatten();
    for about in [own].into_iter().chain(theirs) {
        let event = event_about(about, &text, ctx.clock.now());
        let (canary, fence, client) = (NamespacedName::of(canary), ctx.fence.clone(), ctx.client.clone());
        let permits = Arc::clone(&ctx.event_permits);
        ctx.tasks_of(&canary.clone()).spawn_to_completion(async move {
            let _turn = permits.acquire().await;
            if fence.check(&canary).is_ok()
                && let Err(error) = create_event(&client, &event).await
            {
                tracing::debug!(%error, "an event was lost");
            }
        });
    }
}

/// Flagger's Canary that this one was made from.
fn adopted_from(canary: &Canary) -> Option<ObjectReference> {
    let theirs = flagger::resource("Canary");
    let owner = canary.owner_references().iter().find(|owner| owner.api_version == theirs.api_version)?;
    Some(ObjectReference {
        api_version: Some(theirs.api_version),
        kind: Some(theirs.kind),
        namespace: canary.namespace(),
        name: Some(owner.name.clone()),
        uid: Some(owner.uid.clone()),
        ..ObjectReference::default()
    })
}

pub struct EventText<'t> {
    pub is_warning: bool,
    pub reason: &'t str,
    pub message: &'t str,
}

/// Writes an Event about any object of a namespace.
pub async fn create_event_about(
    ctx: &Context,
    about: ObjectReference,
    text: &EventText<'_>,
) -> kube::Result<()> {
    create_event(&ctx.client, &event_about(about, text, ctx.clock.now())).await
}

fn event_about(about: ObjectReference, text: &EventText<'_>, now: Timestamp) -> Event {
    // Two controllers that start in the same microsecond lose an Event. The kind
    // is in the name because a workload may have the Canary's name.
    static COUNT: AtomicI64 = AtomicI64::new(0);
    let number = now.as_microsecond().wrapping_add(COUNT.fetch_add(1, Ordering::Relaxed));
    let kind = about.kind.as_deref().unwrap_or_default().to_lowercase();
    let name = about.name.as_deref().unwrap_or_default();
    Event {
        metadata: ObjectMeta {
            name: Some(format!("{name}.{kind}.{number:x}")),
            namespace: about.namespace.clone(),
            ..ObjectMeta::default()
        },
        type_: Some(if text.is_warning { "Warning" } else { "Normal" }.to_owned()),
        reason: Some(text.reason.to_owned()),
        message: Some(text.message.to_owned()),
        source: Some(EventSource { component: Some(FIELD_MANAGER.to_owned()), host: None }),
        reporting_component: Some(FIELD_MANAGER.to_owned()),
        first_timestamp: Some(Time(now)),
        last_timestamp: Some(Time(now)),
        count: Some(1),
        involved_object: about,
        ..Event::default()
    }
}

/// The response is not decoded.
async fn create_event(client: &Client, event: &Event) -> kube::Result<()> {
    let events = Request::new(Event::url_path(&(), event.metadata.namespace.as_deref()));
    let body = serde_json::to_vec(event).map_err(kube::Error::SerdeError)?;
    let request = events.create(&PostParams::default(), body).map_err(kube::Error::BuildRequest)?;
    client.request_text(request).await.map(drop)
}

fn call_event_hooks(ctx: &Arc<Context>, canary: &Canary, status: &CanaryStatus, report: &Report) {
    let (hooks, key) = (canary.spec.analysis.webhooks.iter(), NamespacedName::of(canary));
    let mut dropped = Vec::new();
    let wanted = |hook: &&Webhook| match hook.type_ {
        Some(HookType::Event) => true,
        Some(HookType::TargetRejected) => matches!(report.reason, Reason::TargetRejected { .. }),
        _ => false,
    };
    for mut hook in hooks.filter(wanted).cloned() {
        if let (Reason::TargetRejected { .. }, Some(known)) = (&report.reason, &status.revisions) {
            // The hashes: the message has the names.
            let revisions = [("rejectedRevision", &known.rejected), ("promotedRevision", &known.primary)];
            let revisions =
                revisions.map(|(key, revision)| (key.to_owned(), revision.clone().unwrap_or_default()));
            hook.metadata.extend(revisions);
        }
        let about = HookContext::from_status(canary, status);
        let (message, severity, at) = (report.message.clone(), report.severity, ctx.clock.now());
        let (name, end) = (hook.name.clone(), ctx.end_of_publishing(&key));
        let started = ctx.in_background(TaskKind::EventHook, &key, end, async move |ctx| {
            let event = webhook::Event { message: &message, severity, at };
            match signing_key(&ctx, &hook, &about.namespace).await {
                Ok(key) => {
                    let reply = ctx.webhooks.send_event(&hook, &about, &event, key.as_deref()).await;
                    ctx.telemetry.observe_gate_call(&hook.type_.unwrap_or_default(), &reply);
                }
                Err(why) => {
                    let HookContext { namespace, name, .. } = about;
                    tracing::warn!(
                        canary = name,
                        namespace,
                        hook = hook.name,
                        why,
                        "an event webhook is not called"
                    );
                }
            }
        });
        if !started {
            dropped.push(name);
        }
    }
    if !dropped.is_empty() {
        tracing::warn!(canary = %key, hooks = ?dropped, "event webhooks are not called: too many calls of this Canary wait already");
    }
}

fn send_alerts(ctx: &Arc<Context>, canary: &Canary, status: &CanaryStatus, report: &Report) {
    if canary.spec.analysis.alerts.is_empty() {
        return;
    }
    let notices = notices(ctx, canary, status, report);
    if notices.is_empty() {
        return;
    }
    for alert in canary.spec.analysis.alerts.clone() {
        let wanted: Vec<_> =
            notices.iter().filter(|notice| notice.meets_severity_of(&alert)).cloned().collect();
        let own = canary.namespace().unwrap_or_default();
        if wanted.is_empty() {
            continue;
        }
        let key = NamespacedName::of(canary);
        let (canary, name, end) = (key.clone(), alert.name.clone(), ctx.end_of_publishing(&key));
        let started = ctx.in_background(TaskKind::Alert, &key, end, async move |ctx| {
            match resolve_destination(&ctx, &alert, &own).await {
                Ok(to) => wanted.iter().for_each(|notice| ctx.outbox.send(&to, notice)),
                Err(why) => tracing::warn!(%canary, alert = alert.name, why, "an alert has nowhere to go"),
            }
        });
        if !started {
            tracing::warn!(canary = %key, alert = name, "an alert is dropped: too many of this Canary wait already");
        }
    }
}

/// The notifications of a report, with the links that answer its question.
fn notices(ctx: &Context, canary: &Canary, status: &CanaryStatus, report: &Report) -> Vec<Notification> {
    let NotificationOptions { site, links } = &ctx.options.notifications;
    let now = ctx.clock.now();
    let mut notices = notify::notifications(&Subject { canary, status, site }, report, now);
    for notice in &mut notices {
        let (Some(approval), Some(signer)) = (&mut notice.approval, links) else { continue };
        let question = Question {
            namespace: notice.namespace.clone(),
            name: notice.name.clone(),
            uid: notice.uid.clone(),
            release: notice.release,
            gate: approval.gate.clone(),
            step: approval.step_index,
        };
        match signer.links(&question, now) {
            Ok([approve_url, reject_url]) => approval.links = Some(AnswerLinks { approve_url, reject_url }),
            Err(error) => tracing::warn!("{error}; the message has no links"),
        }
    }
    notices
}

/// Writes the message of a release to its Canary, in the background.
pub fn thread_recorder(client: Client, fence: Fence) -> ThreadRecorder {
    ThreadRecorder(Arc::new(move |namespace, name, thread| {
        let key = NamespacedName { namespace: namespace.to_owned(), name: name.to_owned() };
        let annotations = BTreeMap::from([(thread.annotation(), json!(thread).to_string())]);
        let patch = json!({"metadata": {"uid": thread.uid, "annotations": annotations}});
        let (canaries, fence) = (Api::<Canary>::namespaced(client.clone(), namespace), fence.clone());
        tokio::spawn(async move {
            let params = PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..Default::default() };
            if fence.check(&key).is_ok()
                && let Err(error) = canaries.patch_metadata(&key.name, &params, &Patch::Merge(patch)).await
            {
                tracing::debug!(%error, canary = %key, "the message of a release is not recorded");
            }
        });
    }))
}

async fn resolve_destination(ctx: &Context, alert: &Alert, own: &str) -> Result<Arc<Destination>, String> {
    let reference = &alert.provider_ref;
    let namespace = reference.namespace.as_deref().unwrap_or(own);
    if ctx.options.tenancy.no_cross_namespace_refs && namespace != own {
        return Err(format!(
            "the AlertProvider {} is in {namespace}, not in {own} (--no-cross-namespace-refs)",
            reference.name
        ));
    }
    let kind = ApiResource::erase::<AlertProvider>(&());
    ctx.caches.ensure_synced(&kind).await.map_err(|error| error.to_string())?;
    let Some(provider) = ctx.caches.object(&kind, namespace, &reference.name) else {
        return Err(format!("the AlertProvider {} does not exist in {namespace}", reference.name));
    };
    let spec: AlertProviderSpec =
        serde_json::from_value(provider.data["spec"].clone()).map_err(|error| error.to_string())?;
    let secret = match &spec.secret_ref {
        None => None,
        Some(secret) => {
            let secrets: Api<Secret> = Api::namespaced(ctx.client.clone(), namespace);
            secrets.get_opt(&secret.name).await.map_err(|error| error.to_string())?
        }
    };
    let data = secret.and_then(|secret| secret.data).unwrap_or_default();
    let provider = format!("{namespace}/{}", reference.name);
    Destination::new(provider, &spec, &data).map(Arc::new).map_err(|error| error.to_string())
}
