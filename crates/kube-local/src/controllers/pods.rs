//! Predicates on pods, and their creation and deletion.

use std::time::Duration;

use futures::future::join_all;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Pod, PodCondition, PodTemplateSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::api::{DeleteParams, PostParams, Preconditions};
use kube::{Api, Resource, ResourceExt};

use super::events::{EventRecorder, EventType};
use super::runtime::{Attempt, Error, ignore_not_found};

/// Counts towards its owner's replicas: neither finished nor terminating.
pub fn is_active(pod: &Pod) -> bool {
    !is_finished(pod) && pod.metadata.deletion_timestamp.is_none()
}

pub fn is_finished(pod: &Pod) -> bool {
    matches!(phase(pod), "Succeeded" | "Failed")
}

/// Not marked for deletion.
pub fn is_not_deleting(pod: &Pod) -> bool {
    pod.metadata.deletion_timestamp.is_none()
}

pub fn phase(pod: &Pod) -> &str {
    pod.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or_default()
}

pub fn is_ready(pod: &Pod) -> bool {
    ready_condition(pod).is_some_and(|ready| ready.status == "True")
}

pub fn ready_since(pod: &Pod) -> Option<Timestamp> {
    ready_condition(pod)
        .filter(|ready| ready.status == "True")
        .and_then(|ready| ready.last_transition_time.as_ref())
        .map(|time| time.0)
}

/// Ready for `min_ready_seconds` without a break.
pub fn is_available(pod: &Pod, min_ready_seconds: i32, now: Timestamp) -> bool {
    is_ready(pod)
        && (min_ready_seconds <= 0 || available_in(pod, min_ready_seconds, now) == Some(Duration::ZERO))
}

/// The time until a ready pod becomes available.
pub fn available_in(pod: &Pod, min_ready_seconds: i32, now: Timestamp) -> Option<Duration> {
    let long_enough =
        ready_since(pod)?.saturating_add(SignedDuration::from_secs(min_ready_seconds.into())).ok()?;
    Some(Duration::try_from(long_enough.duration_since(now)).unwrap_or(Duration::ZERO))
}

fn ready_condition(pod: &Pod) -> Option<&PodCondition> {
    pod.status.as_ref()?.conditions.iter().flatten().find(|condition| condition.type_ == "Ready")
}

/// A pod of this template; the server generates its name.
pub fn from_template(template: &PodTemplateSpec, name_prefix: &str, owner: OwnerReference) -> Pod {
    let meta = template.metadata.clone().unwrap_or_default();
    Pod {
        metadata: ObjectMeta {
            generate_name: Some(format!("{name_prefix}-")),
            labels: meta.labels,
            annotations: meta.annotations,
            finalizers: meta.finalizers,
            owner_references: Some(vec![owner]),
            ..ObjectMeta::default()
        },
        spec: template.spec.clone(),
        status: None,
    }
}

/// A pod to delete, by uid: not a later pod of the same name.
#[derive(Debug, PartialEq, Eq)]
pub struct PendingDeletion {
    pub name: String,
    uid: Option<String>,
}

impl PendingDeletion {
    pub fn of(pod: &Pod) -> PendingDeletion {
        PendingDeletion { name: pod.name_any(), uid: pod.uid() }
    }
}

/// Creates pods in batches of one, two, four, …, so that a refusal costs few requests.
pub async fn create<K>(
    events: &EventRecorder,
    api: &Api<Pod>,
    owner: &K,
    mut pods: &[Pod],
) -> Result<(), Error>
where
    K: Resource<DynamicType = ()>,
{
    let params = PostParams::default();
    let mut batch = 1;
    while !pods.is_empty() {
        let (now, later) = pods.split_at(batch.min(pods.len()));
        for created in join_all(now.iter().map(|pod| api.create(&params, pod))).await {
            match created {
                Ok(pod) => {
                    let message = format!("Created pod: {}", pod.name_any());
                    events.publish(owner, EventType::Normal, "SuccessfulCreate", message).await;
                }
                Err(error) => {
                    events
                        .publish(owner, EventType::Warning, FAILED_CREATE, format!("Error creating: {error}"))
                        .await;
                    return Err(error).trying_to("create a pod");
                }
            }
        }
        pods = later;
        batch *= 2;
    }
    Ok(())
}

/// Deletes pods concurrently.
pub async fn delete<K>(
    events: &EventRecorder,
    api: &Api<Pod>,
    owner: &K,
    pods: &[PendingDeletion],
) -> Result<(), Error>
where
    K: Resource<DynamicType = ()>,
{
    let deletions = pods.iter().map(async |pod| {
        let this_one = Preconditions { uid: pod.uid.clone(), resource_version: None };
        let deleted = api.delete(&pod.name, &DeleteParams::default().preconditions(this_one)).await;
        (pod, ignore_not_found(deleted))
    });
    for (pod, deleted) in join_all(deletions).await {
        deleted.trying_to(DELETE_POD)?;
        let message = format!("Deleted pod: {}", pod.name);
        events.publish(owner, EventType::Normal, "SuccessfulDelete", message).await;
    }
    Ok(())
}

pub const DELETE_POD: &str = "delete a pod";
pub const FAILED_CREATE: &str = "FailedCreate";
