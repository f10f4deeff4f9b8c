//! A Kubernetes API server in one process.
//!
//! ```text
//!   kube::Client ──tower──┐                    ┌─ read, watch ──┐
//!                         ├─ server ─ request ─┤                ├─ store
//!   kubectl ──TLS, serve──┘                    └─ write, patch ─┘
//!                               admission: schema, builtin, crd; ownership: apply, field_set
//! ```
//!
//! It has the semantics of kube-apiserver as far as controllers and kubectl use
//! them; one conformance suite runs against both. Not implemented: roles and bindings,
//! webhooks, protobuf responses. Time is a [`Clock`] that follows tokio's, randomness
//! comes from a seed, and faults can be injected ([`faults`]). [`controllers`] and a
//! [`node`] make it a cluster. With the feature `durable` its objects are in a file
//! ([`durable`]); else they end with the process.

pub mod access;
mod apply;
pub mod builtin;
pub mod controllers;
mod crd;
mod delete;
#[cfg(feature = "durable")]
pub mod durable;
mod events;
pub mod faults;
mod field_set;
pub mod kinds;
mod kubectl;
pub mod mesh;
pub mod node;
mod ordered_notify;
mod patch;
mod pod_log;
#[cfg(feature = "kubectl")]
mod port_forward;
#[cfg(feature = "kubectl")]
mod protobuf;
mod read;
mod request;
pub mod schema;
pub mod seeded_rng;
mod selector;
#[cfg(feature = "kubectl")]
pub mod serve;
mod server;
mod status_error;
mod store;
mod subresource;
mod watch;
mod write;

#[cfg(feature = "kubectl")]
use std::net::SocketAddr;
use std::sync::Arc;

use axum::body::Body;
use http::Request;
use jiff::Timestamp;
use serde_json::json;
use tokio_util::task::AbortOnDropHandle;

use access::{Access, Grant, Identity};
use faults::{FaultInjector, FaultPlan};
use node::{Node, NodeOptions};
#[cfg(feature = "kubectl")]
use serve::{ApiServerHandle, ServeError};
use server::{FaultExempt, InProcess, Server};
pub use store::{Write, WriteHook};
use work_queue::clock::Clock;

/// Configuration of a server; the default is an empty cluster on tokio's time, from
/// now on.
#[derive(Default)]
pub struct Options {
    pub clock: Option<Clock>,
    /// The seed of uids, generated names and faults.
    pub seed: u64,
    pub faults: FaultPlan,
    /// Bearer tokens and their identities, besides the administrator's.
    pub users: Vec<(String, Identity)>,
    /// Permissions of these users.
    pub grants: Vec<Grant>,
}

/// A running API server; clones share it.
#[derive(Clone)]
pub struct ApiServer {
    server: Arc<Server>,
    seed: u64,
    #[cfg(feature = "kubectl")]
    admin_token: String,
}

/// The controllers and the node of a cluster; they stop when this is dropped.
pub struct Cluster {
    pub node: Node,
    _node: AbortOnDropHandle<()>,
    _controllers: AbortOnDropHandle<()>,
}

impl ApiServer {
    /// Starts a server with the default namespaces and no other objects.
    pub fn new(options: Options) -> ApiServer {
        Self::on(store::Store::new(), options)
    }

    /// Starts a server whose objects are in this file, which is created if it does not
    /// exist. One process at a time can open it.
    ///
    /// A write is in the file before its response is sent, and before a list or a watch
    /// shows it. If the file can no longer be written, every request fails.
    #[cfg(feature = "durable")]
    pub fn open(path: &std::path::Path, options: Options) -> Result<ApiServer, durable::OpenError> {
        Ok(Self::on(durable::open(path)?, options))
    }

    /// Resolves once writes can no longer be kept; never without a file.
    #[cfg(feature = "durable")]
    pub async fn failed(&self) -> String {
        match self.server.store.committed(u64::MAX).await {
            Err(failed) => failed.to_string(),
            Ok(()) => std::future::pending().await,
        }
    }

    fn on(store: store::Store, options: Options) -> ApiServer {
        let clock = options.clock.unwrap_or_else(|| Clock::starting_at(Timestamp::now()));
        let admin_token = random_token();
        let mut users = options.users;
        users.push((admin_token.clone(), Identity::admin()));
        let faults = FaultInjector::seeded(options.seed, options.faults);
        let access = Access { users, grants: options.grants };
        let server = Arc::new(Server::new(store, clock, options.seed, faults, access));
        let api_server = ApiServer {
            server,
            seed: options.seed,
            #[cfg(feature = "kubectl")]
            admin_token,
        };
        for namespace in ["default", "kube-system", "kube-public", "kube-node-lease"] {
            if api_server.server.store.get("namespaces", &store::Key::new("", namespace)).is_none() {
                api_server.create_namespace(namespace);
            }
        }
        api_server
    }

    /// An in-process client that is subject to the fault plan.
    pub fn client(&self) -> kube::Client {
        self.in_process_client(false)
    }

    /// A client without injected faults, for the cluster's own controllers and
    /// for the checks of a test.
    pub fn fault_exempt_client(&self) -> kube::Client {
        self.in_process_client(true)
    }

    pub fn clock(&self) -> Clock {
        self.server.clock
    }

    /// Replaces the fault plan.
    pub fn set_faults(&self, plan: FaultPlan) {
        self.server.faults.set_plan(plan);
    }

    /// The number of injected faults so far, by name.
    pub fn injected_faults(&self) -> std::collections::BTreeMap<&'static str, u64> {
        self.server.faults.injected()
    }

    /// Calls `hook` for every write from now on, in order.
    pub fn on_write(&self, hook: WriteHook) {
        self.server.store.set_write_hook(hook);
    }

    /// Drops all history: watches and lists from older versions get 410.
    pub fn compact(&self) {
        self.server.store.compact();
    }

    /// Listens on `address` (port 0 for any) until the result is dropped.
    #[cfg(feature = "kubectl")]
    pub async fn serve(&self, address: SocketAddr) -> Result<ApiServerHandle, ServeError> {
        serve::serve(self.server.clone(), address, self.admin_token.clone()).await
    }

    /// Runs the controllers of a cluster until the result is dropped.
    pub fn start_controllers(&self) -> AbortOnDropHandle<()> {
        let options = controllers::Options { clock: self.clock(), nodes: vec![node::NAME.to_owned()] };
        AbortOnDropHandle::new(tokio::spawn(controllers::run(self.fault_exempt_client(), options)))
    }

    /// Runs the controllers and a node; with `listen`, its pods listen on real sockets.
    pub fn start_cluster(&self, listen: bool) -> Cluster {
        let options =
            NodeOptions { clock: self.clock(), listen, seed: self.seed, ..NodeOptions::named(node::NAME) };
        let node = Node::new(self.fault_exempt_client(), options);
        self.server.set_node(&node);
        let running = AbortOnDropHandle::new(tokio::spawn({
            let node = node.clone();
            async move { node.run().await }
        }));
        Cluster { node, _node: running, _controllers: self.start_controllers() }
    }

    fn in_process_client(&self, fault_exempt: bool) -> kube::Client {
        let server = self.server.clone();
        let service = tower::service_fn(move |request: Request<kube::client::Body>| {
            let server = server.clone();
            async move {
                let mut request = request.map(Body::new);
                request.extensions_mut().insert(InProcess);
                if fault_exempt {
                    request.extensions_mut().insert(FaultExempt);
                }
                Ok::<_, std::convert::Infallible>(server.handle(request).await)
            }
        });
        kube::Client::new(service, "default")
    }

    fn create_namespace(&self, name: &str) {
        let writer = write::Writer {
            name: "serin-local".into(),
            subresource: None,
            dry_run: false,
            field_validation: write::FieldValidation::Strict,
            is_patch: false,
        };
        let kinds = self.server.kinds();
        let Some(namespaces) = kinds.find("", "v1", "namespaces") else { return };
        let object = json!({ "metadata": { "name": name } });
        if let Err(error) =
            write::create(&self.server, namespaces, None, object, &writer, apply::Operation::Update)
        {
            tracing::error!(namespace = name, error = error.message, "cannot create a namespace");
        }
    }
}

/// The administrator's token: 128 bits from the standard library's hash keys,
/// which the operating system seeds.
fn random_token() -> String {
    format!("{:016x}{:016x}", random_seed(), random_seed())
}

/// For a server that is to give other uids than the process before: the operating system
/// seeds it.
pub fn random_seed() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(0)
}
