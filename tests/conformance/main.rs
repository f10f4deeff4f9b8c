//! The laws of the Kubernetes API that this project leans on.
//!
//! Each is one function and runs three times, on the real kube-apiserver, on
//! `kube_local`, and on `kube_local` with its objects in a file: `cargo test --test
//! conformance real::`, `local::` or `durable::`. The real one is the judge of what is
//! written here.

#[path = "../support/mod.rs"]
mod support;

mod apply;
mod auth;
mod crds;
mod deletes;
mod discovery;
mod dryrun;
mod errors;
mod garbage;
mod lists;
mod objects;
mod patches;
mod session;
mod subresources;
mod tables;
mod watches;
mod workloads;

/// Makes three tests of each law named.
macro_rules! laws {
    ($($area:ident: $($law:ident)*;)*) => {
        laws!(@on real $($area: $($law)*;)*);
        laws!(@on local $($area: $($law)*;)*);
        laws!(@on durable $($area: $($law)*;)*);
    };
    (@on $cluster:ident $($area:ident: $($law:ident)*;)*) => {
        mod $cluster {
            $(mod $area {
                use crate::{$area as laws, session::Session, support};
                $(
                    #[tokio::test]
                    async fn $law() {
                        laws::$law(Session::new(support::$cluster().await, stringify!($area)).await).await
                    }
                )*
            })*
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
        getting_a_missing_object_is_not_found
        an_update_with_an_old_version_is_a_conflict
        an_update_without_a_version_wins
        an_update_that_changes_nothing_keeps_the_version
        updating_a_missing_object_is_not_found
        an_update_under_another_name_is_refused
        an_update_of_another_incarnation_is_a_conflict
        an_update_cannot_change_server_owned_fields
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
        pages_show_the_version_of_the_first_page
        a_page_with_a_selector_does_not_count_the_rest
        an_unreadable_continue_token_is_refused
        a_continue_token_with_a_version_is_refused
        a_version_match_needs_a_version
        a_list_at_an_exact_version_shows_that_version
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
        a_watch_without_a_version_begins_with_existing_objects
        a_watch_from_zero_begins_with_existing_objects
        a_watch_delivers_every_change_once
        a_watch_sees_only_its_namespace
        a_watch_across_namespaces_sees_all
        a_watch_of_one_name_sees_one_object
        leaving_a_selector_is_a_deletion_and_entering_an_addition
        a_deletion_carries_the_last_state_and_a_new_version
        a_watch_ends_after_its_timeout
        initial_events_end_with_a_marked_bookmark
        initial_events_need_a_version_match
        bookmarks_are_sent_only_on_request
        a_last_bookmark_comes_before_the_timeout
        watch_from_old_version_gets_410
        events_of_all_watchers_come_in_the_same_order;
    deletes:
        deleting_answers_with_a_status
        deleting_a_missing_object_is_not_found
        a_precondition_on_the_uid_guards
        a_precondition_on_the_version_guards
        an_unknown_propagation_is_refused
        a_finalizer_holds_the_object
        an_object_being_deleted_takes_no_new_finalizers
        an_object_being_deleted_cannot_be_revived
        a_finalizer_is_a_qualified_name
        a_new_object_has_a_new_uid
        a_collection_is_deleted_by_selector
        a_pod_on_a_node_has_time_to_end
        a_pod_on_no_node_is_gone_at_once
        a_namespace_is_deleted_with_its_content;
    patches:
        a_merge_patch_merges_maps_and_null_removes
        a_merge_patch_replaces_lists
        a_patch_with_an_old_version_is_a_conflict
        patching_a_missing_object_is_not_found
        a_patch_cannot_rename
        a_merge_patch_is_an_object
        a_patch_names_its_format
        parallel_patches_all_arrive
        a_json_patch_is_done_in_order
        a_failed_test_refuses_the_json_patch
        a_json_patch_of_a_missing_parent_is_refused
        a_json_patch_is_a_list
        a_json_patch_indexes_lists
        a_strategic_patch_merges_containers_by_name
        a_strategic_patch_adds_missing_items
        a_strategic_patch_deletes_by_directive
        a_strategic_patch_replaces_by_directive
        a_strategic_patch_orders_by_directive
        a_strategic_patch_merges_finalizers;
    apply:
        applying_creates
        applying_the_same_changes_nothing
        a_dropped_field_disappears
        a_field_of_another_manager_is_kept
        a_field_that_two_own_stays_until_both_drop_it
        a_contested_field_is_a_conflict
        force_takes_the_field
        an_update_owns_the_fields_it_changes
        an_update_without_changes_owns_nothing
        a_create_owns_the_fields_it_sets
        one_manager_may_apply_and_update
        applying_needs_a_manager
        force_is_for_applying_only
        an_applied_object_brings_no_managed_fields
        applying_an_old_version_is_a_conflict
        applying_with_the_uid_of_a_deleted_object_is_a_conflict
        a_body_may_be_yaml
        list_items_are_owned_by_key
        a_dropped_field_with_a_default_gets_the_default
        finalizers_are_owned_one_by_one
        status_has_owners_of_its_own
        a_duplicate_key_is_refused
        an_unknown_field_cannot_be_applied;
    subresources:
        status_cannot_be_written_with_the_object
        the_object_cannot_be_written_with_its_status
        an_update_of_status_checks_the_version
        a_kind_without_status_has_no_status_path
        scale_shows_the_replicas
        scale_changes_the_replicas
        a_negative_scale_is_refused
        scale_with_an_old_version_is_a_conflict
        a_custom_kind_scales_by_its_paths
        the_status_of_a_custom_object_is_a_subresource;
    crds:
        a_definition_is_established_and_names_accepted
        a_definition_is_named_after_its_plural_and_group
        a_definition_needs_a_structural_schema
        a_rule_that_does_not_compile_is_refused
        unknown_fields_are_pruned
        unknown_fields_are_reported
        defaults_are_filled_in
        each_violation_has_the_message_of_the_real_server
        a_missing_spec_is_reported
        rules_refuse_with_their_message
        rules_see_the_old_value
        an_update_of_a_custom_object_names_its_version
        a_custom_object_has_no_strategic_patch
        a_custom_object_names_its_kind
        apply_knows_the_lists_of_a_custom_object
        only_served_versions_are_served
        a_cluster_scoped_kind_has_no_namespace
        deleting_a_definition_deletes_its_objects
        a_changed_definition_applies_at_once;
    tables:
        a_table_has_columns_and_rows
        a_table_of_one_object_has_one_row
        a_table_includes_objects_as_requested
        a_table_comes_in_pages
        a_watched_table_names_its_columns_once
        pods_show_readiness_status_and_restarts
        workloads_show_their_counts
        services_show_their_ports
        every_built_in_kind_has_its_columns
        a_custom_kind_shows_its_printer_columns
        a_custom_kind_without_columns_shows_its_age
        metadata_may_be_requested_alone;
    discovery:
        the_server_is_healthy
        the_version_is_served
        the_core_group_is_listed
        every_kind_we_use_is_served
        groups_are_listed
        groups_are_listed_aggregated
        a_custom_kind_is_discovered
        schemas_are_published
        the_schema_of_a_custom_kind_is_published
        an_unknown_path_is_not_found;
    dryrun:
        a_dry_creation_leaves_nothing
        a_dry_creation_is_checked
        a_dry_change_changes_nothing
        a_dry_deletion_deletes_nothing
        a_dry_run_sends_no_watch_event
        an_unknown_dry_run_is_refused;
    errors:
        a_body_that_is_not_json_is_refused
        a_body_of_an_unknown_format_is_refused
        a_body_may_be_yaml
        a_response_in_an_unknown_format_is_refused
        an_unsupported_method_is_refused
        an_unknown_field_of_a_built_in_kind_is_reported
        an_unknown_field_in_a_patch_is_reported
        an_unknown_field_validation_is_refused
        a_value_of_the_wrong_type_is_refused
        a_workload_must_select_its_own_pods
        several_faults_are_listed
        a_pod_needs_a_container_with_an_image
        an_unfit_key_is_refused;
    auth:
        without_a_token_nothing_is_served
        a_token_is_reviewed
        access_is_reviewed;
    garbage:
        dependents_are_deleted_with_their_owner
        foreground_deletion_removes_the_owner_last
        orphaned_dependents_stay_without_owner_reference
        one_existing_owner_keeps_a_dependent
        a_dependent_of_a_nonexistent_owner_is_deleted
        an_owner_is_known_by_its_uid
        an_object_has_at_most_one_controller
        a_custom_object_can_be_an_owner;
    workloads:
        a_deployment_makes_a_replica_set_and_its_pods
        a_deployment_reports_its_pods
        a_new_template_rolls_over_step_by_step
        an_old_template_reuses_its_replica_set
        a_change_of_scale_is_no_new_revision
        scaling_to_zero_ends_all_pods
        a_lost_pod_is_replaced
        a_failed_pod_is_replaced
        recreate_ends_the_old_before_the_new
        a_paused_deployment_waits
        a_deployment_without_progress_reports_it
        a_pod_counts_only_after_its_ready_seconds
        deleting_a_deployment_reaches_its_pods
        a_replica_set_adopts_pods_it_selects
        a_service_lists_its_pods_with_their_readiness
        a_daemon_set_has_a_pod_on_every_node
        controllers_write_events;
}
