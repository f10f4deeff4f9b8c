//! Whole releases, judged by what a real Prometheus has read from real pods.
//!
//! Time is real here, so all releases go on at once, each in a namespace of
//! its own, with one Prometheus for all of them but the one that loses it.

#[path = "../support/mod.rs"]
mod support;
// It has more to offer than these releases need.
#[allow(dead_code)]
#[path = "../release/world.rs"]
mod world;

mod ends;
mod queries;
mod silence;
mod told;

use std::sync::Arc;
use std::time::Instant;

use futures::FutureExt;
use futures::future::BoxFuture;
use serde_json::{Value, json};
use serin::api::canary::Phase;
use serin::local::node::address::Network;
use serin::local::node::{Node, NodeOptions};
use tokio::task::JoinSet;
use tokio_util::task::AbortOnDropHandle;

use support::Cluster;
use support::prometheus::Prometheus;
use world::{Running, World};

#[tokio::test(flavor = "multi_thread")]
async fn releases_on_local() {
    all_releases(support::local().await, Network::Loopback).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn releases_on_real_servers() {
    all_releases(support::real().await, Network::Twin).await;
}

async fn all_releases(cluster: &'static Cluster, network: Network) {
    let stage = Stage::new(cluster, network).await;
    let releases: [(&str, BoxFuture<()>); 9] = [
        ("the healthy is promoted", ends::the_healthy_is_promoted(stage.clone()).boxed()),
        ("errors roll back", ends::errors_roll_back(stage.clone()).boxed()),
        ("slowness rolls back", ends::slowness_rolls_back(stage.clone()).boxed()),
        ("thresholds as Flagger means them", queries::thresholds_of_flagger(stage.clone()).boxed()),
        ("a query of its own", queries::a_query_of_its_own(stage.clone()).boxed()),
        ("a token that changes", queries::a_token_that_changes(stage.clone()).boxed()),
        ("Prometheus is killed", silence::prometheus_is_killed(stage.clone()).boxed()),
        ("no traffic", silence::no_traffic(stage.clone()).boxed()),
        ("every chat is told", told::every_chat_is_told(stage.clone()).boxed()),
    ];
    let mut running = JoinSet::new();
    for (name, release) in releases {
        running.spawn(async move {
            let began = Instant::now();
            let ended = tokio::spawn(release).await;
            println!("{name}: {} after {:.0?}", if ended.is_ok() { "ok" } else { "FAILED" }, began.elapsed());
            (name, ended.is_ok())
        });
    }
    let ended = running.join_all().await;
    let failed: Vec<_> = ended.into_iter().filter(|(_, ok)| !ok).map(|(name, _)| name).collect();
    assert!(failed.is_empty(), "{failed:?}");
}

/// What the releases of one cluster share.
struct Stage {
    cluster: &'static Cluster,
    node: Node,
    prometheus: Prometheus,
    _running: AbortOnDropHandle<()>,
}

impl Stage {
    async fn new(cluster: &'static Cluster, network: Network) -> Arc<Stage> {
        let options = NodeOptions { network, ..NodeOptions::named(support::NODE) };
        let node = Node::new(cluster.client().await, options);
        let running = AbortOnDropHandle::new(tokio::spawn({
            let node = node.clone();
            async move { node.run().await }
        }));
        let prometheus = Prometheus::of_pods(&cluster.kubeconfig()).await;
        Arc::new(Stage { cluster, node, prometheus, _running: running })
    }

    async fn world(&self) -> World {
        World::shared(self.cluster, self.node.clone()).await
    }

    /// A world whose Canary is judged by the Prometheus of all, with the
    /// controller at work and `web:v1` promoted.
    async fn initialized(&self, analysis: Value) -> (World, Running) {
        let world = self.world().await;
        let running = initialize(&world, &self.prometheus, analysis).await;
        (world, running)
    }
}

/// Applies a Canary with this analysis beside what it needs, and waits until
/// it is initialized.
async fn initialize(world: &World, prometheus: &Prometheus, analysis: Value) -> Running {
    let mut spec = json!({
        "metricsServer": prometheus.url(),
        "analysis": {"interval": "3s", "stepWeights": [20, 50]},
    });
    json_patch::merge(&mut spec["analysis"], &analysis);
    world.canary(spec).await;
    let running = world.serin().await;
    world.reaches(Phase::Initialized).await;
    running
}
