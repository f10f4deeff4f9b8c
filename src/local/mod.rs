//! A Kubernetes API in one process.

pub mod builtin;
pub mod describe;
pub mod kinds;
pub mod schema;
