//! The controllers of a cluster: from Deployments to ReplicaSets to pods,
//! DaemonSets, EndpointSlices, garbage collection and namespace deletion.
//!
//! They use only the Kubernetes API, so they run on this crate's server and on a
//! real one. The rules of each controller are pure functions from observed
//! objects to writes; `runtime` drives them.

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

/// Configuration of the controllers.
#[derive(Clone, Debug)]
pub struct Options {
    pub clock: Clock,
    /// The nodes on which DaemonSets run.
    pub nodes: Vec<String>,
}

/// Runs all controllers until dropped.
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
