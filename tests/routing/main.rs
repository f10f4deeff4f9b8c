//! The laws that hold for every router.
//!
//! Each is one function and runs for each router on each API server:
//! `cargo test --test routing real::smi_v1alpha4::`, or `local::kubernetes::`.
//! A new router adds a [`row`](rows) and its name to the list below.

#[path = "../support/mod.rs"]
mod support;

mod adoption;
mod app_mesh;
mod app_mesh_api;
mod app_mesh_moto;
mod elsewhere;
mod gateway;
mod istio;
mod lists;
mod refusals;
mod rows;
mod selection;
mod services;
mod steps;
mod world;

/// Makes a test of each law for each router on each server.
macro_rules! laws {
    ($real:ident $local:ident routers: [$($router:ident)*] $laws:tt) => {
        mod $real { $(laws!(@router real $router $laws);)* }
        mod $local { $(laws!(@router local $router $laws);)* }
    };
    (@router $cluster:ident $router:ident {$($area:ident: $($law:ident)*;)*}) => {
        mod $router {
            $(
                $(
                    #[tokio::test]
                    async fn $law() {
                        let cluster = crate::support::$cluster().await;
                        let world = crate::world::World::new(cluster, crate::rows::$router()).await;
                        crate::$area::$law(world).await
                    }
                )*
            )*
        }
    };
}

laws! {
    real local
    routers: [
        kubernetes smi_v1alpha1 smi_v1alpha2 smi_v1alpha3 smi_v1alpha4
        gateway gateway_mesh gateway_grpc istio istio_v1alpha3 istio_tcp app_mesh app_mesh_grpc
        app_mesh_api app_mesh_api_grpc app_mesh_api_tcp
    ]
    {
        steps:
            initialising_sends_all_traffic_home
            every_step_is_in_force_once_written
            a_share_finer_than_a_percent_is_exact
            chosen_requests_go_to_the_canary
            chosen_requests_and_a_share_of_the_others_go_to_the_canary
            copies_of_requests_go_to_the_canary
            users_stay_where_they_are
            a_rollback_brings_traffic_home
            a_promotion_goes_all_the_way_and_home
            the_version_before_can_take_over
            a_step_costs_one_request_and_what_is_right_none
            a_stranger_s_fields_survive_every_step
            a_stranger_s_edit_is_noticed_and_undone
            an_edit_at_the_same_moment_loses_nothing
            a_deleted_object_is_noticed_and_made_again
            what_is_gone_is_not_written_to_from_memory
            what_is_not_seen_yet_is_not_trampled_on;
        services:
            services_are_made_as_written
            an_edit_of_the_canary_is_carried_out
            ports_of_the_containers_are_added
            a_headless_service_stays_so
            unmanaged_metadata_is_left_alone
            what_serin_made_goes_with_the_canary;
        adoption:
            an_existing_service_is_adopted_and_put_back
            an_existing_route_is_adopted_and_put_back
            what_others_changed_meanwhile_stays
            another_port_by_the_same_name_is_kept
            a_later_edit_is_put_back_as_well
            restoring_twice_is_harmless
            an_apex_of_ours_leads_to_the_target_in_the_end
            what_belongs_to_another_canary_is_not_taken;
        refusals:
            what_it_cannot_do_is_refused_before_anything_is_touched
            what_it_can_do_is_not_refused;
    }
}

// For those whose route is an entry of a list that others have entries in too.
laws! {
    real_lists local_lists
    routers: [gateway gateway_mesh gateway_grpc istio istio_v1alpha3 istio_tcp app_mesh app_mesh_grpc]
    {
        lists:
            routes_of_others_survive_every_step_and_are_put_back
            the_route_to_the_apex_is_stood_in_for_and_put_back
            every_route_to_the_apex_is_stood_in_for_and_put_back
            an_edit_of_the_list_at_the_same_moment_loses_nothing
            a_list_that_somebody_puts_back_is_taken_over_again;
    }
}
