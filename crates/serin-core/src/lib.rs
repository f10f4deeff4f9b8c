//! The pure part of Serin: what people write, how a release proceeds, and how
//! measurements are judged.
//!
//! | module       | purpose                                             | imports           |
//! |--------------|-----------------------------------------------------|-------------------|
//! | [`api`]      | the custom resources, one file per kind             | nothing           |
//! | [`engine`]   | the release state machine                           | `api`, `analysis` |
//! | [`analysis`] | the judge: measurements in, verdict out             | nothing           |
//! | [`simulation`] | releases on virtual time and simulated traffic    | all three         |
//!
//! Time and measurements are arguments, effects are values. The crate depends
//! on no async runtime and on no client, so an impure decision does not compile;
//! `tests/purity.rs` of the root package checks what the standard library would
//! still allow (clocks, files, threads).

pub mod analysis;
pub mod api;
pub mod engine;
pub mod simulation;
