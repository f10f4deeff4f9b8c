//! Resolves a Canary: its plan, workload, router, route objects and metric
//! queries, or the one sentence why it cannot be carried out. After this the raw
//! spec is not read.

use std::{collections::BTreeMap, sync::Arc};

use kube::{ResourceExt as _, core::ApiResource};

use super::{Reconcile, observe::Observation};
use crate::{
    api::{
        AnalysisTemplate, AnalysisTemplateSpec, Canary, ClusterAnalysisTemplate,
        judge::JudgeType,
        reference::{TemplateKind, TemplateRef},
    },
    controller::{
        background::measure::MeasuredCanary,
        cache::{Caches, references::ObjectPattern, reflector::NotSynced},
        context::Context,
    },
    engine::{self, Plan, plan::metrics::Judge},
    metrics::{self, MetricQuery},
    routing::{self, ObjectKey, Router, SelectedRouter},
    workload::{self, Workload},
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
    Router(#[from] routing::RouterSelectionError),
    #[error(transparent)]
    Unsupported(#[from] routing::Unsupported),
    #[error("spec.analysis.metrics: {0}")]
    Metric(#[from] metrics::QueryError),
    #[error("the template {name} cannot be read: {why}; correct it")]
    Template { name: String, why: String },
}

/// Why a Canary was not resolved.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Invalid(#[from] InvalidCanary),
    #[error(transparent)]
    NotSynced(#[from] NotSynced),
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
        let selected = select_router(ctx, self.canary).await.map_err(InvalidCanary::from)?;
        let version = |template: ObjectPattern| {
            ctx.caches.object(&template.kind, &template.namespace, &template.name?)?.resource_version()
        };
        let inputs = ResolutionInputs {
            generation: self.canary.metadata.generation,
            deleting: self.canary.metadata.deletion_timestamp.is_some(),
            router: selected.router.name(),
            versions: template_refs(self.canary).into_iter().map(version).collect(),
        };
        let mut canary = Arc::clone(self.canary);
        if canary.spec.provider != Some(selected.provider) {
            Arc::make_mut(&mut canary).spec.provider = Some(selected.provider);
        }
        let resolution = match self.memory.resolution.hit(&inputs) {
            Some(known) => known.clone(),
            None => {
                self.memory.revision += 1;
                let resolution = resolve_uncached(ctx, &canary, &selected, self.memory.revision).await?;
                self.memory.resolution.set(inputs, resolution).clone()
            }
        };
        let Resolution { revision, plan, workload, objects, queries } = resolution;
        Ok(ResolvedCanary { canary, router: selected.router, revision, plan, workload, objects, queries })
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
        let plan = Arc::new(Plan::for_deletion(&canary.spec));
        return Ok(Resolution { revision, plan, workload, objects, queries: Arc::default() });
    }
    let templates = find_templates(&ctx.caches, canary, &ctx.options.controller_namespace).await?;
    let template = |reference: &TemplateRef| templates.iter().find(|found| found.reference == *reference);
    let plan = Plan::new(&canary.spec, |reference| template(reference).map(|found| &found.spec))
        .map_err(InvalidCanary::from)?;
    router.check(canary, &plan).map_err(InvalidCanary::from)?;
    let context = metrics::QueryContext {
        canary,
        mesh: *provider,
        metrics_server: ctx.options.metrics_server.as_deref(),
    };
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
        let query = MetricQuery::new(&context, metric, found.as_ref(), judge).map_err(InvalidCanary::from)?;
        queries.insert(metric.name.clone(), query);
    }
    Ok(Resolution { revision, plan: Arc::new(plan), workload, objects, queries: Arc::new(queries) })
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

/// Asks for the served kinds again when one is missing: the mesh may have been
/// installed since.
pub async fn select_router(
    ctx: &Context,
    canary: &Canary,
) -> Result<SelectedRouter, routing::RouterSelectionError> {
    let (explicit, default) = (canary.spec.provider, ctx.options.provider);
    let app_mesh = ctx.app_mesh.as_ref();
    let selected = routing::select(explicit, default, &ctx.served.read(), app_mesh);
    let Err(routing::RouterSelectionError::NotServed { .. }) = selected else { return selected };
    match routing::ServedKinds::discover(&ctx.client).await {
        Ok(served) => *ctx.served.write() = served,
        Err(error) => tracing::warn!(%error, "cannot discover which kinds the cluster serves"),
    }
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
