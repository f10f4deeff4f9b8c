//! Invariants of every router.
//!
//! Each is one function and runs for each router on each API server:
//! `cargo test --test routing real::smi_v1alpha4::`, or `local::kubernetes::`.
//! A new router adds a [case](routers::RouterCase) and its name to the list below.

#[path = "../support/mod.rs"]
mod support;

mod adoption;
mod app_mesh;
mod app_mesh_api;
mod app_mesh_moto;
mod external_mesh;
mod gateway;
mod gitops;
mod istio;
mod lists;
mod refusals;
mod routers;
mod selection;
mod service_fields;
mod services;
mod steps;
mod world;
mod xds;

/// Declares a test of each invariant for each router on each server.
macro_rules! invariants {
    ($real:ident $local:ident routers: [$($router:ident)*] $invariants:tt) => {
        mod $real { $(invariants!(@router real $router $invariants);)* }
        mod $local { $(invariants!(@router local $router $invariants);)* }
    };
    (@router $cluster:ident $router:ident {$($area:ident: $($invariant:ident)*;)*}) => {
        mod $router {
            $(
                $(
                    #[tokio::test]
                    async fn $invariant() {
                        let cluster = crate::support::$cluster().await;
                        let world = crate::world::World::new(cluster, crate::routers::$router()).await;
                        crate::$area::$invariant(world).await
                    }
                )*
            )*
        }
    };
}

invariants! {
    real local
    routers: [
        kubernetes smi_v1alpha1 smi_v1alpha2 smi_v1alpha3 smi_v1alpha4
        gateway gateway_mesh gateway_grpc istio istio_v1alpha3 istio_tcp istio_tls app_mesh app_mesh_grpc
        app_mesh_api app_mesh_api_grpc app_mesh_api_tcp xds xds_tcp
    ]
    {
        steps:
            initialising_routes_all_traffic_to_the_primary
            every_written_step_is_in_force
            a_share_finer_than_a_percent_is_exact
            matched_requests_go_to_the_canary
            matched_requests_and_a_share_of_the_others_go_to_the_canary
            mirrored_requests_go_to_the_canary
            session_affinity_keeps_users_on_their_version
            a_rollback_routes_all_traffic_to_the_primary
            a_promotion_routes_all_to_the_canary_and_back
            the_previous_version_can_take_over
            a_step_costs_one_request_and_a_split_in_force_none
            foreign_fields_survive_every_step
            a_foreign_edit_is_detected_and_reverted
            a_concurrent_edit_is_kept
            a_deleted_object_is_detected_and_recreated
            a_deleted_object_is_not_written_from_a_stale_cache
            an_object_missing_from_the_cache_is_not_overwritten;
        services:
            services_are_created_from_the_spec
            an_edit_of_the_canary_is_applied_to_services
            ports_of_the_containers_are_added
            a_headless_service_stays_headless
            unmanaged_metadata_is_left_alone
            owned_services_are_deleted_with_the_canary;
        adoption:
            an_existing_service_is_adopted_and_restored
            an_existing_route_is_adopted_and_restored
            changes_by_others_are_kept
            another_port_by_the_same_name_is_kept
            a_later_edit_is_restored_as_well
            restoring_twice_is_harmless
            an_owned_apex_selects_the_target_after_restore
            an_object_of_another_canary_is_not_taken_over
            an_object_of_flagger_is_refused_with_the_safe_way_to_take_it_over;
        refusals:
            an_unsupported_feature_is_refused_before_any_write
            a_supported_feature_is_not_refused;
        service_fields:
            every_field_of_the_service_is_written_or_refused;
    }
}

// For routers whose route is an entry of a list that others write to as well.
invariants! {
    real_lists local_lists
    routers: [gateway gateway_mesh gateway_grpc istio istio_v1alpha3 istio_tcp istio_tls app_mesh app_mesh_grpc]
    {
        lists:
            routes_of_others_survive_every_step_and_are_restored
            the_route_to_the_apex_is_replaced_and_restored
            every_route_to_the_apex_is_replaced_and_restored
            an_entry_that_also_leads_elsewhere_is_refused_before_any_write
            a_concurrent_edit_of_the_list_is_kept
            a_list_reset_by_others_is_taken_over_again;
    }
}

// Fields of a replaced entry that only these have.
invariants! {
    real_entries local_entries
    routers: [gateway istio]
    {
        lists: the_fields_of_a_replaced_entry_survive_a_hundred_steps;
    }
}
