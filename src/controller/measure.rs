//! Measurements, made in the background: a source that hangs delays its own
//! Canary only. Results land on the Canary's desk and wake it.

use std::{collections::BTreeMap, sync::Arc};

use futures::future::join_all;
use jiff::Timestamp;
use k8s_openapi::{
    api::core::v1::{Pod, Secret},
    apimachinery::pkg::util::intstr::IntOrString,
};
use kube::{Api, core::DynamicObject};
use tokio::time::Instant;

use super::{CanaryName, Shared, desk::Desk, observe::Seen, understand::Understood};
use crate::{
    analysis::measurement::{Arms, Measurement},
    api::CanaryStatus,
    engine::{action::Look, observed::Measured},
    metrics::{Ask, Credentials, Endpoint, View, Window, scrape},
    routing,
};

/// Measures what a look asks for, unless somebody does already.
pub fn measure(
    shared: &Arc<Shared>,
    desk: &Arc<Desk>,
    understood: &Arc<Understood>,
    seen: &Seen,
    look: &Look,
) {
    if !desk.inbox.lock().measure(look) {
        return;
    }
    let arms = seen.arms.clone().unwrap_or_default();
    let name = CanaryName::of(&*understood.canary);
    let (look, desk, understood) = (look.clone(), Arc::clone(desk), Arc::clone(understood));
    shared.in_background(&name.clone(), async move |shared| {
        let (until, began) = (shared.clock.now(), Instant::now());
        let known = |metric: &String, since: Timestamp| {
            let ask = understood.asks.get(metric)?;
            let known = ask.known(Window { since, until }).until;
            (known < until).then(|| (metric.clone(), known))
        };
        let known_until = look.metrics.iter().filter_map(|asked| known(&asked.metric, asked.since)).collect();
        let one = async |metric: &String, since: Timestamp| {
            let measured = match understood.asks.get(metric) {
                Some(ask) => measure_one(&shared, &understood, &arms, ask, Window { since, until }).await,
                None => Measurement::Unavailable { why: "the Canary no longer names it".to_owned() },
            };
            (metric.clone(), measured)
        };
        let results = join_all(look.metrics.iter().map(|asked| one(&asked.metric, asked.since))).await;
        let results = BTreeMap::from_iter(results);
        shared.options.vitals.looked(&name, began.elapsed());
        desk.inbox.lock().measured(Measured { look: look.clone(), at: until, known_until, results });
        shared.waker.wake(name);
    });
}

/// The first window of a step opens: sources without a memory take note. After
/// a restart that is now, since nobody remembers.
pub fn begin(
    shared: &Arc<Shared>,
    desk: &Arc<Desk>,
    understood: &Arc<Understood>,
    seen: &Seen,
    status: &CanaryStatus,
) {
    let looking = status.step.as_ref().filter(|step| step.look_started_at.is_some());
    let step = looking.map(|step| (status.releases, step.index));
    let reads_pods = understood.asks.values().any(Ask::reads_pods);
    if !desk.inbox.lock().begins(step) || !reads_pods {
        return;
    }
    let (arms, understood) = (seen.arms.clone().unwrap_or_default(), Arc::clone(understood));
    let name = CanaryName::of(&*understood.canary);
    shared.in_background(&name, async move |shared| {
        let now = shared.clock.now();
        let window = Window { since: now, until: now };
        let opened = async |ask: &Ask| {
            let pods = endpoints(&shared, &understood, &arms, ask);
            shared.sources.begin(ask, &View { window, pods: &pods }).await;
        };
        join_all(understood.asks.values().filter(|ask| ask.reads_pods()).map(opened)).await;
    });
}

async fn measure_one(
    shared: &Shared,
    understood: &Understood,
    arms: &routing::Arms,
    ask: &Ask,
    window: Window,
) -> Measurement {
    let mut credentials = None;
    if let Some(secret) = &ask.secret {
        let secrets: Api<Secret> = Api::namespaced(shared.client.clone(), &secret.namespace);
        match secrets.get_opt(&secret.name).await {
            Ok(found) => credentials = found.as_ref().map(Credentials::from),
            Err(error) => {
                let why = format!("the Secret {} cannot be read: {error}", secret.name);
                return Measurement::Unavailable { why };
            }
        }
    }
    let pods = match ask.reads_pods() {
        true => endpoints(shared, understood, arms, ask),
        false => Arms { canary: Vec::new(), primary: Vec::new() },
    };
    let measured = shared.sources.measure(ask, credentials.as_ref(), &View { window, pods: &pods }).await;
    shared.options.vitals.measured(&ask.provider.type_, &measured);
    measured
}

/// Where the pods of both arms show their metrics.
fn endpoints(
    shared: &Shared,
    understood: &Understood,
    arms: &routing::Arms,
    ask: &Ask,
) -> Arms<Vec<Endpoint>> {
    let port = metrics_port(understood, arms);
    let of = |labels: &BTreeMap<String, String>| {
        let pods = shared.caches.pods(understood.workload.namespace(), labels);
        let endpoint = |pod: &Arc<DynamicObject>| {
            let status = serde_json::from_value(pod.data["status"].clone()).ok();
            let pod = Pod { metadata: pod.metadata.clone(), spec: None, status };
            scrape::endpoint(&pod, ask.provider.scrape.as_ref(), port)
        };
        pods.iter().filter_map(endpoint).collect()
    };
    Arms { canary: of(&arms.canary), primary: of(&arms.primary) }
}

/// The port that the pods are reached at, unless something says otherwise.
fn metrics_port(understood: &Understood, arms: &routing::Arms) -> u16 {
    let Some(service) = &understood.canary.spec.service else { return 80 };
    match &service.target_port {
        Some(IntOrString::Int(port)) => u16::try_from(*port).unwrap_or(service.port),
        Some(IntOrString::String(name)) => arms.ports.get(name).copied().unwrap_or(service.port),
        None => service.port,
    }
}
