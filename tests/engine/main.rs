//! The release engine, from the outside: a simulated world performs what it
//! wants done, and laws are checked on the way.

mod defects;
mod found;
mod histories;
mod laws;
mod looks;
mod plans;
mod revision;
mod scenarios;
mod world;
