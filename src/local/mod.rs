//! A Kubernetes API in one process.

pub mod kinds;
pub mod schema;
