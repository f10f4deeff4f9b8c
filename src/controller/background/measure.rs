//! Measurements, made in the background: a source that hangs delays its own
//! Canary only. Results land on the Canary's state and wake it.

use std::{collections::BTreeMap, sync::Arc};

use futures::future::join_all;
use jiff::Timestamp;
use k8s_openapi::{
    api::core::v1::{Pod, Secret},
    apimachinery::pkg::util::intstr::IntOrString,
};
use kube::{Api, core::DynamicObject};
use tokio::time::Instant;

use super::{Context, NamespacedName, observe::Observation, resolve::ResolvedCanary, state::CanaryState};
use crate::{
    analysis::measurement::{Arms, Measurement},
    api::CanaryStatus,
    engine::{action::Check, observed::CheckMeasurements},
    metrics::{Credentials, Endpoint, MeasureContext, MetricQuery, Window, scrape},
    routing,
};

/// Measures what a check asks for, unless somebody does already.
pub fn start_measurement(
    ctx: &Arc<Context>,
    state: &Arc<CanaryState>,
    resolved: &Arc<ResolvedCanary>,
    observation: &Observation,
    check: &Check,
) {
    if !state.pending_results.lock().start_check(check) {
        return;
    }
    let arms = observation.selectors.clone().unwrap_or_default();
    let name = NamespacedName::of(&*resolved.canary);
    let (check, state, resolved) = (check.clone(), Arc::clone(state), Arc::clone(resolved));
    ctx.in_background(&name.clone(), async move |ctx| {
        let (until, began) = (ctx.clock.now(), Instant::now());
        let known = |metric: &String, since: Timestamp| {
            let query = resolved.queries.get(metric)?;
            let known = query.available_window(Window { since, until }).until;
            (known < until).then(|| (metric.clone(), known))
        };
        let available_until =
            check.metrics.iter().filter_map(|asked| known(&asked.metric, asked.since)).collect();
        let one = async |metric: &String, since: Timestamp| {
            let measured = match resolved.queries.get(metric) {
                Some(query) => measure_one(&ctx, &resolved, &arms, query, Window { since, until }).await,
                None => Measurement::Unavailable { why: "the Canary no longer names it".to_owned() },
            };
            (metric.clone(), measured)
        };
        let results = join_all(check.metrics.iter().map(|asked| one(&asked.metric, asked.since))).await;
        let results = BTreeMap::from_iter(results);
        ctx.options.telemetry.observe_check(&name, began.elapsed());
        state.pending_results.lock().finish_check(CheckMeasurements {
            check: check.clone(),
            at: until,
            available_until,
            results,
        });
        ctx.requests.request(name);
    });
}

/// The first window of a step opens: sources without a memory take note. After
/// a restart that is now, since nobody remembers.
pub fn open_window(
    ctx: &Arc<Context>,
    state: &Arc<CanaryState>,
    resolved: &Arc<ResolvedCanary>,
    observation: &Observation,
    status: &CanaryStatus,
) {
    let looking = status.step.as_ref().filter(|step| step.check_started_at.is_some());
    let step = looking.map(|step| (status.releases, step.index));
    let reads_pods = resolved.queries.values().any(MetricQuery::reads_pods);
    if !state.pending_results.lock().is_first_window(step) || !reads_pods {
        return;
    }
    let (arms, resolved) = (observation.selectors.clone().unwrap_or_default(), Arc::clone(resolved));
    let name = NamespacedName::of(&*resolved.canary);
    ctx.in_background(&name, async move |ctx| {
        let now = ctx.clock.now();
        let window = Window { since: now, until: now };
        let opened = async |query: &MetricQuery| {
            let pods = endpoints(&ctx, &resolved, &arms, query);
            ctx.sources.open_window(query, &MeasureContext { window, pods: &pods }).await;
        };
        join_all(resolved.queries.values().filter(|query| query.reads_pods()).map(opened)).await;
    });
}

async fn measure_one(
    ctx: &Context,
    resolved: &ResolvedCanary,
    selectors: &routing::PodSelectors,
    query: &MetricQuery,
    window: Window,
) -> Measurement {
    let mut credentials = None;
    if let Some(secret) = &query.secret {
        let secrets: Api<Secret> = Api::namespaced(ctx.client.clone(), &secret.namespace);
        match secrets.get_opt(&secret.name).await {
            Ok(found) => credentials = found.as_ref().map(Credentials::from),
            Err(error) => {
                let why = format!("the Secret {} cannot be read: {error}", secret.name);
                return Measurement::Unavailable { why };
            }
        }
    }
    let pods = match query.reads_pods() {
        true => endpoints(ctx, resolved, selectors, query),
        false => Arms { canary: Vec::new(), primary: Vec::new() },
    };
    let measured =
        ctx.sources.measure(query, credentials.as_ref(), &MeasureContext { window, pods: &pods }).await;
    ctx.options.telemetry.observe_query(&query.provider.type_, &measured);
    measured
}

/// Where the pods of both arms show their metrics.
fn endpoints(
    ctx: &Context,
    resolved: &ResolvedCanary,
    selectors: &routing::PodSelectors,
    query: &MetricQuery,
) -> Arms<Vec<Endpoint>> {
    let port = metrics_port(resolved, selectors);
    let of = |labels: &BTreeMap<String, String>| {
        let pods = ctx.caches.pods(resolved.workload.namespace(), labels);
        let endpoint = |pod: &Arc<DynamicObject>| {
            let status = serde_json::from_value(pod.data["status"].clone()).ok();
            let pod = Pod { metadata: pod.metadata.clone(), spec: None, status };
            scrape::endpoint(&pod, query.provider.scrape.as_ref(), port)
        };
        pods.iter().filter_map(endpoint).collect()
    };
    Arms { canary: of(&selectors.canary), primary: of(&selectors.primary) }
}

/// The port that the pods are reached at, unless something says otherwise.
fn metrics_port(resolved: &ResolvedCanary, selectors: &routing::PodSelectors) -> u16 {
    let Some(service) = &resolved.canary.spec.service else { return 80 };
    match &service.target_port {
        Some(IntOrString::Int(port)) => u16::try_from(*port).unwrap_or(service.port),
        Some(IntOrString::String(name)) => selectors.ports.get(name).copied().unwrap_or(service.port),
        None => service.port,
    }
}
