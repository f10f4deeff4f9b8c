//! Facts in, inventory out: no async, no clock, no client.
//!
//! ```text
//!   Object::parse ─▶ Inventory::apply, remove, list_complete      marks views as stale
//!   rules          ─▶ Fact: subject, evidence, strength           one table row per mesh
//!   Inventory::refresh                                            recomputes stale views
//!     membership ─▶ Workload      routes ─▶ Service      releasable ─▶ Workload
//! ```
//!
//! `external` has the objects of App Mesh, Cloud Map and Consul; a source outside this
//! process feeds the inventory by [`Change`]s.
//!
//! A pod names its workload by itself (`owner.rs`), so a changed pod makes one
//! workload stale. An object leaves the inventory by `remove`, or when a complete
//! listing of its kind in its cluster no longer shows it.

mod change;
mod choice;
mod external;
mod fact;
mod inventory;
mod key;
mod label_index;
mod membership;
mod mesh;
mod object;
mod owner;
mod parse;
mod releasable;
mod route;
mod rules;
mod service;
mod workload;

pub use change::Change;
pub use choice::{Choice, RouteHints};
pub use external::{External, VirtualNodeBinding, aws_scope, consul_scope};
pub use fact::{Evidence, Fact, MeshKind, Mode, Source, Strength};
pub use inventory::{Inventory, ListScope};
pub use key::{Detail, Key, Kind};
pub use mesh::{ControlPlane, Mesh, Skew};
pub use object::Object;
pub use releasable::{Provider, Releasable};
pub use route::{Outcome, RouteStanding, Scope};
pub use rules::{ConfigMapRule, MeshRule, RULES, config_maps};
pub use service::{Port, Service, Subset};
pub use workload::{Image, Membership, Role, Workload};
