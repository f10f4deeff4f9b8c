//! Workload actions against the API: primaries, config copies, promotions,
//! autoscalers. No pod needs to run.
//!
//! Every test runs twice, on the real kube-apiserver with its controllers and on
//! `local/`: `cargo test --test workload real::`, or `local::`.

#[path = "../world/refusals.rs"]
mod refusals;
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

/// Declares a test of each invariant on each server.
macro_rules! invariants {
    ($($area:ident::$invariant:ident)*) => {
        mod real {
            $(#[tokio::test]
            async fn $invariant() {
                crate::$area::$invariant(crate::World::on(crate::support::real().await).await).await
            })*
        }

        mod local {
            $(#[tokio::test]
            async fn $invariant() {
                crate::$area::$invariant(crate::World::on(crate::support::local().await).await).await
            })*
        }
    };
}

invariants! {
    primary::the_primary_differs_in_one_label_value
    primary::the_primary_has_its_owner_and_gitops_ignore_annotations
    primary::creating_the_primary_is_idempotent
    primary::a_primary_of_another_owner_is_left_alone
    primary::a_primary_that_nobody_made_is_overwritten_only_if_adopted
    primary::a_primary_is_adopted_between_writes_of_others
    primary::a_promotion_keeps_the_selector_of_the_primary
    primary::the_primary_is_created_only_from_the_requested_revision
    configs::configs_are_copied_completely_and_the_primary_reads_the_copies
    configs::opted_out_and_missing_configs_are_not_copied
    configs::an_edit_is_a_revision_and_reaches_the_primary_only_by_promotion
    configs::copies_of_unreachable_revisions_are_deleted
    configs::two_primaries_share_no_copy
    promote::a_promotion_copies_exactly_the_analysed_template
    promote::a_promotion_refuses_a_changed_target
    promote::a_promotion_from_a_stale_cache_overwrites_nothing
    promote::a_repeated_promotion_keeps_the_backup
    promote::a_promotion_drops_removed_fields
    promote::a_promotion_sizes_the_primary_as_the_target
    promote::steps_and_autoscalers_do_not_change_the_size_of_the_primary
    promote::the_previous_revision_can_be_restored
    promote::a_missing_backup_is_reported
    promote::an_edited_backup_is_not_restored
    promote::a_deleted_primary_is_not_created_from_an_edited_backup
    promote::a_refused_promotion_leaves_a_backup_that_can_be_restored
    promote::a_promotion_without_a_backup_to_keep_records_the_new_one_first
    promote::a_deleted_primary_is_created_again_from_its_backup
    promote::the_previous_version_runs_beside_the_primary
    companions::an_edit_of_the_autoscaler_is_copied_at_once
    companions::a_pinned_primary_does_not_shrink
    companions::a_primary_that_is_scaled_up_stays_up
    companions::the_copy_of_an_autoscaler_is_deleted_with_it
    companions::keda_is_paused_while_the_canary_has_no_pods
    companions::a_budget_covers_the_primary_too
    companions::a_flux_helm_release_does_not_resize_the_target
    kinds::a_daemon_set_is_scaled_to_zero_and_back
    kinds::a_target_records_after_which_release_it_was_scaled_down
    kinds::a_daemon_set_is_promoted_and_restored
    kinds::a_service_has_a_primary_and_a_canary_of_its_own
    kinds::the_target_stays_when_the_canary_is_deleted
}
