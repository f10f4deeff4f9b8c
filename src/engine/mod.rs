//! The release state machine. Pure: no async, no clock, no client.

pub mod revision;
pub mod windows;
