//! From a Canary to everything that is needed to carry it out, or to the one
//! sentence that says why it cannot be. After this the raw spec is not read.

use std::{collections::BTreeMap, sync::Arc};

use kube::{ResourceExt as _, core::ApiResource};

use super::{
    Context,
    caches::{Caches, NotSynced},
    references::ObjectPattern,
    state::CanaryState,
};
use crate::{
    api::{
        AnalysisTemplate, AnalysisTemplateSpec, Canary, ClusterAnalysisTemplate,
        canary::Provider,
        judge::JudgeType,
        reference::{TemplateKind, TemplateRef},
    },
    engine::{self, Plan, plan::metrics::Judge},
    metrics::{self, MetricQuery},
    routing::{self, ObjectKey, Router, SelectedRouter},
    workload::{self, Workload},
};

/// A Canary that was resolved.
pub struct ResolvedCanary {
    /// With the provider that was found for it.
    pub canary: Arc<Canary>,
    pub plan: Arc<Plan>,
    pub workload: Arc<Workload>,
    pub router: Arc<dyn Router>,
    /// Of the router; the very same while the Canary means the same.
    pub objects: Arc<[ObjectKey]>,
    /// How each metric is measured, by its name.
    pub queries: Arc<BTreeMap<String, MetricQuery>>,
}

/// What a Canary says, worked out; the same again while [`ResolutionInputs`] is.
#[derive(Clone)]
pub struct Resolution {
    plan: Arc<Plan>,
    workload: Arc<Workload>,
    objects: Arc<[ObjectKey]>,
    queries: Arc<BTreeMap<String, MetricQuery>>,
}

/// Everything that it follows from.
#[derive(PartialEq, Eq)]
pub struct ResolutionInputs {
    generation: Option<i64>,
    deleting: bool,
    router: String,
    /// Of each template.
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

pub async fn resolve(
    ctx: &Context,
    state: &CanaryState,
    canary: &Arc<Canary>,
) -> Result<ResolvedCanary, Error> {
    let SelectedRouter { provider, router } =
        select_router(ctx, canary).await.map_err(InvalidCanary::from)?;
    let version = |template: ObjectPattern| {
        ctx.caches.object(&template.kind, &template.namespace, &template.name?)?.resource_version()
    };
    let from = ResolutionInputs {
        generation: canary.metadata.generation,
        deleting: canary.metadata.deletion_timestamp.is_some(),
        router: router.name(),
        versions: template_refs(canary).into_iter().map(version).collect(),
    };
    let known =
        state.resolution.lock().as_ref().filter(|(known, _)| *known == from).map(|(_, same)| same.clone());
    let mut canary = Arc::clone(canary);
    if canary.spec.provider != Some(provider) {
        Arc::make_mut(&mut canary).spec.provider = Some(provider);
    }
    let Resolution { plan, workload, objects, queries: asks } = match known {
        Some(known) => known,
        None => {
            let meaning = resolve_uncached(ctx, &canary, provider, &*router).await?;
            *state.resolution.lock() = Some((from, meaning.clone()));
            meaning
        }
    };
    Ok(ResolvedCanary { canary, plan, workload, router, objects, queries: asks })
}

async fn resolve_uncached(
    ctx: &Context,
    canary: &Canary,
    provider: Provider,
    router: &dyn Router,
) -> Result<Resolution, Error> {
    let workload = Arc::new(Workload::new(canary, &ctx.workload_options).map_err(InvalidCanary::from)?);
    let objects = router.objects(canary).into();
    if canary.metadata.deletion_timestamp.is_some() {
        let plan = Arc::new(Plan::for_deletion(&canary.spec));
        return Ok(Resolution { plan, workload, objects, queries: Arc::default() });
    }
    let templates = find_templates(&ctx.caches, canary, &ctx.options.controller_namespace).await?;
    let template = |reference: &TemplateRef| templates.iter().find(|found| found.reference == *reference);
    let plan = Plan::new(&canary.spec, |reference| template(reference).map(|found| &found.spec))
        .map_err(InvalidCanary::from)?;
    router.check(canary, &plan).map_err(InvalidCanary::from)?;
    let context = metrics::QueryContext {
        canary,
        mesh: provider,
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
        let ask = MetricQuery::new(&context, metric, found.as_ref(), judge).map_err(InvalidCanary::from)?;
        queries.insert(metric.name.clone(), ask);
    }
    Ok(Resolution { plan: Arc::new(plan), workload, objects, queries: Arc::new(queries) })
}

/// The templates that a Canary names, whose changes concern it.
pub fn template_refs(canary: &Canary) -> Vec<ObjectPattern> {
    let named = canary.spec.analysis.metrics.iter().filter_map(|metric| metric.template_ref.as_ref());
    named
        .map(|reference| {
            let (kind, namespace) = template_key(reference, &canary.namespace().unwrap_or_default());
            ObjectPattern { kind, namespace, name: Some(reference.name.clone()) }
        })
        .collect()
}

/// A mesh that was installed since is found when it is first missed.
pub async fn select_router(
    ctx: &Context,
    canary: &Canary,
) -> Result<SelectedRouter, routing::RouterSelectionError> {
    let (written, default) = (canary.spec.provider, ctx.options.provider);
    let app_mesh = ctx.app_mesh.as_ref();
    let selected = routing::select(written, default, &ctx.served.read(), app_mesh);
    let Err(routing::RouterSelectionError::NotServed { .. }) = selected else { return selected };
    match routing::ServedKinds::discover(&ctx.client).await {
        Ok(served) => *ctx.served.write() = served,
        Err(error) => tracing::warn!(%error, "cannot ask which kinds the cluster serves"),
    }
    routing::select(written, default, &ctx.served.read(), app_mesh)
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
        // A template of the whole cluster has its Secrets beside the controller.
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
