//! Webhooks, asked in the background: one that hangs delays its own Canary
//! only. Answers land on the Canary's state and wake it.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Secret;
use kube::Api;

use super::{Context, NamespacedName, resolve::ResolvedCanary, state::CanaryState};
use crate::{
    api::canary::Webhook,
    engine::{Decision, action::GateCall, observed::GateReply},
    gates::webhook::HookContext,
};

/// Asks the webhook that a question names, unless somebody does already. A
/// question to people has none: they answer when they like.
pub fn call_gate(
    ctx: &Arc<Context>,
    state: &Arc<CanaryState>,
    resolved: &ResolvedCanary,
    decision: &Decision,
    call: &GateCall,
) {
    let Some(kind) = call.kind else { return };
    let canary = &*resolved.canary;
    let is_meant = |hook: &&Webhook| hook.name == call.gate && hook.type_.unwrap_or_default() == kind;
    let Some(hook) = canary.spec.analysis.webhooks.iter().find(is_meant).cloned() else { return };
    if !state.pending_results.lock().start_gate_call(call) {
        return;
    }
    let about = HookContext::from_status(canary, &decision.status);
    let (question, state, name) = (call.clone(), Arc::clone(state), NamespacedName::of(canary));
    ctx.in_background(&name.clone(), async move |ctx| {
        let reply = match signing_key(&ctx, &hook, &name.namespace).await {
            Ok(key) => ctx.webhooks.call_gate(&hook, &about, key.as_deref()).await,
            Err(why) => GateReply::Unreachable { why },
        };
        ctx.options.telemetry.observe_gate_call(&kind, &reply);
        state.pending_results.lock().finish_gate_call(question, reply, ctx.clock.now());
        ctx.requests.request(name);
    });
}

/// What a webhook's questions are signed with.
pub async fn signing_key(ctx: &Context, hook: &Webhook, namespace: &str) -> Result<Option<Vec<u8>>, String> {
    let Some(name) = hook.secret_ref.as_ref().map(|secret| &secret.name) else { return Ok(None) };
    let secrets: Api<Secret> = Api::namespaced(ctx.client.clone(), namespace);
    let secret =
        secrets.get(name).await.map_err(|error| format!("the Secret {name} cannot be read: {error}"))?;
    let key = secret.data.and_then(|mut data| data.remove("hmac"));
    key.map(|key| Some(key.0)).ok_or_else(|| format!("the Secret {name} has no key hmac"))
}
