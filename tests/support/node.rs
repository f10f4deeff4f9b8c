//! `kube_local`'s node as the kubelet of a cluster.

use kube_local::node::address::Network;
use kube_local::node::{Node, NodeOptions};

use super::Cluster;

/// Has the cluster's node run its pods, on a thread of its own: it outlives the runtime of
/// the test that asked for it. It takes every pod that names no node.
pub fn run(cluster: &'static Cluster, network: Network) {
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Runtime::new().expect("a tokio runtime");
        runtime.block_on(async {
            let options = NodeOptions { network, ..NodeOptions::named(super::NODE) };
            Node::new(cluster.client().await, options).run().await;
        });
    });
}
