//! Resolves a Canary: its plan, workload, router, route objects and metric
//! queries, or the one sentence why it cannot be carried out. After this the raw
//! spec is not read.

use std::{collections::BTreeMap, sync::Arc};

use kube::{ResourceExt as _, core::ApiResource};

use super::{Reconcile, observe::Observation};
use crate::{
    api::{
        AnalysisTemplate, AnalysisTemplateSpec, Canary, ClusterAnalysisTemplate,
        canary::{Phase, Provider, TargetKind, status::RouteStatus},
        judge::JudgeType,
        reference::{TemplateKind, TemplateRef},
    },
    controller::{
        background::{
            inventory::{InventoryMode, followers::canary_provider},
            measure::MeasuredCanary,
            served_kinds_watch,
        },
        cache::{Caches, references::ObjectPattern, reflector::NotSynced},
        context::Context,
    },
    discovery::model::Choice,
    engine::{self, Plan, plan::metrics::Judge},
    metrics::{self, MetricQuery},
    routing::{self, ObjectKey, Router, RouterSelectionError, SelectedRouter},
    workload::{self, Kind, Workload},
};

pub struct ResolvedCanary {
    /// With the provider that was selected for it.
    pub canary: Arc<Canary>,
    pub router: Arc<dyn Router>,
    /// Incremented by every new resolution of this Canary: whatever is derived
    /// from the fields below is keyed on it.
    pub revision: u64,
    pub plan: Arc<Plan>,
    pub workload: Arc<Workload>,
    /// Route objects of the router.
    pub objects: Arc<[ObjectKey]>,
    /// How each metric is measured, by its name.
    pub queries: Arc<BTreeMap<String, MetricQuery>>,
    /// Why the spec is invalid: resolved only as far as users can be protected.
    pub invalid: Option<String>,
    /// Why discovery chose the provider, if the spec names none.
    pub provider_evidence: Option<String>,
}

impl ResolvedCanary {
    pub fn measured(&self, observation: &Observation) -> MeasuredCanary {
        MeasuredCanary {
            canary: Arc::clone(&self.canary),
            queries: Arc::clone(&self.queries),
            selectors: observation.selectors.clone().unwrap_or_default(),
        }
    }
}

/// The part of a [`ResolvedCanary`] that depends on [`ResolutionInputs`] alone.
#[derive(Clone)]
pub struct Resolution {
    revision: u64,
    plan: Arc<Plan>,
    workload: Arc<Workload>,
    objects: Arc<[ObjectKey]>,
    queries: Arc<BTreeMap<String, MetricQuery>>,
}

#[derive(PartialEq, Eq)]
pub struct ResolutionInputs {
    generation: Option<i64>,
    deleting: bool,
    router: String,
    /// Of primary and canary, if the target is an EndpointGroup: their endpoints are counted
    /// by them.
    group: Option<[String; 2]>,
    /// resourceVersion of each template.
    versions: Vec<Option<String>>,
}

/// Why a Canary cannot be carried out.
#[derive(Debug, thiserror::Error)]
pub enum InvalidCanary {
    #[error(transparent)]
    Plan(#[from] engine::PlanError),
    #[error(transparent)]
    Workload(#[from] workload::UnsupportedTarget),
    #[error(transparent)]
    Router(#[from] RouterSelectionError),
    #[error(transparent)]
    Unsupported(#[from] routing::Unsupported),
    #[error("spec.analysis.metrics: {0}")]
    Metric(#[from] metrics::QueryError),
    #[error("spec.provider is left out, and none can be chosen: {0}")]
    Provider(String),
    #[error("spec.provider is istio, and {0}")]
    Ambient(String),
    #[error("the template {name} cannot be read: {why}; correct it")]
    Template { name: String, why: String },
    #[error(
        "{field} names {name} in the namespace {namespace}, and this controller reads those of the Canary's own namespace only (--no-cross-namespace-refs); copy it to {own}{instead}"
    )]
    CrossNamespace {
        field: &'static str,
        name: String,
        namespace: String,
        own: String,
        instead: &'static str,
    },
}

/// Why a Canary was not resolved.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Invalid(#[from] InvalidCanary),
    #[error(transparent)]
    NotSynced(#[from] NotSynced),
    #[error("spec.provider is left out: {0}")]
    Undecided(String),
}

/// The provider of a Canary that names none.
struct DiscoveredProvider {
    provider: Provider,
    evidence: Option<String>,
}

/// A template that a metric names.
struct ResolvedTemplate {
    reference: TemplateRef,
    namespace: String,
    spec: AnalysisTemplateSpec,
}

impl Reconcile<'_> {
    pub(super) async fn resolve(&mut self) -> Result<ResolvedCanary, Error> {
        let ctx = self.ctx;
        let discovered = self.discover_provider().await?;
        self.check_ambient().await?;
        let mut canary = Arc::clone(self.canary);
        if let Some(DiscoveredProvider { provider, .. }) = discovered {
            Arc::make_mut(&mut canary).spec.provider = Some(provider);
        }
        let selected = select_router(ctx, &canary).await;
        match &selected {
            Err(RouterSelectionError::NotServed { .. }) => served_kinds_watch::wait(ctx, self.key.clone()),
            _ => ctx.served_kinds_watch.remove(self.key),
        }
        let selected = selected.map_err(InvalidCanary::from)?;
        let templates = template_refs(self.canary);
        let version = |template: &ObjectPattern| {
            let name = template.name.as_ref()?;
            ctx.caches.object(&template.kind, &template.namespace, name)?.resource_version()
        };
        let inputs = ResolutionInputs {
            generation: self.canary.metadata.generation,
            deleting: self.canary.metadata.deletion_timestamp.is_some(),
            router: selected.router.name(),
            group: group_versions(ctx, self.canary),
            versions: templates.iter().map(version).collect(),
        };
        if canary.spec.provider != Some(selected.provider) {
            Arc::make_mut(&mut canary).spec.provider = Some(selected.provider);
        }
        let resolution = match self.memory.resolution.hit(&inputs) {
            Some(known) => known.clone(),
            None => {
                // Before they are read: one that is missing may appear at any time,
                // and a Canary that is rejected for it gets no further.
                ctx.references.extend(self.key, templates);
                self.memory.revision += 1;
                let resolution = resolve_uncached(ctx, &canary, &selected, self.memory.revision).await?;
                self.memory.resolution.set(inputs, resolution).clone()
            }
        };
        let Resolution { revision, plan, workload, objects, queries } = resolution;
        let (router, invalid) = (selected.router, None);
        let provider_evidence = discovered.and_then(|discovered| discovered.evidence);
        Ok(ResolvedCanary {
            canary,
            router,
            revision,
            plan,
            workload,
            objects,
            queries,
            invalid,
            provider_evidence,
        })
    }

    /// Not during a release, which is judged on one route.
    fn may_change_route(&self) -> bool {
        let rest = [Phase::Initializing, Phase::Initialized, Phase::Succeeded, Phase::Failed];
        rest.contains(&self.status.phase)
            && self.status.release.is_none()
            && self.canary.metadata.deletion_timestamp.is_none()
    }

    /// Refuses VirtualServices that nothing reads. An inventory that is not complete
    /// refuses nothing.
    async fn check_ambient(&self) -> Result<(), Error> {
        let ctx = self.ctx;
        let named = self.canary.spec.provider.or(ctx.options.provider);
        if named != Some(Provider::Istio)
            || ctx.options.inventory.mode == InventoryMode::Never
            || !self.may_change_route()
            || ctx.inventory.ready().await.is_err()
        {
            return Ok(());
        }
        let followers = &ctx.inventory_watch.followers;
        match followers.istio_obstacle(&ctx.inventory, self.key, self.canary) {
            Some(why) => Err(InvalidCanary::Ambient(why).into()),
            None => Ok(()),
        }
    }

    /// None if the Canary or the controller names a provider. The route that the status
    /// records is kept until its release ends, and while there is no answer.
    async fn discover_provider(&self) -> Result<Option<DiscoveredProvider>, Error> {
        let (ctx, status) = (self.ctx, &self.status);
        let only = match self.canary.spec.target_ref.kind {
            TargetKind::EndpointGroup => Some(Provider::Xds),
            TargetKind::Deployment | TargetKind::DaemonSet | TargetKind::Service => None,
        };
        if let Some(provider) = only.filter(|_| self.canary.spec.provider.is_none()) {
            return Ok(Some(DiscoveredProvider { provider, evidence: None }));
        }
        let named = self.canary.spec.provider.or(ctx.options.provider);
        if named.is_some() || ctx.options.inventory.mode == InventoryMode::Never {
            return Ok(None);
        }
        let recorded = status.route.as_ref().map(|route| DiscoveredProvider {
            provider: route.provider,
            evidence: status.provider_evidence.clone(),
        });
        let recorded = match recorded {
            Some(recorded) if !self.may_change_route() => return Ok(Some(recorded)),
            recorded => recorded,
        };
        let choice = match ctx.inventory.ready().await {
            Ok(()) => ctx.inventory_watch.followers.choose(&ctx.inventory, self.key, self.canary),
            Err(error) => Choice::Unknown(error.to_string()),
        };
        match (choice, recorded) {
            (Choice::Chosen { provider, evidence }, _) => {
                Ok(Some(DiscoveredProvider { provider: canary_provider(provider), evidence: Some(evidence) }))
            }
            (Choice::Refused(why), _) => Err(InvalidCanary::Provider(why).into()),
            (Choice::Unknown(_), Some(recorded)) => Ok(Some(recorded)),
            (Choice::Unknown(why), None) => Err(Error::Undecided(why)),
        }
    }

    /// An invalid Canary on the route that its status records; none if there is no
    /// route, or it cannot be used any more.
    pub(super) async fn resolve_recorded_route(&mut self, why: &InvalidCanary) -> Option<ResolvedCanary> {
        let route = self.status.route.as_ref()?;
        let mut canary = Arc::new(with_route(self.canary, route));
        let mut selected = select_recorded(self.ctx, route);
        if selected.is_err() && canary.metadata.deletion_timestamp.is_some() {
            // The mesh is gone, and its route with it. Services can still be restored.
            let route = RouteStatus { provider: Provider::Kubernetes, objects: Vec::new(), ..route.clone() };
            canary = Arc::new(with_route(self.canary, &route));
            selected = select_recorded(self.ctx, &route);
        }
        let SelectedRouter { router, .. } = selected.ok()?;
        let workload = Arc::new(Workload::new(&canary, &self.ctx.workload_options).ok()?);
        self.memory.resolution.clear();
        self.memory.revision += 1;
        Some(ResolvedCanary {
            revision: self.memory.revision,
            plan: Arc::new(Plan::minimal(&canary.spec)),
            workload,
            objects: router.objects(&canary).into(),
            queries: Arc::default(),
            invalid: Some(why.to_string()),
            provider_evidence: None,
            canary,
            router,
        })
    }
}

async fn resolve_uncached(
    ctx: &Context,
    canary: &Canary,
    SelectedRouter { provider, router }: &SelectedRouter,
    revision: u64,
) -> Result<Resolution, Error> {
    let workload = Arc::new(Workload::new(canary, &ctx.workload_options).map_err(InvalidCanary::from)?);
    let objects = router.objects(canary).into();
    if canary.metadata.deletion_timestamp.is_some() {
        let plan = Arc::new(Plan::minimal(&canary.spec));
        return Ok(Resolution { revision, plan, workload, objects, queries: Arc::default() });
    }
    if ctx.options.tenancy.no_cross_namespace_refs {
        check_namespaces(canary)?;
    }
    let templates = find_templates(&ctx.caches, canary, &ctx.options.controller_namespace).await?;
    for found in &templates {
        check_aws(found, &ctx.options.tenancy.aws_roles).map_err(InvalidCanary::from)?;
    }
    let template = |reference: &TemplateRef| templates.iter().find(|found| found.reference == *reference);
    let plan = Plan::new(&canary.spec, |reference| template(reference).map(|found| &found.spec))
        .map_err(InvalidCanary::from)?;
    router.check(canary, &plan).map_err(InvalidCanary::from)?;
    router.check_implementation(&ctx.client, canary, &plan).await.map_err(InvalidCanary::from)?;
    let context = metrics::QueryContext {
        canary,
        mesh: *provider,
        metrics_server: ctx.options.metrics_server.address.as_deref(),
        versions: group_versions(ctx, canary).map(|[primary, canary]| metrics::Arms { primary, canary }),
    };
    let options = &ctx.options;
    let access = &options.metrics_server;
    let mut queries = BTreeMap::new();
    for (metric, planned) in canary.spec.analysis.metrics.iter().zip(&plan.metrics) {
        let found = metric.template_ref.as_ref().and_then(template).map(|found| metrics::Template {
            name: &found.reference.name,
            namespace: &found.namespace,
            spec: &found.spec,
        });
        let judge = match planned.policy.judge {
            Judge::Threshold(_) => JudgeType::Threshold,
            Judge::Sequential(_) => JudgeType::Sequential,
            Judge::MannWhitney(_) => JudgeType::MannWhitney,
        };
        let mut query =
            MetricQuery::new(&context, metric, found.as_ref(), judge).map_err(InvalidCanary::from)?;
        access.apply(&mut query);
        queries.insert(metric.name.clone(), query);
    }
    Ok(Resolution { revision, plan: Arc::new(plan), workload, objects, queries: Arc::new(queries) })
}

fn group_versions(ctx: &Context, canary: &Canary) -> Option<[String; 2]> {
    let target = &canary.spec.target_ref;
    let group = (target.kind == TargetKind::EndpointGroup).then(|| {
        ctx.caches.workload(Kind::EndpointGroup, &canary.namespace().unwrap_or_default(), &target.name)
    });
    workload::versions(group.flatten()?.as_ref())
}

/// Templates and AlertProviders carry credentials of their namespace.
fn check_namespaces(canary: &Canary) -> Result<(), InvalidCanary> {
    let (analysis, own) = (&canary.spec.analysis, canary.namespace().unwrap_or_default());
    let refuse = |field, name: &str, namespace: Option<&String>, instead| match namespace {
        Some(namespace) if *namespace != own => Err(InvalidCanary::CrossNamespace {
            field,
            name: name.to_owned(),
            namespace: namespace.clone(),
            own: own.clone(),
            instead,
        }),
        _ => Ok(()),
    };
    for template in analysis.metrics.iter().filter_map(|metric| metric.template_ref.as_ref()) {
        if template.kind.unwrap_or_default() == TemplateKind::AnalysisTemplate {
            let (field, instead) =
                ("spec.analysis.metrics[].templateRef", ", or make it a ClusterAnalysisTemplate");
            refuse(field, &template.name, template.namespace.as_ref(), instead)?;
        }
    }
    for alert in &analysis.alerts {
        let reference = &alert.provider_ref;
        refuse("spec.analysis.alerts[].providerRef", &reference.name, reference.namespace.as_ref(), "")?;
    }
    Ok(())
}

fn check_aws(template: &ResolvedTemplate, allowed_roles: &[String]) -> Result<(), metrics::QueryError> {
    let reference = &template.reference;
    match reference.kind.unwrap_or_default() {
        TemplateKind::ClusterAnalysisTemplate => Ok(()),
        TemplateKind::AnalysisTemplate => {
            metrics::check_tenant_aws(&reference.name, &template.spec.provider, allowed_roles)
        }
    }
}

/// The templates that a Canary refers to.
pub fn template_refs(canary: &Canary) -> Vec<ObjectPattern> {
    let named = canary.spec.analysis.metrics.iter().filter_map(|metric| metric.template_ref.as_ref());
    named
        .map(|reference| {
            let (kind, namespace) = template_key(reference, &canary.namespace().unwrap_or_default());
            ObjectPattern { kind, namespace, name: Some(reference.name.clone()) }
        })
        .collect()
}

/// The Canary as if its spec asked for this route.
pub fn with_route(canary: &Canary, route: &RouteStatus) -> Canary {
    let mut canary = canary.clone();
    canary.spec.provider = Some(route.provider);
    canary.spec.service.get_or_insert_default().name = Some(route.service.clone());
    canary
}

/// The router that wrote a recorded route, even if its provider now selects another.
pub fn select_recorded(ctx: &Context, route: &RouteStatus) -> Result<SelectedRouter, RouterSelectionError> {
    let served = ctx.served.read().of_route(route);
    routing::select(Some(route.provider), None, &served, ctx.app_mesh.as_ref())
}

/// Discovers the served kinds again when one is missing: the mesh may have been
/// installed since.
pub async fn select_router(ctx: &Context, canary: &Canary) -> Result<SelectedRouter, RouterSelectionError> {
    let (explicit, default) = (canary.spec.provider, ctx.options.provider);
    if explicit.or(default) == Some(Provider::Xds) && ctx.xds.is_none() {
        return Err(RouterSelectionError::NoControlPlane);
    }
    let app_mesh = ctx.app_mesh.as_ref();
    let selected = routing::select(explicit, default, &ctx.served.read(), app_mesh);
    let Err(RouterSelectionError::NotServed { .. }) = selected else { return selected };
    served_kinds_watch::discover(ctx).await;
    routing::select(explicit, default, &ctx.served.read(), app_mesh)
}

async fn find_templates(
    caches: &Caches,
    canary: &Canary,
    controller_namespace: &str,
) -> Result<Vec<ResolvedTemplate>, Error> {
    let own = canary.namespace().unwrap_or_default();
    let mut found: Vec<ResolvedTemplate> = Vec::new();
    for reference in canary.spec.analysis.metrics.iter().filter_map(|metric| metric.template_ref.as_ref()) {
        let (kind, namespace) = template_key(reference, &own);
        caches.ensure_synced(&kind).await?;
        let Some(object) = caches.object(&kind, &namespace, &reference.name) else { continue };
        let spec = serde_json::from_value(object.data["spec"].clone())
            .map_err(|why| InvalidCanary::Template { name: reference.name.clone(), why: why.to_string() })?;
        // Secrets of a cluster-wide template are in the controller's namespace.
        let namespace = if namespace.is_empty() { controller_namespace.to_owned() } else { namespace };
        found.push(ResolvedTemplate { reference: reference.clone(), namespace, spec });
    }
    Ok(found)
}

fn template_key(reference: &TemplateRef, own: &str) -> (ApiResource, String) {
    match reference.kind.unwrap_or_default() {
        TemplateKind::AnalysisTemplate => {
            let namespace = reference.namespace.clone().unwrap_or_else(|| own.to_owned());
            (ApiResource::erase::<AnalysisTemplate>(&()), namespace)
        }
        TemplateKind::ClusterAnalysisTemplate => {
            (ApiResource::erase::<ClusterAnalysisTemplate>(&()), String::new())
        }
    }
}
