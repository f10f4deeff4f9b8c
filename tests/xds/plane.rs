//! A control plane and its catalog.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use serin::api::mesh_route::{MeshRouteBackend, MeshRouteRule, MeshRouteSpec};
use serin::catalog::{
    Account, Catalog, Endpoint, EndpointsSink, Protocol, Service, ServiceKey, TopologySink,
};
use serin::tls::Certificate;
use serin::xds::{ControlPlane, Options, RouteState};
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};

use crate::support::eventually;

pub const LIMIT: Duration = Duration::from_secs(20);

pub struct Plane {
    pub catalog: Arc<Catalog>,
    pub control: Arc<ControlPlane>,
    pub endpoints: EndpointsSink,
    pub topology: TopologySink,
    pub address: SocketAddr,
    shutdown: CancellationToken,
    serving: Option<AbortOnDropHandle<()>>,
}

impl Plane {
    pub async fn start() -> Plane {
        Self::start_with(Options::default(), None).await
    }

    pub async fn start_with(options: Options, certificate: Option<Certificate>) -> Plane {
        Self::start_at("127.0.0.1:0", options, certificate).await
    }

    pub async fn start_at(address: &str, options: Options, certificate: Option<Certificate>) -> Plane {
        serin::tls::install_crypto_provider();
        let catalog = Catalog::new();
        let (endpoints, topology) = (catalog.endpoints_sink("test"), catalog.topology_sink());
        let control = ControlPlane::new(Arc::clone(&catalog), options);
        let listener = serin::xds::bind(address.parse().expect("an address")).expect("a free port");
        let address = listener.local_addr().expect("an address");
        let shutdown = CancellationToken::new();
        let serving = tokio::spawn({
            let (control, shutdown) = (Arc::clone(&control), shutdown.clone());
            async move { control.serve(listener, certificate, shutdown).await }
        });
        let serving = Some(AbortOnDropHandle::new(serving));
        Plane { catalog, control, endpoints, topology, address, shutdown, serving }
    }

    /// Everything was delivered: proxies are accepted.
    pub fn ready(&self) {
        self.endpoints.retain(|_| true);
        self.topology.synced();
    }

    /// Like the end of its process.
    pub async fn stop(mut self) {
        self.shutdown.cancel();
        if let Some(serving) = self.serving.take() {
            let _ = serving.await;
        }
    }

    /// The services `web`, `web-primary` and `web-canary` with an endpoint each.
    pub fn web(&self, [apex, primary, canary]: [SocketAddr; 3]) {
        for (name, address) in [("web", apex), ("web-primary", primary), ("web-canary", canary)] {
            self.service(name, &[address]);
        }
        self.split(1, 0);
    }

    pub fn service(&self, name: &str, addresses: &[SocketAddr]) {
        self.topology.set_service(key(name), Some(Service::default()));
        self.endpoints.set(key(name), addresses.iter().copied().map(Endpoint::at).collect());
    }

    /// `canary` in hundredths of a percent.
    pub fn split(&self, generation: i64, canary: u16) {
        self.topology.set_route(key("web"), Some((generation, split(canary))));
    }

    /// Waits until every proxy uses the newest route of `web`.
    pub async fn in_force(&self, generation: i64) {
        let is_in_force = |state: &RouteState| {
            state.generation == Some(generation) && state.proxies > 0 && state.acknowledged == state.proxies
        };
        eventually(&format!("generation {generation} is in force"), LIMIT, async || {
            is_in_force(&self.control.route_state(&key("web")))
        })
        .await;
    }
}

pub fn key(name: &str) -> ServiceKey {
    let protocol = Protocol::Http1;
    ServiceKey { cluster: "".into(), namespace: "shop".into(), name: name.into(), port: 80, protocol }
}

pub fn account(name: &str) -> Account {
    ("shop".into(), name.into())
}

pub fn split(canary: u16) -> MeshRouteSpec {
    let backend = |service: &str, weight| MeshRouteBackend {
        version: None,
        service: service.to_owned(),
        weight,
        ..MeshRouteBackend::default()
    };
    MeshRouteSpec {
        service: "web".to_owned(),
        port: 80,
        rules: vec![MeshRouteRule {
            backends: vec![backend("web-primary", 10_000 - canary), backend("web-canary", canary)],
            ..MeshRouteRule::default()
        }],
        ..MeshRouteSpec::default()
    }
}
