//! Serin beside Flagger: what idle canaries and releases cost, and how fast
//! they go, on one real kube-apiserver, one controller after the other.
//!
//! `make bench-flagger` runs it for 20, 200 and 1,000 canaries;
//! `make bench-flagger N="20 200"` for as many as are named, and with the word
//! `alone` among them for Serin alone. All of it takes half an hour, once both
//! are built.
//!
//! - **Same for both:** the servers, the manifests (`apiVersion` apart), the
//!   node that runs the pods (ours, without sockets), the rights, the log
//!   level. Each is built as it is shipped, and works on 128 canaries at a time
//!   (Flagger on 2 if nobody says). Client limits are out of the way: 5,000
//!   requests a second for Flagger and for the controller-manager; Serin has
//!   none.
//! - **Conditions:** SMI TrafficSplit, one pod an arm, interval 10 s, five
//!   steps of 10 %, all N released at once. No metrics: two cores cannot carry
//!   a Prometheus that reads 2,000 pods beside the servers, and it is the
//!   controllers that are compared here.
//! - **Requests** are what the API server's audit log says of each one's own
//!   user; watches and leases are counted apart. **Times** are those at which
//!   one steady watch was told. **CPU and memory** are the kernel's figures of
//!   the controller's process.
//!
//! The machine is shared and noisy: read the ratios.

mod audit;
mod contender;
mod phases;
mod table;
mod watcher;

#[path = "../../tests/support/mod.rs"]
mod support;

use kube_local::node::address::Network;
use kube_local::node::{Node, NodeOptions};

use audit::Audit;
use contender::Contender;
use phases::BenchmarkStage;

const COUNTS: [usize; 3] = [20, 200, 1_000];

fn main() {
    // Cargo adds flags of its own for harnesses that are not ours.
    let named = std::env::args().skip(1).filter(|argument| !argument.starts_with("--"));
    let (alone, numbers): (Vec<String>, Vec<String>) = named.partition(|argument| argument == "alone");
    let parse = |count: &String| count.parse().expect("arguments are numbers of canaries, and alone");
    let counts: Vec<usize> = numbers.iter().map(parse).collect();
    let counts = if counts.is_empty() { COUNTS.to_vec() } else { counts };
    // The exposition of what happens must not wait for the node's work.
    let runtime = tokio::runtime::Runtime::new().expect("a tokio runtime");
    runtime.block_on(run(&counts, !alone.is_empty()));
}

async fn run(counts: &[usize], alone: bool) {
    let flagger = Contender::flagger();
    let audit = Audit::listen().await;
    let users = [Contender::Serin.name(), flagger.name()];
    let cluster = support::real_with(audit.extras(&users)).await;
    let cluster: &'static support::Cluster = Box::leak(Box::new(cluster));
    let options =
        NodeOptions { listen: false, network: Network::Private, ..NodeOptions::named(support::NODE) };
    let node = Node::new(cluster.client().await, options);
    let _node = tokio::spawn(async move { node.run().await });
    let stage = BenchmarkStage::set(cluster, audit).await;
    for &count in counts {
        let theirs = match alone {
            true => None,
            false => Some(stage.measure(&flagger, count).await),
        };
        let ours = stage.measure(&Contender::Serin, count).await;
        table::print(count, theirs.as_ref(), &ours);
    }
    stage.check_audit().await;
}
