//! Whole releases, judged by a real Prometheus that scrapes real pods.
//!
//! The same on `kube_local` and on the real servers. Time is real here, so
//! all releases of a server go on at once, each in a namespace of its own, with
//! one Prometheus for all but the one that loses it. To run one release, name
//! it: `SCENARIO=missing_traffic_holds_the_release`.

#[path = "../support/mod.rs"]
mod support;
#[path = "../world/mod.rs"]
mod world;

mod no_data;
mod notifications;
mod outcomes;
mod queries;

use std::sync::Arc;

use kube_local::node::NodeOptions;
use kube_local::node::address::Network;
use serde_json::{Value, json};
use support::Cluster;
use support::prometheus::Prometheus;

use world::together::{Scenario, together};
use world::{NodeAndMesh, Running, World, run_node_and_mesh};

#[tokio::test(flavor = "multi_thread")]
async fn local() {
    all_releases(support::local().await, Network::Loopback).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn real() {
    all_releases(support::real().await, Network::Private).await;
}

async fn all_releases(cluster: &'static Cluster, network: Network) {
    let stage = Stage::new(cluster, network).await;
    macro_rules! releases {
        ($($file:ident::$name:ident)*) => {
            vec![$((stringify!($name), Box::pin($file::$name(Arc::clone(&stage))) as Scenario)),*]
        };
    }
    together(releases![
        outcomes::a_healthy_revision_is_promoted
        outcomes::errors_roll_back
        outcomes::slowness_rolls_back
        queries::thresholds_judge_as_in_flagger
        queries::a_custom_query_judges_a_release
        queries::a_rotated_token_is_used
        no_data::a_killed_prometheus_holds_the_release
        no_data::missing_traffic_holds_the_release
        notifications::every_chat_is_notified
    ])
    .await;
}

/// The fixture that the releases on one server share.
struct Stage {
    cluster: &'static Cluster,
    node_and_mesh: NodeAndMesh,
    prometheus: Prometheus,
}

impl Stage {
    async fn new(cluster: &'static Cluster, network: Network) -> Arc<Stage> {
        let machines =
            run_node_and_mesh(cluster, NodeOptions { network, ..NodeOptions::named(support::NODE) });
        let machines = machines.await;
        let prometheus = Prometheus::of_pods(&cluster.kubeconfig()).await;
        Arc::new(Stage { cluster, node_and_mesh: machines, prometheus })
    }

    async fn world(&self) -> World {
        World::on(self.cluster, &self.node_and_mesh).await
    }

    /// A world whose Canary is judged by the Prometheus of all, and is
    /// initialized.
    async fn initialized(&self, analysis: Value) -> (World, Running) {
        let world = self.world().await;
        let serin = initialized(&world, &self.prometheus, analysis).await;
        (world, serin)
    }
}

async fn initialized(world: &World, prometheus: &Prometheus, mut analysis: Value) -> Running {
    analysis["interval"] = json!("3s");
    world.initialized(json!({"metricsServer": prometheus.url(), "analysis": analysis})).await
}
