//! Observes the cluster from the caches. The only requests are for the contents
//! of ConfigMaps and Secrets that have changed, and for the writer of a route that
//! something else overwrote. A kind of companions that cannot be
//! watched does not end the observation: companions protect nobody.

use std::sync::Arc;

use kube::ResourceExt as _;

use super::{
    READ_MESH, Reconcile,
    pod_looks::PodLooks,
    resolve::{ResolvedCanary, template_refs},
    state::{CompanionInputs, RouteInputs, RouteObservation, SelectorInputs, SpecInputs},
};
use crate::{
    api::{
        CanaryStatus,
        canary::{Phase, status::RouteStatus},
    },
    controller::cache::{projection::pod_resource, references::ObjectPattern, reflector::NotSynced},
    engine::{self, Action, Decision, Observed, action::Purpose, observed::Target, revision::ConfigRef},
    gates::annotations,
    memo::Identity,
    routing::{self, ObjectKey, PodSelectors, RouteContext},
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
    #[error("{0}")]
    Undecided(String),
    #[error("the configs of the target change faster than they can be read")]
    ConfigsChanging,
}

impl Error {
    /// A retry cannot succeed until an object or a right changes.
    pub fn is_refused(&self) -> bool {
        match self {
            Self::NotSynced(error) => error.is_refused(),
            Self::Configs(error) => error.is_final(),
            Self::UnsupportedTarget(_) => true,
            Self::ConfigsChanging | Self::Undecided(_) => false,
        }
    }
}

/// The engine's input, and the objects that actions need.
pub struct Observation {
    pub observed: Observed,
    pub target: Option<Arc<CachedWorkload>>,
    pub primary: Option<Arc<CachedWorkload>>,
    /// Unknown until the target was in the cache once.
    pub selectors: Option<Arc<PodSelectors>>,
    /// Copies of companions that are not in sync with the target.
    pub companion_changes: Vec<CompanionChange>,
}

impl Reconcile<'_> {
    /// Observes for the next decision; `earlier` is the one that is performed
    /// and not recorded.
    pub(super) async fn observe(
        &mut self,
        resolved: &ResolvedCanary,
        earlier: Option<&Decision>,
    ) -> Result<Observation, Error> {
        let ctx = self.ctx;
        if ctx.limiter.is_enabled() {
            ctx.caches.wait_for_canaries().await?;
        }
        self.ensure_watches(resolved).await?;
        let ResolvedCanary { canary, workload, router, .. } = resolved;
        let status = earlier.map_or(&*self.status, |earlier| &earlier.status);
        let releases = status.releases;
        let recorded = status.revisions.as_ref();
        let recorded = recorded.and_then(|revisions| revisions.seen.clone().or(revisions.primary.clone()));
        let cached = |name: &str| ctx.caches.workload(workload.kind(), &self.key.namespace, name);
        let (target, primary) = (cached(workload.target_name()), cached(&workload.primary_name()));
        let previous = cached(&workload.previous_name());
        let scaler = canary.spec.autoscaler_ref.as_ref().and_then(|scaler| {
            let kind = Kind::from(scaler.kind);
            ctx.caches.object(kind.resource(), &self.key.namespace, &format!("{}-primary", scaler.name))
        });
        let observed_primary = match &primary {
            Some(primary) => workload.observe_primary(primary, scaler.as_deref())?,
            None => None,
        };
        let deleting = canary.metadata.deletion_timestamp.is_some();
        let target = match self.check_target(resolved, target.as_deref(), primary.as_deref()) {
            Ok(()) => target,
            // Users are protected as if it did not exist.
            Err(_) if resolved.invalid.is_some() => None,
            Err(why) => return Err(why.into()),
        };
        let companion_changes = match (&target, &primary, deleting) {
            (Some(target), Some(primary), false) => self.companion_changes(resolved, target, primary),
            _ => Vec::new(),
        };
        let workloads = [target.as_deref(), primary.as_deref(), previous.as_deref()];
        let selectors = self.selectors(resolved, workloads)?;
        let RouteObservation { split, pending: route_pending, refused: route_refused } = match &selectors {
            Some(selectors) => self.observe_route(resolved, selectors),
            None => RouteObservation {
                split: None,
                pending: router.pending_reason(canary, &ctx.caches),
                refused: None,
            },
        };
        let observed_target = match &target {
            Some(target) => Some(self.observe_target(resolved, target, recorded.as_deref()).await?),
            None => None,
        };
        let (mut gate_results, measurements) = self.state.results.lock().current(releases);
        gate_results.extend(annotations::answers(canary));
        let (other_releases, release_cap) = ctx.limiter.ahead_of(self.key);
        let mut observed = Observed {
            generation: canary.metadata.generation,
            deleting,
            target: observed_target,
            primary: observed_primary,
            previous: previous.and_then(|previous| workload.observe_previous(&previous)),
            split,
            route: canary.spec.provider.map(|provider| RouteStatus {
                provider,
                service: routing::apex_name(canary),
                objects: routing::recorded_objects(&resolved.objects),
            }),
            provider_evidence: resolved.provider_evidence.clone(),
            route_pending,
            route_refused,
            route_writer: None,
            migrated_from: self.memory.migrated_from.clone(),
            deleted_pod: self.memory.deleted_pod.clone(),
            persisted_replacement: engine::replaced_pod(&self.status).map(str::to_owned),
            failures: self.memory.failures.lasting(ctx.clock.now()),
            routing_restored: deleting && router.is_restored(canary, &ctx.caches),
            gate_results,
            measurements,
            commands: annotations::commands(canary),
            persisted_releases: engine::started_releases(&self.status),
            other_releases,
            release_cap,
            clock_stepped_at: None,
        };
        if let Some(selectors) = &selectors {
            let phase = earlier.map_or(self.status.phase, |earlier| earlier.status.phase);
            self.look_at_pods(&mut observed, selectors, phase);
        }
        let status = earlier.map_or(&*self.status, |earlier| &earlier.status);
        if resolved.invalid.is_none() && engine::is_route_reverted(&resolved.plan, status, &observed) {
            observed.route_writer = self.route_writer(resolved, status).await;
        }
        // The decision follows at once.
        observed.clock_stepped_at = ctx.clock_steps.last().map(|step| step.at);
        Ok(Observation { observed, target, primary, selectors, companion_changes })
    }

    /// The pods that a release or the first primary waits for.
    fn look_at_pods(&mut self, observed: &mut Observed, selectors: &PodSelectors, phase: Phase) {
        let (ctx, key) = (self.ctx, self.key);
        let [of_target, of_primary] = &mut self.memory.pod_looks;
        let releases = matches!(phase, Phase::Waiting | Phase::Progressing | Phase::Promoting);
        match &mut observed.target {
            Some(target) if releases => {
                let pods = (&selectors.canary, target.pods);
                target.trouble = of_target.trouble(ctx, key, pods);
            }
            _ => *of_target = PodLooks::default(),
        }
        match &mut observed.primary {
            Some(primary) if matches!(phase, Phase::Initializing | Phase::Promoting) => {
                let pods = (&selectors.primary, primary.pods);
                primary.trouble = of_primary.trouble(ctx, key, pods);
            }
            _ => *of_primary = PodLooks::default(),
        }
    }

    /// The manager that overwrote the route since the check began.
    async fn route_writer(&self, resolved: &ResolvedCanary, status: &CanaryStatus) -> Option<String> {
        let since = status.step.as_ref()?.check_started_at.as_ref()?.0;
        let object = resolved.router.split_object(&resolved.canary)?;
        routing::last_writer(&self.ctx.client, &object, since).await
    }

    /// Has an action already taken effect, by what the caches have?
    pub(super) fn has_taken_effect(
        &mut self,
        resolved: &ResolvedCanary,
        observation: &Observation,
        decision: &Decision,
    ) -> bool {
        let workload = &resolved.workload;
        decision.actions.iter().any(|action| match action {
            Action::Route(split) => {
                let route =
                    observation.selectors.as_ref().map(|selectors| self.observe_route(resolved, selectors));
                route.and_then(|route| route.split).as_ref() == Some(split)
            }
            Action::MigrateRoute { from } => self.memory.migrated_from.as_ref() == Some(from),
            Action::ReplacePod { pod } => self.memory.deleted_pod.as_ref() == Some(pod),
            Action::ScaleCanary { replicas: 0 } | Action::ScaleDownCanary { .. } => {
                let target =
                    self.ctx.caches.workload(workload.kind(), workload.namespace(), workload.target_name());
                target.is_some_and(|target| workload.is_scaled_down(&target))
            }
            _ => false,
        })
    }

    /// Watches everything that the Canary depends on before any of it is read: a
    /// change in between requests another reconcile.
    async fn ensure_watches(&mut self, resolved: &ResolvedCanary) -> Result<(), NotSynced> {
        let workload = &resolved.workload;
        let target =
            || self.ctx.caches.workload(workload.kind(), &self.key.namespace, workload.target_name());
        let inputs = target().map(|target| SpecInputs::new(resolved, &target));
        if inputs.is_some_and(|inputs| self.memory.watches.hit(&inputs).is_some()) {
            return Ok(());
        }
        self.watch_references(resolved, None).await?;
        if let Some(target) = target() {
            self.watch_references(resolved, Some(&target)).await?;
            if self.failed.is_empty() {
                self.memory.watches.set(SpecInputs::new(resolved, &target), ());
            }
        }
        Ok(())
    }

    async fn watch_references(
        &mut self,
        resolved: &ResolvedCanary,
        target: Option<&CachedWorkload>,
    ) -> Result<(), NotSynced> {
        let ResolvedCanary { canary, workload, objects, queries, .. } = resolved;
        let mut references = template_refs(canary);
        references.extend(workload.references(target).into_iter().map(|reference| ObjectPattern {
            kind: reference.kind.resource().clone(),
            namespace: self.key.namespace.clone(),
            name: reference.name,
        }));
        references.extend(objects.iter().cloned().map(|object| ObjectPattern {
            kind: object.kind,
            namespace: object.namespace,
            name: Some(object.name),
        }));
        let mut kinds: Vec<_> = references.iter().map(|reference| reference.kind.clone()).collect();
        // A copy of an autoscaler that the Canary no longer names must be found.
        if workload.kind() == Kind::Deployment {
            kinds.push(Kind::HorizontalPodAutoscaler.resource().clone());
        }
        if queries.values().any(|query| query.reads_pods()) {
            kinds.push(pod_resource());
        }
        match target {
            Some(_) => self.ctx.references.replace(self.key, references),
            None => self.ctx.references.extend(self.key, references),
        }
        kinds.dedup();
        for kind in kinds {
            let synced = self.ctx.caches.ensure_synced(&kind).await;
            match synced {
                Err(error) if COMPANION_KINDS.iter().any(|companion| *companion.resource() == kind) => {
                    let refused = error.is_refused();
                    self.note_failure(Purpose::Maintain, &format!("watch {}", kind.plural), &error, refused);
                }
                synced => synced?,
            }
        }
        Ok(())
    }

    fn companion_changes(
        &mut self,
        resolved: &ResolvedCanary,
        target: &Arc<CachedWorkload>,
        primary: &Arc<CachedWorkload>,
    ) -> Vec<CompanionChange> {
        let (caches, namespace, workload) = (&self.ctx.caches, &self.key.namespace, &resolved.workload);
        let canary_service = match workload.kind() {
            Kind::Service => {
                caches.workload(Kind::Service, namespace, &format!("{}-canary", workload.target_name()))
            }
            _ => None,
        };
        let inputs = CompanionInputs {
            revision: resolved.revision,
            target: Arc::clone(target),
            primary: Arc::clone(primary),
            canary_service: canary_service
                .as_ref()
                .and_then(|service| service.metadata.resource_version.clone()),
            companions: COMPANION_KINDS.map(|kind| caches.namespace_revision(kind.resource(), namespace)),
        };
        if self.memory.companions.hit(&inputs).is_some() {
            return Vec::new();
        }
        let mut changes = Vec::new();
        for change in workload.companion_changes(target, primary, canary_service.as_deref(), caches) {
            match change {
                Ok(change) => changes.push(change),
                Err(why) => self.note_failure(Purpose::Maintain, &why.to_string(), &why, true),
            }
        }
        match changes.is_empty() && self.failed.is_empty() {
            true => _ = self.memory.companions.set(inputs, ()),
            false => self.memory.companions.clear(),
        }
        changes
    }

    /// The split in force, or what it waits for; unknown while the mesh cannot be
    /// read. Computed again only when an input has changed: most reconciles are for
    /// changes of pods.
    fn observe_route(
        &mut self,
        resolved: &ResolvedCanary,
        selectors: &Arc<PodSelectors>,
    ) -> RouteObservation {
        let ResolvedCanary { canary, router, objects, .. } = resolved;
        let unread = self.failed.iter().find(|failed| failed.attempt == READ_MESH);
        if let Some(unread) = unread {
            let pending = Some(unread.failure.message.clone());
            return RouteObservation { split: None, pending, refused: None };
        }
        let caches = &self.ctx.caches;
        let version = |object: &ObjectKey| {
            caches.object(&object.kind, &object.namespace, &object.name)?.resource_version()
        };
        let cookies = canary.status.as_ref().map(|status| {
            (status.session_affinity_cookie.clone(), status.primary_session_affinity_cookie.clone())
        });
        let inputs = RouteInputs {
            revision: resolved.revision,
            cookies: cookies.unwrap_or_default(),
            selectors: Identity(Arc::clone(selectors)),
            versions: objects.iter().map(version).collect(),
        };
        if let Some(known) = self.memory.route.hit(&inputs).filter(|_| router.is_watchable()) {
            return known.clone();
        }
        let on =
            RouteContext { canary, pod_selectors: selectors, services_memo: Some(&self.memory.services) };
        let split = router.effective_split(&on, caches);
        let (pending, refused) = match split {
            Some(_) => (None, None),
            None => (router.pending_reason(canary, caches), router.refusal(canary, caches)),
        };
        self.memory.route.set(inputs, RouteObservation { split, pending, refused }).clone()
    }

    /// `recorded` is the revision in the status, which names the hash version.
    async fn observe_target(
        &mut self,
        resolved: &ResolvedCanary,
        target: &CachedWorkload,
        recorded: Option<&str>,
    ) -> Result<Target, Error> {
        let (ctx, workload) = (self.ctx, &resolved.workload);
        let namespace = workload.namespace();
        let version = |config: &ConfigRef| {
            let kind = [Kind::ConfigMap, Kind::Secret].into_iter().find(|kind| kind.name() == config.kind)?;
            ctx.caches.object(kind.resource(), namespace, &config.name)?.resource_version()
        };
        // Read once. If a config has changed again by then, the cache is behind
        // and its watch event requests another reconcile.
        for _ in 0..2 {
            match workload.observe_target(target, &mut self.memory.configs, version, recorded) {
                Ok(target) => return Ok(target),
                Err(missing) => {
                    let read = self.memory.configs.read(&ctx.client, namespace, &missing.0).await;
                    read.map_err(Error::Configs)?;
                }
            }
        }
        Err(Error::ConfigsChanging)
    }

    /// Rejects a target that cannot be released. One that is being left is only
    /// rejected if it is not ours to touch.
    fn check_target(
        &self,
        resolved: &ResolvedCanary,
        target: Option<&CachedWorkload>,
        primary: Option<&CachedWorkload>,
    ) -> Result<(), workload::UnsupportedTarget> {
        let (Some(target), workload) = (target, &resolved.workload) else { return Ok(()) };
        workload.check_target_owner(target)?;
        if resolved.canary.metadata.deletion_timestamp.is_some() {
            return Ok(());
        }
        workload.check_target_labels(target, primary)?;
        match self.status.phase {
            Phase::Initializing => workload.check_target_port(target),
            _ => Ok(()),
        }
    }

    /// The selectors of target, primary and previous version; the last known ones of
    /// a workload that is gone.
    fn selectors(
        &mut self,
        resolved: &ResolvedCanary,
        workloads: [Option<&CachedWorkload>; 3],
    ) -> Result<Option<Arc<PodSelectors>>, workload::UnsupportedTarget> {
        let (inputs, memo) = (SelectorInputs::new(resolved, workloads), &mut self.memory.selectors);
        if let Some(known) = memo.hit(&inputs) {
            return Ok(Some(Arc::clone(known)));
        }
        let last = memo.last().cloned();
        let Some(mut selectors) = pod_selectors(resolved, workloads)? else { return Ok(last) };
        let [target, primary, _] = workloads;
        if let Some(last) = &last {
            if target.is_none() {
                selectors.canary.clone_from(&last.canary);
                selectors.ports.clone_from(&last.ports);
            }
            if primary.is_none() {
                selectors.primary.clone_from(&last.primary);
            }
        }
        // Routes are compared again only if the selectors are others.
        let selectors = last.filter(|last| **last == selectors).unwrap_or_else(|| Arc::new(selectors));
        Ok(Some(Arc::clone(memo.set(inputs, selectors))))
    }
}

fn pod_selectors(
    resolved: &ResolvedCanary,
    workloads: [Option<&CachedWorkload>; 3],
) -> Result<Option<PodSelectors>, workload::UnsupportedTarget> {
    let ([target, primary, previous], workload) = (workloads, &resolved.workload);
    let Some(selectors) = workload.selectors(target, primary, previous)? else { return Ok(None) };
    let named = |port: workload::Port| (port.name.unwrap_or(format!("tcp-{}", port.number)), port.number);
    let ports = target.or(primary).map(|workload_with_ports| workload.ports(workload_with_ports));
    Ok(Some(PodSelectors {
        primary: selectors.primary,
        canary: selectors.canary,
        previous: selectors.previous,
        ports: ports.unwrap_or_default().into_iter().map(named).collect(),
    }))
}
