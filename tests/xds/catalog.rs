//! Any interleaving of updates gives each subscriber exactly the changes of its own
//! answer: the catalog beside a model that computes every answer from all that was
//! delivered.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;

use proptest::collection::{btree_set, vec};
use proptest::prelude::*;
use serin::catalog::{
    AccessRule, Account, Catalog, DefaultAccess, Endpoint, EndpointsSink, Identity, Policy, Protocol,
    Registration, Service, ServiceKey, Subscription, TopologySink,
};

const PROVIDERS: usize = 3;
const SERVICES: usize = 3;
const ACCOUNTS: usize = 3;
const POLICIES: usize = 3;

#[derive(Clone, Debug)]
enum Update {
    Endpoints {
        provider: usize,
        service: usize,
        ports: BTreeSet<u16>,
        weight: u32,
    },
    Retain {
        provider: usize,
        listed: BTreeSet<usize>,
    },
    Service {
        service: usize,
        accounts: Option<BTreeSet<usize>>,
    },
    Policy {
        policy: usize,
        content: Option<(usize, BTreeSet<usize>)>,
    },
    Default(bool),
    Register {
        service: usize,
        port: u16,
    },
    /// The oldest registration.
    Deregister,
    Poll {
        subscriber: usize,
    },
}

fn update() -> impl Strategy<Value = Update> {
    let accounts = || btree_set(0..ACCOUNTS, 0..3);
    prop_oneof![
        4 => (0..PROVIDERS, 0..SERVICES, btree_set(1..5_u16, 0..3), 1..3_u32).prop_map(
            |(provider, service, ports, weight)| Update::Endpoints { provider, service, ports, weight }
        ),
        1 => (0..PROVIDERS, btree_set(0..SERVICES, 0..SERVICES))
            .prop_map(|(provider, listed)| Update::Retain { provider, listed }),
        2 => (0..SERVICES, proptest::option::of(accounts()))
            .prop_map(|(service, accounts)| Update::Service { service, accounts }),
        2 => (0..POLICIES, proptest::option::of((0..ACCOUNTS, accounts())))
            .prop_map(|(policy, content)| Update::Policy { policy, content }),
        1 => any::<bool>().prop_map(Update::Default),
        1 => (0..SERVICES, 1..8_u16).prop_map(|(service, port)| Update::Register { service, port }),
        1 => Just(Update::Deregister),
        4 => (0..identities().len()).prop_map(|subscriber| Update::Poll { subscriber }),
    ]
}

fn identities() -> Vec<Identity> {
    let account =
        |n: usize| Identity::Spiffe(format!("spiffe://cluster.local/ns/shop/sa/account-{n}").into());
    vec![account(0), account(1), account(2), Identity::CommonName("web".into()), Identity::Anonymous]
}

fn account(n: usize) -> Account {
    ("shop".into(), format!("account-{n}").into())
}

fn key(service: usize) -> ServiceKey {
    let name = format!("service-{service}").into();
    ServiceKey { cluster: "".into(), namespace: "shop".into(), name, port: 80, protocol: Protocol::Http1 }
}

fn endpoint(port: u16, weight: u32) -> Endpoint {
    Endpoint { weight, ..Endpoint::at(SocketAddr::from(([10, 0, 0, 1], port))) }
}

/// Everything that was delivered, and nothing derived from it.
#[derive(Default)]
struct Model {
    endpoints: BTreeMap<(String, usize), Vec<Endpoint>>,
    accounts: BTreeMap<usize, BTreeSet<usize>>,
    policies: BTreeMap<usize, (usize, BTreeSet<usize>)>,
    closed: bool,
    registered: Vec<(usize, Endpoint)>,
}

type Answer = Option<Vec<Endpoint>>;

impl Model {
    /// None: it is not visible.
    fn answer(&self, identity: &Identity, service: usize) -> Answer {
        let destinations = self.accounts.get(&service).cloned().unwrap_or_default();
        let mut policies =
            self.policies.values().filter(|(destination, _)| destinations.contains(destination)).peekable();
        let visible = match policies.peek() {
            None => !self.closed,
            Some(_) => policies.any(|(_, sources)| {
                sources.iter().any(|source| {
                    let uri = format!("spiffe://cluster.local/ns/shop/sa/account-{source}");
                    *identity == Identity::Spiffe(uri.into())
                })
            }),
        };
        // Providers by name; the proxies' own come last.
        let provided =
            self.endpoints.iter().filter(|((_, of), _)| *of == service).flat_map(|(_, e)| e.clone());
        let mut registered: Vec<_> =
            self.registered.iter().filter(|(of, _)| *of == service).map(|(_, e)| e.clone()).collect();
        registered.sort();
        let mut all: Vec<Endpoint> = Vec::new();
        for endpoint in provided.chain(registered) {
            if all.iter().all(|known| known.address != endpoint.address) {
                all.push(endpoint);
            }
        }
        all.sort();
        visible.then_some(all)
    }
}

struct World {
    catalog: Arc<Catalog>,
    sinks: Vec<EndpointsSink>,
    topology: TopologySink,
    registrations: Vec<Registration>,
    subscriptions: Vec<Subscription>,
    /// What each subscriber was told last, by the model.
    delivered: Vec<BTreeMap<usize, Answer>>,
    model: Model,
}

impl World {
    fn new() -> Self {
        let catalog = Catalog::new();
        let sinks = (0..PROVIDERS).map(|n| catalog.endpoints_sink(&format!("provider-{n}"))).collect();
        let subscriptions: Vec<_> = identities()
            .into_iter()
            .enumerate()
            .map(|(n, identity)| catalog.subscribe(identity, services_of(n).map(key)))
            .collect();
        let delivered = vec![BTreeMap::new(); subscriptions.len()];
        let (registrations, model) = (Vec::new(), Model::default());
        Self {
            topology: catalog.topology_sink(),
            catalog,
            sinks,
            registrations,
            subscriptions,
            delivered,
            model,
        }
    }

    fn apply(&mut self, update: Update) {
        let model = &mut self.model;
        match update {
            Update::Endpoints { provider, service, ports, weight } => {
                let endpoints: Vec<_> = ports.into_iter().map(|port| endpoint(port, weight)).collect();
                self.sinks[provider].set(key(service), endpoints.clone());
                model.endpoints.insert((format!("provider-{provider}"), service), endpoints);
            }
            Update::Retain { provider, listed } => {
                self.sinks[provider].retain(|service| listed.iter().any(|listed| key(*listed) == *service));
                let name = format!("provider-{provider}");
                model.endpoints.retain(|(of, service), _| *of != name || listed.contains(service));
            }
            Update::Service { service, accounts } => {
                let of = |accounts: &BTreeSet<usize>| Service {
                    accounts: accounts.iter().copied().map(account).collect(),
                    ..Service::default()
                };
                self.topology.set_service(key(service), accounts.as_ref().map(of));
                model.accounts.remove(&service);
                model.accounts.extend(accounts.map(|accounts| (service, accounts)));
            }
            Update::Policy { policy, content } => {
                let of = |(destination, sources): &(usize, BTreeSet<usize>)| Policy {
                    destination: account(*destination),
                    port: None,
                    sources: sources.iter().copied().map(account).collect(),
                    allow: AccessRule::Everything,
                };
                self.topology.set_policy(policy.to_string(), content.as_ref().map(of));
                model.policies.remove(&policy);
                model.policies.extend(content.map(|content| (policy, content)));
            }
            Update::Default(closed) => {
                let access = if closed { DefaultAccess::Closed } else { DefaultAccess::Open };
                self.catalog.set_default_access(access);
                model.closed = closed;
            }
            Update::Register { service, port } => {
                self.registrations.push(self.catalog.register(key(service), endpoint(port, 1)));
                model.registered.push((service, endpoint(port, 1)));
            }
            Update::Deregister => {
                if !self.registrations.is_empty() {
                    drop(self.registrations.remove(0));
                    model.registered.remove(0);
                }
            }
            Update::Poll { subscriber } => self.poll(subscriber),
        }
    }

    fn poll(&mut self, subscriber: usize) {
        let answers = self.subscriptions[subscriber].try_changed();
        let told = answers.into_iter().map(|(service, answer)| {
            let answer = answer.ok().map(|answer| answer.endpoints.to_vec());
            (service, answer)
        });
        let identity = &identities()[subscriber];
        let mut expected = BTreeMap::new();
        for service in services_of(subscriber) {
            let answer = self.model.answer(identity, service);
            if self.delivered[subscriber].get(&service) != Some(&answer) {
                expected.insert(key(service), answer.clone());
                self.delivered[subscriber].insert(service, answer);
            }
        }
        assert_eq!(told.collect::<BTreeMap<_, _>>(), expected, "{identity}");
    }
}

/// The first subscriber has all services, the others all but one.
fn services_of(subscriber: usize) -> impl Iterator<Item = usize> {
    (0..SERVICES).filter(move |service| subscriber == 0 || service % 3 != subscriber % 3)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_subscriber_gets_exactly_the_changes_of_its_own_answer(updates in vec(update(), 0..60)) {
        let mut world = World::new();
        for update in updates {
            world.apply(update);
        }
        for subscriber in 0..identities().len() {
            world.poll(subscriber);
            world.poll(subscriber);
        }
    }
}

#[tokio::test]
async fn a_catalog_is_ready_when_every_source_has_delivered_everything_once() {
    let catalog = Catalog::new();
    let (endpoints, topology) = (catalog.endpoints_sink("files"), catalog.topology_sink());
    endpoints.set(key(0), vec![endpoint(1, 1)]);
    topology.synced();
    let waiting = tokio::time::timeout(std::time::Duration::from_millis(50), catalog.ready());
    assert!(waiting.await.is_err(), "files have not been listed: {:?}", catalog.unsynced());
    endpoints.retain(|_| true);
    catalog.ready().await;
}
