//! A Deployment's revisions: the current ReplicaSet, new ones, and old ones
//! beyond the history limit.

use std::collections::BTreeMap;

use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet, ReplicaSetSpec};
use k8s_openapi::api::core::v1::PodTemplateSpec;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta};
use kube::ResourceExt;

use crate::controllers::runtime::controller_reference;
use crate::controllers::template::{self, POD_TEMPLATE_HASH};

pub const REVISION: &str = "deployment.kubernetes.io/revision";
const REVISION_HISTORY: &str = "deployment.kubernetes.io/revision-history";
pub const DESIRED_REPLICAS: &str = "deployment.kubernetes.io/desired-replicas";
pub const MAX_REPLICAS: &str = "deployment.kubernetes.io/max-replicas";
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// The set that runs the Deployment's template, if there is one; the oldest if
/// there are several.
pub fn current<'a>(deployment: &Deployment, sets: &'a [ReplicaSet]) -> Option<&'a ReplicaSet> {
    let wanted = &deployment.spec.as_ref()?.template;
    sets.iter()
        .filter(|set| template_of(set).is_some_and(|template| template::same_but_for_hash(template, wanted)))
        .min_by_key(|set| age(set))
}

fn template_of(set: &ReplicaSet) -> Option<&PodTemplateSpec> {
    set.spec.as_ref()?.template.as_ref()
}

/// Sort key: oldest first.
pub fn age(set: &ReplicaSet) -> impl Ord + use<> {
    (set.creation_timestamp().map(|time| time.0), set.name_any())
}

pub fn number(set: &ReplicaSet) -> i64 {
    set.annotations().get(REVISION).and_then(|revision| revision.parse().ok()).unwrap_or(0)
}

/// A new set for the Deployment's template, without replicas.
pub fn new_set(deployment: &Deployment) -> ReplicaSet {
    let spec = deployment.spec.clone().unwrap_or_default();
    let collisions = deployment.status.as_ref().and_then(|status| status.collision_count);
    let hash = template::hash(&spec.template, collisions);
    let label = |labels: Option<BTreeMap<String, String>>| {
        let mut labels = labels.unwrap_or_default();
        labels.insert(POD_TEMPLATE_HASH.to_owned(), hash.clone());
        Some(labels)
    };
    let mut template = spec.template;
    let meta = template.metadata.get_or_insert_default();
    meta.labels = label(meta.labels.take());
    ReplicaSet {
        metadata: ObjectMeta {
            name: Some(format!("{}-{hash}", deployment.name_any())),
            namespace: deployment.namespace(),
            labels: meta.labels.clone(),
            owner_references: Some(vec![controller_reference(deployment)]),
            ..ObjectMeta::default()
        },
        spec: Some(ReplicaSetSpec {
            replicas: Some(0),
            min_ready_seconds: spec.min_ready_seconds,
            selector: LabelSelector { match_labels: label(spec.selector.match_labels), ..spec.selector },
            template: Some(template),
        }),
        status: None,
    }
}

/// Makes `set` the latest revision and copies the Deployment's annotations to it.
pub fn make_latest(set: &mut ReplicaSet, deployment: &Deployment, latest: i64) {
    let had = number(set);
    let annotations = set.annotations_mut();
    for (key, value) in deployment.annotations() {
        let private = [LAST_APPLIED, REVISION, REVISION_HISTORY, DESIRED_REPLICAS, MAX_REPLICAS];
        if !private.contains(&key.as_str()) {
            annotations.insert(key.clone(), value.clone());
        }
    }
    if had < latest {
        annotations.insert(REVISION.to_owned(), latest.to_string());
        if had > 0 {
            let history = annotations.entry(REVISION_HISTORY.to_owned()).or_default();
            if !history.is_empty() {
                history.push(',');
            }
            history.push_str(&had.to_string());
        }
    }
}

/// The empty old sets beyond the Deployment's history limit.
pub fn beyond_history_limit<'a>(
    deployment: &Deployment,
    old: impl Iterator<Item = &'a ReplicaSet>,
) -> Vec<ReplicaSet> {
    let limit = deployment.spec.as_ref().and_then(|spec| spec.revision_history_limit).unwrap_or(10);
    let mut old: Vec<_> = old.filter(|set| set.metadata.deletion_timestamp.is_none()).collect();
    let beyond = old.len().saturating_sub(usize::try_from(limit).unwrap_or(0));
    old.sort_by_key(|set| (number(set), age(set)));
    old[..beyond].iter().filter(|set| is_empty(set)).map(|set| (*set).clone()).collect()
}

fn is_empty(set: &ReplicaSet) -> bool {
    let wanted = set.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(1);
    let status = set.status.clone().unwrap_or_default();
    wanted == 0 && status.replicas == 0 && status.observed_generation >= set.metadata.generation
}
