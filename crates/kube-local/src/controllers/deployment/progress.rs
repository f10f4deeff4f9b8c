//! A Deployment's status: counts, `Available`, and `Progressing` with the reasons
//! that `kubectl rollout status` reads.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::apps::v1::{Deployment, DeploymentCondition, DeploymentStatus, ReplicaSet};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt;

use super::rollout;

const AVAILABLE: &str = "Available";
const PROGRESSING: &str = "Progressing";
const REPLICA_FAILURE: &str = "ReplicaFailure";

const SET_CREATED: &str = "NewReplicaSetCreated";
const SET_FOUND: &str = "FoundNewReplicaSet";
const SET_UPDATED: &str = "ReplicaSetUpdated";
const SET_AVAILABLE: &str = "NewReplicaSetAvailable";
const CREATE_FAILED: &str = "ReplicaSetCreateError";
const TIMED_OUT: &str = "ProgressDeadlineExceeded";
const PAUSED: &str = "DeploymentPaused";
const RESUMED: &str = "DeploymentResumed";

/// The kind of sync that a status belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SyncKind {
    /// Only counts pods: paused, being scaled, or being deleted.
    StatusOnly,
    Rolling,
    CreatingSet,
}

pub fn status(
    deployment: &Deployment,
    sets: &[ReplicaSet],
    current: Option<&ReplicaSet>,
    pass: SyncKind,
    now: Timestamp,
) -> DeploymentStatus {
    let before = deployment.status.clone().unwrap_or_default();
    let mut status = counts(deployment, sets, current, &before);
    let mut conditions = Conditions { list: before.conditions.clone().unwrap_or_default(), now: Time(now) };

    let least = rollout::desired_replicas(deployment) - rollout::rollout_limits(deployment).max_unavailable;
    if status.available_replicas.unwrap_or(0) >= least {
        conditions.set(
            AVAILABLE,
            "True",
            "MinimumReplicasAvailable",
            "Deployment has minimum availability.".into(),
        );
    } else {
        let message = "Deployment does not have minimum availability.".into();
        conditions.set(AVAILABLE, "False", "MinimumReplicasUnavailable", message);
    }
    match deadline(deployment) {
        None => conditions.remove(PROGRESSING),
        Some(_) => progress(deployment, current, pass, &before, &status, &mut conditions),
    }
    conditions.remove(REPLICA_FAILURE);
    let failure = current.and_then(|set| set.status.as_ref()?.conditions.as_ref()?.iter().find(is_failure));
    if let Some(failure) = failure {
        let (reason, message) = (failure.reason.clone().unwrap_or_default(), failure.message.clone());
        conditions.set(REPLICA_FAILURE, &failure.status, &reason, message.unwrap_or_default());
        if let Some(condition) = conditions.list.last_mut() {
            condition.last_transition_time = failure.last_transition_time.clone();
            condition.last_update_time = failure.last_transition_time.clone();
        }
    }
    status.conditions = Some(conditions.list);
    status
}

/// Whether all desired replicas are of the current revision and available.
pub fn is_complete(deployment: &Deployment, status: &DeploymentStatus) -> bool {
    let desired = rollout::desired_replicas(deployment);
    [status.updated_replicas, status.replicas, status.available_replicas]
        .iter()
        .all(|count| count.unwrap_or(0) == desired)
        && status.observed_generation >= deployment.metadata.generation
}

/// The time until a rollout without progress exceeds its deadline.
pub fn time_to_deadline(
    deployment: &Deployment,
    status: &DeploymentStatus,
    now: Timestamp,
) -> Option<Duration> {
    let condition = find(status.conditions.as_deref().unwrap_or_default(), PROGRESSING)?;
    if is_complete(deployment, status)
        || matches!(condition.reason.as_deref(), Some(SET_AVAILABLE | TIMED_OUT))
    {
        return None;
    }
    let remaining = deadline_at(deployment, condition)?.duration_since(now);
    Some(Duration::try_from(remaining).unwrap_or(Duration::ZERO) + Duration::from_millis(10))
}

pub fn set_create_failed(status: &mut DeploymentStatus, set: &str, why: &str, now: Time) {
    let mut conditions = Conditions { list: status.conditions.take().unwrap_or_default(), now };
    conditions.set(
        PROGRESSING,
        "False",
        CREATE_FAILED,
        format!("Failed to create new replica set {set:?}: {why}"),
    );
    status.conditions = Some(conditions.list);
}

fn counts(
    deployment: &Deployment,
    sets: &[ReplicaSet],
    current: Option<&ReplicaSet>,
    before: &DeploymentStatus,
) -> DeploymentStatus {
    let of = |set: &ReplicaSet| set.status.clone().unwrap_or_default();
    let some = |count: i32| (count > 0).then_some(count);
    let available: i32 = sets.iter().map(rollout::available).sum();
    let sizes: i32 = sets.iter().map(rollout::size).sum();
    DeploymentStatus {
        observed_generation: deployment.metadata.generation,
        replicas: some(sets.iter().map(|set| of(set).replicas).sum()),
        updated_replicas: some(current.map_or(0, |set| of(set).replicas)),
        ready_replicas: some(sets.iter().map(|set| of(set).ready_replicas.unwrap_or(0)).sum()),
        available_replicas: some(available),
        unavailable_replicas: some(sizes - available),
        terminating_replicas: None,
        collision_count: before.collision_count,
        conditions: None,
    }
}

fn progress(
    deployment: &Deployment,
    current: Option<&ReplicaSet>,
    pass: SyncKind,
    before: &DeploymentStatus,
    status: &DeploymentStatus,
    conditions: &mut Conditions,
) {
    let name = current.map(ResourceExt::name_any).unwrap_or_default();
    let paused = deployment.spec.as_ref().and_then(|spec| spec.paused).unwrap_or(false);
    match (paused, conditions.reason(PROGRESSING)) {
        (_, Some(TIMED_OUT)) => {}
        (true, _) => conditions.set(PROGRESSING, "Unknown", PAUSED, "Deployment is paused".into()),
        (false, Some(PAUSED)) => {
            conditions.set(PROGRESSING, "Unknown", RESUMED, "Deployment is resumed".into())
        }
        (false, _) => {}
    }
    match (pass, conditions.reason(PROGRESSING)) {
        (SyncKind::StatusOnly, _) => return,
        (SyncKind::CreatingSet, _) => {
            conditions.set(PROGRESSING, "True", SET_CREATED, format!("Created new replica set {name:?}"));
        }
        (SyncKind::Rolling, None) if current.is_some() => {
            conditions.set(PROGRESSING, "True", SET_FOUND, format!("Found new replica set {name:?}"));
        }
        (SyncKind::Rolling, _) => {}
    }
    let was_complete =
        status.replicas == status.updated_replicas && conditions.reason(PROGRESSING) == Some(SET_AVAILABLE);
    if was_complete {
        return;
    }
    if is_complete(deployment, status) {
        let message = format!("ReplicaSet {name:?} has successfully progressed.");
        conditions.set(PROGRESSING, "True", SET_AVAILABLE, message);
    } else if has_progressed(before, status) {
        conditions.renew(PROGRESSING, "True", SET_UPDATED, format!("ReplicaSet {name:?} is progressing."));
    } else if conditions.is_overdue(deployment) {
        conditions.set(
            PROGRESSING,
            "False",
            TIMED_OUT,
            format!("ReplicaSet {name:?} has timed out progressing."),
        );
    }
}

fn has_progressed(before: &DeploymentStatus, after: &DeploymentStatus) -> bool {
    let updated = |status: &DeploymentStatus| status.updated_replicas.unwrap_or(0);
    let old = |status: &DeploymentStatus| status.replicas.unwrap_or(0) - updated(status);
    updated(after) > updated(before)
        || old(after) < old(before)
        || after.ready_replicas > before.ready_replicas
        || after.available_replicas > before.available_replicas
}

/// `None` if there is no deadline.
fn deadline(deployment: &Deployment) -> Option<SignedDuration> {
    let seconds = deployment.spec.as_ref().and_then(|spec| spec.progress_deadline_seconds).unwrap_or(600);
    (seconds != i32::MAX).then(|| SignedDuration::from_secs(seconds.into()))
}

fn deadline_at(deployment: &Deployment, condition: &DeploymentCondition) -> Option<Timestamp> {
    condition.last_update_time.as_ref()?.0.saturating_add(deadline(deployment)?).ok()
}

fn is_failure(condition: &&k8s_openapi::api::apps::v1::ReplicaSetCondition) -> bool {
    condition.type_ == REPLICA_FAILURE
}

fn find<'a>(conditions: &'a [DeploymentCondition], type_: &str) -> Option<&'a DeploymentCondition> {
    conditions.iter().find(|condition| condition.type_ == type_)
}

struct Conditions {
    list: Vec<DeploymentCondition>,
    now: Time,
}

impl Conditions {
    fn reason(&self, type_: &str) -> Option<&str> {
        find(&self.list, type_)?.reason.as_deref()
    }

    fn remove(&mut self, type_: &str) {
        self.list.retain(|condition| condition.type_ != type_);
    }

    /// Does nothing if status and reason are unchanged.
    fn set(&mut self, type_: &str, status: &str, reason: &str, message: String) {
        let is_in_sync =
            |known: &DeploymentCondition| known.status == status && known.reason.as_deref() == Some(reason);
        if !find(&self.list, type_).is_some_and(is_in_sync) {
            self.renew(type_, status, reason, message);
        }
    }

    /// Sets the condition with a new update time.
    fn renew(&mut self, type_: &str, status: &str, reason: &str, message: String) {
        let known = find(&self.list, type_).filter(|known| known.status == status);
        let since = known.and_then(|known| known.last_transition_time.clone()).unwrap_or(self.now.clone());
        self.remove(type_);
        self.list.push(DeploymentCondition {
            type_: type_.to_owned(),
            status: status.to_owned(),
            reason: Some(reason.to_owned()),
            message: Some(message),
            last_transition_time: Some(since),
            last_update_time: Some(self.now.clone()),
        });
    }

    fn is_overdue(&self, deployment: &Deployment) -> bool {
        match find(&self.list, PROGRESSING) {
            Some(condition) if condition.reason.as_deref() == Some(SET_AVAILABLE) => false,
            Some(condition) => deadline_at(deployment, condition).is_some_and(|at| at < self.now.0),
            None => false,
        }
    }
}
