//! Publishes a report: as Events, to event webhooks, and as alerts. Nothing waits
//! for any of it.

use std::sync::{
    Arc,
    atomic::{AtomicI64, Ordering},
};

use k8s_openapi::{
    api::core::v1::{Event, EventSource, ObjectReference, Secret},
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time},
};
use kube::{
    Api, Client, Resource as _, ResourceExt as _,
    api::PostParams,
    core::{ApiResource, Request},
};

use super::{gate_call::signing_key, pools::TaskKind};
use crate::{
    api::{
        AlertProvider, AlertProviderSpec, Canary, CanaryStatus,
        canary::{Alert, HookType, Severity},
    },
    controller::{context::Context, queue::trigger::NamespacedName},
    engine::{Reason, Report},
    gates::webhook::{self, HookContext},
    notify::{self, Destination},
    patch::FIELD_MANAGER,
};

/// Publishes what a report should notify of; `status` is the recorded one.
pub fn publish(ctx: &Arc<Context>, canary: &Canary, status: &CanaryStatus, report: &Report) {
    let happened = report.preceding.iter().chain([report]).filter(|report| report.should_notify);
    for report in happened {
        // A promotion has one Event: when it is done.
        if !matches!(report.reason, Reason::Promoting { .. }) {
            write_event(ctx, canary, report);
        }
        call_event_hooks(ctx, canary, status, report);
    }
    send_alerts(ctx, canary, status, report);
}

/// An Event that cannot be written is lost; the status has its message too.
pub fn write_event(ctx: &Arc<Context>, canary: &Canary, report: &Report) {
    let (name, namespace) = (canary.name_any(), canary.namespace().unwrap_or_default());
    let severe = report.severity != Severity::Info;
    match severe {
        true => tracing::warn!(canary = name, namespace, "{}", report.message),
        false => tracing::info!(canary = name, namespace, "{}", report.message),
    }
    // Two controllers that start in the same microsecond lose an Event. The kind
    // is in the name because a workload may have the Canary's name.
    static COUNT: AtomicI64 = AtomicI64::new(0);
    let now = ctx.clock.now();
    let number = now.as_microsecond().wrapping_add(COUNT.fetch_add(1, Ordering::Relaxed));
    let event = Event {
        metadata: ObjectMeta {
            name: Some(format!("{name}.canary.{number:x}")),
            namespace: Some(namespace.clone()),
            ..ObjectMeta::default()
        },
        involved_object: ObjectReference {
            api_version: Some(Canary::api_version(&()).into_owned()),
            kind: Some(Canary::kind(&()).into_owned()),
            namespace: Some(namespace.clone()),
            name: Some(name),
            uid: canary.metadata.uid.clone(),
            ..ObjectReference::default()
        },
        type_: Some(if severe { "Warning" } else { "Normal" }.to_owned()),
        reason: Some(report.reason.code().to_owned()),
        message: Some(report.message.clone()),
        source: Some(EventSource { component: Some(FIELD_MANAGER.to_owned()), host: None }),
        reporting_component: Some(FIELD_MANAGER.to_owned()),
        first_timestamp: Some(Time(now)),
        last_timestamp: Some(Time(now)),
        count: Some(1),
        ..Event::default()
    };
    let (canary, fence, client) = (NamespacedName::of(canary), ctx.fence.clone(), ctx.client.clone());
    let permits = Arc::clone(&ctx.event_permits);
    ctx.tasks_of(&canary.clone()).spawn_to_completion(async move {
        let _turn = permits.acquire().await;
        if fence.check(&canary).is_ok()
            && let Err(error) = create_event(&client, &canary.namespace, &event).await
        {
            tracing::debug!(%error, "an event was lost");
        }
    });
}

/// The response is not decoded.
async fn create_event(client: &Client, namespace: &str, event: &Event) -> kube::Result<()> {
    let events = Request::new(Event::url_path(&(), Some(namespace)));
    let body = serde_json::to_vec(event).map_err(kube::Error::SerdeError)?;
    let request = events.create(&PostParams::default(), body).map_err(kube::Error::BuildRequest)?;
    client.request_text(request).await.map(drop)
}

fn call_event_hooks(ctx: &Arc<Context>, canary: &Canary, status: &CanaryStatus, report: &Report) {
    let (hooks, key) = (canary.spec.analysis.webhooks.iter(), NamespacedName::of(canary));
    let mut dropped = Vec::new();
    for hook in hooks.filter(|hook| hook.type_ == Some(HookType::Event)).cloned() {
        let about = HookContext::from_status(canary, status);
        let (message, severity, at) = (report.message.clone(), report.severity, ctx.clock.now());
        let (name, end) = (hook.name.clone(), ctx.end_of_publishing(&key));
        let started = ctx.in_background(TaskKind::EventHook, &key, end, async move |ctx| {
            let event = webhook::Event { message: &message, severity, at };
            match signing_key(&ctx, &hook, &about.namespace).await {
                Ok(key) => {
                    let reply = ctx.webhooks.send_event(&hook, &about, &event, key.as_deref()).await;
                    ctx.telemetry.observe_gate_call(&HookType::Event, &reply);
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
    let notices = notify::notifications(canary, status, report, ctx.clock.now());
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
    Destination::new(&spec, &data).map(Arc::new).map_err(|error| error.to_string())
}
