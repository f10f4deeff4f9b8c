//! Canaries that do not decode: a newer definition may admit fields that this
//! Serin does not know. They get a `Stalled` condition and are otherwise left
//! alone; the next status write of a valid Canary removes it.

use jiff::Timestamp;
use kube::{
    Api, ResourceExt as _,
    api::{Patch, PatchParams},
    core::{ApiResource, DynamicObject, ObjectMeta},
};
use serde_json::{Value, json};

use super::finalizer::FINALIZER;
use crate::{
    api::{Canary, condition::STALLED},
    clock,
    controller::{context::Context, queue::trigger::NamespacedName, shard::fence::Fenced},
    patch::FIELD_MANAGER,
};

/// Why the condition was not written.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Fenced(#[from] Fenced),
    #[error("cannot read it as it is: {0}")]
    Read(Box<kube::Error>),
    #[error("cannot write its condition: {0}")]
    Write(Box<kube::Error>),
}

/// Writes the decode error into the status, unless it is there.
pub async fn mark_stalled(ctx: &Context, name: &NamespacedName, invalid: &ObjectMeta) -> Result<(), Error> {
    let kind = ApiResource::erase::<Canary>(&());
    let api: Api<DynamicObject> = Api::namespaced_with(ctx.client.clone(), &name.namespace, &kind);
    let found = api.get_opt(&name.name).await.map_err(|error| Error::Read(Box::new(error)))?;
    let Some(object) = found.filter(|found| found.metadata.uid == invalid.uid) else {
        return Ok(());
    };
    let Some(message) = decode_error(&object) else { return Ok(()) };
    let Some(conditions) = stalled_conditions(&object, &message, ctx.clock.now()) else { return Ok(()) };
    tracing::warn!(canary = %name, "{message}");
    ctx.fence.check(name)?;
    let patch = json!({
        "metadata": { "resourceVersion": object.resource_version() },
        "status": { "conditions": conditions },
    });
    let params = PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..Default::default() };
    match api.patch_status(&name.name, &params, &Patch::Merge(&patch)).await {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        Err(error) => Err(Error::Write(Box::new(error))),
    }
}

/// None if it decodes after all.
fn decode_error(object: &DynamicObject) -> Option<String> {
    let value = serde_json::to_value(object).ok()?;
    let error = serde_path_to_error::deserialize::<_, Canary>(value).err()?;
    let (path, why) = (error.path().to_string(), error.into_inner());
    let way_out = match object.metadata.deletion_timestamp {
        None => "Correct the field.".to_owned(),
        Some(_) => format!(
            "Correct the field, and the deletion goes on; or remove the finalizer {FINALIZER} from \
             metadata.finalizers to delete it with its primary, which leaves the target as it is."
        ),
    };
    Some(format!("This Canary cannot be read, so nothing is done: {path}: {why}. {way_out}"))
}

/// None if the condition is there already.
fn stalled_conditions(object: &DynamicObject, message: &str, now: Timestamp) -> Option<Vec<Value>> {
    let present = object.data.pointer("/status/conditions").and_then(Value::as_array);
    let mut conditions = present.cloned().unwrap_or_default();
    let stalled = conditions.iter().position(|condition| condition["type"] == STALLED);
    let before = stalled.map(|at| conditions.remove(at));
    let is = |field: &str, value: &str| before.as_ref().is_some_and(|before| before[field] == value);
    let generation = object.metadata.generation;
    let observed = before.as_ref().and_then(|before| before["observedGeneration"].as_i64());
    if is("status", "True") && is("message", message) && observed == generation {
        return None;
    }
    let now = clock::seconds(now);
    let since = before.filter(|before| before["status"] == "True");
    let since = since.map_or(json!(now), |mut before| before["lastTransitionTime"].take());
    conditions.push(json!({
        "type": STALLED, "status": "True", "reason": "Unreadable", "message": message,
        "observedGeneration": generation, "lastTransitionTime": since, "lastUpdateTime": now,
    }));
    Some(conditions)
}
