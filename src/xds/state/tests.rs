use std::net::{IpAddr, Ipv4Addr};

use super::*;
use crate::api::mesh_route::{MeshRouteBackend, MeshRouteRule, MeshRouteSpec};
use crate::catalog::{Endpoint, Mailbox, Protocol, Service, TopologySink};
use crate::xds::node::NodeConfig;

struct World {
    catalog: Arc<Catalog>,
    topology: TopologySink,
    changes: Mailbox<Changes>,
    state: State,
    proxy: StreamId,
}

fn key(name: &str) -> ServiceKey {
    let protocol = Protocol::Http1;
    ServiceKey { cluster: "".into(), namespace: "shop".into(), name: name.into(), port: 80, protocol }
}

/// Half of the requests for `web` go to each.
fn route(backends: [&str; 2], weight: u16) -> MeshRouteSpec {
    let backend = |(service, weight): (&str, u16)| MeshRouteBackend {
        service: service.to_owned(),
        weight,
        ..MeshRouteBackend::default()
    };
    let [first, second] = backends;
    let backends = [(first, 10_000 - weight), (second, weight)].map(backend).into();
    let rules = vec![MeshRouteRule { backends, ..MeshRouteRule::default() }];
    MeshRouteSpec { service: "web".to_owned(), port: 80, rules, ..MeshRouteSpec::default() }
}

impl World {
    /// A proxy that calls `web` and others, which are as many.
    fn new(others: u8) -> Self {
        let catalog = Catalog::new();
        let (endpoints, topology) = (catalog.endpoints_sink("test"), catalog.topology_sink());
        let names = (0..others).map(|n| format!("other-{n}"));
        let names = names.chain(["web", "web-primary", "web-canary", "web-next"].map(str::to_owned));
        for name in names {
            topology.set_service(key(&name), Some(Service::default()));
            endpoints.set(key(&name), vec![Endpoint::at(([10, 0, 0, 1], 80).into())]);
        }
        topology.set_route(key("web"), Some((1, route(["web-primary", "web-canary"], 0))));
        let changes = catalog.watch();
        let mut state = State::new(Arc::clone(&catalog), &Options::default(), Instant::now());
        let peer = IpAddr::V4(Ipv4Addr::LOCALHOST);
        let (proxy, _) = state.connect(Variant::Delta, Identity::Anonymous, peer).unwrap();
        let called = (0..others).map(|n| format!("shop/other-{n}:80=127.0.1.{n}:15001"));
        let called = called.chain(["shop/web:80=127.0.0.1:15001".to_owned()]);
        let upstreams = called.map(|upstream| upstream.parse().unwrap()).collect();
        let node = Some(("a".to_owned(), NodeConfig { upstreams, ..NodeConfig::default() }));
        let mut world = Self { catalog, topology, changes, state, proxy };
        world.receive(ResourceType::Cluster, Request { node, ..Request::default() });
        world
    }

    fn receive(&mut self, kind: ResourceType, request: Request) {
        self.state.receive(self.proxy, kind, request).unwrap();
    }

    fn subscribe(&mut self, kind: ResourceType, names: &[String]) {
        self.receive(kind, Request { subscribe: names.to_vec(), ..Request::default() });
    }

    /// Names of the resources of the next response, which is acknowledged.
    fn accept(&mut self) -> Option<(ResourceType, Vec<String>)> {
        let response = self.state.next_response(self.proxy, Instant::now())?;
        let stream = &self.state.streams[&self.proxy];
        assert_eq!(response.version, self.state.version_of(stream, response.kind), "of all resources");
        self.receive(response.kind, Request { nonce: response.nonce.to_string(), ..Request::default() });
        let names = response.resources.iter().map(|(name, _)| name.to_string());
        Some((response.kind, names.collect()))
    }

    fn apply(&mut self) {
        let changes = self.changes.try_changed().expect("a change");
        self.state.apply(&changes, Instant::now());
    }

    /// Where each resource is in memory: another place is another encoding.
    fn encoded(&self) -> BTreeMap<ResourceKey, *const Encoded> {
        let all = self.state.resources.iter();
        all.filter_map(|(key, held)| Some(((**key).clone(), Arc::as_ptr(held.encoded.as_ref()?)))).collect()
    }
}

#[test]
fn a_weight_encodes_one_route_whatever_else_the_proxy_calls() {
    let mut world = World::new(20);
    let called = (0..20).map(|n| format!("shop/other-{n}:80")).chain(["shop/web:80".to_owned()]);
    let called: Vec<String> = called.collect();
    world.subscribe(ResourceType::Endpoints, &called);
    world.subscribe(ResourceType::Listener, &[]);
    world.subscribe(ResourceType::Route, &called);
    while world.accept().is_some() {}
    let before = world.encoded();
    assert_eq!(before.len(), 21 + 2 + 3 * 21, "clusters, with two of the route, and the rest");

    world.topology.set_route(key("web"), Some((2, route(["web-primary", "web-canary"], 5_00))));
    world.apply();
    let after = world.encoded();
    let again: Vec<_> = after.iter().filter(|(key, place)| before.get(*key) != Some(*place)).collect();
    let [(ResourceKey::Route { service }, _)] = &again[..] else { panic!("{again:?}") };
    assert_eq!(service.to_string(), "shop/web:80");
    assert_eq!(world.accept(), Some((ResourceType::Route, vec!["shop/web:80".to_owned()])));
    assert_eq!(world.accept(), None);
}

/// The catalog is read when a route is subscribed to, and its changes are applied later.
#[test]
fn a_route_that_is_newer_than_the_clusters_waits_for_them() {
    let mut world = World::new(0);
    while world.accept().is_some() {}
    world.topology.set_route(key("web"), Some((2, route(["web-primary", "web-next"], 5_00))));
    world.subscribe(ResourceType::Route, &["shop/web:80".to_owned()]);
    assert_eq!(world.accept(), None, "Envoy refuses a route to a cluster that it does not know");
    world.apply();
    assert_eq!(world.accept(), Some((ResourceType::Cluster, vec!["shop/web-next:80".to_owned()])));
    assert_eq!(world.accept(), Some((ResourceType::Route, vec!["shop/web:80".to_owned()])));
    assert_eq!(world.catalog.route(&key("web")).map(|route| route.generation), Some(2));
}

/// The pods of a canary are ready before their endpoints are known.
#[test]
fn a_share_waits_for_the_endpoints_that_are_to_get_it() {
    let mut world = World::new(0);
    let endpoints = world.catalog.endpoints_sink("pods");
    let named = ["shop/web-primary:80", "shop/web-canary:80", "shop/web-late:80"].map(str::to_owned);
    world.topology.set_service(key("web-late"), Some(Service::default()));
    world.topology.set_route(key("web"), Some((2, route(["web-primary", "web-late"], 0))));
    world.apply();
    world.subscribe(ResourceType::Endpoints, &named);
    world.subscribe(ResourceType::Listener, &[]);
    world.subscribe(ResourceType::Route, &["shop/web:80".to_owned()]);
    while world.accept().is_some() {}

    world.topology.set_route(key("web"), Some((3, route(["web-primary", "web-late"], 50))));
    world.apply();
    assert_eq!(world.accept(), None, "half a percent of the requests would find no endpoint");
    endpoints.set(key("web-late"), vec![Endpoint::at(([10, 0, 0, 2], 80).into())]);
    world.apply();
    assert_eq!(world.accept(), Some((ResourceType::Endpoints, vec!["shop/web-late:80".to_owned()])));
    assert_eq!(world.accept(), Some((ResourceType::Route, vec!["shop/web:80".to_owned()])));

    // All traffic back to the primary waits for no endpoint.
    endpoints.set(key("web-late"), Vec::new());
    world.topology.set_route(key("web"), Some((4, route(["web-primary", "web-late"], 0))));
    world.apply();
    let sent: Vec<_> = std::iter::from_fn(|| world.accept()).collect();
    assert!(sent.contains(&(ResourceType::Route, vec!["shop/web:80".to_owned()])), "{sent:?}");
}
