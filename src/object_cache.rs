//! The cache of cluster objects that `routing` and `workload` read from and
//! write through.

use std::sync::Arc;

use kube::core::{ApiResource, DynamicObject};

/// Objects as the reflectors last delivered them.
pub trait ObjectCache: Send + Sync {
    fn get(&self, kind: &ApiResource, namespace: &str, name: &str) -> Option<Arc<DynamicObject>>;

    /// All objects of a kind in a namespace, ordered by name.
    fn list(&self, kind: &ApiResource, namespace: &str) -> Vec<Arc<DynamicObject>>;

    /// Read-your-writes: stores the response of a write, so that the next
    /// decision does not repeat it before the watch event arrives.
    fn apply_write_response(&self, kind: &ApiResource, written: DynamicObject);
}
