//! Serin as a contender: the catalog and the control plane, with the sources of this
//! program. Flags and commands are those of `testbed/go-control-plane`.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use serin::api::mesh_route::{MeshRouteBackend, MeshRouteRule, MeshRouteSpec};
use serin::catalog::{Catalog, Endpoint, Protocol, Service, ServiceKey};
use serin::xds::{ControlPlane, Options};
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio_util::sync::CancellationToken;

/// What it reads of the flags.
pub struct Flags {
    pub services: usize,
    pub primary: SocketAddr,
    pub canary: SocketAddr,
}

impl Flags {
    pub fn parse(arguments: &[String]) -> Self {
        let split = |argument: &'_ String| -> Option<(String, String)> {
            let (name, value) = argument.trim_start_matches('-').split_once('=')?;
            Some((name.to_owned(), value.to_owned()))
        };
        let flags: BTreeMap<String, String> = arguments.iter().filter_map(split).collect();
        let address = |flag: &str| -> SocketAddr { flags[flag].parse().expect("an address") };
        let services = flags["services"].parse().expect("a number");
        Self { services, primary: address("primary"), canary: address("canary") }
    }
}

pub async fn run(Flags { services, primary, canary }: Flags) {
    let catalog = Catalog::new();
    let (endpoints, topology) = (catalog.endpoints_sink("bench"), catalog.topology_sink());
    let add = |name: &str, address: SocketAddr| {
        topology.set_service(key(name), Some(Service::default()));
        endpoints.set(key(name), vec![Endpoint::at(address)]);
    };
    for (name, address) in [("web", primary), ("web-primary", primary), ("web-canary", canary)] {
        add(name, address);
    }
    (0..services).for_each(|n| add(&format!("service-{n}"), primary));
    let mut generation = 1;
    topology.set_route(key("web"), Some((generation, split(0))));
    endpoints.retain(|_| true);
    topology.synced();
    let options = Options { settle: Duration::ZERO, ..Options::default() };
    let control = ControlPlane::new(Arc::clone(&catalog), options);
    let listener = serin::xds::bind(([127, 0, 0, 1], 0).into()).expect("a free port");
    println!("ready {}", listener.local_addr().expect("an address").port());
    let serving = tokio::spawn(async move { control.serve(listener, None, CancellationToken::new()).await });
    let mut commands = BufReader::new(tokio::io::stdin()).lines();
    while let Ok(Some(command)) = commands.next_line().await {
        let weight = command.trim_start_matches("weight ").parse().expect("a weight");
        generation += 1;
        topology.set_route(key("web"), Some((generation, split(weight))));
        println!("done");
    }
    serving.abort();
}

fn key(name: &str) -> ServiceKey {
    let protocol = Protocol::Http1;
    ServiceKey { cluster: "".into(), namespace: "shop".into(), name: name.into(), port: 80, protocol }
}

fn split(canary: u16) -> MeshRouteSpec {
    let backend = |service: &str, weight| MeshRouteBackend {
        service: service.to_owned(),
        weight,
        ..MeshRouteBackend::default()
    };
    let backends = vec![backend("web-primary", 10_000 - canary), backend("web-canary", canary)];
    let rules = vec![MeshRouteRule { backends, ..MeshRouteRule::default() }];
    MeshRouteSpec { service: "web".to_owned(), port: 80, rules, ..MeshRouteSpec::default() }
}
