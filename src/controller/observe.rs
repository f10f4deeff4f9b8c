//! Observing: what there is, from caches. The only requests are for the
//! contents of configs that have changed.

use std::sync::Arc;

use kube::ResourceExt as _;

use super::{
    CanaryName, Shared,
    caches::Unsynced,
    desk::{Desk, Followed, KeptUp, Route, RouteFrom},
    index::Concern,
    kept::pods,
    understand::{Understood, templates},
};
use crate::{
    api::CanaryStatus,
    engine::{Observed, action::Split, observed::Target, revision::ConfigRef},
    gates::annotations,
    routing::{Arms, ObjectName, Subject},
    workload::{self, COMPANIONS, Cache as _, Kind, Snapshot, Upkeep},
};

/// Why there is nothing to decide on.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Unsynced(#[from] Unsynced),
    #[error(transparent)]
    Refused(#[from] workload::Refusal),
    #[error("the configs of the target: {0}")]
    Configs(workload::Error),
    #[error("the configs of the target change faster than they can be read")]
    ConfigsMove,
}

/// What was seen, and what it takes to act on it.
pub struct Seen {
    pub observed: Observed,
    pub target: Option<Arc<Snapshot>>,
    pub primary: Option<Arc<Snapshot>>,
    /// Unknown while the target was never seen.
    pub arms: Option<Arc<Arms>>,
    /// What accompanies the target and has not followed it yet.
    pub upkeep: Vec<Upkeep>,
}

pub async fn observe(
    shared: &Shared,
    name: &CanaryName,
    understood: &Understood,
    status: &CanaryStatus,
    desk: &Desk,
) -> Result<Seen, Error> {
    let Understood { canary, workload, router, .. } = understood;
    let caches = &shared.caches;
    if shared.turns.are_limited() {
        caches.know_canaries().await?;
    }
    let target = || caches.workload(workload.kind(), &name.namespace, workload.target_name());
    let known = desk.followed.lock().clone();
    if known.is_none() || known != target().map(|target| Followed::of(understood, &target)) {
        follow(shared, name, understood, None).await?;
        if let Some(target) = target() {
            follow(shared, name, understood, Some(&target)).await?;
            *desk.followed.lock() = Some(Followed::of(understood, &target));
        }
    }
    let target = target();

    let in_namespace = caches.of(&name.namespace);
    let primary = caches.workload(workload.kind(), &name.namespace, &workload.primary_name());
    let previous = caches.workload(workload.kind(), &name.namespace, &workload.previous_name());
    let scaler = canary
        .spec
        .autoscaler_ref
        .as_ref()
        .and_then(|scaler| in_namespace.get(scaler.kind.into(), &format!("{}-primary", scaler.name)));
    let deleting = canary.metadata.deletion_timestamp.is_some();
    let mut upkeep = Vec::new();
    if let (Some(target), Some(_), false) = (&target, &primary, deleting) {
        let canary_service = match workload.kind() {
            Kind::Service => {
                let canary_service = format!("{}-canary", workload.target_name());
                caches.workload(Kind::Service, &name.namespace, &canary_service)
            }
            _ => None,
        };
        let kept_up = KeptUp {
            target: Arc::clone(target),
            generation: canary.metadata.generation,
            canary_service: canary_service
                .as_ref()
                .and_then(|service| service.metadata.resource_version.clone()),
            companions: COMPANIONS.map(|kind| caches.state(kind.resource(), &name.namespace)),
        };
        if desk.kept_up.lock().as_ref() != Some(&kept_up) {
            upkeep = workload.upkeep(target, canary_service.as_deref(), &in_namespace)?;
            *desk.kept_up.lock() = upkeep.is_empty().then_some(kept_up);
        }
    }
    let arms = see_arms(understood, target.as_deref(), desk)?;
    let (split, route_pending) = match &arms {
        Some(arms) => see_route(shared, understood, arms, desk),
        None => (None, router.pending(canary, caches)),
    };

    let (mut answers, measured) = desk.inbox.lock().read(status.releases);
    answers.extend(annotations::answers(canary));
    let observed = Observed {
        generation: canary.metadata.generation,
        deleting,
        target: match &target {
            Some(target) => Some(see_target(shared, understood, target, status, desk).await?),
            None => None,
        },
        primary: match &primary {
            Some(primary) => Some(workload.see_primary(primary, scaler.as_deref())?),
            None => None,
        },
        previous: previous.and_then(|previous| workload.see_previous(&previous)),
        split,
        route_pending,
        routing_restored: deleting && router.restored(canary, caches),
        answers,
        measured,
        commands: annotations::commands(canary),
        // Filled in when it is decided.
        recorded: 0,
        other_releases: 0,
        release_cap: None,
    };
    Ok(Seen { observed, target, primary, arms, upkeep })
}

/// Has everything watched that concerns the Canary, and this Canary woken by
/// it, before any of it is read: what changes in between wakes it again.
async fn follow(
    shared: &Shared,
    name: &CanaryName,
    understood: &Understood,
    target: Option<&Snapshot>,
) -> Result<(), Unsynced> {
    let Understood { canary, workload, objects, asks, .. } = understood;
    let mut concerns = templates(canary);
    concerns.extend(workload.references(target).into_iter().map(|reference| Concern {
        kind: reference.kind.resource().clone(),
        namespace: name.namespace.clone(),
        name: reference.name,
    }));
    concerns.extend(objects.iter().cloned().map(|object| Concern {
        kind: object.kind,
        namespace: object.namespace,
        name: Some(object.name),
    }));
    let mut kinds: Vec<_> = concerns.iter().map(|concern| concern.kind.clone()).collect();
    // A copy of an autoscaler that the Canary no longer names must be found.
    if workload.kind() == Kind::Deployment {
        kinds.push(Kind::HorizontalPodAutoscaler.resource().clone());
    }
    if asks.values().any(|ask| ask.reads_pods()) {
        kinds.push(pods());
    }
    shared.index.add(name, concerns, target.is_some());
    kinds.dedup();
    for kind in kinds {
        shared.caches.need(&kind).await?;
    }
    Ok(())
}

/// The split in force, or whom it waits for. Worked out anew only when
/// something that it follows from has changed: most of what wakes a Canary is
/// news of pods.
pub fn see_route(
    shared: &Shared,
    understood: &Understood,
    arms: &Arc<Arms>,
    desk: &Desk,
) -> (Option<Split>, Option<String>) {
    let Understood { canary, router, objects, .. } = understood;
    let caches = &shared.caches;
    let version = |object: &ObjectName| {
        caches.object(&object.kind, &object.namespace, &object.name)?.resource_version()
    };
    let cookies = canary.status.as_ref().map(|status| {
        (status.session_affinity_cookie.clone(), status.primary_session_affinity_cookie.clone())
    });
    let from = RouteFrom {
        objects: Arc::clone(objects),
        cookies: cookies.unwrap_or_default(),
        arms: Arc::clone(arms),
        versions: objects.iter().map(version).collect(),
    };
    let mut route = desk.route.lock();
    if let Some(known) = route.as_ref().filter(|known| known.from == from && router.is_in_cluster()) {
        return (known.split.clone(), known.pending.clone());
    }
    let split = router.split(&Subject { canary, arms, stood: Some(&desk.stood) }, caches);
    let pending = if split.is_none() { router.pending(canary, caches) } else { None };
    *route = Some(Route { from, split: split.clone(), pending: pending.clone() });
    (split, pending)
}

async fn see_target(
    shared: &Shared,
    understood: &Understood,
    target: &Snapshot,
    status: &CanaryStatus,
    desk: &Desk,
) -> Result<Target, Error> {
    let (workload, namespace) = (&understood.workload, understood.workload.namespace());
    let recorded = status.revisions.as_ref().and_then(|of| of.seen.as_deref().or(of.primary.as_deref()));
    let version = |config: &ConfigRef| {
        let kind = [Kind::ConfigMap, Kind::Secret].into_iter().find(|kind| kind.name() == config.kind)?;
        shared.caches.object(kind.resource(), namespace, &config.name)?.resource_version()
    };
    let mut configs = desk.configs.lock().await;
    // Read once; if it has moved on by then, the cache is behind and another
    // wake is on its way.
    for _ in 0..2 {
        match workload.see_target(target, &mut configs, version, recorded) {
            Ok(target) => return Ok(target),
            Err(unread) => {
                configs.read(&shared.client, namespace, &unread.0).await.map_err(Error::Configs)?;
            }
        }
    }
    Err(Error::ConfigsMove)
}

/// As the target says, or said when it was last seen.
fn see_arms(
    understood: &Understood,
    target: Option<&Snapshot>,
    desk: &Desk,
) -> Result<Option<Arc<Arms>>, workload::Refusal> {
    let mut known = desk.arms.lock();
    if let Some(target) = target {
        let from = Followed::of(understood, target);
        if known.as_ref().is_none_or(|(known, _)| *known != from) {
            *known = Some((from, Arc::new(arms(understood, target)?)));
        }
    }
    Ok(known.as_ref().map(|(_, arms)| Arc::clone(arms)))
}

fn arms(understood: &Understood, target: &Snapshot) -> Result<Arms, workload::Refusal> {
    let selectors = understood.workload.selectors(target)?;
    let named = |port: workload::Port| (port.name.unwrap_or(format!("tcp-{}", port.number)), port.number);
    Ok(Arms {
        primary: selectors.primary,
        canary: selectors.canary,
        previous: selectors.previous,
        ports: understood.workload.ports(target).into_iter().map(named).collect(),
    })
}
