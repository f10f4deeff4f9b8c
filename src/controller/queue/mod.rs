//! From a change to a running reconcile: requests, and the dispatcher that feeds
//! the work queue.

pub mod dispatcher;
pub mod trigger;
