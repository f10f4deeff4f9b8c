//! Gates: webhooks over real HTTP, approvals and commands on both API servers.

#[path = "../support/mod.rs"]
mod support;

mod annotations;
mod chat;
mod commands;
mod http;
mod version;
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
    chat:
    a_click_in_slack_approves_as_the_user_of_the_table
    a_click_without_the_right_or_the_table_changes_nothing
    a_click_on_an_old_message_answers_nothing_later
    an_interaction_that_slack_did_not_sign_now_is_refused
    slack_is_acknowledged_although_its_result_cannot_be_sent
    a_link_asks_first_and_then_works_once
    a_link_needs_the_right_of_its_user_and_a_valid_signature
    a_link_to_an_earlier_question_answers_nothing;
}
