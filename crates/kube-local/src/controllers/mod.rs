//! The controllers that make a cluster of an API server: they turn Deployments
//! into ReplicaSets into pods, Services into EndpointSlices, and clear away
//! what nobody owns any more.
//!
//! They speak only the Kubernetes API, so they run on this crate's server and
//! on a real one alike. Each file's rules are pure functions from the objects
//! seen to the writes wanted; `work` says how they are driven.

mod claim;
mod daemon_set;
mod deployment;
mod endpoint_slice;
pub(super) mod events;
mod garbage;
mod kinds;
mod namespace;
mod pods;
mod replica_set;
pub(super) mod runtime;
mod template;

use kube::Client;

use runtime::Context;
use work_queue::clock::Clock;

#[derive(Clone, Debug)]
pub struct Options {
    pub clock: Clock,
    /// The nodes that a DaemonSet runs on.
    pub nodes: Vec<String>,
}

/// Runs all of them until dropped.
pub async fn run(client: Client, options: Options) {
    let context = |component| Context::new(client.clone(), options.clone(), component);
    futures::join!(
        deployment::run(context("deployment-controller")),
        replica_set::run(context("replicaset-controller")),
        daemon_set::run(context("daemonset-controller")),
        endpoint_slice::run(context("endpoint-slice-controller")),
        namespace::run(context("namespace-controller")),
        garbage::run(context("garbage-collector")),
    );
}
