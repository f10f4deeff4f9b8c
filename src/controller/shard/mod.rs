//! Shards: which replica reconciles which Canaries. [`assignment`] decides (pure),
//! [`membership`] does the I/O, [`fence`] stops writes for shards that are not
//! held.

pub mod assignment;
pub mod fence;
pub mod membership;
