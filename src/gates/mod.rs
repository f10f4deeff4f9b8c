//! Who is asked before a release goes on: programs, by webhook, and people.
//!
//! | file            | what it does                                              |
//! |-----------------|-----------------------------------------------------------|
//! | [`webhook`]     | asks a program over HTTP and makes its answer a `GateReply` |
//! | [`annotations`] | reads what people said; pure, for the observation         |
//! | [`commands`]      | writes what people say, after checking that they may      |
//!
//! What people say is kept on the Canary itself, so it outlives controllers,
//! is seen by whoever watches the Canary, and is part of every backup. An
//! answer counts for one question of one release of one Canary and for no
//! other.

pub mod annotations;
pub mod commands;
pub mod webhook;
