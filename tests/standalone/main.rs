//! `serin standalone`: manifests of a folder, releases of EndpointGroups through real Envoys,
//! and a process that is killed at any moment.

mod docs;
mod machines;
mod manifests;
mod releases;
mod stage;
mod store;
#[path = "../support/mod.rs"]
mod support;
