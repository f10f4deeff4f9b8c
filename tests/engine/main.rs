//! The release engine from the outside: a simulated cluster performs its
//! actions, and every decision is checked against the invariants.

#[path = "../support/invariant.rs"]
mod invariant;

mod checks;
mod flagger_regressions;
mod histories;
mod laws;
mod plans;
mod regressions;
mod revision;
mod route_migration;
mod scenarios;
mod world;
