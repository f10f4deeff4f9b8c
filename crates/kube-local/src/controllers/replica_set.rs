//! Keeps as many pods as a ReplicaSet requests, and counts them.

use std::cmp::Reverse;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::apps::v1::{ReplicaSet, ReplicaSetCondition, ReplicaSetStatus};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::api::PostParams;
use kube::core::SelectorExt;
use kube::runtime::reflector::Store;
use kube::{Api, ResourceExt};

use super::claim::children_of;
use super::pods::{self, PendingDeletion};
use super::runtime::{
    self, Attempt, Context, Error, RequeueResult, controller_reference, ignore_not_found, owner_or_selecting,
    selector_of, trigger_with, watch_with_store,
};

/// Limit of pods created or deleted by one reconcile.
const MAX_BURST: usize = 500;

pub async fn run(context: Arc<Context>) {
    let controller = runtime::controller(Api::<ReplicaSet>::all(context.client.clone()));
    let (pods, changes) = watch_with_store(Api::<Pod>::all(context.client.clone()));
    let sets = controller.store();
    let controller = controller.reconcile_on(trigger_with(changes, sets, |pod: &Pod, sets| {
        owner_or_selecting(pod, sets, |set: &ReplicaSet, _| {
            set.spec
                .as_ref()
                .and_then(|spec| selector_of(&spec.selector).ok())
                .is_some_and(|selector| selector.matches(pod.labels()))
        })
    }));
    runtime::run(controller, context, move |set, context| reconcile(set, context, pods.clone())).await;
}

async fn reconcile(set: Arc<ReplicaSet>, context: Arc<Context>, cache: Store<Pod>) -> RequeueResult {
    let Some(spec) = &set.spec else {
        return Ok(None);
    };
    let selector = selector_of(&spec.selector)?;
    let pods = children_of(&context.client, &*set, &selector, &cache).await?;
    let plan = plan(&set, &pods, context.options.clock.now());

    let api: Api<Pod> = Api::namespaced(context.client.clone(), &set.namespace().unwrap_or_default());
    let created = pods::create(&context.events, &api, &*set, &plan.create).await;
    let written = created.and(pods::delete(&context.events, &api, &*set, &plan.delete).await);

    let mut status = plan.status;
    status.conditions = conditions(&set, &written, context.now());
    if set.status.as_ref() != Some(&status) {
        let mut counted = (*set).clone();
        counted.status = Some(status);
        let sets: Api<ReplicaSet> =
            Api::namespaced(context.client.clone(), &set.namespace().unwrap_or_default());
        let recorded = sets.replace_status(&set.name_any(), &PostParams::default(), &counted).await;
        ignore_not_found(recorded).trying_to("record a replica set's status")?;
    }
    written?;
    Ok(plan.requeue_after)
}

/// The writes of one reconcile. Pure: from the set and its pods.
#[derive(Debug, Default)]
struct Plan {
    create: Vec<Pod>,
    delete: Vec<PendingDeletion>,
    status: ReplicaSetStatus,
    /// The time until a ready pod counts as available.
    requeue_after: Option<Duration>,
}

fn plan(set: &ReplicaSet, pods: &[Pod], now: Timestamp) -> Plan {
    let Some(spec) = &set.spec else {
        return Plan::default();
    };
    let desired = usize::try_from(spec.replicas.unwrap_or(1)).unwrap_or(0);
    let min_ready = spec.min_ready_seconds.unwrap_or(0);
    let mut active: Vec<&Pod> = pods.iter().filter(|pod| pods::is_active(pod)).collect();
    active.sort_by_cached_key(|pod| deletion_rank(pod));

    let template = spec.template.clone().unwrap_or_default();
    let template_labels = template.metadata.as_ref().and_then(|meta| meta.labels.clone()).unwrap_or_default();
    let fully_labelled =
        |pod: &Pod| template_labels.iter().all(|(key, value)| pod.labels().get(key) == Some(value));
    let available = active.iter().filter(|pod| pods::is_available(pod, min_ready, now)).count();
    let status = ReplicaSetStatus {
        replicas: count(active.len()),
        fully_labeled_replicas: nonzero(active.iter().filter(|pod| fully_labelled(pod)).count()),
        ready_replicas: nonzero(active.iter().filter(|pod| pods::is_ready(pod)).count()),
        available_replicas: nonzero(available),
        observed_generation: set.metadata.generation,
        terminating_replicas: None,
        conditions: None,
    };
    let wake = active
        .iter()
        .filter(|pod| pods::is_ready(pod) && !pods::is_available(pod, min_ready, now))
        .filter_map(|pod| pods::available_in(pod, min_ready, now))
        .min();

    if set.metadata.deletion_timestamp.is_some() {
        return Plan { status, requeue_after: wake, ..Plan::default() };
    }
    let surplus = active.len().saturating_sub(desired).min(MAX_BURST);
    let missing = desired.saturating_sub(active.len()).min(MAX_BURST);
    let pod = pods::from_template(&template, &set.name_any(), controller_reference(set));
    Plan {
        create: vec![pod; missing],
        delete: active[..surplus].iter().map(|pod| PendingDeletion::of(pod)).collect(),
        status,
        requeue_after: wake,
    }
}

/// Deletion order: pods that are not ready first, then the newest.
fn deletion_rank(pod: &Pod) -> impl Ord + use<> {
    let assigned =
        pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()).is_some_and(|node| !node.is_empty());
    let phase = match pods::phase(pod) {
        "Running" => 2,
        "Unknown" => 1,
        _ => 0,
    };
    let cost: i32 = pod
        .annotations()
        .get("controller.kubernetes.io/pod-deletion-cost")
        .and_then(|cost| cost.parse().ok())
        .unwrap_or(0);
    let restarts: i32 =
        pod.status.as_ref().and_then(|status| status.container_statuses.as_ref()).map_or(0, |containers| {
            containers.iter().map(|container| container.restart_count).max().unwrap_or(0)
        });
    (
        assigned,
        phase,
        pods::is_ready(pod),
        cost,
        Reverse(pods::ready_since(pod)),
        Reverse(restarts),
        Reverse(pod.creation_timestamp().map(|time| time.0)),
        pod.name_any(),
    )
}

/// The ReplicaFailure condition if pods could not be created or deleted.
fn conditions(set: &ReplicaSet, written: &Result<(), Error>, now: Time) -> Option<Vec<ReplicaSetCondition>> {
    let before = set.status.as_ref().and_then(|status| status.conditions.clone()).unwrap_or_default();
    let (mut failures, mut others): (Vec<_>, Vec<_>) =
        before.into_iter().partition(|condition| condition.type_ == "ReplicaFailure");
    if let Err(error) = written {
        let reason = match error {
            Error::Api { attempt: pods::DELETE_POD, .. } => "FailedDelete",
            _ => pods::FAILED_CREATE,
        };
        let known = failures.pop().filter(|condition| condition.reason.as_deref() == Some(reason));
        others.push(known.unwrap_or_else(|| ReplicaSetCondition {
            type_: "ReplicaFailure".to_owned(),
            status: "True".to_owned(),
            reason: Some(reason.to_owned()),
            message: Some(error.to_string()),
            last_transition_time: Some(now),
        }));
    }
    (!others.is_empty()).then_some(others)
}

fn count(number: usize) -> i32 {
    i32::try_from(number).unwrap_or(i32::MAX)
}

/// The API omits counts that are zero.
fn nonzero(number: usize) -> Option<i32> {
    (number > 0).then(|| count(number))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn set(replicas: i32, min_ready: i32) -> ReplicaSet {
        serde_json::from_value(json!({
            "metadata": {"name": "web", "generation": 3},
            "spec": {
                "replicas": replicas, "minReadySeconds": min_ready,
                "selector": {"matchLabels": {"app": "web"}},
                "template": {"metadata": {"labels": {"app": "web"}}, "spec": {"containers": []}},
            },
        }))
        .unwrap()
    }

    fn pod(name: &str, phase: &str, ready_since: Option<&str>) -> Pod {
        serde_json::from_value(json!({
            "metadata": {"name": name, "uid": name, "labels": {"app": "web"}},
            "spec": {"containers": [], "nodeName": "n"},
            "status": {"phase": phase, "conditions": ready_since.map(|since| json!([
                {"type": "Ready", "status": "True", "lastTransitionTime": since}
            ]))},
        }))
        .unwrap()
    }

    fn at(time: &str) -> Timestamp {
        time.parse().unwrap()
    }

    const NOON: &str = "2026-01-01T12:00:00Z";

    #[test]
    fn missing_pods_are_created() {
        let plan = plan(&set(3, 0), &[pod("a", "Running", Some(NOON))], at(NOON));
        assert_eq!((plan.create.len(), plan.delete.len(), plan.status.replicas), (2, 0, 1));
    }

    #[test]
    fn finished_and_terminating_pods_do_not_count() {
        let mut leaving = pod("b", "Running", Some(NOON));
        leaving.metadata.deletion_timestamp = Some(Time(at(NOON)));
        let plan = plan(&set(2, 0), &[pod("a", "Failed", None), leaving], at(NOON));
        assert_eq!((plan.create.len(), plan.status.replicas), (2, 0));
    }

    #[test]
    fn pods_that_are_not_ready_go_first_then_the_most_recently_ready() {
        let pods = [
            pod("old", "Running", Some("2026-01-01T10:00:00Z")),
            pod("new", "Running", Some("2026-01-01T11:00:00Z")),
            pod("unready", "Running", None),
            pod("pending", "Pending", None),
        ];
        let deleted = |replicas| {
            plan(&set(replicas, 0), &pods, at(NOON))
                .delete
                .into_iter()
                .map(|pod| pod.name)
                .collect::<Vec<_>>()
        };
        assert_eq!(deleted(3), ["pending"]);
        assert_eq!(deleted(1), ["pending", "unready", "new"]);
    }

    #[test]
    fn a_pod_is_available_only_after_it_was_ready_for_long_enough() {
        let pods = [pod("a", "Running", Some("2026-01-01T11:59:50Z"))];
        let early = plan(&set(1, 30), &pods, at(NOON));
        assert_eq!((early.status.ready_replicas, early.status.available_replicas), (Some(1), None));
        assert_eq!(early.requeue_after, Some(Duration::from_secs(20)));
        let late = plan(&set(1, 30), &pods, at("2026-01-01T12:00:20Z"));
        assert_eq!((late.status.available_replicas, late.requeue_after), (Some(1), None));
    }

    #[test]
    fn a_set_being_deleted_creates_and_deletes_nothing() {
        let mut set = set(3, 0);
        set.metadata.deletion_timestamp = Some(Time(at(NOON)));
        let plan = plan(&set, &[], at(NOON));
        assert_eq!((plan.create.len(), plan.delete.len()), (0, 0));
    }
}
