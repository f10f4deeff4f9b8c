//! Rolls a Deployment's pods from one template to the next, with one ReplicaSet
//! per template.
//!
//! `plan` computes the writes from the Deployment and its ReplicaSets: `rollout`
//! moves replicas, `revision` manages the sets, `progress` computes the status.
//! This file reads and writes.

mod plan;
mod progress;
mod revision;
mod rollout;

use std::cmp::Ordering;
use std::sync::Arc;

use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, ListParams, PostParams, Preconditions};
use kube::core::{Selector, SelectorExt};
use kube::runtime::reflector::{ObjectRef, Store};
use kube::{Api, ResourceExt};

use super::claim::children_of;
use super::events::EventType;
use super::pods;
use super::runtime::{
    self, Attempt, Context, Error, RequeueResult, controller_of, ignore_not_found, is_conflict,
    is_controlled_by, owner_or_selecting, selector_of, trigger_with, watch, watch_with_store,
};
use super::template;
use plan::{Plan, PlanInputs, plan};
pub use rollout::{Rounding, resolve_int_or_percent};

pub async fn run(context: Arc<Context>) {
    let client = context.client.clone();
    let controller = runtime::controller(Api::<Deployment>::all(client.clone()));
    let (sets, changes) = watch_with_store(Api::<ReplicaSet>::all(client.clone()));
    let deployments = controller.store();
    let by_set = trigger_with(changes, deployments.clone(), |set: &ReplicaSet, deployments| {
        owner_or_selecting(set, deployments, |deployment: &Deployment, _| {
            deployment
                .spec
                .as_ref()
                .and_then(|spec| selector_of(&spec.selector).ok())
                .is_some_and(|selector| selector.matches(set.labels()))
        })
    });
    let known_sets = sets.clone();
    let by_pod = trigger_with(watch(Api::<Pod>::all(client)), deployments, move |pod: &Pod, deployments| {
        recreate_deployment_of(pod, deployments, &known_sets)
    });
    let controller = controller.reconcile_on(by_set).reconcile_on(by_pod);
    runtime::run(controller, context, move |deployment, context| {
        reconcile(deployment, context, sets.clone())
    })
    .await;
}

/// Only `Recreate` depends on single pods: the new ones start when the last old one is gone.
fn recreate_deployment_of(
    pod: &Pod,
    deployments: &Store<Deployment>,
    sets: &Store<ReplicaSet>,
) -> Option<ObjectRef<Deployment>> {
    let namespace = pod.namespace();
    let set =
        ObjectRef::<ReplicaSet>::from_owner_ref(namespace.as_deref(), controller_of(&pod.metadata)?, ())?;
    let set = sets.get(&set)?;
    let deployment = ObjectRef::from_owner_ref(namespace.as_deref(), controller_of(&set.metadata)?, ())?;
    deployments.get(&deployment).filter(|deployment| rollout::is_recreate(deployment)).map(|_| deployment)
}

async fn reconcile(
    deployment: Arc<Deployment>,
    context: Arc<Context>,
    cache: Store<ReplicaSet>,
) -> RequeueResult {
    let Some(spec) = &deployment.spec else {
        return Ok(None);
    };
    let selector = selector_of(&spec.selector)?;
    let sets = children_of(&context.client, &*deployment, &selector, &cache).await?;
    let old_pods_run =
        rollout::is_recreate(&deployment) && old_pods_run(&context, &deployment, &sets, &selector).await?;

    let mut plan = plan(PlanInputs {
        deployment: &deployment,
        sets: &sets,
        old_pods_run,
        now: context.options.clock.now(),
    });
    apply_plan(&context, &deployment, &mut plan).await?;
    Ok(plan.requeue_after)
}

/// Whether pods of an earlier revision still run, including terminating ones.
async fn old_pods_run(
    context: &Context,
    deployment: &Deployment,
    sets: &[ReplicaSet],
    selector: &Selector,
) -> Result<bool, Error> {
    let current = revision::current(deployment, sets).and_then(|set| set.uid());
    let api: Api<Pod> = Api::namespaced(context.client.clone(), &deployment.namespace().unwrap_or_default());
    let pods =
        api.list(&ListParams::default().labels_from(selector)).await.trying_to("list a deployment's pods")?;
    Ok(pods.iter().any(|pod| {
        let owner = controller_of(&pod.metadata).map(|owner| owner.uid.as_str());
        let old = sets.iter().any(|set| set.uid().as_deref() == owner && set.uid() != current);
        old && !pods::is_finished(pod)
    }))
}

async fn apply_plan(context: &Context, deployment: &Deployment, plan: &mut Plan) -> Result<(), Error> {
    let namespace = deployment.namespace().unwrap_or_default();
    let sets: Api<ReplicaSet> = Api::namespaced(context.client.clone(), &namespace);
    let deployments: Api<Deployment> = Api::namespaced(context.client.clone(), &namespace);
    let params = PostParams::default();

    if let Some(set) = &plan.create {
        match sets.create(&params, set).await {
            Err(error) if is_conflict(&error) => {
                let found = sets.get_opt(&set.name_any()).await;
                match found.trying_to("read the replica set of the same name")? {
                    Some(found) if is_same_set(&found, deployment, set) => {}
                    Some(_) => {
                        // Another template has the same hash: use the next one.
                        let collisions = plan.status.collision_count.get_or_insert(0);
                        *collisions = collisions.saturating_add(1);
                    }
                    None => return Err(error).trying_to("create a replica set"),
                }
            }
            Err(error) if matches!(&error, kube::Error::Api(status) if status.code < 500 && status.code != 429) =>
            {
                let why = error.to_string();
                progress::set_create_failed(&mut plan.status, &set.name_any(), &why, context.now());
                write_status(&deployments, deployment, plan).await?;
                return Err(error).trying_to("create a replica set");
            }
            created => {
                created.trying_to("create a replica set")?;
                publish_scaling_event(context, deployment, set, 0).await;
            }
        }
    }
    for (set, before) in &plan.update {
        let updated = ignore_not_found(sets.replace(&set.name_any(), &params, set).await);
        if updated.trying_to("update a replica set")?.is_some() {
            publish_scaling_event(context, deployment, set, *before).await;
        }
    }
    for set in &plan.delete {
        let this_one = Preconditions { uid: set.uid(), resource_version: set.resource_version() };
        let deleted = sets.delete(&set.name_any(), &DeleteParams::background().preconditions(this_one)).await;
        ignore_not_found(deleted).trying_to("delete an old replica set")?;
    }
    write_status(&deployments, deployment, plan).await
}

async fn publish_scaling_event(context: &Context, deployment: &Deployment, set: &ReplicaSet, before: i32) {
    let (name, now) = (set.name_any(), rollout::size(set));
    let direction = match now.cmp(&before) {
        Ordering::Greater => "up",
        Ordering::Less => "down",
        Ordering::Equal => return,
    };
    let message = format!("Scaled {direction} replica set {name} from {before} to {now}");
    context.events.publish(deployment, EventType::Normal, "ScalingReplicaSet", message).await;
}

fn is_same_set(found: &ReplicaSet, deployment: &Deployment, wanted: &ReplicaSet) -> bool {
    let template =
        |set: &ReplicaSet| set.spec.as_ref().and_then(|spec| spec.template.clone()).unwrap_or_default();
    is_controlled_by(&found.metadata, deployment.uid().as_deref())
        && template::same_but_for_hash(&template(found), &template(wanted))
}

async fn write_status(api: &Api<Deployment>, deployment: &Deployment, plan: &Plan) -> Result<(), Error> {
    let mut recorded = deployment.clone();
    recorded.status = Some(plan.status.clone());
    if let Some(revision) = &plan.revision {
        // With the status, since there an annotation does not increment the generation.
        recorded.annotations_mut().insert(revision::REVISION.to_owned(), revision.clone());
    }
    if recorded != *deployment {
        let written = api.replace_status(&recorded.name_any(), &PostParams::default(), &recorded).await;
        ignore_not_found(written).trying_to("record a deployment's status")?;
    }
    Ok(())
}
