//! Empties a namespace that is being deleted, then lets it go.

use std::collections::HashSet;
use std::sync::Arc;

use futures::StreamExt;
use futures::future::join_all;
use k8s_openapi::api::core::v1::Namespace;
use kube::api::{DeleteParams, PostParams, Preconditions};
use kube::runtime::watcher::Event;
use kube::{Api, Client, ResourceExt};
use tokio::time::sleep;

use super::kinds::{self, Meta, ResourceKind};
use super::runtime::{self, Attempt, Context, RequeueResult, backoff, ignore_not_found, watch};

const FINALIZER: &str = "kubernetes";

pub async fn run(context: Arc<Context>) {
    let controller = runtime::controller(Api::<Namespace>::all(context.client.clone()));
    runtime::run(controller, context, reconcile).await;
}

/// Takes as long as the last object does; other namespaces do not wait for it.
async fn reconcile(namespace: Arc<Namespace>, context: Arc<Context>) -> RequeueResult {
    let finalizers = namespace.spec.as_ref().and_then(|spec| spec.finalizers.clone()).unwrap_or_default();
    if namespace.metadata.deletion_timestamp.is_none() || !finalizers.iter().any(|name| name == FINALIZER) {
        return Ok(None);
    }
    let name = namespace.name_any();
    let kinds = kinds::discover(&context.client).await;
    let emptying = kinds
        .iter()
        .filter(|kind| kind.namespaced)
        .map(|kind| delete_all_objects(&context.client, kind, &name));
    join_all(emptying).await;

    let api: Api<Namespace> = Api::all(context.client.clone());
    let Some(mut namespace) = api.get_opt(&name).await.trying_to("read an emptied namespace")? else {
        return Ok(None);
    };
    if let Some(finalizers) = namespace.spec.as_mut().and_then(|spec| spec.finalizers.as_mut()) {
        finalizers.retain(|name| name != FINALIZER);
    }
    let let_go = api.replace_subresource("finalize", &name, &PostParams::default(), &namespace).await;
    ignore_not_found(let_go).trying_to("let an emptied namespace go")?;
    Ok(None)
}

/// Deletes every object of the kind and waits for the last one to be gone.
async fn delete_all_objects(client: &Client, kind: &ResourceKind, namespace: &str) {
    let api = kind.namespaced_api(client, Some(namespace));
    let mut left = HashSet::new();
    let mut changes = std::pin::pin!(watch(api.clone()));
    while let Some(event) = changes.next().await {
        match event {
            Event::Init => left.clear(),
            Event::InitApply(object) | Event::Apply(object) => {
                left.insert(object.uid());
                delete_with_retries(&api, &object).await;
            }
            Event::Delete(object) => {
                left.remove(&object.uid());
                if left.is_empty() {
                    return;
                }
            }
            Event::InitDone if left.is_empty() => return,
            Event::InitDone => {}
        }
    }
}

/// Tries as often as it takes: one object's trouble must not begin all anew.
async fn delete_with_retries(api: &Api<Meta>, object: &Meta) {
    let this_one = Preconditions { uid: object.uid(), resource_version: None };
    let params = DeleteParams::background().preconditions(this_one);
    let mut attempt = 0;
    while object.metadata.deletion_timestamp.is_none() {
        match ignore_not_found(api.delete(&object.name_any(), &params).await) {
            Ok(_) => return,
            Err(error) => {
                // Another may have its name by now; the watch tells of that one.
                let found = api.get_opt(&object.name_any()).await;
                if found.is_ok_and(|found| found.is_none_or(|found| found.uid() != object.uid())) {
                    return;
                }
                tracing::debug!(%error, "could not delete what a namespace holds; trying again");
                attempt += 1;
                sleep(backoff(attempt)).await;
            }
        }
    }
}
