//! From a Canary to everything that is needed to carry it out, or to the one
//! sentence that says why it cannot be. After this the raw spec is not read.

use std::{collections::BTreeMap, sync::Arc};

use kube::{ResourceExt as _, core::ApiResource};

use super::{
    Shared,
    caches::{Caches, Unsynced},
    desk::Desk,
    index::Concern,
};
use crate::{
    api::{
        AnalysisTemplate, AnalysisTemplateSpec, Canary, ClusterAnalysisTemplate,
        canary::Provider,
        judge::JudgeType,
        reference::{TemplateKind, TemplateRef},
    },
    engine::{self, Plan, judge::Judge},
    metrics::{self, Ask},
    routing::{self, ObjectName, Router, Selected},
    workload::{self, Workload},
};

/// A Canary that was understood.
pub struct Understood {
    /// With the provider that was found for it.
    pub canary: Arc<Canary>,
    pub plan: Arc<Plan>,
    pub workload: Arc<Workload>,
    pub router: Arc<dyn Router>,
    /// Of the router; the very same while the Canary means the same.
    pub objects: Arc<[ObjectName]>,
    /// How each metric is measured, by its name.
    pub asks: Arc<BTreeMap<String, Ask>>,
}

/// What a Canary says, worked out; the same again while [`MeaningFrom`] is.
#[derive(Clone)]
pub struct Meaning {
    plan: Arc<Plan>,
    workload: Arc<Workload>,
    objects: Arc<[ObjectName]>,
    asks: Arc<BTreeMap<String, Ask>>,
}

/// Everything that it follows from.
#[derive(PartialEq, Eq)]
pub struct MeaningFrom {
    generation: Option<i64>,
    deleting: bool,
    router: String,
    /// Of each template.
    versions: Vec<Option<String>>,
}

/// Why a Canary cannot be carried out.
#[derive(Debug, thiserror::Error)]
pub enum Refused {
    #[error(transparent)]
    Plan(#[from] engine::Refusal),
    #[error(transparent)]
    Workload(#[from] workload::Refusal),
    #[error(transparent)]
    NoRouter(#[from] routing::NoRouter),
    #[error(transparent)]
    Unsupported(#[from] routing::Unsupported),
    #[error("spec.analysis.metrics: {0}")]
    Metric(#[from] metrics::Refusal),
    #[error("the template {name} cannot be read: {why}; correct it")]
    Template { name: String, why: String },
}

/// Why a Canary was not understood.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Refused(#[from] Refused),
    #[error(transparent)]
    Unsynced(#[from] Unsynced),
}

/// A template that a metric names.
struct Found {
    reference: TemplateRef,
    namespace: String,
    spec: AnalysisTemplateSpec,
}

pub async fn understand(shared: &Shared, desk: &Desk, canary: &Arc<Canary>) -> Result<Understood, Error> {
    let Selected { provider, router } = router_for(shared, canary).await.map_err(Refused::from)?;
    let version = |template: Concern| {
        shared.caches.object(&template.kind, &template.namespace, &template.name?)?.resource_version()
    };
    let from = MeaningFrom {
        generation: canary.metadata.generation,
        deleting: canary.metadata.deletion_timestamp.is_some(),
        router: router.name(),
        versions: templates(canary).into_iter().map(version).collect(),
    };
    let known =
        desk.meaning.lock().as_ref().filter(|(known, _)| *known == from).map(|(_, same)| same.clone());
    let mut canary = Arc::clone(canary);
    if canary.spec.provider != Some(provider) {
        Arc::make_mut(&mut canary).spec.provider = Some(provider);
    }
    let Meaning { plan, workload, objects, asks } = match known {
        Some(known) => known,
        None => {
            let meaning = mean(shared, &canary, provider, &*router).await?;
            *desk.meaning.lock() = Some((from, meaning.clone()));
            meaning
        }
    };
    Ok(Understood { canary, plan, workload, router, objects, asks })
}

async fn mean(
    shared: &Shared,
    canary: &Canary,
    provider: Provider,
    router: &dyn Router,
) -> Result<Meaning, Error> {
    let workload = Arc::new(Workload::new(canary, &shared.workload_options).map_err(Refused::from)?);
    let objects = router.objects(canary).into();
    if canary.metadata.deletion_timestamp.is_some() {
        let plan = Arc::new(Plan::for_deletion(&canary.spec));
        return Ok(Meaning { plan, workload, objects, asks: Arc::default() });
    }
    let templates = find_templates(&shared.caches, canary, &shared.options.home).await?;
    let template = |reference: &TemplateRef| templates.iter().find(|found| found.reference == *reference);
    let plan = Plan::new(&canary.spec, |reference| template(reference).map(|found| &found.spec))
        .map_err(Refused::from)?;
    router.check(canary, &plan).map_err(Refused::from)?;
    let subject =
        metrics::Subject { canary, mesh: provider, metrics_server: shared.options.metrics_server.as_deref() };
    let mut asks = BTreeMap::new();
    for (metric, planned) in canary.spec.analysis.metrics.iter().zip(&plan.metrics) {
        let found = metric.template_ref.as_ref().and_then(template).map(|found| metrics::Template {
            name: &found.reference.name,
            namespace: &found.namespace,
            spec: &found.spec,
        });
        let judge = match planned.terms.judge {
            Judge::Threshold(_) => JudgeType::Threshold,
            Judge::Sequential(_) => JudgeType::Sequential,
            Judge::MannWhitney(_) => JudgeType::MannWhitney,
        };
        let ask = Ask::new(&subject, metric, found.as_ref(), judge).map_err(Refused::from)?;
        asks.insert(metric.name.clone(), ask);
    }
    Ok(Meaning { plan: Arc::new(plan), workload, objects, asks: Arc::new(asks) })
}

/// The templates that a Canary names, whose changes concern it.
pub fn templates(canary: &Canary) -> Vec<Concern> {
    let named = canary.spec.analysis.metrics.iter().filter_map(|metric| metric.template_ref.as_ref());
    named
        .map(|reference| {
            let (kind, namespace) = place(reference, &canary.namespace().unwrap_or_default());
            Concern { kind, namespace, name: Some(reference.name.clone()) }
        })
        .collect()
}

/// A mesh that was installed since is found when it is first missed.
pub async fn router_for(shared: &Shared, canary: &Canary) -> Result<Selected, routing::NoRouter> {
    let (written, default) = (canary.spec.provider, shared.options.provider);
    let app_mesh = shared.app_mesh.as_ref();
    let selected = routing::select(written, default, &shared.served.read(), app_mesh);
    let Err(routing::NoRouter::NotServed { .. }) = selected else { return selected };
    match routing::Served::discover(&shared.client).await {
        Ok(served) => *shared.served.write() = served,
        Err(error) => tracing::warn!(%error, "cannot ask which kinds the cluster serves"),
    }
    routing::select(written, default, &shared.served.read(), app_mesh)
}

async fn find_templates(caches: &Caches, canary: &Canary, home: &str) -> Result<Vec<Found>, Error> {
    let own = canary.namespace().unwrap_or_default();
    let mut found: Vec<Found> = Vec::new();
    for reference in canary.spec.analysis.metrics.iter().filter_map(|metric| metric.template_ref.as_ref()) {
        let (kind, namespace) = place(reference, &own);
        caches.need(&kind).await?;
        let Some(object) = caches.object(&kind, &namespace, &reference.name) else { continue };
        let spec = serde_json::from_value(object.data["spec"].clone())
            .map_err(|why| Refused::Template { name: reference.name.clone(), why: why.to_string() })?;
        // A template of the whole cluster has its Secrets beside the controller.
        let namespace = if namespace.is_empty() { home.to_owned() } else { namespace };
        found.push(Found { reference: reference.clone(), namespace, spec });
    }
    Ok(found)
}

fn place(reference: &TemplateRef, own: &str) -> (ApiResource, String) {
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
