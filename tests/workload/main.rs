//! What becomes of workloads, at the API: primaries, copies of configs,
//! promotions, autoscalers. No pod needs to run for any of it.
//!
//! Every law runs twice, on the real kube-apiserver with its controllers and on
//! `local/`: `cargo test --test workload real::`, or `local::`.

#[path = "../support/mod.rs"]
mod support;

mod companions;
mod configs;
mod kinds;
mod observe;
mod primary;
mod promote;
mod world;

pub use world::World;

/// Makes one test of each law on each server.
macro_rules! laws {
    ($($area:ident::$law:ident)*) => {
        mod real {
            $(#[tokio::test]
            async fn $law() {
                crate::$area::$law(crate::World::on(crate::support::real().await).await).await
            })*
        }

        mod local {
            $(#[tokio::test]
            async fn $law() {
                crate::$area::$law(crate::World::on(crate::support::local().await).await).await
            })*
        }
    };
}

laws! {
    primary::it_differs_in_one_label_value_and_keeps_all_others
    primary::it_says_whose_it_is_and_keeps_gitops_away
    primary::what_is_asked_for_twice_is_done_once
    primary::somebody_elses_is_left_alone
    primary::it_is_made_of_the_revision_asked_for_or_not_at_all
    configs::they_are_copied_whole_and_read_instead
    configs::those_that_opted_out_or_do_not_exist_are_not_copied
    configs::an_edit_is_a_revision_and_reaches_the_primary_only_by_promotion
    configs::copies_that_nobody_can_go_back_to_are_deleted
    configs::two_primaries_share_no_copy
    promote::it_copies_exactly_what_was_analysed
    promote::it_refuses_a_target_that_moved
    promote::a_cache_that_is_behind_costs_nobody_anything
    promote::promoted_twice_it_still_knows_what_was_before
    promote::it_drops_what_was_dropped
    promote::it_sizes_the_primary_as_people_wrote
    promote::steps_and_autoscalers_say_nothing_about_the_primarys_size
    promote::what_was_before_can_be_given_back
    promote::what_is_lost_is_said_to_be_lost
    promote::the_previous_one_runs_beside_the_primary
    companions::an_edit_of_the_autoscaler_follows_at_once
    companions::a_pinned_primary_does_not_shrink
    companions::an_autoscalers_copy_ends_with_it
    companions::keda_rests_while_the_canary_is_empty
    companions::a_budget_covers_the_primary_too
    companions::a_chart_of_flux_does_not_resize_the_target
    kinds::a_daemon_set_runs_nowhere_and_everywhere_again
    kinds::a_target_notes_after_which_release_it_was_emptied
    kinds::a_daemon_set_is_promoted_and_given_back
    kinds::a_service_has_a_primary_and_a_canary_of_its_own
    kinds::when_the_canary_goes_the_target_stays
}
