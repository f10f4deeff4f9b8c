//! The service catalog and the control plane: with a small client that speaks the
//! protocol exactly, and with real Envoys and requests through them.

#[path = "../support/mod.rs"]
mod support;

mod access;
mod callers;
mod catalog;
mod certificates;
mod client;
mod connections;
mod delivery;
mod envoy;
mod hostile;
mod plane;
mod state_of_the_world;
mod traffic;
