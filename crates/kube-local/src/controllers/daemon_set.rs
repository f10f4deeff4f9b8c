//! Keeps one pod of a DaemonSet on every matching node, and replaces the pods
//! node by node when the template changes.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::apps::v1::{DaemonSet, DaemonSetStatus, RollingUpdateDaemonSet};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::api::PostParams;
use kube::core::SelectorExt;
use kube::runtime::reflector::Store;
use kube::{Api, ResourceExt};

use super::claim::children_of;
use super::deployment::{Rounding, resolve_int_or_percent};
use super::pods::{self, PendingDeletion};
use super::runtime::{
    self, Attempt, Context, RequeueResult, controller_reference, ignore_not_found, owner_or_selecting,
    selector_of, trigger_with, watch_with_store,
};
use super::template;
use crate::node::placement;

/// The template hash of a pod. Real clusters keep the templates in
/// ControllerRevisions; this label is the part that users and tools read.
const REVISION_HASH: &str = "controller-revision-hash";

pub async fn run(context: Arc<Context>) {
    let controller = runtime::controller(Api::<DaemonSet>::all(context.client.clone()));
    let (pods, changes) = watch_with_store(Api::<Pod>::all(context.client.clone()));
    let sets = controller.store();
    let controller = controller.reconcile_on(trigger_with(changes, sets, |pod: &Pod, sets| {
        owner_or_selecting(pod, sets, |set: &DaemonSet, _| {
            set.spec
                .as_ref()
                .and_then(|spec| selector_of(&spec.selector).ok())
                .is_some_and(|selector| selector.matches(pod.labels()))
        })
    }));
    runtime::run(controller, context, move |set, context| reconcile(set, context, pods.clone())).await;
}

async fn reconcile(set: Arc<DaemonSet>, context: Arc<Context>, cache: Store<Pod>) -> RequeueResult {
    let Some(spec) = &set.spec else {
        return Ok(None);
    };
    let selector = selector_of(&spec.selector)?;
    let pods = children_of(&context.client, &*set, &selector, &cache).await?;
    let plan = plan(&set, &pods, &context.options.nodes, context.options.clock.now());

    let namespace = set.namespace().unwrap_or_default();
    let api: Api<Pod> = Api::namespaced(context.client.clone(), &namespace);
    let created = pods::create(&context.events, &api, &*set, &plan.create).await;
    let deleted = pods::delete(&context.events, &api, &*set, &plan.delete).await;

    if set.status.as_ref() != Some(&plan.status) {
        let mut counted = (*set).clone();
        counted.status = Some(plan.status);
        let sets: Api<DaemonSet> = Api::namespaced(context.client.clone(), &namespace);
        let recorded = sets.replace_status(&set.name_any(), &PostParams::default(), &counted).await;
        ignore_not_found(recorded).trying_to("record a daemon set's status")?;
    }
    created.and(deleted)?;
    Ok(plan.requeue_after)
}

#[derive(Debug, Default)]
struct Plan {
    create: Vec<Pod>,
    delete: Vec<PendingDeletion>,
    status: DaemonSetStatus,
    requeue_after: Option<Duration>,
}

fn plan(set: &DaemonSet, pods: &[Pod], nodes: &[String], now: Timestamp) -> Plan {
    let Some(spec) = &set.spec else {
        return Plan::default();
    };
    let min_ready = spec.min_ready_seconds.unwrap_or(0);
    let hash = template::hash(&spec.template, None);
    let pod_spec = spec.template.spec.clone().unwrap_or_default();
    let chosen: Vec<&String> = nodes.iter().filter(|node| placement::node_matches(&pod_spec, node)).collect();

    let mut on: BTreeMap<&str, Vec<&Pod>> = BTreeMap::new();
    for pod in pods {
        on.entry(node_of(pod)).or_default().push(pod);
    }
    let mut plan = Plan { status: count(set, &chosen, &on, &hash, now), ..Plan::default() };
    plan.requeue_after = pods
        .iter()
        .filter(|pod| pods::is_ready(pod) && !pods::is_available(pod, min_ready, now))
        .filter_map(|pod| pods::available_in(pod, min_ready, now))
        .min();
    if set.metadata.deletion_timestamp.is_some() {
        return plan;
    }

    let slack = rolling_update_limits(set, chosen.len());
    let available = |pod: &Pod| pods::is_available(pod, min_ready, now);
    let serves = |node: &&&String| pods_on(&on, node).any(|pod| pods::is_active(pod) && available(pod));
    let mut may_stop = slack.max_unavailable - (chosen.len() - chosen.iter().filter(serves).count()) as i64;
    let mut may_add =
        slack.max_surge - chosen.iter().filter(|node| pods_on(&on, node).count() > 1).count() as i64;
    for node in &chosen {
        let (finished, alive): (Vec<&Pod>, Vec<&Pod>) =
            pods_on(&on, node).partition(|pod| pods::is_finished(pod));
        plan.delete
            .extend(finished.into_iter().filter(|pod| pods::is_not_deleting(pod)).map(PendingDeletion::of));
        if alive.is_empty() {
            plan.create.push(pod_for(set, node, &hash));
            continue;
        }
        let (mut new, mut old): (Vec<&Pod>, Vec<&Pod>) = alive
            .into_iter()
            .filter(|pod| pods::is_active(pod))
            .partition(|pod| has_revision_hash(pod, &hash));
        for revision in [&mut new, &mut old] {
            revision.sort_by_cached_key(|pod| (pod.creation_timestamp().map(|time| time.0), pod.name_any()));
            plan.delete.extend(revision.drain(1.min(revision.len())..).map(PendingDeletion::of));
        }
        let Some(old) = old.first().filter(|_| slack.is_rolling_update) else {
            continue;
        };
        match new.first() {
            Some(new) if available(new) || !available(old) => plan.delete.push(PendingDeletion::of(old)),
            Some(_) => {}
            None if slack.max_surge > 0 && (may_add > 0 || !available(old)) => {
                may_add -= 1;
                plan.create.push(pod_for(set, node, &hash));
            }
            None if slack.max_surge > 0 => {}
            None if !available(old) => plan.delete.push(PendingDeletion::of(old)),
            None if may_stop > 0 => {
                may_stop -= 1;
                plan.delete.push(PendingDeletion::of(old));
            }
            None => {}
        }
    }
    for (node, pods) in &on {
        if !chosen.iter().any(|chosen| chosen.as_str() == *node) {
            plan.delete.extend(
                pods.iter().filter(|pod| pods::is_not_deleting(pod)).map(|pod| PendingDeletion::of(pod)),
            );
        }
    }
    plan
}

fn pods_on<'a>(on: &'a BTreeMap<&str, Vec<&'a Pod>>, node: &str) -> impl Iterator<Item = &'a Pod> + use<'a> {
    on.get(node).into_iter().flatten().copied()
}

fn node_of(pod: &Pod) -> &str {
    pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()).unwrap_or_default()
}

fn has_revision_hash(pod: &Pod, hash: &str) -> bool {
    pod.labels().get(REVISION_HASH).map(String::as_str) == Some(hash)
}

fn pod_for(set: &DaemonSet, node: &str, hash: &str) -> Pod {
    let template = set.spec.as_ref().map(|spec| spec.template.clone()).unwrap_or_default();
    let mut pod = pods::from_template(&template, &set.name_any(), controller_reference(set));
    pod.labels_mut().insert(REVISION_HASH.to_owned(), hash.to_owned());
    pod.spec.get_or_insert_default().node_name = Some(node.to_owned());
    pod
}

struct RollingUpdateLimits {
    /// False for `OnDelete`: a pod is replaced only after its deletion.
    is_rolling_update: bool,
    max_unavailable: i64,
    max_surge: i64,
}

fn rolling_update_limits(set: &DaemonSet, nodes: usize) -> RollingUpdateLimits {
    let strategy = set.spec.as_ref().and_then(|spec| spec.update_strategy.clone()).unwrap_or_default();
    let rolling: RollingUpdateDaemonSet = strategy.rolling_update.unwrap_or_default();
    let nodes = i32::try_from(nodes).unwrap_or(i32::MAX);
    let part = |part: Option<IntOrString>, default| {
        resolve_int_or_percent(&part.unwrap_or(default), nodes, Rounding::Up)
    };
    RollingUpdateLimits {
        is_rolling_update: strategy.type_.as_deref() != Some("OnDelete"),
        max_unavailable: part(rolling.max_unavailable, IntOrString::Int(1)).into(),
        max_surge: part(rolling.max_surge, IntOrString::Int(0)).into(),
    }
}

fn count(
    set: &DaemonSet,
    chosen: &[&String],
    on: &BTreeMap<&str, Vec<&Pod>>,
    hash: &str,
    now: Timestamp,
) -> DaemonSetStatus {
    let min_ready = set.spec.as_ref().and_then(|spec| spec.min_ready_seconds).unwrap_or(0);
    let nodes_with = |what: &dyn Fn(&Pod) -> bool| {
        let with = chosen
            .iter()
            .filter(|node| pods_on(on, node).any(|pod| pods::is_active(pod) && what(pod)))
            .count();
        i32::try_from(with).unwrap_or(i32::MAX)
    };
    let nonzero = |number: i32| (number > 0).then_some(number);
    let desired = i32::try_from(chosen.len()).unwrap_or(i32::MAX);
    let available = nodes_with(&|pod| pods::is_available(pod, min_ready, now));
    let strays = on.keys().filter(|node| !chosen.iter().any(|chosen| chosen.as_str() == **node)).count();
    DaemonSetStatus {
        desired_number_scheduled: desired,
        current_number_scheduled: nodes_with(&|_| true),
        number_misscheduled: i32::try_from(strays).unwrap_or(i32::MAX),
        number_ready: nodes_with(&pods::is_ready),
        number_available: nonzero(available),
        number_unavailable: nonzero(desired - available),
        updated_number_scheduled: nonzero(nodes_with(&|pod| has_revision_hash(pod, hash))),
        observed_generation: set.metadata.generation,
        collision_count: None,
        conditions: set.status.as_ref().and_then(|status| status.conditions.clone()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const NOON: &str = "2026-01-01T12:00:00Z";

    fn set(image: &str, more: Value) -> DaemonSet {
        let mut object = json!({
            "metadata": {"name": "agent", "uid": "d", "generation": 2},
            "spec": {
                "selector": {"matchLabels": {"app": "agent"}},
                "template": {"metadata": {"labels": {"app": "agent"}}, "spec": {"containers": [{"name": "c", "image": image}]}},
            },
        });
        json_patch::merge(&mut object, &more);
        serde_json::from_value(object).unwrap()
    }

    /// The pods that the plan creates, running and ready.
    fn running_pods(set: &DaemonSet, nodes: &[String]) -> Vec<Pod> {
        let mut pods = plan(set, &[], nodes, NOON.parse().unwrap()).create;
        for pod in &mut pods {
            pod.metadata.name = Some(format!("{}-{}", node_of(pod), pod.labels()[REVISION_HASH]));
            pod.status = serde_json::from_value(json!({"phase": "Running", "conditions": [
                {"type": "Ready", "status": "True", "lastTransitionTime": NOON}
            ]}))
            .unwrap();
        }
        pods
    }

    fn nodes() -> Vec<String> {
        ["one", "two", "three"].map(str::to_owned).into()
    }

    fn plan_on_nodes(set: &DaemonSet, pods: &[Pod]) -> Plan {
        plan(set, pods, &nodes(), NOON.parse().unwrap())
    }

    #[test]
    fn every_node_gets_one_pod() {
        let set = set("app:v1", json!({}));
        let pods = running_pods(&set, &nodes());
        assert_eq!(pods.iter().map(node_of).collect::<Vec<_>>(), ["one", "two", "three"]);
        let plan = plan_on_nodes(&set, &pods);
        assert!(plan.create.is_empty() && plan.delete.is_empty());
        assert_eq!((plan.status.number_ready, plan.status.updated_number_scheduled), (3, Some(3)));
    }

    #[test]
    fn a_node_selector_that_matches_no_node_removes_every_pod() {
        let before = set("app:v1", json!({}));
        let after = set(
            "app:v1",
            json!({"spec": {"template": {"spec": {"nodeSelector": {"scale-to-zero": "true"}}}}}),
        );
        let plan = plan_on_nodes(&after, &running_pods(&before, &nodes()));
        assert_eq!((plan.create.len(), plan.delete.len(), plan.status.desired_number_scheduled), (0, 3, 0));
    }

    #[test]
    fn a_new_template_replaces_one_available_pod_at_a_time() {
        let mut pods = running_pods(&set("app:v1", json!({})), &nodes());
        let after = set("app:v2", json!({}));
        assert_eq!(plan_on_nodes(&after, &pods).delete.len(), 1);
        pods.remove(0);
        let plan = plan_on_nodes(&after, &pods);
        assert_eq!((plan.create.len(), plan.delete.len()), (1, 0));
    }

    #[test]
    fn unavailable_pods_are_replaced_at_once() {
        let mut pods = running_pods(&set("app:v1", json!({})), &nodes());
        for pod in &mut pods {
            pod.status.as_mut().unwrap().conditions = None;
        }
        assert_eq!(plan_on_nodes(&set("app:v2", json!({})), &pods).delete.len(), 3);
    }

    #[test]
    fn with_surge_the_new_pod_comes_before_the_old_goes() {
        let surge =
            json!({"spec": {"updateStrategy": {"rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}}});
        let mut pods = running_pods(&set("app:v1", surge.clone()), &nodes());
        let after = set("app:v2", surge);
        let plan = plan_on_nodes(&after, &pods);
        assert_eq!((plan.create.len(), plan.delete.len()), (1, 0));
        pods.push(running_pods(&after, &nodes()).remove(0));
        assert_eq!(
            plan_on_nodes(&after, &pods).delete.iter().map(|pod| pod.name.as_str()).collect::<Vec<_>>(),
            [pods[0].name_any()]
        );
    }

    #[test]
    fn an_on_delete_set_replaces_no_pod_by_itself() {
        let manual = json!({"spec": {"updateStrategy": {"type": "OnDelete"}}});
        let pods = running_pods(&set("app:v1", manual.clone()), &nodes());
        let plan = plan_on_nodes(&set("app:v2", manual), &pods);
        assert!(plan.create.is_empty() && plan.delete.is_empty());
    }
}
