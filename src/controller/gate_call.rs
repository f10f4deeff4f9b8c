//! Webhooks, asked in the background: one that hangs delays its own Canary
//! only. Answers land on the Canary's desk and wake it.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Secret;
use kube::Api;

use super::{CanaryName, Shared, desk::Desk, understand::Understood};
use crate::{
    api::canary::Webhook,
    engine::{Decision, action::Question, observed::Reply},
    gates::webhook::Subject,
};

/// Asks the webhook that a question names, unless somebody does already. A
/// question to people has none: they answer when they like.
pub fn ask(
    shared: &Arc<Shared>,
    desk: &Arc<Desk>,
    understood: &Understood,
    decision: &Decision,
    question: &Question,
) {
    let Some(kind) = question.kind else { return };
    let canary = &*understood.canary;
    let is_meant = |hook: &&Webhook| hook.name == question.gate && hook.type_.unwrap_or_default() == kind;
    let Some(hook) = canary.spec.analysis.webhooks.iter().find(is_meant).cloned() else { return };
    if !desk.inbox.lock().ask(question) {
        return;
    }
    let about = Subject::of(canary, &decision.status);
    let (question, desk, name) = (question.clone(), Arc::clone(desk), CanaryName::of(canary));
    shared.in_background(&name.clone(), async move |shared| {
        let reply = match key(&shared, &hook, &name.namespace).await {
            Ok(key) => shared.webhooks.ask(&hook, &about, key.as_deref()).await,
            Err(why) => Reply::Silence { why },
        };
        shared.options.vitals.gate_answered(&kind, &reply);
        desk.inbox.lock().answered(question, reply, shared.clock.now());
        shared.waker.wake(name);
    });
}

/// What a webhook's questions are signed with.
pub async fn key(shared: &Shared, hook: &Webhook, namespace: &str) -> Result<Option<Vec<u8>>, String> {
    let Some(name) = hook.secret_ref.as_ref().map(|secret| &secret.name) else { return Ok(None) };
    let secrets: Api<Secret> = Api::namespaced(shared.client.clone(), namespace);
    let secret =
        secrets.get(name).await.map_err(|error| format!("the Secret {name} cannot be read: {error}"))?;
    let key = secret.data.and_then(|mut data| data.remove("hmac"));
    key.map(|key| Some(key.0)).ok_or_else(|| format!("the Secret {name} has no key hmac"))
}
