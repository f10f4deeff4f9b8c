//! A cluster with pods on loopback, and a controller with a control plane for Envoys.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use k8s_openapi::api::core::v1::{Pod, Service};
use kube::Client;
use kube::api::{Api, ListParams};
use kube_local::node::NodeOptions;
use kube_local::node::address::{Network, loopback_address};
use serin::api::MeshRoute;
use serin::catalog::kubernetes::ClusterObjects;
use serin::catalog::{Catalog, Endpoint, EndpointsProvider, EndpointsSink, Protocol, ServiceKey};
use serin::controller::fence::Fence;
use serin::controller::{Controller, Environment, XdsServer, proxies_of};
use serin::gates::commands::{self, Caller, CanaryRef};
use serin::metrics::scrape::HttpFetch;
use serin::xds::{self, ControlPlane};
use tokio::net::{TcpListener, TcpSocket};
use tokio::sync::OnceCell;
use tokio::time::sleep;
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::AbortOnDropHandle;

use crate::support::{self, Extras, free_port, spawn};
use crate::world::{NodeAndMesh, World, run_node_and_mesh};

const CLUSTER: &str = "local";

pub struct Stage {
    pub world: World,
    /// Its port; the same after a restart.
    pub control_plane: u16,
    cluster: &'static support::Cluster,
    /// Pods listen at the twins of their addresses.
    has_twins: bool,
}

/// Dropped, it ends, and so do the connections of its proxies.
pub struct Serin {
    _tasks: Vec<AbortOnDropHandle<()>>,
    _stop: DropGuard,
}

impl Stage {
    pub async fn local() -> Self {
        static MACHINES: OnceCell<NodeAndMesh> = OnceCell::const_new();
        let cluster = support::local().await;
        Self::on(cluster, Network::Loopback, &MACHINES).await
    }

    pub async fn real() -> Self {
        static CLUSTER: OnceCell<support::Cluster> = OnceCell::const_new();
        static MACHINES: OnceCell<NodeAndMesh> = OnceCell::const_new();
        // It would refuse loopback addresses, and pods have no others.
        let extras = Extras { without: Some("endpointslice-controller"), ..Extras::default() };
        let cluster = CLUSTER.get_or_init(|| support::real_with(extras)).await;
        Self::on(cluster, Network::Private, &MACHINES).await
    }

    async fn on(
        cluster: &'static support::Cluster,
        network: Network,
        machines: &OnceCell<NodeAndMesh>,
    ) -> Self {
        let options = NodeOptions { network, ..NodeOptions::named(support::NODE) };
        let machines = machines.get_or_init(|| run_node_and_mesh(cluster, options)).await;
        let world = World::on(cluster, machines).await;
        Self { world, control_plane: free_port(), cluster, has_twins: network == Network::Private }
    }

    pub fn kubeconfig(&self) -> PathBuf {
        self.cluster.kubeconfig()
    }

    pub fn token(&self) -> String {
        self.cluster.token()
    }

    /// The controller, and the control plane at its port.
    pub async fn serin(&self) -> Serin {
        let catalog = Catalog::new();
        let options = xds::Options { cluster: CLUSTER.into(), ..xds::Options::default() };
        let control_plane = ControlPlane::new(Arc::clone(&catalog), options);
        let objects = ClusterObjects::new(CLUSTER);
        let server = XdsServer::new(&catalog, objects, proxies_of(&control_plane), "serin-0", false);
        let client = self.cluster.client().await;
        let mut tasks = Vec::new();
        if self.has_twins {
            let twins = Twins { client: client.clone(), namespace: self.world.namespace.clone() };
            let sink = catalog.endpoints_sink(twins.id());
            tasks.push(spawn(async move { twins.run(sink).await }));
        }
        let listener = listen(self.control_plane).await;
        let stop = CancellationToken::new();
        let stopped = stop.clone();
        tasks.push(spawn(async move { control_plane.serve(listener, None, stopped).await }));
        let fetch = Arc::new(HttpFetch::new().expect("an HTTP client"));
        let environment = Environment::new(client, self.world.clock, fetch);
        let environment = Environment { xds: Some(server), ..environment };
        let controller = Controller::new(environment, Fence::unsharded(), self.world.options()).await;
        tasks.push(spawn(controller.expect("a controller").run(std::future::pending())));
        Serin { _tasks: tasks, _stop: stop.drop_guard() }
    }

    /// Waits until every proxy uses the route as it was last written.
    pub async fn in_force(&self) {
        let routes: Api<MeshRoute> = Api::namespaced(self.world.client.clone(), &self.world.namespace);
        self.world
            .eventually("the route is in force", async || {
                let route = routes.get_status("web").await.expect("a MeshRoute");
                let replicas = route.status.map(|status| status.replicas).unwrap_or_default();
                !replicas.is_empty()
                    && replicas.iter().all(|replica| {
                        Some(replica.generation) == route.metadata.generation
                            && replica.acknowledged == replica.proxies
                    })
            })
            .await;
    }

    pub async fn approve(&self) {
        let web = CanaryRef { namespace: &self.world.namespace, name: "web" };
        self.world
            .eventually("an approval", async || {
                commands::approve(&self.world.client, &Caller::Current, web, None).await.is_ok()
            })
            .await;
    }
}

/// The connections of the one before may not be gone yet.
async fn listen(port: u16) -> TcpListener {
    for _ in 0..100 {
        let socket = TcpSocket::new_v4().expect("a socket");
        socket.set_reuseaddr(true).expect("an option");
        let bound = socket.bind(SocketAddr::from((Ipv4Addr::LOCALHOST, port)));
        if let Ok(listener) = bound.and_then(|()| socket.listen(1024)) {
            return listener;
        }
        sleep(Duration::from_millis(50)).await;
    }
    panic!("the port {port} stays in use");
}

/// Ready pods of the Services of a namespace, at the addresses where they listen.
struct Twins {
    client: Client,
    namespace: String,
}

#[async_trait]
impl EndpointsProvider for Twins {
    fn id(&self) -> &str {
        "twins"
    }

    async fn run(&self, sink: EndpointsSink) {
        loop {
            for (service, endpoints) in self.list().await {
                sink.set(service, endpoints);
            }
            sink.retain(|_| true);
            sleep(Duration::from_millis(50)).await;
        }
    }
}

impl Twins {
    async fn list(&self) -> Vec<(ServiceKey, Vec<Endpoint>)> {
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), &self.namespace);
        let services: Api<Service> = Api::namespaced(self.client.clone(), &self.namespace);
        let services = services.list(&ListParams::default()).await.map(|list| list.items).unwrap_or_default();
        let mut found = Vec::new();
        for service in services {
            let Some(selector) = service.spec.and_then(|spec| spec.selector) else { continue };
            let labels: Vec<String> = selector.iter().map(|(key, value)| format!("{key}={value}")).collect();
            let selected = pods.list(&ListParams::default().labels(&labels.join(","))).await;
            let Ok(selected) = selected else { continue };
            let endpoint = |pod: Pod| {
                let status = pod.status?;
                let ready = status
                    .conditions
                    .iter()
                    .flatten()
                    .any(|one| one.type_ == "Ready" && one.status == "True");
                let address: Ipv4Addr = status.pod_ip?.parse().ok()?;
                let leaving = pod.metadata.deletion_timestamp.is_some();
                (ready && !leaving).then(|| Endpoint::at((loopback_address(address), 8080).into()))
            };
            let key = ServiceKey {
                cluster: CLUSTER.into(),
                namespace: self.namespace.as_str().into(),
                name: service.metadata.name.unwrap_or_default().as_str().into(),
                port: 80,
                protocol: Protocol::Http1,
            };
            found.push((key, selected.items.into_iter().filter_map(endpoint).collect()));
        }
        found
    }
}
