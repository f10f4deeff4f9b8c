//! The laws of the Kubernetes API that this project leans on.
//!
//! Each is one function and runs twice, on the real kube-apiserver and on
//! `local/`: `cargo test --test conformance real::`, or `local::`. The real
//! one is the judge of what is written here.

#[path = "../support/mod.rs"]
mod support;

mod apply;
mod crds;
mod deletes;
mod lists;
mod objects;
mod patches;
mod session;
mod watches;

/// Makes two tests of each law named.
macro_rules! laws {
    ($($area:ident: $($law:ident)*;)*) => {
        mod real {
            $(mod $area { $(
                #[tokio::test]
                async fn $law() {
                    let session = crate::session::Session::new(crate::support::real().await, stringify!($area)).await;
                    crate::$area::$law(session).await
                }
            )* })*
        }
        mod local {
            $(mod $area { $(
                #[tokio::test]
                async fn $law() {
                    let session = crate::session::Session::new(crate::support::local().await, stringify!($area)).await;
                    crate::$area::$law(session).await
                }
            )* })*
        }
    };
}

laws! {
    objects:
        creating_fills_in_the_identity
        creating_the_same_name_twice_is_refused
        creating_in_a_missing_namespace_is_refused
        creating_with_a_resource_version_is_refused
        creating_without_a_name_is_refused
        creating_with_an_unfit_name_is_refused
        creating_with_an_unfit_label_is_refused
        creating_in_another_namespace_than_the_path_is_refused
        generate_name_appends_a_suffix
        a_body_of_another_kind_is_refused
        getting_what_is_not_there_is_not_found
        an_update_with_an_old_version_is_a_conflict
        an_update_without_a_version_wins
        an_update_that_changes_nothing_keeps_the_version
        an_update_of_what_is_not_there_is_not_found
        an_update_under_another_name_is_refused
        an_update_of_another_incarnation_is_a_conflict
        an_update_cannot_change_what_the_server_owns
        versions_rise_across_kinds
        generation_counts_changes_of_the_spec
        a_config_map_has_no_generation
        a_new_namespace_is_active_and_labelled
        a_service_gets_its_defaults
        a_deployment_gets_its_defaults
        string_data_of_a_secret_becomes_data
        an_immutable_config_map_cannot_change
        selectors_of_a_deployment_cannot_change;
    lists:
        a_list_names_its_kind_and_version
        a_list_is_in_the_order_of_names
        a_list_across_namespaces_has_them_all
        a_limit_cuts_the_list_into_pages
        pages_show_the_moment_of_the_first
        a_page_with_a_selector_does_not_count_the_rest
        an_unreadable_continue_token_is_refused
        a_continue_token_with_a_version_is_refused
        a_version_match_needs_a_version
        a_list_at_an_exact_version_is_history
        a_list_not_older_than_a_version_is_current
        an_unreadable_version_is_refused
        label_selectors_choose
        an_unreadable_label_selector_is_refused
        field_selectors_choose_by_name
        field_selectors_choose_pods_by_phase_and_node
        an_unknown_field_selector_is_refused
        a_list_of_a_missing_namespace_is_empty;
    watches:
        a_watch_from_a_version_begins_after_it
        a_watch_without_a_version_begins_with_what_is_there
        a_watch_from_zero_begins_with_what_is_there
        a_watch_tells_of_every_change_once
        a_watch_sees_only_its_namespace
        a_watch_across_namespaces_sees_all
        a_watch_of_one_name_sees_one_object
        leaving_a_selector_is_a_deletion_and_entering_an_addition
        a_deletion_carries_the_last_state_and_a_new_version
        a_watch_ends_after_its_timeout
        initial_events_end_with_a_marked_bookmark
        initial_events_need_a_version_match
        bookmarks_come_only_when_asked_for
        a_last_bookmark_comes_before_the_timeout
        watch_from_old_version_gets_410
        events_of_all_watchers_come_in_the_same_order;
    deletes:
        deleting_answers_with_a_status
        deleting_what_is_not_there_is_not_found
        a_precondition_on_the_uid_guards
        a_precondition_on_the_version_guards
        an_unknown_propagation_is_refused
        a_finalizer_holds_the_object
        what_is_being_deleted_takes_no_new_finalizers
        what_is_being_deleted_cannot_be_revived
        a_finalizer_is_a_qualified_name
        a_new_object_has_a_new_uid
        a_collection_is_deleted_by_selector
        a_pod_on_a_node_has_time_to_end
        a_pod_on_no_node_is_gone_at_once
        a_namespace_takes_its_content_along;
    patches:
        a_merge_patch_merges_maps_and_null_removes
        a_merge_patch_replaces_lists
        a_patch_with_an_old_version_is_a_conflict
        a_patch_of_what_is_not_there_is_not_found
        a_patch_cannot_rename
        a_merge_patch_is_an_object
        a_patch_names_its_format
        parallel_patches_all_arrive
        a_json_patch_is_done_in_order
        a_failed_test_refuses_the_json_patch
        a_json_patch_below_nothing_is_refused
        a_json_patch_is_a_list
        a_json_patch_indexes_lists
        a_strategic_patch_merges_containers_by_name
        a_strategic_patch_adds_what_it_does_not_find
        a_strategic_patch_deletes_by_directive
        a_strategic_patch_replaces_by_directive
        a_strategic_patch_orders_as_told
        a_strategic_patch_merges_finalizers;
    apply:
        applying_creates
        applying_the_same_changes_nothing
        a_dropped_field_disappears
        anothers_field_stays
        a_field_that_two_own_stays_until_both_drop_it
        a_contested_field_is_a_conflict
        force_takes_the_field
        an_update_takes_what_it_changes
        an_update_that_changes_nothing_takes_nothing
        creating_owns_what_it_sets
        one_manager_may_apply_and_update
        applying_needs_a_manager
        force_is_for_applying_only
        an_applied_object_brings_no_managed_fields
        applying_an_old_version_is_a_conflict
        a_body_may_be_yaml
        list_items_are_owned_by_key
        a_dropped_field_with_a_default_gets_the_default
        finalizers_are_owned_one_by_one
        status_has_owners_of_its_own
        a_duplicate_key_is_refused
        an_unknown_field_cannot_be_applied;
}
