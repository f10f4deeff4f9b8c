//! The backends of a world: `kube_local` with a cluster of its own, or the real
//! servers with a namespace of its own.

use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use futures::join;
use k8s_openapi::api::core::v1::Namespace;
use kube::Client;
use kube::api::{Api, PostParams};
use kube_local::faults::FaultPlan;
use kube_local::mesh::Mesh;
use kube_local::node::address::Network;
use kube_local::node::{Node, NodeOptions};
use kube_local::{ApiServer, Cluster};
use serde_json::{Value, json};
use serin::clock::Clock;
use tokio::runtime::Runtime;
use tokio::sync::{OnceCell, oneshot};
use tokio::task::spawn_blocking;
use tokio::time::{advance, sleep};
use tokio_util::task::AbortOnDropHandle;

use super::objects::resource;
use super::{World, refusals::Refusals, spawn};
use crate::support::app_mesh::AppMeshServer;
use crate::support::receiver::{CannedResponse, Receiver};
use crate::support::{self, chart, definitions};

pub enum Backend {
    Local {
        local: ApiServer,
        _cluster: Cluster,
        _mesh: AbortOnDropHandle<()>,
        pace: OnceLock<AbortOnDropHandle<()>>,
    },
    Real(&'static support::Cluster),
}

impl World {
    pub async fn new() -> Self {
        Self::with(kube_local::Options::default()).await
    }

    pub async fn with(options: kube_local::Options) -> Self {
        let local = ApiServer::new(options);
        let cluster = local.start_cluster(false);
        let (client, own, node) = (local.fault_exempt_client(), local.client(), cluster.node.clone());
        definitions::install(&client, all_definitions()).await;
        let mesh = mesh(client.clone(), node.clone());
        let following = spawn({
            let mesh = mesh.clone();
            async move { mesh.run().await }
        });
        let (clock, namespace) = (local.clock(), "default".to_owned());
        let backend = Backend::Local { local, _cluster: cluster, _mesh: following, pace: OnceLock::new() };
        let (requests, backend) = (Arc::default(), Arc::new(backend));
        Self {
            client,
            clock,
            namespace,
            controller_client: own,
            node,
            mesh,
            requests,
            refusals: Refusals::default(),
            backend,
        }
    }

    /// On the real API server with the real controller-manager; only the node
    /// and the mesh are ours.
    pub async fn real() -> Self {
        static SHARED: OnceCell<NodeAndMesh> = OnceCell::const_new();
        let cluster = support::real().await;
        let options =
            NodeOptions { listen: false, network: Network::Private, ..NodeOptions::named(support::NODE) };
        let world = Self::on(cluster, SHARED.get_or_init(|| run_node_and_mesh(cluster, options)).await).await;
        // With the rights that the chart gives: they must suffice.
        Self { controller_client: chart::controller(cluster, &world.namespace).await, ..world }
    }

    /// On servers with a node and a mesh of ours, all on real time.
    pub async fn on(cluster: &'static support::Cluster, (node, mesh): &NodeAndMesh) -> Self {
        let (node, mesh) = (node.clone(), mesh.clone());
        let (client, own) = (cluster.client().await, cluster.client().await);
        let (clock, namespace) = (Clock::system(), cluster.namespace("release").await);
        let (requests, backend) = (Arc::default(), Arc::new(Backend::Real(cluster)));
        Self {
            client,
            clock,
            namespace,
            controller_client: own,
            node,
            mesh,
            requests,
            refusals: Refusals::default(),
            backend,
        }
    }

    /// Another namespace of the same cluster.
    pub async fn in_new_namespace(&self) -> Self {
        static NEXT_NAMESPACE: AtomicU32 = AtomicU32::new(1);
        let namespace = match &*self.backend {
            Backend::Real(cluster) => cluster.namespace("release").await,
            Backend::Local { .. } => {
                let name = format!("other-{}", NEXT_NAMESPACE.fetch_add(1, Ordering::Relaxed));
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
        matches!(*self.backend, Backend::Real(_))
    }

    /// Many intervals on virtual time, some on real time: long enough for an
    /// unwanted write to happen.
    pub async fn sleep_long(&self) {
        let leaps = matches!(&*self.backend, Backend::Local { pace, .. } if pace.get().is_none());
        sleep(Duration::from_secs(if leaps { 120 } else { 8 })).await;
    }

    pub(super) fn timeout(&self) -> Duration {
        Duration::from_secs(if self.is_real() { 240 } else { 300 })
    }

    /// A receiver over real connections.
    pub async fn receiver(&self, answers: impl IntoIterator<Item = CannedResponse>) -> Receiver {
        self.pace_time();
        Receiver::start(answers).await
    }

    /// A mesh that is not in the cluster, reached over real connections.
    pub fn app_mesh(&self) -> AppMeshServer {
        self.pace_time();
        AppMeshServer::start()
    }

    fn pace_time(&self) {
        if let Backend::Local { pace, .. } = &*self.backend {
            pace.get_or_init(|| spawn(advance_time_steadily()));
        }
    }

    /// From now on requests of the controller fail now and then.
    pub fn set_faults(&self, plan: FaultPlan) {
        let Backend::Local { local, .. } = &*self.backend else { panic!("faults are for the local server") };
        local.set_faults(plan);
    }
}

fn all_definitions() -> impl Iterator<Item = Value> {
    definitions::ours().into_iter().chain(definitions::smi()).chain([definitions::keda()])
}

fn mesh(client: Client, node: Node) -> Mesh {
    Mesh::new(client, resource("TrafficSplit"), Some(resource("HTTPRouteGroup")), node, 1)
}

pub type NodeAndMesh = (Node, Mesh);

/// One node and one mesh for every world of a cluster, on a thread of their
/// own: they outlive the test that started them.
pub async fn run_node_and_mesh(cluster: &'static support::Cluster, options: NodeOptions) -> NodeAndMesh {
    let (send, started) = oneshot::channel();
    thread::spawn(move || {
        Runtime::new().expect("a tokio runtime").block_on(async {
            let client = cluster.client().await;
            definitions::install(&client, all_definitions()).await;
            let node = Node::new(client.clone(), options);
            let mesh = mesh(client, node.clone());
            let _ = send.send((node.clone(), mesh.clone()));
            join!(node.run(), mesh.run());
        });
    });
    started.await.expect("a node and a mesh")
}

/// Paused time jumps to the next timer, and would time out real connections. While
/// a blocking task runs it does not jump, and advances five times as fast as real
/// time.
async fn advance_time_steadily() {
    loop {
        let _ = spawn_blocking(|| thread::sleep(Duration::from_millis(1))).await;
        advance(Duration::from_millis(5)).await;
    }
}
