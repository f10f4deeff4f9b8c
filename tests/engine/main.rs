//! The release engine, from the outside: a simulated world performs what it
//! wants done, and laws are checked on the way.

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
