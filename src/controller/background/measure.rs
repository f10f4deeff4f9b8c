//! Measurements in the background: a source that hangs delays its own Canary
//! only. Results wait in [`SharedResults`] and request a reconcile.

use std::{collections::BTreeMap, sync::Arc};

use futures::future::join_all;
use jiff::Timestamp;
use k8s_openapi::{
    api::core::v1::{Pod, Secret},
    apimachinery::pkg::util::intstr::IntOrString,
};
use kube::{Api, ResourceExt as _, core::DynamicObject};
use tokio::time::Instant;

use super::{pools::TaskKind, results::SharedResults};
use crate::{
    analysis::measurement::{Arms, Measurement},
    api::{Canary, CanaryStatus},
    controller::{context::Context, queue::trigger::NamespacedName},
    engine::{action::Check, observed::CheckMeasurements},
    metrics::{Credentials, Endpoint, MeasureContext, MetricQuery, Window, scrape},
    routing::PodSelectors,
};

/// A Canary to be measured: its queries, and the selectors of its pods.
#[derive(Clone)]
pub struct MeasuredCanary {
    pub canary: Arc<Canary>,
    /// By metric name.
    pub queries: Arc<BTreeMap<String, MetricQuery>>,
    pub selectors: Arc<PodSelectors>,
}

/// Starts the measurements of a check, unless they are in progress.
pub fn start_measurement(
    ctx: &Arc<Context>,
    results: &SharedResults,
    measured: MeasuredCanary,
    check: &Check,
) {
    let Some(cancellation) = results.lock().start_check(check) else { return };
    let key = NamespacedName::of(&*measured.canary);
    let (check, results) = (check.clone(), Arc::clone(results));
    let (name, cancelled) = (key.clone(), cancellation.cancelled_owned());
    // One check at a time: it is not dropped.
    let _ = ctx.in_background(TaskKind::Measurement, &key, cancelled, async move |ctx| {
        let (until, began) = (ctx.clock.now(), Instant::now());
        // Empty, not negative, if the wall clock was stepped back.
        let window = |since: Timestamp| Window { since: since.min(until), until };
        let late = |metric: &String, since: Timestamp| {
            let query = measured.queries.get(metric)?;
            let available_until = query.available_window(window(since)).until;
            (available_until < until).then(|| (metric.clone(), available_until))
        };
        let available_until =
            check.metrics.iter().filter_map(|window| late(&window.metric, window.since)).collect();
        let measure = async |metric: &String, since: Timestamp| match measured.queries.get(metric) {
            Some(query) => measured.measure(&ctx, query, window(since)).await,
            None => (Measurement::Unavailable { why: "the Canary no longer names it".to_owned() }, until),
        };
        let measurements =
            join_all(check.metrics.iter().map(|window| measure(&window.metric, window.since))).await;
        let names = || check.metrics.iter().map(|window| window.metric.clone());
        let known_until = names().zip(measurements.iter().map(|(_, known)| *known));
        let results_by_name = names().zip(measurements.iter().map(|(measurement, _)| measurement.clone()));
        ctx.telemetry.observe_check(&name, began.elapsed());
        let measured = CheckMeasurements {
            check: check.clone(),
            at: until,
            available_until,
            known_until: known_until.filter(|(_, known)| *known < until).collect(),
            results: results_by_name.collect(),
        };
        ctx.telemetry.live.record_measurements(&name, &measured);
        results.lock().finish_check(measured);
        ctx.requests.request(name);
    });
}

/// Opens the first window of a step: sources without a history take their first
/// sample. After a restart that is now, since samples are not persisted.
pub fn open_window(
    ctx: &Arc<Context>,
    results: &SharedResults,
    measured: MeasuredCanary,
    status: &CanaryStatus,
) {
    let step = status.step.as_ref().filter(|step| step.check_started_at.is_some());
    let step = step.map(|step| (status.releases, step.index));
    let reads_pods = measured.queries.values().any(MetricQuery::reads_pods);
    let mut pending = results.lock();
    if !pending.is_first_window(step) || !reads_pods {
        return;
    }
    let key = NamespacedName::of(&*measured.canary);
    let cancelled = pending.cancellation().cancelled_owned();
    drop(pending);
    // A window that is not opened begins with its first check.
    let _ = ctx.in_background(TaskKind::Measurement, &key, cancelled, async move |ctx| {
        let now = ctx.clock.now();
        let window = Window { since: now, until: now };
        let open = async |query: &MetricQuery| {
            let pods = measured.endpoints(&ctx, query);
            ctx.sources.open_window(query, &MeasureContext { window, pods: &pods }).await;
        };
        join_all(measured.queries.values().filter(|query| query.reads_pods()).map(open)).await;
    });
}

impl MeasuredCanary {
    /// The measurement, and until when it has the requests of all pods.
    async fn measure(&self, ctx: &Context, query: &MetricQuery, window: Window) -> (Measurement, Timestamp) {
        let mut credentials = None;
        if let Some(secret) = &query.secret {
            let secrets: Api<Secret> = Api::namespaced(ctx.client.clone(), &secret.namespace);
            match secrets.get_opt(&secret.name).await {
                Ok(found) => credentials = found.as_ref().map(Credentials::from),
                Err(error) => {
                    let why = format!("the Secret {} cannot be read: {error}", secret.name);
                    return (Measurement::Unavailable { why }, window.until);
                }
            }
        }
        let pods = match query.reads_pods() {
            true => self.endpoints(ctx, query),
            false => Arms { canary: Vec::new(), primary: Vec::new() },
        };
        let context = MeasureContext { window, pods: &pods };
        let (measurement, known_until) = futures::join!(
            ctx.sources.measure(query, credentials.as_ref(), &context),
            ctx.sources.known_until(query, credentials.as_ref(), &context)
        );
        ctx.telemetry.observe_query(&query.provider.type_, &measurement);
        (measurement, known_until)
    }

    /// Addresses at which the pods of both arms expose their metrics.
    fn endpoints(&self, ctx: &Context, query: &MetricQuery) -> Arms<Vec<Endpoint>> {
        let port = self.metrics_port();
        let namespace = self.canary.namespace().unwrap_or_default();
        let of = |labels: &BTreeMap<String, String>| {
            let pods = ctx.caches.pods(&namespace, labels);
            let endpoint = |pod: &Arc<DynamicObject>| {
                let status = serde_json::from_value(pod.data["status"].clone()).ok();
                let pod = Pod { metadata: pod.metadata.clone(), spec: None, status };
                scrape::endpoint(&pod, query.provider.scrape.as_ref(), port)
            };
            pods.iter().filter_map(endpoint).collect()
        };
        Arms { canary: of(&self.selectors.canary), primary: of(&self.selectors.primary) }
    }

    /// The Service's target port, unless the pod or the query names another.
    fn metrics_port(&self) -> u16 {
        let Some(service) = &self.canary.spec.service else { return 80 };
        match &service.target_port {
            Some(IntOrString::Int(port)) => u16::try_from(*port).unwrap_or(service.port),
            Some(IntOrString::String(name)) => {
                self.selectors.ports.get(name).copied().unwrap_or(service.port)
            }
            None => service.port,
        }
    }
}
