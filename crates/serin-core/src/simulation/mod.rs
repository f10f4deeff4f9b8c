//! Releases on virtual time: simulated requests, read through the model of a metric source,
//! and decided by [`engine::decide`](crate::engine::decide) on a plan of the user's.
//!
//! ```text
//!   Scenario ─▶ Traffic (requests of each second and pod) ─▶ Reader (a metric source)
//!                     ▲ weight                                     │ measurements
//!   Plan ────────▶ Cluster (target, primary, route) ◀─▶ engine::decide
//!                     └─▶ Ending: outcome, time, failed requests, timeline
//! ```
//!
//! The engine and the judge are those of production. Pods, the route and gates are a model:
//! pods are ready after a set time, a split is in force at once, gates open. The same seed
//! gives the same release. `serin simulate` and the tables of `tests/releases` use it.

mod cluster;
pub mod flagger;
mod metric;
mod random;
pub mod release;
pub mod source;
pub mod traffic;

pub use cluster::Cluster;
pub use metric::MetricModel;
pub use random::Random;
pub use release::{Ending, Outcome, Setting, TimelineEntry};
pub use source::{Reader, Source};
pub use traffic::{Difference, Orders, Scenario, Shared, Traffic};
