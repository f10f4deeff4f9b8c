//! Gate calls in the background: a webhook that hangs delays its own Canary
//! only. Results wait in [`SharedResults`] and request a reconcile.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Secret;
use kube::Api;

use super::{pools::TaskKind, results::SharedResults};
use crate::{
    api::{Canary, CanaryStatus, canary::Webhook},
    controller::{context::Context, queue::trigger::NamespacedName},
    engine::{action::GateCall, observed::GateReply},
    gates::webhook::HookContext,
};

/// Calls the webhook of a gate, unless the call is in progress. An approval has
/// no webhook: a person answers it.
pub fn call_gate(
    ctx: &Arc<Context>,
    results: &SharedResults,
    canary: &Canary,
    status: &CanaryStatus,
    call: &GateCall,
) {
    let Some(kind) = call.kind else { return };
    let is_meant = |hook: &&Webhook| hook.name == call.gate && hook.type_.unwrap_or_default() == kind;
    let Some(hook) = canary.spec.analysis.webhooks.iter().find(is_meant).cloned() else { return };
    let Some(cancellation) = results.lock().start_gate_call(call) else { return };
    let context = HookContext::from_status(canary, status);
    let key = NamespacedName::of(canary);
    let (called, kept, name) = (call.clone(), Arc::clone(results), key.clone());
    let cancelled = cancellation.cancelled_owned();
    let started = ctx.in_background(TaskKind::GateCall, &key, cancelled, async move |ctx| {
        let reply = match signing_key(&ctx, &hook, &name.namespace).await {
            Ok(signing_key) => ctx.webhooks.call_gate(&hook, &context, signing_key.as_deref()).await,
            Err(why) => GateReply::Unreachable { why },
        };
        ctx.telemetry.observe_gate_call(&kind, &reply);
        kept.lock().finish_gate_call(called, reply, ctx.clock.now());
        ctx.requests.request(name);
    });
    if !started {
        let why = "too many webhooks of this Canary are called at the same time".to_owned();
        let reply = GateReply::Unreachable { why };
        results.lock().finish_gate_call(call.clone(), reply, ctx.clock.now());
        ctx.requests.request(key);
    }
}

/// The HMAC key of a webhook's payloads, if its `secretRef` names one.
pub async fn signing_key(ctx: &Context, hook: &Webhook, namespace: &str) -> Result<Option<Vec<u8>>, String> {
    let Some(name) = hook.secret_ref.as_ref().map(|secret| &secret.name) else { return Ok(None) };
    let secrets: Api<Secret> = Api::namespaced(ctx.client.clone(), namespace);
    let secret =
        secrets.get(name).await.map_err(|error| format!("the Secret {name} cannot be read: {error}"))?;
    let key = secret.data.and_then(|mut data| data.remove("hmac"));
    key.map(|key| Some(key.0)).ok_or_else(|| format!("the Secret {name} has no key hmac"))
}
