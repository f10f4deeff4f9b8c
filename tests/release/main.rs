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
mod broken_pods;
mod calendar;
mod clock_steps;
mod companions;
mod conditions;
mod configs;
mod deadlines;
mod deletion;
mod gates;
mod interim_checks;
mod interruptions;
mod isolation;
mod kinds;
mod labels;
mod late_references;
mod lifecycle;
mod limits;
mod lost_primary;
mod meshes;
mod outcomes;
mod ownership;
mod promotion;
mod refusals;
mod replicas;
mod route_migration;
mod steps;
mod trouble;

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
        a_total_failure_is_rolled_back_though_the_primary_is_idle
        slowness_rolls_back
        a_revision_that_never_becomes_ready_gets_no_traffic_and_is_rolled_back
        missing_traffic_holds_a_release_and_does_not_fail_it
        without_analysis_a_ready_revision_is_promoted_and_a_crashing_one_is_not
        a_recreated_canary_starts_over;
    interim_checks:
        the_first_check_of_blue_green_begins_at_once;
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
    promotion:
        a_push_during_a_promotion_serves_nobody
        a_push_during_a_blue_green_promotion_serves_nobody
        a_bad_config_is_rolled_back_when_pods_were_kept_at_rest;
    kinds:
        a_daemon_set_is_released_step_by_step
        a_service_target_is_released_without_a_workload
        several_namespaces_are_watched_and_others_are_not;
    labels:
        a_target_recreated_with_another_label_value_is_no_outage
        a_target_recreated_with_one_more_label_is_no_outage
        a_target_recreated_with_a_renamed_label_is_no_outage
        a_failing_target_recreated_with_other_labels_is_no_outage
        a_target_recreated_with_other_labels_during_its_release_is_no_outage
        a_target_that_would_share_pods_with_its_primary_is_refused
        a_target_labelled_as_a_primary_has_a_primary_of_its_own;
    ownership:
        a_primary_that_nobodys_canary_made_is_overwritten_only_if_adopted
        a_primary_of_a_former_canary_is_taken_over
        a_primary_of_another_canary_is_not_released
        a_port_by_default_that_no_container_declares_is_refused
        a_port_by_a_name_that_no_container_declares_is_refused
        the_target_of_a_canary_stays;
    conditions:
        a_canary_is_ready_only_while_its_primary_has_pods
        a_refused_command_leaves_the_reason_of_the_failure
        a_paused_release_has_the_condition_paused;
    companions:
        an_autoscaler_is_copied_and_edits_follow
        keda_is_paused_except_during_a_release
        no_pod_of_the_primary_has_two_budgets;
    lost_primary:
        a_primary_deleted_at_rest_comes_back_with_its_size
        a_primary_deleted_in_a_release_comes_back_while_the_canary_serves
        a_primary_that_its_autoscaler_shrank_grows_before_traffic_returns;
    calendar:
        a_freeze_blocks_releases_and_not_rollbacks
        a_bad_revision_is_rolled_back_in_a_freeze;
    deadlines:
        a_slow_rollout_of_many_pods_is_promoted
        a_suspended_release_has_its_deadline_back
        a_canary_that_dies_under_its_traffic_is_rolled_back
        silence_after_a_step_passed_holds_it
        a_route_that_something_else_reverts_names_the_writer_and_ends_at_the_deadline;
    deletion:
        a_deletion_leaves_the_target_serving
        a_deletion_in_a_release_ends_when_the_target_is_set_back
        a_deletion_in_a_release_takes_over_at_the_deadline
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
        another_router_replaces_the_route
        another_router_in_a_release_leaves_no_traffic_on_the_old_route;
    interruptions:
        a_newer_revision_takes_the_place_of_the_one_under_way
        a_suspended_release_stays_where_it_is
        a_revision_pushed_while_no_controller_runs_is_released
        a_restart_in_a_release_changes_nothing
        another_replica_takes_over_a_release_under_way;
    isolation:
        hooks_that_hang_delay_only_their_own_release
        event_hooks_that_hang_delay_no_gate_of_others
        calls_end_with_the_canary_that_made_them
        calls_of_a_release_end_with_it;
    late_references:
        a_template_that_appears_later_is_used_at_once
        a_provider_and_its_secret_that_appear_later_get_the_next_alert
        a_gate_is_called_once_its_key_appears;
    meshes:
        each_step_waits_until_the_gateway_has_accepted_it
        an_adopted_virtual_service_is_stepped_and_restored;
    trouble:
        a_bad_canary_is_rolled_back_though_its_autoscaler_is_gone
        a_release_runs_without_its_autoscaler_and_reports_it
        a_budget_that_cannot_be_copied_blocks_neither_verdict_nor_abort
        a_primary_that_admission_denies_is_reported_and_made_once_it_may
        a_promotion_that_admission_denies_ends_at_its_deadline
        a_route_that_may_not_be_written_is_reported_and_ends_at_the_deadline
        a_route_that_admission_denies_is_reported_in_its_words
        a_route_whose_webhook_is_down_is_reported_in_its_words
        a_kind_that_may_not_be_watched_is_reported_with_the_missing_rule
        companions_that_may_not_be_watched_stop_no_release
        a_release_whose_status_is_refused_does_not_move_to_and_fro
        an_abort_is_obeyed_though_the_status_is_refused
        an_invalid_canary_obeys_an_abort
        an_invalid_canary_that_dies_loses_its_traffic
        a_suspended_release_obeys_an_abort
        a_scaled_object_that_is_gone_blocks_no_deletion;
    app_mesh:
        one_revision_is_promoted_and_the_next_is_rolled_back
        another_router_takes_over_from_app_mesh
        an_app_mesh_error_is_reported;
}
