//! Who is asked: programs over real HTTP, and people on both API servers.

#[path = "../support/mod.rs"]
mod support;

mod annotations;
mod http;
mod people;
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
    people:
    an_approval_answers_the_question_that_waits
    who_may_not_approve_is_refused_and_nothing_is_written
    people_who_write_at_once_are_all_heard
    who_answers_again_has_changed_their_mind
    only_what_waits_can_be_approved
    a_webhook_can_be_opened_by_hand_but_not_refused
    what_is_over_is_forgotten_when_somebody_writes
    a_command_is_meant_for_the_present_revision
    the_command_line_says_yes_and_says_what_is_wrong;
    http:
    who_may_is_heard_over_http
    whom_nobody_knows_is_not_heard
    who_may_not_is_told_so_and_nothing_else
    every_command_is_heard_over_http
    what_is_misspelt_is_refused_with_the_way_out
    other_namespaces_are_not_spoken_of;
}
