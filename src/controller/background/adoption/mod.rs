//! Canaries, MetricTemplates and AlertProviders of Flagger, served as they are
//! (`serin run --adopt-flagger`).
//!
//! ```text
//!   flagger.app object ── spec ──▶ serin.dev object, owned by it, of its name ──▶ releases
//!        ▲                                       │
//!        └── phase, weight, conditions ──────────┘      (its Events: `publish`)
//! ```
//!
//! Promises:
//!
//! - An object of Flagger is never edited, except the status of its Canary.
//! - A Canary that a running Flagger serves is not released: [`running_flagger`].
//! - An object of ours that was not made from one of Flagger's is left alone.
//! - A deleted object takes ours with it, by the garbage collector.
//!
//! [`translate`] decides, and is pure.

mod running_flagger;
mod translate;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use futures::{StreamExt as _, future::join_all, stream};
use k8s_openapi::api::core::v1::ObjectReference;
use kube::{
    Api, ResourceExt as _,
    api::{ApiResource, DynamicObject, Patch},
    runtime::{controller::Action, watcher},
};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio_util::task::AbortOnDropHandle;

use self::{
    running_flagger::Running,
    translate::{FollowedKind, Step, Write},
};
use super::publish::{EventText, create_event_about};
use crate::{
    api_error::{api_message, is_refused},
    clock,
    controller::{context::Context, queue::trigger::NamespacedName},
    error_chain::error_chain,
    patch::{apply_params, merge_params},
};

/// Shards move between replicas: another one may have to take the object up.
const SHARD_INTERVAL: Duration = Duration::from_secs(10);
/// After a request that failed, or while an object of ours is on its way out.
const RETRY_INTERVAL: Duration = Duration::from_secs(5);

#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct FollowError(String);

struct Adopter {
    ctx: Arc<Context>,
    running: watch::Receiver<Running>,
    /// The last refusal of each object, so that each is one Event.
    refusals: Mutex<BTreeMap<(&'static str, NamespacedName), String>>,
}

/// What one watch needs.
struct Following {
    adopter: Arc<Adopter>,
    kind: FollowedKind,
}

/// Follows the objects of Flagger until dropped.
pub fn spawn(ctx: &Arc<Context>) -> AbortOnDropHandle<()> {
    AbortOnDropHandle::new(tokio::spawn(run(Arc::clone(ctx))))
}

async fn run(ctx: Arc<Context>) {
    let (known, running) = watch::channel(Running::find(&ctx.client).await);
    let adopter = Arc::new(Adopter { ctx: Arc::clone(&ctx), running, refusals: Mutex::default() });
    let namespaces: Vec<Option<String>> = match ctx.options.namespaces.as_slice() {
        [] => vec![None],
        some => some.iter().cloned().map(Some).collect(),
    };
    let each = namespaces.iter().flat_map(|namespace| {
        FollowedKind::all().map(|kind| follow(Arc::clone(&adopter), kind, namespace.clone()))
    });
    futures::join!(running_flagger::poll(&ctx.client, known), join_all(each));
}

async fn follow(adopter: Arc<Adopter>, kind: FollowedKind, namespace: Option<String>) {
    let client = adopter.ctx.client.clone();
    let api = |resource: &ApiResource| match &namespace {
        Some(namespace) => Api::<DynamicObject>::namespaced_with(client.clone(), namespace, resource),
        None => Api::all_with(client.clone(), resource),
    };
    let changes = stream::unfold(adopter.running.clone(), async |mut running| {
        running.changed().await.ok()?;
        Some(((), running))
    });
    let (theirs, ours) = (kind.theirs.clone(), kind.ours.clone());
    let following = Arc::new(Following { adopter, kind });
    let ended = kube::runtime::Controller::new_with(api(&theirs), watcher::Config::default(), theirs.clone())
        .owns_with(api(&ours), ours, watcher::Config::default())
        .reconcile_all_on(changes)
        .run(reconcile, |_, _, _| Action::requeue(RETRY_INTERVAL), following);
    ended
        .for_each(async |end| {
            if let Err(error) = end {
                let why = error_chain(&error);
                tracing::warn!(
                    kind = theirs.plural,
                    group = theirs.group,
                    why,
                    "an object of Flagger is not followed"
                );
            }
        })
        .await;
}

async fn reconcile(theirs: Arc<DynamicObject>, following: Arc<Following>) -> Result<Action, FollowError> {
    let Following { adopter, kind } = &*following;
    let name = NamespacedName { namespace: theirs.namespace().unwrap_or_default(), name: theirs.name_any() };
    if theirs.metadata.deletion_timestamp.is_some() {
        adopter.refusals.lock().remove(&(kind.name, name));
        return Ok(Action::await_change());
    }
    if adopter.ctx.fence.check(&name).is_err() {
        return Ok(Action::requeue(SHARD_INTERVAL));
    }
    adopter.reconcile(kind, &name, &theirs).await
}

impl Adopter {
    async fn reconcile(
        &self,
        kind: &FollowedKind,
        name: &NamespacedName,
        theirs: &DynamicObject,
    ) -> Result<Action, FollowError> {
        let failed = |error: kube::Error| FollowError(api_message(&error));
        let client = self.ctx.fence.fenced_client(&self.ctx.client, name);
        let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), &name.namespace, &kind.ours);
        let ours = api.get_opt(&name.name).await.map_err(failed)?;
        let running = kind.is_canary().then(|| self.running.borrow().refusal_for(&name.namespace)).flatten();
        let Step { write, mut refusal } = translate::step(kind, theirs, ours.as_ref(), running.as_deref());
        let written = match &write {
            Write::Nothing => Ok(None),
            // It is on its way out.
            Write::Later => return Ok(Action::requeue(RETRY_INTERVAL)),
            Write::Create(object) => {
                let params = apply_params().validation_strict();
                api.patch(&name.name, &params, &Patch::Apply(object)).await.map(Some)
            }
            Write::Patch(patch) => {
                let params = merge_params().validation_strict();
                api.patch(&name.name, &params, &Patch::Merge(patch)).await.map(Some)
            }
        };
        let ours = match written {
            Ok(written) => written.or(ours),
            Err(error) if is_refused(&error) => {
                refusal.get_or_insert(format!("Serin refuses it: {}", api_message(&error)));
                ours
            }
            Err(error) => return Err(failed(error)),
        };
        self.report(kind, name, theirs, refusal.as_deref()).await;
        // The status is Flagger's while it runs.
        if kind.is_canary() && running.is_none() {
            let status = ours.as_ref().map_or(&Value::Null, |ours| &ours.data["status"]);
            let now = clock::seconds(self.ctx.clock.now());
            if let Some(patch) =
                translate::status_patch(&theirs.data["status"], status, refusal.as_deref(), &now)
            {
                let theirs: Api<DynamicObject> = Api::namespaced_with(client, &name.namespace, &kind.theirs);
                let patch = Patch::Merge(json!({ "status": patch }));
                theirs.patch_status(&name.name, &merge_params(), &patch).await.map_err(failed)?;
            }
        }
        Ok(Action::await_change())
    }

    /// An Event on Flagger's object for a refusal that is new.
    async fn report(
        &self,
        kind: &FollowedKind,
        name: &NamespacedName,
        theirs: &DynamicObject,
        refusal: Option<&str>,
    ) {
        let key = (kind.name, name.clone());
        let before = match refusal {
            Some(refusal) => self.refusals.lock().insert(key, refusal.to_owned()),
            None => {
                self.refusals.lock().remove(&key);
                return;
            }
        };
        let Some(refusal) = refusal.filter(|refusal| before.as_deref() != Some(refusal)) else { return };
        tracing::warn!(kind = kind.name, object = %name, "{refusal}");
        let about = ObjectReference {
            api_version: Some(kind.theirs.api_version.clone()),
            kind: Some(kind.theirs.kind.clone()),
            namespace: Some(name.namespace.clone()),
            name: Some(name.name.clone()),
            uid: theirs.uid(),
            ..ObjectReference::default()
        };
        let text = EventText { is_warning: true, reason: "Refused", message: refusal };
        if let Err(error) = create_event_about(&self.ctx, about, &text).await {
            tracing::debug!(%error, "an event was lost");
        }
    }
}
