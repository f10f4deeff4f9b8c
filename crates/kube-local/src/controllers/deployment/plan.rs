//! One sync of a Deployment: from the observed objects to the writes. Pure.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::apps::v1::{Deployment, DeploymentStatus, ReplicaSet};

use super::progress::{self, SyncKind};
use super::{revision, rollout};

pub struct PlanInputs<'a> {
    pub deployment: &'a Deployment,
    /// Its ReplicaSets.
    pub sets: &'a [ReplicaSet],
    /// Only read for `Recreate`.
    pub old_pods_run: bool,
    pub now: Timestamp,
}

pub struct Plan {
    pub create: Option<ReplicaSet>,
    /// Each with its previous size.
    pub update: Vec<(ReplicaSet, i32)>,
    pub delete: Vec<ReplicaSet>,
    /// The value of the Deployment's revision annotation.
    pub revision: Option<String>,
    pub status: DeploymentStatus,
    /// When to reconcile again without a change.
    pub requeue_after: Option<Duration>,
}

pub fn plan(inputs: PlanInputs<'_>) -> Plan {
    let deployment = inputs.deployment;
    let mut sets = inputs.sets.to_vec();
    let mut current = revision::current(deployment, inputs.sets)
        .and_then(|current| inputs.sets.iter().position(|set| set.metadata.uid == current.metadata.uid));
    let going = deployment.metadata.deletion_timestamp.is_some();
    let paused = deployment.spec.as_ref().and_then(|spec| spec.paused).unwrap_or(false);

    let mut pass = SyncKind::StatusOnly;
    if !going {
        if let Some(current) = current {
            sync_current_set(deployment, &mut sets, current);
        }
        if paused || rollout::is_being_scaled(deployment, &sets) {
            rollout::scale(deployment, &mut sets, current);
        } else {
            pass = roll_out(&inputs, &mut sets, &mut current);
        }
    }

    let status = progress::status(deployment, &sets, current.map(|current| &sets[current]), pass, inputs.now);
    let delete = if !going && (paused || progress::is_complete(deployment, &status)) {
        let old = inputs.sets.iter().enumerate().filter(|(index, _)| Some(*index) != current);
        revision::beyond_history_limit(deployment, old.map(|(_, set)| set))
    } else {
        Vec::new()
    };
    Plan {
        create: sets.get(inputs.sets.len()).cloned(),
        update: sets
            .iter()
            .zip(inputs.sets)
            .filter(|(planned, observed)| planned != observed)
            .map(|(planned, observed)| (planned.clone(), rollout::size(observed)))
            .collect(),
        delete,
        revision: current
            .map(|current| revision::number(&sets[current]))
            .filter(|number| *number > 0)
            .map(|number| number.to_string()),
        requeue_after: progress::time_to_deadline(deployment, &status, inputs.now)
            .filter(|_| pass != SyncKind::StatusOnly),
        status,
    }
}

fn roll_out(inputs: &PlanInputs<'_>, sets: &mut Vec<ReplicaSet>, current: &mut Option<usize>) -> SyncKind {
    let deployment = inputs.deployment;
    if rollout::is_recreate(deployment)
        && (rollout::scale_old_to_zero(deployment, sets, *current) || inputs.old_pods_run)
    {
        return SyncKind::Rolling;
    }
    let (index, pass) = match *current {
        Some(index) => (index, SyncKind::Rolling),
        None => {
            let mut set = revision::new_set(deployment);
            rollout::resize(&mut set, deployment, 0);
            sets.push(set);
            let index = sets.len() - 1;
            sync_current_set(deployment, sets, index);
            (*current.insert(index), SyncKind::CreatingSet)
        }
    };
    if !rollout::scale_current(deployment, sets, index) {
        rollout::scale_down_old(deployment, sets, index);
    }
    pass
}

/// Updates the current set from the Deployment: revision, annotations and `minReadySeconds`.
fn sync_current_set(deployment: &Deployment, sets: &mut [ReplicaSet], current: usize) {
    let others = sets.iter().enumerate().filter(|(index, _)| *index != current);
    let latest = others.map(|(_, set)| revision::number(set)).max().unwrap_or(0) + 1;
    let set = &mut sets[current];
    revision::make_latest(set, deployment, latest);
    let min_ready = deployment.spec.as_ref().and_then(|spec| spec.min_ready_seconds);
    let spec = set.spec.get_or_insert_default();
    if spec.min_ready_seconds.unwrap_or(0) != min_ready.unwrap_or(0) {
        spec.min_ready_seconds = min_ready;
    }
}

#[cfg(test)]
mod tests {
    use kube::ResourceExt;
    use serde_json::{Value, json};

    use super::*;
    use crate::controllers::template::POD_TEMPLATE_HASH;

    fn deployment(image: &str, more: Value) -> Deployment {
        let mut object = json!({
            "metadata": {"name": "web", "namespace": "shop", "uid": "d", "generation": 1},
            "spec": {
                "replicas": 2,
                "selector": {"matchLabels": {"app": "web"}},
                "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}},
                "template": {"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [{"name": "c", "image": image}]}},
            },
        });
        json_patch::merge(&mut object, &more);
        serde_json::from_value(object).unwrap()
    }

    /// Stands in for the server and the ReplicaSet controller: every write
    /// succeeds, every pod becomes ready.
    struct World {
        deployment: Deployment,
        sets: Vec<ReplicaSet>,
        now: Timestamp,
    }

    impl World {
        fn new(deployment: Deployment) -> World {
            World { deployment, sets: Vec::new(), now: "2026-01-01T12:00:00Z".parse().unwrap() }
        }

        fn plan(&self) -> Plan {
            plan(PlanInputs {
                deployment: &self.deployment,
                sets: &self.sets,
                old_pods_run: false,
                now: self.now,
            })
        }

        fn step(&mut self, pods_come_up: bool) -> Plan {
            let plan = self.plan();
            if let Some(mut set) = plan.create.clone() {
                set.metadata.uid = set.metadata.name.clone();
                self.sets.push(set);
            }
            for (update, _) in &plan.update {
                let set = self.sets.iter_mut().find(|set| set.name_any() == update.name_any()).unwrap();
                *set = update.clone();
            }
            self.sets.retain(|set| !plan.delete.iter().any(|deleted| deleted.name_any() == set.name_any()));
            for set in &mut self.sets {
                let size = rollout::size(set);
                let status = set.status.get_or_insert_default();
                status.replicas = size;
                let up = if pods_come_up { size } else { size.min(status.available_replicas.unwrap_or(0)) };
                (status.ready_replicas, status.available_replicas) = (Some(up), Some(up));
            }
            self.deployment.status = Some(plan.status.clone());
            if let Some(revision) = &plan.revision {
                self.deployment.annotations_mut().insert(revision::REVISION.to_owned(), revision.clone());
            }
            plan
        }

        fn settle(&mut self) {
            for _ in 0..30 {
                self.step(true);
            }
        }

        fn sizes(&self) -> Vec<i32> {
            self.sets.iter().map(rollout::size).collect()
        }

        fn progressing(&self) -> (String, String) {
            let conditions = self.deployment.status.clone().unwrap().conditions.unwrap();
            let condition =
                conditions.into_iter().find(|condition| condition.type_ == "Progressing").unwrap();
            (condition.status, condition.reason.unwrap())
        }

        fn set_image(&mut self, image: &str) {
            let template = &mut self.deployment.spec.as_mut().unwrap().template;
            template.spec.as_mut().unwrap().containers[0].image = Some(image.to_owned());
            *self.deployment.metadata.generation.as_mut().unwrap() += 1;
        }
    }

    #[test]
    fn the_first_sync_creates_the_set_at_full_size() {
        let mut world = World::new(deployment("app:v1", json!({})));
        let created = world.step(false).create.unwrap();
        let hash = &created.labels()[POD_TEMPLATE_HASH];
        assert_eq!(created.name_any(), format!("web-{hash}"));
        assert_eq!(rollout::size(&created), 2);
        let spec = created.spec.clone().unwrap();
        assert_eq!(spec.selector.match_labels.unwrap().get(POD_TEMPLATE_HASH), Some(hash));
        assert_eq!(world.progressing(), ("True".into(), "NewReplicaSetCreated".into()));
        assert_eq!(world.plan().revision.as_deref(), Some("1"));
    }

    #[test]
    fn a_rolling_update_ends_with_the_new_set_only_and_a_settled_plan_writes_nothing() {
        let mut world = World::new(deployment("app:v1", json!({})));
        world.settle();
        assert_eq!(world.progressing(), ("True".into(), "NewReplicaSetAvailable".into()));
        world.set_image("app:v2");
        for _ in 0..30 {
            world.step(true);
            let available: i32 = world.sets.iter().map(rollout::available).sum();
            let all: i32 = world.sizes().iter().sum();
            assert!(available >= 2 && all <= 3, "{:?}", world.sizes());
        }
        assert_eq!(world.sizes(), [0, 2]);
        let plan = world.plan();
        assert!(plan.create.is_none() && plan.update.is_empty() && plan.delete.is_empty());
        assert_eq!(Some(plan.status), world.deployment.status);
        assert_eq!((plan.revision.as_deref(), plan.requeue_after), (Some("2"), None));
    }

    #[test]
    fn going_back_to_an_old_template_reuses_its_set_as_the_newest_revision() {
        let mut world = World::new(deployment("app:v1", json!({})));
        world.settle();
        world.set_image("app:v2");
        world.settle();
        world.set_image("app:v1");
        world.settle();
        assert_eq!(world.sizes(), [2, 0]);
        assert_eq!(world.sets[0].annotations()[revision::REVISION], "3");
        assert_eq!(world.sets[0].annotations()["deployment.kubernetes.io/revision-history"], "1");
    }

    #[test]
    fn recreate_starts_the_new_only_after_the_last_old_pod() {
        let mut world = World::new(deployment(
            "app:v1",
            json!({"spec": {"strategy": {"type": "Recreate", "rollingUpdate": null}}}),
        ));
        world.settle();
        world.set_image("app:v2");
        assert!(world.step(true).create.is_none());
        assert_eq!(world.sizes(), [0]);
        let seen = PlanInputs {
            deployment: &world.deployment,
            sets: &world.sets,
            old_pods_run: true,
            now: world.now,
        };
        assert!(plan(seen).create.is_none());
        world.settle();
        assert_eq!(world.sizes(), [0, 2]);
    }

    #[test]
    fn a_paused_deployment_scales_but_does_not_roll() {
        let mut world = World::new(deployment("app:v1", json!({})));
        world.settle();
        world.set_image("app:v2");
        let spec = world.deployment.spec.as_mut().unwrap();
        (spec.paused, spec.replicas) = (Some(true), Some(4));
        world.settle();
        assert_eq!(world.sizes(), [4]);
        assert_eq!(world.progressing(), ("Unknown".into(), "DeploymentPaused".into()));
    }

    #[test]
    fn a_rollout_without_progress_exceeds_its_deadline() {
        let mut world = World::new(deployment("app:v1", json!({"spec": {"progressDeadlineSeconds": 60}})));
        world.settle();
        world.set_image("app:v2");
        for _ in 0..5 {
            world.step(false);
        }
        let wake = world.plan().requeue_after.unwrap();
        assert!(wake > Duration::from_secs(59) && wake < Duration::from_secs(62), "{wake:?}");
        world.now += wake;
        world.step(false);
        assert_eq!(world.progressing(), ("False".into(), "ProgressDeadlineExceeded".into()));
        assert_eq!(world.plan().requeue_after, None);
        let available: i32 = world.sets.iter().map(rollout::available).sum();
        assert_eq!(available, 2);
    }

    #[test]
    fn revisions_beyond_the_history_limit_are_deleted() {
        let mut world = World::new(deployment("app:v1", json!({"spec": {"revisionHistoryLimit": 1}})));
        for version in 1..=4 {
            world.set_image(&format!("app:v{version}"));
            world.settle();
        }
        let revisions: Vec<_> = world.sets.iter().map(revision::number).collect();
        assert_eq!(revisions, [3, 4]);
    }

    #[test]
    fn a_deployment_being_deleted_writes_only_its_status() {
        let mut world = World::new(deployment(
            "app:v1",
            json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}),
        ));
        let plan = world.step(true);
        assert!(plan.create.is_none() && plan.update.is_empty() && plan.delete.is_empty());
    }
}
