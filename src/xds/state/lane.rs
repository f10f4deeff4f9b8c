//! The resources of one type on one stream.
//!
//! ```text
//!   changed ─▶ dirty ─▶ outstanding ─ ACK ──▶ acknowledged
//!                ▲           │
//!                │           └─ NACK of one ──▶ rejected: not sent again in this version
//!                └───────────── NACK of several: each alone, to learn which one it is
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::xds::config::ResourceKey;

/// Version of a resource that a proxy has no content for. Versions of contents are
/// hashes; one that is equal costs a message.
pub(super) const ABSENT: u64 = u64::MAX;
/// Version of a resource that a proxy is not known to have an answer for.
pub(super) const UNKNOWN: u64 = 0;

#[derive(Default)]
pub(super) struct Lane {
    pub subscribed: bool,
    /// All resources of the type that are for this proxy.
    pub wildcard: bool,
    /// Subscribed by name.
    pub names: BTreeSet<Arc<str>>,
    pub held: BTreeMap<Arc<str>, Held>,
    /// May differ from what the proxy has.
    pub dirty: BTreeSet<Arc<str>>,
    pub outstanding: Option<Outstanding>,
    /// Reasons of refusals, by name.
    pub errors: BTreeMap<Arc<str>, Arc<str>>,
}

/// A resource that a proxy has or should have.
pub(super) struct Held {
    /// None: it has it from an earlier connection, and should not.
    pub key: Option<Arc<ResourceKey>>,
    pub wanted: bool,
    pub acked: u64,
    pub rejected: u64,
    /// Only with itself in a response.
    pub alone: bool,
    /// It is from an earlier connection.
    pub earlier: bool,
}

impl Held {
    pub fn new(key: Option<Arc<ResourceKey>>) -> Self {
        Self { wanted: key.is_some(), key, acked: UNKNOWN, rejected: UNKNOWN, alone: false, earlier: false }
    }
}

/// A response that was neither acknowledged nor rejected.
pub(super) struct Outstanding {
    pub nonce: u64,
    /// Names and versions.
    pub sent: Vec<(Arc<str>, u64)>,
}

impl Lane {
    pub fn is_settled(&self) -> bool {
        self.outstanding.is_none() && self.dirty.is_empty() && self.errors.is_empty()
    }
}
