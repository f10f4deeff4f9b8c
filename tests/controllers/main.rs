//! The laws of workloads: what becomes of Deployments, DaemonSets, Services and
//! pods.
//!
//! Each runs on the real kube-apiserver with the real controller-manager, and
//! on `local/` with its own controllers; the node is `local`'s on both:
//! `cargo test --test machines real::`, or `local::`. `storms` are
//! simulations: paused time, and faults drawn from a seed.

#[path = "../support/mod.rs"]
mod support;

#[path = "../conformance/session.rs"]
#[allow(dead_code)]
mod session;

mod daemons;
mod deployments;
mod endpoints;
mod pods;
mod storms;

use serin::local::node::address::Network;
use tokio::sync::OnceCell;

use support::Cluster;

/// The cluster, once it has a node.
async fn with_node(
    cluster: &'static Cluster,
    network: Network,
    started: &'static OnceCell<()>,
) -> &'static Cluster {
    started.get_or_init(|| async { support::node::run(cluster, network) }).await;
    cluster
}

/// Makes two tests of each law named.
macro_rules! laws {
    ($($area:ident: $($law:ident)*;)*) => {
        laws!(@on real Twin $($area: $($law)*;)*);
        laws!(@on local Loopback $($area: $($law)*;)*);
    };
    (@on $cluster:ident $network:ident $($area:ident: $($law:ident)*;)*) => {
        mod $cluster {
            static NODE: tokio::sync::OnceCell<()> = tokio::sync::OnceCell::const_new();
            $(mod $area {
                use crate::{$area as laws, Network, session::Session, support, with_node};
                $(
                    #[tokio::test]
                    async fn $law() {
                        let network = Network::$network;
                        let cluster = with_node(support::$cluster().await, network, &super::NODE).await;
                        laws::$law(Session::new(cluster, stringify!($area)).await).await
                    }
                )*
            })*
        }
    };
}

laws! {
    deployments:
        a_deployment_becomes_available
        a_rolling_update_keeps_enough_pods_available
        going_back_to_an_old_template_reuses_its_set
        recreating_pods_never_mixes_revisions
        a_paused_deployment_does_not_roll
        a_deployment_scales_to_zero_and_back
        a_deployment_that_never_gets_ready_exceeds_its_deadline
        a_pod_counts_as_available_only_after_a_while
        the_history_is_as_long_as_wanted
        the_pods_of_a_deleted_deployment_go_too
        in_the_foreground_the_pods_go_first
        orphaned_sets_are_adopted_again
        a_pod_that_is_deleted_is_replaced
        a_pod_whose_labels_change_is_let_go_and_replaced
        kubectl_follows_a_rollout;
    daemons:
        a_daemon_runs_on_the_node
        a_changed_daemon_is_replaced
        a_daemon_without_nodes_runs_nowhere;
    endpoints:
        a_slice_follows_the_readiness_of_its_pods
        a_service_without_pods_has_an_empty_slice
        a_slice_goes_with_its_service;
    pods:
        a_pod_serves_on_its_own_address
        a_pod_that_crashes_says_so
        a_pod_that_is_never_ready_runs
        a_readiness_probe_decides
        a_pod_waits_for_its_configuration
        a_pod_that_is_deleted_stops_serving
        a_finalizer_keeps_a_stopped_pod
        a_namespace_with_pods_can_be_deleted;
}
