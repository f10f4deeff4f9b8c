//! `serin standalone`: manifests of a folder, releases of EndpointGroups through real Envoys,
//! and a process that is killed at any moment.

#[allow(dead_code, reason = "of the tests of the control plane")]
#[path = "../xds/client.rs"]
mod client;
mod docs;
mod limits;
mod machines;
mod manifests;
mod registries;
mod releases;
mod stage;
mod store;
#[path = "../support/mod.rs"]
mod support;

/// What the client of the control plane's tests takes from them.
mod plane {
    pub use crate::stage::LIMIT;
}
