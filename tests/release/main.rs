//! Whole releases by the real controller, each scenario on both servers:
//!
//! - on `serin::local` with its controllers, each in a cluster of its own on
//!   paused time: minutes pass in moments (`cargo test --test release local::`);
//! - on the real kube-apiserver with the real controller-manager, all of one
//!   file at a time, each in a namespace of its own (`real::ends`; to run one
//!   of them, name it: `SCENARIO=errors_roll_back`).
//!
//! Requests, errors and latencies are those of pods, which on either server are
//! those of `serin::local`'s node, reached through its mesh.

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
mod ends;
mod gates;
mod interruptions;
mod kinds;
mod lifecycle;
mod limits;
mod meshes;
mod refusals;
mod replicas;
mod rerouted;
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
    ends:
        a_healthy_revision_is_promoted
        errors_roll_back
        slowness_rolls_back
        a_revision_that_never_becomes_ready_gets_no_traffic_and_is_rolled_back
        no_traffic_holds_and_is_not_bad
        without_analysis_the_good_is_promoted_and_the_bad_is_not
        a_canary_that_comes_back_begins_anew;
    steps:
        listed_weights_come_one_after_the_other
        equal_weights_end_at_the_greatest
        traffic_goes_home_step_by_step
        edited_steps_go_on_from_where_traffic_is
        an_edit_of_the_service_leaves_the_weights_alone;
    blue_green:
        gates_before_the_switch_are_asked_until_they_open
        gates_that_stay_closed_roll_back_before_anybody_is_served
        without_a_mesh_the_service_switches
        a_daemon_set_switches
        what_gitops_wrote_stays_and_labels_are_copied_by_prefix;
    ab:
        by_header
        by_cookie;
    gates:
        a_release_begins_once_it_is_confirmed
        every_rise_is_confirmed
        a_promotion_is_confirmed_and_what_is_over_is_told
        a_rollback_gate_ends_a_release_under_way
        a_rollback_gate_ends_a_release_that_waits
        people_approve_and_abort_by_annotation;
    alerts:
        chats_are_told_what_they_ask_for;
    lifecycle:
        what_was_rolled_back_is_tried_again_by_command
        what_was_rolled_back_is_tried_again_by_annotation
        what_is_promoted_can_be_taken_back_while_it_is_warm;
    configs:
        an_edit_of_any_of_them_is_released
        a_bad_one_is_rolled_back_and_reaches_the_canary_only;
    kinds:
        a_daemon_set_is_released_step_by_step
        a_service_in_front_of_what_others_run
        several_namespaces_are_watched_and_others_are_not;
    companions:
        an_autoscaler_is_copied_and_edits_follow
        keda_rests_except_in_a_release;
    calendar:
        a_freeze_holds_releases_and_not_rollbacks
        what_is_bad_is_rolled_back_in_a_freeze;
    deletion:
        a_deletion_that_reverts_leaves_the_target_serving
        a_deletion_that_does_not_revert_lets_go
        a_service_and_a_route_that_were_there_before_come_back;
    refusals:
        a_mesh_that_is_not_supported
        delegation
        session_affinity
        mirroring
        conditions_that_the_mesh_does_not_know
        a_stateful_set;
    rerouted:
        another_name_takes_everything_along
        another_router_takes_its_route_along;
    interruptions:
        a_newer_revision_takes_the_place_of_the_one_under_way
        a_suspended_release_stays_where_it_is
        a_revision_pushed_while_nobody_looks_is_released
        a_restart_in_a_release_changes_nothing
        another_replica_takes_over_a_release_under_way;
    meshes:
        each_step_waits_until_the_gateway_has_taken_it
        a_virtual_service_of_people_is_stepped_and_put_back;
    app_mesh:
        one_revision_is_promoted_and_the_next_is_rolled_back
        another_router_takes_over_from_it
        what_the_mesh_refuses_is_said;
}
