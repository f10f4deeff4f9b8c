//! What a world stands on: `serin::local` with a cluster of its own, or the
//! real servers with a namespace of its own.

use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use futures::join;
use k8s_openapi::api::core::v1::Namespace;
use kube::Client;
use kube::api::{Api, PostParams};
use serde_json::{Value, json};
use serin::clock::Clock;
use serin::local::faults::FaultPlan;
use serin::local::mesh::Mesh;
use serin::local::node::address::Network;
use serin::local::node::{Node, NodeOptions};
use serin::local::{Cluster, Local};
use tokio::runtime::Runtime;
use tokio::sync::{OnceCell, oneshot};
use tokio::task::spawn_blocking;
use tokio::time::{advance, sleep};
use tokio_util::task::AbortOnDropHandle;

use super::objects::resource;
use super::{World, spawn};
use crate::support::app_mesh::AppMeshServer;
use crate::support::receiver::{Answer, Receiver};
use crate::support::{self, chart, definitions};

pub enum Ground {
    Local {
        local: Local,
        _cluster: Cluster,
        _mesh: AbortOnDropHandle<()>,
        pace: OnceLock<AbortOnDropHandle<()>>,
    },
    Real(&'static support::Cluster),
}

impl World {
    pub async fn new() -> Self {
        Self::with(serin::local::Options::default()).await
    }

    pub async fn with(options: serin::local::Options) -> Self {
        let local = Local::new(options);
        let cluster = local.start_cluster(false);
        let (client, own, node) = (local.steady_client(), local.client(), cluster.node.clone());
        definitions::install(&client, all_definitions()).await;
        let mesh = mesh(client.clone(), node.clone());
        let following = spawn({
            let mesh = mesh.clone();
            async move { mesh.run().await }
        });
        let (clock, namespace) = (local.clock(), "default".to_owned());
        let ground = Ground::Local { local, _cluster: cluster, _mesh: following, pace: OnceLock::new() };
        let (requests, ground) = (Arc::default(), Arc::new(ground));
        Self { client, clock, namespace, own, node, mesh, requests, ground }
    }

    /// On the real API server with the real controller-manager; only the node
    /// and the mesh are ours.
    pub async fn real() -> Self {
        static SHARED: OnceCell<Machines> = OnceCell::const_new();
        let cluster = support::real().await;
        let options =
            NodeOptions { listen: false, network: Network::Twin, ..NodeOptions::named(support::NODE) };
        let world = Self::on(cluster, SHARED.get_or_init(|| run_machines(cluster, options)).await).await;
        // With the rights that the chart gives, so that they are shown to do.
        Self { own: chart::controller(cluster, &world.namespace).await, ..world }
    }

    /// On servers with a node and a mesh of ours, all on real time.
    pub async fn on(cluster: &'static support::Cluster, (node, mesh): &Machines) -> Self {
        let (node, mesh) = (node.clone(), mesh.clone());
        let (client, own) = (cluster.client().await, cluster.client().await);
        let (clock, namespace) = (Clock::system(), cluster.namespace("release").await);
        let (requests, ground) = (Arc::default(), Arc::new(Ground::Real(cluster)));
        Self { client, clock, namespace, own, node, mesh, requests, ground }
    }

    /// Another namespace of the same cluster.
    pub async fn beside(&self) -> Self {
        static BESIDE: AtomicU32 = AtomicU32::new(1);
        let namespace = match &*self.ground {
            Ground::Real(cluster) => cluster.namespace("release").await,
            Ground::Local { .. } => {
                let name = format!("beside-{}", BESIDE.fetch_add(1, Ordering::Relaxed));
                let namespace: Namespace =
                    serde_json::from_value(json!({"metadata": {"name": name}})).expect("a Namespace");
                let namespaces = Api::all(self.client.clone());
                namespaces.create(&PostParams::default(), &namespace).await.expect("a namespace");
                name
            }
        };
        Self { namespace, ..self.clone() }
    }

    pub fn is_real(&self) -> bool {
        matches!(*self.ground, Ground::Real(_))
    }

    /// Long enough for whatever would happen to have happened: many intervals
    /// where they cost nothing.
    pub async fn a_long_time(&self) {
        let leaps = matches!(&*self.ground, Ground::Local { pace, .. } if pace.get().is_none());
        sleep(Duration::from_secs(if leaps { 120 } else { 8 })).await;
    }

    pub(super) fn patience(&self) -> Duration {
        Duration::from_secs(if self.is_real() { 240 } else { 300 })
    }

    /// Somebody on the other end of a real connection.
    pub async fn receiver(&self, answers: impl IntoIterator<Item = Answer>) -> Receiver {
        self.connect();
        Receiver::start(answers).await
    }

    /// A mesh that is not in the cluster, reached over real connections.
    pub fn app_mesh(&self) -> AppMeshServer {
        self.connect();
        AppMeshServer::start()
    }

    fn connect(&self) {
        if let Ground::Local { pace, .. } = &*self.ground {
            pace.get_or_init(|| spawn(keep_pace()));
        }
    }

    /// From now on requests of the controller fail now and then.
    pub fn set_faults(&self, plan: FaultPlan) {
        let Ground::Local { local, .. } = &*self.ground else { panic!("faults are for the local server") };
        local.set_faults(plan);
    }
}

fn all_definitions() -> impl Iterator<Item = Value> {
    definitions::ours().into_iter().chain(definitions::smi()).chain([definitions::keda()])
}

fn mesh(client: Client, node: Node) -> Mesh {
    Mesh::new(client, resource("TrafficSplit"), Some(resource("HTTPRouteGroup")), node, 1)
}

pub type Machines = (Node, Mesh);

/// One node and one mesh for every world of a cluster, on a thread of their
/// own: they outlive the test that asked first.
pub async fn run_machines(cluster: &'static support::Cluster, options: NodeOptions) -> Machines {
    let (tell, told) = oneshot::channel();
    thread::spawn(move || {
        Runtime::new().expect("a tokio runtime").block_on(async {
            let client = cluster.client().await;
            definitions::install(&client, all_definitions()).await;
            let node = Node::new(client.clone(), options);
            let mesh = mesh(client, node.clone());
            let _ = tell.send((node.clone(), mesh.clone()));
            join!(node.run(), mesh.run());
        });
    });
    told.await.expect("a node and a mesh")
}

/// Paused time leaps to whatever is next, and would leave real connections
/// behind. With somebody at work on another thread it does not leap, but goes
/// as we let it: five times as fast as the clock on the wall.
async fn keep_pace() {
    loop {
        let _ = spawn_blocking(|| thread::sleep(Duration::from_millis(1))).await;
        advance(Duration::from_millis(5)).await;
    }
}
