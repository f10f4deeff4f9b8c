//! Observing: what there is, from caches. The only requests are for the
//! contents of configs that have changed.

use std::sync::Arc;

use kube::ResourceExt as _;

use super::{
    Context, NamespacedName,
    caches::NotSynced,
    projection::pod_resource,
    references::ObjectPattern,
    resolve::{ResolvedCanary, template_refs},
    state::{CanaryState, CompanionInputs, RouteInputs, RouteObservation, WatchInputs},
};
use crate::{
    api::CanaryStatus,
    engine::{Observed, action::Split, observed::Target, revision::ConfigRef},
    gates::annotations,
    routing::{ObjectKey, PodSelectors, RouteContext},
    workload::{self, COMPANION_KINDS, CachedWorkload, CompanionChange, Kind},
};

/// Why there is nothing to decide on.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    NotSynced(#[from] NotSynced),
    #[error(transparent)]
    UnsupportedTarget(#[from] workload::UnsupportedTarget),
    #[error("the configs of the target: {0}")]
    Configs(workload::Error),
    #[error("the configs of the target change faster than they can be read")]
    ConfigsChanging,
}

/// What was seen, and what it takes to act on it.
pub struct Observation {
    pub observed: Observed,
    pub target: Option<Arc<CachedWorkload>>,
    pub primary: Option<Arc<CachedWorkload>>,
    /// Unknown while the target was never seen.
    pub selectors: Option<Arc<PodSelectors>>,
    /// What accompanies the target and has not followed it yet.
    pub companion_changes: Vec<CompanionChange>,
}

pub async fn observe(
    ctx: &Context,
    name: &NamespacedName,
    resolved: &ResolvedCanary,
    status: &CanaryStatus,
    state: &CanaryState,
) -> Result<Observation, Error> {
    let ResolvedCanary { canary, workload, router, .. } = resolved;
    let caches = &ctx.caches;
    if ctx.limiter.is_enabled() {
        caches.wait_for_canaries().await?;
    }
    let target = || caches.workload(workload.kind(), &name.namespace, workload.target_name());
    let known = state.watches.lock().clone();
    if known.is_none() || known != target().map(|target| WatchInputs::of(resolved, &target)) {
        ensure_watches(ctx, name, resolved, None).await?;
        if let Some(target) = target() {
            ensure_watches(ctx, name, resolved, Some(&target)).await?;
            *state.watches.lock() = Some(WatchInputs::of(resolved, &target));
        }
    }
    let target = target();

    let primary = caches.workload(workload.kind(), &name.namespace, &workload.primary_name());
    let previous = caches.workload(workload.kind(), &name.namespace, &workload.previous_name());
    let scaler = canary.spec.autoscaler_ref.as_ref().and_then(|scaler| {
        let kind = Kind::from(scaler.kind).resource();
        caches.object(kind, &name.namespace, &format!("{}-primary", scaler.name))
    });
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
        let companions = CompanionInputs {
            target: Arc::clone(target),
            generation: canary.metadata.generation,
            canary_service: canary_service
                .as_ref()
                .and_then(|service| service.metadata.resource_version.clone()),
            companions: COMPANION_KINDS
                .map(|kind| caches.namespace_revision(kind.resource(), &name.namespace)),
        };
        if state.companions.lock().as_ref() != Some(&companions) {
            upkeep = workload.companion_changes(target, canary_service.as_deref(), caches)?;
            *state.companions.lock() = upkeep.is_empty().then_some(companions);
        }
    }
    let arms = observe_selectors(resolved, target.as_deref(), state)?;
    let (split, route_pending) = match &arms {
        Some(arms) => observe_route(ctx, resolved, arms, state),
        None => (None, router.pending_reason(canary, caches)),
    };

    let (mut answers, measured) = state.pending_results.lock().current(status.releases);
    answers.extend(annotations::answers(canary));
    let observed = Observed {
        generation: canary.metadata.generation,
        deleting,
        target: match &target {
            Some(target) => Some(observe_target(ctx, resolved, target, status, state).await?),
            None => None,
        },
        primary: match &primary {
            Some(primary) => Some(workload.observe_primary(primary, scaler.as_deref())?),
            None => None,
        },
        previous: previous.and_then(|previous| workload.observe_previous(&previous)),
        split,
        route_pending,
        routing_restored: deleting && router.is_restored(canary, caches),
        gate_results: answers,
        measurements: measured,
        commands: annotations::commands(canary),
        // Filled in when it is decided.
        persisted_releases: 0,
        other_releases: 0,
        release_cap: None,
    };
    Ok(Observation { observed, target, primary, selectors: arms, companion_changes: upkeep })
}

/// Has everything watched that concerns the Canary, and this Canary woken by
/// it, before any of it is read: what changes in between wakes it again.
async fn ensure_watches(
    ctx: &Context,
    name: &NamespacedName,
    resolved: &ResolvedCanary,
    target: Option<&CachedWorkload>,
) -> Result<(), NotSynced> {
    let ResolvedCanary { canary, workload, objects, queries: asks, .. } = resolved;
    let mut concerns = template_refs(canary);
    concerns.extend(workload.references(target).into_iter().map(|reference| ObjectPattern {
        kind: reference.kind.resource().clone(),
        namespace: name.namespace.clone(),
        name: reference.name,
    }));
    concerns.extend(objects.iter().cloned().map(|object| ObjectPattern {
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
        kinds.push(pod_resource());
    }
    ctx.index.add(name, concerns, target.is_some());
    kinds.dedup();
    for kind in kinds {
        ctx.caches.ensure_synced(&kind).await?;
    }
    Ok(())
}

/// The split in force, or whom it waits for. Worked out anew only when
/// something that it follows from has changed: most of what wakes a Canary is
/// news of pods.
pub fn observe_route(
    ctx: &Context,
    resolved: &ResolvedCanary,
    selectors: &Arc<PodSelectors>,
    state: &CanaryState,
) -> (Option<Split>, Option<String>) {
    let ResolvedCanary { canary, router, objects, .. } = resolved;
    let caches = &ctx.caches;
    let version =
        |object: &ObjectKey| caches.object(&object.kind, &object.namespace, &object.name)?.resource_version();
    let cookies = canary.status.as_ref().map(|status| {
        (status.session_affinity_cookie.clone(), status.primary_session_affinity_cookie.clone())
    });
    let from = RouteInputs {
        objects: Arc::clone(objects),
        cookies: cookies.unwrap_or_default(),
        selectors: Arc::clone(selectors),
        versions: objects.iter().map(version).collect(),
    };
    let mut route = state.route.lock();
    if let Some(known) = route.as_ref().filter(|known| known.inputs == from && router.is_watchable()) {
        return (known.split.clone(), known.pending.clone());
    }
    let split = router.effective_split(
        &RouteContext { canary, pod_selectors: selectors, services_memo: Some(&state.services) },
        caches,
    );
    let pending = if split.is_none() { router.pending_reason(canary, caches) } else { None };
    *route = Some(RouteObservation { inputs: from, split: split.clone(), pending: pending.clone() });
    (split, pending)
}

async fn observe_target(
    ctx: &Context,
    resolved: &ResolvedCanary,
    target: &CachedWorkload,
    status: &CanaryStatus,
    state: &CanaryState,
) -> Result<Target, Error> {
    let (workload, namespace) = (&resolved.workload, resolved.workload.namespace());
    let recorded = status.revisions.as_ref().and_then(|of| of.seen.as_deref().or(of.primary.as_deref()));
    let version = |config: &ConfigRef| {
        let kind = [Kind::ConfigMap, Kind::Secret].into_iter().find(|kind| kind.name() == config.kind)?;
        ctx.caches.object(kind.resource(), namespace, &config.name)?.resource_version()
    };
    let mut configs = state.configs.lock().await;
    // Read once; if it has moved on by then, the cache is behind and another
    // wake is on its way.
    for _ in 0..2 {
        match workload.observe_target(target, &mut configs, version, recorded) {
            Ok(target) => return Ok(target),
            Err(unread) => {
                configs.read(&ctx.client, namespace, &unread.0).await.map_err(Error::Configs)?;
            }
        }
    }
    Err(Error::ConfigsChanging)
}

/// As the target says, or said when it was last seen.
fn observe_selectors(
    resolved: &ResolvedCanary,
    target: Option<&CachedWorkload>,
    state: &CanaryState,
) -> Result<Option<Arc<PodSelectors>>, workload::UnsupportedTarget> {
    let mut known = state.selectors.lock();
    if let Some(target) = target {
        let from = WatchInputs::of(resolved, target);
        if known.as_ref().is_none_or(|(known, _)| *known != from) {
            *known = Some((from, Arc::new(pod_selectors(resolved, target)?)));
        }
    }
    Ok(known.as_ref().map(|(_, arms)| Arc::clone(arms)))
}

fn pod_selectors(
    resolved: &ResolvedCanary,
    target: &CachedWorkload,
) -> Result<PodSelectors, workload::UnsupportedTarget> {
    let selectors = resolved.workload.selectors(target)?;
    let named = |port: workload::Port| (port.name.unwrap_or(format!("tcp-{}", port.number)), port.number);
    Ok(PodSelectors {
        primary: selectors.primary,
        canary: selectors.canary,
        previous: selectors.previous,
        ports: resolved.workload.ports(target).into_iter().map(named).collect(),
    })
}
