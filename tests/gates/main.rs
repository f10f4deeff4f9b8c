//! Gates: webhooks over real HTTP, approvals and commands on both API servers.

#[path = "../support/mod.rs"]
mod support;

mod annotations;
mod commands;
mod http;
mod webhooks;
mod world;

/// Makes a test of each law on each server.
macro_rules! laws {
    ($($room:ident: $($law:ident)*;)*) => {
        mod real { $($(#[tokio::test] async fn $law() { crate::$room::$law(crate::world::World::real().await).await })*)* }
        mod local { $($(#[tokio::test] async fn $law() { crate::$room::$law(crate::world::World::local().await).await })*)* }
    };
}

laws! {
    commands:
    an_approval_answers_the_waiting_gate
    an_approval_without_permission_is_refused_and_not_written
    concurrent_approvals_are_all_recorded
    a_second_answer_replaces_the_first
    only_a_waiting_gate_can_be_approved
    a_webhook_can_be_opened_by_hand_but_not_refused
    entries_of_past_releases_are_pruned_on_write
    a_command_applies_to_the_current_revision_only
    the_command_line_approves_and_reports_errors;
    http:
    a_permitted_users_command_is_accepted_over_http
    an_unauthenticated_command_is_rejected
    a_forbidden_user_learns_nothing_but_that
    every_command_is_accepted_over_http
    an_invalid_command_is_refused_with_a_remedy
    a_name_that_is_none_reaches_no_url
    a_body_that_never_comes_holds_no_turn
    canaries_of_other_namespaces_are_not_disclosed;
}
