//! The release engine from the outside: a simulated cluster performs its
//! actions, and every decision is checked against the invariants.

#[path = "../support/invariant.rs"]
mod invariant;

mod broken_pods;
mod checks;
mod conditions;
mod deadlines;
mod deletion;
mod flagger_regressions;
mod histories;
mod laws;
mod lost_primary;
mod plans;
mod promotion;
mod protection;
mod refused_routes;
mod regressions;
mod reverts;
mod revision;
mod route_migration;
mod scenarios;
mod world;
