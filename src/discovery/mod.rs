//! The inventory of meshes, workloads and services.
//!
//! ```text
//!   cluster ────kubernetes──▶ model: objects → facts → Inventory ──▶ cli/inventory
//!   reflectors ────live─────▶    "                      "        ──▶ controller, server
//!   MeshApis ──────rest─────▶    "                      "        ──▶ controller, server
//! ```
//!
//! [`model`] is pure: object versions in, inventory out. [`kubernetes`] lists the
//! objects of a cluster and feeds them in; [`live`] holds the inventory of a running
//! controller, which its reflectors feed, and [`rest`], which follows the APIs that
//! MeshApis register: App Mesh, Consul and other clusters. [`watch`] feeds one for a
//! command.

pub mod kubernetes;
pub mod live;
pub mod model;
pub mod rest;
pub mod watch;
