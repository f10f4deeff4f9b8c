//! Deletes the objects of a terminating namespace, then its finalizer.

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

/// Returns once the last object of the namespace is gone.
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
    let finalized = api.replace_subresource("finalize", &name, &PostParams::default(), &namespace).await;
    ignore_not_found(finalized).trying_to("finalize an emptied namespace")?;
    Ok(None)
}

/// Deletes every object of the kind and waits for the last one to be gone.
async fn delete_all_objects(client: &Client, kind: &ResourceKind, namespace: &str) {
    let api = kind.namespaced_api(client, Some(namespace));
    let mut remaining = HashSet::new();
    let mut changes = std::pin::pin!(watch(api.clone()));
    while let Some(event) = changes.next().await {
        match event {
            Event::Init => remaining.clear(),
            Event::InitApply(object) | Event::Apply(object) => {
                remaining.insert(object.uid());
                delete_with_retries(&api, &object).await;
            }
            Event::Delete(object) => {
                remaining.remove(&object.uid());
                if remaining.is_empty() {
                    return;
                }
            }
            Event::InitDone if remaining.is_empty() => return,
            Event::InitDone => {}
        }
    }
}

/// Retries until it succeeds, so that one failure does not restart the whole reconcile.
async fn delete_with_retries(api: &Api<Meta>, object: &Meta) {
    let this_one = Preconditions { uid: object.uid(), resource_version: None };
    let params = DeleteParams::background().preconditions(this_one);
    let mut attempt = 0;
    while object.metadata.deletion_timestamp.is_none() {
        match ignore_not_found(api.delete(&object.name_any(), &params).await) {
            Ok(_) => return,
            Err(error) => {
                // Another object may have the name now; the watch delivers that one.
                let found = api.get_opt(&object.name_any()).await;
                if found.is_ok_and(|found| found.is_none_or(|found| found.uid() != object.uid())) {
                    return;
                }
                tracing::debug!(%error, "cannot delete an object of a namespace; retrying");
                attempt += 1;
                sleep(backoff(attempt)).await;
            }
        }
    }
}
