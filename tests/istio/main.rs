//! Releases through the real Istio: istiod with the real API server above it
//! and a real Envoy below it, and requests through that Envoy.
//!
//! `make test-istio` sets up the servers and runs it.

#[path = "../support/mod.rs"]
mod support;
#[path = "../world/mod.rs"]
mod world;

mod callers;
mod mesh;

use std::sync::Arc;
use std::time::Duration;

use http::{Method, Request};
use kube::Client;
use kube_local::node::NodeOptions;
use kube_local::node::address::Network;
use parking_lot::Mutex;
use serde_json::{Value, json};
use serin::api::Weight;
use serin::api::canary::Phase;
use serin::controller::fence::Fence;
use serin::controller::{Controller, Environment};
use serin::gates::commands::{self, Caller, CanaryRef};
use serin::metrics::scrape::HttpFetch;
use support::Extras;
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;

use callers::Callers;
use mesh::Mesh;
use world::{World, run_node_and_mesh, spawn};

/// So many requests at each weight, with this deviation in percent.
const REQUESTS: usize = 20_000;
const MAX_SHARE_ERROR: f64 = 1.0;

/// Releases from nothing to everything: two moments each at which the responses
/// show which weight is in force.
const ROUTE_CHANGES: u64 = 5;

#[tokio::test(flavor = "multi_thread")]
async fn requests_follow_the_weights_of_a_release() {
    let extras = Extras { without: Some("endpointslice-controller"), ..Extras::default() };
    let cluster: &'static support::Cluster = Box::leak(Box::new(support::real_with(extras).await));
    let options = NodeOptions { network: Network::Private, ..NodeOptions::named(support::NODE) };
    let machines = run_node_and_mesh(cluster, options).await;
    let world = World::on(cluster, &machines).await;
    let mesh = Mesh::start(cluster, &world.namespace).await;

    let step = |weight: u64| json!({"name": format!("at {weight}"), "weight": weight, "approval": {}});
    world
        .canary(json!({
            "provider": "istio",
            "service": {"gateways": ["public"], "hosts": ["web.example"]},
            "analysis": {"stepWeights": null, "steps": [step(5), step(20), step(100)], "metrics": null},
        }))
        .await;
    let writes = RouteWrites::default();
    let _serin = serin(&world, cluster.client().await, &writes).await;
    world.reaches(Phase::Initialized).await;
    let callers = Callers::start(&mesh.url());
    let served = async || callers.next(20).await.iter().all(|answer| answer.by_canary == Ok(false));
    let deadline = Instant::now() + Duration::from_secs(120);
    while !served().await {
        assert!(Instant::now() < deadline, "nobody answers: {}", mesh.state().await);
    }

    let began = Instant::now();
    world.push("web:v2").await;
    for weight in [5, 20, 100] {
        world.event_contains(&format!("at {weight}")).await;
        let asked = Weight::from_percent(weight as f64).expect("a weight");
        world.becomes("at its weight", |status| status.canary_weight == asked).await;
        let written = writes.last();
        until(&callers, |callers| callers.first(written.answered_at, true).is_some()).await;
        let answers = callers.next(REQUESTS).await;
        let by_canary = answers.iter().filter(|answer| answer.by_canary == Ok(true)).count();
        let share = 100.0 * by_canary as f64 / REQUESTS as f64;
        println!("weight {weight} %: {share:.2} % of {REQUESTS} requests were answered by the canary");
        assert!(answers.iter().all(|answer| answer.by_canary.is_ok()), "{}", mesh.state().await);
        assert!(
            (share - weight as f64).abs() <= MAX_SHARE_ERROR,
            "{weight} % was asked for, {share} % measured"
        );
        let web = CanaryRef { namespace: &world.namespace, name: "web" };
        commands::approve(&world.client, &Caller::Current, web, None).await.expect("an approval");
    }
    world.released(1).await;

    world.edit(json!({"analysis": {"steps": [{"weight": 100}]}})).await;
    let mut delays = Vec::new();
    for release in 2..2 + ROUTE_CHANGES {
        let before = writes.count();
        world.push(&format!("web:v{}", release + 1)).await;
        world.released(release).await;
        for (to, written) in writes.weights(before) {
            until(&callers, |callers| callers.first(written.sent_at, to > 0).is_some()).await;
            let first = callers.first(written.sent_at, to > 0).expect("an answer");
            delays.push((first - written.sent_at).as_secs_f64() * 1000.0);
        }
    }
    assert_eq!(delays.len() as u64, 2 * ROUTE_CHANGES, "there and back: {delays:?}");
    delays.sort_by(f64::total_cmp);
    let at = |share: f64| delays[((delays.len() as f64 * share).ceil() as usize).clamp(1, delays.len()) - 1];
    println!(
        "from Serin's write to the first answer by the new weight, {} steps: p50 {:.0} ms, p99 {:.0} ms ({:.0} to {:.0})",
        delays.len(),
        at(0.5),
        at(0.99),
        delays[0],
        delays[delays.len() - 1],
    );
    let failed = callers.since(began).into_iter().filter_map(|answer| {
        let why = answer.by_canary.err()?;
        Some(format!("{}: {why}", writes.before(answer.answered_at)))
    });
    let failures: Vec<String> = failed.collect();
    println!("{} of {} requests failed", failures.len(), callers.since(began).len());
    assert!(failures.is_empty(), "{}\n{}", failures.join("\n"), mesh.state().await);
}

/// Waits until the callers have seen it.
async fn until(callers: &Callers, is_in_sync: impl Fn(&Callers) -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !is_in_sync(callers) {
        assert!(Instant::now() < deadline, "the proxy never followed");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// The controller, as it would run in a cluster.
async fn serin(world: &World, client: Client, writes: &RouteWrites) -> AbortOnDropHandle<()> {
    let fetch = Arc::new(HttpFetch::new().expect("an HTTP client"));
    let (client, options) = (writes.timed(client), world.options());
    let controller =
        Controller::new(Environment::new(client, world.clock, fetch), Fence::unsharded(), options).await;
    spawn(controller.expect("a controller").run(std::future::pending()))
}

/// When the controller wrote the VirtualService, and what weight.
#[derive(Clone, Default)]
struct RouteWrites(Arc<Mutex<Vec<(u64, RouteWrite)>>>);

#[derive(Clone, Copy)]
struct RouteWrite {
    sent_at: Instant,
    answered_at: Instant,
}

impl RouteWrites {
    /// A client whose writes are timed.
    fn timed(&self, client: Client) -> Client {
        let writes = self.clone();
        let service = tower::service_fn(move |request: Request<kube::client::Body>| {
            let (client, writes) = (client.clone(), writes.clone());
            async move {
                let routes = request.uri().path().ends_with("/virtualservices/web");
                if !routes || ![Method::PATCH, Method::PUT].contains(request.method()) {
                    return Ok(client.send(request).await?);
                }
                let sent = Instant::now();
                let answer = client.send(request).await?;
                let (head, body) = answer.into_parts();
                let body = http_body_util::BodyExt::collect(body).await?.to_bytes();
                if let Some(weight) = weight(&body).filter(|_| head.status.is_success()) {
                    writes.0.lock().push((weight, RouteWrite { sent_at: sent, answered_at: Instant::now() }));
                }
                Ok::<_, tower::BoxError>(http::Response::from_parts(
                    head,
                    kube::client::Body::from(body.to_vec()),
                ))
            }
        });
        Client::new(service, "default")
    }

    fn last(&self) -> RouteWrite {
        self.0.lock().last().expect("a write").1
    }

    fn count(&self) -> usize {
        self.0.lock().len()
    }

    /// The last write before this moment, and its duration.
    fn before(&self, moment: Instant) -> String {
        let all = self.0.lock();
        let last = all.iter().rev().find(|(_, written)| written.sent_at <= moment);
        last.map_or_else(String::new, |(weight, written)| {
            format!("{} ms after weight {weight} was written", (moment - written.sent_at).as_millis())
        })
    }

    /// Those after the first so many that changed the weight, in order.
    fn weights(&self, after: usize) -> Vec<(u64, RouteWrite)> {
        let mut all = self.0.lock()[after..].to_vec();
        all.dedup_by_key(|(weight, _)| *weight);
        // Before the first of them it was nothing.
        all.into_iter().skip_while(|(weight, _)| *weight == 0).collect()
    }
}

/// The canary's weight in a VirtualService.
fn weight(virtual_service: &[u8]) -> Option<u64> {
    let object: Value = serde_json::from_slice(virtual_service).ok()?;
    object["spec"]["http"][0]["route"].as_array()?.iter().find_map(|route| {
        let to_canary = route["destination"]["host"].as_str()?.starts_with("web-canary");
        to_canary.then(|| route["weight"].as_u64().unwrap_or(0))
    })
}
