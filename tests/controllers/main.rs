//! The laws of workload controllers: Deployments, DaemonSets, Services and pods.
//!
//! Each runs on the real kube-apiserver with the real controller-manager, and
//! on `local/` with its own controllers; the node is `local`'s on both:
//! `cargo test --test controllers real::`, or `local::`. `fault_injection` are
//! simulations: paused time, and faults drawn from a seed.

#[path = "../support/mod.rs"]
mod support;

#[path = "../conformance/session.rs"]
#[allow(dead_code)]
mod session;

mod daemons;
mod deployments;
mod endpoints;
mod fault_injection;
mod pods;

use kube_local::node::address::Network;
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
        laws!(@on real Private $($area: $($law)*;)*);
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
        the_revision_history_limit_is_kept
        the_pods_of_a_deleted_deployment_are_deleted
        foreground_deletion_removes_the_pods_first
        orphaned_sets_are_adopted_again
        a_pod_that_is_deleted_is_replaced
        a_pod_whose_labels_change_is_released_and_replaced
        kubectl_follows_a_rollout;
    daemons:
        a_daemon_runs_on_the_node
        a_changed_daemon_is_replaced
        a_daemon_without_nodes_runs_nowhere;
    endpoints:
        a_slice_follows_the_readiness_of_its_pods
        a_service_without_pods_has_an_empty_slice
        a_slice_is_deleted_with_its_service
        a_terminating_pod_serves_while_it_leaves_the_endpoints;
    pods:
        a_pod_serves_on_its_own_address
        a_crashing_pod_reports_its_crash_loop
        a_pod_that_is_never_ready_runs
        readiness_follows_the_readiness_probe
        a_pod_waits_for_its_configuration
        a_pod_that_is_deleted_stops_serving
        a_finalizer_keeps_a_stopped_pod
        a_namespace_with_pods_can_be_deleted;
}
