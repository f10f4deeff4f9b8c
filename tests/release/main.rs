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

mod callers;
mod ends;
mod followed;
mod hooks;
mod interruptions;
mod replicas;
mod world;

use std::pin::Pin;

use futures::FutureExt as _;
use tokio::task::LocalSet;
use world::World;

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

type Scenario = Pin<Box<dyn Future<Output = ()>>>;

/// Runs them at the same time: most of what they do is wait.
async fn together(scenarios: Vec<(&'static str, Scenario)>) {
    let only = std::env::var("SCENARIO").ok();
    let wanted = |name: &str| only.as_deref().is_none_or(|only| only == name);
    let all = LocalSet::new();
    let running: Vec<_> = scenarios
        .into_iter()
        .filter(|(name, _)| wanted(name))
        .map(|(name, scenario)| (name, all.spawn_local(scenario)))
        .collect();
    all.await;
    let failed: Vec<_> =
        running.into_iter().filter_map(|(name, ran)| ran.now_or_never()?.err().map(|_| name)).collect();
    assert!(failed.is_empty(), "these failed: {failed:?}");
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
}
