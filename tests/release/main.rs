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

mod ends;
mod hooks;
mod interruptions;
mod meshes;
mod replicas;

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
    hooks:
        people_approve_and_abort_by_annotation;
    interruptions:
        a_newer_revision_takes_the_place_of_the_one_under_way
        a_suspended_release_stays_where_it_is
        a_revision_pushed_while_nobody_looks_is_released
        a_restart_in_a_release_changes_nothing
        another_replica_takes_over_a_release_under_way;
    meshes:
        each_step_waits_until_the_gateway_has_taken_it
        a_virtual_service_of_people_is_stepped_and_put_back;
}
