//! Whole releases by the real controller, each scenario on both servers:
//!
//! - on `kube_local` with its controllers, each in a cluster of its own on
//!   paused time: minutes pass in moments (`cargo test --test release local::`);
//! - on the real kube-apiserver with the real controller-manager, all of one
//!   file at a time, each in a namespace of its own (`real::outcomes`; to run one
//!   of them, name it: `SCENARIO=errors_roll_back`).
//!
//! Requests, errors and latencies are those of pods, which on either server are
//! those of `kube_local`'s node, reached through its mesh.

#[path = "../support/mod.rs"]
mod support;
#[path = "../world/mod.rs"]
mod world;

mod ab;
mod alerts;
mod app_mesh;
mod blue_green;
mod calendar;
mod companions;
mod configs;
mod deletion;
mod gates;
mod interruptions;
mod kinds;
mod lifecycle;
mod limits;
mod meshes;
mod outcomes;
mod refusals;
mod replicas;
mod route_migration;
mod steps;

use world::World;
use world::together::together;

/// Makes tests of scenarios, on each server.
macro_rules! scenarios {
    ($($file:ident: $($scenario:ident)*;)*) => {
        mod local {
            $($(
                #[tokio::test(start_paused = true)]
                async fn $scenario() {
                    crate::$file::$scenario(crate::World::new().await).await
                }
            )*)*
        }

        mod real {
            $(
                #[tokio::test]
                async fn $file() {
                    crate::together(vec![
                        $((stringify!($scenario), Box::pin(async {
                            crate::$file::$scenario(crate::World::real().await).await
                        }))),*
                    ])
                    .await
                }
            )*
        }
    };
}

scenarios! {
    outcomes:
        a_healthy_revision_is_promoted
        errors_roll_back
        slowness_rolls_back
        a_revision_that_never_becomes_ready_gets_no_traffic_and_is_rolled_back
        missing_traffic_holds_a_release_and_does_not_fail_it
        without_analysis_a_ready_revision_is_promoted_and_a_crashing_one_is_not
        a_recreated_canary_starts_over;
    steps:
        listed_weights_are_applied_in_order
        equal_weights_end_at_the_greatest
        traffic_returns_to_the_primary_step_by_step
        edited_steps_continue_from_the_current_weight
        an_edit_of_the_service_does_not_change_the_weights;
    blue_green:
        gates_before_the_switch_are_called_until_they_open
        gates_that_stay_closed_roll_back_before_anybody_is_served
        without_a_mesh_the_service_switches
        a_daemon_set_switches
        gitops_fields_are_kept_and_labels_are_copied_by_prefix;
    ab:
        requests_are_matched_by_header
        requests_are_matched_by_cookie;
    gates:
        a_release_begins_once_it_is_confirmed
        every_weight_increase_is_confirmed
        a_promotion_is_confirmed_and_hooks_get_the_outcome
        a_rollback_gate_ends_a_release_under_way
        a_rollback_gate_ends_a_release_that_waits
        people_approve_and_abort_by_annotation;
    alerts:
        alerts_are_filtered_by_severity;
    lifecycle:
        a_rolled_back_revision_is_retried_by_command
        a_rolled_back_revision_is_retried_by_annotation
        a_promotion_can_be_rolled_back_while_the_previous_version_is_warm;
    configs:
        an_edit_of_any_config_is_released
        a_bad_config_is_rolled_back_and_reaches_only_the_canary;
    kinds:
        a_daemon_set_is_released_step_by_step
        a_service_target_is_released_without_a_workload
        several_namespaces_are_watched_and_others_are_not;
    companions:
        an_autoscaler_is_copied_and_edits_follow
        keda_is_paused_except_during_a_release;
    calendar:
        a_freeze_blocks_releases_and_not_rollbacks
        a_bad_revision_is_rolled_back_in_a_freeze;
    deletion:
        a_deletion_that_reverts_leaves_the_target_serving
        a_deletion_without_revert_leaves_everything_in_place
        a_service_and_a_route_that_were_there_before_come_back;
    refusals:
        an_unsupported_mesh_is_refused
        smi_refuses_delegation
        smi_refuses_session_affinity
        smi_refuses_mirroring
        unsupported_match_conditions_are_refused
        stateful_sets_are_refused;
    route_migration:
        a_renamed_service_moves_all_objects
        another_router_replaces_the_route;
    interruptions:
        a_newer_revision_takes_the_place_of_the_one_under_way
        a_suspended_release_stays_where_it_is
        a_revision_pushed_while_no_controller_runs_is_released
        a_restart_in_a_release_changes_nothing
        another_replica_takes_over_a_release_under_way;
    meshes:
        each_step_waits_until_the_gateway_has_accepted_it
        an_adopted_virtual_service_is_stepped_and_restored;
    app_mesh:
        one_revision_is_promoted_and_the_next_is_rolled_back
        another_router_takes_over_from_app_mesh
        an_app_mesh_error_is_reported;
}
