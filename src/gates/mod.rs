//! Gates of a release: webhooks, and approvals and commands of users.
//!
//! | file            | purpose                                                      |
//! |-----------------|--------------------------------------------------------------|
//! | [`webhook`]     | calls a webhook; its response becomes a `GateReply`          |
//! | [`annotations`] | parses approvals and commands; pure, for the observation     |
//! | [`commands`]    | writes approvals and commands, after checking authorization  |
//! | [`question`]    | a waiting gate as buttons and signed links carry it          |
//!
//! Approvals and commands are annotations of the Canary: they survive restarts,
//! are visible to every client, and are part of every backup. An approval counts
//! for one gate call of one release of one Canary.

pub mod annotations;
pub mod commands;
pub mod question;
pub mod webhook;
