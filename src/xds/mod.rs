//! The control plane for Envoys: the catalog, delivered over xDS.
//!
//! ```text
//!   Catalog ── watch ─▶ State ◀── requests ── streams of proxies (ADS; EDS alone)
//!                       config: what each resource is    ▲
//!                       state: who has which version ────┘ responses
//! ```
//!
//! Guarantees:
//!
//! - A proxy gets what its node asks for ([`node`]), of what its identity may reach; a
//!   change reaches only the proxies that subscribe to what it changed.
//! - A resource is encoded once. Its version is the hash of its bytes: after a restart
//!   nothing is sent to a proxy that has it.
//! - A change of a route waits for nothing but clusters that the proxy does not have yet.
//!   Other resources are sent at once after quiet, and with growing delays under churn.
//! - A refused version is remembered with its reason ([`RouteState::refusals`]) and not
//!   sent to that stream again.
//! - Nobody is served before the catalog is complete ([`Catalog::ready`]).
//! - What a proxy sends is bounded in size and number, and ends at worst its own stream.
//!
//! | module      | purpose                                                     |
//! |-------------|-------------------------------------------------------------|
//! | `config`    | catalog → Envoy's messages, pure                            |
//! | `state`     | versions, acknowledgements and refusals, without I/O        |
//! | `discovery` | the gRPC services                                           |
//! | `listen`    | connections: pace, TLS, age                                 |
//! | `peer`      | the identity in a certificate                               |
//! | `node`      | how a proxy describes itself                                |
//! | `bootstrap` | the configuration that an Envoy is started with             |

mod bootstrap;
mod config;
mod discovery;
mod listen;
mod node;
mod peer;
mod state;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};
use tokio_util::task::AbortOnDropHandle;

use crate::catalog::{Catalog, Changes, Mailbox, ServiceKey, mailbox};
use state::State;

pub use bootstrap::Bootstrap;
pub use config::unsupported_condition;
pub use listen::bind;
pub use node::{Inbound, NodeConfig, NodeError, ServiceRef, TlsFiles, Upstream};
pub use peer::PeerError;
pub use state::{ProxyState, Refusal, RouteState, TypeState, TypeStatus};

#[derive(Clone, Debug)]
pub struct Options {
    /// [`ServiceKey::cluster`] of services that proxies name without a cluster.
    pub cluster: Arc<str>,
    /// In the SPIFFE URIs of ServiceAccounts.
    pub trust_domain: Arc<str>,
    /// How long a proxy that is gone counts as one that does not use the newest route,
    /// and how long its endpoints stay.
    pub patience: Duration,
    /// How long after the start endpoints that a proxy already has are not replaced by none,
    /// or by those that proxies announce.
    pub settle: Duration,
    pub max_connections: usize,
    /// Older connections receive a GOAWAY; each between 90 % and 110 % of it.
    pub max_connection_age: Duration,
    /// Connections that are begun to be served in a second; others wait, accepted.
    pub accept_rate: u32,
    pub max_streams_per_identity: usize,
    /// Of one type, by one stream.
    pub max_subscriptions: usize,
    pub max_request_bytes: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            cluster: "".into(),
            trust_domain: "cluster.local".into(),
            patience: Duration::from_secs(10),
            settle: Duration::from_secs(5),
            max_connections: 20_000,
            max_connection_age: Duration::from_secs(30 * 60),
            accept_rate: 500,
            max_streams_per_identity: 4096,
            max_subscriptions: 10_000,
            max_request_bytes: 1024 * 1024,
        }
    }
}

pub struct ControlPlane {
    catalog: Arc<Catalog>,
    options: Options,
    shared: Arc<Shared>,
    _follow: AbortOnDropHandle<()>,
}

/// Of all streams.
struct Shared {
    state: Mutex<State>,
    /// There may be an earlier deadline.
    deadline: Notify,
}

impl ControlPlane {
    /// Follows the catalog from now on; in a tokio runtime.
    pub fn new(catalog: Arc<Catalog>, options: Options) -> Arc<Self> {
        let changes = catalog.watch();
        let state = Mutex::new(State::new(Arc::clone(&catalog), &options, Instant::now()));
        let shared = Arc::new(Shared { state, deadline: Notify::new() });
        let follow = tokio::spawn(follow(changes, Arc::clone(&shared)));
        Arc::new(Self { catalog, options, shared, _follow: AbortOnDropHandle::new(follow) })
    }

    pub fn route_state(&self, service: &ServiceKey) -> RouteState {
        self.shared.state.lock().route_state(service)
    }

    /// Services whose [`RouteState`] may have changed.
    pub fn watch_routes(&self) -> Mailbox<BTreeSet<ServiceKey>> {
        let (sender, mailbox) = mailbox();
        self.shared.state.lock().watch_routes(sender);
        mailbox
    }

    /// Those that are connected, by the name of their node.
    pub fn proxies(&self) -> Vec<ProxyState> {
        self.shared.state.lock().proxies()
    }
}

async fn follow(mut changes: Mailbox<Changes>, shared: Arc<Shared>) {
    loop {
        let deadline = shared.state.lock().tick(Instant::now());
        let wait = async {
            match deadline {
                Some(deadline) => sleep_until(deadline).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            changes = changes.changed() => shared.state.lock().apply(&changes, Instant::now()),
            () = shared.deadline.notified() => {}
            () = wait => {}
        }
    }
}
